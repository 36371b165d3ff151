# SPDX-License-Identifier: Apache-2.0
"""Measures partitions by asking brokers that count messages, which costs a round trip for all of them and no data.

Where: the planner, against penstock. `reading_meter` is for brokers that do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import KIB
from penstock.spark.budgets import UNLIMITED, Room, Used
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.watch import Query
from penstock.spark.offsets import MESSAGES_PER_ENTRY, entries_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.spark.client.watch import Count, Watch
    from penstock.spark.offsets import Offsets

# Entries that are counted to estimate how many messages wait behind them.
SAMPLE_ENTRIES: Final = 256
# A pace of so many entries is not asked for again: each micro-batch renews it from what it takes.
KNOWN_ENTRIES_MIN: Final = 64
# Counts that are continued, in one micro-batch, where brokers have ended them; what waits behind is extrapolated. With
# at most 256 blocks in each, this bounds the time of planning to some 50 ms.
COUNTS_MAX: Final = 8


class Pace(NamedTuple):
    """Entries that were counted or read lately; later ones are taken to be like them."""

    entries: int
    messages: int
    bytes: int

    def messages_in(self, entries: int) -> int:
        """Estimate the messages of so many entries, rounded up."""
        return -(-entries * self.messages // self.entries)

    def bytes_in(self, entries: int) -> int:
        """Estimate their bytes, rounded up."""
        return -(-entries * self.bytes // self.entries)


class Published(NamedTuple):
    """When an entry was published, as the broker has told with a count that ended before it."""

    entry: MessageId
    at_ms: int

    def of(self, place: MessageId) -> int:
        """Return when the entry at this place was published, if it is this one; else 0."""
        return self.at_ms if place[:2] == self.entry[:2] else 0


# For a partition about which nothing is known: messages of a KiB.
UNKNOWN_PACE: Final = Pace(1, MESSAGES_PER_ENTRY, MESSAGES_PER_ENTRY * KIB)


class CountingMeter:
    """A `Meter` of partitions from `start` to `end`. `sample` must have been called before anything else."""

    is_counted: Final = True

    def __init__(
        self, watch: Watch, start: Offsets, end: Offsets, paces: dict[str, Pace], published: dict[str, Published]
    ) -> None:
        """Measure with `watch`; `paces` and `published` are what is known of partitions, and are kept up to date."""
        self._watch = watch
        self._end = {topic: stop for topic, stop in end.items() if start[topic] < stop}
        self._start = {topic: start[topic] for topic in self._end}
        self._paces = paces
        self.position: Offsets = dict(self._start)
        self._first = dict(self._start)
        self._counts_left = COUNTS_MAX
        self._published = published

    def waiting(self) -> dict[str, Used]:
        found = {}
        for topic, position in self.position.items():
            if position < self._end[topic]:
                entries = entries_between(position, self._end[topic])
                pace = self._paces.get(topic, UNKNOWN_PACE)
                messages = max(1, pace.messages_in(entries) - position.batch_index)
                found[topic] = Used(messages, max(1, pace.bytes_in(entries)))
        return found

    def advance(self, rooms: Mapping[str, Room]) -> dict[str, Used]:
        queries = {
            topic: Query(
                self.position[topic],
                self._end[topic],
                None if room.messages >= UNLIMITED else room.messages + self.position[topic].batch_index,
                room.bytes,
                publish_time=True,
            )
            for topic, room in rooms.items()
        }
        counts = self._counts(queries)
        return {topic: self._advanced(topic, rooms[topic], counts.get(topic)) for topic in rooms}

    def heads(self, topics: Iterable[str]) -> dict[str, int]:
        topics = list(topics)
        known = {topic: self._published[topic].of(self.position[topic]) for topic in topics if topic in self._published}
        found = {topic: published_ms for topic, published_ms in known.items() if published_ms}
        queries = {
            topic: Query(self.position[topic], self._end[topic], messages_max=0, publish_time=True)
            for topic in topics
            if topic not in found
        }
        return found | {topic: count.next_publish_ms for topic, count in self._counts(queries).items()}

    def sample(self) -> bool:
        """Count the next entries of partitions of which little is known; return whether brokers count at all."""
        # A position before all entries, or of a topic that was deleted, is not one to count entries from.
        odd = [topic for topic, at in self.position.items() if at.ledger_id != self._end[topic].ledger_id]
        if odd:
            queries = {topic: Query(self.position[topic], messages_max=0) for topic in odd}
            self.position |= {topic: count.next_id for topic, count in self._counts(queries).items()}
            self._first |= self.position
        queries = {}
        for topic, at in self.position.items():
            if self._paces.get(topic, UNKNOWN_PACE).entries >= KNOWN_ENTRIES_MIN:
                continue
            sample = MessageId(at.ledger_id, at.entry_id + SAMPLE_ENTRIES)
            queries[topic] = Query(at, min(sample, self._end[topic]))
        for topic, count in self._counts(queries).items():
            self._learn(topic, count)
        return self._watch.counts

    def reached(self) -> Offsets:
        """Return how far each partition was advanced; its start if it was not."""
        return {topic: self._start[topic] if at == self._first[topic] else at for topic, at in self.position.items()}

    # -- inside ------------------------------------------------------------------------------------------------------

    def _counts(self, queries: Mapping[str, Query]) -> dict[str, Count]:
        seen = self._watch.ask(queries)
        return {topic: one.counted for topic, one in seen.items() if one is not None and one.counted is not None}

    def _learn(self, topic: str, count: Count) -> None:
        if count.entries:
            self._paces[topic] = Pace(count.entries, count.messages, count.bytes)

    def _advanced(self, topic: str, room: Room, count: Count | None) -> Used:
        """Move a partition to where a count has ended, and into the next entry if it is a batch that fits in part."""
        if count is None:  # The topic was just deleted: the next micro-batch sees that.
            return Used()
        at, end = self.position[topic], self._end[topic]
        self._learn(topic, count)
        self._published[topic] = Published(count.next_id, count.next_publish_ms)
        used = Used(max(0, count.messages - at.batch_index) if count.entries else 0, count.bytes)
        begun = 0 if count.entries else at.batch_index
        stop = min(count.next_id, end)
        # A count from the middle of an entry names that entry again if it does not fit.
        self.position[topic] = at if stop[:2] == at[:2] else stop
        if stop >= end:
            return used
        left = room.messages - used.messages
        if not count.next_messages:
            # The broker has counted as much as it does at a time.
            self._counts_left -= 1
            return used if used.messages > 0 and self._counts_left >= 0 else self._extrapolate(topic, room, used)
        pieces = count.next_messages - begun
        if left < pieces and left > 0:
            self.position[topic] = MessageId(stop.ledger_id, stop.entry_id, begun + left)
            return Used(room.messages, used.bytes)
        if room.at_least_one and not used.messages and left > 0:
            self.position[topic] = MessageId(stop.ledger_id, stop.entry_id + 1)
            pace = self._paces.get(topic, UNKNOWN_PACE)
            return Used(max(1, pieces), max(pace.bytes_in(1), (room.bytes or 0) + 1))
        return used

    def _extrapolate(self, topic: str, room: Room, used: Used) -> Used:
        """Estimate how many entries the rest of the room is."""
        pace, at, end = self._paces.get(topic, UNKNOWN_PACE), self.position[topic], self._end[topic]
        entries = max(0, room.messages - used.messages) * pace.entries // max(1, pace.messages)
        if room.bytes is not None:
            entries = min(entries, max(0, room.bytes - used.bytes) * pace.entries // max(1, pace.bytes))
        if not used.messages:
            entries = max(1, entries)
        entries = min(entries, entries_between(at, end))
        self.position[topic] = min(MessageId(at.ledger_id, at.entry_id + entries), end)
        return Used(used.messages + pace.messages_in(entries), used.bytes + pace.bytes_in(entries))
