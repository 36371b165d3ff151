# SPDX-License-Identifier: Apache-2.0
"""One subscription: a cursor on a topic and the consumers that read through it.

Why one class for all types: what differs (who gets the next entries, what is counted, what comes back) is the
`Delivery` of the type; what is common (reading, sending, acknowledging, seeking) shares one reading position, and each
part moves it.
Where: the topic wakes it when entries are durable, sessions when permits, acknowledgements or consumers come and go;
the admin port moves it.

Theory of operation
    `wake` asks for one dispatch in this turn of the loop, however often it is called. A dispatch takes what waits to be
    delivered again first, else entries from `read_entry_id` on: out of the tail cache when they are there, else by one
    sequential read of the log in a reader thread. What was read is handed to consumers at once, as far as permits and
    unsent bytes allow; the rest is forgotten and read again later, so a stuck consumer pins nothing.
    Whatever moves the reading position backwards (seek, rewind, a new active consumer) bumps `_generation`, and a read
    that was under way then is dropped when it comes back.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions import again
from penstock.broker.subscriptions.delivery import SingleActive
from penstock.broker.subscriptions.delivery_shared import Shared
from penstock.broker.subscriptions.dispatch import HEADER_BYTES, alike_before, fitting
from penstock.broker.subscriptions.key_shared_delivery import KeyShared
from penstock.broker.subscriptions.parcel import Delivered
from penstock.core.errors import ConsumerBusy, PenstockError, ServiceNotReady, TooManyRequests
from penstock.core.units import MIB
from penstock.storage.ack_sets import ack_set_bytes
from penstock.storage.results import Batch
from penstock.wire import codec
from penstock.wire.runs import encode_messages

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from penstock.broker.publishing.rates import DispatchGate
    from penstock.broker.subscriptions.delivery import Delivery
    from penstock.broker.topics.members import Consumer
    from penstock.broker.topics.topic import Topic
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.governance.outbound import Reading
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import ReadResult
    from penstock.wire.events import AckRun

log = logging.getLogger(__name__)

EXCLUSIVE: Final = codec.CommandSubscribe.Exclusive
SHARED: Final = codec.CommandSubscribe.Shared
FAILOVER: Final = codec.CommandSubscribe.Failover
# What a consumer may have asked for at most; more counts for nothing, as no client can have so many messages.
PERMITS_MAX: Final = 2**31 - 1
# How long a subscription without a cursor on disk outlives its last consumer after a seek: the client reconnects.
RECONNECT_S: Final = 60.0
KEY_SHARED: Final = codec.CommandSubscribe.Key_Shared

# As Pulsar spells them; `Key_Shared` is the one with an underscore.
TYPE_NAMES: Final[Mapping[int, str]] = {
    EXCLUSIVE: "Exclusive",
    SHARED: "Shared",
    FAILOVER: "Failover",
    KEY_SHARED: "Key_Shared",
}

# One dispatch hands out at most this many pieces before others get the loop.
PIECES_PER_TURN_MAX: Final = 16
# One read of the log takes at most this much, and no more than the consumers it is for have room for.
READ_BYTES_MAX: Final = 2 * MIB
# Acknowledged and delayed entries may take turns, and each change of turns takes a microsecond or two.
SKIPS_PER_TURN_MAX: Final = 200
# A word of an ack set on its way out: a tag, and a number of up to ten bytes.
WORD_OUT_BYTES_MAX: Final = 11
# Ack sets of batches leave one part in so many of the `dispatch` row to what is acknowledged as a whole, and owed.
RESERVED_FOR_WHOLE: Final = 4
# So many entries are read at once whose delivery times have to be looked at, 5 to 20 µs each: in between the loop is
# for others, and what is due goes first.
LOOKED_ENTRIES_MAX: Final = 1_000
# A read of the log that failed is tried again after this long, and after twice as long each time, up to a bound, for as
# long as a consumer waits.
READ_RETRY_S: Final = 0.25
READ_RETRY_MAX_S: Final = 5.0


class Subscription:
    """A named reading position on a topic, and its consumers. Times are 0 for never."""

    __slots__ = (
        "_charged_bytes",
        "_entry_messages",
        "_failed_reads",
        "_generation",
        "_large_bytes",
        "_reading",
        "_retry",
        "_scheduled",
        "acks",
        "bytes_out",
        "consumers",
        "cursor",
        "delivery",
        "dropped",
        "durable",
        "expired",
        "fenced",
        "gate",
        "idle_since_ns",
        "kind",
        "last_acked_ms",
        "last_consumed_ms",
        "last_expired_ms",
        "last_flow_ms",
        "messages_out",
        "messages_redelivered",
        "name",
        "read_entry_id",
        "replicated",
        "topic",
        "unacked",
        "view",
    )

    def __init__(self, topic: Topic, name: str, *, cursor: Cursor, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.kind: int = EXCLUSIVE
        self.consumers: list[Consumer] = []
        self.delivery: Delivery | None = None  # None while nobody is attached
        self.gate: DispatchGate | None = None  # None while no rate limits what is delivered
        # Of the topic's delayed messages; None while nobody shares this subscription.
        self.view: DelayedDeliveryView | None = None
        self.read_entry_id = cursor.mark_delete + 1
        self.fenced = False
        self.replicated = False  # its state was asked to be replicated; there is nowhere to replicate it to
        self.unacked = 0  # messages that consumers were sent and owe, in Shared and Key_Shared subscriptions
        self.dropped = 0  # non-persistent entries that nobody had permits for
        self.expired = 0  # entries acknowledged because they were too old
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_redelivered = 0
        self.acks = 0  # entries, in whole
        self.idle_since_ns = topic.broker.clock.monotonic_ns()  # while it has no consumers
        self.last_flow_ms = 0
        self.last_consumed_ms = 0
        self.last_acked_ms = 0
        self.last_expired_ms = 0
        self._charged_bytes = 0  # of the cursor, in the row of the memory budget
        self._entry_messages = 1  # in an entry that was delivered last, about
        self._generation = 0
        self._large_bytes = 0  # of an entry that was too large for one read; such ones mostly follow one another
        self._reading = False  # ... or it waits before it reads again
        self._failed_reads = 0  # in a row
        self._retry: asyncio.TimerHandle | None = None
        self._scheduled = False

    @property
    def blocked(self) -> bool:
        """Whether nothing is delivered until consumers acknowledge some of what they owe."""
        return isinstance(self.delivery, Shared) and self.delivery.blocked

    @property
    def backlog(self) -> int:
        """Entries not yet acknowledged; a non-persistent topic has none."""
        return self.cursor.backlog(self.topic.last_entry_id) if self.topic.persistent else 0

    @property
    def properties(self) -> Mapping[str, str]:
        """What its users attached to it, as it is stored."""
        record = self.topic.broker.catalog.subscription(self.topic.text, self.name) if self.durable else None
        return record.properties if record is not None else {}

    @property
    def delayed(self) -> int:
        """Entries held until they are due, those included that are on disk only, as far as is known of them."""
        view, index = self.view, self.topic.delayed
        if view is None or index is None:
            return 0
        held = view.number_of_delayed_messages
        left = index.manager.spilled_after(self.cursor.mark_delete)
        return max(held, min(held + left, self.backlog)) if left else held

    @property
    def active_consumer(self) -> Consumer | None:
        """Whom an Exclusive or Failover subscription delivers to."""
        return self.delivery.active if isinstance(self.delivery, SingleActive) else None

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: int) -> None:
        """Attach a consumer.

        Raises:
            ConsumerBusy: consumers of another type are attached, or the one place is taken.
            ConsumerAssignFailed: a Key_Shared consumer cannot have the ranges that it asks for.
            ServiceNotReady: the subscription is being reset.
        """
        if self.fenced:
            raise ServiceNotReady(f"subscription {self.name!r} of {self.topic.text} is being reset; try again")
        delivery = self.delivery
        if delivery is None:
            delivery = self._delivery_of(kind, consumer)
        elif kind != self.kind:
            raise ConsumerBusy(
                f"Subscription is of different type. Active subscription type of '{TYPE_NAMES[self.kind]}' is "
                f"different than the connecting consumer's type '{TYPE_NAMES[kind]}'."
            )
        delivery.check(consumer)
        delivery.join(consumer)
        if self.delivery is None:
            self.delivery, self.kind = delivery, kind
            self._delay()
            self.rewind()
        consumer.read_position_when_joining = self.read_entry_id
        self.consumers.append(consumer)

    def in_the_way(self, consumer: Consumer, kind: int) -> list[Consumer]:
        """Those for whose sake `add` would refuse this consumer; if they are dead, it would not."""
        if self.delivery is None or kind != self.kind:
            return list(self.consumers)
        return self.delivery.in_the_way(consumer)

    def _delivery_of(self, kind: int, first: Consumer) -> Delivery:
        if kind == SHARED:
            return Shared(self)
        if kind == KEY_SHARED:
            return KeyShared(self, first.key_sharing)
        return SingleActive(self, failover=kind == FAILOVER)

    def _delay(self) -> None:
        """Get a view of the topic's delayed messages where consumers share, and be without one elsewhere."""
        if isinstance(self.delivery, Shared) and self.topic.persistent:
            self.view = self.topic.broker.delays.index_of(self.topic).view_of(self)
        else:
            self.delay_nothing()

    def delay_nothing(self) -> None:
        """Its delayed messages wait for nobody: it ends, or its one consumer gets everything at once."""
        if self.view is not None and self.topic.delayed is not None:
            self.topic.delayed.leave(self)
        self.view = None

    def attached(self, consumer: Consumer) -> None:
        """This consumer was told that it is subscribed: it may be sent something."""
        if self.delivery is not None and consumer in self.consumers:
            self.delivery.attached(consumer)
            self.topic_terminated()

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; what it had not acknowledged goes to others."""
        if consumer not in self.consumers:
            return
        assert self.delivery is not None
        self.consumers.remove(consumer)
        self.delivery.leave(consumer)
        if not self.consumers:
            self.delivery.close()
            self.delivery = None
            self.unacked = 0
            self.idle_since_ns = self.topic.broker.clock.monotonic_ns()
            self.rewind()
            self.topic.end_if_idle(self)
        self.wake()

    def rewind(self) -> None:
        """Read again from the first entry that is not acknowledged."""
        self._generation += 1
        if self._retry is not None:
            self._retry.cancel()
            self._try_again()
        self.read_entry_id = self.cursor.mark_delete + 1
        if self.view is not None:
            self.view.rewind()

    def limits_changed(self) -> None:
        """Policies changed: whoever was stopped by one may go on."""
        if self.delivery is not None:
            self.delivery.limits_changed()
        self.wake()

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Dispatch once in this turn of the loop."""
        if not self._scheduled and self.consumers:
            self._scheduled = True
            self.topic.broker.loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        if not self.topic.persistent:
            return
        for _ in range(PIECES_PER_TURN_MAX):
            if self._reading or self.fenced or not self._send_next():
                return
        self.wake()

    def _send_next(self) -> bool:
        """Deliver one piece; False when there is nothing to send, nobody to send it to, or a read was started."""
        delivery = self.delivery
        if delivery is None:
            return False
        ready = delivery.ready()
        if not ready or (self.gate is not None and not self.gate.is_open()):
            return False
        delivery.take_due(ready)
        if delivery.waits():
            waiting = delivery.again(ready)
            if waiting:
                return self._send_again(delivery, waiting, ready)
        if delivery.full:
            return False
        entry_id = self._next_wanted()
        if entry_id is None:
            return True
        if entry_id > self.topic.last_entry_id:
            return False
        found = self.topic.tail.find(entry_id) if self._compacted(entry_id, ready) is None else None
        if found is None:
            self._start_read(entry_id, ready)
            return False
        batch, row = found
        # Who has no room for the next entry is not ready any more; then others may be.
        reached = self._deliver(delivery, batch, row, self._stop_row(batch, row), ready)
        return reached > row or delivery.ready() != ready

    def _next_wanted(self) -> int | None:
        """The next entry that is neither acknowledged nor held; None when finding it takes another turn."""
        end = self.topic.last_entry_id + 1
        for _ in range(SKIPS_PER_TURN_MAX):
            entry_id = self.read_entry_id = self.cursor.next_unacknowledged(self.read_entry_id)
            if self.view is None or entry_id >= end or not self.topic.delays:
                return entry_id
            self.read_entry_id = self.view.next_wanted(entry_id, end)
            if self.read_entry_id == entry_id:
                return entry_id
        return None

    def _deliver(self, delivery: Delivery, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Deliver new entries of a batch, none of them acknowledged; returns the row after the last dealt with."""
        if self.gate is not None:
            stop = self.gate.stop_row(batch, row, stop)
        row = delivery.deliver(batch, row, stop, ready)
        if row and batch.entry_ids[row - 1] >= self.read_entry_id:
            self.read_entry_id = batch.entry_ids[row - 1] + 1
        return row

    def _stop_row(self, batch: Batch, row: int) -> int:
        """The row after the last that may be delivered together with this one: the next acknowledged entry ends it."""
        rows = len(batch.offsets)
        if not self.cursor.acknowledged_above:
            return rows
        ids = batch.entry_ids
        for first, last in self.cursor.unacknowledged_ranges(ids[row], ids[-1]):
            return bisect_right(ids, last, row + 1, rows) if first == ids[row] else rows
        return rows

    def counts(self, batch: Batch, row: int, stop: int) -> Sequence[int] | None:
        """Messages in each entry of a batch; for these rows without the members that are acknowledged already."""
        counts = batch.message_counts
        if counts is None or not self.cursor.has_ack_sets or row >= stop:
            return counts
        ids = batch.entry_ids
        partly = self.cursor.partly_acknowledged(ids[row], ids[stop - 1])
        if not partly:
            return counts
        counts = list(counts)
        for entry_id, wanted in partly.items():
            place = bisect_left(ids, entry_id)
            if ids[place] == entry_id:  # What was gathered leaves out some.
                counts[place] = max(1, min(counts[place], wanted))
        return counts

    def _lengths_out(self, batch: Batch, rows: Sequence[int]) -> Sequence[int]:
        """How many bytes each entry is on its way out; for these rows with the ack set that goes with it."""
        ids = batch.entry_ids
        if not self.cursor.has_ack_sets:
            return batch.lengths
        lengths = list(batch.lengths)
        for entry_id in self.cursor.partly_acknowledged(ids[rows[0]], ids[rows[-1]]):
            place = bisect_left(ids, entry_id)
            if ids[place] == entry_id:
                lengths[place] += WORD_OUT_BYTES_MAX * self.cursor.ack_set_words(entry_id)
        return lengths

    def send(self, consumer: Consumer, batch: Batch, rows: Sequence[int], messages: int) -> int:
        """Send these rows of a batch, ascending, that together hold so many messages.

        Returns how many of them there was room for on the way to the client; the others were not sent.
        """
        connection = consumer.session.connection
        lengths_out = self._lengths_out(batch, rows)
        fit = fitting(lengths_out, rows, connection.room_bytes)
        if not fit:
            connection.has_no_room(lengths_out[rows[0]] + HEADER_BYTES, consumer)
            return 0
        counts = self.counts(batch, rows[0], rows[-1] + 1)
        behind = rows[fit:]
        alike = alike_before(batch.entry_ids, rows, fit)
        if alike < len(rows):
            rows = rows[:alike]
            messages = alike if counts is None else sum(counts[row] for row in rows)
        if isinstance(rows, range):
            piece = slice(rows.start, rows.stop)
            ids, offsets, lengths = batch.entry_ids[piece], batch.offsets[piece], batch.lengths[piece]
            counts = counts and counts[piece]
        else:
            ids = [batch.entry_ids[row] for row in rows]
            offsets = [batch.offsets[row] for row in rows]
            lengths = [batch.lengths[row] for row in rows]
            counts = counts and [counts[row] for row in rows]
        delivery, topic = self.delivery, self.topic
        assert delivery is not None
        ack_sets = None
        if self.cursor.has_ack_sets and topic.persistent:
            partly = self.cursor.partly_acknowledged(ids[0], ids[-1])
            if partly:
                ack_sets = [self.cursor.ack_set(entry_id) if entry_id in partly else None for entry_id in ids]
        out: list[bytes | bytearray | memoryview] = []
        nbytes = encode_messages(
            out,
            consumer.consumer_id,
            topic.ledger_id,
            topic.partition,
            ids,
            batch.data,
            offsets,
            lengths,
            delivery.redelivery_counts(ids),
            consumer.epoch,
            ack_sets,
        )
        # What is sent with an ack set has a header of its own length; it is not put back, and rare.
        connection.deliver(out, nbytes, Delivered(consumer, ids, lengths, counts, nbytes) if ack_sets is None else None)
        if behind:
            connection.has_no_room(lengths_out[behind[0]] + HEADER_BYTES, consumer)
        now_ms = topic.broker.clock.wall_ms()
        self._entry_messages = messages // len(ids) or 1
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += len(ids)
        consumer.bytes_out += nbytes
        consumer.last_consumed_ms = self.last_consumed_ms = now_ms
        self.messages_out += messages
        self.bytes_out += nbytes
        if self.gate is not None:
            self.gate.delivered(len(ids), messages, nbytes)
        if delivery.individual and topic.persistent:
            delivery.sent(consumer, ids, counts, messages)
        return len(ids)

    def take_back(self, consumer: Consumer, entry_ids: list[int], counts: Sequence[int] | None) -> None:
        """These entries were put back: they had waited for a client that does not read."""
        if consumer not in self.consumers:
            return
        consumer.permits += len(entry_ids) if counts is None else sum(counts)
        if self.topic.persistent:
            assert self.delivery is not None
            self.delivery.take_back(consumer, entry_ids)
            self.wake()
        else:
            self.dropped += len(entry_ids)

    def step_back(self, entry_id: int) -> None:
        """Read again from this entry on."""
        if entry_id < self.read_entry_id:
            self._generation += 1
            self.read_entry_id = entry_id

    # -- reading from the log -----------------------------------------------------------------------------------------

    def _start_read(self, entry_id: int, ready: Sequence[Consumer]) -> None:
        # Permits count messages. What does not fit them would be read for nothing, and again with the next.
        wanted = -(-sum(consumer.permits for consumer in ready) // self._entry_messages)
        if self.gate is not None:
            wanted = self.gate.entries_at_most(wanted)
        index = self.topic.delayed
        if self.view is not None and index is not None and index.manager.unknown(entry_id, entry_id + wanted):
            wanted = min(wanted, LOOKED_ENTRIES_MAX)
        broker, ledger_id = self.topic.broker, self.topic.ledger_id
        reading = self._take_room(ready, max(READ_BYTES_MAX, self._large_bytes))
        bounds = {"bytes_max": reading.nbytes, "entries_max": wanted, "first_bytes_max": reading.nbytes}
        compacted = self._compacted(entry_id, ready)
        if compacted is None:
            future = broker.reads.read(ledger_id, entry_id, **bounds)
        else:
            future = broker.reads.in_thread(partial(compacted.read, broker.log, ledger_id, entry_id, **bounds))
        self._await_read(future, reading, partial(self._on_read_on, entry_id))

    def _take_room(self, ready: Sequence[Consumer], bytes_max: int) -> Reading:
        """Take room for what is read for these consumers, until it is handed out."""
        connections = [consumer.session.connection for consumer in ready]
        return self.topic.broker.connections.outbound.start_read(connections, bytes_max)

    def _await_read(
        self, future: asyncio.Future[ReadResult], reading: Reading, go_on: Callable[[Delivery, ReadResult], None]
    ) -> None:
        self._reading = True
        generation = self._generation
        future.add_done_callback(lambda done: self._on_read(done, reading, generation, go_on))

    def _compacted(self, entry_id: int, ready: Sequence[Consumer]) -> CompactedLedger | None:
        """Where this entry is read from, when not from the topic itself; whoever wants that is the only one ready."""
        compacted = self.topic.compacted
        wanted = compacted is not None and entry_id <= compacted.horizon and ready[0].reads_compacted
        return compacted if wanted else None

    def source_changed(self) -> None:
        """The topic was compacted: what is being read from where it was before is read again."""
        self._generation += 1
        self.wake()

    def _on_read(
        self,
        done: asyncio.Future[ReadResult],
        reading: Reading,
        generation: int,
        go_on: Callable[[Delivery, ReadResult], None],
    ) -> None:
        connections = self.topic.broker.connections
        # What was taken for the read is there for what it brought, in this turn of the loop.
        connections.outbound.end_read(reading)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self._put_off(error)
            connections.outbound_freed()
            return
        self._reading = False
        if done.cancelled():
            return
        self._failed_reads = 0
        if generation == self._generation and not self.fenced and self.delivery is not None:
            result = done.result()
            self._large_bytes = result.too_large_bytes or self._large_bytes * _begins_large(result)
            if result.too_large_bytes:
                for consumer in self.delivery.ready():
                    consumer.session.connection.has_no_room(result.too_large_bytes + HEADER_BYTES, consumer)
            go_on(self.delivery, result)
        self.wake()
        connections.outbound_freed()

    def _put_off(self, error: BaseException) -> None:
        """A read failed: what it was to bring is not lost, but read later, and nothing that comes after it before."""
        if not self._failed_reads:  # Said once: the disk may be ill for hours.
            log.error("reading %s for subscription %s failed, trying again: %s", self.topic.text, self.name, error)
        wait_s = min(READ_RETRY_S * 2 ** min(self._failed_reads, 16), READ_RETRY_MAX_S)
        self._failed_reads += 1
        self._retry = self.topic.broker.loop.call_later(wait_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._reading = False
        self.wake()

    def _on_read_on(self, entry_id: int, delivery: Delivery, result: ReadResult) -> None:
        expected = entry_id
        if result.members is not None and self._lacks_compacted():
            expected = self.topic.last_entry_id + 1  # What lies between may be missing: it stays in the backlog.
        for compacted, words in (result.members or {}).items():
            self.cursor.acknowledge_batch(compacted, words)
        for batch in result.batches:
            self._skip_missing(expected, batch.entry_ids[0])
            if not self._deliver_all(delivery, batch):
                return
            expected = max(expected, batch.entry_ids[-1] + 1)
        self._skip_missing(expected, result.next_entry_id)
        self.read_entry_id = max(self.read_entry_id, result.next_entry_id)

    def _deliver_all(self, delivery: Delivery, batch: Batch) -> bool:
        """Deliver what of this batch is still wanted; False when the consumers could not take all of it."""
        batch = self._without_acknowledged(batch)
        row, rows = 0, len(batch.offsets)
        while row < rows:
            ready = delivery.ready()
            if not ready or delivery.full or (self.gate is not None and not self.gate.is_open()):
                return False
            reached = self._deliver(delivery, batch, row, rows, ready)
            if reached == row and delivery.ready() == ready:
                return False
            row = reached
        return True

    def _without_acknowledged(self, batch: Batch) -> Batch:
        """The entries of a batch that are not acknowledged: they go out together, whatever lies between them."""
        cursor, ids = self.cursor, batch.entry_ids
        if cursor.none_acknowledged(ids[0], ids[-1]):
            return batch
        # Budget: 0.4 µs an entry. It spares the 20 µs that each piece would cost by itself.
        rows = [row for row, entry_id in enumerate(ids) if not cursor.is_acknowledged(entry_id)]
        counts = batch.message_counts
        return Batch(
            batch.ledger_id,
            [ids[row] for row in rows],
            batch.data,
            [batch.offsets[row] for row in rows],
            [batch.lengths[row] for row in rows],
            counts and [counts[row] for row in rows],
        )

    def _skip_missing(self, first: int, stop: int) -> None:
        """Entries that the log does not have (reclaimed, or lost to damage it has named) count as acknowledged.

        Not so those whose segment is missing: a later start may find it.
        """
        stop = min(stop, self.topic.last_entry_id + 1)
        if first < stop:
            for start, end in self.topic.broker.log.missing.present(self.topic.ledger_id, first, stop):
                self.cursor.acknowledge_many(range(start, end))
                self._tell_view(range(start, end))
            self.read_entry_id = max(self.read_entry_id, stop)
            self.topic.broker.cursors.moved(self)

    def _lacks_compacted(self) -> bool:
        """Whether something of the compacted topic is missing; nobody can say which entries these are."""
        compacted = self.topic.compacted
        return compacted is not None and self.topic.broker.log.missing.any_of(compacted.ledger_id)

    # -- again --------------------------------------------------------------------------------------------------------

    def _send_again(self, delivery: Delivery, entry_ids: list[int], ready: Sequence[Consumer]) -> bool:
        if self.gate is not None:
            entry_ids = entry_ids[: self.gate.entries_at_most(len(entry_ids))]
        reading = self._take_room(ready, again.BYTES_MAX)
        batch = self.topic.tail.gather(entry_ids, reading.nbytes)
        if batch is not None:
            self.topic.broker.connections.outbound.end_read(reading)
            stop = len(batch.offsets)
            delivery.deliver_again(batch, 0, stop if self.gate is None else self.gate.stop_row(batch, 0, stop))
            return True
        self._await_read(
            self.topic.again.read(entry_ids, reading.nbytes), reading, partial(self._on_read_again, entry_ids)
        )
        return False

    def _on_read_again(self, entry_ids: list[int], delivery: Delivery, result: ReadResult) -> None:
        """Deliver what of these entries still waits; what the log no longer has is acknowledged, and waits for nothing.

        The read may have been somebody else's, and have brought other entries too.
        """
        found = {entry_id for batch in result.batches for entry_id in batch.entry_ids}
        missing = [one for one in entry_ids if one < result.next_entry_id and one not in found]
        if missing:
            lost = self.topic.broker.log.missing.within(self.topic.ledger_id, missing[0], missing[-1] + 1)
            gone = [one for one in missing if not any(first <= one < end for first, end in lost)]
            self.cursor.acknowledge_many(gone)
            self._tell_view(gone)
            delivery.missing(missing)
            self.topic.broker.cursors.moved(self)
        for batch in result.batches:
            stop = len(batch.offsets)
            delivery.deliver_again(batch, 0, stop if self.gate is None else self.gate.stop_row(batch, 0, stop))

    def delivers_by(self, view: DelayedDeliveryView) -> bool:
        """Whether it has consumers, and this view still."""
        return self.view is view and self.delivery is not None

    def replay_passed(self, entry_ids: Sequence[int]) -> None:
        """Deliver those of these entries that are due, were passed, and were neither acknowledged nor sent since."""
        owed = {one for consumer in self.consumers for one in entry_ids if one in consumer.pending}
        if isinstance(self.delivery, Shared):
            self.delivery.wait_due(
                [
                    one
                    for one in entry_ids
                    if one < self.read_entry_id and one not in owed and not self.cursor.is_acknowledged(one)
                ]
            )
            self.wake()

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Deliver again: these entries, or with none named everything that is not acknowledged."""
        if self.delivery is not None:
            self.delivery.redeliver(consumer, entry_ids, epoch)
            self.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer asked for this many more messages."""
        consumer.permits = min(consumer.permits + permits, PERMITS_MAX)
        consumer.last_flow_ms = self.last_flow_ms = self.topic.broker.clock.wall_ms()
        self.wake()

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> PenstockError | None:
        """Apply one ACK; ids that this topic never gave out are ignored.

        Returns why some of it was not applied: messages of a batch that nothing remembers are acknowledged.
        """
        topic, delivery = self.topic, self.delivery
        if delivery is None:
            return None
        refusal = None
        last, ledger_id = topic.last_entry_id, topic.ledger_id
        entry_ids = [
            entry_id
            for row, entry_id in enumerate(ack.entry_ids)
            if entry_id <= last and ack.ledger_ids[row] == ledger_id and row not in ack.ack_sets
        ]
        members = [
            (ack.entry_ids[row], words)
            for row, words in ack.ack_sets.items()
            if ack.ledger_ids[row] == ledger_id and ack.entry_ids[row] <= last
        ]
        if members and not topic.broker.limits.batch_index_acks:
            # A batch comes again as a whole, and everything before it is acknowledged all the same.
            entry_ids += [entry_id - 1 for entry_id, _ in members] if ack.cumulative else []
            members = []
        if not ack.cumulative:
            newly = self.cursor.acknowledge_many(entry_ids)
            if members:
                whole, refusal = self._acknowledge_members(delivery, consumer, members)
                entry_ids += whole
            self._tell_view(entry_ids)
            delivery.acknowledged(consumer, entry_ids, newly)
            self.acks += newly
        elif not delivery.individual:
            newly = sum(self._acknowledge_present(entry_id) for entry_id in entry_ids)
            for entry_id, words in members:
                newly += self._acknowledge_present(entry_id - 1)
                try:
                    newly += self._acknowledge_batch(entry_id, words)
                except PenstockError as error:
                    refusal = error
            consumer.acks += newly
            self.acks += newly
        consumer.last_acked_ms = self.last_acked_ms = topic.broker.clock.wall_ms()
        topic.broker.cursors.moved(self)
        if topic.terminated:
            self.topic_terminated()
        return refusal

    def _tell_view(self, entry_ids: Sequence[int]) -> None:
        """These were acknowledged: they are not delayed any more, if they were."""
        if self.view is not None:
            self.view.acknowledged(entry_ids)
            self.view.update_mark_delete_position(self.cursor.mark_delete)

    def _acknowledge_members(
        self, delivery: Delivery, consumer: Consumer, members: list[tuple[int, list[int]]]
    ) -> tuple[list[int], PenstockError | None]:
        """Acknowledge messages of batches; returns the entries of which none is left, and why others were refused."""
        whole, refusal = [], None
        for entry_id, words in members:
            try:
                if self._acknowledge_batch(entry_id, words):
                    whole.append(entry_id)
                else:
                    delivery.members_acknowledged(consumer, entry_id)
            except PenstockError as error:
                refusal = error
        return whole, refusal

    def _acknowledge_batch(self, entry_id: int, words: Sequence[int]) -> bool:
        """Acknowledge messages of one batch. True if that was the last of them; raises TooManyRequests."""
        return self.cursor.acknowledge_batch(entry_id, words, partial(self._take_for_set, entry_id))

    def _take_for_set(self, entry_id: int, nbytes: int) -> None:
        """Charge what an ack set needs, before it is kept.

        Raises:
            TooManyRequests: it does not fit. A part of the row is left to whole entries, which are never refused.
        """
        row = self.topic.broker.dispatch_memory
        if nbytes <= 0:
            return
        if nbytes > row.available_bytes - row.size_bytes // RESERVED_FOR_WHOLE or not row.try_take(nbytes):
            raise TooManyRequests(
                f"single messages of {self.topic.ledger_id}:{entry_id} cannot be acknowledged: that takes {nbytes} "
                f"bytes, and {row.used_bytes} of {row.size_bytes} are used for what consumers owe and have "
                f"acknowledged; acknowledge whole batches, or raise memoryLimitMB"
            )
        self._charged_bytes += nbytes

    def _acknowledge_present(self, entry_id: int) -> int:
        """Acknowledge everything up to this entry but what is missing: nobody was given that."""
        missing, ledger_id = self.topic.broker.log.missing, self.topic.ledger_id
        if not missing.any_of(ledger_id):
            return self.cursor.acknowledge_through(entry_id)
        newly = 0
        for first, end in missing.present(ledger_id, self.cursor.mark_delete + 1, entry_id + 1):
            for start, last in list(self.cursor.unacknowledged_ranges(first, end - 1)):
                newly += self.cursor.acknowledge_many(range(start, last + 1))
        return newly

    def topic_terminated(self) -> None:
        """If the topic gets no more entries and all are acknowledged, consumers are told, once each."""
        if not self.topic.terminated or self.backlog:
            return
        for consumer in self.consumers:
            if not consumer.told_of_end:
                consumer.told_of_end = True
                consumer.session.connection.write_frame(codec.reached_end_of_topic(consumer.consumer_id))

    # -- memory -------------------------------------------------------------------------------------------------------

    def charge(self) -> None:
        """Charge what the cursor takes by now, whether it fits or not: what was answered is not forgotten."""
        self.cursor.measure()
        growth = self.cursor.nbytes - self._charged_bytes
        if growth < 0:
            self._give_back(-growth)
        else:
            self.topic.broker.dispatch_memory.take(growth)
            self._charged_bytes += growth

    def release(self) -> None:
        """The subscription ends here, or its topic is unloaded: the cursor's memory is given back."""
        self._give_back(self._charged_bytes)

    def _give_back(self, nbytes: int) -> None:
        self.topic.broker.dispatch_memory.give_back(nbytes)
        self._charged_bytes -= nbytes

    # -- moved from outside -------------------------------------------------------------------------------------------

    async def move_to(self, entry_id: int, members: Sequence[int] = ()) -> None:
        """Seek: consumers are disconnected and come back; then this entry is the next one delivered.

        Args:
            entry_id: the entry.
            members: when only some messages of a batch are wanted of it, which, as in an ack set.

        Raises:
            ServiceNotReady: somebody else moves it already.
            TooManyRequests: which messages are wanted cannot be remembered.
            MetadataFailed: the new position could not be stored.
        """
        if self.fenced:
            raise ServiceNotReady(f"subscription {self.name!r} of {self.topic.text} is being reset already")
        self.check_room(entry_id, members)
        broker = self.topic.broker
        self.fenced = True
        try:
            for consumer in list(self.consumers):
                consumer.session.disconnect_consumer(consumer)
            self.reset(entry_id, members if broker.limits.batch_index_acks else ())
            await broker.cursors.save(self)
        finally:
            self.fenced = False
            if not self.durable:
                broker.loop.call_later(RECONNECT_S, self.topic.end_if_idle, self)

    def check_room(self, entry_id: int, members: Sequence[int]) -> None:
        """Raises TooManyRequests when it cannot be remembered which messages of a batch are wanted."""
        if members:
            before = self._charged_bytes
            self._take_for_set(entry_id, ack_set_bytes(members))
            self._give_back(self._charged_bytes - before)  # `reset` charges what is kept.

    def reset(self, to_entry_id: int, members: Sequence[int] = ()) -> None:
        """The next entry delivered is this one; consumers were detached before."""
        self.cursor.reset(to_entry_id, members)
        self.charge()
        self.topic.pass_cancelled(self.cursor)
        if self.view is not None:
            self.view.was_reset()
            self.view.update_mark_delete_position(self.cursor.mark_delete)
        self.rewind()
        self.topic.broker.cursors.moved(self)

    def skip(self, count: int) -> None:
        """Acknowledge the next `count` entries that are not, delivered or not."""
        if count <= 0:
            return
        if count < self.backlog:
            self._pass(self.cursor.nth_unacknowledged(count - 1))
        else:
            self.skip_all()

    def skip_all(self) -> None:
        """Acknowledge everything that there is; what is delayed, too."""
        self._pass(self.topic.last_entry_id)
        if self.view is not None:
            self.view.clear()

    def expire_through(self, entry_id: int) -> int:
        """Acknowledge everything up to this entry, for it is too old; returns how many entries that were."""
        count = self._pass(min(entry_id, self.topic.last_entry_id))
        self.expired += count
        self.last_expired_ms = self.topic.broker.clock.wall_ms()
        return count

    def give_up_through(self, entry_id: int) -> int:
        """Acknowledge everything up to this entry, for the backlog is over its quota; returns how many entries."""
        return self._pass(min(entry_id, self.topic.last_entry_id))

    def give_up(self, entry_id: int) -> None:
        """Acknowledge one entry on nobody's behalf: it was cancelled."""
        if not self.cursor.acknowledge(entry_id):
            return
        self._tell_view((entry_id,))
        if self.delivery is not None:
            self.delivery.given_up(entry_id)
        self.topic.broker.cursors.moved(self)
        self.topic_terminated()
        self.wake()

    def _pass(self, entry_id: int) -> int:
        """Acknowledge everything up to this entry on nobody's behalf."""
        count = self.cursor.acknowledge_through(entry_id)
        if not count:
            return 0
        if self.view is not None:
            self.view.update_mark_delete_position(self.cursor.mark_delete)
        self.read_entry_id = max(self.read_entry_id, entry_id + 1)
        if self.delivery is not None:
            self.delivery.passed(entry_id)
        self.topic.broker.cursors.moved(self)
        self.topic_terminated()
        self.wake()
        return count

    # -- non-persistent topics ----------------------------------------------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """Deliver entries of a non-persistent topic now, to whoever has permits; drop the rest."""
        delivery = self.delivery
        if delivery is None:
            self.dropped += len(batch.offsets)
        else:
            self.dropped += delivery.offer(batch, 0, len(batch.offsets))


def _begins_large(result: ReadResult) -> bool:
    return not result.batches or result.batches[0].lengths[0] > READ_BYTES_MAX
