# SPDX-License-Identifier: Apache-2.0
"""Reader: entries out of the log, in large reads, each checked before it is handed out.

Two ways to read a block, by how much of it is wanted. Mostly this ledger's: blocks that lie together are read in one
go and each is checked by the checksum over its whole data, which costs a tenth of checking entry by entry. Mostly other
ledgers': its front is read, then only the wanted entries, each checked by its own seal.

An entry that is not what was written is left out and named in the result; its neighbours are served.
Where: called from reader threads, through `EntryLog.read`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from penstock.core.checksum import is_sealed
from penstock.core.units import KIB
from penstock.storage.index import Damage, IndexDamaged
from penstock.storage.records import HEADER_BYTES, decode_header, decode_table
from penstock.storage.recovery import bad_entries, find_block
from penstock.storage.results import Wanted

if TYPE_CHECKING:
    from penstock.storage.damage import DamageBook
    from penstock.storage.files import File
    from penstock.storage.index import Span
    from penstock.storage.limits import LogLimits
    from penstock.storage.log_index import LogIndex, Plan
    from penstock.storage.records import Header, Table
    from penstock.storage.results import ReadResult
    from penstock.storage.segment import SegmentStore

# Reading through this much that is not wanted costs less than another call.
_GAP_BYTES_MAX: Final = 8 * KIB
# Most fronts are smaller: one read brings header and table.
_FRONT_BYTES_GUESS: Final = 4 * KIB
# A segment may be recycled between the look at the index and the read, rarely twice in a row.
_TRIES_MAX: Final = 8


class Reader:
    """Reads entries. All methods may be called from any thread."""

    def __init__(self, store: SegmentStore, index: LogIndex, limits: LogLimits, damage: DamageBook) -> None:
        self._store = store
        self._index = index
        self._limits = limits
        self._damage = damage

    def read(self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int) -> ReadResult:
        """See `EntryLog.read`."""
        wanted = Wanted(ledger_id, max(entry_id, self._index.first_wanted(ledger_id)), bytes_max, entries_max)
        tries = 0
        while not wanted.full:
            removals = self._index.removals
            # Asked before the plan is made: what becomes durable in between is not missing, but read next time.
            end = self._index.last_entry(ledger_id) + 1
            plan = self._index.plan(
                ledger_id, wanted.entry_id, bytes_max=wanted.bytes_left, entries_max=wanted.entries_left
            )
            found = plan.spans[0].first_entry if plan else end
            if self._is_gap(found, wanted):
                if self._index.removals != removals:
                    continue  # A segment was emptied and removed between the looks at the index's two halves.
                if not self._damage.explains_gaps:
                    raise IndexDamaged(f"ledger {ledger_id} has no entry {wanted.entry_id}")
            if not self._step_over_gap(found, wanted) or plan is None:
                break
            with self._store.borrow(plan.segment_id) as file:
                if file is not None:
                    before = wanted.entry_id
                    self.read_plan(file, plan, wanted)
                    if wanted.entry_id == before and not wanted.full:
                        raise IndexDamaged(f"segment {plan.segment_id} does not hold entry {before} of {ledger_id}")
                    continue
            tries += 1
            if tries == _TRIES_MAX:
                raise IndexDamaged(f"ledger {ledger_id}: the index points to segment {plan.segment_id}, which is gone")
            self._index.sealed.forget(ledger_id)
        return wanted.result

    def _is_gap(self, found: int, wanted: Wanted) -> bool:
        return found > max(wanted.entry_id, self._index.first_wanted(wanted.ledger_id))

    def _step_over_gap(self, found: int, wanted: Wanted) -> bool:
        """Name entries before `found` that are nowhere; False when there are more than one result may list."""
        stop = min(found, wanted.entry_id + self._limits.damage_listed_max)
        # A trim may have happened since the look at the index: what it took is not missing.
        for entry_id in range(max(wanted.entry_id, self._index.first_wanted(wanted.ledger_id)), stop):
            wanted.skip(entry_id)
        wanted.go_on_at(max(wanted.entry_id, stop))
        return stop >= found

    def read_plan(self, file: File, plan: Plan, wanted: Wanted) -> None:
        """Read the planned spans into `wanted`, until it is content."""
        spans, at = plan.spans, 0
        while at < len(spans) and not wanted.full:
            end = at + 1
            if _is_dense(spans[at], wanted):
                end = self._together(spans, at, wanted)
                self._read_whole(file, plan.segment_id, spans[at:end], wanted)
            else:
                self._read_sparse(file, plan.segment_id, spans[at], wanted)
            at = end

    def _together(self, spans: list[Span], at: int, wanted: Wanted) -> int:
        """Return the end of the spans that are best read in one go with the one at `at`."""
        start, end = spans[at].block_offset, at + 1
        last = spans[at]
        while end < len(spans):
            span = spans[end]
            gap = span.block_offset - last.block_offset - last.block_bytes
            if (
                not 0 <= gap <= _GAP_BYTES_MAX
                or span.block_offset + span.block_bytes - start > self._limits.read_bytes
                or not _is_dense(span, wanted)
            ):
                break
            last = span
            end += 1
        return end

    # ------------------------------------------------------------------------------------------------ blocks as wholes

    def _read_whole(self, file: File, segment_id: int, spans: list[Span], wanted: Wanted) -> None:
        start = spans[0].block_offset
        try:
            chunk = file.read(spans[-1].block_offset + spans[-1].block_bytes - start, start)
        except OSError as error:
            self._unreadable(segment_id, spans, wanted, f"the disk could not read it: {error.strerror}")
            return
        view = memoryview(chunk)
        for span in spans:
            at = span.block_offset - start
            header = decode_header(chunk, at)
            table = header and decode_table(chunk, at + HEADER_BYTES, header)
            if not header or not table or not _is_where(header, segment_id, span):
                self._read_broken(segment_id, view[at : at + span.block_bytes], span, wanted)
                continue
            base = at + header.front_bytes
            data = view[base : base + header.data_bytes]
            bad: set[int] = set()
            if crc32c(data) != header.data_crc:
                bad = self._name_bad(segment_id, header, table, data, wanted.ledger_id)
            wanted.take(chunk, base, table, span, bad)

    def _read_broken(self, segment_id: int, view: memoryview, span: Span, wanted: Wanted) -> None:
        """Read a block whose front is not whole by its back."""
        found = find_block(view, segment_id, span.block_offset)
        if found is None:
            self._unreadable(segment_id, [span], wanted, "both ends of its block are unreadable")
            return
        data = view[found.header.front_bytes :]
        bad = self._name_bad(segment_id, found.header, found.table, data, wanted.ledger_id) if found.bad else set()
        wanted.take(bytes(data), 0, found.table, span, bad)

    def _name_bad(self, segment_id: int, header: Header, table: Table, data: memoryview, ledger_id: int) -> set[int]:
        """Tell of the damaged entries of a block; return the ids of those of one ledger."""
        ids = set()
        for bad in bad_entries(header, table, data):
            self._damage.note(Damage(segment_id, bad.offset, bad.bytes, bad.ledger_id, bad.entry_id, _NOT_AS_SEALED))
            if bad.ledger_id == ledger_id:
                ids.add(bad.entry_id)
        return ids

    def _unreadable(self, segment_id: int, spans: list[Span], wanted: Wanted, reason: str) -> None:
        for span in spans:
            for entry_id in range(max(span.first_entry, wanted.entry_id), span.end_entry):
                wanted.skip(entry_id)
                self._damage.note(
                    Damage(segment_id, span.block_offset, span.block_bytes, wanted.ledger_id, entry_id, reason)
                )
            wanted.go_on_at(span.end_entry)

    # ----------------------------------------------------------------------------------------- a few entries of a block

    def _read_sparse(self, file: File, segment_id: int, span: Span, wanted: Wanted) -> None:
        try:
            front = file.read(min(span.block_bytes, _FRONT_BYTES_GUESS), span.block_offset)
            header = decode_header(front, 0)
            if header is not None and header.front_bytes > len(front):
                front += file.read(header.front_bytes - len(front), span.block_offset + len(front))
            table = header and decode_table(front, HEADER_BYTES, header)
            if not header or not table or not _is_where(header, segment_id, span):
                view = memoryview(file.read(span.block_bytes, span.block_offset))
                self._read_broken(segment_id, view, span, wanted)
                return
            rows = wanted.rows(table, span)
            data, offsets = _read_rows(file, span.block_offset + header.front_bytes, table, rows)
        except OSError as error:
            self._unreadable(segment_id, [span], wanted, f"the disk could not read it: {error.strerror}")
            return
        ids = wanted.ids(rows)
        lengths = [table.lengths[row] for row in rows]
        counts = None if table.message_counts is None else [table.message_counts[row] for row in rows]
        view, bad = memoryview(data), set()
        for entry_id, row, offset, length in zip(ids, rows, offsets, lengths, strict=True):
            if not is_sealed(view[offset : offset + length]):
                bad.add(entry_id)
                at = span.block_offset + header.front_bytes + table.offsets[row]
                self._damage.note(Damage(segment_id, at, length, wanted.ledger_id, entry_id, _NOT_AS_SEALED))
        wanted.add(data, ids, offsets, lengths, counts, bad)


_NOT_AS_SEALED: Final = "the entry is not as sealed"


def _is_where(header: Header, segment_id: int, span: Span) -> bool:
    return (header.segment_id, header.offset, header.block_bytes) == (segment_id, span.block_offset, span.block_bytes)


def _is_dense(span: Span, wanted: Wanted) -> bool:
    """Say whether at least half of the block is wanted (or it is so small that it does not matter)."""
    skipped = max(wanted.entry_id - span.first_entry, 0)
    useful = min(span.entry_bytes * (span.entries - skipped) // span.entries, wanted.bytes_left)
    return useful * 2 >= span.block_bytes or span.block_bytes <= _GAP_BYTES_MAX


def _read_rows(file: File, base: int, table: Table, rows: list[int]) -> tuple[bytes, list[int]]:
    """Read rows of a block whose data begins at `base`; return their bytes, and where each begins in them."""
    parts: list[bytes] = []
    offsets: list[int] = []
    got = 0
    at = 0
    while at < len(rows):
        start = table.offsets[rows[at]]
        stop = start + table.lengths[rows[at]]
        end = at + 1
        while end < len(rows) and 0 <= table.offsets[rows[end]] - stop <= _GAP_BYTES_MAX:
            stop = table.offsets[rows[end]] + table.lengths[rows[end]]
            end += 1
        part = file.read(stop - start, base + start)
        offsets += [table.offsets[row] - start + got for row in rows[at:end]]
        parts.append(part)
        got += stop - start
        at = end
    return b"".join(parts), offsets
