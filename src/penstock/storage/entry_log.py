# SPDX-License-Identifier: Apache-2.0
"""The entry log: one per broker process, shared by all its topics; durable before anybody is told so.

    append ── journal thread ── segment files
    read ──── index ─────────── segment files          (reader threads)
    trim ──── tidier thread ─── recycled segments

Where: the broker appends what a read brought and gets its `done` after the sync; readers catch up from here; retention
trims. Opening recovers whatever a crash left. `docs/internals/entry-log.md` tells how, and draws the format.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import apsw

from penstock.core.errors import ReadFailed
from penstock.storage.files import read_exactly
from penstock.storage.index import Damage, IndexDamaged
from penstock.storage.journal import Journal, Placed, SegmentWriter
from penstock.storage.known_damage import KnownDamage
from penstock.storage.limits import LogLimits
from penstock.storage.opening import cut_segment, open_directory, rebuild
from penstock.storage.reader import Reader
from penstock.storage.records import HEADER_BYTES
from penstock.storage.results import Batch, ReadResult
from penstock.storage.runs import AppendRun
from penstock.storage.tidier import Tidier
from penstock.storage.unreadable_segments import UnreadableSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.storage.files import Files
    from penstock.storage.opening import Opened
    from penstock.storage.sealed_index import SealedIndex
    from penstock.storage.unreadable_segments import UnreadableSegment

__all__ = ["AppendRun", "Batch", "Damage", "EntryLog", "LogHealth", "LogLimits", "LogStats", "ReadResult"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_PUT_BACK: Final = (
    "put it back and start again, or give up what it held with autoSkipNonRecoverableData=true; until then nothing can "
    "be published"
)
# So many problems are told by name at a time.
PROBLEMS_TOLD_MAX: Final = 20
# A read that finds the index damaged has it built again and goes on; not for ever.
_MENDS_MAX: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """Whether publishers can be served, and if not, why."""

    read_only: str | None  # the reason, once a write or a sync has failed; only a restart leaves this state
    stalled: bool  # the commit underway takes too long: mute publishers until it is through

    @property
    def ok(self) -> bool:
        """Say whether appends can be expected to succeed soon."""
        return self.read_only is None and not self.stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counters since the log was opened, and sizes now."""

    bytes_appended: int
    entries_appended: int
    commits: int
    sync_ns_total: int
    sync_ns_max: int
    queued_bytes: int
    segments: int
    spares: int
    retained_bytes: int  # of sealed segments, up to their last block
    live_bytes: int  # of entries in sealed segments that were not trimmed
    open_bytes: int  # written to the segment that is not sealed yet
    moved_bytes: int
    recycled: int
    damaged: int
    missing_entries: int  # in segments that are not there
    read_failures: int  # reads that the disk failed; tried again
    unreadable: int  # segments that cannot be read now


