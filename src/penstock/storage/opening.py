# SPDX-License-Identifier: Apache-2.0
"""Opening: turns a directory, in whatever state, into a log that can be read and appended to.

    lock → list segments → index (or none) → scan segments that it does not know → judge → make their tails durable

A recovered segment is sealed, and appending goes on in a new one. So a torn write is never followed by valid blocks of
the same segment, which would make it look like damage.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.errors import DataDirectoryLocked, PersistenceFailed
from penstock.core.units import MIB
from penstock.storage.files import FileLocked, read_exactly, write_all
from penstock.storage.index import Damage, IndexDamaged
from penstock.storage.log_index import LogIndex
from penstock.storage.missing_entries import MissingEntries, MissingRange
from penstock.storage.records import HEADER_BYTES, Stamp, encode_mark
from penstock.storage.recovery import Scan, Verdict, judge, scan
from penstock.storage.sealed_index import SealedIndex
from penstock.storage.segment import SegmentStore

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.files import File, Files, Lock
    from penstock.storage.limits import LogLimits

log = logging.getLogger(__name__)

# Files are truncated to a multiple of this; the rest is returned to the file system.
_CUT_BYTES: Final = 4096
_COPY_BYTES: Final = 1 * MIB
_FULL_RATIO: Final = 7 / 8


@dataclass(slots=True)
class Opened:
    """The parts that an entry log is made from."""

    lock: Lock
    store: SegmentStore
    index: LogIndex
    place: IndexFile
    damage: list[Damage] = field(default_factory=list)
    missing: MissingEntries = field(default_factory=MissingEntries)
    unknown: list[str] = field(default_factory=list)  # missing segments whose content is unknown


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
    place = IndexFile(directory / "index" / "index.sqlite", files, limits.index_cache_bytes, index_vfs)
    try:
        try:
            return _recovered(lock, directory / "log", files, limits, place, place.open())
        except IndexDamaged as error:
            log.warning("the index of the entry log is damaged (%s); building it again from the log", error)
        return _recovered(lock, directory / "log", files, limits, place, place.begin_anew())
    except IndexDamaged as error:
        lock.release()
        raise PersistenceFailed(f"the index of the entry log in {directory} cannot be built: {error}") from error
    except apsw.Error as error:
        lock.release()
        raise OSError(errno.EIO, f"the index of the entry log: {error}") from error
    except BaseException:
        lock.release()
        raise


def _recovered(
    lock: Lock, directory: Path, files: Files, limits: LogLimits, place: IndexFile, sealed: SealedIndex
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


class IndexFile:
    """The path of the stored index, and how to recreate it."""

    def __init__(self, path: Path, files: Files, cache_bytes: int, vfs: str | None) -> None:
        self._path = path
        self._files = files
        self._cache_bytes = cache_bytes
        self._vfs = vfs

    def open(self) -> SealedIndex:
        """Open the index; if it cannot be used, create an empty one: then every segment is scanned."""
        try:
            return self._open()
        except IndexDamaged as error:
            log.warning("the index of the entry log is unusable (%s); building it again from the log", error)
        return self.begin_anew()

    def begin_anew(self) -> SealedIndex:
        """Delete the index and return an empty one. Raises IndexDamaged if that fails too."""
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                self._files.delete(self._path.with_name(self._path.name + suffix))
        return self._open()

    def _open(self) -> SealedIndex:
        return SealedIndex(self._path, cache_bytes=self._cache_bytes, vfs=self._vfs)


def rebuild(opened: Opened) -> list[Damage]:
    """Rebuild the stored index from all sealed segments, none of which may be added or removed meanwhile.

    Returns the damage in them. Raises OSError.
    """
    damage: list[Damage] = []
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
            damage += verdict.damage
    for segment_id in opened.store.lost:
        sealed.begin(segment_id, 0)  # Its rows are lost with the old index, but its file must still be missed.
    for segment_id in opened.index.growing():
        sealed.begin(segment_id, opened.store.size(segment_id))
    opened.index.replace_sealed(sealed)
    return damage


def _recover(opened: Opened, limits: LogLimits) -> None:
    store, index = opened.store, opened.index
    _look_for_lost(opened, limits)
    known, begun, empty = index.sealed.segments, index.sealed.begun(), []
    for segment_id in store.ids():
        if segment_id in known:
            continue
        found = _scan(store, segment_id)
        if not found.marked and store.size(segment_id) < begun.get(segment_id, 0) and not limits.skip_missing:
            index.held(judge(found).index)
            opened.unknown.append(f"the file of segment {segment_id:x} was cut short")
        elif found.nonce is None:
            empty.append(segment_id)
        else:
            _settle(opened, limits, found, judge(found))
    _reuse(opened, empty, max(index.growing() | known.keys(), default=0))
    opened.damage = index.sealed.damage(limits.damage_listed_max)


def _look_for_lost(opened: Opened, limits: LogLimits) -> None:
    """Find segments that the index knows and whose files are missing or too short. Raises OSError, IndexDamaged."""
    store, index = opened.store, opened.index
    present = set(store.ids())
    for segment_id, row in sorted(index.sealed.segments.items()):
        store.never_below(segment_id)
        there = store.size(segment_id) if segment_id in present else 0
        if segment_id in present and there >= row.bytes:
            continue
        if row.live_bytes <= 0 and segment_id not in present:
            index.remove_segment(segment_id)  # All its entries were trimmed.
        elif limits.skip_missing:
            _give_up(index, segment_id, there, row.bytes - there)
        else:
            store.lost[segment_id] = there
            _note_missing(opened, segment_id, there, present)
    for segment_id, size in index.sealed.begun().items():
        store.never_below(segment_id)
        if segment_id in present or segment_id in index.sealed.segments:
            continue
        if limits.skip_missing:
            _give_up(index, segment_id, 0, size)
        else:
            opened.unknown.append(f"the file of segment {segment_id:x} is missing")


def _note_missing(opened: Opened, segment_id: int, there: int, present: set[int]) -> None:
    reason = f"its file was cut to {there} bytes" if segment_id in present else "its file is missing"
    for stretch in opened.index.sealed.of_segment(segment_id):
        first = opened.index.first_wanted(stretch.ledger_id)
        lost = [span for span in stretch.spans if span.block_offset + span.block_bytes > there]
        if lost and first < lost[-1].end_entry:
            begin = max(first, lost[0].first_entry)
            opened.missing.note(MissingRange(segment_id, stretch.ledger_id, begin, lost[-1].end_entry, reason))


def _give_up(index: LogIndex, segment_id: int, there: int, size: int) -> None:
    """Remove a lost segment for good: from now on its entries are damage."""
    index.remove_segment(segment_id)
    damage = Damage(segment_id, there, size, None, None, "its file is missing; given up by autoSkipNonRecoverableData")
    index.sealed.add_damage([damage])
    log.error("damage in the entry log: %s", damage.describe())


def _scan(store: SegmentStore, segment_id: int) -> Scan:
    with store.borrow(segment_id) as file:
        assert file is not None
        return scan(file, segment_id)


def _settle(opened: Opened, limits: LogLimits, found: Scan, verdict: Verdict) -> None:
    """Make durable what a segment is judged to hold, and index it as sealed."""
    store, index, segment_id = opened.store, opened.index, found.segment_id
    if verdict.cut_blocks:
        log.info("segment %x: cut %d blocks behind a torn write", segment_id, verdict.cut_blocks)
    if verdict.end == 0:
        _recycle(opened, segment_id)
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
    """Free the unused rest of a sealed segment, unless it is so small that the whole file is worth more as a spare."""
    end += HEADER_BYTES  # the mark
    if end < limits.segment_bytes * _FULL_RATIO:
        file.truncate(-(-end // _CUT_BYTES) * _CUT_BYTES)


def _make_sure(file: File, found: Scan, verdict: Verdict) -> None:
    """Make durable what may only be in the page cache, and write a mark that says so.

    A sync alone is not enough: after a failed one, the kernel considers the pages clean and syncs nothing. The mark
    also ends the segment: torn writes behind it are never read again.
    """
    assert found.nonce is not None
    offset = verdict.doubtful_from
    while offset < verdict.end:
        piece = read_exactly(file, min(_COPY_BYTES, verdict.end - offset), offset)
        write_all(file, [piece], offset)
        offset += len(piece)
    file.sync()
    write_all(file, [encode_mark(Stamp(found.segment_id, found.nonce, verdict.end), verdict.end)], verdict.end)
    file.sync()


def _reuse(opened: Opened, empty: list[int], last: int) -> None:
    """Use the newest empty segment as the next one, because ids must keep growing; recycle the others."""
    store = opened.store
    for segment_id in empty:
        if segment_id == empty[-1] and segment_id > last and store.offer(segment_id):
            continue
        _recycle(opened, segment_id)


def _recycle(opened: Opened, segment_id: int) -> None:
    """Recycle an empty segment, if the index can forget it; on a full disk that waits for a later start."""
    try:
        opened.index.remove_segment(segment_id)
    except apsw.Error as error:
        log.warning("segment %x holds nothing, and stays: %s", segment_id, error)
        return
    opened.store.recycle(segment_id)
