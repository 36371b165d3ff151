# SPDX-License-Identifier: Apache-2.0
"""What the wire costs an entry, in nanoseconds of one core, beside what the generated classes alone would cost.

Budget, for entries of 1 KiB in reads of 250: decode a SEND 1,000 ns, a third of it the checksum; a receipt 150 ns;
a MESSAGE 500 ns; an acknowledged id 250 ns.

Run: python benchmarks/wire.py [--json]
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING

from crc32c import crc32c

from penstock.core.checksum import seal
from penstock.wire import codec
from penstock.wire.frame_reader import FrameReader
from penstock.wire.runs import Buffer, decode_sends, encode_messages, encode_receipts

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 30
ENTRIES = 250
ENTRY_BYTES = 1_024
ARENA_BYTES = 512 * 1_024
FRAME_BYTES_MAX = 5 * 1_024 * 1_024
LEDGER_ID, FIRST_ENTRY_ID, FIRST_SEQUENCE_ID = 1_234, 70_000, 20_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: nanoseconds an entry, by hand and by the generated classes."""

    name: str
    budget_ns: int
    penstock_ns: float
    protobuf_ns: float


def nanoseconds_each(work: Callable[[], object], entries: int = ENTRIES) -> float:
    """The best of some rounds: the others measure what else the machine does."""
    return min(_timed_ns(work) for _ in range(ROUNDS)) / entries


def _timed_ns(work: Callable[[], object]) -> int:
    began_ns = perf_counter_ns()
    work()
    return perf_counter_ns() - began_ns


# -- what is decoded -------------------------------------------------------------------------------------------------


def entry(messages: int | None = None) -> bytes:
    """A sealed entry as a client's producer makes it."""
    metadata = codec.MessageMetadata(
        producer_name="p-0-1", sequence_id=1, publish_time=1_790_000_000_000, num_messages_in_batch=messages
    )
    about = metadata.SerializeToString()
    return seal(struct.pack(">I", len(about)) + about + bytes(ENTRY_BYTES - 10 - len(about)))


def send(producer_id: int, sequence_id: int, messages: int | None = None) -> bytes:
    """A SEND frame."""
    body = codec.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=messages)
    command = codec.BaseCommand(type=codec.BaseCommand.SEND, send=body).SerializeToString()
    payload = entry(messages)
    return struct.pack(">II", 4 + len(command) + len(payload), len(command)) + command + payload


def ack(*entry_ids: int) -> bytes:
    """An ACK frame."""
    ids = [codec.MessageIdData(ledgerId=LEDGER_ID, entryId=entry_id) for entry_id in entry_ids]
    body = codec.CommandAck(consumer_id=1, ack_type=codec.CommandAck.Individual, message_id=ids)
    return codec.encode(codec.BaseCommand.ACK, body)


def reading(frames: list[bytes]) -> Callable[[], object]:
    """A read of these frames, by penstock."""
    reader, arena = FrameReader(frame_bytes_max=FRAME_BYTES_MAX), memoryview(bytearray(ARENA_BYTES))
    hello = codec.encode(codec.BaseCommand.CONNECT, codec.CommandConnect(client_version="benchmark"))
    reader.buffers(arena)[0][: len(hello)] = hello
    reader.received(arena, len(hello))
    data = b"".join(frames)
    arena[: len(data)] = data
    return lambda: reader.received(arena, len(data))


def parsing(frames: list[bytes]) -> Callable[[], object]:
    """What the generated classes need for the same frames: commands parsed, fields asked for, checksums compared."""
    view = memoryview(b"".join(frames))

    def work() -> None:
        pos = 0
        while pos < len(view):
            total, command_bytes = struct.unpack_from(">II", view, pos)
            payload, stop = pos + 8 + command_bytes, pos + 4 + total
            command = codec.BaseCommand.FromString(bytes(view[pos + 8 : payload]))
            if command.type == codec.BaseCommand.SEND:
                body = command.send
                _ = body.producer_id, body.sequence_id, body.num_messages, body.HasField("highest_sequence_id")
                _ = int.from_bytes(view[payload + 2 : payload + 6], "big") == crc32c(view[payload + 6 : stop])
            else:
                _ = [(message_id.ledgerId, message_id.entryId) for message_id in command.ack.message_id]
            pos = stop

    return work


def decoded(name: str, budget_ns: int, frames: list[bytes], entries: int = ENTRIES) -> Row:
    """Measure one kind of read."""
    return Row(name, budget_ns, nanoseconds_each(reading(frames), entries), nanoseconds_each(parsing(frames), entries))


# -- what is encoded -------------------------------------------------------------------------------------------------


