# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan: encodes entries, queues them for consumers, and counts them. The only place that sends.

Why one place: permits, counters, rates and the dispatcher's state of sent entries change together, so they agree.
Where: `NewEntries` and `Redelivery` bring a batch; the subscription's dispatcher plans it; this carries out the plan.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.dispatcher import HEADER_BYTES, Send, alike_before, fitting
from penstock.wire.batch_counts import counts_in
from penstock.wire.deliveries import encode_messages
from penstock.wire.varints import LOW_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.dispatcher import Dispatcher, Plan
    from penstock.broker.subscriptions.pending_acks import Undelivered
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.core.clock import Clock
    from penstock.net.loop_turns import LoopTurns
    from penstock.storage.cursor import Cursor
    from penstock.storage.results import Batch


# ---------------------------------------------------------------------------------------------------------------------
# Entries queued for a consumer that can still be returned, because their client has not read any byte of them.
#
# Why: memory of clients that do not read is needed for those that do, and the entries are in the log anyway. Where:
# `Delivery` passes one with each run to the consumer's outlet; the connection calls it.


class QueuedEntries:
    """One run queued for one consumer."""

    __slots__ = ("consumer", "counts", "entry_ids", "lengths", "nbytes")

    def __init__(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int] | None,
        nbytes: int,
    ) -> None:
        self.consumer = consumer
        self.entry_ids = entry_ids
        self.lengths = lengths
        self.counts = counts  # messages in each entry; None when each holds one
        self.nbytes = nbytes  # total size, with headers of equal length

    def compact(self) -> None:
        """Store the numbers compactly: the client does not read at once."""
        if not isinstance(self.lengths, array):
            self.lengths = array("I", self.lengths)
            if not isinstance(self.entry_ids, range):
                self.entry_ids = array("Q", self.entry_ids)
            if self.counts is not None:
                self.counts = array("I", self.counts)

    def put_back(self, taken_bytes: int) -> int:
        """Return the entries after the one in which these bytes end; returns the size of the rest in bytes."""
        header_bytes = (self.nbytes - sum(self.lengths)) // len(self.lengths)
        ends = list(accumulate((length + header_bytes for length in self.lengths), initial=0))
        kept = bisect_left(ends, min(taken_bytes, self.nbytes))
        if kept < len(self.lengths):
            entry_ids = list(self.entry_ids[kept:])
            messages = len(entry_ids) if self.counts is None else sum(self.counts[kept:])
            self.consumer.subscription.entries_returned(self.consumer, entry_ids, messages)
            self.entry_ids, self.lengths = self.entry_ids[:kept], self.lengths[:kept]
            self.counts = None if self.counts is None else self.counts[:kept]
            self.nbytes = ends[kept]
        return ends[kept]


# A word of an ack set on the wire: a tag, and a varint of up to ten bytes.
WORD_OUT_BYTES_MAX: Final = 11
# From so many entries of a plan on, each consumer gets consecutive ones, instead of those of its turns.
CONSECUTIVE_MIN: Final = 100


