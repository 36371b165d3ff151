# SPDX-License-Identifier: Apache-2.0
"""Publishing: one run of SEND frames in, one append to the log, one write of receipts per connection.

Why runs: at 100,000 entries a second, work per message must become work per read. A run is the result of one read of
one connection, with frames of any producers and topics; the work per producer is one light pass.
Where: the session submits a `PublishRun`; the entry log calls `Publish.done` on the loop, in the order of the runs of a
connection and of the entries of a topic. Topics learn of new entries only there, so no entry is dispatched before it is
durable.

Most topics need only a checksum. Entries of a careful producer (deduplication, encryption, limits of its topic) are
checked one by one, in `checks` and `deduplication`; others do not pay for it.

Order: receipts and errors of one producer are sent in the order of its SENDs, because all answers of a run, errors
included, are written when the log completes the run.

Budget: 4 µs of the whole process per 1 KiB entry of one producer, 5 µs with fifty interleaved (benchmarks/run.py).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.publishing import checks
from penstock.broker.publishing.deduplication import NEVER, Verdict
from penstock.broker.publishing.replicated import MARKER, Replicator, origin_of
from penstock.broker.subscriptions.tail import COLUMNS_BYTES
from penstock.core.checksum import SEAL_BYTES, seal_of
from penstock.core.durations import BOUNDS_NS
from penstock.core.errors import PenstockError, WireCode
from penstock.core.spare_buffers import kept_bytes
from penstock.core.units import KIB
from penstock.storage.entry_log import AppendRun, Batch
from penstock.wire import codec, metadata
from penstock.wire.errors import ProtocolError
from penstock.wire.markers import MARKER_BYTES_MAX
from penstock.wire.sends import encode_receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic
    from penstock.broker.publishing.producer import Producer
    from penstock.broker.subscriptions.tail import Tail, TailCache
    from penstock.core.transaction_id import TransactionId
    from penstock.governance.memory_pool import Lease
    from penstock.groups.held_sends import HeldMemory
    from penstock.net.loop_turns import LoopTurns
    from penstock.storage.entry_log import EntryLog
    from penstock.wire.events import PublishRun
    from penstock.wire.sends import Buffer


# ---------------------------------------------------------------------------------------------------------------------
# Splits a run of several producers into the entries of each, and puts the bytes of each in one place.
#
# Why: the log stores a run as it is. Of fifty producers that publish in turns, the entries of one would be a kilobyte
# here and a kilobyte there, and reading them later would take a call of the system for each (docs/adr/0060-entries-
# between-those-of-others.md). A run is in memory, and its rows are picked by producer in any case, so this is the
# cheapest moment to sort them.

# Larger entries are read one by one in any case, and cost more to copy.
_SORTED_ENTRY_BYTES_MAX: Final = 16 * KIB


class Entries(NamedTuple):
    """Columns of a run, limited to one producer's rows."""

    sequence_ids: Sequence[int]
    highest: Sequence[int] | None
    offsets: Sequence[int]
    lengths: Sequence[int]
    message_counts: Sequence[int] | None


