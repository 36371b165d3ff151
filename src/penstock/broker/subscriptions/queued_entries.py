# SPDX-License-Identifier: Apache-2.0
"""Entries queued for a consumer that can still be returned, because their client has not read any byte of them.

Why: memory of clients that do not read is needed for those that do, and the entries are in the log anyway.
Where: `Delivery` passes one with each run to the consumer's outlet; the connection calls it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.subscriptions.consumer import Consumer


class QueuedEntries:
    """One run queued for one consumer."""

    __slots__ = ("consumer", "counts", "entry_ids", "lengths", "nbytes")

    def __init__(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],
        lengths: Sequence[int],
        counts: Sequence[int] | None,
        nbytes: int,
    ) -> None:
        self.consumer = consumer
        self.entry_ids = entry_ids
        self.lengths = lengths
        self.counts = counts  # messages in each entry; None when each holds one
        self.nbytes = nbytes  # total size, with headers of equal length

    def compact(self) -> None:
        """Store the numbers compactly: the client does not read at once."""
        if not isinstance(self.lengths, array):
            self.lengths = array("I", self.lengths)
            if not isinstance(self.entry_ids, range):
                self.entry_ids = array("Q", self.entry_ids)
            if self.counts is not None:
                self.counts = array("I", self.counts)

    def put_back(self, taken_bytes: int) -> int:
        """Return the entries after the one in which these bytes end; returns the size of the rest in bytes."""
        header_bytes = (self.nbytes - sum(self.lengths)) // len(self.lengths)
        ends = list(accumulate((length + header_bytes for length in self.lengths), initial=0))
        kept = bisect_left(ends, min(taken_bytes, self.nbytes))
        if kept < len(self.lengths):
            entry_ids = list(self.entry_ids[kept:])
            messages = len(entry_ids) if self.counts is None else sum(self.counts[kept:])
            self.consumer.subscription.entries_returned(self.consumer, entry_ids, messages)
            self.entry_ids, self.lengths = self.entry_ids[:kept], self.lengths[:kept]
            self.counts = None if self.counts is None else self.counts[:kept]
            self.nbytes = ends[kept]
        return ends[kept]
