# SPDX-License-Identifier: Apache-2.0
"""Encodes a topic's delayed index as bytes, and decodes it.

Why in pieces: writing an index of millions takes longer than the loop may be blocked, so the index may change between
pieces. This is safe. A slot that becomes due meanwhile is in the snapshot or not, and no reader of a restarted broker
has skipped anything. An entry that is added meanwhile has an id from `next_entry_id` on and is added again, or its
range is not called known. A range is called known only if it was known at the first piece and at the last. Everything
dropped in between counts as missing.

Where: `manager.snapshot` and `manager.restore`. The broker stores the bytes, and reads the end of the log after a
restart.

    "PSDI" | format, 2 bytes | pieces: length, 4 bytes | sealed (core.checksum): kind, 1 byte | ...

All integers are little-endian. Pieces of kind 0 hold slots in the order of time, each piece later than the one before:
the number of pairs and of bitmaps (4 bytes each), then columns: times and ids of the pairs (the id `BITMAP` stands for
a bitmap), sizes of the bitmaps, whether they are wide, and the bitmaps in Roaring's portable format. One piece of kind
1 is the end. Missing, torn or flipped bytes are detected, and bytes after the end too.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from penstock.core.checksum import SEAL_BYTES, is_sealed, seal
from penstock.governance.delayed_options import DamagedSnapshotError
from penstock.governance.delayed_ranges import INFINITY
from penstock.governance.delayed_slots import Slots, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAGIC: Final = b"PSDI"
_FORMAT: Final = 2
_HEADER: Final = struct.Struct("<4sH")
_LENGTH: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct("<BII")  # kind, pairs, bitmaps
_END: Final = struct.Struct("<BqQQQqII")  # kind, next id, horizon, left (first, stop), widest slot, ranges, cancelled
_SLOTS_PIECE, _END_PIECE = 0, 1


class Bounds(NamedTuple):
    """The state of the index besides its slots."""

    known: list[tuple[int, int]]
    after_ms: int
    left: tuple[int, int]
    cancelled: list[int]
    widest_ms: int


class Snapshot(NamedTuple):
    """A decoded snapshot. Loading it takes no time, whatever its size.

    Attributes:
        next_entry_id: entries from this id on are unknown to it.
    """

    slots: Slots
    bounds: Bounds
    next_entry_id: int


def encode(
    slots: Slots | None, watch: Callable[[], Bounds], watched: Callable[[], Bounds], next_entry_id: int
) -> Iterator[bytes]:
    """Yield the index piece by piece.

    Args:
        slots: messages that are not due.
        watch: called first; returns the bounds at that time.
        watched: called last; returns the bounds at that time, widened by everything since `watch`.
        next_entry_id: all entries before it have been added to the index.
    """
    before = watch()
    yield _HEADER.pack(_MAGIC, _FORMAT)
    for stored in slots.stored() if slots is not None else ():
        yield _slots_piece(stored)
    yield _end_piece(_in_both(before, watched(), next_entry_id), next_entry_id)


def _piece(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + seal(body)


def _slots_piece(stored: Stored) -> bytes:
    bitmaps = stored.bitmaps
    return _piece(
        b"".join(
            (
                _COUNTS.pack(_SLOTS_PIECE, len(stored.entry_ids), len(bitmaps)),
                _little_endian(stored.dues_ms),
                _little_endian(stored.entry_ids),
                struct.pack(f"<{len(bitmaps)}I", *(len(data) for data, _ in bitmaps)),
                bytes(wide for _, wide in bitmaps),
                *(data for data, _ in bitmaps),
            )
        )
    )


def _little_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers.tobytes()


def _end_piece(bounds: Bounds, next_entry_id: int) -> bytes:
    ranges = [end for one in bounds.known for end in one]
    head = _END.pack(
        _END_PIECE,
        next_entry_id,
        min(bounds.after_ms, INFINITY - 1),
        *bounds.left,
        bounds.widest_ms,
        len(bounds.known),
        len(bounds.cancelled),
    )
    return _piece(head + struct.pack(f"<{len(ranges) + len(bounds.cancelled)}Q", *ranges, *bounds.cancelled))


def _in_both(before: Bounds, after: Bounds, next_entry_id: int) -> Bounds:
    """Return the ranges that were known at both times; `after` covers what was missing in between."""
    known = [
        (max(one[0], other[0]), min(one[1], other[1], next_entry_id)) for one in before.known for other in after.known
    ]
    return Bounds(
        [one for one in known if one[0] < one[1]],
        after.after_ms,
        after.left,
        after.cancelled,
        max(before.widest_ms, after.widest_ms),
    )


def decode(stored: bytes | memoryview) -> Snapshot:
    """Decode the output of `encode`. It touches nothing else, so any thread may call it.

    Raises:
        DamagedSnapshotError: the bytes are damaged, incomplete or of an unknown format.
    """
    data = memoryview(stored)
    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != (_MAGIC, _FORMAT):
        raise DamagedSnapshotError(f"{len(data)} bytes are no delayed index of format {_FORMAT}")
    slots = Slots()
    at = _HEADER.size
    while True:
        body, at = _body(data, at)
        if body[0] == _END_PIECE:
            break
        slots.restore(_read_slots(body))
    if at != len(data):
        raise DamagedSnapshotError(f"{len(data) - at} bytes follow the end of a delayed index")
    slots.restored()
    return Snapshot(slots, *_read_end(body))


def _body(data: memoryview, at: int) -> tuple[memoryview, int]:
    start = at + _LENGTH.size
    if start > len(data):
        raise DamagedSnapshotError(f"a delayed index ends at byte {len(data)}, in the middle")
    stop = start + SEAL_BYTES + _LENGTH.unpack_from(data, at)[0]
    if stop > len(data) or stop == start + SEAL_BYTES or not is_sealed(data[start:stop]):
        raise DamagedSnapshotError(f"a delayed index of {len(data)} bytes is damaged behind byte {at}")
    return data[start + SEAL_BYTES : stop], stop


def _read_slots(body: memoryview) -> Stored:
    _, pairs, count = _COUNTS.unpack_from(body)
    at = _COUNTS.size + 16 * pairs
    dues_ms = _numbers("q", body[_COUNTS.size : _COUNTS.size + 8 * pairs])
    entry_ids = _numbers("Q", body[_COUNTS.size + 8 * pairs : at])
    sizes = struct.unpack_from(f"<{count}I", body, at)
    wides = body[at + 4 * count : at + 5 * count]
    at += 5 * count
    bitmaps = []
    for size, wide in zip(sizes, wides, strict=True):
        bitmaps.append((bytes(body[at : at + size]), bool(wide)))
        at += size
    return Stored(dues_ms, entry_ids, bitmaps)


def _numbers(kind: Literal["q", "Q"], data: memoryview) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _read_end(body: memoryview) -> tuple[Bounds, int]:
    _, next_entry_id, after_ms, first, stop, widest_ms, ranges, cancelled = _END.unpack_from(body)
    numbers = struct.unpack_from(f"<{2 * ranges + cancelled}Q", body, _END.size)
    known = list(zip(numbers[0 : 2 * ranges : 2], numbers[1 : 2 * ranges : 2], strict=True))
    after_ms = INFINITY if after_ms == INFINITY - 1 else after_ms
    return Bounds(known, after_ms, (first, stop), list(numbers[2 * ranges :]), widest_ms), next_entry_id
