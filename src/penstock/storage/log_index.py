# SPDX-License-Identifier: Apache-2.0
"""The whole index of a log: both halves, and how far each ledger is written and trimmed.

Where: the journal adds durable blocks, readers ask where an entry is, the loop trims and drops, log maintenance moves
sealed segments from the half in memory to the stored one. One lock guards both; it is held for moments and never across
a disk access. SQLite is asked without it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.storage.index import Extent, SegmentIndex, at_or_after, behind, bytes_from, entry_with_behind, ordered
from penstock.storage.sealed_index import UNKNOWN_LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.storage.index import Span, Spans
    from penstock.storage.journal import Placed
    from penstock.storage.sealed_index import SealedIndex


class Plan(NamedTuple):
    """Spans to read next: consecutive, of one ledger in one segment."""

    segment_id: int
    spans: list[Span]


class LogIndex:
    """The place of every readable entry. Thread-safe."""

    def __init__(self, sealed: SealedIndex) -> None:
        self.sealed = sealed
        # The number of removed segments and dropped ledgers: if it has changed, entries may have moved or be gone.
        self.removals = 0
        self._lock = threading.Lock()
        self._growing: dict[int, SegmentIndex] = {}  # Oldest first; the last one may be the segment being written.
        self._full: list[int] = []  # The sealed ones of these, which are not stored yet.
        self._last_entries: dict[int, int] = {}  # not known to the stored half yet
        self._trimmed: dict[int, int] = {}  # not known to the stored half yet
        self._dropped: set[int] = set()  # still in the stored half

    # ------------------------------------------------------------------------------------------------------- growing

    def add_sealed(self, sealed: SealedIndex, segment: SegmentIndex) -> None:
        """Store the index of a scanned, sealed segment. Raises apsw.Error."""
        with self._lock:
            trimmed = dict(self._trimmed)
        last_entries = {ledger_id: spans[-1].end_entry - 1 for ledger_id, spans in segment.ledgers.items()}
        sealed.add_segment(segment, trimmed, last_entries)

    def replace_sealed(self, sealed: SealedIndex) -> None:
        """Use another stored half, which was rebuilt from the log. Raises apsw.Error, IndexDamaged."""
        sealed.adopt(self.sealed.ledgers)  # The log alone does not contain all of it.
        self.sealed = sealed
        self.removals += 1

    def growing(self) -> set[int]:
        """Return the segments that are not in the stored half."""
        with self._lock:
            return set(self._growing)

    def begin(self, segment_id: int) -> None:
        """Add a segment that is about to be written."""
        with self._lock:
            self._growing[segment_id] = SegmentIndex(segment_id)

    def committed(self, segment_id: int, placed: Iterable[Placed]) -> None:
        """Add durable blocks; from now on they can be read."""
        with self._lock:
            growing, last_entries = self._growing[segment_id], self._last_entries
            for block, offset, size in placed:
                growing.add_block(offset, size, block.groups, block.lengths)
                for ledger_id, first_entry, count in block.groups:
                    last = first_entry + count - 1
                    if last > last_entries.get(ledger_id, -1):
                        last_entries[ledger_id] = last

    def seal(self, segment_id: int) -> None:
        """Note that a segment is full."""
        with self._lock:
            self._full.append(segment_id)

    def held(self, segment: SegmentIndex) -> None:
        """Add the index of a damaged segment: it is read, and never stored or recycled."""
        with self._lock:
            self._growing[segment.segment_id] = segment
            self._raise_last_entries(segment)

    def recovered(self, segment: SegmentIndex) -> None:
        """Add the index of a recovered segment, which is sealed."""
        with self._lock:
            self._growing[segment.segment_id] = segment
            self._full.append(segment.segment_id)
            self._raise_last_entries(segment)

    def _raise_last_entries(self, segment: SegmentIndex) -> None:
        for ledger_id, spans in segment.ledgers.items():
            self._last_entries[ledger_id] = max(self._last_entries.get(ledger_id, -1), spans[-1].end_entry - 1)

    def store_sealed(self) -> None:
        """Move sealed segments to the stored half. Raises apsw.Error; then they stay where they are."""
        while self._full:
            with self._lock:
                segment = self._growing[self._full[0]]
                trimmed = dict(self._trimmed)
                last_entries = {
                    ledger_id: self._last_entries[ledger_id]
                    for ledger_id in segment.ledgers
                    if ledger_id in self._last_entries
                }
            self.sealed.add_segment(segment, trimmed, last_entries)
            with self._lock:
                del self._growing[self._full.pop(0)]
                for ledger_id, last_entry in last_entries.items():
                    if self._last_entries.get(ledger_id) == last_entry:
                        del self._last_entries[ledger_id]

    # ------------------------------------------------------------------------------------------------------- reading

    def last_entry(self, ledger_id: int) -> int:
        """Return the last durable entry id of a ledger, -1 when it has none."""
        if ledger_id in self._dropped:
            return -1
        return max(self._last_entries.get(ledger_id, -1), self.sealed.ledgers.get(ledger_id, UNKNOWN_LEDGER).last_entry)

    def first_wanted(self, ledger_id: int) -> int:
        """Return the trim point of a ledger: entries below are not served."""
        return max(self._trimmed.get(ledger_id, 0), self.sealed.ledgers.get(ledger_id, UNKNOWN_LEDGER).trimmed)

    def ledgers(self) -> set[int]:
        """Return the ledgers with retained entries."""
        with self._lock:
            growing = {ledger_id for segment in self._growing.values() for ledger_id in segment.ledgers}
        return (growing | self.sealed.retained_ledgers()) - self._dropped

    def plan(self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int) -> Plan | None:
        """Return where the entry is, or the next one if it does not exist, and what follows it in the same segment.

        Returns spans of about `bytes_max` and `entries_max`, at least one; None if there is no such entry. Raises
        IndexDamaged.
        """
        nearest: Plan | None = None
        with self._lock:
            if ledger_id in self._dropped:
                return None
            for segment_id, segment in self._growing.items():
                spans = segment.ledgers.get(ledger_id)
                plan = spans and _plan(segment_id, spans, entry_id, bytes_max, entries_max)
                nearest = _nearer(nearest, plan or None)
        if nearest is not None and nearest.spans[0].first_entry <= entry_id:
            return nearest
        stretch = self.sealed.find(ledger_id, entry_id)
        if stretch is None:
            return nearest
        return _nearer(nearest, _plan(stretch.segment_id, stretch.spans, entry_id, bytes_max, entries_max))

    def bytes_from(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        """Return, for each entry, the bytes of it and all later ones. Reads the disk. Raises IndexDamaged."""
        extents = self._extents(ledger_id, min(entry_ids, default=0))
        for entry_id in set(entry_ids):
            extents = self._refined(ledger_id, extents, entry_id)
        return [bytes_from(extents, entry_id) for entry_id in entry_ids]

    def entry_within(self, ledger_id: int, nbytes: int) -> int:
        """Return the first entry that, with all behind it, takes no more than that. As `bytes_from` otherwise."""
        extents = self._extents(ledger_id, 0)
        extents = self._refined(ledger_id, extents, entry_with_behind(extents, nbytes))
        return entry_with_behind(extents, nbytes)

    def _extents(self, ledger_id: int, from_entry: int) -> list[Extent]:
        """Return the sizes of entries: by block for growing segments, by whole stretch for sealed ones."""
        first = max(from_entry, self.first_wanted(ledger_id))
        growing: list[Span] = []
        with self._lock:
            if ledger_id in self._dropped:
                return []
            for segment in self._growing.values():
                spans = segment.ledgers.get(ledger_id)
                if spans:
                    growing += spans[at_or_after(spans, first) :]
        found = self.sealed.extents(ledger_id, first)
        found += (Extent(span.first_entry, span.end_entry, span.entry_bytes) for span in growing)
        return [behind(extent, first) for extent in ordered(found)]

    def _refined(self, ledger_id: int, extents: list[Extent], entry_id: int) -> list[Extent]:
        """Return the extents with the blocks of the stretch that holds this entry."""
        at = bisect_right(extents, entry_id, key=itemgetter(0)) - 1
        if at < 0 or extents[at].end_entry <= entry_id:
            return extents
        whole = extents[at]
        stretch = self.sealed.find(ledger_id, entry_id)
        if stretch is None or stretch.first_entry > whole.first_entry or stretch.last_entry + 1 != whole.end_entry:
            return extents  # It is in memory, and fine already, or being moved.
        blocks = [Extent(span.first_entry, span.end_entry, span.entry_bytes) for span in stretch.spans]
        fine = [behind(block, whole.first_entry) for block in blocks if block.end_entry > whole.first_entry]
        return [*extents[:at], *fine, *extents[at + 1 :]]

    def holes(self) -> dict[int, list[tuple[int, int]]]:
        """Return, for each ledger that has some, entries (first, end) that are neither trimmed nor in any segment.

        Reads the disk; only while no segment is added or removed. Raises IndexDamaged.
        """
        with self._lock:
            known = self._last_entries.keys() | self.sealed.ledgers.keys()
        found: dict[int, list[tuple[int, int]]] = {}
        for ledger_id in known:
            end, expected = self.last_entry(ledger_id) + 1, self.first_wanted(ledger_id)
            for extent in self._extents(ledger_id, 0):
                if expected < extent.first_entry:
                    found.setdefault(ledger_id, []).append((expected, extent.first_entry))
                expected = max(expected, extent.end_entry)
            if expected < end:
                found.setdefault(ledger_id, []).append((expected, end))
        return found

    def remove_segment(self, segment_id: int) -> None:
        """Forget a sealed segment, whose entries are all trimmed or moved. Raises apsw.Error."""
        self.removals += 1
        self.sealed.remove_segment(segment_id)

    def written(self) -> dict[int, int]:
        """Return the durable bytes of each segment that has some."""
        with self._lock:
            growing = {segment_id: segment.bytes for segment_id, segment in self._growing.items() if segment.bytes}
        # The stored half comes second: a segment moves there, and never back.
        return {segment_id: row.bytes for segment_id, row in list(self.sealed.segments.items())} | growing

    def segments(self) -> int:
        """Return the number of segments with entries."""
        with self._lock:
            return len(self._growing.keys() | self.sealed.segments.keys())

    # ------------------------------------------------------------------------------------------ trimming and dropping

    def trim(self, ledger_id: int, before_entry: int) -> bool:
        """Delete the entries below `before_entry`; return False if they were deleted before."""
        with self._lock:
            if before_entry <= self.first_wanted(ledger_id):
                return False
            self._trimmed[ledger_id] = before_entry
            self._last_entries[ledger_id] = max(self._last_entries.get(ledger_id, -1), before_entry - 1)
            return True

    def drop(self, ledger_id: int) -> None:
        """Delete a whole ledger."""
        with self._lock:
            self.removals += 1
            self._forget(ledger_id)
            self._dropped.add(ledger_id)

    def _forget(self, ledger_id: int) -> None:
        for segment in self._growing.values():
            segment.ledgers.pop(ledger_id, None)
        for known in (self._last_entries, self._trimmed):
            known.pop(ledger_id, None)

    def store_trims(self) -> None:
        """Move pending trims and drops to the stored half. Raises apsw.Error; then they stay pending."""
        with self._lock:
            trimmed, dropped = self._trimmed.copy(), self._dropped.copy()
        if trimmed:
            self.sealed.trim(trimmed)
            with self._lock:
                for ledger_id, before_entry in trimmed.items():
                    if self._trimmed.get(ledger_id) == before_entry:
                        del self._trimmed[ledger_id]
        if dropped:
            self.sealed.drop(dropped)
            with self._lock:
                for ledger_id in dropped:
                    self._forget(ledger_id)  # Again: a copy of it may have been on its way from an older segment.
                self._dropped -= dropped


def _plan(segment_id: int, spans: Spans, entry_id: int, bytes_max: int, entries_max: int) -> Plan | None:
    begin = end = at_or_after(spans, entry_id)
    firsts, counts, entry_bytes = spans.firsts, spans.counts, spans.entry_bytes
    size = count = 0
    while end < len(firsts) and size < bytes_max and count < entries_max:
        if end > begin and firsts[end] > firsts[end - 1] + counts[end - 1]:
            break  # What is missing here may lie in another segment.
        size += entry_bytes[end]
        count += counts[end]
        end += 1
    return Plan(segment_id, list(spans[begin:end])) if end > begin else None


def _nearer(one: Plan | None, other: Plan | None) -> Plan | None:
    if one is None or other is None:
        return one or other
    return other if other.spans[0].first_entry < one.spans[0].first_entry else one
