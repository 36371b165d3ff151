# SPDX-License-Identifier: Apache-2.0
"""Unloading, terminating, truncating and deleting topics.

Why in one place: all of these first disconnect the topic's clients (`detaching`), and the order keeps them from losing
data. After that, cursors are stored (or deleted with the topic), and then the topic is removed from memory.

A deleted topic is first removed from the catalog, durably, then from the log. A crash in between leaves a ledger
without a topic, which `ledgers` deletes at the next start.

Where: the admin API calls this, and so does the deletion of inactive topics; the directory makes other callers wait
meanwhile (`locked`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.elsewhere import of_topic
from penstock.broker.topics.topic_states import COMPACTED_LEDGER
from penstock.core.errors import NotFound, PenstockError, PreconditionFailed, TopicNotFound
from penstock.storage.shared_view import DELETIONS
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.changes import Changes
    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.retention import Retention
    from penstock.broker.subscriptions.acknowledging import CursorSaves
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.delayed import DelayedIndexes
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.membership import Membership
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog


# ---------------------------------------------------------------------------------------------------------------------
# Disconnecting the clients of a topic without losing messages that they have sent.
#
# - `fenced` is set: no producer or consumer can attach, and new SENDs are not accepted.
# - Accepted messages become durable and are acknowledged. Only then are producers told to reconnect, so none of them
#   sends a stored message again.

UNSOLICITED: Final = 2**64 - 1
# Clients of older versions do not know TOPIC_MIGRATED. They look their topic up again, and are redirected by that.
KNOWS_MIGRATION: Final = 20


async def detach(topic: Topic, reads: LogReads) -> None:
    """Disconnect all clients of the topic. On return all accepted messages are durable and acknowledged."""
    topic.fenced = True
    for subscription in list(topic.subscriptions.values()):
        for consumer in list(subscription.consumers):
            consumer.session.disconnect_consumer(consumer)
        subscription.fenced = True
    await disconnect_producers(topic, reads)


async def disconnect_producers(topic: Topic, reads: LogReads, urls: codec.MigratedUrls | None = None) -> None:
    """Tell all producers to reconnect, once their accepted messages are acknowledged. Args: urls: to this cluster."""
    producers = list(topic.producers.values())
    for producer in producers:
        producer.session.forget_producer(producer)
        producer.session.remember_closed(producer.producer_id)
    await reads.settled()
    for producer in producers:
        if urls is not None and producer.session.protocol_version >= KNOWS_MIGRATION:
            producer.session.reply(codec.topic_migrated(producer.producer_id, urls, producer=True))
        producer.session.reply(codec.close_producer(producer.producer_id, UNSOLICITED))


# ---------------------------------------------------------------------------------------------------------------------
# Notes of what brokers are deleting, as all brokers know them: namespaces, and partitioned topics of several brokers.
#
# Why: a deletion takes many steps, at several brokers. Clients whose topics are deleted connect again at once, and
# would create them again; and a broker that does not answer leaves a part. So the intent is stored first: from then on
# all brokers refuse topics in it, and so does the writer of the shared metadata (`shared_changes`). It stays until the
# deletion is finished, which is tried again when brokers return (`deleting`), or has failed for another reason.
#
# A note is a document under the name of the namespace or topic, and names the broker that deletes it. It goes with the
# namespace or topic. Where there is one broker, `NamespaceResources.deleting` is enough. Where: `deleting` and
# `partitions` note deletions; `NamespaceResources` asks for them.

_BROKER: Final = "broker"


class Deletions:
    """The notes. All methods are called on the event loop."""

    def __init__(self, catalog: Catalog, changes: Changes, membership: Membership) -> None:
        self._catalog = catalog
        self._changes = changes
        self._membership = membership

    async def begin(self, name: str) -> None:
        """Let no broker create topics in it from now on. Raises MetadataFailed."""
        if len(self._membership.members) > 1:
            document = {_BROKER: self._membership.own}
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, name, document))

    async def end(self, name: str) -> None:
        """Let topics be created again: it is not deleted. Raises MetadataFailed."""
        if self.is_noted(name):
            await self._changes.stored(partial(self._catalog.put_document, DELETIONS, name, None))

    def is_noted(self, name: str) -> bool:
        """Whether a broker has begun to delete it."""
        return name in self._catalog.documents(DELETIONS)

    def is_elsewhere(self, name: str) -> bool:
        """Whether another broker is deleting it, and serves."""
        number = self._catalog.documents(DELETIONS).get(name, {}).get(_BROKER)
        member = self._membership.members.get(number) if number is not None else None
        return member is not None and number != self._membership.own and member.allows.serves

    def ours(self) -> list[str]:
        """Return the names that this broker has to finish."""
        documents = self._catalog.documents(DELETIONS).items()
        return [name for name, document in documents if self.are_finished_here(document[_BROKER])]

    def are_finished_here(self, broker: int | None) -> bool:
        """Whether this broker finishes what that one has begun: itself, or one that is left out by now, or unknown."""
        members = self._membership.members
        return self._membership.own == (broker if broker in members else min(members))


log = logging.getLogger(__name__)


class TopicLife:
    """Ends topics. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        topics: TopicDirectory,
        states: TopicStates,
        cursors: CursorSaves,
        delayed_indexes: DelayedIndexes,
        compaction: Compactor,
        retention: Retention[Topic],
        placement: Placement,
        elsewhere: Elsewhere,
        forget: Callable[[TopicName], Awaitable[object]],
    ) -> None:
        """Args: forget: removes other data kept under the name of a deleted topic."""
        self._log = entry_log
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._topics = topics
        self._states = states
        self._cursors = cursors
        self._indexes = delayed_indexes
        self._compaction = compaction
        self._retention = retention
        self._placement = placement
        self._elsewhere = elsewhere
        self._forget = forget

    # -- unload -------------------------------------------------------------------------------------------------------

    async def unload(self, name: TopicName) -> None:
        """Remove the topic from memory, if it is loaded; the next request loads it again with all its data."""
        await self._changes.finish(self._unload(name))

    async def _unload(self, name: TopicName) -> None:
        async with self._topics.locked(name) as topic:
            if topic is None:
                return
            await detach(topic, self._reads)
            try:
                await self._cursors.save(*topic.subscriptions.values())
                await self._indexes.save_of(topic)
            finally:
                # Also if cursors cannot be stored: later acknowledgements are then lost, and messages delivered
                # again.
                self._topics.remove(topic)
        log.info("topic %s unloaded", name)

    # -- terminate ----------------------------------------------------------------------------------------------------

    async def terminate(self, topic: Topic) -> int:
        """Stop accepting messages permanently; returns the last entry id, or -1. Raises MetadataFailed."""
        return await self._changes.finish(self._terminate(topic))

    async def _terminate(self, topic: Topic) -> int:
        if not topic.terminated:
            topic.check_open()
            topic.terminated = True
            await self._reads.settled()
            try:
                topic.check_open()  # The next load must find this stored.
                await self._states.change(topic, terminated=True, last_entry=topic.last_entry_id)
            except PenstockError:
                topic.terminated = False
                raise
            log.info("topic %s terminated after entry %d", topic.text, topic.last_entry_id)
            await disconnect_producers(topic, self._reads)
        for subscription in list(topic.subscriptions.values()):
            subscription.tell_of_end()
        return topic.last_entry_id

    # -- truncate -----------------------------------------------------------------------------------------------------

    async def truncate(self, topic: Topic) -> None:
        """Delete all entries, for all subscriptions. Raises MetadataFailed."""
        end = topic.last_entry_id + 1
        # The compacted ledger would show older values than the deleted ones.
        await self._compaction.drop_compacted(topic)
        for subscription in list(topic.subscriptions.values()):
            subscription.moves.skip_all()
        await self._retention.delete_acknowledged(topic, end)

    # -- delete -------------------------------------------------------------------------------------------------------

    def check_unused(self, name: TopicName) -> None:
        """Raises PreconditionFailed while clients are connected. Subscriptions without consumers do not count."""
        topic = self._topics.get(name)
        if topic is None:
            return
        consumers = sum(len(s.consumers) for s in topic.subscriptions.values() if s.replicator is None)
        _check_no_clients(len(topic.producers), consumers)

    async def check_unused_anywhere(self, name: TopicName) -> None:
        """As `check_unused`, for a topic of any broker."""
        broker = self._placement.broker_of(name)
        if broker is None or broker == self._placement.own:
            self.check_unused(name)
            return
        with suppress(NotFound):
            stats = await self._elsewhere.ask(broker, "GET", of_topic(name, "/stats"))
            consumers = sum(len(one["consumers"]) for one in stats["subscriptions"].values())
            _check_no_clients(len(stats["publishers"]), consumers)

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic with all its data; its clients are told to reconnect.

        Raises:
            TopicNotFound: it does not exist.
            PreconditionFailed: clients are connected to it, and `force` is not set.
            MetadataFailed: the catalog could not be changed; the topic is unchanged.
        """
        if not await self.delete_if_there(name, force=force):
            raise TopicNotFound(str(name))

    async def delete_if_there(self, name: TopicName, *, force: bool) -> bool:
        """As `delete`, but returns False if the topic does not exist. Asks the broker that serves it."""
        return await self._changes.finish(self._delete_if_there(name, force=force))

    async def _delete_if_there(self, name: TopicName, *, force: bool) -> bool:
        if self._placement.is_ours(name):
            async with self._topics.locked(name):
                # Another broker may have created the topic while this waited.
                if self._placement.is_ours(name):
                    if not self._topics.exists(name):
                        return False
                    if not force:
                        self.check_unused(name)
                    await self.carry_out(name)
                    return True
        broker = self._placement.broker_of(name)
        return broker is not None and await self._delete_elsewhere(name, broker, force=force)

    async def _delete_elsewhere(self, name: TopicName, broker: int, *, force: bool) -> bool:
        try:
            await self._elsewhere.ask(broker, "DELETE", of_topic(name, "?force=true" if force else ""))
        except NotFound:
            return False
        return True

    async def carry_out(self, name: TopicName) -> None:
        """Delete a topic and its data; call inside `locked`. Raises MetadataFailed."""
        text = str(name)
        topic = self._topics.get(name)
        record = self._catalog.topic(text)
        compacted = self._states.of(text).get(COMPACTED_LEDGER)
        if topic is not None:
            await detach(topic, self._reads)
        if record is not None:
            try:
                await self._changes.stored(lambda done: self._catalog.delete_topic(text, done, record.ledger_id))
            except PenstockError:
                if topic is not None:
                    _open_again(topic)
                raise
        if topic is not None:
            self._topics.remove(topic)
        if self._catalog.topic(text) is None:  # Another broker may have created it again.
            self._topics.remove_name(text)
        self._placement.deleted()
        self._compaction.forget(text)
        if record is not None:
            self._indexes.dropped(record.ledger_id)
            self._log.drop(record.ledger_id)
            if compacted is not None:
                self._log.drop(int(compacted))
        log.info("topic %s deleted", name)
        await self._forget_rest(name)

    async def _forget_rest(self, name: TopicName) -> None:
        """Remove data that a new topic of this name must not find. Failures do not restore the topic."""
        try:
            await self._forget(name)
        except PenstockError as error:
            log.warning("topic %s is deleted, but not all that was kept about it: %s", name, error)

    async def forget_partitioned(self, name: TopicName) -> None:
        """Remove data kept under the name of a deleted partitioned topic."""
        await self._forget_rest(name)


def _check_no_clients(producers: int, consumers: int) -> None:
    if producers or consumers:
        raise PreconditionFailed(
            f"Topic has {producers + consumers} clients connected Including {consumers} consumers, "
            f"{producers} producers, and 0 replicators."
        )


def _open_again(topic: Topic) -> None:
    topic.fenced = False
    for subscription in topic.subscriptions.values():
        subscription.fenced = False
