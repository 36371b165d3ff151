# SPDX-License-Identifier: Apache-2.0
"""The shared part of the catalog in the process that writes it.

Why a protocol: a broker that runs alone writes `meta.sqlite` itself; one under a supervisor follows the supervisor,
which writes it for all. Both submit the same changes, in order, and see each in their view right before its `done`.
Where: `Catalog` reads `view` and submits changes. `LocalPart` is the first implementation, `Follower` the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.errors import ConfigurationError
from penstock.storage.metadata import Change, MetadataFile, close_untouched, damage_named, open_database
from penstock.storage.schema import Split, shared_migrations
from penstock.storage.shared_tables import SharedTables, all_rows
from penstock.storage.shared_view import SharedView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import apsw

    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import Files, Lock
    from penstock.storage.metadata import Done, Post
    from penstock.storage.shared_changes import SharedChange
    from penstock.storage.shared_view import Row


class SharedPart(Protocol):
    """The shared part, as a broker uses it. All methods but `close` are called on the loop and return at once."""

    @property
    def view(self) -> SharedView: ...

    @property
    def failed(self) -> str | None:
        """Why changes are refused until a restart; None if they are not."""

    def submit(self, change: SharedChange, done: Done, took: Callable[[Sequence[Row]], None] | None = None) -> None:
        """Make a change durable.

        `done` is called with None once it is durable and in the view, or with an error. `took` is called with its rows
        right before.
        """

    def listen(self, changed: Callable[[Sequence[Row]], None]) -> None:
        """Call `changed` with the rows of each change that another broker has made, once they are in the view."""

    def close(self) -> None:
        """Answer what was submitted, then close. Blocks."""


class LocalPart:
    """The shared part of a broker that runs alone."""

    def __init__(self, view: SharedView, store: SharedStore) -> None:
        self.view = view
        self._store = store

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        post: Post,
        files: Files,
        *,
        exclusive: bool,
        vfs: str | None,
        brokers: int | None = 1,
    ) -> LocalPart:
        """Open or create it; blocks until it is recovered and loaded. Arguments and errors as of `SharedStore.open`."""
        view = SharedView()
        store = SharedStore.open(directory, post, files, view.apply, brokers=brokers, exclusive=exclusive, vfs=vfs)
        return cls(view, store)

    @property
    def failed(self) -> str | None:
        return self._store.failed

    def submit(self, change: SharedChange, done: Done, took: Callable[[Sequence[Row]], None] | None = None) -> None:
        def show(rows: Sequence[Row]) -> None:
            self.view.apply(rows)
            if took is not None:
                took(rows)

        self._store.submit(change, show, done)

    def listen(self, changed: Callable[[Sequence[Row]], None]) -> None:
        """There are no other brokers."""

    def close(self) -> None:
        self._store.close()


class SharedStore:
    """The file of the shared part, `meta.sqlite`. One process opens it; brokers in other processes follow that one."""

    def __init__(self, db: apsw.Connection, file: MetadataFile, lock: Lock) -> None:
        self._tables = SharedTables(db)
        self._file = file
        self._lock: Lock | None = lock

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        post: Post,
        files: Files,
        load: Callable[[Iterator[Row]], object],
        *,
        brokers: int | None = 1,
        exclusive: bool = False,
        vfs: str | None = None,
        answered: Callable[[], None] = lambda: None,
    ) -> SharedStore:
        """Open or create the file; blocks until it is recovered, of this version, and read.

        Args:
            directory: the data directory; the directories of its brokers exist.
            post: passes a callable to the loop's thread.
            files: the disk that the file is on.
            load: is given all records.
            brokers: how many brokers there are to serve the topics; None if they are not to be served.
            exclusive: no other process may open the file until this one closes it.
            vfs: the SQLite VFS to reach that disk through; None for the operating system's.
            answered: called on the loop after the answers of each commit.

        Raises:
            MetadataFailed: the file cannot be opened, read or written, or was written by a newer penstock.
            ConfigurationError: topics are placed on more brokers than there are.
            DataDirectoryLocked: another process has it open.
        """
        lock = directory.lock(files)
        try:
            db = cls._open(directory, files, load, brokers, exclusive=exclusive, vfs=vfs)
        except BaseException:
            lock.release()
            raise
        return cls(db, MetadataFile(db, directory.metadata, files, post, answered), lock)

    @staticmethod
    def _open(
        directory: DataDirectory,
        files: Files,
        load: Callable[[Iterator[Row]], object],
        brokers: int | None,
        *,
        exclusive: bool,
        vfs: str | None,
    ) -> apsw.Connection:
        path = directory.metadata
        split = Split(path=directory.topics(0), files=files, vfs=vfs, exclusive=exclusive)
        db = open_database(path, shared_migrations(split), files, exclusive=exclusive, vfs=vfs)
        with damage_named(db, path):
            load(all_rows(db))
        try:
            directory.mark_current(files)
            if brokers is not None:
                _check_places(db, directory, brokers)
        except BaseException:
            close_untouched(db)
            raise
        return db

    @property
    def failed(self) -> str | None:
        return self._file.failed

    def submit(self, change: SharedChange, show: Callable[[Sequence[Row]], None], done: Done) -> None:
        """Make a change durable; `show` is called with its rows, right before `done`."""
        self._file.submit(Change(lambda _db: change.store(self._tables), show, done))

    def read_all(self, show: Callable[[Sequence[Row]], None], done: Done) -> None:
        """Pass all records to `show`, as they are after all changes submitted so far."""
        self._file.submit(Change(lambda db: list(all_rows(db)), show, done))

    def close(self) -> None:
        """Commit and answer submitted changes, then close the file. Blocks; a second call does nothing."""
        self._file.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _check_places(db: apsw.Connection, directory: DataDirectory, brokers: int) -> None:
    """Raises ConfigurationError if topics are placed on brokers that are not started."""
    select = "select broker, count(*), min(name) from topics where broker >= ? group by broker order by broker"
    places: list[Any] = db.execute(select, (brokers,)).fetchall()
    if places:
        told = ", ".join(f"broker {broker} has {count} (such as {name})" for broker, count, name in places)
        raise ConfigurationError(
            f"{directory.path} has topics on more brokers than the {brokers} of --brokers: {told}; start penstock "
            f"with --brokers {places[-1][0] + 1}, or once more, so that it moves these topics to the others first"
        )
