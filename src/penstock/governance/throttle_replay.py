# SPDX-License-Identifier: Apache-2.0
"""Replay of adaptive throttling: recorded or imagined usage and pressures in, its decisions out.

Why: watermarks are chosen by asking what they would have done last week. The controller is the broker's own; there is
no second model of it. Only the publishers are imagined: each wants to publish what was recorded, keeps at most a window
of messages in flight, and waits with the rest.
Where: `penstock replay`, and the simulations of the tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_S
from penstock.governance.adaptive_throttle import Kind, Pressures, Seen, Throttle, ThrottleController, ThrottleOptions
from penstock.governance.allocation import water_level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.governance.adaptive_throttle import Account, ThrottleDecision

# Messages that a producer of Pulsar's clients has in flight at most.
WINDOW: Final = 1_000
# Messages are divided between topics in parts of this.
_PARTS: Final = 1_000


class TopicUse(NamedTuple):
    """Demand of one topic, from the row before until this one. `backlog` is the part of its quota in use."""

    messages_per_s: float
    bytes_per_s: float = 0.0
    backlog: float = 0.0


class TraceRow(NamedTuple):
    """The state of a broker at a moment, in seconds since the trace began."""

    at_s: float
    memory: float  # part of the limit in use
    queueing_s: float
    topics: Mapping[str, TopicUse]


class Point(NamedTuple):
    """One topic at the end of a row. Rates are messages per second."""

    at_s: float
    topic: str
    pressures: Pressures
    wanted: float
    natural: float
    rate: float | None  # None: no limit
    passed: float
    active: bool


@dataclass(slots=True)
class Summary:
    """One topic over a whole trace."""

    activations: int = 0
    active_s: float = 0.0
    wanted: float = 0.0
    passed: float = 0.0
    lowest_rate: float | None = None
    worst: Pressures = field(default_factory=Pressures)


class _Publisher:
    """A topic's publishers, and the throttle of the topic."""

    def __init__(self, name: str, payer: str, now_ns: int) -> None:
        self.throttle = Throttle(name, payer, Seen(0, 0), now_ns)
        self.use = TopicUse(0.0)
        self.may = 0.0  # messages that the limit of the topic lets pass
        self.messages = 0.0
        self.bytes = 0.0
        self.held = 0.0
        self.limited_ns = 0

    @property
    def size(self) -> float:
        """Bytes of one message."""
        return self.use.bytes_per_s / self.use.messages_per_s if self.use.messages_per_s else 0.0

    def want(self, use: TopicUse, elapsed_s: float) -> None:
        """Want to publish this, and what waits."""
        self.use = use
        self.may = _passing(self.throttle, self.held + use.messages_per_s * elapsed_s, self.size, elapsed_s)

    def publish(self, passed: float, elapsed_s: float) -> None:
        """Publish so many messages; a window of the others waits."""
        waits = self.held + self.use.messages_per_s * elapsed_s
        self.held = min(WINDOW, waits - passed)
        self.limited_ns += round(elapsed_s * NS_PER_S) if self.held > 0 else 0
        self.messages += passed
        self.bytes += passed * self.size

    def seen(self) -> Seen:
        """As a broker reports it."""
        size = self.bytes / self.messages if self.messages else 0.0
        return Seen(round(self.messages), round(self.bytes), round(self.held), round(self.held * size), self.limited_ns)


