# SPDX-License-Identifier: Apache-2.0
"""Protobuf's variable-length numbers, in the two ways that the hot path uses.

Why tables: a varint costs a step per seven bits. Consecutive ids differ in their lowest bits. So a varint is read in
two parts, its first two bytes with 14 bits, and the rest. The first is looked up; the second is nearly always the same
as in the previous frame. Where: the hand-written decoders and encoders of `runs` and `acks`.
"""

from __future__ import annotations

from typing import Final

LOW_BITS: Final = 14
LOW_MASK: Final = (1 << LOW_BITS) - 1

# From the low part, as the big-endian number of its one or two bytes, to its value. The tables differ in which bytes
# have a continuation bit, so a missing key belongs to a varint of another length.
_LOWS_ALONE: Final = {value: value for value in range(128)}
_LOWS_LAST: Final = {(value & 127 | 128) << 8 | value >> 7: value for value in range(1 << LOW_BITS)}
_LOWS_CONTINUED: Final = {number | 128: value for number, value in _LOWS_LAST.items()}

# The two bytes of a low part that is continued, by its value. Any high part may follow, also 0: a varint may be longer
# than it needs to be.
PADDED_LOWS: Final = [number.to_bytes(2, "big") for number in _LOWS_CONTINUED]


def low_part(varint_bytes: int) -> tuple[str, dict[int, int]]:
    """Return the format code for `struct` and the table of the low part, for varints of this many bytes."""
    if varint_bytes == 1:
        return "B", _LOWS_ALONE
    return "H", _LOWS_LAST if varint_bytes == 2 else _LOWS_CONTINUED


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
