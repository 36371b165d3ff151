# SPDX-License-Identifier: Apache-2.0
"""Request memory, case by case: who may read how much, who waits, who is woken, who has to go."""

from __future__ import annotations

import gc
import weakref

import pytest

from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.governance.fair_queue import PROGRESS_BYTES, PROGRESS_NS
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import UNBOUNDED, ForeignLease, LeakDetector, Lease
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits

SIZE = 64 * KIB
FRAME_MAX = 48 * KIB
BOUND = SIZE + FRAME_MAX - 1
LENGTH = 4  # A frame's first bytes, which say how long it is.


def memory(size: int = SIZE, *, requests: int = -1, frame_max: int = FRAME_MAX) -> RequestMemory:
    return RequestMemory(
        RequestLimits(request_bytes_max=size, requests_max=requests, frame_bytes_max=frame_max, reserve_ratio=0.0)
    )


def admit(pool: RequestMemory, owner: int, nbytes: int, requests: int = 1) -> Lease:
    """Read `nbytes` of complete frames that now wait for their answers."""
    assert pool.try_charge(owner, nbytes, 0, 0) == nbytes
    lease = pool.recharge(owner, nbytes, 0, nbytes, requests, 0)
    assert lease is not None
    return lease


def hold(pool: RequestMemory, owner: int, nbytes: int, now_ns: int = 0) -> None:
    """Read the first `nbytes` of a frame."""
    assert pool.try_charge(owner, nbytes, 0, now_ns) == nbytes
    assert pool.recharge(owner, nbytes, nbytes, 0, 0, now_ns) is None


# -- limits ----------------------------------------------------------------------------------------------------------


def test_p32_a_bound_below_one_frame_is_rejected_by_the_names_of_its_keys() -> None:
    with pytest.raises(ValueError, match=r"queued\.max\.request\.bytes=99 .*socket\.request\.max\.bytes=100"):
        RequestLimits(request_bytes_max=99, requests_max=1, frame_bytes_max=100)
    RequestLimits(request_bytes_max=100, requests_max=1, frame_bytes_max=100)


def test_p32_a_frame_must_be_longer_than_its_length_field() -> None:
    with pytest.raises(ValueError, match=r"socket\.request\.max\.bytes must be above 4, got 4"):
        RequestLimits(request_bytes_max=-1, requests_max=1, frame_bytes_max=4)


@pytest.mark.parametrize("off", [0, -1])
def test_bounds_of_zero_or_less_are_off_but_the_books_are_kept(off: int) -> None:
    pool = memory(off, requests=off)
    lease = admit(pool, 1, 100 * MIB, requests=1_000_000)
    assert pool.try_charge(2, 100 * MIB, 0, 0) == 100 * MIB
    seen = pool.snapshot(0)
    assert (seen.size_bytes, seen.requests_max) == (UNBOUNDED, UNBOUNDED)
    assert (seen.used_bytes, seen.pending_bytes, seen.requests) == (200 * MIB, 100 * MIB, 1_000_000)
    pool.release(lease)


# -- charging --------------------------------------------------------------------------------------------------------


def test_bytes_are_charged_before_they_are_read_and_what_leaves_nothing_behind_is_free_again() -> None:
    pool = memory()
    assert pool.try_charge(1, 16 * KIB, 0, 0) == 16 * KIB
    assert (pool.used, pool.available) == (16 * KIB, 48 * KIB)
    assert pool.recharge(1, 500, 0, 0, 0, 0) is None
    assert pool.used == 0


def test_what_a_read_leaves_is_charged_to_the_byte_until_it_is_answered() -> None:
    pool = memory()
    pool.try_charge(1, 16 * KIB, 0, 0)
    lease = pool.recharge(1, 1_000, 100, 700, 3, 0)
    assert lease is not None
    seen = pool.snapshot(0)
    assert (seen.used_bytes, seen.held_bytes, seen.pending_bytes, seen.requests) == (800, 100, 700, 3)
    pool.release(lease)
    assert (pool.used, pool.snapshot(0).requests) == (100, 0)


def test_the_held_part_of_a_frame_becomes_pending_when_the_frame_is_complete() -> None:
    pool = memory()
    hold(pool, 1, 5_000)
    pool.try_charge(1, 10_000, 3_000, 0)
    lease = pool.recharge(1, 3_000, 0, 8_000, 1, 0)
    assert lease is not None
    assert (pool.used, pool.snapshot(0).held_bytes) == (8_000, 0)
    pool.release(lease)
    assert pool.used == 0


def test_an_announced_length_costs_nothing() -> None:
    pool = memory()
    hold(pool, 1, 10)
    assert pool.used == 10


def test_a_lease_goes_back_once_and_only_to_its_own_memory() -> None:
    pool, other = memory(), memory()
    lease = admit(pool, 1, 100)
    with pytest.raises(ForeignLease):
        other.release(lease)
    pool.release(lease)
    with pytest.raises(ForeignLease):
        pool.release(lease)
    assert (pool.used, other.used, pool.snapshot(0).requests) == (0, 0, 0)


def test_a_part_of_a_lease_is_released_on_its_own() -> None:
    pool = memory()
    lease = admit(pool, 1, 10 * KIB, 4)
    part = pool.split(lease, 3 * KIB, 1)
    assert (pool.used, lease.size_bytes, part.size_bytes) == (10 * KIB, 7 * KIB, 3 * KIB)
    assert (lease.requests, part.requests, part.owner) == (3, 1, 1)
    pool.release(lease)
    assert pool.used == 3 * KIB
    pool.release(part)
    assert (pool.used, pool.snapshot(0).requests) == (0, 0)
    with pytest.raises(ForeignLease):
        pool.split(lease, 0, 0)


def test_reserved_bytes_of_a_lease_stay_with_it_as_long_as_they_fit() -> None:
    pool = RequestMemory(
        RequestLimits(request_bytes_max=SIZE, requests_max=-1, frame_bytes_max=FRAME_MAX, reserve_ratio=0.25)
    )
    hold(pool, 1, 48 * KIB)
    assert pool.try_charge(2, 4 * KIB, 0, 0) == 0
    assert pool.look(2, 4 * KIB, 4 * KIB, 0) == 4 * KIB
    lease = pool.recharge(2, 4 * KIB, 0, 4 * KIB, 2, 0)
    assert lease is not None
    part = pool.split(lease, KIB, 1)
    assert lease.reserved_bytes + part.reserved_bytes == 4 * KIB
    for one in (part, lease):
        pool.release(one)
    assert pool.snapshot(0).reserve_used_bytes == 0


def test_p13_a_dropped_lease_comes_back_with_its_requests_and_names_its_owner() -> None:
    limits = RequestLimits(request_bytes_max=SIZE, requests_max=10, frame_bytes_max=FRAME_MAX, reserve_ratio=0.0)
    pool = RequestMemory(limits, hunter=LeakDetector())
    pool.release(admit(pool, 1, 100, requests=2))
    pool.try_charge(7, 5_000, 0, 0)
    pool.recharge(7, 5_000, 0, 5_000, 4, 0)
    gc.collect()
    assert [(leak.owner, leak.size_bytes, leak.requests) for leak in pool.recover_leaks()] == [(7, 5_000, 4)]
    assert (pool.used, pool.snapshot(0).requests) == (0, 0)


def test_the_high_water_mark_is_the_most_that_was_ever_used() -> None:
    pool = memory()
    pool.release(admit(pool, 1, 30 * KIB))
    admit(pool, 1, 10 * KIB)
    assert pool.snapshot(0).used_bytes_max == 30 * KIB


# -- waiting and waking ----------------------------------------------------------------------------------------------


def test_a_read_gets_what_is_left_and_not_more() -> None:
    pool = memory()
    admit(pool, 1, 40 * KIB)
    assert pool.try_charge(2, 30 * KIB, 0, 0) == 24 * KIB


def test_a_read_that_would_bring_too_little_to_be_worth_it_waits() -> None:
    pool = memory()
    admit(pool, 1, SIZE - 1_000)
    assert pool.try_charge(2, 30 * KIB, 0, 0) == 0
    assert pool.try_charge(3, 1_000, 0, 0) == 0  # It would fit, but 2 came first.
    pool.pause(2, 0)
    assert pool.wake(0) == [3]
    assert pool.try_charge(3, 1_000, 0, 0) == 1_000


def test_a_short_read_is_worth_it_if_it_completes_a_frame() -> None:
    pool = memory()
    hold(pool, 1, 100)
    admit(pool, 2, SIZE - 200)
    assert pool.try_charge(1, 30 * KIB, 10, 0) == 100
    assert pool.snapshot(0).finisher is None


