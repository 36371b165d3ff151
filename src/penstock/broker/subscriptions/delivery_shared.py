# SPDX-License-Identifier: Apache-2.0
"""Shared subscriptions: entries go round, and what is not acknowledged comes back with a count.

A consumer owes what it was sent until it acknowledges it; whoever owes too much gets no more.
Where: the delivery of a subscription whose consumers said Shared; Key_Shared builds on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.again import ENTRIES_MAX
from penstock.broker.subscriptions.delivery import Delivery
from penstock.broker.subscriptions.dispatch import share, take
from penstock.broker.subscriptions.owed import ENTRY_BYTES, Owed
from penstock.broker.subscriptions.replay import Replay
from penstock.governance.memory_pool import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.members import Consumer
    from penstock.storage.entry_log import Batch

# So many entries a consumer may owe, however little memory there is for their ids.
OWED_ALWAYS: Final = 64


class Shared(Delivery):
    """Round robin with acknowledgements one by one."""

    __slots__ = ("_charged_bytes", "_owed", "_short", "_turn", "blocked", "redeliveries", "replay")

    individual = True

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self.replay = Replay()
        self.redeliveries = Owed()  # how often an entry was given back, while it is not acknowledged
        self.blocked = False  # consumers together owe too much
        self._turn = 0
        self._owed = 0  # entries that consumers were sent and owe
        self._short = False  # somebody gets nothing because the row of the memory budget is used
        self._charged_bytes = 0

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
            if consumer.permits > 0
            and not consumer.blocked
            and self._entries_left(consumer) > 0
            and consumer.session.connection.takes_entries()
        ]

    def allowance(self, consumer: Consumer) -> int:
        """What it asked for, short of its bound on unacknowledged messages, and of the memory for their ids."""
        return min(consumer.permits, self._owed_max() - consumer.unacked, self._entries_left(consumer))

    def _owed_max(self) -> int:
        return self.subscription.topic.policies.max_unacked_per_consumer or UNBOUNDED

    def _owed_together_max(self) -> int:
        return self.subscription.topic.policies.max_unacked_per_subscription or UNBOUNDED

    # -- memory -------------------------------------------------------------------------------------------------------

    def _entries_left(self, consumer: Consumer) -> int:
        """How many entries this consumer may owe in addition, by the memory that their ids take.

        Once half of the row is used, nobody owes more than what is left: so something is always left for others.
        """
        row, parts = self.subscription.topic.broker.dispatch_memory, len(self.subscription.consumers) + 1
        free = row.available_bytes // self.entry_bytes()
        if row.available_bytes * 2 > row.size_bytes and free > parts:
            return free // parts
        owed = len(consumer.pending)
        left = max((free - owed) // parts, OWED_ALWAYS - owed)
        if left <= 0:
            self._short = True
            self.subscription.topic.broker.memory_waits.add(self.subscription)
        return left

    def entry_bytes(self) -> int:
        """What is kept of an entry that is owed."""
        return ENTRY_BYTES

    def held_bytes(self) -> int:
        """What is kept of all entries that are owed, wait, or were given back."""
        return ENTRY_BYTES * (self._owed + len(self.replay) + 2 * len(self.redeliveries))

    def charge(self) -> None:
        """Bring the books up to date."""
        row, nbytes = self.subscription.topic.broker.dispatch_memory, self.held_bytes()
        if nbytes > self._charged_bytes:
            row.take(nbytes - self._charged_bytes)
        else:
            row.give_back(self._charged_bytes - nbytes)
        self._charged_bytes = nbytes

    def close(self) -> None:
        """What was kept is gone with the delivery."""
        self.subscription.topic.broker.dispatch_memory.give_back(self._charged_bytes)
        self._charged_bytes = 0

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
            if len(subscription.consumers) == 1:
                self._turn = 1  # as `share` would say
            return subscription.send(ready[0], batch, rows[:entries], total) if entries else 0
        shares, self._turn = share(
            len(rows),
            messages,
            [self.allowance(consumer) for consumer in ready],
            [consumer.priority_level for consumer in ready],
            self._turn % len(ready),
            subscription.topic.broker.limits.round_robin_entries_max,
        )
        sent = 0
        for part in shares:
            sent += subscription.send(ready[part.consumer_index], batch, rows[part.start : part.stop], part.messages)
            if sent < part.stop:
                break  # That one has no room for the rest, which goes to the others in another round.
        return sent

    def sent(self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int) -> None:
        """They are owed from now on."""
        consumer.pending.add(entry_ids, counts)
        self._owed += len(entry_ids)
        self.charge()
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
        if not view.may_hold:
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
        self.replay.update(entry_ids)
        self.charge()

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
            if not taken and self.ready() == ready:
                return False
            self.replay.discard([ids[one] for one in rows[:taken]])
            self.charge()
            rows = rows[taken:]
        return True

    def missing(self, entry_ids: Iterable[int]) -> None:
        """They wait for nothing."""
        self.replay.discard(entry_ids)
        self.charge()

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> None:
        """Those of them that it owes."""
        del epoch
        pending = consumer.pending
        owed = [entry for entry in entry_ids if entry in pending] if entry_ids else list(pending)
        self.redeliveries.count_up(owed)
        messages = self._give_back(consumer, owed)
        consumer.messages_redelivered += messages
        self.subscription.messages_redelivered += messages

    def take_back(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """They go to others, or wait; that counts for no redelivery."""
        self._give_back(consumer, [entry_id for entry_id in entry_ids if entry_id in consumer.pending])

    def _give_back(self, consumer: Consumer, entry_ids: list[int]) -> int:
        """Entries sent to this consumer and not acknowledged are to be delivered again; how many messages they hold."""
        messages, _ = self._pop(consumer, entry_ids)
        self._wait_again(consumer, entry_ids)
        self._pay(consumer, messages)
        return messages

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        del consumer
        self.replay.update(entry_ids)

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each entry was given back."""
        counts = self.redeliveries
        return [counts.get(entry_id) for entry_id in entry_ids] if counts else None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer, entry_ids: Sequence[int], newly: int) -> None:
        """They are owed by nobody any more, and wait no longer."""
        del newly
        messages, foreign = self._pop(consumer, entry_ids)
        consumer.acks += messages
        self._pay(consumer, messages)
        if foreign:
            self._settle_elsewhere(foreign)
        if self.redeliveries:
            self.redeliveries.pop_all(entry_ids)
            self.charge()

    def _settle_elsewhere(self, entry_ids: Iterable[int]) -> None:
        """Entries acknowledged by somebody who does not owe them: another consumer, or one that gave them back."""
        entry_ids = list(entry_ids)
        self.missing(entry_ids)
        for consumer in self.subscription.consumers:
            if not consumer.pending:
                continue
            settled = [entry_id for entry_id in entry_ids if entry_id in consumer.pending]
            self._take_off(consumer, settled)

    def _pop(self, consumer: Consumer, entry_ids: Sequence[int]) -> tuple[int, list[int]]:
        """Entries that a consumer owes no more: the messages that they hold, and those that it did not owe."""
        before = len(consumer.pending)
        messages, foreign = consumer.pending.pop_all(entry_ids)
        self._owed -= before - len(consumer.pending)
        return messages, foreign

    def _take_off(self, consumer: Consumer, settled: list[int]) -> None:
        messages, _ = self._pop(consumer, settled)
        self._pay(consumer, messages)
        self._settled(consumer, settled)

    def _settled(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """A consumer does not owe these any more."""

    def members_acknowledged(self, consumer: Consumer, entry_id: int) -> None:
        """Whoever was sent the batch owes the rest of it."""
        wanted = self.subscription.cursor.wanted_of(entry_id)
        for owner in (consumer, *self.subscription.consumers):
            owed = owner.pending.get(entry_id)
            if owed and wanted is not None:
                left = min(owed, wanted)
                owner.pending.set(entry_id, left)
                consumer.acks += owed - left
                self._pay(owner, owed - left)
                return

    def passed(self, entry_id: int) -> None:
        """Nobody owes what is behind, and nothing of it waits."""
        for consumer in self.subscription.consumers:
            self._take_off(consumer, consumer.pending.through(entry_id))
        self.replay.discard_through(entry_id)
        self.redeliveries.pop_all(self.redeliveries.through(entry_id))
        self.charge()

    def given_up(self, entry_id: int) -> None:
        """Nobody owes it, and it waits no longer."""
        self._settle_elsewhere([entry_id])
        self.redeliveries.pop(entry_id)
        self.charge()

    def _pay(self, consumer: Consumer, messages: int) -> None:
        """A consumer owes so many less. Dispatch goes on when half of what had stopped it is paid, as in Pulsar."""
        subscription = self.subscription
        consumer.unacked -= messages
        subscription.unacked -= messages
        self.charge()
        if self._short:
            self._short = False
            subscription.wake()
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
