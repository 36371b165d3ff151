# SPDX-License-Identifier: Apache-2.0
"""Commands about consumers: SUBSCRIBE and what a subscribed client may ask, but for FLOW and ACK.

Where: the session's table of handlers leads here. FLOW and ACK, which come with every few messages, go from the session
to the subscription directly.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access import Action
from penstock.broker.commands import membership
from penstock.broker.commands.schemas import schema_in
from penstock.broker.schemas.checks.model import SchemaType
from penstock.broker.subscriptions.consumer import Consumer
from penstock.broker.subscriptions.key_shared import AUTO_SPLIT, KeySharing
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
from penstock.core.names import TopicName
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
    from penstock.broker.topics.subscription_store import SubscriptionStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.governance.memory_row import MemoryRow

# Names of subscriptions that the broker, or Pulsar's, keeps for itself.
_RESERVED_PREFIX: Final = "pulsar.repl."
_RESERVED_NAMES: Final = frozenset({"pulsar.dedup", "__compaction"})
_ENTRY_IDS_STOP: Final = 2**63
_STRICT_NAME: Final = re.compile(r"[-=:.\w]+", re.ASCII)


class Consumers:
    """Lets consumers in, and answers them. Everything is called on the loop."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        schemas: SchemaRegistry,
        rates: Rates,
        changes: Changes,
        reads: LogReads,
        store: SubscriptionStore,
        memory: MemoryRow,
        clock: Clock,
        limits: Callable[[], BrokerLimits],
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
        """Checks are in the order in which Pulsar makes them: clients that break two rules are told of the same one."""
        if body.consumer_id in session.consumers:  # Said twice, perhaps in one breath: the first made it.
            session.reply(codec.success(body.request_id))
            return
        name = TopicName.parse(body.topic)
        session.require(Action.CONSUME, name, subscription=body.subscription)
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
            await self._attach(session, body, subscription, schema)
        except BaseException:
            if is_new:  # One that is not durable was made for a consumer that does not come.
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
        membership.charge(self._memory, consumer, f"consumer {consumer.name!r}", self._price(consumer, body.subType))
        try:
            await self._join(session, consumer, body)
        except BaseException:
            if session.consumers.get(consumer.consumer_id) is not consumer:
                membership.give_back(self._memory, consumer)
            raise

    def _price(self, consumer: Consumer, kind: int) -> int:
        limits, subscription = self._limits(), consumer.subscription
        nbytes = (
            membership.MEMBER_BYTES + membership.texts_bytes(consumer.name) + membership.pairs_bytes(consumer.metadata)
        )
        if kind == KEY_SHARED:
            nbytes += membership.sharing_bytes(consumer.key_sharing, limits.key_shared_points)
        if not subscription.durable:
            nbytes += membership.OWN_SUBSCRIPTION_BYTES + membership.texts_bytes(subscription.name)
        return nbytes

    async def _join(self, session: Session, consumer: Consumer, body: codec.CommandSubscribe) -> None:
        subscription = consumer.subscription
        topic = subscribed_topic(subscription)
        await _make_room(consumer, body.subType)
        if topic.subscriptions.get(subscription.name) is not subscription:
            # It went with the last of its consumers, who was found dead: this one gets its own.
            consumer.subscription = subscription = await self._subscription(topic, body)
        topic.check_open()
        # Again: it may have waited, and a grant been taken back meanwhile.
        session.require(Action.CONSUME, topic.name, subscription=subscription.name)
        self._check_bounds(consumer)
        subscription.add(consumer, body.subType)
        subscription.replicated = subscription.replicated or body.replicate_subscription_state
        session.consumers[body.consumer_id] = consumer
        session.reply(codec.success(body.request_id))
        subscription.attached(consumer)

    def _check_subscribe(self, session: Session, topic: Topic, body: codec.CommandSubscribe) -> None:
        """Raises NotAllowed or ProducerBusy (Pulsar's code for a bad name) when the command can have no success."""
        kind = TYPE_NAMES[body.subType]
        if body.read_compacted and (body.subType not in (EXCLUSIVE, FAILOVER) or not topic.persistent):
            raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
        if topic.policies.subscription_types and kind not in topic.policies.subscription_types:
            raise NotAllowed(f"Topic[{topic.text}] doesn't support {kind} sub type!")
        check_subscription_name(body.subscription, strict=self._limits().strict_subscription_names)
        address = session.connection.peer.rpartition(":")[0]
        self._rates.check_subscribe(topic, address, body.consumer_name, body.consumer_id)

    async def _subscription(self, topic: Topic, body: codec.CommandSubscribe) -> Subscription:
        """The subscription, made if it is not there."""
        if body.subscription not in topic.subscriptions and body.durable and topic.persistent:
            check_subscription_bound(topic)
        start = await self._start_entry(topic, body)
        properties = {pair.key: pair.value for pair in body.subscription_properties}
        return await topic.open_subscription(
            body.subscription, durable=body.durable, start=start, properties=properties
        )

    def _check_bounds(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy when the topic or the subscription has as many consumers as it may have."""
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
        """The first entry that a subscription made now would deliver."""
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
            # What a reader names is delivered again: the client leaves it out, or a part of it, unless it was told not
            # to.
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
        # Carried to its end: the client whose consumer is disconnected on the way may close its connection at that.
        await self._changes.finish(subscription.move_to(entry_id, members))
        session.reply(codec.success(body.request_id))

    def _on_unsubscribe(self, session: Session, body: codec.CommandUnsubscribe) -> None:
        session.requests.start(body.request_id, partial(self._unsubscribe, session, body))

    async def _unsubscribe(self, session: Session, body: codec.CommandUnsubscribe) -> None:
        subscription = subscription_of(session.consumer(body.consumer_id))
        others = [c for c in subscription.consumers if c.consumer_id != body.consumer_id or c.session is not session]
        if others and not body.force:
            raise ConsumerBusy(f"subscription {subscription.name!r} has {len(others)} other connected consumers")
        # To its end also when the client goes away: consumers of a subscription that is gone would wait for ever.
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
    """Raises ProducerBusy, as Pulsar answers, for a name that no subscription of users can have."""
    if not name.strip():
        raise ProducerBusy("Empty subscription name")
    if name.startswith(_RESERVED_PREFIX) or name in _RESERVED_NAMES:
        raise ProducerBusy(f"Subscription with reserved subscription name attempted: {name}")
    if strict and _STRICT_NAME.fullmatch(name) is None:
        raise ProducerBusy(
            f"subscription name {name!r} may hold letters, digits and - = : . _ only (strictlyVerifySubscriptionName)"
        )


def check_subscription_bound(topic: Topic) -> None:
    """Raises NotAllowed when the topic may not have one more durable subscription."""
    bound = topic.policies.max_subscriptions
    if bound and sum(subscription.durable for subscription in topic.subscriptions.values()) >= bound:
        raise NotAllowed(f"Exceed the maximum number of subscriptions of the topic: {topic.text}")


def _key_sharing(body: codec.CommandSubscribe) -> KeySharing:
    """How keys are divided; clients older than the choice say nothing."""
    if not body.HasField("keySharedMeta"):
        return AUTO_SPLIT
    meta = body.keySharedMeta
    return KeySharing(
        sticky=meta.keySharedMode == codec.KeySharedMode.STICKY,
        out_of_order=meta.allowOutOfOrderDelivery,
        ranges=tuple((each.start, each.end) for each in meta.hashRanges),
    )


async def _make_room(consumer: Consumer, kind: int) -> None:
    """A place that is taken, by type or by range, is free again when its holder is found dead."""
    subscription = consumer.subscription
    if subscription.fenced:
        raise ServiceNotReady(f"subscription {subscription.name!r} is being reset; try again")
    for holder in subscription.conflicting(consumer, kind):
        if holder.session is consumer.session or await holder.session.probe():
            return  # `add` refuses with the right words.


def _first_entry(topic: Topic, *, compacted: bool) -> int:
    """The first entry there is; the compacted topic keeps entries that the topic itself has given up."""
    return 0 if compacted and topic.compacted is not None else topic.first_entry_id


def _entry_at_or_after(topic: Topic, wanted: codec.MessageIdData) -> int:
    position = (wanted.ledgerId, wanted.entryId)
    if position == EARLIEST or wanted.ledgerId < topic.ledger_id:
        return topic.first_entry_id
    if position == LATEST or wanted.ledgerId > topic.ledger_id:
        return topic.last_entry_id + 1
    # Entry -1 is before the first one of its ledger; the field is unsigned.
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
    # As in Pulsar, the SUBSCRIBE that made it, or would have made it, gets no answer then.
    coming = session.creating_consumers.pop(body.consumer_id, None)
    if coming is not None:
        coming.cancel()
    session.reply(codec.success(body.request_id))


def _iso_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