def test_those_who_wait_are_woken_in_the_order_they_came_and_only_as_many_as_fit() -> None:
    pool = memory()
    leases = [admit(pool, 1, 16 * KIB) for _ in range(4)]
    for owner in range(10, 20):
        assert pool.try_charge(owner, 16 * KIB, 0, 0) == 0
    assert pool.wake(0) == []
    pool.release(leases[0])
    assert pool.wake(0) == [10]
    assert pool.wake(0) == []  # The bytes are promised to 10.
    pool.release(leases[1])
    pool.release(leases[2])
    assert pool.wake(0) == [11, 12]
    assert [pool.try_charge(owner, 16 * KIB, 0, 0) for owner in (12, 10, 11)] == [16 * KIB] * 3
    assert [muted.owner for muted in pool.snapshot(0).muted] == list(range(13, 20))


def test_nobody_takes_what_was_promised_to_another() -> None:
    pool = memory()
    lease = admit(pool, 1, SIZE)
    pool.try_charge(2, SIZE, 0, 0)
    pool.release(lease)
    assert pool.wake(0) == [2]
    assert pool.try_charge(3, SIZE, 0, 0) == 0
    assert pool.try_charge(2, SIZE, 0, 0) == SIZE


def test_a_newcomer_may_use_what_is_left_after_all_promises() -> None:
    pool = memory()
    lease = admit(pool, 1, SIZE)
    pool.try_charge(2, 16 * KIB, 0, 0)
    pool.release(lease)
    assert pool.wake(0) == [2]
    assert pool.try_charge(3, 16 * KIB, 0, 0) == 16 * KIB


def test_one_that_was_woken_but_finds_too_little_keeps_its_place_at_the_front() -> None:
    pool = memory()
    pending = [admit(pool, 1, 19 * KIB), admit(pool, 1, 5 * KIB)]
    hold(pool, 5, 40 * KIB)
    assert pool.try_charge(2, 8 * KIB, 0, 0) == 0
    assert pool.try_charge(3, 8 * KIB, 0, 0) == 0
    assert pool.try_charge(5, 8 * KIB, 8 * KIB, 0) == 8 * KIB  # the finisher
    pool.release(pending[0])
    assert pool.wake(0) == [2]
    assert pool.try_charge(2, 8 * KIB, 0, 0) == 8 * KIB
    pool.recharge(2, 8 * KIB, 0, 8 * KIB, 1, 0)
    pool.recharge(5, 1, 40 * KIB + 1, 0, 0, 0)
    assert pool.wake(0) == [3]
    assert pool.try_charge(5, 8 * KIB, 8 * KIB - 1, 0) == 8 * KIB - 1  # It finishes its frame and leaves 3 too little.
    assert pool.try_charge(4, 8 * KIB, 0, 0) == 0
    assert pool.try_charge(3, 8 * KIB, 0, 0) == 0
    assert [muted.owner for muted in pool.snapshot(0).muted] == [3, 4]
    pool.release(pending[1])
    pool.forget(5, 0)
    assert pool.wake(0)[0] == 3


def test_the_longest_wait_is_the_bytes_ahead_divided_by_the_drain_rate() -> None:
    """B3: 1,000 wait for 16 KiB each; every tick 64 KiB of answers go out; 4 are served per tick, in order."""
    pool = memory()
    leases = [admit(pool, 0, 16 * KIB) for _ in range(4)]
    for owner in range(1, 1_001):
        assert pool.try_charge(owner, 16 * KIB, 0, 0) == 0
    for tick in range(250):
        for lease in leases:
            pool.release(lease)
        woken = pool.wake(tick)
        assert woken == list(range(1 + 4 * tick, 5 + 4 * tick))
        leases = [admit(pool, owner, 16 * KIB) for owner in woken]
    assert not pool.waiting


def test_a_reader_that_pauses_or_leaves_gives_its_turn_to_the_next() -> None:
    for give_up in (RequestMemory.pause, RequestMemory.forget):
        pool = memory()
        lease = admit(pool, 1, SIZE)
        for owner in (2, 3):
            pool.try_charge(owner, SIZE, 0, 0)
        pool.release(lease)
        assert pool.wake(0) == [2]
        give_up(pool, 2, 0)
        assert pool.wake(0) == [3]
        assert pool.try_charge(3, SIZE, 0, 0) == SIZE


