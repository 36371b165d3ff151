# SPDX-License-Identifier: Apache-2.0
"""VirtualDisk: a disk in memory whose syncs and reads take virtual time, or block until released.

Why: a broker must be correct while a sync is slow, which a fast disk hardly tests.
Where: pass it as `Files`; `sqlite_on` makes SQLite use it. It belongs to one virtual loop, and keeps its files as long
as that loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.testing.files import FaultyFile, FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.loop import VirtualLoop

# Maximum time that the disk can be held.
_HELD_S_MAX: Final = 10.0


class VirtualDisk(FaultyFiles):
    """A file system in memory whose syncs and log reads take virtual time.

    Attributes:
        read_error: raised by every read of the log's segments, unless None.
        failed_reads: number of failed reads.
        sync_ns, read_ns: called before each sync or read; return its duration in ns.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._threads = loop.threads
        self._free = loop.threads.event()
        self._free.set()
        self.read_error: OSError | None = None
        self.failed_reads = 0
        self.sync_ns: Callable[[], int] | None = None
        self.read_ns: Callable[[], int] | None = None

    def hold(self) -> None:
        """Block the next sync of the log or of a snapshot."""
        self._free.clear()

    def release(self) -> None:
        """Release the blocked sync."""
        self._free.set()

    def heal_all(self) -> None:
        """End all faults and delays."""
        self.heal()
        self.run_full_after(None)
        self.fail_sync_at(0)
        self.read_error = self.sync_ns = self.read_ns = None
        self.release()

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        file = super().open(path, create=create)
        if path.suffix in {".seg", ".draft"}:
            return _LogFile(self, file)
        return _SlowFile(self, file) if path.name.startswith(("meta.sqlite", "topics.sqlite")) else file

    def before_read(self) -> None:
        """Take the time of a read, or fail."""
        if self.read_error is not None:
            self.failed_reads += 1
            raise self.read_error
        if self.read_ns is not None and self._threads.current is not None:
            self._threads.sleep(self.read_ns())

    def before_sync(self) -> None:
        """Take the time of a sync."""
        if self.sync_ns is not None and self._threads.current is not None:
            self._threads.sleep(self.sync_ns())

    def wait_until_free(self) -> None:
        """Wait while the disk is held."""
        assert self._free.wait(_HELD_S_MAX), "the disk was held and never released"


class _SlowFile(FaultyFile):
    """A file whose syncs take virtual time."""

    def __init__(self, disk: VirtualDisk, file: FaultyFile) -> None:
        super().__init__(disk, file.inode)
        self._disk = disk

    def sync(self) -> None:
        self._disk.before_sync()
        super().sync()


class _LogFile(_SlowFile):
    """A file of the log."""

    def read(self, size: int, offset: int) -> bytes:
        self._disk.before_read()
        return super().read(size, offset)

    def read_cached(self, buffer: memoryview, offset: int) -> int:
        """As much is in memory as a disk that is neither slow nor broken has."""
        has_faults = self._disk.read_error is not None or self._disk.read_ns is not None
        return 0 if has_faults else super().read_cached(buffer, offset)

    def sync(self) -> None:
        self._disk.wait_until_free()
        super().sync()