def by_producer(run: PublishRun, data: Buffer) -> tuple[Buffer, list[tuple[int, Entries]]]:
    """Return the bytes to store, and each producer's entries in them, in their order.

    `data` holds the entries of the run, and is returned if there is nothing to sort.

    Budget: 0.3 µs per entry of 1 KiB on one core, half of it for the copy.
    """
    rows_of: dict[int, list[int]] = {}
    for row, producer_id in enumerate(run.producer_ids):
        if producer_id in rows_of:
            rows_of[producer_id].append(row)
        else:
            rows_of[producer_id] = [row]
    order: list[int] = []
    for rows in rows_of.values():
        order += rows
    pick = itemgetter(*order)  # of two producers at least, so that it returns a tuple
    offsets: Sequence[int] = pick(run.offsets)
    lengths: Sequence[int] = pick(run.lengths)
    if len(rows_of) < len(order) and len(data) <= _SORTED_ENTRY_BYTES_MAX * len(order):
        view = memoryview(data)
        data = b"".join([view[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)])
        offsets = list(accumulate(lengths[:-1], initial=0))
    sequence_ids = pick(run.sequence_ids)
    highest = None if run.highest is None else pick(run.highest)
    counts = None if run.message_counts is None else pick(run.message_counts)
    parts: list[tuple[int, Entries]] = []
    begin = 0
    for producer_id, rows in rows_of.items():
        end = begin + len(rows)
        entries = Entries(
            sequence_ids[begin:end],
            highest and highest[begin:end],
            offsets[begin:end],
            lengths[begin:end],
            counts and counts[begin:end],
        )
        parts.append((producer_id, entries))
        begin = end
    return data, parts


class Stretch(NamedTuple):
    """Entries of one producer in one run, in SEND order, with consecutive entry ids from `first_entry_id`."""

    producer: Producer
    first_entry_id: int
    sequence_ids: Sequence[int]
    highest: Sequence[int] | None
    offsets: Sequence[int]
    lengths: Sequence[int]
    message_counts: Sequence[int] | None
    highest_new: int = NEVER  # highest sequence id, recorded by deduplication when durable
    known_as: str = ""  # to deduplication, if not by the producer's name


class Duplicate(NamedTuple):
    """One SEND that is acknowledged without being stored again."""

    producer_id: int
    sequence_id: int
    highest: int | None


class Refusal(NamedTuple):
    """One SEND that is answered with an error."""

    producer_id: int
    sequence_id: int
    code: WireCode
    message: str


MISNUMBERED: Final = checks.Reason(
    WireCode.METADATA_ERROR, "sequence_id is above highest_sequence_id, with which its batch ends"
)
IN_FLIGHT: Final = checks.Reason(
    WireCode.PERSISTENCE_ERROR,
    "Cannot determine whether the message is a duplicate at this time: it is on its way to the disk; send it again",
)


@dataclass(frozen=True, slots=True)
class PublishServices:
    """Services shared by all runs of a broker."""

    log: EntryLog
    tail_cache: TailCache
    release: Callable[[Lease], None]  # called with a lease when all its requests are answered
    # Called when entries of a topic that deduplicates are durable, with their producer and highest sequence id.
    recorded: Callable[[PublishedTopic, str, int], None]
    name_comes: Callable[[PublishedTopic, str], None]  # called before deduplication remembers one more producer
    held: HeldMemory  # of SENDs that wait for a resource group
    # Why a role may not send in one, so many ranges of entries; None: it may.
    refused_in_transaction: Callable[[TransactionId, str, int], str | None]
    sent_in_transaction: Callable[[bool, TransactionId], None]  # called for entries; True: they take more memory
    # Called with a marker of a replicator, when all that it has sent before is durable.
    marked: Callable[[PublishedTopic, bytes, ProducerClient], None]
    turn: LoopTurns  # the time of all that happens in it: no run looks at a clock


