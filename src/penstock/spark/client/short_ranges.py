# SPDX-License-Identifier: Apache-2.0
"""Many short ranges of different topics, read together on a few connections.

Why: to look up, connect, subscribe, read and close takes five round trips for a topic, however little it holds. Here
many consumers are opened at once on one connection, and their messages come mixed. Permits are granted when all are
open, so that no message comes before its consumer is known. Rows are held back until those of the ranges before are
out: a task that is repeated yields its rows in the same order.
Where: tasks of Spark that have several ranges. Only what goes well is done here: a range whose ids have gaps, whose
consumer is closed or whose messages do not come is left to `reader`, from the last position on, which knows what to do.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.units import MIB
from penstock.spark.client import deliveries, messages
from penstock.spark.client.chunks import Chunks
from penstock.spark.client.cluster import parts_of
from penstock.spark.client.errors import ClientError, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId, signed
from penstock.spark.client.message_runs import take_messages
from penstock.spark.client.reader import fetch_pieces, read, within
from penstock.spark.client.subscription import place_after, reading_body
from penstock.spark.offsets import entries_between
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import Answered, ConsumerClosed, Message
from penstock.wire.client.lookup import Owner
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeVar

    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection
    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.client.fields import Ints
    from penstock.spark.client.messages import Messages
    from penstock.spark.client.reader import ReadOptions
    from penstock.spark.offsets import TopicRange
    from penstock.wire.client.events import Event

    T = TypeVar("T")
    ReadOne = Callable[[Cluster, str, MessageId, MessageId, ReadOptions], Iterator[Messages]]

# Ranges that are read together: their consumers' permits are what the broker may send ahead.
TOGETHER_MAX: Final = 64
_PERMITS: Final = 500
_RUN_ENTRIES_MAX: Final = 4_096
# Rows that were read together, and wait for those of a range before theirs. Beyond, ranges are read one by one.
HELD_BYTES_MAX: Final = 64 * MIB
# Of a row, beside its value.
ROW_BYTES: Final = 200
# After so long without anything, the ordinary reader looks for the reason.
_DOUBT_S: Final = 2.0


def read_many(
    cluster: Cluster,
    ranges: Sequence[TopicRange],
    options: ReadOptions,
    rows_of: Callable[[TopicRange, Messages], Iterable[T]],
    read_one: ReadOne = read,
) -> Iterator[T]:
    """Yield what `rows_of` makes of the messages of ranges, range by range, whatever the network brings first.

    Args:
        cluster: the brokers.
        ranges: to be read, in this order.
        options: of all.
        rows_of: makes rows of some messages of a range, which are lent to it: the next ones are written over them.
        read_one: reads one range, or its rest, if it cannot be read together with others.

    Raises:
        ClientError: as `reader.read`.
    """
    by_topic = {one.topic: one for one in ranges}
    position = {one.topic: one.start for one in ranges}
    if len(ranges) == 1 or len(by_topic) < len(ranges) or options.compacted:
        for one in ranges:
            for found in read_one(cluster, one.topic, one.start, one.end, options):
                yield from rows_of(one, found)
        return
    for names in parts_of(by_topic, TOGETHER_MAX):
        group = _Group(cluster, {name: by_topic[name] for name in names}, options, position)
        held: dict[str, list[T]] = {name: [] for name in names}
        left = deque(names)
        held_bytes = 0
        for one, found in group.read():
            held_bytes += _bytes_in(found)
            held[one.topic] += rows_of(one, found)
            while left:
                yield from held[left[0]]
                held[left[0]].clear()
                if position[left[0]] < by_topic[left[0]].end:
                    break
                left.popleft()
            if not any(held.values()):
                held_bytes = 0
            elif held_bytes > HELD_BYTES_MAX:
                group.is_stopped = True
        for name in left:
            yield from held[name]
            one = by_topic[name]
            if position[name] < one.end:
                for found in read_one(cluster, name, position[name], one.end, options):
                    yield from rows_of(one, found)


def _bytes_in(found: Messages) -> int:
    """About how much memory rows of these messages take."""
    return ROW_BYTES * len(found) + int((found.value_stops - found.value_starts).sum())


class _Group:
    """Ranges that are read together; `position` says how far each was read."""

    def __init__(
        self, cluster: Cluster, ranges: dict[str, TopicRange], options: ReadOptions, position: dict[str, MessageId]
    ) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self._position = position
        self._decryption = options.decryption
        self._chunks = {topic: Chunks(partial(fetch_pieces, cluster, topic, options)) for topic in ranges}
        self._reading: dict[int, str] = {}  # topics that are being read, by the ids of their consumers
        self._consumers: dict[int, Consumer] = {}
        self._came: dict[str, tuple[int, int]] = dict.fromkeys(ranges, (0, 0))  # entries, and messages in them
        self._earliest: dict[str, MessageId] = {}  # as brokers name it, of topics that are read from there
        self._is_handing_out = False
        self.is_stopped = False  # by the caller: the rest of the ranges is left to others

    def read(self) -> Iterator[tuple[TopicRange, Messages]]:
        """Yield what can be read without trouble."""
        try:
            found = self._cluster.owners(self._ranges)
        except ClientError:
            return
        by_owner: dict[Owner, list[str]] = {}
        for topic, owner in found.items():
            if isinstance(owner, Owner):
                by_owner.setdefault(owner, []).append(topic)
        for owner, topics in by_owner.items():
            if self.is_stopped:
                return
            try:
                connection = self._cluster.connection_to(owner)
            except ClientError:
                continue
            try:
                yield from self._read(connection, topics)
            except (ClientError, ProtocolError):
                connection.close()
                if self._is_handing_out:
                    raise  # Some of these messages are out already: they must not be read again.
            except BaseException:
                connection.close()
                raise
            else:
                self._cluster.give_back(connection)

    def _read(self, connection: Connection, topics: list[str]) -> Iterator[tuple[TopicRange, Messages]]:
        closing = self._open(connection, topics)
        while self._reading and not self.is_stopped:
            starts, stop = take_messages(connection.inbound, _RUN_ENTRIES_MAX)
            if not len(starts):
                self._take_events(connection, closing)
                starts, stop = take_messages(connection.inbound, _RUN_ENTRIES_MAX)
            if not len(starts):
                if not connection.receive(_DOUBT_S):
                    break
                continue
            entries, damaged = deliveries.decode(connection.inbound.data, starts, stop)
            if damaged.size:
                break
            consumers = deliveries.consumer_ids(connection.inbound.data, starts, stop)
            for consumer_id in np.unique(consumers).tolist():
                if (topic := self._reading.get(consumer_id)) is None:
                    continue  # Sent before the broker knew that its range was over.
                mine = entries.chosen(consumers == consumer_id)
                yield from self._taken(topic, consumer_id, mine)
                if self._position[topic] >= self._ranges[topic].end or self._reading.get(consumer_id) is None:
                    self._reading.pop(consumer_id, None)
                    closing.add(connection.begin_unsubscribe(self._consumers[consumer_id]))
                else:
                    self._consumers[consumer_id].permits_max = self._window(topic)
                    connection.flow(self._consumers[consumer_id])
        closing |= {connection.begin_unsubscribe(self._consumers[one]) for one in self._reading}
        self._reading.clear()
        if closing:
            connection.answers(closing, "closing consumers")
        connection.forget_events()

    def _window(self, topic: str) -> int:
        """How many messages may be on their way: no more than are left, as far as what came tells."""
        at, end = self._position[topic], self._ranges[topic].end
        entries, count = self._came[topic]
        return min(_PERMITS, -(-entries_between(at, end) * count // entries))

    def _open(self, connection: Connection, topics: list[str]) -> set[int]:
        """Open a consumer for each topic, at once; those that are refused, or closed again, are left out.

        Returns:
            Requests that close consumers which are left out.
        """
        asked = {}
        for topic in topics:
            number = connection.new_consumer_id()
            consumer = self._consumers[number] = Consumer(
                reading_body(topic, self._position[topic], consumer_id=number)
            )
            asked[connection.begin_subscribe(consumer, f"reading {topic}")] = number, topic
        answers, events = connection.answers(asked, f"our wish to read {len(topics)} topics")
        self._reading = {
            number: topic
            for request_id, (number, topic) in asked.items()
            if not isinstance(answers[request_id], Refused)
        }
        events += self._ask_for_earliest(connection)
        # A broker that sends entries unasked: the range is read again by itself.
        unasked = {event.consumer_id for event in events if isinstance(event, Message)}
        gone = {event.consumer_id for event in events if isinstance(event, ConsumerClosed)}
        for number in (unasked | gone) & self._reading.keys():
            del self._reading[number]
        for number in self._reading:
            self._consumers[number].permits_max = _PERMITS
            connection.flow(self._consumers[number])
        return {connection.begin_unsubscribe(self._consumers[one]) for one in unasked - gone}

    def _ask_for_earliest(self, connection: Connection) -> list[Event]:
        """Have brokers name the earliest entries of topics that are read from there; returns other events."""
        asked = {
            connection.begin(codec.CommandGetLastMessageId(consumer_id=number, request_id=0), f"reading {topic}"): topic
            for number, topic in self._reading.items()
            if self._position[topic] == EARLIEST
        }
        answers, events = connection.answers(asked, f"asking for the beginnings of {len(asked)} topics")
        for request_id, answer in answers.items():
            if not isinstance(answer, Refused):
                before = answer.consumer_mark_delete_position
                self._earliest[asked[request_id]] = place_after(
                    MessageId(signed(before.ledgerId), signed(before.entryId))
                )
        return events

    def _take_events(self, connection: Connection, closing: set[int]) -> None:
        while (event := connection.take_event()) is not None:
            if isinstance(event, ConsumerClosed):
                self._reading.pop(event.consumer_id, None)
            elif isinstance(event, Answered):
                closing.discard(event.request_id)

    def _taken(self, topic: str, consumer_id: int, entries: Deliveries) -> Iterator[tuple[TopicRange, Messages]]:
        """Yield the messages of one topic; give it up at a gap."""
        wanted = self._ranges[topic]
        count = messages.message_count(entries)
        self._consumers[consumer_id].took(count)
        had_entries, had = self._came[topic]
        self._came[topic] = had_entries + len(entries), had + count
        at, end = self._position[topic], wanted.end
        ledgers, ids = entries.ledger_ids, entries.entry_ids
        last_entry = end.entry_id if end.batch_index else end.entry_id - 1
        inside = (ledgers < end.ledger_id) | ((ledgers == end.ledger_id) & (ids <= last_entry))
        count = int(inside.sum())
        # The first entry behind the range shows that none before it is missing.
        wanted_first = self._earliest.get(topic, at) if at == EARLIEST else at
        if not _follow(wanted_first, ledgers[: count + 1], ids[: count + 1]):
            del self._reading[consumer_id]
            return
        entries = entries.chosen(inside)
        self._is_handing_out = True
        for decoded in messages.decode(entries, topic, self._chunks[topic], self._decryption) if count else ():
            trimmed = within(decoded, wanted.start, end)
            if len(trimmed):
                yield wanted, trimmed
        self._is_handing_out = False
        if count < len(inside):
            self._position[topic] = end
        elif count:
            self._position[topic] = _after(int(ledgers[-1]), int(ids[-1]), end)


def _follow(at: MessageId, ledgers: Ints, ids: Ints) -> bool:
    """Whether these entries come one after another from this position on, in one ledger."""
    return (int(ledgers[0]), int(ids[0])) == at[:2] and bool(
        (ledgers == ledgers[0]).all() and (np.diff(ids) == 1).all()
    )


def _after(ledger_id: int, entry_id: int, end: MessageId) -> MessageId:
    """Return the position behind an entry; the end, if that is within this entry."""
    following = MessageId(ledger_id, entry_id + 1)
    return end if (ledger_id, entry_id) == end[:2] else following
