# SPDX-License-Identifier: Apache-2.0
"""The raw load generator: publishes and consumes as fast as a broker lets it, and checks every receipt.

Why: the official client can't saturate a broker from Python. This one sends ready frames in large writes and counts
what comes back by its length fields, at about 1 µs an entry. Its own processor share is part of each result, and
a load that it could not drive is void.
Where: `run` starts it as a process of its own for each load; by hand:

    python -m benchmarks.generator publish '{"port": 6650, "topic": "t", "message_bytes": 1024, "seconds": 5}'

Prints one line of JSON. Any receipt missing, twice or out of order, any error, any wrong byte in a sampled message ends
it with status 1.
"""

from __future__ import annotations

import json
import select
import selectors
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.client import Client, Traffic
from benchmarks.measure import (
    DRAIN_TIMEOUT_S,
    LATENCY_PER_S,
    NS_PER_S,
    WARM_UP_RATIO,
    Figures,
    Load,
    Reading,
    parse_load,
    percentiles,
    wait_for_first,
)
from penstock.cli.bench_frames import Block
from penstock.cli.bench_scan import MessageScanner, ReceiptScanner
from penstock.wire.client.connection import frame
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable

# A tail consumer is never further behind: past this it would be catching up.
TAIL_BYTES_MAX = 32 * 1024 * 1024
# What a consumer asks for at once; it asks again, and acknowledges, when half of it has come.
PERMITS = 100_000
# A backlog is the load itself, and some peers take a sixth of a millisecond for an entry.
BACKLOG_TIMEOUT_S = 100.0
# The last stretch before a send is due is spent polling: a sleeping process wakes some 60 µs late.
POLL_NS = 150_000


