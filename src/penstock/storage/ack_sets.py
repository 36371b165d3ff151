# SPDX-License-Identifier: Apache-2.0
"""Partly acknowledged batches: for each such entry, a bit per message that is not acknowledged yet.

Why apart from the cursor: ack sets are bounded, measured and stored one by one, independently of whole entries. Where:
`Cursor` has one, and tells the broker how much memory a set needs before it keeps it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD_BITS: Final = 64
# 64-bit words of an ack set: batches of 1,048,576 messages. An ACK may carry as many (`wire.bounds`).
WORDS_MAX: Final = 16_384
# The memory of a set besides its bits: the integer's header, its key and its place in the dictionary, by RSS.
SET_BYTES: Final = 120

_WORD_MASK: Final = (1 << WORD_BITS) - 1
_ALL_MEMBERS: Final = -1  # Every bit set: no message of the batch is acknowledged yet.


class AckSets:
    """Entry id → the messages of its batch that are not acknowledged.

    Attributes:
        nbytes: memory of the sets in bytes.
        changed: entries whose stored set is out of date; the caller that stores them clears it.
    """

    __slots__ = ("_sets", "changed", "nbytes")

    def __init__(self) -> None:
        self._sets: dict[int, int] = {}
        self.nbytes = 0
        self.changed: set[int] = set()

    def __len__(self) -> int:
        return len(self._sets)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._sets

    # -- changing

    def narrowed(self, entry_id: int, words: Sequence[int]) -> int:
        """Return the messages of a batch that remain unacknowledged after an ack set of `words`: 0 when none does."""
        return self._sets.get(entry_id, _ALL_MEMBERS) & bits_of(words)

    def growth_bytes(self, entry_id: int, wanted: int) -> int:
        """Return how much more memory `put` would take; 0 or less when it takes no more."""
        before = self._sets.get(entry_id)
        return _nbytes(wanted) - (0 if before is None else _nbytes(before))

    def put(self, entry_id: int, wanted: int) -> bool:
        """Set the unacknowledged messages of a batch, at least one; return False if nothing changed."""
        if self._sets.get(entry_id) == wanted:
            return False
        self.nbytes += self.growth_bytes(entry_id, wanted)
        self._sets[entry_id] = wanted
        self.changed.add(entry_id)
        return True

    def discard(self, first: int, last: int) -> None:
        """Remove the sets of entries `first` to `last`. Walks the shorter of the range and the sets."""
        if last - first < len(self._sets):
            found = [entry_id for entry_id in range(first, last + 1) if entry_id in self._sets]
        else:
            found = [entry_id for entry_id in self._sets if first <= entry_id <= last]
        self.discard_many(found)

    def discard_many(self, entry_ids: Sequence[int]) -> None:
        """Remove the sets of these entries, if they have any."""
        for entry_id in entry_ids:
            wanted = self._sets.pop(entry_id, None)
            if wanted is not None:
                self.nbytes -= _nbytes(wanted)
                self.changed.add(entry_id)

    def clear(self) -> None:
        self.discard_many(list(self._sets))

    # -- asking

    def within(self, first: int, last: int) -> dict[int, int]:
        """Return the batches from `first` to `last`, and how many messages of each are unacknowledged."""
        sets = self._sets
        if last - first < len(sets):
            return {entry: sets[entry].bit_count() for entry in range(first, last + 1) if entry in sets}
        return {entry: wanted.bit_count() for entry, wanted in sets.items() if first <= entry <= last}

    def wanted_of(self, entry_id: int) -> int | None:
        """Return how many messages of a batch are unacknowledged; None when it has no set."""
        wanted = self._sets.get(entry_id)
        return None if wanted is None else wanted.bit_count()

    def words(self, entry_id: int) -> list[int] | None:
        """Return the unacknowledged messages of a batch as signed 64-bit words; None when it has no set."""
        wanted = self._sets.get(entry_id)
        return None if wanted is None else list(struct.unpack(f"<{_word_count(wanted)}q", _as_bytes(wanted)))

    def word_count(self, entry_id: int) -> int:
        """Return how many words `words` has; 0 for None."""
        return _word_count(self._sets.get(entry_id, 0))

    # -- the stored form

    def encode(self, entry_id: int) -> bytes | None:
        """Return the stored form of one set; None when there is none."""
        wanted = self._sets.get(entry_id)
        return None if wanted is None else _as_bytes(wanted)

    def load(self, entry_id: int, stored: bytes) -> None:
        """Load a set that `encode` made. Raises ValueError when the bytes are no ack set."""
        if not 0 < len(stored) <= WORDS_MAX * WORD_BITS // 8 or not any(stored):
            raise ValueError(f"{len(stored)} bytes are no ack set")
        self.put(entry_id, int.from_bytes(stored, "little"))


def bits_of(words: Sequence[int]) -> int:
    """Return 64-bit words, lowest first, signed or not, as one integer."""
    try:
        packed = struct.pack(f"<{len(words)}q", *words)  # As they come from the wire.
    except struct.error:
        packed = struct.pack(f"<{len(words)}Q", *(word & _WORD_MASK for word in words))
    return int.from_bytes(packed, "little")


def ack_set_bytes(words: Sequence[int]) -> int:
    """Return the memory of a set of these words in bytes."""
    return _nbytes(bits_of(words))


def _word_count(bits: int) -> int:
    return -(-bits.bit_length() // WORD_BITS)


def _as_bytes(bits: int) -> bytes:
    """Return the integer as little-endian 64-bit words, as many as it needs."""
    return bits.to_bytes(WORD_BITS // 8 * _word_count(bits), "little")


def _nbytes(bits: int) -> int:
    # CPython keeps 30 bits in four bytes.
    return SET_BYTES + bits.bit_length() * 2 // 15
