# SPDX-License-Identifier: Apache-2.0
"""The counters of one topic that survive restarts: what they are, and how they are stored.

A persistent topic's counters count its entries up to `last_entry_id`, which are durable. They are stored with the topic
once a minute, before they are recorded. After a crash the entries that came later are read from the log and added: so
what was published is counted exactly once. What was dispatched since the counters were stored is lost in a crash, and
which transactions have ended.

Where: `usage` keeps a `TopicCount` for each loaded topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.accounting.totals import NOTHING, Totals
from penstock.broker.records.client_usage import ClientTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.accounting.totals import Ended
    from penstock.broker.publishing.ports import ClientCounts
    from penstock.storage.catalog_rows import Document

# The one member of a stored document: numbers in one text, because all of them are held in memory.
_MEMBER = "c"


class StoredCount(NamedTuple):
    """A topic's counters as they are stored.

    Attributes:
        cycle: number of the cycle that stored them.
        broker: the broker that counted. Another one, to which the topic was moved, begins to count anew.
        since_ms: when they were 0.
        last_entry_id: the last entry that is in them.
        unsummed: how much of them is not in the sum that the broker had stored (`UsageState`).
    """

    cycle: int
    broker: int
    since_ms: int
    last_entry_id: int
    totals: Totals
    unsummed: Totals = NOTHING

    def document(self) -> Document:
        numbers = (self.cycle, self.broker, self.since_ms, self.last_entry_id, *self.totals, *self.unsummed)
        return {_MEMBER: " ".join(map(str, numbers))}

    @classmethod
    def of(cls, document: Mapping[str, str]) -> StoredCount:
        cycle, broker, since_ms, last_entry_id, *totals = map(int, document[_MEMBER].split())
        size = len(totals) // 2  # An earlier version counted fewer things.
        return cls(cycle, broker, since_ms, last_entry_id, Totals(*totals[:size]), Totals(*totals[size:]))


class CountedTopic(ClientTopic, Protocol):
    """A loaded topic, as it is counted."""

    counted_before: int
    clients: ClientCounts | None

    @property
    def text(self) -> str: ...
    @property
    def persistent(self) -> bool: ...
    @property
    def ledger_id(self) -> int: ...
    @property
    def first_entry_id(self) -> int: ...
    @property
    def next_entry_id(self) -> int: ...
    @property
    def last_entry_id(self) -> int: ...
    @property
    def messages_in(self) -> int: ...
    @property
    def bytes_in(self) -> int: ...
    @property
    def messages_out(self) -> int: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def publish_limited_times(self) -> int: ...
    @property
    def chunks_in(self) -> int: ...
    @property
    def ended(self) -> Ended: ...


class Sample(NamedTuple):
    """A topic's counters at one time; entries up to `last_entry_id` may still be on their way to the disk."""

    last_entry_id: int
    totals: Totals


class TopicCount:
    """The counters of one topic, while it is loaded or has something to record.

    Attributes:
        ledger_id: -1 for a non-persistent topic.
        since_ms: when the counters were 0.
        topic: None while it is not loaded.
        base: what was counted before the topic was loaded.
        gap: entries of earlier starts that are not in `base` yet.
        stored: the counters as they are stored; None if they are not, or belong to another start of counting.
        recorded: as they were recorded last; None if they must be recorded again.
        summed: as they are in the sum that the broker has stored.
    """

    __slots__ = (
        "_ended",
        "base",
        "gap",
        "groups",
        "ledger_id",
        "recorded",
        "since_ms",
        "stored",
        "summed",
        "text",
        "topic",
    )

    def __init__(self, text: str, ledger_id: int, since_ms: int, base: Totals, gap: range) -> None:
        self.text = text
        self.ledger_id = ledger_id
        self.since_ms = since_ms
        self.base = base
        self.gap = gap
        self.groups: tuple[str, ...] = ()
        self.topic: CountedTopic | None = None
        self.stored: Sample | None = None
        self.recorded: Totals | None = base
        self.summed = base
        self._ended = Sample(gap.stop - 1, NOTHING)  # of the topic, when it was unloaded last

    @property
    def is_settled(self) -> bool:
        """Whether all entries of earlier starts are counted."""
        return not self.gap

    def attach(self, topic: CountedTopic) -> None:
        self.base = self.base.plus(self._ended.totals)
        self._ended = Sample(topic.last_entry_id, NOTHING)
        self.topic = topic

    def detach(self) -> None:
        topic, self.topic = self.topic, None
        if topic is not None:
            self._ended = _sample(topic)

    def sample(self) -> Sample:
        entry, totals = self._ended if self.topic is None else _sample(self.topic)
        return Sample(entry, self.base.plus(totals))


def _sample(topic: CountedTopic) -> Sample:
    return Sample(
        topic.next_entry_id - 1,
        Totals(
            topic.messages_in,
            topic.bytes_in,
            topic.messages_out,
            topic.bytes_out,
            topic.publish_limited_times,
            topic.chunks_in,
            *topic.ended,
        ),
    )
