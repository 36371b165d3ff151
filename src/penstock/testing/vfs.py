# SPDX-License-Identifier: Apache-2.0
"""An SQLite VFS over `Files`: puts the catalog on the same faulty disk as the entry log.

Why: that SQLite keeps committed data depends on the order of its writes and syncs, and on the settings that penstock
uses. With its files on a `FaultyFiles`, this is tested with dropped pages, torn writes, a full disk and failed syncs.
Where: a test enters `sqlite_on(files)` and opens its catalog with `exclusive=True` and the returned name.

As to durability it does the same as SQLite's own VFS for Unix: a file is synced when SQLite asks, the directory only
after the first sync of an opened journal or write-ahead log, where a failure is ignored, and after a delete that asks
for it. There is no shared memory, so the catalog must be opened for a single connection.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import apsw

from penstock.storage.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from penstock.storage.files import File, Files

_JOURNALS: Final = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
_numbers = count()


@contextmanager
def sqlite_on(files: Files, *, seed: int | None = None) -> Iterator[str]:
    """Register `files` with SQLite under the returned name.

    Args:
        files: what is written there.
        seed: of SQLite's randomness meanwhile, in this process; these files are its default then. It is in the salts of
            write-ahead logs, and so in all their checksums: without it no two runs write the same bytes.
    """
    vfs = _Vfs(f"penstock-files-{next(_numbers)}", files, seed)
    apsw.randomness(0)  # SQLite asks the default VFS for a new seed when it needs one.
    try:
        yield vfs.vfs_name
    finally:
        vfs.unregister()
        apsw.randomness(0)


class _Vfs(apsw.VFS):
    """A VFS over `Files`. Time and sleep are those of the VFS that was the default before."""

    def __init__(self, name: str, files: Files, seed: int | None) -> None:
        super().__init__(name, base="", makedefault=seed is not None)
        self.vfs_name = name
        self._files = files
        self._chance = Random(seed)

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        return self._chance.randbytes(numbytes)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> _VfsFile:  # type: ignore[override]  # noqa: N802
        assert name is not None, "the catalog needs no temporary files"
        path = Path(name if isinstance(name, str) else name.filename())
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        flags[1] = flags[0]
        try:
            file = self._files.open(path, create=create)
        except OSError as error:
            raise apsw.CantOpenError(str(error)) from error
        is_journal = create and bool(flags[0] & _JOURNALS)
        return _VfsFile(file, partial(self._files.sync_directory, path.parent) if is_journal else None)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: FBT001, N802
        path = Path(filename)
        try:
            self._files.delete(path)
        except FileNotFoundError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_DELETE_NOENT) from error
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_DELETE) from error
        if syncdir:
            try:
                self._files.sync_directory(path.parent)
            except OSError as error:
                raise _io_error(error, apsw.SQLITE_IOERR_DIR_FSYNC) from error

    def xAccess(self, pathname: str, flags: int) -> bool:  # noqa: ARG002, N802
        return self._files.exists(Path(pathname))

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def excepthook(
        self, etype: type[BaseException] | None, evalue: BaseException | None, etraceback: TracebackType | None
    ) -> bool:
        """Prints nothing: SQLite gets the error as a code, and its caller as an exception."""
        del etype, evalue, etraceback
        return True


class _VfsFile:
    """One open file of SQLite."""

    def __init__(self, file: File, sync_directory: Callable[[], None] | None) -> None:
        self._file = file
        self._sync_directory = sync_directory

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        try:
            return self._file.read(amount, offset)
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_READ) from error

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        try:
            write_all(self._file, [bytes(data)], offset)
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_WRITE) from error

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        try:
            self._file.truncate(newsize)
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_TRUNCATE) from error

    def xSync(self, flags: int) -> None:  # noqa: ARG002, N802
        try:
            self._file.sync()
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_FSYNC) from error
        if self._sync_directory:
            with suppress(OSError):
                self._sync_directory()
            self._sync_directory = None

    def xFileSize(self) -> int:  # noqa: N802
        try:
            return self._file.size()
        except OSError as error:
            raise _io_error(error, apsw.SQLITE_IOERR_FSTAT) from error

    def xClose(self) -> None:  # noqa: N802
        self._file.close()

    def xLock(self, level: int) -> None:  # noqa: N802
        """Does nothing: there is only one connection."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Does nothing, as `xLock`."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, op: int, ptr: int) -> bool:  # noqa: ARG002, N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return 4096

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        """As on Unix: a write does not damage bytes outside its range."""
        return int(apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE)

    def excepthook(self, *_: object) -> None: ...


def _io_error(error: OSError, code: int) -> apsw.Error:
    """The exception for SQLite: a full disk, or this kind of I/O error."""
    told: Any = apsw.FullError(str(error)) if error.errno == errno.ENOSPC else apsw.IOError(str(error))
    told.extendedresult = apsw.SQLITE_FULL if error.errno == errno.ENOSPC else code
    return told  # type: ignore[no-any-return]
