# SPDX-License-Identifier: Apache-2.0
"""Consumers of a proxy in virtual time: their clients, their permits in the proxy, and their broker.

The broker sends what its consumers have permits for, after a round trip: by messages, as penstock, or by entries, as
Apache Pulsar does by default.
"""

from __future__ import annotations

import asyncio
from collections import deque

from penstock.core.units import NS_PER_S
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.groups.group import Group
from penstock.groups.held_permits import Permits, PermitSteps
from penstock.testing.loop import VirtualClock, VirtualLoop

QUEUE = 1_000


class World:
    """A proxy's groups."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.clock = VirtualClock(loop.virtual_time)
        self.steps = PermitSteps(self.clock, loop)

    def group(self, name: str = "g", *, messages: float | None = None, nbytes: float | None = None) -> Group:
        quota = GroupRates(dispatch=GroupRate(messages, nbytes))
        return Group(name, None, quota, self.clock, self.loop, lambda: False)

    def now_s(self) -> float:
        return self.clock.monotonic_ns() / NS_PER_S


class Consumer:
    """A client's consumer, its proxy's permits, and its broker's side. It returns permits by half of its queue."""

    def __init__(
        self,
        world: World,
        *groups: Group,
        backlog: int = 0,
        batch: int = 1,
        entry_bytes: int = 100,
        precise: bool = True,
        round_trip_s: float = 0.002,
        queue: int = QUEUE,
        exact: bool = True,
    ) -> None:
        self.world = world
        self.backlog = backlog  # entries
        self.batch, self.entry_bytes, self.precise = batch, entry_bytes, precise
        self.round_trip_s = round_trip_s
        self.queue = queue
        self.broker_permits = 0
        self.got: deque[tuple[float, int]] = deque()  # when, and how many messages
        self.flows: list[int] = []
        self._unreturned = 0
        self._sending = False
        self.permits = Permits(world.steps, self._flow, exact=exact)
        self.permits.limit([group.dispatch for group in groups])

    def subscribe(self) -> None:
        if self.queue:
            self.permits.flow(self.queue)

    def publish(self, entries: int) -> None:
        self.backlog += entries
        self._send_soon()

    def _flow(self, permits: int) -> None:
        assert permits > 0
        self.flows.append(permits)
        self.world.loop.call_later(self.round_trip_s / 2, self._flowed, permits)

    def _flowed(self, permits: int) -> None:
        self.broker_permits += permits
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._sending and self.broker_permits > 0 and self.backlog:
            self._sending = True
            self.world.loop.call_later(self.round_trip_s / 2, self._send)

    def _send(self) -> None:
        self._sending = False
        of_permits = -(-self.broker_permits // self.batch) if self.precise else self.broker_permits
        entries = min(self.backlog, of_permits)
        if entries <= 0:
            return
        messages = entries * self.batch
        self.backlog -= entries
        self.broker_permits -= messages
        self.got.append((self.world.now_s(), messages))
        self.permits.delivered(messages, entries * self.entry_bytes, unread=0)
        self._send_soon()
        self._unreturned += messages
        if self.queue and self._unreturned >= max(1, self.queue // 2):
            returned, self._unreturned = self._unreturned, 0
            self.permits.flow(returned)

    def has(self, messages: int) -> bool:
        return self.total >= messages

    @property
    def total(self) -> int:
        return sum(messages for _, messages in self.got)


def windows(consumers: list[Consumer], *, start_s: float, stop_s: float, length_s: float = 5.0) -> list[float]:
    """Messages per second of all consumers in every window of this length."""
    events = sorted(one for consumer in consumers for one in consumer.got)
    rates, at_s = [], start_s
    while at_s + length_s <= stop_s:
        rates.append(sum(n for when_s, n in events if at_s <= when_s < at_s + length_s) / length_s)
        at_s += 0.5
    return rates
