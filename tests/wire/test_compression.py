# SPDX-License-Identifier: Apache-2.0
"""Compressed payloads: written by hand as the formats say, and whatever else may come."""

from __future__ import annotations

import contextlib
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import UnsupportedVersion
from penstock.core.units import MIB
from penstock.wire.compression import LZ4, NONE, SNAPPY, ZLIB, ZSTD, compress, decompress
from penstock.wire.errors import ProtocolError


def test_what_is_not_compressed_stays_as_it_is() -> None:
    assert decompress(NONE, b"as it is", 0) == b"as it is"


@pytest.mark.parametrize(
    ("kind", "data", "payload"),
    [
        (LZ4, b"\x50hello", b"hello"),
        (LZ4, b"\x00", b""),
        (LZ4, b"\xf0\x05" + b"x" * 20, b"x" * 20),  # literals beyond 15
        (LZ4, b"\x1fa\x01\x00\x00\x50hello", b"a" * 20 + b"hello"),  # a match that reads what it writes
        (LZ4, b"\x40abcd\x04\x00\xc0hello, world", b"abcdabcdhello, world"),
        (LZ4, b"\x1fa\x01\x00\xff\x00\x50hello", b"a" * (1 + 15 + 255 + 4) + b"hello"),
        (SNAPPY, b"\x00", b""),
        (SNAPPY, b"\x05\x10hello", b"hello"),
        (SNAPPY, b"\x46\xf0\x45" + b"y" * 70, b"y" * 70),  # a literal with a length byte of its own
        (SNAPPY, b"\x08\x0cabcd\x01\x04", b"abcdabcd"),  # a copy with one byte of offset
        (SNAPPY, b"\x08\x0cabcd\x0e\x04\x00", b"abcdabcd"),  # ... with two
        (SNAPPY, b"\x08\x0cabcd\x0f\x04\x00\x00\x00", b"abcdabcd"),  # ... with four
        (SNAPPY, b"\x80\x01\x00z" + b"\xfe\x01\x00" + b"\xfa\x01\x00", b"z" * 128),
    ],
)
def test_a_block_is_read(kind: int, data: bytes, payload: bytes) -> None:
    assert decompress(kind, data, len(payload)) == payload


@given(kind=st.sampled_from([LZ4, ZLIB, ZSTD, SNAPPY]), payload=st.binary(max_size=2000))
def test_what_is_compressed_is_read_again(kind: int, payload: bytes) -> None:
    compressed_as, data = compress(kind, payload)
    assert compressed_as == kind
    assert decompress(kind, data, len(payload)) == payload


def test_a_kind_that_nobody_knows_is_written_plain() -> None:
    assert compress(9, b"data") == (NONE, b"data")


@pytest.mark.parametrize(
    ("kind", "data", "size"),
    [
        (LZ4, b"\x50hello", 6),  # shorter than it says
        (LZ4, b"\x50hello", 4),
        (LZ4, b"\x0f\x01\x00\x00", 100),  # a match before the beginning
        (LZ4, b"\x1fa\x00\x00\x00\x00", 100),  # a match of offset 0
        (LZ4, b"\x1fa\x01\x00" + b"\xff" * 50, 100),  # cut
        (SNAPPY, b"", 1),
        (SNAPPY, b"\x05\x10hel", 5),
        (SNAPPY, b"\x08\x01\x04", 8),
        (ZLIB, b"not zlib", 10),
        (ZLIB, zlib.compress(b"x" * 100)[:-4], 101),
    ],
)
def test_what_does_not_decompress_is_an_error(kind: int, data: bytes, size: int) -> None:
    with pytest.raises(ProtocolError, match="the payload"):
        decompress(kind, data, size)


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        (LZ4, b"\x1fa\x01\x00" + b"\xff" * 100_000 + b"\x00\x00"),
        (SNAPPY, b"\x00\x00a" + b"\xfe\x01\x00" * 100_000),
        (ZLIB, zlib.compress(bytes(10_000_000))),
    ],
    ids=["lz4", "snappy", "zlib"],
)
def test_never_more_is_made_than_the_message_says(kind: int, bomb: bytes) -> None:
    with pytest.raises(ProtocolError):
        decompress(kind, bomb, 1000)


@given(kind=st.sampled_from([LZ4, SNAPPY, ZLIB, ZSTD]), data=st.binary(max_size=200), size=st.integers(0, 1000))
def test_any_bytes_are_read_or_refused(kind: int, data: bytes, size: int) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decompress(kind, data, size)) == size


def test_a_kind_that_nobody_knows_is_unsupported() -> None:
    with pytest.raises(UnsupportedVersion, match="compression type 9"):
        decompress(9, b"", 0)


@pytest.mark.parametrize("kind", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_no_more_is_decompressed_than_the_bound_whatever_the_message_says(kind: int) -> None:
    _, data = compress(kind, bytes(4 * MIB))
    with pytest.raises(ProtocolError, match="is 4194304 bytes decompressed, as it says; 1048576 are read here"):
        decompress(kind, data, 4 * MIB, bytes_max=MIB)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decompress(kind, data, 1_000, bytes_max=MIB)  # It says that it is small.
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
