# SPDX-License-Identifier: Apache-2.0
"""Planning on the driver: which partitions there are, where they begin and end, how far a batch of a stream goes.

Why reading here too: a batch that is limited to some messages must end at a message id, and only the entries themselves
say how many messages they hold. So as much as the limit asks for is read, and looked at no further than that; past a
bound the rest is reckoned from what was seen.
Where: the batch reader plans once, the stream reader for every batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.errors import WireCode
from penstock.core.names import NamespaceName, TopicName, is_system_topic, parent_text
from penstock.core.units import MIB
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import Refused
from penstock.spark.client.fields import last_of, walk
from penstock.spark.client.message_id import EARLIEST as BEGINNING
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.reader import EntryReader
from penstock.spark.client.subscription import Subscription, earliest_id
from penstock.spark.offsets import Offsets, entries_between, shares
from penstock.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.options import Place, ReadSettings

# Of one partition, for one batch; what lies behind is taken to be like what was seen.
MEASURED_BYTES_MAX: Final = 64 * MIB

# Messages that a broker may send ahead, however small a partition's share.
_AHEAD_MIN: Final = 256

_BATCH_MESSAGES: Final = 11
_UNLIMITED: Final = 2**62


class Planner:
    """Asks brokers for partitions and message ids. For one thread; close it."""

    def __init__(self, settings: ReadSettings) -> None:
        self.settings = settings
        self.cluster = Cluster(settings.endpoint)

    def close(self) -> None:
        self.cluster.close()

    # -- where -------------------------------------------------------------------------------------------------------

    def partitions(self) -> list[str]:
        """Return the full names of all partitions to read. Raises Refused, TOPIC_NOT_FOUND, for a missing topic."""
        if self.settings.pattern:
            return self._matching()
        return [name for topic in self.settings.topics for name in self._partitions_of(topic)]

    def ends(self, topics: Iterable[str]) -> Offsets:
        """Return the id after the last message of each topic; the beginning if there is none."""
        return {topic: self._end_of(topic) for topic in topics}

    def resolved(self, place: Place, topics: Iterable[str]) -> Offsets:
        """Return a position in each of the topics.

        Raises:
            ValueError: `place` has ids for some topics, and not for this one.
        """
        return {topic: self._resolved(place, topic) for topic in topics}

    def beginnings(self, topics: Iterable[str]) -> Offsets:
        """Return the id of the first message of each topic that has messages."""
        found = {topic: earliest_id(self.cluster, topic) for topic in topics}
        return {topic: place for topic, place in found.items() if place is not None}

    def _partitions_of(self, topic: str) -> list[str]:
        try:
            return self.cluster.partitions(topic)
        except Refused as refused:
            if refused.code is WireCode.TOPIC_NOT_FOUND and not self.settings.reading.fail_on_data_loss:
                return []
            raise

    def _matching(self) -> list[str]:
        tenant, namespace, expression = self.settings.pattern.split("/", 2)
        wanted = re.compile(expression)
        prefix = f"persistent://{tenant}/{namespace}/"
        return [
            topic
            for topic in self.cluster.topics(str(NamespaceName(tenant, namespace)))
            if wanted.fullmatch(parent_text(topic).removeprefix(prefix)) and not is_system_topic(topic)
        ]

    def _end_of(self, topic: str) -> MessageId:
        compacted = self.settings.reading.compacted
        try:
            with Subscription.reading(self.cluster, topic, BEGINNING, compacted=compacted) as subscription:
                last = subscription.last_id()
        except Refused as refused:
            if refused.code is WireCode.TOPIC_NOT_FOUND:
                return BEGINNING  # A partition that nobody has written to yet, or one that was just deleted.
            raise
        return BEGINNING if last is None else MessageId(last.ledger_id, last.entry_id + 1)

    def _resolved(self, place: Place, topic: str) -> MessageId:
        if isinstance(place, dict):
            parent = str(TopicName.parse(topic).parent)
            if topic not in place and parent not in place:
                raise ValueError(f"offsets are given for {', '.join(sorted(place))}, and none for {topic}")
            given = place.get(topic, place.get(parent, EARLIEST))
            return given if isinstance(given, MessageId) else self._resolved(given, topic)
        if isinstance(place, int):
            with Subscription.reading(self.cluster, topic, BEGINNING) as subscription:
                return subscription.id_at(place)
        return self._end_of(topic) if place == LATEST else BEGINNING

    # -- how far -----------------------------------------------------------------------------------------------------

    def limited(self, start: Offsets, end: Offsets, messages_max: int | None, bytes_max: int | None) -> Offsets:
        """Return how far a batch goes from `start` towards `end` within its budgets.

        The budgets are shared in proportion to the backlogs of partitions.
        """
        waiting = {topic: entries_between(start[topic], stop) for topic, stop in end.items() if start[topic] < stop}
        # Each is sent about what it will be asked for: the rest would be read by the broker, and by nobody else.
        total = sum(waiting.values())
        ahead = {topic: (messages_max or _UNLIMITED) * entries // total for topic, entries in waiting.items()}
        measures = {
            topic: _Measure(self, topic, start[topic], end[topic], max(_AHEAD_MIN, ahead[topic])) for topic in waiting
        }
        try:
            _spend(list(measures.values()), messages_max, bytes_max)
            reached = {topic: measure.position for topic, measure in measures.items()}
        finally:
            for measure in measures.values():
                measure.close()
        return {**start, **reached}

    # -- what was committed ------------------------------------------------------------------------------------------

    def acknowledge(self, offsets: Offsets) -> None:
        """Move the durable subscriptions to these offsets; create missing ones."""
        for topic, offset in offsets.items():
            name = self.settings.subscription_of(topic)
            with Subscription.durable(self.cluster, topic, name) as subscription:
                subscription.acknowledge_before(offset)


@dataclass(slots=True)
class _Seen:
    """Messages and bytes of the measured entries."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0


