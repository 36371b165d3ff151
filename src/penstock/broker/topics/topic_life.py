# SPDX-License-Identifier: Apache-2.0
"""The life of a topic after it came: unloaded, terminated, deleted, also by itself when nobody uses it.

Why one place: all of these take the topic from its clients, and the order is what keeps them from losing anything:

1. `fenced`: no producer or consumer joins, and SENDs that still come are not taken.
2. What was accepted becomes durable and is answered; only then are producers told to connect anew, so that none of them
   sends again what is stored already.
3. Cursors are stored (or go with the topic), and the topic leaves the memory.

A deleted topic goes from the catalog first, durably, then from the log. A crash in between leaves a ledger that nobody
knows: `drop_unknown_ledgers` gives it up at the next start.

Where: the admin port and the broker's tick call this; the directory keeps others away meanwhile (`leaving`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.broker.policies import permissions
from penstock.broker.topics.topic_states import COMPACTED_LEDGER, KEPT, LOG, kept_ledgers, ledgers_in_use
from penstock.broker.topics.topic_states import KIND as STATE
from penstock.core.errors import PenstockError, PreconditionFailed, TopicNotFound
from penstock.core.names import TopicName
from penstock.wire import codec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from penstock.broker.broker import Broker
    from penstock.broker.topics.members import Producer
    from penstock.broker.topics.topic import Topic

log = logging.getLogger(__name__)

# Documents that go with their topic.
DOCUMENTS: Final = (STATE, "dedup")
UNSOLICITED: Final = 2**64 - 1
# So many pieces that are missing are named with their topics.
MISSING_NAMED_MAX: Final = 100


# -- taking a topic from its clients ----------------------------------------------------------------------------------


async def detach(topic: Topic) -> None:
    """Take the topic from all its clients; when this returns, all that was accepted is durable and answered."""
    topic.fenced = True
    for subscription in list(topic.subscriptions.values()):
        for consumer in list(subscription.consumers):
            consumer.session.disconnect_consumer(consumer)
        subscription.fenced = True
    await disconnect_producers(topic)


async def disconnect_producers(topic: Topic) -> None:
    """Tell all producers to connect anew, once what they have sent is answered."""
    leaving: list[Producer] = list(topic.producers.values())
    for producer in leaving:
        producer.session.forget_producer(producer)
        producer.session.remember_closed(producer.producer_id)
    await settled(topic.broker)
    for producer in leaving:
        producer.session.reply(codec.close_producer(producer.producer_id, UNSOLICITED))


def settled(broker: Broker) -> asyncio.Future[None]:
    """Done when everything that was appended before is durable and answered, or has failed."""
    done: asyncio.Future[None] = broker.loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    broker.reads.after_appends(finish)
    return done


# -- unload -----------------------------------------------------------------------------------------------------------


async def unload(broker: Broker, name: TopicName) -> None:
    """Take the topic out of memory; the next who asks for it loads it, with everything. Nothing if it is not loaded."""
    await broker.changes.finish(_unload(broker, name))


async def _unload(broker: Broker, name: TopicName) -> None:
    async with broker.topics.leaving(name) as topic:
        if topic is None:
            return
        await detach(topic)
        try:
            await broker.cursors.save(*topic.subscriptions.values())
            await broker.delays.save_of(topic)
        finally:
            # Also when cursors cannot be stored: what was acknowledged since is then delivered again.
            broker.topics.unloaded(topic)
    log.info("topic %s unloaded", name)


# -- terminate --------------------------------------------------------------------------------------------------------


async def terminate(topic: Topic) -> int:
    """Take no more messages, for ever; returns the last entry's id, -1 when there is none. Raises MetadataFailed."""
    return await topic.broker.changes.finish(_terminate(topic))


async def _terminate(topic: Topic) -> int:
    broker = topic.broker
    if not topic.terminated:
        topic.check_open()
        topic.terminated = True
        await settled(broker)
        try:
            topic.check_open()  # What loads it anew must find this stored.
            await broker.states.change(topic, terminated=True, last_entry=topic.last_entry_id)
        except PenstockError:
            topic.terminated = False
            raise
        log.info("topic %s terminated after entry %d", topic.text, topic.last_entry_id)
        await disconnect_producers(topic)
    for subscription in list(topic.subscriptions.values()):
        subscription.topic_terminated()
    return topic.last_entry_id


# -- truncate ---------------------------------------------------------------------------------------------------------


async def truncate(topic: Topic) -> None:
    """Give up all entries, for all subscriptions. Raises MetadataFailed."""
    broker = topic.broker
    end = topic.last_entry_id + 1
    # What was compacted of it would show older values than those that go.
    await broker.compaction.give_up(topic)
    for subscription in list(topic.subscriptions.values()):
        subscription.skip_all()
    await broker.retention.give_up_all(topic, end)


# -- delete -----------------------------------------------------------------------------------------------------------


