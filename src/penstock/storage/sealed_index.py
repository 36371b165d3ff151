# SPDX-License-Identifier: Apache-2.0
"""The stored half of the index: an SQLite file with one row per ledger and stretch of its entries in one segment.

Why SQLite: a lookup by ledger and entry among millions of rows, without keeping them in memory. A row contains the
places of the stretch's blocks. Everything here can be rebuilt from the log, so SQLite runs with `synchronous=NORMAL`:
after a loss of power the last transactions may be missing, and their segments are scanned again. A row has a checksum,
and the blocks that it points to name their own entries: a damaged index costs time but never serves a wrong entry.
Where: log maintenance writes, readers ask through `LogIndex`.
"""

from __future__ import annotations

import errno
import logging
import struct
import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import apsw

from penstock.core.crc32c import crc32c
from penstock.storage.index import Damage, Extent, IndexDamaged, Spans, Stretch, at_or_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from penstock.storage.index import SegmentIndex

log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, entries INTEGER NOT NULL, live_bytes INTEGER NOT NULL);
CREATE TABLE stretches (
    segment INTEGER NOT NULL, ledger INTEGER NOT NULL, first_entry INTEGER NOT NULL, last_entry INTEGER NOT NULL,
    bytes INTEGER NOT NULL, crc INTEGER NOT NULL, spans BLOB NOT NULL);
CREATE INDEX stretches_by_ledger ON stretches (ledger, last_entry);
CREATE INDEX stretches_by_segment ON stretches (segment);
CREATE TABLE ledgers (ledger INTEGER PRIMARY KEY, last_entry INTEGER NOT NULL, trimmed INTEGER NOT NULL);
CREATE TABLE digests (segments INTEGER NOT NULL, ledgers INTEGER NOT NULL);
INSERT INTO digests VALUES (0, 0);
CREATE TABLE damage (
    segment INTEGER NOT NULL, offset INTEGER NOT NULL, bytes INTEGER NOT NULL, ledger INTEGER, entry INTEGER,
    reason TEXT NOT NULL);
"""
# Segments that were started and whose rows are not stored yet. Not derived: it says that a file must exist. It is apart
# from the schema because an index that was created without it stays valid.
_SCHEMA_BEGUN: Final = "CREATE TABLE IF NOT EXISTS begun (segment INTEGER PRIMARY KEY, bytes INTEGER NOT NULL)"
_ROW_KEY: Final = struct.Struct("<QQQQ")


class SegmentRow(NamedTuple):
    """The index's row of a sealed segment."""

    bytes: int  # up to the end of its last block
    entries: int
    live_bytes: int  # of entries not yet trimmed; counted by whole stretches


class LedgerRow(NamedTuple):
    """The index's row of a ledger."""

    last_entry: int  # -1: none
    trimmed: int  # entries below are deleted


UNKNOWN_LEDGER: Final = LedgerRow(-1, 0)


