# SPDX-License-Identifier: Apache-2.0
"""Copies ledgers from one entry log to another, entry by entry, under the same ids.

Why not whole segments: a segment holds entries of all topics of its broker, and each of its blocks names the segment.

- Entries are read as a consumer's are, so each is checked before it is written again.
- A damaged entry is copied as a placeholder, which is damage in the other log too: it is named and counted there, its
  id is never used again, and readers skip it as before.
- Entries that are missing, because a file of the log is, may come back with the file: such a ledger is not copied.
- A ledger is copied whole or not at all: what an earlier copy has left is dropped first.

Memory does not depend on the size of a ledger: one run is read at a time, and a few of them wait for their commit.

Where: `processes.moving` moves topics between brokers. Both logs are opened without `background`, so that everything
happens on the calling thread. All methods block.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import PersistenceFailed
from penstock.core.units import MIB
from penstock.storage.blocks import HEADER_BYTES
from penstock.storage.index import IndexDamaged
from penstock.storage.runs import AppendRun, run_of_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from penstock.core.errors import PenstockError
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.limits import LogLimits
    from penstock.storage.results import Batch, ReadResult

    Done = Callable[[AppendRun, PenstockError | None], None]

_RUN_BYTES: Final = 1 * MIB
# The smallest entries have tables larger than themselves.
_RUN_ENTRIES_MAX: Final = 20_000
_PLACEHOLDERS_MAX: Final = 1_000
# No entry has so few bytes, so it fits no seal.
_PLACEHOLDER: Final = b"\0"


class Ledger(NamedTuple):
    """A ledger to be copied."""

    ledger_id: int
    first_entry: int  # entries before are deleted


class LedgerCopy:
    """A copy of some ledgers of `source` to `target`. Ends with `finish`, which makes it durable."""

    def __init__(self, source: EntryLog, target: EntryLog, limits: LogLimits) -> None:
        """Args: limits: of the target."""
        self._source = source
        self._target = target
        self._run_bytes = min(_RUN_BYTES, limits.run_bytes_max // 2)
        self._segment_bytes = limits.segment_bytes
        self._waiting_bytes = 0
        self._waiting_bytes_max = limits.commit_bytes_max
        self._error: PenstockError | None = None
        self._placeholders: list[tuple[int, int, int]] = []  # groups: ledger id, first entry, count
        self.bytes = 0
        self.lost = 0  # entries that were copied as placeholders

    def run(self, ledgers: Sequence[Ledger]) -> None:
        """Copy ledgers. Raises PersistenceFailed, ReadFailed, OSError."""
        try:
            self._prepare(ledgers)
            for ledger in ledgers:
                self._copy(ledger)
            self._commit()
        except IndexDamaged as error:
            raise PersistenceFailed(f"the index of the entry log cannot be built: {error}") from error

    def finish(self) -> None:
        """Close the target: everything copied is durable then. Raises PersistenceFailed, ReadFailed."""
        try:
            for ledger_id, first, count in self._placeholders:
                # Reading names the damage in this log, which remembers it.
                self._target.read(ledger_id, first, bytes_max=count, entries_max=count)
        finally:
            self._target.close()
        reason = self._target.health.read_only
        if reason is not None:
            raise PersistenceFailed(f"the copied entries could not be stored: {reason}")

    def _prepare(self, ledgers: Sequence[Ledger]) -> None:
        """Drop what an earlier copy has left, and note where the ledgers begin."""
        target = self._target
        left = target.ledgers()
        known = (one.ledger_id for one in ledgers if one.ledger_id in left or target.last_entry(one.ledger_id) >= 0)
        drop(target, list(known))
        for ledger in ledgers:
            # Also says that the ids below were used, perhaps all that the ledger ever had.
            target.trim(ledger.ledger_id, self._first(ledger))
        target.reclaim()

    def _first(self, ledger: Ledger) -> int:
        return max(ledger.first_entry, self._source.first_entry(ledger.ledger_id))

    def _copy(self, ledger: Ledger) -> None:
        ledger_id = ledger.ledger_id
        entry_id, end = self._first(ledger), self._source.last_entry(ledger_id) + 1
        while entry_id < end:
            found = self._source.read(ledger_id, entry_id, bytes_max=self._run_bytes, entries_max=_RUN_ENTRIES_MAX)
            entry_id = self._append(ledger_id, entry_id, found)

    def _append(self, ledger_id: int, entry_id: int, found: ReadResult) -> int:
        """Append what one read found; returns the entry to go on with."""
        for batches, lost in _in_order(found):
            if lost:
                first, stop = lost[0], lost[-1] + 1
                runs = list(_placeholder_runs(ledger_id, first, stop, self._done))
                self._placeholders += [run.groups[0] for run in runs]
                self.lost += stop - first
            else:
                first, stop = batches[0].entry_ids[0], batches[-1].entry_ids[-1] + 1
                runs = [run_of_batches(batches, self._done)]
            if first != entry_id:
                break
            entry_id = stop
            for run in runs:
                if run.block_bytes + HEADER_BYTES > self._segment_bytes:
                    raise PersistenceFailed(
                        f"entries of {run.block_bytes} bytes, such as {ledger_id}:{first}, do not fit a segment of "
                        f"{self._segment_bytes} bytes; set maxMessageSize as it was when they were published"
                    )
                self._target.append(run)
                self._waiting_bytes += run.block_bytes
                self.bytes += len(run.data)
            if self._waiting_bytes >= self._waiting_bytes_max:
                self._commit()
        if entry_id != found.next_entry_id or not (found.batches or found.damaged):
            raise PersistenceFailed(f"entry {ledger_id}:{entry_id} is missing in the entry log")
        return entry_id

    def _commit(self) -> None:
        self._target.commit()
        self._waiting_bytes = 0
        if self._error is not None:
            raise PersistenceFailed(f"the entries could not be copied: {self._error}") from self._error

    def _done(self, _run: AppendRun, error: PenstockError | None) -> None:
        self._error = self._error or error


def drop(log: EntryLog, ledger_ids: Collection[int]) -> None:
    """Delete ledgers, so that they may be copied here again. Raises PersistenceFailed."""
    for ledger_id in ledger_ids:
        log.drop(ledger_id)
    if ledger_ids:
        log.commit()
        log.reclaim()


def _in_order(found: ReadResult) -> Iterator[tuple[list[Batch], list[int]]]:
    """Yield consecutive batches, or the ids of consecutive damaged entries, in the order of their ids."""
    found_at: list[tuple[int, int, Batch | None]] = [
        (batch.entry_ids[0], batch.entry_ids[-1] + 1, batch) for batch in found.batches
    ]
    found_at += [(entry_id, entry_id + 1, None) for _, entry_id in found.damaged]
    found_at.sort(key=itemgetter(0))
    start = 0
    for at, (_, end, batch) in enumerate(found_at, 1):
        following = found_at[at] if at < len(found_at) else None
        if following is not None and following[0] == end and (following[2] is None) == (batch is None):
            continue
        group, start = found_at[start:at], at
        batches = [one for _, _, one in group if one is not None]
        yield batches, [] if batches else [first for first, _, _ in group]


def _placeholder_runs(ledger_id: int, first: int, stop: int, done: Done) -> Iterator[AppendRun]:
    for begin in range(first, stop, _PLACEHOLDERS_MAX):
        count = min(stop - begin, _PLACEHOLDERS_MAX)
        yield AppendRun(
            groups=[(ledger_id, begin, count)],
            offsets=range(count),
            lengths=[len(_PLACEHOLDER)] * count,
            message_counts=None,
            data=_PLACEHOLDER * count,
            done=done,
            placeholders=True,
        )
