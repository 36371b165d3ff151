# SPDX-License-Identifier: Apache-2.0
"""What has come and gone in one namespace, kept once for all lists of it, which read it when they can.

Why: six hundred watchers by patterns of their own make each topic that comes dear. Compared with all patterns in the
turn in which it comes, a partitioned topic of a thousand partitions would hold the loop for seconds; noted for each
list, and told to nobody because the clients do not read, twenty thousand topics would take a gigabyte.
Where: `shared_listings` makes one for each namespace of which there is a list.

A list that is too far behind finds that its news is gone, and gathers anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Generator

    from penstock.broker.topics.feed import TopicEvent, TopicFeed
    from penstock.net.loop_share import LoopShare

# News beyond this is forgotten, read or not: about 200 bytes each.
NEWS_MAX: Final = 2_000
# A topic is compared with a pattern in 3 to 15 microseconds.
COMPARED_PER_STEP: Final = 30


class Reader(Protocol):
    """A list."""

    def wants_news(self) -> bool:
        """Whether there is some that it has not read, and somebody to tell it to."""

    def read_some(self) -> int:
        """Read a part of it; returns how many topics that was."""


class NamespaceNews:
    """Events by number, those that nobody needs any more forgotten."""

    __slots__ = ("_events", "_loop", "_readers", "_share", "_spreading", "_stop_hearing", "first")

    def __init__(self, feed: TopicFeed, namespace: str, share: LoopShare, loop: asyncio.AbstractEventLoop) -> None:
        self.first = feed.told  # number of the first event that is kept; numbers of earlier news were lower
        self._events: deque[TopicEvent] = deque()
        self._readers: dict[Reader, None] = {}
        self._share = share
        self._loop = loop
        self._spreading: asyncio.Task[None] | None = None
        self._stop_hearing = feed.listen(namespace, self._hear)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def told(self) -> int:
        """Number of the next event."""
        return self.first + len(self._events)

    @property
    def is_read(self) -> bool:
        """Whether any list reads it."""
        return bool(self._readers)

    def attach(self, reader: Reader) -> None:
        """Let a list read when something comes."""
        self._readers[reader] = None

    def detach(self, reader: Reader) -> None:
        """It is read no more by this list."""
        self._readers.pop(reader, None)

    def stop(self) -> None:
        """Nobody needs it any more."""
        self._stop_hearing()
        if self._spreading is not None:
            self._spreading.cancel()

    def since(self, number: int, count: int) -> list[TopicEvent]:
        """At most so many events from this one on, which must be there."""
        assert number >= self.first, "that is forgotten"
        return list(islice(self._events, number - self.first, number - self.first + count))

    def _hear(self, event: TopicEvent) -> None:
        self._events.append(event)
        if len(self._events) > NEWS_MAX:
            self._events.popleft()
            self.first += 1
        if self._spreading is None or self._spreading.done():
            self._spreading = self._loop.create_task(self._spread())

    async def _spread(self) -> None:
        while any(reader.wants_news() for reader in self._readers):
            await self._share.run(self._round())
            await asyncio.sleep(0)

    def _round(self) -> Generator[None, int, None]:
        """Each list that wants to reads some."""
        compared = 0
        for reader in list(self._readers):
            if reader in self._readers and reader.wants_news():
                compared += reader.read_some()
                if compared >= COMPARED_PER_STEP:
                    compared = 0
                    yield