class EntryLog:
    """The log of one broker process. `read` may be called from any thread; everything else belongs to the loop."""

    def __init__(
        self,
        opened: Opened,
        limits: LogLimits,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        nonce: Callable[[], int],
        *,
        background: bool,
    ) -> None:
        """Use `open`."""
        self._opened = opened
        self._limits = limits
        self._post = post
        self._nonce = nonce
        self._store, self._index = opened.store, opened.index
        self._damage = KnownDamage(opened.damage, listed_max=limits.damage_listed_max)
        self._troubles = UnreadableSegments()
        self.missing = opened.missing
        self._reader = Reader(self._store, self._index, limits, self._damage, (self._troubles, self.missing))
        self._journal = Journal(limits=limits, clock=clock, post=post, roll=self._roll, committed=self._committed)
        if opened.unknown:
            # What was published now could get ids that entries there have already.
            self._journal.failure = f"{'; '.join(opened.unknown)}; {_PUT_BACK}"
            log.error("the entry log is read-only: %s", self._journal.failure)
        self._tidier = Tidier(
            store=self._store,
            index=self._index,
            reader=self._reader,
            limits=limits,
            damage=self._damage,
            append=self._append_soon if background else self._append_now,
            mend=self._mend,
            wants_next=self._wants_next,
        )
        self._writer: SegmentWriter | None = None  # the journal's; None until the first append
        self._cached: deque[int] = deque()  # segments sealed lately, the oldest first; the journal's

    @classmethod
    def open(
        cls,
        directory: Path,
        files: Files,
        limits: LogLimits,
        post: Callable[[Callable[[], None]], None],
        *,
        clock: Clock,
        nonce: Callable[[], int] | None = None,
        index_vfs: str | None = None,
        background: bool = True,
    ) -> EntryLog:
        """Lock and recover the log in `directory`, and start its threads.

        `post` hands a callable to the loop. `nonce` draws 64 random bits for a new segment. `index_vfs` names an SQLite
        VFS for the index. Without `background` nothing happens by itself, and everything on the caller's thread: runs
        are written by `commit`, housework is done by `tidy`. Raises DataDirectoryLocked, PersistenceFailed, OSError.
        """
        opened = open_directory(directory, files, limits, index_vfs=index_vfs)
        entry_log = cls(opened, limits, clock, post, nonce or partial(secrets.randbits, 64), background=background)
        if background:
            entry_log._journal.start()
            entry_log._tidier.start()
            entry_log._tidier.wake()
        return entry_log

    def close(self) -> None:
        """Write and sync what was appended, stop the threads, let go of the directory.

        Completions are still posted, so the loop must take them afterwards; nothing may be appended or read any more.
        """
        self._tidier.close()
        self._journal.close()
        if self._writer is not None:
            if self._journal.failure is None:
                self._leave_sealed(self._writer)
            self._store.give_back(self._writer.opened)
        self._store.close()
        self._index.sealed.close()
        self._opened.lock.release()

    def _leave_sealed(self, writer: SegmentWriter) -> None:
        """Spare the next start the scan, and the disk the rest of the last segment."""
        self._index.seal(writer.segment_id)
        try:
            cut_segment(writer.opened.file, writer.end, self._limits)
            self._index.store_sealed()
            self._index.store_trims()
            self._index.sealed.add_damage(self._damage.take_unstored())
        except (OSError, apsw.Error, IndexDamaged) as error:
            log.warning("the next start will scan the last segment, for its index could not be stored: %s", error)

    # ----------------------------------------------------------------------------------------------------- appending

    def append(self, run: AppendRun) -> None:
        """Queue a run. Its `done` is called on the loop once it is durable, or is sure never to be."""
        assert run.block_bytes + HEADER_BYTES <= self._limits.segment_bytes, "a run must fit a segment"
        self._journal.append(run)

    def commit(self) -> None:
        """Write what was appended. Only for a log opened without `background`."""
        self._journal.commit_queued()

    def _append_now(self, run: AppendRun) -> None:
        self.append(run)
        self.commit()

    def _append_soon(self, run: AppendRun) -> None:
        """Queue a run from another thread than the loop."""
        self._post(partial(self.append, run))

    def _roll(self, full: SegmentWriter | None) -> SegmentWriter:
        """On the journal thread: seal the full segment and begin the next. Raises OSError (ENOSPC)."""
        if full is not None:
            self._index.seal(full.segment_id)
            self._store.give_back(full.opened)
            self._writer = None
            self._let_go_of_pages(full.segment_id)
        segment_id = self._store.take()
        opened = self._store.lend(segment_id)
        assert opened is not None
        self._index.begin(segment_id)
        self._remember_begun(segment_id)
        self._writer = SegmentWriter(
            opened, segment_id=segment_id, nonce=self._nonce(), size=self._limits.segment_bytes
        )
        self._tidier.wake()
        return self._writer

    def _remember_begun(self, segment_id: int) -> None:
        """So that the next start knows that this segment must be there, whatever happens to its file."""
        try:
            self._index.sealed.begin(segment_id, self._limits.segment_bytes)
        except (OSError, apsw.Error, IndexDamaged) as error:
            log.warning("segment %x: that it was begun could not be stored: %s", segment_id, error)

    def _let_go_of_pages(self, sealed: int) -> None:
        """Keep the last segments in the page cache, and no more of them."""
        self._cached.append(sealed)
        if len(self._cached) * self._limits.segment_bytes > self._limits.page_cache_bytes:
            # A hint: the log goes on without it when the file cannot be opened.
            with suppress(OSError), self._store.borrow(self._cached.popleft()) as file:
                if file is not None:
                    file.forget()

    def _committed(self, writer: SegmentWriter, placed: list[Placed]) -> None:
        """On the journal thread: blocks are durable, so they may be read."""
        self._index.committed(writer.segment_id, placed)
        if placed[0].offset * 2 < writer.size <= writer.end * 2:
            self._tidier.wake()  # It makes the next segment ready before this one is full.

    def _wants_next(self) -> bool:
        """Say whether the next segment will be wanted soon: a quiet log shall not hold two."""
        writer = self._writer
        return writer is None or writer.end * 2 >= writer.size

    # ------------------------------------------------------------------------------------------------------- reading

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> ReadResult:
        """Read entries of a ledger from `entry_id` on, in order. Blocks; call it from any thread but the loop.

        Returns at least one entry if there is one, else at most `bytes_max` bytes and `entries_max` entries. With
        `first_bytes_max`, an entry that is larger is not read, but its length returned as `too_large_bytes`, when it
        is the first. Entries below the trim point are passed over; damaged and missing ones are too, but named.

        Raises:
            ReadFailed: the disk cannot read the first of them, now; nothing says that it is lost, so ask again.
            IndexDamaged: the index is, and was built again in vain.
        """
        return self._asked(
            lambda: self._reader.read(
                ledger_id, entry_id, bytes_max=bytes_max, entries_max=entries_max, first_bytes_max=first_bytes_max
            )
        )

    def bytes_from(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        """Return, for each of these entries, how many bytes it and all behind it take. Blocks, as `read` does.

        What was trimmed takes none. Within a block entries count as alike; what is being moved may be off by more.
        """
        return self._asked(lambda: self._index.bytes_from(ledger_id, entry_ids))

    def entry_within(self, ledger_id: int, nbytes: int) -> int:
        """Return the first entry that, with all behind it, takes no more than `nbytes`. As `bytes_from` otherwise."""
        return self._asked(lambda: self._index.entry_within(ledger_id, nbytes))

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            for _ in range(_MENDS_MAX):
                sealed = self._index.sealed
                try:
                    return question()
                except IndexDamaged as error:
                    self._mend(error, sealed)
            return question()
        except OSError as error:
            raise ReadFailed(f"the index of the entry log cannot be read: {error.strerror or error}") from error

    def _mend(self, error: IndexDamaged, sealed: SealedIndex | None = None) -> None:
        """Build the index again, unless somebody else did since `sealed` was looked at."""
        with self._tidier.busy:
            if sealed is None or sealed is self._index.sealed:
                log.warning("the index of the entry log is damaged (%s); building it again from the log", error)
                rebuild(self._opened)
                # What is in no segment now is damage that was named, or was in a file that is not there.
                if self._limits.skip_missing:
                    self._damage.explains_gaps = True
                else:
                    self._store.unknown_lost |= not self._damage.explains_gaps

    def last_entry(self, ledger_id: int) -> int:
        """Return the id of the ledger's last durable entry, trimmed or not; -1 if it never had one."""
        return self._index.last_entry(ledger_id)

    def ledgers(self) -> set[int]:
        """Return the ledgers of which entries are retained. For a start: drop those nobody knows. Asks the disk."""
        return self._index.ledgers()

    # ----------------------------------------------------------------------------------------------------- reclaiming

    def trim(self, ledger_id: int, before_entry: int) -> None:
        """Give up the entries below `before_entry`. Their space comes back in the background, by whole segments.

        The log does not keep trim points: make this one durable first, and give it again after each start. It also
        says that those ids were used, which nobody else may remember by then.
        """
        if self._index.trim(ledger_id, before_entry):
            self._tidier.wake()

    def drop(self, ledger_id: int) -> None:
        """Give up a ledger, once everything appended before is settled. Its id must never be used again.

        A crash soon after may undo it: at each start, drop what `ledgers` lists and nobody knows.
        """

        def settled(_run: AppendRun, _error: PenstockError | None) -> None:
            self._index.drop(ledger_id)
            self._tidier.wake()

        self.append(AppendRun(groups=[], offsets=[], lengths=[], message_counts=None, data=b"", done=settled))

    def tidy(self) -> None:
        """Do the housework now. Blocks; never call it on the loop. Raises OSError, apsw.Error."""
        self._tidier.tidy()

    # ------------------------------------------------------------------------------------------------------ reporting

    @property
    def health(self) -> LogHealth:
        """Return whether publishers can be served."""
        reason = self._journal.failure or ("the journal thread has died" if self._journal.died() else None)
        return LogHealth(read_only=reason, stalled=self._journal.stalled_ns() > self._limits.stall_ns)

    def troubles(self) -> list[UnreadableSegment]:
        """Return what could not be read when it was tried last: it is not lost."""
        return self._troubles.now()

    def try_again(self) -> None:
        """Try what could not be read, so that `troubles` is true though nobody may want it any more. Blocks."""
        for trouble in self._troubles.now():
            try:
                with self._store.borrow(trouble.segment_id) as file:
                    if file is None:
                        gone = trouble.segment_id not in self._index.sealed.segments
                        if not gone and trouble.segment_id not in self._index.growing():
                            continue
                    else:
                        read_exactly(file, trouble.bytes, trouble.offset)
            except OSError:
                continue
            self._troubles.over(trouble)

    def problems(self) -> tuple[str, ...]:
        """Return what cannot be served, now or any more, in sentences for people; the first ones of many."""
        told = [trouble.describe() for trouble in self._troubles.now()]
        told += [missing.describe() for missing in self.missing.listed()]
        told += [damage.describe() for damage in self._damage.listed()]
        more = len(told) - PROBLEMS_TOLD_MAX
        return (*told[:PROBLEMS_TOLD_MAX], f"and {more} more; see the log") if more > 0 else tuple(told)

    def damage(self) -> list[Damage]:
        """Return the damage met so far, in this run and earlier ones, up to `damage_listed_max`."""
        return self._damage.listed()

    def stats(self) -> LogStats:
        """Return counters and sizes."""
        journal, sealed = self._journal.stats, list(self._index.sealed.segments.values())
        return LogStats(
            bytes_appended=journal.bytes_appended,
            entries_appended=journal.entries_appended,
            commits=journal.commits,
            sync_ns_total=journal.sync_ns_total,
            sync_ns_max=journal.sync_ns_max,
            queued_bytes=self._journal.queued_bytes,
            segments=self._index.segments(),
            spares=self._store.spares,
            retained_bytes=sum(row.bytes for row in sealed),
            live_bytes=sum(row.live_bytes for row in sealed),
            open_bytes=self._writer.end if self._writer is not None else 0,
            moved_bytes=self._tidier.moved_bytes,
            recycled=self._tidier.recycled,
            damaged=self._damage.count + self.missing.pieces,
            missing_entries=self.missing.entries,
            read_failures=self._troubles.failures,
            unreadable=len(self._troubles.now()),
        )
