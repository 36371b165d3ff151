# SPDX-License-Identifier: Apache-2.0
"""Reads of single entries: for redelivery, and of delayed entries that are due.

Why per topic: a delayed message is due for all subscriptions at the same time. A subscription that asks while the same
entries are being read joins that read; later ones find the entries in the tail cache.
Where: `Redelivery` asks; a reader thread gathers.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.storage.sparse_reads import read_sparse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.broker.subscriptions.consumer import Reads
    from penstock.storage.entry_log import EntryLog, ReadResult
    from penstock.storage.results import Batch

# Entries gathered at a time: enough for a worthwhile write per consumer, and copied in about a millisecond.
ENTRIES_MAX: Final = 500
BYTES_MAX: Final = 512 * KIB


class ReplayReads:
    """The running reads of one ledger.

    Args:
        gathered: called with the entries, for the tail cache; other subscriptions may need them now.
    """

    __slots__ = ("_gathered", "_ledger_id", "_log", "_reads", "_under_way")

    def __init__(self, log: EntryLog, reads: Reads, ledger_id: int, gathered: Callable[[list[Batch]], None]) -> None:
        self._log = log
        self._reads = reads
        self._ledger_id = ledger_id
        self._gathered = gathered
        self._under_way: tuple[tuple[list[int], asyncio.Future[ReadResult]], ...] = ()

    def read(self, entry_ids: list[int], bytes_max: int = BYTES_MAX) -> asyncio.Future[ReadResult]:
        """Read these ascending entries, or join a read that has the first of them, perhaps not all others.

        The result takes at most `bytes_max` bytes; if the first entry alone is larger, it is reported as too large.
        """
        first = entry_ids[0]
        for ids, future in self._under_way:
            at = bisect_left(ids, first)
            if at < len(ids) and ids[at] == first:
                return future
        log, ledger_id = self._log, self._ledger_id

        def read(entry_id: int, count: int) -> ReadResult:
            return log.read(ledger_id, entry_id, bytes_max=bytes_max, entries_max=count, first_bytes_max=bytes_max)

        future = self._reads.in_thread(partial(read_sparse, read, ledger_id, entry_ids, bytes_max=bytes_max))
        self._under_way = (*self._under_way, (entry_ids, future))
        future.add_done_callback(self._done)
        return future

    def asked_for(self, future: asyncio.Future[ReadResult], entry_ids: list[int]) -> list[int]:
        """Return the entries that the read was asked for: a read tells only of these whether they exist."""
        asked = next((set(ids) for ids, one in self._under_way if one is future), set())
        return [one for one in entry_ids if one in asked]

    def _done(self, done: asyncio.Future[ReadResult]) -> None:
        self._under_way = tuple(read for read in self._under_way if read[1] is not done)
        if not done.cancelled() and done.exception() is None:
            self._gathered(done.result().batches)
