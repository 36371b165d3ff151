# SPDX-License-Identifier: Apache-2.0
"""Journal: the thread that writes runs of entries to the log and says when they are durable.

Why a thread: a sync takes milliseconds in which the event loop can decode the next reads. Why groups: everything that
queued up during one sync shares the next one.

    append (loop) → lanes → gather → one gathered write → one sync → index → post → done(run, None), in order (loop)

A failure is final. After a write or a sync went wrong nobody knows what is on the disk, so the journal answers this and
every later run with an error and writes nothing more until the process was restarted and recovered what is there. A
sync is never tried again on the same file: the kernel forgets the error once it has told it, and would then claim
success for pages it dropped.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.errors import PersistenceFailed, StorageReadOnly
from penstock.storage.append_queue import AppendQueue
from penstock.storage.files import write_all
from penstock.storage.records import HEADER_BYTES, Stamp, encode_block, encode_mark
from penstock.storage.runs import AppendRun, Block, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.storage.limits import LogLimits
    from penstock.storage.segment import OpenSegment

__all__ = ["AppendRun", "Journal", "JournalStats", "Placed", "SegmentWriter"]

log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """A block and where it was written."""

    block: Block
    offset: int
    bytes: int


class SegmentWriter:
    """The open end of the log: one segment, written from its beginning until it is full."""

    def __init__(self, opened: OpenSegment, *, segment_id: int, nonce: int, size: int) -> None:
        self.opened = opened
        self._file = opened.file
        self.segment_id = segment_id
        self.size = size
        self.end = 0  # Written up to here ...
        self.synced = 0  # ... durable up to here ...
        self.marked = 0  # ... and said so up to here.
        self._nonce = nonce

    def fits(self, block_size: int) -> bool:
        """Say whether a block of this size has room here, and the last mark behind it."""
        return self.end + block_size + HEADER_BYTES <= self.size

    def write(self, runs: Sequence[AppendRun]) -> list[Placed]:
        """Write `runs` behind one another in one gathered write. Raises OSError."""
        buffers: list[Buffer] = []
        placed = []
        stamp, offset = self._stamp(), self.end
        for block in blocks(runs):
            front, back = encode_block(stamp, offset, *block)
            buffers += (front, *block.data, back)
            size = 2 * len(front) + sum(map(len, block.data))
            placed.append(Placed(block, offset, size))
            offset += size
        write_all(self._file, buffers, self.end)
        self.end = offset
        return placed

    def sync(self) -> None:
        """Make what was written durable. Raises OSError: then never call it again."""
        self._file.sync()
        self.synced = self.end

    def mark(self) -> None:
        """Leave word that everything here is durable, where the next block will be written over it."""
        write_all(self._file, [encode_mark(self._stamp(), self.end)], self.end)
        self.marked = self.synced

    def finish(self) -> None:
        """Make all of the segment durable, and leave word of it that is durable too. Raises OSError."""
        if self.synced < self.end:
            self.sync()
        self.mark()
        self.sync()

    def _stamp(self) -> Stamp:
        return Stamp(self.segment_id, self._nonce, self.synced)


class JournalStats:
    """Plain counters, written by the journal thread only."""

    __slots__ = ("bytes_appended", "commits", "entries_appended", "sync_ns_max", "sync_ns_total")

    def __init__(self) -> None:
        self.bytes_appended = 0
        self.entries_appended = 0
        self.commits = 0
        self.sync_ns_total = 0
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
        """Prepare; `start` begins.

        `roll(full)` gives the next segment to write, and may raise OSError. `committed` learns of durable blocks, on
        the journal thread, before their `done` is posted.
        """
        self._limits = limits
        self._clock = clock
        self._post = post
        self._roll = roll
        self._committed = committed
        self._lanes = AppendQueue()
        self._stopping = False
        self._ended = False
        self._writer: SegmentWriter | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-journal", daemon=True)
        self._commit_began_ns: int | None = None
        self.stats = JournalStats()
        self.failure: str | None = None
        self.queued_bytes = 0  # Counted on the loop only: added to by append, taken from by done.

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def append(self, run: AppendRun) -> None:
        """Queue a run. Loop only."""
        self.queued_bytes += len(run.data)
        self._lanes.put(run)

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._lanes.close()
        if self._thread.ident is not None:
            self._thread.join()
        else:
            self._run()

    def died(self) -> bool:
        """Say whether the thread ended without being asked to: nobody answers appends any more."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._ended

    def stalled_ns(self) -> int:
        """Return how long the commit underway has taken; 0 when there is none."""
        began_ns = self._commit_began_ns
        return 0 if began_ns is None else self._clock.monotonic_ns() - began_ns

    def commit_queued(self) -> None:
        """Write what is queued on the calling thread; only for a journal that was not started."""
        while not self._lanes.empty:
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
        elif self._attempt(partial(self._commit, runs)):
            self._settle(runs, None)
            self._attempt(self._rest)
        else:
            self._settle(runs, PersistenceFailed(f"the entries were not stored: {self.failure}"))

    def _gather(self) -> list[AppendRun]:
        """Wait for a run, then take what else waits and fits into the same segment and commit."""
        runs = self._lanes.gather(self._room_of)
        self._stopping = not runs
        return runs

    def _room_of(self, first: AppendRun) -> int:
        """Return how many bytes of blocks a commit may have that begins with this run."""
        room = min(self._limits.commit_bytes_max, self._limits.segment_bytes - HEADER_BYTES)
        if self._writer is not None and self._writer.fits(first.block_bytes):
            room = min(room, self._writer.size - self._writer.end - HEADER_BYTES)
        return room

    def _attempt(self, step: Callable[[], None]) -> bool:
        """Take a step; if it fails, become read-only. The thread outlives its own bugs: somebody has to answer."""
        try:
            step()
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
        if not any(run.groups for run in runs):
            return
        self._commit_began_ns = self._clock.monotonic_ns()
        writer = self._writer_for(runs[0].block_bytes)
        placed = writer.write(runs)
        if not self._limits.relaxed:
            self._sync(writer)
        self.stats.commits += 1
        self.stats.bytes_appended += writer.end - placed[0].offset
        self.stats.entries_appended += sum(len(block.offsets) for block, _, _ in placed)
        self._committed(writer, placed)
        self._commit_began_ns = None

    def _writer_for(self, block_size: int) -> SegmentWriter:
        """Return the segment that the next block goes to, and finish the one that has no room for it."""
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
        self.stats.sync_ns_total += took_ns
        self.stats.sync_ns_max = max(self.stats.sync_ns_max, took_ns)

    def _rest(self) -> None:
        """Before waiting for more, leave a mark: after a kill it tells what was acknowledged to the byte."""
        writer = self._writer
        if self._lanes.empty and writer is not None and writer.marked < writer.synced:
            writer.mark()

    def _finish(self) -> None:
        """Leave the log so that the next start knows that all of it is durable."""
        writer = self._writer
        if writer is not None and writer.end:
            writer.finish()

    def _settle(self, runs: list[AppendRun], error: PenstockError | None) -> None:
        if runs:
            self._post(partial(self._tell, runs, error))

    def _tell(self, runs: list[AppendRun], error: PenstockError | None) -> None:
        """On the loop: tell each run's owner how it went."""
        for run in runs:
            self.queued_bytes -= len(run.data)
            try:
                run.done(run, error)
            except Exception:  # One owner's bug must not keep the others from hearing.
                log.exception("a completed append could not be handled")