def test_a_reader_that_paused_reads_again_when_it_asks() -> None:
    pool = memory()
    hold(pool, 1, 100)
    pool.pause(1, 5)
    assert not pool.waiting
    assert pool.try_charge(1, 100, 50, 9) == 100


# -- the finisher ----------------------------------------------------------------------------------------------------


def spent_on_unfinished_frames() -> RequestMemory:
    """Four connections hold 16 KiB each of frames of exactly the maximum; nothing is left."""
    pool = memory()
    for owner in range(4):
        hold(pool, owner, 16 * KIB)
    return pool


def test_when_unfinished_frames_hold_everything_one_of_them_may_be_finished() -> None:
    pool = spent_on_unfinished_frames()
    assert pool.try_charge(2, 256 * KIB, 32 * KIB, 0) == 32 * KIB
    assert [pool.try_charge(owner, 256 * KIB, 32 * KIB, 0) for owner in (0, 1, 3)] == [0, 0, 0]
    assert pool.snapshot(0).finisher == 2
    assert pool.used == SIZE + 32 * KIB <= BOUND


def test_a_reader_at_a_frame_boundary_never_overdraws() -> None:
    pool = spent_on_unfinished_frames()
    assert pool.try_charge(9, 256 * KIB, 0, 0) == 0
    assert pool.try_charge(0, 256 * KIB, 32 * KIB, 0) == 32 * KIB


def test_the_finisher_reads_on_in_as_many_pieces_as_it_needs() -> None:
    pool = spent_on_unfinished_frames()
    held = 16 * KIB
    for missing in range(32 * KIB, 0, -8 * KIB):
        assert pool.try_charge(0, 8 * KIB, missing, 0) == 8 * KIB
        held += 8 * KIB
        if missing > 8 * KIB:
            pool.recharge(0, 8 * KIB, held, 0, 0, 0)
    assert pool.recharge(0, 8 * KIB, 0, FRAME_MAX, 1, 0) is not None
    assert pool.snapshot(0).finisher is None


def test_finishers_follow_one_another_until_all_frames_are_complete() -> None:
    pool = spent_on_unfinished_frames()
    held, finished, to_read = dict.fromkeys(range(4), 16 * KIB), list[int](), [3, 1, 0, 2]
    while to_read:
        owner = to_read.pop(0)
        granted = pool.try_charge(owner, SIZE, FRAME_MAX - held[owner], 0)
        assert pool.used <= BOUND
        if granted:
            held[owner] += granted
            if held[owner] < FRAME_MAX:
                pool.recharge(owner, granted, held[owner], 0, 0, 0)
                to_read.append(owner)
            else:
                lease = pool.recharge(owner, granted, 0, FRAME_MAX, 1, 0)
                assert lease is not None
                assert pool.wake(0) == []  # Complete but unanswered: no room yet for the rest of another.
                pool.release(lease)
                finished.append(owner)
        to_read += pool.wake(0)
    assert finished[0] == 3
    assert sorted(finished) == [0, 1, 2, 3]
    assert (pool.used, pool.waiting) == (0, False)


def test_one_byte_held_of_the_largest_frame_overdraws_to_the_bound_exactly() -> None:
    pool = memory()
    admit(pool, 1, SIZE - LENGTH - 1)
    hold(pool, 2, LENGTH + 1)
    assert pool.try_charge(2, SIZE, FRAME_MAX - LENGTH - 1, 0) == FRAME_MAX - LENGTH - 1
    assert pool.used == BOUND - LENGTH


def test_a_frame_of_unknown_length_is_finished_only_if_the_largest_would_fit() -> None:
    pool = memory()
    first = admit(pool, 1, SIZE - 8 * KIB)
    hold(pool, 2, 8 * KIB - 2)
    hold(pool, 3, 2)  # Two of the four length bytes, and the memory is spent.
    assert pool.try_charge(2, SIZE, 30 * KIB, 0) == 30 * KIB
    second = pool.recharge(2, 30 * KIB, 0, 38 * KIB - 2, 1, 0)
    assert second is not None
    # The two missing length bytes would fit under the bound, but the frame behind them might not.
    assert pool.try_charge(3, SIZE, 2, 0) == 0
    pool.release(second)
    assert pool.wake(0) == [3]
    pool.release(first)


