# SPDX-License-Identifier: Apache-2.0
"""Files: the only access of the log to the disk.

Why: tests must try thousands of disk failures (pages dropped before a sync, torn writes, flipped bits, a full disk,
failed syncs). With one small interface, a test can be such a disk. Where: everything in the entry log that uses a file
takes a `Files`. `OsFiles` is the operating system's; `penstock.testing.files.FaultyFiles` simulates failures.

Callers may rely on the following, and nothing else:

- Written bytes are readable at once, and durable after `sync` of that file has returned.
- A created, renamed or deleted name is durable after `sync_directory` of its directory has returned.
- After a `sync` that raised, nothing is known about the bytes written before it; `sync` must not be called again.
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
# How often in a row a read is repeated that was interrupted, or returned no bytes before the end of the file.
_READ_TRIES_MAX: Final = 16
# A lock file holds a process id; a longer content is not from penstock.
_HOLDER_BYTES_MAX: Final = 64


class FileLocked(Exception):
    """Another process holds the lock; `holder` is the content of the lock file."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        super().__init__(f"locked by {holder or 'an unknown process'}")


class File(Protocol):
    """One open file. Thread-safe: no call depends on a file position."""

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read into `buffer` from `offset` on; return how many bytes, fewer than it has room for as `read` does."""
        ...

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """Write some of `buffers`, gathered, from `offset` on; return how many bytes were written. Raises OSError."""
        ...

    def sync(self) -> None:
        """Make all written bytes durable. Raises OSError: then never call it again."""
        ...

    def allocate(self, size: int) -> None:
        """Reserve `size` bytes of disk space. Raises OSError (ENOSPC)."""
        ...

    def truncate(self, size: int) -> None:
        """Set the length to `size`; a longer file is filled with zeros."""
        ...

    def forget(self) -> None:
        """Tell the system that durable bytes of this file need not stay in memory."""
        ...

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from `offset` on as far as the system has the bytes in memory; return how many that are.

        Does not wait for the disk or fail. 0 where the system cannot tell.
        """
        ...

    def will_read(self, size: int, offset: int) -> None:
        """Let the system begin to read these bytes into memory, because they are read soon. Does not wait or fail."""
        ...

    def size(self) -> int:
        """Return the length in bytes."""
        ...

    def close(self) -> None:
        """Close the file; its unsynced bytes stay unsynced."""
        ...


class Lock(Protocol):
    """A lock on a file, held until released or until the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """The file system operations that the log needs."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Open `path` for reading and writing. Raises FileNotFoundError unless `create`."""
        ...

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""
        ...

    def exists(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """Create `path` and its parents, durably; it may exist already."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, and replace an existing `target`."""
        ...

    def delete(self, path: Path) -> None:
        """Delete a file. Raises FileNotFoundError."""
        ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in `path` durable. Raises OSError."""
        ...

    def lock(self, path: Path, holder: str) -> Lock:
        """Lock `path` for this process and write `holder` into it. Raises FileLocked."""
        ...


def write_all(file: File, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all of `buffers` from `offset` on, in as many writes as needed; return the bytes written."""
    written = 0
    for start in range(0, len(buffers), BUFFERS_PER_WRITE_MAX):
        few = len(buffers) <= BUFFERS_PER_WRITE_MAX
        pending = buffers if few else buffers[start : start + BUFFERS_PER_WRITE_MAX]
        size = sum(map(len, pending))
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
    """Read `size` bytes from `offset`, in as many reads as needed; fewer only at the end of the file.

    Raises:
        OSError: the disk could not read them, or keeps returning nothing though the file is longer.
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
    """Read `size` bytes from `offset`. Raises OSError if the disk cannot read them or the file ends before."""
    data = read_up_to(file, size, offset)
    if len(data) < size:
        raise OSError(errno.EIO, f"the file ends at {offset + len(data)}, and should reach to {offset + size}")
    return data


def fill(file: File, buffer: memoryview, offset: int) -> None:
    """Read so many bytes as the buffer has room for. Raises OSError as `read_exactly`."""
    got = 0
    with suppress(InterruptedError):
        got = file.read_into(buffer, offset)
    if got < len(buffer):
        buffer[got:] = read_exactly(file, len(buffer) - got, offset + got)


def _rest(buffers: Sequence[Buffer], taken: int) -> list[Buffer]:
    """Return the rest of `buffers` after their first `taken` bytes."""
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
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (data := os.pread(self._descriptor, size - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [buffer], offset)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(self._descriptor, buffers, offset)

    def sync(self) -> None:
        """Call `fdatasync`, which also makes the length durable but not the times."""
        os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._descriptor, 0, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def forget(self) -> None:
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except OSError:  # EAGAIN: nothing is in memory. A disk that fails says so to the read that has to wait for it.
            return 0

    def will_read(self, size: int, offset: int) -> None:
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)


class OsLock:
    """A lock of the operating system (`flock`), which ends with the process in any case."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. The file stays: deleting it would let two processes lock two files of the same name."""
        os.close(self._descriptor)


class OsFiles:
    """The files of the operating system."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o640))

    def names(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names are wanted, not paths

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        if path.exists():
            return
        self.make_directory(path.parent)
        with suppress(FileExistsError):
            path.mkdir(mode=0o750)
        self.sync_directory(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def delete(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path, holder: str) -> OsLock:
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
