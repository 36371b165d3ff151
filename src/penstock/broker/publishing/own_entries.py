# SPDX-License-Identifier: Apache-2.0
"""Entries that the broker itself appends to a topic, without a client, a producer or a receipt.

Where: `broker.records` writes usage and decision records with it.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.subscriptions.tail import COLUMNS_BYTES
from penstock.storage.entry_log import AppendRun, Batch

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.broker.subscriptions.tail import TailCache
    from penstock.core.errors import PenstockError
    from penstock.storage.entry_log import EntryLog


class OwnEntry(NamedTuple):
    """A sealed entry, and how many messages it holds."""

    data: bytes
    messages: int


class OwnEntries:
    """Appends entries to topics of this broker."""

    def __init__(self, log: EntryLog, tail_cache: TailCache, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._tail_cache = tail_cache
        self._loop = loop

    def append(self, topic: PublishedTopic, entries: Sequence[OwnEntry]) -> asyncio.Future[None]:
        """Append to a persistent topic; the future is done when they are durable, or has the log's error.

        Rates and resource groups do not count them. Raises ServiceNotReady while the topic is unloaded or deleted, and
        TopicTerminated.
        """
        topic.check_publishable()
        lengths = [len(entry.data) for entry in entries]
        offsets = [0, *accumulate(lengths[:-1])]
        counts = [entry.messages for entry in entries]
        data = b"".join(entry.data for entry in entries)
        ids = range(topic.next_entry_id, topic.next_entry_id + len(entries))
        topic.next_entry_id += len(entries)
        topic.entries_in += len(entries)
        topic.messages_in += sum(counts)
        topic.bytes_in += len(data)
        durable: asyncio.Future[None] = self._loop.create_future()

        def done(_run: AppendRun, error: PenstockError | None) -> None:
            if error is None:
                self._tell(topic, Batch(topic.ledger_id, ids, data, offsets, lengths, counts))
            if durable.cancelled():
                return
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        groups = [(topic.ledger_id, ids.start, len(ids))]
        self._log.append(
            AppendRun(groups=groups, offsets=offsets, lengths=lengths, message_counts=counts, data=data, done=done)
        )
        return durable

    def _tell(self, topic: PublishedTopic, batch: Batch) -> None:
        """The entries are durable: tell the topic, as `Publish` does."""
        if topic.delayed is not None:
            topic.delayed.published(batch.entry_ids[0], batch.data, batch.offsets, batch.lengths)
        topic.appended(batch.entry_ids[-1])
        if topic.wants_tail():
            self._tail_cache.add([(topic.tail, batch)], len(batch.data) + COLUMNS_BYTES * len(batch.offsets))
