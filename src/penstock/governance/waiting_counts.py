# SPDX-License-Identifier: Apache-2.0
"""Who has how many of the places in a queue, and who has most.

Why: a queue that anybody may fill is no protection against the one who fills it (PIP-442, "Fair Queueing"). Knowing at
any moment who has most, a full queue can make room for whoever has less.
Where: `PermitQueue` counts the places of tenants here, and those of each tenant's connections. All steps are O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class WaitingCounts(Generic[K]):
    """A count for each key, and the key with the highest; among equals, the one that came to it last."""

    __slots__ = ("_counts", "_highest", "_keys_at")

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}
        self._keys_at: dict[int, OrderedDict[K, None]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: K) -> int:
        """How many places this key has."""
        return self._counts.get(key, 0)

    def add(self, key: K) -> None:
        """One place more."""
        count = self._counts.get(key, 0)
        self._move(key, count, count + 1)
        self._highest = max(self._highest, count + 1)

    def remove(self, key: K) -> None:
        """One place less; the key must have one."""
        count = self._counts[key]
        self._move(key, count, count - 1)
        if self._highest not in self._keys_at:
            self._highest -= 1  # The key itself is there now, or nobody is left.

    def largest(self) -> K:
        """Who has most; there must be somebody."""
        return next(reversed(self._keys_at[self._highest]))

    def _move(self, key: K, before: int, after: int) -> None:
        if before:
            keys = self._keys_at[before]
            del keys[key]
            if not keys:
                del self._keys_at[before]
        if after:
            self._counts[key] = after
            self._keys_at.setdefault(after, OrderedDict())[key] = None
        else:
            del self._counts[key]