class Publish:
    """One run on its way to the log and back."""

    __slots__ = ("_data", "_markers", "_received_ns", "_services", "lease", "replies", "session")

    def __init__(
        self,
        services: PublishServices,
        session: ProducerClient,
        lease: Lease | None,
        received_ns: int | None = None,
    ) -> None:
        """Args: received_ns: in which turn it was read; None: in this one."""
        self._services = services
        self.session = session
        self._received_ns = services.turn.began_ns if received_ns is None else received_ns
        # One lease covers all runs of a read; the last run, which the log completes last, releases it.
        self.lease = lease
        self.replies: list[Stretch | Duplicate | Refusal] = []
        self._data: Buffer = b""
        self._markers: list[tuple[PublishedTopic, bytes]] = []

    def submit(self, run: PublishRun) -> None:
        """Assign entry ids and append the run to the log."""
        data: Buffer = run.data
        if run.unsealed:
            data = _seal_rows(run)
        if run.transactions:
            data = _name_transactions(run, data)
        self._data, packed = data, False
        producer_ids = run.producer_ids
        first = producer_ids[0]
        if run.corrupt or run.rare or run.refused:
            self._split_row_by_row(run)
        elif run.transactions:
            self._split_by_transaction(run)
        elif producer_ids.count(first) == len(producer_ids):
            self._add(first, run.sequence_ids, run.highest, run.offsets, run.lengths, run.message_counts)
        else:
            self._data, parts = by_producer(run, data)
            packed = self._data is not data
            for producer_id, entries in parts:
                self._add(producer_id, *entries)
        self._append(self._data, packed=packed)

    def _split_row_by_row(self, run: PublishRun) -> None:
        """The slow path, for runs with refused entries between valid ones."""
        corrupt, transactions = set(run.corrupt), run.transaction_rows()
        for row, producer_id in enumerate(run.producer_ids):
            sequence_id = run.sequence_ids[row]
            refusal = None
            if row in corrupt:
                refusal = (WireCode.CHECKSUM_ERROR, "checksum of the entry does not match its bytes; send it again")
            elif row in run.refused:
                refusal = (WireCode.NOT_ALLOWED_ERROR, run.refused[row])
            elif row in run.rare and run.rare[row].marker:
                self._pass_over(producer_id, sequence_id, run.offsets[row], run.lengths[row])
                continue
            elif row in transactions:
                refusal = self._refuse_in(transactions[row], producer_id)
            if refusal is not None:
                highest = 0 if run.highest is None else run.highest[row]
                if producer_id in self.session.producers:
                    self.replies.append(Refusal(producer_id, max(sequence_id, highest), *refusal))
                continue
            chunk = row in run.rare and run.rare[row].is_chunk
            before = self._messages_in(producer_id)
            first_reply = len(self.replies)
            self._add(
                producer_id,
                (sequence_id,),
                None if run.highest is None else (run.highest[row],),
                (run.offsets[row],),
                (run.lengths[row],),
                None if run.message_counts is None else (run.message_counts[row],),
                chunk=chunk,
            )
            if chunk and self._messages_in(producer_id) > before:
                start = run.offsets[row]
                if not checks.is_last_chunk(memoryview(self._data)[start : start + run.lengths[row]]):
                    self.session.producers[producer_id].topic.chunks_in += 1
            if row in transactions:
                self._belong(transactions[row], self.replies[first_reply:])

    def _split_by_transaction(self, run: PublishRun) -> None:
        """The path for runs in which transactions send; most rows of one transaction follow one another."""
        transactions = run.transaction_rows()
        rows = groupby(range(len(run.offsets)), lambda row: (run.producer_ids[row], transactions.get(row)))
        for (producer_id, transaction), group in rows:
            part = slice(first := next(group), first + 1 + sum(1 for _ in group))
            highest = None if run.highest is None else run.highest[part]
            refusal = None if transaction is None else self._refuse_in(transaction, producer_id, part.stop - first)
            if refusal is not None:
                tops = run.sequence_ids[part] if highest is None else map(max, run.sequence_ids[part], highest)
                self.replies += [Refusal(producer_id, top, *refusal) for top in tops]
                continue
            first_reply = len(self.replies)
            counts = None if run.message_counts is None else run.message_counts[part]
            self._add(producer_id, run.sequence_ids[part], highest, run.offsets[part], run.lengths[part], counts)
            if transaction is not None:
                self._belong(transaction, self.replies[first_reply:])

    def _pass_over(self, producer_id: int, sequence_id: int, offset: int, length: int) -> None:
        """Acknowledge a marker of a replicated subscription. Consumers never see one, so it is not stored."""
        producer = self.session.producers.get(producer_id)
        if producer is None:
            self.session.sent_by_unknown_producer(producer_id)
        else:
            highest = MARKER if producer.replicator is Replicator.BY_POSITIONS else None
            self.replies.append(Duplicate(producer_id, sequence_id, highest))
            if producer.replicator is not None and producer.topic.persistent and length <= MARKER_BYTES_MAX:
                marker = bytes(memoryview(self._data)[offset : offset + length])
                self._markers.append((producer.topic, marker))

    def _refuse_in(self, transaction: TransactionId, producer_id: int, entries: int = 1) -> tuple[WireCode, str] | None:
        """Why so many entries of a transaction are refused, or None."""
        producer = self.session.producers.get(producer_id)
        if producer is None:
            return None
        topic = producer.topic
        # Of those that are checked one by one some may be left out.
        ranges = entries if producer.careful else 1
        why = self._services.refused_in_transaction(transaction, self.session.payer_role or "", ranges)
        if why is None and (topic.transactions is None or not topic.transactions.takes(transaction)):
            why = "it is ending, or was not told of the topic"
        if why is None:
            return None
        return WireCode.NOT_ALLOWED_ERROR, f"transaction {transaction} may not send to {topic.text}: {why}"

    def _belong(self, transaction: TransactionId, replies: Iterable[Stretch | Duplicate | Refusal]) -> None:
        """Keep entries of a transaction back that were added."""
        for reply in replies:
            if type(reply) is Stretch:
                transactions = reply.producer.topic.transactions
                assert transactions is not None, "checked before they were added"
                last = reply.first_entry_id + len(reply.offsets) - 1
                messages = len(reply.offsets) if reply.message_counts is None else sum(reply.message_counts)
                nbytes = sum(reply.lengths)
                another = transactions.sent(transaction, reply.first_entry_id, last, messages=messages, nbytes=nbytes)
                self._services.sent_in_transaction(another, transaction)

    def _messages_in(self, producer_id: int) -> int:
        producer = self.session.producers.get(producer_id)
        return producer.messages_in if producer is not None else 0

    def _add(
        self,
        producer_id: int,
        sequence_ids: Sequence[int],
        highest: Sequence[int] | None,
        offsets: Sequence[int],
        lengths: Sequence[int],
        message_counts: Sequence[int] | None,
        *,
        chunk: bool = False,
    ) -> None:
        producer = self.session.producers.get(producer_id)
        if producer is None:
            self.session.sent_by_unknown_producer(producer_id)
        elif producer.careful or producer.topic.terminated or (highest and _misnumbered(sequence_ids, highest)):
            entries = Entries(sequence_ids, highest, offsets, lengths, message_counts)
            self._add_carefully(producer, entries, chunk=chunk)
        else:
            self._take(producer, sequence_ids, highest, offsets, lengths, message_counts)

    def _take(
        self,
        producer: Producer,
        sequence_ids: Sequence[int],
        highest: Sequence[int] | None,
        offsets: Sequence[int],
        lengths: Sequence[int],
        message_counts: Sequence[int] | None,
        highest_new: int = NEVER,
        known_as: str = "",
    ) -> None:
        topic = producer.topic
        count = len(sequence_ids)
        messages = count if message_counts is None else sum(message_counts)
        nbytes = sum(lengths)
        producer.messages_in += messages
        producer.bytes_in += nbytes
        topic.messages_in += messages
        topic.bytes_in += nbytes
        topic.entries_in += count
        for line in topic.publish_lines:
            line.accepted(messages, nbytes, count)
        first_entry_id = topic.next_entry_id
        topic.next_entry_id += count
        self.replies.append(
            Stretch(
                producer, first_entry_id, sequence_ids, highest, offsets, lengths, message_counts, highest_new, known_as
            )
        )

    # -- entries that are checked one by one --------------------------------------------------------------------------

    def _add_carefully(self, producer: Producer, entries: Entries, *, chunk: bool) -> None:
        """Check a producer's entries one by one, and add stretches of those that are valid and new."""
        if producer.replicator is not None:
            for row in range(len(entries.sequence_ids)):
                self._add_replicated(producer, entries, row, chunk=chunk)
            return
        deduplication = producer.topic.deduplication
        misnumbered = entries.highest is not None and _misnumbered(entries.sequence_ids, entries.highest)
        if not chunk and not misnumbered and checks.passes_all(producer, entries.lengths):
            if deduplication is None:
                self._take(producer, *entries)
                return
            highest_new = deduplication.all_new(producer.name, entries.sequence_ids, entries.highest)
            if highest_new != NEVER:
                self._take(producer, *entries, highest_new)
                return
        view = memoryview(self._data)
        taken = 0  # rows before this one are answered or added
        highest_new = NEVER
        for row, sequence_id in enumerate(entries.sequence_ids):
            offset, length = entries.offsets[row], entries.lengths[row]
            top = sequence_id if entries.highest is None else max(sequence_id, entries.highest[row])
            reason = checks.refusal(producer, view, offset, length, chunk=chunk)
            if reason is None and entries.highest is not None and 0 < entries.highest[row] < sequence_id:
                reason = MISNUMBERED
            verdict = Verdict.NEW
            if reason is None and deduplication is not None:
                # Only the last chunk of a chunked message counts: all have the same sequence id.
                counts = not chunk or checks.is_last_chunk(view[offset : offset + length])
                if counts:
                    verdict = deduplication.judge(producer.name, sequence_id, top)
                    highest_new = max(highest_new, top) if verdict is Verdict.NEW else highest_new
            if reason is None and verdict is Verdict.NEW:
                continue
            self._take_rows(producer, entries, taken, row, highest_new)
            taken, highest_new = row + 1, NEVER
            if verdict is Verdict.DUPLICATE:
                highest = None if entries.highest is None else entries.highest[row]
                self.replies.append(Duplicate(producer.producer_id, sequence_id, highest))
            else:
                self.replies.append(Refusal(producer.producer_id, top, *(reason or IN_FLIGHT)))
        self._take_rows(producer, entries, taken, len(entries.sequence_ids), highest_new)

    def _add_replicated(self, producer: Producer, entries: Entries, row: int, *, chunk: bool) -> None:
        """Check one entry of a replicator, and add it if it is valid and new.

        Budget: 20 µs per entry on one core, most of it to decode its metadata.
        """
        assert producer.replicator is not None, "asked by the caller"
        offset, length = entries.offsets[row], entries.lengths[row]
        entry, topic = memoryview(self._data)[offset : offset + length], producer.topic
        sequence_id = entries.sequence_ids[row]
        highest = None if entries.highest is None else entries.highest[row]
        reason = checks.refusal(producer, memoryview(self._data), offset, length, chunk=chunk)
        verdict, origin = Verdict.NEW, None
        try:
            origin = origin_of(producer.replicator, metadata.decode(entry))
            sequence_id, highest = origin.receipt or (sequence_id, highest)
        except ProtocolError as error:
            reason = reason or checks.Reason(WireCode.METADATA_ERROR, str(error))
        # Each chunk has a position of its own, and all have the same sequence id.
        counts = origin is not None and (origin.receipt is not None or not chunk or checks.is_last_chunk(entry))
        if reason is None and origin is not None and topic.deduplication is not None and counts:
            self._services.name_comes(topic, origin.producer)
            verdict = topic.deduplication.judge(origin.producer, origin.first, origin.last)
        if verdict is Verdict.DUPLICATE:
            self.replies.append(Duplicate(producer.producer_id, sequence_id, highest))
        elif reason is not None or verdict is Verdict.IN_FLIGHT or origin is None:
            self.replies.append(Refusal(producer.producer_id, sequence_id, *(reason or IN_FLIGHT)))
        else:
            self._take(
                producer,
                (sequence_id,),
                None if highest is None else (highest,),
                (offset,),
                (length,),
                None if entries.message_counts is None else (entries.message_counts[row],),
                origin.last if counts and topic.deduplication is not None else NEVER,
                origin.producer,
            )

    def _take_rows(self, producer: Producer, entries: Entries, start: int, stop: int, highest_new: int) -> None:
        if start < stop:
            rows = slice(start, stop)
            self._take(
                producer,
                entries.sequence_ids[rows],
                None if entries.highest is None else entries.highest[rows],
                entries.offsets[rows],
                entries.lengths[rows],
                None if entries.message_counts is None else entries.message_counts[rows],
                highest_new,
            )

    # -- to the log and back ------------------------------------------------------------------------------------------

    def _append(self, data: Buffer, *, packed: bool) -> None:
        stored: list[Stretch] = []
        groups: list[tuple[int, int, int]] = []
        for reply in self.replies:
            if type(reply) is Stretch and reply.producer.topic.persistent:
                stored.append(reply)
                groups.append((reply.producer.topic.ledger_id, reply.first_entry_id, len(reply.offsets)))
        if len(stored) == 1:
            offsets, lengths, counts = stored[0].offsets, stored[0].lengths, stored[0].message_counts
        else:
            offsets = list(chain.from_iterable([s.offsets for s in stored]))
            lengths = list(chain.from_iterable([s.lengths for s in stored]))
            counts = None
            if any(s.message_counts is not None for s in stored):
                counts = [c for s in stored for c in (s.message_counts or (1,) * len(s.offsets))]
        for reply in self.replies:
            if type(reply) is Stretch and not reply.producer.topic.persistent:
                reply.producer.topic.pass_through(_batch(reply, data))
        run = AppendRun(
            groups=groups,
            offsets=offsets,
            lengths=lengths,
            message_counts=counts,
            data=data if groups else b"",
            done=self.done,
            owner=self.session.connection.id,
            packed=packed and sum(lengths) == len(data),
        )
        # A run without entries goes through the log too, so that its answers and its lease keep their order.
        self._services.log.append(run)

    def done(self, run: AppendRun, error: PenstockError | None) -> None:
        """The run is durable or has failed: notify the topics, answer the client, release the memory."""
        if error is None:
            self._tell_topics(run.data)
            for topic, marker in self._markers:
                self._services.marked(topic, marker, self.session)
            self._send_receipts()
        else:
            self._send_errors(error)
        if self.lease is not None:
            self._services.release(self.lease)

    def _tell_topics(self, data: Buffer) -> None:
        cached: list[tuple[Tail, Batch]] = []
        took_ns = self._services.turn.began_ns - self._received_ns
        bucket = bisect_left(BOUNDS_NS, took_ns)
        for reply in self.replies:
            if type(reply) is Stretch and reply.producer.topic.persistent:
                topic = reply.producer.topic
                count = len(reply.offsets)
                times = topic.publish_times
                times.counts[bucket] += count
                times.sum_ns += took_ns * count
                if topic.delayed is not None:
                    topic.delayed.published(reply.first_entry_id, data, reply.offsets, reply.lengths)
                topic.appended(reply.first_entry_id + count - 1)
                if reply.highest_new != NEVER:
                    self._services.recorded(topic, reply.known_as or reply.producer.name, reply.highest_new)
                if topic.wants_tail():
                    batch = _batch(reply, data)
                    batch.durable_ns = self._services.turn.began_ns
                    cached.append((topic.tail, batch))
        if cached:
            rows = sum(len(batch.offsets) for _, batch in cached)
            self._services.tail_cache.add(cached, kept_bytes(data) + COLUMNS_BYTES * rows)

    def _send_receipts(self) -> None:
        connection = self.session.connection
        if not connection.is_open:
            return
        out: list[bytes] = []
        for reply in self.replies:
            if type(reply) is Stretch:
                producer = reply.producer
                encode_receipts(
                    out,
                    producer.producer_id,
                    producer.topic.ledger_id,
                    reply.first_entry_id,
                    reply.sequence_ids,
                    reply.highest,
                )
            else:
                out.append(_answer(reply))
        if out:
            connection.write(out, sum(map(len, out)))

    def _send_errors(self, error: PenstockError) -> None:
        out: list[bytes] = []
        for reply in self.replies:
            if type(reply) is Stretch:
                out.extend(
                    codec.send_error(reply.producer.producer_id, sequence_id, error.wire_code, str(error))
                    for sequence_id in map(max, reply.sequence_ids, reply.highest or reply.sequence_ids)
                )
            else:
                out.append(_answer(reply))
        if out:
            self.session.connection.write(out, sum(map(len, out)))


