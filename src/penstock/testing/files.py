# SPDX-License-Identifier: Apache-2.0
"""FaultyFiles: a disk in memory that has every bad day a disk can have, on command and by seed.

Why: "nothing acknowledged is lost" is a statement about power cuts, and a real one cannot be had by the thousand. This
file system keeps apart what was written and what was synced; `crash` then forgets any part of what was not synced.

    files = FaultyFiles()
    ... write through it ...
    files.lose_power_at(call=17)   # the 17th change from now is cut short, and nothing works after it
    ... until something fails ...
    files.crash(random.Random(7))  # what is left when the machine comes back
    ... open again, look what is there ...

What it models, and how hard it tries:

- `sync` makes a file's bytes and length durable, `sync_directory` the names in a directory.
- Of unsynced pages (4 KiB) any subset survives a crash; one may be torn between its 512-byte sectors.
- Of a directory's unsynced changes (create, rename, delete) a prefix survives, as on a journalling file system.
- A failed sync leaves pages that look clean and are not: syncing again succeeds and saves nothing.
- Any bit can be flipped, any write or allocation refused with ENOSPC, any call with EIO.
- Reads of chosen files fail, are interrupted or give too little, for a while or for ever; files vanish and come back.

Where: hand it to `EntryLog.open` in place of `OsFiles`. `FaultyFile` reads and writes any byte range, so it can carry
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
    """The bytes of a file, by pages: what was never written takes no memory."""

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
        """Returns the pages that it changed."""
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
    """A file's bytes, apart from its names."""

    data: _Bytes = field(default_factory=_Bytes)  # as read now
    durable: _Bytes = field(default_factory=_Bytes)  # as the platters have it
    dirty: set[int] = field(default_factory=set)  # pages the next sync saves
    lost: set[int] = field(default_factory=set)  # pages a failed sync gave up: they read well and are not durable

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
        """Come back with any part of what was not synced."""
        unsynced = sorted(self.dirty | self.lost)
        size = rng.choice((self.durable.size, self.data.size))
        after = _Bytes(self.durable.size, dict(self.durable.pages))
        after.resize(size)
        share = rng.choice((0.0, 0.5, 0.9, 1.0))  # Halves of everything would make whole groups survive too rarely.
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
        """Flip one bit, in memory and on the platters."""
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
        """See `penstock.storage.files.File.read`."""
        with self._files.guard:
            self._files.check(self._life)
            size = self._files.readable(self.inode, size, offset)
            return self.inode.data.read(size, offset)

    def write(self, buffers: Sequence[Buffer], offset: int) -> int:
        """See `penstock.storage.files.File.write`. Takes a part only when it then fails."""
        data = b"".join(buffers)
        with self._files.guard:
            allowed, error = self._files.admit(self._life, len(data))
            self.inode.write(data[:allowed], offset)
            if error is not None and allowed == 0:
                raise error
            return allowed

    def sync(self) -> None:
        """See `penstock.storage.files.File.sync`."""
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
        """See `penstock.storage.files.File.allocate`."""
        with self._files.guard:
            grown = max(size - self.inode.data.size, 0)
            allowed, error = self._files.admit(self._life, grown)
            if error is not None and allowed < grown:
                raise error
            if grown:
                self.inode.truncate(size)

    def truncate(self, size: int) -> None:
        """See `penstock.storage.files.File.truncate`."""
        with self._files.guard:
            self._files.change(self._life)
            self.inode.truncate(size)

    def forget(self) -> None:
        """See `File.forget`: there is no other memory here."""

    def size(self) -> int:
        """See `penstock.storage.files.File.size`."""
        with self._files.guard:
            self._files.check(self._life)
            return self.inode.data.size

    def close(self) -> None:
        """See `penstock.storage.files.File.close`."""


class FaultyLock:
    """A lock that a crash releases."""

    def __init__(self, files: FaultyFiles, path: Path) -> None:
        self._files = files
        self._path = path

    def release(self) -> None:
        """See `penstock.storage.files.Lock.release`."""
        self._files.locks.pop(self._path, None)


