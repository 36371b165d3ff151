# SPDX-License-Identifier: Apache-2.0
"""Changes of what is stored about transactions, submitted to the file of a broker's topics.

Why in that file: a transaction that acknowledges changes cursors, which are there. So all that ends a transaction is
one change of one file. Where: `Catalog.transactions`. All methods are called on the loop and return at once; `done` is
called there when the change is durable or has failed, in the order of the changes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.errors import MetadataFailed
from penstock.storage import transaction_rows
from penstock.storage.catalog_rows import DamagedRow
from penstock.storage.metadata import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import apsw

    from penstock.core.transaction_id import TransactionId
    from penstock.storage.catalog_rows import CursorSave
    from penstock.storage.metadata import Done, MetadataFile
    from penstock.storage.transaction_rows import (
        EndedTransaction,
        PendingAck,
        StoredTransaction,
        StoredTransactions,
        TopicTransactions,
        TransactionPart,
    )


class TransactionData:
    """The tables of transactions.

    Attributes:
        at_start: what was stored when the broker was started.
        ledgers: those that have rows, or had; of others there is nothing to read.
    """

    def __init__(
        self,
        file: MetadataFile,
        at_start: StoredTransactions,
        show_cursors: Callable[[Iterable[CursorSave]], None],
    ) -> None:
        self._file = file
        self._show_cursors = show_cursors
        self._next_row = at_start.pending_rows
        self.at_start = at_start
        self.ledgers = set(at_start.ledgers)

    def put_part(self, transaction: StoredTransaction, part: TransactionPart, done: Done) -> None:
        """Store a part of an open transaction."""
        self.ledgers.add(part.ledger_id)
        self._submit(lambda db: transaction_rows.put_part(db, transaction, part), done)

    def put_pending(
        self, ledger_id: int, subscription: str, transaction: TransactionId, ack: PendingAck, done: Done
    ) -> None:
        """Store what an ACK acknowledges if its transaction is committed."""
        self.ledgers.add(ledger_id)
        row, self._next_row = self._next_row, self._next_row + 1
        self._submit(lambda db: transaction_rows.put_pending(db, ledger_id, subscription, transaction, row, ack), done)

    def end(self, ended: EndedTransaction, done: Done) -> None:
        """Store the outcome of a transaction, with all that follows from it."""
        self.ledgers.update(ledger_id for ledger_id, *_ in ended.aborted)
        saves = [save for _, save in ended.cursors]
        self._submit(lambda db: transaction_rows.end(db, ended), done, lambda _: self._show_cursors(saves))

    def load(self, ledger_id: int, take: Callable[[TopicTransactions], None], done: Done) -> None:
        """Pass to `take` what is stored about one topic, after all changes that were submitted before."""
        self._file.submit(Change(partial(_of_topic, ledger_id), take, done))

    def _submit(
        self, store: Callable[[apsw.Connection], Any], done: Done, show: Callable[[Any], None] = lambda _: None
    ) -> None:
        self._file.submit(Change(store, show, done))


def _of_topic(ledger_id: int, db: apsw.Connection) -> TopicTransactions:
    try:
        return transaction_rows.of_topic(db, ledger_id)
    except DamagedRow as error:
        raise MetadataFailed(f"transactions of ledger {ledger_id} cannot be read: {error}") from None
