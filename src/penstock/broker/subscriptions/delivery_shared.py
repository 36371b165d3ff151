# SPDX-License-Identifier: Apache-2.0
"""Shared subscriptions: entries go round, and what is not acknowledged comes back with a count.

A consumer owes what it was sent until it acknowledges it; whoever owes too much gets no more.
Where: the delivery of a subscription whose consumers said Shared; Key_Shared builds on it.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from penstock.broker.subscriptions.again import ENTRIES_MAX
from penstock.broker.subscriptions.delivery import Delivery
from penstock.broker.subscriptions.dispatch import share, take
from penstock.broker.subscriptions.replay import Replay
from penstock.governance.memory_pool import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer
    from penstock.storage.entry_log import Batch


class Shared(Delivery):
    """Round robin with acknowledgements one by one."""

    __slots__ = ("_turn", "blocked", "redeliveries", "replay")

    individual = True

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.replay = Replay()
        self.redeliveries: dict[int, int] = {}  # how often an entry was given back, while it is not acknowledged
        self.blocked = False  # consumers together owe too much
        self._turn = 0

    # -- consumers come and go ----------------------------------------------------------------------------------------

    def attached(self, consumer: Consumer) -> None:
        """It may have something at once."""
        del consumer
        self.subscription.wake()

    def leave(self, consumer: Consumer) -> None:
        """What it did not acknowledge goes to others. That counts for no redelivery: it never asked for one."""
        self._give_back(consumer, list(consumer.pending))

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
        """Reading on would bring nothing that is due."""
        subscription = self.subscription
        view, topic = subscription.view, subscription.topic
        if view is None or topic.delayed is None or not view.number_of_delayed_messages:
            return False
        return view.should_pause_all_deliveries(topic.delayed.now_ms(), subscription.read_entry_id, topic.last_entry_id)

    # -- new entries --------------------------------------------------------------------------------------------------

    def deliver(self, batch: Batch, row: int, stop: int, ready: list[Consumer]) -> int:
        """Send what is not held, a turn each."""
        stop = min(stop, row + max(sum(map(self.allowance, ready)), 1))
        rows = self.free(batch, row, stop)
        taken = self._hand_out(batch, rows, ready) if rows else 0
        return rows[taken] if taken < len(rows) else stop

    def free(self, batch: Batch, row: int, stop: int) -> Sequence[int]:
        """Which of these rows are not held."""
        topic, view = self.subscription.topic, self.subscription.view
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

    def _hand_out(self, batch: Batch, rows: Sequence[int], ready: list[Consumer]) -> int:
        """Send these rows, ascending, as far as the consumers can take them; returns how many were sent."""
        subscription = self.subscription
        counts = subscription.counts(batch, rows[0], rows[-1] + 1)
        if counts is None:
            messages = None
        elif isinstance(rows, range):
            messages = counts[rows.start : rows.stop]
        else:
            messages = [counts[row] for row in rows]
        if len(ready) == 1:
            entries, total = take(messages, 0, len(rows), self.allowance(ready[0]))
            if entries:
                subscription.send(ready[0], batch, rows[:entries], total)
            if len(subscription.consumers) == 1:
                self._turn = 1  # as `share` would say
            return entries
        shares, self._turn = share(
            len(rows),
            messages,
            [self.allowance(consumer) for consumer in ready],
            [consumer.priority_level for consumer in ready],
            self._turn % len(ready),
            subscription.topic.broker.limits.round_robin_entries_max,
        )
        for part in shares:
            subscription.send(ready[part.consumer_index], batch, rows[part.start : part.stop], part.messages)
        return shares[-1].stop if shares else 0

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

    def take_due(self, ready: list[Consumer]) -> None:
        """Let wait what was held and is due by now."""
        subscription = self.subscription
        view, index = subscription.view, subscription.topic.delayed
        if view is None or index is None:
            return
        if view.back_fill(subscription.read_entry_id) is not None:
            subscription.topic.broker.delays.look_after(index)
        if not view.number_of_delayed_messages:
            return
        room = min(sum(consumer.permits for consumer in ready), ENTRIES_MAX) - len(self.replay)
        now_ms = index.now_ms()
        if room <= 0:
            return
        if not view.has_message_available(now_ms, subscription.read_entry_id):
            index.set_timer()
            return
        ready_ms = view.next_delivery_ms()
        due = view.get_scheduled_messages(now_ms, room, subscription.read_entry_id)
        index.handed_out(len(due), ready_ms)
        self.wait_due(due)

    def wait_due(self, entry_ids: Iterable[int]) -> None:
        """These were held, and are due."""
        for entry_id in entry_ids:
            self.replay.add(entry_id)

    # -- again --------------------------------------------------------------------------------------------------------

    def again(self, ready: list[Consumer]) -> list[int]:
        """The lowest entries that wait."""
        return self.replay.next(min(sum(consumer.permits for consumer in ready), ENTRIES_MAX))

    def waits(self) -> bool:
        """Whether anything waits to be delivered again."""
        return bool(self.replay)

    def deliver_again(self, batch: Batch, row: int, stop: int) -> bool:
        """Send those of these entries that wait."""
        ids = batch.entry_ids
        rows = [one for one in range(row, stop) if ids[one] in self.replay]
        while rows:
            ready = self.ready()
            taken = self._hand_out(batch, rows, ready) if ready else 0
            if not taken:
                return False
            self.replay.discard([ids[one] for one in rows[:taken]])
            rows = rows[taken:]
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

    def given_up(self, entry_id: int) -> None:
        """Nobody owes it, and it waits no longer."""
        self._settle_elsewhere([entry_id])
        self.redeliveries.pop(entry_id, None)

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
