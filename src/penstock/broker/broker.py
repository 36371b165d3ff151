# SPDX-License-Identifier: Apache-2.0
"""The broker: what all sessions share, and the work that time brings.

Where: app builds it over the log, the catalog and the request memory; listeners hand it connections.

What it promises: a topic, a subscription or an acknowledgement that was answered is stored; cursors that moved are
stored in less than a second (`cursor_saves`); when the disk fails, publishers are told and `/healthz` says so, while
consumers go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.access import OPEN, Guard
from penstock.broker.access.caps import refusal
from penstock.broker.commands.session import Session
from penstock.broker.configuration import Configuration, NoKeys
from penstock.broker.limits import BrokerLimits
from penstock.broker.policies.policies import PolicyBook
from penstock.broker.policies.quotas import Quotas
from penstock.broker.policies.retention import Retention, retains
from penstock.broker.publishing.deduplication import SNAPSHOTS_OFF_CHECK_S, Deduplication
from penstock.broker.publishing.rates import Rates
from penstock.broker.rounds import Round, Rounds
from penstock.broker.schemas.schema_registry import SchemaRegistry
from penstock.broker.stats.meters import Meters
from penstock.broker.subscriptions.cursor_saves import CursorSaves, stored_form
from penstock.broker.subscriptions.long_keys import LongKeys
from penstock.broker.subscriptions.tail import TailCache
from penstock.broker.topics import topic_life
from penstock.broker.topics.compaction import Compactor
from penstock.broker.topics.delayed_upkeep import Delays
from penstock.broker.topics.directory import TopicDirectory
from penstock.broker.topics.gate import Gate
from penstock.broker.topics.inactive import InactiveTopics
from penstock.broker.topics.shared_listings import SharedListings
from penstock.broker.topics.topic_states import TopicStates
from penstock.core.errors import MetadataFailed, PenstockError, ServiceNotReady, StorageReadOnly, TooManyRequests
from penstock.core.units import NS_PER_S
from penstock.governance.command_memory import CommandMemory
from penstock.governance.memory_row import MemoryRow
from penstock.governance.muting import MuteReason
from penstock.net.loop_turns import LoopTurns
from penstock.net.topic_list_limiter import TopicListMemoryLimiter
from penstock.storage.catalog import SubscriptionRecord
from penstock.storage.catalog_rows import bulk_bytes
from penstock.storage.journal import AppendRun
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from penstock.broker.access import Access
    from penstock.broker.access.authentication import Authenticator
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.names import TopicName
    from penstock.net.listener import Connections
    from penstock.storage.catalog import Catalog, TopicRecord
    from penstock.storage.cursor import Cursor
    from penstock.storage.entry_log import EntryLog, ReadResult
    from penstock.storage.snapshots import Snapshots

__all__ = ["Broker", "BrokerLimits", "Health", "ServiceUrls"]

T = TypeVar("T")
# A change of the catalog, all but carried out: called with what to call when it is durable, or what went wrong.
Submit = Callable[[Callable[[PenstockError | None], None]], None]

log = logging.getLogger(__name__)

# Whoever is short of memory for unacknowledged ids looks again this often, and when some of its own are acknowledged.
SHORT_S: Final = 0.5
# Evictions, keep-alives and stalls are looked at this often.
TICK_S: Final = 0.25
READER_THREADS: Final = 2
# A search by time looks for a readable entry among so many; beyond them it takes an earlier place, which loses nothing.
DAMAGED_PASSED_MAX: Final = 100
# What could not be read is tried again this often, also when nobody wants it.
UNREADABLE_CHECK_NS: Final = 2 * NS_PER_S
# How long a subscription without a cursor on disk outlives its last consumer after a seek: the client reconnects.
RECONNECT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ServiceUrls:
    """What lookups tell clients to connect to."""

    plain: str
    tls: str | None


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the broker can do its work, and if not, why; and what of the log it cannot serve while it does."""

    ok: bool
    reason: str
    problems: tuple[str, ...] = ()


