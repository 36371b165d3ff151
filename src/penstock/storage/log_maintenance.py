# SPDX-License-Identifier: Apache-2.0
"""The thread that maintains the log without delaying publishers.

It stores the index of sealed segments, applies trims, and recycles segments without live entries. It empties segments
with few live entries by appending these again, and prepares the next segment before the journal needs it.

The order makes this safe: an index row is removed before its segment is recycled, and the old place of an entry is
removed only after its copy is durable.
"""

from __future__ import annotations

import errno
import logging
import threading
from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.units import MIB
from penstock.storage.index import IndexDamaged, at_or_after
from penstock.storage.log_index import Plan
from penstock.storage.results import Wanted
from penstock.storage.runs import AppendRun, run_of_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.errors import PenstockError
    from penstock.storage.damage import KnownDamage
    from penstock.storage.files import File
    from penstock.storage.keeping import Keeping
    from penstock.storage.limits import LogLimits
    from penstock.storage.log_index import LogIndex
    from penstock.storage.reader import Reader
    from penstock.storage.results import Batch
    from penstock.storage.segment import SegmentStore

log = logging.getLogger(__name__)

# Trims come whenever a cursor moves; applied together they cost one transaction.
_PAUSE_S: Final = 0.5
# While the disk has no room, it is asked so often whether it has some again.
_ASK_FOR_ROOM_S: Final = 0.5
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# Entries are moved in runs of this size, one in the queue at a time: publishers wait for at most one.
_MOVE_RUN_BYTES: Final = 1 * MIB


