# SPDX-License-Identifier: Apache-2.0
"""Reader: reads entries of the log in large reads, and checks each one before it is returned.

There are two ways to read a block. If most of it is wanted, consecutive blocks are read at once, and each is checked by
the checksum over its data, which costs a tenth of checking entry by entry. If most of it belongs to other ledgers, its
front is read, then only the wanted entries, each checked by its own seal (`penstock.storage.sparse_reads`).

A read that fails, returns too little, or finds no file says nothing about the stored data: it raises `ReadFailed`, and
the caller retries. Only bytes that were read twice and are not as written are damage: such an entry is left out and
named in the result; its neighbours are served.

Where: called from reader threads, through `EntryLog.read`.
"""

from __future__ import annotations

import errno
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.crc32c import crc32c
from penstock.core.errors import ReadFailed
from penstock.core.spare_buffers import SpareBuffers
from penstock.storage.blocks import HEADER_BYTES, decode_header, decode_table
from penstock.storage.files import fill, read_exactly
from penstock.storage.index import Damage, Gap, IndexDamaged, Spans, at_or_after
from penstock.storage.ranges import GAP_BYTES_MAX, RangeReader
from penstock.storage.recovery import bad_entries, find_block
from penstock.storage.results import Wanted
from penstock.storage.sparse_reads import BLOCKS_MAX, is_small, is_where, read_scattered

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer
    from penstock.storage.blocks import Header, Table
    from penstock.storage.damage import KnownDamage, MissingEntries, UnreadableSegments
    from penstock.storage.files import File
    from penstock.storage.index import Span
    from penstock.storage.limits import LogLimits
    from penstock.storage.log_index import LogIndex, Plan
    from penstock.storage.results import ReadResult
    from penstock.storage.segment import SegmentStore

# A segment may be recycled between reading the index and reading the file, rarely twice in a row.
_TRIES_MAX: Final = 8
# The buffers of large reads that are kept, when they are used no more.
_SPARES_MAX: Final = 6


