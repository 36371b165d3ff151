# SPDX-License-Identifier: Apache-2.0
"""Decompress a message's payload, and compress what compaction has rewritten.

Why here: a broker passes payloads on as they came. Only compaction of batches, and somebody who looks at one message
through the admin port, need to look inside.
Where: both call it on threads of their own, and Spark's executors call it. The first payload imports `cramjam`.
"""

from __future__ import annotations

import zlib
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import MIB
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NONE: Final = 0
LZ4: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3
SNAPPY: Final = 4

# Clients send payloads of up to 5 MiB, compressed or not; compressed ones are seldom four times as large before.
DECOMPRESSED_BYTES_MAX: Final = 20 * MIB


class _Codec(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]  # (data, size): `size` bytes are allocated at most; raises ValueError


def decompress(kind: int, data: bytes, size: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The payload, `size` bytes of it.

    Args:
        kind: `MessageMetadata.compression`.
        data: the payload as it was sent.
        size: how long it is decompressed, as the message says; never more is allocated.
        bytes_max: how long it may be. Two megabytes can say that they are two gigabytes, and be right.

    Raises:
        ProtocolError: it is not what it says it is, or larger than `bytes_max`.
        UnsupportedVersion: there is no such kind.
    """
    if kind == NONE:
        return data
    if size > bytes_max:
        raise ProtocolError(
            f"the payload of {len(data)} bytes is {size} bytes decompressed, as it says; {bytes_max} are read here"
        )
    codec = _codecs().get(kind)
    if codec is None:
        raise UnsupportedVersion(f"compression type {kind} is not known")
    try:
        payload = codec.decompress(data, size)
    except (ValueError, zlib.error) as error:
        raise ProtocolError(f"the payload does not decompress: {error}") from error
    if len(payload) != size:
        raise ProtocolError(f"the payload decompresses to {len(payload)} bytes, not to {size}")
    return payload


def compress(kind: int, data: bytes) -> tuple[int, bytes]:
    """Compress as this kind if there is one, else not at all; returns the kind that it is now."""
    codec = _codecs().get(kind)
    return (NONE, data) if codec is None else (kind, codec.compress(data))


@cache
def _codecs() -> Mapping[int, _Codec]:
    import cramjam  # noqa: PLC0415 -- most brokers never look into a payload

    def codec(compress: Callable[..., cramjam.Buffer], decompress_into: Callable[[bytes, bytearray], int]) -> _Codec:
        def read(data: bytes, size: int) -> bytes:
            out = bytearray(size)
            try:
                written = decompress_into(data, out) if size else 0
            except cramjam.DecompressionError as error:
                raise ValueError(str(error)) from error
            del out[written:]
            return bytes(out)

        return _Codec(lambda data: bytes(compress(data)), read)

    lz4, zstd, snappy = cramjam.lz4, cramjam.zstd, cramjam.snappy
    return {
        LZ4: codec(partial(lz4.compress_block, store_size=False), lz4.decompress_block_into),
        ZLIB: _Codec(zlib.compress, lambda data, size: zlib.decompressobj().decompress(data, size + 1)),
        ZSTD: codec(zstd.compress, zstd.decompress_into),
        SNAPPY: codec(snappy.compress_raw, snappy.decompress_raw_into),
    }