class _Payer:
    """The limit of a payer: its topics share it, and none gets more while another one waits."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.limited_ns = 0

    def publish(self, publishers: Sequence[_Publisher], elapsed_s: float) -> None:
        """Let the topics publish."""
        wanted = sum(one.may for one in publishers)
        size = sum(one.may * one.size for one in publishers) / wanted if wanted else 0.0
        passes = _passing(self.account.throttle, wanted, size, elapsed_s)
        level = math.inf
        if passes < wanted:
            self.limited_ns += round(elapsed_s * NS_PER_S)
            level = water_level(round(passes * _PARTS), [round(one.may * _PARTS) for one in publishers]) / _PARTS
        for one in publishers:
            before = one.messages, one.bytes
            one.publish(min(one.may, level), elapsed_s)
            self.account.count(round(one.messages) - round(before[0]), round(one.bytes) - round(before[1]))

    def seen(self) -> Seen:
        """As a broker reports it; what waits is with the topics."""
        return Seen(self.account.messages, self.account.bytes, limited_ns=self.limited_ns)


def _passing(throttle: Throttle, messages: float, size: float, elapsed_s: float) -> float:
    """Messages of this size that a limit lets pass."""
    if throttle.enforced:
        if throttle.messages.rate is not None:
            messages = min(messages, throttle.messages.rate * elapsed_s)
        if throttle.bytes.rate is not None and size:
            messages = min(messages, throttle.bytes.rate * elapsed_s / size)
    return messages


class Replay:
    """Feeds rows to a controller, one cycle per row.

    Attributes:
        decisions: all of them, with their times in seconds.
        summaries: by topic.
    """

    def __init__(self, options: ThrottleOptions, payer_of: Mapping[str, str] | None = None) -> None:
        """Args: payer_of: the tenant or group of a topic; without it, the tenant in its name."""
        self.decisions: list[tuple[float, ThrottleDecision]] = []
        self.summaries: dict[str, Summary] = {}
        self.options = options
        self._payer_of = payer_of or {}
        self._controller = ThrottleController(options, self._decided)
        self._publishers: dict[str, _Publisher] = {}
        self._payers: dict[str, _Payer] = {}
        self._at_s = 0.0
        self._before_s: float | None = None

    def run(self, rows: Iterable[TraceRow]) -> Iterator[Point]:
        """Yield the state of each topic after each row."""
        for row in rows:
            yield from self.feed(row)

    def feed(self, row: TraceRow) -> list[Point]:
        """Take one row; returns the state of its topics. The first row only begins."""
        self._at_s = row.at_s
        elapsed_s = row.at_s - self._before_s if self._before_s is not None else 0.0
        self._before_s = row.at_s
        now_ns = round(row.at_s * NS_PER_S)
        publishers = {name: self._publisher(name, now_ns - round(elapsed_s * NS_PER_S)) for name in row.topics}
        before = {name: one.messages for name, one in publishers.items()}
        if elapsed_s > 0:
            self._publish(row, publishers, elapsed_s)
        self._controller.begin(self.options, memory=row.memory, queueing_s=row.queueing_s)
        points = []
        for name, use in row.topics.items():
            publisher = publishers[name]
            passed = publisher.messages - before[name]
            throttle = publisher.throttle
            self._controller.visit(throttle, publisher.seen(), use.backlog, now_ns)
            self._count(name, throttle, use.messages_per_s * elapsed_s, passed, elapsed_s)
            points.append(
                Point(
                    at_s=row.at_s,
                    topic=name,
                    pressures=throttle.pressures,
                    wanted=use.messages_per_s,
                    natural=throttle.messages.natural,
                    rate=throttle.messages.rate,
                    passed=passed / elapsed_s if elapsed_s > 0 else 0.0,
                    active=throttle.active,
                )
            )
        for payer in self._payers.values():
            self._controller.visit_payer(payer.account, payer.seen(), now_ns)
        self._controller.end_round()
        return points

    def _publisher(self, name: str, began_ns: int) -> _Publisher:
        publisher = self._publishers.get(name)
        if publisher is None:
            payer = self._payer_of.get(name, tenant_of(name))
            publisher = self._publishers[name] = _Publisher(name, payer, began_ns)
            if payer not in self._payers:
                self._payers[payer] = _Payer(self._controller.account(payer, began_ns))
        return publisher

    def _publish(self, row: TraceRow, publishers: Mapping[str, _Publisher], elapsed_s: float) -> None:
        by_payer: dict[str, list[_Publisher]] = {}
        for name, use in row.topics.items():
            publishers[name].want(use, elapsed_s)
            by_payer.setdefault(publishers[name].throttle.payer, []).append(publishers[name])
        for payer, its_own in by_payer.items():
            self._payers[payer].publish(its_own, elapsed_s)

    def _count(self, name: str, throttle: Throttle, wanted: float, passed: float, elapsed_s: float) -> None:
        summary = self.summaries.setdefault(name, Summary())
        summary.wanted += wanted
        summary.passed += passed
        rate = throttle.messages.rate
        if throttle.active:
            summary.active_s += elapsed_s
            if rate is not None and (summary.lowest_rate is None or rate < summary.lowest_rate):
                summary.lowest_rate = rate
        if throttle.pressures.worst > summary.worst.worst:
            summary.worst = throttle.pressures

    def _decided(self, decision: ThrottleDecision) -> None:
        self.decisions.append((self._at_s, decision))
        if decision.topic and decision.kind in {Kind.ACTIVATED, Kind.WOULD_ACTIVATE}:
            self.summaries.setdefault(decision.topic, Summary()).activations += 1


def tenant_of(topic: str) -> str:
    """Return the tenant in a topic's full name, or the name if it is none."""
    return topic.partition("://")[2].partition("/")[0] or topic
