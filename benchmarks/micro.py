# SPDX-License-Identifier: Apache-2.0
"""What the hot paths cost by themselves, in nanoseconds of one core, beside the budgets that the code names.

Where: part of `make measure`. Each figure is the best of some rounds: others measure what else the machine does. The
wire's are per entry of 1 KiB in reads of 250, request memory's per read, and the log's per entry of 1 KiB, with the
disk's work in them.
"""

from __future__ import annotations

import queue
import struct
import tempfile
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING

from penstock.core.checksum import seal
from penstock.core.units import KIB, MIB
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits
from penstock.net.clock import SystemClock
from penstock.storage.entry_log import AppendRun, EntryLog
from penstock.storage.files import OsFiles
from penstock.storage.limits import LogLimits
from penstock.wire import codec
from penstock.wire.deliveries import encode_messages
from penstock.wire.frame_reader import FrameReader
from penstock.wire.sends import Buffer, decode_sends, encode_receipts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROUNDS = 20
ENTRIES = 250
READS = 20_000
FRAME_BYTES_MAX = 5 * MIB + 10 * KIB
LEDGER_ID, FIRST_ENTRY_ID, FIRST_SEQUENCE_ID = 1_234, 70_000, 20_000
LOG_RUNS, LOG_RUNS_UNDERWAY = 400, 16


def best_ns(work: Callable[[], object], count: int = ENTRIES) -> float:
    """Nanoseconds for one of `count` things that `work` does."""
    return min(_timed_ns(work) for _ in range(ROUNDS)) / count


def _timed_ns(work: Callable[[], object]) -> int:
    began_ns = perf_counter_ns()
    work()
    return perf_counter_ns() - began_ns


# -- the wire ---------------------------------------------------------------------------------------------------------


def entry(messages: int | None = None) -> bytes:
    """A sealed entry of 1 KiB, as a client's producer makes it."""
    metadata = codec.MessageMetadata(
        producer_name="p-0-1", sequence_id=1, publish_time=1_790_000_000_000, num_messages_in_batch=messages
    )
    about = metadata.SerializeToString()
    return seal(struct.pack(">I", len(about)) + about + bytes(KIB - 10 - len(about)))


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


def reading(*frames: bytes) -> float:
    """Read these frames at once; they hold ENTRIES entries or ids."""
    reader, arena = FrameReader(frame_bytes_max=FRAME_BYTES_MAX), memoryview(bytearray(512 * KIB))
    hello = codec.encode(codec.BaseCommand.CONNECT, codec.CommandConnect(client_version="benchmark"))
    reader.buffers(arena)[0][: len(hello)] = hello
    reader.received(arena, len(hello))
    data = b"".join(frames)
    arena[: len(data)] = data
    return best_ns(lambda: reader.received(arena, len(data)))


