# SPDX-License-Identifier: Apache-2.0
"""A topic's delayed index as bytes, and back.

Why pieces: an index of millions takes longer to write than the loop may be held, so it is written in pieces between
which it may change. Why that is right: a slot that comes due meanwhile is in or not, and no reader of a restarted
broker has stepped over anything; what is added meanwhile lies behind `next_entry_id` and is told again, or its range is
not called known; a range is called known if it was at the first piece and at the last, and what was let go at any time
between counts as missing.
Where: `manager.snapshot` and `manager.restore`; the broker stores the bytes and reads the log's tail after a restart.

    "PSDI" | format, 2 bytes | pieces: length, 4 bytes | sealed (core.checksum): kind, 1 byte | ...

All integers are little-endian. Pieces of kind 0 hold slots: how many of one message and how many bitmaps (4 bytes
each), then columns: times and ids of the ones, times, sizes and wideness of the others, then their bitmaps in Roaring's
portable format. One piece of kind 1 ends it. Missing, torn or flipped bytes are noticed, as is what follows the end.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.checksum import SEAL_BYTES, is_sealed, seal
from penstock.governance.delayed_horizon import INFINITY
from penstock.governance.delayed_options import DamagedSnapshotError
from penstock.governance.delayed_slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MAGIC: Final = b"PSDI"
_FORMAT: Final = 1
_HEADER: Final = struct.Struct("<4sH")
_LENGTH: Final = struct.Struct("<I")
_COUNTS: Final = struct.Struct("<BII")  # kind, slots of one message, bitmaps
_END: Final = struct.Struct("<BqQQQqII")  # kind, next id, horizon, left (first, stop), widest slot, ranges, cancelled
_SLOTS_PIECE, _END_PIECE = 0, 1
# A piece is about a millisecond's work.
_SINGLES_MAX: Final = 2_000
_BITMAPS_MAX: Final = 200


class Bounds(NamedTuple):
    """What the index says of itself besides its slots."""

    known: list[tuple[int, int]]
    after_ms: int
    left: tuple[int, int]
    cancelled: list[int]
    widest_ms: int


class Snapshot(NamedTuple):
    """A decoded snapshot: taken in at once, whatever its size.

    Attributes:
        next_entry_id: entries from here on are not known to it.
    """

    slots: Slots
    bounds: Bounds
    next_entry_id: int


def encode(
    slots: Slots | None, watch: Callable[[], Bounds], watched: Callable[[], Bounds], next_entry_id: int
) -> Iterator[bytes]:
    """The index, piece by piece.

    Args:
        slots: what is not due.
        watch: called first: the bounds now.
        watched: called last: the bounds by then, those of `watch` and whatever was between included.
        next_entry_id: all entries before it were told to the index.
    """
    before = watch()
    yield _HEADER.pack(_MAGIC, _FORMAT)
    dues_ms, ids = array("q"), array("Q")
    bitmaps: list[tuple[int, bytes, bool]] = []
    for due_ms, slot, wide in slots.stored() if slots is not None else ():
        if isinstance(slot, int):
            dues_ms.append(due_ms)
            ids.append(slot)
        else:
            bitmaps.append((due_ms, slot, wide))
        if len(ids) >= _SINGLES_MAX or len(bitmaps) >= _BITMAPS_MAX:
            yield _slots_piece(dues_ms, ids, bitmaps)
            dues_ms, ids, bitmaps = array("q"), array("Q"), []
    if ids or bitmaps:
        yield _slots_piece(dues_ms, ids, bitmaps)
    yield _end_piece(_in_both(before, watched(), next_entry_id), next_entry_id)


def _piece(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + seal(body)


def _slots_piece(dues_ms: array[int], ids: array[int], bitmaps: Sequence[tuple[int, bytes, bool]]) -> bytes:
    return _piece(
        b"".join(
            (
                _COUNTS.pack(_SLOTS_PIECE, len(ids), len(bitmaps)),
                struct.pack(f"<{len(ids)}q{len(ids)}Q", *dues_ms, *ids),
                struct.pack(f"<{len(bitmaps)}q", *(due_ms for due_ms, _, _ in bitmaps)),
                struct.pack(f"<{len(bitmaps)}I", *(len(stored) for _, stored, _ in bitmaps)),
                bytes(wide for _, _, wide in bitmaps),
                *(stored for _, stored, _ in bitmaps),
            )
        )
    )


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
    """What held at both times; of what may be missing `after` tells for all the time between."""
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
    """What `encode` made. Touches nothing else: it may be called in any thread.

    Raises:
        DamagedSnapshotError: the bytes are damaged, incomplete or of a format that is not known here.
    """
    data = memoryview(stored)
    if len(data) < _HEADER.size or _HEADER.unpack_from(data) != (_MAGIC, _FORMAT):
        raise DamagedSnapshotError(f"{len(data)} bytes are no delayed index of format {_FORMAT}")
    dues_ms, ids = array("q"), array("Q")
    bitmaps: list[tuple[int, bytes, bool]] = []
    at = _HEADER.size
    while True:
        body, at = _body(data, at)
        if body[0] == _END_PIECE:
            break
        _read_slots(body, dues_ms, ids, bitmaps)
    if at != len(data):
        raise DamagedSnapshotError(f"{len(data) - at} bytes follow the end of a delayed index")
    bounds, next_entry_id = _read_end(body)
    slots = Slots()
    slots.restore((dues_ms, ids), bitmaps)
    return Snapshot(slots, bounds, next_entry_id)


def _body(data: memoryview, at: int) -> tuple[memoryview, int]:
    start = at + _LENGTH.size
    if start > len(data):
        raise DamagedSnapshotError(f"a delayed index ends at byte {len(data)}, in the middle")
    stop = start + SEAL_BYTES + _LENGTH.unpack_from(data, at)[0]
    if stop > len(data) or stop == start + SEAL_BYTES or not is_sealed(data[start:stop]):
        raise DamagedSnapshotError(f"a delayed index of {len(data)} bytes is damaged behind byte {at}")
    return data[start + SEAL_BYTES : stop], stop


def _read_slots(body: memoryview, dues_ms: array[int], ids: array[int], bitmaps: list[tuple[int, bytes, bool]]) -> None:
    _, singles, count = _COUNTS.unpack_from(body)
    at = _COUNTS.size
    dues_ms.extend(struct.unpack_from(f"<{singles}q", body, at))
    ids.extend(struct.unpack_from(f"<{singles}Q", body, at + 8 * singles))
    at += 16 * singles
    times = struct.unpack_from(f"<{count}q", body, at)
    sizes = struct.unpack_from(f"<{count}I", body, at + 8 * count)
    wides = body[at + 12 * count : at + 13 * count]
    at += 13 * count
    for due_ms, size, wide in zip(times, sizes, wides, strict=True):
        bitmaps.append((due_ms, bytes(body[at : at + size]), bool(wide)))
        at += size


def _read_end(body: memoryview) -> tuple[Bounds, int]:
    _, next_entry_id, after_ms, first, stop, widest_ms, ranges, cancelled = _END.unpack_from(body)
    numbers = struct.unpack_from(f"<{2 * ranges + cancelled}Q", body, _END.size)
    known = list(zip(numbers[0 : 2 * ranges : 2], numbers[1 : 2 * ranges : 2], strict=True))
    after_ms = INFINITY if after_ms == INFINITY - 1 else after_ms
    return Bounds(known, after_ms, (first, stop), list(numbers[2 * ranges :]), widest_ms), next_entry_id
