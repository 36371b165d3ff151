# SPDX-License-Identifier: Apache-2.0
"""Journal: the thread that writes runs of entries to the log and reports when they are durable.

Why a thread: a sync takes milliseconds, in which the event loop can decode the next reads. Why group commit: all runs
that were queued during one sync share the next one.

    append (loop) → queue → gather → one gathered write → one sync → index → post → done(run, None), in order (loop)

A failure is final. After a failed write or sync the content of the disk is unknown, so the journal answers this and
every later run with an error and writes nothing more. When the disk works again, the process starts again and recovers
the log (`penstock.broker.healing`). A sync
is never retried on the same file: the kernel reports an error once, and would then claim success for pages that it
dropped.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple, ParamSpec

from penstock.core.durations import Durations
from penstock.core.errors import PersistenceFailed, StorageReadOnly
from penstock.core.units import KIB
from penstock.storage.blocks import HEADER_BYTES, Stamp, encode_block, encode_mark
from penstock.storage.files import write_all
from penstock.storage.runs import AppendRun, Block, blocks, lone_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.storage.limits import LogLimits
    from penstock.storage.segment import OpenSegment


# ---------------------------------------------------------------------------------------------------------------------
# The queue of runs for the journal: small runs do not wait behind large ones of other clients and topics.
#
# Why: publishers of large frames can fill all of the request memory with runs that wait for the disk. In one queue, a
# message of a kilobyte would wait until all of them are written, which takes as long as that memory is large. Where:
# the loop puts runs, the journal thread gathers them for a commit.
#
# Small runs have a queue of their own. But a small run goes to the large runs' queue if that holds a run of the same
# connection or ledger: entries of a ledger and receipts of a connection keep their order. A large run waits for all
# small ones that were put before it. While both kinds wait, half of a commit is for small runs; a large run that found
# no room starts the next commit. So no run waits forever, and a small run waits for the current commit and at most one
# more, as long as the small runs together do not fill half of each.

# Larger runs are those of clients that publish in bulk: a read of a connection brings up to 512 KiB.
SMALL_BYTES_MAX: Final = 64 * KIB


class AppendQueue:
    """Waiting runs. Any thread puts them; one thread gathers them, and has all of the work of it."""

    def __init__(self) -> None:
        self._put: SimpleQueue[AppendRun | None] = SimpleQueue()  # None: it is closed
        # Only the gathering thread knows what follows.
        self._closed = False
        self._small: deque[AppendRun] = deque()
        self._large: deque[tuple[AppendRun, int]] = deque()  # with the number of small runs that go first
        self._small_came = 0
        self._small_taken = 0
        self._ledgers: dict[int, int] = {}  # of the runs in the queue of the large ones, and of how many
        self._owners: dict[int, int] = {}
        self._passed_over = False  # large runs waited at the last commit, and none was in it

    @property
    def empty(self) -> bool:
        """Whether no run waits; for the gathering thread."""
        return self._put.empty() and not self._small and not self._large

    def put(self, run: AppendRun) -> None:
        # A lock here would be waited for on the loop, whenever the gathering thread is interrupted while it has it.
        self._put.put(run)

    def close(self) -> None:
        """Accept no more runs: `gather` returns the rest, then an empty list."""
        self._put.put(None)

    def gather(self, room_of: Callable[[AppendRun], int]) -> list[AppendRun]:
        """Wait for a run, then take further runs that fit into the same commit; an empty list is the end.

        `room_of(first)` returns how many bytes of blocks a commit that starts with this run may have.
        """
        if not self._closed and not self._small and not self._large:
            run = self._put.get()
            if run is not None and self._put.empty():  # As nearly always at a low rate: nothing is to be decided.
                self._passed_over = False
                return [run]
            self._sort(run)
        for _ in range(self._put.qsize()):
            self._sort(self._put.get())
        if not self._small and not self._large:
            return []
        first = self._take_large() if self._large_is_first() else self._take_small()
        runs, room = [first], room_of(first) - first.block_bytes
        room = self._fill_small(runs, room, room // 2 if self._large else 0)
        larges = len(self._large)
        while self._large_may_go() and self._large[0][0].block_bytes <= room:
            runs.append(self._take_large())
            room -= runs[-1].block_bytes
        self._passed_over = larges > 0 and larges == len(self._large) and self._is_small(first)
        self._fill_small(runs, room, 0)
        return runs

    def _sort(self, run: AppendRun | None) -> None:
        """Add a run to one of the two queues; runs come here in the order in which they were put."""
        if run is None:
            self._closed = True
        elif self._may_go_first(run):
            self._small.append(run)
            self._small_came += 1
        else:
            self._large.append((run, self._small_came))
            for ledger_id in {group[0] for group in run.groups}:
                self._ledgers[ledger_id] = self._ledgers.get(ledger_id, 0) + 1
            if run.owner is not None:
                self._owners[run.owner] = self._owners.get(run.owner, 0) + 1

    def _fill_small(self, runs: list[AppendRun], room: int, leave: int) -> int:
        """Take small runs until no more than `leave` bytes of room are left, or none fits; return the room left."""
        while self._small and self._small[0].block_bytes <= room - leave:
            runs.append(self._take_small())
            room -= runs[-1].block_bytes
        return room

    def _may_go_first(self, run: AppendRun) -> bool:
        """Return whether it may overtake large runs: none of them has its connection or one of its ledgers."""
        if run.owner is None or not self._is_small(run):
            return False
        return run.owner not in self._owners and not any(group[0] in self._ledgers for group in run.groups)

    @staticmethod
    def _is_small(run: AppendRun) -> bool:
        return run.block_bytes <= SMALL_BYTES_MAX

    def _large_is_first(self) -> bool:
        return not self._small or (self._passed_over and self._large_may_go())

    def _large_may_go(self) -> bool:
        return bool(self._large) and self._large[0][1] <= self._small_taken

    def _take_small(self) -> AppendRun:
        self._small_taken += 1
        return self._small.popleft()

    def _take_large(self) -> AppendRun:
        run, _ = self._large.popleft()
        for ledger_id in {group[0] for group in run.groups}:
            _take_one(self._ledgers, ledger_id)
        if run.owner is not None:
            _take_one(self._owners, run.owner)
        return run


def _take_one(counts: dict[int, int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


__all__ = ["AppendRun", "Journal", "JournalStats", "Placed", "SegmentWriter"]

P = ParamSpec("P")

log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """A block and the offset at which it was written."""

    block: Block
    offset: int
    bytes: int


class SegmentWriter:
    """The segment that is being written, from its beginning until it is full."""

    def __init__(self, opened: OpenSegment, *, segment_id: int, nonce: int, size: int) -> None:
        self.opened = opened
        self._file = opened.file
        self.segment_id = segment_id
        self.size = size
        self.end = 0  # Written up to this offset,
        self.synced = 0  # durable up to this one,
        self.marked = 0  # and recorded as durable up to this one.
        self._nonce = nonce

    def fits(self, block_size: int) -> bool:
        """Return whether a block of this size and a final mark fit."""
        return self.end + block_size + HEADER_BYTES <= self.size

    def write(self, runs: Sequence[AppendRun]) -> list[Placed]:
        """Append `runs` in one gathered write. Raises OSError."""
        buffers: list[Buffer] = []
        placed = []
        stamp, offset = self._stamp(), self.end
        for block in blocks(runs) if len(runs) > 1 else (lone_block(runs[0]),):
            front, back = encode_block(stamp, offset, *block)
            buffers += (front, *block.data, back)
            size = 2 * len(front) + sum(map(len, block.data))
            placed.append(Placed(block, offset, size))
            offset += size
        write_all(self._file, buffers, self.end)
        self.end = offset
        return placed

    def sync(self) -> None:
        """Make written blocks durable. Raises OSError: then never call it again."""
        self._file.sync()
        self.synced = self.end

    def mark(self) -> None:
        """Write a mark that everything here is durable. The next block overwrites it."""
        write_all(self._file, [encode_mark(self._stamp(), self.end)], self.end)
        self.marked = self.synced

    def finish(self) -> None:
        """Make the whole segment durable, and a mark that says so. Raises OSError."""
        if self.synced < self.end:
            self.sync()
        self.mark()
        self.sync()

    def _stamp(self) -> Stamp:
        return Stamp(self.segment_id, self._nonce, self.synced)


class JournalStats:
    """Counters, written only by the journal thread."""

    __slots__ = ("bytes_appended", "commit_times", "commits", "entries_appended", "sync_ns_max", "sync_times")

    def __init__(self) -> None:
        self.bytes_appended = 0
        self.entries_appended = 0
        self.commits = 0
        self.commit_times = Durations()  # each a write and a sync
        self.sync_times = Durations()
        self.sync_ns_max = 0


class Journal:
    """The journal thread and its queue."""

    def __init__(
        self,
        *,
        limits: LogLimits,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        roll: Callable[[SegmentWriter | None], SegmentWriter],
        committed: Callable[[SegmentWriter, list[Placed]], None],
    ) -> None:
        """Create the thread; `start` starts it.

        `roll(full)` returns the next segment to write, and may raise OSError. `committed` is called with durable
        blocks, on the journal thread, before their `done` is posted.
        """
        self._limits = limits
        self._clock = clock
        self._post = post
        self._roll = roll
        self._committed = committed
        self._queue = AppendQueue()
        self._stopping = False
        self._ended = False
        self._writer: SegmentWriter | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)
        self._commit_began_ns: int | None = None
        self.stats = JournalStats()
        self.failure: str | None = None
        self.queued_bytes = 0  # Changed on the loop only: append adds, done subtracts.

    def start(self) -> None:
        self._thread.start()

    def append(self, run: AppendRun) -> None:
        """Queue a run. Loop only."""
        self.queued_bytes += len(run.data)
        self._queue.put(run)

    def close(self) -> None:
        """Write queued runs, then end the thread."""
        self._queue.close()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._run()

    def died(self) -> bool:
        """Return whether the thread ended unexpectedly: no more appends are answered."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._ended

    def stalled_ns(self) -> int:
        """Return the duration of the current commit so far; 0 when there is none."""
        began_ns = self._commit_began_ns
        return 0 if began_ns is None else self._clock.monotonic_ns() - began_ns

    def commit_queued(self) -> None:
        """Write queued runs on the calling thread; only for a journal that was not started."""
        while not self._queue.empty:
            self._step()

    def _run(self) -> None:
        while not self._stopping:
            self._step()
        if self.failure is None:
            self._attempt(self._finish)
        self._ended = True

    def _step(self) -> None:
        runs = self._gather()
        if self.failure is not None:
            self._settle(runs, StorageReadOnly(self.failure))
        elif self._attempt(self._commit, runs):
            self._settle(runs, None)
            self._attempt(self._rest)
        else:
            self._settle(runs, PersistenceFailed(f"the entries were not stored: {self.failure}"))

    def _gather(self) -> list[AppendRun]:
        """Wait for a run, then take more runs for the same segment and commit."""
        runs = self._queue.gather(self._room_of)
        self._stopping = not runs
        return runs

    def _room_of(self, first: AppendRun) -> int:
        """Return how many bytes of blocks a commit that starts with this run may have."""
        room = min(self._limits.commit_bytes_max, self._limits.segment_bytes - HEADER_BYTES)
        if self._writer is not None and self._writer.fits(first.block_bytes):
            room = min(room, self._writer.size - self._writer.end - HEADER_BYTES)
        return room

    def _attempt(self, step: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Run a step; if it fails, become read-only.

        Also after a bug the thread goes on, to answer appends with errors.
        """
        try:
            step(*args, **kwargs)
        except OSError as error:
            self.failure = f"{error.strerror or error} (errno {error.errno})"
        except Exception as error:
            log.exception("the journal met an error of its own")
            self.failure = f"internal error: {error!r}"
        if self.failure is None:
            return True
        self._commit_began_ns = None
        log.error("the entry log is read-only from now on: %s", self.failure)
        return False

    def _commit(self, runs: list[AppendRun]) -> None:
        """Make one group durable and readable. Raises OSError."""
        for run in runs:
            if run.groups:
                break
        else:
            return
        began_ns = self._commit_began_ns = self._clock.monotonic_ns()
        writer = self._writer_for(runs[0].block_bytes)
        placed = writer.write(runs)
        if not self._limits.relaxed:
            self._sync(writer)
        stats = self.stats
        stats.commits += 1
        stats.bytes_appended += writer.end - placed[0].offset
        for block, _, _ in placed:
            stats.entries_appended += len(block.offsets)
        self._committed(writer, placed)
        self._commit_began_ns = None
        stats.commit_times.observe(self._clock.monotonic_ns() - began_ns)

    def _writer_for(self, block_size: int) -> SegmentWriter:
        """Return the segment for the next block, and finish one that has no room for it."""
        writer = self._writer
        if writer is None or not writer.fits(block_size):
            if writer is not None:
                writer.finish()
            writer = self._writer = self._roll(writer)
        return writer

    def _sync(self, writer: SegmentWriter) -> None:
        before_ns = self._clock.monotonic_ns()
        writer.sync()
        took_ns = self._clock.monotonic_ns() - before_ns
        self.stats.sync_times.observe(took_ns)
        self.stats.sync_ns_max = max(self.stats.sync_ns_max, took_ns)

    def _rest(self) -> None:
        """Write a mark before waiting for more runs: after a kill it shows exactly which blocks were acknowledged."""
        writer = self._writer
        if self._queue.empty and writer is not None and writer.marked < writer.synced:
            writer.mark()

    def _finish(self) -> None:
        """Finish the log so that the next start knows that all of it is durable."""
        writer = self._writer
        if writer is not None and writer.end:
            writer.finish()

    def _settle(self, runs: list[AppendRun], error: PenstockError | None) -> None:
        if runs:
            self._post(partial(self._tell, runs, error))

    def _tell(self, runs: list[AppendRun], error: PenstockError | None) -> None:
        """On the loop: call `done` of each run."""
        for run in runs:
            self.queued_bytes -= len(run.data)
            try:
                run.done(run, error)
            except Exception:  # A bug in one callback must not keep the others from being called.
                log.exception("a completed append could not be handled")
