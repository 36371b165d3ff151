# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements in transactions: pending until the transaction ends, then applied to the cursor or taken back.

Where: `Subscription.transactional`; the coordinator of transactions calls this, and stores what is pending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.subscriptions.pending_acks import PendingAcks, Undelivered, words_of
from penstock.core.errors import NotAllowed, TooManyRequests
from penstock.storage.transaction_rows import PendingAck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.broker.subscriptions.consumer import Consumer, DispatchServices
    from penstock.broker.subscriptions.dispatcher import Dispatcher
    from penstock.broker.subscriptions.pending_acks import TransactionAcks
    from penstock.broker.subscriptions.state import SubscriptionState
    from penstock.core.transaction_id import TransactionId
    from penstock.wire.events import AckRun

# What a client can do that is refused for lack of memory.
INSTEAD: Final = "end transactions"


class TransactionalAcks:
    """The acknowledgements of open transactions in one subscription."""

    __slots__ = ("_rewind", "_services", "_state", "_wake")

    def __init__(
        self,
        state: SubscriptionState,
        services: DispatchServices,
        *,
        rewind: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self._state = state
        self._services = services
        self._rewind = rewind
        self._wake = wake

    # -- while it is open

    def acknowledge(self, transaction: TransactionId, consumer: Consumer, ack: AckRun) -> PendingAck:
        """Let an ACK be pending; returns what is to be stored. Ids that do not exist are ignored.

        Raises:
            TransactionConflict: some of it is acknowledged, or by another transaction.
            NotAllowed: it is cumulative, and several consumers share the messages.
            TooManyRequests: there is no memory for it.
        """
        state, dispatcher = self._state, self._state.dispatcher
        assert dispatcher is not None, "a consumer is attached"
        if ack.cumulative and dispatcher.individual:
            raise NotAllowed("messages that several consumers share are acknowledged one by one")
        pending = self._pending_ack(ack)
        acks = state.pending or PendingAcks(state.cursor)
        acks.check(transaction, pending)
        self._state.memory.row.charge_for(
            "this acknowledgement", acks.need(transaction, pending), instead=INSTEAD, error=TooManyRequests
        )
        acks.add(transaction, pending)
        self._hold(acks)
        self._tell(dispatcher, consumer, pending)
        return pending

    def restore(self, transaction: TransactionId, pending: PendingAck) -> None:
        """Let an ACK be pending that was stored."""
        acks = self._state.pending or PendingAcks(self._state.cursor)
        self._state.memory.row.charge(acks.add(transaction, pending))
        self._hold(acks)

    def _pending_ack(self, ack: AckRun) -> PendingAck:
        last, ledger_id = self._state.topic.last_entry_id, self._state.topic.ledger_id
        rows = [
            row for row, entry_id in enumerate(ack.entry_ids) if entry_id <= last and ack.ledger_ids[row] == ledger_id
        ]
        whole = sorted({ack.entry_ids[row] for row in rows if row not in ack.ack_sets})
        members = {
            ack.entry_ids[row]: (ack.batch_sizes.get(row, 0), ack.ack_sets[row]) for row in rows if row in ack.ack_sets
        }
        if not ack.cumulative:
            return PendingAck(list(_ranges(whole)), members)
        through = max([*whole, *(entry_id - 1 for entry_id in members)], default=-1)
        return PendingAck((), members, through)

    def _hold(self, acks: PendingAcks) -> None:
        if self._state.pending is None:
            self._state.pending, self._state.undelivered = acks, Undelivered(self._state.cursor, acks)

    def _tell(self, dispatcher: Dispatcher, consumer: Consumer, pending: PendingAck) -> None:
        """For the dispatcher these messages are acknowledged: they are not delivered again while this is pending."""
        entry_ids = [entry_id for first, last in pending.ranges for entry_id in range(first, last + 1)]
        for entry_id in pending.members:
            left = self._state.undelivered.partly_acknowledged(entry_id, entry_id).get(entry_id)
            if left is None:
                entry_ids.append(entry_id)
            else:
                dispatcher.acknowledged_in_part(consumer, entry_id, left)
        if entry_ids:
            dispatcher.acknowledged(consumer, entry_ids, len(entry_ids))
        consumer.last_acked_ms = self._state.last_acked_ms = self._services.clock.wall_ms()

    # -- when it ends

    def apply(self, transaction: TransactionId) -> bool:
        """Acknowledge what a transaction has acknowledged; it stays pending until `end`. False if it was nothing."""
        acks = self.pending.get(transaction)
        if acks is None:
            return False
        state, cursor = self._state, self._state.cursor
        before = cursor.version
        newly = cursor.acknowledge_through(min(acks.through, state.topic.last_entry_id))
        newly += cursor.acknowledge_many(list(acks.ids))
        for entry_id, (left, _) in acks.members.items():
            newly += cursor.acknowledge_batch(entry_id, words_of(left))
        state.acks += newly
        return cursor.version != before

    def end(self, transaction: TransactionId, *, commit: bool) -> None:
        """Forget a transaction; unless it was committed, what it has acknowledged is delivered again."""
        state = self._state
        acks = state.pending.end(transaction) if state.pending is not None else None
        if acks is None:
            return
        assert state.pending is not None
        state.memory.row.release(acks.nbytes)
        if not state.pending.by_transaction:
            state.pending, state.undelivered = None, state.cursor
        if commit:
            state.acknowledged_for_view(list(acks.ids))
            self._services.cursors.moved(state)
            state.tell_of_end()
        else:
            self._deliver_again(acks)
        self._wake()

    def _deliver_again(self, acks: TransactionAcks) -> None:
        """A cumulative one is not, as in Pulsar: its consumer asks for that, in the order that it keeps."""
        state, dispatcher = self._state, self._state.dispatcher
        entry_ids = [*acks.ids, *acks.members]
        again = [one for one in entry_ids if one < state.read_entry_id and not state.undelivered.is_acknowledged(one)]
        if dispatcher is None or not again:
            return
        if dispatcher.individual:
            dispatcher.add_replay(again)
        else:
            self._rewind()

    def release(self) -> None:
        """Release the memory: the subscription is deleted, or its topic unloaded."""
        state = self._state
        if state.pending is not None:
            state.memory.row.release(sum(acks.nbytes for acks in state.pending.by_transaction.values()))
            state.pending, state.undelivered = None, state.cursor

    @property
    def pending(self) -> Mapping[TransactionId, TransactionAcks]:
        """Acknowledgements of open transactions."""
        return {} if self._state.pending is None else self._state.pending.by_transaction


def _ranges(ascending: list[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending ids as ranges, both ends included."""
    start = at = 0
    for at, entry_id in enumerate(ascending):
        if at and entry_id != ascending[at - 1] + 1:
            yield ascending[start], ascending[at - 1]
            start = at
    if ascending:
        yield ascending[start], ascending[at]
