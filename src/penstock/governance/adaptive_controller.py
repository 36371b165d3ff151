# SPDX-License-Identifier: Apache-2.0
"""Adaptive publish throttling of a broker: who pays for the pressure, and what is counted.

Why apart from `adaptive_throttle`: the backlog of a topic is its own, but memory and the disk belong to all topics. A
law that slows all of them alike punishes those who did nothing (A8). So topics are weighted by what they contribute.

Weights. Traffic counts for a payer: the resource group of a topic, else its tenant. A payer whose bytes per second are
at least the mean of all payers has weight 1; one with half of the mean or less has weight 0, and is not slowed; a
straight line between. The topics of a payer are weighted alike among themselves, and both weights are multiplied. So a
single tenant with equal topics has weight 1 everywhere, which is the law without weights. Rates are natural ones, so
that a payer that is slowed does not become a small one.

Where: `groups.adaptive_throttling` visits topics in turns; `penstock replay` and simulations visit them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.governance.adaptive_throttle import HELD_FAILURES, Kind, Pressures, Seen, ThrottleOptions, TopicThrottle

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.governance.adaptive_throttle import ThrottleDecision

# Below this part of the mean nobody pays.
CALM_PART: Final = 0.5


class Contributions:
    """Bytes per second by payer, as one round of visits has found them."""

    __slots__ = ("_bytes", "_topics", "_total")

    def __init__(self) -> None:
        self._bytes: dict[str, float] = {}
        self._topics: dict[str, int] = {}
        self._total = 0.0

    def add(self, payer: str, bytes_per_s: float) -> None:
        """Count a topic."""
        self._bytes[payer] = self._bytes.get(payer, 0.0) + bytes_per_s
        self._topics[payer] = self._topics.get(payer, 0) + 1
        self._total += bytes_per_s

    def weight(self, payer: str, bytes_per_s: float) -> float:
        """Return the part in a pressure of the whole broker that a topic has to pay, from 0 to 1."""
        of_payer = self._bytes.get(payer, 0.0)
        if of_payer <= 0.0:
            return 1.0  # New in this round.
        payers = _weight(of_payer * len(self._bytes), self._total)
        return payers * _weight(bytes_per_s * self._topics[payer], of_payer)


def _weight(value: float, mean: float) -> float:
    ratio = value / mean
    return min(1.0, max(0.0, (ratio - CALM_PART) / (1.0 - CALM_PART)))


class ThrottleController:
    """Decides about all topics of a broker. Cycles are `begin`, then `visit` of topics.

    Attributes:
        options: the law's parameters.
        memory_pressure: of the current cycle; and `queueing_pressure`.
        active: topics that are throttled.
        observed: topics that would be.
        activations: how often a topic was activated.
        failures: cycles in which something failed.
    """

    def __init__(self, options: ThrottleOptions, observer: Callable[[ThrottleDecision], None]) -> None:
        """Args: observer: is told every decision."""
        self.options = options
        self.memory_pressure = 0.0
        self.queueing_pressure = 0.0
        self.active: dict[TopicThrottle, None] = {}
        self.observed: dict[TopicThrottle, None] = {}
        self.activations = 0
        self.failures = 0
        self._observer = observer
        self._failed_in_row = 0
        self._before = Contributions()
        self._now = Contributions()

    def begin(self, options: ThrottleOptions, *, memory: float, queueing_s: float) -> None:
        """Begin a cycle.

        Args:
            options: the law's parameters from now on.
            memory: part of the memory limit that is in use.
            queueing_s: seconds that an append has to wait until it is durable.
        """
        self.options = options
        self.memory_pressure = options.memory.pressure(memory)
        self.queueing_pressure = options.queueing.pressure(queueing_s)

    def visit(self, throttle: TopicThrottle, seen: Seen, backlog: float, now_ns: int) -> ThrottleDecision | None:
        """Measure one topic, and decide about it.

        Args:
            throttle: its state.
            seen: its counters.
            backlog: part of its backlog quota that is in use; 0 without a quota.
            now_ns: monotonic time.
        """
        options = self.options
        if not throttle.measure(seen, options, now_ns):
            return None
        natural_bytes = throttle.bytes.natural
        self._now.add(throttle.payer, natural_bytes)
        memory, queueing = self.memory_pressure, self.queueing_pressure
        # Most visits of most brokers end here.
        if not throttle.active and memory <= 0.0 and queueing <= 0.0 and backlog <= options.backlog.low:
            throttle.pressures = _NONE
            return None
        weight = self._before.weight(throttle.payer, natural_bytes)
        pressures = Pressures(memory, options.backlog.pressure(backlog), queueing, weight)
        return self._tell(throttle, throttle.step(pressures, options, now_ns))

    def end_round(self) -> None:
        """All topics were visited: their contributions count from now on."""
        self._before, self._now = self._now, Contributions()

    # -- failures

    def cycle_succeeded(self) -> None:
        """A cycle ended without a failure."""
        self._failed_in_row = 0

    def cycle_failed(self) -> bool:
        """Pressures cannot be measured. Limits stay for some cycles; then returns True: `release_step` all topics."""
        self.failures += 1
        self._failed_in_row += 1
        return self._failed_in_row > HELD_FAILURES

    def visit_failed(self, throttle: TopicThrottle, now_ns: int) -> None:
        """One topic cannot be measured; the same for it alone."""
        throttle.failures += 1
        if throttle.failures > HELD_FAILURES:
            self.release_step(throttle, now_ns)

    def release_step(self, throttle: TopicThrottle, now_ns: int) -> None:
        """Raise the limit of a topic by a step, whatever the pressure is."""
        self._tell(throttle, throttle.release_step(self.options, now_ns))

    # -- ends

    def release(self, throttle: TopicThrottle, now_ns: int, why: str) -> None:
        """Deactivate a topic at once, if it is active."""
        if throttle.active:
            self._tell(throttle, throttle.end(now_ns, why))

    def _tell(self, throttle: TopicThrottle, decision: ThrottleDecision | None) -> ThrottleDecision | None:
        if decision is not None:
            if decision.kind is Kind.ACTIVATED:
                self.activations += 1
            self.active.pop(throttle, None)
            self.observed.pop(throttle, None)
            if throttle.active:
                (self.observed if throttle.observed else self.active)[throttle] = None
            self._observer(decision)
        return decision


_NONE: Final = Pressures()