class SealedIndex:
    """The SQLite half. Thread-safe; one call is served at a time."""

    def __init__(self, path: Path, *, cache_bytes: int, vfs: str | None = None) -> None:
        """Open or create the index.

        Raises:
            IndexDamaged: it cannot be used; the caller then deletes it.
            OSError: the disk currently cannot read it.
        """
        self._lock = threading.Lock()
        # The stretch each ledger was last read in: who reads on asks for the same one again.
        self._recent: OrderedDict[int, Stretch] = OrderedDict()
        self._recent_spans = 0
        self._recent_spans_max = cache_bytes // _SPAN_BYTES_IN_MEMORY
        try:
            self._connection = apsw.Connection(str(path), vfs=vfs)
        except apsw.Error as error:
            raise _unusable(error) from error
        try:
            _set_up(self._connection)
            self._create()
            self._load()
        except (apsw.Error, TypeError, ValueError, struct.error) as error:
            self._connection.close(True)
            raise _unusable(error) from error
        except IndexDamaged:
            self._connection.close(True)
            raise

    def _load(self) -> None:
        """Read the two small tables, and check that no row is missing."""
        self.segments: dict[int, SegmentRow] = {}
        self.ledgers: dict[int, LedgerRow] = {}
        self._segments_digest = self._ledgers_digest = 0
        rows: Any = self._connection.execute("SELECT segment, bytes, entries, live_bytes FROM segments")
        for segment_id, *row in rows:
            self._set_segment(segment_id, SegmentRow(*row))
        rows = self._connection.execute("SELECT ledger, last_entry, trimmed FROM ledgers")
        for ledger_id, *row in rows:
            self._set_ledger(ledger_id, LedgerRow(*row))
        stored: Any = next(self._connection.execute("SELECT segments, ledgers FROM digests"), None)
        if stored != (self._segments_digest, self._ledgers_digest):
            raise IndexDamaged("its tables of segments and ledgers are not as they were written")

    def _set_segment(self, segment_id: int, row: SegmentRow | None) -> None:
        old = self.segments.get(segment_id)
        if old is not None:
            self._segments_digest ^= _digest(segment_id, *old)
        if row is None:
            self.segments.pop(segment_id, None)
        else:
            self.segments[segment_id] = row
            self._segments_digest ^= _digest(segment_id, *row)

    def _set_ledger(self, ledger_id: int, row: LedgerRow | None) -> None:
        old = self.ledgers.get(ledger_id)
        if old is not None:
            self._ledgers_digest ^= _digest(ledger_id, *old)
        if row is None:
            self.ledgers.pop(ledger_id, None)
        else:
            self.ledgers[ledger_id] = row
            self._ledgers_digest ^= _digest(ledger_id, *row)

    def _create(self) -> None:
        version = next(self._connection.execute("PRAGMA user_version"))[0]
        if version == SCHEMA_VERSION:
            self._connection.execute(_SCHEMA_BEGUN)
            return
        if version != 0:
            raise IndexDamaged(f"the index has version {version}, want {SCHEMA_VERSION}")
        with self._connection:
            self._connection.execute(_SCHEMA)
            self._connection.execute(_SCHEMA_BEGUN)
            self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    def close(self) -> None:
        """Close the file. If the disk fails, the rest is rebuilt from the log."""
        with self._lock:
            try:
                self._connection.close()
            except apsw.Error as error:
                log.warning("the index of the entry log could not be closed well: %s", error)
                self._connection.close(True)

    # ------------------------------------------------------------------------------------------------------- reading

    def find(self, ledger_id: int, entry_id: int) -> Stretch | None:
        """Return the stretch that holds the entry, or the next one, or None. Raises IndexDamaged."""
        with self._lock:
            recent = self._recent.get(ledger_id)
            if recent is not None and recent.first_entry <= entry_id <= recent.last_entry:
                self._recent.move_to_end(ledger_id)
                return recent
            found = self._find(ledger_id, entry_id)
            if found is not None:
                self._remember(found)
            return found

    def _find(self, ledger_id: int, entry_id: int) -> Stretch | None:
        rows = self._ask(_SELECT_NEXT, (ledger_id, entry_id))
        if rows and rows[0][2] > entry_id:
            # An older, longer stretch may hold the entry, and only moved copies begin later.
            rows = self._ask(_SELECT_HOLDING, (ledger_id, entry_id, entry_id)) or rows
        return _stretch(rows[0]) if rows else None

    def _ask(self, statement: str, values: tuple[int, ...] = ()) -> list[Any]:
        """Return the rows of a query. Raises IndexDamaged, or OSError if the disk is at fault."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except apsw.Error as error:
            raise _unusable(error) from error

    def _remember(self, stretch: Stretch) -> None:
        self._forget(stretch.ledger_id)
        self._recent[stretch.ledger_id] = stretch
        self._recent_spans += len(stretch.spans)
        while self._recent_spans > self._recent_spans_max and len(self._recent) > 1:
            _, oldest = self._recent.popitem(last=False)
            self._recent_spans -= len(oldest.spans)

    def _forget(self, ledger_id: int) -> None:
        recent = self._recent.pop(ledger_id, None)
        if recent is not None:
            self._recent_spans -= len(recent.spans)

    def forget(self, ledger_id: int) -> None:
        """Forget the cached stretch of this ledger, whose segment is gone."""
        with self._lock:
            self._forget(ledger_id)

    def extents(self, ledger_id: int, from_entry: int) -> list[Extent]:
        """Return the sizes of a ledger's entries, from the stretch that holds `from_entry` on."""
        with self._lock:
            return [
                Extent(first, last + 1, size) for first, last, size in self._ask(_SELECT_SIZES, (ledger_id, from_entry))
            ]

    def of_segment(self, segment_id: int) -> list[Stretch]:
        """Return the live stretches of a segment. Raises IndexDamaged."""
        with self._lock:
            return [_stretch(row) for row in self._ask(_SELECT_SEGMENT, (segment_id,))]

    def retained_ledgers(self) -> set[int]:
        """Return the ledgers with retained entries. Raises IndexDamaged."""
        with self._lock:
            return {ledger_id for (ledger_id,) in self._ask(_SELECT_LEDGERS)}

    def damage(self, limit: int) -> list[Damage]:
        """Return up to `limit` stored damages. Raises IndexDamaged."""
        with self._lock:
            return [Damage(*row) for row in self._ask(_SELECT_DAMAGE, (limit,))]

    # ------------------------------------------------------------------------------------------------------- writing

    @contextmanager
    def _change(self, *, durable: bool = False) -> Iterator[apsw.Connection]:
        """Change the tables and their copies in memory together, or (with an error) neither.

        If `durable`, this change and all before it survive a loss of power once this has returned.
        """
        with self._lock:
            before = self.segments.copy(), self.ledgers.copy(), self._segments_digest, self._ledgers_digest
            connection = self._connection
            try:
                connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute(
                    "UPDATE digests SET segments = ?, ledgers = ?", (self._segments_digest, self._ledgers_digest)
                )
                connection.execute("COMMIT")
            except BaseException as error:
                self.segments, self.ledgers, self._segments_digest, self._ledgers_digest = before
                if connection.in_transaction:  # On a full disk, SQLite has rolled back already.
                    connection.execute("ROLLBACK")
                if isinstance(error, apsw.Error) and not isinstance(error, _DISK_ERRORS):
                    raise IndexDamaged(str(error)) from error
                raise

    def add_segment(self, segment: SegmentIndex, trimmed: dict[int, int], last_entries: Mapping[int, int]) -> None:
        """Store a sealed segment, and replace an earlier version. Raises apsw.Error, IndexDamaged."""
        wanted_from = {ledger_id: row.trimmed for ledger_id, row in self.ledgers.items() if row.trimmed} | trimmed
        stretches = list(segment.stretches(wanted_from))
        live_bytes = sum(stretch.entry_bytes for stretch in stretches)
        with self._change() as connection:
            connection.execute("DELETE FROM stretches WHERE segment = ?", (segment.segment_id,))
            connection.execute("DELETE FROM damage WHERE segment = ?", (segment.segment_id,))
            connection.execute("DELETE FROM begun WHERE segment = ?", (segment.segment_id,))
            connection.executemany(_INSERT_STRETCH, map(_row, stretches))
            self._store_segment(connection, segment.segment_id, SegmentRow(segment.bytes, segment.entries, live_bytes))
            self._raise_ledgers(connection, {ledger_id: LedgerRow(last, 0) for ledger_id, last in last_entries.items()})

    def trim(self, before: Mapping[int, int]) -> None:
        """Remove entries below trim points: whole stretches, or at least half of one.

        Raises apsw.Error, IndexDamaged.
        """
        freed: dict[int, int] = {}
        with self._change() as connection:
            for ledger_id, entry_id in before.items():
                _delete(connection, _DELETE_BELOW, (ledger_id, entry_id), freed)
                self._shrink(connection, ledger_id, entry_id, freed)
            # Trimmed ids existed: they count as used even if nothing else shows it.
            rows = {ledger_id: LedgerRow(entry_id - 1, entry_id) for ledger_id, entry_id in before.items()}
            self._raise_ledgers(connection, rows)
            self._free(connection, freed)

    def _shrink(self, connection: apsw.Connection, ledger_id: int, entry_id: int, freed: dict[int, int]) -> None:
        """Shorten the stretch that holds a trim point.

        It is shortened only by half of its entries or more, so that a slowly moving cursor costs little.
        """
        row: Any = next(connection.execute(_SELECT_NEXT, (ledger_id, entry_id)), None)
        if row is None or (entry_id - row[2]) * 2 < row[3] + 1 - row[2]:
            return
        stretch = _stretch(row)
        rest = stretch._replace(spans=stretch.spans[at_or_after(stretch.spans, entry_id) :])
        if len(rest.spans) < len(stretch.spans):
            where = (stretch.segment_id, ledger_id, stretch.first_entry, stretch.last_entry)
            _delete(connection, _DELETE_STRETCH, where, freed)
            connection.execute(_INSERT_STRETCH, _row(rest))
            freed[stretch.segment_id] -= rest.entry_bytes

    def drop(self, ledger_ids: Iterable[int]) -> None:
        """Remove whole ledgers. Raises apsw.Error, IndexDamaged."""
        freed: dict[int, int] = {}
        with self._change() as connection:
            for ledger_id in ledger_ids:
                _delete(connection, _DELETE_LEDGER, (ledger_id,), freed)
                connection.execute("DELETE FROM ledgers WHERE ledger = ?", (ledger_id,))
                self._set_ledger(ledger_id, None)
                self._forget(ledger_id)
            self._free(connection, freed)

    def remove_segment(self, segment_id: int) -> None:
        """Remove a segment and all its entries. Raises apsw.Error, IndexDamaged."""
        # Durable: if the index still knows a segment whose file is deleted, the file would count as missing.
        with self._change(durable=True) as connection:
            connection.execute("DELETE FROM stretches WHERE segment = ?", (segment_id,))
            connection.execute("DELETE FROM segments WHERE segment = ?", (segment_id,))
            connection.execute("DELETE FROM begun WHERE segment = ?", (segment_id,))
            connection.execute("DELETE FROM damage WHERE segment = ?", (segment_id,))
            self._set_segment(segment_id, None)

    def begin(self, segment_id: int, size: int) -> None:
        """Store durably that a segment of this size was started. Raises apsw.Error, IndexDamaged."""
        with self._change(durable=True) as connection:
            connection.execute("INSERT OR REPLACE INTO begun VALUES (?, ?)", (segment_id, size))

    def begun(self) -> dict[int, int]:
        """Return the segments that were started and have no rows, with their sizes. Raises IndexDamaged."""
        with self._lock:
            return dict(self._ask("SELECT segment, bytes FROM begun"))

    def add_damage(self, damages: Iterable[Damage]) -> None:
        """Store damage, so that it is known after a restart. Raises apsw.Error, IndexDamaged."""
        with self._change() as connection:
            connection.executemany("INSERT INTO damage VALUES (?, ?, ?, ?, ?, ?)", list(damages))

    def _store_segment(self, connection: apsw.Connection, segment_id: int, row: SegmentRow) -> None:
        connection.execute("INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)", (segment_id, *row))
        self._set_segment(segment_id, row)

    def adopt(self, ledgers: Mapping[int, LedgerRow]) -> None:
        """Take over ledgers from an earlier index. Raises apsw.Error, IndexDamaged."""
        with self._change() as connection:
            self._raise_ledgers(connection, ledgers)

    def _raise_ledgers(self, connection: apsw.Connection, ledgers: Mapping[int, LedgerRow]) -> None:
        """Raise the ledgers' last entries and trim points; they never decrease."""
        for ledger_id, row in ledgers.items():
            old = self.ledgers.get(ledger_id, UNKNOWN_LEDGER)
            new = LedgerRow(max(old.last_entry, row.last_entry), max(old.trimmed, row.trimmed))
            if new != old:
                connection.execute("INSERT OR REPLACE INTO ledgers VALUES (?, ?, ?)", (ledger_id, *new))
                self._set_ledger(ledger_id, new)

    def _free(self, connection: apsw.Connection, freed: Mapping[int, int]) -> None:
        for segment_id, size in freed.items():
            row = self.segments[segment_id]
            self._store_segment(connection, segment_id, row._replace(live_bytes=row.live_bytes - size))


