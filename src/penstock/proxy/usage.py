# SPDX-License-Identifier: Apache-2.0
"""Usage of topics through this proxy: counters, and the SENDs that no broker has acknowledged yet.

A publish counts when the broker's receipt passes: a publish that the broker has refused is not counted, and one that
was lost with it and is sent again is counted once. So no client can add to the usage of a topic to which the broker
does not let it publish. Until then its size is kept in a column of its producer.

Bounds. Counters are charged to one row, SENDs to another, of which one client gets CLIENT_BYTES_MAX. A topic that does
not fit is counted in the proxy's own totals only. SENDs that do not fit are counted when they are passed on, if the
broker has acknowledged others of the producer; otherwise they are not counted.

Where: `relayed_sends` and `consumers` count, `usage_records` records.
"""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Protocol

from penstock.accounting.totals import NOTHING, Totals
from penstock.core.system_topics import is_record_topic
from penstock.core.units import MIB
from penstock.wire.metadata import is_followed_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from penstock.core.names import TopicName
    from penstock.governance.budget import Row
    from penstock.proxy.rates import Rates
    from penstock.wire.events import PublishRun
    from penstock.wire.relayed import Answered, Delivered


log = logging.getLogger(__name__)

# Memory of the counters of a topic, besides its name, which is twice in memory with its key.
TOPIC_BYTES: Final = 800
# Memory of a row of SENDs that wait for receipts, besides two numbers of four bytes for each.
ROW_BYTES: Final = 400
SEND_BYTES: Final = 8
# So many bytes of one client: more than 100,000 SENDs, where brokers take a thousand.
CLIENT_BYTES_MAX: Final = MIB


class TopicUsage:
    """The counters of one topic, since `since_ms`."""

    __slots__ = ("charged_bytes", "idle_cycles", "rates", "recorded", "since_ms", "text", "totals")

    def __init__(self, text: str, since_ms: int, charged_bytes: int) -> None:
        self.text = text
        self.since_ms = since_ms
        self.charged_bytes = charged_bytes
        self.totals = NOTHING
        self.recorded = NOTHING
        self.rates: Rates | None = None  # once somebody has asked for them
        self.idle_cycles = 0  # cycles in which nothing has changed


class UsageCounts:
    """The counters of all topics.

    Attributes:
        memory: of the counters.
        unanswered: memory of SENDs.
        sum: of all topics, also of those that are not counted by themselves.
        left_out: messages of topics that are not counted by themselves, for lack of memory.
    """

    def __init__(
        self, memory: Row, unanswered: Row, new_since_ms: Callable[[], int], own: Collection[str] = ()
    ) -> None:
        """Args: new_since_ms: returns unique times; own: topics that are not counted, beside those of brokers."""
        self.memory = memory
        self.unanswered = unanswered
        self.sum = NOTHING
        self.left_out = 0
        self._new_since_ms = new_since_ms
        self._own = frozenset(own)
        self._topics: dict[str, TopicUsage] = {}

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def is_crowded(self) -> bool:
        """Whether memory must be freed for other topics."""
        return 2 * self.memory.used_bytes > self.memory.limit_bytes

    def add(self, text: str, more: Totals) -> None:
        """A topic has done this."""
        topic = self._topics.get(text)
        if topic is None:
            if text in self._own or is_record_topic(text):
                return
            topic = self._begun(text)
        self.sum = self.sum.plus(more)
        if topic is None:
            self.left_out += more.messages_in + more.messages_out
        else:
            topic.totals = topic.totals.plus(more)

    def _begun(self, text: str) -> TopicUsage | None:
        nbytes = TOPIC_BYTES + 2 * len(text.encode())
        if not self.memory.try_charge(nbytes):
            if not self.left_out:
                log.warning(
                    "usage of more topics is only counted in sum: %d topics take %d of %d bytes; raise metadataMB",
                    len(self._topics), self.memory.used_bytes, self.memory.limit_bytes,
                )  # fmt: skip
            return None
        topic = self._topics[text] = TopicUsage(text, self._new_since_ms(), nbytes)
        return topic

    def topics(self) -> Sequence[TopicUsage]:
        """All topics that are counted."""
        return list(self._topics.values())

    def forget(self, topic: TopicUsage) -> None:
        """Free the memory of a topic whose counters are recorded. Counting begins anew when it is used again."""
        del self._topics[topic.text]
        self.memory.release(topic.charged_bytes)


class PublishedTopic(Protocol):
    """A topic of a producer."""

    publish_limited_times: int

    @property
    def name(self) -> TopicName: ...


class ClientBytes:
    """The memory of all SENDs of one client."""

    __slots__ = ("_memory", "used_bytes")

    def __init__(self, memory: Row) -> None:
        self.used_bytes = 0
        self._memory = memory

    def try_charge(self, nbytes: int) -> bool:
        if self.used_bytes + nbytes > CLIENT_BYTES_MAX or not self._memory.try_charge(nbytes):
            return False
        self.used_bytes += nbytes
        return True

    def release(self, nbytes: int) -> None:
        self.used_bytes -= nbytes
        self._memory.release(nbytes)


class _Row:
    """SENDs of one run; `lengths` is None if their sizes are not kept. Chunks that others follow have no messages."""

    __slots__ = ("charged_bytes", "lengths", "messages", "next", "sends")

    def __init__(self, sends: int, lengths: array[int] | None, messages: array[int] | None, charged_bytes: int) -> None:
        self.sends = sends
        self.next = 0  # the first without an answer
        self.lengths = lengths
        self.messages = messages  # None: one each
        self.charged_bytes = charged_bytes


