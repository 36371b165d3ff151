# SPDX-License-Identifier: Apache-2.0
"""Delivery at full speed to the consumers of each subscription type, while one producer publishes 1 KiB entries.

Why: what a delivery costs depends on how it is acknowledged, and on how many consumers share a subscription. Processor
time per delivery is much steadier than rates, so it is what is compared; a delivery of one subscription includes its
share of the publish.
Where: by hand, with a path to the sources of another version for comparison in turns, or with a peer:

    python -m benchmarks.fan_out [--before PATH] [--peer pulsar] [--rows 'shared-*'] [--rounds 5] [--seconds 3]

Prints a line per row and version: processor time of the broker per delivery (median, least, most), deliveries per
second, the smallest share of a consumer in per cent of the mean, and the broker's highest memory. A load in which an
entry is missing or comes twice fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import BROKERS, add_peer_option
from benchmarks.client import Client, Traffic
from benchmarks.generator import Publisher, flow, pump, step
from benchmarks.loads import ONE_KIB
from benchmarks.measure import DRAIN_TIMEOUT_S, WARM_UP_RATIO, Load, wait_for_first
from benchmarks.process import usage
from benchmarks.report import PENSTOCK
from penstock.cli.bench_frames import MESSAGE, SEQUENCE_BYTES, Block, Shape, padded_varint
from penstock.cli.bench_scan import KIND_AT, unpack_u32
from penstock.wire.client import entries
from penstock.wire.codec import CommandSubscribe, MessageMetadata
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY: Final = Path(__file__).resolve().parent.parent
TOPIC: Final = "public/default/fan-out-"
# What official clients ask for unless told otherwise, and that they ask for more when half of it has come.
PERMITS: Final = 1_000
WINDOW: Final = 10_000
# The producer stays this close to the slowest subscription: further behind, consumers would be catching up.
AHEAD_ENTRIES_MAX: Final = 20_000
KEYS: Final = 10_000
# Where a MESSAGE of consumer 0 has the length of its message id, which is followed by the id.
_ID_AT: Final = 15


@dataclass(frozen=True, slots=True)
class Row:
    """One load: so many subscriptions with so many consumers each, who acknowledge so many entries per command."""

    name: str
    kind: CommandSubscribe.SubType
    subscriptions: int = 1
    consumers: int = 1
    grouped: int = 100
    keys: int = 0


ROWS: Final = (
    Row("exclusive", CommandSubscribe.Exclusive),
    Row("shared-1", CommandSubscribe.Shared),
    Row("shared-10", CommandSubscribe.Shared, consumers=10),
    Row("shared-1-single-acks", CommandSubscribe.Shared, grouped=1),
    Row("shared-10-single-acks", CommandSubscribe.Shared, consumers=10, grouped=1),
    Row("ten-exclusive", CommandSubscribe.Exclusive, subscriptions=10),
    Row("ten-shared", CommandSubscribe.Shared, subscriptions=10),
    Row("key-shared-1", CommandSubscribe.Key_Shared, keys=KEYS),
    Row("key-shared-10", CommandSubscribe.Key_Shared, consumers=10, keys=KEYS),
)


class KeyedBlock(Block):
    """Like its base, with a partition key in each entry: every key once per lap."""

    @classmethod
    def of(cls, shape: Shape, keys: int) -> KeyedBlock:
        """Encode one entry for each key."""
        made, chance = cls(bytearray(), [], [], 1), random.Random(1)
        for row in range(keys):
            metadata = MessageMetadata(
                producer_name="benchmark", sequence_id=row, publish_time=1_700_000_000_000, partition_key=f"key-{row}"
            )
            made.append(0, row, 1, entries.entry(metadata, chance.randbytes(shape.message_bytes)))
        return made

    def next_lap(self) -> None:
        """Give every frame its next sequence id."""
        self.lap += 1
        first = self.lap * len(self.ends)
        for row, at in enumerate(self.sequence_at):
            self.frames[at - 1 : at - 1 + SEQUENCE_BYTES] = padded_varint(first + row)


class Consumer:
    """One connection that consumes as consumer 0 and acknowledges what it got, as a client with a queue would."""

    def __init__(self, port: int, topic: str, subscription: str, row: Row) -> None:
        self.kind, self.cumulative = row.kind, row.kind == CommandSubscribe.Exclusive
        self.grouped = row.grouped
        self.ids: list[bytes | bytearray] = []  # received and not acknowledged, as an acknowledgement says them
        self.count = self.asked = 0
        self.client = self.open(port, topic, subscription)
        self.client.socket.setblocking(False)
        self.unsent = self.more(PERMITS)

    def open(self, port: int, topic: str, subscription: str) -> Traffic:
        """Connect and subscribe."""
        client = Client(port)
        client.open_consumer(topic, subscription, self.kind)
        return client

    def more(self, permits: int) -> bytes:
        """Encode a request for so many messages."""
        return flow(permits)

    def receive(self) -> None:
        """Take messages; acknowledge them and ask for more as soon as enough have come."""
        self.client.receive(self.scan)
        if len(self.ids) >= self.grouped:
            self.acknowledge()
        if self.count - self.asked >= PERMITS // 2:
            permits = self.count - self.asked
            self.asked += permits
            self.unsent += self.more(permits)
        self.send()

    def send(self) -> None:
        """Send what the socket takes."""
        if self.unsent:
            self.unsent = self.unsent[self.client.send(memoryview(self.unsent)) :]

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take the whole frames of data[start:end]; return where the first unfinished one begins."""
        at, ids = start, self.ids
        while at + 4 <= end:
            (size,) = unpack_u32(data, at)
            following = at + 4 + size
            if following > end:
                break
            if data[at + KIND_AT] == MESSAGE:
                id_at = at + _ID_AT
                ids.append(data[id_at : id_at + 1 + data[id_at]])
                self.count += 1
            else:
                others.append(at)
            at = following
        return at

    def acknowledge(self) -> None:
        """Acknowledge whole groups of what was received."""
        whole = len(self.ids) // self.grouped * self.grouped
        ready = self.ids[:whole]
        del self.ids[:whole]
        self.unsent += self.encode(ready)

    def encode(self, ready: list[bytes | bytearray]) -> bytes:
        """Encode the acknowledgements of whole groups."""
        if self.cumulative:
            return ack([ready[-1]], b"\x10\x01")
        return b"".join([ack(ready[at : at + self.grouped], b"\x10\x00") for at in range(0, len(ready), self.grouped)])

    def acknowledge_rest(self) -> None:
        """Acknowledge everything that was received."""
        self.grouped = 1 if self.grouped == 1 else max(1, len(self.ids))
        if self.ids:
            self.acknowledge()
        self.send()


