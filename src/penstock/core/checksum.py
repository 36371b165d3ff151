# SPDX-License-Identifier: Apache-2.0
"""The seal of an entry: its checksum, as the client sent it.

Why: the bytes that a client sends from the checksum magic on already have a CRC32C over everything behind it. So an
entry is checked once on arrival, stored without another checksum, and checked again when it is read from disk.

    0x0e01 | crc32c(rest), 4 bytes, big-endian | rest (metadata size, metadata, payload)

Where: `wire` checks seals when frames arrive, the broker seals entries that came without one, `storage` checks on read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

Buffer: TypeAlias = bytes | bytearray | memoryview

SEAL_MAGIC: Final = b"\x0e\x01"
SEAL_BYTES: Final = 6  # the magic and the checksum
_SEAL: Final = struct.Struct(">HI")
_MAGIC_NUMBER: Final = int.from_bytes(SEAL_MAGIC, "big")
# From here on a view costs less than a copy.
_COPIED_BYTES_MAX: Final = 16 * 1024


def seal(body: Buffer) -> bytes:
    """Return `body` (metadata size, metadata, payload) with magic and checksum in front. Copies it once."""
    return b"".join((seal_of(body), body))


def seal_of(body: Buffer) -> bytes:
    """Return the magic and the checksum that stand in front of `body` when it is sealed."""
    return SEAL_MAGIC + crc32c(body).to_bytes(4, "big")


def is_sealed(entry: Buffer) -> bool:
    """Return whether `entry` begins with the magic and its checksum matches."""
    view = memoryview(entry)
    if len(view) < SEAL_BYTES or view[:2].tobytes() != SEAL_MAGIC:
        return False
    return int.from_bytes(view[2:6], "big") == crc32c(view[6:])


def all_sealed(data: bytes, lengths: Iterable[int]) -> bool:
    """Return whether all these entries, which follow one another in `data`, are sealed. For many small ones.

    Budget: 0.6 µs per entry of 1 KiB on one core.
    """
    begin = 0
    for length in lengths:
        end = begin + length
        if length < SEAL_BYTES:
            return False
        magic, crc = _SEAL.unpack_from(data, begin)
        rest = slice(begin + SEAL_BYTES, end)
        body = data[rest] if length <= _COPIED_BYTES_MAX else memoryview(data)[rest]
        if magic != _MAGIC_NUMBER or crc32c(body) != crc:
            return False
        begin = end
    return True
