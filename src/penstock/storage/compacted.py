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
from hashlib import blake2b
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from penstock.core.checksum import SEAL_BYTES, seal
from penstock.core.units import KIB, MIB
from penstock.storage.results import Batch, ReadResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.checksum import Buffer
    from penstock.storage.entry_log import EntryLog


# ---------------------------------------------------------------------------------------------------------------------
# The latest message of each key, for any number of keys in a bounded amount of memory.
#
# Why SQLite: a topic may have more keys than fit into memory. A private SQLite database is in its page cache; the rest
# goes to a temporary file (in SQLITE_TMPDIR, TMPDIR or /var/tmp). The file is unlinked when it is created, so it
# disappears with the process in any case. Nothing here is synced: all of it is derived. Where: compaction fills it in
# its first pass over a topic and asks it in the second, on its own thread.
#
# Keys are stored as digests of 16 bytes; two of a billion keys have the same digest with a probability of about 10^-21.

CACHE_BYTES: Final = 8 * MIB
_DIGEST_BYTES: Final = 16


class MessageLocation(NamedTuple):
    """The position of a message."""

    entry_id: int
    member: int = -1  # its batch index; -1 when the entry is no batch
    chunks: str = ""  # the uuid of a chunked message; then the entry is the last chunk


class LatestKeys:
    """The position of the latest message of each key."""

    def __init__(self, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._db = apsw.Connection("")
        self._db.pragma("journal_mode", "off")
        self._db.pragma("synchronous", "off")
        self._db.pragma("locking_mode", "exclusive")
        self._db.pragma("cache_size", -(cache_bytes // KIB))
        self._db.execute(
            "create table latest (key blob primary key, entry_id integer, member integer, chunks text) without rowid"
        )
        self._db.execute("begin")  # and never committed: it is not needed on disk

    def apply(self, changes: Iterable[tuple[str, MessageLocation | None]]) -> None:
        """For each key in order, set the position of its latest message; None removes the key."""
        put, remove = "insert or replace into latest values (?, ?, ?, ?)", "delete from latest where key = ?"
        execute = self._db.execute
        for key, place in changes:
            if place is None:
                execute(remove, (_digest(key),))
            else:
                execute(put, (_digest(key), *place))

    def find(self, key: str) -> MessageLocation | None:
        """Return the position of the key's latest message, or None."""
        for row in self._db.execute("select entry_id, member, chunks from latest where key = ?", (_digest(key),)):
            return MessageLocation(*row)
        return None

    def __len__(self) -> int:
        ((count,),) = self._db.execute("select count(*) from latest")
        return int(count)

    def close(self) -> None:
        """Delete everything, also on disk."""
        self._db.close()


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).digest()


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
