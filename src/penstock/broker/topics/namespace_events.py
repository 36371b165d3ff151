# SPDX-License-Identifier: Apache-2.0
"""Recent topic events of one namespace, kept once for all lists of it.

Why: six hundred watchers with different patterns make each new topic expensive. Matched against all patterns in one
turn, a partitioned topic with a thousand partitions would block the loop for seconds; queued per list, for clients that
do not read, twenty thousand topics would take a gigabyte.
Where: `shared_listings` makes one for each namespace with a list.

A list that is too far behind finds that its events were dropped, and gathers all names again.
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

# Events beyond this number are dropped even if not read: about 200 bytes each.
EVENTS_MAX: Final = 2_000
# Matching a topic against a pattern takes 3 to 15 microseconds.
COMPARED_PER_STEP: Final = 30


class Reader(Protocol):
    """A list that reads events."""

    def wants_events(self) -> bool:
        """Whether the list has unread events, and a watcher that can be notified."""

    def read_events(self) -> int:
        """Read some events; returns how many."""


class NamespaceEvents:
    """Numbered events; those that no list needs are dropped."""

    __slots__ = ("_events", "_loop", "_readers", "_share", "_spreading", "_stop_listening", "first")

    def __init__(self, feed: TopicFeed, namespace: str, share: LoopShare, loop: asyncio.AbstractEventLoop) -> None:
        self.first = feed.last_number  # number of the first kept event
        self._events: deque[TopicEvent] = deque()
        self._readers: dict[Reader, None] = {}
        self._share = share
        self._loop = loop
        self._spreading: asyncio.Task[None] | None = None
        self._stop_listening = feed.listen(namespace, self._receive)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def next_number(self) -> int:
        return self.first + len(self._events)

    @property
    def is_read(self) -> bool:
        return bool(self._readers)

    def attach(self, reader: Reader) -> None:
        """Let a list read future events."""
        self._readers[reader] = None

    def detach(self, reader: Reader) -> None:
        self._readers.pop(reader, None)

    def stop(self) -> None:
        self._stop_listening()
        if self._spreading is not None:
            self._spreading.cancel()

    def since(self, number: int, count: int) -> list[TopicEvent]:
        """At most `count` events from this number on, which must not be dropped."""
        assert number >= self.first, "that is forgotten"
        return list(islice(self._events, number - self.first, number - self.first + count))

    def _receive(self, event: TopicEvent) -> None:
        self._events.append(event)
        if len(self._events) > EVENTS_MAX:
            self._events.popleft()
            self.first += 1
        if self._spreading is None or self._spreading.done():
            self._spreading = self._loop.create_task(self._spread())

    async def _spread(self) -> None:
        while any(reader.wants_events() for reader in self._readers):
            await self._share.run(self._round())
            await asyncio.sleep(0)

    def _round(self) -> Generator[None, int, None]:
        """Let each list that wants to read some events."""
        compared = 0
        for reader in list(self._readers):
            if reader in self._readers and reader.wants_events():
                compared += reader.read_events()
                if compared >= COMPARED_PER_STEP:
                    compared = 0
                    yield
