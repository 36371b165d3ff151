# SPDX-License-Identifier: Apache-2.0
"""Scenarios of adaptive throttling: pressures that step, rise, spike and swing, and brokers whose memory fills.

Why two kinds: with given pressures, the answer of the law is seen by itself. In a closed loop the throttle changes the
pressure that it reacts to, which is where controllers swing.
Where: `test_throttling` checks their figures; `throttle_table` writes them, with plots, into the documentation.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.governance.adaptive_throttle import Kind, ThrottleOptions
from penstock.governance.throttle_replay import Replay, TopicUse, TraceRow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.governance.throttle_replay import Point

TOPIC: Final = "persistent://tenant/ns/t"
WANTED: Final = 1_000.0
WARM_S: Final = 30
OPTIONS: Final = ThrottleOptions()


class Run(NamedTuple):
    """What happened. `event_s`: when the pressure began."""

    name: str
    points: Sequence[Point]
    memory: Sequence[float]
    kinds: Sequence[tuple[float, Kind]]
    event_s: float

    @property
    def flaps_per_hour(self) -> float:
        """Deactivations that were followed by another activation, per hour."""
        activations = sum(kind is Kind.ACTIVATED for _, kind in self.kinds)
        return max(0, activations - 1) * 3_600 / max(1.0, self.points[-1].at_s - self.event_s)

    @property
    def activations(self) -> int:
        return sum(kind is Kind.ACTIVATED for _, kind in self.kinds)

    def settled_s(self, part: float = 0.05) -> float | None:
        """Seconds from the event until the limit stays within this part of the natural rate; None: it swings."""
        after = [point for point in self.points if point.at_s >= self.event_s]
        last = _part(after[-1])
        settled = max([self.event_s, *(point.at_s + 1 for point in after if abs(_part(point) - last) > part)])
        return settled - self.event_s if settled < self.event_s + 0.9 * len(after) else None

    @property
    def overshoot(self) -> float | None:
        """How far the limit fell below its last value, as a part of the natural rate; None: it swings or was lifted."""
        if self.settled_s() is None or not self.points[-1].active:
            return None
        last = _part(self.points[-1])
        return max(last - _part(point) for point in self.points if point.at_s >= self.event_s)

    @property
    def lowest_part(self) -> float:
        """The lowest limit, as a part of the natural rate then."""
        return min((point.rate / point.natural for point in self.points if point.rate is not None), default=1.0)


def _part(point: Point) -> float:
    """The part of the natural rate that a topic may publish."""
    return 1.0 if point.rate is None or point.natural <= 0 else min(1.0, point.rate / point.natural)


def of_pressure(pressure: float) -> float:
    """The part of memory in use that makes this pressure."""
    return OPTIONS.memory.low + pressure * (OPTIONS.memory.high - OPTIONS.memory.low)


def given(name: str, memory: Callable[[float], float], *, seconds: int = 300, event_s: float = WARM_S) -> Run:
    """A topic that wants a steady rate, and memory as a function of time."""
    return closed(name, lambda at_s, _passed, _memory: memory(at_s), seconds=seconds, event_s=event_s)


def closed(
    name: str,
    plant: Callable[[float, float, float], float],
    *,
    seconds: int = 900,
    event_s: float = WARM_S,
    wanted: Callable[[float], float] = lambda _at_s: WANTED,
) -> Run:
    """`plant(time, messages per second that passed, memory)` returns the memory a second later."""
    replay = Replay(OPTIONS)
    points: list[Point] = []
    memories: list[float] = []
    memory = passed = 0.0
    for at_s in range(seconds + 1):
        memory = plant(at_s, passed, memory)
        memories.append(memory)
        (point,) = replay.feed(TraceRow(at_s, memory, 0.0, {TOPIC: TopicUse(wanted(at_s), wanted(at_s) * 1_000)}))
        points.append(point)
        passed = point.passed
    kinds = [(at_s, decision.kind) for at_s, decision in replay.decisions if decision.topic]
    return Run(name, points, memories, kinds, event_s)


# -- given pressures


def step() -> Run:
    """The pressure steps to 0.8, and stays."""
    return given("step to 0.8", lambda at_s: of_pressure(0.8) if at_s >= WARM_S else 0.5)


def ramp() -> Run:
    """It rises to 1 in two minutes, and stays."""
    return given(
        "ramp to 1 in 120 s",
        lambda at_s: of_pressure(min(1.0, max(0.0, (at_s - WARM_S) / 120))) if at_s > WARM_S else 0.5,
    )


def spike() -> Run:
    """It is 1 for three seconds."""
    return given("spike of 3 s", lambda at_s: of_pressure(1.0) if WARM_S <= at_s < WARM_S + 3 else 0.5)


def steady_boundary() -> Run:
    """Memory swings by one percent around the low watermark, each second."""
    return given(
        "swings at the watermark",
        lambda at_s: 0.70 + 0.01 * math.sin(at_s * 2.1) if at_s > WARM_S else 0.5,
        seconds=3_600 + WARM_S,
    )


def slow_swing() -> Run:
    """The same, but calm for eight seconds at a time: longer than the first hold."""
    return given(
        "swings slowly at the watermark",
        lambda at_s: 0.71 if at_s > WARM_S and at_s % 16 < 8 else 0.69,
        seconds=3_600 + WARM_S,
    )


# -- closed loops


def overload() -> Run:
    """Memory that drains 400 messages per second, of which 10,000 fill it; 1,000 are wanted."""

    def plant(at_s: float, passed: float, memory: float) -> float:
        return max(0.3, memory + (passed - 400) / 10_000) if at_s > WARM_S else 0.3

    return closed("overload, closed loop", plant)


def overload_ends() -> Run:
    """The same, and after five minutes it drains 2,000 messages per second."""

    def plant(at_s: float, passed: float, memory: float) -> float:
        drains = 400 if at_s < 330 else 2_000
        return max(0.3, memory + (passed - drains) / 10_000) if at_s > WARM_S else 0.3

    return closed("overload that ends at 330 s", plant, event_s=330)


def delayed_overload() -> Run:
    """An overload whose effect on memory is seen four seconds late."""
    pipe = [0.0] * 4

    def plant(at_s: float, passed: float, memory: float) -> float:
        pipe.append(passed)
        late = pipe.pop(0)
        return max(0.3, memory + (late - 400) / 20_000) if at_s > WARM_S else 0.3

    return closed("overload, seen 4 s late", plant)


def small_overload() -> Run:
    """Memory that drains a little less than what is wanted."""

    def plant(at_s: float, passed: float, memory: float) -> float:
        return max(0.3, memory + (passed - 950) / 10_000) if at_s > WARM_S else 0.3

    return closed("overload by 5 %", plant, seconds=3_600)


SCENARIOS: Final = (
    step,
    ramp,
    spike,
    steady_boundary,
    slow_swing,
    overload,
    overload_ends,
    delayed_overload,
    small_overload,
)


def quota_filled(seed: int, *, fills_in_s: float, varies: float) -> float:
    """A backlog quota that nobody drains, filled by a rate that varies from second to second around its mean.

    Args:
        fills_in_s: in which the last 30 % of it would be filled.
        varies: the standard deviation of the rate, as a part of its mean.

    Returns how many times as long they take.
    """
    chance = Random(seed)
    replay = Replay(OPTIONS)
    quota = WANTED * fills_in_s / 0.3
    filled, at_s = 0.0, 0
    filled_70_s = 0.0
    rate: float | None = None
    while True:
        before = filled
        wanted = max(0.0, chance.gauss(WANTED, varies * WANTED))
        # The broker adds what was published to the backlog before it decides.
        soon = (filled + min(wanted, wanted if rate is None else rate)) / quota
        (point,) = replay.feed(TraceRow(at_s, 0.3, 0.0, {TOPIC: TopicUse(wanted, wanted * 1_000, soon)}))
        filled, rate = filled + point.passed, point.rate
        if before < 0.7 * quota <= filled:
            filled_70_s = at_s - (filled - 0.7 * quota) / point.passed
        if filled >= quota:
            return (at_s - (filled - quota) / point.passed - filled_70_s) / fills_in_s
        at_s += 1


def calm_day(seed: int) -> Replay:
    """Twenty-four hours of traffic that rises and falls, bursts, slow syncs, and memory below the watermark."""
    chance = Random(seed)
    replay = Replay(OPTIONS)
    names = [f"persistent://tenant-{number % 3}/ns/t{number}" for number in range(4)]
    memory, queueing = 0.4, 0.0
    for at_s in range(86_400):
        day = 1 + math.sin(at_s / 86_400 * 2 * math.pi)
        memory = min(0.69, max(0.2, memory + chance.gauss(0, 0.01)))
        # Now and then a sync takes a second: one measurement, which is not a queue.
        slow, before = (1.0 if chance.random() < 0.001 else chance.uniform(0.001, 0.05)), queueing
        queueing = slow
        topics = {
            name: TopicUse(
                200 * day * (5 if chance.random() < 0.01 else 1),
                2e5 * day,
                backlog=min(0.74, max(0.0, 0.3 + chance.gauss(0, 0.1))),
            )
            for name in names
        }
        replay.feed(TraceRow(at_s, memory, min(slow, before), topics))
    return replay
