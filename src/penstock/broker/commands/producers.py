# SPDX-License-Identifier: Apache-2.0
"""Producer commands: PRODUCER and CLOSE_PRODUCER, and the queue of producers waiting for exclusive access.

Where: called from the session's table of handlers. Messages go through `publish`. Access modes are decided in
`checks`.

Invariants:
- Nothing is awaited between a decision and its effect, so two producers never get the same place.
- An exclusive producer holds the topic from the decision on, while the epoch is being stored. If that fails, or its
  client disconnects, the next waiting producer gets the topic.
- A CLOSE_PRODUCER also ends a producer that is still being created (its topic is being loaded, or it waits).
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.access import Action
from penstock.broker.commands import session_memory
from penstock.broker.commands.schemas import schema_in
from penstock.broker.publishing import checks
from penstock.broker.publishing.checks import AccessMode, Hold, Join, Waiting, decide, next_epoch
from penstock.broker.publishing.producer import Producer
from penstock.broker.publishing.replicated import replicator_of
from penstock.core.errors import (
    MetadataFailed,
    NotAllowed,
    PenstockError,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
    TopicNotFound,
)
from penstock.core.names import COMPACTION_SUBSCRIPTION, REPLICATOR_PREFIX, TopicName
from penstock.core.system_topics import is_record_topic
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.quotas import Quotas
    from penstock.broker.publishing.deduplication import Deduplication
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.publishing.rates import Rates
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.migration import Migration
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row


class Producers:
    """Attaches and detaches producers. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        topics: TopicDirectory,
        quotas: Quotas[Topic],
        schemas: SchemaRegistry,
        deduplication: Deduplication,
        states: TopicStates,
        rates: Rates,
        reads: LogReads,
        memory: Row,
        clock: Clock,
        check_writable: Callable[[TopicName], None],
        names: Iterator[str],
        cluster: str,
        migration: Migration,
    ) -> None:
        """Receive what this uses. Args: cluster: the name of this one."""
        self._topics = topics
        self._quotas = quotas
        self._schemas = schemas
        self._deduplication = deduplication
        self._states = states
        self._rates = rates
        self._reads = reads
        self._memory = memory
        self._clock = clock
        self._check_writable = check_writable  # raises an error if publishing is impossible now
        self._migration = migration
        self._names = names  # generates names that are unique in the cluster
        self._cluster = cluster
        self.handlers: Mapping[int, Handler] = {
            codec.BaseCommand.PRODUCER: self._on_producer,
            codec.BaseCommand.CLOSE_PRODUCER: self._on_close_producer,
        }

    def _on_producer(self, session: Session, body: codec.CommandProducer) -> None:
        coming, producer_id = session.creating_producers, body.producer_id
        create = partial(
            session.requests.create_once, ("producer", producer_id), partial(self._create_producer, session, body)
        )
        task = session.requests.start(body.request_id, create)
        if producer_id not in coming:
            coming[producer_id] = task
            task.add_done_callback(lambda done: coming.pop(producer_id) if coming.get(producer_id) is done else None)

    async def _create_producer(self, session: Session, body: codec.CommandProducer) -> None:
        existing = session.producers.get(body.producer_id)
        if existing is not None:  # PRODUCER was sent twice; the first one has created it.
            _producer_success(session, existing, body.request_id)
            return
        producer = await self._prepare(session, body)
        session_memory.charge(self._memory, producer, f"producer {producer.name!r}", _price(producer))
        try:
            if body.HasField("topic_epoch"):
                producer.topic_epoch = body.topic_epoch
            await self._admit(session, producer, body.request_id)
            _producer_success(session, producer, body.request_id)
        except BaseException:
            if session.producers.get(producer.producer_id) is not producer:
                session_memory.release(self._memory, producer)
            raise

    async def _prepare(self, session: Session, body: codec.CommandProducer) -> Producer:
        """Make a producer after all checks except those against other producers.

        Checks are in Pulsar's order, so a client that breaks two rules gets the same error as from Pulsar.
        """
        name = TopicName.parse(body.topic)
        session.require(Action.PRODUCE, name)
        if body.initial_subscription_name:
            session.require(Action.CONSUME, name, subscription=body.initial_subscription_name)
        if is_record_topic(str(name)):
            raise NotAllowed(f"{name} is a topic of the brokers: only they publish to it")
        if not session.of_broker:
            await self._migration.admit(name)
        self._check_writable(name)
        topic = await self._topics.get_or_create(name, create=True)
        if topic.system and not session.of_broker:
            raise NotAllowed(f"{name} is a topic of the brokers: only they publish to it")
        self._migration.check_producer(session, topic, body.producer_id)
        topic.check_publishable()
        self._quotas.check_room(topic, session.connection.peer, body.producer_name or None)
        await self._quotas.check_producer(topic)
        _check_encryption(topic, encrypted=body.encrypted)
        schema_version = await self._schemas.attach_producer(topic, schema_in(body))
        if body.initial_subscription_name:
            await _make_initial_subscription(topic, body.initial_subscription_name)
        await self._deduplication.ready(topic)
        producer_name = body.producer_name or next(self._names)
        if producer_name.startswith(f"{REPLICATOR_PREFIX}{self._cluster}--"):
            raise NotAllowed(
                f"producer {producer_name} is that of a cluster that is named {self._cluster!r}, as this one: give "
                f"each cluster a clusterName of its own"
            )
        self._deduplication.check_name(topic, producer_name)
        return Producer(
            session=session,
            producer_id=body.producer_id,
            name=producer_name,
            topic=topic,
            epoch=body.epoch,
            access_mode=AccessMode(body.producer_access_mode),
            encrypted=body.encrypted,
            metadata={pair.key: pair.value for pair in body.metadata},
            user_provided_name=bool(body.producer_name) and body.user_provided_producer_name,
            connected_at_ms=self._clock.wall_ms(),
            schema_version=schema_version,
            replicator=replicator_of(producer_name, positions=session.names_positions and topic.persistent),
        )

    async def _admit(self, session: Session, producer: Producer, request_id: int) -> None:
        """Attach the producer to its topic. Raises ProducerBusy, ProducerFenced, ServiceNotReady."""
        topic, access = producer.topic, producer.topic.write_access
        await _free_name(session, producer)
        topic.check_publishable()
        verdict = decide(producer.access_mode, producer.topic_epoch, access.seen(len(topic.producers)))
        if isinstance(verdict, Join):
            producer.topic_epoch = verdict.epoch
            self._join(session, producer)
        elif isinstance(verdict, Hold):
            access.holder = producer
            if verdict.fence:
                _fence_out_others(producer)
            await self._hold(session, producer, verdict.epoch)
        else:
            await self._wait(session, producer, request_id)

    def _join(self, session: Session, producer: Producer) -> None:
        topic = producer.topic
        if not session.connection.is_open:
            # It was closed when other producers were fenced, after the last moment at which it could be cancelled.
            raise ServiceNotReady(f"the client of producer {producer.name!r} is gone")
        if producer.name in topic.producers:
            raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic '{topic.text}'")
        session.require(Action.PRODUCE, topic.name)  # Check again: it may have been revoked meanwhile.
        self._quotas.check_room(topic, producer.address)
        if not session.producers:
            # A connection is accounted to the tenant of its first producer.
            session.connection.assign(topic.name.tenant)
        producer.careful = checks.is_careful(producer)
        topic.producers[producer.name] = producer
        session.producers[producer.producer_id] = producer
        session.closed_producers.pop(producer.producer_id, None)
        self._rates.producer_added(producer)

    async def _hold(self, session: Session, producer: Producer, epoch: int) -> None:
        """Attach the producer exclusively once the epoch is stored; it is `holder` already."""
        topic, access = producer.topic, producer.topic.write_access
        try:
            _check_holds(producer)
            access.epoch = epoch
            if topic.persistent:
                with contextlib.suppress(TopicNotFound):  # deleted meanwhile: refused below, so that the client retries
                    await self._states.change(topic, epoch=epoch)
            _check_holds(producer)
            topic.check_publishable()
            producer.topic_epoch = epoch
            self._join(session, producer)
        except BaseException:
            if access.holder is producer:
                access.holder = None
                _promote(topic)
            raise

    async def _wait(self, session: Session, producer: Producer, request_id: int) -> None:
        """Attach exclusively when the connected producers and earlier waiting ones are gone."""
        topic, access = producer.topic, producer.topic.write_access
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with session.requests.waiting_long(f"producer {producer.name!r}"):
            access.waiting.append(Waiting(producer, turn, self._clock.monotonic_ns()))
            _producer_success(session, producer, request_id, ready=False)
            try:
                await turn
                epoch = next_epoch(access.epoch)
            except BaseException:
                access.leave_queue(producer)
                if access.holder is producer:  # It had been promoted already.
                    access.holder = None
                    _promote(topic)
                raise
        await self._hold(session, producer, epoch)

    def detached(self, producer: Producer) -> None:
        """Called when a producer is detached, for any reason."""
        topic = producer.topic
        access = topic.write_access
        if access.holder is producer:
            access.holder = None
        _promote(topic)

    def _on_close_producer(self, session: Session, body: codec.CommandCloseProducer) -> None:
        if session.held is not None and session.held.holds(body.producer_id):
            charged = session.requests.charge()

            def close() -> None:
                session.requests.charge_back(charged)
                self._close_producer(session, body)

            session.held.after(body.producer_id, close)
        else:
            self._close_producer(session, body)

    def _close_producer(self, session: Session, body: codec.CommandCloseProducer) -> None:
        producer = session.producers.get(body.producer_id)
        if producer is not None:
            session.forget_producer(producer)
            session.remember_closed(body.producer_id)
        coming = session.creating_producers.pop(body.producer_id, None)
        if coming is not None:
            coming.cancel()
        # Queued behind its pending messages, so that their receipts are sent first.
        charged = session.requests.charge()

        def answer() -> None:
            session.requests.charge_back(charged)
            session.reply(codec.success(body.request_id))

        self._reads.after_appends(answer)


