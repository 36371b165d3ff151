# SPDX-License-Identifier: Apache-2.0
"""One subscription: a cursor on a topic and the consumers that read through it.

Why one class for all types, and one file beyond our usual size: what differs (who gets the next entries) is a pure
decision in `dispatch`; what is common (reading, permits, redelivery, acknowledging) shares one reading position, and
each part moves it.
Where: the topic wakes it when entries are durable, sessions when permits, acknowledgements or consumers come and go.

Theory of operation
    `wake` asks for one dispatch in this turn of the loop, however often it is called. A dispatch takes entries from the
    replay set first (those to be delivered again), else from `read_entry_id` on: out of the tail cache when they are
    there, else by one sequential read of the log in a reader thread. What was read is handed to consumers at once, as
    far as permits and unsent bytes allow; the rest is forgotten and read again later, so a stuck consumer pins nothing.
    Whatever moves the reading position backwards (seek, rewind, a new active consumer) bumps `_generation`, and a read
    that was under way then is dropped when it comes back.
"""

from __future__ import annotations

import logging
from itertools import repeat
from typing import TYPE_CHECKING, Final

from penstock.broker.dispatch import ConsumerRank, choose_active, share, take
from penstock.broker.replay import Replay
from penstock.core.errors import ConsumerBusy
from penstock.core.units import MIB
from penstock.wire import codec
from penstock.wire.runs import encode_messages

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from penstock.broker.members import Consumer
    from penstock.broker.topic import Topic
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import Batch, ReadResult
    from penstock.wire.events import AckRun

log = logging.getLogger(__name__)

EXCLUSIVE: Final = codec.CommandSubscribe.Exclusive
SHARED: Final = codec.CommandSubscribe.Shared
FAILOVER: Final = codec.CommandSubscribe.Failover

# One dispatch hands out at most this many pieces before others get the loop.
PIECES_PER_TURN_MAX: Final = 16
# One read of the log takes at most this much, and no more than the consumers it is for have room for.
READ_BYTES_MAX: Final = 2 * MIB
# A read of the log that failed is tried again after this long, for as long as a consumer waits.
READ_RETRY_S: Final = 1.0


