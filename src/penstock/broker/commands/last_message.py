# SPDX-License-Identifier: Apache-2.0
"""GET_LAST_MESSAGE_ID: the last message of a topic for a consumer.

Where: called from the session's table of handlers.

The answer has the index of the last message in its batch, which is in the metadata of the last entry. An entry may have
megabytes, and readers ask before every message. So it is read once for all callers, in a reader thread, which returns
only the index.
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

# Batch index of an entry that is not a batch.
NO_BATCH: Final = -1


class LastMessage:
    """Answers GET_LAST_MESSAGE_ID. All methods are called on the event loop."""

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
            # The last entries may have been removed by compaction: a client that waits for them would wait for ever.
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
    """Remove a failed read, so that the next caller reads again."""
    if (read.cancelled() or read.exception() is not None) and topic.last_index is not None:
        topic.last_index = None if topic.last_index[1] is read else topic.last_index


def _batch_index(entry: bytes | None) -> int:
    if entry is not None:
        with contextlib.suppress(ProtocolError):  # an entry with unreadable metadata counts as not batched
            return last_index(metadata.decode(entry))
    return NO_BATCH
