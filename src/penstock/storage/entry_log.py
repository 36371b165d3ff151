# SPDX-License-Identifier: Apache-2.0
"""The entry log: one per broker process, shared by all its topics; an append is answered when it is durable.

    append ── journal thread ── segment files
    read ──── index ─────────── segment files          (reader threads)
    trim ──── log maintenance ─ recycled segments

Where: the broker appends the entries of a read, and `done` is called after the sync. Catch-up reads come from here, and
retention trims. Opening recovers the log after a crash. `docs/internals/entry-log.md` explains it and has the format.
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
from penstock.storage.blocks import HEADER_BYTES
from penstock.storage.counting import Counter
from penstock.storage.damage import KnownDamage, MissingRange, UnreadableSegments
from penstock.storage.files import read_exactly
from penstock.storage.index import Damage, Gap, IndexDamaged
from penstock.storage.journal import Journal, Placed, SegmentWriter
from penstock.storage.keeping import Keeping, Kept
from penstock.storage.limits import LogLimits
from penstock.storage.log_maintenance import LogMaintenance
from penstock.storage.reader import Reader
from penstock.storage.recovery import cut_segment, open_directory, rebuild
from penstock.storage.results import Batch, ReadResult
from penstock.storage.runs import AppendRun
from penstock.storage.segment import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.core.clock import Clock
    from penstock.core.durations import DurationsSnapshot
    from penstock.core.errors import PenstockError
    from penstock.storage.counting import Counted
    from penstock.storage.damage import UnreadableSegment
    from penstock.storage.files import Files
    from penstock.storage.recovery import Opened
    from penstock.storage.sealed_index import SealedIndex

__all__ = ["AppendRun", "Batch", "Damage", "EntryLog", "LogHealth", "LogLimits", "LogStats", "ReadResult"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_PUT_BACK: Final = (
    "put it back and start again, or give up what it held with autoSkipNonRecoverableData=true; until then nothing can "
    "be published"
)
# The most problems that are reported by name at a time.
PROBLEMS_TOLD_MAX: Final = 20
# How often a read rebuilds a damaged index before it fails.
_MENDS_MAX: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHealth:
    """Whether the log accepts appends, and if not, why."""

    read_only: str | None  # the reason, once a write or a sync has failed; only a restart leaves this state
    stalled: bool  # the current commit takes too long: mute publishers until it has ended
    heals: bool = False  # a restart is all that a log that is read-only needs, once the disk works
    no_room: str | None = None  # the reason, while the disk has no room for more than was accepted already

    @property
    def ok(self) -> bool:
        """Whether appends are expected to succeed soon."""
        return self.read_only is None and self.no_room is None and not self.stalled


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """Counters since the log was opened, and current sizes."""

    bytes_appended: int
    entries_appended: int
    commits: int
    commit_times: DurationsSnapshot
    sync_times: DurationsSnapshot
    sync_ns_max: int
    queued_bytes: int
    segments: int
    spares: int
    retained_bytes: int  # of sealed segments, up to their last block
    live_bytes: int  # of entries in sealed segments that were not trimmed
    open_bytes: int  # written to the unsealed segment
    moved_bytes: int
    recycled: int
    damaged: int
    missing_entries: int  # in segments whose file is missing
    read_failures: int  # failed reads, which are retried
    unreadable: int  # segments that currently cannot be read


class EntryLog:
    """The log of one broker process. Any thread may call `read`; all other methods belong to the loop."""

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
        self._holes: dict[int, list[tuple[int, int]]] = {}  # found by the last scan, of ledgers
        self._reader = Reader(self._store, self._index, limits, self._damage, (self._troubles, self.missing))
        self._counter = Counter(self._store, self._index)
        self._journal = Journal(limits=limits, clock=clock, post=post, roll=self._roll, committed=self._committed)
        if opened.unknown:
            # New entries could get ids that entries of the missing segment have already.
            self._journal.failure = f"{'; '.join(opened.unknown)}; {_PUT_BACK}"
            log.error("the entry log is read-only: %s", self._journal.failure)
        self._keeping = Keeping(clock, nonce())
        self._maintenance = LogMaintenance(
            store=self._store,
            index=self._index,
            reader=self._reader,
            limits=limits,
            damage=self._damage,
            keeping=self._keeping,
            append=self._append_soon if background else self._append_now,
            mend=self._mend,
            wants_next=self._wants_next,
            ran_out=lambda: post(self._ran_out),
        )
        self._refuse: Callable[[], None] | None = None
        self._writer: SegmentWriter | None = None  # the journal's; None until the first append
        self._cached: deque[int] = deque()  # recently sealed segments, the oldest first; the journal's

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

        `post` passes a callable to the loop. `nonce` draws 64 random bits for a new segment. `index_vfs` names an
        SQLite VFS for the index. Without `background`, everything happens on the caller's thread: `commit` writes runs,
        `maintain` does the maintenance. Raises DataDirectoryLocked, PersistenceFailed, OSError.
        """
        opened = open_directory(directory, files, limits, index_vfs=index_vfs)
        entry_log = cls(opened, limits, clock, post, nonce or partial(secrets.randbits, 64), background=background)
        if background:
            entry_log._journal.start()
            entry_log._maintenance.start()
            entry_log._maintenance.wake()
        return entry_log

    def close(self) -> None:
        """Write and sync appended runs, stop the threads and release the directory.

        Completions are still posted, so the loop must run them afterwards. Nothing may be appended or read any more.
        """
        self._maintenance.close()
        self._journal.close()
        if self._writer is not None:
            if self._journal.failure is None:
                self._leave_sealed(self._writer)
            self._store.give_back(self._writer.opened)
        self._store.close()
        self._index.sealed.close()
        self._opened.lock.release()

    def _leave_sealed(self, writer: SegmentWriter) -> None:
        """Seal the last segment, so that the next start need not scan it and its unused disk space is freed."""
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
        """Queue a run.

        Its `done` is called on the loop once it is durable, or once it is certain that it never will be.
        """
        assert run.block_bytes + HEADER_BYTES <= self._limits.segment_bytes, "a run must fit a segment"
        self._journal.append(run)

    def commit(self) -> None:
        """Write appended runs. Only for a log opened without `background`."""
        self._journal.commit_queued()

    def _append_now(self, run: AppendRun) -> None:
        self.append(run)
        self.commit()

    def _append_soon(self, run: AppendRun) -> None:
        """Queue a run from another thread than the loop."""
        self._post(partial(self.append, run))

    def _roll(self, full: SegmentWriter | None) -> SegmentWriter:
        """On the journal thread: seal the full segment and start the next, when there is room. Raises OSError."""
        if full is not None:
            self._index.seal(full.segment_id)
            self._store.give_back(full.opened)
            self._writer = None
            self._let_go_of_pages(full.segment_id)
        segment_id = self._maintenance.next_segment()
        opened = self._store.lend(segment_id)
        assert opened is not None
        self._index.begin(segment_id)
        self._remember_begun(segment_id)
        self._writer = SegmentWriter(
            opened, segment_id=segment_id, nonce=self._nonce(), size=self._limits.segment_bytes
        )
        self._maintenance.wake()
        return self._writer

    def _remember_begun(self, segment_id: int) -> None:
        """Store that this segment must exist, so that the next start notices if its file is missing."""
        try:
            self._index.sealed.begin(segment_id, self._limits.segment_bytes)
        except (OSError, apsw.Error, IndexDamaged) as error:
            log.warning("segment %x: that it was begun could not be stored: %s", segment_id, error)

    def _let_go_of_pages(self, sealed: int) -> None:
        """Keep only the most recent segments in the page cache."""
        self._cached.append(sealed)
        if len(self._cached) * self._limits.segment_bytes > self._limits.page_cache_bytes:
            # A hint: the log goes on without it when the file cannot be opened.
            with suppress(OSError), self._store.borrow(self._cached.popleft()) as file:
                if file is not None:
                    file.forget()

    def _committed(self, writer: SegmentWriter, placed: list[Placed]) -> None:
        """On the journal thread: make durable blocks readable."""
        self._index.committed(writer.segment_id, placed)
        if placed[0].offset * 2 < writer.size <= writer.end * 2:
            self._maintenance.wake()  # It prepares the next segment before this one is full.

    def when_room_ends(self, refuse: Callable[[], None]) -> None:
        """Call `refuse` on the loop, at once, when the disk has no room for the next segment."""
        self._refuse = refuse

    def _ran_out(self) -> None:
        if self._refuse is not None:
            self._refuse()

    def _wants_next(self) -> bool:
        """Return whether the next segment is needed soon: an idle log should not have two."""
        writer = self._writer
        return writer is None or writer.end * 2 >= writer.size

    # ------------------------------------------------------------------------------------------------------- reading

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> ReadResult:
        """Read entries of a ledger from `entry_id` on, in order. Blocks; call it from any thread but the loop.

        Returns at least one entry if there is one, else at most `bytes_max` bytes and `entries_max` entries. With
        `first_bytes_max`, a larger first entry is not read; its length is returned as `too_large_bytes`. Entries below
        the trim point are skipped. Damaged and missing entries are skipped too, and damaged ones are named.

        Raises:
            ReadFailed: the disk currently cannot read the first of them. The entry is not lost: retry.
            IndexDamaged: the index is damaged, and rebuilding it did not help.
        """
        return self._asked(
            lambda: self._reader.read(
                ledger_id, entry_id, bytes_max=bytes_max, entries_max=entries_max, first_bytes_max=first_bytes_max
            )
        )

    def bytes_from(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        """Return, for each of these entries, the bytes of it and all later ones. Blocks, as `read` does.

        Trimmed entries take no bytes. Within a block all entries count as equally large; entries that are being moved
        may be counted less exactly.
        """
        return self._asked(lambda: self._index.bytes_from(ledger_id, entry_ids))

    def entry_within(self, ledger_id: int, nbytes: int) -> int:
        """Return the first entry that, with all later ones, takes at most `nbytes`. Otherwise like `bytes_from`."""
        return self._asked(lambda: self._index.entry_within(ledger_id, nbytes))

    def count(
        self,
        ledger_id: int,
        entry_id: int,
        end_entry_id: int,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
    ) -> Counted:
        """Count the messages and bytes of whole entries from `entry_id` on, before `end_entry_id`. Blocks, as `read`.

        Counting ends where the next entry exceeds a limit, where a table of entries cannot be read, and after so much
        work (`penstock.storage.counting`).
        """
        return self._asked(lambda: self._counter.count(ledger_id, entry_id, end_entry_id, messages_max, bytes_max))

    def _asked(self, question: Callable[[], T]) -> T:
        try:
            mends_left, before = _MENDS_MAX, ""
            while mends_left:
                sealed = self._index.sealed
                try:
                    return question()
                except IndexDamaged as error:
                    self._mend(error, sealed)
                    # A read may come upon many gaps; each is confirmed once and then passed.
                    if not isinstance(error, Gap) or str(error) == before:
                        mends_left -= 1
                    before = str(error)
            return question()
        except OSError as error:
            raise ReadFailed(f"the index of the entry log cannot be read: {error.strerror or error}") from error

    def _mend(self, error: IndexDamaged, sealed: SealedIndex | None = None) -> None:
        """Rebuild the index, unless another thread did since `sealed` was read. Raises OSError, apsw.Error."""
        with self._maintenance.busy:
            if isinstance(error, Gap):
                self._confirm(error)
            elif sealed is None or sealed is self._index.sealed:
                self._rebuild(error)

    def _rebuild(self, error: IndexDamaged) -> None:
        log.warning("the index of the entry log is damaged (%s); building it again from the log", error)
        self._damage.found_by_scan(rebuild(self._opened))
        self._holes = self._index.holes()

    def _confirm(self, gap: Gap) -> None:
        """Find out whether entries are lost, while no segment comes, goes or is moved.

        Only entries that a scan of the log did not find are lost: those of damaged blocks for good, others until the
        file of their segment is back.
        """
        entries = self._reader.gap(gap.ledger_id, gap.first_entry)
        if entries is not None and not self._has_confirmed(gap.ledger_id, *entries):
            self._rebuild(gap)
            entries = self._reader.gap(gap.ledger_id, gap.first_entry)
        if entries is None:
            return
        if self._damage.explains_gaps or self._limits.skip_missing:
            self._damage.confirm_gap(gap.ledger_id, *entries)
        else:
            self.missing.note(MissingRange(None, gap.ledger_id, *entries, "their segment is missing"))

    def _has_confirmed(self, ledger_id: int, first_entry: int, end_entry: int) -> bool:
        """Return whether this start, or the last scan, has found that entries of this range are lost."""
        if self._damage.explains_gaps or self._opened.unknown:
            return True
        return any(first <= first_entry and end_entry <= end for first, end in self._holes.get(ledger_id, ()))

    def last_entry(self, ledger_id: int) -> int:
        """Return the id of the ledger's last durable entry, trimmed or not; -1 if it never had one."""
        return self._index.last_entry(ledger_id)

    def first_entry(self, ledger_id: int) -> int:
        """Return the id of the ledger's first entry that was not trimmed, whether it exists or not."""
        return self._index.first_wanted(ledger_id)

    def ledgers(self) -> set[int]:
        """Return the ledgers with retained entries, to drop unknown ones at a start. Reads the disk."""
        return self._index.ledgers()

    # ----------------------------------------------------------------------------------------------------- reclaiming

    def trim(self, ledger_id: int, before_entry: int) -> None:
        """Delete the entries below `before_entry`. Their space is reclaimed in the background, by whole segments.

        The log does not store trim points: make this one durable first, and call `trim` again after each start. It also
        says that these ids were used, which may be recorded nowhere else by then.
        """
        if self._index.trim(ledger_id, before_entry):
            self._maintenance.wake()

    def reclaim(self) -> None:
        """Apply trims and drops, and recycle empty segments. Only without `background`. Raises OSError, apsw.Error."""
        self._maintenance.reclaim()

    def drop(self, ledger_id: int) -> None:
        """Delete a ledger, after everything appended before is settled. Its id must never be used again.

        A crash soon after may undo it: at each start, drop the ledgers that `ledgers` returns and the catalog does not
        know.
        """

        def settled(_run: AppendRun, _error: PenstockError | None) -> None:
            self._index.drop(ledger_id)
            self._maintenance.wake()

        self.append(AppendRun(groups=[], offsets=[], lengths=[], message_counts=None, data=b"", done=settled))

    def keep(self, duration_ns: int) -> Kept:
        """Keep all segments for so long, or longer if it was asked before; returns what is durable now. Blocks."""
        hold = self._keeping.keep(duration_ns)
        return Kept(hold, {file_name(segment_id): nbytes for segment_id, nbytes in self._index.written().items()})

    def maintain(self) -> None:
        """Do the maintenance now. Blocks; never call it on the loop. Raises OSError, apsw.Error."""
        self._maintenance.maintain()

    # ------------------------------------------------------------------------------------------------------ reporting

    @property
    def directory(self) -> Path:
        """The directory of its segments."""
        return self._store.directory

    @property
    def appended_bytes(self) -> int:
        """Bytes written since the log was opened."""
        return self._journal.stats.bytes_appended

    @property
    def queued_bytes(self) -> int:
        """Bytes of appends that are not answered yet. Loop only."""
        return self._journal.queued_bytes

    @property
    def health(self) -> LogHealth:
        reason = self._journal.failure or ("the journal thread has died" if self._journal.died() else None)
        return LogHealth(
            read_only=reason,
            stalled=self._journal.stalled_ns() > self._limits.stall_ns,
            heals=reason is not None and not self._opened.unknown,
            no_room=self._maintenance.no_room,
        )

    @property
    def commit_ns(self) -> int:
        """How long the current commit has taken so far; 0 if there is none."""
        return self._journal.stalled_ns()

    def troubles(self) -> list[UnreadableSegment]:
        """Return segments whose last read failed; their entries are not lost."""
        return self._troubles.now()

    def try_again(self) -> None:
        """Retry failed reads, so that `troubles` is correct even if no consumer reads there any more. Blocks."""
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
        """Return what currently cannot be read, and what is lost, in sentences for people; the first ones of many."""
        told = [trouble.describe() for trouble in self._troubles.now()]
        told += [missing.describe() for missing in self.missing.listed()]
        told += [damage.describe() for damage in self._damage.listed()]
        more = len(told) - PROBLEMS_TOLD_MAX
        return (*told[:PROBLEMS_TOLD_MAX], f"and {more} more; see the log") if more > 0 else tuple(told)

    def damage(self) -> list[Damage]:
        """Return the damage found in this run and earlier ones, up to `damage_listed_max`."""
        return self._damage.listed()

    def probe(self) -> None:
        """Return if the disk takes data now, with room for the next segment. Blocks. Raises OSError if it does not."""
        self._store.probe()

    def stats(self) -> LogStats:
        journal, sealed = self._journal.stats, list(self._index.sealed.segments.values())
        return LogStats(
            bytes_appended=journal.bytes_appended,
            entries_appended=journal.entries_appended,
            commits=journal.commits,
            commit_times=journal.commit_times.snapshot(),
            sync_times=journal.sync_times.snapshot(),
            sync_ns_max=journal.sync_ns_max,
            queued_bytes=self._journal.queued_bytes,
            segments=self._index.segments(),
            spares=self._store.spares,
            retained_bytes=sum(row.bytes for row in sealed),
            live_bytes=sum(row.live_bytes for row in sealed),
            open_bytes=self._writer.end if self._writer is not None else 0,
            moved_bytes=self._maintenance.moved_bytes,
            recycled=self._maintenance.recycled,
            damaged=self._damage.count + self.missing.pieces,
            missing_entries=self.missing.entries,
            read_failures=self._troubles.failures,
            unreadable=len(self._troubles.now()),
        )