class FaultyFiles:
    """A file system in memory, with faults. Implements `penstock.storage.files.Files`."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.life = 0  # Counts crashes: what was opened in an earlier life is of no use.
        self.locks: dict[Path, str] = {}
        self.changes = 0  # Calls that changed something, to choose the moment of a fault from.
        self.syncs = 0
        self._names: dict[Path, _Inode] = {}
        # Per directory, its changes since it was last synced, each of names to what they mean now.
        self._unsynced: dict[Path, list[dict[Path, _Inode | None]]] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._power_lost_at: int | None = None
        self._cut_ratio = 0.0
        self._off = False
        self._write_bytes_left: int | None = None
        self._sync_fails_at: int | None = None
        # Asked with (path, size, offset) before each read: how many bytes it gives; or it raises.
        self.on_read: Callable[[Path, int, int], int] | None = None
        self._hidden: dict[Path, _Inode] = {}

    # -------------------------------------------------------------------------------------------------------- faults

    def lose_power_at(self, call: int, *, cut_ratio: float = 0.5) -> None:
        """Let the `call`-th change from now be the last. If it is a write, this share of it is taken."""
        self._power_lost_at = self.changes + call
        self._cut_ratio = cut_ratio

    def lose_power(self) -> None:
        """Let nothing work from now on."""
        self._off = True

    def crash(self, rng: random.Random) -> None:
        """Come back after a power cut, with any part of what was not synced. All other faults are over."""
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
        """Come back after only the process was killed: everything written is there. All other faults are over."""
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
        """Refuse writes and allocations with ENOSPC once `size` more bytes were taken; None: there is room again."""
        self._write_bytes_left = size

    def fail_sync_at(self, call: int) -> None:
        """Let the `call`-th sync from now fail with EIO, and lose what it should have saved."""
        self._sync_fails_at = self.syncs + call

    def fail_reads(self, code: int = errno.EIO, *, of: str = ".seg", times: int | None = None) -> None:
        """Let reads of files whose names end so fail with this error, this often or until `heal`."""
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
        """Let no read give more than this at a time, until `heal`."""
        self.on_read = lambda _path, size, _offset: min(size, size_max)

    def heal(self) -> None:
        """Let all reads go well again."""
        self.on_read = None

    def hide(self, path: Path) -> None:
        """Let a file be gone, until `show`: as on a disk that is not mounted. Open files stay open."""
        with self.guard:
            self._hidden[path] = self._names.pop(path)
            self._durable_names.pop(path, None)

    def show(self, path: Path) -> None:
        """Let it be there again."""
        with self.guard:
            self._names[path] = self._durable_names[path] = self._hidden.pop(path)

    def flip(self, path: Path, bit: int) -> None:
        """Flip one bit of a file, on the platters and in memory. Bit 0 is the lowest of the first byte."""
        with self.guard:
            self._names[path].flip(bit)

    # ------------------------------------------------------------------------------ what a file asks before it acts

    def check(self, life: int) -> None:
        """Fail if the power is off, or was since the file was opened."""
        if self._off or life != self.life:
            raise OSError(errno.EIO, "the power is off")

    def readable(self, inode: _Inode, size: int, offset: int) -> int:
        """Return how many bytes a read gives; raises what it is to fail with."""
        if self.on_read is None:
            return size
        path = next((path for path, one in self._names.items() if one is inode), None)
        return size if path is None else self.on_read(path, size, offset)

    def change(self, life: int) -> None:
        """Count a change; fail if it is not to be."""
        self.check(life)
        self.changes += 1
        if self._power_lost_at is not None and self.changes >= self._power_lost_at:
            self._off = True
            raise OSError(errno.EIO, "the power is off")

    def admit(self, life: int, size: int) -> tuple[int, OSError | None]:
        """Return how many bytes a write may take, and the error that keeps it from more."""
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
        """Count a sync; fail if it is its turn."""
        self.syncs += 1
        if self.syncs == self._sync_fails_at:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    # --------------------------------------------------------------------------------------------------- the Files seam

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        """See `penstock.storage.files.Files.open`."""
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
        """See `penstock.storage.files.Files.names`."""
        with self.guard:
            return sorted(path.name for path in self._names if path.parent == directory)

    def exists(self, path: Path) -> bool:
        """See `penstock.storage.files.Files.exists`: a directory is there when something is in it."""
        with self.guard:
            return path in self._names or any(name.parent == path for name in self._names)

    def make_directory(self, path: Path) -> None:
        """See `penstock.storage.files.Files.make_directory`: directories are always there."""

    def rename(self, source: Path, target: Path) -> None:
        """See `penstock.storage.files.Files.rename`. Within one directory."""
        with self.guard:
            inode = self._names[source]
            self.change(self.life)
            # One change: a crash leaves the old name or the new one, never both, never neither.
            self._change_names({source: None, target: inode})

    def delete(self, path: Path) -> None:
        """See `penstock.storage.files.Files.delete`."""
        with self.guard:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.change(self.life)
            self._change_names({path: None})

    def _change_names(self, change: dict[Path, _Inode | None]) -> None:
        self._unsynced.setdefault(next(iter(change)).parent, []).append(change)
        _apply(self._names, change)

    def sync_directory(self, path: Path) -> None:
        """See `penstock.storage.files.Files.sync_directory`."""
        with self.guard:
            self.change(self.life)
            self.check_sync()
            for change in self._unsynced.pop(path, []):
                _apply(self._durable_names, change)

    def lock(self, path: Path, holder: str) -> FaultyLock:
        """See `penstock.storage.files.Files.lock`."""
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
