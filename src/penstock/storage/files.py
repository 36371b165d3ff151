# SPDX-License-Identifier: Apache-2.0
"""Files: the log's only door to the disk.

Why: what a disk does on a bad day (drops pages it had not synced, tears a write, flips a bit, runs full, refuses a
sync) must be tried out by the thousand. One small interface lets a test be that disk; the log never knows.
Where: everything of the entry log that touches a file takes a `Files`. `OsFiles` is the operating system's;
`penstock.testing.files.FaultyFiles` is the bad day.

What callers may count on, and no more:

- Written bytes are readable at once, and durable after `sync` of that file returned.
- A created, renamed or deleted name is durable after `sync_directory` of its directory returned.
- After a `sync` that raised, nothing is known about the bytes written before it; it must not be tried again.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Buffer: TypeAlias = bytes | bytearray | memoryview

# The kernel takes at most this many buffers in one gathered write (IOV_MAX of Linux).
BUFFERS_PER_WRITE_MAX: Final = 1024
# A read that was interrupted, or gave no bytes before the end of the file, is repeated this often in a row.
_READ_TRIES_MAX: Final = 16
# A lock file holds a process id; more than this was not written by us.
_HOLDER_BYTES_MAX: Final = 64


class FileLocked(Exception):
    """Somebody else holds the lock; `holder` is what they wrote into it."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        super().__init__(f"locked by {holder or 'an unknown process'}")


class File(Protocol):
    """One open file. Safe to use from several threads: no call depends on a position another call moved."""

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write some of `buffers`, gathered, from `offset` on; return how many bytes were taken. Raises OSError."""
        ...

    def sync(self) -> None:
        """Make everything written so far survive a loss of power. Raises OSError: then never call it again."""
        ...

    def allocate(self, size: int) -> None:
        """Make sure `size` bytes can be written without the disk running full. Raises OSError (ENOSPC)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file off at `size`, or extend it with zeros."""
        ...

    def forget(self) -> None:
        """Tell the system that what is durable of this file need not stay in memory."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def close(self) -> None:
        """Close the file; its unsynced bytes stay unsynced."""
        ...


class Lock(Protocol):
    """A lock on a file, held until released or until the process ends."""

    def release(self) -> None:
        """Let go."""
        ...


class Files(Protocol):
    """A file system, as far as the log needs one."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open `path` for reading and writing. Raises FileNotFoundError unless `create`."""
        ...

    def names(self, directory: Path) -> list[str]:
        """List the names in `directory`, sorted."""
        ...

    def exists(self, path: Path) -> bool:
        """Say whether `path` is there."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents, durably; it may be there already."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name; what had that name before is gone."""
        ...

    def delete(self, path: Path) -> None:
        """Remove a file. Raises FileNotFoundError."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in `path` survive a loss of power. Raises OSError."""
        ...

    def lock(self, path: Path, holder: str) -> Lock:
        """Lock `path` for this process and write `holder` into it. Raises FileLocked."""
        ...


def write_all(file: File, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of `buffers` from `offset` on, however little the file takes at a time; return the bytes written."""
    written = 0
    for start in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
        pending = list(buffers[start : start + BUFFERS_PER_WRITE_MAX])
        size = sum(len(buffer) for buffer in pending)
        taken = file.write(pending, offset + written)
        while taken < size:  # A signal, a full disk or the kernel's 2 GiB bound cut the write short.
            pending = _rest(pending, taken)
            written += taken
            size -= taken
            taken = file.write(pending, offset + written)
            if taken == 0:
                raise OSError(f"the file took no bytes at offset {offset + written}")
        written += taken
    return written


def read_up_to(file: File, size: int, offset: int) -> bytes:
    """Read `size` bytes from `offset`, however little comes at a time; fewer only at the end of the file.

    Raises:
        OSError: the disk could not read them, or goes on giving nothing though the file is longer.
    """
    parts: list[bytes] = []
    got = failed = 0
    while got < size:
        try:
            part = file.read(size - got, offset + got)
        except InterruptedError:
            part = b""
        if len(part) == size:
            return part
        if part:
            parts.append(part)
            got += len(part)
            failed = 0
        elif file.size() <= offset + got:
            break
        elif (failed := failed + 1) == _READ_TRIES_MAX:
            raise OSError(errno.EIO, f"no bytes came from offset {offset + got}, though the file is longer")
    return b"".join(parts)


def read_exactly(file: File, size: int, offset: int) -> bytes:
    """Read `size` bytes from `offset`. Raises OSError: the disk could not, or the file ends before."""
    data = read_up_to(file, size, offset)
    if len(data) < size:
        raise OSError(errno.EIO, f"the file ends at {offset + len(data)}, and should reach to {offset + size}")
    return data


def _rest(buffers: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return what is left of `buffers` after their first `taken` bytes."""
    for index, buffer in enumerate(buffers):
        if taken < len(buffer):
            return [memoryview(buffer)[taken:], *buffers[index + 1 :]]
        taken -= len(buffer)
    return []


class OsFile:
    """An open file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int, offset: int) -> bytes:
        """See `File.read`."""
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See `File.write`: one `pwritev`."""
        return os.pwritev(self._descriptor, buffers, offset)

    def sync(self) -> None:
        """See `File.sync`: `fdatasync`, which also carries the length but not the times."""
        os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        """See `File.allocate`."""
        os.posix_fallocate(self._descriptor, 0, size)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        os.ftruncate(self._descriptor, size)

    def forget(self) -> None:
        """See `File.forget`."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """See `File.close`."""
        os.close(self._descriptor)


class OsLock:
    """A lock of the operating system (`flock`): it goes when the process goes, however it goes."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """See `Lock.release`. The file stays: removing it would let two processes lock two files of one name."""
        os.close(self._descriptor)


class OsFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        """See `Files.open`."""
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640))

    def names(self, directory: Path) -> list[str]:
        """See `Files.names`."""
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths

    def exists(self, path: Path) -> bool:
        """See `Files.exists`."""
        return path.exists()

    def make_directory(self, path: Path) -> None:
        """See `Files.make_directory`."""
        if path.exists():
            return
        self.make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=0o750)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files.rename`."""
        source.rename(target)

    def delete(self, path: Path) -> None:
        """See `Files.delete`."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """See `Files.sync_directory`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path, holder: str) -> OsLock:
        """See `Files.lock`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        except BlockingIOError:
            other = os.pread(descriptor, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise FileLocked(other) from None
        except OSError:
            os.close(descriptor)
            raise
        return OsLock(descriptor)
