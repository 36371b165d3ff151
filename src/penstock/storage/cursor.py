# SPDX-License-Identifier: Apache-2.0
"""One subscription's progress on one topic: the mark-delete position and the acknowledgements above it.

Why: acknowledgements come one by one, in stretches and out of order, and for single messages of a batch. The usual
acknowledgement (the next entry, or the next stretch) costs constant time. Above a gap, an entry costs a bit; one
million gaps cost no more to add to, or to store a change of, than ten.

Where: a subscription owns one cursor; dispatch asks it which entries to skip; the catalog stores `head` and
`take_changes`.

Theory of operation: entry ids count from 0. All entries up to and including `mark_delete` are acknowledged.
Acknowledged entries above it are in an `EntrySet`, partly acknowledged batches in `AckSets`. The cursor does not know
where the topic ends: callers ignore acknowledgements of entries that do not exist.

The stored form is a short head, and parts: a chunk of the set or one ack set each, at most 128 KiB. A save writes the
head and the changed parts in one transaction. A stored chunk keeps ids that `mark_delete` has passed since it was
written; `load` removes them.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.checksum import SEAL_BYTES, is_sealed, seal
from penstock.storage.entry_set import EntrySet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


# ---------------------------------------------------------------------------------------------------------------------
# Partly acknowledged batches: for each such entry, a bit per message that is not acknowledged yet.
#
# Why apart from the cursor: ack sets are bounded, measured and stored one by one, independently of whole entries.
# Where: `Cursor` has one, and tells the broker how much memory a set needs before it keeps it.

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


# Kinds of parts.
IDS: Final = 0  # a chunk of acknowledged entry ids, by its number
MEMBERS: Final = 1  # an ack set, by its entry id

# Format 1 had up to 10,000 ranges and 10,000 ack sets behind the same header, and no parts.
_FORMAT: Final = 2
_FORMAT_INLINE: Final = 1
_HEADER: Final = struct.Struct("<BqII")  # format, mark_delete, chunks (1: ranges), ack sets
# The length of `head`.
HEAD_BYTES: Final = SEAL_BYTES + _HEADER.size
_ACK_SET: Final = struct.Struct("<qI")  # entry id, 64-bit words


# The empty sets that most cursors share. They are never changed: the first addition gives a cursor its own.
_NO_IDS: Final = EntrySet()
_NO_SETS: Final = AckSets()


class DamagedCursorError(ValueError):
    """The stored bytes are not a cursor's head; the caller falls back to the stored mark-delete entry."""


class CursorPart(NamedTuple):
    """A part of a cursor as it is stored, by kind and number; the value None deletes it."""

    kind: int
    number: int
    value: bytes | None