def receipts(name: str, budget_ns: int, run_entries: int) -> Row:
    """Receipts for runs of so many entries."""
    runs = ENTRIES // run_entries
    sequence_ids = list(range(FIRST_SEQUENCE_ID, FIRST_SEQUENCE_ID + run_entries))

    def by_penstock() -> None:
        out: list[bytes] = []
        for producer_id in range(runs):
            encode_receipts(out, producer_id, LEDGER_ID, FIRST_ENTRY_ID, sequence_ids, None)

    def by_protobuf() -> None:
        for producer_id in range(runs):
            for row, sequence_id in enumerate(sequence_ids):
                message_id = codec.MessageIdData(ledgerId=LEDGER_ID, entryId=FIRST_ENTRY_ID + row)
                body = codec.CommandSendReceipt(producer_id=producer_id, sequence_id=sequence_id, message_id=message_id)
                codec.encode(codec.BaseCommand.SEND_RECEIPT, body)

    return Row(name, budget_ns, nanoseconds_each(by_penstock), nanoseconds_each(by_protobuf))


def deliveries(name: str, budget_ns: int, redeliveries: list[int] | None) -> Row:
    """MESSAGE frames of entries that lie in a run."""
    frames = b"".join(send(1, FIRST_SEQUENCE_ID + row) for row in range(ENTRIES))
    run, _ = decode_sends(memoryview(frames), frame_bytes_max=FRAME_BYTES_MAX)
    assert run is not None
    entry_ids = range(FIRST_ENTRY_ID, FIRST_ENTRY_ID + ENTRIES)

    def by_penstock() -> None:
        out: list[Buffer] = []
        encode_messages(out, 1, LEDGER_ID, -1, entry_ids, run.data, run.offsets, run.lengths, redeliveries)

    def by_protobuf() -> None:
        out: list[Buffer] = []
        for row, entry_id in enumerate(entry_ids):
            body = codec.CommandMessage(
                consumer_id=1,
                message_id=codec.MessageIdData(ledgerId=LEDGER_ID, entryId=entry_id),
                redelivery_count=None if redeliveries is None else redeliveries[row],
            )
            command = codec.BaseCommand(type=codec.BaseCommand.MESSAGE, message=body).SerializeToString()
            stored = run.data[run.offsets[row] : run.offsets[row] + run.lengths[row]]
            out += (struct.pack(">II", 4 + len(command) + len(stored), len(command)), command, stored)
        b"".join(out)

    return Row(name, budget_ns, nanoseconds_each(by_penstock), nanoseconds_each(by_protobuf))


def measure() -> list[Row]:
    """All rows of the table."""
    first = FIRST_SEQUENCE_ID
    mixed = (100, 300, FIRST_SEQUENCE_ID)  # sequence ids of one, two and three bytes
    acked = range(FIRST_ENTRY_ID, FIRST_ENTRY_ID + ENTRIES)
    return [
        decoded("decode SEND, one producer", 1_000, [send(1, first + row) for row in range(ENTRIES)]),
        decoded(
            "decode SEND, 50 producers in turn", 1_000, [send(row % 50, first + row // 50) for row in range(ENTRIES)]
        ),
        decoded(
            "decode SEND, lengths in turn", 2_000, [send(row % 3, mixed[row % 3] + row // 9) for row in range(ENTRIES)]
        ),
        decoded("decode SEND, batches of 10", 5_000, [send(1, first + 10 * row, 10) for row in range(ENTRIES)]),
        decoded("decode ACK, one id each", 250, [ack(entry_id) for entry_id in acked]),
        decoded("decode ACK, 250 ids in one", 250, [ack(*acked)]),
        receipts("encode SEND_RECEIPT, run of 250", 150, 250),
        receipts("encode SEND_RECEIPT, runs of 5", 500, 5),
        receipts("encode SEND_RECEIPT, runs of 1", 1_200, 1),
        deliveries("encode MESSAGE", 500, None),
        deliveries("encode MESSAGE, redelivered", 550, [1] * ENTRIES),
    ]


def main() -> None:
    """Print the table, or JSON."""
    rows = measure()
    if "--json" in sys.argv[1:]:
        print(json.dumps({row.name: row.penstock_ns for row in rows}, indent=2))
        return
    print(f"{'ns per entry':36} {'budget':>8} {'penstock':>9} {'protobuf':>9} {'ratio':>7}")
    for row in rows:
        ratio = row.protobuf_ns / row.penstock_ns
        print(f"{row.name:36} {row.budget_ns:8,} {row.penstock_ns:9,.0f} {row.protobuf_ns:9,.0f} {ratio:6.1f}x")


if __name__ == "__main__":
    main()
