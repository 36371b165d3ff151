# SPDX-License-Identifier: Apache-2.0
"""Adaptive publish throttling, live: the timer, what is measured, and the limits that are put into force.

Why apart from the controller: it decides, and knows no topic, clock or log.
Where: a broker or a proxy has one if `adaptivePublisherThrottlingEnabled` was true at the start. Otherwise nothing of
this module is imported: no timer, no object per topic, no metric.

A cycle measures memory and the disk, then visits the loaded topics and their payers in turns of the loop. It uses at
most 10 ms of the loop: if there are more topics than that allows, the next cycle goes on where this one ended. What a
visit decides is put into force at once. The limit of a payer is a limiter of all its topics, also of one that is new.

Failures never end the timer. They are counted and logged; limits stay for some cycles, then they are released in steps.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.adaptive_throttle import GROUP, Seen, Throttle, ThrottleController, ThrottleOptions, Watermarks
from penstock.governance.budget import Charge
from penstock.governance.resource_group import Amount
from penstock.groups.adaptive_publish import AdaptivePayer, AdaptiveTopic
from penstock.groups.throttle_log import ThrottleLog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import ThrottleDecision
    from penstock.governance.budget import Row
    from penstock.groups.adaptive_publish import AdaptivePublish, Throttled
    from penstock.groups.ports import MeasuredMemory, ThrottledTopic, ThrottleSettings

TopicT = TypeVar("TopicT", bound="ThrottledTopic")
TopicT_contra = TypeVar("TopicT_contra", bound="ThrottledTopic", contravariant=True)

log = logging.getLogger(__name__)

# Topics visited in one turn of the loop: less than a millisecond.
TOPICS_PER_TURN: Final = 100
# How long a cycle may use the loop, in all its turns.
CYCLE_NS_MAX: Final = 10 * NS_PER_MS
# While memory matters, the allocator is asked so often to return what is free: it takes a thread for milliseconds.
GIVE_BACK_NS: Final = 10 * NS_PER_S
# Memory of the state of a topic or payer, and of its limit, once it had one; measured with tracemalloc.
STATE_BYTES: Final = 800
LIMIT_BYTES: Final = 800
# People search logs for these words.
CYCLE_FAILED: Final = "[AdaptiveThrottle] Evaluation cycle failed"
# Topics of which metrics are exported, if they are asked for: six series each.
TOPICS_SHOWN_MAX: Final = 5_000


class DiskDelay(Protocol):
    """Measures how long appends wait."""

    def __call__(self) -> float:
        """Seconds from an append until it is durable."""


class Backlogs(Protocol[TopicT_contra]):
    """Knows how full backlog quotas are."""

    def part(self, topic: TopicT_contra, adaptive: AdaptiveTopic, low: float) -> float:
        """Return the part of its quota that the backlog of a topic uses; it need not be exact up to `low`."""


class TopicThrottling(NamedTuple):
    """One topic, for metrics. Rates are per second."""

    topic: str
    active: bool
    natural_messages: float
    effective_messages: float
    memory_pressure: float
    backlog_pressure: float

    @property
    def reduction(self) -> float:
        """The part of the natural rate that is taken away, from 0 to 1."""
        natural = self.natural_messages
        return max(0.0, 1.0 - self.effective_messages / natural) if natural > 0 else 0.0


class ThrottlingSnapshot(NamedTuple):
    """The whole controller, for metrics."""

    memory_pressure: float
    queueing_pressure: float
    active_topics: int
    observed_topics: int
    active_payers: int
    activations: int
    last_evaluation_ms: int  # since 1970; 0: never
    evaluation_ns: int  # of the last cycle, in all its turns
    interval_ns: int  # between two evaluations, as it is set now
    failures: int
    memory: MeasuredMemory | None
    topics: tuple[TopicThrottling, ...]
    topics_left_out: int


def throttle_options(limits: ThrottleSettings) -> ThrottleOptions:
    """Return the options of these settings."""
    return ThrottleOptions(
        observe_only=limits.adaptive_observe_only,
        interval_ns=limits.adaptive_interval_ms * NS_PER_MS,
        memory=Watermarks(low=limits.adaptive_memory_low, high=limits.adaptive_memory_high),
        backlog=Watermarks(low=limits.adaptive_backlog_low, high=limits.adaptive_backlog_high),
        min_rate_factor=limits.adaptive_min_rate_factor,
        max_rate_change_factor=limits.adaptive_max_rate_change_factor,
    )


class AdaptiveThrottling(Generic[TopicT]):
    """Throttles the topics of a broker or a proxy. All methods are called on the event loop.

    Attributes:
        memory: measures memory.
        disk_delay: measures the disk.
        observer: is told every decision, beside the log; None: only the log is.
        give_back: asks the allocator to return free memory.
        measured: memory, at the last cycle.
    """

    def __init__(
        self,
        *,
        limits: Callable[[], ThrottleSettings],
        topics: Callable[[], Sequence[TopicT]],
        changed: Callable[[TopicT], None],
        backlogs: Backlogs[TopicT],
        memory: Callable[[], MeasuredMemory],
        disk_delay: DiskDelay,
        give_back: Callable[[], object] = lambda: None,
        row: Row,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Args: row: is charged for the states of topics, whether they fit or not: who fills it must not escape."""
        self.memory = memory
        self.disk_delay = disk_delay
        self.give_back = give_back
        self.observer: Callable[[ThrottleDecision], None] | None = None
        self._limits = limits
        self._topics = topics
        self._changed = changed
        self._backlogs = backlogs
        self._states = Charge(row)
        self._clock = clock
        self._loop = loop
        self._log = ThrottleLog()
        self._options = throttle_options(limits())
        self.controller = ThrottleController(self._options, self._decided)
        self.measured: MeasuredMemory | None = None
        self._payers: dict[str, AdaptivePayer] = {}
        self._limited: dict[Throttle, TopicT] = {}  # topics whose limits are in force
        self._limited_payers: set[Throttle] = set()
        self._followers: Iterator[TopicT] | None = None  # that are still to learn of changed limits of payers
        self._follow_again = False
        self._follow_handle: asyncio.Handle | None = None
        self._round: Iterator[TopicT | AdaptivePayer] | None = None
        self._started_ns = 0
        self._used_ns = 0
        self._gave_back_ns: int | None = None
        self._failed = False  # something, in this cycle
        self.evaluation_ns = 0
        self.last_evaluation_ms = 0
        self._turn_handle: asyncio.Handle | None = None
        self._timer = loop.call_later(self._interval_s, self._cycle)

    @property
    def _interval_s(self) -> float:
        return self._options.interval_ns / NS_PER_S

    def stop(self) -> None:
        """End the timer. Limits stay as they are: the broker stops."""
        self._timer.cancel()
        for handle in (self._turn_handle, self._follow_handle):
            if handle is not None:
                handle.cancel()
        self._states.release()

    def _charge(self, nbytes: int) -> None:
        """Charge the states of topics, or release them. States released when all stops are not released again."""
        self._states.recharge(max(0, self._states.charged_bytes + nbytes))

    def options_changed(self) -> None:
        """Apply changed settings. If nothing is to be enforced any more, all limits are lifted now (A10)."""
        before, options = self._options, throttle_options(self._limits())
        if options == before:
            return
        self._options = self.controller.options = options
        if options.observe_only != before.observe_only:
            why = "observe-only was switched " + ("on" if options.observe_only else "off")
            self._log.begin()
            self._release(self.controller.throttled, why)
        if options.interval_ns != before.interval_ns:
            self._timer.cancel()
            self._timer = self._loop.call_later(self._interval_s, self._cycle)

    def lines(self, topic: TopicT) -> tuple[AdaptivePublish, ...]:
        """See `Throttles`."""
        payer = self._payers.get(payer_of(topic)) if self._limited_payers and not topic.system else None
        found = (one.limiter for one in (payer, topic.adaptive) if one is not None)
        topic.throttle_lines = tuple(line for line in found if line is not None)
        return topic.throttle_lines

    def forget_topic(self, topic: TopicT) -> None:
        """See `Throttles`. Its own debt and rates go with it; its payer keeps those of the payer."""
        if topic.messages_in != topic.counted.messages and not topic.system:
            self._count(topic, self._clock.monotonic_ns())
        topic.throttle_lines = ()
        adaptive, topic.adaptive = topic.adaptive, None
        if adaptive is not None:
            self._charge(-_charged(adaptive))
            self._limited.pop(adaptive.throttle, None)
            self.controller.release(adaptive.throttle, self._clock.monotonic_ns(), "the topic was unloaded")

    def _release(self, throttles: Sequence[Throttle], why: str) -> None:
        """Lift limits, of some topics in each turn of the loop."""
        now_ns = self._clock.monotonic_ns()
        for throttle in throttles[:TOPICS_PER_TURN]:
            self.controller.release(throttle, now_ns, why)
            self._enforce_of(throttle)
        if len(throttles) > TOPICS_PER_TURN:
            self._loop.call_soon(self._release, throttles[TOPICS_PER_TURN:], why)
        else:
            self._log.end()

    # -- a cycle

    def _cycle(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._cycle)
        if self._turn_handle is not None:
            return  # The loop is so busy that the turns of the last cycle have not ended.
        self._started_ns = self._clock.monotonic_ns()
        self._used_ns = 0
        self._failed = False
        self._log.begin()
        try:
            self.measured = measured = self.memory()
            self.controller.begin(self._options, memory=measured.part, queueing_s=self.disk_delay())
            self._log.memory(self.controller.memory_pressure, measured)
            self._give_back()
        except Exception:
            self._failed = True
            log.exception(CYCLE_FAILED)
            if self.controller.cycle_failed():
                self._release_step(self.controller.throttled)
            return
        if self._round is None:
            self._round = self._visited()
        self._turn()

    def _visited(self) -> Iterator[TopicT | AdaptivePayer]:
        """All topics, and then all payers: also those that were found with the topics."""
        yield from self._topics()
        yield from list(self._payers.values())

    def _give_back(self) -> None:
        """Freed memory that the allocator keeps counts as used as far as no row of the budget has accounted for it."""
        due = self._gave_back_ns is None or self._started_ns - self._gave_back_ns >= GIVE_BACK_NS
        if self.controller.memory_pressure > 0.0 and due:
            self._gave_back_ns = self._started_ns
            self.give_back()

    def _turn(self) -> None:
        self._turn_handle = None
        began_ns = self._clock.monotonic_ns()
        more = self._visit_some(began_ns)
        self._used_ns += self._clock.monotonic_ns() - began_ns
        if more and self._used_ns < CYCLE_NS_MAX:
            self._turn_handle = self._loop.call_soon(self._turn)
            return
        if not more:
            self._round = None
            self.controller.end_round()
        self.evaluation_ns = self._used_ns
        if self._failed:
            self.controller.failures += 1
        else:
            self.last_evaluation_ms = self._clock.wall_ms()
        self.controller.cycle_succeeded()
        self._log.end()

    def _visit_some(self, now_ns: int) -> bool:
        """Visit the next topics and payers; returns whether there are more."""
        assert self._round is not None
        for count, one in enumerate(self._round, 1):
            try:
                if isinstance(one, AdaptivePayer):
                    self._visit_payer(one, now_ns)
                else:
                    self._visit_topic(one, now_ns)
            except Exception:
                if not self._failed:  # Once in a cycle: ten thousand topics may fail for one reason.
                    self._failed = True
                    log.exception(CYCLE_FAILED)
                self._visit_failed(one, now_ns)
            if count >= TOPICS_PER_TURN:
                return True
        return False

    def _visit_topic(self, topic: TopicT, now_ns: int) -> None:
        published = topic.messages_in != topic.counted.messages
        if not (published or topic.adaptive is not None) or topic.closed or topic.system:
            return
        payer = self._count(topic, now_ns)
        adaptive = topic.adaptive
        if adaptive is None:
            throttle = Throttle(topic.text, payer, Seen(topic.messages_in, topic.bytes_in), now_ns)
            topic.adaptive = AdaptiveTopic(throttle)
            self._charge(STATE_BYTES)
            return
        throttle = adaptive.throttle
        throttle.payer = payer
        backlog = self._backlogs.part(topic, adaptive, self._options.backlog.low)
        seen = Seen(topic.messages_in, topic.bytes_in, *topic.waiting, adaptive.limited_ns(now_ns))
        decision = self.controller.visit(throttle, seen, backlog, now_ns)
        throttle.failures = 0
        if decision is not None:
            self._enforce(topic, adaptive)
        elif throttle.idle:
            self._charge(-_charged(adaptive))
            topic.adaptive = None

    def _count(self, topic: TopicT, now_ns: int) -> str:
        """Let the payer of a topic pay for what was published since it was counted last; returns the payer."""
        name = payer_of(topic)
        payer = self._payers.get(name)
        if payer is None:
            payer = self._payers[name] = AdaptivePayer(self.controller.account(name, now_ns))
            self._charge(STATE_BYTES)
        seen, counted = Amount(topic.messages_in, topic.bytes_in), topic.counted
        topic.counted = seen
        payer.account.count(seen.messages - counted.messages, seen.bytes - counted.bytes)
        return name

    def _visit_payer(self, payer: AdaptivePayer, now_ns: int) -> None:
        account, throttle = payer.account, payer.throttle
        seen = Seen(account.messages, account.bytes, limited_ns=payer.limited_ns(now_ns))
        decision = self.controller.visit_payer(account, seen, now_ns)
        throttle.failures = 0
        if decision is not None:
            self._enforce_payer(payer)
        elif account.idle:
            self._charge(-_charged(payer))
            self.controller.forget_payer(account)
            del self._payers[throttle.payer]

    def _visit_failed(self, one: TopicT | AdaptivePayer, now_ns: int) -> None:
        throttled = one if isinstance(one, AdaptivePayer) else one.adaptive
        if throttled is not None:
            self.controller.visit_failed(throttled.throttle, now_ns)
            self._enforce_of(throttled.throttle)

    # -- limits in force

    def _enforce(self, topic: TopicT, adaptive: AdaptiveTopic) -> None:
        enforced, was_enforced = adaptive.throttle.enforced, adaptive.throttle in self._limited
        if enforced:
            self._set_rates(adaptive)
            self._limited[adaptive.throttle] = topic
        if enforced != was_enforced:
            if not enforced:
                del self._limited[adaptive.throttle]
            self._changed(topic)

    def _enforce_payer(self, payer: AdaptivePayer) -> None:
        enforced, was_enforced = payer.throttle.enforced, payer.throttle in self._limited_payers
        if enforced:
            self._set_rates(payer)
        if enforced != was_enforced:
            (self._limited_payers.add if enforced else self._limited_payers.remove)(payer.throttle)
            self._follow_again = True
            if self._follow_handle is None:
                self._follow_handle = self._loop.call_soon(self._follow)

    def _set_rates(self, throttled: Throttled) -> None:
        if throttled.line is None:
            self._charge(LIMIT_BYTES)
        throttled.set_rates(self._clock, self._loop)

    def _follow(self) -> None:
        """Tell topics of changed limits of their payers, some in each turn of the loop."""
        if self._followers is None:
            self._followers, self._follow_again = iter(self._topics()), False
        topics = list(islice(self._followers, TOPICS_PER_TURN))
        for topic in topics:
            before = topic.throttle_lines
            if not topic.closed and self.lines(topic) != before:
                self._changed(topic)
        if len(topics) < TOPICS_PER_TURN:
            self._followers = None
        more = self._followers is not None or self._follow_again
        self._follow_handle = self._loop.call_soon(self._follow) if more else None

    def _enforce_of(self, throttle: Throttle) -> None:
        topic, payer = self._limited.get(throttle), self._payers.get(throttle.payer)
        if topic is not None and topic.adaptive is not None:
            self._enforce(topic, topic.adaptive)
        elif payer is not None and payer.throttle is throttle:
            self._enforce_payer(payer)

    def _decided(self, decision: ThrottleDecision) -> None:
        self._log.decided(decision)
        if self.observer is not None:
            self.observer(decision)

    def _release_step(self, throttles: Sequence[Throttle]) -> None:
        """Raise limits by a step, of some topics in each turn of the loop."""
        now_ns = self._clock.monotonic_ns()
        for throttle in throttles[:TOPICS_PER_TURN]:
            self.controller.release_step(throttle, now_ns)
            self._enforce_of(throttle)
        if len(throttles) > TOPICS_PER_TURN:
            self._loop.call_soon(self._release_step, throttles[TOPICS_PER_TURN:])
        else:
            self._log.end()

    # -- for metrics and explanations

    def snapshot(self) -> ThrottlingSnapshot:
        """Return the present state. Of topics only if metrics of each are asked for."""
        controller = self.controller
        shown: list[TopicThrottling] = []
        left_out = 0
        if self._limits().adaptive_per_topic_metrics:
            for topic in self._topics():
                if topic.adaptive is not None:
                    if len(shown) < TOPICS_SHOWN_MAX:
                        shown.append(_shown(topic.adaptive.throttle))
                    else:
                        left_out += 1
        return ThrottlingSnapshot(
            memory_pressure=controller.memory_pressure,
            queueing_pressure=controller.queueing_pressure,
            active_topics=len(controller.active),
            observed_topics=len(controller.observed),
            active_payers=len(self._limited_payers),
            activations=controller.activations,
            last_evaluation_ms=self.last_evaluation_ms,
            evaluation_ns=self.evaluation_ns,
            interval_ns=self._options.interval_ns,
            failures=controller.failures,
            memory=self.measured,
            topics=tuple(shown),
            topics_left_out=left_out,
        )


def payer_of(topic: ThrottledTopic) -> str:
    """Return the account that pays for the traffic of a topic."""
    groups = topic.resource_groups
    return f"{GROUP}{groups[0].name}" if groups else topic.name.tenant


def _charged(throttled: Throttled) -> int:
    """The memory that a topic or payer is charged for."""
    return STATE_BYTES + (LIMIT_BYTES if throttled.line is not None else 0)


def _shown(throttle: Throttle) -> TopicThrottling:
    natural, rate = throttle.messages.natural, throttle.messages.rate
    return TopicThrottling(
        topic=throttle.topic,
        active=throttle.enforced,
        natural_messages=natural,
        effective_messages=min(natural, rate) if throttle.enforced and rate is not None else natural,
        memory_pressure=throttle.pressures.memory,
        backlog_pressure=throttle.pressures.backlog,
    )
