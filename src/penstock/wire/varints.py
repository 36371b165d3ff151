# SPDX-License-Identifier: Apache-2.0
"""Protobuf's variable-length numbers, in the two ways that the hot path uses.

Why tables: a varint costs a step per seven bits. Consecutive ids differ in their lowest bits. So a varint is read in
two parts, its first two bytes with 14 bits, and the rest. The first is looked up; the second is nearly always the same
as in the previous frame. Where: the hand-written decoders and encoders of `runs`,
`deliveries` and `acks`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOW_BITS: Final = 14
LOW_MASK: Final = (1 << LOW_BITS) - 1


@cache
def padded_lows() -> list[bytes]:
    """Return the two bytes of low parts that are continued, by their values.

    Any high part may follow, also 0: a varint may be longer than it needs to be. The list is made when it is first
    needed: an idle broker does without its 900 KiB.
    """
    return [padded_low(value) for value in range(1 << LOW_BITS)]


def padded_low(value: int) -> bytes:
    """Return the two bytes of one low part that is continued."""
    return bytes((value & 127 | 128, value >> 7 | 128))


def low_code(varint_bytes: int) -> str:
    """Return the format code of the low part for `struct`, for varints of this many bytes."""
    return "B" if varint_bytes == 1 else "H"


@cache
def low_part(varint_bytes: int) -> list[Any]:
    """Return the values of low parts of varints of this many bytes, by their one or two bytes as a big-endian number.

    The tables differ in which bytes have a continuation bit, so a place with None belongs to a varint of another
    length. They are made when they are first needed: an idle broker does without their 2 MB. A list, although three
    quarters of it are empty: a dict takes more memory, and more time.
    """
    if varint_bytes > 3:
        return low_part(3)
    lows: list[Any] = [None] * (1 << (8 if varint_bytes == 1 else 16))
    for value, low in enumerate(_lows(varint_bytes)):
        lows[low] = value
    return lows


@cache
def low_columns(varint_bytes: int) -> tuple[bytes, ...]:
    """Return the first bytes of the low parts in `low_part`, ascending, and the second ones if they have two."""
    if varint_bytes == 1:
        return (bytes(_lows(1)),)
    return bytes(low >> 8 for low in _lows(varint_bytes)), bytes(low & 255 for low in _lows(varint_bytes))


def _lows(varint_bytes: int) -> Iterator[int]:
    """Yield the bytes of low parts as numbers, ascending by their values."""
    if varint_bytes == 1:
        yield from range(128)
        return
    last = 0 if varint_bytes == 2 else 128
    for value in range(1 << LOW_BITS):
        yield (value & 127 | 128) << 8 | value >> 7 | last


def encode_varint(value: int) -> bytes:
    """Return the shortest encoding of an unsigned number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at `at`, and where it ends.

    Raises:
        IndexError: it does not end.
        OverflowError: it takes ten bytes or more, which is legal, but so rare that it is left to protobuf.
    """
    byte = data[at]
    at += 1
    if byte < 128:
        return byte, at
    value, shift = byte & 127, 7
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        shift += 7
        at += 1
        if shift == 63:
            raise OverflowError
    return value | byte << shift, at + 1


def share_high(values: Sequence[int]) -> bool:
    """Return whether all values have the same bits above the low part, and so fit into one template."""
    if isinstance(values, range):
        return values[0] >> LOW_BITS == values[-1] >> LOW_BITS
    return min(values) >> LOW_BITS == max(values) >> LOW_BITS


def halves(count: int) -> tuple[slice, slice]:
    """Split rows that do not fit into one template; they rarely need to be split."""
    return slice(0, count // 2), slice(count // 2, count)
