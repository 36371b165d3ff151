# SPDX-License-Identifier: Apache-2.0
"""Adaptive publish throttling of one topic or payer: pressure and recent rates in, a publish rate out.

Why: a broker that runs out of memory, or a topic that reaches its backlog quota, stops publishers suddenly. A rate that
falls with rising pressure slows them in time, and those who do not cause the pressure go on.

The law, each cycle, for messages and bytes independently:

    pressure(x) = (x - low) / (high - low), from 0 to 1
    target      = natural · (1 - pressure · (1 - minRateFactor)), at least 1
    rate        = one step towards the target, by at most natural · maxRateChangeFactor

The natural rate is what producers publish, or try to. It follows higher rates fast (0.30) and lower ones slowly (0.05).
So each burst lifts it, and it stays above the mean of a rate that varies: by a fifth where seconds vary by a third. A
limit reckoned from it limits nothing until the pressure is above a fifth. So an activation begins with what the topic
published lately: the higher of two means, a short and a long one, which a burst and a pause lift and lower alike.

While a topic is limited, what passes says nothing about the natural rate; what is held back does (A5). So it only rises
then, and at most to twice its value at the activation: a client that sends more while it is limited gains little by it.

A topic is activated when its pressure is above 0, and deactivated after several cycles at 0 in a row, in which its rate
rises step by step (A3). Activations that follow each other closely make this time longer.

Where: `adaptive_controller` has one `Throttle` for each topic that receives messages, and one for each payer, with the
sums of its topics. `broker.publishing` enforces the rates; `penstock replay` and simulations only print them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from penstock.core.units import NS_PER_MS, NS_PER_S

# Weights of a new sample in the natural rate: of a higher one, and of a lower one.
ALPHA_UP: Final = 0.30
ALPHA_DOWN: Final = 0.05
# A natural rate below this (per second) is none: the next sample is taken whole, as the first one is (A6).
_NATURAL_MIN: Final = 1.0
# The first sample often covers a part of an interval only, so a higher second one is taken whole, too.
_WHOLE_SAMPLES: Final = 2
# How far the natural rate may rise while a topic is limited (anti-windup).
GROWTH_MAX: Final = 2.0
# Cycles without pressure before a topic is deactivated. The usual rate is reached in four steps of 25 %.
CALM_CYCLES: Final = 5
# If a topic is activated again within so many cycles, it must be calm for twice as long; up to this.
AGAIN_CYCLES: Final = 120
CALM_CYCLES_MAX: Final = 40
# Smaller changes of a limit, as parts of the natural rate, are left out: thousands of topics would change each second.
_STEP_MIN: Final = 0.005
# A waiting time below this part of the interval is a burst that was smoothed, not demand that was held back.
_LIMITED_PART: Final = 20
# Cycles that fail one after the other before limits are released, in steps.
HELD_FAILURES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """Where a pressure begins to matter (low), and where it is answered in full (high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low < self.high:
            raise ValueError(f"want 0 <= low < high, got low={self.low} high={self.high}")

    def pressure(self, value: float) -> float:
        """Return 0 up to the low watermark, 1 from the high one on, and a straight line between them."""
        return linear_pressure(value, self.low, self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleOptions:
    """The law's parameters; the defaults are those of the settings."""

    observe_only: bool = False
    interval_ns: int = 1_000 * NS_PER_MS
    memory: Watermarks = field(default=Watermarks(low=0.70, high=0.85))
    backlog: Watermarks = field(default=Watermarks(low=0.75, high=0.90))
    # Seconds from an append until it is durable. A disk that is this slow all the time is overloaded; at one second
    # publishers are muted anyway. Not a setting.
    queueing: Watermarks = field(default=Watermarks(low=0.25, high=1.0))
    min_rate_factor: float = 0.10
    max_rate_change_factor: float = 0.25

    def __post_init__(self) -> None:
        for name in ("min_rate_factor", "max_rate_change_factor"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ValueError(f"want 0 < {name} <= 1, got {getattr(self, name)}")
        if self.interval_ns < 1:
            raise ValueError(f"want an interval of at least 1 ns, got {self.interval_ns}")


class Pressures(NamedTuple):
    """The pressures on one topic, from 0 to 1 each; `weight` is its part in those of the whole broker."""

    memory: float = 0.0
    backlog: float = 0.0
    queueing: float = 0.0
    weight: float = 1.0

    @property
    def worst(self) -> float:
        """The pressure that counts."""
        return max(self.backlog, self.weight * max(self.memory, self.queueing))


class Seen(NamedTuple):
    """What a topic or payer did until now: counters, and what waits at this moment, for whatever limit."""

    messages: int
    bytes: int
    held_messages: int = 0
    held_bytes: int = 0
    limited_ns: int = 0  # for how long something has been waiting for its limit, in all
    limited_elsewhere: bool = False  # a topic, by the limit of its payer; a payer, by limits of its topics


class Kind(Enum):
    """What was decided. The values are the words used in logs, metrics and records."""

    ACTIVATED = "activated"
    STEP = "step"
    DEACTIVATED = "deactivated"
    WOULD_ACTIVATE = "would-activate"
    WOULD_STEP = "would-step"
    WOULD_DEACTIVATE = "would-deactivate"


_WOULD: Final = {
    Kind.ACTIVATED: Kind.WOULD_ACTIVATE,
    Kind.STEP: Kind.WOULD_STEP,
    Kind.DEACTIVATED: Kind.WOULD_DEACTIVATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottleDecision:
    """One decision about a topic, or about a payer: then `topic` is empty. Rates are per second; None: no limit."""

    kind: Kind
    payer: str
    topic: str
    pressures: Pressures
    natural_messages: float
    natural_bytes: float
    rate_messages: float | None
    rate_bytes: float | None
    why: str = ""  # if not because of the pressures


def linear_pressure(value: float, low: float, high: float) -> float:
    """Return 0 up to `low`, 1 from `high` on, and a straight line between them."""
    if value <= low:
        return 0.0
    return 1.0 if value >= high else (value - low) / (high - low)


def target_rate(natural: float, pressure: float, min_rate_factor: float) -> float:
    """Return the rate for this pressure, per second; at least 1."""
    return max(1.0, natural * (1.0 - pressure * (1.0 - min_rate_factor)))


def bounded_step(current: float, target: float, natural: float, options: ThrottleOptions) -> float:
    """Return the next rate on the way from `current` to `target`; never below the floor."""
    step = natural * options.max_rate_change_factor
    rate = min(target, current + step) if target > current else max(target, current - step)
    return max(rate, 1.0, natural * options.min_rate_factor)


class Track:
    """Messages or bytes of one topic.

    Attributes:
        natural: per second, without throttling; 0 if unknown.
        rate: the limit, per second; None: no limit.
    """

    __slots__ = ("_long_mean", "_natural_max", "_samples", "_short_mean", "natural", "rate")

    def __init__(self) -> None:
        self.natural = 0.0
        self._short_mean = 0.0  # per second, without throttling; its weights are those of the natural rate
        self._long_mean = 0.0
        self.rate: float | None = None
        self._samples = 0
        self._natural_max = 0.0  # while limited

    def sample(self, per_s: float, cycles: float) -> None:
        """Take a measured rate into account that nothing limited. `cycles`: intervals that it covers."""
        natural = self.natural
        if natural < _NATURAL_MIN:
            self._samples = 1 if per_s else 0
            self.natural = self._short_mean = self._long_mean = per_s
        elif per_s > natural and self._samples < _WHOLE_SAMPLES:
            self._samples += 1
            self.natural = self._short_mean = self._long_mean = per_s
        else:
            self._samples = _WHOLE_SAMPLES
            up, down = _alpha(cycles, ALPHA_UP), _alpha(cycles, ALPHA_DOWN)
            self.natural = natural + (up if per_s > natural else down) * (per_s - natural)
            self._short_mean += up * (per_s - self._short_mean)
            self._long_mean += down * (per_s - self._long_mean)

    def sample_limited(self, demand_per_s: float, cycles: float) -> None:
        """Take what a limited topic would have published into account: the natural rate may rise, within a bound."""
        natural = self.natural
        if demand_per_s > natural:
            risen = natural + _alpha(cycles, ALPHA_UP) * (demand_per_s - natural)
            risen = max(natural, min(risen, self._natural_max))
            self.natural = risen
            self._short_mean = self._long_mean = risen

    def begin(self) -> None:
        """The topic is activated."""
        self.level()
        self._natural_max = self.natural * GROWTH_MAX

    def level(self) -> None:
        """Take what was published lately for the natural rate; it is never above it."""
        self.natural = min(self.natural, max(self._short_mean, self._long_mean))

    def step(self, pressure: float, options: ThrottleOptions) -> bool:
        """Move the limit one step; returns whether it has changed. Without a natural rate there is no limit (A7)."""
        before, natural = self.rate, self.natural
        if natural <= 0.0:
            self.rate = None
            return before is not None
        current = natural if before is None else before
        rate = bounded_step(current, target_rate(natural, pressure, options.min_rate_factor), natural, options)
        if (
            before is not None
            and abs(rate - before) <= natural * _STEP_MIN
            and before >= natural * options.min_rate_factor
        ):
            return False
        self.rate = rate
        return True

    def end(self) -> None:
        """The topic is not limited any more."""
        self.rate = None


class Throttle:
    """The controller's state of one topic, or of one payer. It is changed in place: a cycle visits ten thousand.

    Attributes:
        topic: its full name; empty for a payer.
        active: whether it is throttled, or would be.
        observed: whether it only would be.
        since_ns: when it was activated; None if inactive.
        pressures: at the last visit.
        payer: the resource group or tenant that its traffic counts for.
        limited: whether its own limit held something back when it was measured last.
        failures: visits in a row that failed.
    """

    __slots__ = (
        "_bytes_seen",
        "_calm",
        "_calm_wanted",
        "_ended_ns",
        "_held_bytes",
        "_held_messages",
        "_limited_ns",
        "_messages_seen",
        "_seen_ns",
        "active",
        "bytes",
        "failures",
        "limited",
        "messages",
        "observed",
        "payer",
        "pressures",
        "since_ns",
        "topic",
    )

    def __init__(self, topic: str, payer: str, seen: Seen, now_ns: int) -> None:
        self.topic = topic
        self.payer = payer
        self.messages = Track()
        self.bytes = Track()
        self.active = False
        self.observed = False
        self.since_ns: int | None = None
        self.pressures = Pressures()
        self.limited = False
        self.failures = 0
        self._calm = 0
        self._calm_wanted = CALM_CYCLES
        self._ended_ns: int | None = None
        self.restart(seen, now_ns)

    def restart(self, seen: Seen, now_ns: int) -> None:
        """Measure from now on: what was done before does not count."""
        self._seen_ns = now_ns
        self._remember(seen)

    @property
    def enforced(self) -> bool:
        """Whether its rates apply to producers."""
        return self.active and not self.observed

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if this state were dropped: it is inactive, and nothing is published."""
        return not self.active and self.messages.natural < _NATURAL_MIN

    def measure(self, seen: Seen, options: ThrottleOptions, now_ns: int) -> bool:
        """Update the natural rates. Returns False if no time has passed since the last call: then nothing is done."""
        elapsed_ns = now_ns - self._seen_ns
        if elapsed_ns <= 0:
            return False
        per_s = NS_PER_S / elapsed_ns
        cycles = elapsed_ns / options.interval_ns
        messages = seen.messages - self._messages_seen
        nbytes = seen.bytes - self._bytes_seen
        if messages < 0 or nbytes < 0:
            messages, nbytes = seen.messages, seen.bytes  # The topic was loaded again.
        self.limited = self.enforced and self._was_limited(seen, elapsed_ns)
        if self.limited or seen.limited_elsewhere:
            self.messages.sample_limited((messages + seen.held_messages - self._held_messages) * per_s, cycles)
            self.bytes.sample_limited((nbytes + seen.held_bytes - self._held_bytes) * per_s, cycles)
        else:
            self.messages.sample(messages * per_s, cycles)
            self.bytes.sample(nbytes * per_s, cycles)
            if self.active:
                self.messages.level()
                self.bytes.level()
        self._seen_ns = now_ns
        self._remember(seen)
        return True

    def _was_limited(self, seen: Seen, elapsed_ns: int) -> bool:
        return (seen.limited_ns - self._limited_ns) * _LIMITED_PART > elapsed_ns or seen.held_messages > 0

    def _remember(self, seen: Seen) -> None:
        self._messages_seen, self._bytes_seen = seen.messages, seen.bytes
        self._held_messages, self._held_bytes, self._limited_ns = seen.held_messages, seen.held_bytes, seen.limited_ns

    def step(self, pressures: Pressures, options: ThrottleOptions, now_ns: int) -> ThrottleDecision | None:
        """Decide, after `measure`. Returns None if nothing changes."""
        pressure = pressures.worst
        self.pressures = pressures
        if self.active and self.observed != options.observe_only:
            # A mode that was changed begins anew: from the rates without throttling, and with nothing enforced.
            return self.end(now_ns, "observe-only was switched " + ("on" if options.observe_only else "off"))
        if not self.active:
            return self._activate(pressure, options, now_ns) if pressure > 0.0 else None
        if pressure > 0.0:
            self._calm = 0
        else:
            self._calm += 1
            if self._calm >= self._calm_wanted:
                return self.end(now_ns)
        return self._stepped(pressure, options)

    def _activate(self, pressure: float, options: ThrottleOptions, now_ns: int) -> ThrottleDecision | None:
        if self.messages.natural <= 0.0 and self.bytes.natural <= 0.0:
            return None  # Warm-up: without a measured rate there is nothing to reduce.
        again_ns = AGAIN_CYCLES * options.interval_ns
        again = self._ended_ns is not None and now_ns - self._ended_ns < again_ns
        self._calm_wanted = min(CALM_CYCLES_MAX, 2 * self._calm_wanted) if again else CALM_CYCLES
        self._calm = 0
        self.active, self.observed, self.since_ns = True, options.observe_only, now_ns
        for track in (self.messages, self.bytes):
            track.begin()
            track.step(pressure, options)
        return self._decision(Kind.ACTIVATED)

    def _stepped(self, pressure: float, options: ThrottleOptions) -> ThrottleDecision | None:
        changed = [track.step(pressure, options) for track in (self.messages, self.bytes)]
        return self._decision(Kind.STEP) if any(changed) else None

    def release_step(self, options: ThrottleOptions, now_ns: int) -> ThrottleDecision | None:
        """Move one step towards no limit, whatever the pressure is: nobody knows it (A12)."""
        if not self.active:
            return None
        if not self._stepped(0.0, options) or all(
            track.rate is None or track.rate >= track.natural for track in (self.messages, self.bytes)
        ):
            return self.end(now_ns, "evaluation fails")
        return self._decision(Kind.STEP, "evaluation fails")

    def end(self, now_ns: int, why: str = "") -> ThrottleDecision:
        """Deactivate at once."""
        decision = self._decision(Kind.DEACTIVATED, why, limited=False)
        self.active, self.since_ns, self._ended_ns = False, None, now_ns
        self.messages.end()
        self.bytes.end()
        return decision

    def _decision(self, kind: Kind, why: str = "", *, limited: bool = True) -> ThrottleDecision:
        return ThrottleDecision(
            kind=_WOULD[kind] if self.observed else kind,
            payer=self.payer,
            topic=self.topic,
            pressures=self.pressures,
            natural_messages=self.messages.natural,
            natural_bytes=self.bytes.natural,
            rate_messages=self.messages.rate if limited else None,
            rate_bytes=self.bytes.rate if limited else None,
            why=why,
        )


def _alpha(cycles: float, alpha: float) -> float:
    """Return the weight of a sample that covers so many intervals."""
    return alpha if cycles <= 1.5 else 1.0 - (1.0 - alpha) ** cycles
