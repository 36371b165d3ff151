# SPDX-License-Identifier: Apache-2.0
"""Commands that find topics: LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE and WATCH_TOPIC_LIST.

Where: the session's table of handlers leads here. All of them are counted against `maxConcurrentLookupRequest`.

A LOOKUP says where a topic is, or would be: it creates nothing, and does not ask whether the topic exists. Java finds a
place for its watcher with a LOOKUP of the pattern itself, so any name will do.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access import Action
from penstock.broker.commands import membership
from penstock.broker.topics.listing import Mode, Wanted
from penstock.broker.topics.listing_blocks import Block
from penstock.broker.topics.patterns import PatternNotServed
from penstock.broker.topics.watchers import TopicListWatcher
from penstock.core.errors import NotAllowed, PenstockError, ServiceNotReady
from penstock.core.names import NamespaceName, TopicName
from penstock.net.topic_list_limiter import Owner
from penstock.wire import codec, listings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from penstock.broker.broker import Broker
    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.service_urls import ServiceUrls
    from penstock.broker.topics.shared_listings import SharedListing

NO_WATCHER: Final = "Unable to create topic list watcher: "


def _place(broker: Broker) -> AbstractContextManager[None]:
    return broker.lookups.pass_or_refuse("lookup", "maxConcurrentLookupRequest")


# -- LOOKUP -----------------------------------------------------------------------------------------------------------


def _on_lookup(session: Session, body: codec.CommandLookupTopic) -> None:
    broker = session.broker
    try:
        with _place(broker):
            name = TopicName.parse(body.topic)
            broker.check_lookup(name)
            session.require(Action.LOOKUP, name)
            broker.places.check_namespace(name.namespace_name)
            urls = _urls(broker, body.advertised_listener_name)
    except PenstockError as error:
        session.reply(codec.lookup_failed(body.request_id, error.wire_code, str(error)))
        return
    session.reply(codec.lookup_connect(body.request_id, urls.plain, urls.tls))


def _urls(broker: Broker, listener: str) -> ServiceUrls:
    """Where clients of this listener connect; a blank name is none, as some clients send it."""
    if not listener.strip():
        return broker.service_urls
    urls = broker.listeners.get(listener)
    if urls is None:
        # Pulsar's code and words: the C++ client goes by both.
        raise ServiceNotReady(f"the broker do not have {listener} listener")
    return urls


# -- PARTITIONED_METADATA ---------------------------------------------------------------------------------------------


def _on_partitioned_metadata(session: Session, body: codec.CommandPartitionedTopicMetadata) -> None:
    session.request(body.request_id, partial(_partitioned_metadata, session, body))


async def _partitioned_metadata(session: Session, body: codec.CommandPartitionedTopicMetadata) -> None:
    broker = session.broker
    try:
        with _place(broker):
            name = TopicName.parse(body.topic)
            broker.check_lookup(name)
            # Told to everybody, as by Pulsar: clients tell a tenant that is missing from one that is closed to them.
            broker.places.check_tenant(name.tenant)
            session.require(Action.LOOKUP, name, refusal="Client is not authorized to Get Partition Metadata")
            count = await broker.partitions.for_client(name, create=body.metadata_auto_creation_enabled)
    except PenstockError as error:
        session.reply(codec.partitioned_metadata_failed(body.request_id, error.wire_code, str(error)))
        return
    session.reply(codec.partitioned_metadata(body.request_id, count))


# -- GET_TOPICS_OF_NAMESPACE ------------------------------------------------------------------------------------------


def _on_get_topics(session: Session, body: codec.CommandGetTopicsOfNamespace) -> None:
    session.request(body.request_id, partial(_get_topics, session, body))


async def _get_topics(session: Session, body: codec.CommandGetTopicsOfNamespace) -> None:
    broker = session.broker
    with _place(broker):
        namespace = _namespace(session, body.namespace)
        wanted = Wanted(str(namespace), Mode(body.mode))
        deadline_ns = _deadline_ns(session)
        limits, pattern = broker.limits, body.topics_pattern
        if pattern and limits.evaluate_patterns and len(pattern) <= limits.pattern_length_max:
            with suppress(PatternNotServed):
                await _send_topics(session, body, namespace, wanted._replace(pattern=pattern), deadline_ns)
                return
        # What we do not filter, the client does.
        await _send_topics(session, body, namespace, wanted, deadline_ns)


async def _send_topics(
    session: Session,
    body: codec.CommandGetTopicsOfNamespace,
    namespace: NamespaceName,
    wanted: Wanted,
    deadline_ns: int,
) -> None:
    owner = _owner(session, namespace)
    shared = session.broker.shared_listings.of(wanted)
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


def _owner(session: Session, namespace: NamespaceName) -> Owner:
    """Whose share of the listings' memory this takes."""
    return Owner(namespace.tenant, session.connection.id)


