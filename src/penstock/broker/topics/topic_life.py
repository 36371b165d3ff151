# SPDX-License-Identifier: Apache-2.0
"""The life of a topic after it came: unloaded, terminated, truncated, deleted.

Why one place: all of these take the topic from its clients (`detaching`), and the order is what keeps them from losing
anything: when that is done, cursors are stored (or go with the topic), and then the topic leaves the memory.

A deleted topic goes from the catalog first, durably, then from the log. A crash in between leaves a ledger that nobody
knows: `ledgers` gives it up at the next start.

Where: the admin port calls this, and so does whoever deletes topics that nobody uses; the directory keeps others away
meanwhile (`leaving`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.detaching import detach, disconnect_producers
from penstock.broker.topics.topic_states import COMPACTED_LEDGER
from penstock.broker.topics.topic_states import KIND as STATE
from penstock.core.errors import PenstockError, PreconditionFailed, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.policies.retention import Retention
    from penstock.broker.subscriptions.cursor_saves import CursorSaves
    from penstock.broker.topics.compaction import Compactor
    from penstock.broker.topics.delayed_upkeep import Delays
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog

log = logging.getLogger(__name__)

# Documents that go with their topic.
DOCUMENTS: Final = (STATE, "dedup")


class TopicLife:
    """How topics end. Everything is called on the loop."""

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
        delays: Delays,
        compaction: Compactor,
        retention: Retention[Topic],
        forget: Callable[[TopicName], Awaitable[object]],
    ) -> None:
        """Args: forget: makes others forget what they keep under the name of a topic that is gone."""
        self._log = entry_log
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._topics = topics
        self._states = states
        self._cursors = cursors
        self._delays = delays
        self._compaction = compaction
        self._retention = retention
        self._forget = forget

    # -- unload -------------------------------------------------------------------------------------------------------

    async def unload(self, name: TopicName) -> None:
        """Take the topic out of memory, if it is loaded; the next who asks for it loads it, with everything."""
        await self._changes.finish(self._unload(name))

    async def _unload(self, name: TopicName) -> None:
        async with self._topics.leaving(name) as topic:
            if topic is None:
                return
            await detach(topic, self._reads)
            try:
                await self._cursors.save(*topic.subscriptions.values())
                await self._delays.save_of(topic)
            finally:
                # Also when cursors cannot be stored: what was acknowledged since is then delivered again.
                self._topics.unloaded(topic)
        log.info("topic %s unloaded", name)

    # -- terminate ----------------------------------------------------------------------------------------------------

    async def terminate(self, topic: Topic) -> int:
        """Take no more messages, for ever; returns the last entry's id, or -1. Raises MetadataFailed."""
        return await self._changes.finish(self._terminate(topic))

    async def _terminate(self, topic: Topic) -> int:
        if not topic.terminated:
            topic.check_open()
            topic.terminated = True
            await self._reads.settled()
            try:
                topic.check_open()  # What loads it anew must find this stored.
                await self._states.change(topic, terminated=True, last_entry=topic.last_entry_id)
            except PenstockError:
                topic.terminated = False
                raise
            log.info("topic %s terminated after entry %d", topic.text, topic.last_entry_id)
            await disconnect_producers(topic, self._reads)
        for subscription in list(topic.subscriptions.values()):
            subscription.topic_terminated()
        return topic.last_entry_id

    # -- truncate -----------------------------------------------------------------------------------------------------

    async def truncate(self, topic: Topic) -> None:
        """Give up all entries, for all subscriptions. Raises MetadataFailed."""
        end = topic.last_entry_id + 1
        # What was compacted of it would show older values than those that go.
        await self._compaction.give_up(topic)
        for subscription in list(topic.subscriptions.values()):
            subscription.skip_all()
        await self._retention.give_up_all(topic, end)

    # -- delete -------------------------------------------------------------------------------------------------------

    def check_unused(self, name: TopicName) -> None:
        """Raises PreconditionFailed while clients are connected; subscriptions that nobody uses go with the topic."""
        topic = self._topics.get(name)
        if topic is None:
            return
        producers, consumers = len(topic.producers), sum(len(s.consumers) for s in topic.subscriptions.values())
        if producers or consumers:
            raise PreconditionFailed(
                f"Topic has {producers + consumers} clients connected Including {consumers} consumers, "
                f"{producers} producers, and 0 replicators."
            )

    async def delete(self, name: TopicName, *, force: bool) -> None:
        """Delete a topic and everything of it; its clients are told to connect anew.

        Raises:
            TopicNotFound: it does not exist.
            PreconditionFailed: clients are connected to it, and it is not forced.
            MetadataFailed: the catalog could not be changed; the topic is as it was.
        """
        if not await self.delete_if_there(name, force=force):
            raise TopicNotFound(str(name))

    async def delete_if_there(self, name: TopicName, *, force: bool) -> bool:
        """As `delete`, but a topic that is gone already is no error: then this says False."""
        return await self._changes.finish(self._delete_if_there(name, force=force))

    async def _delete_if_there(self, name: TopicName, *, force: bool) -> bool:
        async with self._topics.leaving(name):
            if not self._topics.exists(name):
                return False
            if not force:
                self.check_unused(name)
            await self.carry_out(name)
        return True

    async def carry_out(self, name: TopicName) -> None:
        """Delete a topic, within `leaving` and whatever hangs on it. Raises MetadataFailed."""
        text = str(name)
        topic = self._topics.get(name)
        record = self._catalog.topic(text)
        compacted = self._states.of(text).get(COMPACTED_LEDGER)
        if topic is not None:
            await detach(topic, self._reads)
        if record is not None:
            try:
                await self._changes.stored(lambda done: self._catalog.delete_topic(text, done, documents=DOCUMENTS))
            except PenstockError:
                if topic is not None:
                    _open_again(topic)
                raise
        if topic is not None:
            self._topics.unloaded(topic)
        self._topics.vanished(text)
        self._compaction.forget(text)
        if record is not None:
            self._delays.dropped(record.ledger_id)
            self._log.drop(record.ledger_id)
            if compacted is not None:
                self._log.drop(int(compacted))
        log.info("topic %s deleted", name)
        await self._forget_rest(name)

    async def _forget_rest(self, name: TopicName) -> None:
        """What another topic of this name must not find. The topic is gone already, whatever happens here."""
        try:
            await self._forget(name)
        except PenstockError as error:
            log.warning("topic %s is deleted, but not all that was kept about it: %s", name, error)

    async def forget_partitioned(self, name: TopicName) -> None:
        """Forget what is kept under the name of a partitioned topic that is gone."""
        await self._forget_rest(name)
        text, catalog = str(name), self._catalog
        for kind in DOCUMENTS:
            if text in catalog.documents(kind):
                await self._changes.stored(partial(catalog.put_document, kind, text, None))


def _open_again(topic: Topic) -> None:
    topic.fenced = False
    for subscription in topic.subscriptions.values():
        subscription.fenced = False
