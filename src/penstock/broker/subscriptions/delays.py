# SPDX-License-Identifier: Apache-2.0
"""Entries of one subscription that are not to be delivered before a certain time.

Why so small: this is the whole interface that dispatch needs of delayed delivery (hold, what is due, when next), so an
index that serves all subscriptions of a topic and survives a restart can take its place. Nothing is stored here: what
is held is not acknowledged, so it is read again after a restart and held again.
Where: a Shared or Key_Shared subscription holds entries here when it comes across them, and sets a timer by `next_ms`.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

# Entries held by one subscription, about 14 MiB worth; reading stops there until one is due.
HELD_MAX: Final = 100_000


class Held(NamedTuple):
    """One entry and when it is due."""

    deliver_at_ms: int
    entry_id: int
    slot: int  # of its key, in a Key_Shared subscription


class Delays:
    """What is held, earliest first."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Held] = []

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._heap)

    @property
    def full(self) -> bool:
        """Whether no more may be held."""
        return len(self._heap) >= HELD_MAX

    @property
    def next_ms(self) -> int | None:
        """When the first of them is due; None when nothing is held."""
        return self._heap[0].deliver_at_ms if self._heap else None

    def hold(self, entry_id: int, deliver_at_ms: int, slot: int = 0) -> None:
        """Keep this entry back until then."""
        heapq.heappush(self._heap, Held(deliver_at_ms, entry_id, slot))

    def due(self, until_ms: int) -> list[Held]:
        """Take out everything that is due by this time."""
        due = []
        while self._heap and self._heap[0].deliver_at_ms <= until_ms:
            due.append(heapq.heappop(self._heap))
        return due

    def clear(self) -> None:
        """Nothing is held any more."""
        self._heap.clear()
