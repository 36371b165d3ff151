# SPDX-License-Identifier: Apache-2.0
"""What is learnt of SEND frames never changes what they mean, and never grows without bound."""

from __future__ import annotations

from penstock.wire.layouts import LAYOUTS, LEARNT_MAX, SEND_HEAD_BYTES, Layout, layout_at, parse_ids
from tests.wire.frames import send


def test_what_was_learnt_stays_bounded() -> None:
    layout = Layout(2, 3)
    for seed in range(3 * LEARNT_MAX):
        producer_id, sequence_id = 128 + seed, 16_384 * (1 + seed % 100)
        assert layout.learn(memoryview(send(producer_id, sequence_id)), producer_id, sequence_id)
        assert len(layout.prefixes) <= LEARNT_MAX
    assert len(layout.highs) == 100


def test_only_frames_written_as_the_layout_reads_them_teach_it() -> None:
    layout = Layout(1, 3)
    assert layout.learn(memoryview(send(5, 20_000)), 5, 20_000)
    for frame in (send(5, 20_000, num_messages=2), send(5, 20_000, entry=b"unsealed"), send(5, 200), send(300, 20_000)):
        assert not layout.learn(memoryview(frame), 5, 20_000)


def test_the_layout_of_a_frame_is_told_by_its_lengths() -> None:
    for producer_id, producer_id_bytes in ((0, 1), (127, 1), (128, 2), (16_383, 2)):
        for sequence_id, sequence_id_bytes in ((127, 1), (128, 2), (16_383, 2), (16_384, 3), ((1 << 64) - 1, 10)):
            layout = layout_at(memoryview(send(producer_id, sequence_id)), 0)
            assert layout is LAYOUTS[producer_id_bytes, sequence_id_bytes]


def test_ids_in_order_are_parsed_and_others_are_left_alone() -> None:
    plain, batch, chunk = send(1, 2), send(1, 2, num_messages=3, highest_sequence_id=4), send(1, 2, is_chunk=True)
    for frame, ids in ((plain, (1, 2, 0, 0)), (batch, (1, 2, 3, 4)), (chunk, None)):
        assert parse_ids(frame[:SEND_HEAD_BYTES], 8 + frame[7]) == ids
