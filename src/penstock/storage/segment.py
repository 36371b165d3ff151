# SPDX-License-Identifier: Apache-2.0
"""Segments: the files of the log, from prepared to recycled.

A segment's id is its generation: ids only grow and are never reused. On disk a segment is one of

    <id>.seg     prepared, being written, or sealed; its blocks and the index say which
    <id>.spare   unused; keeps its blocks on the disk, to be overwritten under a later id

Why spares: syncing blocks that were written before does not touch the file system's own journal, and costs a third.

Where: the journal takes prepared segments, readers borrow open files, log maintenance recycles. All of them may do so
at the same time: a file is closed and renamed only when no one borrows it any more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from penstock.core.units import MIB
from penstock.storage.disk_probe import probe_disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.files import File, Files
    from penstock.storage.limits import LogLimits

_SEGMENT_SUFFIX: Final = ".seg"
_SPARE_SUFFIX: Final = ".spare"
# Room for metadata and the index: each has a write-ahead log of 4 MiB, and copies it into its file.
RESERVE_BYTES: Final = 16 * MIB


class OpenSegment:
    """An open segment file and the number of its borrowers."""

    __slots__ = ("borrowers", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self.borrowers = 0


class SegmentStore:
    """The log directory. Thread-safe."""

    def __init__(self, directory: Path, files: Files, limits: LogLimits) -> None:
        self.directory = directory
        self._files = files
        self._limits = limits
        # Guards everything below, and lets `retire` wait until a file comes back.
        self._returned = threading.Condition()
        self._open: OrderedDict[int, OpenSegment] = OrderedDict()
        self._retired: set[int] = set()
        # Held while a segment is being prepared, so that the journal waits for one underway instead of making another.
        self._preparing = threading.Lock()
        names = files.names(directory)
        self._spares = _ids(names, _SPARE_SUFFIX)
        self._id_last = max([0, *self._spares, *_ids(names, _SEGMENT_SUFFIX)])
        self._prepared: list[int] = []
        # Segments whose file is not there, or too short: how many bytes of it are. Filled while the log is opened.
        self.lost: dict[int, int] = {}

    @property
    def spares(self) -> int:
        """The number of unused segments that can be overwritten."""
        return len(self._spares)

    def ids(self) -> list[int]:
        """Return the ids of all segments, prepared ones too, ascending."""
        return _ids(self._files.names(self.directory), _SEGMENT_SUFFIX)

    def never_below(self, segment_id: int) -> None:
        """Note that this id was used, so that it is not reused even if its file is missing."""
        self._id_last = max(self._id_last, segment_id)

    def size(self, segment_id: int) -> int:
        """Return the length of a segment's file. Raises OSError."""
        return self._size(self._path(segment_id))

    def offer(self, segment_id: int) -> bool:
        """Use an empty segment as the next one; return False if its size is not the configured one."""
        if self._size(self._path(segment_id)) != self._limits.segment_bytes:
            return False
        self._prepared.append(segment_id)
        return True

    def prepare(self) -> None:
        """Prepare the next segment, durably and with its space reserved. Raises OSError (ENOSPC)."""
        with self._preparing:
            if not self._prepared:
                self._prepared.append(self._make())

    def take(self) -> int:
        """Return the id of a prepared segment. Raises OSError (ENOSPC) if none can be created."""
        with self._preparing:
            return self._prepared.pop() if self._prepared else self._make()

    def probe(self) -> None:
        """Return if the disk takes data, and has room for the next segment and more. Raises OSError. Blocks."""
        room = 0 if self._spares or self._prepared else self._limits.segment_bytes
        probe_disk(self.directory, self._files, room_bytes=room + RESERVE_BYTES)

    def _make(self) -> int:
        segment_id = self._id_last + 1
        path = self._path(segment_id)
        spare = self._take_spare()
        if spare is not None:
            self._files.rename(spare, path)
        else:
            self._allocate(path)
        # Without this the name could be lost in a crash, and everything acknowledged in it.
        self._files.sync_directory(self.directory)
        self._id_last = segment_id
        return segment_id

    def _take_spare(self) -> Path | None:
        while self._spares:
            path = self._path(self._spares.pop(), _SPARE_SUFFIX)
            if self._size(path) == self._limits.segment_bytes:
                return path
            self._files.delete(path)  # From a run with another segment size.
        return None

    def _allocate(self, path: Path) -> None:
        file = self._files.open(path, create=True)
        try:
            file.allocate(self._limits.segment_bytes)
            file.sync()
        except OSError:
            self._files.delete(path)
            raise
        finally:
            file.close()

    def _size(self, path: Path) -> int:
        file = self._files.open(path)
        try:
            return file.size()
        finally:
            file.close()

    @contextmanager
    def borrow(self, segment_id: int) -> Iterator[File | None]:
        """Lend the open file of a segment, or None if the segment was recycled."""
        opened = self.lend(segment_id)
        try:
            yield opened.file if opened is not None else None
        finally:
            if opened is not None:
                self.give_back(opened)

    def lend(self, segment_id: int) -> OpenSegment | None:
        """Lend an open segment until `give_back`, or None if it was recycled. Raises OSError."""
        with self._returned:
            if segment_id in self._retired:
                return None
            opened = self._open.get(segment_id)
            if opened is None:
                try:
                    opened = OpenSegment(self._files.open(self._path(segment_id)))
                except FileNotFoundError:
                    return None
                self._open[segment_id] = opened
            opened.borrowers += 1
            self._open.move_to_end(segment_id)
            self._close_unused()
            return opened

    def give_back(self, opened: OpenSegment) -> None:
        """Take back what `lend` returned."""
        with self._returned:
            opened.borrowers -= 1
            if opened.borrowers == 0:
                self._close_unused()
                self._returned.notify_all()

    def _close_unused(self) -> None:
        """Close the least recently used files above the limit. Borrowed files stay open."""
        surplus = len(self._open) - self._limits.open_files_max
        if surplus <= 0:
            return
        unused = [segment_id for segment_id, opened in self._open.items() if opened.borrowers == 0]
        for segment_id in unused[:surplus]:
            self._open.pop(segment_id).file.close()

    def recycle(self, segment_id: int) -> None:
        """Retire an unused segment: wait until no reader has it, then keep it as a spare or delete it.

        Raises OSError.
        """
        with self._returned:
            self._retired.add(segment_id)
            self._returned.wait_for(lambda: (o := self._open.get(segment_id)) is None or o.borrowers == 0)
            opened = self._open.pop(segment_id, None)
            if opened is not None:
                opened.file.close()
        path = self._path(segment_id)
        if self.lost.pop(segment_id, None) is not None and not self._files.exists(path):
            return
        whole = self._size(path) == self._limits.segment_bytes
        with self._preparing:
            if whole and len(self._spares) < self._limits.spares_max:
                self._files.rename(path, self._path(segment_id, _SPARE_SUFFIX))
                self._spares.append(segment_id)
            else:
                self._files.delete(path)
        with self._returned:
            # The name is gone from the directory: from here on, opening it fails by itself.
            self._retired.discard(segment_id)

    def close(self) -> None:
        """Close every file, when there are no more readers and writers."""
        with self._returned:
            for opened in self._open.values():
                opened.file.close()
            self._open.clear()

    def _path(self, segment_id: int, suffix: str = _SEGMENT_SUFFIX) -> Path:
        return self.directory / file_name(segment_id, suffix)


def file_name(segment_id: int, suffix: str = _SEGMENT_SUFFIX) -> str:
    """Return the name of the file of a segment."""
    return f"{segment_id:016x}{suffix}"


def _ids(names: list[str], suffix: str) -> list[int]:
    """Return the ids in `names`, ascending; other names are ignored."""
    ids = []
    for name in names:
        stem, dot, extension = name.partition(".")
        if dot + extension == suffix and len(stem) == 16:
            try:
                ids.append(int(stem, 16))
            except ValueError:
                continue
    return sorted(ids)