_SELECT_NEXT: Final = (
    "SELECT segment, ledger, first_entry, last_entry, crc, spans FROM stretches"
    " WHERE ledger = ? AND last_entry >= ? ORDER BY last_entry LIMIT 1"
)
_SELECT_HOLDING: Final = (
    "SELECT segment, ledger, first_entry, last_entry, crc, spans FROM stretches"
    " WHERE ledger = ? AND last_entry >= ? AND first_entry <= ? LIMIT 1"
)
_SELECT_SEGMENT: Final = (
    "SELECT segment, ledger, first_entry, last_entry, crc, spans FROM stretches WHERE segment = ?"
    " ORDER BY ledger, first_entry"
)
_SELECT_SIZES: Final = "SELECT first_entry, last_entry, bytes FROM stretches WHERE ledger = ? AND last_entry >= ?"
_SELECT_LEDGERS: Final = "SELECT DISTINCT ledger FROM stretches"
_SELECT_DAMAGE: Final = (
    "SELECT segment, offset, bytes, ledger, entry, reason FROM damage ORDER BY segment, offset LIMIT ?"
)
_INSERT_STRETCH: Final = "INSERT INTO stretches VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE_STRETCH: Final = (
    "DELETE FROM stretches WHERE segment = ? AND ledger = ? AND first_entry = ? AND last_entry = ?"
    " RETURNING segment, bytes"
)
_DELETE_BELOW: Final = "DELETE FROM stretches WHERE ledger = ? AND last_entry < ? RETURNING segment, bytes"
_DELETE_LEDGER: Final = "DELETE FROM stretches WHERE ledger = ? RETURNING segment, bytes"

