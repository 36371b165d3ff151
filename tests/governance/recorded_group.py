# SPDX-License-Identifier: Apache-2.0
"""One broker with one resource group in virtual time: what arrives, what waits, and what is recorded of it.

Clients do not wait for receipts, so all that is wanted arrives; what exceeds the quota is held, as `HeldSends` does it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.quota_replay import MINUTE_S, Used
from penstock.governance.resource_group import ClassLimiter, GroupRate

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator

MINUTE_NS = MINUTE_S * NS_PER_S
MESSAGE_BYTES = 100
BROKER = "broker-0"


class Arrival(NamedTuple):
    """Entries that are read at once; each has so many messages."""

    at_ns: int
    entries: int
    messages: int


def smooth(chance: random.Random, minutes: int, per_s: float = 2.0, messages: int = 1) -> Iterator[Arrival]:
    """Single messages that arrive by chance, at a rate that stays."""
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(per_s)) < minutes * MINUTE_S:
        yield Arrival(int(at_s * NS_PER_S), 1, messages)


def bursty(chance: random.Random, minutes: int, per_burst: int = 60, busy_s: float = 10.0) -> Iterator[Arrival]:
    """Each minute's messages come within some seconds, in a few reads."""
    for minute in range(minutes):
        begins_s = minute * MINUTE_S + chance.uniform(0, MINUTE_S - busy_s)
        times = sorted(begins_s + chance.uniform(0, busy_s) for _ in range(10))
        yield from (Arrival(int(at_s * NS_PER_S), max(1, per_burst // 10), 10) for at_s in times)


def batchy(chance: random.Random, minutes: int, every_s: float = 10.0, messages: int = 1_000) -> Iterator[Arrival]:
    """A large batch now and then."""
    at_s = 0.0
    while (at_s := at_s + every_s * chance.uniform(0.8, 1.2)) < minutes * MINUTE_S:
        yield Arrival(int(at_s * NS_PER_S), 1, messages)


class Live:
    """The limiter of the group, its counters, and what waits for it."""

    def __init__(self, quota: float | None) -> None:
        self.limiter = ClassLimiter()
        self.quota = quota
        self.limiter.set_share(GroupRate(quota), 0)
        self.limiter.measure_needed()
        self._queue: deque[int] = deque()  # messages of each entry
        self._wake_ns: int | None = None
        self._read = (0, 0, 0)

    def run(self, arrivals: Iterable[Arrival], minutes: int) -> list[dict[str, Used]]:
        """Return what is recorded of each minute."""
        found = []
        coming = iter(arrivals)
        one = next(coming, None)
        for minute in range(minutes):
            end_ns = (minute + 1) * MINUTE_NS
            while one is not None and one.at_ns < end_ns:
                self._pass_time(one.at_ns)
                self._arrive(one)
                one = next(coming, None)
            self._pass_time(end_ns)
            found.append({BROKER: self._recorded(end_ns)})
        return found

    def _arrive(self, one: Arrival) -> None:
        self._queue.extend([one.messages] * one.entries)
        self._hold(one.messages * one.entries)
        self.limiter.arrived(one.entries, one.at_ns)
        self._serve(one.at_ns)

    def _pass_time(self, until_ns: int) -> None:
        while self._wake_ns is not None and self._wake_ns <= until_ns:
            self._serve(self._wake_ns)

    def _serve(self, now_ns: int) -> None:
        limiter, queue = self.limiter, self._queue
        while queue and limiter.ready(now_ns):
            messages = queue.popleft()
            self._hold(-messages)
            limiter.charge(messages, messages * MESSAGE_BYTES, now_ns)
        if queue:
            limiter.waits(now_ns)
            self._wake_ns = now_ns + max(1, limiter.delay_ns(now_ns))
        else:
            limiter.waits_no_more(now_ns)
            self._wake_ns = None

    def _hold(self, messages: int) -> None:
        self.limiter.held = self.limiter.held.plus(messages, messages * MESSAGE_BYTES)

    def _recorded(self, now_ns: int) -> Used:
        limiter = self.limiter
        now = (limiter.messages_passed, limiter.bytes_passed, limiter.limited_ns(now_ns) // NS_PER_MS)
        messages, nbytes, limited_ms = (last - first for first, last in zip(self._read, now, strict=True))
        self._read = now
        needed = limiter.measure_needed()
        rates = (needed.messages.take(), needed.bytes.take())
        held = (float(limiter.held.messages), float(limiter.held.bytes))
        return Used(messages, nbytes, limited_ms, (self.quota, None), (self.quota, None), rates, held)


def recorded(arrivals: Iterable[Arrival], quota: float | None, minutes: int) -> list[dict[str, Used]]:
    """What a broker would have recorded with this quota."""
    return Live(quota).run(arrivals, minutes)


def limited(minutes: Iterable[dict[str, Used]]) -> int:
    """Minutes in which something waited."""
    return sum(one[BROKER].limited_ms > 0 for one in minutes)


def passed(minutes: Iterable[dict[str, Used]]) -> int:
    """Messages."""
    return sum(one[BROKER].messages for one in minutes)
