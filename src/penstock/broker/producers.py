# SPDX-License-Identifier: Apache-2.0
"""Commands about producers: PRODUCER and CLOSE_PRODUCER.

Where: the session's table of handlers leads here; what producers send goes through `publish`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.members import Producer
from penstock.core.errors import NotAllowed, ProducerBusy
from penstock.core.names import TopicName
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.session import Handler, Session
    from penstock.broker.topic import Topic


def _on_producer(session: Session, body: codec.CommandProducer) -> None:
    existing = session.producers.get(body.producer_id)
    if existing is not None:
        _producer_success(session, existing, body.request_id)
        return
    key = ("producer", body.producer_id)
    session.request(body.request_id, partial(session.create_once, key, partial(_create_producer, session, body)))


async def _create_producer(session: Session, body: codec.CommandProducer) -> None:
    session.broker.check_writable()
    topic = await session.broker.topics.get_or_create(TopicName.parse(body.topic), create=True)
    if body.producer_access_mode != codec.SHARED_PRODUCER:
        raise NotAllowed("this broker serves the producer access mode Shared only")
    if body.HasField("initial_subscription_name") and body.initial_subscription_name:
        await topic.open_subscription(body.initial_subscription_name, durable=True, start=topic.first_entry_id)
    name = body.producer_name or session.broker.next_producer_name()
    await _take_over_producer_name(session, topic, name, body)
    producer = Producer(session=session, producer_id=body.producer_id, name=name, topic=topic, epoch=body.epoch)
    if not session.producers:
        # A connection counts for one tenant: that of its first producer.
        session.connection.assign(topic.name.tenant)
    topic.producers[name] = producer
    session.producers[body.producer_id] = producer
    session.closed_producers.pop(body.producer_id, None)
    _producer_success(session, producer, body.request_id)


async def _take_over_producer_name(session: Session, topic: Topic, name: str, body: codec.CommandProducer) -> None:
    """A producer's name is its own as long as its client is alive."""
    holder = topic.producers.get(name)
    if holder is None:
        return
    replaces_itself = holder.session is session and holder.producer_id == body.producer_id
    if replaces_itself and body.epoch > holder.epoch:
        session.forget_producer(holder)
        return
    if holder.session is session or await holder.session.probe():
        raise ProducerBusy(f"Producer with name '{name}' is already connected to topic '{topic.text}'")


def _producer_success(session: Session, producer: Producer, request_id: int) -> None:
    session.reply(codec.producer_success(request_id, producer.name))


def _on_close_producer(session: Session, body: codec.CommandCloseProducer) -> None:
    producer = session.producers.get(body.producer_id)
    if producer is not None:
        session.forget_producer(producer)
        session.remember_closed(body.producer_id)
    # Behind whatever it has on the way to the disk, so that its last receipts come first.
    session.broker.after_appends(lambda: session.reply(codec.success(body.request_id)))


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.PRODUCER: _on_producer,
    codec.BaseCommand.CLOSE_PRODUCER: _on_close_producer,
}
