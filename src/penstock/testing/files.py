# SPDX-License-Identifier: Apache-2.0
"""FaultyFiles: a file system in memory with every fault of a real disk, on command and by seed.

Why: "nothing acknowledged is lost" must hold at power cuts, which cannot be tried by the thousand on real machines.
This file system separates what was written from what was synced; `crash` then drops any part of what was not synced.

    files = FaultyFiles()
    ... write through it ...
    files.lose_power_at(call=17)   # the 17th change from now is cut short, and nothing works after it
    ... until something fails ...
    files.crash(random.Random(7))  # what is left when the machine comes back
    ... open again, check what is there ...

What it models:

- `sync` makes a file's bytes and length durable, `sync_directory` the names in a directory.
- Of unsynced pages (4 KiB) any subset survives a crash; one may be torn between its 512-byte sectors.
- Of a directory's unsynced changes (create, rename, delete) a prefix survives, as on a journalling file system.
- A failed sync leaves pages that look clean and are not: syncing again succeeds and saves nothing.
- Any bit can be flipped, any write or allocation fail with ENOSPC, any call with EIO.
- Reads of chosen files fail, are interrupted or are short, for a while or permanently; files vanish and come back.

Where: pass it to `EntryLog.open` in place of `OsFiles`. `FaultyFile` reads and writes any byte range, so it can serve
an SQLite VFS as well. All methods may be called from several threads.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.storage.files import FileLocked

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.storage.files import Buffer

PAGE_BYTES: Final = 4096
SECTOR_BYTES: Final = 512


class _Bytes:
    """The bytes of a file, by pages; pages that were never written take no memory."""

    __slots__ = ("pages", "size")

    def __init__(self, size: int = 0, pages: dict[int, bytes] | None = None) -> None:
        self.size = size
        self.pages: dict[int, bytes] = pages if pages is not None else {}

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        first, stop = offset // PAGE_BYTES, -(-end // PAGE_BYTES)
        data = b"".join([self.pages.get(page, _ZEROS) for page in range(first, stop)])
        return data[offset - first * PAGE_BYTES : end - first * PAGE_BYTES]

    def write(self, data: bytes, offset: int) -> range:
        """Write; returns the changed pages."""
        if not data:
            return range(0)
        end = offset + len(data)
        pages = range(offset // PAGE_BYTES, -(-end // PAGE_BYTES))
        front = offset - pages[0] * PAGE_BYTES
        back = pages.stop * PAGE_BYTES - end
        if front or back:
            before, after = self.pages.get(pages[0], _ZEROS), self.pages.get(pages[-1], _ZEROS)
            data = b"".join((before[:front], data, after[PAGE_BYTES - back :] if back else b""))
        for row, page in enumerate(pages):
            self.pages[page] = data[row * PAGE_BYTES : (row + 1) * PAGE_BYTES]
        self.size = max(self.size, end)
        return pages

    def resize(self, size: int) -> None:
        if size < self.size:
            last, kept = divmod(size, PAGE_BYTES)
            for page in [page for page in self.pages if page > last]:
                del self.pages[page]
            if last in self.pages:
                self.pages[last] = self.pages[last][:kept] + _ZEROS[kept:]
        self.size = size


_ZEROS: Final = bytes(PAGE_BYTES)


@dataclass(slots=True, eq=False)
class _Inode:
    """A file's content, independent of its names."""

    data: _Bytes = field(default_factory=_Bytes)  # current content
    durable: _Bytes = field(default_factory=_Bytes)  # content on the disk
    dirty: set[int] = field(default_factory=set)  # pages that the next sync saves
    lost: set[int] = field(default_factory=set)  # pages dropped by a failed sync: readable, but not durable

    def write(self, data: bytes, offset: int) -> None:
        pages = self.data.write(data, offset)
        self.dirty.update(pages)
        self.lost.difference_update(pages)

    def truncate(self, size: int) -> None:
        if size <= self.data.size:
            self.dirty.add(size // PAGE_BYTES)
        self.data.resize(size)

    def sync(self) -> None:
        durable, size = self.durable.pages, self.data.size
        for page in self.dirty:
            if page * PAGE_BYTES < size and page in self.data.pages:
                durable[page] = self.data.pages[page]
            else:
                durable.pop(page, None)
        self.durable.resize(size)
        self.dirty.clear()

    def crash(self, rng: random.Random) -> None:
        """Keep any part of the unsynced content."""
        unsynced = sorted(self.dirty | self.lost)
        size = rng.choice((self.durable.size, self.data.size))
        after = _Bytes(self.durable.size, dict(self.durable.pages))
        after.resize(size)
        share = rng.choice((0.0, 0.5, 0.9, 1.0))  # Halves alone would rarely let whole groups survive.
        for page in unsynced:
            start = page * PAGE_BYTES
            end = min(start + PAGE_BYTES, size, self.data.size)
            if rng.random() >= share:
                if rng.random() >= 0.25:
                    continue
                end = min(end, start + SECTOR_BYTES * rng.randrange(PAGE_BYTES // SECTOR_BYTES))
            if start < end:
                after.write(self.data.read(end - start, start), start)
        self.data, self.durable = after, _Bytes(after.size, dict(after.pages))
        self.dirty, self.lost = set(), set()

    def flip(self, bit: int) -> None:
        """Flip one bit, in memory and on the disk."""
        for data in (self.data, self.durable):
            byte = data.read(1, bit // 8)
            if byte:
                data.write(bytes([byte[0] ^ 1 << bit % 8]), bit // 8)


class FaultyFile:
    """An open file; after a crash, every call fails."""

    def __init__(self, files: FaultyFiles, inode: _Inode) -> None:
        self._files = files
        self.inode = inode
        self._life = files.life

    def read(self, size: int, offset: int) -> bytes:
        with self._files.guard:
            self._files.check(self._life)
            size = self._files.readable(self.inode, size, offset)
            return self.inode.data.read(size, offset)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        data = self.read(len(buffer), offset)
        buffer[: len(data)] = data
        return len(data)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """As `penstock.storage.files.File.write`. A partial write is followed by an error."""
        data = b"".join(buffers)
        with self._files.guard:
            allowed, error = self._files.admit(self._life, len(data))
            self.inode.write(data[:allowed], offset)
            if error is not None and allowed == 0:
                raise error
            return allowed

    def sync(self) -> None:
        with self._files.guard:
            try:
                self._files.change(self._life)
                self._files.check_sync()
            except OSError:
                self.inode.lost |= self.inode.dirty
                self.inode.dirty.clear()
                raise
            self.inode.sync()

    def allocate(self, size: int) -> None:
        with self._files.guard:
            grown = max(size - self.inode.data.size, 0)
            allowed, error = self._files.admit(self._life, grown)
            if error is not None and allowed < grown:
                raise error
            if grown:
                self.inode.truncate(size)

    def truncate(self, size: int) -> None:
        with self._files.guard:
            self._files.change(self._life)
            self.inode.truncate(size)

    def forget(self) -> None:
        """Does nothing: there is no page cache here."""

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """Everything is in memory, unless reads may fail."""
        with self._files.guard:
            if self._files.on_read is not None or self._life != self._files.life:
                return 0
            data = self.inode.data.read(len(buffer), offset)
            buffer[: len(data)] = data
            return len(data)

    def will_read(self, size: int, offset: int) -> None:
        """Does nothing, as `forget`."""

    def size(self) -> int:
        with self._files.guard:
            self._files.check(self._life)
            return self.inode.data.size

    def close(self) -> None: ...


class FaultyLock:
    """A lock that a crash releases."""

    def __init__(self, files: FaultyFiles, path: Path) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        self._files.locks.pop(self._path, None)


class FaultyFiles:
    """A file system in memory, with faults. Implements `penstock.storage.files.Files`."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.life = 0  # number of crashes: files opened before a crash are unusable
        self.locks: dict[Path, str] = {}
        self.changes = 0  # number of changes, to choose the moment of a fault
        self.syncs = 0
        self._names: dict[Path, _Inode] = {}
        # Per directory, its unsynced changes: names with their new inodes.
        self._unsynced: dict[Path, list[dict[Path, _Inode | None]]] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._power_lost_at: int | None = None
        self._cut_ratio = 0.0
        self._off = False
        self._write_bytes_left: int | None = None
        self._sync_fails_at: int | None = None
        # Called with (path, size, offset) before each read: returns the number of bytes to give, or raises.
        self.on_read: Callable[[Path, int, int], int] | None = None
        self._hidden: dict[Path, _Inode] = {}

    # -------------------------------------------------------------------------------------------------------- faults

    def lose_power_at(self, call: int, *, cut_ratio: float = 0.5) -> None:
        """Lose power at the `call`-th change from now. If it is a write, `cut_ratio` of it is done."""
        self._power_lost_at = self.changes + call
        self._cut_ratio = cut_ratio

    def lose_power(self) -> None:
        """Let every call fail from now on."""
        self._off = True

    def crash(self, rng: random.Random) -> None:
        """Restart after a power cut, with any part of the unsynced changes. Ends all other faults."""
        with self.guard:
            inodes = {id(inode): inode for names in (self._names, self._durable_names) for inode in names.values()}
            names = dict(self._durable_names)
            for changes in self._unsynced.values():
                for change in changes[: rng.randint(0, len(changes))]:
                    _apply(names, change)
                inodes.update((id(inode), inode) for change in changes for inode in change.values() if inode)
            for inode in inodes.values():
                inode.crash(rng)
            self._begin_life(names)

    def kill(self) -> None:
        """Restart after a kill of the process: everything written is kept. Ends all other faults."""
        with self.guard:
            self._begin_life(self._names)

    def _begin_life(self, names: dict[Path, _Inode]) -> None:
        self._names, self._durable_names = dict(names), dict(names)
        self._unsynced = {}
        self.locks.clear()
        self.life += 1
        self._off, self._power_lost_at = False, None
        self._write_bytes_left = self._sync_fails_at = None

    def run_full_after(self, size: int | None) -> None:
        """Fail writes and allocations with ENOSPC after `size` more bytes; None: there is room again."""
        self._write_bytes_left = size

    def fail_sync_at(self, call: int) -> None:
        """Fail the `call`-th sync from now with EIO, and drop what it should have saved."""
        self._sync_fails_at = self.syncs + call

    def fail_reads(self, code: int = errno.EIO, *, of: str = ".seg", times: int | None = None) -> None:
        """Fail reads of files with this suffix with this error, this often or until `heal`."""
        left = times

        def fail(path: Path, size: int, _offset: int) -> int:
            nonlocal left
            if not path.name.endswith(of) or left == 0:
                return size
            if left is not None:
                left -= 1
            raise OSError(code, os.strerror(code), str(path))  # as an InterruptedError when it is EINTR

        self.on_read = fail

    def shorten_reads(self, size_max: int) -> None:
        """Limit each read to `size_max` bytes, until `heal`."""
        self.on_read = lambda _path, size, _offset: min(size, size_max)

    def heal(self) -> None:
        """End all read faults."""
        self.on_read = None

    def hide(self, path: Path) -> None:
        """Remove a file until `show`, like an unmounted disk. Open files stay open."""
        with self.guard:
            self._hidden[path] = self._names.pop(path)
            self._durable_names.pop(path, None)

    def show(self, path: Path) -> None:
        """Bring a hidden file back."""
        with self.guard:
            self._names[path] = self._durable_names[path] = self._hidden.pop(path)

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, on the disk and in memory. Bit 0 is the lowest of the first byte."""
        with self.guard:
            self._names[path].flip(bit)

    # ------------------------------------------------------------------------------ what a file asks before it acts

    def check(self, life: int) -> None:
        """Raises OSError if the power is off, or was off since the file was opened."""
        if self._off or life != self.life:
            raise OSError(errno.EIO, "the power is off")

    def readable(self, inode: _Inode, size: int, offset: int) -> int:
        """The number of bytes that a read gives; raises its fault."""
        if self.on_read is None:
            return size
        path = next((path for path, one in self._names.items() if one is inode), None)
        return size if path is None else self.on_read(path, size, offset)

    def change(self, life: int) -> None:
        """Count a change; raises its fault."""
        self.check(life)
        self.changes += 1
        if self._power_lost_at is not None and self.changes >= self._power_lost_at:
            self._off = True
            raise OSError(errno.EIO, "the power is off")

    def admit(self, life: int, size: int) -> tuple[int, OSError | None]:
        """The number of bytes that a write may take, and the error that ends it."""
        self.check(life)
        self.changes += 1
        if self._power_lost_at is not None and self.changes >= self._power_lost_at:
            self._off = True
            return int(size * self._cut_ratio), OSError(errno.EIO, "the power is off")
        if self._write_bytes_left is not None:
            if size > self._write_bytes_left:
                taken, self._write_bytes_left = self._write_bytes_left, 0
                return taken, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._write_bytes_left -= size
        return size, None

    def check_sync(self) -> None:
        """Count a sync; raises its fault."""
        self.syncs += 1
        if self.syncs == self._sync_fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # --------------------------------------------------------------------------------------------------- the Files seam

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        with self.guard:
            self.check(self.life)
            inode = self._names.get(path)
            if inode is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                inode = _Inode()
                self._change_names({path: inode})
            return FaultyFile(self, inode)

    def names(self, directory: Path) -> list[str]:
        with self.guard:
            return sorted(path.name for path in self._names if path.parent == directory)

    def exists(self, path: Path) -> bool:
        """As `penstock.storage.files.Files.exists`; a directory exists if there is a file below it."""
        with self.guard:
            return path in self._names or any(path in name.parents for name in self._names)

    def make_directory(self, path: Path) -> None:
        """Does nothing: directories always exist."""

    def rename(self, source: Path, target: Path) -> None:
        """As `penstock.storage.files.Files.rename`, within one directory."""
        with self.guard:
            inode = self._names[source]
            self.change(self.life)
            # One change: after a crash either the old name or the new one exists, never both or neither.
            self._change_names({source: None, target: inode})

    def delete(self, path: Path) -> None:
        with self.guard:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.change(self.life)
            self._change_names({path: None})

    def _change_names(self, change: dict[Path, _Inode | None]) -> None:
        self._unsynced.setdefault(next(iter(change)).parent, []).append(change)
        _apply(self._names, change)

    def sync_directory(self, path: Path) -> None:
        with self.guard:
            self.change(self.life)
            self.check_sync()
            for change in self._unsynced.pop(path, []):
                _apply(self._durable_names, change)

    def lock(self, path: Path, holder: str) -> FaultyLock:
        with self.guard:
            if path in self.locks:
                raise FileLocked(self.locks[path])
            self.locks[path] = holder
            return FaultyLock(self, path)


def _apply(names: dict[Path, _Inode], change: dict[Path, _Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode
