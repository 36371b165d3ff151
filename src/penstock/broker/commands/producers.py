# SPDX-License-Identifier: Apache-2.0
"""Commands about producers: PRODUCER and CLOSE_PRODUCER; who is let in, who waits, and who is let in next.

Where: the session's table of handlers leads here; what producers send goes through `publish`. How a topic is shared is
decided in `access_modes`.

What must hold
- Between a verdict and what it leads to nothing is awaited, so no two producers get the same place.
- A topic is held from the verdict on, while the epoch is on its way to the disk; whatever ends that early (the client
  goes away, the disk refuses) gives the place to the next who waits.
- A producer that is still coming (its topic is being loaded, or it waits for its turn) leaves at its CLOSE_PRODUCER.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access import Action
from penstock.broker.commands import membership
from penstock.broker.commands.schemas import schema_in
from penstock.broker.publishing import publish_checks
from penstock.broker.publishing.access_modes import AccessMode, Hold, Join, Waiting, decide, next_epoch
from penstock.broker.publishing.producer import Producer
from penstock.core.errors import (
    MetadataFailed,
    NotAllowed,
    PenstockError,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
    TopicNotFound,
)
from penstock.core.names import TopicName
from penstock.wire import codec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.topics.topic import Topic


def _on_producer(session: Session, body: codec.CommandProducer) -> None:
    coming, producer_id = session.creating_producers, body.producer_id
    create = partial(session.create_once, ("producer", producer_id), partial(_create_producer, session, body))
    task = session.request(body.request_id, create)
    if producer_id not in coming:
        coming[producer_id] = task
        task.add_done_callback(lambda done: coming.pop(producer_id) if coming.get(producer_id) is done else None)


async def _create_producer(session: Session, body: codec.CommandProducer) -> None:
    existing = session.producers.get(body.producer_id)
    if existing is not None:  # Said twice, perhaps in one breath: the first made it.
        _producer_success(session, existing, body.request_id)
        return
    producer = await _prepare(session, body)
    memory = session.broker.sessions_memory
    membership.charge(memory, producer, f"producer {producer.name!r}", _price(producer))
    try:
        if body.HasField("topic_epoch"):
            producer.topic_epoch = body.topic_epoch
        await _admit(session, producer, body.request_id)
        _producer_success(session, producer, body.request_id)
    except BaseException:
        if session.producers.get(producer.producer_id) is not producer:
            membership.give_back(memory, producer)
        raise


def _price(producer: Producer) -> int:
    texts = membership.texts_bytes(producer.name) + membership.pairs_bytes(producer.metadata)
    return membership.MEMBER_BYTES + texts


async def _prepare(session: Session, body: codec.CommandProducer) -> Producer:
    """A producer that may join the topic as far as everything but the other producers is concerned.

    Checks are in the order in which Pulsar makes them: clients that break two rules are told of the same one.
    """
    broker = session.broker
    name = TopicName.parse(body.topic)
    session.require(Action.PRODUCE, name)
    if body.initial_subscription_name:
        session.require(Action.CONSUME, name, subscription=body.initial_subscription_name)
    broker.check_writable()
    topic = await broker.topics.get_or_create(name, create=True)
    topic.check_publishable()
    broker.quotas.check_room(topic, session.connection.peer, body.producer_name or None)
    await broker.quotas.check_producer(topic)
    _check_encryption(topic, encrypted=body.encrypted)
    schema_version = await broker.schemas.attach_producer(topic, schema_in(body))
    if body.initial_subscription_name:
        await _make_initial_subscription(topic, body.initial_subscription_name)
    await broker.deduplication.ready(topic)
    producer_name = body.producer_name or broker.next_producer_name()
    broker.deduplication.check_name(topic, producer_name)
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
        connected_at_ms=broker.clock.wall_ms(),
        schema_version=schema_version,
    )


def _check_encryption(topic: Topic, *, encrypted: bool) -> None:
    if topic.policies.encryption_required and not encrypted:
        raise MetadataFailed(f"Encryption is required in '{topic.text}'")


async def _make_initial_subscription(topic: Topic, name: str) -> None:
    if name in topic.subscriptions or not topic.persistent:
        return
    if not topic.policies.allow_auto_subscription_creation:
        raise NotAllowed(
            "Could not create the initial subscription due to the auto subscription creation is not allowed."
        )
    await topic.open_subscription(name, durable=True, start=topic.first_entry_id)


# -- in ---------------------------------------------------------------------------------------------------------------


async def _admit(session: Session, producer: Producer, request_id: int) -> None:
    """Return when the producer is one of the topic's. Raises ProducerBusy, ProducerFenced, ServiceNotReady."""
    topic, access = producer.topic, producer.topic.write_access
    await _free_name(session, producer)
    topic.check_publishable()
    verdict = decide(producer.access_mode, producer.topic_epoch, access.seen(len(topic.producers)))
    if isinstance(verdict, Join):
        producer.topic_epoch = verdict.epoch
        _join(session, producer)
    elif isinstance(verdict, Hold):
        access.holder = producer
        if verdict.fence:
            _fence_out_others(producer)
        await _hold(session, producer, verdict.epoch)
    else:
        await _wait(session, producer, request_id)


