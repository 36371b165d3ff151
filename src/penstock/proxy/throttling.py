# SPDX-License-Identifier: Apache-2.0
"""Adaptive throttling of what clients publish through a proxy: connects the controller with what is measured here.

Memory is the proxy's own; backlogs are those of the cluster, if its admin port is known. The proxy has no disk.

A cycle asks the admin port for the statistics of some topics that have producers here, in turns; they contain the size
of the backlog and the quota in force. Between two answers, what is published through this proxy is added, so the size
is an upper bound for what passes here. Failures are counted, and the first of several is logged. An answer that is too
old does not count any more, so limits are released in steps.

A topic's limit is for all its producers, and they come over many connections. So each topic is kept once, and for a
minute after its last producer: one that connects again finds the same limit and the same debt. `relayed_sends` adds
producers.
Where: `proxy_app`, if adaptivePublisherThrottlingEnabled.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

from penstock.core.units import NS_PER_S
from penstock.governance.resource_group import NOTHING
from penstock.groups.adaptive_throttling import AdaptiveThrottling
from penstock.proxy.cluster_admin import NoAnswer
from penstock.stats.process import MemorySensor, give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.governance.budget import Row
    from penstock.groups.adaptive_publish import AdaptivePublish, AdaptiveTopic
    from penstock.groups.group import Group
    from penstock.groups.ports import Throttles, ThrottleSettings
    from penstock.net.stopping import Stopping
    from penstock.proxy.cluster_admin import AdminPolls


# Memory of one topic, besides its name (measured with tracemalloc: 710).
TOPIC_BYTES: Final = 768
TOPICS_KEPT_NS: Final = 60 * NS_PER_S


class PublishedTopic:
    """A topic. Implements `ThrottledTopic`.

    Attributes:
        producers: call these when the limit of the topic begins or ends.
    """

    __slots__ = (
        "_of",
        "adaptive",
        "bytes_in",
        "charged_bytes",
        "closed",
        "counted",
        "idle_since_ns",
        "messages_in",
        "name",
        "producers",
        "resource_groups",
        "text",
        "throttle_lines",
        "waiting",
    )

    # Brokers publish to each other directly. To a proxy all topics are those of clients.
    system: ClassVar[bool] = False

    def __init__(self, name: TopicName, text: str, charged_bytes: int, of: PublishedTopics) -> None:
        self._of = of
        self.name = name
        self.text = text
        self.charged_bytes = charged_bytes
        self.messages_in = 0
        self.bytes_in = 0
        self.counted = NOTHING
        self.waiting = NOTHING
        self.throttle_lines: tuple[AdaptivePublish, ...] = ()
        self.closed = False
        self.adaptive: AdaptiveTopic | None = None
        self.resource_groups: Sequence[Group] = ()
        self.producers: dict[object, Callable[[], None]] = {}
        self.idle_since_ns = 0  # without producers

    def lines(self) -> tuple[AdaptivePublish, ...]:
        """Return the limits in force, now that its groups are known."""
        return self._of.throttling.lines(self) if self._of.throttling is not None else ()


class PublishedTopics:
    """All topics with producers."""

    def __init__(self, memory: Row, clock: Clock) -> None:
        """Args: memory: is charged for topics."""
        self.throttling: Throttles[PublishedTopic] | None = None  # set before the first producer
        self._memory = memory
        self._clock = clock
        self._topics: dict[str, PublishedTopic] = {}

    def opened(self, name: TopicName, producer: object, changed: Callable[[], None]) -> PublishedTopic:
        """Add a producer, and call `changed` when its limit begins or ends.

        Raises:
            ServiceNotReady: there is no memory for one more topic.
        """
        text = str(name)
        topic = self._topics.get(text)
        if topic is None:
            nbytes = TOPIC_BYTES + 2 * len(text)
            self._memory.charge_for(f"topic {text[:100]}", nbytes)
            topic = self._topics[text] = PublishedTopic(name, text, nbytes, self)
        topic.producers[producer] = changed
        return topic

    def closed(self, topic: PublishedTopic, producer: object) -> None:
        """Remove a producer."""
        topic.producers.pop(producer, None)
        topic.idle_since_ns = self._clock.monotonic_ns()

    def loaded(self) -> Sequence[PublishedTopic]:
        """Return all topics; those that have long had no producer are forgotten."""
        before_ns = self._clock.monotonic_ns() - TOPICS_KEPT_NS
        for topic in [one for one in self._topics.values() if not one.producers and one.idle_since_ns < before_ns]:
            del self._topics[topic.text]
            topic.closed = True
            if self.throttling is not None:
                self.throttling.forget_topic(topic)
            self._memory.release(topic.charged_bytes)
        return list(self._topics.values())

    @staticmethod
    def changed(topic: PublishedTopic) -> None:
        """The limit of a topic began or ended."""
        for changed in list(topic.producers.values()):
            changed()


log = logging.getLogger(__name__)

# Topics that one cycle asks for, and questions at a time.
TOPICS_PER_CYCLE: Final = 50
AT_A_TIME: Final = 4
# An answer counts for so long, and for two rounds of all topics.
KEPT_NS: Final = 30 * NS_PER_S
_ROUNDS_KEPT: Final = 2
# What the answer need not hold.
_QUERY: Final = (
    "getPreciseBacklog=false&subscriptionBacklogSize=false&getEarliestTimeInBacklog=false"
    "&excludePublishers=true&excludeConsumers=true"
)


class _Known(NamedTuple):
    backlog_bytes: int
    quota_bytes: int  # 0 or less: none
    bytes_in: int  # the topic's counter here, then
    at_ns: int


class UpstreamBacklogs:
    """Asks, and remembers. Implements `Backlogs`.

    Attributes:
        failures: cycles in which a question had no answer; `failed` is called for each.
    """

    def __init__(
        self,
        polls: AdminPolls,
        topics: Callable[[], Sequence[PublishedTopic]],
        interval_s: Callable[[], float],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Args: topics: with producers here; interval_s: between two cycles."""
        self.failures = 0
        self.failed: Callable[[], None] = lambda: None
        self._polls = polls
        self._topics = topics
        self._interval_s = interval_s
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._turns: list[PublishedTopic] = []  # of this round, last first
        self._kept_ns = KEPT_NS
        self._failing = False
        self._task = loop.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def part(self, topic: PublishedTopic, _adaptive: AdaptiveTopic, _low: float) -> float:
        """See `Backlogs`."""
        known = self._known.get(topic.text)
        if known is None or known.quota_bytes <= 0 or self._clock.monotonic_ns() - known.at_ns > self._kept_ns:
            return 0.0
        return (known.backlog_bytes + topic.bytes_in - known.bytes_in) / known.quota_bytes

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s())
            try:
                await self._cycle()
            except Exception:
                self._count_failure()
                log.exception("[AdaptiveThrottle] backlogs were not measured")

    async def _cycle(self) -> None:
        if not self._turns:
            self._begin_round()
        asked, self._turns = self._turns[-TOPICS_PER_CYCLE:], self._turns[:-TOPICS_PER_CYCLE]
        waiting = iter(asked)
        failed: list[NoAnswer] = []

        async def ask() -> None:
            for topic in waiting:
                try:
                    await self._ask(topic)
                except NoAnswer as error:
                    failed.append(error)
                    return  # The others of this cycle would probably wait as long.

        await asyncio.gather(*(ask() for _ in range(AT_A_TIME)))
        if failed:
            self._count_failure()
            if not self._failing:
                log.warning("[AdaptiveThrottle] backlogs are not known, and do not count: %s", failed[0])
        elif self._failing and asked:
            log.info("[AdaptiveThrottle] backlogs are known again")
        if asked:
            self._failing = bool(failed)

    def _count_failure(self) -> None:
        self.failures += 1
        self.failed()

    def _begin_round(self) -> None:
        topics = self._topics()
        present = {topic.text for topic in topics}
        self._known = {text: known for text, known in self._known.items() if text in present}
        self._turns = [topic for topic in topics if topic.name.domain == "persistent"]
        cycles = -(-len(self._turns) // TOPICS_PER_CYCLE)
        self._kept_ns = max(KEPT_NS, round(_ROUNDS_KEPT * cycles * self._interval_s() * NS_PER_S))

    async def _ask(self, topic: PublishedTopic) -> None:
        name, bytes_in = topic.name, topic.bytes_in
        path = "/".join(quote(part, safe="") for part in (name.domain, name.tenant, name.namespace, name.local))
        said: Any = await self._polls.get(f"/admin/v2/{path}/stats?{_QUERY}")
        if not isinstance(said, dict):
            self._known.pop(topic.text, None)
            return
        self._known[topic.text] = _Known(
            _number(said.get("backlogSize")),
            _number(said.get("backlogQuotaLimitSize")),
            bytes_in,
            self._clock.monotonic_ns(),
        )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


class NoBacklogs:
    """Of a cluster whose admin port is not known."""

    @staticmethod
    def part(_topic: PublishedTopic, _adaptive: AdaptiveTopic, _low: float) -> float:
        """See `Backlogs`."""
        return 0.0


def throttle(
    settings: ThrottleSettings,
    topics: PublishedTopics,
    *,
    memory_limit_bytes: int,
    owners: Callable[[], Mapping[str, int]],
    polls: AdminPolls | None,
    row: Row,
    clock: Clock,
    stack: AsyncExitStack,
    stopping: Stopping,
) -> AdaptiveThrottling[PublishedTopic]:
    """Begin to throttle; `stopping` and closing `stack` end it.

    Args:
        settings: of the controller.
        topics: those with producers.
        memory_limit_bytes: of the process.
        owners: returns the bytes in use by the rows of the budget.
        polls: asks the cluster; None: nothing is known of backlogs.
        row: is charged for the states of topics.
        clock: for rates.
        stack: of the proxy.
        stopping: of the proxy.
    """
    loop = asyncio.get_running_loop()
    backlogs: UpstreamBacklogs | NoBacklogs = NoBacklogs()
    if polls is not None:
        backlogs = UpstreamBacklogs(polls, topics.loaded, lambda: settings.adaptive_interval_ms / 1_000, clock, loop)
        stopping.add("the last look at backlogs", lambda _limit_s: backlogs.stop())
    else:
        log.warning("[AdaptiveThrottle] brokerWebServiceURL is not set: backlogs of the cluster do not count")
    throttling = AdaptiveThrottling[PublishedTopic](
        limits=lambda: settings,
        topics=topics.loaded,
        changed=topics.changed,
        backlogs=backlogs,
        memory=MemorySensor(memory_limit_bytes, owners),
        disk_delay=lambda: 0.0,
        give_back=lambda: loop.run_in_executor(None, give_back),
        row=row,
        clock=clock,
        loop=loop,
    )
    topics.throttling = throttling

    def count_failure() -> None:
        throttling.controller.failures += 1

    if isinstance(backlogs, UpstreamBacklogs):
        backlogs.failed = count_failure
    stack.callback(throttling.stop)
    return throttling