def test_the_next_finisher_waits_until_the_bound_leaves_room_for_the_rest_of_its_frame() -> None:
    pool = spent_on_unfinished_frames()
    pool.try_charge(0, SIZE, 32 * KIB, 0)
    lease = pool.recharge(0, 32 * KIB, 0, FRAME_MAX, 1, 0)
    assert lease is not None
    assert pool.try_charge(1, SIZE, 16 * KIB, 0) == 0  # 64 + 32 + 16 KiB would be one byte too many.
    assert pool.try_charge(2, SIZE, 16 * KIB - 1, 0) == 0  # This one would fit, but 1 came first.
    assert pool.wake(0) == []
    pool.forget(1, 0)
    assert pool.wake(0) == [2]


def test_a_finisher_that_leaves_or_pauses_makes_way_for_the_next() -> None:
    for give_up in (RequestMemory.pause, RequestMemory.forget):
        pool = spent_on_unfinished_frames()
        assert pool.try_charge(0, 1_000, 32 * KIB, 0) == 1_000
        pool.recharge(0, 0, 16 * KIB, 0, 0, 0)
        assert pool.try_charge(1, SIZE, 32 * KIB, 0) == 0
        give_up(pool, 0, 0)
        assert pool.wake(0) == [1]
        assert pool.try_charge(1, SIZE, 32 * KIB, 0) >= 16 * KIB


def test_pulling_memory_by_the_pool_interface_never_overdraws() -> None:
    pool = memory()
    admit(pool, 1, SIZE - 10)
    assert pool.try_allocate(11) is None
    lease = pool.try_allocate(10)
    assert lease is not None
    pool.release(lease)


# -- the count of requests -------------------------------------------------------------------------------------------


def test_the_count_alone_stops_reading_and_its_release_starts_it_again() -> None:
    pool = memory(requests=3)
    leases = [admit(pool, 1, 10) for _ in range(3)]
    assert [pool.try_charge(owner, 10, 0, 0) for owner in (1, 2, 3)] == [0, 0, 0]
    assert {muted.reason for muted in pool.snapshot(0).muted} == {HoldKind.REQUEST_COUNT}
    pool.release(leases[0])
    assert pool.wake(0) == [1]  # one free place, one turn
    assert pool.wake(0) == []
    assert pool.try_charge(1, 10, 0, 0) == 10


def test_nobody_takes_the_place_among_the_requests_that_was_promised_to_another() -> None:
    pool = memory(requests=1)
    lease = admit(pool, 1, 10)
    pool.try_charge(2, 10, 0, 0)
    pool.release(lease)
    assert pool.wake(0) == [2]
    assert pool.try_charge(3, 10, 0, 0) == 0
    assert pool.try_charge(2, 10, 0, 0) == 10


def test_the_count_stops_reading_without_a_bound_on_bytes() -> None:
    pool = memory(-1, requests=1)
    lease = admit(pool, 1, MIB)
    assert pool.try_charge(2, MIB, 0, 0) == 0
    pool.release(lease)
    assert pool.wake(0) == [2]


def test_the_bytes_alone_stop_reading_without_a_bound_on_the_count() -> None:
    pool = memory(requests=-1)
    admit(pool, 1, SIZE, requests=10**9)
    assert pool.try_charge(2, 10, 0, 0) == 0
    assert pool.snapshot(0).muted[0].reason is HoldKind.REQUEST_MEMORY


def test_the_finisher_too_waits_for_the_count_and_then_goes_on() -> None:
    pool = memory(requests=1)
    for owner in range(4):
        hold(pool, owner, 16 * KIB)
    assert pool.try_charge(0, 1_000, 32 * KIB, 0) == 1_000
    pool.recharge(0, 1_000, 16 * KIB + 1_000, 0, 0, 0)
    pool.forget(3, 0)
    lease = admit(pool, 4, 15_000)
    assert pool.try_charge(0, SIZE, 32 * KIB - 1_000, 0) == 0
    assert pool.wake(0) == []
    pool.release(lease)
    assert pool.wake(0) == [0]
    assert pool.try_charge(0, SIZE, 32 * KIB - 1_000, 0) == 32 * KIB - 1_000


# -- eviction --------------------------------------------------------------------------------------------------------


