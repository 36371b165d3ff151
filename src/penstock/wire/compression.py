# SPDX-License-Identifier: Apache-2.0
"""Payloads as they were before a client compressed them.

Why here: a broker passes payloads on as they came; only a person who looks at one message through the admin port, and
compaction of batches, need to look inside. With the package `cramjam` (`pip install penstock[compression]`) all kinds
are read and written, fast. Without it LZ4 and Snappy are read in a few lines each, ZLIB is in Python, and ZSTD is in
Python from 3.14 on, or else in the package `zstandard`, if that is installed.
Where: the admin port and compaction call it on their own threads. Nothing on the way of a publish does.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import MIB
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

NONE: Final = 0
LZ4: Final = 1
ZLIB: Final = 2
ZSTD: Final = 3
SNAPPY: Final = 4

# Clients send payloads of up to 5 MiB, compressed or not; what they compress is seldom four times as large before.
DECOMPRESSED_BYTES_MAX: Final = 20 * MIB
_LZ4_MATCH_MIN: Final = 4


def decompress(kind: int, data: bytes, size: int, *, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """The payload, `size` bytes of it.

    Args:
        kind: `MessageMetadata.compression`.
        data: the payload as it was sent.
        size: how long it is decompressed, as the message says; never more is made.
        bytes_max: how long it may be. Two megabytes can say that they are two gigabytes, and be right.

    Raises:
        ProtocolError: it is not what it says it is, or larger than `bytes_max`.
        UnsupportedVersion: nobody here can read this kind.
    """
    if kind == NONE:
        return data
    if size > bytes_max:
        raise ProtocolError(
            f"the payload of {len(data)} bytes is {size} bytes decompressed, as it says; {bytes_max} are read here"
        )
    reader = _native(kind) or _READERS.get(kind)
    if reader is None:
        raise UnsupportedVersion(f"compression type {kind} is not known")
    try:
        payload = reader(data, size)
    except (IndexError, ValueError, zlib.error) as error:
        raise ProtocolError(f"the payload does not decompress: {error}") from error
    if len(payload) != size:
        raise ProtocolError(f"the payload decompresses to {len(payload)} bytes, not to {size}")
    return payload


def compress(kind: int, data: bytes) -> tuple[int, bytes]:
    """Compress as this kind if that can be done here, else not at all; returns the kind that it is now."""
    if kind == ZLIB:
        return kind, zlib.compress(data)
    cramjam = _cramjam()
    if cramjam is None:
        return NONE, data
    if kind == LZ4:
        return kind, bytes(cramjam.lz4.compress_block(data, store_size=False))
    if kind == ZSTD:
        return kind, bytes(cramjam.zstd.compress(data))
    if kind == SNAPPY:
        return kind, bytes(cramjam.snappy.compress_raw(data))
    return NONE, data


def _native(kind: int) -> Callable[[bytes, int], bytes] | None:
    """Read by compiled code, if there is any for this kind."""
    cramjam = _cramjam()
    if cramjam is None:
        return None
    into = {
        LZ4: cramjam.lz4.decompress_block_into,
        ZSTD: cramjam.zstd.decompress_into,
        SNAPPY: cramjam.snappy.decompress_raw_into,
    }.get(kind)
    if into is None:
        return None

    def read(data: bytes, size: int) -> bytes:
        out = bytearray(size)
        try:
            written = into(data, out) if size else 0
        except cramjam.DecompressionError as error:
            raise ValueError(str(error)) from error
        del out[written:]
        return bytes(out)

    return read


@cache
def _cramjam() -> ModuleType | None:
    try:
        import cramjam  # noqa: PLC0415 -- used if it is there
    except ImportError:
        return None
    module: ModuleType = cramjam
    return module


def _zlib(data: bytes, size: int) -> bytes:
    return zlib.decompressobj().decompress(data, size + 1)


def _lz4(data: bytes, size: int) -> bytes:
    """A block: literals and matches in turn, each with its length in a token that both share."""
    out = bytearray()
    at, end = 0, len(data)
    while at < end:
        token = data[at]
        literals, at = _lz4_length(data, at + 1, token >> 4)
        out += data[at : at + literals]
        at += literals
        if at >= end:
            break  # The last sequence has no match.
        offset = data[at] | data[at + 1] << 8
        match, at = _lz4_length(data, at + 2, token & 15)
        _repeat(out, offset, match + _LZ4_MATCH_MIN, size)
    return bytes(out)


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    if length < 15:
        return length, at
    while True:
        more = data[at]
        at += 1
        length += more
        if more != 255:
            return length, at


def _snappy(data: bytes, size: int) -> bytes:
    """The length as a varint, then literals and copies, each led by a tag."""
    at = 0
    while data[at] > 127:
        at += 1
    at, end = at + 1, len(data)
    out = bytearray()
    while at < end:
        tag = data[at]
        at += 1
        kind, length = tag & 3, (tag >> 2) + 1
        if kind == 0:
            if length > 60:
                width = length - 60
                length = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            out += data[at : at + length]
            at += length
        elif kind == 1:
            _repeat(out, (tag >> 5) << 8 | data[at], (tag >> 2 & 7) + 4, size)
            at += 1
        else:
            width = 2 if kind == 2 else 4
            _repeat(out, int.from_bytes(data[at : at + width], "little"), length, size)
            at += width
    return bytes(out)


def _repeat(out: bytearray, offset: int, length: int, size: int) -> None:
    """Append `length` bytes that begin `offset` bytes before the end; what is appended may be read again."""
    if not 0 < offset <= len(out):
        raise ValueError(f"a match {offset} bytes back in {len(out)}")
    if len(out) + length > size:
        raise ValueError(f"more than {size} bytes")
    start = len(out) - offset
    pattern = out[start : start + length]
    whole, rest = divmod(length, len(pattern))
    out += pattern * whole + pattern[:rest]


def _zstd(data: bytes, size: int) -> bytes:
    try:
        from compression import zstd  # type: ignore[import-not-found] # noqa: PLC0415 -- Python 3.14
    except ImportError:
        return _zstandard(data, size)
    decompressor = zstd.ZstdDecompressor()
    return bytes(decompressor.decompress(data, size + 1))


def _zstandard(data: bytes, size: int) -> bytes:
    try:
        import zstandard  # type: ignore[import-not-found] # noqa: PLC0415 -- used if it is there
    except ImportError:
        raise UnsupportedVersion(
            "the payload is compressed with ZSTD, which this Python cannot read: install the package zstandard"
        ) from None
    try:
        # A frame that says its size gets that much memory, whatever the maximum.
        said = zstandard.get_frame_parameters(data).content_size
        if said not in {zstandard.CONTENTSIZE_UNKNOWN, size}:
            raise ValueError(f"a frame of {said} bytes, not of {size}")
        return bytes(zstandard.ZstdDecompressor().decompress(data, max_output_size=size + 1))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


_READERS: Final[Mapping[int, Callable[[bytes, int], bytes]]] = {LZ4: _lz4, ZLIB: _zlib, ZSTD: _zstd, SNAPPY: _snappy}