def _price(producer: Producer) -> int:
    texts = session_memory.texts_bytes(producer.name) + session_memory.pairs_bytes(producer.metadata)
    return session_memory.OBJECT_BYTES + texts


def _check_encryption(topic: Topic, *, encrypted: bool) -> None:
    if topic.policies.encryption_required and not encrypted:
        raise MetadataFailed(f"Encryption is required in '{topic.text}'")


async def _make_initial_subscription(topic: Topic, name: str) -> None:
    if name == COMPACTION_SUBSCRIPTION:
        raise NotAllowed(f"subscription {name} is made by compaction only")
    if name in topic.subscriptions or not topic.persistent:
        return
    if not topic.policies.allow_auto_subscription_creation:
        raise NotAllowed(
            "Could not create the initial subscription due to the auto subscription creation is not allowed."
        )
    await topic.open_subscription(name, durable=True, start=topic.first_entry_id)


async def _free_name(session: Session, producer: Producer) -> None:
    """Probe the producer that holds the name; if its client is dead, the name becomes free."""
    holder = producer.topic.producers.get(producer.name)
    if holder is None:
        return
    if holder.session is not session:
        # After a half-open connection, the new client usually is the same client. A dead producer is removed.
        await holder.session.probe()
    elif holder.producer_id == producer.producer_id and producer.epoch > holder.epoch:
        session.forget_producer(holder)


