# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.blocks import (
    HEADER_BYTES,
    Kind,
    Stamp,
    block_bytes,
    decode_header,
    decode_table,
    encode_block,
    encode_mark,
    needle,
)

if TYPE_CHECKING:
    from penstock.core.checksum import Buffer

STAMP = Stamp(segment_id=3, nonce=2**63 + 5, synced=4096)
U32, U63 = st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)
ROWS = st.lists(st.tuples(U32, U32, U32), min_size=1, max_size=20)


@given(rows=ROWS, groups=st.lists(st.tuples(U63, U63, U32), min_size=1, max_size=5), counted=st.booleans())
def test_what_a_front_and_a_back_say_is_what_was_encoded(
    rows: list[tuple[int, int, int]], groups: list[tuple[int, int, int]], counted: bool
) -> None:
    offsets, lengths, counts = (list(column) for column in zip(*rows, strict=True))
    data: list[Buffer] = [b"some", bytearray(b" data")]
    for kind, end in zip(
        (Kind.FRONT, Kind.BACK),
        encode_block(STAMP, 64, groups, offsets, lengths, counts if counted else None, data),
        strict=True,
    ):
        header = decode_header(end, 0)
        assert header is not None
        assert (header.kind, header.segment_id, header.nonce, header.synced) == (kind, 3, 2**63 + 5, 4096)
        assert (header.offset, header.data_bytes, header.front_bytes) == (64, 9, len(end))
        assert header.block_bytes == block_bytes(len(groups), len(rows), 9, has_message_counts=counted)
        assert header.end == 64 + 2 * len(end) + 9
        table = decode_table(end, HEADER_BYTES, header)
        assert table is not None
        assert list(table.groups()) == groups
        assert (table.offsets.tolist(), table.lengths.tolist()) == (offsets, lengths)
        assert (table.message_counts.tolist() if table.message_counts is not None else None) == (
            counts if counted else None
        )


@given(bit=st.integers(0, (HEADER_BYTES + 20 + 8) * 8 - 1))
def test_no_flipped_bit_of_header_or_table_goes_unnoticed(bit: int) -> None:
    front = bytearray(encode_block(STAMP, 0, [(1, 0, 1)], [0], [4], None, [b"data"])[0])
    whole = decode_header(front, 0)
    assert whole is not None
    front[bit // 8] ^= 1 << bit % 8
    header = decode_header(front, 0)
    assert header is None or decode_table(front, HEADER_BYTES, header) is None


def test_a_header_cut_short_is_none() -> None:
    mark = encode_mark(STAMP, 128)
    assert decode_header(mark, 0) is not None
    assert all(decode_header(mark[:size], 0) is None for size in range(len(mark)))


def test_a_table_cut_short_is_none() -> None:
    front = encode_block(STAMP, 0, [(1, 0, 1)], [0], [4], None, [b"data"])[0]
    header = decode_header(front, 0)
    assert header is not None
    assert decode_table(front[:-1], HEADER_BYTES, header) is None


def test_every_header_begins_with_the_needle_of_its_segment() -> None:
    front, back = encode_block(STAMP, 0, [(1, 0, 1)], [0], [4], None, [b"data"])
    assert all(header.startswith(needle(3)) for header in (front, back, encode_mark(STAMP, 0)))
    assert not front.startswith(needle(4))


def test_a_mark_says_how_far_everything_is_durable() -> None:
    header = decode_header(b"xx" + encode_mark(STAMP, 128), 2)
    assert header is not None
    assert (header.kind, header.offset, header.synced, header.end) == (Kind.MARK, 128, 4096, 128 + HEADER_BYTES)


def test_the_format_on_disk_has_not_changed_since_its_first_release() -> None:
    stamp = Stamp(segment_id=0x2A, nonce=0x1122334455667788, synced=0x1000)
    front, back = encode_block(stamp, 0x2000, [(7, 100, 2)], [4, 14], [6, 5], [1, 3], [b"SENDfirst!SENDworld"])
    place = "f570656e4c6f67012a0000000000000088776655443322110020000000000000" + "0010000000000000"
    sizes = "0301000013000000010000000200000001000000" + "a61218c6d657437a"
    table = "07000000000000006400000000000000020000000" + "40000000e000000060000000500000001000000" + "03000000"
    assert front.hex() == place + "01000000" + sizes + "7bd5eb31" + table
    assert back.hex() == place + "02000000" + sizes + "26a40077" + table
