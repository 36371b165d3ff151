# SPDX-License-Identifier: Apache-2.0
"""How full the backlog quotas of a cluster's topics are, as its admin port says.

A cycle asks for the statistics of some topics that have producers here, in turns; they contain the size of the backlog
and the quota in force. Between two answers, what is published through this proxy is added, so the size is an upper
bound for what passes here.

Failures are counted, and the first of several is logged. An answer that is too old does not count any more, so limits
are released in steps.
Where: adaptive throttling of a proxy that knows its cluster's admin port.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from penstock.core.units import NS_PER_S
from penstock.proxy.admin_polls import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.groups.adaptive_publish import AdaptiveTopic
    from penstock.proxy.admin_polls import AdminPolls
    from penstock.proxy.published_topics import PublishedTopic

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
