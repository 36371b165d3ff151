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

import threading
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.runs import AppendRun

# Larger runs are those of clients that publish in bulk: a read of a connection brings up to 512 KiB.
SMALL_BYTES_MAX: Final = 64 * KIB


class AppendQueue:
    """Waiting runs. One thread puts them and another gathers them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._small: deque[AppendRun] = deque()
        self._large: deque[tuple[AppendRun, int]] = deque()  # with the number of small runs that go first
        self._small_put = 0
        self._small_taken = 0
        self._ledgers: Counter[int] = Counter()  # of the runs in the queue of the large ones
        self._owners: Counter[int] = Counter()
        self._passed_over = False  # large runs waited at the last commit, and none was in it

    @property
    def empty(self) -> bool:
        return not self._small and not self._large

    def put(self, run: AppendRun) -> None:
        with self._changed:
            if self._may_go_first(run):
                self._small.append(run)
                self._small_put += 1
            else:
                self._large.append((run, self._small_put))
                self._ledgers.update({group[0] for group in run.groups})
                if run.owner is not None:
                    self._owners[run.owner] += 1
            self._changed.notify()

    def close(self) -> None:
        """Accept no more runs: `gather` returns the rest, then an empty list."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def gather(self, room_of: Callable[[AppendRun], int]) -> list[AppendRun]:
        """Wait for a run, then take further runs that fit into the same commit; an empty list is the end.

        `room_of(first)` returns how many bytes of blocks a commit that starts with this run may have.
        """
        with self._changed:
            while self.empty and not self._closed:
                self._changed.wait()
            if self.empty:
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


def _take_one(counts: Counter[int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
