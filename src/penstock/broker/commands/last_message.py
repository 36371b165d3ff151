# SPDX-License-Identifier: Apache-2.0
"""GET_LAST_MESSAGE_ID: where a topic ends for one consumer.

Where: the session's table of handlers leads here.

The answer wants the index of the last message in its batch, which stands in the metadata of the last entry. An entry
may have megabytes, and readers ask before every message: it is read once for all who ask, in a reader thread, and only
the index leaves that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.topic import subscribed_topic
from penstock.wire import codec, metadata
from penstock.wire.batches import last_index
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.log_reads import LogReads
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.topics.topic import Topic
    from penstock.storage.compacted import CompactedLedger
    from penstock.storage.entry_log import EntryLog

# The batch index of what is no batch.
NO_BATCH: Final = -1


class LastMessage:
    """Where topics end. Everything is called on the loop."""

    def __init__(self, *, log: EntryLog, reads: LogReads) -> None:
        self._log = log
        self._reads = reads
        self.handlers: Mapping[int, Handler] = {codec.BaseCommand.GET_LAST_MESSAGE_ID: self._on_get_last_message_id}

    def _on_get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        session.requests.start(body.request_id, partial(self._get_last_message_id, session, body))

    async def _get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        consumer = session.consumer(body.consumer_id)
        subscription = consumer.subscription
        topic = subscription.topic
        last, batch_index = await self._last_message(consumer)
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

    async def _last_message(self, consumer: Consumer) -> tuple[int, int]:
        """The last entry that the consumer can get (-1 for none), and the index of the last message in it."""
        topic = subscribed_topic(consumer.subscription)
        last, compacted = topic.last_entry_id, topic.compacted
        if compacted is not None and consumer.reads_compacted and last <= compacted.horizon:
            # The very last entries may have been compacted away: whoever waits for them would wait for ever.
            return await self._reads.in_thread(partial(self._last_compacted, compacted))
        if last < topic.first_entry_id or not topic.persistent:
            return last, NO_BATCH
        return last, await self._index_in(topic, last)

    def _last_compacted(self, compacted: CompactedLedger) -> tuple[int, int]:
        entry_id, entry = compacted.last(self._log) or (-1, None)
        return entry_id, _batch_index(entry)

    async def _index_in(self, topic: Topic, entry_id: int) -> int:
        known = topic.last_index
        if known is None or known[0] != entry_id:
            known = topic.last_index = (entry_id, self._reads.about_entry(topic.ledger_id, entry_id, _batch_index))
            known[1].add_done_callback(partial(_forget_failed, topic))
        return await asyncio.shield(known[1])


def _forget_failed(topic: Topic, read: asyncio.Future[int]) -> None:
    """What could not be read is read again for whoever asks next."""
    if (read.cancelled() or read.exception() is not None) and topic.last_index is not None:
        topic.last_index = None if topic.last_index[1] is read else topic.last_index


def _batch_index(entry: bytes | None) -> int:
    if entry is not None:
        with contextlib.suppress(ProtocolError):  # an entry without readable metadata is no batch
            return last_index(metadata.decode(entry))
    return NO_BATCH