def receipts(run_entries: int) -> float:
    """Encode receipts for runs of so many entries."""
    sequence_ids = list(range(FIRST_SEQUENCE_ID, FIRST_SEQUENCE_ID + run_entries))

    def work() -> None:
        out: list[bytes] = []
        for producer_id in range(ENTRIES // run_entries):
            encode_receipts(out, producer_id, LEDGER_ID, FIRST_ENTRY_ID, sequence_ids, None)

    return best_ns(work)


def deliveries(redeliveries: list[int] | None) -> float:
    """Encode MESSAGE frames of entries that lie in a run."""
    frames = b"".join(send(1, FIRST_SEQUENCE_ID + row) for row in range(ENTRIES))
    run, _ = decode_sends(memoryview(frames), frame_bytes_max=FRAME_BYTES_MAX)
    assert run is not None
    entry_ids = range(FIRST_ENTRY_ID, FIRST_ENTRY_ID + ENTRIES)

    def work() -> None:
        out: list[Buffer] = []
        encode_messages(out, 1, LEDGER_ID, -1, entry_ids, run.data, run.offsets, run.lengths, redeliveries)

    return best_ns(work)


def wire() -> Iterator[tuple[str, float, float]]:
    """Rows of name, budget and figure."""
    first, acked = FIRST_SEQUENCE_ID, range(FIRST_ENTRY_ID, FIRST_ENTRY_ID + ENTRIES)
    yield "decode SEND, one producer", 1_000, reading(*(send(1, first + row) for row in range(ENTRIES)))
    yield "decode SEND, 50 producers", 1_000, reading(*(send(row % 50, first + row // 50) for row in range(ENTRIES)))
    yield "decode SEND, batches of 10", 2_000, reading(*(send(1, first + 10 * row, 10) for row in range(ENTRIES)))
    yield "decode ACK, one id each", 250, reading(*map(ack, acked))
    yield "decode ACK, 250 ids in one", 250, reading(ack(*acked))
    yield "encode SEND_RECEIPT, run of 250", 150, receipts(250)
    yield "encode SEND_RECEIPT, runs of 1", 1_200, receipts(1)
    yield "encode MESSAGE", 500, deliveries(None)
    yield "encode MESSAGE, redelivered", 550, deliveries([1] * ENTRIES)


# -- request memory ---------------------------------------------------------------------------------------------------


def command_reads() -> None:
    """Reads that bring only commands, carried out at once: nothing stays."""
    memory = RequestMemory(RequestLimits(request_bytes_max=256 * MIB, requests_max=-1, frame_bytes_max=FRAME_BYTES_MAX))
    for now_ns in range(READS):
        memory.try_charge(now_ns & 63, 256 * KIB, 0, now_ns)
        memory.recharge(now_ns & 63, 500, 0, 0, 0, now_ns)


def publish_reads() -> None:
    """Reads that bring 200 requests and end in the middle of one, on 64 connections in turn; and their answers."""
    memory = RequestMemory(RequestLimits(request_bytes_max=256 * MIB, requests_max=-1, frame_bytes_max=FRAME_BYTES_MAX))
    for now_ns in range(READS):
        memory.try_charge(now_ns & 63, 256 * KIB, 100, now_ns)
        lease = memory.recharge(now_ns & 63, 201_000, 900 if now_ns & 64 else 0, 200_000, 200, now_ns)
        if lease is not None:
            memory.release(lease)
        if memory.waiting:
            memory.wake(now_ns)


def muted_reads(owners: int) -> None:
    """Every read is refused, waits, is woken and granted: the pool is always full, and so many connections wait."""
    memory = RequestMemory(RequestLimits(request_bytes_max=5 * MIB, requests_max=-1, frame_bytes_max=5 * MIB))
    leases = [
        memory.recharge(owner, 256 * KIB, 0, 256 * KIB, 200, 0)
        for owner in range(owners)
        if memory.try_charge(owner, 256 * KIB, 0, 0)
    ]
    for now_ns in range(READS):
        lease = leases[now_ns % len(leases)]
        assert lease is not None
        memory.release(lease)
        for owner in memory.wake(now_ns):
            memory.try_charge(owner, 256 * KIB, 0, now_ns)
            leases[now_ns % len(leases)] = memory.recharge(owner, 256 * KIB, 0, 256 * KIB, 200, now_ns)
            memory.try_charge(owner, 256 * KIB, 0, now_ns)


def request_memory() -> Iterator[tuple[str, float, float]]:
    """Rows of name, budget and figure."""
    yield "grant + settle, commands", 500, best_ns(command_reads, READS)
    yield "grant + settle + lease + release", 1_000, best_ns(publish_reads, READS)
    yield "the same, 1,000 muted and woken in turn", 0, best_ns(lambda: muted_reads(1_000), READS)


# -- the log ----------------------------------------------------------------------------------------------------------


def log(directory: Path, ledgers: int) -> tuple[float, float]:
    """Append runs of 250 entries as a broker does, a few underway, and read them; processor time of each an entry."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    opened = EntryLog.open(directory, OsFiles(), LogLimits(), calls.put, clock=SystemClock())
    sealed, per_ledger = entry(), ENTRIES // ledgers
    data, errors = sealed * ENTRIES, []
    offsets, lengths = range(0, len(data), len(sealed)), [len(sealed)] * ENTRIES
    began_ns = process_time_ns()
    for row in range(LOG_RUNS):
        groups = [(ledger_id, row * per_ledger, per_ledger) for ledger_id in range(1, ledgers + 1)]
        opened.append(
            AppendRun(
                groups=groups,
                offsets=offsets,
                lengths=lengths,
                message_counts=None,
                data=data,
                done=lambda _run, error: errors.append(error),
            )
        )
        while row - len(errors) >= LOG_RUNS_UNDERWAY:
            calls.get()()
    while len(errors) < LOG_RUNS:
        calls.get()()
    appended_ns, began_ns = process_time_ns() - began_ns, process_time_ns()
    entry_id = 0
    while entry_id < LOG_RUNS * per_ledger:
        result = opened.read(1, entry_id, bytes_max=MIB, entries_max=1_000_000)
        assert not result.damaged
        entry_id = result.next_entry_id
    read_ns = process_time_ns() - began_ns
    opened.close()
    assert not any(errors), errors
    return appended_ns / LOG_RUNS / ENTRIES, read_ns / entry_id


def storage() -> Iterator[tuple[str, float, float]]:
    """Rows of name, budget and figure."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        for ledgers in (1, 50):
            append_ns, read_ns = log(Path(scratch) / str(ledgers), ledgers)
            yield f"append, runs of {ledgers} ledgers", 2_500, append_ns
            yield f"read one of {ledgers} ledgers", 2_000, read_ns


def main() -> None:
    """Print the table."""
    print(f"{'ns each':42} {'budget':>8} {'measured':>9}")
    for rows in (wire(), request_memory(), storage()):
        for name, budget_ns, measured_ns in rows:
            print(f"{name:42} {budget_ns or '':>8} {measured_ns:9,.0f}", flush=True)


if __name__ == "__main__":
    main()
