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

Where: `ThrottleController` has one `Throttle` for each topic that receives messages, and one for each payer, with the
sums of its topics. `broker.publishing` enforces the rates; `penstock replay` and simulations only print them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    """Counters of a topic or payer until now, and what waits at this moment, for whatever limit."""

    messages: int
    bytes: int
    held_messages: int = 0
    held_bytes: int = 0
    limited_ns: int = 0  # for how long something has been waiting for its limit, in all
    limited_elsewhere: bool = False  # a topic, by the limit of its payer; a payer, by limits of its topics


class Kind(Enum):
    """Kind of a decision. The values are the words used in logs, metrics and records."""

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


# ---------------------------------------------------------------------------------------------------------------------
# Adaptive publish throttling of a broker: who pays for the pressure, and what is counted.
#
# Why apart from `adaptive_throttle`: the backlog of a topic is its own, but memory and the disk belong to all topics. A
# law that slows all of them alike punishes those who did nothing (A8). So topics are weighted by what they contribute.
#
# Accounts. The payer of a topic is its resource group, else its tenant. A client chooses the names of its topics, but
# not who pays. So each payer has an account: the law itself, with the sums of all its topics. What a new topic would
# begin anew is there already: the natural rate, the limit and its debt. A topic that is new, renamed or one of fifty
# takes part in what its payer has left. The limits of topics then say only which of its topics are slowed first.
#
# Weights. A payer whose bytes per second are at least the mean of all payers has weight 1; one with half of the mean or
# less has weight 0, and is not slowed; a straight line between. The topics of a payer are weighted alike among
# themselves, and both weights are multiplied. So a single tenant with equal topics has weight 1 everywhere, which is
# the law without weights. Rates are natural ones, so that a payer that is slowed does not become a small one.

# Begins the name of a payer that is a resource group. Others are tenants: no tenant has a slash in its name.
GROUP: Final = "group/"
# Below this part of the mean nobody pays.
CALM_PART: Final = 0.5


class Contributions:
    """Bytes per second by payer, and by topic of a payer, as one round of visits has found them."""

    __slots__ = ("_of_payers", "_of_topics", "_total")

    def __init__(self) -> None:
        self._of_payers: dict[str, float] = {}
        self._of_topics: dict[str, tuple[float, int]] = {}  # their sum, and how many
        self._total = 0.0

    def add_payer(self, payer: str, bytes_per_s: float) -> None:
        """Count a payer."""
        self._of_payers[payer] = bytes_per_s
        self._total += bytes_per_s

    def add_topic(self, payer: str, bytes_per_s: float) -> None:
        """Count a topic."""
        total, count = self._of_topics.get(payer, (0.0, 0))
        self._of_topics[payer] = total + bytes_per_s, count + 1

    def of_payer(self, payer: str) -> float:
        """Return the part in a pressure of the whole broker that a payer has to pay, from 0 to 1."""
        bytes_per_s = self._of_payers.get(payer, 0.0)
        return _weight(bytes_per_s * len(self._of_payers), self._total) if bytes_per_s > 0.0 else 1.0  # 1: new

    def of_topic(self, payer: str, bytes_per_s: float) -> float:
        """Return the part that a topic of this payer has to pay."""
        total, count = self._of_topics.get(payer, (0.0, 0))
        among_its_own = _weight(bytes_per_s * count, total) if total > 0.0 else 1.0
        return self.of_payer(payer) * among_its_own


class Account:
    """Account of a payer, whatever its topics are called.

    Attributes:
        throttle: the law, with the sums of all topics.
        messages: published to all of them; and `bytes`.
    """

    __slots__ = ("_held_bytes", "_held_messages", "_rounds", "_topics_limited", "bytes", "messages", "throttle")

    def __init__(self, payer: str, now_ns: int) -> None:
        self.throttle = Throttle("", payer, Seen(0, 0), now_ns)
        self.messages = 0
        self.bytes = 0
        self._rounds = 0  # in which it was visited
        self._held_messages = 0
        self._held_bytes = 0
        self._topics_limited = False

    def count(self, messages: int, nbytes: int) -> None:
        """Count what was published to a topic since it was counted last."""
        self.messages += messages
        self.bytes += nbytes

    def topic_seen(self, seen: Seen, throttle: Throttle) -> None:
        """Take part in what waits for the limit of a topic."""
        self._held_messages += seen.held_messages
        self._held_bytes += seen.held_bytes
        self._topics_limited |= throttle.limited

    @property
    def idle(self) -> bool:
        """Whether nothing would be lost if this account were dropped."""
        return self._rounds > 1 and self.throttle.idle

    def measure(self, seen: Seen, options: ThrottleOptions, now_ns: int) -> bool:
        """Update the natural rates, after those of the topics. What waits is known from these.

        The first round only begins: what it has counted was published nobody knows since when.
        """
        self._rounds += 1
        seen = seen._replace(
            held_messages=self._held_messages,
            held_bytes=self._held_bytes,
            limited_elsewhere=self.throttle.enforced and self._topics_limited,
        )
        self._held_messages = self._held_bytes = 0
        self._topics_limited = False
        if self._rounds == 1:
            self.throttle.restart(seen, now_ns)
            return False
        return self.throttle.measure(seen, options, now_ns)


