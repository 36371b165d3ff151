# SPDX-License-Identifier: Apache-2.0
"""Looks at what the limiters of this broker do, in the counters and states that they have anyway.

Why looking and not listening: whoever floods a broker makes it decide a million times a second. A look once a second
costs the same at all times, in turns of the loop. Waits that begin and end between two looks are missed where the
limiter does not count them: those of connections whose reading stops for lack of memory.

Where: `decisions` makes episodes of what is seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.accounting.episodes import EPISODES_MAX, Slowed
from penstock.broker.publishing.limiters import PublishLimiter
from penstock.governance.muting import MuteReason
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.broker.topics.topic import Topic
    from penstock.governance.muting import Mute
    from penstock.governance.permit_types import PermitSnapshot
    from penstock.groups.group import Group
    from penstock.net.connection import Connection
    from penstock.net.topic_list_limiter import TopicListMemoryLimiter

T = TypeVar("T")

# Topics or connections looked at in one turn of the loop: well under a millisecond.
PER_TURN: Final = 2_000
# Different ones that one look tells apart; a few more than episodes are followed.
SEEN_MAX: Final = 2 * EPISODES_MAX
# These mutes are counted by the topic's or the group's limiter.
_COUNTED_ELSEWHERE: Final = frozenset((MuteReason.GROUP_QUOTA, MuteReason.ADAPTIVE_RATE, MuteReason.UPSTREAM))
_OF_BROKER: Final = "broker"


class Look(Counter[Slowed]):
    """What one look has seen: how often; `held_ns` says for how long.

    Attributes:
        missed: how many were seen beyond SEEN_MAX.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held_ns: Counter[Slowed] = Counter()
        self.missed = 0

    def add(self, who: Slowed, times: int, held_ns: int = 0) -> None:
        if len(self) >= SEEN_MAX and who not in self:
            self.missed += 1
            return
        self[who] += times
        if held_ns:
            self.held_ns[who] += held_ns


class LimitersSeen:
    """The counters at the last look. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        topics: Callable[[], Sequence[Topic]],
        connections: Callable[[], Sequence[Connection]],
        groups: Callable[[], Mapping[str, Group]],
        listings: TopicListMemoryLimiter,
        refused: Callable[[], Mapping[tuple[str, int], int]],
        now_ns: int,
    ) -> None:
        """Receive what this looks at.

        Args:
            topics: returns the loaded topics.
            connections: returns the connections of clients.
            groups: returns the resource groups in use, by name.
            listings: the memory of topic listings.
            refused: returns how many commands were refused since its last call, by address of the client and type.
            now_ns: monotonic time.
        """
        self._topics = topics
        self._connections = connections
        self._groups = groups
        self._listings = listings
        self._take_refused = refused
        self._looked_ns = now_ns
        self._limited_times: dict[str, int] = {}  # of topics that were limited, by name
        self._limited_ns: dict[tuple[str, str], int] = {}  # of groups, by name and traffic
        self._refused: dict[tuple[str, str], int] = {}  # listings, by memory and reason

    async def look(self, now_ns: int) -> Look:
        """What limiters have done since the last look."""
        look, before_ns, self._looked_ns = Look(), self._looked_ns, now_ns
        limited_times: dict[str, int] = {}  # made anew each time: topics and groups come and go
        limited_ns: dict[tuple[str, str], int] = {}
        for some in _portions(self._topics()):
            for topic in some:
                if topic.publish_limited_times:
                    limited_times[topic.text] = topic.publish_limited_times
                    self._look_at_topic(look, topic)
            await asyncio.sleep(0)
        for connections in _portions(self._connections()):
            for connection in connections:
                if connection.muted:
                    for mute in connection.muted.snapshot():
                        _look_at_mute(look, connection, mute, before_ns, now_ns)
            await asyncio.sleep(0)
        for name, group in list(self._groups().items()):
            for traffic, limiter in (("publish", group.limiter.publish), ("dispatch", group.limiter.dispatch)):
                limited_ns[name, traffic] = limiter.limited_ns(now_ns)
                self._look_at_group(look, name, traffic, limited_ns[name, traffic])
        self._limited_times, self._limited_ns = limited_times, limited_ns
        listings = self._listings.snapshot()
        self._look_at_listings(look, "heap", listings.heap)
        self._look_at_listings(look, "direct", listings.direct)
        for (client, command), times in self._take_refused().items():
            name = BaseCommand.Type.Name(command) if command in BaseCommand.Type.values() else str(command)
            why = f"{name} with a field beyond its bound"
            look.add(Slowed("bounds", why, client=client, refuses=True), times)
        return look

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

    def _look_at_group(self, look: Look, name: str, traffic: str, limited_ns: int) -> None:
        held_ns = limited_ns - self._limited_ns.get((name, traffic), 0)
        if held_ns > 0:
            why = "the group's share is used up"
            look.add(Slowed(f"resource-group-{traffic}", why, resource_group=name), 1, held_ns)

    def _look_at_listings(self, look: Look, memory: str, seen: PermitSnapshot) -> None:
        for reason, total in (
            ("queue full", seen.queue_full_total),
            ("larger than the limit", seen.beyond_limit_total),
            ("waited too long", seen.timeouts_total),
        ):
            more = total - self._refused.get((memory, reason), 0)
            self._refused[memory, reason] = total
            if more:
                look.add(Slowed("topic-list-memory", f"{memory} memory: {reason}", refuses=True), more)


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


def _look_at_mute(look: Look, connection: Connection, mute: Mute, before_ns: int, now_ns: int) -> None:
    """Somebody who is slowed at this moment."""
    if mute.reason in _COUNTED_ELSEWHERE:
        return
    held_ns = max(0, now_ns - max(before_ns, mute.since_ns))
    if mute.reason is MuteReason.PUBLISH_RATE:
        who = _OF_BROKER_RATE if mute.owner in {None, _OF_BROKER} else _of_topic(mute.owner or "")
        look.add(who, 0, held_ns)
        return
    client = connection.peer.rpartition(":")[0]
    who = Slowed(mute.reason.value, "the connection is not read", client=client)
    look.add(who, int(mute.since_ns >= before_ns), held_ns)


def _portions(rows: Sequence[T]) -> Iterable[Sequence[T]]:
    return (rows[start : start + PER_TURN] for start in range(0, len(rows), PER_TURN))
