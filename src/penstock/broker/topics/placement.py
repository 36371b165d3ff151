# SPDX-License-Identifier: Apache-2.0
"""Placement: which broker of several serves a topic.

A persistent topic is served by the broker that its record names, because its messages are in that broker's log. It
stays there until the broker is left out of a start (`processes.removal`). A topic that does not exist yet is
placed when it is looked up or created:

- on the broker with the fewest topics, of those that take new ones (`core.broker_states`); among equals, the hash of
  the name decides. Names that were looked up and not created yet count for a while, and are answered with the same
  broker again.
- the partitions of a topic on such brokers in turn, beginning with one that the hash of the topic's name gives.
- partition i of a topic of records on broker i, which writes it.

Whichever broker then gets the first producer or consumer creates the topic for itself. If two brokers do, the catalog
takes the first, and clients of the other look the topic up again.

Non-persistent topics have no record: the hash of the name chooses one of the brokers that lookups may name. All
brokers choose the same one, since the supervisor tells them all the state of each. A system topic is chosen among the
brokers that serve: nobody's clients wait for it, and brokers that report over it must not wait for one that recovers
its log.

Where: lookups ask for the owner, the directory checks that a topic is this broker's, and `partitions` places what it
creates.
"""

from __future__ import annotations

import zlib
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.core.errors import ServedElsewhere, ServiceNotReady
from penstock.core.names import parent_text
from penstock.core.system_topics import is_coordinator, is_record_topic
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from penstock.core.broker_states import Allows
    from penstock.core.clock import Clock
    from penstock.core.membership import Member, Membership
    from penstock.core.names import TopicName
    from penstock.core.service_urls import Addresses

# A client creates what it looked up within a second; one whose first attempt failed within some more.
EXPECTED_NS: Final = 10 * NS_PER_S
# Expected topics that are remembered; beyond this number, the oldest is forgotten.
EXPECTED_MAX: Final = 1_000
# After topics were deleted, all are counted again, but not more often: a hundred thousand take ten milliseconds.
COUNT_EVERY_NS: Final = NS_PER_S
# Brokers and proxies share quotas on topics here. Others wait for their broker while it is started again.
_MOVES_AT_ONCE: Final = "non-persistent://pulsar/system/"


class TopicPlace(Protocol):
    """A topic's record, as far as placement reads it."""

    @property
    def name(self) -> str: ...

    @property
    def broker(self) -> int: ...


class _Expected(NamedTuple):
    broker: int
    until_ns: int


class Placement:
    """The brokers of topics. All methods are called on the event loop."""

    def __init__(
        self,
        membership: Membership,
        addresses: Addresses,
        *,
        record: Callable[[str], TopicPlace | None],
        records: Collection[TopicPlace],
        clock: Clock,
    ) -> None:
        """Receive what this uses.

        Args:
            membership: the brokers of the cluster.
            addresses: of this broker.
            record: returns the record of a persistent topic, by its full name.
            records: those of all topics, as a live view.
            clock: how long expected topics count.
        """
        self._membership = membership
        self._addresses = addresses
        self._record = record
        self._clock = clock
        self._records = records
        self._topics = Counter(one.broker for one in records)
        self._counted_ns = clock.monotonic_ns()
        self._stale = False  # topics were deleted since
        self._expected: dict[str, _Expected] = {}

    @property
    def own(self) -> int:
        """The number of this broker."""
        return self._membership.own

    @property
    def is_alone(self) -> bool:
        """Whether this is the only broker."""
        return self.brokers == 1

    @property
    def brokers(self) -> int:
        """How many brokers there are, whether they serve or not."""
        return len(self._membership.members)

    # -- where topics are ---------------------------------------------------------------------------------------------

    def broker_of(self, name: TopicName) -> int | None:
        """Return the number of the broker that serves the topic; None for a persistent one that does not exist."""
        if not name.is_persistent:
            if str(name).startswith(_MOVES_AT_ONCE):
                return max(self._serving(), key=lambda number: _hash(f"{name} {number}"))
            return in_turn(name, self._found())
        record = self._record(str(name))
        return record.broker if record is not None else None

    def owner(self, name: TopicName) -> int:
        """Return the number of the broker that serves the topic, or would if it existed."""
        if name.partition in self._membership.members and is_coordinator(str(name)):
            return name.partition
        number = self.broker_of(name)
        return self.place(name) if number is None else number

    def addresses(self, name: TopicName) -> Addresses:
        """Return the addresses of the broker for clients of the topic, which may not exist yet.

        A broker that is being started again is returned, too: its ports are open, and clients that connect wait there,
        instead of asking all others again and again.

        Raises:
            ServiceNotReady: that broker is not being started.
        """
        number = self.owner(name)
        if number == self.own:
            return self._addresses
        return self._member(number, name).addresses

    def _member(self, number: int, name: TopicName) -> Member:
        member = self._membership.members.get(number)
        if member is None or not member.allows.lookups:
            state = member.state.value if member is not None else "not there"
            raise ServiceNotReady(f"broker {number}, which serves {name}, is {state}: its log says why; try later")
        return member

    def check_ours(self, name: TopicName) -> None:
        """Raise ServedElsewhere if another broker serves the topic, ServiceNotReady if nobody starts that one."""
        number = self.broker_of(name)
        if number is not None and number != self.own:
            self._member(number, name)
            raise ServedElsewhere(str(name), number)

    def is_ours(self, name: TopicName) -> bool:
        """Whether this broker serves the topic, or may create it."""
        return self.broker_of(name) in {None, self.own}

    # -- where new ones go --------------------------------------------------------------------------------------------

    def place(self, name: TopicName) -> int:
        """Return the number of the broker for a new persistent topic."""
        if name.partition in self._membership.members and is_record_topic(str(name)):
            return name.partition  # Each broker writes its own.
        ready = self._taking()
        if len(ready) == 1:
            return ready[0]
        if name.partition >= 0:
            return in_turn(name, ready)
        text = str(name)
        expected = self._expected.pop(text, None)
        if expected is None or expected.broker not in ready:
            fewest = self._with_fewest_topics(ready)
            expected = _Expected(fewest[_hash(text) % len(fewest)], 0)
        if len(self._expected) >= EXPECTED_MAX:
            del self._expected[next(iter(self._expected))]
        self._expected[text] = expected._replace(until_ns=self._clock.monotonic_ns() + EXPECTED_NS)
        return expected.broker

    def created(self, record: TopicPlace) -> None:
        self._topics[record.broker] += 1
        self._expected.pop(record.name, None)

    def deleted(self) -> None:
        """A topic was deleted: count all again, when that matters."""
        self._stale = True

    def _with_fewest_topics(self, ready: list[int]) -> list[int]:
        now_ns = self._clock.monotonic_ns()
        if self._stale and now_ns - self._counted_ns >= COUNT_EVERY_NS:
            self._topics, self._counted_ns, self._stale = Counter(one.broker for one in self._records), now_ns, False
        while self._expected:  # The oldest are first.
            text = next(iter(self._expected))
            if self._expected[text].until_ns > now_ns:
                break
            del self._expected[text]
        counts = self._topics + Counter(one.broker for one in self._expected.values())
        fewest = min(counts[number] for number in ready)
        return [number for number in ready if counts[number] == fewest]

    def _taking(self) -> list[int]:
        """The brokers that take new topics; this one if no other does."""
        return self._allowed(lambda allows: allows.new_topics)

    def _serving(self) -> list[int]:
        """The brokers that serve; this one if no other does."""
        return self._allowed(lambda allows: allows.serves)

    def _found(self) -> list[int]:
        """The brokers that clients are sent to; this one if there is none."""
        return self._allowed(lambda allows: allows.lookups)

    def _allowed(self, wanted: Callable[[Allows], bool]) -> list[int]:
        members = self._membership.members.values()
        return sorted(one.number for one in members if wanted(one.allows)) or [self.own]


def in_turn(name: TopicName, among: Sequence[int]) -> int:
    """Return one of these brokers, by the hash of the name; partitions of a topic take them in turn."""
    return among[(_hash(parent_text(str(name))) + max(name.partition, 0)) % len(among)]


def _hash(text: str) -> int:
    return zlib.crc32(text.encode())
