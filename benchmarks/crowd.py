# SPDX-License-Identifier: Apache-2.0
"""Many topics, many consumers or many connections at a given rate, or as fast as a window permits.

Why: the raw generator drives a few connections at full speed. What many of something cost shows at a rate that both
brokers reach: in latency, from the moment a message was due until its consumer had it, and in processor time.
Where: `run` starts it for the loads whose `tool` it is; their `options` are the fields of `Crowd`. The order of
receipts is checked, and in the end consumers must have got exactly as many messages as were published.
"""

from __future__ import annotations

import json
import math
import select
import selectors
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from benchmarks.client import RETRY_S, TIMEOUT_S, Client
from benchmarks.crowd_frames import DeliveryScanner, Entries, Member
from benchmarks.measure import (
    DRAIN_TIMEOUT_S,
    NS_PER_S,
    WARM_UP_RATIO,
    Figures,
    Reading,
    parse_load,
    percentiles,
    wait_for_first,
)
from benchmarks.process import allow_many_sockets, ask
from penstock.cli.bench_scan import ReceiptScanner
from penstock.core.errors import WireCode
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import Answered, RequestFailed
from penstock.wire.client.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.measure import Load
    from penstock.wire.client.frames import Body

TICK_NS: Final = 1_000_000
# As clients do, who gather acknowledgements for a tenth of a second.
ACKNOWLEDGE_NS: Final = 100_000_000
# Opened at once, so that a broker that can share a sync between creations does.
AT_ONCE: Final = 100
EXCLUSIVE, SHARED = codec.CommandSubscribe.Exclusive, codec.CommandSubscribe.Shared
# With a window, publishers are at most this far ahead of consumers: further, they would catch up.
AHEAD_WINDOWS: Final = 4
BURST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What there is much of."""

    rate: int = 0  # entries a second in all; 0: as many as the window permits
    topics: int = 1
    partitioned: bool = False  # the topics are partitions of one topic
    producers: int = 0  # in all; 0: one for each topic
    consumers: int = 1  # of each topic, on one subscription
    keys: int = 0  # that entries have in turns; 0: none has a key
    shared: bool = False
    permits: int = 1_000
    links: int = 1  # connections of producers, and as many of consumers
    idle: int = 0  # connections that do nothing
    look_up: bool = False  # topics are on several brokers


class Link:
    """One connection, with what it still has to send."""

    def __init__(self, load: Load, port: int) -> None:
        self.client = Client(port, load.tls_ca)
        self.port = port
        self.out = bytearray()
        self.producers: list[int] = []  # the sequence id of each one's next entry
        self.receipts = ReceiptScanner([])
        self.deliveries = DeliveryScanner([])
        self.scan: Callable[[bytearray, int, int, list[int]], int] = self.receipts.scan

    def receive(self) -> None:
        """Take what has come."""
        self.client.receive(self.scan)

    def ask_for_more(self) -> None:
        """Send permits for consumers that have used half of theirs."""
        for row in self.deliveries.hungry:
            member = self.deliveries.members[row]
            self.out += member.flow(member.used)
        self.deliveries.hungry.clear()

    def push(self) -> bool:
        """Send what fits; True when nothing is left."""
        if self.out:
            with memoryview(self.out) as view:
                sent = self.client.send(view)
            del self.out[:sent]
        return not self.out

    def ask_all(self, requests: Sequence[Callable[[], int]]) -> list[Body]:
        """Make many requests, some at once, each again while the broker is not ready; returns the answers in order."""
        answers: dict[int, Body] = {}
        waiting: dict[int, int] = {}
        rest = list(range(len(requests)))[::-1]
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S * 10
        while rest or waiting:
            while rest and len(waiting) < AT_ONCE:
                row = rest.pop()
                waiting[requests[row]()] = row
            event = self.client.blocking.next_event(TIMEOUT_S)
            if event is None or time.monotonic() > deadline_s:
                raise TimeoutError(f"{len(waiting)} of {len(requests)} requests were not answered")
            if isinstance(event, Answered):
                answers[waiting.pop(event.request_id)] = event.body
            elif isinstance(event, RequestFailed):
                if event.error.code is not WireCode.SERVICE_NOT_READY:
                    raise event.error
                rest.append(waiting.pop(event.request_id))
                time.sleep(RETRY_S)
        return [answers[row] for row in range(len(requests))]


class Driver:
    """All connections of a load."""

    def __init__(self, load: Load, stack: ExitStack) -> None:
        self.load, self.stack = load, stack
        self.crowd = Crowd(**load.options)
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.entries = Entries(load.shape, load.seed, self.crowd.keys)
        self.publishing: list[Link] = []
        self.consuming: list[Link] = []
        self.turns: list[tuple[Link, int]] = []  # a connection and its producer, in the order in which they send
        self.blocked: set[Link] = set()
        self.sent = 0
        self.latencies_ns: list[int] = []
        self.since_ns = 0  # latencies of what was due before do not count
        self.acknowledged_ns = 0

    # ------------------------------------------------------------------------------------------------------ opening

    def topics(self) -> list[str]:
        """Name the topics; partitions are created."""
        crowd = self.crowd
        if crowd.partitioned:
            path = self.load.topic.replace("://", "/")
            ask(self.load.admin_port, "PUT", f"{path}/partitions", crowd.topics)
            return [f"{self.load.topic}-partition-{row}" for row in range(crowd.topics)]
        return [f"{self.load.topic}-{row}" for row in range(crowd.topics)]

    def open(self) -> None:
        """Open all connections, producers and consumers."""
        crowd, names = self.crowd, self.topics()
        producers = [names[row % len(names)] for row in range(crowd.producers or len(names))]
        consumers = [name for name in names for _ in range(crowd.consumers)]
        places = self.places(names)
        for link, mine in self.dealt(consumers, places):
            self.consuming.append(link)
            link.deliveries.members += [Member(row, not crowd.shared, crowd.permits) for row in range(len(mine))]
            link.scan = link.deliveries.scan
            link.ask_all([self.subscribing(link, row, name) for row, name in enumerate(mine)])
            self.poll()
        for link, mine in self.dealt(producers, places):
            self.publishing.append(link)
            link.producers, link.receipts.expected[:] = [0] * len(mine), [0] * len(mine)
            link.ask_all([self.producing(link, row, name) for row, name in enumerate(mine)])
            self.poll()
        for _ in range(crowd.idle):
            self.link(self.load.port)
        most = max(len(link.producers) for link in self.publishing)
        self.turns = [(link, row) for row in range(most) for link in self.publishing if row < len(link.producers)]
        for link in self.consuming:
            for member in link.deliveries.members:
                link.out += member.flow(crowd.permits)
            self.blocked.add(link)

    def dealt(self, topics: list[str], places: dict[str, int]) -> list[tuple[Link, list[str]]]:
        """Deal topics out to connections with their broker."""
        found = []
        for port in sorted({places[name] for name in topics}):
            mine = [name for name in topics if places[name] == port]
            links = min(self.crowd.links, len(mine))
            # Neighbours go to different connections.
            found += [(self.link(port), mine[row::links]) for row in range(links)]
        return found

    def link(self, port: int) -> Link:
        """Connect."""
        link = Link(self.load, port)
        self.stack.enter_context(closing(link.client))
        self.selector.register(link.client, selectors.EVENT_READ, link)
        return link

    def places(self, names: list[str]) -> dict[str, int]:
        """The port of each topic's broker; looking it up makes the broker load the topic."""
        first = self.link(self.load.port)
        connection = first.client.connection
        first.ask_all(
            [
                lambda name=name: connection.request(codec.CommandPartitionedTopicMetadata(topic=name, request_id=0))  # type: ignore[misc]
                for name in names
            ]
        )
        bodies = first.ask_all(
            [
                lambda name=name: connection.request(  # type: ignore[misc]
                    codec.CommandLookupTopic(topic=name, request_id=0, authoritative=False)
                )
                for name in names
            ]
        )
        if not self.crowd.look_up:
            return dict.fromkeys(names, self.load.port)
        found = (urlsplit(getattr(body, "brokerServiceUrl", "")).port for body in bodies)
        return {name: port or self.load.port for name, port in zip(names, found, strict=True)}

    def subscribing(self, link: Link, row: int, name: str) -> Callable[[], int]:
        """What opens a consumer."""
        body = codec.CommandSubscribe(
            topic=name,
            subscription="crowd",
            subType=SHARED if self.crowd.shared else EXCLUSIVE,
            consumer_id=row,
            request_id=0,
            initialPosition=codec.CommandSubscribe.Earliest,
        )
        return lambda: link.client.connection.subscribe(Consumer(body))

    def producing(self, link: Link, row: int, name: str) -> Callable[[], int]:
        """What opens a producer."""
        return lambda: link.client.connection.open_producer(Producer(row, name))

    # ------------------------------------------------------------------------------------------------------ traffic

    @property
    def received(self) -> int:
        """Receipts, of all producers."""
        return sum(link.receipts.count for link in self.publishing)

    @property
    def consumed(self) -> int:
        """Messages, of all consumers; without any, receipts."""
        return sum(link.deliveries.count for link in self.consuming) if self.consuming else self.received

    def poll(self, timeout_ns: int = 0) -> None:
        """Wait for traffic at most so long, and take it."""
        if timeout_ns > 0:
            # The selector itself only knows milliseconds.
            select.select([self.selector], [], [], timeout_ns / NS_PER_S)
        for key, _ in self.selector.select(0):
            link: Link = key.data
            link.receive()
            if link.deliveries.hungry:
                link.ask_for_more()
                self.blocked.add(link)
            if due := link.deliveries.due_ns:
                if self.since_ns:
                    now_ns = time.monotonic_ns()
                    self.latencies_ns += [now_ns - due_ns for due_ns in due if due_ns >= self.since_ns]
                due.clear()
        now_ns = time.monotonic_ns()
        if now_ns - self.acknowledged_ns >= ACKNOWLEDGE_NS:
            self.acknowledged_ns = now_ns
            self.acknowledge()
        self.blocked = {link for link in self.blocked if not link.push()}

    def acknowledge(self) -> None:
        """Acknowledge everything that has come."""
        for link in self.consuming:
            deliveries = link.deliveries
            if deliveries.touched:
                members = deliveries.members
                link.out += b"".join(members[row].acknowledge() for row in deliveries.touched)
                deliveries.touched.clear()
                self.blocked.add(link)

    def send(self, count: int, due_ns: int) -> None:
        """Send so many entries, of one producer after the other."""
        turns, make = self.turns, self.entries.send
        for row in range(self.sent, self.sent + count):
            link, producer_id = turns[row % len(turns)]
            sequence_id = link.producers[producer_id]
            link.producers[producer_id] = sequence_id + 1
            link.out += make(producer_id, sequence_id, due_ns)
            self.blocked.add(link)
        self.sent += count
        self.blocked = {link for link in self.blocked if not link.push()}

    def at_rate(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Send by the clock, a thousand times a second, whatever the broker does, until the time is over or `done`."""
        begin_ns, begun, rate = time.monotonic_ns(), self.sent, self.crowd.rate
        for tick in range(1, round(seconds * NS_PER_S / TICK_NS) + 1):
            due_ns = begin_ns + tick * TICK_NS
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                self.poll(left_ns)
            self.send(begun + tick * rate * TICK_NS // NS_PER_S - self.sent, due_ns)
            self.poll()
            if done():
                break

    def at_full_speed(self, seconds: float, entries: float = math.inf) -> None:
        """Send while fewer entries than the window are without a receipt, and consumers are not far behind."""
        end_s, window = time.monotonic() + seconds, self.load.window
        while time.monotonic() < end_s and self.sent < entries:
            room = min(
                window - (self.sent - self.received), AHEAD_WINDOWS * window - (self.sent - self.consumed), BURST
            )
            if room > 0:
                self.send(room, time.monotonic_ns())
            self.poll(0 if room > 0 else TICK_NS)

    def finish(self) -> None:
        """Wait until everything has come. Raises TimeoutError."""
        deadline_s = time.monotonic() + DRAIN_TIMEOUT_S
        while self.received < self.sent or self.consumed < self.sent:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"of {self.sent} entries came {self.received} receipts, {self.consumed} messages")
            self.poll(10 * TICK_NS)
        self.acknowledge()
        if self.consumed > self.sent:
            raise RuntimeError(f"of {self.sent} entries came {self.consumed} messages")


def drive(load: Load) -> Figures:
    """Open everything, let it run for a while, measure."""
    allow_many_sockets()
    with ExitStack() as stack:
        driver = Driver(load, stack)
        began_s = time.monotonic()
        driver.open()
        opened_s = time.monotonic() - began_s
        turn = driver.at_rate if driver.crowd.rate else driver.at_full_speed
        turn(load.seconds * WARM_UP_RATIO)
        start, driver.since_ns = Reading.take(load, driver.consumed), time.monotonic_ns()
        turn(load.seconds)
        wait_for_first(lambda: driver.consumed > start.entries, lambda: driver.poll(TICK_NS))
        end = Reading.take(load, driver.consumed)
        driver.finish()
    figures = start.until(end, load) | {"open s": opened_s}
    if driver.latencies_ns and driver.crowd.rate:
        taken = sorted(ns / 1e6 for ns in driver.latencies_ns)
        figures |= {"mean ms": sum(taken) / len(taken)}
        figures |= {f"{name} ms": value for name, value in percentiles(taken).items()}
    return figures


def main() -> None:
    """Drive one load and print its result."""
    mode, load = parse_load()
    with suppress(BrokenPipeError):
        print(json.dumps({"drive": drive}[mode](load)))


if __name__ == "__main__":
    main()
