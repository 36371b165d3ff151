# SPDX-License-Identifier: Apache-2.0
"""One subscription's progress on one topic: the mark-delete position and what was acknowledged above it.

Why: acknowledgements come one by one, in stretches and out of order, and members of a batch come separately. The common
acknowledgement (the next entry, or the next stretch) is a constant amount of work; what is above a gap costs a bit an
entry, and one million gaps cost no more to add to, or to store a change of, than ten.
Where: a subscription owns one cursor; dispatch asks it what to skip; the catalog stores `head` and `take_changes`.

Theory of operation. Entry ids count from 0. Everything up to and including `mark_delete` is acknowledged. Entries that
are acknowledged above it are in an `EntrySet`, batches acknowledged in part in `AckSets`. The cursor does not know
where the topic ends: callers ignore acknowledgements of entries that do not exist.

What is stored is a head of some bytes, and parts: a chunk of the set or one ack set each, 128 KiB at most. A save
writes the head and the parts that changed, in one transaction. Chunks keep ids that `mark_delete` has passed since they
were written; `load` removes them again.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.checksum import SEAL_BYTES, is_sealed, seal
from penstock.storage.ack_sets import AckSets, bits_of
from penstock.storage.entry_set import EntrySet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# Kinds of parts.
IDS: Final = 0  # a chunk of acknowledged entry ids, by its number
MEMBERS: Final = 1  # an ack set, by its entry id

# Format 1 had up to 10,000 ranges and 10,000 ack sets behind the same header, and no parts.
_FORMAT: Final = 2
_FORMAT_INLINE: Final = 1
_HEADER: Final = struct.Struct("<BqII")  # format, mark_delete, chunks (1: ranges), ack sets
# What `head` returns always has this length.
HEAD_BYTES: Final = SEAL_BYTES + _HEADER.size
_ACK_SET: Final = struct.Struct("<qI")  # entry id, 64-bit words


# What most cursors have above their mark-delete position. Never changed: the first addition makes a cursor its own.
_NO_IDS: Final = EntrySet()
_NO_SETS: Final = AckSets()


class DamagedCursorError(ValueError):
    """Stored bytes are not a cursor's head; the caller falls back to the stored mark-delete entry."""


class CursorPart(NamedTuple):
    """A part of a cursor as it is stored, by its kind and number; with None for its value it is not stored any more."""

    kind: int
    number: int
    value: bytes | None


