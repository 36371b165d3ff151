# SPDX-License-Identifier: Apache-2.0
"""The tables of transactions: what is stored of open ones, the last outcomes, and the entries of aborted ones.

Why these rows suffice: entries of a transaction are in the log like all others, so a committed transaction needs no
trace in its topics; only aborted entries do. What ends a transaction is one change, so it ends everywhere or nowhere:
its rows go, cursors get its acknowledgements or `aborted_entries` gets its entries, and its outcome is remembered.

Where: `TransactionData` calls these functions on the metadata thread, inside its transactions. All raise apsw.Error,
and DamagedRow if a row does not fit its checksum.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import MetadataFailed
from penstock.core.transaction_id import TransactionId
from penstock.storage.catalog_cursors import save_cursors
from penstock.storage.catalog_rows import DamagedRow, opened, sealed
from penstock.storage.metadata import Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import apsw

    from penstock.storage.catalog_rows import CursorSave
    from penstock.storage.metadata import Done, MetadataFile


# Status of a transaction.
OPEN: Final = 0
COMMITTED: Final = 1
ABORTED: Final = 2

# With rows of ledgers, which are deleted with their topics.
TABLES_OF_TOPICS: Final = ("transaction_parts", "pending_acks", "aborted_entries")

_PUT: Final = "insert or replace into transactions values (?, ?, ?, ?, ?, ?, ?)"
_DELETE: Final = "delete from transactions where coordinator = ? and number = ?"
_DELETE_PARTS: Final = "delete from transaction_parts where coordinator = ? and number = ?"
_DELETE_PENDING: Final = "delete from pending_acks where coordinator = ? and number = ?"


class StoredTransaction(NamedTuple):
    """A transaction: an open one, or one that has ended lately."""

    id: TransactionId
    status: int
    started_ms: int  # wall time
    timeout_ms: int
    owner: str  # the role that opened it; empty without authentication


class TransactionPart(NamedTuple):
    """A topic that a transaction may send to, or a subscription that it may acknowledge."""

    ledger_id: int
    subscription: str  # empty: the topic itself
    id: TransactionId
    first_entry: int  # the topic's entries of the transaction come from here on


class PendingAck(NamedTuple):
    """Acknowledgements of one ACK, if its transaction is committed.

    `ranges` are of whole entries, both ends included. `members`: by batch, how many messages it has (0: unknown), and
    those that stay unacknowledged, as 64-bit words. `through` is the entry of a cumulative ACK, -1 for none.
    """

    ranges: Sequence[tuple[int, int]]
    members: Mapping[int, tuple[int, Sequence[int]]]
    through: int = -1


class EndedTransaction(NamedTuple):
    """Rows to store when a transaction ends."""

    stored: StoredTransaction  # with its outcome
    remembered: bool = True  # False: the coordinator that remembers it is another broker's
    aborted: Sequence[tuple[int, int, int]] = ()  # ledger, first and last entry
    cursors: Sequence[tuple[int, CursorSave]] = ()  # with their ledgers
    forget_below: int = 0  # numbers of transactions of this coordinator whose outcome is forgotten
    trimmed: Sequence[tuple[int, int]] = ()  # ledgers whose entries before this one are not in the log any more
    has_parts: bool = True  # False: there are no rows of its parts, nor of its acknowledgements
    has_pending: bool = True  # False: there are no rows of its acknowledgements


class TopicTransactions(NamedTuple):
    """Stored rows about transactions in one topic."""

    parts: Sequence[TransactionPart]
    pending: Sequence[tuple[str, TransactionId, PendingAck]]  # with their subscriptions, in the order of their ACKs
    aborted: Sequence[tuple[int, int]]


class StoredTransactions(NamedTuple):
    """Stored rows that a broker reads at its start."""

    transactions: Sequence[StoredTransaction]
    parts: Sequence[TransactionPart]
    ledgers: set[int]  # that have rows
    pending_rows: int  # above the number of every pending acknowledgement


def stored_transactions(db: apsw.Connection) -> StoredTransactions:
    """Return all transactions and their parts, and the ledgers that have rows about them."""
    transactions = [_transaction(row) for row in db.execute("select * from transactions")]
    parts = [_part(row) for row in db.execute("select * from transaction_parts")]
    ledgers: set[int] = set()
    for table in TABLES_OF_TOPICS:
        ledgers.update(row[0] for row in db.execute(f"select distinct ledger_id from {table}"))  # noqa: S608 - our names
    ((last,),) = db.execute("select coalesce(max(row), 0) from pending_acks")
    return StoredTransactions(transactions, parts, ledgers, last + 1)


def of_topic(db: apsw.Connection, ledger_id: int) -> TopicTransactions:
    """Return what is stored about transactions in one topic."""
    key = (ledger_id,)
    parts = [_part(row) for row in db.execute("select * from transaction_parts where ledger_id = ?", key)]
    pending = [_pending(row) for row in db.execute("select * from pending_acks where ledger_id = ? order by row", key)]
    aborted = [opened(row)[1:] for row in db.execute("select * from aborted_entries where ledger_id = ?", key)]
    return TopicTransactions(parts, pending, sorted(aborted))


def put_open(db: apsw.Connection, transaction: StoredTransaction) -> None:
    """Store a transaction that is opened."""
    db.execute(_PUT, _transaction_row(transaction))


def put_parts(
    db: apsw.Connection, parts: Sequence[TransactionPart], opened_elsewhere: StoredTransaction | None
) -> None:
    """Store parts of an open transaction; those that are there stay as they are.

    The transaction itself is stored, too, if another broker's coordinator has opened it.
    """
    if opened_elsewhere is not None:
        put_open(db, opened_elsewhere)
    rows = [sealed(part.ledger_id, part.subscription, *part.id, part.first_entry) for part in parts]
    db.executemany("insert or ignore into transaction_parts values (?, ?, ?, ?, ?, ?)", rows)


def put_pending(
    db: apsw.Connection, ledger_id: int, subscription: str, transaction: TransactionId, row: int, ack: PendingAck
) -> None:
    """Store a pending acknowledgement under a number that no other has."""
    text = json.dumps([list(ack.ranges), sorted(ack.members.items()), ack.through], separators=(",", ":"))
    values = sealed(ledger_id, subscription, *transaction, row, text)
    db.execute("insert into pending_acks values (?, ?, ?, ?, ?, ?, ?)", values)


def end(db: apsw.Connection, ended: EndedTransaction) -> None:
    """Store the outcome of a transaction, with all that follows from it."""
    # Each statement costs this thread the interpreter, which it takes back from the loop: a dozen statements that
    # change nothing are most of what the end of a small transaction takes.
    stored = ended.stored
    if ended.has_parts:
        db.execute(_DELETE_PARTS, stored.id)
    if ended.has_parts and ended.has_pending:
        db.execute(_DELETE_PENDING, stored.id)
    if ended.aborted:
        rows = [sealed(*each) for each in ended.aborted]
        db.executemany("insert or replace into aborted_entries values (?, ?, ?, ?)", rows)
    if ended.trimmed:
        db.executemany("delete from aborted_entries where ledger_id = ? and last_entry < ?", ended.trimmed)
    save_cursors(db, ended.cursors)
    if not ended.remembered:
        db.execute(_DELETE, stored.id)
        return
    db.execute(_PUT, _transaction_row(stored))
    if ended.forget_below > 0:
        forgotten = (stored.id.coordinator, ended.forget_below, OPEN)
        db.execute("delete from transactions where coordinator = ? and number < ? and status != ?", forgotten)


def delete_of_subscription(db: apsw.Connection, ledger_id: int, subscription: str) -> None:
    """Delete what transactions have to do with a subscription that is deleted."""
    for table in ("transaction_parts", "pending_acks"):
        key = (ledger_id, subscription)
        db.execute(f"delete from {table} where ledger_id = ? and subscription = ?", key)  # noqa: S608 - our names


def _transaction_row(stored: StoredTransaction) -> tuple[Any, ...]:
    return sealed(*stored.id, *stored[1:])


def _transaction(row: tuple[Any, ...]) -> StoredTransaction:
    coordinator, number, *rest = opened(row)
    return StoredTransaction(TransactionId(coordinator, number), *rest)


def _part(row: tuple[Any, ...]) -> TransactionPart:
    ledger_id, subscription, coordinator, number, first_entry = opened(row)
    return TransactionPart(ledger_id, subscription, TransactionId(coordinator, number), first_entry)


def _pending(row: tuple[Any, ...]) -> tuple[str, TransactionId, PendingAck]:
    _, subscription, coordinator, number, _, text = opened(row)
    ranges, members, through = json.loads(text)
    sets = {entry_id: (size, words) for entry_id, (size, words) in members}
    ack = PendingAck([(first, last) for first, last in ranges], sets, through)
    return subscription, TransactionId(coordinator, number), ack


# ---------------------------------------------------------------------------------------------------------------------
# Changes of what is stored about transactions, submitted to the file of a broker's topics.
#
# Why in that file: a transaction that acknowledges changes cursors, which are there. So all that ends a transaction is
# one change of one file. Where: `Catalog.transactions`. All methods are called on the loop and return at once; `done`
# is called there when the change is durable or has failed, in the order of the changes.


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

    def put_open(self, transaction: StoredTransaction, done: Done) -> None:
        """Store a transaction that is opened."""
        self._submit(lambda db: put_open(db, transaction), done)

    def put_parts(
        self, parts: Sequence[TransactionPart], opened_elsewhere: StoredTransaction | None, done: Done
    ) -> None:
        """Store parts of an open transaction, which is stored, too, if another broker's coordinator has opened it."""
        self.ledgers.update(part.ledger_id for part in parts)
        self._submit(lambda db: put_parts(db, parts, opened_elsewhere), done)

    def put_pending(
        self, ledger_id: int, subscription: str, transaction: TransactionId, ack: PendingAck, done: Done
    ) -> None:
        """Store what an ACK acknowledges if its transaction is committed."""
        self.ledgers.add(ledger_id)
        row, self._next_row = self._next_row, self._next_row + 1
        self._submit(lambda db: put_pending(db, ledger_id, subscription, transaction, row, ack), done)

    def end(self, ended: EndedTransaction, done: Done) -> None:
        """Store the outcome of a transaction, with all that follows from it."""
        self.ledgers.update(ledger_id for ledger_id, *_ in ended.aborted)
        saves = [save for _, save in ended.cursors]
        self._submit(lambda db: end(db, ended), done, lambda _: self._show_cursors(saves))

    def load(self, ledger_id: int, take: Callable[[TopicTransactions], None], done: Done) -> None:
        """Pass to `take` what is stored about one topic, after all changes that were submitted before."""
        self._file.submit(Change(partial(_of_topic, ledger_id), take, done))

    def _submit(
        self, store: Callable[[apsw.Connection], Any], done: Done, show: Callable[[Any], None] = lambda _: None
    ) -> None:
        self._file.submit(Change(store, show, done))


def _of_topic(ledger_id: int, db: apsw.Connection) -> TopicTransactions:
    try:
        return of_topic(db, ledger_id)
    except DamagedRow as error:
        raise MetadataFailed(f"transactions of ledger {ledger_id} cannot be read: {error}") from None
