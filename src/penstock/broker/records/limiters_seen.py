# SPDX-License-Identifier: Apache-2.0
"""Looks at what the limiters of this broker do: those that a proxy has, too, and publish rates of topics.

Where: `records.decisions` makes episodes of what is seen.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.episodes import Slowed
from penstock.broker.publishing.limiters import PublishLimiter
from penstock.governance.muting import MuteReason
from penstock.records.limiters_seen import LimitersSeen, portions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.topics.topic import Topic
    from penstock.governance.muting import Mute
    from penstock.net.connection import Connection
    from penstock.records.limiters_seen import Look

_OF_BROKER: Final = "broker"


class BrokerLimitersSeen(LimitersSeen):
    """As `LimitersSeen`."""

    def __init__(self, *, topics: Callable[[], Sequence[Topic]], **others: Any) -> None:  # noqa: ANN401
        """Args: topics: returns the loaded topics; others: as those of `LimitersSeen`."""
        super().__init__(**others)
        self._topics = topics
        self._limited_times: dict[str, int] = {}  # of topics that were limited, by name

    async def look(self, now_ns: int) -> Look:
        """What limiters have done since the last look."""
        look = await super().look(now_ns)
        limited_times: dict[str, int] = {}  # made anew each time: topics come and go
        for some in portions(self._topics()):
            for topic in some:
                if topic.publish_limited_times:
                    limited_times[topic.text] = topic.publish_limited_times
                    self._look_at_topic(look, topic)
            await asyncio.sleep(0)
        self._limited_times = limited_times
        return look

    def look_at_mute(self, look: Look, connection: Connection, mute: Mute, since_ns: int, now_ns: int) -> None:
        """See `LimitersSeen`."""
        if mute.reason is MuteReason.PUBLISH_RATE:
            who = _OF_BROKER_RATE if mute.owner in {None, _OF_BROKER} else _of_topic(mute.owner or "")
            look.add(who, 0, max(0, now_ns - since_ns))
        else:
            super().look_at_mute(look, connection, mute, since_ns, now_ns)

    def _look_at_topic(self, look: Look, topic: Topic) -> None:
        times, before = topic.publish_limited_times, self._limited_times.get(topic.text, 0)
        if times == before:
            return
        owners = {one.owner for one in topic.publish_limiters if isinstance(one, PublishLimiter)}
        more = times - before if times > before else times  # It was loaded again.
        if topic.text in owners:
            look.add(_of_topic(topic.text), more)
        elif _OF_BROKER in owners:
            look.add(_OF_BROKER_RATE, more)


_OF_BROKER_RATE: Final = Slowed("broker-publish-rate", "the broker's publish rate is used up")


def _of_topic(text: str) -> Slowed:
    tenant, namespace = text.partition("://")[2].split("/", 2)[:2]
    return Slowed(
        "topic-publish-rate",
        "the topic's publish rate is used up",
        tenant=tenant,
        namespace=f"{tenant}/{namespace}",
        topic=text,
    )
