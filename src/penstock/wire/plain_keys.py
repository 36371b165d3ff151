# SPDX-License-Identifier: Apache-2.0
"""Keys of many entries at once, where their metadata is written as clients usually write it.

Why: Key_Shared dispatch needs the key of every entry, and `metadata.routing`, which understands all metadata, takes
three times as long. Where: `KeyShared`, which asks `routing` for the others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core.checksum import SEAL_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.checksum import Buffer

_VARINT: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
# Behind the producer's name: sequence id, publish time, and the tag of the partition key, of at most 127 bytes.
_before_key: Final = re.compile(rb"\x10" + _VARINT + rb"\x18" + _VARINT + rb"\x32(?=[\x00-\x7f])", re.DOTALL).match
# Behind the key, fields that do not matter: compression, sizes, event time, and that the key is not in base64.
_after_key: Final = re.compile(rb"(?:[\x40\x48\x58\x60]" + _VARINT + rb"|\x88\x01\x00)*", re.DOTALL).fullmatch
_SIZE_HIGH: Final = bytes(3)
_NAME_TAG: Final = 0x0A
# An entry up to the length of the producer's name.
_START_BYTES: Final = SEAL_BYTES + 6


def plain_keys(data: Buffer, offsets: Sequence[int], lengths: Sequence[int], rows: Sequence[int]) -> list[bytes | None]:
    """Return the sticky keys of these rows, each of at most 127 bytes; None where only `metadata.routing` knows.

    Args:
        data: holds the entries, sealed.
        offsets: where in `data` each begins.
        lengths: of each, in bytes.
        rows: which of them.
    """
    keys: list[bytes | None] = []
    if not isinstance(data, bytes):
        data = memoryview(data)
    # Budget: 0.9 µs per entry on one core.
    for row in rows:
        at, key = offsets[row] + SEAL_BYTES, None
        if lengths[row] >= _START_BYTES and data[at : at + 3] == _SIZE_HIGH and data[at + 4] == _NAME_TAG:
            name_bytes, stop = data[at + 5], at + 4 + data[at + 3]
            if name_bytes < 128 and stop <= at - SEAL_BYTES + lengths[row]:
                found = _before_key(data, at + 6 + name_bytes, stop)
                if found is not None:
                    key_at = found.end() + 1
                    key_stop = key_at + data[key_at - 1]
                    if key_stop == stop or (key_stop < stop and _after_key(data, key_stop, stop) is not None):
                        key = bytes(data[key_at:key_stop])
        keys.append(key)
    return keys