def check_unused(broker: Broker, name: TopicName) -> None:
    """Raises PreconditionFailed while clients are connected; subscriptions that nobody uses go with the topic."""
    topic = broker.topics.get(name)
    if topic is None:
        return
    producers, consumers = len(topic.producers), sum(len(s.consumers) for s in topic.subscriptions.values())
    if producers or consumers:
        raise PreconditionFailed(
            f"Topic has {producers + consumers} clients connected Including {consumers} consumers, "
            f"{producers} producers, and 0 replicators."
        )


async def delete(broker: Broker, name: TopicName, *, force: bool) -> None:
    """Delete a topic and everything of it; its clients are told to connect anew.

    Raises:
        TopicNotFound: it does not exist.
        PreconditionFailed: clients are connected to it, and it is not forced.
        MetadataFailed: the catalog could not be changed; the topic is as it was.
    """
    if not await delete_if_there(broker, name, force=force):
        raise TopicNotFound(str(name))


async def delete_if_there(broker: Broker, name: TopicName, *, force: bool) -> bool:
    """As `delete`, but a topic that is gone already is no error: then this says False."""
    return await broker.changes.finish(_delete_if_there(broker, name, force=force))


async def _delete_if_there(broker: Broker, name: TopicName, *, force: bool) -> bool:
    async with broker.topics.leaving(name):
        if not broker.topics.exists(name):
            return False
        if not force:
            check_unused(broker, name)
        await carry_out(broker, name)
    return True


async def carry_out(broker: Broker, name: TopicName) -> None:
    """Delete a topic, within `leaving` and whatever hangs on it. Raises MetadataFailed."""
    text = str(name)
    topic = broker.topics.get(name)
    record = broker.catalog.topic(text)
    compacted = broker.states.of(text).get(COMPACTED_LEDGER)
    if topic is not None:
        await detach(topic)
    if record is not None:
        try:
            await broker.changes.stored(lambda done: broker.catalog.delete_topic(text, done, documents=DOCUMENTS))
        except PenstockError:
            if topic is not None:
                _open_again(topic)
            raise
    if topic is not None:
        broker.topics.unloaded(topic)
    broker.topics.vanished(text)
    broker.compaction.forget(text)
    if record is not None:
        broker.delays.dropped(record.ledger_id)
        drop(broker, [record.ledger_id] if compacted is None else [record.ledger_id, compacted])
    log.info("topic %s deleted", name)
    await _forget_rest(broker, name)


async def _forget_rest(broker: Broker, name: TopicName) -> None:
    """What another topic of this name must not find. The topic is gone already, whatever happens here."""
    try:
        await broker.schemas.forget(name)
        await permissions.forget_topic(broker, name)
    except PenstockError as error:
        log.warning("topic %s is deleted, but not all that was kept about it: %s", name, error)


def _open_again(topic: Topic) -> None:
    topic.fenced = False
    for subscription in topic.subscriptions.values():
        subscription.fenced = False


async def forget_documents(broker: Broker, name: str) -> None:
    """Forget what is kept under the name of a partitioned topic that is gone."""
    await _forget_rest(broker, TopicName.parse(name))
    for kind in DOCUMENTS:
        if name in broker.catalog.documents(kind):
            await broker.changes.stored(lambda done, kind=kind: broker.catalog.put_document(kind, name, None, done))  # type: ignore[misc]


def drop(broker: Broker, ledgers: Iterable[int]) -> None:
    """Give up ledgers that the catalog does not know any more."""
    for ledger_id in ledgers:
        broker.log.drop(int(ledger_id))


def name_missing(broker: Broker) -> None:
    """At a start: name the topics of which entries are missing; the log knows ledgers only."""
    pieces = broker.log.missing.listed()
    if not pieces:
        return
    names = {record.ledger_id: record.name for record in broker.catalog.topics()}
    for one in pieces[:MISSING_NAMED_MAX]:
        if one.ledger_id in names:
            log.error(
                "topic %s: entries %d to %d are missing, for the log lacks a file; they stay in the backlogs until it "
                "is back", names[one.ledger_id], one.first_entry, one.end_entry - 1,
            )  # fmt: skip


def drop_unknown_ledgers(broker: Broker) -> None:
    """At a start: give up what a crash left between the catalog and the log. Asks the disk.

    Unless the log has ledgers that this catalog never gave out: then it is an older copy, or a new one, and what it
    does not know may be all there is. Nothing is given up then, now or at a later start, and no id used twice.
    """
    catalog = broker.catalog
    unknown = broker.log.ledgers() - ledgers_in_use(catalog)
    if not unknown:
        return
    if max(unknown) < catalog.ledger_ids_stop:
        log.info("giving up %d ledgers of topics that were deleted right before the last stop", len(unknown))
        drop(broker, sorted(unknown))
        return
    log.error(
        "meta.sqlite is older than the log: of %d ledgers it does not know which topics have them; they are kept. "
        "Stop penstock and put the meta.sqlite in place that belongs to this log, if you have it",
        len(unknown),
    )
    kept = sorted(unknown | kept_ledgers(catalog))
    catalog.skip_ledger_ids(kept[-1] + 1, _told)
    catalog.put_document(KEPT, LOG, {"ledgers": kept}, _told)


def _told(error: PenstockError | None) -> None:
    if error is not None:
        log.error("what to keep of the log could not be stored: %s", error)