def _answer(reply: Stretch | Duplicate | Refusal) -> bytes:
    """The frame that answers a SEND of which nothing was stored."""
    if type(reply) is Duplicate:
        return codec.duplicate_receipt(reply.producer_id, reply.sequence_id, reply.highest)
    assert type(reply) is Refusal
    return codec.send_error(reply.producer_id, reply.sequence_id, reply.code, reply.message)


def _batch(stretch: Stretch, data: Buffer) -> Batch:
    first = stretch.first_entry_id
    ids = range(first, first + len(stretch.offsets))
    return Batch(stretch.producer.topic.ledger_id, ids, data, stretch.offsets, stretch.lengths, stretch.message_counts)


def _misnumbered(sequence_ids: Sequence[int], highest: Sequence[int]) -> bool:
    """Whether a batch's highest sequence id is below its first; 0 means that it is not set."""
    return any(0 < last < first for first, last in zip(sequence_ids, highest, strict=True))


def _seal_rows(run: PublishRun) -> bytes:
    """Add checksums to entries of old clients that send none.

    All entries follow one another then, so that they take no more memory than the frames did.
    """
    view, unsealed = memoryview(run.data), frozenset(run.unsealed)
    parts: list[Buffer] = []
    end = 0
    for row, (offset, length) in enumerate(zip(run.offsets, run.lengths, strict=True)):
        body = view[offset : offset + length]
        run.offsets[row] = end
        if row in unsealed:
            parts.append(seal_of(body))
            run.lengths[row] += SEAL_BYTES
        parts.append(body)
        end += run.lengths[row]
    return b"".join(parts)


