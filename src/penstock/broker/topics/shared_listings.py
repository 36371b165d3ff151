# SPDX-License-Identifier: Apache-2.0
"""Lists of topics, shared by all callers with the same parameters, and their memory charges (PIP-442).

Why: a thousand clients that reconnect together ask for the same names. Their list is gathered, encoded and charged
once. Each client is charged only for its own bytes that are not sent yet.
Where: discovery and the admin API use a list while they write it (`asked`); watchers keep one (`keep`). Memory comes
from the limiter, names from the directory's index, changes from its feed.

Theory of operation:
    Charge: one heap permit per list. The first caller acquires an estimate, gathers, and adjusts the permit to the real
        size; further callers wait for the list and hold nothing. While a caller uses the list, the permit covers the
        encoded names. While it is only watched, the permit covers the references to names, and deleted names that a
        slow watcher has not received yet. Bytes being sent are not charged here.
    Leading: one caller at a time updates a list, with its own deadline and its own place in the limiter's queue. If it
        fails or disconnects, the next caller tries itself.
    Changes: a list reads events of its namespace (`NamespaceEvents`) when a caller needs the list, or when a watcher
        can be notified. It stores the matching events and applies them later. So a caller gets the list of the moment
        of its request, or a newer one. Watchers are woken in small groups, because three hundred at once would block
        the loop.
    Writing: a reply is the caller's own head and shared blocks. Blocks being sent are charged once (`unsent_pieces`),
        until all transports have sent them. Each caller has a small direct permit for its head. While blocks are
        unsent, further callers get the same bytes.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.topics.listing import Filter, gather
from penstock.broker.topics.listing_blocks import Listing, NamespaceEvents, changed, differences, in_order, next_step
from penstock.broker.topics.patterns import PATTERN_BYTES
from penstock.core.errors import TooManyRequests
from penstock.net.listing_memory import HEAP_REFUSED, INITIAL_BYTES, LimitType, PermitAcquireCancelled, PermitError
from penstock.net.loop import GradualEvent, LoopShare
from penstock.net.unsent_pieces import UnsentPieces

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
    from random import Random

    from penstock.broker.topics.listing import NameIndex, Wanted
    from penstock.broker.topics.listing_blocks import Block, Form, Piece, Step, TopicFeed
    from penstock.core.clock import Clock
    from penstock.net.connection import Connection
    from penstock.net.listing_memory import Owner, Permit, TopicListMemoryLimiter, TopicListSnapshot


# -- the heap permit of one shared list: it grows in the limiter's queue and shrinks at once ---------------------------


class ListingCharge:
    """Heap memory of one list. One caller at a time may increase it."""

    __slots__ = ("_limiter", "_permit", "size_bytes")

    def __init__(self, limiter: TopicListMemoryLimiter) -> None:
        self.size_bytes = 0
        self._limiter = limiter
        self._permit: Permit | None = None

    async def estimate(
        self, estimate_bytes: int, measure: Callable[[], Awaitable[int]], owner: Owner, deadline_ns: int | None
    ) -> None:
        """Acquire an estimate, measure what is needed, and adjust to that. On failure nothing is held.

        Raises PermitError, and what `measure` raises.
        """
        permit = await self._limiter.acquire(
            estimate_bytes, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=deadline_ns
        )
        try:
            size_bytes = await measure()
            permit = await self._limiter.update(permit, size_bytes, deadline_ns=deadline_ns)
        except BaseException:
            self._limiter.release(permit)
            raise
        self._permit, self.size_bytes = permit, size_bytes

    async def recharge(self, size_bytes: int, owner: Owner, deadline_ns: int | None) -> None:
        """Change the permit to `size_bytes`. Raises PermitError; then it is unchanged."""
        if self._permit is None:
            self._permit = await self._limiter.acquire(
                size_bytes, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=deadline_ns
            )
        else:
            # Charged memory is in use: it can serve no other request meanwhile.
            self._permit = await self._limiter.update(self._permit, size_bytes, deadline_ns=deadline_ns, lends=False)
        self.size_bytes = size_bytes

    async def lower(self, size_bytes: int) -> None:
        """Reduce the permit to `size_bytes` at most. Never waits."""
        if self._permit is None or size_bytes >= self.size_bytes:
            return
        with suppress(PermitError):  # Stopping, or the limit was lowered below this: leave it unchanged.
            self._permit = await self._limiter.update(self._permit, size_bytes, lends=False)
            self.size_bytes = size_bytes

    def release(self) -> None:
        if self._permit is not None:
            self._limiter.release(self._permit)
            self._permit, self.size_bytes = None, 0


T = TypeVar("T")

# Making or encoding a block takes up to 0.3 ms.
BLOCKS_PER_STEP: Final = 2
# Changes applied at a time; they are sorted first.
CHANGES_PER_REFRESH: Final = 2_000
# Events that a list reads at a time: matching a single name takes 3 to 15 microseconds, matching many is faster.
EVENTS_PER_STEP: Final = 250
# Notifying a watcher of a topic takes about 0.05 ms.
WATCHERS_PER_TURN: Final = 50


def _nothing() -> None:
    """Default for `passed`: does nothing."""


class ListingWatcher(Protocol):
    """A watcher of a list."""

    known: Listing | None  # the list that its client received; it is kept in memory, too

    def is_ready(self) -> bool:
        """Whether it can be notified now. If not, it asks for changes itself when it can."""

    def notify(self) -> None:
        """Notify it of a possible change."""


class SharedListing:
    """One list, as long as a caller uses it or a watcher keeps it."""

    def __init__(self, store: SharedListings, wanted: Filter) -> None:
        self._store = store
        self._filter = wanted
        self._limiter = store.limiter
        self._askers = 0
        self._senders = 0  # callers whose transports have not sent everything
        self._watchers: dict[ListingWatcher, None] = {}
        self._listing: Listing | None = None
        self._charge = ListingCharge(store.limiter)
        self._charged_as_written = False
        self._changes: dict[str, bool] = {}  # events to apply: whether each topic exists now
        self._heard = self._applied = 0  # numbers of relevant events, received and applied
        self._events: NamespaceEvents | None = None  # set when the list is first gathered
        self._read = 0  # number of the next event to read
        self._missed = False  # unread events were dropped
        self._refreshing = False
        self._leading = False  # a caller is updating the list
        self._followers = GradualEvent(store.clock, store.loop)  # callers that wait for it
        self._unsent = UnsentPieces(store.limiter, store.clock, store.loop)
        self._steps: WeakValueDictionary[Listing, Step] = WeakValueDictionary()  # to the current list, by the first
        self._waking = False
        self._settling: asyncio.Task[None] | None = None

    @property
    def namespace(self) -> str:
        return self._filter.wanted.namespace

    # -- for callers --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def asked(self, owner: Owner, deadline_ns: int | None) -> AsyncIterator[Listing]:
        """The current list, to be written within the block. Raises what `latest` does."""
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
        form: Form,
        pieces: Sequence[Piece],
        *,
        owner: Owner,
        deadline_ns: int | None = None,
        passed: Callable[[], None] = _nothing,
    ) -> None:
        """Send the caller's head followed by shared pieces, as soon as direct memory is available.

        Returns in the turn in which they were queued. `passed` is called when they are sent or dropped. Raises
        PermitError, TooManyRequests.
        """
        permit = await self._unsent.charge(len(head), form, pieces, owner, deadline_ns)
        try:
            if cold := [piece for piece in pieces if not piece.is_encoded(form)]:
                await self._store.share.run(in_steps(map(form, cold)), deadline_ns)
            buffers = list(map(form, pieces))
        except BaseException:
            self._unsent.passed(permit, form, pieces)
            raise
        self._senders += 1
        shared_bytes = sum(piece.written_bytes for piece in pieces)
        connection.write_shared(head, buffers, shared_bytes, partial(self._passed, permit, form, pieces, passed))

    def _passed(self, permit: Permit, form: Form, pieces: Sequence[Piece], passed: Callable[[], None]) -> None:
        self._unsent.passed(permit, form, pieces)
        self._senders -= 1
        passed()
        if not self._senders:
            self._close_if_unused()
            self._settle_soon()

    def add_watcher(self, watcher: ListingWatcher) -> None:
        """Notify a watcher of changes, until `remove_watcher`."""
        self._watchers[watcher] = None

    def remove_watcher(self, watcher: ListingWatcher) -> None:
        self._watchers.pop(watcher, None)
        self._close_if_unused()
        self._settle_soon()

    def has_changes_for(self, watcher: ListingWatcher) -> bool:
        """Whether there are changes that the watcher's client has not received."""
        return self._is_behind() or self._applied < self._heard or watcher.known is not self._listing

    def was_notified(self, watcher: ListingWatcher) -> None:
        """Note that the client has received the watcher's `known` list. Memory of older lists may be released."""
        if watcher.known is self._listing is not None and self._charge.size_bytes > self._owed_at_least(self._listing):
            self._settle_soon()

    async def latest(self, owner: Owner, deadline_ns: int | None = None) -> Listing:
        """The list with all changes up to this call. The caller must be in `asked`, or a watcher.

        Raises:
            PermitError: the limiter refused the caller's own request.
            InvalidTopicName, PatternNotServed: see `Pattern`.
            TooManyRequests: the deadline passed while another caller's request waited.
        """
        stop = self._events.next_number if self._events is not None else 0
        heard: int | None = None
        while True:
            listing = self._listing
            if listing is not None and self._read >= stop:
                heard = self._heard if heard is None else heard
                if self._applied >= heard and self._charge_suffices():
                    return listing
            if self._leading:
                await self._wait_for_leader(deadline_ns)
                continue
            self._leading = True
            try:
                if listing is None:
                    await self._assemble(owner, deadline_ns)
                elif self._read < stop and len(self._changes) < EVENTS_PER_STEP:
                    await self._read_on(listing, owner, deadline_ns)
                else:
                    await self._refresh(listing, owner, deadline_ns)
            except PermitAcquireCancelled:
                # The connection that owned the permit request is closed. If it is ours, we are cancelled.
                continue
            finally:
                self._leading = False
                self._followers.release()
                await self._settle()

    def step(self, known: Listing) -> Step | None:
        """The next update for a client that has `known`; None when there is no change. Shared while in use."""
        listing = self._listing
        assert listing is not None, "nothing was sent yet"
        if known is listing:
            return None
        step = self._steps.get(known)
        if step is None:
            step = self._steps[known] = next_step(known, listing)
        return step

    # -- updating -----------------------------------------------------------------------------------------------------

    async def _wait_for_leader(self, deadline_ns: int | None) -> None:
        if not await self._followers.wait(deadline_ns):
            raise TooManyRequests(
                f"{HEAP_REFUSED}: somebody else waits for the memory of the same list of "
                f"{self._filter.wanted.namespace}; retry with back-off"
            )

    async def _assemble(self, owner: Owner, deadline_ns: int | None) -> None:
        """Gather the list. Before that no pattern is compiled and no event is read."""
        listing, heard = Listing(), 0

        async def gathered() -> int:
            nonlocal listing, heard
            self._filter.compile()
            self._events = self._store.events_of(self._filter.wanted.namespace)
            self._events.attach(self)
            self._read = self._events.next_number
            heard = self._heard
            listing = await self._store.share.run(gather(self._store.index, self._filter), deadline_ns)
            return self._owed_bytes(listing, as_written=True)

        estimate_bytes = INITIAL_BYTES + (PATTERN_BYTES if self._filter.wanted.pattern is not None else 0)
        try:
            async with self._store.share.slot(owner, deadline_ns):
                await self._charge.estimate(estimate_bytes, gathered, owner, deadline_ns)
        except BaseException:
            self._hear_no_more()
            self._filter.forget_pattern()
            raise
        self._charged_as_written = True
        self._listing, self._applied = listing, heard

    async def _refresh(self, listing: Listing, owner: Owner, deadline_ns: int | None) -> None:
        changes = dict(islice(self._changes.items(), CHANGES_PER_REFRESH))
        for topic in changes:
            del self._changes[topic]
        applied = self._applied if self._changes else self._heard
        self._refreshing = True
        try:
            after = changed(listing.blocks, [(name, changes[name]) for name in in_order(changes)])
            blocks = await self._store.share.run(in_steps(after), deadline_ns)
            if len(blocks) != len(listing.blocks) or any(map(_differ, blocks, listing.blocks)):
                listing = Listing(blocks)
            as_written = self._askers > 0
            await self._charge.recharge(self._owed_bytes(listing, as_written=as_written), owner, deadline_ns)
            self._charged_as_written = as_written
        except BaseException:
            self._changes = {**changes, **self._changes}
            raise
        finally:
            self._refreshing = False
        if listing is not self._listing:
            self._steps.clear()
        self._listing, self._applied = listing, applied

    # -- memory charges -----------------------------------------------------------------------------------------------

    def _charge_suffices(self) -> bool:
        return self._charged_as_written or not self._askers

    def _owed_bytes(self, listing: Listing, *, as_written: bool) -> int:
        """Memory in use once this list is current, including older lists that a watcher still knows."""
        earlier = {watcher.known for watcher in self._watchers} - {listing, None}
        kept = {id(block): block for known in earlier if known is not None for block in known.only_in(listing)}
        now_bytes = max(self._owed_at_least(listing), listing.assembled_bytes * as_written + self._filter.size_bytes)
        return now_bytes + sum(block.assembled_bytes for block in kept.values())

    def _owed_at_least(self, listing: Listing) -> int:
        """Memory of a list that is not encoded, with its pattern. An empty list is charged a minimum."""
        return self._filter.size_bytes + max(INITIAL_BYTES, listing.remembered_bytes)

    async def _settle(self) -> None:
        """Reduce the charge if less memory is in use. Never waits."""
        listing = self._listing
        if listing is None or self._askers or self._leading:
            return
        if not self._senders:
            for block in listing.blocks:
                block.forget_written()
        self._charged_as_written = False
        if self._watchers:
            await self._charge.lower(self._owed_bytes(listing, as_written=False))
        else:
            self._charge.release()

    def _settle_soon(self) -> None:
        if self._charge.size_bytes and (self._settling is None or self._settling.done()):
            self._settling = self._store.loop.create_task(self._settle())

    def _close_if_unused(self) -> None:
        if self._askers or self._watchers or self._senders:
            return
        self._hear_no_more()
        self._store.forget(self._filter.wanted, self)
        if self._settling is not None:
            self._settling.cancel()
        self._charge.release()

    # -- events -------------------------------------------------------------------------------------------------------

    def _is_behind(self) -> bool:
        return self._events is not None and self._read < self._events.next_number

    def wants_events(self) -> bool:
        """Whether there are events for a watcher that is ready. Others read when they need the list."""
        return (
            self._is_behind()
            and not self._missed
            and not self._changes  # applied first: many lists with many changes would take much memory
            and self._listing is not None
            and any(watcher.is_ready() for watcher in self._watchers)
        )

    def read_events(self) -> int:
        """Store the relevant ones of some events, or that everything must be gathered again."""
        events = self._events
        assert events is not None
        if self._read < events.first:
            self._missed = True
            self._wake_watchers()  # The first watcher has it gathered.
            return 0
        unread = events.since(self._read, EVENTS_PER_STEP)
        self._read += len(unread)
        wanted = self._filter.wanted_of([event.topic for event in unread])
        for event in unread:
            if event.topic in wanted:
                self._note(event.topic, there=event.created)
        return len(unread)

    def _note(self, topic: str, *, there: bool) -> None:
        self._heard += 1
        self._changes[topic] = there
        if self._listing is not None and not self._refreshing and self._listing.has(topic) is there:
            del self._changes[topic]  # A topic created and deleted while no watcher reads needs no entry.
        self._wake_watchers()

    async def _read_on(self, listing: Listing, owner: Owner, deadline_ns: int | None) -> None:
        """Read some events; if they were dropped, compare with the current names."""
        events, share = self._events, self._store.share
        assert events is not None
        if self._read >= events.first:
            await share.run(self._reading(), deadline_ns)
            return
        async with share.slot(owner, deadline_ns):
            now = events.next_number
            fresh = await share.run(gather(self._store.index, self._filter), deadline_ns)
            differing = await share.run(in_steps(differences(listing, fresh)), deadline_ns)
        self._changes.clear()
        for change in differing:
            self._changes |= dict.fromkeys(change.new, True) | dict.fromkeys(change.deleted, False)
        self._heard += 1
        self._read, self._missed = now, False

    def _reading(self) -> Generator[None, int, None]:
        self.read_events()
        yield

    def _hear_no_more(self) -> None:
        if self._events is not None:
            self._events.detach(self)
            self._store.forget_events(self._filter.wanted.namespace)
            self._events = None
        self._changes.clear()

    def _wake_watchers(self) -> None:
        if self._watchers and not self._waking:
            self._waking = True
            self._wake_soon(iter(()), -1)

    def _wake_soon(self, watchers: Iterator[ListingWatcher], heard: int) -> None:
        self._store.loop.call_soon(self._wake, watchers, heard)

    def _wake(self, watchers: Iterator[ListingWatcher], heard: int) -> None:
        """Notify the watchers; start again if an event came since the first was notified."""
        some = list(islice(watchers, WATCHERS_PER_TURN))
        for watcher in some:
            watcher.notify()
        if some:
            self._wake_soon(watchers, heard)
        elif heard != self._heard:
            self._wake(iter(list(self._watchers)), self._heard)
        else:
            self._waking = False


