# SPDX-License-Identifier: Apache-2.0
"""What is learnt of SEND frames never changes what they mean, and never grows without bound."""

from __future__ import annotations

from penstock.core.transaction_id import TransactionId
from penstock.wire.sends import LAYOUTS, LEARNT_MAX, SEND_HEAD_BYTES, Layout, layout_at, parse_ids
from tests.wire.frames import send


def test_what_was_learnt_stays_bounded() -> None:
    layout = Layout(2, 3)
    for seed in range(3 * LEARNT_MAX):
        producer_id, sequence_id = 128 + seed, 16_384 * (1 + seed % 100)
        assert layout.learn(memoryview(send(producer_id, sequence_id)), producer_id, sequence_id)
        assert len(layout.prefixes) <= LEARNT_MAX
    assert len(layout.highs) == 100


def test_batches_of_many_sizes_stay_bounded_as_well() -> None:
    layout = Layout(1, 1, 3)
    for messages in range(128, 128 + 2 * LEARNT_MAX):
        assert layout.learn(memoryview(send(1, 5, num_messages=messages)), 1, 5, messages)
        assert layout.counts is not None
        assert len(layout.counts) <= LEARNT_MAX


def test_only_frames_written_as_the_layout_reads_them_teach_it() -> None:
    layout = Layout(1, 3)
    assert layout.learn(memoryview(send(5, 20_000)), 5, 20_000)
    for frame in (send(5, 20_000, num_messages=2), send(5, 20_000, entry=b"unsealed"), send(5, 200), send(300, 20_000)):
        assert not layout.learn(memoryview(frame), 5, 20_000)
    batches = Layout(1, 3, 2)
    assert batches.learn(memoryview(send(5, 20_000, num_messages=2)), 5, 20_000, 2)
    for frame in (send(5, 20_000), send(5, 200, num_messages=200), send(5, 20_000, num_messages=2, entry=b"unsealed")):
        assert not batches.learn(memoryview(frame), 5, 20_000, 2)


def test_the_layout_of_a_frame_is_told_by_its_lengths() -> None:
    for producer_id, producer_id_bytes in ((0, 1), (127, 1), (128, 2), (16_383, 2)):
        for sequence_id, sequence_id_bytes in ((127, 1), (128, 2), (16_383, 2), (16_384, 3), ((1 << 64) - 1, 10)):
            layout = layout_at(memoryview(send(producer_id, sequence_id)), 0)
            assert layout is LAYOUTS[producer_id_bytes, sequence_id_bytes, 0]
            for messages, count_bytes in ((1, 2), (24, 2), (127, 2), (128, 3), (24 << 7, 3), (16_383, 3)):
                frame = send(producer_id, sequence_id, num_messages=messages, entry=b"")
                layout = layout_at(memoryview(frame), 0)
                assert layout is LAYOUTS[producer_id_bytes, sequence_id_bytes, count_bytes]


def test_ids_in_order_are_parsed_and_others_are_left_alone() -> None:
    plain, batch, chunk = send(1, 2), send(1, 2, num_messages=3, highest_sequence_id=4), send(1, 2, is_chunk=True)
    inside = send(1, 2, num_messages=3, highest_sequence_id=4, txnid_least_bits=2**63 - 1, txnid_most_bits=7)
    wanted = (
        (plain, (1, 2, 0, 0, None)),
        (batch, (1, 2, 3, 4, None)),
        (inside, (1, 2, 3, 4, TransactionId(7, 2**63 - 1))),
        (send(1, 2, txnid_least_bits=5), (1, 2, 0, 0, TransactionId(0, 5))),
        (chunk, None),
    )
    for frame, ids in wanted:
        assert parse_ids(frame[:SEND_HEAD_BYTES], 8 + frame[7]) == ids