class Broker:
    """One broker process."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        connections: Connections,
        limits: BrokerLimits,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        authenticator: Authenticator | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.log = entry_log
        self.catalog = catalog
        self.connections = connections
        self.limits = limits
        self.clock = clock
        self.loop = loop
        connections.admit = partial(refusal, self)
        self.access: Access = OPEN if authenticator is None else Guard(self, authenticator)
        self.service_urls = ServiceUrls("", None)
        self.web_urls = ServiceUrls("", None)  # of the admin port
        # What an administrator may change of the limits, and who ends the process: app sets both.
        self.configuration = Configuration(self, NoKeys(limits))
        self.shut_down: Callable[[], None] | None = None
        # Who measures the turns of the loop, if anybody does: app sets it, too.
        self.loop_turns = LoopTurns()
        # Where clients connect that ask for a listener by its name (advertisedListeners).
        self.listeners: Mapping[str, ServiceUrls] = {}
        self.topics = TopicDirectory(self)
        self.states = TopicStates(self)
        # How many requests look for topics at the same time.
        self.lookups = Gate(lambda: self.limits.lookups_max)
        # And how much memory listings of topics may take (PIP-442).
        self.listings = TopicListMemoryLimiter(limits.listings, clock=clock, loop=loop)
        self.shared_listings = SharedListings(
            self.topics.names, self.topics.feed, self.listings, clock=clock, loop=loop, chance=Random()
        )
        self.policies = PolicyBook(self)
        self.rates = Rates(self)
        self.retention = Retention(self)
        self.quotas = Quotas(self)
        self.schemas = SchemaRegistry(self)
        self.deduplication = Deduplication(self)
        self.compaction = Compactor(self)
        self.tail_cache = TailCache(limits.tail_cache_bytes)
        self.commands_memory = CommandMemory(limits.commands_bytes)
        self.sessions_memory = MemoryRow("sessions", limits.sessions_bytes)
        self.dispatch_memory = MemoryRow("dispatch", limits.dispatch_bytes)
        self.http_memory = MemoryRow("http", limits.http_bytes)
        self.sessions: set[Session] = set()
        self.stopping = False
        self.started_at_ms = clock.wall_ms()
        self._unreadable_at_ns = 0  # when to try again what could not be read
        self.long_keys = LongKeys(loop)
        self._short_of_memory: set[Subscription] = set()
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="log-reader")
        self.delays = Delays(self, snapshots)
        self.cursors = CursorSaves(self)
        self._tick_timer = loop.call_later(TICK_S, self._tick)
        self._producer_names = 0
        self._unfinished: set[asyncio.Task[Any]] = set()
        self.meters = Meters(self)
        self._inactive = InactiveTopics(self)
        self.rounds = Rounds(self, self._kinds_of_rounds())
        topic_life.drop_unknown_ledgers(self)
        topic_life.name_missing(self)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def new_session(self, connection: object) -> Session:
        """The handler of a connection that was just accepted."""
        session = Session(self, connection)  # type: ignore[arg-type]
        self.sessions.add(session)
        return session

    def session_closed(self, session: Session, reason: str) -> None:
        """A client is gone."""
        self.sessions.discard(session)
        self.listings.cancel(session.connection.id)
        log.info("connection %s closed: %s", session.connection.peer, reason)

    def next_producer_name(self) -> str:
        """A name that no producer of this cluster has had."""
        self._producer_names += 1
        return f"{self.limits.cluster_name}-{self.started_at_ms}-{self._producer_names}"

    # -- may we? ------------------------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        """Whether everything that must work works."""
        if self.stopping:
            return Health(ok=False, reason="stopping")
        log_health = self.log.health
        if log_health.read_only is not None:
            return Health(ok=False, reason=log_health.read_only)
        if log_health.stalled:
            return Health(ok=False, reason="the disk holds a write for too long")
        if self.catalog.failed is not None:
            return Health(ok=False, reason=self.catalog.failed)
        return Health(ok=True, reason="ok", problems=self.log.problems())

    def check_lookup(self, name: TopicName) -> None:
        """Raises ServiceNotReady when topics are no longer served."""
        if self.stopping:
            raise ServiceNotReady(f"broker is stopping; look {name} up again")

    def check_writable(self) -> None:
        """Raises StorageReadOnly when publishing cannot work."""
        reason = self.log.health.read_only
        if reason is not None:
            raise StorageReadOnly(reason)

    # -- metadata -----------------------------------------------------------------------------------------------------

    async def create_topic(self, name: str, properties: Mapping[str, str]) -> TopicRecord:
        """Store a new topic; raises MetadataFailed."""
        now_ms = self.clock.wall_ms()
        await self.stored(
            lambda done: self.catalog.create_topic(name, properties=properties, created_wall_ms=now_ms, done=done)
        )
        record = self.catalog.topic(name)
        assert record is not None
        log.info("topic %s created, ledger %d", name, record.ledger_id)
        return record

    async def store_subscription(
        self, topic: Topic, name: str, cursor: Cursor, *, initial: str, properties: Mapping[str, str]
    ) -> None:
        """Store a new durable subscription. Raises MetadataFailed; TooManyRequests, see `check_properties`."""
        self.check_properties(name, properties)
        record = SubscriptionRecord(topic.text, name, initial, properties)
        await self.stored(lambda done: self.catalog.create_subscription(record, stored_form(cursor), done))

    def check_properties(self, name: str, properties: Mapping[str, str]) -> None:
        """Return if a subscription may have these properties: long ones stay in memory as long as it is there.

        Raises:
            TooManyRequests: those of all subscriptions take as much as producers and consumers may.
        """
        nbytes, bound = bulk_bytes(name, properties), self.limits.sessions_bytes
        if nbytes and self.catalog.bulk_bytes + nbytes > bound:
            raise TooManyRequests(
                f"the name and properties of subscription {name[:100]!r} take {nbytes:,} bytes, and such long ones "
                f"have {self.catalog.bulk_bytes:,} of {bound:,} in use; delete others, or raise sessionsMB"
            )

    async def delete_subscription(self, subscription: Subscription) -> None:
        """End a subscription. Nobody joins it from now on; consumers that it has are the caller's to disconnect.

        Raises:
            ServiceNotReady: it is being reset, or deleted already.
            SubscriptionNotFound, TopicNotFound: it is not there any more.
            MetadataFailed: it could not be deleted, and goes on.
        """
        if subscription.fenced:
            raise ServiceNotReady(f"subscription {subscription.name!r} of {subscription.topic.text} is being reset")
        subscription.fenced = True
        await self.finish(self._delete_subscription(subscription))

    async def _delete_subscription(self, subscription: Subscription) -> None:
        topic = subscription.topic
        try:
            if subscription.durable:
                await self._forget_subscription(topic, subscription.name)
        except BaseException:
            subscription.fenced = False
            subscription.wake()
            raise
        topic.end_subscription(subscription)
        self.rates.forget_subscription(subscription)

    async def _forget_subscription(self, topic: Topic, name: str) -> None:
        # Its cursor told how far the topic was reclaimed; from now on the topic says so itself. What was acknowledged
        # behind that may still be looked at, but nobody needs it.
        topic.unneeded_before = 0 if retains(topic.policies) else topic.first_needed() or 0
        topic.first_entry_id = topic.retained_from()
        await self.stored(lambda done: self.catalog.set_first_retained_entry(topic.text, topic.first_entry_id, done))
        await self.stored(lambda done: self.catalog.delete_subscription(topic.text, name, done))

    async def save_cursors_of(self, topic: Topic) -> None:
        """Store all cursors of a topic now; returns when they are durable, raises MetadataFailed."""
        await self.cursors.save(*topic.subscriptions.values())

    async def save_cursor(self, subscription: Subscription) -> None:
        """Store a cursor now; returns when it is durable, raises MetadataFailed."""
        if subscription.durable:
            await self.cursors.save(subscription)

    def cursor_moved(self, subscription: Subscription) -> None:
        """A cursor changed; it is stored, with all others that did, in less than a second."""
        self.cursors.moved(subscription)

    def stored(self, submit: Submit) -> asyncio.Future[None]:
        """Submit a change to the catalog; done when it is durable, or with what went wrong."""
        future: asyncio.Future[None] = self.loop.create_future()

        def done(error: PenstockError | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        submit(done)
        return future

    def finish(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Carry work to its end, also when whoever waits for it goes away: for what must not stop half-way."""
        task = self.loop.create_task(work)
        self._unfinished.add(task)

        def done(task: asyncio.Task[T]) -> None:
            self._unfinished.discard(task)
            if not task.cancelled():
                task.exception()  # Seen, should nobody wait any more.

        task.add_done_callback(done)
        return asyncio.shield(task)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscription_idle(self, subscription: Subscription) -> None:
        """The last consumer left: a subscription that is not durable ends with it."""
        if not (subscription.durable or subscription.fenced or subscription.consumers):
            subscription.topic.end_subscription(subscription)

    def expect_reconnect(self, subscription: Subscription) -> None:
        """After a seek the client comes back to the same subscription; give it time to."""
        if not subscription.durable:
            self.loop.call_later(RECONNECT_S, self.subscription_idle, subscription)

    def wait_for_dispatch_memory(self, subscription: Subscription) -> None:
        """A consumer gets nothing, for there is no memory for what it would owe: try again soon."""
        if not self._short_of_memory:
            self.loop.call_later(SHORT_S, self._wake_short)
        self._short_of_memory.add(subscription)

    def _wake_short(self) -> None:
        short, self._short_of_memory = self._short_of_memory, set()
        for subscription in short:
            subscription.wake()

    # -- the log ------------------------------------------------------------------------------------------------------

    def read_log(
        self, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int | None = None
    ) -> asyncio.Future[ReadResult]:
        """Read entries in a reader thread, as `EntryLog.read`."""
        read = partial(
            self.log.read,
            ledger_id,
            entry_id,
            bytes_max=bytes_max,
            entries_max=entries_max,
            first_bytes_max=first_bytes_max,
        )
        return self.loop.run_in_executor(self._readers, read)

    def read_in_thread(self, read: Callable[[], T]) -> asyncio.Future[T]:
        """Carry out a read of the log that takes more than one call, in a reader thread."""
        return self.loop.run_in_executor(self._readers, read)

    def bytes_from(self, topic: Topic, entry_ids: Sequence[int]) -> asyncio.Future[list[int]]:
        """For each of these entries, how many bytes it and all behind it take; asked in a reader thread."""
        return self.ledger_bytes_from(topic.ledger_id, entry_ids)

    def ledger_bytes_from(self, ledger_id: int, entry_ids: Sequence[int]) -> asyncio.Future[list[int]]:
        """The same of any ledger."""
        return self.loop.run_in_executor(self._readers, lambda: self.log.bytes_from(ledger_id, entry_ids))

    def entry_within(self, topic: Topic, nbytes: int) -> asyncio.Future[int]:
        """The first entry that, with all behind it, takes no more than that; asked in a reader thread."""
        return self.loop.run_in_executor(self._readers, lambda: self.log.entry_within(topic.ledger_id, nbytes))

    async def read_entry(self, topic: Topic, entry_id: int) -> bytes | None:
        """One entry, sealed as it was stored; None when the log does not have it."""
        result = await self.read_log(topic.ledger_id, entry_id, bytes_max=1, entries_max=1)
        return _first_entry(result, entry_id)

    def about_entry(self, topic: Topic, entry_id: int, tell: Callable[[bytes | None], T]) -> asyncio.Future[T]:
        """What `tell` says of an entry (of None when the log does not have it), asked in a reader thread.

        For those who want a few words about an entry: its bytes do not wait for the loop.
        """
        ledger_id = topic.ledger_id
        return self.read_in_thread(
            lambda: tell(_first_entry(self.log.read(ledger_id, entry_id, bytes_max=1, entries_max=1), entry_id))
        )

    async def first_entry_published_since(self, topic: Topic, wall_ms: int) -> int:
        """The first entry whose producer stamped it at or after this time; the end of the topic when there is none.

        A binary search, since producers' clocks mostly agree; where they do not, a close neighbour is found.
        """
        low, high = topic.first_entry_id, topic.last_entry_id + 1
        while low < high:
            middle = (low + high) // 2
            entry_id, entry = await self._entry_from(topic, middle, high)
            if entry is not None and _publish_time(entry) < wall_ms:
                low = entry_id + 1
            else:
                high = middle
        return low

    async def _entry_from(self, topic: Topic, entry_id: int, stop: int) -> tuple[int, bytes | None]:
        """The first entry of these that is there, its id first; a damaged or missing one is as old as the next."""
        for _ in range(DAMAGED_PASSED_MAX):
            result = await self.read_log(topic.ledger_id, entry_id, bytes_max=1, entries_max=1)
            if result.batches:
                entry_id = result.batches[0].entry_ids[0]
                return entry_id, _first_entry(result, entry_id) if entry_id < stop else None
            if not entry_id < result.next_entry_id < stop:
                break
            entry_id = result.next_entry_id
        return entry_id, None

    def after_appends(self, action: Callable[[], None]) -> None:
        """Call back once everything that was appended before is durable or has failed."""
        barrier = AppendRun(
            groups=[], offsets=(), lengths=(), message_counts=None, data=b"", done=lambda _run, _error: action()
        )
        self.log.append(barrier)

    # -- four times a second ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._tick_timer = self.loop.call_later(TICK_S, self._tick)
        now_ns = self.clock.monotonic_ns()
        for session in list(self.sessions):
            session.check_alive(now_ns)
        self.connections.evict_slow()
        self._mute_while_stalled()
        self._try_unreadable(now_ns)
        self.meters.tick(now_ns)
        self._inactive.tick(now_ns)
        self.delays.tick(now_ns)
        self.rounds.tick(now_ns)

    def _kinds_of_rounds(self) -> tuple[Round, ...]:
        retention, quotas = self.retention, self.quotas
        return (
            Round(
                "retention",
                lambda: self.limits.policies.retention_check_interval_in_seconds,
                retention.may_trim,
                retention.trim,
            ),
            Round(
                "message expiry",
                lambda: self.limits.policies.message_expiry_check_interval_in_minutes * 60,
                retention.may_expire,
                retention.expire_topic,
            ),
            Round(
                "subscription expiry",
                lambda: self.limits.policies.subscription_expiry_check_interval_in_minutes * 60,
                retention.may_end_subscriptions,
                retention.end_idle_subscriptions,
            ),
            Round(
                "backlog quota check",
                lambda: self.limits.policies.backlog_quota_check_interval_in_seconds,
                quotas.checks,
                quotas.check,
            ),
            Round(
                "deduplication snapshot",
                lambda: self.limits.deduplication_snapshot_check_s or SNAPSHOTS_OFF_CHECK_S,
                self.deduplication.concerns,
                self.deduplication.check,
            ),
            Round(
                "compaction", lambda: self.limits.compaction_check_s, self.compaction.concerns, self.compaction.check
            ),
        )

    def _try_unreadable(self, now_ns: int) -> None:
        """See whether what could not be read now can be: health tells of it, and perhaps nobody wants it any more."""
        if now_ns >= self._unreadable_at_ns and self.log.troubles():
            self._unreadable_at_ns = now_ns + UNREADABLE_CHECK_NS
            self.read_in_thread(self.log.try_again)

    def _mute_while_stalled(self) -> None:
        """While the disk holds one write for too long, publishers are not read: memory would only fill."""
        stalled = self.log.health.stalled
        for session in self.sessions:
            if stalled and session.producers:
                session.connection.mute(MuteReason.STORAGE)
            elif not stalled:
                session.connection.unmute(MuteReason.STORAGE)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Tell all clients, let what was accepted become durable and be answered, store cursors, close."""
        self.stopping = True
        self.listings.close()
        self._tick_timer.cancel()
        self.meters.stop()
        self.compaction.stop()
        await asyncio.gather(*self._unfinished, return_exceptions=True)
        for session in list(self.sessions):
            for producer in list(session.producers.values()):
                session.disconnect_producer(producer)
            for consumer in list(session.consumers.values()):
                session.disconnect_consumer(consumer)
        drained = self.loop.create_future()
        self.after_appends(lambda: drained.set_result(None))
        await drained
        # A failure was logged, and acknowledgements that were not stored are only delivered again.
        with contextlib.suppress(MetadataFailed):
            await self.cursors.save()
        await self.delays.stop()
        for session in list(self.sessions):
            session.connection.close_after_flush("broker is stopping")
        self.access.close()
        self._readers.shutdown(wait=True)
        self.compaction.close()


def _publish_time(entry: bytes) -> int:
    try:
        return metadata.publish_time(entry)
    except ProtocolError:
        return 0  # What says nothing of its time was published before everything that does.


def _first_entry(result: ReadResult, entry_id: int) -> bytes | None:
    for batch in result.batches:
        if batch.entry_ids[0] == entry_id:
            start = batch.offsets[0]
            return bytes(batch.data[start : start + batch.lengths[0]])
    return None
