# SPDX-License-Identifier: Apache-2.0
"""Measures partitions by reading their entries on the driver, for brokers that do not count messages.

Why it reads: no command of Apache Pulsar says how many messages an entry holds. So as much is read as the limit asks
for; past a bound the rest is estimated from what was read. Readers stay open from one micro-batch to the next: to look
up, connect and subscribe took longer than to read.
Where: the planner, against Apache Pulsar, and for compacted topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.units import MIB
from penstock.spark.budgets import UNLIMITED, Room, Used
from penstock.spark.client.fields import last_of, walk
from penstock.spark.client.message_id import EARLIEST as BEGINNING
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.reader import EntryReader
from penstock.spark.counting_meter import UNKNOWN_PACE, Pace

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.client.reader import ReadOptions
    from penstock.spark.offsets import Offsets

# Of one partition, for one micro-batch; what lies behind is taken to be like what was seen.
MEASURED_BYTES_MAX: Final = 64 * MIB

# Messages that a broker may send ahead, however small a partition's share.
_AHEAD_MIN: Final = 256

_PUBLISH_TIME: Final = 3
_BATCH_MESSAGES: Final = 11


class ReadingMeter:
    """A `Meter` whose readers are kept: `begin` begins a micro-batch. Close it."""

    def __init__(self, cluster: Cluster, options: ReadOptions, paces: dict[str, Pace]) -> None:
        """Read with `cluster`; `paces` is what is known of partitions, and is kept up to date."""
        self._cluster = cluster
        self._options = options
        self._paces = paces
        self._measures: dict[str, _Measure] = {}
        self._active: dict[str, _Measure] = {}
        self.is_counted = True

    def begin(self, start: Offsets, end: Offsets, messages_max: int | None, entries: Mapping[str, int | None]) -> None:
        """Begin a micro-batch from `start` towards `end`; `entries` says how many there are, None if it is unknown."""
        waiting = {topic: entries[topic] or 1 for topic, stop in end.items() if start[topic] < stop}
        self.is_counted = all(entries[topic] is not None for topic in waiting)
        # Each is sent about what it will be asked for: the rest would be read by the broker, and by nobody else.
        total = sum(waiting.values())
        self._active = {}
        for topic, count in waiting.items():
            measure = self._measures.pop(topic, None)
            if measure is None or measure.position != start[topic]:
                if measure is not None:
                    measure.close()
                measure = _Measure(self._cluster, topic, start[topic], self._options)
            measure.begin(end[topic], max(_AHEAD_MIN, (messages_max or UNLIMITED) * count // total), count)
            self._active[topic] = measure
        for unwanted in set(self._measures) - set(end):
            self._measures.pop(unwanted).close()
        self._measures |= self._active

    def waiting(self) -> dict[str, Used]:
        found = {}
        for topic, one in self._active.items():
            if topic not in self._paces:
                self._note(topic, one.peek())
            if not one.is_done:
                entries = max(1, one.entries)
                pace = self._paces.get(topic, UNKNOWN_PACE)
                messages = max(1, pace.messages_in(entries) - one.position.batch_index)
                found[topic] = Used(messages, max(1, pace.bytes_in(entries)))
        return found

    def advance(self, rooms: Mapping[str, Room]) -> dict[str, Used]:
        used = {}
        for topic, room in rooms.items():
            measure = self._active[topic]
            used[topic] = measure.advance(room)
            self._note(topic, measure.seen)
        return used

    def heads(self, topics: Iterable[str]) -> dict[str, int]:
        return {topic: self._active[topic].head_ms() for topic in topics}

    @property
    def measured(self) -> Collection[str]:
        """Partitions of this micro-batch."""
        return self._active.keys()

    def reached(self) -> Offsets:
        """Return how far each partition was advanced."""
        return {topic: measure.position for topic, measure in self._active.items()}

    def close(self) -> None:
        """Close all readers."""
        for measure in self._measures.values():
            measure.close()
        self._measures.clear()

    def _note(self, topic: str, seen: Pace) -> None:
        if seen.entries:
            self._paces[topic] = seen


class _Measure:
    """Measures one partition, entry by entry."""

    def __init__(self, cluster: Cluster, topic: str, start: MessageId, options: ReadOptions) -> None:
        self.topic = topic
        self.position = self.end = start
        self.seen = Pace(0, 0, 0)  # in this micro-batch
        self.is_done = False
        self.entries = 0  # up to the end of the micro-batch
        self._cluster = cluster
        self._options = options
        self._ahead = _AHEAD_MIN
        self._runs: Generator[Deliveries] | None = None
        self._read_to = BEGINNING
        # Of the entries of the run that is being measured: ids, messages, bytes, publish time in ms.
        self._rows: list[tuple[MessageId, int, int, int]] = []
        self._next = 0

    def begin(self, end: MessageId, ahead: int, entries: int) -> None:
        """Begin a micro-batch that may go as far as `end`, so many entries; so many messages may be sent ahead."""
        self.end, self._ahead, self.entries = end, ahead, entries
        self.seen, self.is_done = Pace(0, 0, 0), self.position >= end

    def peek(self) -> Pace:
        """Have the next entries read, and return what they hold."""
        if self.is_done or self._entry() is None:
            return Pace(0, 0, 0)
        rows = self._rows[self._next :]
        return Pace(len(rows), sum(row[1] for row in rows), sum(row[2] for row in rows))

    def head_ms(self) -> int:
        """Return when the next message was published; 0 if there is none."""
        entry = None if self.is_done else self._entry()
        return 0 if entry is None else entry[3]

    def advance(self, room: Room) -> Used:
        """Advance within this room; return what was used. Without any advance there is no room."""
        messages, nbytes = room.messages, room.bytes
        used_messages = used_bytes = 0
        while used_messages < messages and not self.is_done and (entry := self._entry()) is not None:
            place, count, size, _ = entry
            fits = nbytes is None or used_bytes + size <= nbytes
            if not fits and not (room.at_least_one and not used_messages):
                break
            if self.seen.bytes > MEASURED_BYTES_MAX:
                return self._extrapolate(room, Used(used_messages, used_bytes))
            # The entry may have been begun by the micro-batch before.
            skipped = self.position.batch_index if self.position[:2] == place[:2] else 0
            taken = max(0, min(count - skipped, messages - used_messages))
            used_messages += taken
            used_bytes += size
            if skipped + taken < count:
                self.position = MessageId(place.ledger_id, place.entry_id, skipped + taken)
                break
            self.position = MessageId(place.ledger_id, place.entry_id + 1)
            self.is_done = self.position >= self.end
            self._next += 1
            self.entries -= 1
            self.seen = Pace(self.seen.entries + 1, self.seen.messages + count, self.seen.bytes + size)
        return Used(used_messages, used_bytes)

    def close(self) -> None:
        """Close the reader."""
        if self._runs is not None:
            self._runs.close()
        self._runs, self._read_to = None, BEGINNING
        self._rows, self._next = [], 0

    def _entry(self) -> tuple[MessageId, int, int, int] | None:
        while self._next == len(self._rows):
            run = None if self._runs is None else next(self._runs, None)
            if run is not None:
                self._rows, self._next = _rows_of(run), 0
            elif self._read_to < self.end:  # The topic has grown since, or is read for the first time.
                self._read_to = self.end
                reader = EntryReader(
                    self._cluster, self.topic, self.position, self.end, self._options, ahead=self._ahead
                )
                self._runs = reader.runs()
            else:
                self.position, self.is_done = self.end, True
                return None
        return self._rows[self._next]

    def _extrapolate(self, room: Room, used: Used) -> Used:
        """Estimate how many entries the rest of the room covers, from the entries that were measured."""
        seen = self.seen
        entries = (room.messages - used.messages) * seen.entries // seen.messages
        if room.bytes is not None:
            entries = min(entries, (room.bytes - used.bytes) * seen.entries // seen.bytes)
        entries = max(0, min(entries, self.entries))
        target = MessageId(self.position.ledger_id, self.position.entry_id + entries)
        self.close()  # The next micro-batch begins where nothing was read.
        self.position, self.is_done = min(target, self.end), True
        return Used(used.messages + seen.messages_in(entries), used.bytes + seen.bytes_in(entries))


def _rows_of(run: Deliveries) -> list[tuple[MessageId, int, int, int]]:
    said = walk(run.data, run.metadata_starts, run.payload_starts, {_PUBLISH_TIME, _BATCH_MESSAGES})
    counts = np.maximum(last_of(said.get(_BATCH_MESSAGES), len(run), 1), 1)
    times = last_of(said.get(_PUBLISH_TIME), len(run))
    sizes = run.payload_stops - run.metadata_starts
    ids = map(MessageId, run.ledger_ids.tolist(), run.entry_ids.tolist())
    return list(zip(ids, counts.tolist(), sizes.tolist(), times.tolist(), strict=True))
