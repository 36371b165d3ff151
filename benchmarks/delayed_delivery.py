# SPDX-License-Identifier: Apache-2.0
"""How late delayed messages come: 200,000 of them due within a minute, on ten shared subscriptions.

    python -m benchmarks.delayed_delivery [--peer pulsar] [--messages 200000] [--window-s 60]
    python -m benchmarks.delayed_delivery --restart --messages 1000000

Every message carries its own delivery time and number, so the consumer, which acknowledges each of them, can say of
each subscription how late messages were, whether any came early, and that each came exactly once. `--restart` publishes
messages that are due in an hour, kills the broker (SIGKILL) and measures from its start until a subscription gets an
undelayed message, with all others still held.

Memory per message is resident memory, the newest entries in their cache included, for Apache Pulsar its heap after a
collection; beside it stands what the index takes by the broker's own statistics. Exits 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.brokers import BROKERS, add_peer_option, chosen
from benchmarks.client import Client
from benchmarks.generator import flow
from benchmarks.process import ask, usage
from benchmarks.report import PEER, PENSTOCK, print_table
from penstock.cli.bench_scan import ReceiptScanner
from penstock.core.units import MIB
from penstock.testing.client import RawClient, send
from penstock.testing.process import BrokerProcess
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.client.connection import frame
from penstock.wire.client.frames import decode_frame, frame_bytes
from penstock.wire.codec import BaseCommand, MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.process import Address

TOPIC: Final = "persistent://public/default/delayed"
STATS: Final = "persistent/public/default/delayed/stats"
# In flight while publishing, and asked for by each consumer.
WINDOW: Final = 10_000
PERMITS: Final = 10_000
# The first message is due so long after the last is expected to be published.
LEAD_S: Final = 2.0
PUBLISHED_PER_S: Final = 10_000
# Busier than this the consumer may be what is late, and busier machines may be what is slow.
CORE_RATIO_MAX: Final = 0.85
BUSY_LOAD_MAX: Final = 0.5
# Beyond the last delivery time; what has not come by then is lost.
PATIENCE_S: Final = 30.0
TICK_MS: Final = 1_000
LATE_MS_MAX: Final = TICK_MS + 50
RESTART_S_MAX: Final = 2.0

_stamp = struct.Struct(">QI")  # delivery time in ms, number


# -- publishing -------------------------------------------------------------------------------------------------------


def delayed(deliver_at_ms: int, number: int) -> bytes:
    """A message that is due then, and says so in its payload."""
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, deliver_at_time=deliver_at_ms)
    return send(0, number, entries.entry(metadata, _stamp.pack(deliver_at_ms, number) + bytes(88)))


def publish(port: int, times_ms: Sequence[int]) -> float:
    """Publish a message for each of these delivery times; returns how long that took, in seconds."""
    receipts = ReceiptScanner.make(1)
    with closing(Client(port)) as client:
        client.open_producer(TOPIC, 0)
        began_s = time.monotonic()
        for start in range(0, len(times_ms), 500):
            some = range(start, min(start + 500, len(times_ms)))
            client.blocking.write(b"".join(delayed(times_ms[number], number) for number in some))
            wanted = len(times_ms) if some.stop == len(times_ms) else some.stop - WINDOW
            while receipts.count < wanted:
                select.select([client], [], [])
                client.receive(receipts.scan)
        return time.monotonic() - began_s


# -- consuming --------------------------------------------------------------------------------------------------------


class Consumer:
    """One consumer of one subscription: takes what comes, acknowledges it, asks for more."""

    def __init__(self, port: int, name: str) -> None:
        self.client = Client(port)
        self.client.open_consumer(TOPIC, name, codec.CommandSubscribe.Shared)
        self.lateness_ms: list[int] = []
        self.numbers: set[int] = set()
        self.twice = 0
        self.write(flow(PERMITS))
        self._asked_at = 0

    def write(self, data: bytes) -> None:
        """Send bytes, however long the broker takes."""
        self.client.blocking.write(data)

    def receive(self) -> None:
        """Take what the socket holds."""
        self.client.receive(self._scan)
        if (count := len(self.lateness_ms)) - self._asked_at >= PERMITS // 2:
            self.write(flow(count - self._asked_at))
            self._asked_at = count

    def _scan(self, data: bytearray, at: int, end: int, others: list[int]) -> int:
        now_ms = time.time_ns() // 1_000_000
        came = []
        while end - at >= 4 and (following := at + frame_bytes(data, at)) <= end:
            one = decode_frame(data, at, following)
            if one.kind == BaseCommand.MESSAGE:
                deliver_at_ms, number = _stamp.unpack_from(one.payload)
                self.twice += number in self.numbers
                self.numbers.add(number)
                self.lateness_ms.append(now_ms - deliver_at_ms)
                came.append(one.body.message_id)
            else:
                others.append(at)
            at = following
        if came:
            self.write(frame(BaseCommand.ACK, consumer_id=0, ack_type=0, message_id=came))
        return at


def receive(consumers: Sequence[Consumer], count: int, until_s: float) -> None:
    """Receive so many messages on each subscription, or until a time of day."""
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.client, selectors.EVENT_READ, consumer)
        while any(len(one.numbers) < count for one in consumers) and time.time() < until_s:
            for key, _ in selector.select(0.5):
                key.data.receive()


# -- one broker -------------------------------------------------------------------------------------------------------


def heap_mib(pid: int) -> float:
    """The heap of a Java process that is in use, right after a collection."""
    subprocess.run(["jcmd", str(pid), "GC.run"], capture_output=True, check=True)
    told = subprocess.run(["jcmd", str(pid), "GC.heap_info"], capture_output=True, text=True, check=True).stdout
    return sum(int(kib) for kib in re.findall(r"heap\s+total \d+K, used (\d+)K", told)) / 1024


def memory_mib(address: Address, *, java: bool) -> float:
    """What a broker holds."""
    return heap_mib(address.pid) if java else usage(address.pid).rss_mib


def measure(address: Address, options: argparse.Namespace, *, java: bool) -> tuple[dict[str, float], list[str]]:
    """One load against one broker: the cells of its row, and the promises it broke."""
    chance = random.Random(options.seed)
    with ExitStack() as stack:
        consumers = [Consumer(address.port, f"s{number}") for number in range(options.subscriptions)]
        for consumer in consumers:
            stack.callback(consumer.client.close)
        before_mib = memory_mib(address, java=java)
        start_ms = int((time.time() + LEAD_S + options.messages / options.publish_per_s) * 1000)
        last_ms = start_ms + int(options.window_s * 1000)
        published_s = publish(address.port, [chance.randrange(start_ms, last_ms) for _ in range(options.messages)])
        held_mib = memory_mib(address, java=java)
        index_bytes = ask(address.admin_port, "GET", STATS)["delayedMessageIndexSizeInBytes"]
        cpu_s, own_cpu_s, began_s = usage(address.pid).cpu_s, time.process_time(), time.monotonic()
        receive(consumers, options.messages, last_ms / 1000 + PATIENCE_S)
        took_s = time.monotonic() - began_s
        cpu_s, own_cpu_s = usage(address.pid).cpu_s - cpu_s, time.process_time() - own_cpu_s
    if own_cpu_s > CORE_RATIO_MAX * took_s:
        print("the consumer was busy all the time: lateness may be its own", file=sys.stderr)
    late_ms = sorted(ms for one in consumers for ms in one.lateness_ms)
    lost = sum(options.messages - len(one.numbers) for one in consumers)
    twice = sum(one.twice for one in consumers)
    p99_ms = late_ms[len(late_ms) * 99 // 100]
    cells = {
        "published/s": options.messages / published_s,
        "bytes/message": (held_mib - before_mib) * MIB / options.messages,
        "of index": index_bytes / options.messages,
        "least": late_ms[0],
        "median": late_ms[len(late_ms) // 2],
        "p99": p99_ms,
        "most": late_ms[-1],
        "lost": lost,
        "twice": twice,
        "cpu %": 100 * cpu_s / took_s,
        "consumer %": 100 * own_cpu_s / took_s,
    }
    broken = [
        text
        for wrong, text in (
            (lost, f"{lost} messages were lost"),
            (twice, f"{twice} messages came twice"),
            (p99_ms > LATE_MS_MAX, f"p99 lateness {p99_ms} ms is above {LATE_MS_MAX} ms"),
            (late_ms[0] < (0 if options.strict else -TICK_MS), f"a message came {-late_ms[0]} ms early"),
        )
        if wrong
    ]
    return cells, broken


def restart(options: argparse.Namespace) -> int:
    """Kill a broker that holds many delayed messages, and measure how soon it serves again."""
    with tempfile.TemporaryDirectory(prefix="delayed-") as scratch:
        broker = BrokerProcess(Path(scratch) / "data")
        with broker.start():
            with RawClient(broker.port) as client:
                client.subscribe(TOPIC, "s0", subType=codec.CommandSubscribe.Shared)
                hour_ms = int(time.time() * 1000) + 3_600_000
                chance = random.Random(options.seed)
                took_s = publish(broker.port, [hour_ms + chance.randrange(3_600_000) for _ in range(options.messages)])
                held_mib = usage(broker.pid).rss_mib
            broker.kill()
            began_s = time.monotonic()
            broker.start()
            ready_s = time.monotonic() - began_s
            with RawClient(broker.port) as client:
                client.subscribe(TOPIC, "s0", subType=codec.CommandSubscribe.Shared)
                client.produce(TOPIC)
                client.publish([b"now"], first=options.messages)
                payload = client.message().payload
                served_s = time.monotonic() - began_s
                held = ask(broker.admin_port, "GET", STATS)["subscriptions"]["s0"]["msgDelayed"]
            rss_mib = usage(broker.pid).rss_mib
    print(
        f"{options.messages:,} messages due in an hour, published at {options.messages / took_s:,.0f}/s: resident "
        f"{held_mib:.0f} MiB; killed; ready after {ready_s:.2f} s, serving after {served_s:.2f} s with {held:,} held, "
        f"resident {rss_mib:.0f} MiB"
    )
    whole = payload == b"now" and held == options.messages
    return 0 if whole and served_s <= RESTART_S_MAX else 1


def main() -> int:
    """Measure, print one table, and return the exit status."""
    parser = argparse.ArgumentParser(description="How late delayed messages come.")
    add_peer_option(parser)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--subscriptions", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=60.0, help="within which all of them are due")
    parser.add_argument("--strict", action="store_true", help="isDelayedDeliveryDeliverAtTimeStrict=true: never early")
    parser.add_argument("--restart", action="store_true", help="kill the broker and see how soon it serves again")
    parser.add_argument(
        "--publish-per-s", type=float, default=PUBLISHED_PER_S, help="as is expected: messages are due after that"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if os.getloadavg()[0] > BUSY_LOAD_MAX:
        print(f"the machine is busy (load average {os.getloadavg()[0]:.1f}); the figures mean little", file=sys.stderr)
    if options.restart:
        return restart(options)
    settings = {"isDelayedDeliveryDeliverAtTimeStrict": str(options.strict).lower()}
    print(
        f"{options.messages:,} messages due within {options.window_s:g} s on {options.subscriptions} subscriptions, "
        f"tick {TICK_MS} ms, strict: {options.strict}; lateness in ms"
    )
    status, columns = 0, {}
    for name in chosen(options):
        with BROKERS[name](settings=settings) as address:
            columns[name], broken = measure(address, options, java=name == PEER)
        for text in broken:
            print(f"{name}: {text}", file=sys.stderr)
        status |= bool(broken) and name == PENSTOCK
    print_table("delayed delivery", columns)
    return status


if __name__ == "__main__":
    sys.exit(main())
