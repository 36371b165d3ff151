# SPDX-License-Identifier: Apache-2.0
"""A count for each key of how many of its items wait in a queue, and the key with the highest count.

Why: a queue that anybody may fill does not protect against the client that fills it (PIP-442, "Fair Queueing"). With
the highest count known at any moment, a full queue can drop an item of that key for a client that has fewer. Where:
`PermitQueue` counts waiting requests of tenants here, and of each tenant's connections. All operations are O(1).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class WaitingCounts(Generic[K]):
    """A count for each key, and the key with the highest count; among equals, the key that reached the count last."""

    __slots__ = ("_counts", "_highest", "_keys_at")

    def __init__(self) -> None:
        self._counts: dict[K, int] = {}
        self._keys_at: dict[int, OrderedDict[K, None]] = {}
        self._highest = 0

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: K) -> int:
        return self._counts.get(key, 0)

    def add(self, key: K) -> None:
        """Increase the count of this key by one."""
        count = self._counts.get(key, 0)
        self._move(key, count, count + 1)
        self._highest = max(self._highest, count + 1)

    def remove(self, key: K) -> None:
        """Decrease the count of this key, which must not be 0, by one."""
        count = self._counts[key]
        self._move(key, count, count - 1)
        if self._highest not in self._keys_at:
            self._highest -= 1  # This key has that count now, or no key is left.

    def largest(self) -> K:
        """Return the key with the highest count; there must be a key."""
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
