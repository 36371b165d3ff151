# SPDX-License-Identifier: Apache-2.0
"""The bytes that all delayed indexes of a broker may take together.

Why one account: a topic with a million reminders for next year must not keep another from remembering what is due in
a minute. When the bytes run out, the index that takes most lets go first: of what only a stuck subscription still
wants, then of what is due last. Both stay on disk and are read again in time.
Where: made once per broker, from its row of the memory table; managers charge it, nobody else.
"""

from __future__ import annotations

from typing import Final, Protocol

# When there is too little, this part of all is made free, so that not every message has to make room for itself; but
# no more than this at once, which takes about a millisecond.
_FREED_PART: Final = 16
_FREED_BYTES_MAX: Final = 128 * 1_024
# How many indexes one call asks.
_INDEXES_MAX: Final = 4


class Charged(Protocol):
    """An index, as its memory sees it."""

    charged_bytes: int

    def let_go(self, bytes_min: int) -> bool:
        """Let go of so many bytes, or a part of them; False when there is nothing that may go."""


class DelayedMemory:
    """How much there is and who has it.

    Attributes:
        size_bytes: how much there is; may be changed at any time.
        used_bytes: how much all indexes take now. It may exceed the size by what was just added, and by what is due
            so soon that it is not let go.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.used_bytes = 0
        self._indexes: set[Charged] = set()

    def charge(self, index: Charged, size_bytes: int) -> None:
        """This index takes so much now."""
        self.used_bytes += size_bytes - index.charged_bytes
        index.charged_bytes = size_bytes
        if size_bytes:
            self._indexes.add(index)
        else:
            self._indexes.discard(index)

    def make_room(self) -> None:
        """Called after something was added: if it is too much, the largest index lets go, until it is not."""
        if self.used_bytes <= self.size_bytes:
            return
        wanted = self.size_bytes - min(self.size_bytes // _FREED_PART, _FREED_BYTES_MAX)
        tried: set[Charged] = set()
        while self.used_bytes > wanted and len(tried) < _INDEXES_MAX:
            index = max(self._indexes - tried, key=lambda one: one.charged_bytes, default=None)
            if index is None:
                break
            while self.used_bytes > wanted and index.let_go(self.used_bytes - wanted):
                pass
            tried.add(index)