class _Measure:
    """Measures one partition, entry by entry, up to its budget."""

    def __init__(self, planner: Planner, topic: str, start: MessageId, end: MessageId, ahead: int) -> None:
        self.topic = topic
        self.position = start
        self.end = end
        self.seen = _Seen()
        self._runs: Generator[Deliveries] = EntryReader(
            planner.cluster, topic, start, end, planner.settings.reading, ahead=ahead
        ).runs()
        # Of the entries of the run that is being measured: ids, messages and bytes.
        self._rows: list[tuple[MessageId, int, int]] = []
        self._next = 0

    @property
    def waiting(self) -> int:
        """The number of remaining entries, according to ids."""
        return entries_between(self.position, self.end)

    def advance(self, messages: int, nbytes: int | None, *, at_least_one: bool) -> tuple[int, int]:
        """Advance within these budgets; return what was used. Without any advance there is no room."""
        used_messages = used_bytes = 0
        while used_messages < messages and (entry := self._entry()) is not None:
            place, count, size = entry
            if nbytes is not None and used_bytes + size > nbytes and not (at_least_one and not used_messages):
                break
            if self.seen.bytes > MEASURED_BYTES_MAX:
                return self._reckon(messages, nbytes, used_messages, used_bytes)
            # The entry may have been begun by the batch before.
            skipped = self.position.batch_index if self.position[:2] == place[:2] else 0
            taken = min(count - skipped, messages - used_messages)
            used_messages += taken
            used_bytes += size
            if skipped + taken < count:
                self.position = MessageId(place.ledger_id, place.entry_id, skipped + taken)
                break
            self.position = MessageId(place.ledger_id, place.entry_id + 1)
            self._next += 1
            self._note(count, size)
        return used_messages, used_bytes

    def close(self) -> None:
        self._runs.close()

    def _note(self, count: int, size: int) -> None:
        self.seen.entries += 1
        self.seen.messages += count
        self.seen.bytes += size

    def _entry(self) -> tuple[MessageId, int, int] | None:
        while self._next == len(self._rows):
            run = next(self._runs, None)
            if run is None:
                self.position = self.end
                return None
            self._rows, self._next = _rows_of(run), 0
        return self._rows[self._next]

    def _reckon(self, messages: int, nbytes: int | None, used_messages: int, used_bytes: int) -> tuple[int, int]:
        """Estimate how many entries the rest of the budget covers, from the entries that were measured."""
        seen = self.seen
        entries = (messages - used_messages) * seen.entries // seen.messages
        if nbytes is not None:
            entries = min(entries, (nbytes - used_bytes) * seen.entries // seen.bytes)
        target = MessageId(self.position.ledger_id, self.position.entry_id + max(0, entries))
        self.position = min(target, self.end)
        self._runs.close()
        self.end = self.position  # No more of it in this batch.
        return (
            used_messages + entries * seen.messages // seen.entries,
            used_bytes + entries * seen.bytes // seen.entries,
        )


def _rows_of(run: Deliveries) -> list[tuple[MessageId, int, int]]:
    said = walk(run.data, run.metadata_starts, run.payload_starts, {_BATCH_MESSAGES})
    counts = np.maximum(last_of(said.get(_BATCH_MESSAGES), len(run), 1), 1)
    sizes = run.payload_stops - run.metadata_starts
    ids = map(MessageId, run.ledger_ids.tolist(), run.entry_ids.tolist())
    return list(zip(ids, counts.tolist(), sizes.tolist(), strict=True))


def _spend(measures: list[_Measure], messages_max: int | None, bytes_max: int | None) -> None:
    """Divide the budgets among partitions in rounds: what one does not need, the others get in the next round."""
    messages, nbytes = messages_max or _UNLIMITED, bytes_max
    moved = False
    while messages > 0 and (nbytes is None or nbytes > 0):
        # What waits is known in entries only; they stand for messages and for bytes.
        waiting = {one: one.waiting for one in measures if one.position < one.end}
        weight = sum(waiting.values())
        parts = shares(messages, {one.topic: entries * messages // weight + 1 for one, entries in waiting.items()})
        progress = 0
        for one, entries in waiting.items():
            room = None if nbytes is None else max(1, nbytes * entries // weight)
            used, used_bytes = one.advance(parts[one.topic], room, at_least_one=not moved)
            moved = moved or used > 0
            progress += used
            messages -= used
            nbytes = None if nbytes is None else nbytes - used_bytes
        if not progress:
            return
