# SPDX-License-Identifier: Apache-2.0
"""A compacted ledger: the entries of a topic that compaction kept, in a ledger of their own, with their old ids.

    an entry of it:  seal | entry id in the topic, 8 bytes | number of words, 2 bytes | words, 8 bytes each
                     | the entry, with its own seal                                   (big-endian)

The words belong to batches that lost messages: a bit per message that is left, lowest bit and lowest word first, as in
an acknowledgement. A subscription treats the other messages as acknowledged, so clients skip them, also clients that do
not know "compacted out" inside a batch.

The ledger's own entry ids have no gaps, as in every ledger, but the old ids have. So an old id is found by a binary
search, and its place is remembered for the next read. The inner entry is sealed like any other, and is delivered as it
is.

Where: compaction writes one. Subscriptions that read a compacted topic read it up to its horizon, and the topic's own
ledger after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Final

from penstock.core.checksum import SEAL_BYTES, seal
from penstock.storage.results import Batch, ReadResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.entry_log import EntryLog

_HEAD: Final = Struct(">QH")
_WORD_BITS: Final = 64
_WORD_MASK: Final = (1 << _WORD_BITS) - 1
# Remembered places of readers; if there are more readers than this at a time, they search.
_PLACES_MAX: Final = 1_000


def wrap(entry_id: int, entry: Buffer, members: Iterable[int] = ()) -> bytes:
    """Return an entry of a compacted ledger.

    `members` are the batch indexes that are left, for a batch that lost some.
    """
    bits = sum(1 << index for index in members)
    words = []
    while bits:
        words.append(bits & _WORD_MASK)
        bits >>= _WORD_BITS
    return seal(_HEAD.pack(entry_id, len(words)) + b"".join(word.to_bytes(8, "big") for word in words) + entry)


@dataclass(frozen=True, slots=True)
class CompactedLedger:
    """A compacted ledger: its id, its number of entries, and its horizon.

    The horizon is the last entry of the topic that the ledger covers, kept or not.
    """

    ledger_id: int
    entries: int
    horizon: int
    _places: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def read(
        self,
        log: EntryLog,
        topic_ledger_id: int,
        entry_id: int,
        *,
        bytes_max: int,
        entries_max: int,
        first_bytes_max: int | None = None,
    ) -> ReadResult:
        """Read like `EntryLog.read`, from an entry id of the topic. Blocks; call it from any thread but the loop.

        Batches hold consecutive ids of the topic; the ids between them were compacted away.
        """
        row = self._places.get(entry_id)
        if row is None:
            row = self._first_row_from(log, entry_id)
        result = ReadResult(self.horizon + 1)
        result.members = {}
        while row < self.entries and not result.batches:
            found = log.read(
                self.ledger_id, row, bytes_max=bytes_max, entries_max=entries_max, first_bytes_max=first_bytes_max
            )
            if found.too_large_bytes:
                result.next_entry_id, result.too_large_bytes = entry_id, found.too_large_bytes
                break
            for batch in found.batches:
                result.batches += _unwrapped(batch, topic_ledger_id, result.members)
            result.damaged += found.damaged
            if found.next_entry_id <= row:
                break  # The ledger ends here, because its last entries are lost.
            row = found.next_entry_id
        if result.batches and row < self.entries:
            result.next_entry_id = result.batches[-1].entry_ids[-1] + 1
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            self._places[result.next_entry_id] = row
        return result

    def last(self, log: EntryLog) -> tuple[int, bytes] | None:
        """Return the last entry and its id in the topic; None when nothing was kept. Blocks."""
        if not self.entries:
            return None
        return _only(log, self.ledger_id, self.entries - 1)

    def _first_row_from(self, log: EntryLog, entry_id: int) -> int:
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) // 2
            found = _only(log, self.ledger_id, middle)
            if found is None or found[0] >= entry_id:
                high = middle
            else:
                low = middle + 1
        return low


def _only(log: EntryLog, ledger_id: int, row: int) -> tuple[int, bytes] | None:
    """Return the entry at this row, or the next one if it is damaged, with its id in the topic."""
    for batch in log.read(ledger_id, row, bytes_max=1, entries_max=1).batches:
        for _, stored in batch.entries():
            entry_id, words = _HEAD.unpack_from(stored, SEAL_BYTES)
            return entry_id, bytes(stored[_head_bytes(words) :])
    return None


def _head_bytes(words: int) -> int:
    return SEAL_BYTES + _HEAD.size + 8 * words


def _unwrapped(batch: Batch, ledger_id: int, members: dict[int, list[int]]) -> list[Batch]:
    """Return the entries of a batch as the topic had them, split at gaps of their ids; adds to `members`."""
    ids, offsets, lengths = [], [], []
    for offset, length in zip(batch.offsets, batch.lengths, strict=True):
        entry_id, words = _HEAD.unpack_from(batch.data, offset + SEAL_BYTES)
        if words:
            members[entry_id] = list(unpack_from(f">{words}Q", batch.data, offset + _head_bytes(0)))
        ids.append(entry_id)
        offsets.append(offset + _head_bytes(words))
        lengths.append(length - _head_bytes(words))
    counts = batch.message_counts
    cut = [row for row in range(1, len(ids)) if ids[row] != ids[row - 1] + 1]
    out = []
    for start, stop in zip([0, *cut], [*cut, len(ids)], strict=True):
        consecutive: Sequence[int] = range(ids[start], ids[start] + stop - start)
        rows = slice(start, stop)
        out.append(Batch(ledger_id, consecutive, batch.data, offsets[rows], lengths[rows], counts and counts[rows]))
    return out
