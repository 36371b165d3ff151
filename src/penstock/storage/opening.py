# SPDX-License-Identifier: Apache-2.0
"""Opening: from a directory, in whatever state, to a log that can be read and appended to.

    lock → list segments → index (or none) → scan the segments it does not know → judge → make sure of their tails

A segment that recovery found is sealed: appending goes on in a new one. So nothing torn can ever be followed by valid
blocks of the same segment, which would make it look like damage.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.errors import DataDirectoryLocked, PersistenceFailed
from penstock.core.units import MIB
from penstock.storage.files import FileLocked, write_all
from penstock.storage.index import Damage, IndexDamaged
from penstock.storage.log_index import LogIndex
from penstock.storage.records import HEADER_BYTES, Stamp, encode_mark
from penstock.storage.recovery import Scan, Verdict, judge, scan
from penstock.storage.sealed_index import SealedIndex
from penstock.storage.segment import SegmentStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.files import File, Files, Lock
    from penstock.storage.limits import LogLimits

log = logging.getLogger(__name__)

# A file is cut at a multiple of this: what lies beyond is given back to the file system.
_CUT_BYTES: Final = 4096
_COPY_BYTES: Final = 1 * MIB
_FULL_RATIO: Final = 7 / 8


@dataclass(slots=True)
class Opened:
    """What an entry log is made from."""

    lock: Lock
    store: SegmentStore
    index: LogIndex
    place: IndexPlace
    damage: list[Damage] = field(default_factory=list)


def open_directory(directory: Path, files: Files, limits: LogLimits, *, index_vfs: str | None) -> Opened:
    """Lock and recover the log in `directory`. Raises DataDirectoryLocked, PersistenceFailed, OSError."""
    files.make_directory(directory / "log")
    files.make_directory(directory / "index")
    try:
        lock = files.lock(directory / "lock", str(os.getpid()))
    except FileLocked as error:
        raise DataDirectoryLocked(
            f"{directory} is in use by process {error.holder or 'unknown'}; stop it, or choose another data directory"
        ) from None
    place = IndexPlace(directory / "index" / "index.sqlite", files, limits.index_cache_bytes, index_vfs)
    try:
        try:
            return _recovered(lock, directory / "log", files, limits, place, place.open())
        except IndexDamaged as error:
            log.warning("the index of the entry log is damaged (%s); building it again from the log", error)
        return _recovered(lock, directory / "log", files, limits, place, place.begin_anew())
    except IndexDamaged as error:
        lock.release()
        raise PersistenceFailed(f"the index of the entry log in {directory} cannot be built: {error}") from error
    except BaseException:
        lock.release()
        raise


def _recovered(
    lock: Lock, directory: Path, files: Files, limits: LogLimits, place: IndexPlace, sealed: SealedIndex
) -> Opened:
    store = SegmentStore(directory, files, limits)
    opened = Opened(lock, store, LogIndex(sealed), place)
    try:
        _recover(opened, limits)
    except BaseException:
        store.close()
        sealed.close()
        raise
    return opened


class IndexPlace:
    """Where the stored index lies, and how to begin it anew."""

    def __init__(self, path: Path, files: Files, cache_bytes: int, vfs: str | None) -> None:
        self._path = path
        self._files = files
        self._cache_bytes = cache_bytes
        self._vfs = vfs

    def open(self) -> SealedIndex:
        """Open the index; if it cannot be used, an empty one: then every segment is scanned."""
        try:
            return self._open()
        except IndexDamaged as error:
            log.warning("the index of the entry log is unusable (%s); building it again from the log", error)
        return self.begin_anew()

    def begin_anew(self) -> SealedIndex:
        """Delete the index and return an empty one. Raises IndexDamaged if not even that works."""
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                self._files.delete(self._path.with_name(self._path.name + suffix))
        return self._open()

    def _open(self) -> SealedIndex:
        return SealedIndex(self._path, cache_bytes=self._cache_bytes, vfs=self._vfs)


def rebuild(opened: Opened) -> None:
    """Build the stored index again from all sealed segments. Only while none of them comes or goes. Raises OSError."""
    opened.index.sealed.close()
    sealed = opened.place.begin_anew()
    for segment_id in opened.store.ids():
        if segment_id in opened.index.growing():
            continue
        found = _scan(opened.store, segment_id)
        if segment_id in opened.index.growing():
            continue  # The journal has just begun to write it.
        verdict = judge(found)
        if verdict.end:
            opened.index.add_sealed(sealed, verdict.index)
            sealed.add_damage(verdict.damage)
    opened.index.replace_sealed(sealed)


def _recover(opened: Opened, limits: LogLimits) -> None:
    store, index = opened.store, opened.index
    known, present = index.sealed.segments, store.ids()
    for segment_id in known.keys() - set(present):
        index.remove_segment(segment_id)  # Recycled; the transaction that said so was lost with the power.
        store.never_below(segment_id)
    empty = []
    for segment_id in present:
        if segment_id in known:
            continue
        found = _scan(store, segment_id)
        if found.nonce is None:
            empty.append(segment_id)
        else:
            _settle(opened, limits, found, judge(found))
    _reuse(store, empty, max(index.growing() | known.keys(), default=0))
    opened.damage = index.sealed.damage(limits.damage_listed_max)


def _scan(store: SegmentStore, segment_id: int) -> Scan:
    with store.borrow(segment_id) as file:
        assert file is not None
        return scan(file, segment_id)


def _settle(opened: Opened, limits: LogLimits, found: Scan, verdict: Verdict) -> None:
    """Make sure of what a segment is taken to hold, and remember it as sealed."""
    store, index, segment_id = opened.store, opened.index, found.segment_id
    if verdict.cut_blocks:
        log.info("segment %x: cut %d blocks behind a torn write", segment_id, verdict.cut_blocks)
    if verdict.end == 0:
        store.recycle(segment_id)
        return
    with store.borrow(segment_id) as file:
        assert file is not None
        _make_sure(file, found, verdict)
        cut_segment(file, verdict.end, limits)
    for damage in verdict.damage:
        log.warning("damage in the entry log: %s", damage.describe())
    index.recovered(verdict.index)
    try:
        index.store_sealed()
        index.sealed.add_damage(verdict.damage)
    except apsw.Error as error:
        log.warning("segment %x: its index stays in memory, for it could not be stored: %s", segment_id, error)
    log.info("segment %x: recovered %d entries in %d bytes", segment_id, verdict.index.entries, verdict.end)


def cut_segment(file: File, end: int, limits: LogLimits) -> None:
    """Give back the unused rest of a sealed segment, unless so little that a whole file to recycle is worth more."""
    end += HEADER_BYTES  # the mark
    if end < limits.segment_bytes * _FULL_RATIO:
        file.truncate(-(-end // _CUT_BYTES) * _CUT_BYTES)


def _make_sure(file: File, found: Scan, verdict: Verdict) -> None:
    """Make durable what only the page cache may hold, and leave word that it is.

    A sync alone would not do: after a failed one the kernel takes the pages for clean, and would sync nothing. The mark
    also ends the segment: what lies behind it, written but torn off, is never looked at again.
    """
    assert found.nonce is not None
    offset = verdict.doubtful_from
    while offset < verdict.end:
        piece = file.read(min(_COPY_BYTES, verdict.end - offset), offset)
        write_all(file, [piece], offset)
        offset += len(piece)
    file.sync()
    write_all(file, [encode_mark(Stamp(found.segment_id, found.nonce, verdict.end), verdict.end)], verdict.end)
    file.sync()


def _reuse(store: SegmentStore, empty: list[int], last: int) -> None:
    """Take the newest segment nothing was written to as the next one; ids must keep growing."""
    for segment_id in empty[:-1]:
        store.recycle(segment_id)
    if empty and not (empty[-1] > last and store.offer(empty[-1])):
        store.recycle(empty[-1])
