# SPDX-License-Identifier: Apache-2.0
"""Lists of topics that all who ask for the same share, and the memory they are charged for (PIP-442).

Why: a thousand clients that come back at once ask for the same names. Gathered, encoded and charged once, their lists
cost the memory of one; what each of them has of its own is the bytes it has not read yet.
Where: discovery and the admin port ask for a list while they write it (`asked`), watchers keep one for as long as they
watch (`keep`). Memory is taken from the limiter; names come from the directory's index, and what happens from its feed.

Theory of operation
    Charge.   One heap permit for each list. Whoever comes first takes one for an estimate, gathers, and updates it to
              the truth; those who come meanwhile wait for the list, and hold nothing. While somebody asks, the permit
              covers the names as they are written; while it is only watched, the references that remember them, and
              the names that a slow watcher has not yet heard are gone. What is only being sent is no more charged here.
    Leading.  One caller at a time brings a list up to date, within its own deadline and in its own place of the
              limiter's queue. If it fails or goes away, that is its own affair: the next one tries for itself.
    Changes.  An event is noted, and taken in when the list is wanted next: then it is what it was when that was asked,
              or newer. Watchers are woken some at a time, as three hundred at once would hold the loop.
    Writing.  What goes out is the head of one caller and the blocks that all share. Bytes on their way are covered by
              a direct permit of that caller's until its transport has passed them on. As long as anybody's are, whoever
              asks next gets the same bytes. So a client that never reads holds its own direct permit, nothing else.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.topics.listing import Filter, gather
from penstock.broker.topics.listing_blocks import Listing, changed, in_order, next_step
from penstock.broker.topics.listing_charge import ListingCharge
from penstock.core.errors import TooManyRequests
from penstock.core.units import NS_PER_S
from penstock.net.topic_list_limiter import (
    HEAP_REFUSED,
    INITIAL_BYTES,
    LimitType,
    PermitAcquireCancelled,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from random import Random

    from penstock.broker.topics.feed import TopicEvent, TopicFeed
    from penstock.broker.topics.listing import NameIndex, Wanted
    from penstock.broker.topics.listing_blocks import Block, Step
    from penstock.core.clock import Clock
    from penstock.net.connection import Connection
    from penstock.net.topic_list_limiter import Owner, Permit, TopicListMemoryLimiter

T = TypeVar("T")

# A block takes up to 0.3 ms to make.
BLOCKS_PER_TURN: Final = 8
# Changes that are taken in at a time: they are sorted first.
CHANGES_PER_REFRESH: Final = 2_000
# A watcher that hears of a topic takes some 0.05 ms.
KEEPERS_PER_TURN: Final = 50


class Keeper(Protocol):
    """Who wants to know of changes."""

    known: Listing | None  # what it was told; that is kept in memory, too

    def tell(self) -> None:
        """Something has changed, or may have."""


class SharedListing:
    """One list, for as long as somebody asks for it or watches it."""

    def __init__(self, store: SharedListings, wanted: Filter) -> None:
        self._store = store
        self._filter = wanted
        self._limiter = store.limiter
        self._askers = 0
        self._senders = 0  # whose transports have not passed on all of what was written
        self._keepers: dict[Keeper, None] = {}
        self._listing: Listing | None = None
        self._charge = ListingCharge(store.limiter)
        self._charged_as_written = False
        self._changes: dict[str, bool] = {}  # what happened and is not taken in: by topic, whether it is there
        self._heard = self._applied = 0  # events
        self._leading: asyncio.Future[None] | None = None  # done when whoever leads is through
        self._steps: WeakValueDictionary[Listing, Step] = WeakValueDictionary()  # to the list in force, by the first
        self._waking = False
        self._settling: asyncio.Task[None] | None = None
        self._stop_hearing = store.feed.listen(wanted.wanted.namespace, self._hear)

    # -- for those who ask --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def asked(self, owner: Owner, deadline_ns: int | None) -> AsyncIterator[Listing]:
        """The list as it is now, to be written within the block. Raises PermitError, TooManyRequests."""
        self._askers += 1
        try:
            yield await self.latest(owner, deadline_ns)
        finally:
            self._askers -= 1
            self._close_if_unused()
            await self._settle()

    async def write(
        self,
        connection: Connection,
        head: bytes,
        blocks: Sequence[Block],
        written: Callable[[Block], bytes],
        *,
        owner: Owner,
        deadline_ns: int | None = None,
    ) -> None:
        """Send a head of the caller's own and shared blocks behind it, as soon as there is direct memory for them.

        Returns in the turn in which they were queued. Raises PermitError.
        """
        nbytes = len(head) + sum(block.written_bytes for block in blocks)
        permit = await self._limiter.acquire(nbytes, LimitType.DIRECT_MEMORY, owner=owner, deadline_ns=deadline_ns)
        try:
            buffers = [head, *await in_turns(map(written, blocks))]
        except BaseException:
            self._limiter.release(permit)
            raise
        self._senders += 1
        connection.write_until_passed(buffers, nbytes, partial(self._passed, permit))

    async def write_step(self, connection: Connection, head: bytes, step: Step, *, owner: Owner) -> None:
        """The same of an update."""
        nbytes = len(head) + len(step.written)
        permit = await self._limiter.acquire(nbytes, LimitType.DIRECT_MEMORY, owner=owner)
        self._senders += 1
        connection.write_until_passed((head, step.written), nbytes, partial(self._passed, permit, step))

    def _passed(self, permit: Permit, _step: Step | None = None) -> None:
        """Whoever is told the same meanwhile finds the same step."""
        self._limiter.release(permit)
        self._senders -= 1
        if not self._senders:
            self._close_if_unused()
            self._settle_soon()

    def keep(self, keeper: Keeper) -> None:
        """Tell it of what happens from now on, until `leave`."""
        self._keepers[keeper] = None

    def leave(self, keeper: Keeper) -> None:
        """It wants to know no more."""
        self._keepers.pop(keeper, None)
        self._close_if_unused()
        self._settle_soon()

    def is_news_to(self, keeper: Keeper) -> bool:
        """Whether something has happened that it was not told."""
        return self._applied < self._heard or keeper.known is not self._listing

    def has_told(self, keeper: Keeper) -> None:
        """It knows what it knows now. What nobody knows any more is not charged any more."""
        if keeper.known is self._listing is not None and self._charge.size_bytes > self._listing.remembered_bytes:
            self._settle_soon()

    async def latest(self, owner: Owner, deadline_ns: int | None = None) -> Listing:
        """The list with everything that had happened when this was called; the caller asks, or keeps it.

        Raises:
            PermitError: the limiter's, for the caller's own request.
            TooManyRequests: the deadline has come while another caller's request waited.
        """
        heard = self._heard
        while (listing := self._listing) is None or self._applied < heard or not self._charge_suffices():
            if self._leading is not None:
                await self._wait_for_leader(self._leading, deadline_ns)
                continue
            self._leading = self._store.loop.create_future()
            try:
                if listing is None:
                    await self._assemble(owner, deadline_ns)
                else:
                    await self._refresh(listing, owner, deadline_ns)
            except PermitAcquireCancelled:
                # The connection is gone under whose name the permit was first taken. If it is ours, we are cancelled.
                continue
            finally:
                leading, self._leading = self._leading, None
                leading.set_result(None)
                await self._settle()
        return listing

    def step(self, known: Listing) -> Step | None:
        """What to tell somebody next who was told that list; None when nothing is to be said. Shared while in use."""
        listing = self._listing
        assert listing is not None, "nobody was told anything yet"
        if known is listing:
            return None
        step = self._steps.get(known)
        if step is None:
            step = self._steps[known] = next_step(known, listing)
        return step

    # -- bringing it up to date ---------------------------------------------------------------------------------------

    async def _wait_for_leader(self, leading: asyncio.Future[None], deadline_ns: int | None) -> None:
        left_ns = None if deadline_ns is None else deadline_ns - self._store.clock.monotonic_ns()
        done, _ = await asyncio.wait((leading,), timeout=None if left_ns is None else max(0, left_ns) / NS_PER_S)
        if not done:
            raise TooManyRequests(
                f"{HEAP_REFUSED}: somebody else waits for the memory of the same list of "
                f"{self._filter.wanted.namespace}; retry with back-off"
            )

    async def _assemble(self, owner: Owner, deadline_ns: int | None) -> None:
        listing, heard = Listing(), 0

        async def gathered() -> int:
            nonlocal listing, heard
            self._changes.clear()
            heard = self._heard
            listing = await gather(self._store.index, self._filter)
            return self._owed_bytes(listing, as_written=True)

        await self._charge.estimate(INITIAL_BYTES, gathered, owner, deadline_ns)
        self._charged_as_written = True
        self._listing, self._applied = listing, heard

    async def _refresh(self, listing: Listing, owner: Owner, deadline_ns: int | None) -> None:
        changes = dict(islice(self._changes.items(), CHANGES_PER_REFRESH))
        for topic in changes:
            del self._changes[topic]
        applied = self._applied if self._changes else self._heard
        try:
            blocks = await in_turns(changed(listing.blocks, [(name, changes[name]) for name in in_order(changes)]))
            if len(blocks) != len(listing.blocks) or any(map(_differ, blocks, listing.blocks)):
                listing = Listing(blocks)
            as_written = self._askers > 0
            await self._charge.take(self._owed_bytes(listing, as_written=as_written), owner, deadline_ns)
            self._charged_as_written = as_written
        except BaseException:
            self._changes = {**changes, **self._changes}
            raise
        if listing is not self._listing:
            self._steps.clear()
        self._listing, self._applied = listing, applied

    # -- what it is charged -------------------------------------------------------------------------------------------

    def _charge_suffices(self) -> bool:
        return self._charged_as_written or not self._askers

    def _owed_bytes(self, listing: Listing, *, as_written: bool) -> int:
        """What is in memory once this list is in force, with those before it that somebody still knows."""
        earlier = {keeper.known for keeper in self._keepers} - {listing, None}
        kept = {id(block): block for known in earlier if known is not None for block in known.only_in(listing)}
        # A list of nothing takes something, too.
        now = max(INITIAL_BYTES, listing.assembled_bytes if as_written else listing.remembered_bytes)
        return now + sum(block.assembled_bytes for block in kept.values())

    async def _settle(self) -> None:
        """Charge less, if less is in memory by now. Never waits."""
        listing = self._listing
        if listing is None or self._askers or self._leading is not None:
            return
        if not self._senders:
            for block in listing.blocks:
                block.forget_written()
        self._charged_as_written = False
        if self._keepers:
            await self._charge.lower(self._owed_bytes(listing, as_written=False))
        else:
            self._charge.give_back()

    def _settle_soon(self) -> None:
        if self._charge.size_bytes and (self._settling is None or self._settling.done()):
            self._settling = self._store.loop.create_task(self._settle())

    def _close_if_unused(self) -> None:
        if self._askers or self._keepers or self._senders:
            return
        self._stop_hearing()
        self._store.forget(self._filter.wanted, self)
        if self._settling is not None:
            self._settling.cancel()
        self._charge.give_back()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _hear(self, event: TopicEvent) -> None:
        if not self._filter.wants(event.topic):
            return
        self._heard += 1
        self._changes[event.topic] = event.created
        if self._listing is not None and self._leading is None and self._listing.has(event.topic) is event.created:
            del self._changes[event.topic]  # What comes and goes while no watcher reads leaves nothing behind.
        if self._keepers and not self._waking:
            self._waking = True
            self._wake_soon(iter(()), -1)

    def _wake_soon(self, keepers: Iterator[Keeper], heard: int) -> None:
        self._store.loop.call_soon(self._wake, keepers, heard)

    def _wake(self, keepers: Iterator[Keeper], heard: int) -> None:
        """Tell some keepers; all again, if anything has happened since the first of them was told."""
        some = list(islice(keepers, KEEPERS_PER_TURN))
        for keeper in some:
            keeper.tell()
        if some:
            self._wake_soon(keepers, heard)
        elif heard != self._heard:
            self._wake(iter(list(self._keepers)), self._heard)
        else:
            self._waking = False


class SharedListings:
    """All lists that somebody asks for or watches."""

    def __init__(
        self,
        index: NameIndex,
        feed: TopicFeed,
        limiter: TopicListMemoryLimiter,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        chance: Random,
    ) -> None:
        self.index = index
        self.feed = feed
        self.limiter = limiter
        self.clock = clock
        self.loop = loop
        self.chance = chance
        self._lists: dict[Wanted, SharedListing] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def of(self, wanted: Wanted) -> SharedListing:
        """The list of this; whoever calls this asks for it, or keeps it, in the same breath.

        Raises InvalidTopicName, PatternNotServed: see `matcher`.
        """
        shared = self._lists.get(wanted)
        if shared is None:
            shared = self._lists[wanted] = SharedListing(self, Filter(wanted))
        return shared

    def forget(self, wanted: Wanted, shared: SharedListing) -> None:
        """Nobody wants this one any more."""
        if self._lists.get(wanted) is shared:
            del self._lists[wanted]


async def in_turns(made: Iterable[T]) -> list[T]:
    """All of them, made some at a time, so that others have their turn between."""
    source, done = iter(made), list[T]()
    while some := list(islice(source, BLOCKS_PER_TURN)):
        if done:
            await asyncio.sleep(0)
        done += some
    return done


def _differ(one: Block, other: Block) -> bool:
    return one is not other
