# SPDX-License-Identifier: Apache-2.0
"""Protobuf's variable-length numbers, in the two ways that the hot path treats them.

Why tables: a varint costs a step per seven bits. Ids that follow one another differ in their lowest bits. So a varint
is taken in two parts, its first two bytes with 14 bits and the rest: the first is looked up, the second is nearly
always the same as in the frame before.
Where: the hand-written decoders and encoders of `runs` and `acks`.
"""

from __future__ import annotations

from typing import Final

LOW_BITS: Final = 14
LOW_MASK: Final = (1 << LOW_BITS) - 1

# The low part, as the big-endian number that its one or two bytes spell -> its value. The tables differ in which bytes
# carry a continuation bit, so a key that is missing belongs to a varint of another length.
_LOWS_ALONE: Final = {value: value for value in range(128)}
_LOWS_LAST: Final = {(value & 127 | 128) << 8 | value >> 7: value for value in range(1 << LOW_BITS)}
_LOWS_CONTINUED: Final = {number | 128: value for number, value in _LOWS_LAST.items()}

# The two bytes of a low part that goes on, by its value. Whatever high part follows, also 0, the varint is legal: it
# may be longer than it needs to be.
PADDED_LOWS: Final = [number.to_bytes(2, "big") for number in _LOWS_CONTINUED]


def low_part(varint_bytes: int) -> tuple[str, dict[int, int]]:
    """For varints of this many bytes: the low part's format code for `struct`, and its table."""
    if varint_bytes == 1:
        return "B", _LOWS_ALONE
    return "H", _LOWS_LAST if varint_bytes == 2 else _LOWS_CONTINUED


def encode_varint(value: int) -> bytes:
    """The shortest encoding of an unsigned number."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends.

    Raises:
        IndexError: it does not end.
        OverflowError: it takes ten bytes or more, which is legal, but rare enough to be left to protobuf.
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