def ack(ids: Sequence[bytes | bytearray], kind: bytes) -> bytes:
    """Encode an ACK of consumer 0 from encoded message ids."""
    body = b"\x08\x00" + kind + b"\x1a" + b"\x1a".join(ids)
    command = b"\x08\x0a\x52" + encode_varint(len(body)) + body
    return (len(command) + 4).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command


def drive(
    port: int,
    pid: int,
    row: Row,
    seconds: float,
    window: int,
    publisher_of: type[Publisher] = Publisher,
    consumer_of: type[Consumer] = Consumer,
) -> dict[str, float]:
    """Publish and consume for a time, by the classes of a protocol's clients; return the figures."""
    topic = f"persistent://{TOPIC}{row.name}-{os.getpid()}"
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publisher = publisher_of(Load(port=port, topic=topic, shape=ONE_KIB, window=window), 0)
        if row.keys:
            publisher.block = KeyedBlock.of(ONE_KIB, row.keys)
            publisher.view = memoryview(publisher.block.frames)
        groups = [
            [consumer_of(port, topic, f"fan-out-{number}", row) for _ in range(row.consumers)]
            for number in range(row.subscriptions)
        ]
        consumers = [consumer for group in groups for consumer in group]
        connections: tuple[Publisher | Consumer, ...] = (publisher, *consumers)
        for connection in connections:
            stack.enter_context(closing(connection.client))
            selector.register(connection.client, selectors.EVENT_READ, connection)
        for consumer in consumers:
            consumer.send()

        def turn(allowed: int | None = None) -> None:
            consumed = min(sum(consumer.count for consumer in group) for group in groups)
            pump(selector, publisher, consumed + AHEAD_ENTRIES_MAX if allowed is None else allowed)
            step(selector, 0.05)

        def turns_for(duration_s: float) -> None:
            end_s = time.monotonic() + duration_s
            while time.monotonic() < end_s:
                turn()

        turns_for(seconds * WARM_UP_RATIO)
        counts = [consumer.count for consumer in consumers]
        published, cpu_s, own_s, start_s = (
            publisher.receipts.count,
            usage(pid).cpu_s,
            time.process_time(),
            time.monotonic(),
        )
        turns_for(seconds)
        wait_for_first(lambda: sum(consumer.count for consumer in consumers) > sum(counts), turn)
        elapsed_s, cpu_s = time.monotonic() - start_s, usage(pid).cpu_s - cpu_s
        own_s = time.process_time() - own_s
        published = publisher.receipts.count - published
        got = [consumer.count - before for consumer, before in zip(consumers, counts, strict=True)]
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while any(sum(one.count for one in group) < publisher.released for group in groups) or publisher.outstanding:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{row.name}: messages or receipts are missing")
            turn(publisher.released)
        for consumer in consumers:
            consumer.acknowledge_rest()
        if sum(consumer.count for consumer in consumers) != publisher.released * row.subscriptions:
            raise AssertionError(f"{row.name}: entries came more than once")
    deliveries = sum(got)
    return {
        "µs": cpu_s * 1e6 / deliveries,
        "rate": deliveries / elapsed_s,
        "share": 100 * min(got) * len(got) / deliveries,
        "published": published / elapsed_s,
        "generator core": own_s / elapsed_s,
    }