async def _free_name(session: Session, producer: Producer) -> None:
    """A producer's name is its own as long as its client is alive; afterwards it is whose who asks."""
    holder = producer.topic.producers.get(producer.name)
    if holder is None:
        return
    if holder.session is not session:
        # Half-open connections: most often, the newcomer is the same client. Found dead, the holder is forgotten.
        await holder.session.probe()
    elif holder.producer_id == producer.producer_id and producer.epoch > holder.epoch:
        session.forget_producer(holder)


def _join(session: Session, producer: Producer) -> None:
    topic = producer.topic
    if not session.connection.is_open:
        # It closed while others of its own were told to go, since the last moment at which it could be cancelled.
        raise ServiceNotReady(f"the client of producer {producer.name!r} is gone")
    if producer.name in topic.producers:
        raise ProducerBusy(f"Producer with name '{producer.name}' is already connected to topic '{topic.text}'")
    session.require(Action.PRODUCE, topic.name)  # Again: it may have waited, and a grant been taken back meanwhile.
    session.broker.quotas.check_room(topic, producer.address)
    if not session.producers:
        # A connection counts for one tenant: that of its first producer.
        session.connection.assign(topic.name.tenant)
    producer.careful = publish_checks.is_careful(producer)
    topic.producers[producer.name] = producer
    session.producers[producer.producer_id] = producer
    session.closed_producers.pop(producer.producer_id, None)
    session.broker.rates.producer_changed(producer)


async def _hold(session: Session, producer: Producer, epoch: int) -> None:
    """Join alone, once the epoch is stored; `holder` is this producer already."""
    topic, access = producer.topic, producer.topic.write_access
    try:
        _check_holds(producer)
        access.epoch = epoch
        if topic.persistent:
            with contextlib.suppress(TopicNotFound):  # deleted meanwhile: said below, so that the client comes back
                await session.broker.states.change(topic, epoch=epoch)
        _check_holds(producer)
        topic.check_publishable()
        producer.topic_epoch = epoch
        _join(session, producer)
    except BaseException:
        if access.holder is producer:
            access.holder = None
            _promote(topic)
        raise


def _check_holds(producer: Producer) -> None:
    if producer.topic.write_access.holder is not producer:
        raise ProducerFenced("Fenced out")


def _fence_out_others(producer: Producer) -> None:
    topic = producer.topic
    topic.write_access.turn_away_waiting(ProducerFenced("Fenced out"))
    for other in list(topic.producers.values()):
        other.session.disconnect_producer(other)


async def _wait(session: Session, producer: Producer, request_id: int) -> None:
    """Join alone when those who are there, and those who waited before, are gone."""
    topic, access = producer.topic, producer.topic.write_access
    turn: asyncio.Future[None] = session.broker.loop.create_future()
    with session.waiting_long(f"producer {producer.name!r}"):
        access.waiting.append(Waiting(producer, turn))
        _producer_success(session, producer, request_id, ready=False)
        try:
            await turn
            epoch = next_epoch(access.epoch)
        except BaseException:
            access.leave_queue(producer)
            if access.holder is producer:  # It was its turn already.
                access.holder = None
                _promote(topic)
            raise
    await _hold(session, producer, epoch)


def _promote(topic: PublishedTopic) -> None:
    """If nobody writes the topic, it is the turn of who has waited longest."""
    access = topic.write_access
    if access.holder is not None or topic.producers or not access.waiting:
        return
    try:
        topic.check_publishable()
    except PenstockError as error:
        access.turn_away_waiting(error)
        return
    while access.waiting:
        producer, turn = access.waiting.popleft()
        if not turn.done():  # Its client is going away, too, and it was to leave the queue in a moment.
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


# -- out --------------------------------------------------------------------------------------------------------------


def left(session: Session, producer: Producer) -> None:
    """A producer is no longer one of its topic's, for whatever reason."""
    topic = producer.topic
    access = topic.write_access
    if access.holder is producer:
        access.holder = None
    session.broker.rates.producer_changed(producer)
    _promote(topic)


def _on_close_producer(session: Session, body: codec.CommandCloseProducer) -> None:
    producer = session.producers.get(body.producer_id)
    if producer is not None:
        session.forget_producer(producer)
        session.remember_closed(body.producer_id)
    coming = session.creating_producers.pop(body.producer_id, None)
    if coming is not None:
        coming.cancel()
    # Behind whatever it has on the way to the disk, so that its last receipts come first.
    charged = session.charge()

    def answer() -> None:
        session.charge_back(charged)
        session.reply(codec.success(body.request_id))

    session.broker.reads.after_appends(answer)


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.PRODUCER: _on_producer,
    codec.BaseCommand.CLOSE_PRODUCER: _on_close_producer,
}
