# SPDX-License-Identifier: Apache-2.0
"""The seal: how an entry proves that it is whole.

Why: what a client sends "from the checksum magic on" already carries a CRC32C over everything behind it. Kept as it
came, an entry seals itself: it is checked once on arrival, stored without a checksum of our own, and checked again
whenever it is read back from disk.

    0x0e01 | crc32c(rest), 4 bytes, big-endian | rest (metadata size, metadata, payload)

Where: `wire` checks seals as frames arrive, the broker seals entries that came without one, `storage` checks on read.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from crc32c import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview

SEAL_MAGIC: Final = b"\x0e\x01"
SEAL_BYTES: Final = 6  # the magic and the checksum


def seal(body: Buffer) -> bytes:
    """Put magic and checksum before `body` (metadata size, metadata, payload). Copies it once."""
    return b"".join((SEAL_MAGIC, crc32c(body).to_bytes(4, "big"), body))


def is_sealed(entry: Buffer) -> bool:
    """Say whether `entry` begins with the magic and its checksum fits the rest."""
    view = memoryview(entry)
    if len(view) < SEAL_BYTES or view[:2].tobytes() != SEAL_MAGIC:
        return False
    return int.from_bytes(view[2:6], "big") == crc32c(view[6:])
