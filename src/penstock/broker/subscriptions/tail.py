# SPDX-License-Identifier: Apache-2.0
"""The tail cache: what was published last, kept in memory for consumers that keep up.

Why: a consumer at the tail must not wait for the disk. Runs are kept as they came, shared by all topics and
subscriptions that they concern, and charged once to one budget; the oldest run goes first, whoever still wants it
reads it from the log.
Where: publish adds a run when it is durable; subscriptions look up by entry id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.storage.entry_log import Batch


class Tail:
    """One topic's part of the cache."""

    __slots__ = ("batches", "firsts")

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.firsts: list[int] = []

    def find(self, entry_id: int) -> tuple[Batch, int] | None:
        """The batch that holds this entry and its row there; None when it is not cached."""
        index = bisect_right(self.firsts, entry_id) - 1
        if index < 0:
            return None
        batch = self.batches[index]
        row = entry_id - self.firsts[index]
        return (batch, row) if row < len(batch.offsets) else None


class TailCache:
    """All topics' tails against one budget in bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._runs: deque[tuple[int, list[Tail]]] = deque()

    def add(self, parts: list[tuple[Tail, Batch]], nbytes: int) -> None:
        """Keep one durable run: `nbytes` of memory, seen by each of these tails as a batch of consecutive entries."""
        for tail, batch in parts:
            tail.batches.append(batch)
            tail.firsts.append(batch.entry_ids[0])
        self._runs.append((nbytes, [tail for tail, _ in parts]))
        self.used_bytes += nbytes
        while self.used_bytes > self.budget_bytes:
            self._evict()

    def _evict(self) -> None:
        """Runs leave in the order they came, so each finds its batch at the front of its tails."""
        nbytes, tails = self._runs.popleft()
        self.used_bytes -= nbytes
        for tail in tails:
            del tail.firsts[0], tail.batches[0]