def _weight(value: float, mean: float) -> float:
    ratio = value / mean
    return min(1.0, max(0.0, (ratio - CALM_PART) / (1.0 - CALM_PART)))


class ThrottleController:
    """Decides about all topics and payers of a broker.

    Cycles are `begin`, then `visit` of topics; a round of cycles ends with `visit_payer` of all payers and `end_round`.

    Attributes:
        options: the law's parameters.
        memory_pressure: of the current cycle; and `queueing_pressure`.
        accounts: by payer.
        active: topics that are throttled.
        observed: topics that would be.
        payers: those that are, or would be.
        activations: how often a topic was activated.
        failures: cycles in which something failed.
    """

    def __init__(self, options: ThrottleOptions, observer: Callable[[ThrottleDecision], None]) -> None:
        """Args: observer: is told every decision."""
        self.options = options
        self.memory_pressure = 0.0
        self.queueing_pressure = 0.0
        self.accounts: dict[str, Account] = {}
        self.active: dict[Throttle, None] = {}
        self.observed: dict[Throttle, None] = {}
        self.payers: dict[Throttle, None] = {}
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

    def account(self, payer: str, now_ns: int) -> Account:
        """Return the account of a payer; a payer that is not known gets one."""
        account = self.accounts.get(payer)
        if account is None:
            account = self.accounts[payer] = Account(payer, now_ns)
        return account

    def visit(self, throttle: Throttle, seen: Seen, backlog: float, now_ns: int) -> ThrottleDecision | None:
        """Measure one topic, and decide about it. Its payer has an account.

        Args:
            throttle: its state.
            seen: its counters.
            backlog: part of its backlog quota that is in use; 0 without a quota.
            now_ns: monotonic time.
        """
        options, account = self.options, self.accounts[throttle.payer]
        if account.throttle.limited:
            seen = seen._replace(limited_elsewhere=True)
        if not throttle.measure(seen, options, now_ns):
            return None
        account.topic_seen(seen, throttle)
        natural_bytes = throttle.bytes.natural
        self._now.add_topic(throttle.payer, natural_bytes)
        memory, queueing = self.memory_pressure, self.queueing_pressure
        # Most visits of most brokers end here.
        if not throttle.active and memory <= 0.0 and queueing <= 0.0 and backlog <= options.backlog.low:
            throttle.pressures = _NONE
            return None
        weight = self._before.of_topic(throttle.payer, natural_bytes)
        pressures = Pressures(memory, options.backlog.pressure(backlog), queueing, weight)
        return self._tell(throttle, throttle.step(pressures, options, now_ns))

    def visit_payer(self, account: Account, seen: Seen, now_ns: int) -> ThrottleDecision | None:
        """Measure a payer after its topics, and decide about it. `seen`: without what waits."""
        throttle, options = account.throttle, self.options
        if not account.measure(seen, options, now_ns):
            return None
        self._now.add_payer(throttle.payer, throttle.bytes.natural)
        weight = self._before.of_payer(throttle.payer)
        pressures = Pressures(self.memory_pressure, 0.0, self.queueing_pressure, weight)
        return self._tell(throttle, throttle.step(pressures, options, now_ns))

    def forget_payer(self, account: Account) -> None:
        """Drop an account that is idle: its next message begins it anew."""
        self.accounts.pop(account.throttle.payer, None)

    def end_round(self) -> None:
        """All topics and payers were visited: their contributions count from now on."""
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

    def visit_failed(self, throttle: Throttle, now_ns: int) -> None:
        """One topic cannot be measured; the same for it alone."""
        throttle.failures += 1
        if throttle.failures > HELD_FAILURES:
            self.release_step(throttle, now_ns)

    def release_step(self, throttle: Throttle, now_ns: int) -> None:
        """Raise the limit of a topic by a step, whatever the pressure is."""
        self._tell(throttle, throttle.release_step(self.options, now_ns))

    # -- ends

    def release(self, throttle: Throttle, now_ns: int, why: str) -> None:
        """Deactivate a topic at once, if it is active."""
        if throttle.active:
            self._tell(throttle, throttle.end(now_ns, why))

    def _tell(self, throttle: Throttle, decision: ThrottleDecision | None) -> ThrottleDecision | None:
        if decision is not None:
            if decision.kind is Kind.ACTIVATED and throttle.topic:
                self.activations += 1
            for kept in (self.active, self.observed, self.payers):
                kept.pop(throttle, None)
            if throttle.active:
                self._kept(throttle)[throttle] = None
            self._observer(decision)
        return decision

    @property
    def throttled(self) -> Sequence[Throttle]:
        """All topics and payers that are throttled, or would be."""
        return [*self.active, *self.observed, *self.payers]

    def _kept(self, throttle: Throttle) -> dict[Throttle, None]:
        if not throttle.topic:
            return self.payers
        return self.observed if throttle.observed else self.active


_NONE: Final = Pressures()