class Reader:
    """Reads entries. Thread-safe."""

    def __init__(
        self,
        store: SegmentStore,
        index: LogIndex,
        limits: LogLimits,
        damage: KnownDamage,
        books: tuple[UnreadableSegments, MissingEntries],
    ) -> None:
        self._store = store
        self._index = index
        self._limits = limits
        self._damage = damage
        self._troubles, self._missing = books
        self._ranges = RangeReader()
        self._spares = SpareBuffers(limits.read_bytes, _SPARES_MAX)

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> ReadResult:
        first_wanted = max(entry_id, self._index.first_wanted(ledger_id))
        wanted = Wanted(ledger_id, first_wanted, bytes_max, entries_max, first_bytes_max)
        tries = 0
        while not wanted.full:
            plan, found = self._next(wanted)
            if not self._step_over_gap(found, wanted) or plan is None:
                break
            plan = self._step_over_lost(plan, wanted)
            if plan is None:
                continue
            if self._carry_out(plan, wanted, begin=entry_id, last_try=tries + 1 == _TRIES_MAX):
                continue
            tries += 1
            self._index.sealed.forget(ledger_id)
        return wanted.result

    def _carry_out(self, plan: Plan, wanted: Wanted, *, begin: int, last_try: bool) -> bool:
        """Read a plan; return False when the segment was recycled meanwhile. Raises ReadFailed, IndexDamaged."""
        segment_id, before = plan.segment_id, wanted.entry_id
        try:
            with self._store.borrow(segment_id) as file:
                if file is not None:
                    self.read_plan(file, plan, wanted)
                elif last_try:
                    raise FileNotFoundError(errno.ENOENT, "its file is missing")
                else:
                    return False
        except OSError as error:
            self._troubles.failed(segment_id, _place(plan, wanted), error)
            if wanted.entry_id > max(begin, self._index.first_wanted(wanted.ledger_id)):
                wanted.full = True  # Return the entries before it; the next read begins here.
                return True
            raise ReadFailed(
                f"entry {wanted.ledger_id}:{wanted.entry_id} in segment {segment_id:x} cannot be read: "
                f"{error.strerror or error}"
            ) from error
        self._troubles.well(segment_id, (span for span in plan.spans if span.first_entry < wanted.entry_id))
        if wanted.entry_id == before and not wanted.full:
            raise IndexDamaged(f"segment {segment_id:x} does not hold entry {before} of {wanted.ledger_id}")
        return True

    def _next(self, wanted: Wanted) -> tuple[Plan | None, int]:
        """Return what to read next and its first entry, which may be behind a gap; without a plan, the ledger's end."""
        while True:
            removals = self._index.removals
            # Read before the plan is made: entries that become durable in between are not missing, but read next time.
            end = self._index.last_entry(wanted.ledger_id) + 1
            plan = self._index.plan(
                wanted.ledger_id, wanted.entry_id, bytes_max=wanted.bytes_left, entries_max=wanted.entries_left
            )
            found = plan.spans[0].first_entry if plan else end
            # A segment may have been emptied and removed, or the ledger dropped, between two questions to the index.
            if self._index.removals == removals or found <= wanted.entry_id:
                return plan, found

    def gap(self, ledger_id: int, entry_id: int) -> tuple[int, int] | None:
        """Return the first entry from `entry_id` on and the next one that the index knows; None without a gap."""
        wanted = Wanted(ledger_id, entry_id, 1, 1)
        _, found = self._next(wanted)
        first = self._first_untrimmed(wanted)
        return (first, found) if first < found else None

    def _first_untrimmed(self, wanted: Wanted) -> int:
        return max(wanted.entry_id, self._index.first_wanted(wanted.ledger_id))

    def _step_over_gap(self, found: int, wanted: Wanted) -> bool:
        """Name the lost entries before `found`; return False when there are more than one result may list.

        Raises Gap if nothing has confirmed yet that they are lost.
        """
        # Asked after the plan was made: what was trimmed meanwhile is no gap.
        first, ledger_id = self._first_untrimmed(wanted), wanted.ledger_id
        if first >= found:
            wanted.go_on_at(max(wanted.entry_id, found))
            return True
        if next(self._missing.present(ledger_id, first, found), None) is None:
            wanted.go_on_at(found)
            return True
        if not self._damage.explains(ledger_id, first, found):
            raise Gap(ledger_id, first)
        stop = min(found, first + self._limits.damage_listed_max)
        for entry_id in range(first, stop):
            wanted.skip(entry_id)
        wanted.go_on_at(stop)
        return stop >= found

    def _step_over_lost(self, plan: Plan, wanted: Wanted) -> Plan | None:
        """Return the readable part of a plan; skip a missing part at its beginning and return None."""
        there = self._store.lost.get(plan.segment_id)
        if there is None:
            return plan
        readable = [span for span in plan.spans if span.block_offset + span.block_bytes <= there]
        if readable and readable[0] == plan.spans[0]:
            ends = sum(1 for one, other in zip(readable, plan.spans, strict=False) if one == other)
            return plan._replace(spans=readable[:ends])
        lost = plan.spans[: plan.spans.index(readable[0])] if readable else plan.spans
        wanted.go_on_at(max(wanted.entry_id, lost[-1].end_entry))
        return None

    def read_plan(self, file: File, plan: Plan, wanted: Wanted) -> None:
        """Read the planned spans into `wanted`, until it is full. Raises OSError."""
        spans, at, segment_id = plan.spans, 0, plan.segment_id
        read_doubtful = partial(self._read_doubtful, file, segment_id, wanted=wanted)
        while at < len(spans) and not wanted.full:
            if wanted.has_half and not _fits(spans[at], wanted):
                wanted.full = True  # The next read takes all of this block, which is cheaper than a part each time.
                break
            end = self._apart(spans, at, wanted)
            if end > at:
                read_scattered(file, segment_id, spans[at:end], wanted, self._ranges, read_doubtful)
            else:
                end = self._together(spans, at, wanted)
                self._read_whole(file, segment_id, spans[at:end], wanted)
            at = end

    def _apart(self, spans: list[Span], at: int, wanted: Wanted) -> int:
        """Return the end of the spans from `at` on that are best read entry by entry, as many as at once."""
        stop = min(at + BLOCKS_MAX, len(spans))
        for end in range(at, stop):
            span = spans[end]
            if is_small(span):
                if end + 1 < len(spans) and _gap(span, spans[end + 1]) <= GAP_BYTES_MAX:
                    return end
            elif _is_dense(span, wanted):
                return end
        return stop

    def _together(self, spans: list[Span], at: int, wanted: Wanted) -> int:
        """Return the end of the spans that are best read at once with the one at `at`."""
        start, end = spans[at].block_offset, at + 1
        last = spans[at]
        while end < len(spans):
            span = spans[end]
            if (
                _gap(last, span) > GAP_BYTES_MAX
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
        chunk = self._read_chunk(file, spans[-1].block_offset + spans[-1].block_bytes - start, start, wanted)
        view = memoryview(chunk)
        for span in spans:
            at = span.block_offset - start
            header = decode_header(chunk, at)
            table = header and decode_table(chunk, at + HEADER_BYTES, header)
            if header and table and is_where(header, segment_id, span):
                base = at + header.front_bytes
                if crc32c(view[base : base + header.data_bytes]) == header.data_crc:
                    wanted.take(chunk, base, table, span, set())
                    continue
            self._read_doubtful(file, segment_id, span, wanted)

    def _read_chunk(self, file: File, size: int, offset: int, wanted: Wanted) -> Buffer:
        """Read a chunk, into a spare buffer if it fills half of it. Raises OSError."""
        whole_bytes = self._spares.nbytes
        if size <= whole_bytes <= min(2 * size, wanted.bytes_left):
            chunk = self._spares.take()[:size]
            fill(file, chunk, offset)
            wanted.leave(whole_bytes - size)
            return chunk
        return read_exactly(file, size, offset)

    def _read_doubtful(self, file: File, segment_id: int, span: Span, wanted: Wanted) -> None:
        """Read a block again that was not as written, perhaps only in memory; if it is still bad, that is damage."""
        file.forget()  # Read the disk, not a page in memory that may be wrong.
        view = memoryview(read_exactly(file, span.block_bytes, span.block_offset))
        found = find_block(view, segment_id, span.block_offset)
        if found is None:
            self._lose(segment_id, span, wanted, "both ends of its block are unreadable")
            return
        data = view[found.header.front_bytes :]
        bad = self._name_bad(segment_id, found.header, found.table, data, wanted.ledger_id) if found.bad else set()
        wanted.take(bytes(data), 0, found.table, span, bad)

    def _name_bad(self, segment_id: int, header: Header, table: Table, data: memoryview, ledger_id: int) -> set[int]:
        """Note the damaged entries of a block; return the ids of those of one ledger."""
        ids = set()
        for bad in bad_entries(header, table, data):
            self._damage.note(Damage(segment_id, bad.offset, bad.bytes, bad.ledger_id, bad.entry_id, _NOT_AS_SEALED))
            if bad.ledger_id == ledger_id:
                ids.add(bad.entry_id)
        return ids

    def _lose(self, segment_id: int, span: Span, wanted: Wanted, reason: str) -> None:
        for entry_id in range(max(span.first_entry, wanted.entry_id), span.end_entry):
            wanted.skip(entry_id)
            self._damage.note(
                Damage(segment_id, span.block_offset, span.block_bytes, wanted.ledger_id, entry_id, reason)
            )
        wanted.go_on_at(span.end_entry)


def _place(plan: Plan, wanted: Wanted) -> Span:
    """Return the block of a failed read."""
    return plan.spans[min(at_or_after(Spans.of(plan.spans), wanted.entry_id), len(plan.spans) - 1)]


_NOT_AS_SEALED: Final = "the entry is not as sealed"


def _gap(span: Span, following: Span) -> int:
    """Return the bytes between two blocks; as many as can be if they are not in order."""
    gap = following.block_offset - span.block_offset - span.block_bytes
    return gap if gap >= 0 else sys.maxsize


def _fits(span: Span, wanted: Wanted) -> bool:
    """Return whether all of the wanted ledger's entries of this block fit into what is left."""
    return span.entry_bytes <= wanted.bytes_left or is_small(span)


def _is_dense(span: Span, wanted: Wanted) -> bool:
    """Return whether at least half of the block is wanted, or it is so small that this does not matter."""
    skipped = max(wanted.entry_id - span.first_entry, 0)
    useful = min(span.entry_bytes * (span.entries - skipped) // span.entries, wanted.bytes_left)
    return useful * 2 >= span.block_bytes or is_small(span)