class Subscription:
    """A named reading position on a topic, and its consumers."""

    __slots__ = (
        "_active",
        "_failover_timer",
        "_generation",
        "_reading",
        "_replay",
        "_scheduled",
        "_turn",
        "blocked",
        "bytes_out",
        "consumers",
        "cursor",
        "dropped",
        "durable",
        "fenced",
        "kind",
        "messages_out",
        "name",
        "read_entry_id",
        "redeliveries",
        "topic",
    )

    def __init__(self, topic: Topic, name: str, *, cursor: Cursor, durable: bool) -> None:
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.kind: int = EXCLUSIVE
        self.consumers: list[Consumer] = []
        self.read_entry_id = cursor.mark_delete + 1
        self.redeliveries: dict[int, int] = {}
        self.blocked = False
        self.fenced = False
        self.dropped = 0  # non-persistent entries that nobody had permits for
        self.messages_out = 0
        self.bytes_out = 0
        self._active: Consumer | None = None
        self._failover_timer: asyncio.TimerHandle | None = None
        self._generation = 0
        self._reading = False
        self._replay = Replay()
        self._scheduled = False
        self._turn = 0

    @property
    def unacked(self) -> int:
        """Messages sent to consumers and not yet acknowledged."""
        return sum(consumer.unacked for consumer in self.consumers)

    @property
    def backlog(self) -> int:
        """Entries not yet acknowledged; a non-persistent topic has none."""
        return self.cursor.backlog(self.topic.last_entry_id) if self.topic.persistent else 0

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, kind: int) -> None:
        """Attach a consumer.

        Raises:
            ConsumerBusy: consumers of another type are attached, or the one place is taken.
        """
        if self.consumers and kind != self.kind:
            raise ConsumerBusy(f"subscription {self.name!r} of {self.topic.text} is of a different type")
        if self.consumers and kind == EXCLUSIVE:
            raise ConsumerBusy(f"exclusive consumer is already connected to {self.name!r} of {self.topic.text}")
        if not self.consumers:
            self.kind = kind
            self._rewind()
        self.consumers.append(consumer)

    def attached(self) -> None:
        """The newest consumer was told that it is subscribed: choose who is active and begin."""
        if self.kind == SHARED:
            self.wake()
        else:
            self._choose_active(joined=True)

    def remove(self, consumer: Consumer) -> None:
        """Detach a consumer; what it had not acknowledged goes to others."""
        if consumer not in self.consumers:
            return
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._turn:
            self._turn -= 1
        if self.kind == SHARED:
            self._give_back(consumer, consumer.pending)
        if not self.consumers:
            self._active = None
            self._cancel_failover()
            self._rewind()
            self.topic.broker.subscription_idle(self)
        elif self.kind != SHARED:
            self._choose_active(joined=False)
        self.wake()

    def _choose_active(self, *, joined: bool) -> None:
        ranks = [ConsumerRank(c.priority_level, c.name) for c in self.consumers]
        chosen = self.consumers[choose_active(ranks, self.topic.partition, self.topic.text)]
        if chosen is self._active:
            if joined:
                self._announce(self.consumers[-1])
            self.wake()
            return
        had_one = self._active is not None or self._failover_timer is not None
        self._active = None
        self._cancel_failover()
        if had_one:
            # The one before may still be acknowledging; Pulsar waits this long before the next one starts over.
            delay_s = self.topic.broker.limits.failover_delay_s
            self._failover_timer = self.topic.broker.loop.call_later(delay_s, self._activate, chosen)
        else:
            self._activate(chosen)

    def _activate(self, chosen: Consumer) -> None:
        self._failover_timer = None
        self._active = chosen
        self._rewind()
        for consumer in self.consumers:
            self._announce(consumer)
        self.wake()

    def _announce(self, consumer: Consumer) -> None:
        if consumer.session.protocol_version >= codec.PROTOCOL_ACTIVE_CONSUMER_CHANGE:
            frame = codec.active_consumer_change(consumer.consumer_id, is_active=consumer is self._active)
            consumer.session.connection.write_frame(frame)

    def _cancel_failover(self) -> None:
        if self._failover_timer is not None:
            self._failover_timer.cancel()
            self._failover_timer = None

    def _rewind(self) -> None:
        """Read again from the first entry that is not acknowledged; what waits to be delivered again is among it."""
        self._generation += 1
        self.read_entry_id = self.cursor.mark_delete + 1
        self._replay.clear()

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

    def _ready(self) -> list[Consumer]:
        """Consumers that may be sent something now."""
        if self.kind != SHARED:
            active = self._active
            return [active] if active is not None and active.permits > 0 and active.session.connection.writable else []
        if self.blocked:
            return []
        return [c for c in self.consumers if c.permits > 0 and not c.blocked and c.session.connection.writable]

    def _send_next(self) -> bool:
        """Deliver one piece; False when there is nothing to send, nobody to send it to, or a read was started."""
        ready = self._ready()
        if not ready:
            return False
        if self._replay:
            return self._send_replay(ready)
        entry_id = self.cursor.next_unacknowledged(self.read_entry_id)
        self.read_entry_id = entry_id
        if entry_id > self.topic.last_entry_id:
            return False
        found = self.topic.tail.find(entry_id)
        if found is None:
            self._start_read(entry_id, ready)
            return False
        batch, row = found
        self._deliver(batch, row, self._stop_row(batch, row), ready)
        return True

    def _stop_row(self, batch: Batch, row: int) -> int:
        """The row after the last that may be delivered together with this one: the next acknowledged entry ends it."""
        rows = len(batch.offsets)
        if not self.cursor.range_count:
            return rows
        ids = batch.entry_ids
        for first, last in self.cursor.unacknowledged_ranges(ids[row], ids[-1]):
            if first == ids[row]:
                while rows > row + 1 and ids[rows - 1] > last:
                    rows -= 1
            break
        return rows

    def _deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send rows of a batch to the ready consumers; returns the row after the last that was sent."""
        counts = batch.message_counts
        if len(ready) == 1:
            entries, messages = take(counts, row, stop, self._allowance(ready[0]))
            if entries:
                self._send(ready[0], batch, row, row + entries, messages)
            row += entries
        else:
            window = None if counts is None else counts[row:stop]
            permits = [self._allowance(c) for c in ready]
            priorities = [c.priority_level for c in ready]
            shares, self._turn = share(
                stop - row,
                window,
                permits,
                priorities,
                self._turn % len(ready),
                self.topic.broker.limits.round_robin_entries_max,
            )
            for part in shares:
                self._send(ready[part.consumer_index], batch, row + part.start, row + part.stop, part.messages)
            row += shares[-1].stop if shares else 0
        if row and batch.entry_ids[row - 1] >= self.read_entry_id:
            self.read_entry_id = batch.entry_ids[row - 1] + 1
        return row

    def _allowance(self, consumer: Consumer) -> int:
        """Messages this consumer may be sent now: what it asked for, short of its bound on unacknowledged ones."""
        if self.kind != SHARED:
            return consumer.permits
        return min(consumer.permits, self.topic.broker.limits.unacked_per_consumer_max - consumer.unacked)

    def _send(self, consumer: Consumer, batch: Batch, start: int, stop: int, messages: int) -> None:
        ids = batch.entry_ids[start:stop]
        redeliveries = None
        if self.redeliveries:
            redeliveries = [self.redeliveries.get(entry_id, 0) for entry_id in ids]
        out: list[bytes | bytearray | memoryview] = []
        nbytes = encode_messages(
            out,
            consumer.consumer_id,
            self.topic.ledger_id,
            self.topic.partition,
            ids,
            batch.data,
            batch.offsets[start:stop],
            batch.lengths[start:stop],
            redeliveries,
            consumer.epoch,
        )
        consumer.session.connection.deliver(out, nbytes)
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.bytes_out += nbytes
        self.messages_out += messages
        self.bytes_out += nbytes
        if self.kind == SHARED and self.topic.persistent:
            counts = batch.message_counts
            consumer.pending.update(zip(ids, repeat(1) if counts is None else counts[start:stop], strict=False))
            consumer.unacked += messages
            limits = self.topic.broker.limits
            consumer.blocked = consumer.unacked >= limits.unacked_per_consumer_max
            if not self.blocked and self.unacked >= limits.unacked_per_subscription_max:
                self.blocked = True

    # -- reading from the log -----------------------------------------------------------------------------------------

    def _start_read(self, entry_id: int, ready: Sequence[Consumer], entries_max: int | None = None) -> None:
        self._reading = True
        permits = sum(consumer.permits for consumer in ready)
        room_bytes = sum(consumer.session.connection.room_bytes for consumer in ready)
        future = self.topic.broker.read_log(
            self.topic.ledger_id,
            entry_id,
            bytes_max=min(READ_BYTES_MAX, room_bytes),
            entries_max=entries_max or permits,
        )
        generation = self._generation
        future.add_done_callback(lambda done: self._on_read(done, generation, entry_id, replay=entries_max is not None))

    def _on_read(self, done: asyncio.Future[ReadResult], generation: int, entry_id: int, *, replay: bool) -> None:
        self._reading = False
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            log.error("reading %s from entry %d failed, trying again: %s", self.topic.text, entry_id, error)
            self.topic.broker.loop.call_later(READ_RETRY_S, self.wake)
            return
        if generation == self._generation and not self.fenced:
            if replay:
                self._on_replay_read(done.result(), entry_id)
            else:
                self._on_forward_read(done.result(), entry_id)
        self.wake()

    def _on_forward_read(self, result: ReadResult, entry_id: int) -> None:
        expected = entry_id
        for batch in result.batches:
            self._skip_missing(expected, batch.entry_ids[0])
            if not self._deliver_all(batch):
                return
            expected = batch.entry_ids[-1] + 1
        self._skip_missing(expected, result.next_entry_id)
        self.read_entry_id = max(self.read_entry_id, result.next_entry_id)

    def _deliver_all(self, batch: Batch) -> bool:
        """Deliver what of this batch is still wanted; False when the consumers could not take all of it."""
        row, rows = 0, len(batch.offsets)
        while row < rows:
            wanted = self.cursor.next_unacknowledged(batch.entry_ids[row])
            while row < rows and batch.entry_ids[row] < wanted:
                row += 1
            if row == rows:
                break
            ready = self._ready()
            if not ready:
                return False
            row = self._deliver(batch, row, self._stop_row(batch, row), ready)
        return True

    def _skip_missing(self, first: int, stop: int) -> None:
        """Entries that the log does not have (reclaimed, or lost to damage it has named) count as acknowledged."""
        stop = min(stop, self.topic.last_entry_id + 1)
        if first < stop:
            self.cursor.acknowledge_many(range(first, stop))
            self.read_entry_id = max(self.read_entry_id, stop)
            self.topic.broker.cursor_moved(self)

    # -- redelivery ---------------------------------------------------------------------------------------------------

    def _send_replay(self, ready: list[Consumer]) -> bool:
        entry_ids = self._replay.next(sum(consumer.permits for consumer in ready))
        found = self.topic.tail.find(entry_ids[0])
        if found is None:
            self._start_read(entry_ids[0], ready, entries_max=len(entry_ids))
            return False
        batch, row = found
        stop = min(row + len(entry_ids), len(batch.offsets))
        self._replay.discard(batch.entry_ids[row : self._deliver(batch, row, stop, ready)])
        return True

    def _on_replay_read(self, result: ReadResult, entry_id: int) -> None:
        """Deliver what of these entries still waits; what the log no longer has waits for nothing."""
        expected = entry_id
        for batch in result.batches:
            self._replay.discard(range(expected, batch.entry_ids[0]))
            row, rows = 0, len(batch.offsets)
            while row < rows:
                stop = row
                while stop < rows and batch.entry_ids[stop] in self._replay:
                    stop += 1
                if stop == row:
                    row += 1
                    continue
                ready = self._ready()
                if not ready:
                    return
                sent = self._deliver(batch, row, stop, ready)
                self._replay.discard(batch.entry_ids[row:sent])
                row = sent
            expected = batch.entry_ids[-1] + 1
        if not result.batches:
            self._skip_missing(expected, result.next_entry_id)
            self._replay.discard(range(expected, result.next_entry_id))

    def _give_back(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Entries sent to this consumer and not acknowledged are to be delivered again."""
        again = list(entries)
        for entry_id in again:
            consumer.unacked -= consumer.pending.pop(entry_id)
            self.redeliveries[entry_id] = self.redeliveries.get(entry_id, 0) + 1
            self._replay.add(entry_id)
        consumer.messages_redelivered += len(again)
        self._unblock(consumer)

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Deliver again: these entries, or with none named everything that is not acknowledged."""
        if self.kind == SHARED:
            pending = consumer.pending
            self._give_back(consumer, [e for e in entry_ids if e in pending] if entry_ids else pending)
        elif not entry_ids and consumer is self._active:
            if epoch is not None:
                consumer.epoch = epoch
            self._rewind()
        self.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer asked for this many more messages."""
        consumer.permits += permits
        self.wake()

    # -- acknowledging ------------------------------------------------------------------------------------------------

    def acknowledge(self, consumer: Consumer, ack: AckRun) -> None:
        """Apply one ACK; ids that this topic never gave out are ignored."""
        topic = self.topic
        last, ledger_id = topic.last_entry_id, topic.ledger_id
        entry_ids = [
            entry_id
            for row, entry_id in enumerate(ack.entry_ids)
            if entry_id <= last and ack.ledger_ids[row] == ledger_id and row not in ack.ack_sets
        ]
        if ack.cumulative:
            if self.kind != SHARED:
                self._acknowledge_through(ack, entry_ids)
        else:
            consumer.acks += self.cursor.acknowledge_many(entry_ids)
            for row, words in ack.ack_sets.items():
                ours = ack.ledger_ids[row] == ledger_id and ack.entry_ids[row] <= last
                if ours and self.cursor.acknowledge_batch(ack.entry_ids[row], words):
                    entry_ids.append(ack.entry_ids[row])
            if self.kind == SHARED:
                self._settle(consumer, entry_ids)
        if self.durable:
            topic.broker.cursor_moved(self)

    def _acknowledge_through(self, ack: AckRun, entry_ids: list[int]) -> None:
        for entry_id in entry_ids:
            self.cursor.acknowledge_through(entry_id)
        for row, words in ack.ack_sets.items():
            if ack.ledger_ids[row] == self.topic.ledger_id and ack.entry_ids[row] <= self.topic.last_entry_id:
                self.cursor.acknowledge_through(ack.entry_ids[row] - 1)
                self.cursor.acknowledge_batch(ack.entry_ids[row], words)

    def _settle(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Acknowledged entries are no longer pending with whoever was sent them, nor waiting to be sent again."""
        pop = consumer.pending.pop
        for entry_id in entry_ids:
            messages = pop(entry_id, 0)
            if messages:
                consumer.unacked -= messages
            else:
                self._settle_elsewhere(entry_id)
        if self.redeliveries:
            for entry_id in entry_ids:
                self.redeliveries.pop(entry_id, None)
        self._unblock(consumer)

    def _settle_elsewhere(self, entry_id: int) -> None:
        self._replay.discard((entry_id,))
        for other in self.consumers:
            messages = other.pending.pop(entry_id, 0)
            if messages:
                other.unacked -= messages
                self._unblock(other)
                return

    def _unblock(self, consumer: Consumer) -> None:
        """Dispatch goes on when half of what had stopped it is acknowledged, as in Pulsar."""
        limits = self.topic.broker.limits
        if consumer.blocked and consumer.unacked <= limits.unacked_per_consumer_max // 2:
            consumer.blocked = False
            self.wake()
        if self.blocked and self.unacked <= limits.unacked_per_subscription_max // 2:
            self.blocked = False
            self.wake()

    # -- seek ---------------------------------------------------------------------------------------------------------

    def reset(self, to_entry_id: int) -> None:
        """The next entry delivered is this one; consumers were detached before."""
        self.cursor.reset(to_entry_id)
        self.redeliveries.clear()
        self._rewind()
        self.topic.broker.cursor_moved(self)

    # -- non-persistent topics ----------------------------------------------------------------------------------------

    def offer(self, batch: Batch) -> None:
        """Deliver entries of a non-persistent topic now, to whoever has permits; drop the rest."""
        row, rows = 0, len(batch.offsets)
        while row < rows:
            ready = self._ready()
            if not ready:
                break
            row = self._deliver(batch, row, rows, ready)
        self.dropped += rows - row