# The errors of SQLite when the disk is at fault, or full. All its other errors mean that the content of the file is
# damaged, because the statements are known to be correct.
_DISK_ERRORS: Final = (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.NoMemError)


def _unusable(error: Exception) -> IndexDamaged | OSError:
    """Return IndexDamaged if the content of the index is at fault, and OSError if the disk is, which may recover."""
    return OSError(errno.EIO, str(error)) if isinstance(error, _DISK_ERRORS) else IndexDamaged(str(error))


# The memory of a span and its integers in CPython.
_SPAN_BYTES_IN_MEMORY: Final = 240


def _set_up(connection: apsw.Connection) -> None:
    # One process has the directory locked, so one connection may own the file, without shared memory beside it.
    connection.execute("PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA cache_size=-2048")


def _delete(connection: apsw.Connection, statement: str, values: tuple[int, ...], freed: dict[int, int]) -> None:
    """Delete stretches and add their bytes to those freed in each segment."""
    rows: Any = connection.execute(statement, values).fetchall()
    for segment_id, size in rows:
        freed[segment_id] = freed.get(segment_id, 0) + size


def _digest(*row: int) -> int:
    """Return what a row adds (by exclusive or) to the digest of its table."""
    return crc32c(struct.pack(f"<{len(row)}q", *row))


def _row(stretch: Stretch) -> tuple[int, int, int, int, int, int, bytes]:
    spans = stretch.spans.packed()
    key = (stretch.segment_id, stretch.ledger_id, stretch.first_entry, stretch.last_entry)
    return (*key, stretch.entry_bytes, crc32c(spans, crc32c(_ROW_KEY.pack(*key))), spans)


def _stretch(row: tuple[int, int, int, int, int, bytes]) -> Stretch:
    *key, crc, spans = row
    try:
        right = crc == crc32c(spans, crc32c(_ROW_KEY.pack(*key)))
    except (TypeError, struct.error):
        right = False
    if not right:
        raise IndexDamaged(f"the row of ledger {key[1]} in segment {key[0]} is not as it was written")
    return Stretch(key[0], key[1], Spans.unpacked(spans))
