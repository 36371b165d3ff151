# SPDX-License-Identifier: Apache-2.0
"""The queue of runs for the journal: small runs do not wait behind large ones of other clients and topics.

Why: publishers of large frames can fill all of the request memory with runs that wait for the disk. In one queue, a
message of a kilobyte would wait until all of them are written, which takes as long as that memory is large. Where: the
loop puts runs, the journal thread gathers them for a commit.

Small runs have a queue of their own. But a small run goes to the large runs' queue if that holds a run of the same
connection or ledger: entries of a ledger and receipts of a connection keep their order. A large run waits for all small
ones that were put before it. While both kinds wait, half of a commit is for small runs; a large run that found no room
starts the next commit. So no run waits forever, and a small run waits for the current commit and at most one more, as
long as the small runs together do not fill half of each.
"""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.runs import AppendRun

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
