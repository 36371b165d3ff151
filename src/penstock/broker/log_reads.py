# SPDX-License-Identifier: Apache-2.0
"""Reads of the log in threads: the event loop never waits for a disk.

Where: parts of the broker that read entries, or measure them, are given the broker's `LogReads`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.units import NS_PER_S
from penstock.storage.journal import AppendRun
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.storage.entry_log import EntryLog, ReadResult

T = TypeVar("T")

READER_THREADS: Final = 2
# A search by time looks for a readable entry among this many; if there is none, it takes an earlier position, which
# loses nothing.
DAMAGED_PASSED_MAX: Final = 100
# Interval for trying unreadable data again, even if it is not requested.
UNREADABLE_CHECK_NS: Final = 2 * NS_PER_S


class Entries(Protocol):
    """A topic whose entries are searched."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def first_entry_id(self) -> int:
        """The first entry that is kept."""

    @property
    def last_entry_id(self) -> int:
        """The last durable entry."""


class LogReads:
    """Reads of one log. All methods are called on the event loop and read in a thread."""

    def __init__(self, log: EntryLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._threads = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="log-reader")
        self._unreadable_at_ns = 0  # when to try unreadable data again

    def read(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> asyncio.Future[ReadResult]:
        """Read entries, as `EntryLog.read`."""
        read = partial(
            self._log.read,
            ledger_id,
            entry_id,
            bytes_max=bytes_max,
            entries_max=entries_max,
            first_bytes_max=first_bytes_max,
        )
        return self._loop.run_in_executor(self._threads, read)

    def in_thread(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Run a read of several log calls in a reader thread."""
        return self._loop.run_in_executor(self._threads, read)

    def bytes_from(self, ledger_id: int, entry_ids: Sequence[int]) -> asyncio.Future[list[int]]:
        """For each entry, the total bytes of it and all later ones."""
        return self._loop.run_in_executor(self._threads, lambda: self._log.bytes_from(ledger_id, entry_ids))

    def entry_within(self, ledger_id: int, nbytes: int) -> asyncio.Future[int]:
        """The first entry for which it and all later ones take at most `nbytes`."""
        return self._loop.run_in_executor(self._threads, lambda: self._log.entry_within(ledger_id, nbytes))

    async def read_entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """One entry, with checksum as stored; None if the log does not have it."""
        result = await self.read(ledger_id, entry_id, bytes_max=1, entries_max=1)
        return _first_entry(result, entry_id)

    def about_entry(self, ledger_id: int, entry_id: int, tell: Callable[[bytes | None], T]) -> asyncio.Future[T]:
        """The result of `tell` for an entry (None if missing), called in the reader thread.

        For small results: the entry's bytes never reach the loop.
        """
        return self.in_thread(
            lambda: tell(_first_entry(self._log.read(ledger_id, entry_id, bytes_max=1, entries_max=1), entry_id))
        )

    async def first_published_since(self, entries: Entries, wall_ms: int) -> int:
        """The first entry with a publish time (ms since 1970) at or after this one; the one after the last if none.

        A binary search, because producers' clocks mostly agree; if they do not, the result is an entry close by.
        """
        low, high = entries.first_entry_id, entries.last_entry_id + 1
        while low < high:
            middle = (low + high) // 2
            entry_id, entry = await self._entry_from(entries.ledger_id, middle, high)
            if entry is not None and publish_time_of(entry) < wall_ms:
                low = entry_id + 1
            else:
                high = middle
        return low

    async def _entry_from(self, ledger_id: int, entry_id: int, stop: int) -> tuple[int, bytes | None]:
        """The first readable entry from here on, with its id: damaged and missing entries are skipped."""
        for _ in range(DAMAGED_PASSED_MAX):
            result = await self.read(ledger_id, entry_id, bytes_max=1, entries_max=1)
            if result.batches:
                entry_id = result.batches[0].entry_ids[0]
                return entry_id, _first_entry(result, entry_id) if entry_id < stop else None
            if not entry_id < result.next_entry_id < stop:
                break
            entry_id = result.next_entry_id
        return entry_id, None

    @property
    def appends_wait(self) -> bool:
        """Whether something was appended and is not answered yet."""
        return self._log.queued_bytes > 0

    def after_appends(self, action: Callable[[], None]) -> None:
        """Call back when everything appended before is durable or has failed."""
        barrier = AppendRun(
            groups=[], offsets=(), lengths=(), message_counts=None, data=b"", done=lambda _run, _error: action()
        )
        self._log.append(barrier)

    def settled(self) -> asyncio.Future[None]:
        """Done when everything appended before is durable and answered, or has failed."""
        done: asyncio.Future[None] = self._loop.create_future()

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        self.after_appends(finish)
        return done

    def try_unreadable(self, now_ns: int) -> None:
        """Try to read unreadable data again, for the health report."""
        if now_ns >= self._unreadable_at_ns and self._log.troubles():
            self._unreadable_at_ns = now_ns + UNREADABLE_CHECK_NS
            self.in_thread(self._log.try_again)

    def close(self) -> None:
        self._threads.shutdown(wait=True)


def publish_time_of(entry: bytes | None) -> int:
    """Return an entry's publish time, in ms since 1970; 0, older than all others, if it has none or is missing."""
    try:
        return 0 if entry is None else metadata.publish_time(entry)
    except ProtocolError:
        return 0


def _first_entry(result: ReadResult, entry_id: int) -> bytes | None:
    for batch in result.batches:
        if batch.entry_ids[0] == entry_id:
            start = batch.offsets[0]
            return bytes(batch.data[start : start + batch.lengths[0]])
    return None