class Cursor:
    """What one subscription has acknowledged of one topic.

    Attributes:
        mark_delete: everything up to this entry id is acknowledged; -1 when nothing is.
        version: grows with every change; equal versions mean there is nothing new to store.
        lost_parts: parts that were stored, and damaged or missing when the cursor was loaded. What they said is
            delivered again.
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
        """Acknowledge one whole entry. True if it was not acknowledged before."""
        if entry_id == self.mark_delete + 1 and not self._above and not self._ack_sets:
            self.mark_delete = entry_id
            self.version += 1
            return True
        return self._add(entry_id, entry_id) == 1

    def acknowledge_many(self, entry_ids: Sequence[int]) -> int:
        """Acknowledge whole entries, in any order, repeats allowed. Returns how many were not acknowledged before."""
        if not entry_ids:
            return 0
        if isinstance(entry_ids, range) and entry_ids.step == 1:  # However long, it is one stretch.
            return self._add(entry_ids[0], entry_ids[-1])
        ordered = sorted(entry_ids)  # Linear for what is already in order, which is the usual case.
        first, last = ordered[0], ordered[-1]
        if last - first + 1 == len(ordered) and ordered == list(range(first, last + 1)):
            return self._add(first, last)
        at = newly = 0
        while at < len(ordered) and ordered[at] <= (last := self.mark_delete) + 1:
            # What continues the acknowledged entries needs no place above them.
            while at < len(ordered) and ordered[at] <= last + 1:
                last = max(last, ordered[at])
                at += 1
            newly += self._add(self.mark_delete + 1, last)
        return newly + self._add_scattered(ordered[at:] if at else ordered)

    def acknowledge_through(self, entry_id: int) -> int:
        """Acknowledge everything up to and including `entry_id`. Returns how many were not acknowledged before."""
        return self._add(self.mark_delete + 1, entry_id)

    def acknowledge_batch(self, entry_id: int, words: Sequence[int], take: Callable[[int], None] | None = None) -> bool:
        """Acknowledge members of a batch. True if that was the last of them and the entry is now acknowledged.

        Args:
            entry_id: the entry that holds the batch.
            words: the members still wanted, as 64-bit words, lowest first, signed or not; absent words are zero.
            take: told how many bytes more are needed (0 or less: none) before anything changes; what it raises is
                passed on, and nothing has changed.
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
        """Seek: `to_entry_id` is the next entry to deliver, and nothing from it on is acknowledged.

        Args:
            to_entry_id: the entry.
            words: when it is a batch that is to be delivered in part, the members wanted, as in `acknowledge_batch`.
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
        """How many entries above `mark_delete` are acknowledged."""
        return len(self._above)

    @property
    def last_acknowledged(self) -> int:
        """The highest entry that is acknowledged; -1 when none is."""
        return max(self.mark_delete, self._above.last)

    @property
    def range_count(self) -> int:
        """How many acknowledged ranges lie above `mark_delete`. Some microseconds for each 65,536 entries there."""
        return self._above.range_count if self._above else 0

    def is_acknowledged(self, entry_id: int) -> bool:
        """True if the whole entry is acknowledged."""
        return entry_id <= self.mark_delete or entry_id in self._above

    def none_acknowledged(self, first: int, last: int) -> bool:
        """Whether none of the entries `first` to `last` is acknowledged."""
        if not self._above:
            return first > self.mark_delete
        return first > self.mark_delete and self._above.first_present(first, last + 1) > last

    @property
    def has_ack_sets(self) -> bool:
        """Whether any batch is partly acknowledged."""
        return bool(self._ack_sets)

    def partly_acknowledged(self, first: int, last: int) -> dict[int, int]:
        """The partly acknowledged batches within [first, last], and how many members of each are still wanted."""
        return self._ack_sets.within(first, last)

    def wanted_of(self, entry_id: int) -> int | None:
        """How many members of a partly acknowledged batch are still wanted; None for any other entry."""
        return self._ack_sets.wanted_of(entry_id)

    def ack_set(self, entry_id: int) -> list[int] | None:
        """The members of a partly acknowledged batch still wanted, as signed 64-bit words; None for any other entry."""
        return self._ack_sets.words(entry_id)

    def ack_set_words(self, entry_id: int) -> int:
        """How many words `ack_set` has; 0 for None."""
        return self._ack_sets.word_count(entry_id)

    def next_unacknowledged(self, from_entry_id: int) -> int:
        """The lowest entry id at or after `from_entry_id` that is not acknowledged (it may not exist yet)."""
        if from_entry_id <= self.mark_delete:
            return self.mark_delete + 1
        return self._above.first_absent(from_entry_id) if self._above else from_entry_id

    def nth_unacknowledged(self, nth: int, first: int = 0) -> int:
        """The `nth` entry id (from 0 on) of those from `first` on that are not acknowledged (it may not exist yet).

        Costs a microsecond or so for each 65,536 entries before it.
        """
        return self._above.absent_at(max(first, self.mark_delete + 1), nth)

    def unacknowledged_ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The unacknowledged entry ids within [first, last] as inclusive ranges, lowest first.

        Ranges are found one at a time, so a caller may stop early; do not change the cursor while walking.
        """
        above = self._above
        first = above.first_absent(max(first, self.mark_delete + 1))
        while first <= last:
            stop = above.first_present(first, last + 1)
            yield first, stop - 1
            first = above.first_absent(stop)

    def backlog(self, last_entry_id: int) -> int:
        """How many entries up to and including `last_entry_id` are not acknowledged; exact, in constant time.

        Entries after `last_entry_id` must not be acknowledged, which holds for the topic's real end.
        """
        return max(last_entry_id - self.mark_delete - len(self._above), 0)

    # -- memory

    @property
    def nbytes(self) -> int:
        """Memory of what is acknowledged above `mark_delete`: as of the last save or `measure` for whole entries."""
        return self._above.nbytes + self._ack_sets.nbytes

    def measure(self) -> None:
        """Bring `nbytes` up to date. Some microseconds for each chunk of 65,536 entries that changed."""
        self._above.measure()

    # -- the stored form

    def head(self) -> bytes:
        """What is stored with every save: sealed bytes, always as many."""
        return seal(_HEADER.pack(_FORMAT, self.mark_delete, self._above.chunk_count, len(self._ack_sets)))

    def take_changes(self) -> list[CursorPart]:
        """The parts that are to be stored together with `head`; they count as stored from now on."""
        above, ack_sets = self._above, self._ack_sets
        parts = [CursorPart(IDS, number, above.encode(number)) for number in above.changed]
        parts += [CursorPart(MEMBERS, entry_id, ack_sets.encode(entry_id)) for entry_id in ack_sets.changed]
        above.changed.clear()
        ack_sets.changed.clear()
        above.measure()
        return parts

    @classmethod
    def load(cls, head: bytes, parts: Iterable[tuple[int, int, bytes]] = ()) -> Cursor:
        """The cursor whose `head` and parts (kind, number, value) were stored.

        A part that is damaged or missing is counted in `lost_parts`. A cursor of format 1 has all in its head, and is
        stored in parts with its next save.

        Raises:
            DamagedCursorError: the head is damaged or of a format this version does not know.
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
        """Acknowledge [first, last]; returns how many of them were not acknowledged before."""
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
        """Acknowledge ids in increasing order, of which none is next to `mark_delete` or below."""
        newly = self._own_ids().add_many(ordered) if ordered else 0
        if newly:
            self.version += 1
            if self._ack_sets:
                self._ack_sets.discard_many(ordered)
        return newly

    def _advance(self, mark_delete: int) -> None:
        """Everything up to here is acknowledged, and nothing of it is in the set any more; more may follow at once."""
        if self._above:
            reached = self._above.first_absent(mark_delete + 1) - 1
            if reached > mark_delete:
                self._above.remove_through(reached)
                mark_delete = reached
        self.mark_delete = mark_delete


def may_have_parts(head: bytes) -> bool:
    """Whether `Cursor.load` needs more than this head, as far as it can be read."""
    if len(head) < HEAD_BYTES:
        return False
    _, _, chunks, ack_sets = _HEADER.unpack_from(head, SEAL_BYTES)
    return bool(chunks or ack_sets)