def _deadline_ns(session: Session) -> int:
    """When the client must have its answer: all waits for memory together take no longer than one may.

    A proxy has waited for its own memory before, and will again: what is left to us is four fifths, so that its client
    hears from it within the 30 s that clients wait.
    """
    broker = session.broker
    limits = broker.limits.listings
    wait_ns = max(limits.heap_timeout_ns, limits.direct_timeout_ns)
    return broker.clock.monotonic_ns() + (wait_ns * 4 // 5 if session.through_proxy else wait_ns)


def _namespace(session: Session, text: str) -> NamespaceName:
    """The namespace that is asked for. One that does not exist has no topics: that is the answer Pulsar gives."""
    if session.broker.stopping:
        raise ServiceNotReady("broker is stopping; ask another one")
    namespace = NamespaceName.parse(text)
    session.require(Action.LOOKUP, namespace)
    return namespace


# -- WATCH_TOPIC_LIST -------------------------------------------------------------------------------------------------


def _on_watch(session: Session, body: codec.CommandWatchTopicList) -> None:
    key = ("watcher", body.watcher_id)
    session.request(body.request_id, partial(session.create_once, key, partial(_watch, session, body)))


async def _watch(session: Session, body: codec.CommandWatchTopicList) -> None:
    broker = session.broker
    with _place(broker):
        namespace = _namespace(session, body.namespace)
        deadline_ns = _deadline_ns(session)
        watcher = session.watchers.get(body.watcher_id)
        if watcher is not None:  # The client wants to be sure of what it knows.
            await watcher.answer(body.request_id, body.topics_hash, deadline_ns)
            return
        # A refused client asks for whole lists from time to time.
        shared = _watched(broker, Wanted(str(namespace), pattern=body.topics_pattern))
        watcher = TopicListWatcher(
            body.watcher_id,
            shared,
            _owner(session, namespace),
            connection=session.connection,
            memory=session.broker.sessions_memory,
            clock=session.broker.clock,
            chance=session.broker.shared_listings.chance,
        )
        try:
            membership.charge(broker.sessions_memory, watcher, f"watcher {body.watcher_id}", membership.MEMBER_BYTES)
        except membership.SessionsFull:
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
                text = f"RE2 does not know the pattern {body.topics_pattern!r}, or needs too much memory for it."
                raise NotAllowed(f"{NO_WATCHER}{text}") from None
            raise


def _watched(broker: Broker, wanted: Wanted) -> SharedListing:
    limits, pattern = broker.limits, wanted.pattern or ""
    if not limits.topic_list_watchers:
        raise NotAllowed(f"{NO_WATCHER}Topic-list watchers are disabled (enableBrokerTopicListWatcher).")
    if not limits.evaluate_patterns:
        raise NotAllowed(f"{NO_WATCHER}Evaluating subscription patterns is disabled.")
    if len(pattern) > limits.pattern_length_max:
        raise NotAllowed(f"{NO_WATCHER}Pattern longer than maximum: {limits.pattern_length_max}")
    return broker.shared_listings.of(wanted)


def _on_watch_close(session: Session, body: codec.CommandWatchTopicListClose) -> None:
    watcher = session.watchers.pop(body.watcher_id, None)
    if watcher is not None:
        watcher.stop()
    session.reply(codec.success(body.request_id))


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.PARTITIONED_METADATA: _on_partitioned_metadata,
    codec.BaseCommand.LOOKUP: _on_lookup,
    codec.BaseCommand.GET_TOPICS_OF_NAMESPACE: _on_get_topics,
    codec.BaseCommand.WATCH_TOPIC_LIST: _on_watch,
    codec.BaseCommand.WATCH_TOPIC_LIST_CLOSE: _on_watch_close,
}