class LogMaintenance:
    """Maintains the log, on a thread of its own or whenever `maintain` is called."""

    def __init__(
        self,
        *,
        store: SegmentStore,
        index: LogIndex,
        reader: Reader,
        limits: LogLimits,
        damage: KnownDamage,
        keeping: Keeping,
        append: Callable[[AppendRun], None],
        mend: Callable[[IndexDamaged], None],
        wants_next: Callable[[], bool],
        ran_out: Callable[[], None],
    ) -> None:
        """Create the thread; `start` starts it."""
        self._store = store
        self._index = index
        self._reader = reader
        self._limits = limits
        self._keeping = keeping
        self._append = append
        self._mend = mend
        self._wants_next = wants_next
        self._ran_out = ran_out  # called when `no_room` begins: a fast publisher fills the rest within milliseconds
        self.busy = threading.Lock()  # Held during housework: segments come and go.
        self._wake = threading.Event()
        self._settled = threading.Condition()  # A moved run was settled, or we are to stop.
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-log-maintenance", daemon=True)
        self._damage = damage
        self.moved_bytes = 0
        self.recycled = 0
        self.no_room: str | None = None  # Why the next segment could not be prepared, until there is room for it.

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Tell the thread that there is something to do."""
        self._wake.set()

    def close(self) -> None:
        """Stop the thread, even during a move."""
        self._stopping.set()
        self._wake.set()
        with self._settled:
            self._settled.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(None if self.no_room is None else _ASK_FOR_ROOM_S)
            self._wake.clear()
            try:
                self.maintain()
            except (OSError, apsw.Error) as error:
                # Nothing is lost: what was not done stays to be done. A full disk is the journal's to report.
                log.warning("housekeeping of the entry log was put off: %s", error)
            except Exception:
                log.exception("housekeeping of the entry log met an error of its own")
            self._stopping.wait(_PAUSE_S)

    def maintain(self) -> None:
        """Do the maintenance now. Raises OSError, apsw.Error; then the rest is done next time."""
        try:
            with self.busy:
                self._tidy()
        except IndexDamaged as error:
            self._mend(error)

    def reclaim(self) -> None:
        """Store what was trimmed and dropped, and recycle empty segments, without preparing for appends.

        Raises OSError, apsw.Error.
        """
        with self.busy:
            self._reclaim()

    def _tidy(self) -> None:
        try:
            self._reclaim()
        finally:  # A full disk may keep the index from being stored, too.
            self._prepare()
        if self.no_room is None:  # Otherwise what is left of the segment is for entries that were accepted already.
            self._move_scattered()

    def _prepare(self) -> None:
        """Prepare the next segment, if it is wanted; on a full disk, note that. Raises other errors of the disk.

        The state ends when there is more room than it began with, so that it does not begin again at once.
        """
        try:
            if self.no_room is not None:
                self._store.probe()
            elif not self._wants_next():
                return
            self._store.prepare()
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            self._note_no_room(error)
        else:
            if self.no_room is not None:
                log.warning("there is room for the next segment again")
            self.no_room = None

    def next_segment(self) -> int:
        """On the journal thread: take the next segment; wait while the disk has no room for it.

        Nothing has been written yet, so that what was accepted is stored when there is room. Raises other errors of the
        disk; and this one when the log closes, or has no thread.
        """
        while True:
            try:
                return self._store.take()
            except OSError as error:
                if error.errno not in _NO_ROOM or self._thread.ident is None:
                    raise
                self._note_no_room(error)
                if self._stopping.wait(_ASK_FOR_ROOM_S):
                    raise

    def _note_no_room(self, error: OSError) -> None:
        with self._settled:  # By this thread or by the journal's.
            begins = self.no_room is None
            self.no_room = f"the disk has no room for the next segment: {error.strerror}"
            self._settled.notify_all()
        if begins:
            log.error("there is no room for the next segment: publishers are asked to try again later")
            self._ran_out()
            self.wake()  # It asks for room from now on.

    def _reclaim(self) -> None:
        self._index.store_sealed()
        self._index.store_trims()
        self._index.sealed.add_damage(self._damage.take_unstored())
        self._recycle_dead()

    def _recycle_dead(self) -> None:
        rows = self._index.sealed.segments
        for segment_id in [segment_id for segment_id, row in rows.items() if row.live_bytes <= 0]:
            self._recycle(segment_id)

    def _recycle(self, segment_id: int) -> None:
        with self._keeping.recycling() as allowed:
            if allowed:
                self._index.remove_segment(segment_id)
                self._damage.forget(segment_id)
                self._store.recycle(segment_id)
                self.recycled += 1

    # --------------------------------------------------------------------------------------------------------- moving

    def _move_scattered(self) -> None:
        """Empty the segments of which too little is live."""
        damaged = self._damage.segments()  # Left as they are, for inspection.
        below = self._limits.move_below_ratio * self._limits.segment_bytes
        sparse = [
            segment_id
            for segment_id, row in self._index.sealed.segments.items()
            if row.live_bytes < below and segment_id not in damaged and segment_id not in self._store.lost
        ]
        for segment_id in sparse:
            # While segments are kept, a move would need room and make none.
            if self._stopping.is_set() or self._keeping.active or not self._move(segment_id):
                return
            self._recycle(segment_id)

    def _move(self, segment_id: int) -> bool:
        """Append the live entries of a segment again; return whether all copies are durable. Raises OSError."""
        with self._store.borrow(segment_id) as file:
            if file is None:
                return False
            # First whether all of it can be read: a move that fails half-way, again and again, would fill the disk.
            for _ in self._live(file, segment_id):
                pass
            pending: list[Batch] = []
            for batch in self._live(file, segment_id):
                pending.append(batch)
                if sum(map(_size, pending)) >= _MOVE_RUN_BYTES:
                    if not self._append_again(pending):
                        return False
                    pending = []
            if pending and not self._append_again(pending):
                return False
        return segment_id not in self._damage.segments()  # What could not be read was not moved.

    def _live(self, file: File, segment_id: int) -> Iterator[Batch]:
        """Yield the entries of a segment that were not trimmed. Raises OSError, IndexDamaged."""
        for stretch in self._index.sealed.of_segment(segment_id):
            entry_id = max(stretch.first_entry, self._index.first_wanted(stretch.ledger_id))
            while entry_id <= stretch.last_entry:
                spans = list(stretch.spans[at_or_after(stretch.spans, entry_id) :])
                wanted = Wanted(stretch.ledger_id, entry_id, _MOVE_RUN_BYTES, stretch.last_entry + 1 - entry_id)
                self._reader.read_plan(file, Plan(segment_id, spans), wanted)
                yield from wanted.result.batches
                if wanted.entry_id == entry_id:
                    raise IndexDamaged(f"segment {segment_id} does not hold entry {entry_id} of {stretch.ledger_id}")
                entry_id = wanted.entry_id

    def _append_again(self, batches: list[Batch]) -> bool:
        """Append entries under their ids, and wait until they are durable."""
        outcome: list[PenstockError | None] = []

        def done(_run: AppendRun, error: PenstockError | None) -> None:
            with self._settled:
                outcome.append(error)
                self._settled.notify_all()

        run = run_of_batches(batches, done)
        self._append(run)
        with self._settled:
            # The journal may wait for room, which this thread makes.
            self._settled.wait_for(lambda: outcome or self._stopping.is_set() or self.no_room is not None)
        if not outcome or outcome[0] is not None:
            return False
        self.moved_bytes += len(run.data)
        self._stopping.wait(len(run.data) / self._limits.move_bytes_per_s)
        return True


def _size(batch: Batch) -> int:
    return sum(batch.lengths)
