# SPDX-License-Identifier: Apache-2.0
"""The tables that cursors are stored in: a head in the subscription's row, and a row for each part.

Why parts: a cursor may have millions of gaps. A save writes only the parts that changed, in rows of at most 128 KiB,
together with the head in one transaction. Parts are not in memory while the topic is not loaded. Where: `TopicData`
calls these functions on its metadata thread, inside its transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import apsw

from penstock.core.errors import MetadataFailed
from penstock.storage.catalog_rows import DamagedRow, cursor_part, part_row
from penstock.storage.cursor import HEAD_BYTES, Cursor, DamagedCursorError
from penstock.storage.metadata import close_untouched

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from penstock.storage.catalog_rows import CursorSave
    from penstock.storage.cursor import CursorPart

_SAVE: Final = "update subscriptions set mark_delete = ?, cursor = ? where name = ? and ledger_id = ?"
_PUT_PART: Final = "insert or replace into cursor_parts values (?, ?, ?, ?, ?, ?)"
_DELETE_PART: Final = "delete from cursor_parts where ledger_id = ? and name = ? and kind = ? and number = ?"


def save_cursors(db: apsw.Connection, saves: Iterable[tuple[int, CursorSave]]) -> None:
    """Write heads and changed parts, each with its ledger id. Subscriptions that no longer exist are left out."""
    for ledger_id, (_topic, subscription, cursor, parts) in saves:
        db.execute(_SAVE, (*cursor, subscription, ledger_id))
        if db.changes():
            _save_parts(db, ledger_id, subscription, parts)


def _save_parts(db: apsw.Connection, ledger_id: int, subscription: str, parts: Sequence[CursorPart]) -> None:
    if parts:
        key = (ledger_id, subscription)
        db.executemany(_PUT_PART, [part_row(*key, part) for part in parts if part.value is not None])
        db.executemany(_DELETE_PART, [(*key, *part[:2]) for part in parts if part.value is None])


def delete_parts(db: apsw.Connection, ledger_id: int, subscription: str) -> None:
    """Delete the parts of a subscription's cursor."""
    db.execute("delete from cursor_parts where ledger_id = ? and name = ?", (ledger_id, subscription))


def load_cursors(db: apsw.Connection, ledger_id: int) -> dict[str, Cursor]:
    """Return the cursors of a topic by subscription, without those whose head is damaged. Damaged parts are deleted."""
    parts: dict[str, list[tuple[int, int, bytes]]] = {}
    damaged = []
    for rowid, *row in db.execute("select rowid, * from cursor_parts where ledger_id = ?", (ledger_id,)):
        try:
            kind, number, value = cursor_part(tuple(row))
        except DamagedRow:
            damaged.append((rowid,))
        else:
            assert value is not None, "a part that is stored has a value"
            parts.setdefault(row[1], []).append((kind, number, value))
    db.executemany("delete from cursor_parts where rowid = ?", damaged)
    cursors = {}
    for name, head in db.execute("select name, cursor from subscriptions where ledger_id = ?", (ledger_id,)):
        try:
            cursors[name] = Cursor.load(head, parts.get(name, ()))
        except DamagedCursorError:
            continue
    return cursors


def take_apart(db: apsw.Connection, path: Path) -> None:
    """Store in parts the cursors that earlier versions stored as one value.

    On an error, closes `db` and raises MetadataFailed.
    """
    whole = "select ledger_id, name from subscriptions where length(cursor) > ?"
    one = "select cursor from subscriptions where ledger_id = ? and name = ?"
    try:
        key: tuple[Any, ...]
        row: tuple[Any, ...]
        for key in db.execute(whole, (HEAD_BYTES,)).fetchall():
            for row in db.execute(one, key).fetchall():
                _take_apart(db, key, row[0])
    except apsw.Error as error:
        close_untouched(db)
        raise MetadataFailed(
            f"cannot bring the cursors in {path} into the form of this version: {type(error).__name__}: {error}"
        ) from error


def _take_apart(db: apsw.Connection, key: tuple[Any, ...], stored: bytes) -> None:
    try:
        cursor = Cursor.load(stored)
    except DamagedCursorError:
        return  # Reported when its topic is loaded.
    with db:
        db.execute("update subscriptions set cursor = ? where ledger_id = ? and name = ?", (cursor.head(), *key))
        _save_parts(db, key[0], key[1], cursor.take_changes())
