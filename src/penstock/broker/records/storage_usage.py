# SPDX-License-Identifier: Apache-2.0
"""How much namespaces store, over time: byte-hours of all their topics on this broker, loaded or not.

Once a minute the log's index is asked for the size of each topic. A size counts for the time since it was asked for
before: what is published and trimmed in between is not seen. Counters are those of this run; what a namespace stores
while the broker is not running is not counted.

Where: `usage`, which records them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.broker.log_reads import LogReads
    from penstock.storage.entry_log import EntryLog

MS_PER_HOUR: Final = 3_600_000
# Not more often, also if records are written every second.
EVERY_MS: Final = 60_000
ASKED_PER_TURN: Final = 500


class StoredTopic(NamedTuple):
    """A persistent topic of this broker.

    Attributes:
        first_entry_id: the first entry that is kept.
    """

    namespace: str
    ledger_id: int
    first_entry_id: int


class Stored:
    """Storage of one namespace.

    Attributes:
        since_ms: when `byte_ms` was 0.
        bytes: when they were asked for last.
        byte_ms: bytes, times milliseconds.
    """

    __slots__ = ("byte_ms", "bytes", "recorded", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.bytes = 0
        self.byte_ms = 0
        self.recorded: tuple[int, int] | None = None

    @property
    def byte_hours(self) -> int:
        return self.byte_ms // MS_PER_HOUR


class StorageUsage:
    """Counts what namespaces store. All methods are called on the event loop."""

    def __init__(self, entry_log: EntryLog, reads: LogReads, new_since_ms: Callable[[], int], now_ms: int) -> None:
        """Args: new_since_ms: returns unique times; now_ms: when counting begins."""
        self._log = entry_log
        self._reads = reads
        self._new_since_ms = new_since_ms
        self._until_ms = now_ms
        self._namespaces: dict[str, Stored] = {}

    def is_due(self, now_ms: int) -> bool:
        return now_ms - self._until_ms >= EVERY_MS

    async def add(self, topics: Iterable[StoredTopic], now_ms: int) -> None:
        """Count what topics store, since the last call. Raises ReadFailed."""
        sizes: dict[str, int] = {}
        for some in _in_parts(topics):
            found = await self._reads.in_thread(lambda some=some: self._sizes(some))  # type: ignore[misc]
            for namespace, nbytes in found.items():
                sizes[namespace] = sizes.get(namespace, 0) + nbytes
            await asyncio.sleep(0)
        elapsed_ms, self._until_ms = max(0, now_ms - self._until_ms), now_ms
        for namespace in sizes.keys() - self._namespaces.keys():
            self._namespaces[namespace] = Stored(self._new_since_ms())
        for namespace, stored in list(self._namespaces.items()):
            stored.bytes = sizes.get(namespace, 0)
            stored.byte_ms += stored.bytes * elapsed_ms
            if not stored.bytes and stored.recorded == (0, stored.byte_hours):
                del self._namespaces[namespace]

    def _sizes(self, topics: Sequence[StoredTopic]) -> Mapping[str, int]:
        sizes: dict[str, int] = {}
        for one in topics:
            (nbytes,) = self._log.bytes_from(one.ledger_id, [one.first_entry_id])
            if nbytes:
                sizes[one.namespace] = sizes.get(one.namespace, 0) + nbytes
        return sizes

    def changed(self) -> Iterator[tuple[str, Stored]]:
        """Yield the namespaces that were not recorded like this; `recorded` says that they are."""
        for namespace, stored in self._namespaces.items():
            if stored.recorded != (stored.bytes, stored.byte_hours):
                yield namespace, stored


def _in_parts(topics: Iterable[StoredTopic]) -> Iterator[list[StoredTopic]]:
    some: list[StoredTopic] = []
    for one in topics:
        some.append(one)
        if len(some) == ASKED_PER_TURN:
            yield some
            some = []
    if some:
        yield some
