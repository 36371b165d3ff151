# SPDX-License-Identifier: Apache-2.0
"""Finds again, when a topic is loaded, what open and aborted transactions have to do with it.

Why from the log: which entries belong to an open transaction is in their metadata. The stored part of a transaction
says from where on to look, so only a topic with open transactions is read, and only its end.
Where: the loader calls this before anybody gets the topic.
"""

from __future__ import annotations

from contextlib import suppress
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
    from penstock.core.checksum import Buffer
    from penstock.storage.entry_log import ReadResult
    from penstock.storage.transaction_rows import TopicTransactions, TransactionData, TransactionPart
    from penstock.wire.codec import MessageMetadata

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
            for found, entry, about in _entries(result):
                transaction = metadata.transaction_of(about)
                if transaction is not None and transaction in entries.open:
                    messages = about.num_messages_in_batch
                    entries.sent(transaction, found, found, messages=messages, nbytes=len(entry))
            if result.next_entry_id <= entry_id:
                break
            entry_id = result.next_entry_id


def _entries(result: ReadResult) -> Iterator[tuple[int, Buffer, MessageMetadata]]:
    for batch in result.batches:
        for entry_id, entry in batch.entries():
            with suppress(ProtocolError):
                yield entry_id, entry, metadata.decode(entry)
