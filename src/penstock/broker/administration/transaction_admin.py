# SPDX-License-Identifier: Apache-2.0
"""Administration of transactions: which are open, for how long, in which topics; and aborting one.

Where: routes of the admin port. All methods are called on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.transactions.coordinator import OWN
from penstock.core.errors import TransactionNotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.transactions.coordinator import Coordinator
    from penstock.broker.transactions.transaction import Transaction
    from penstock.core.clock import Clock
    from penstock.core.transaction_id import TransactionId


class TransactionAdmin:
    """Admin operations on transactions."""

    def __init__(self, coordinator: Coordinator, topics: TopicDirectory, clock: Clock) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._clock = clock

    def coordinators(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of the coordinators, by number. Raises NotAllowed."""
        self._coordinator.check_enabled()
        ids = [one.id.number for one in self._coordinator.open_ones()]
        stats = {
            "state": "Ready",
            "leastSigBits": max(ids, default=0),
            "lowWaterMark": min(ids, default=0),
            "ongoingTxnSize": len(ids),
        }
        return {str(OWN): stats}

    def slow(self, timeout_ms: int) -> Mapping[str, Mapping[str, Any]]:
        """The transactions that have been open for longer than this, oldest first. Raises NotAllowed."""
        self._coordinator.check_enabled()
        before_ms = self._clock.wall_ms() - timeout_ms
        found = [one for one in self._coordinator.open_ones() if one.started_ms <= before_ms]
        return {str(one.id): self._described(one) for one in found}

    def metadata(self, transaction: TransactionId) -> Mapping[str, Any]:
        """An open transaction. Raises NotAllowed, TransactionNotFound."""
        self._coordinator.check_enabled()
        for one in self._coordinator.open_ones():
            if one.id == transaction:
                return self._described(one)
        raise TransactionNotFound(transaction)

    async def abort(self, transaction: TransactionId) -> None:
        """Abort a transaction, whoever has opened it. Raises as `Coordinator.end`."""
        self._coordinator.check_enabled()
        await self._coordinator.end(transaction, None, commit=False)

    def _described(self, transaction: Transaction) -> Mapping[str, Any]:
        produced: dict[str, Any] = {}
        acked: dict[str, dict[str, Any]] = {}
        for part in transaction.parts:
            if part.subscription:
                acked.setdefault(part.topic, {})[part.subscription] = {}
            else:
                produced[part.topic] = self._first_entry(transaction, part.topic, part.ledger_id)
        return {
            "txnId": str(transaction.id),
            "status": transaction.status,
            "openTimestamp": transaction.started_ms,
            "timeoutAt": transaction.timeout_ms,
            "owner": transaction.owner,
            "producedPartitions": produced,
            "ackedPartitions": acked,
        }

    def _first_entry(self, transaction: Transaction, topic: str, ledger_id: int) -> Mapping[str, Any]:
        loaded = self._topics.get(topic)
        entries = loaded.transactions if loaded is not None and loaded.ledger_id == ledger_id else None
        ranges = entries.open.get(transaction.id) if entries is not None else None
        return {"startPosition": f"{ledger_id}:{ranges[0][0]}", "aborted": False} if ranges else {}
