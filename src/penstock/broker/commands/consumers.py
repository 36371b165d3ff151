# SPDX-License-Identifier: Apache-2.0
"""Consumer commands: SUBSCRIBE and the commands of subscribed clients, except FLOW and ACK.

Where: called from the session's table of handlers. FLOW and ACK are frequent; the session passes them to the
subscription directly.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access import Action
from penstock.broker.commands import session_memory
from penstock.broker.commands.schemas import schema_in
from penstock.broker.schemas.checks.model import SchemaType
from penstock.broker.subscriptions.consumer import Consumer
from penstock.broker.subscriptions.key_ranges import AUTO_SPLIT, KeySharing
from penstock.broker.subscriptions.replicating import with_replicated
from penstock.broker.subscriptions.state import EXCLUSIVE, FAILOVER, KEY_SHARED, TYPE_NAMES
from penstock.broker.subscriptions.subscription import subscription_of
from penstock.broker.topics.topic import subscribed_topic
from penstock.core.errors import (
    ConsumerBusy,
    MetadataFailed,
    NotAllowed,
    ProducerBusy,
    ServiceNotReady,
    SubscriptionNotFound,
    WireCode,
)
from penstock.core.names import REPLICATOR_PREFIX, TopicName
from penstock.core.position import EARLIEST, LATEST
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.schemas.checks.model import Schema
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.migration import Migration
    from penstock.broker.topics.subscription_store import SubscriptionStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row

# Subscription names reserved by penstock or Pulsar.
_RESERVED_NAMES: Final = frozenset({"pulsar.dedup", "__compaction"})
_ENTRY_IDS_STOP: Final = 2**63
_STRICT_NAME: Final = re.compile(r"[-=:.\w]+", re.ASCII)


class Consumers:
    """Attaches consumers and answers their commands. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        schemas: SchemaRegistry,
        rates: Rates,
        changes: Changes,
        reads: LogReads,
        store: SubscriptionStore,
        memory: Row,
        clock: Clock,
        limits: Callable[[], BrokerLimits],
        migration: Migration,
    ) -> None:
        self._topics = topics
        self._schemas = schemas
        self._rates = rates
        self._changes = changes
        self._reads = reads
        self._store = store
        self._memory = memory
        self._clock = clock
        self._limits = limits
        self._migration = migration
        self.handlers: Mapping[int, Handler] = {
            codec.BaseCommand.SUBSCRIBE: self._on_subscribe,
            codec.BaseCommand.CLOSE_CONSUMER: _on_close_consumer,
            codec.BaseCommand.UNSUBSCRIBE: self._on_unsubscribe,
            codec.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: _on_redeliver,
            codec.BaseCommand.SEEK: self._on_seek,
            codec.BaseCommand.CONSUMER_STATS: self._on_consumer_stats,
        }

    def _on_subscribe(self, session: Session, body: codec.CommandSubscribe) -> None:
        coming, consumer_id = session.creating_consumers, body.consumer_id
        create = partial(
            session.requests.create_once, ("consumer", consumer_id), partial(self._create_consumer, session, body)
        )
        task = session.requests.start(body.request_id, create)
        if consumer_id not in coming:
            coming[consumer_id] = task
            task.add_done_callback(lambda done: coming.pop(consumer_id) if coming.get(consumer_id) is done else None)

    async def _create_consumer(self, session: Session, body: codec.CommandSubscribe) -> None:
        """Checks are in Pulsar's order, so a client that breaks two rules gets the same error as from Pulsar."""
        if body.consumer_id in session.consumers:  # SUBSCRIBE was sent twice; the first one has created the consumer.
            session.reply(codec.success(body.request_id))
            return
        name = TopicName.parse(body.topic)
        session.require(Action.CONSUME, name, subscription=body.subscription)
        if not session.of_broker:
            await self._migration.admit(name)
        topic = await self._topics.get_or_create(name, create=body.force_topic_creation)
        durable = body.durable and topic.persistent
        if (
            durable
            and body.subscription not in topic.subscriptions
            and not topic.policies.allow_auto_subscription_creation
        ):
            raise SubscriptionNotFound(topic.text, body.subscription)
        schema = schema_in(body)
        await self._schemas.attach_consumer(topic, schema)
        self._check_subscribe(session, topic, body)
        is_new = body.subscription not in topic.subscriptions
        subscription = await self._subscription(topic, body)
        try:
            if not self._migration.sends_on(session, subscription, body.consumer_id):
                await self._attach(session, body, subscription, schema)
        except BaseException:
            if is_new:  # A non-durable subscription was created for the consumer that failed.
                topic.end_if_idle(subscription)
            raise

    async def _attach(
        self, session: Session, body: codec.CommandSubscribe, subscription: Subscription, schema: Schema | None
    ) -> None:
        consumer = Consumer(
            session=session,
            outlet=session.connection,
            consumer_id=body.consumer_id,
            name=body.consumer_name,
            priority_level=body.priority_level,
            subscription=subscription,
            epoch=body.consumer_epoch if body.HasField("consumer_epoch") else None,
            connected_at_ms=self._clock.wall_ms(),
            metadata={pair.key: pair.value for pair in body.metadata},
            key_sharing=_key_sharing(body),
        )
        consumer.reads_compacted = body.read_compacted
        consumer.takes_any_schema = schema is not None and schema.type is SchemaType.AUTO_CONSUME
        session_memory.charge(
            self._memory, consumer, f"consumer {consumer.name!r}", self._price(consumer, body.subType)
        )
        try:
            await self._join(session, consumer, body)
        except BaseException:
            if session.consumers.get(consumer.consumer_id) is not consumer:
                session_memory.release(self._memory, consumer)
            raise

    def _price(self, consumer: Consumer, kind: int) -> int:
        limits, subscription = self._limits(), consumer.subscription
        nbytes = (
            session_memory.OBJECT_BYTES
            + session_memory.texts_bytes(consumer.name)
            + session_memory.pairs_bytes(consumer.metadata)
        )
        if kind == KEY_SHARED:
            nbytes += session_memory.sharing_bytes(consumer.key_sharing, limits.key_shared_points)
        if not subscription.durable:
            nbytes += session_memory.OWN_SUBSCRIPTION_BYTES + session_memory.texts_bytes(subscription.name)
        return nbytes

    async def _join(self, session: Session, consumer: Consumer, body: codec.CommandSubscribe) -> None:
        subscription = consumer.subscription
        topic = subscribed_topic(subscription)
        await _make_room(consumer, body.subType)
        if topic.subscriptions.get(subscription.name) is not subscription:
            # The subscription was removed with its last consumer, which did not answer a probe: create a new one.
            consumer.subscription = subscription = await self._subscription(topic, body)
        topic.check_open()
        # Check again: the permission may have been revoked while this waited.
        session.require(Action.CONSUME, topic.name, subscription=subscription.name)
        if not session.of_broker:
            self._check_bounds(consumer)
        subscription.add(consumer, body.subType)
        if session.of_broker:
            self._rates.exempt(subscription)
        session.consumers[body.consumer_id] = consumer
        session.reply(codec.success(body.request_id))
        subscription.attached(consumer)

    def _check_subscribe(self, session: Session, topic: Topic, body: codec.CommandSubscribe) -> None:
        """Raises NotAllowed or ProducerBusy (Pulsar's code for an invalid name) if the command cannot succeed."""
        kind = TYPE_NAMES[body.subType]
        if body.read_compacted and (body.subType not in (EXCLUSIVE, FAILOVER) or not topic.persistent):
            raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
        if topic.policies.subscription_types and kind not in topic.policies.subscription_types:
            raise NotAllowed(f"Topic[{topic.text}] doesn't support {kind} sub type!")
        check_subscription_name(body.subscription, strict=self._limits().strict_subscription_names)
        self._rates.check_subscribe(topic, session.payer_role)

    async def _subscription(self, topic: Topic, body: codec.CommandSubscribe) -> Subscription:
        start = await self._start_entry(topic, body)
        properties = with_replicated(
            {pair.key: pair.value for pair in body.subscription_properties},
            replicated=body.replicate_subscription_state,
        )
        subscription = await topic.open_subscription(
            body.subscription, durable=body.durable, start=start, properties=properties
        )
        if body.replicate_subscription_state and subscription.durable and not subscription.replicated:
            await self._store.put_properties(subscription, subscription.properties, replicated=True)
        return subscription

    def _check_bounds(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if the topic or the subscription has its maximum number of consumers."""
        topic = subscribed_topic(consumer.subscription)
        policies, of_broker = topic.policies, self._limits().policies
        present = sum(len(subscription.consumers) for subscription in topic.subscriptions.values())
        if policies.max_consumers and present >= policies.max_consumers:
            raise ConsumerBusy("Topic reached max consumers limit")
        if of_broker.max_same_address_consumers_per_topic:
            host = consumer.address.rpartition(":")[0]
            everybody = (other for subscription in topic.subscriptions.values() for other in subscription.consumers)
            alike = sum(other.address.rpartition(":")[0] == host for other in everybody)
            if alike >= of_broker.max_same_address_consumers_per_topic:
                raise ConsumerBusy("Topic reached max same address consumers limit")
        bound = policies.max_consumers_per_subscription
        if bound and len(consumer.subscription.consumers) >= bound:
            raise ConsumerBusy("Subscription reached max consumers limit")

    async def _start_entry(self, topic: Topic, body: codec.CommandSubscribe) -> int:
        """The first entry that a new subscription would deliver."""
        if body.subscription in topic.subscriptions:
            return 0
        if body.start_message_rollback_duration_sec:
            since_ms = self._clock.wall_ms() - 1000 * body.start_message_rollback_duration_sec
            return await self._reads.first_published_since(topic, since_ms)
        if not body.durable and body.HasField("start_message_id"):
            wanted = body.start_message_id
            position = (wanted.ledgerId, wanted.entryId)
            if position == EARLIEST:
                return _first_entry(topic, compacted=body.read_compacted)
            if position == LATEST:
                return topic.last_entry_id + 1
            # The start message of a reader is delivered too: the client drops it, or part of its batch, unless it is
            # inclusive.
            return _entry_at_or_after(topic, wanted)
        if body.initialPosition == codec.CommandSubscribe.Earliest:
            return _first_entry(topic, compacted=body.read_compacted)
        return topic.last_entry_id + 1

    def _on_seek(self, session: Session, body: codec.CommandSeek) -> None:
        session.requests.start(body.request_id, partial(self._seek, session, body))

    async def _seek(self, session: Session, body: codec.CommandSeek) -> None:
        consumer = session.consumer(body.consumer_id)
        subscription = consumer.subscription
        topic = subscribed_topic(subscription)
        members: list[int] = []
        if body.HasField("message_id"):
            entry_id = _entry_at_or_after(topic, body.message_id)
            if (body.message_id.ledgerId, body.message_id.entryId) == EARLIEST:
                entry_id = _first_entry(topic, compacted=consumer.reads_compacted)
            if (body.message_id.ledgerId, body.message_id.entryId) == (topic.ledger_id, entry_id):
                members = list(body.message_id.ack_set)
        elif body.HasField("message_publish_time"):
            entry_id = await self._reads.first_published_since(topic, body.message_publish_time)
        else:
            raise MetadataFailed("SEEK names neither a message id nor a time")
        # Finished even if the client disconnects: it may close its connection when its consumer is disconnected.
        await self._changes.finish(subscription.move_to(entry_id, members))
        session.reply(codec.success(body.request_id))

    def _on_unsubscribe(self, session: Session, body: codec.CommandUnsubscribe) -> None:
        session.requests.start(body.request_id, partial(self._unsubscribe, session, body))

    async def _unsubscribe(self, session: Session, body: codec.CommandUnsubscribe) -> None:
        subscription = subscription_of(session.consumer(body.consumer_id))
        others = [c for c in subscription.consumers if c.consumer_id != body.consumer_id or c.session is not session]
        if others and not body.force:
            raise ConsumerBusy(f"subscription {subscription.name!r} has {len(others)} other connected consumers")
        # Finished even if the client disconnects: consumers of a deleted subscription would wait for ever.
        await self._changes.finish(self._end_subscription(session, subscription, body.consumer_id))
        session.reply(codec.success(body.request_id))

    async def _end_subscription(self, session: Session, subscription: Subscription, consumer_id: int) -> None:
        await self._store.delete(subscription)
        for consumer in list(subscription.consumers):
            if consumer.session is session and consumer.consumer_id == consumer_id:
                session.forget_consumer(consumer)
            else:
                consumer.session.disconnect_consumer(consumer)

    def _on_consumer_stats(self, session: Session, body: codec.CommandConsumerStats) -> None:
        consumer = session.consumers.get(body.consumer_id)
        if consumer is None:
            session.reply(
                codec.consumer_stats_failed(body.request_id, WireCode.CONSUMER_NOT_FOUND, "Consumer not found")
            )
            return
        session.reply(codec.consumer_stats(body.request_id, self._stats_of(consumer)))

    def _stats_of(self, consumer: Consumer) -> dict[str, object]:
        now_ms = self._clock.wall_ms()
        seconds = max((now_ms - consumer.connected_at_ms) / 1000, 0.001)
        return {
            "msgRateOut": consumer.messages_out / seconds,
            "msgThroughputOut": consumer.bytes_out / seconds,
            "msgRateRedeliver": consumer.messages_redelivered / seconds,
            "consumerName": consumer.name,
            "availablePermits": max(consumer.permits, 0),
            "unackedMessages": consumer.unacked,
            "blockedConsumerOnUnackedMsgs": consumer.blocked,
            "address": consumer.address,
            "connectedSince": _iso_time(consumer.connected_at_ms),
            "type": TYPE_NAMES[consumer.subscription.kind],
            "msgRateExpired": 0.0,
            "msgBacklog": consumer.subscription.backlog,
            "messageAckRate": consumer.acks / seconds,
        }


def check_subscription_name(name: str, *, strict: bool) -> None:
    """Raises ProducerBusy, as Pulsar does, for an invalid or reserved subscription name."""
    if not name.strip():
        raise ProducerBusy("Empty subscription name")
    if name.startswith(REPLICATOR_PREFIX) or name in _RESERVED_NAMES:
        raise ProducerBusy(f"Subscription with reserved subscription name attempted: {name}")
    if strict and _STRICT_NAME.fullmatch(name) is None:
        raise ProducerBusy(
            f"subscription name {name!r} may hold letters, digits and - = : . _ only (strictlyVerifySubscriptionName)"
        )


def _key_sharing(body: codec.CommandSubscribe) -> KeySharing:
    """The Key_Shared policy; older clients send none."""
    if not body.HasField("keySharedMeta"):
        return AUTO_SPLIT
    meta = body.keySharedMeta
    return KeySharing(
        sticky=meta.keySharedMode == codec.KeySharedMode.STICKY,
        out_of_order=meta.allowOutOfOrderDelivery,
        ranges=tuple((each.start, each.end) for each in meta.hashRanges),
    )


async def _make_room(consumer: Consumer, kind: int) -> None:
    """If a connected consumer conflicts by type or hash range, probe it, so that a dead one is removed."""
    subscription = consumer.subscription
    if subscription.fenced:
        raise ServiceNotReady(f"subscription {subscription.name!r} is being reset; try again")
    for holder in subscription.conflicting(consumer, kind):
        if holder.session is consumer.session or await holder.session.probe():
            return  # `add` raises the error.


def _first_entry(topic: Topic, *, compacted: bool) -> int:
    """The first entry to read; a compacted ledger keeps entries that are trimmed from the topic."""
    return 0 if compacted and topic.compacted is not None else topic.first_entry_id


def _entry_at_or_after(topic: Topic, wanted: codec.MessageIdData) -> int:
    position = (wanted.ledgerId, wanted.entryId)
    if position == EARLIEST or wanted.ledgerId < topic.ledger_id:
        return topic.first_entry_id
    if position == LATEST or wanted.ledgerId > topic.ledger_id:
        return topic.last_entry_id + 1
    # Entry -1 is the position before the first entry of its ledger; the field is unsigned.
    entry_id = wanted.entryId if wanted.entryId < _ENTRY_IDS_STOP else -1
    return max(topic.first_entry_id, min(entry_id, topic.last_entry_id + 1))


def _on_redeliver(session: Session, body: codec.CommandRedeliverUnacknowledgedMessages) -> None:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        ledger_id = consumer.subscription.topic.ledger_id
        entry_ids = [m.entryId for m in body.message_ids if m.ledgerId == ledger_id]
        if entry_ids or not body.message_ids:
            epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, entry_ids, epoch)


def _on_close_consumer(session: Session, body: codec.CommandCloseConsumer) -> None:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        session.forget_consumer(consumer)
    # As in Pulsar, a pending SUBSCRIBE for this consumer then gets no answer.
    coming = session.creating_consumers.pop(body.consumer_id, None)
    if coming is not None:
        coming.cancel()
    session.reply(codec.success(body.request_id))


def _iso_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
