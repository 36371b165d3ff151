# SPDX-License-Identifier: Apache-2.0
"""Lookup commands: LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST.

Where: called from the session's table of handlers. All are counted against `maxConcurrentLookupRequest`.

Any broker of a cluster answers these for all topics. A LOOKUP is answered with the address of the topic's broker, as
Pulsar does where a topic has an owner.

A LOOKUP creates nothing and does not check that the topic exists. Java looks up the pattern itself to find the broker
for its watcher, so any name is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.access import Action
from penstock.broker.commands import session_memory
from penstock.broker.log_reads import publish_time_of
from penstock.broker.topics.listing import Mode, Wanted
from penstock.broker.topics.listing_blocks import Block
from penstock.broker.topics.patterns import PatternNotServed
from penstock.broker.topics.topic import subscribed_topic
from penstock.broker.topics.watchers import TopicListWatcher
from penstock.core.errors import NotAllowed, PenstockError, ServiceNotReady, TooManyRequests
from penstock.core.names import NamespaceName, TopicName
from penstock.core.system_topics import is_coordinator
from penstock.net.listing_memory import Owner
from penstock.wire import codec, listings, metadata
from penstock.wire.batches import last_index
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
    from penstock.broker.topics.migration import Migration
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.partitions import Partitions
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.shared_listings import SharedListing, SharedListings
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.service_urls import ServiceUrls
    from penstock.governance.budget import Row
    from penstock.net.listing_memory import TopicListLimits
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.entry_log import EntryLog


# ---------------------------------------------------------------------------------------------------------------------
# GET_LAST_MESSAGE_ID: the last message of a topic for a consumer, and how many messages there are up to somewhere.
#
# The answer has the index of the last message in its batch, which is in the metadata of the last entry. An entry may
# have megabytes, and readers ask before every message. So it is read once for all callers, in a reader thread, which
# returns only the index.
#
# The count is an extension of ours (docs/adr/0043): Apache Pulsar ignores the field that asks for it, and other clients
# never send it. It is made of the log's tables, not of its entries.

# Batch index of an entry that is not a batch.
NO_BATCH: Final = -1


class LastMessage:
    """Answers GET_LAST_MESSAGE_ID. All methods are called on the event loop."""

    def __init__(self, *, log: EntryLog, reads: LogReads) -> None:
        self._log = log
        self._reads = reads
        # One count at a time: it takes milliseconds, and another reader thread must be free for those who read.
        self._counting = asyncio.Semaphore(1)
        self.handlers: Mapping[int, Handler] = {codec.BaseCommand.GET_LAST_MESSAGE_ID: self._on_get_last_message_id}

    def _on_get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        session.requests.start(body.request_id, partial(self._get_last_message_id, session, body))

    async def _get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        consumer = session.consumer(body.consumer_id)
        subscription = consumer.subscription
        topic = subscribed_topic(subscription)
        last, batch_index = await self._last_message(consumer)
        counted = await self._count(topic, body.count) if body.HasField("count") else None
        session.reply(
            codec.last_message_id(
                body.request_id,
                topic.ledger_id if last >= 0 else -1,
                last,
                partition=topic.partition,
                batch_index=batch_index,
                mark_delete=(topic.ledger_id, topic.before_passed(subscription.cursor.mark_delete)),
                counted=counted,
            )
        )

    async def _count(self, topic: Topic, query: codec.MessageCountQuery) -> codec.MessageCount | None:
        """Count from a position on. A position in another ledger is of a topic of this name that was deleted."""
        if not topic.persistent:
            return None
        ledger_id, stop = topic.ledger_id, topic.last_entry_id + 1
        first = query.entry_id if query.ledger_id == ledger_id and query.entry_id < 2**63 else 0
        end = min(query.end_entry_id, stop) if query.HasField("end_entry_id") else stop
        count = partial(
            self._log.count,
            ledger_id,
            first,
            end,
            messages_max=query.messages_max if query.HasField("messages_max") else None,
            bytes_max=query.bytes_max if query.HasField("bytes_max") else None,
        )
        async with self._counting:
            found = await self._reads.in_thread(count)
        published_ms = 0
        if query.publish_time and found.next_entry_id < stop:
            published_ms = await self._reads.about_entry(ledger_id, found.next_entry_id, publish_time_of)
        return codec.MessageCount(
            ledger_id=ledger_id,
            next_entry_id=found.next_entry_id,
            entries=found.entries,
            messages=found.messages,
            bytes=found.bytes,
            next_messages=found.next_messages,
            next_publish_time=published_ms,
        )

    async def _last_message(self, consumer: Consumer) -> tuple[int, int]:
        """The last entry that the consumer can get (-1 for none), and the index of the last message in it."""
        topic = subscribed_topic(consumer.subscription)
        last, compacted = topic.last_entry_id, topic.compacted
        if compacted is not None and consumer.reads_compacted and last <= compacted.horizon:
            # The last entries may have been removed by compaction: a client that waits for them would wait for ever.
            return await self._reads.in_thread(partial(self._last_compacted, compacted))
        if topic.transactions is not None:
            # A client that waits for an entry of an aborted transaction would wait for ever.
            last = topic.transactions.last_not_aborted(topic.first_entry_id, last)
        if last < topic.first_entry_id or not topic.persistent:
            return last, NO_BATCH
        return last, await self._index_in(topic, last)

    def _last_compacted(self, compacted: CompactedLedger) -> tuple[int, int]:
        entry_id, entry = compacted.last(self._log) or (-1, None)
        return entry_id, _batch_index(entry)

    async def _index_in(self, topic: Topic, entry_id: int) -> int:
        known = topic.last_index
        if known is None or known[0] != entry_id:
            known = topic.last_index = (entry_id, self._reads.about_entry(topic.ledger_id, entry_id, _batch_index))
            known[1].add_done_callback(partial(_forget_failed, topic))
        return await asyncio.shield(known[1])


def _forget_failed(topic: Topic, read: asyncio.Future[int]) -> None:
    """Remove a failed read, so that the next caller reads again."""
    if (read.cancelled() or read.exception() is not None) and topic.last_index is not None:
        topic.last_index = None if topic.last_index[1] is read else topic.last_index


def _batch_index(entry: bytes | None) -> int:
    if entry is not None:
        with contextlib.suppress(ProtocolError):  # an entry with unreadable metadata counts as not batched
            return last_index(metadata.decode(entry))
    return NO_BATCH


NO_WATCHER: Final = "Unable to create topic list watcher: "


class Found(NamedTuple):
    """The broker of a topic. Where its URLs are guessed, the client connects to it by the URL that it came by."""

    urls: ServiceUrls
    guessed: bool


class Discovery:
    """Answers lookup commands. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        lookups: ConcurrencyLimit,
        resources: NamespaceResources,
        partitions: Partitions,
        shared_listings: SharedListings,
        memory: Row,
        limits: Callable[[], BrokerLimits],
        clock: Clock,
        stopping: Callable[[], bool],
        check_serving: Callable[[TopicName], None],
        placement: Placement,
        migration: Migration,
        transactions: bool = False,
    ) -> None:
        self._lookups = lookups  # limits concurrent lookup requests
        self._resources = resources
        self._partitions = partitions
        self._shared_listings = shared_listings
        self._memory = memory  # charged for watchers
        self._limits = limits
        self._clock = clock
        self._stopping = stopping
        self._check_serving = check_serving  # raises ServiceNotReady, which names the topic, while stopping
        self._placement = placement
        self._migration = migration
        self._transactions = transactions  # whether they are enabled
        self.handlers: Mapping[int, Handler] = {
            codec.BaseCommand.PARTITIONED_METADATA: self._on_partitioned_metadata,
            codec.BaseCommand.LOOKUP: self._on_lookup,
            codec.BaseCommand.GET_TOPICS_OF_NAMESPACE: self._on_get_topics,
            codec.BaseCommand.WATCH_TOPIC_LIST: self._on_watch,
            codec.BaseCommand.WATCH_TOPIC_LIST_CLOSE: self._on_watch_close,
        }

    def _place(self) -> AbstractContextManager[None]:
        return self._lookups.enter_or_refuse("lookup", "maxConcurrentLookupRequest")

    def _on_lookup(self, session: Session, body: codec.CommandLookupTopic) -> None:
        try:
            with self._place():
                name = TopicName.parse(body.topic)
                self._check_serving(name)
                if not is_coordinator(str(name)):
                    session.require(Action.LOOKUP, name)
                self._resources.check_namespace(name.namespace_name)
                found = self._found(name, body.advertised_listener_name)
        except PenstockError as error:
            session.reply(codec.lookup_failed(body.request_id, error.wire_code, str(error)))
            return
        if (moved := self._migration.moved_to(name)) is not None:
            session.reply(codec.lookup_redirect(body.request_id, moved))
            return
        urls = found.urls
        session.reply(codec.lookup_connect(body.request_id, urls.plain, urls.tls, through_service_url=found.guessed))

    def _found(self, name: TopicName, listener: str) -> Found:
        """Find the topic's broker for this listener; an empty one, which some clients send, means none."""
        addresses = self._placement.addresses(name)
        if not listener.strip():
            return Found(addresses.service, addresses.guessed)
        urls = addresses.listeners.get(listener)
        if urls is None:
            # Pulsar's code and text: the C++ client depends on both.
            raise ServiceNotReady(f"the broker do not have {listener} listener")
        return Found(urls, guessed=False)

    def _on_partitioned_metadata(self, session: Session, body: codec.CommandPartitionedTopicMetadata) -> None:
        session.requests.start(body.request_id, partial(self._partitioned_metadata, session, body))

    async def _partitioned_metadata(self, session: Session, body: codec.CommandPartitionedTopicMetadata) -> None:
        try:
            with self._place():
                name = TopicName.parse(body.topic)
                self._check_serving(name)
                # Sent even to unauthorized clients, as by Pulsar: clients distinguish a missing tenant from a
                # forbidden one.
                self._resources.check_tenant(name.tenant)
                if not is_coordinator(str(name)):
                    session.require(Action.LOOKUP, name, refusal="Client is not authorized to Get Partition Metadata")
                # What is new of a namespace that was moved is made there.
                create = body.metadata_auto_creation_enabled and self._migration.moved_to(name) is None
                count = await self._count(name, create=create)
        except PenstockError as error:
            session.reply(codec.partitioned_metadata_failed(body.request_id, error.wire_code, str(error)))
            return
        session.reply(codec.partitioned_metadata(body.request_id, count))

    async def _count(self, name: TopicName, *, create: bool) -> int:
        """Partitions of a topic; of the topic whose partitions are transaction coordinators, how many there are."""
        if is_coordinator(str(name)) and name.partition < 0:
            return self._placement.brokers if self._transactions else 0
        return await self._partitions.for_client(name, create=create)

    def _on_get_topics(self, session: Session, body: codec.CommandGetTopicsOfNamespace) -> None:
        session.requests.start(body.request_id, partial(self._get_topics, session, body))

    async def _get_topics(self, session: Session, body: codec.CommandGetTopicsOfNamespace) -> None:
        with self._place():
            namespace = self._namespace(session, body.namespace)
            wanted = Wanted(str(namespace), Mode(body.mode))
            deadline_ns = self._deadline_ns(session)
            limits, pattern = self._limits(), body.topics_pattern
            if pattern and limits.evaluate_patterns and len(pattern) <= limits.pattern_length_max:
                with suppress(PatternNotServed):
                    await self._send_topics(session, body, namespace, wanted._replace(pattern=pattern), deadline_ns)
                    return
            # The client filters what we do not filter.
            await self._send_topics(session, body, namespace, wanted, deadline_ns)

    async def _send_topics(
        self,
        session: Session,
        body: codec.CommandGetTopicsOfNamespace,
        namespace: NamespaceName,
        wanted: Wanted,
        deadline_ns: int,
    ) -> None:
        owner = _owner(session, namespace)
        shared = self._shared_listings.of(wanted)
        async with shared.asked(owner, deadline_ns) as listing:
            changed = not body.topics_hash or body.topics_hash != listing.digest
            blocks = listing.blocks if changed else ()
            head = listings.topics_head(
                body.request_id,
                filtered=wanted.pattern is not None,
                topics_hash=listing.digest,
                changed=changed,
                shared_bytes=listing.written_bytes if changed else 0,
            )
            await shared.write(session.connection, head, Block.listed, blocks, owner=owner, deadline_ns=deadline_ns)

    def _deadline_ns(self, session: Session) -> int:
        """Monotonic time in ns until which the client must be answered."""
        return self._clock.monotonic_ns() + wait_ns_max(self._limits().listings, through_proxy=session.through_proxy)

    def _namespace(self, session: Session, text: str) -> NamespaceName:
        """The requested namespace. As in Pulsar, one that does not exist has no topics."""
        if self._stopping():
            raise ServiceNotReady("broker is stopping; ask another one")
        namespace = NamespaceName.parse(text)
        session.require(Action.LOOKUP, namespace)
        return namespace

    def _on_watch(self, session: Session, body: codec.CommandWatchTopicList) -> None:
        key = ("watcher", body.watcher_id)
        session.requests.start(
            body.request_id, partial(session.requests.create_once, key, partial(self._watch, session, body))
        )

    async def _watch(self, session: Session, body: codec.CommandWatchTopicList) -> None:
        with self._place():
            namespace = self._namespace(session, body.namespace)
            deadline_ns = self._deadline_ns(session)
            watcher = session.watchers.get(body.watcher_id)
            if watcher is not None:  # The client verifies its list.
                await watcher.answer(body.request_id, body.topics_hash, deadline_ns)
                return
            # A client whose watch was refused requests the whole list periodically.
            shared = self._watched(Wanted(str(namespace), pattern=body.topics_pattern))
            watcher = TopicListWatcher(
                body.watcher_id,
                shared,
                _owner(session, namespace),
                connection=session.connection,
                memory=self._memory,
                clock=self._clock,
                chance=self._shared_listings.chance,
            )
            try:
                session_memory.charge(self._memory, watcher, f"watcher {body.watcher_id}", session_memory.OBJECT_BYTES)
            except TooManyRequests:
                watcher.stop()
                raise
            session.watchers[body.watcher_id] = watcher
            try:
                await watcher.answer(body.request_id, body.topics_hash, deadline_ns)
            except BaseException as error:
                if session.watchers.get(body.watcher_id) is watcher:
                    del session.watchers[body.watcher_id]
                    watcher.stop()
                if isinstance(error, PatternNotServed):
                    raise NotAllowed(f"{NO_WATCHER}{error}") from None
                raise

    def _watched(self, wanted: Wanted) -> SharedListing:
        limits, pattern = self._limits(), wanted.pattern or ""
        if not limits.topic_list_watchers:
            raise NotAllowed(f"{NO_WATCHER}Topic-list watchers are disabled (enableBrokerTopicListWatcher).")
        if not limits.evaluate_patterns:
            raise NotAllowed(f"{NO_WATCHER}Evaluating subscription patterns is disabled.")
        if len(pattern) > limits.pattern_length_max:
            raise NotAllowed(f"{NO_WATCHER}Pattern longer than maximum: {limits.pattern_length_max}")
        return self._shared_listings.of(wanted)

    def _on_watch_close(self, session: Session, body: codec.CommandWatchTopicListClose) -> None:
        watcher = session.watchers.pop(body.watcher_id, None)
        if watcher is not None:
            watcher.stop()
        session.reply(codec.success(body.request_id))


def wait_ns_max(limits: TopicListLimits, *, through_proxy: bool) -> int:
    """Maximum total time to wait for memory, in ns: the larger of the two timeouts.

    Behind a proxy it is four fifths of that: the proxy waits for its own memory before and after, and its client waits
    30 s.
    """
    wait_ns = max(limits.heap_timeout_ns, limits.direct_timeout_ns)
    return wait_ns * 4 // 5 if through_proxy else wait_ns


def _owner(session: Session, namespace: NamespaceName) -> Owner:
    """The owner of listing memory: the tenant and the connection."""
    return Owner(namespace.tenant, session.connection.id)
