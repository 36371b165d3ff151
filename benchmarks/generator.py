# SPDX-License-Identifier: Apache-2.0
"""The raw load generator: publishes and consumes as fast as a broker lets it, and checks every receipt.

Why: the official client can't saturate a broker from Python. This one sends ready frames in large writes and counts
what comes back by its length fields, at well under 1 µs an entry. Its own processor share is part of each result, and
a load that it could not drive is void.
Where: `run` starts it as a process of its own for each load; by hand:

    python -m benchmarks.generator publish --port 6650 --message-bytes 1024 --window 1000 --seconds 5

Prints one line of JSON. Any receipt missing, twice or out of order, any error, any wrong byte ends it with status 1.
"""

from __future__ import annotations

import argparse
import json
import select
import selectors
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import frames
from benchmarks.client import Client
from benchmarks.frames import Block, Shape
from benchmarks.process import usage
from benchmarks.scan import MessageScanner, ReceiptScanner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# What comes before the measured part, as a share of it: queues fill, compilers compile, caches warm.
WARM_UP_RATIO = 0.25
# After the measured part every receipt still out must come, or the load has failed.
DRAIN_TIMEOUT_S = 30.0
# A tail consumer is never further behind: past this it would be catching up.
TAIL_BYTES_MAX = 32 * 1024 * 1024
# What a consumer asks for at once; it asks again, and acknowledges, when half of it has come.
PERMITS = 100_000
LATENCY_PER_S = 1_000
# The last stretch before a send is due is spent polling: a sleeping process wakes some 60 µs late.
POLL_NS = 150_000
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to drive against which broker."""

    port: int
    topic: str
    shape: Shape
    seconds: float = 3.0
    producers: int = 1  # on each connection, each with a topic of its own
    connections: int = 1
    window: int = 1_000  # entries sent and not yet acknowledged, on each connection
    subscriptions: int = 0
    entries: int = 0  # for a backlog: how many
    seed: int = 1
    broker_pid: int | None = None
    tls_ca: Path | None = None

    def topics(self, connection: int) -> list[str]:
        """Name the topics of one connection's producers; the first connection's first is `topic` itself."""
        first = connection * self.producers
        return [self.topic if not row else f"{self.topic}-{row}" for row in range(first, first + self.producers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the measured part of a load came to. Times are those of this process's clock."""

    entries: float  # whole ones, unless a client chose how to cut its messages into batches
    seconds: float
    entries_per_s: float
    messages_per_s: float
    megabytes_per_s: float
    generator_core_ratio: float  # processor time of this process, as a share of one core
    broker_us_per_entry: float | None  # user and system time
    checked: int  # entries whose receipt or bytes were checked over the whole load
    latency_ms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """Clocks and a count at one moment."""

    at_s: float
    generator_cpu_s: float
    broker_cpu_s: float | None
    entries: float

    @classmethod
    def take(cls, load: Load, entries: float) -> Reading:
        """Read them all now."""
        broker = None if load.broker_pid is None else usage(load.broker_pid).cpu_s
        return cls(time.monotonic(), time.process_time(), broker, entries)

    def in_entries(self, load: Load) -> Reading:
        """Take a count of messages for one of entries."""
        return replace(self, entries=self.entries / load.shape.messages)

    def until(self, end: Reading, load: Load, checked: int, latency_ms: dict[str, float] | None = None) -> Result:
        """Describe what happened between this reading and a later one."""
        elapsed, entries = end.at_s - self.at_s, end.entries - self.entries
        broker_us = None
        if self.broker_cpu_s is not None and end.broker_cpu_s is not None and entries:
            broker_us = (end.broker_cpu_s - self.broker_cpu_s) * 1e6 / entries
        return Result(
            entries=entries,
            seconds=elapsed,
            entries_per_s=entries / elapsed,
            messages_per_s=entries * load.shape.messages / elapsed,
            megabytes_per_s=entries * load.shape.entry_bytes / elapsed / 1e6,
            generator_core_ratio=(end.generator_cpu_s - self.generator_cpu_s) / elapsed,
            broker_us_per_entry=broker_us,
            checked=checked,
            latency_ms=latency_ms or {},
        )


