# SPDX-License-Identifier: Apache-2.0
"""VirtualDisk: the disk in memory, on the time of a virtual loop: slow when told so, or held in the middle of a sync.

Why: what happens while a sync takes its time is what a broker must get right, and a fast disk hardly shows it.
Where: hand it to whatever takes `Files`; `sqlite_on` carries SQLite to it. It belongs to the loop whose threads it
holds up, and what is on it stays there for as long as that loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.testing.files import FaultyFile, FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.loop import VirtualLoop

# As long as a held disk may be held.
_HELD_S_MAX: Final = 10.0


class VirtualDisk(FaultyFiles):
    """A file system in memory whose syncs and reads of the log take virtual time.

    Attributes:
        read_error: raised by every read of the log's segments, unless None.
        failed_reads: how many reads it has failed.
        sync_ns, read_ns: asked before each sync, or read, how long it takes.
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
        """Let the next sync of the log, or of a snapshot, wait."""
        self._free.clear()

    def let_go(self) -> None:
        """Let it end."""
        self._free.set()

    def heal_all(self) -> None:
        """Let everything go well again, and fast."""
        self.heal()
        self.run_full_after(None)
        self.fail_sync_at(0)
        self.read_error = self.sync_ns = self.read_ns = None
        self.let_go()

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        """See `FaultyFiles.open`."""
        file = super().open(path, create=create)
        if path.suffix in {".seg", ".draft"}:
            return _LogFile(self, file)
        return _SlowFile(self, file) if path.name.startswith("meta.sqlite") else file

    def before_read(self) -> None:
        """Take the time that a read takes, or fail."""
        if self.read_error is not None:
            self.failed_reads += 1
            raise self.read_error
        if self.read_ns is not None and self._threads.current is not None:
            self._threads.sleep(self.read_ns())

    def before_sync(self) -> None:
        """Take the time that a sync takes."""
        if self.sync_ns is not None and self._threads.current is not None:
            self._threads.sleep(self.sync_ns())

    def wait_until_free(self) -> None:
        """Wait while the disk is held."""
        assert self._free.wait(_HELD_S_MAX), "the disk was held and never let go"


class _SlowFile(FaultyFile):
    """A file whose syncs take their time."""

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

    def sync(self) -> None:
        self._disk.wait_until_free()
        super().sync()