def _name_transactions(run: PublishRun, data: Buffer) -> Buffer:
    """Name the transaction in the metadata of entries whose client has only named it in the SEND.

    The log has nothing else that says, after a crash, which entries belong to an open transaction.
    """
    view = memoryview(data)
    replaced: dict[int, bytes] = {}
    corrupt = frozenset(run.corrupt)
    for first, stop, transaction in run.transactions:
        rows = [row for row in range(first, stop) if row not in corrupt] if corrupt else range(first, stop)
        offsets, lengths = [run.offsets[row] for row in rows], [run.lengths[row] for row in rows]
        for number, named in metadata.naming_transaction(view, offsets, lengths, transaction):
            if named is not None:  # Otherwise it is no entry of a client that can be read, ever.
                replaced[rows[number]] = named
    return _replaced(run, data, replaced) if replaced else data


def _replaced(run: PublishRun, data: Buffer, entries: Mapping[int, bytes]) -> bytes:
    """The run's bytes with other entries in these rows, and its columns changed accordingly."""
    view = memoryview(data)
    parts: list[Buffer] = []
    end = 0
    for row, (offset, length) in enumerate(zip(run.offsets, run.lengths, strict=True)):
        part = entries.get(row, view[offset : offset + length])
        run.offsets[row], run.lengths[row] = end, len(part)
        parts.append(part)
        end += len(part)
    return b"".join(parts)