class UnansweredSends:
    """SENDs of one producer that were passed on, until their receipts come."""

    __slots__ = ("_acknowledged", "_counts", "_limited_times", "_memory", "_rows", "topic")

    def __init__(self, counts: UsageCounts, topic: PublishedTopic, memory: ClientBytes) -> None:
        self.topic = topic
        self._acknowledged = False  # whether the broker has acknowledged any
        self._counts = counts
        self._memory = memory
        self._limited_times = 0
        self._rows: deque[_Row] = deque()

    @property
    def waits(self) -> bool:
        """Whether receipts are awaited of SENDs whose sizes are kept."""
        return any(row.charged_bytes for row in self._rows)

    def passed(self, lengths: Sequence[int], messages: Sequence[int] | None) -> None:
        """SENDs were passed on, in this order. Args: messages: of each; 0: a chunk that others follow; None: 1."""
        sends = len(lengths)
        nbytes = ROW_BYTES + SEND_BYTES * sends
        if self._memory.try_charge(nbytes):
            counted = array("I", messages) if messages is not None else None
            self._rows.append(_Row(sends, array("I", lengths), counted, nbytes))
            return
        if self._acknowledged:
            self._counts.add(str(self.topic.name), _totals(lengths, messages))
        if self._rows and self._rows[-1].lengths is None:
            self._rows[-1].sends += sends
        else:
            self._rows.append(_Row(sends, None, None, 0))

    def answered(self, sends: int, *, stored: bool) -> None:
        """The broker has answered the next SENDs: they are stored, or were refused."""
        passed = NOTHING
        self._acknowledged |= stored
        while sends and self._rows:
            row = self._rows[0]
            stop = min(row.next + sends, row.sends)
            if stored and row.lengths is not None:
                which = slice(row.next, stop)
                passed = passed.plus(_totals(row.lengths[which], row.messages and row.messages[which]))
            sends -= stop - row.next
            row.next = stop
            if stop == row.sends:
                self._rows.popleft()
                self._memory.release(row.charged_bytes)
        if passed.messages_in:
            limited, self._limited_times = self._limited_times, self.topic.publish_limited_times
            self._counts.add(str(self.topic.name), passed._replace(limited_times=self._limited_times - limited))

    def close(self) -> None:
        """The producer is gone: its client sends unanswered messages again, if they matter to it."""
        self._memory.release(sum(row.charged_bytes for row in self._rows))
        self._rows.clear()


def _totals(lengths: Sequence[int], messages: Sequence[int] | None) -> Totals:
    if messages is None:
        return Totals(len(lengths), sum(lengths))
    chunks = messages.count(0)
    return Totals(sum(messages) + chunks, sum(lengths), chunks_in=chunks)


def in_parts(rows: Sequence[TopicUsage], size: int) -> Iterator[Sequence[TopicUsage]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


class RelayedUsage:
    """One client's part of the counters."""

    def __init__(self, counts: UsageCounts) -> None:
        self._counts = counts
        self._memory = ClientBytes(counts.unanswered)
        self._unanswered: dict[int, UnansweredSends] = {}  # by producer id; also of producers that were closed
        self._closed: set[int] = set()  # of these

    def opened(self, producer_id: int, topic: PublishedTopic) -> None:
        """A PRODUCER is passed on."""
        self._drop(producer_id)
        self._unanswered[producer_id] = UnansweredSends(self._counts, topic, self._memory)

    def forget(self, producer_id: int) -> None:
        """A producer is gone; receipts of what it has sent may follow."""
        unanswered = self._unanswered.get(producer_id)
        if unanswered is not None and unanswered.waits:
            self._closed.add(producer_id)
        else:
            self._drop(producer_id)

    def _drop(self, producer_id: int) -> None:
        self._closed.discard(producer_id)
        unanswered = self._unanswered.pop(producer_id, None)
        if unanswered is not None:
            unanswered.close()

    def close(self) -> None:
        """The client is gone."""
        for producer_id in list(self._unanswered):
            self._drop(producer_id)

    def passed(self, run: PublishRun) -> None:
        """SENDs are passed on."""
        counts = run.message_counts if not run.rare else _without_followed_chunks(run)
        first = run.producer_ids[0]
        if run.producer_ids.count(first) == len(run.producer_ids):
            unanswered = self._unanswered.get(first)
            if unanswered is not None:
                unanswered.passed(run.lengths, counts)
            return
        rows = defaultdict(list)
        for row, producer_id in enumerate(run.producer_ids):
            rows[producer_id].append(row)
        for producer_id, own in rows.items():
            unanswered = self._unanswered.get(producer_id)
            if unanswered is not None:
                unanswered.passed(
                    [run.lengths[row] for row in own], None if counts is None else [counts[row] for row in own]
                )

    def answered(self, answers: Iterable[Answered]) -> None:
        """The broker has answered SENDs."""
        for one in answers:
            unanswered = self._unanswered.get(one.producer_id)
            if unanswered is not None:
                unanswered.answered(one.sends, stored=one.stored)
                if one.producer_id in self._closed and not unanswered.waits:
                    self._drop(one.producer_id)

    def delivered(self, topic: TopicName, seen: Delivered) -> None:
        """Messages were sent on to a consumer."""
        self._counts.add(str(topic), Totals(messages_out=seen.messages, bytes_out=seen.bytes))


def _without_followed_chunks(run: PublishRun) -> Sequence[int]:
    """The messages of each row; none in chunks that others of their message follow."""
    counts = list(run.message_counts) if run.message_counts is not None else [1] * len(run.offsets)
    for row, send in run.rare.items():
        start = run.offsets[row]
        if send.is_chunk and is_followed_chunk(memoryview(run.data)[start : start + run.lengths[row]]):
            counts[row] = 0
    return counts
