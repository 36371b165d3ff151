# SPDX-License-Identifier: Apache-2.0
"""Keys of many entries at once, where their metadata is written as clients usually write it.

Why: Key_Shared dispatch needs the key of every entry, and `metadata.routing`, which understands all metadata, takes
three times as long. Where: `KeyShared`, which asks `routing` for the others.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.core.checksum import SEAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.checksum import Buffer

_VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# Behind the key, fields that do not matter: compression, sizes, event time, and that the key is not in base64.
_after_key: Final = re.compile(rb"(?:[\x40\x48\x58\x60]" + _VARINT + rb"|\x88\x01\x00)*", re.DOTALL).fullmatch
# Where metadata has the length of the producer's name, behind its own size and a tag; longer names are not plain.
_NAME_BYTES_AT: Final = 5
_NAMES_MAX: Final = 128
# From so many entries on, those written in the same way are read together.
TOGETHER_MIN: Final = 16
# Other buffers than `bytes` of at most so many bytes for each row are copied: that costs less than reading in them.
COPIED_BYTES_MAX: Final = 4 * 1024
_HIGH: Final = bytes(range(128, 256))


@cache
def _up_to_key(name_bytes: int) -> Callable[[Buffer, int], re.Match[bytes] | None]:
    """Return what matches metadata from its size up to the tag of a partition key of at most 127 bytes.

    In between are a producer's name of this length, a sequence id and a publish time.
    """
    name = rb"\x0a\x%02x.{%d}" % (name_bytes, name_bytes)
    number = rb"\x10" + _VARINT + rb"\x18" + _VARINT
    return re.compile(rb"\x00{3}." + name + number + rb"\x32(?=[\x00-\x7f])", re.DOTALL).match


def plain_keys(
    data: Buffer, offsets: Sequence[int], lengths: Sequence[int], rows: Sequence[int]
) -> Sequence[bytes | None]:
    """Return the sticky keys of these rows, each of at most 127 bytes; None where only `metadata.routing` knows.

    Args:
        data: holds the entries, sealed.
        offsets: where in `data` each begins.
        lengths: of each, in bytes.
        rows: which of them.
    """
    if len(rows) >= TOGETHER_MIN and (isinstance(data, bytes) or len(data) <= COPIED_BYTES_MAX * len(rows)):
        data = data if isinstance(data, bytes) else bytes(data)
        # Of rows that are no range, some more are looked at.
        picked = slice(rows.start, rows.stop) if isinstance(rows, range) else slice(None)
        together = _keys_together(data, [offsets[row] + SEAL_BYTES for row in rows], min(lengths[picked]))
        if together is not None:
            return together
    keys: list[bytes | None] = []
    if not isinstance(data, bytes):
        data = memoryview(data)
    match = _up_to_key(0)
    # Budget: 0.6 µs per entry on one core, or 0.35 together.
    for row in rows:
        offset = offsets[row]
        at, key = offset + SEAL_BYTES, None
        found = match(data, at)
        if found is None and lengths[row] > SEAL_BYTES + _NAME_BYTES_AT and data[at + _NAME_BYTES_AT] < _NAMES_MAX:
            match = _up_to_key(data[at + _NAME_BYTES_AT])
            found = match(data, at)
        if found is not None:
            key_at, stop = found.end() + 1, at + 4 + data[at + 3]
            key_stop = key_at + data[key_at - 1]
            within = key_stop <= stop <= offset + lengths[row]
            if within and (key_stop == stop or _after_key(data, key_stop, stop) is not None):
                key = bytes(data[key_at:key_stop])
        keys.append(key)
    return keys


def _keys_together(data: bytes, starts: Sequence[int], length_min: int) -> Sequence[bytes | None] | None:
    """Return the keys of the entries whose metadata begins at `starts`, if all have their key at the same place.

    Otherwise None. They have it as long as one producer's sequence ids and publish times keep their lengths. What must
    be alike is compared in columns, so that an entry takes no step of its own but for cutting. `length_min` is the
    length of the shortest entry.
    """
    first = starts[0]
    if length_min <= SEAL_BYTES + _NAME_BYTES_AT or data[first + _NAME_BYTES_AT] >= _NAMES_MAX:
        return None
    found = _up_to_key(data[first + _NAME_BYTES_AT])(data, first)
    if found is None:
        return None
    width = found.end() + 1 - first
    heads = b"".join([data[start : start + width] for start in starts])
    if len(heads) != width * len(starts) or not _alike(heads, width):
        return None
    sizes, key_sizes = heads[3::width], heads[width - 1 :: width]
    if max(sizes) + 4 + SEAL_BYTES > length_min:
        return None
    if key_sizes.translate(_sums(width - 4)) == sizes and max(key_sizes) + width - 4 < 256:  # The key ends them all.
        return [data[start + width : start + 4 + size] for start, size in zip(starts, sizes, strict=True)]
    stops = [start + width + size for start, size in zip(starts, key_sizes, strict=True)]
    rests = {data[stop : start + 4 + size] for start, stop, size in zip(starts, stops, sizes, strict=True)}
    # A rest is empty also where the key goes beyond the metadata.
    within = all(size + 4 >= key_bytes + width for size, key_bytes in zip(sizes, key_sizes, strict=True))
    if not within or not all(map(_after_key, rests)):
        return None
    return [data[start + width : stop] for start, stop in zip(starts, stops, strict=True)]


@cache
def _sums(number: int) -> bytes:
    """Return what translates each byte to its sum with this number, modulo 256."""
    return bytes([(byte + number) & 255 for byte in range(256)])


def _alike(heads: bytes, width: int) -> bool:
    """Return whether all heads have their fields at the places where the first one has them.

    Each is from the size of the metadata up to the length of the key, and the pattern has found in the first.
    """
    name_stop = _NAME_BYTES_AT + 1 + heads[_NAME_BYTES_AT]
    fixed = [0, 1, 2, 4, _NAME_BYTES_AT]
    at = name_stop
    while True:
        fixed.append(at)  # the tag of a number, or of the key
        at += 1
        if at == width - 1:
            break
        while heads[at] > 127:
            if heads[at::width].translate(None, _HIGH):
                return False
            at += 1
        if not heads[at::width].isascii():
            return False
        at += 1
    count = len(heads) // width
    return heads[width - 1 :: width].isascii() and all(
        heads[place::width] == heads[place : place + 1] * count for place in fixed
    )
