# SPDX-License-Identifier: Apache-2.0
"""The rows of topics in `topics.sqlite`, as a whole: copied to the file of another broker, or deleted.

Why rows: whatever a broker stores about a topic (subscriptions with their cursors, states, sequence ids) belongs to a
ledger id, which is the same at every broker. So rows are copied as they are, checksums included.
Where: `processes.moving`. All functions block.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.storage.catalog_rows import opened
from penstock.storage.schema import KEPT_LEDGERS, TOPIC_KINDS, WHOLE_LOG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import apsw

# With the number of their columns. A cursor's head and parts have checksums of their own and are read without them if
# these do not fit, so only the columns before are checked.
_TABLES: Final = {
    "subscriptions": 7,
    "cursor_parts": 6,
    "retained": 3,
    "documents": 4,
    "transaction_parts": 6,
    "pending_acks": 7,
    "aborted_entries": 4,
}
# Each way to the rows of one ledger uses an index.
_OF_LEDGER: Final = {
    **dict.fromkeys(_TABLES, "ledger_id = ?"),
    "documents": f"kind in {TOPIC_KINDS!r} and ledger_id = ?",
}
_CHECKED_COLUMNS: Final = {
    "subscriptions": 5,
    **{table: _TABLES[table] for table in ("retained", "documents", "transaction_parts", "pending_acks")},
    "aborted_entries": 4,
}


def copy_rows(source: apsw.Connection, target: apsw.Connection, ledger_ids: Collection[int]) -> None:
    """Replace the rows of these ledgers in `target` by those in `source`, in one transaction.

    Raises apsw.Error; DamagedRow, if a row of the source does not fit its checksum.
    """
    with _transaction(target):
        _delete(target, ledger_ids)
        for table, columns in _TABLES.items():
            marks = ", ".join("?" * columns)
            for ledger_id in ledger_ids:
                rows = _checked(source, table, ledger_id)
                target.executemany(f"insert into {table} values ({marks})", rows)  # noqa: S608 - our names


def delete_rows(db: apsw.Connection, ledger_ids: Collection[int]) -> None:
    """Delete all rows of these ledgers."""
    with _transaction(db):
        _delete(db, ledger_ids)


def ledgers_with_rows(db: apsw.Connection) -> set[int]:
    """Return the ledgers that have rows."""
    found = {ledger_id for table in _TABLES for ledger_id in _ledger_ids(db, table)}
    return found - {WHOLE_LOG}


def documents(db: apsw.Connection, kind: str) -> Mapping[int, Mapping[str, Any]]:
    """Return the documents of one kind, by ledger. Raises DamagedRow."""
    rows = map(opened, db.execute("select * from documents where kind = ?", (kind,)))
    return {ledger_id: json.loads(text) for _, ledger_id, text in rows}


def first_retained(db: apsw.Connection) -> dict[int, int]:
    """Return the entry of each ledger before which all are deleted, where it is not 0. Raises DamagedRow."""
    return dict(map(opened, db.execute("select * from retained")))


def kept_ledgers(db: apsw.Connection) -> set[int]:
    """As `Catalog.kept_ledgers`."""
    return set(documents(db, KEPT_LEDGERS).get(WHOLE_LOG, {}).get("ledgers", ()))


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if db.in_transaction:  # On a full disk, SQLite has rolled back already.
            db.execute("rollback")
        raise


def _delete(db: apsw.Connection, ledger_ids: Collection[int]) -> None:
    keys = [(ledger_id,) for ledger_id in ledger_ids]
    for table, of_ledger in _OF_LEDGER.items():
        db.executemany(f"delete from {table} where {of_ledger}", keys)  # noqa: S608 - our names


def _checked(db: apsw.Connection, table: str, ledger_id: int) -> Iterator[tuple[Any, ...]]:
    for row in db.execute(f"select * from {table} where {_OF_LEDGER[table]}", (ledger_id,)):  # noqa: S608
        if table in _CHECKED_COLUMNS:
            opened(row[: _CHECKED_COLUMNS[table]])
        yield row


def _ledger_ids(db: apsw.Connection, table: str) -> Iterator[int]:
    for (ledger_id,) in db.execute(f"select distinct ledger_id from {table}"):  # noqa: S608 - our names
        yield ledger_id
