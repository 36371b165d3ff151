# SPDX-License-Identifier: Apache-2.0
"""GET_LAST_MESSAGE_ID: the last message of a topic for a consumer, and how many messages there are up to somewhere.

Where: called from the session's table of handlers.

The answer has the index of the last message in its batch, which is in the metadata of the last entry. An entry may have
megabytes, and readers ask before every message. So it is read once for all callers, in a reader thread, which returns
only the index.

The count is an extension of ours (docs/adr/0043): Apache Pulsar ignores the field that asks for it, and other clients
never send it. It is made of the log's tables, not of its entries.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.log_reads import publish_time_of
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
        # One count at a time: it takes milliseconds, and another reader thread must be free for those who read.
        self._counting = asyncio.Semaphore(1)
        self.handlers: Mapping[int, Handler] = {codec.BaseCommand.GET_LAST_MESSAGE_ID: self._on_get_last_message_id}

    def _on_get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        session.requests.start(body.request_id, partial(self._get_last_message_id, session, body))

    async def _get_last_message_id(self, session: Session, body: codec.CommandGetLastMessageId) -> None:
        consumer = session.consumer(body.consumer_id)
        subscription = consumer.subscription
        topic = subscription.topic
        last, batch_index = await self._last_message(consumer)
        counted = await self._count(subscribed_topic(subscription), body.count) if body.HasField("count") else None
        session.reply(
            codec.last_message_id(
                body.request_id,
                topic.ledger_id if last >= 0 else -1,
                last,
                partition=topic.partition,
                batch_index=batch_index,
                mark_delete=(topic.ledger_id, subscription.cursor.mark_delete),
                counted=counted,
            )
        )

    async def _count(self, topic: Topic, query: codec.MessageCountQuery) -> codec.MessageCount | None:
        """Count from a position on. A position in another ledger is of a topic of this name that was deleted."""
        if not topic.persistent:
            return None
        ledger_id, stop = topic.ledger_id, topic.last_entry_id + 1
        first = query.entry_id if query.ledger_id == ledger_id and query.entry_id < 2**63 else 0
        end = min(query.end_entry_id, stop) if query.HasField("end_entry_id") else stop
        count = partial(
            self._log.count,
            ledger_id,
            first,
            end,
            messages_max=query.messages_max if query.HasField("messages_max") else None,
            bytes_max=query.bytes_max if query.HasField("bytes_max") else None,
        )
        async with self._counting:
            found = await self._reads.in_thread(count)
        published_ms = 0
        if query.publish_time and found.next_entry_id < stop:
            published_ms = await self._reads.about_entry(ledger_id, found.next_entry_id, publish_time_of)
        return codec.MessageCount(
            ledger_id=ledger_id,
            next_entry_id=found.next_entry_id,
            entries=found.entries,
            messages=found.messages,
            bytes=found.bytes,
            next_messages=found.next_messages,
            next_publish_time=published_ms,
        )

    async def _last_message(self, consumer: Consumer) -> tuple[int, int]:
        """The last entry that the consumer can get (-1 for none), and the index of the last message in it."""
        topic = subscribed_topic(consumer.subscription)
        last, compacted = topic.last_entry_id, topic.compacted
        if compacted is not None and consumer.reads_compacted and last <= compacted.horizon:
            # The last entries may have been removed by compaction: a client that waits for them would wait for ever.
            return await self._reads.in_thread(partial(self._last_compacted, compacted))
        if topic.transactions is not None:
            # A client that waits for an entry of an aborted transaction would wait for ever.
            last = topic.transactions.last_not_aborted(topic.first_entry_id, last)
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