class Cursor:
    """The acknowledgements of one subscription on one topic.

    Attributes:
        mark_delete: all entries up to this id are acknowledged; -1 when none is.
        version: grows with every change; equal versions mean there is nothing new to store.
        lost_parts: the number of stored parts that were damaged or missing when the cursor was loaded. Their messages
        are
            redelivered.
    """

    __slots__ = ("_above", "_ack_sets", "lost_parts", "mark_delete", "version")

    def __init__(self, mark_delete: int = -1) -> None:
        self.mark_delete = mark_delete
        self.version = 0
        self.lost_parts = 0
        self._above = _NO_IDS
        self._ack_sets = _NO_SETS

    # -- acknowledging

    def acknowledge(self, entry_id: int) -> bool:
        """Acknowledge one whole entry; return whether it was not acknowledged before."""
        if entry_id == self.mark_delete + 1 and not self._above and not self._ack_sets:
            self.mark_delete = entry_id
            self.version += 1
            return True
        return self._add(entry_id, entry_id) == 1

    def acknowledge_many(self, entry_ids: Sequence[int]) -> int:
        """Acknowledge whole entries, in any order, repeats allowed; return how many were not acknowledged before."""
        if not entry_ids:
            return 0
        if isinstance(entry_ids, range) and entry_ids.step == 1:  # However long, it is one stretch.
            return self._add(entry_ids[0], entry_ids[-1])
        ordered = sorted(entry_ids)  # Linear for what is already in order, which is the usual case.
        first, last = ordered[0], ordered[-1]
        if last - first + 1 == len(ordered) and ordered == list(range(first, last + 1)):
            return self._add(first, last)
        # All of them are added before the mark-delete position moves, once: they may end many gaps above it.
        beyond = bisect_right(ordered, self.mark_delete)
        if beyond:
            del ordered[:beyond]
        newly = self._add_scattered(ordered)
        if ordered and ordered[0] == self.mark_delete + 1:
            self._advance(self.mark_delete)
        return newly

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge all entries up to and including `entry_id`; return how many were not acknowledged before."""
        return self._add(self.mark_delete + 1, entry_id)

    def acknowledge_batch(self, entry_id: int, words: Sequence[int], take: Callable[[int], None] | None = None) -> bool:
        """Acknowledge messages of a batch; return whether that completed the acknowledgement of the entry.

        Args:
            entry_id: the entry that holds the batch.
            words: the messages that are not acknowledged, as 64-bit words, lowest first, signed or not; absent words
                are zero.
            take: called before anything changes with the additional bytes that are needed, or with 0 or less. If it
                raises, nothing has changed, and the error is passed on.
        """
        if self.is_acknowledged(entry_id):
            return False
        wanted = self._ack_sets.narrowed(entry_id, words)
        if not wanted:
            return self.acknowledge(entry_id)
        if take is not None:
            take(self._ack_sets.growth_bytes(entry_id, wanted))
        if self._own_sets().put(entry_id, wanted):
            self.version += 1
        return False

    def reset(self, to_entry_id: int, words: Sequence[int] = ()) -> None:
        """Seek: `to_entry_id` is the next entry to deliver, and no entry from it on is acknowledged.

        Args:
            to_entry_id: the entry.
            words: if only a part of a batch is to be delivered, its messages, as in `acknowledge_batch`.
        """
        self.mark_delete = to_entry_id - 1
        self.version += 1
        self._above.clear()
        self._ack_sets.clear()
        wanted = bits_of(words)
        if wanted:
            self._own_sets().put(to_entry_id, wanted)

    # -- asking

    @property
    def acknowledged_above(self) -> int:
        """The number of acknowledged entries above `mark_delete`."""
        return len(self._above)

    @property
    def last_acknowledged(self) -> int:
        """The highest acknowledged entry; -1 when none is."""
        return max(self.mark_delete, self._above.last)

    @property
    def range_count(self) -> int:
        """The number of acknowledged ranges above `mark_delete`.

        Takes some microseconds for each 65,536 entries there.
        """
        return self._above.range_count if self._above else 0

    def is_acknowledged(self, entry_id: int) -> bool:
        """Return whether the whole entry is acknowledged."""
        return entry_id <= self.mark_delete or entry_id in self._above

    def none_acknowledged(self, first: int, last: int) -> bool:
        """Return whether none of the entries `first` to `last` is acknowledged."""
        if not self._above:
            return first > self.mark_delete
        return first > self.mark_delete and self._above.first_present(first, last + 1) > last

    @property
    def has_ack_sets(self) -> bool:
        """Whether any batch is partly acknowledged."""
        return bool(self._ack_sets)

    def partly_acknowledged(self, first: int, last: int) -> dict[int, int]:
        """Return the partly acknowledged batches within [first, last], each with its unacknowledged messages."""
        return self._ack_sets.within(first, last)

    def wanted_of(self, entry_id: int) -> int | None:
        """Return how many messages of a partly acknowledged batch are unacknowledged; None for any other entry."""
        return self._ack_sets.wanted_of(entry_id)

    def ack_set(self, entry_id: int) -> list[int] | None:
        """Return the unacknowledged messages of a partly acknowledged batch as signed 64-bit words, otherwise None."""
        return self._ack_sets.words(entry_id)

    def ack_set_words(self, entry_id: int) -> int:
        """Return how many words `ack_set` has; 0 for None."""
        return self._ack_sets.word_count(entry_id)

    def next_unacknowledged(self, from_entry_id: int) -> int:
        """Return the lowest unacknowledged entry id from `from_entry_id` on (it may not exist yet)."""
        if from_entry_id <= self.mark_delete:
            return self.mark_delete + 1
        return self._above.first_absent(from_entry_id) if self._above else from_entry_id

    def nth_unacknowledged(self, nth: int, first: int = 0) -> int:
        """Return the `nth` (from 0) unacknowledged entry id from `first` on (it may not exist yet).

        Takes about a microsecond for each 65,536 entries before it.
        """
        return self._above.absent_at(max(first, self.mark_delete + 1), nth)

    def unacknowledged_ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the unacknowledged entry ids within [first, last] as inclusive ranges, lowest first.

        Ranges are found one at a time, so a caller may stop early. Do not change the cursor while iterating.
        """
        above = self._above
        first = above.first_absent(max(first, self.mark_delete + 1))
        while first <= last:
            stop = above.first_present(first, last + 1)
            yield first, stop - 1
            first = above.first_absent(stop)

    def backlog(self, last_entry_id: int) -> int:
        """Return how many entries up to and including `last_entry_id` are unacknowledged; exact, in constant time.

        Entries after `last_entry_id` must not be acknowledged, which is true for the topic's real end.
        """
        return max(last_entry_id - self.mark_delete - len(self._above), 0)

    # -- memory

    @property
    def nbytes(self) -> int:
        """Memory of the acknowledgements above `mark_delete`; for whole entries as of the last save or `measure`."""
        return self._above.nbytes + self._ack_sets.nbytes

    def measure(self) -> None:
        """Update `nbytes`. Takes some microseconds for each chunk of 65,536 entries that changed."""
        self._above.measure()

    # -- the stored form

    def head(self) -> bytes:
        """Return the bytes that every save stores: sealed, of constant length."""
        return seal(_HEADER.pack(_FORMAT, self.mark_delete, self._above.chunk_count, len(self._ack_sets)))

    def take_changes(self) -> list[CursorPart]:
        """Return the parts to store together with `head`; from now on they count as stored."""
        above, ack_sets = self._above, self._ack_sets
        parts = [CursorPart(IDS, number, above.encode(number)) for number in above.changed]
        parts += [CursorPart(MEMBERS, entry_id, ack_sets.encode(entry_id)) for entry_id in ack_sets.changed]
        above.changed.clear()
        ack_sets.changed.clear()
        above.measure()
        return parts

    @classmethod
    def load(cls, head: bytes, parts: Iterable[tuple[int, int, bytes]] = ()) -> Cursor:
        """Return the cursor from its stored `head` and parts (kind, number, value).

        A part that is damaged or missing is counted in `lost_parts`. A cursor of format 1 has everything in its head;
        its next save stores it in parts.

        Raises:
            DamagedCursorError: the head is damaged or of an unknown format.
        """
        if not is_sealed(head) or len(head) < HEAD_BYTES or head[SEAL_BYTES] not in {_FORMAT, _FORMAT_INLINE}:
            raise DamagedCursorError(f"{len(head)} stored bytes are not a cursor of format {_FORMAT} or before")
        written, mark_delete, chunks, ack_sets = _HEADER.unpack_from(head, SEAL_BYTES)
        cursor = cls(mark_delete)
        if written == _FORMAT_INLINE:
            cursor._load_inline(head, chunks, ack_sets)
        else:
            cursor._load_parts(parts, chunks + ack_sets)
        cursor.version = 0
        return cursor

    # -- inside

    def _own_ids(self) -> EntrySet:
        if self._above is _NO_IDS:
            self._above = EntrySet()
        return self._above

    def _own_sets(self) -> AckSets:
        if self._ack_sets is _NO_SETS:
            self._ack_sets = AckSets()
        return self._ack_sets

    def _load_parts(self, parts: Iterable[tuple[int, int, bytes]], expected: int) -> None:
        loaded = 0
        for kind, number, value in parts:
            try:
                (self._own_ids() if kind == IDS else self._own_sets()).load(number, value)
                loaded += 1
            except ValueError:
                pass  # It is among those that are lost.
        self.lost_parts = max(expected - loaded, 0)
        self._ack_sets.changed.clear()
        if self._above:
            self._above.remove_through(self.mark_delete)

    def _load_inline(self, stored: bytes, ranges: int, ack_sets: int) -> None:
        ids = array("q", struct.unpack_from(f"<{2 * ranges}q", stored, HEAD_BYTES))
        for first, last in zip(ids[:ranges], ids[ranges:], strict=True):
            self._own_ids().add_range(first, last)
        at = HEAD_BYTES + 16 * ranges
        for _ in range(ack_sets):
            entry_id, words = _ACK_SET.unpack_from(stored, at)
            at += _ACK_SET.size
            try:
                self._own_sets().load(entry_id, stored[at : at + 8 * words])
            except ValueError:  # Larger than an ack set may be now.
                self.lost_parts += 1
            at += 8 * words

    def _add(self, first: int, last: int) -> int:
        """Acknowledge [first, last]; return how many of them were not acknowledged before."""
        mark_delete = self.mark_delete
        first = max(first, mark_delete + 1)
        if first > last:
            return 0
        above = self._above
        if first > mark_delete + 1:
            newly = self._own_ids().add_range(first, last)
        else:
            newly = last - mark_delete
            if above:
                newly -= above.remove_through(last)
            self._advance(last)
        if newly:
            self.version += 1
            if self._ack_sets:
                self._ack_sets.discard(first, last)
        return newly

    def _add_scattered(self, ordered: list[int]) -> int:
        """Acknowledge ascending ids, all of them above `mark_delete`, which does not move."""
        newly = self._own_ids().add_many(ordered) if ordered else 0
        if newly:
            self.version += 1
            if self._ack_sets:
                self._ack_sets.discard_many(ordered)
        return newly

    def _advance(self, mark_delete: int) -> None:
        """Move `mark_delete` to this entry, and further if acknowledged entries follow it."""
        if self._above:
            reached = self._above.first_absent(mark_delete + 1) - 1
            if reached > mark_delete:
                self._above.remove_through(reached)
                mark_delete = reached
        self.mark_delete = mark_delete


def may_have_parts(head: bytes) -> bool:
    """Return whether `Cursor.load` needs parts besides this head, as far as the head can be read."""
    if len(head) < HEAD_BYTES:
        return False
    _, _, chunks, ack_sets = _HEADER.unpack_from(head, SEAL_BYTES)
    return bool(chunks or ack_sets)
