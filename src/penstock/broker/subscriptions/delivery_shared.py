# SPDX-License-Identifier: Apache-2.0
"""Shared subscriptions: entries go round, and what is not acknowledged comes back with a count.

A consumer owes what it was sent until it acknowledges it; whoever owes too much gets no more.
Where: the delivery of a subscription whose consumers said Shared; Key_Shared builds on it.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.delays import Delays
from penstock.broker.subscriptions.delivery import Delivery
from penstock.broker.subscriptions.dispatch import share, take
from penstock.broker.subscriptions.replay import Replay
from penstock.governance.memory_pool import UNBOUNDED
from penstock.wire import metadata

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.delays import Held
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer
    from penstock.storage.entry_log import Batch

# Delayed entries are looked at no more often than this, and no less: the clock on the wall may be set.
DELAY_CHECK_S_MIN: Final = 0.005
DELAY_CHECK_S_MAX: Final = 5.0


class Shared(Delivery):
    """Round robin with acknowledgements one by one."""

    __slots__ = ("_check_at_ms", "_timer", "_turn", "blocked", "delays", "redeliveries", "replay")

    individual = True

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.replay = Replay()
        self.delays = Delays()
        self.redeliveries: dict[int, int] = {}  # how often an entry was given back, while it is not acknowledged
        self.blocked = False  # consumers together owe too much
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None
        self._check_at_ms = 0

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def attached(self, consumer: Consumer) -> None:
        """It may have something at once."""
        del consumer
        self.subscription.wake()

    def leave(self, consumer: Consumer) -> None:
        """What it did not acknowledge goes to others. That counts for no redelivery: it never asked for one."""
        self._give_back(consumer, list(consumer.pending))

    def close(self) -> None:
        """Nobody is there to be sent what is delayed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- who may have something ---------------------------------------------------------------------------------------

    def ready(self) -> list[Consumer]:
        """Those with permits that do not owe too much."""
        if self.blocked:
            return []
        return [
            consumer
            for consumer in self.subscription.consumers
            if consumer.permits > 0 and not consumer.blocked and consumer.session.connection.writable
        ]

    def allowance(self, consumer: Consumer) -> int:
        """What it asked for, short of its bound on unacknowledged messages."""
        return min(consumer.permits, self._owed_max() - consumer.unacked)

    def _owed_max(self) -> int:
        return self.subscription.topic.policies.max_unacked_per_consumer or UNBOUNDED

    def _owed_together_max(self) -> int:
        return self.subscription.topic.policies.max_unacked_per_subscription or UNBOUNDED

    @property
    def full(self) -> bool:
        """So much is delayed that nothing new is read."""
        return self.delays.full

    # -- new entries --------------------------------------------------------------------------------------------------

    def deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send what is not delayed, a turn each."""
        topic = self.subscription.topic
        if topic.persistent and topic.policies.delayed_delivery.active:
            stop = min(stop, row + sum(map(self.allowance, ready)))
            held, stop = self._hold_delayed(batch, row, stop)
            if held:
                return row + held
        return self._hand_out(batch, row, stop, ready)

    def _hold_delayed(self, batch: Batch, row: int, stop: int) -> tuple[int, int]:
        """Hold entries at the beginning of these rows that are not due; how many, and where the next such one stops."""
        suspects = metadata.may_be_delayed(batch.data, batch.offsets[row:stop], batch.lengths[row:stop])
        if not suspects:
            return 0, stop
        cutoff_ms, held = self._cutoff_ms(), 0
        for suspect in suspects:
            deliver_at_ms = metadata.routing(_entry(batch, row + suspect)).deliver_at_ms
            if deliver_at_ms <= cutoff_ms:
                continue
            if suspect > held:
                stop = row + suspect
                break
            self.hold(batch.entry_ids[row + suspect], deliver_at_ms)
            held += 1
        return held, stop

    def _hand_out(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        subscription = self.subscription
        counts = subscription.counts(batch, row, stop)
        if len(ready) == 1:
            entries, messages = take(counts, row, stop, self.allowance(ready[0]))
            if entries:
                subscription.send(ready[0], batch, slice(row, row + entries), messages)
            if len(subscription.consumers) == 1:
                self._turn = 1  # as `share` would say
            return row + entries
        shares, self._turn = share(
            stop - row,
            None if counts is None else counts[row:stop],
            [self.allowance(consumer) for consumer in ready],
            [consumer.priority_level for consumer in ready],
            self._turn % len(ready),
            subscription.topic.broker.limits.round_robin_entries_max,
        )
        for part in shares:
            rows = slice(row + part.start, row + part.stop)
            subscription.send(ready[part.consumer_index], batch, rows, part.messages)
        return row + (shares[-1].stop if shares else 0)

    def sent(self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int) -> None:
        """They are owed from now on."""
        consumer.pending.update(zip(entry_ids, repeat(1) if counts is None else counts, strict=False))
        consumer.unacked += messages
        self.subscription.unacked += messages
        if consumer.unacked >= self._owed_max():
            consumer.blocked = True
        if self.subscription.unacked >= self._owed_together_max():
            self.blocked = True

    # -- delayed entries ----------------------------------------------------------------------------------------------

    def hold(self, entry_id: int, deliver_at_ms: int, slot: int = 0) -> None:
        """Keep an entry back until it is due."""
        self.delays.hold(entry_id, deliver_at_ms, slot)
        self._set_timer()

    def _cutoff_ms(self) -> int:
        """Entries due by now are delivered at once; unless we are told to be strict, a tick early is early enough."""
        broker = self.subscription.topic.broker
        tick_ms = 0 if broker.limits.delayed_strict else self.subscription.topic.policies.delayed_delivery.tick_ms
        return broker.clock.wall_ms() + tick_ms

    def _set_timer(self) -> None:
        """Look again when the first is due."""
        next_ms = self.delays.next_ms
        if next_ms is None or (self._timer is not None and self._check_at_ms <= next_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        broker = self.subscription.topic.broker
        self._check_at_ms = next_ms
        wait_s = (next_ms - broker.clock.wall_ms()) / 1000
        wait_s = min(max(wait_s, DELAY_CHECK_S_MIN), DELAY_CHECK_S_MAX)
        self._timer = broker.loop.call_later(wait_s, self._look_for_due)

    def _look_for_due(self) -> None:
        self._timer = None
        next_ms = self.delays.next_ms
        if next_ms is not None and next_ms <= self.subscription.topic.broker.clock.wall_ms():
            cursor = self.subscription.cursor
            self._release(
                held for held in self.delays.due(self._cutoff_ms()) if not cursor.is_acknowledged(held.entry_id)
            )
            self.subscription.wake()
        self._set_timer()

    def _release(self, due: Iterable[Held]) -> None:
        for held in due:
            self.replay.add(held.entry_id)

    # -- again --------------------------------------------------------------------------------------------------------

    def again(self, ready: list[Consumer]) -> range:
        """The lowest entries that wait and follow one another."""
        return self.replay.next(sum(consumer.permits for consumer in ready))

    def waits(self) -> bool:
        """Whether anything waits to be delivered again."""
        return bool(self.replay)

    def deliver_again(self, batch: Batch, row: int, stop: int) -> bool:
        """Send those of these entries that wait."""
        ids = batch.entry_ids
        while row < stop:
            end = row
            while end < stop and ids[end] in self.replay:
                end += 1
            if end == row:
                row += 1
                continue
            ready = self.ready()
            if not ready:
                return False
            reached = self._hand_out(batch, row, end, ready)
            self.replay.discard(ids[row:reached])
            row = reached
        return True

    def missing(self, entry_ids: Iterable[int]) -> None:
        """They wait for nothing."""
        self.replay.discard(entry_ids)

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Those of them that it owes."""
        del epoch
        pending = consumer.pending
        owed = [entry for entry in entry_ids if entry in pending] if entry_ids else list(pending)
        for entry_id in owed:
            self.redeliveries[entry_id] = self.redeliveries.get(entry_id, 0) + 1
        messages = self._give_back(consumer, owed)
        consumer.messages_redelivered += messages
        self.subscription.messages_redelivered += messages

    def _give_back(self, consumer: Consumer, entry_ids: list[int]) -> int:
        """Entries sent to this consumer and not acknowledged are to be delivered again; how many messages they hold."""
        messages = sum(map(consumer.pending.pop, entry_ids))
        self._wait_again(consumer, entry_ids)
        self._pay(consumer, messages)
        return messages

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        del consumer
        for entry_id in entry_ids:
            self.replay.add(entry_id)

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each entry was given back."""
        counts = self.redeliveries
        return [counts.get(entry_id, 0) for entry_id in entry_ids] if counts else None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer, entry_ids: Sequence[int], newly: int) -> None:
        """They are owed by nobody any more, and wait no longer."""
        del newly
        pop, messages, foreign = consumer.pending.pop, 0, []
        for entry_id in entry_ids:
            owed = pop(entry_id, 0)
            if owed:
                messages += owed
            else:
                foreign.append(entry_id)
        consumer.acks += messages
        self._pay(consumer, messages)
        if foreign:
            self._settle_elsewhere(foreign)
        if self.redeliveries:
            for entry_id in entry_ids:
                self.redeliveries.pop(entry_id, None)

    def _settle_elsewhere(self, entry_ids: Iterable[int]) -> None:
        """Entries acknowledged by somebody who does not owe them: another consumer, or one that gave them back."""
        entry_ids = list(entry_ids)
        self.missing(entry_ids)
        for consumer in self.subscription.consumers:
            if not consumer.pending:
                continue
            settled = [entry_id for entry_id in entry_ids if entry_id in consumer.pending]
            self._pay(consumer, sum(consumer.pending.pop(entry_id) for entry_id in settled))
            self._settled(consumer, settled)

    def _settled(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """A consumer does not owe these any more."""

    def members_acknowledged(self, consumer: Consumer, entry_id: int) -> None:
        """Whoever was sent the batch owes the rest of it."""
        wanted = self.subscription.cursor.wanted_of(entry_id)
        for owner in (consumer, *self.subscription.consumers):
            owed = owner.pending.get(entry_id)
            if owed is not None and wanted is not None:
                owner.pending[entry_id] = min(owed, wanted)
                consumer.acks += owed - owner.pending[entry_id]
                self._pay(owner, owed - owner.pending[entry_id])
                return

    def passed(self, entry_id: int) -> None:
        """Nobody owes what is behind, and nothing of it waits."""
        for consumer in self.subscription.consumers:
            settled = [owed for owed in consumer.pending if owed <= entry_id]
            self._pay(consumer, sum(consumer.pending.pop(owed) for owed in settled))
            self._settled(consumer, settled)
        self.replay.discard_through(entry_id)
        self.redeliveries = {entry: count for entry, count in self.redeliveries.items() if entry > entry_id}

    def _pay(self, consumer: Consumer, messages: int) -> None:
        """A consumer owes so many less. Dispatch goes on when half of what had stopped it is paid, as in Pulsar."""
        subscription = self.subscription
        consumer.unacked -= messages
        subscription.unacked -= messages
        if self.blocked and subscription.unacked <= self._owed_together_max() // 2:
            self.blocked = False
            subscription.wake()
        if consumer.blocked and consumer.unacked <= self._owed_max() // 2:
            consumer.blocked = False
            subscription.wake()

    def limits_changed(self) -> None:
        """Who owes too much may be another question now."""
        self.blocked = self.subscription.unacked >= self._owed_together_max()
        for consumer in self.subscription.consumers:
            consumer.blocked = consumer.unacked >= self._owed_max()


def _entry(batch: Batch, row: int) -> memoryview:
    start = batch.offsets[row]
    return memoryview(batch.data)[start : start + batch.lengths[row]]
