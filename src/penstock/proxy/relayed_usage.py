# SPDX-License-Identifier: Apache-2.0
"""What one client uses through the proxy, as it is counted: SENDs by their receipts, messages as they are sent on.

Where: `relayed_sends` and `relayed_consumers` of a proxy with usage records.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.accounting.totals import Totals
from penstock.proxy.usage import ClientBytes, UnansweredSends
from penstock.wire.metadata import is_followed_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.names import TopicName
    from penstock.proxy.usage import PublishedTopic, UsageCounts
    from penstock.wire.events import PublishRun
    from penstock.wire.relayed_messages import Answered, Delivered


class RelayedUsage:
    """One client's part of the counters."""

    def __init__(self, counts: UsageCounts) -> None:
        self._counts = counts
        self._memory = ClientBytes(counts.unanswered)
        self._unanswered: dict[int, UnansweredSends] = {}  # by producer id; also of producers that were closed
        self._closed: set[int] = set()  # of these

    def opened(self, producer_id: int, topic: PublishedTopic) -> None:
        """A PRODUCER is passed on."""
        self._drop(producer_id)
        self._unanswered[producer_id] = UnansweredSends(self._counts, topic, self._memory)

    def forget(self, producer_id: int) -> None:
        """A producer is gone; receipts of what it has sent may follow."""
        unanswered = self._unanswered.get(producer_id)
        if unanswered is not None and unanswered.waits:
            self._closed.add(producer_id)
        else:
            self._drop(producer_id)

    def _drop(self, producer_id: int) -> None:
        self._closed.discard(producer_id)
        unanswered = self._unanswered.pop(producer_id, None)
        if unanswered is not None:
            unanswered.close()

    def close(self) -> None:
        """The client is gone."""
        for producer_id in list(self._unanswered):
            self._drop(producer_id)

    def passed(self, run: PublishRun) -> None:
        """SENDs are passed on."""
        counts = run.message_counts if not run.rare else _without_followed_chunks(run)
        first = run.producer_ids[0]
        if run.producer_ids.count(first) == len(run.producer_ids):
            unanswered = self._unanswered.get(first)
            if unanswered is not None:
                unanswered.passed(run.lengths, counts)
            return
        rows = defaultdict(list)
        for row, producer_id in enumerate(run.producer_ids):
            rows[producer_id].append(row)
        for producer_id, own in rows.items():
            unanswered = self._unanswered.get(producer_id)
            if unanswered is not None:
                unanswered.passed(
                    [run.lengths[row] for row in own], None if counts is None else [counts[row] for row in own]
                )

    def answered(self, answers: Iterable[Answered]) -> None:
        """The broker has answered SENDs."""
        for one in answers:
            unanswered = self._unanswered.get(one.producer_id)
            if unanswered is not None:
                unanswered.answered(one.sends, stored=one.stored)
                if one.producer_id in self._closed and not unanswered.waits:
                    self._drop(one.producer_id)

    def delivered(self, topic: TopicName, seen: Delivered) -> None:
        """Messages were sent on to a consumer."""
        self._counts.add(str(topic), Totals(messages_out=seen.messages, bytes_out=seen.bytes))


def _without_followed_chunks(run: PublishRun) -> Sequence[int]:
    """The messages of each row; none in chunks that others of their message follow."""
    counts = list(run.message_counts) if run.message_counts is not None else [1] * len(run.offsets)
    for row, send in run.rare.items():
        start = run.offsets[row]
        if send.is_chunk and is_followed_chunk(memoryview(run.data)[start : start + run.lengths[row]]):
            counts[row] = 0
    return counts
