# SPDX-License-Identifier: Apache-2.0
"""The memory that all delayed indexes of a broker share.

Why one account: a topic with a million reminders for next year must not keep another topic from remembering a message
that is due in a minute. When the memory is full, the largest index drops messages: first those that only a stuck
subscription still wants, then those that are due last. Both stay on disk and are read again in time. Where: created
once per broker, from its row of the memory budget. Only managers charge it.
"""

from __future__ import annotations

from typing import Final, Protocol

from penstock.governance.budget import Row

# When the memory is full, 1/_FREED_PART of it is freed, so that not every new message has to free some; but at most
# _FREED_BYTES_MAX at once, which takes about a millisecond.
_FREED_PART: Final = 16
_FREED_BYTES_MAX: Final = 128 * 1_024
# How many indexes one call of `make_room` asks to drop messages.
_INDEXES_MAX: Final = 4


class Charged(Protocol):
    """An index as its memory sees it."""

    charged_bytes: int

    def spill(self, bytes_min: int) -> bool:
        """Drop messages of up to `bytes_min` bytes; return False when nothing may be dropped."""


class DelayedMemory(Row):
    """The row of all delayed indexes.

    Attributes:
        limit_bytes: the limit; it may be changed at any time.
        used_bytes: current use. It may exceed the limit by what was just added, and by messages that are due so soon
            that they are not dropped.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__("delayed-index", limit_bytes)
        # In the order in which they came, so that which of two of one size drops messages is no accident.
        self._indexes: dict[Charged, None] = {}

    def recharge(self, index: Charged, size_bytes: int) -> None:
        """Charge one index for `size_bytes` in all."""
        self.release(index.charged_bytes)
        self.charge(size_bytes)
        index.charged_bytes = size_bytes
        if size_bytes:
            self._indexes.setdefault(index)
        else:
            self._indexes.pop(index, None)

    def make_room(self) -> None:
        """Let the largest indexes drop messages until the use is below the limit. Called after each addition."""
        if self.used_bytes <= self.limit_bytes:
            return
        wanted = self.limit_bytes - min(self.limit_bytes // _FREED_PART, _FREED_BYTES_MAX)
        tried: set[Charged] = set()
        while self.used_bytes > wanted and len(tried) < _INDEXES_MAX:
            left = (one for one in self._indexes if one not in tried)
            index = max(left, key=lambda one: one.charged_bytes, default=None)
            if index is None:
                break
            while self.used_bytes > wanted and index.spill(self.used_bytes - wanted):
                pass
            tried.add(index)
