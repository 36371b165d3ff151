# SPDX-License-Identifier: Apache-2.0
"""The metadata file and the thread that commits to it: SQLite, with one sync for many changes.

Why: a change may be answered only when it is durable, and a sync takes a millisecond or more. So changes wait in a
queue during the previous commit, and all waiting changes become one transaction. Creating ten thousand topics at once
costs a dozen syncs, and the event loop waits for none of them.

Where: under the catalog, which decides what a change does to the tables and to its view. This module owns the
connection, its transactions and its thread.

Invariants:

- Answers are posted to the loop in the order in which changes were submitted, each after the sync of its commit.
- A failed statement, commit or checkpoint is final: the connection is closed without another write, and every later
  change is refused until the process starts again (`penstock.broker.healing`) and reads the file. After a failed sync,
  a kernel may have dropped the pages and report success on the next try, so no sync is ever retried.
- Checkpoints are started here, never by SQLite, which would ignore their failed syncs.
- Opening trusts no page that an earlier process wrote but may have failed to sync: before anything is answered, the
  write-ahead log is rewritten and synced, then copied into the main file, which is synced too.
- Opening also makes the names of both files durable. SQLite tries that too, but ignores a failed sync.
- Opening refuses a damaged file with an error message, rather than serve a part of it.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import apsw

from penstock.core.errors import MetadataFailed, PenstockError
from penstock.core.units import MIB
from penstock.storage.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from penstock.storage.files import Files

    Migration: TypeAlias = str | Callable[[apsw.Connection, int], None]
    Done: TypeAlias = Callable[[PenstockError | None], None]
    Post: TypeAlias = Callable[[Callable[[], None]], None]

# ---------------------------------------------------------------------------------------------------------------------
# Prepares SQLite's write-ahead log for recovery by SQLite.
#
# First reason: a process that failed to sync the log leaves pages that are readable from the page cache but are not on
# the disk. Recovery would copy them into the main file, and a power cut during that would leave a mixture that cannot
# be repaired. So the log is rewritten, byte for byte, and synced.
#
# Second reason: SQLite's recovery reads frames up to the last commit before the first bad checksum, and silently drops
# the rest. That is right for a tail that was torn by a crash, and wrong for a flipped bit in the middle: the commits
# behind it were answered.
#
# How a torn tail differs from damage: a commit is written only after the previous one was synced. So at most one
# commit, the one being written, can follow a torn place; if two or more follow, the first of them was complete. (A
# flipped bit in the very last commit looks like a torn one; nothing can tell, as with the last record of the entry
# log.)
#
# Layout (sqlite.org/fileformat2.html, "WAL file format"), integers big-endian: a header of 32 bytes with two salts at
# 16, then frames of 24 bytes + one page. A frame starts with the page number, the size of the database after the commit
# (0: not a commit), and the header's two salts. When the file is reused both salts change, so frames of an earlier use
# match neither; a flipped bit spoils at most one.

PAGE_BYTES: Final = 4096  # SQLite's default, which the catalog never changes.

_SALTS: Final = struct.Struct(">16xII")  # of the header
_FRAME: Final = struct.Struct(">4xIII")  # pages after commit, salts
_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24 + PAGE_BYTES
_REWRITE_BYTES: Final = MIB


def make_durable(path: Path, files: Files) -> None:
    """Rewrite the log at `path`, if there is one, with its own content, and sync it. Raises OSError."""
    if not files.exists(path):
        return
    file = files.open(path)
    try:
        for offset in range(0, file.size(), _REWRITE_BYTES):
            write_all(file, [file.read(_REWRITE_BYTES, offset)], offset)
        file.sync()
    finally:
        file.close()


def commits_written(path: Path, files: Files) -> list[int]:
    """Return the numbers, from 1, of the frames that end a commit of the log's current use."""
    if not files.exists(path):
        return []
    file = files.open(path)
    try:
        header = file.read(_HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return []
        salt_1, salt_2 = _SALTS.unpack_from(header)
        commits = []
        for number in range(1, (file.size() - _HEADER_BYTES) // _FRAME_BYTES + 1):
            frame = file.read(_FRAME.size, _HEADER_BYTES + (number - 1) * _FRAME_BYTES)
            pages, frame_salt_1, frame_salt_2 = _FRAME.unpack(frame)
            if pages and (frame_salt_1 == salt_1 or frame_salt_2 == salt_2):
                commits.append(number)
        return commits
    finally:
        file.close()


# The answers of one commit take one turn of the event loop: a thousand take about a millisecond.
CHANGES_PER_COMMIT_MAX: Final = 1_000
# SQLite's own default: the write-ahead log is copied into the main file whenever it has grown by 4 MiB.
WAL_PAGES_MAX: Final = 1_000
# How long another process may keep the file locked before that is an error.
BUSY_WAIT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Change:
    """A change to be made durable.

    Attributes:
        store: writes it, on the metadata thread, inside a transaction shared with others. It may raise a
            `PenstockError` that fails this change alone, but only before it has written anything.
        show: applies the result of `store` to the view, on the loop, once it is durable. It may raise a `PenstockError`
            for `done`.
        done: called with the outcome, on the loop, after `show`.
    """

    store: Callable[[apsw.Connection], Any]
    show: Callable[[Any], None]
    done: Done


class MetadataFile:
    """An open metadata file. `submit` and `close` are called on the loop's thread, as are callables given to `post`."""

    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        files: Files,
        post: Post,
        answered: Callable[[], None] = lambda: None,
        *,
        thread_name: str = "penstock-metadata",
    ) -> None:
        """Args: answered: called on the loop after the answers of each commit."""
        self.failed: str | None = None  # Why changes are refused; None if they are not.
        self._db = db
        self._path = path
        self._files = files
        self._post = post
        self._wal_pages = 0
        self._answered = answered
        self._closed = False
        self._queue: SimpleQueue[Change | None] = SimpleQueue()
        db.set_wal_hook(self._on_commit)
        self._thread = Thread(target=self._run, name=thread_name, daemon=True)
        self._thread.start()

    def submit(self, change: Change) -> None:
        """Queue a change. It is answered through `post`, in order, durable or failed."""
        if self._closed:
            self._post(partial(change.done, MetadataFailed("the catalog is closed: penstock is stopping")))
        else:
            self._queue.put(change)

    def close(self) -> None:
        """Commit and answer submitted changes, then close the file. Blocks; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _answer(self, batch: Sequence[Change], results: Sequence[Any]) -> None:
        """On the loop: apply durable changes to the view and call `done`, in order."""
        for change, result in zip(batch, results, strict=True):
            error = result if isinstance(result, PenstockError) else None
            if error is None:
                try:
                    change.show(result)
                except PenstockError as refused:
                    error = refused
            change.done(error)
        self._answered()

    # -- on the metadata thread

    def _run(self) -> None:
        closing = False
        while not closing:
            batch, closing = self._next_batch()
            if batch:
                self._post(partial(self._answer, batch, self._commit(batch)))
            if closing or self._wal_pages >= WAL_PAGES_MAX:
                self._checkpoint()
        if self.failed is None:
            try:
                self._db.close()
            except apsw.Error as error:
                self._fail(error)

    def _next_batch(self) -> tuple[list[Change], bool]:
        """Wait for a change, then take further queued ones. True when the queue is closed."""
        batch: list[Change] = []
        with contextlib.suppress(Empty):
            while len(batch) < CHANGES_PER_COMMIT_MAX:
                change = self._queue.get(block=not batch)
                if change is None:
                    return batch, True
                batch.append(change)
        return batch, False

    def _commit(self, batch: Sequence[Change]) -> list[Any]:
        """Make a batch durable; return the result of each change's `store`, or its error."""
        if self.failed is None:
            try:
                self._db.execute("begin immediate")
                results = [self._store(change) for change in batch]
                self._db.execute("commit")
            except Exception as error:  # noqa: BLE001 - a thread that dies silently would be worse.
                self._fail(error)
            else:
                return results
        refusal = MetadataFailed(
            f"the catalog refuses changes since: {self.failed}; try again: penstock starts again when the disk works"
        )
        return [refusal] * len(batch)

    def _store(self, change: Change) -> object:
        try:
            return change.store(self._db)
        except PenstockError as error:
            return error

    def _checkpoint(self) -> None:
        """Restart the write-ahead log."""
        if self.failed is not None:
            return
        self._wal_pages = 0
        try:
            fold(self._db, self._path, self._files)
        except (apsw.Error, OSError) as error:
            self._fail(error)

    def _on_commit(self, _db: apsw.Connection, _name: str, wal_pages: int) -> int:
        self._wal_pages = wal_pages
        return apsw.SQLITE_OK

    def _fail(self, error: Exception) -> None:
        self.failed = f"{type(error).__name__}: {error}"
        close_untouched(self._db)


def open_database(
    path: Path, migrations: Sequence[Migration], files: Files, *, exclusive: bool, vfs: str | None
) -> apsw.Connection:
    """Open or create the metadata file: recovered, durable, and migrated to the newest schema.

    Args:
        path: the file; its directory exists.
        migrations: script or function i migrates schema version i to i + 1. All run in one transaction; a function is
            given the version that the file had before it.
        files: the disk that `path` is on.
        exclusive: keep the file locked, without shared memory; otherwise other processes may open it too.
        vfs: the SQLite VFS to reach the disk through, by name; None for the operating system's.

    Raises:
        MetadataFailed: the file cannot be opened, read or written, is damaged, or was written by a newer penstock.
    """
    db: apsw.Connection | None = None
    try:
        make_durable(_write_ahead_log(path), files)
        commits = commits_written(_write_ahead_log(path), files)
        db = apsw.Connection(str(path), vfs=vfs)
        _configure(db, exclusive=exclusive)
        _recover(db, path, files, commits)
        _migrate(db, path, migrations)
        files.sync_directory(path.parent)
    except (apsw.Error, OSError, MetadataFailed) as error:
        if db is not None:
            close_untouched(db)
        if isinstance(error, MetadataFailed):
            raise
        raise MetadataFailed(f"cannot open {path}: {type(error).__name__}: {error}") from error
    return db


def _configure(db: apsw.Connection, *, exclusive: bool) -> None:
    db.set_busy_timeout(BUSY_WAIT_MS)
    if exclusive:
        db.pragma("locking_mode", "exclusive")
    db.pragma("journal_mode", "wal")
    db.pragma("synchronous", "full")
    db.pragma("wal_autocheckpoint", 0)


def _recover(db: apsw.Connection, path: Path, files: Files, commits: Sequence[int]) -> None:
    """Update the main file from the write-ahead log, if everything that was committed can be read."""
    frames_read, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    unread = [frame for frame in commits if frame > frames_read]
    if len(unread) > 1:
        log = _write_ahead_log(path)
        raise MetadataFailed(
            f"{log} is damaged after frame {frames_read}: {len(unread)} commits behind it cannot be read; put copies "
            f"of {path.name} and {log.name} in their place, or move {log.name} away to go on without those commits"
        )
    fold(db, path, files)
    found = db.pragma("integrity_check")
    if found != "ok":
        raise MetadataFailed(f"{path} is damaged: {found}; put a copy of it in its place")


def fold(db: apsw.Connection, path: Path, files: Files) -> None:
    """Copy the write-ahead log into the main file, sync that, and empty the log durably.

    So the log is next used as an empty file. If its old header were overwritten instead, and that write torn, it would
    look like damage before commits that can no longer be read.
    """
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    log = files.open(_write_ahead_log(path))  # SQLite holds no lock on this file that closing it here would drop.
    try:
        log.sync()
    finally:
        log.close()


def _write_ahead_log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def _migrate(db: apsw.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Migrate in one transaction; without migrations it only makes sure that there is a write-ahead log."""
    version = int(db.pragma("user_version"))
    if version > len(migrations):
        raise MetadataFailed(
            f"{path} has schema version {version}, this penstock knows versions up to {len(migrations)}; "
            f"start it with the newer penstock that wrote it"
        )
    db.execute("begin immediate")
    for migration in migrations[version:]:
        if isinstance(migration, str):
            db.execute(migration)
        else:
            migration(db, version)
    db.execute(f"pragma user_version = {len(migrations)}; commit")


@contextlib.contextmanager
def damage_named(db: apsw.Connection, path: Path) -> Iterator[None]:
    """Close `db` and raise MetadataFailed if what is read in this block is damaged, or cannot be read at all."""
    try:
        yield
    except (apsw.Error, LookupError, TypeError, ValueError) as error:  # ValueError includes DamagedRow.
        close_untouched(db)
        raise MetadataFailed(
            f"{path} is damaged: {type(error).__name__}: {error}; "
            f"put a copy of it in its place, together with the -wal file beside that copy"
        ) from error


def close_untouched(db: apsw.Connection) -> None:
    """Close after an error, without the usual last checkpoint, so that the disk is not changed."""
    with contextlib.suppress(apsw.Error):  # The disk may fail this too; the first error is the one to report.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close()
