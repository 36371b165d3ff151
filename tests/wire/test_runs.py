# SPDX-License-Identifier: Apache-2.0
"""Frames built from templates must say, to protobuf, exactly what was meant."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.checksum import seal
from penstock.wire import codec
from penstock.wire.deliveries import JOIN_BYTES_MAX, encode_messages
from penstock.wire.sends import encode_receipts
from tests.wire.frames import entry_body, hear, send
from tests.wire.strategies import EDGES, uint64s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.checksum import Buffer

positions = st.one_of(st.sampled_from([0, 127, 16_380, 16_384, (1 << 21) - 3]), st.integers(0, (1 << 63) - 100))


def _frames(out: list[Buffer]) -> list[tuple[codec.BaseCommand, bytes]]:
    """(command, what follows it) of every frame."""
    data = b"".join(out)
    frames, pos = [], 0
    while pos < len(data):
        total, command_bytes = struct.unpack_from(">II", data, pos)
        command = data[pos + 8 : pos + 8 + command_bytes]
        frames.append((codec.BaseCommand.FromString(command), data[pos + 8 + command_bytes : pos + 4 + total]))
        assert frames[-1][0].IsInitialized()
        pos += 4 + total
    assert pos == len(data)
    return frames


@st.composite
def sequences(draw: st.DrawFn) -> list[int]:
    if draw(st.booleans()):
        return draw(st.lists(uint64s, max_size=6))
    first = draw(st.one_of(st.sampled_from([0, 120, 16_380]), st.integers(0, (1 << 64) - 2_000)))
    return list(range(first, first + draw(st.integers(0, 20)) * 9, 9))


@given(producer_id=uint64s, ledger_id=uint64s, first=positions, sequence_ids=sequences(), data=st.data())
def test_receipts_say_to_protobuf_what_was_stored_where(
    producer_id: int, ledger_id: int, first: int, sequence_ids: list[int], data: st.DataObject
) -> None:
    count = len(sequence_ids)
    highest = data.draw(st.one_of(st.none(), st.lists(uint64s, min_size=count, max_size=count)))

    out: list[bytes] = []
    encode_receipts(out, producer_id, ledger_id, first, sequence_ids, highest)

    expected = [
        codec.BaseCommand(
            type=codec.BaseCommand.SEND_RECEIPT,
            send_receipt=codec.CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=codec.MessageIdData(ledgerId=ledger_id, entryId=first + row),
                highest_sequence_id=None if highest is None else highest[row],
            ),
        )
        for row, sequence_id in enumerate(sequence_ids)
    ]
    assert _frames(list(out)) == [(command, b"") for command in expected]


def test_receipts_of_one_stretch_are_one_buffer() -> None:
    out: list[bytes] = []
    encode_receipts(out, 1, 2, 0, range(1_000), None)
    assert len(out) == 1


@given(
    consumer_id=uint64s,
    ledger_id=uint64s,
    partition=st.integers(-1, 1_000),
    entry_ids=st.lists(positions, max_size=6)
    | st.builds(lambda first, count: range(first, first + count), positions, st.integers(0, 6)),
    epoch=st.one_of(st.none(), uint64s),
    sizes=st.lists(st.sampled_from([0, 1, 100, JOIN_BYTES_MAX - 100, JOIN_BYTES_MAX]), min_size=6, max_size=6),
    data=st.data(),
)
def test_deliveries_say_to_protobuf_what_was_stored(
    consumer_id: int,
    ledger_id: int,
    partition: int,
    entry_ids: Sequence[int],
    epoch: int | None,
    sizes: list[int],
    data: st.DataObject,
) -> None:
    count = len(entry_ids)
    redeliveries = data.draw(
        st.one_of(st.none(), st.lists(st.integers(0, (1 << 32) - 1), min_size=count, max_size=count))
    )
    entries = [seal(entry_body(bytes((row,)) * size)) for row, size in zip(range(count), sizes, strict=False)]
    stored = b"".join(b"gap" + entry for entry in entries)
    lengths = list(map(len, entries))
    offsets = [3 * (row + 1) + sum(lengths[:row]) for row in range(count)]

    words = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20)
    ack_sets = data.draw(st.one_of(st.none(), st.lists(st.none() | words, min_size=count, max_size=count)))

    out: list[Buffer] = []
    nbytes = encode_messages(
        out, consumer_id, ledger_id, partition, entry_ids, stored, offsets, lengths, redeliveries, epoch, ack_sets
    )

    assert nbytes == sum(map(len, out))
    expected = [
        codec.BaseCommand(
            type=codec.BaseCommand.MESSAGE,
            message=codec.CommandMessage(
                consumer_id=consumer_id,
                message_id=codec.MessageIdData(
                    ledgerId=ledger_id, entryId=entry_id, partition=None if partition < 0 else partition
                ),
                redelivery_count=None if redeliveries is None else redeliveries[row],
                ack_set=None if ack_sets is None else ack_sets[row],
                consumer_epoch=epoch,
            ),
        )
        for row, entry_id in enumerate(entry_ids)
    ]
    assert _frames(out) == list(zip(expected, entries, strict=True))


def test_small_entries_are_copied_together_and_large_ones_are_not_copied() -> None:
    small, large = seal(entry_body(b"x")), seal(entry_body(bytes(JOIN_BYTES_MAX)))
    stored = bytearray(small + large + small + small)
    lengths = [len(small), len(large), len(small), len(small)]
    offsets = [sum(lengths[:row]) for row in range(4)]

    out: list[Buffer] = []
    encode_messages(out, 1, 2, -1, range(4), stored, offsets, lengths)

    assert [type(buffer) for buffer in out] == [bytes, memoryview, bytes]
    assert isinstance(out[1], memoryview)
    assert out[1].obj is stored


def test_nothing_to_encode_is_nothing_appended() -> None:
    out: list[Buffer] = []
    assert encode_messages(out, 1, 2, -1, [], b"", [], []) == 0
    encode_receipts([], 1, 2, 0, [], None)
    assert out == []


@pytest.mark.parametrize("edge", EDGES[1:-1])
def test_a_sequence_that_grows_into_a_longer_encoding_is_read_on(edge: int) -> None:
    sequence_ids = range(edge - 1, edge + 2)
    rows = hear([b"".join(send(3, sequence_id) for sequence_id in sequence_ids for _ in range(2))])
    assert [row[1] for row in rows] == [sequence_id for sequence_id in sequence_ids for _ in range(2)]


def test_a_corrupt_row_between_sound_ones_is_told_and_the_others_are_kept() -> None:
    entry = seal(entry_body(b"x" * 50))
    broken = entry[:-1] + b"y"
    rows = hear([b"".join(send(1, row, entry=broken if row in {0, 3, 7} else entry) for row in range(8))])
    assert [row[6] for row in rows] == [row in {0, 3, 7} for row in range(8)]


def test_batches_among_single_messages_fill_only_their_own_rows() -> None:
    rows = hear(
        [
            b"".join(
                (
                    send(1, 0),
                    send(1, 1, num_messages=10, highest_sequence_id=10),
                    send(1, 11, num_messages=200),
                    send(1, 211),
                )
            )
        ]
    )
    assert [(row[3], row[4]) for row in rows] == [(1, 0), (10, 10), (200, 0), (1, 0)]


@pytest.mark.parametrize("claimed", [0, -1, -(1 << 31)])
def test_an_entry_holds_at_least_one_message_whatever_its_producer_says(claimed: int) -> None:
    (row,) = hear([send(1, 0, num_messages=claimed)])
    assert row[3] == 1