class Publisher:
    """One connection that publishes a block round and round, at most a window ahead of its receipts.

    Those of other protocols differ in what they open, send and scan.
    """

    def __init__(self, load: Load, connection: int) -> None:
        self.block = self.make_block(load, connection)
        self.view = memoryview(self.block.frames)
        self.receipts = ReceiptScanner.make(load.producers)
        self.client = self.open(load, connection)
        self.client.socket.setblocking(False)
        self.window = load.window
        # Below this many at once a write is not worth its system call; the window still stays nearly full.
        self.step = max(1, min(load.window // 8, len(self.block.ends)))
        self.released = 0  # entries that may be sent, in all
        self.row = 0  # the frame of the block after the last one released
        self.sent_bytes = self.released_bytes = 0  # of this lap

    @staticmethod
    def make_block(load: Load, connection: int = 0) -> Block:
        """Encode what a connection sends, the same for the same load."""
        return Block.make(load.shape, load.seed + connection, load.producers)

    def open(self, load: Load, connection: int) -> Traffic:
        """Connect, and open the producers."""
        client = Client(load.port, load.tls_ca, load.through)
        for producer_id, topic in enumerate(load.topics(connection)):
            client.open_producer(topic, producer_id)
        return client

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
        self.messages = MessageScanner(entries)
        self.client = self.open(load, subscription)
        self.entries_due = max(1, PERMITS // load.shape.messages // 2)
        self.asked_at = 0

    def open(self, load: Load, subscription: str) -> Traffic:
        """Connect, and subscribe."""
        client = Client(load.port, load.tls_ca, load.through)
        client.open_consumer(load.topic, subscription)
        return client

    def start(self) -> None:
        """Ask for the first messages."""
        self.client.socket.sendall(flow(PERMITS))
        self.client.socket.setblocking(False)

    def receive(self) -> None:
        """Take messages; now and then acknowledge them and ask for more."""
        self.client.receive(self.messages.scan)
        due, messages = self.entries_due, self.messages
        if messages.count - self.asked_at >= due:
            self.asked_at += due
            self.client.socket.send(acknowledge(messages.ledger_id, messages.entry_id) + flow(PERMITS // 2))


def flow(permits: int) -> bytes:
    """Ask for so many more messages."""
    return frame(BaseCommand.FLOW, consumer_id=0, messagePermits=permits)


def acknowledge(ledger_id: int, entry_id: int) -> bytes:
    """Acknowledge everything up to this entry."""
    position = {"ledgerId": ledger_id, "entryId": entry_id}
    return frame(BaseCommand.ACK, consumer_id=0, ack_type=1, message_id=[position])


Connection = Publisher | Consumer


@dataclass(frozen=True, slots=True)
class Kit:
    """The clients of one protocol: how they publish and consume."""

    publisher: type[Publisher]
    consumer: type[Consumer]


PULSAR: Final = Kit(Publisher, Consumer)


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
        with closing(Client(load.port, load.tls_ca, load.through)) as client:
            client.open_consumer(load.topic, f"idle-{row}")


def measure(load: Load, count: Callable[[], int], turn: Callable[[], None]) -> tuple[Reading, Reading]:
    """Take turns through the warm-up and the measured part; return the readings around the latter.

    The measured part lasts until something was counted: a broker that answers in large groups is slow, not at rest.
    """
    warm = time.monotonic() + load.seconds * WARM_UP_RATIO
    while time.monotonic() < warm:
        turn()
    start = Reading.take(load, count())
    end_s = start.at_s + load.seconds
    while (now_s := time.monotonic()) < end_s or (count() == start.entries and now_s < end_s + DRAIN_TIMEOUT_S):
        turn()
    return start, Reading.take(load, count())


def drain(done: Callable[[], bool], turn: Callable[[], None], what: str, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
    """Take turns until nothing is outstanding. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} still missing {timeout_s:.0f} s after the load ended")
        turn()


def publish(load: Load, kit: Kit = PULSAR) -> Figures:
    """Publish for a time on one or many connections, each with one or many producers."""
    make_subscriptions(load)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publishers = [kit.publisher(load, row) for row in range(load.connections)]
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
        return start.until(end, load)


def backlog(load: Load, kit: Kit = PULSAR) -> Figures:
    """Publish exactly so many entries on one producer, for a consumer to catch up with."""
    make_subscriptions(load)
    with selectors.DefaultSelector() as selector:
        publisher = kit.publisher(load, 0)
        with closing(publisher.client):
            selector.register(publisher.client, selectors.EVENT_READ, publisher)

            def turn() -> None:
                pump(selector, publisher, load.entries)
                step(selector, 0.05)

            start = Reading.take(load, 0)
            drain(lambda: publisher.receipts.count == load.entries, turn, "receipts", BACKLOG_TIMEOUT_S)
            return start.until(Reading.take(load, load.entries), load)


def tail(load: Load, kit: Kit = PULSAR) -> Figures:
    """Publish and consume at once, on so many subscriptions; count what the slowest consumer has."""
    ahead = max(load.window, TAIL_BYTES_MAX // load.shape.entry_bytes)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        publisher = kit.publisher(load, 0)
        consumers = [
            kit.consumer(load, publisher.block.entries, f"tail-{row}") for row in range(max(1, load.subscriptions))
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
        return start.until(end, load)


def catch_up(load: Load, kit: Kit = PULSAR) -> Figures:
    """Consume a backlog of `entries` from its beginning, until its end or until the time is over."""
    with selectors.DefaultSelector() as selector:
        consumer = kit.consumer(load, kit.publisher.make_block(load).entries, "catch-up")
        with closing(consumer.client):
            selector.register(consumer.client, selectors.EVENT_READ, consumer)
            start = Reading.take(load, 0)
            consumer.start()
            end_s = start.at_s + load.seconds
            while consumer.messages.count < load.entries and time.monotonic() < end_s:
                step(selector, 0.05)
            wait_for_first(lambda: consumer.messages.count > 0, lambda: step(selector, 0.05))
            end = Reading.take(load, consumer.messages.count)
    return start.until(end, load)


def latency(load: Load, kit: Kit = PULSAR) -> Figures:
    """Publish 1,000 entries a second by the clock, whatever the broker does; time each from its due moment."""
    make_subscriptions(load)
    publisher = kit.publisher(load, 0)
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
    return start.until(end, load, percentiles(milliseconds))


def has_come(publisher: Publisher, timeout_s: float) -> bool:
    """Wait for receipts, with a finer clock than the selector's milliseconds."""
    return bool(select.select([publisher.client], [], [], timeout_s)[0])


MODES: dict[str, Callable[[Load, Kit], Figures]] = {
    "publish": publish,
    "backlog": backlog,
    "tail": tail,
    "catch-up": catch_up,
    "latency": latency,
}


def main(kit: Kit = PULSAR) -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    print(json.dumps(MODES[mode](load, kit)))


if __name__ == "__main__":
    main()
