# SPDX-License-Identifier: Apache-2.0
"""The tables of the shared part, `meta.sqlite`, as changes read and write them.

Where: changes of `shared_changes` are given these on the metadata thread, inside a transaction.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from penstock.storage.catalog_rows import DamagedRow, from_json, opened, sealed, to_json, topic_record, topic_row
from penstock.storage.shared_view import CONFIGURATION, LEDGER_IDS, NAMESPACES, TENANTS, TOPICS, Row
from penstock.storage.topic_counts import TopicCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import apsw

    from penstock.storage.catalog_rows import TopicRecord

LEDGER_IDS_PER_BLOCK: Final = 1_000

_TABLES: Final = (TENANTS, NAMESPACES, CONFIGURATION)  # name and value; other kinds are in `documents`


class SharedTables:
    """The open tables, and what is counted in them."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.topic_counts = TopicCounts(self)
        self._next_ledger_id = self._ledger_ids_stop = 0  # of the block in use

    # -- records by kind and name

    def text(self, kind: str, name: str) -> str | None:
        """The stored value, as JSON or as configured; None if there is no such record."""
        if kind in _TABLES:
            rows = self._db.execute(f"select * from {kind} where name = ?", (name,))  # noqa: S608 - our names
        else:
            rows = self._db.execute("select * from documents where kind = ? and name = ?", (kind, name))
        for row in rows:
            return str(opened(row)[-1])
        return None

    def put(self, kind: str, name: str, value: Mapping[str, Any] | str | None) -> int:
        """Store or delete a record; returns by how much the JSON of all documents grows."""
        text = to_json(value) if value is not None and not isinstance(value, str) else value
        if kind in _TABLES:
            if text is None:
                self._db.execute(f"delete from {kind} where name = ?", (name,))  # noqa: S608 - our names
            else:
                row = sealed(name, text)
                self._db.execute(f"insert or replace into {kind} values (?, ?, ?)", row)  # noqa: S608 - our names
            return 0
        return put_document(self._db, kind, name, text)

    def names(self, kind: str, start: str) -> Iterator[str]:
        """Return the names of this kind that start like this, one by one."""
        within = (start, f"{start[:-1]}{chr(ord(start[-1]) + 1)}")
        if kind in {*_TABLES, TOPICS}:
            rows = self._db.execute(f"select name from {kind} where name >= ? and name < ?", within)  # noqa: S608
        else:
            rows = self._db.execute(
                "select name from documents where kind = ? and name >= ? and name < ?", (kind, *within)
            )
        return (str(name) for (name,) in rows)

    def one_with(self, kind: str, key: str, value: str) -> str | None:
        """Return the name of a record of this table whose JSON has this value under this key. Reads the whole table."""
        one = f"select name from {kind} where policies ->> ? = ? limit 1"  # noqa: S608 - our names
        for (name,) in self._db.execute(one, (f'$."{key}"', value)):
            return str(name)
        return None

    def documents_with(self, kind: str, start: str, key: str) -> Iterator[tuple[str, Any]]:
        """Return those documents whose names start like this and that have this key. Reads all of these names."""
        within = (kind, start, f"{start[:-1]}{chr(ord(start[-1]) + 1)}", f'$."{key}"')
        some = "select * from documents where kind = ? and name >= ? and name < ? and value -> ? is not null"
        return ((str(name), json.loads(text)) for _, name, text in map(opened, self._db.execute(some, within)))

    # -- topics

    def topic(self, name: str) -> TopicRecord | None:
        for row in self._db.execute("select * from topics where name = ?", (name,)):
            return topic_record(row)
        return None

    def put_topic(self, record: TopicRecord) -> None:
        self._db.execute("insert or replace into topics values (?, ?, ?, ?, ?, ?, ?)", topic_row(record))

    def delete_topic(self, name: str) -> None:
        self._db.execute("delete from topics where name = ?", (name,))

    # -- ledger ids

    def take_ledger_id(self) -> int:
        """Return the next id of the current block, or of a new block."""
        if self._next_ledger_id == self._ledger_ids_stop:
            self._next_ledger_id = _counter(self._db)
            self._ledger_ids_stop = self._next_ledger_id + LEDGER_IDS_PER_BLOCK
            _put_counter(self._db, self._ledger_ids_stop)
        self._next_ledger_id += 1
        return self._next_ledger_id - 1

    def skip_ledger_ids(self, stop: int) -> int:
        """Give out no ids below `stop` any more; returns up to which id they may have been given out so far."""
        start = _counter(self._db)
        if start < stop:
            _put_counter(self._db, stop)
            self._next_ledger_id = self._ledger_ids_stop = 0
        return start


def put_document(db: apsw.Connection, kind: str, name: str, text: str | None) -> int:
    """Store or delete a document; returns by how much the JSON of all documents grows."""
    key = (kind, name)
    sizes = db.execute("select length(value) from documents where kind = ? and name = ?", key)
    before_bytes = sum(int(nbytes) for (nbytes,) in sizes)  # of one document, or none
    if text is None:
        db.execute("delete from documents where kind = ? and name = ?", key)
        return -before_bytes
    db.execute("insert or replace into documents values (?, ?, ?, ?)", sealed(kind, name, text))
    return len(text) - before_bytes


def all_rows(db: apsw.Connection) -> Iterator[Row]:
    """Read all records. Raises DamagedRow."""
    yield Row(LEDGER_IDS, "", _counter(db))  # ids that were given out before are below
    for kind in (TENANTS, NAMESPACES):
        for name, text in map(opened, db.execute(f"select * from {kind}")):  # noqa: S608 - our names
            yield Row(kind, name, from_json(text))
    for name, text in configuration_rows(db):
        yield Row(CONFIGURATION, name, text)
    for row in db.execute("select * from topics"):
        record = topic_record(row)
        yield Row(TOPICS, record.name, record)
    for kind, name, text in map(opened, db.execute("select * from documents")):
        yield Row(kind, name, json.loads(text), len(text))


def configuration_rows(db: apsw.Connection) -> Iterator[tuple[str, str]]:
    """Read the settings that were changed at run time. A damaged value is empty, which no setting is.

    A damaged setting must not stop a start, so it is not an error here: whoever uses the settings reports it.
    """
    for row in db.execute("select * from configuration"):
        try:
            name, text = opened(row)
        except DamagedRow:
            name, text = row[0], ""
        yield str(name), text if isinstance(text, str) else ""


def _counter(db: apsw.Connection) -> int:
    row: tuple[Any, ...]
    (row,) = db.execute("select * from counters where name = 'next_ledger_id'")
    return int(opened(row)[1])


def _put_counter(db: apsw.Connection, next_ledger_id: int) -> None:
    db.execute("insert or replace into counters values (?, ?, ?)", sealed("next_ledger_id", next_ledger_id))