class Publisher:
    """One connection that publishes a block round and round, at most a window ahead of its receipts."""

    def __init__(self, load: Load, connection: int) -> None:
        self.client = Client(load.port, load.tls_ca)
        for producer_id, topic in enumerate(load.topics(connection)):
            self.client.open_producer(topic, producer_id)
        self.client.socket.setblocking(False)
        self.block = Block.make(load.shape, load.seed + connection, load.producers)
        self.view = memoryview(self.block.frames)
        self.receipts = ReceiptScanner.make(load.producers)
        self.window = load.window
        # Below this many at once a write is not worth its system call; the window still stays nearly full.
        self.step = max(1, min(load.window // 8, len(self.block.ends)))
        self.released = 0  # entries that may be sent, in all
        self.row = 0  # the frame of the block after the last one released
        self.sent_bytes = self.released_bytes = 0  # of this lap

    @property
    def outstanding(self) -> int:
        """Entries sent, or being sent, whose receipt has not come."""
        return self.released - self.receipts.count

    def pump(self, allowed: int) -> bool:
        """Send on; begin entries only while fewer than `allowed` have begun. True: the socket is full."""
        while True:
            if self.sent_bytes == self.released_bytes and not self.release(allowed):
                return False
            sent = self.client.send(self.view[self.sent_bytes : self.released_bytes])
            if not sent:
                return True
            self.sent_bytes += sent

    def release(self, allowed: int) -> bool:
        """Let as many frames go as the window, the block's end and `allowed` permit; False: none now."""
        ends = self.block.ends
        if self.row == len(ends):
            self.block.next_lap()
            self.row = self.sent_bytes = self.released_bytes = 0
        room = min(self.window - self.outstanding, allowed - self.released)
        frames_left = len(ends) - self.row
        if room < min(self.step, frames_left, max(1, allowed - self.released)):
            return False
        go = min(room, frames_left)
        self.released += go
        self.row += go
        self.released_bytes = ends[self.row - 1]
        return True

    def receive(self) -> None:
        """Take receipts."""
        self.client.receive(self.receipts.scan)


class Consumer:
    """One connection that consumes one topic on a subscription of its own, with plenty of permits."""

    def __init__(self, load: Load, entries: list[bytes], subscription: str) -> None:
        self.client = Client(load.port, load.tls_ca)
        self.client.open_consumer(load.topic, subscription)
        self.messages = MessageScanner(entries)
        self.entries_due = max(1, PERMITS // load.shape.messages // 2)
        self.asked_at = 0

    def start(self) -> None:
        """Ask for the first messages."""
        self.client.socket.sendall(frames.flow(0, PERMITS))
        self.client.socket.setblocking(False)

    def receive(self) -> None:
        """Take messages; now and then acknowledge them and ask for more."""
        self.client.receive(self.messages.scan)
        due, messages = self.entries_due, self.messages
        if messages.count - self.asked_at >= due:
            self.asked_at += due
            self.client.socket.send(
                frames.acknowledge(0, messages.ledger_id, messages.entry_id) + frames.flow(0, PERMITS // 2)
            )


Connection = Publisher | Consumer


def step(selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Wait for traffic once and take it."""
    for key, events in selector.select(timeout_s):
        if events & selectors.EVENT_READ:
            connection: Connection = key.data
            connection.receive()


def pump(selector: selectors.BaseSelector, publisher: Publisher, allowed: int) -> None:
    """Send what may be sent, and wait for room in the socket only if there is none."""
    full = publisher.pump(allowed)
    events = selectors.EVENT_READ | selectors.EVENT_WRITE if full else selectors.EVENT_READ
    if selector.get_key(publisher.client).events != events:
        selector.modify(publisher.client, events, publisher)


def make_subscriptions(load: Load) -> None:
    """Create durable subscriptions that nobody reads yet."""
    for row in range(load.subscriptions):
        with closing(Client(load.port, load.tls_ca)) as client:
            client.open_consumer(load.topic, f"idle-{row}")


def measure(load: Load, count: Callable[[], int], turn: Callable[[], None]) -> tuple[Reading, Reading]:
    """Take turns through the warm-up and the measured part; return the readings around the latter."""
    warm = time.monotonic() + load.seconds * WARM_UP_RATIO
    while time.monotonic() < warm:
        turn()
    start = Reading.take(load, count())
    end_s = start.at_s + load.seconds
    while time.monotonic() < end_s:
        turn()
    return start, Reading.take(load, count())


def drain(done: Callable[[], bool], turn: Callable[[], None], what: str) -> None:
    """Take turns until nothing is outstanding. Raises TimeoutError."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} still missing {DRAIN_TIMEOUT_S:.0f} s after the load ended")
        turn()


def publish(load: Load) -> Result:
    """Publish for a time on one or many connections, each with one or many producers."""
    make_subscriptions(load)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publishers = [Publisher(load, row) for row in range(load.connections)]
        for publisher in publishers:
            stack.enter_context(closing(publisher.client))
            selector.register(publisher.client, selectors.EVENT_READ, publisher)

        def turn() -> None:
            for publisher in publishers:
                pump(selector, publisher, sys.maxsize)
            step(selector, 0.05)

        def finish() -> None:
            for publisher in publishers:
                pump(selector, publisher, publisher.released)
            step(selector, 0.05)

        def received() -> int:
            return sum(publisher.receipts.count for publisher in publishers)

        start, end = measure(load, received, turn)
        drain(lambda: not any(publisher.outstanding for publisher in publishers), finish, "receipts")
        return start.until(end, load, received())


def backlog(load: Load) -> Result:
    """Publish exactly so many entries on one producer, for a consumer to catch up with."""
    make_subscriptions(load)
    with selectors.DefaultSelector() as selector:
        publisher = Publisher(load, 0)
        with closing(publisher.client):
            selector.register(publisher.client, selectors.EVENT_READ, publisher)

            def turn() -> None:
                pump(selector, publisher, load.entries)
                step(selector, 0.05)

            start = Reading.take(load, 0)
            drain(lambda: publisher.receipts.count == load.entries, turn, "receipts")
            return start.until(Reading.take(load, load.entries), load, publisher.receipts.count)


def tail(load: Load) -> Result:
    """Publish and consume at once, on so many subscriptions; count what the slowest consumer has."""
    ahead = max(load.window, TAIL_BYTES_MAX // load.shape.entry_bytes)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publisher = Publisher(load, 0)
        consumers = [
            Consumer(load, publisher.block.entries, f"tail-{row}") for row in range(max(1, load.subscriptions))
        ]
        connections: list[Connection] = [publisher, *consumers]
        for connection in connections:
            stack.enter_context(closing(connection.client))
            selector.register(connection.client, selectors.EVENT_READ, connection)
        for consumer in consumers:
            consumer.start()

        def consumed() -> int:
            return min(consumer.messages.count for consumer in consumers)

        def turn() -> None:
            pump(selector, publisher, consumed() + ahead)
            step(selector, 0.05)

        def finish() -> None:
            pump(selector, publisher, publisher.released)
            step(selector, 0.05)

        start, end = measure(load, consumed, turn)
        drain(lambda: consumed() == publisher.released, finish, "messages")
        return start.until(end, load, sum(consumer.messages.samples for consumer in consumers))


def catch_up(load: Load) -> Result:
    """Consume a backlog of `entries` from its beginning, until its end or until the time is over."""
    with selectors.DefaultSelector() as selector:
        consumer = Consumer(load, Block.make(load.shape, load.seed).entries, "catch-up")
        with closing(consumer.client):
            selector.register(consumer.client, selectors.EVENT_READ, consumer)
            start = Reading.take(load, 0)
            consumer.start()
            end_s = start.at_s + load.seconds
            while consumer.messages.count < load.entries and time.monotonic() < end_s:
                step(selector, 0.05)
            end = Reading.take(load, consumer.messages.count)
    if not end.entries:
        raise TimeoutError(f"no message came within {load.seconds} s")
    return start.until(end, load, consumer.messages.samples)


def latency(load: Load) -> Result:
    """Publish 1,000 entries a second by the clock, whatever the broker does; time each from its due moment."""
    make_subscriptions(load)
    publisher = Publisher(load, 0)
    interval_ns, count = NS_PER_S // LATENCY_PER_S, round(load.seconds * LATENCY_PER_S)
    warm = round(count * WARM_UP_RATIO)
    taken_ns: list[int] = []
    with closing(publisher.client), selectors.DefaultSelector() as selector:
        selector.register(publisher.client, selectors.EVENT_READ, publisher)
        begin_ns = time.monotonic_ns() + interval_ns
        start = Reading.take(load, 0)

        def take(timeout_s: float) -> None:
            before = publisher.receipts.count
            step(selector, timeout_s)
            now_ns = time.monotonic_ns()
            taken_ns.extend(now_ns - begin_ns - row * interval_ns for row in range(before, publisher.receipts.count))

        for row in range(warm + count):
            due_ns = begin_ns + row * interval_ns
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                if left_ns > POLL_NS and not has_come(publisher, (left_ns - POLL_NS) / NS_PER_S):
                    continue
                take(0)
            publisher.pump(row + 1)
        drain(lambda: not publisher.outstanding, lambda: take(0.05), "receipts")
        end = Reading.take(load, publisher.receipts.count)
    milliseconds = sorted(ns / 1e6 for ns in taken_ns[warm:])
    return start.until(end, load, publisher.receipts.count, percentiles(milliseconds))


def has_come(publisher: Publisher, timeout_s: float) -> bool:
    """Wait for receipts, with a finer clock than the selector's milliseconds."""
    return bool(select.select([publisher.client], [], [], timeout_s)[0])


def percentiles(ordered: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles of ordered values."""
    last = len(ordered) - 1
    return {name: ordered[round(last * share)] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


MODES: dict[str, Callable[[Load], Result]] = {
    "publish": publish,
    "backlog": backlog,
    "tail": tail,
    "catch-up": catch_up,
    "latency": latency,
}


def parse_load(argv: Sequence[str] | None = None) -> tuple[str, Load]:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.generator", description="Drive one load against one broker.")
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--topic", default=f"persistent://public/default/benchmark-{time.time_ns()}")
    parser.add_argument("--message-bytes", type=int, default=1024)
    parser.add_argument("--messages", type=int, default=1, help="messages in an entry (default: 1, no batch)")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--producers", type=int, default=1, help="on each connection, interleaved entry by entry")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--window", type=int, default=1_000, help="entries in flight on each connection")
    parser.add_argument("--subscriptions", type=int, default=0, help="publish: idle ones; tail: consumers")
    parser.add_argument("--entries", type=int, default=100_000, help="backlog, catch-up: how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pid", type=int, help="the broker's process, whose processor time is wanted")
    parser.add_argument("--tls-ca", type=Path, help="speak TLS and trust this certificate")
    given = parser.parse_args(argv)
    return given.mode, Load(
        port=given.port,
        topic=given.topic,
        shape=Shape(given.message_bytes, given.messages),
        seconds=given.seconds,
        producers=given.producers,
        connections=given.connections,
        window=given.window,
        subscriptions=given.subscriptions,
        entries=given.entries,
        seed=given.seed,
        broker_pid=given.pid,
        tls_ca=given.tls_ca,
    )


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps(asdict(MODES[mode](load))))


if __name__ == "__main__":
    main()
