# SPDX-License-Identifier: Apache-2.0
"""Finds again, when a topic is loaded, what open and aborted transactions have to do with it.

Why from the log: which entries belong to an open transaction is in their metadata. The stored part of a transaction
says from where on to look, so only a topic with open transactions is read, and only its end.
Where: the loader calls this before anybody gets the topic.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.publishing.transaction_entries import TransactionEntries
from penstock.core.units import MIB
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.topics.topic import Topic
    from penstock.core.transaction_id import TransactionId
    from penstock.storage.entry_log import ReadResult
    from penstock.storage.transaction_rows import TopicTransactions, TransactionData, TransactionPart

# Entries are read in portions of this size: about 2 ms of the loop each.
ENTRIES: Final = 500
BYTES: Final = 2 * MIB


class Restoring:
    """Restores the transactions of topics. All methods are called on the event loop."""

    def __init__(self, data: TransactionData, changes: Changes, reads: LogReads) -> None:
        self._data = data
        self._changes = changes
        self._reads = reads

    async def restore(self, topic: Topic) -> None:
        """Restore the transactions of a topic that is being loaded. Raises MetadataFailed, ReadFailed."""
        if topic.ledger_id not in self._data.ledgers:
            return
        loaded: list[TopicTransactions] = []
        await self._changes.stored(partial(self._data.load, topic.ledger_id, loaded.append))
        (stored,) = loaded
        entries = TransactionEntries(topic.last_entry_id)
        for first, last in stored.aborted:
            entries.aborted.add_range(first, last)
        await self._find(topic, entries, [part for part in stored.parts if not part.subscription])
        entries.forget_before(topic.first_entry_id)
        if not entries.unused:
            topic.transactions = entries
            topic.last_entry_id = entries.readable
        for subscription in topic.subscriptions.values():
            topic.pass_cancelled(subscription.cursor)
        for name, transaction, ack in stored.pending:
            if name in topic.subscriptions:
                topic.subscriptions[name].transactional.restore(transaction, ack)

    async def _find(self, topic: Topic, entries: TransactionEntries, parts: Iterable[TransactionPart]) -> None:
        entries.open.update({part.id: [] for part in parts})
        entry_id = max(min((part.first_entry for part in parts), default=entries.durable + 1), topic.first_entry_id)
        while entry_id <= entries.durable:
            result = await self._reads.read(topic.ledger_id, entry_id, bytes_max=BYTES, entries_max=ENTRIES)
            for found, transaction in _transactions(result):
                if transaction in entries.open:
                    entries.sent(transaction, found, found)
            if result.next_entry_id <= entry_id:
                break
            entry_id = result.next_entry_id


def _transactions(result: ReadResult) -> Iterator[tuple[int, TransactionId]]:
    for batch in result.batches:
        for entry_id, entry in batch.entries():
            try:
                transaction = metadata.transaction_of(metadata.decode(entry))
            except ProtocolError:
                continue
            if transaction is not None:
                yield entry_id, transaction