def measure(name: str, row: Row, options: argparse.Namespace, source: Path | None) -> dict[str, float]:
    """Start a broker, drive one load against it, and stop it."""
    before = os.environ.get("PYTHONPATH")
    with tempfile.TemporaryDirectory(prefix="fan-out-") as scratch:
        if source is not None:
            os.environ["PYTHONPATH"] = str(source)
        try:
            launched = BROKERS[name](Path(scratch) / "data")
            with launched as address:
                if source is not None:
                    os.environ["PYTHONPATH"] = before or ""
                load = json.dumps(
                    {"port": address.port, "pid": address.pid, "row": row.name}
                    | {"seconds": options.seconds, "window": options.window}
                )
                command = [sys.executable, "-m", "benchmarks.fan_out", "--drive", load]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=REPOSITORY, timeout=120)
                figures: dict[str, float] = json.loads(done.stdout)
                figures["MiB"] = usage(address.pid).rss_peak_mib
                return figures
        finally:
            if before is None:
                os.environ.pop("PYTHONPATH", None)
            else:
                os.environ["PYTHONPATH"] = before


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the rows in turns and print a table."""
    parser = argparse.ArgumentParser(prog="fan_out", description="Measure delivery by subscription type.")
    add_peer_option(parser)
    parser.add_argument("--before", type=Path, help="sources (the folder `src`) of another version of penstock")
    parser.add_argument("--rows", default="*", metavar="GLOBS", help="only rows that match; several with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--window", type=int, default=WINDOW, help="entries without a receipt")
    parser.add_argument("--drive", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.drive:
        rows = {row.name: row for row in ROWS}
        given = options.drive
        print(json.dumps(drive(given["port"], given["pid"], rows[given["row"]], given["seconds"], given["window"])))
        return 0
    subjects: list[tuple[str, str, Path | None]] = [("now", PENSTOCK, None)]
    if options.before:
        subjects.insert(0, ("before", PENSTOCK, options.before))
    if options.peer:
        subjects.append((options.peer, options.peer, None))
    for row in ROWS:
        if not any(fnmatch.fnmatchcase(row.name, one) for one in options.rows.split(",")):
            continue
        taken: dict[str, list[dict[str, float]]] = {label: [] for label, _, _ in subjects}
        for number in range(options.rounds):
            for label, name, source in subjects if number % 2 == 0 else subjects[::-1]:
                taken[label].append(measure(name, row, options, source))
        for label, all_figures in taken.items():
            costs = [figures["µs"] for figures in all_figures]
            middle = {key: statistics.median(figures[key] for figures in all_figures) for key in all_figures[0]}
            print(
                f"{row.name:22} {label:8} {middle['µs']:6.2f} µs ({min(costs):.2f}-{max(costs):.2f})"
                f" {middle['rate']:10,.0f}/s share {middle['share']:4.0f} %"
                f" {middle['MiB']:5.0f} MiB, generator {middle['generator core']:.0%} of a core",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
