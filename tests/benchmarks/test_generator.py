# SPDX-License-Identifier: Apache-2.0
"""The load generator speaks the protocol, believes nothing that is wrong, and drives a real broker."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loads import PLANS, QUICK, TARGETS
from penstock.cli.bench_frames import LAP, Block, Shape
from penstock.cli.bench_scan import MessageScanner, ReceiptScanner, UnexpectedFrame
from penstock.wire import codec
from penstock.wire import pulsar_pb2 as pb

REPOSITORY = Path(__file__).parents[2]
BATCH = Shape(100, 5)


def split(data: bytes | bytearray) -> list[tuple[pb.BaseCommand, bytes]]:
    """Cut frames the slow and certain way: each command, and what follows it."""
    found, at = [], 0
    while at < len(data):
        size, command_bytes = struct.unpack_from(">II", data, at)
        end = at + 4 + size
        command = pb.BaseCommand.FromString(bytes(data[at + 8 : at + 8 + command_bytes]))
        found.append((command, bytes(data[at + 8 + command_bytes : end])))
        at = end
    return found


def framed(command: pb.BaseCommand, payload: bytes = b"") -> bytes:
    encoded = command.SerializeToString()
    return struct.pack(">II", 4 + len(encoded) + len(payload), len(encoded)) + encoded + payload


def receipt(producer_id: int, sequence_id: int) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = producer_id
    command.send_receipt.sequence_id = sequence_id
    command.send_receipt.message_id.ledgerId = 7
    command.send_receipt.message_id.entryId = sequence_id
    return framed(command)


def message(entry_id: int, entry: bytes, ledger_id: int = 7) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.MESSAGE)
    command.message.consumer_id = 0
    command.message.message_id.ledgerId = ledger_id
    command.message.message_id.entryId = entry_id
    return framed(command, entry)


def test_a_block_is_send_frames_whose_sequence_ids_go_on_in_every_lap() -> None:
    block = Block.make(Shape(64), seed=3, producers=3)

    for lap in range(2):
        sends = [command.send for command, _ in split(block.frames)]
        for producer_id in range(3):
            mine = [send.sequence_id for send in sends if send.producer_id == producer_id]
            assert mine == list(range(lap * LAP, (lap + 1) * LAP))
        block.next_lap()


def test_producers_of_a_block_alternate_frame_by_frame() -> None:
    sends = [command.send for command, _ in split(Block.make(Shape(64), seed=3, producers=50).frames)]

    assert [send.producer_id for send in sends] == list(range(50)) * LAP


def test_an_entry_is_sealed_and_holds_the_messages_that_its_command_announces() -> None:
    block = Block.make(BATCH, seed=5)

    for (command, entry), wanted in zip(split(block.frames), block.entries, strict=True):
        assert entry == wanted
        assert struct.unpack_from(">I", entry, 2)[0] == crc32c(entry[6:])
        metadata_bytes = struct.unpack_from(">I", entry, 6)[0]
        metadata = pb.MessageMetadata.FromString(entry[10 : 10 + metadata_bytes])
        assert command.send.num_messages == metadata.num_messages_in_batch == BATCH.messages
        at, bodies = 10 + metadata_bytes, 0
        while at < len(entry):
            size = struct.unpack_from(">I", entry, at)[0]
            at += 4 + size + pb.SingleMessageMetadata.FromString(entry[at + 4 : at + 4 + size]).payload_size
            bodies += 1
        assert (at, bodies) == (len(entry), BATCH.messages)


def test_payloads_and_sizes_depend_on_the_seed_and_on_nothing_else() -> None:
    one, again, other = (Block.make(Shape(1000), seed) for seed in (1, 1, 2))

    assert one.frames == again.frames != other.frames
    sizes = {len(entry) for entry in one.entries}
    assert len(sizes) > LAP // 4
    assert 890 < min(sizes) < max(sizes) < 1150


@given(first=st.integers(0, 2**22), count=st.integers(1, 700), seed=st.integers(0, 2**32))
def test_receipts_are_counted_however_the_stream_was_cut(first: int, count: int, seed: int) -> None:
    stream = bytearray(b"".join(receipt(0, row) for row in range(first, first + count)))
    chance, scanner, begin, others = random.Random(seed), ReceiptScanner([first]), 0, list[int]()

    for end in [*sorted(chance.randrange(len(stream)) for _ in range(4)), len(stream)]:
        begin = scanner.scan(stream, begin, end, others)

    assert (scanner.count, scanner.expected, begin, others) == (count, [first + count], len(stream), [])


@given(
    count=st.integers(2, 300),
    first=st.integers(0, 40_000),
    where=st.integers(0),
    fault=st.sampled_from(["lost", "twice", "swapped"]),
)
def test_a_receipt_lost_or_repeated_or_out_of_order_is_noticed(count: int, first: int, where: int, fault: str) -> None:
    rows = list(range(first, first + count + 1))
    at = where % count
    if fault == "lost":
        del rows[at]
    elif fault == "twice":
        rows.insert(at, rows[at])
    else:
        rows[at], rows[at + 1] = rows[at + 1], rows[at]
    stream = bytearray(b"".join(receipt(0, row) for row in rows))

    with pytest.raises(UnexpectedFrame):
        ReceiptScanner([first]).scan(stream, 0, len(stream), [])


def test_receipts_of_many_producers_are_checked_one_producer_at_a_time() -> None:
    stream = bytearray(b"".join(receipt(row % 3, row // 3) for row in range(30)))
    scanner = ReceiptScanner.make(3)

    scanner.scan(stream, 0, len(stream), [])

    assert scanner.expected == [10, 10, 10]


def test_a_frame_that_is_no_receipt_is_handed_back() -> None:
    stream = bytearray(receipt(0, 0) + codec.pong() + receipt(0, 1))
    scanner, others = ReceiptScanner.make(1), list[int]()

    scanner.scan(stream, 0, len(stream), others)

    assert (scanner.count, others) == (2, [len(receipt(0, 0))])


def test_messages_are_counted_and_compared_with_what_was_published() -> None:
    entries = Block.make(Shape(1000), seed=9).entries
    stream = bytearray(b"".join(message(row, entries[row % LAP]) for row in range(200)))
    scanner = MessageScanner(entries)

    assert scanner.scan(stream, 0, len(stream), []) == len(stream)

    assert (scanner.count, scanner.samples, scanner.entry_id) == (200, 1, 199)


@pytest.mark.parametrize("fault", ["a wrong byte", "an entry skipped", "an entry repeated"])
def test_a_wrong_message_is_noticed_at_the_next_sample(fault: str) -> None:
    entries = Block.make(Shape(1000), seed=9).entries
    deliveries = [message(row, entries[row % LAP]) for row in range(2 * LAP)]
    if fault == "a wrong byte":
        deliveries[-1] = deliveries[-1][:-1] + bytes([deliveries[-1][-1] ^ 1])
    elif fault == "an entry skipped":
        del deliveries[80]
    else:
        deliveries.insert(80, deliveries[80])
    half, stream = sum(map(len, deliveries[:70])), bytearray(b"".join(deliveries))
    scanner = MessageScanner(entries)
    scanner.scan(stream, 0, half, [])

    with pytest.raises(UnexpectedFrame):
        scanner.scan(stream, half, len(stream), [])


def test_every_target_and_every_quick_load_names_a_load_that_is_measured() -> None:
    names = {plan.name for plan in PLANS}

    assert set(QUICK) <= names
    assert {target.load for target in TARGETS} <= names | {"start", "idle", "peak"}


def test_a_quick_run_drives_every_tool_against_a_real_broker(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--results", tmp_path, "--scratch", tmp_path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    samples = json.loads((tmp_path / "latest.json").read_text())["samples"]
    measured = {sample["load"] for sample in samples if sample["subject"] == "penstock"}
    assert measured == {*QUICK, "start", "idle", "peak"}
    assert (tmp_path / "latest.md").read_text().startswith("| load")