class SharedListings:
    """All lists in use."""

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
        self.share = LoopShare(limiter, clock, loop)
        self._lists: dict[Wanted, SharedListing] = {}
        self._events: dict[str, NamespaceEvents] = {}

    def __len__(self) -> int:
        return len(self._lists)

    def snapshot(self) -> TopicListSnapshot:
        """The limiter's view. Callers that wait for their turn to gather count as waiting for heap memory."""
        seen, share = self.limiter.snapshot(), self.share
        heap = replace(
            seen.heap,
            waiting_acquires=seen.heap.waiting_acquires + share.waiting,
            timeouts_total=seen.heap.timeouts_total + share.timeouts_total,
            queue_full_total=seen.heap.queue_full_total + share.queue_full_total,
        )
        return replace(seen, heap=heap)

    def of(self, wanted: Wanted) -> SharedListing:
        """The list with these parameters. Call `asked` or `add_watcher` on it in the same turn."""
        shared = self._lists.get(wanted)
        if shared is None:
            shared = self._lists[wanted] = SharedListing(self, Filter(wanted))
        return shared

    def events_of(self, namespace: str) -> NamespaceEvents:
        """The events of a namespace. Attach a list in the same turn."""
        events = self._events.get(namespace)
        if events is None:
            events = self._events[namespace] = NamespaceEvents(self.feed, namespace, self.share, self.loop)
        return events

    def forget_events(self, namespace: str) -> None:
        """Drop the events of a namespace, unless a list reads them."""
        events = self._events.get(namespace)
        if events is not None and not events.is_read:
            del self._events[namespace]
            events.stop()

    def forget(self, wanted: Wanted, shared: SharedListing) -> None:
        if self._lists.get(wanted) is shared:
            del self._lists[wanted]


def in_steps(made: Iterable[T]) -> Generator[None, int, list[T]]:
    """Collect the items, some in each step."""
    source, done = iter(made), list[T]()
    while some := list(islice(source, BLOCKS_PER_STEP)):
        if done:
            yield
        done += some
    return done


def _differ(one: Block, other: Block) -> bool:
    return one is not other
