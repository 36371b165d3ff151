# SPDX-License-Identifier: Apache-2.0
"""Small frames beside large ones: the reserve for whole frames, and the pace that unfinished frames must keep."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits

if TYPE_CHECKING:
    from penstock.governance.memory_pool import Lease

FRAME_MAX = 5 * MIB
SIZE = 64 * MIB
RESERVE = SIZE // 4
ORDINARY = SIZE - RESERVE
READ = 512 * KIB
SMALL = KIB


def memory(size: int = SIZE, *, requests: int = -1) -> RequestMemory:
    return RequestMemory(RequestLimits(request_bytes_max=size, requests_max=requests, frame_bytes_max=FRAME_MAX))


def read_some(pool: RequestMemory, owner: int, held: dict[int, int], now_ns: int, nbytes: int = READ) -> int:
    """Read on in a frame of the largest size, whose answer comes at once; 0: refused."""
    missing = FRAME_MAX - held.get(owner, 0)
    granted = pool.try_charge(owner, min(nbytes, missing), missing if held.get(owner) else 0, now_ns)
    if granted:
        held[owner] = (held.get(owner, 0) + granted) % FRAME_MAX
        done = FRAME_MAX if not held[owner] else 0
        lease = pool.recharge(owner, granted, held[owner], done, int(bool(done)), now_ns)
        if lease is not None:
            pool.release(lease)
    return granted


def flood(pool: RequestMemory, connections: int, now_ns: int = 0) -> dict[int, int]:
    """Let so many connections begin a large frame each, until none can read on; returns what they hold."""
    held: dict[int, int] = {}
    owners = list(range(1_000, 1_000 + connections))
    while any(read_some(pool, owner, held, now_ns) for owner in owners if held.get(owner, 0) < FRAME_MAX - READ):
        pass
    assert pool.used >= ORDINARY
    return held


def send_whole(pool: RequestMemory, owner: int, nbytes: int, now_ns: int = 0) -> Lease | None:
    """A whole frame lies at the socket: read it if there is memory."""
    granted = pool.try_charge(owner, READ, 0, now_ns) or pool.look(owner, nbytes, nbytes, now_ns)
    return pool.recharge(owner, min(granted, nbytes), 0, nbytes, 1, now_ns) if granted else None


def test_a_whole_small_frame_is_read_while_two_hundred_large_ones_hold_all_the_rest() -> None:
    pool = memory()
    flood(pool, 200)
    lease = send_whole(pool, 1, SMALL)
    assert lease is not None
    assert (lease.size_bytes, lease.reserved_bytes) == (SMALL, SMALL)
    assert 1 not in {muted.owner for muted in pool.snapshot(0).muted}
    pool.release(lease)
    assert pool.snapshot(0).reserve_used_bytes == 0


def test_reads_that_may_leave_an_unfinished_frame_never_have_the_reserve() -> None:
    pool = memory()
    flood(pool, 200)
    leases = [send_whole(pool, owner, 128 * KIB) for owner in range(RESERVE // (128 * KIB))]
    assert all(leases)
    assert pool.snapshot(0).reserve_used_bytes == RESERVE
    assert pool.used <= SIZE + FRAME_MAX - 1


def test_what_finishes_a_frame_that_was_begun_before_may_come_from_the_reserve() -> None:
    pool = memory()
    assert pool.try_charge(1, 700, 0, 0) == 700
    pool.recharge(1, 700, 700, 0, 0, 0)
    flood(pool, 200)
    assert pool.try_charge(1, READ, 324, 0) == 0
    assert pool.look(1, 324, 324, 0) == 324
    lease = pool.recharge(1, 324, 0, 1_024, 1, 0)
    assert lease is not None
    assert (lease.size_bytes, lease.reserved_bytes) == (1_024, 324)
    used = pool.used
    pool.release(lease)
    assert pool.used == used - 1_024


def test_a_command_of_the_reserve_that_is_kept_for_its_turn_stays_charged_to_it() -> None:
    for leave in (False, True):
        pool = memory()
        assert pool.try_charge(1, 700, 0, 0) == 700
        pool.recharge(1, 700, 700, 0, 0, 0)
        flood(pool, 200)
        ordinary = pool.used
        assert pool.try_charge(1, READ, 324, 0) == 0
        assert pool.look(1, 2_000, 1_324, 0) == 1_324
        lease = pool.recharge(1, 1_324, 1_024, 1_000, 1, 0)  # A SEND follows the command, which is still kept.
        assert lease is not None
        assert pool.used == ordinary + 1_324
        assert pool.snapshot(0).reserve_used_bytes == 1_324
        pool.release(lease)
        assert pool.snapshot(0).reserve_used_bytes == 324
        if leave:
            pool.forget(1, 0)
        else:
            pool.recharge(1, 0, 0, 0, 0, 0)
        assert (pool.used, pool.snapshot(0).reserve_used_bytes) == (ordinary - 700, 0)


def test_those_who_find_the_reserve_spent_are_woken_by_its_release_while_the_rest_stays_spent() -> None:
    pool = memory()
    flood(pool, 200)
    leases = [send_whole(pool, owner, 128 * KIB) for owner in range(RESERVE // (128 * KIB))]
    for owner in (701, 702, 703):
        assert send_whole(pool, owner, SMALL) is None
    lease = leases.pop()
    assert lease is not None
    pool.release(lease)
    woken = pool.wake(0)
    assert woken[:3] == [701, 702, 703]
    assert send_whole(pool, 704, SMALL) is not None  # There is room beside what was promised.
    assert [send_whole(pool, owner, SMALL) is not None for owner in woken[:3]] == [True] * 3


def test_nobody_takes_what_was_promised_of_the_reserve() -> None:
    pool = memory()
    flood(pool, 200)
    lease = send_whole(pool, 1, RESERVE)
    assert lease is not None
    assert send_whole(pool, 2, RESERVE - 10) is None
    pool.release(lease)
    assert 2 in pool.wake(0)
    assert send_whole(pool, 3, 11) is None
    assert send_whole(pool, 2, RESERVE - 10) is not None


def test_the_number_of_requests_stops_whole_frames_too() -> None:
    pool = memory(requests=1)
    lease = send_whole(pool, 1, SMALL)
    assert lease is not None
    assert send_whole(pool, 2, SMALL) is None
    assert pool.snapshot(0).muted[0].reason is HoldKind.REQUEST_COUNT
    pool.release(lease)
    assert pool.wake(0) == [2]


def test_the_reserve_leaves_room_for_one_largest_frame() -> None:
    limits = RequestLimits(request_bytes_max=FRAME_MAX + 10, requests_max=-1, frame_bytes_max=FRAME_MAX)
    assert limits.reserve_bytes == 10
    assert RequestLimits(request_bytes_max=-1, requests_max=-1, frame_bytes_max=FRAME_MAX).reserve_bytes == 0
    with pytest.raises(ValueError, match="want 0 <= reserve_ratio < 1, got 1"):
        RequestLimits(request_bytes_max=-1, requests_max=-1, frame_bytes_max=FRAME_MAX, reserve_ratio=1.0)


def test_the_waits_of_reads_that_had_to_wait_are_counted_and_others_are_not() -> None:
    pool = memory(requests=1)
    lease = send_whole(pool, 1, SMALL)
    assert lease is not None
    assert pool.snapshot(0).waits.count == 0
    assert send_whole(pool, 2, SMALL) is None
    pool.release(lease)
    assert pool.wake(7 * NS_PER_MS) == [2]
    assert send_whole(pool, 2, SMALL, 7 * NS_PER_MS) is not None
    waits = pool.snapshot(7 * NS_PER_MS).waits
    assert (waits.count, waits.longest_ns) == (1, 7 * NS_PER_MS)
    assert isnan(memory().snapshot(0).waits.quantiles_ns[0][1])


# -- pace --------------------------------------------------------------------------------------------------------------


def trickling(bytes_per_s: int, *, seconds: int) -> tuple[set[int], int]:
    """30 connections send nine tenths of a frame and go on slowly, while one waits for ordinary memory.

    Returns who was evicted, and when the one that waits was first served, in milliseconds (-1: never).
    """
    pool, held, evicted = memory(), dict[int, int](), set[int]()
    owners = list(range(1_000, 1_030))
    slow_from = FRAME_MAX * 9 // 10
    budget = dict.fromkeys(owners, 0.0)
    for ms in range(0, 1_000 * seconds, 10):
        now_ns = ms * NS_PER_MS
        for owner in list(owners):
            at = held.get(owner, 0)
            budget[owner] = budget[owner] + bytes_per_s / 100 if at >= slow_from else slow_from - at
            if budget[owner] >= 1:
                budget[owner] -= read_some(pool, owner, held, now_ns, int(budget[owner]))
        if ms == 100:
            assert pool.try_charge(1, READ, 0, now_ns) == 0  # What it sends is not whole yet.
        for owner in pool.evict(now_ns) if ms % 250 == 0 else ():
            pool.forget(owner, now_ns)
            owners.remove(owner)
            held.pop(owner)
            evicted.add(owner)
        while woken := pool.wake(now_ns):
            for owner in woken:
                if owner == 1:
                    return evicted, ms
                if budget[owner] >= 1:
                    budget[owner] -= read_some(pool, owner, held, now_ns, int(budget[owner]))
                else:
                    pool.pause(owner, now_ns)
    return evicted, -1


def test_frames_that_come_at_70_kilobytes_a_second_are_evicted_when_others_starve() -> None:
    evicted, served_ms = trickling(70_000, seconds=10)
    assert evicted
    assert 0 < served_ms <= 3_000


def test_frames_that_come_quickly_enough_are_finished_and_not_evicted() -> None:
    evicted, served_ms = trickling(1_500_000, seconds=10)
    assert not evicted
    assert 0 < served_ms <= 3_000


def hold(pool: RequestMemory, owner: int, nbytes: int, now_ns: int = 0) -> None:
    """Read the first `nbytes` of a frame."""
    held = dict[int, int]()
    while held.get(owner, 0) < nbytes:
        assert read_some(pool, owner, held, now_ns, min(READ, nbytes - held.get(owner, 0)))


def test_the_pace_that_a_frame_must_keep_rises_while_others_starve() -> None:
    pool = memory(2 * FRAME_MAX)
    hold(pool, 10, 4 * MIB)
    hold(pool, 11, pool.ordinary_bytes - 4 * MIB)
    assert pool.try_charge(1, READ, 0, 0) == 0
    held = {10: 4 * MIB}
    evicted_at_s: list[int] = []
    for second in range(1, 5):
        now_ns = second * NS_PER_S
        assert read_some(pool, 10, held, now_ns, 150 * KIB) == 150 * KIB  # the finisher
        evicted_at_s += [second] * bool(pool.evict(now_ns + 1))
    assert evicted_at_s == [3, 4]  # at 192 KiB a second, and no sooner


def test_a_slow_frame_is_not_evicted_while_others_wait_but_are_served() -> None:
    pool = memory()
    held = dict.fromkeys(range(10, 16), 9 * FRAME_MAX // 10)
    for owner, nbytes in held.items():
        hold(pool, owner, nbytes)
    assert sum(held.values()) > ORDINARY // 2
    leases: list[Lease] = []
    queue = list(range(100, 200))
    for ms in range(0, 5_000, 10):
        now_ns = ms * NS_PER_MS
        for lease in leases[: 4 * len(leases) // 5]:
            pool.release(lease)
        leases = leases[4 * len(leases) // 5 :]
        for owner in queue if ms == 0 else pool.wake(now_ns):
            while granted := pool.try_charge(owner, READ, 0, now_ns):
                lease_or_none = pool.recharge(owner, granted, 0, granted, 1, now_ns)
                assert lease_or_none is not None
                leases.append(lease_or_none)
        if ms % 500 == 0:  # 100 KiB a second, as long as there is something left to send
            for owner in held:
                if read_some(pool, owner, held, now_ns, 50 * KIB) == 0:
                    pool.pause(owner, now_ns)
        assert pool.waiting
        assert pool.evict(now_ns) == []
