# SPDX-License-Identifier: Apache-2.0
"""One client: its handshake, its producers and consumers, and an answer to each of its commands.

Where: a `net.Connection` hands events up; publishes go to `publish`, flow and acknowledgements to the subscription at
once, everything else to a handler of its own. A handler that must wait (a topic to create, a peer to probe) is a task
of this session and ends with it.

It is longer than our usual file because each command of the protocol has its handler here, and only here.

Every request is answered exactly once: by its handler, or with the error that the handler raised.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock import __version__
from penstock.broker.members import Consumer, Producer
from penstock.broker.publish import Publish
from penstock.broker.subscription import EXCLUSIVE, FAILOVER, SHARED
from penstock.core.errors import (
    ConsumerBusy,
    MetadataFailed,
    NotAllowed,
    PenstockError,
    ProducerBusy,
    ServiceNotReady,
    TopicNotFound,
    WireCode,
)
from penstock.core.names import TopicName
from penstock.core.position import EARLIEST, LATEST
from penstock.governance.muting import MuteReason
from penstock.storage.cursor import Cursor
from penstock.wire import codec, metadata
from penstock.wire.errors import ProtocolError
from penstock.wire.events import AckRun, Command, Flow, PublishRun, UnknownCommand

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.protobuf.message import Message

    from penstock.broker.broker import Broker
    from penstock.broker.subscription import Subscription
    from penstock.broker.topic import Topic
    from penstock.governance.memory_pool import Lease
    from penstock.net.connection import Connection
    from penstock.wire.events import Event

    # Not a coroutine: a task that is cancelled before its first step would leave that one behind, never awaited.
    Work = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)

SERVER_VERSION: Final = f"Pulsar Server{__version__}-penstock"
PROTOCOL_VERSION_MAX: Final = 21
UNSOLICITED: Final = 2**64 - 1  # request id of what the broker says on its own
# SENDs that were on their way when their producer was closed are swallowed, for this many producers of a connection.
CLOSED_PRODUCERS_KEPT: Final = 1_000

Type = codec.BaseCommand.Type


class Session:
    """The broker's view of one connected client."""

    def __init__(self, broker: Broker, connection: Connection) -> None:
        self.broker = broker
        self.connection = connection
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Consumer] = {}
        self.protocol_version = 0
        self.client_version = ""
        self.connected = False
        self._closed_producers: dict[int, None] = {}
        self._creating: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ping_outstanding = False
        self._movement = (0, 0)  # reads and bytes sent, at the last check
        self._next_check_ns = broker.clock.monotonic_ns() + broker.limits.keep_alive_ns

    # -- what the connection calls ------------------------------------------------------------------------------------

    def received(self, events: list[Event], lease: Lease | None) -> None:
        """Act on what one read brought, in order; the lease is given back with the last publish of it."""
        runs_left = sum(type(event) is PublishRun for event in events) if lease is not None else 0
        for event in events:
            if type(event) is PublishRun:
                runs_left -= 1
                Publish(self.broker, self, None if runs_left else lease).submit(event)
                lease = lease if runs_left else None
            elif type(event) is AckRun:
                self._on_ack(event)
            elif type(event) is Flow:
                self._on_flow(event)
            elif type(event) is Command:
                self._on_command(event)
            else:
                assert type(event) is UnknownCommand
                self.connection.close(f"unknown command {event.type}")
            if not self.connection.is_open:
                break
        if lease is not None:
            # Closed half-way: what lies behind is not carried out. What went to the log before may still be there, and
            # gives the lease back in its turn.
            self.broker.after_appends(lambda: self.broker.connections.release(lease))

    def drained(self) -> None:
        """Unsent bytes went down: subscriptions may dispatch to this client again."""
        for consumer in self.consumers.values():
            consumer.subscription.wake()

    def closed(self, reason: str) -> None:
        """The socket is gone: so are all producers, consumers and waiting requests of it."""
        for task in self._tasks:
            task.cancel()
        for producer in list(self.producers.values()):
            self._forget_producer(producer)
        for consumer in list(self.consumers.values()):
            self._forget_consumer(consumer)
        self.broker.session_closed(self, reason)

    # -- keep-alive ---------------------------------------------------------------------------------------------------

    def check_alive(self, now_ns: int) -> None:
        """Every keep-alive interval: close if nothing at all came since the last PING, else send another.

        While we do not read, an answer could not be seen, and the check is put off; unless we do not read because the
        client takes no answers: then it must have taken some since.
        """
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + self.broker.limits.keep_alive_ns
        connection = self.connection
        if not self.connected:
            connection.close("no CONNECT within the keep-alive interval")
            return
        came, went = connection.read_count, connection.bytes_out
        moved = (came, went) != self._movement if connection.muted else came != self._movement[0]
        excused = any(mute.reason is not MuteReason.OUTBOUND for mute in connection.muted.snapshot())
        if self._ping_outstanding and not moved and not excused:
            connection.close("no answer to PING")
            return
        self._movement = (came, went)
        self._ping_outstanding = True
        connection.write_frame(codec.ping())

    async def probe(self) -> bool:
        """Whether the client still answers; it is closed when it doesn't.

        Asked before a newcomer is refused for a name or a place that this client holds: after a half-open connection
        the newcomer usually is the same client.
        """
        if not self.connection.is_open:
            return False
        if self.connection.muted:
            return True
        before = self.connection.read_count
        self.connection.write_frame(codec.ping())
        deadline_ns = self.broker.clock.monotonic_ns() + self.broker.limits.liveness_check_ns
        while self.broker.clock.monotonic_ns() < deadline_ns and self.connection.is_open:
            if self.connection.read_count != before:
                return True
            await asyncio.sleep(0.02)
        self.connection.close("no answer to a liveness probe")
        return False

    # -- commands -----------------------------------------------------------------------------------------------------

    def _on_command(self, command: Command) -> None:
        if not self.connected and command.type != Type.CONNECT:
            self.connection.close("first command is not CONNECT")
            return
        handler = self._handlers.get(command.type)
        if handler is None:
            self.connection.close(f"command {command.type} is not one a client may send")
            return
        try:
            handler(self, command.body)
        except PenstockError as error:
            self.reply(codec.error(_request_id(command.body), error.wire_code, str(error)))

    def _request(self, request_id: int, answer: Work) -> None:
        """Run a request that may have to wait; whatever it raises becomes its ERROR."""
        task = self.broker.loop.create_task(self._answered(request_id, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, request_id: int, answer: Work) -> None:
        try:
            await answer()
        except PenstockError as error:
            self.reply(codec.error(request_id, error.wire_code, str(error)))
        except Exception:
            log.exception("request %d of %s failed", request_id, self.connection.peer)
            self.reply(codec.error(request_id, WireCode.UNKNOWN_ERROR, "internal error; the broker's log has it"))

    def reply(self, frame: bytes) -> None:
        """Send one frame."""
        self.connection.write_frame(frame)

    def _on_connect(self, body: codec.CommandConnect) -> None:
        self.connected = True
        self.client_version = body.client_version
        self.protocol_version = min(PROTOCOL_VERSION_MAX, body.protocol_version)
        self.reply(codec.connected(SERVER_VERSION, self.protocol_version, self.broker.limits.message_bytes_max))

    def _on_ping(self, _body: object) -> None:
        self.reply(codec.pong())

    def _on_pong(self, _body: object) -> None:
        self._ping_outstanding = False

    def _on_partitioned_metadata(self, body: codec.CommandPartitionedTopicMetadata) -> None:
        try:
            name = TopicName.parse(body.topic)
            self.broker.check_lookup(name)
            if not body.metadata_auto_creation_enabled and not self.broker.topics.exists(name):
                raise TopicNotFound(str(name))
        except PenstockError as error:
            self.reply(codec.partitioned_metadata_failed(body.request_id, error.wire_code, str(error)))
            return
        self.reply(codec.partitioned_metadata(body.request_id, 0))

    def _on_lookup(self, body: codec.CommandLookupTopic) -> None:
        try:
            self.broker.check_lookup(TopicName.parse(body.topic))
        except PenstockError as error:
            self.reply(codec.lookup_failed(body.request_id, error.wire_code, str(error)))
            return
        urls = self.broker.service_urls
        self.reply(codec.lookup_connect(body.request_id, urls.plain, urls.tls))

    # -- producers ----------------------------------------------------------------------------------------------------

    def _on_producer(self, body: codec.CommandProducer) -> None:
        existing = self.producers.get(body.producer_id)
        if existing is not None:
            self._producer_success(existing, body.request_id)
            return
        key = ("producer", body.producer_id)
        self._request(body.request_id, partial(self._create, key, partial(self._create_producer, body)))

    async def _create(self, key: tuple[str, int], creation: Work) -> None:
        """One creation at a time for each id that the client chose."""
        if key in self._creating:
            raise ServiceNotReady(f"{key[0]} {key[1]} is still being created; try again")
        self._creating.add(key)
        try:
            await creation()
        finally:
            self._creating.discard(key)

    async def _create_producer(self, body: codec.CommandProducer) -> None:
        self.broker.check_writable()
        topic = await self.broker.topics.get_or_create(TopicName.parse(body.topic), create=True)
        if body.producer_access_mode != codec.SHARED_PRODUCER:
            raise NotAllowed("this broker serves the producer access mode Shared only")
        if body.HasField("initial_subscription_name") and body.initial_subscription_name:
            await self._subscription(topic, body.initial_subscription_name, durable=True, start=topic.first_entry_id)
        name = body.producer_name or self.broker.next_producer_name()
        await self._take_over_producer_name(topic, name, body)
        producer = Producer(session=self, producer_id=body.producer_id, name=name, topic=topic, epoch=body.epoch)
        if not self.producers:
            # A connection counts for one tenant: that of its first producer.
            self.connection.assign(topic.name.tenant)
        topic.producers[name] = producer
        self.producers[body.producer_id] = producer
        self._closed_producers.pop(body.producer_id, None)
        self._producer_success(producer, body.request_id)

    async def _take_over_producer_name(self, topic: Topic, name: str, body: codec.CommandProducer) -> None:
        """A producer's name is its own as long as its client is alive."""
        holder = topic.producers.get(name)
        if holder is None:
            return
        replaces_itself = holder.session is self and holder.producer_id == body.producer_id
        if replaces_itself and body.epoch > holder.epoch:
            self._forget_producer(holder)
            return
        if holder.session is self or await holder.session.probe():
            raise ProducerBusy(f"Producer with name '{name}' is already connected to topic '{topic.text}'")

    def _producer_success(self, producer: Producer, request_id: int) -> None:
        self.reply(codec.producer_success(request_id, producer.name))

    def _on_close_producer(self, body: codec.CommandCloseProducer) -> None:
        producer = self.producers.get(body.producer_id)
        if producer is not None:
            self._forget_producer(producer)
            self._closed_producers[body.producer_id] = None
            while len(self._closed_producers) > CLOSED_PRODUCERS_KEPT:
                del self._closed_producers[next(iter(self._closed_producers))]
        # Behind whatever it has on the way to the disk, so that its last receipts come first.
        self.broker.after_appends(lambda: self.reply(codec.success(body.request_id)))

    def _forget_producer(self, producer: Producer) -> None:
        self.producers.pop(producer.producer_id, None)
        if producer.topic.producers.get(producer.name) is producer:
            del producer.topic.producers[producer.name]

    def sent_by_unknown_producer(self, producer_id: int) -> None:
        """A SEND of a producer that isn't there: swallowed if it was closed lately, else the client is confused."""
        if producer_id not in self._closed_producers:
            self.connection.close(f"SEND of unknown producer {producer_id}")

    # -- consumers ----------------------------------------------------------------------------------------------------

    def _on_subscribe(self, body: codec.CommandSubscribe) -> None:
        if body.consumer_id in self.consumers:
            self.reply(codec.success(body.request_id))
            return
        key = ("consumer", body.consumer_id)
        self._request(body.request_id, partial(self._create, key, partial(self._create_consumer, body)))

    async def _create_consumer(self, body: codec.CommandSubscribe) -> None:
        if not body.subscription:
            raise ProducerBusy("the subscription's name is empty")
        if body.subType not in (EXCLUSIVE, SHARED, FAILOVER):
            raise NotAllowed("this broker serves the subscription types Exclusive, Shared and Failover")
        if body.read_compacted:
            raise NotAllowed("this broker does not compact topics; read without readCompacted")
        topic = await self.broker.topics.get_or_create(TopicName.parse(body.topic), create=body.force_topic_creation)
        start = await self._start_entry(topic, body)
        subscription = await self._subscription(topic, body.subscription, durable=body.durable, start=start)
        await self._make_room(subscription, body.subType)
        consumer = Consumer(
            session=self,
            consumer_id=body.consumer_id,
            name=body.consumer_name,
            priority_level=body.priority_level,
            subscription=subscription,
            epoch=body.consumer_epoch if body.HasField("consumer_epoch") else None,
            connected_at_ms=self.broker.clock.wall_ms(),
        )
        subscription.add(consumer, body.subType)
        self.consumers[body.consumer_id] = consumer
        self.reply(codec.success(body.request_id))
        subscription.attached()

    async def _make_room(self, subscription: Subscription, kind: int) -> None:
        """An exclusive place, or a place of another type, is free again when its holder is found dead."""
        if subscription.fenced:
            raise ServiceNotReady(f"subscription {subscription.name!r} is being reset; try again")
        if subscription.consumers and (kind == EXCLUSIVE or kind != subscription.kind):
            for holder in list(subscription.consumers):
                if holder.session is self or await holder.session.probe():
                    return  # `add` refuses with the right words.

    async def _subscription(self, topic: Topic, name: str, *, durable: bool, start: int) -> Subscription:
        durable = durable and topic.persistent
        existing = topic.subscriptions.get(name)
        if existing is not None:
            if existing.durable != durable and topic.persistent:
                kind = "durable" if existing.durable else "non-durable"
                raise NotAllowed(f"subscription {name!r} of {topic.text} is {kind} already")
            return existing
        cursor = Cursor(start - 1)
        if durable:
            initial = "earliest" if start <= topic.first_entry_id else "latest"
            await self.broker.store_subscription(topic, name, cursor, initial=initial)
        # Somebody else may have made it while we waited.
        return topic.subscriptions.get(name) or topic.add_subscription(name, cursor=cursor, durable=durable)

    async def _start_entry(self, topic: Topic, body: codec.CommandSubscribe) -> int:
        """The first entry that a subscription made now would deliver."""
        if body.subscription in topic.subscriptions:
            return 0
        if body.start_message_rollback_duration_sec:
            since_ms = self.broker.clock.wall_ms() - 1000 * body.start_message_rollback_duration_sec
            return await self.broker.first_entry_published_since(topic, since_ms)
        if not body.durable and body.HasField("start_message_id"):
            wanted = body.start_message_id
            position = (wanted.ledgerId, wanted.entryId)
            if position in (EARLIEST, LATEST):
                return topic.first_entry_id if position == EARLIEST else topic.last_entry_id + 1
            # A reader starts behind the id it names, unless the id is inside a batch: then the client skips to it.
            return self._entry_at_or_after(topic, wanted, exclusive=wanted.batch_index < 0)
        if body.initialPosition == codec.CommandSubscribe.Earliest:
            return topic.first_entry_id
        return topic.last_entry_id + 1

    def _entry_at_or_after(self, topic: Topic, wanted: codec.MessageIdData, *, exclusive: bool) -> int:
        position = (wanted.ledgerId, wanted.entryId)
        if position == EARLIEST or wanted.ledgerId < topic.ledger_id:
            return topic.first_entry_id
        if position == LATEST or wanted.ledgerId > topic.ledger_id:
            return topic.last_entry_id + 1
        return min(wanted.entryId + int(exclusive), topic.last_entry_id + 1)

    def _on_flow(self, event: Flow) -> None:
        consumer = self.consumers.get(event.consumer_id)
        if consumer is not None and event.permits:
            consumer.subscription.flow(consumer, event.permits)

    def _on_ack(self, event: AckRun) -> None:
        consumer = self.consumers.get(event.consumer_id)
        if consumer is None:
            return
        if event.txn is not None:
            if event.request_id is not None:
                text = "transactions are not enabled on this broker"
                self.reply(
                    codec.ack_response(
                        event.consumer_id, event.request_id, error=WireCode.NOT_ALLOWED_ERROR, message=text
                    )
                )
            return
        consumer.subscription.acknowledge(consumer, event)
        if event.request_id is not None:
            self._request(event.request_id, partial(self._ack_response, consumer.subscription, event))

    async def _ack_response(self, subscription: Subscription, event: AckRun) -> None:
        assert event.request_id is not None
        try:
            await self.broker.save_cursor(subscription)
        except PenstockError as error:
            frame = codec.ack_response(event.consumer_id, event.request_id, error=error.wire_code, message=str(error))
        else:
            frame = codec.ack_response(event.consumer_id, event.request_id)
        self.reply(frame)

    def _on_redeliver(self, body: codec.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            ledger_id = consumer.subscription.topic.ledger_id
            entry_ids = [m.entryId for m in body.message_ids if m.ledgerId == ledger_id]
            if entry_ids or not body.message_ids:
                epoch = body.consumer_epoch if body.HasField("consumer_epoch") else None
                consumer.subscription.redeliver(consumer, entry_ids, epoch)

    def _on_seek(self, body: codec.CommandSeek) -> None:
        self._request(body.request_id, partial(self._seek, body))

    async def _seek(self, body: codec.CommandSeek) -> None:
        consumer = self._consumer(body.consumer_id)
        subscription = consumer.subscription
        topic = subscription.topic
        if subscription.fenced:
            raise ServiceNotReady(f"subscription {subscription.name!r} is being reset already")
        if not body.HasField("message_id") and not body.HasField("message_publish_time"):
            raise MetadataFailed("SEEK names neither a message id nor a time")
        subscription.fenced = True
        try:
            if body.HasField("message_id"):
                entry_id = self._entry_at_or_after(topic, body.message_id, exclusive=False)
            else:
                entry_id = await self.broker.first_entry_published_since(topic, body.message_publish_time)
            for attached in list(subscription.consumers):
                attached.session.disconnect_consumer(attached)
            subscription.reset(entry_id)
            if subscription.durable:
                await self.broker.save_cursor(subscription)
        finally:
            subscription.fenced = False
            self.broker.expect_reconnect(subscription)
        self.reply(codec.success(body.request_id))

    def disconnect_producer(self, producer: Producer) -> None:
        """Tell the client that this producer must connect anew."""
        self._forget_producer(producer)
        self._closed_producers[producer.producer_id] = None
        self.reply(codec.close_producer(producer.producer_id, UNSOLICITED))

    def disconnect_consumer(self, consumer: Consumer) -> None:
        """Tell the client that this consumer must connect anew."""
        self._forget_consumer(consumer)
        self.reply(codec.close_consumer(consumer.consumer_id, UNSOLICITED))

    def _on_unsubscribe(self, body: codec.CommandUnsubscribe) -> None:
        self._request(body.request_id, partial(self._unsubscribe, body))

    async def _unsubscribe(self, body: codec.CommandUnsubscribe) -> None:
        subscription = self._consumer(body.consumer_id).subscription
        others = [c for c in subscription.consumers if c.consumer_id != body.consumer_id or c.session is not self]
        if others and not body.force:
            raise ConsumerBusy(f"subscription {subscription.name!r} has {len(others)} other connected consumers")
        if subscription.durable:
            await self.broker.delete_subscription(subscription)
        for consumer in list(subscription.consumers):
            if consumer in others:
                consumer.session.disconnect_consumer(consumer)
            else:
                self._forget_consumer(consumer)
        subscription.topic.subscriptions.pop(subscription.name, None)
        self.reply(codec.success(body.request_id))

    def _on_close_consumer(self, body: codec.CommandCloseConsumer) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None:
            self._forget_consumer(consumer)
        self.reply(codec.success(body.request_id))

    def _forget_consumer(self, consumer: Consumer) -> None:
        self.consumers.pop(consumer.consumer_id, None)
        consumer.subscription.remove(consumer)

    def _consumer(self, consumer_id: int) -> Consumer:
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise MetadataFailed("Consumer not found")
        return consumer

    def _on_get_last_message_id(self, body: codec.CommandGetLastMessageId) -> None:
        self._request(body.request_id, partial(self._get_last_message_id, body))

    async def _get_last_message_id(self, body: codec.CommandGetLastMessageId) -> None:
        subscription = self._consumer(body.consumer_id).subscription
        topic = subscription.topic
        last = topic.last_entry_id
        batch_index = -1
        if last >= topic.first_entry_id and topic.persistent:
            entry = await self.broker.read_entry(topic, last)
            if entry is not None:
                with contextlib.suppress(ProtocolError):  # an entry without readable metadata is no batch
                    batch_index = (metadata.batch_size(entry) or 0) - 1
        self.reply(
            codec.last_message_id(
                body.request_id,
                topic.ledger_id if last >= 0 else -1,
                last,
                partition=topic.partition,
                batch_index=batch_index,
                mark_delete=(topic.ledger_id, subscription.cursor.mark_delete),
            )
        )

    def _on_consumer_stats(self, body: codec.CommandConsumerStats) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None:
            self.reply(codec.consumer_stats_failed(body.request_id, WireCode.CONSUMER_NOT_FOUND, "Consumer not found"))
            return
        self.reply(codec.consumer_stats(body.request_id, self._stats_of(consumer)))

    def _stats_of(self, consumer: Consumer) -> dict[str, object]:
        now_ms = self.broker.clock.wall_ms()
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

    # -- what this broker does not do ---------------------------------------------------------------------------------

    def _on_get_schema(self, body: codec.CommandGetSchema) -> None:
        self.reply(codec.get_schema_failed(body.request_id, WireCode.TOPIC_NOT_FOUND, "the topic has no schema"))

    def _on_transaction(self, body: Message) -> None:
        text = "transactions are not enabled on this broker"
        self.reply(codec.error(_request_id(body), WireCode.NOT_ALLOWED_ERROR, text))

    def _on_unserved(self, body: Message) -> None:
        text = f"{type(body).__name__} is not served by this broker"
        self.reply(codec.error(_request_id(body), WireCode.NOT_ALLOWED_ERROR, text))

    def _on_auth_response(self, _body: object) -> None:
        """Nothing was asked; an answer to nothing is ignored."""

    _handlers: ClassVar[dict[int, Callable[[Session, Any], None]]] = {
        Type.CONNECT: _on_connect,
        Type.PING: _on_ping,
        Type.PONG: _on_pong,
        Type.PARTITIONED_METADATA: _on_partitioned_metadata,
        Type.LOOKUP: _on_lookup,
        Type.PRODUCER: _on_producer,
        Type.CLOSE_PRODUCER: _on_close_producer,
        Type.SUBSCRIBE: _on_subscribe,
        Type.CLOSE_CONSUMER: _on_close_consumer,
        Type.UNSUBSCRIBE: _on_unsubscribe,
        Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: _on_redeliver,
        Type.SEEK: _on_seek,
        Type.GET_LAST_MESSAGE_ID: _on_get_last_message_id,
        Type.CONSUMER_STATS: _on_consumer_stats,
        Type.GET_SCHEMA: _on_get_schema,
        Type.AUTH_RESPONSE: _on_auth_response,
        Type.GET_OR_CREATE_SCHEMA: _on_unserved,
        Type.GET_TOPICS_OF_NAMESPACE: _on_unserved,
        Type.WATCH_TOPIC_LIST: _on_unserved,
        Type.WATCH_TOPIC_LIST_CLOSE: _on_unserved,
        Type.NEW_TXN: _on_transaction,
        Type.ADD_PARTITION_TO_TXN: _on_transaction,
        Type.ADD_SUBSCRIPTION_TO_TXN: _on_transaction,
        Type.END_TXN: _on_transaction,
        Type.TC_CLIENT_CONNECT_REQUEST: _on_transaction,
    }


def _request_id(body: Message) -> int:
    request_id: int = getattr(body, "request_id", UNSOLICITED)
    return request_id


def _iso_time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
