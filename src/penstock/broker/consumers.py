# SPDX-License-Identifier: Apache-2.0
"""Commands about consumers: SUBSCRIBE and what a subscribed client may ask, but for FLOW and ACK.

Where: the session's table of handlers leads here. FLOW and ACK, which come with every few messages, go from the session
to the subscription directly.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.members import Consumer
from penstock.broker.subscription import EXCLUSIVE, FAILOVER, SHARED
from penstock.core.errors import ConsumerBusy, MetadataFailed, NotAllowed, ProducerBusy, ServiceNotReady, WireCode
from penstock.core.names import TopicName
from penstock.core.position import EARLIEST, LATEST
from penstock.wire import codec, metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.session import Handler, Session
    from penstock.broker.subscription import Subscription
    from penstock.broker.topic import Topic


def _on_subscribe(session: Session, body: codec.CommandSubscribe) -> None:
    if body.consumer_id in session.consumers:
        session.reply(codec.success(body.request_id))
        return
    key = ("consumer", body.consumer_id)
    session.request(body.request_id, partial(session.create_once, key, partial(_create_consumer, session, body)))


async def _create_consumer(session: Session, body: codec.CommandSubscribe) -> None:
    if not body.subscription:
        raise ProducerBusy("the subscription's name is empty")
    if body.subType not in (EXCLUSIVE, SHARED, FAILOVER):
        raise NotAllowed("this broker serves the subscription types Exclusive, Shared and Failover")
    if body.read_compacted:
        raise NotAllowed("this broker does not compact topics; read without readCompacted")
    topic = await session.broker.topics.get_or_create(TopicName.parse(body.topic), create=body.force_topic_creation)
    start = await _start_entry(session, topic, body)
    subscription = await topic.open_subscription(body.subscription, durable=body.durable, start=start)
    await _make_room(session, subscription, body.subType)
    consumer = Consumer(
        session=session,
        consumer_id=body.consumer_id,
        name=body.consumer_name,
        priority_level=body.priority_level,
        subscription=subscription,
        epoch=body.consumer_epoch if body.HasField("consumer_epoch") else None,
        connected_at_ms=session.broker.clock.wall_ms(),
    )
    subscription.add(consumer, body.subType)
    session.consumers[body.consumer_id] = consumer
    session.reply(codec.success(body.request_id))
    subscription.attached()


async def _make_room(session: Session, subscription: Subscription, kind: int) -> None:
    """An exclusive place, or a place of another type, is free again when its holder is found dead."""
    if subscription.fenced:
        raise ServiceNotReady(f"subscription {subscription.name!r} is being reset; try again")
    if subscription.consumers and (kind == EXCLUSIVE or kind != subscription.kind):
        for holder in list(subscription.consumers):
            if holder.session is session or await holder.session.probe():
                return  # `add` refuses with the right words.


async def _start_entry(session: Session, topic: Topic, body: codec.CommandSubscribe) -> int:
    """The first entry that a subscription made now would deliver."""
    if body.subscription in topic.subscriptions:
        return 0
    if body.start_message_rollback_duration_sec:
        since_ms = session.broker.clock.wall_ms() - 1000 * body.start_message_rollback_duration_sec
        return await session.broker.first_entry_published_since(topic, since_ms)
    if not body.durable and body.HasField("start_message_id"):
        wanted = body.start_message_id
        position = (wanted.ledgerId, wanted.entryId)
        if position in (EARLIEST, LATEST):
            return topic.first_entry_id if position == EARLIEST else topic.last_entry_id + 1
        # A reader starts behind the id it names, unless the id is inside a batch: then the client skips to it.
        return _entry_at_or_after(topic, wanted, exclusive=wanted.batch_index < 0)
    if body.initialPosition == codec.CommandSubscribe.Earliest:
        return topic.first_entry_id
    return topic.last_entry_id + 1


def _entry_at_or_after(topic: Topic, wanted: codec.MessageIdData, *, exclusive: bool) -> int:
    position = (wanted.ledgerId, wanted.entryId)
    if position == EARLIEST or wanted.ledgerId < topic.ledger_id:
        return topic.first_entry_id
    if position == LATEST or wanted.ledgerId > topic.ledger_id:
        return topic.last_entry_id + 1
    return min(wanted.entryId + int(exclusive), topic.last_entry_id + 1)


def _on_redeliver(session: Session, body: codec.CommandRedeliverUnacknowledgedMessages) -> None:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        ledger_id = consumer.subscription.topic.ledger_id
        entry_ids = [m.entryId for m in body.message_ids if m.ledgerId == ledger_id]
        if entry_ids or not body.message_ids:
            epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
            consumer.subscription.redeliver(consumer, entry_ids, epoch)


def _on_seek(session: Session, body: codec.CommandSeek) -> None:
    session.request(body.request_id, partial(_seek, session, body))


async def _seek(session: Session, body: codec.CommandSeek) -> None:
    consumer = session.consumer(body.consumer_id)
    subscription = consumer.subscription
    topic = subscription.topic
    if subscription.fenced:
        raise ServiceNotReady(f"subscription {subscription.name!r} is being reset already")
    if not body.HasField("message_id") and not body.HasField("message_publish_time"):
        raise MetadataFailed("SEEK names neither a message id nor a time")
    subscription.fenced = True
    try:
        if body.HasField("message_id"):
            entry_id = _entry_at_or_after(topic, body.message_id, exclusive=False)
        else:
            entry_id = await session.broker.first_entry_published_since(topic, body.message_publish_time)
        for attached in list(subscription.consumers):
            attached.session.disconnect_consumer(attached)
        subscription.reset(entry_id)
        if subscription.durable:
            await session.broker.save_cursor(subscription)
    finally:
        subscription.fenced = False
        session.broker.expect_reconnect(subscription)
    session.reply(codec.success(body.request_id))


def _on_unsubscribe(session: Session, body: codec.CommandUnsubscribe) -> None:
    session.request(body.request_id, partial(_unsubscribe, session, body))


async def _unsubscribe(session: Session, body: codec.CommandUnsubscribe) -> None:
    subscription = session.consumer(body.consumer_id).subscription
    others = [c for c in subscription.consumers if c.consumer_id != body.consumer_id or c.session is not session]
    if others and not body.force:
        raise ConsumerBusy(f"subscription {subscription.name!r} has {len(others)} other connected consumers")
    if subscription.durable:
        await session.broker.delete_subscription(subscription)
    for consumer in list(subscription.consumers):
        if consumer in others:
            consumer.session.disconnect_consumer(consumer)
        else:
            session.forget_consumer(consumer)
    subscription.topic.subscriptions.pop(subscription.name, None)
    session.reply(codec.success(body.request_id))


def _on_close_consumer(session: Session, body: codec.CommandCloseConsumer) -> None:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is not None:
        session.forget_consumer(consumer)
    session.reply(codec.success(body.request_id))


def _on_get_last_message_id(session: Session, body: codec.CommandGetLastMessageId) -> None:
    session.request(body.request_id, partial(_get_last_message_id, session, body))


async def _get_last_message_id(session: Session, body: codec.CommandGetLastMessageId) -> None:
    subscription = session.consumer(body.consumer_id).subscription
    topic = subscription.topic
    last = topic.last_entry_id
    batch_index = -1
    if last >= topic.first_entry_id and topic.persistent:
        entry = await session.broker.read_entry(topic, last)
        if entry is not None:
            with contextlib.suppress(ProtocolError):  # an entry without readable metadata is no batch
                batch_index = (metadata.batch_size(entry) or 0) - 1
    session.reply(
        codec.last_message_id(
            body.request_id,
            topic.ledger_id if last >= 0 else -1,
            last,
            partition=topic.partition,
            batch_index=batch_index,
            mark_delete=(topic.ledger_id, subscription.cursor.mark_delete),
        )
    )


def _on_consumer_stats(session: Session, body: codec.CommandConsumerStats) -> None:
    consumer = session.consumers.get(body.consumer_id)
    if consumer is None:
        session.reply(codec.consumer_stats_failed(body.request_id, WireCode.CONSUMER_NOT_FOUND, "Consumer not found"))
        return
    session.reply(codec.consumer_stats(body.request_id, _stats_of(session, consumer)))


def _stats_of(session: Session, consumer: Consumer) -> dict[str, object]:
    now_ms = session.broker.clock.wall_ms()
    seconds = max((now_ms - consumer.connected_at_ms) / 1000, 0.001)
    return {
        "msgRateOut": consumer.messages_out / seconds,
        "msgThroughputOut": consumer.bytes_out / seconds,
        "msgRateRedeliver": consumer.messages_redelivered / seconds,
        "consumerName": consumer.name,
        "availablePermits": max(consumer.permits, 0),
        "unackedMessages": consumer.unacked,
        "blockedConsumerOnUnackedMsgs": consumer.blocked,
        "address": consumer.session.connection.peer,
        "connectedSince": _iso_time(consumer.connected_at_ms),
        "type": codec.CommandSubscribe.SubType.Name(consumer.subscription.kind),
        "msgRateExpired": 0.0,
        "msgBacklog": consumer.subscription.backlog,
        "messageAckRate": consumer.acks / seconds,
    }


def _iso_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.SUBSCRIBE: _on_subscribe,
    codec.BaseCommand.CLOSE_CONSUMER: _on_close_consumer,
    codec.BaseCommand.UNSUBSCRIBE: _on_unsubscribe,
    codec.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: _on_redeliver,
    codec.BaseCommand.SEEK: _on_seek,
    codec.BaseCommand.GET_LAST_MESSAGE_ID: _on_get_last_message_id,
    codec.BaseCommand.CONSUMER_STATS: _on_consumer_stats,
}