class Delivery:
    """Delivers batches of one subscription. A row range `row..stop-1` always refers to a batch."""

    __slots__ = ("_clock", "_state", "_turn", "entry_messages")

    def __init__(self, state: SubscriptionState, clock: Clock, turn: LoopTurns) -> None:
        self._state = state
        self._clock = clock
        self._turn = turn
        self.entry_messages = 1  # approximate, of the last delivered entry

    # -- batches ------------------------------------------------------------------------------------------------------

    def deliver_new(self, dispatcher: Dispatcher, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Deliver new, unacknowledged entries; returns the row after the last one handled."""
        state = self._state
        self._recount(batch)
        if state.gate is not None:
            stop = state.gate.stop_row(batch, row, stop)
        counts = batch.message_counts
        if dispatcher.individual or counts is not None:  # Otherwise planning more rows costs nothing.
            stop = min(stop, row + dispatcher.rows_max(ready))
            counts = wanted_counts(state.undelivered, batch, row, stop)
        rows = range(row, stop) if state.view is None else undelayed_rows(state, batch, row, stop)
        row, entries = self.perform(dispatcher, dispatcher.plan(batch, rows, stop, counts, ready), batch, counts)
        if entries and batch.durable_ns > state.rewound_ns:
            state.topic.dispatch_waits.observe(self._turn.began_ns - batch.durable_ns, entries)
        if row and batch.entry_ids[row - 1] >= state.read_entry_id:
            state.read_entry_id = batch.entry_ids[row - 1] + 1
        return row

    def deliver_again(self, dispatcher: Dispatcher, batch: Batch) -> None:
        """Redeliver those entries of a batch that wait for redelivery, as many as consumers can take."""
        gate, row, stop = self._state.gate, 0, len(batch.offsets)
        self._recount(batch)
        if gate is not None:
            if not gate.is_open():  # Others, or a batch of the same read, have used the rest.
                return
            stop = gate.stop_row(batch, 0, stop)
        counts = wanted_counts(self._state.undelivered, batch, row, stop)
        while row < stop:
            ready = dispatcher.ready()
            plan = dispatcher.plan_replay(batch, row, stop, counts, ready)
            row, entries = self.perform(dispatcher, plan, batch, counts)
            if not entries and dispatcher.ready() == ready:
                return

    def deliver_unstored(self, dispatcher: Dispatcher, batch: Batch) -> int:
        """Deliver entries of a non-persistent topic; returns the number of dropped ones."""
        row, stop, delivered = 0, len(batch.offsets), 0
        self._recount(batch)
        if self._state.gate is not None:
            stop = self._state.gate.unstored_stop(batch, stop)
        while row < stop:
            ready = dispatcher.ready()
            if not ready:
                break
            plan = dispatcher.plan_unstored(batch, range(row, stop), batch.message_counts, ready)
            row, entries = self.perform(dispatcher, plan, batch, batch.message_counts)
            delivered += entries
        return len(batch.offsets) - delivered

    def _recount(self, batch: Batch) -> None:
        """Where messages are limited, count those of each entry: producers may have said less than consumers get.

        Here or in a proxy before the consumers: a broker that took an entry of a thousand messages for one permit would
        send the next ones for those that the proxy takes for used.
        """
        state = self._state
        if (state.gate is not None or state.through_proxy) and not batch.recounted:
            batch.message_counts = counts_in(batch.data, batch.offsets, batch.lengths, batch.message_counts)
            batch.recounted = True

    # -- plans --------------------------------------------------------------------------------------------------------

    def perform(
        self, dispatcher: Dispatcher, plan: Plan, batch: Batch, counts: Sequence[int] | None
    ) -> tuple[int, int]:
        """Carry out a plan; returns the row after the last one handled, and the number of entries sent."""
        entries = 0
        sends, in_order = plan.sends, plan.in_order
        if in_order and len(sends) > len(dispatcher.consumers) and self._will_fit(sends, batch):
            sends, in_order = joined_sends(sends, alike=counts is None), False
        for send in sends:
            sent = self.send(dispatcher, send, batch, counts)
            entries += sent
            if sent < len(send.rows):
                behind = send.rows[sent:]
                if in_order:  # The rest is planned again for other consumers.
                    return behind[0], entries
                dispatcher.not_sent(send.consumer, [batch.entry_ids[row] for row in behind])
        return plan.reached, entries

    def _will_fit(self, sends: Sequence[Send], batch: Batch) -> bool:
        """Whether there is room for all of these entries of a topic's log, so that their order does not matter."""
        if not self._state.topic.persistent or self._state.undelivered.has_ack_sets:
            return False
        rows = range(sends[0].rows[0], sends[-1].rows[-1] + 1)
        if batch.entry_ids[rows[0]] >> LOW_BITS != batch.entry_ids[rows[-1]] >> LOW_BITS:
            return False
        # What one of them is sent leaves less room for the others, but at most by as much.
        nbytes = sum(batch.lengths[rows.start : rows.stop]) + HEADER_BYTES * len(rows)
        return all(outlet.room_bytes >= nbytes for outlet in {send.consumer.outlet for send in sends})

    def send(self, dispatcher: Dispatcher, send: Send, batch: Batch, counts: Sequence[int] | None) -> int:
        """Send rows of a batch to one consumer, as many as there is room for; returns how many.

        Budget: 10 µs and 0.4 µs per entry on one core.
        """
        consumer, rows, messages = send
        outlet, state = consumer.outlet, self._state
        topic, cursor = state.topic, state.undelivered
        if isinstance(rows, range):
            piece = slice(rows.start, rows.stop)
            ids, offsets, lengths = batch.entry_ids[piece], batch.offsets[piece], batch.lengths[piece]
            counts = counts and counts[piece]
        elif len(rows) == 1:
            row = rows[0]
            ids, offsets, lengths = [batch.entry_ids[row]], [batch.offsets[row]], [batch.lengths[row]]
            counts = counts and [counts[row]]
        else:
            pick = itemgetter(*rows)
            ids, offsets, lengths = pick(batch.entry_ids), pick(batch.offsets), pick(batch.lengths)
            counts = counts and pick(counts)
        has_ack_sets = cursor.has_ack_sets
        lengths_out = lengths if not has_ack_sets else lengths_with_ack_sets(cursor, ids, lengths)
        fit = fitting(lengths_out, outlet.room_bytes)
        if not fit:
            outlet.has_no_room(lengths_out[0] + HEADER_BYTES, consumer)
            return 0
        entries = alike_before(ids, fit)
        if entries < len(rows):
            ids, offsets, lengths = ids[:entries], offsets[:entries], lengths[:entries]
            counts = counts and counts[:entries]
            messages = entries if counts is None else sum(counts)
        ack_sets = None
        if has_ack_sets and topic.persistent:
            partly = cursor.partly_acknowledged(ids[0], ids[-1])
            if partly:
                ack_sets = [cursor.ack_set(entry_id) if entry_id in partly else None for entry_id in ids]
        out: list[bytes | bytearray | memoryview] = []
        redeliveries = dispatcher.redelivery_counts(ids)
        nbytes = 0
        if redeliveries is None and ack_sets is None and isinstance(rows, range) and len(topic.subscriptions) > 1:
            nbytes = self._take_frames(out, consumer, batch, rows[:entries])
        nbytes = nbytes or encode_messages(
            out,
            consumer.consumer_id,
            topic.ledger_id,
            topic.partition,
            ids,
            batch.data,
            offsets,
            lengths,
            redeliveries,
            consumer.epoch,
            ack_sets,
        )
        # Entries with an ack set have headers of different lengths; they cannot be returned, and are rare.
        returnable = QueuedEntries(consumer, ids, lengths, counts, nbytes) if ack_sets is None else None
        outlet.deliver(out, nbytes, returnable)
        if fit < len(rows):
            outlet.has_no_room(lengths_out[fit] + HEADER_BYTES, consumer)
        self.entry_messages = messages // entries or 1
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.entries_out += entries
        consumer.bytes_out += nbytes
        consumer.last_consumed_ms = state.last_consumed_ms = self._clock.wall_ms()
        state.messages_out += messages
        state.bytes_out += nbytes
        if state.gate is not None:
            state.gate.delivered(entries, messages, nbytes)
        if dispatcher.individual and topic.persistent:
            dispatcher.sent(consumer, ids, counts, messages)
        return entries

    def _take_frames(
        self, out: list[bytes | bytearray | memoryview], consumer: Consumer, batch: Batch, rows: range
    ) -> int:
        """Append frames that the tail cache has; returns their bytes, or 0 if it has none for this consumer."""
        topic, to = self._state.topic, (consumer.consumer_id, consumer.epoch)
        encoded = topic.tail.encoded(batch, topic.partition, to)
        if encoded is None or encoded.consumer != to:
            return 0
        out.append(encoded.frames(rows.start, rows.stop))
        return len(out[0])

    def returned(self, dispatcher: Dispatcher, consumer: Consumer, entry_ids: list[int], messages: int) -> None:
        """Redeliver entries that were queued, but not sent, because their client does not read."""
        consumer.permits += messages
        if self._state.topic.persistent:
            dispatcher.returned(consumer, entry_ids)
        else:
            self._state.dropped += len(entry_ids)


def joined_sends(sends: Sequence[Send], *, alike: bool = False) -> Sequence[Send]:
    """One send for each consumer, because a send of few entries costs more than they do.

    With many entries of one message each (`alike`), each consumer gets as many as by its turns, but consecutive ones:
    they are cut, counted and acknowledged together.
    """
    parts: dict[Consumer, list[Send]] = {}
    for send in sends:
        parts.setdefault(send.consumer, []).append(send)
    if len(parts) == len(sends):
        return sends
    first, last = sends[0].rows[0], sends[-1].rows[-1]
    entries = sum(len(send.rows) for send in sends)
    if alike and entries >= CONSECUTIVE_MIN and last - first + 1 == entries:
        consecutive: list[Send] = []
        for consumer, part in parts.items():
            stop = first + sum(len(send.rows) for send in part)
            consecutive.append(Send(consumer, range(first, stop), stop - first))
            first = stop
        return consecutive
    return [
        part[0]
        if len(part) == 1
        else Send(consumer, [row for send in part for row in send.rows], sum(send.messages for send in part))
        for consumer, part in parts.items()
    ]


def wanted_counts(cursor: Cursor | Undelivered, batch: Batch, row: int, stop: int) -> Sequence[int] | None:
    """Messages in each entry of a batch; acknowledged ones are subtracted in these rows."""
    counts = batch.message_counts
    if counts is None or not cursor.has_ack_sets or row >= stop:
        return counts
    ids = batch.entry_ids
    partly = cursor.partly_acknowledged(ids[row], ids[stop - 1])
    if not partly:
        return counts
    counts = list(counts)
    for entry_id, wanted in partly.items():
        at = bisect_left(ids, entry_id)
        if ids[at] == entry_id:  # A gathered batch has gaps.
            counts[at] = max(1, min(counts[at], wanted))
    return counts


def lengths_with_ack_sets(
    cursor: Cursor | Undelivered, entry_ids: Sequence[int], lengths: Sequence[int]
) -> Sequence[int]:
    """The encoded size of each of these entries, including its ack set."""
    lengths = list(lengths)
    for entry_id in cursor.partly_acknowledged(entry_ids[0], entry_ids[-1]):
        at = bisect_left(entry_ids, entry_id)
        if entry_ids[at] == entry_id:
            lengths[at] += WORD_OUT_BYTES_MAX * cursor.ack_set_words(entry_id)
    return lengths


def undelayed_rows(state: SubscriptionState, batch: Batch, row: int, stop: int) -> Sequence[int]:
    """Return the rows that are not held until their delivery time."""
    topic, view = state.topic, state.view
    if view is None or topic.delayed is None or not topic.delays:
        return range(row, stop)
    ids = batch.entry_ids
    first, end = ids[row], ids[stop - 1] + 1
    if topic.delayed.manager.unknown(first, end):
        held = topic.delayed.look(view, batch, row, stop)
    else:
        held = view.held(first, end)
    if not held:
        return range(row, stop)
    stepped_over = set(held)
    return [one for one in range(row, stop) if ids[one] not in stepped_over]