def _check_holds(producer: Producer) -> None:
    if producer.topic.write_access.holder is not producer:
        raise ProducerFenced("Fenced out")


def _fence_out_others(producer: Producer) -> None:
    topic = producer.topic
    topic.write_access.turn_away_waiting(ProducerFenced("Fenced out"))
    for other in list(topic.producers.values()):
        other.session.disconnect_producer(other)


def _promote(topic: PublishedTopic) -> None:
    """If the topic has no producer, attach the one that has waited longest."""
    access = topic.write_access
    if access.holder is not None or topic.producers or not access.waiting:
        return
    try:
        topic.check_publishable()
    except PenstockError as error:
        access.turn_away_waiting(error)
        return
    while access.waiting:
        producer, turn, _ = access.waiting.popleft()
        if not turn.done():  # If done, its client is disconnecting, and it will leave the queue.
            access.holder = producer
            turn.set_result(None)
            return


def _producer_success(session: Session, producer: Producer, request_id: int, *, ready: bool = True) -> None:
    deduplication = producer.topic.deduplication
    session.reply(
        codec.producer_success(
            request_id,
            producer.name,
            last_sequence_id=-1 if deduplication is None else deduplication.ids.highest_persisted(producer.name),
            schema_version=producer.schema_version,
            topic_epoch=producer.topic_epoch if ready else None,
            ready=ready,
        )
    )
