# SPDX-License-Identifier: Apache-2.0
"""Administration of transactions: which are open, for how long, in which topics; and aborting one.

Where: routes of the admin port. All methods are called on the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import TransactionNotFound
from penstock.core.transaction_id import TransactionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.broker.administration.finder import Finder
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.broker.transactions.others import End, Wanted
    from penstock.broker.transactions.transaction import Transaction
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.storage.transaction_rows import StoredTransaction

_PATH: Final = "/admin/v3/transactions"


class TransactionAdmin:
    """Admin operations on transactions."""

    def __init__(
        self,
        coordinator: Coordinator,
        topics: TopicDirectory,
        finder: Finder,
        clock: Clock,
        elsewhere: Elsewhere,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._finder = finder
        self._clock = clock
        self._elsewhere = elsewhere

    async def coordinators(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of the coordinators of the brokers that answer, by number. Raises NotAllowed."""
        own = self._coordinator.number
        found = {str(own): await self.coordinator(own)}
        answers, _ = await self._elsewhere.answers(f"{_PATH}/coordinatorStats")
        for answer in answers:
            found |= answer
        return found

    async def coordinator(self, number: int) -> Mapping[str, Any]:
        """Statistics of one coordinator. Raises NotAllowed, CoordinatorNotFound, ServiceNotReady."""
        self._coordinator.check_enabled()
        if self._elsewhere.has(number):
            return dict(await self._elsewhere.read(number, f"{_PATH}/coordinatorStats?coordinatorId={number}"))
        self._coordinator.check_here(number)
        ids = [one.id.number for one in self._coordinator.open_ones()]
        return {
            "state": "Ready",
            "leastSigBits": max(ids, default=0),
            "lowWaterMark": min(ids, default=0),
            "ongoingTxnSize": len(ids),
        }

    async def slow(self, timeout_ms: int) -> Mapping[str, Mapping[str, Any]]:
        """The transactions that have been open for longer than this, oldest first of each coordinator.

        Those of brokers that do not answer are missing. Raises NotAllowed.
        """
        self._coordinator.check_enabled()
        before_ms = self._clock.wall_ms() - timeout_ms
        own = [one for one in self._coordinator.open_ones() if one.started_ms <= before_ms]
        found = {str(one.id): self._described(one) for one in own}
        answers, _ = await self._elsewhere.answers(f"{_PATH}/slowTransactions/{timeout_ms}")
        for answer in answers:
            found |= answer
        return found

    async def metadata(self, transaction: TransactionId) -> Mapping[str, Any]:
        """An open transaction. Raises NotAllowed, TransactionNotFound, ServiceNotReady."""
        self._coordinator.check_enabled()
        if self._elsewhere.has(transaction.coordinator):
            target = f"{_PATH}/transactionMetadata/{transaction.coordinator}/{transaction.number}"
            return dict(await self._elsewhere.read(transaction.coordinator, target))
        found = self._coordinator.find(transaction)
        if found is None or transaction.coordinator != self._coordinator.number:
            raise TransactionNotFound(transaction)
        return self._described(found)

    async def abort(self, transaction: TransactionId) -> None:
        """Abort a transaction, whoever has opened it. Raises as `Coordinator.end`, and ServiceNotReady."""
        self._coordinator.check_enabled()
        if self._elsewhere.has(transaction.coordinator):
            target = f"{_PATH}/abortTransaction/{transaction.coordinator}/{transaction.number}"
            await self._elsewhere.ask(transaction.coordinator, "POST", target)
            return
        await self._coordinator.end(transaction, None, commit=False)

    # -- what other brokers ask

    async def join(self, stored: StoredTransaction, wanted: Wanted) -> list[tuple[int, str, str, int]]:
        """As `Coordinator.join`."""
        return [(*part, first) for part, first in await self._coordinator.join(stored, wanted)]

    async def end_here(self, ends: Sequence[End]) -> None:
        """As `Coordinator.end_here`, for each. Raises the first error, when all others are done."""
        work = (self._coordinator.end_here(transaction, commit=commit) for transaction, commit in ends)
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def which_open(self, numbers: Sequence[int]) -> list[StoredTransaction]:
        """Return those of these transactions of this coordinator that are open, or being ended."""
        ids = (TransactionId(self._coordinator.number, number) for number in numbers)
        found = map(self._coordinator.find, ids)
        return [one.stored() for one in found if one is not None]

    # -- in one topic

    async def buffer(self, name: TopicName) -> Mapping[str, Any]:
        """Statistics of the transactions in a topic. Raises NotAllowed, and as `Finder.topic`."""
        self._coordinator.check_enabled()
        topic = await self._finder.topic(name, "Transactions of a topic")
        entries = topic.transactions
        return {
            "state": "Ready" if entries is not None else "NoSnapshot",
            "maxReadPosition": f"{topic.ledger_id}:{topic.last_entry_id}",
            "ongoingTxnSize": len(entries.open) if entries is not None else 0,
        }

    async def in_buffer(self, name: TopicName, transaction: TransactionId) -> Mapping[str, Any]:
        """Where a transaction begins in a topic; nothing if it has sent nothing there. Raises as `buffer`."""
        self._coordinator.check_enabled()
        topic = await self._finder.topic(name, "Transactions of a topic")
        return self._first_entry(transaction, topic.text, topic.ledger_id)

    async def pending_acks(self, name: TopicName, subscription: str) -> Mapping[str, Any]:
        """Statistics of the transactions in a subscription. Raises NotAllowed, and as `Finder.subscription`."""
        self._coordinator.check_enabled()
        found = await self._finder.subscription(name, subscription, "Acknowledgements in transactions")
        count = len(found.transactional.pending)
        return {"state": "Ready" if count else "None", "ongoingTxnSize": count}

    async def in_pending_acks(
        self, name: TopicName, subscription: str, transaction: TransactionId
    ) -> Mapping[str, Any]:
        """Up to where a transaction has acknowledged all; nothing if it has not. Raises as `pending_acks`."""
        self._coordinator.check_enabled()
        found = await self._finder.subscription(name, subscription, "Acknowledgements in transactions")
        acks = found.transactional.pending.get(transaction)
        if acks is None or acks.through < 0:
            return {}
        return {"cumulativeAckPosition": f"{found.topic.ledger_id}:{acks.through}"}

    # -- inside

    def _described(self, transaction: Transaction) -> Mapping[str, Any]:
        produced: dict[str, Any] = {}
        acked: dict[str, dict[str, Any]] = {}
        for part in transaction.parts:
            if part.subscription:
                acked.setdefault(part.topic, {})[part.subscription] = {}
            else:
                produced[part.topic] = self._first_entry(transaction.id, part.topic, part.ledger_id)
        return {
            "txnId": str(transaction.id),
            "status": transaction.status,
            "openTimestamp": transaction.started_ms,
            "timeoutAt": transaction.timeout_ms,
            "owner": transaction.owner,
            "producedPartitions": produced,
            "ackedPartitions": acked,
        }

    def _first_entry(self, transaction: TransactionId, topic: str, ledger_id: int) -> Mapping[str, Any]:
        loaded = self._topics.get(topic)
        entries = loaded.transactions if loaded is not None and loaded.ledger_id == ledger_id else None
        ranges = entries.open.get(transaction) if entries is not None else None
        return {"startPosition": f"{ledger_id}:{ranges[0][0]}", "aborted": False} if ranges else {}
