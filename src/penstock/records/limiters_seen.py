# SPDX-License-Identifier: Apache-2.0
"""Looks at what the limiters of a broker or a proxy do, in the counters and states that they have anyway.

Why looking and not listening: a client that floods a broker makes it decide a million times a second. A look once a
second costs the same at all times, in turns of the loop. Waits that begin and end between two looks are missed where
the limiter does not count them: those of connections whose reading stops for lack of memory.

Where: `decisions` makes episodes of what is seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from penstock.accounting.episodes import EPISODES_MAX, Slowed
from penstock.governance.holds import HoldKind
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.governance.muting import Mute
    from penstock.governance.permits import PermitSnapshot
    from penstock.groups.group import Group
    from penstock.groups.ports import LimitedTopic
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import TopicListMemoryLimiter

T = TypeVar("T")
# Waits begun for a limit, and their time: by the name of its group and the traffic, or by the owner of a rate.
Counts: TypeAlias = dict[tuple[str, ...], tuple[int, int]]

# Topics or connections looked at in one turn of the loop: well under a millisecond.
PER_TURN: Final = 2_000
# Different ones that one look tells apart; a few more than episodes are followed.
SEEN_MAX: Final = 2 * EPISODES_MAX
# These mutes are counted by the limit that SENDs are held for, or are no limit.
COUNTED_ELSEWHERE: Final = frozenset(
    (HoldKind.PUBLISH_RATE, HoldKind.GROUP_QUOTA, HoldKind.ADAPTIVE_RATE, HoldKind.STOPPING)
)


class Look(Counter[Slowed]):
    """Slowed clients of one look: how often; `held_ns` says for how long.

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
        connections: Callable[[], Sequence[Connection]],
        topics: Callable[[], Sequence[LimitedTopic]] = tuple,
        groups: Callable[[], Mapping[str, Group]],
        listings: TopicListMemoryLimiter,
        refused: Callable[[], Mapping[tuple[str, int], int]],
        now_ns: int,
    ) -> None:
        """Receive what this looks at.

        Args:
            connections: returns the connections of clients.
            topics: returns topics whose publish rates are looked at.
            groups: returns the resource groups in use, by name.
            listings: the memory of topic listings.
            refused: returns how many commands were refused since its last call, by address of the client and type.
            now_ns: monotonic time.
        """
        self._connections = connections
        self._topics = topics
        self._groups = groups
        self._listings = listings
        self._take_refused = refused
        self._looked_ns = now_ns
        self._before: Counts = {}  # at the last look
        self._refused: dict[tuple[str, str], int] = {}  # listings, by memory and reason

    async def look(self, now_ns: int) -> Look:
        """Return the effects of limiters since the last look."""
        look, before_ns, self._looked_ns = Look(), self._looked_ns, now_ns
        for connections in portions(self._connections()):
            for connection in connections:
                if connection.muted:
                    for mute in connection.muted.snapshot():
                        self.look_at_mute(look, connection, mute, max(before_ns, mute.since_ns), now_ns)
            await asyncio.sleep(0)
        seen: Counts = {}  # made anew each time: topics and groups come and go
        for name, group in list(self._groups().items()):
            for traffic, limiter in (("publish", group.limiter.publish), ("dispatch", group.limiter.dispatch)):
                limited_ns = limiter.limited_ns(now_ns)
                self._look_at_limit(look, seen, _of_group, (name, traffic), 0, limited_ns)
        for topics in portions(self._topics()):
            for line in (line for topic in topics for line in topic.publish_lines):
                if line.throttled and line.hold is HoldKind.PUBLISH_RATE and (line.owner,) not in seen:
                    limited_ns = line.limiter.limited_ns(now_ns)
                    self._look_at_limit(look, seen, _of_rate, (line.owner,), line.throttled, limited_ns)
            await asyncio.sleep(0)
        self._before = seen
        listings = self._listings.snapshot()
        self._look_at_listings(look, "heap", listings.heap)
        self._look_at_listings(look, "direct", listings.direct)
        for (client, command), times in self._take_refused().items():
            name = BaseCommand.Type.Name(command) if command in BaseCommand.Type.values() else str(command)
            why = f"{name} with a field beyond its bound"
            look.add(Slowed("bounds", why, client=client, refuses=True), times)
        return look

    def look_at_mute(self, look: Look, connection: Connection, mute: Mute, since_ns: int, now_ns: int) -> None:
        """Add a connection that is muted now, since then or since the last look."""
        if mute.reason in COUNTED_ELSEWHERE:
            return
        client = connection.peer.rpartition(":")[0]
        who = Slowed(mute.reason.value, "the connection is not read", client=client)
        look.add(who, int(mute.since_ns >= since_ns), max(0, now_ns - since_ns))

    def _look_at_limit(
        self,
        look: Look,
        seen: Counts,
        who: Callable[..., Slowed],
        key: tuple[str, ...],
        times: int,
        limited_ns: int,
    ) -> None:
        """A limit: how often a wait for it began (0: seconds with a wait are counted), and for how long."""
        seen[key] = times, limited_ns
        times_before, ns_before = self._before.get(key, (0, 0))
        if times < times_before:  # Another limit of this name.
            times_before = ns_before = 0
        if times > times_before or limited_ns > ns_before:
            look.add(who(*key), times - times_before if times else 1, limited_ns - ns_before)

    def _look_at_listings(self, look: Look, memory: str, seen: PermitSnapshot) -> None:
        for reason, total in (
            ("queue full", seen.queue_full_total),
            ("larger than the limit", seen.beyond_limit_total),
            ("waited too long", seen.timeouts_total),
        ):
            more = total - self._refused.get((memory, reason), 0)
            self._refused[memory, reason] = total
            if more:
                look.add(Slowed(HoldKind.TOPIC_LIST_MEMORY.value, f"{memory} memory: {reason}", refuses=True), more)


def portions(rows: Sequence[T]) -> Iterable[Sequence[T]]:
    """Yield them in portions for one turn of the loop each."""
    return (rows[start : start + PER_TURN] for start in range(0, len(rows), PER_TURN))


def _of_group(name: str, traffic: str) -> Slowed:
    return Slowed(HoldKind.GROUP_QUOTA.value, f"the group's {traffic} share is used up", resource_group=name)


def _of_rate(owner: str) -> Slowed:
    """Args: owner: the name of a topic, or the broker."""
    rate, (tenant, _, rest) = HoldKind.PUBLISH_RATE.value, owner.partition("://")[2].partition("/")
    if not tenant:
        return Slowed(rate, "the broker's publish rate is used up")
    namespace = f"{tenant}/{rest.partition('/')[0]}"
    return Slowed(rate, "the topic's publish rate is used up", tenant=tenant, namespace=namespace, topic=owner)
