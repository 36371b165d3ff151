# SPDX-License-Identifier: Apache-2.0
"""Looks at what the limiters of this broker do: those that a proxy has, too, and publish rates of topics.

Where: `records.decisions` makes episodes of what is seen.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.episodes import Slowed
from penstock.governance.holds import HoldKind
from penstock.records.limiters_seen import LimitersSeen, portions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.topics.topic import Topic
    from penstock.records.limiters_seen import Look

_OF_BROKER: Final = "broker"


class BrokerLimitersSeen(LimitersSeen):
    """As `LimitersSeen`."""

    def __init__(self, *, topics: Callable[[], Sequence[Topic]], **others: Any) -> None:  # noqa: ANN401
        """Args: topics: returns the loaded topics; others: as those of `LimitersSeen`."""
        super().__init__(**others)
        self._topics = topics
        self._before: dict[str, tuple[int, int]] = {}  # waits begun, and their time: of publish rates, by owner

    async def look(self, now_ns: int) -> Look:
        """What limiters have done since the last look."""
        look = await super().look(now_ns)
        seen: dict[str, tuple[int, int]] = {}  # made anew each time: topics come and go
        for some in portions(self._topics()):
            for topic in some:
                for line in topic.publish_lines:
                    if line.throttled and line.hold is HoldKind.PUBLISH_RATE and line.owner not in seen:
                        seen[line.owner] = line.throttled, line.limiter.limited_ns(now_ns)
                        self._look_at_rate(look, line.owner, *seen[line.owner])
            await asyncio.sleep(0)
        self._before = seen
        return look

    def _look_at_rate(self, look: Look, owner: str, times: int, limited_ns: int) -> None:
        times_before, ns_before = self._before.get(owner, (0, 0))
        if times < times_before:  # Another limiter of this name.
            times_before = ns_before = 0
        if times > times_before or limited_ns > ns_before:
            who = _OF_BROKER_RATE if owner == _OF_BROKER else _of_topic(owner)
            look.add(who, times - times_before, limited_ns - ns_before)


_OF_BROKER_RATE: Final = Slowed(HoldKind.PUBLISH_RATE.value, "the broker's publish rate is used up")


def _of_topic(text: str) -> Slowed:
    tenant, namespace = text.partition("://")[2].split("/", 2)[:2]
    return Slowed(
        HoldKind.PUBLISH_RATE.value,
        "the topic's publish rate is used up",
        tenant=tenant,
        namespace=f"{tenant}/{namespace}",
        topic=text,
    )
