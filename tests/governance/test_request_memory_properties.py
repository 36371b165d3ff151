# SPDX-License-Identifier: Apache-2.0
"""What must always hold in request memory, whatever clients, disks and connections do (B1).

One set of clients is driven twice: by Hypothesis, which shrinks what it finds, and by seeded random histories: 1,000
each time, 10,000 in `make sim`.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.core.units import KIB, NS_PER_MS
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import LENGTH_BYTES, RequestLimits

if TYPE_CHECKING:
    from penstock.governance.memory_pool import Lease

FRAME_MAX = 20 * KIB
HISTORIES = int(os.environ.get("PENSTOCK_SIM_CASES", "1000"))
STEPS = 40


class Traffic(NamedTuple):
    """One read: what it asks for, what the socket has, and how long the frames are that follow one another."""

    want_bytes: int
    sent_bytes: int
    frame_bytes: list[int]


LARGEST = Traffic(FRAME_MAX, FRAME_MAX, [FRAME_MAX])
TRAFFIC = st.builds(
    Traffic,
    st.integers(1, 16 * KIB),
    st.integers(0, 16 * KIB),
    st.lists(st.integers(LENGTH_BYTES + 1, FRAME_MAX), min_size=1, max_size=3),
)


class Client:
    """A connection: the frame under way, and whether we have stopped reading it."""

    def __init__(self) -> None:
        self.frame_bytes = LENGTH_BYTES + 1
        self.held_bytes = 0
        self.muted = False

    def missing_bytes(self) -> int:
        if not self.held_bytes:
            return 0
        end = LENGTH_BYTES if self.held_bytes < LENGTH_BYTES else self.frame_bytes
        return end - self.held_bytes

    def whole_bytes(self, lying_bytes: int, traffic: Traffic) -> int:
        """How much of what lies at the socket ends with a frame, as far as that can be told."""
        if 0 < self.held_bytes < LENGTH_BYTES:
            return 0
        whole, end = 0, self.frame_bytes - self.held_bytes
        for turn in range(1_000):
            if end > lying_bytes:
                break
            whole = end
            end += traffic.frame_bytes[turn % len(traffic.frame_bytes)]
        return whole


class Clients:
    """Connections around one request memory, behaving as a session would; checks the invariants after each step."""

    def __init__(self, size_bytes: int, requests_max: int, reserve_ratio: float = 0.25, *, row_bytes: int = 0) -> None:
        self.row_bytes = row_bytes  # what a request takes beside its bytes
        self.columns_max = 0  # of one read
        self.limits = RequestLimits(
            request_bytes_max=size_bytes,
            requests_max=requests_max,
            frame_bytes_max=FRAME_MAX,
            reserve_ratio=reserve_ratio,
        )
        self.memory = RequestMemory(self.limits)
        self.clients: dict[int, Client] = {}
        self.leases: list[Lease] = []
        self.now_ns = 0
        self.next_owner = 0

    # Steps. Whoever settles, releases, pauses or forgets wakes the others, as the contract says.

    def connect(self) -> None:
        self.clients[self.next_owner] = Client()
        self.next_owner += 1

    def read(self, owner: int, traffic: Traffic) -> None:
        if not self.clients[owner].muted:
            self._read(owner, traffic)
        self.wake(traffic)

    def release(self, index: int, traffic: Traffic) -> None:
        self.memory.release(self.leases.pop(index))
        self.wake(traffic)

    def pause(self, owner: int) -> None:
        """Stop for another reason, and, to keep the history short, be free to read again at once."""
        self.memory.pause(owner, self.now_ns)
        self.clients[owner].muted = False
        self.wake(LARGEST)

    def forget(self, owner: int) -> None:
        self.memory.forget(owner, self.now_ns)
        del self.clients[owner]
        self.wake(LARGEST)

    def evict(self) -> None:
        for owner in self.memory.evict(self.now_ns):
            assert self.clients[owner].held_bytes
            self.memory.forget(owner, self.now_ns)
            del self.clients[owner]
        self.wake(LARGEST)

    def wake(self, traffic: Traffic) -> None:
        for _ in range(10_000):
            if not self.memory.waiting:
                return
            before = self.memory.snapshot(self.now_ns)
            turns = self.memory.wake(self.now_ns)
            assert len(set(turns)) == len(turns), "two turns at once"
            assert set(turns) <= {muted.owner for muted in before.muted}, "woken without waiting"
            assert len(turns) <= max(0, before.requests_max - before.requests), "more turns than requests are left"
            for owner in turns:
                self.clients[owner].muted = False
                self._read(owner, traffic)
            if not turns:
                return
            traffic = traffic._replace(
                sent_bytes=traffic.sent_bytes // 2
            )  # Nobody has an endless supply; a socket runs dry in the end.
        raise AssertionError("woken for ever")

    def _read(self, owner: int, traffic: Traffic) -> None:
        client = self.clients[owner]
        granted = self.memory.try_charge(owner, traffic.want_bytes, client.missing_bytes(), self.now_ns)
        self.check()
        if not granted:
            lying = min(traffic.sent_bytes, traffic.want_bytes)
            granted = self.memory.look(owner, lying, client.whole_bytes(lying, traffic), self.now_ns)
            self.check()
        if not granted:
            client.muted = True
            return
        assert granted <= traffic.want_bytes
        client.muted = False
        read_bytes = min(granted, traffic.sent_bytes)
        pending_bytes = pending_requests = turn = 0
        left = client.held_bytes + read_bytes
        while left >= client.frame_bytes:
            left -= client.frame_bytes
            if client.frame_bytes % 4:  # The others are commands, carried out at once.
                pending_bytes += client.frame_bytes
                pending_requests += 1
            client.frame_bytes = traffic.frame_bytes[turn % len(traffic.frame_bytes)]
            turn += 1
        client.held_bytes = left
        columns = self.row_bytes * pending_requests
        self.columns_max = max(self.columns_max, columns)
        lease = self.memory.recharge(owner, read_bytes, left, pending_bytes, pending_requests, self.now_ns, columns)
        assert (lease is None) == (not pending_bytes)
        if lease is not None:
            self.leases.append(lease)

    # Invariants.

    def check(self) -> None:
        used = self.memory.used
        assert used >= 0
        if self.limits.request_bytes_max > 0:
            assert used <= self.limits.request_bytes_max + FRAME_MAX - 1 + 2 * self.columns_max, "the bound"
            seen = self.memory.snapshot(self.now_ns)
            assert 0 <= seen.reserve_used_bytes <= seen.reserve_bytes + self.columns_max, "the reserve"
            ordinary = seen.size_bytes - seen.reserve_bytes
            assert used - seen.reserve_used_bytes <= ordinary + FRAME_MAX - 1 + self.columns_max, "the part of all"

    def check_at_rest(self) -> None:
        """Between steps no read is under way, so the books must agree with the clients to the byte."""
        self.check()
        seen = self.memory.snapshot(self.now_ns)
        held = sum(client.held_bytes for client in self.clients.values())
        pending = sum(lease.size_bytes for lease in self.leases)
        assert (seen.held_bytes, seen.pending_bytes, seen.reading_bytes) == (held, pending, 0)
        assert seen.used_bytes == held + pending
        assert seen.requests == sum(lease.requests for lease in self.leases)
        assert seen.reserve_used_bytes == sum(lease.reserved_bytes for lease in self.leases)
        assert {muted.owner for muted in seen.muted} == {owner for owner, one in self.clients.items() if one.muted}
        if seen.muted and not self.leases:
            reading = [one for one in self.clients.values() if one.held_bytes and not one.muted]
            assert reading, "all wait, nothing is on its way, and nobody may finish"

    def finish(self) -> None:
        """Everybody sends all the rest of their frames and all is answered: all must get through, and all be free."""
        for _ in range(100_000):
            while self.leases:
                self.memory.release(self.leases.pop())
            self.wake(LARGEST)
            self.check_at_rest()
            unfinished = [owner for owner, one in self.clients.items() if one.held_bytes and not one.muted]
            if not unfinished and not self.memory.waiting and not self.leases:
                break
            for owner in unfinished:
                client = self.clients[owner]
                # A client that has nothing more to say goes once its last frame is complete.
                self._read(owner, LARGEST._replace(want_bytes=client.frame_bytes - client.held_bytes))
            for owner in [owner for owner, one in self.clients.items() if not one.held_bytes and one.muted]:
                self.forget(owner)
        assert (self.memory.used, self.memory.waiting) == (0, False)


def random_step(clients: Clients, chance: random.Random) -> None:
    clients.now_ns += chance.choice((0, NS_PER_MS, 700 * NS_PER_MS))
    traffic = Traffic(
        want_bytes=chance.choice((1, 3, 700, 5 * KIB, 16 * KIB)),
        sent_bytes=chance.choice((0, 1, 5, 4_000, 16 * KIB, 16 * KIB)),
        frame_bytes=[chance.choice((5, 6, 100, 1_001, 9_000, FRAME_MAX - 1, FRAME_MAX)) for _ in range(3)],
    )
    kind = chance.random()
    if not clients.clients or (kind < 0.1 and len(clients.clients) < 12):
        clients.connect()
    elif kind < 0.75:
        clients.read(chance.choice(list(clients.clients)), traffic)
    elif kind < 0.90 and clients.leases:
        clients.release(chance.randrange(len(clients.leases)), traffic)
    elif kind < 0.93:
        clients.forget(chance.choice(list(clients.clients)))
    elif kind < 0.96:
        clients.pause(chance.choice(list(clients.clients)))
    else:
        clients.evict()


@pytest.mark.parametrize("tenth", range(10))
def test_b1_random_histories_keep_the_bound_the_books_the_order_and_nobody_waits_for_ever(tenth: int) -> None:
    for seed in range(tenth * HISTORIES // 10, (tenth + 1) * HISTORIES // 10):
        chance = random.Random(seed)
        clients = Clients(
            chance.choice((FRAME_MAX, FRAME_MAX + 1, 3 * FRAME_MAX, -1)),
            chance.choice((-1, -1, 1, 3, 20)),
            chance.choice((0.0, 0.25, 0.9)),
            row_bytes=chance.choice((0, 0, 100)),
        )
        try:
            for _ in range(STEPS):
                random_step(clients, chance)
                clients.check_at_rest()
            clients.finish()
        except AssertionError as broken:
            broken.add_note(f"{seed=}")
            raise


class RequestMemoryHolds(RuleBasedStateMachine):
    """The same clients in Hypothesis' hands."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = Clients(2 * FRAME_MAX, requests_max=5)
        for _ in range(3):
            self.clients.connect()

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.clients.clients)))

    @rule()
    def connect(self) -> None:
        if len(self.clients.clients) < 8:
            self.clients.connect()

    @precondition(lambda self: self.clients.clients)
    @rule(data=st.data(), traffic=TRAFFIC)
    def read(self, data: st.DataObject, traffic: Traffic) -> None:
        self.clients.read(self.some(data), traffic)

    @precondition(lambda self: self.clients.leases)
    @rule(data=st.data(), traffic=TRAFFIC)
    def release(self, data: st.DataObject, traffic: Traffic) -> None:
        index = data.draw(st.integers(0, len(self.clients.leases) - 1))
        self.clients.release(index, traffic)

    @precondition(lambda self: self.clients.clients)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.clients.forget(self.some(data))

    @precondition(lambda self: self.clients.clients)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        self.clients.pause(self.some(data))

    @rule(passed_ms=st.integers(0, 3_000))
    def evict(self, passed_ms: int) -> None:
        self.clients.now_ns += passed_ms * NS_PER_MS
        self.clients.evict()

    @invariant()
    def all_is_well(self) -> None:
        self.clients.check_at_rest()

    def teardown(self) -> None:
        self.clients.finish()


TestRequestMemoryHolds = RequestMemoryHolds.TestCase
TestRequestMemoryHolds.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