def test_a_slow_holder_is_evicted_when_others_wait_for_what_it_holds() -> None:
    pool = memory()
    hold(pool, 1, 40 * KIB)
    admit(pool, 2, 24 * KIB)
    assert pool.evict(2 * PROGRESS_NS) == []  # Nobody waits yet.
    assert pool.try_charge(3, 16 * KIB, 0, PROGRESS_NS) == 0
    assert pool.evict(PROGRESS_NS) == []  # It still has time.
    assert pool.evict(PROGRESS_NS + 1) == [1]
    pool.forget(1, PROGRESS_NS + 1)
    assert pool.wake(PROGRESS_NS + 1) == [3]
    assert pool.snapshot(PROGRESS_NS + 1).evicted_total == 1


def test_a_holder_that_makes_progress_is_not_evicted() -> None:
    pool = memory(MIB, frame_max=MIB)
    for second in range(8):
        pool.try_charge(1, PROGRESS_BYTES, MIB // 2, second * PROGRESS_NS)
        pool.recharge(1, PROGRESS_BYTES, (second + 1) * PROGRESS_BYTES, 0, 0, second * PROGRESS_NS)
    admit(pool, 2, MIB // 2 - 1)
    hold(pool, 4, 1, 7 * PROGRESS_NS)
    pool.try_charge(3, MIB, 0, 7 * PROGRESS_NS)
    assert pool.evict(8 * PROGRESS_NS) == []
    assert pool.evict(8 * PROGRESS_NS + 1) == [1]


def test_dribbling_is_not_progress() -> None:
    pool = memory()
    hold(pool, 1, 40 * KIB)
    for ms in range(1, 1_002):
        pool.try_charge(1, 8, 8, ms * NS_PER_MS)
        pool.recharge(1, 1, 40 * KIB + ms, 0, 0, ms * NS_PER_MS)
    admit(pool, 2, pool.available)
    pool.try_charge(3, 16 * KIB, 0, 1_001 * NS_PER_MS)
    assert pool.evict(1_001 * NS_PER_MS) == [1]


def test_time_spent_muted_does_not_count_against_a_connection() -> None:
    pool = spent_on_unfinished_frames()
    assert pool.try_charge(0, SIZE, 32 * KIB, 0) == 32 * KIB
    pool.recharge(0, 0, 16 * KIB, 0, 0, 0)
    for owner in (1, 2, 3):
        assert pool.try_charge(owner, SIZE, 32 * KIB, NS_PER_MS) == 0
    assert pool.evict(60 * NS_PER_S) == [0]
    pool.forget(0, 60 * NS_PER_S)
    assert pool.wake(60 * NS_PER_S) == [1]
    assert pool.try_charge(1, SIZE, 32 * KIB, 60 * NS_PER_S) == 16 * KIB
    pool.recharge(1, 0, 16 * KIB, 0, 0, 60 * NS_PER_S)
    patience_ends_ns = 60 * NS_PER_S + PROGRESS_NS - NS_PER_MS  # It had read for a millisecond before.
    assert pool.evict(patience_ends_ns) == []
    assert pool.evict(patience_ends_ns + 1) == [1]


def test_time_paused_for_another_reason_does_not_count_either() -> None:
    pool = memory()
    hold(pool, 1, 40 * KIB)
    admit(pool, 2, 24 * KIB)
    pool.pause(1, NS_PER_MS)
    pool.try_charge(3, SIZE, 0, NS_PER_MS)
    assert pool.evict(60 * NS_PER_S) == []


def test_after_a_pause_the_clock_goes_on_where_it_stopped() -> None:
    pool = memory()
    hold(pool, 1, 40 * KIB)
    pool.pause(1, NS_PER_MS)
    assert pool.try_charge(1, 8, 8, 60 * NS_PER_S) == 8
    pool.recharge(1, 0, 40 * KIB, 0, 0, 60 * NS_PER_S)
    admit(pool, 2, 24 * KIB)
    pool.try_charge(3, SIZE, 0, 60 * NS_PER_S)
    patience_ends_ns = 60 * NS_PER_S + PROGRESS_NS - NS_PER_MS
    assert pool.evict(patience_ends_ns) == []
    assert pool.evict(patience_ends_ns + 1) == [1]


def test_the_largest_slow_holder_goes_first_and_no_more_than_needed() -> None:
    pool = memory()
    for owner, kib in ((1, 8), (2, 24), (3, 16), (4, 12)):
        hold(pool, owner, kib * KIB)
    admit(pool, 5, 4 * KIB)
    pool.try_charge(6, SIZE, 0, 0)
    assert pool.evict(2 * PROGRESS_NS) == [2, 3]  # 60 KiB held; 36 are above half, 20 are not.


def test_nobody_is_evicted_while_answers_are_what_all_wait_for() -> None:
    pool = memory()
    hold(pool, 1, 32 * KIB)
    admit(pool, 2, 32 * KIB)
    pool.try_charge(3, SIZE, 0, 0)
    assert pool.evict(60 * NS_PER_S) == []


def honest_bytes_per_s(pool: RequestMemory, dribblers: int, seconds: int) -> int:
    """Run 20 publishers of 1 KiB frames, 16 a read, answered a millisecond later, beside dribblers of 1 KiB/s."""
    total, answers, held, gone = 0, list[Lease](), dict.fromkeys(range(1_000, 1_000 + dribblers), 0), set[int]()
    ready = list(range(20))
    for ms in range(1_000 * seconds):
        now_ns = ms * NS_PER_MS
        for dribbler in () if ms % 100 else tuple(held):
            if dribbler not in gone and (got := pool.try_charge(dribbler, 102, 5 * MIB - held[dribbler], now_ns)):
                held[dribbler] += got
                pool.recharge(dribbler, got, held[dribbler], 0, 0, now_ns)
        for lease in answers:
            pool.release(lease)
        answers = []
        ready += [owner for owner in pool.wake(now_ns) if owner < 20]
        for owner in list(ready):
            granted = pool.try_charge(owner, 16 * KIB, 0, now_ns)
            if not granted:
                ready.remove(owner)
            elif (lease_or_none := pool.recharge(owner, granted, 0, granted, granted // KIB, now_ns)) is not None:
                answers.append(lease_or_none)
                total += granted
        for owner in pool.evict(now_ns):
            gone.add(owner)
            pool.forget(owner, now_ns)
    return total // seconds


def test_b5_a_hundred_dribblers_cost_honest_publishers_less_than_a_twentieth() -> None:
    alone = honest_bytes_per_s(memory(10 * MIB, frame_max=5 * MIB), 0, seconds=5)
    beside = honest_bytes_per_s(memory(10 * MIB, frame_max=5 * MIB), 100, seconds=5)
    assert alone == 20 * 16 * KIB * 1_000
    assert beside >= 0.95 * alone


def test_b5_senders_that_fill_the_memory_and_then_stall_are_gone_after_the_time_they_are_given() -> None:
    pool = memory(10 * MIB, frame_max=5 * MIB)
    for owner in range(1_000, 1_040):
        hold(pool, owner, 256 * KIB)
    assert pool.available == 0
    assert pool.try_charge(1, 16 * KIB, 0, 0) == 0
    evicted = pool.evict(PROGRESS_NS + 1)
    assert len(evicted) == 20
    for owner in evicted:
        pool.forget(owner, PROGRESS_NS + 1)
    assert pool.wake(PROGRESS_NS + 1) == [1]
    assert pool.available == 5 * MIB


# -- every way out ---------------------------------------------------------------------------------------------------


def test_p29_a_connection_that_goes_in_the_middle_of_a_frame_or_a_read_leaves_nothing() -> None:
    pool = memory()
    hold(pool, 1, 5_000)
    pool.try_charge(1, 10_000, 3_000, 0)
    pool.forget(1, 0)
    assert (pool.used, pool.snapshot(0).held_bytes) == (0, 0)


def test_p30_a_connection_that_goes_while_muted_leaves_nothing() -> None:
    pool = spent_on_unfinished_frames()
    pool.try_charge(0, SIZE, 32 * KIB, 0)
    pool.try_charge(1, SIZE, 32 * KIB, 0)
    pool.forget(1, 0)
    assert (pool.waiting, pool.snapshot(0).muted) == (False, ())
    for owner in (0, 2, 3):
        pool.forget(owner, 0)
    assert pool.used == 0


def test_p31_when_all_connections_go_in_any_state_the_memory_is_whole_again() -> None:
    pool = spent_on_unfinished_frames()
    lease = pool.try_allocate(1)
    assert lease is None
    pool.try_charge(2, SIZE, 32 * KIB, 0)
    pending = pool.recharge(2, 32 * KIB, 0, FRAME_MAX, 1, 0)
    for owner in (0, 1, 3, 4, 5):
        pool.try_charge(owner, SIZE, 32 * KIB, 0)
    for owner in range(6):
        pool.forget(owner, 0)
    assert pending is not None
    pool.release(pending)
    seen = pool.snapshot(0)
    assert (seen.used_bytes, seen.held_bytes, seen.requests, seen.muted, seen.finisher) == (0, 0, 0, (), None)


def test_forgetting_a_stranger_or_twice_changes_nothing() -> None:
    pool = memory()
    hold(pool, 1, 100)
    pool.forget(2, 0)
    pool.pause(2, 0)
    pool.forget(1, 0)
    pool.forget(1, 0)
    assert pool.used == 0


def test_requests_of_a_connection_that_is_gone_are_released_by_their_own_completion() -> None:
    pool = memory()
    lease = admit(pool, 1, 700, requests=5)
    pool.forget(1, 0)
    assert (pool.used, pool.snapshot(0).requests) == (700, 5)
    pool.release(lease)
    assert (pool.used, pool.snapshot(0).requests) == (0, 0)


def test_p21_a_released_lease_is_referred_to_by_nobody() -> None:
    pool = RequestMemory(
        RequestLimits(request_bytes_max=SIZE, requests_max=1, frame_bytes_max=FRAME_MAX), hunter=LeakDetector()
    )
    lease = admit(pool, 1, 100)
    reference = weakref.ref(lease)
    pool.release(lease)
    del lease
    gc.collect()
    assert reference() is None


# -- what can be seen ------------------------------------------------------------------------------------------------


def test_b10_every_muted_connection_is_visible_with_its_reason_time_and_bytes() -> None:
    pool = memory()
    hold(pool, 1, 16 * KIB)
    admit(pool, 2, 48 * KIB)
    pool.try_charge(3, 20_000, 0, 5)
    pool.try_charge(1, 30_000, 1_000, 7)
    pool.try_charge(4, 10_000, 0, 9)
    muted = pool.snapshot(20).muted
    assert [(one.owner, one.since_ns, one.reason, one.want_bytes, one.held_bytes) for one in muted] == [
        (3, 5, HoldKind.REQUEST_MEMORY, 20_000, 0),
        (4, 9, HoldKind.REQUEST_MEMORY, 10_000, 0),
    ]
    assert pool.snapshot(20).finisher == 1


def test_asking_again_unbidden_changes_neither_place_nor_time() -> None:
    pool = memory()
    admit(pool, 1, SIZE)
    for now_ns, owner in ((5, 2), (6, 3), (7, 2)):
        assert pool.try_charge(owner, 20_000, 0, now_ns) == 0
    assert [(one.owner, one.since_ns) for one in pool.snapshot(9).muted] == [(2, 5), (3, 6)]


def test_depletion_lasts_from_the_first_refusal_until_memory_is_there_again() -> None:
    pool = memory()
    pool.snapshot(0)
    lease = admit(pool, 1, SIZE)
    pool.try_charge(2, 20_000, 0, 1 * NS_PER_S)
    pool.try_charge(3, 20_000, 0, 2 * NS_PER_S)
    assert pool.snapshot(3 * NS_PER_S).depleted_ms == 2_000
    pool.release(lease)
    pool.wake(4 * NS_PER_S)
    seen = pool.snapshot(10 * NS_PER_S)
    assert seen.depleted_ms == 3_000
    assert seen.depleted_percent == pytest.approx(30.0)


def test_depletion_ends_when_nobody_waits_any_more() -> None:
    pool = memory()
    admit(pool, 1, SIZE)
    pool.try_charge(2, 20_000, 0, 1 * NS_PER_S)
    pool.forget(2, 2 * NS_PER_S)
    assert pool.snapshot(9 * NS_PER_S).depleted_ms == 1_000


def test_waiting_for_the_count_is_no_depletion() -> None:
    pool = memory(requests=1)
    admit(pool, 1, 10)
    pool.try_charge(2, 10, 0, 0)
    assert pool.snapshot(9 * NS_PER_S).depleted_ms == 0
    pool.try_charge(2, 10, 0, 0)
    assert pool.refused_total == 1, "it waits since the first time"
