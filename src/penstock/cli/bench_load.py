# SPDX-License-Identifier: Apache-2.0
"""The loads of `penstock bench`: ready frames out, receipts and messages in, and how long each took.

Why runs and not messages: half a million entries a second come back. Times are taken once for what was written at
once, and counted once for what one read brought.
Where: `bench`. Everything happens on one thread, which polls for the last stretch before something is due: a thread
that sleeps wakes some 60 µs late.
"""

from __future__ import annotations

import select
from collections import Counter, deque
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.bench_frames import Block, Shape
from penstock.cli.bench_scan import MessageScanner, ReceiptScanner, UnexpectedFrame, take_messages
from penstock.cli.exits import CommandFailed
from penstock.cli.feeds import LATEST
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.spark.client.message_id import EARLIEST
from penstock.spark.client.subscription import Subscription, reading_body
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.frames import decode_frame, frame_bytes
from penstock.wire.client.producer import Producer
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.core.clock import Clock
    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection
    from penstock.spark.client.message_id import MessageId

POLL_NS: Final = 150_000
WAIT_S: Final = 0.05
# Part of the time before anything is counted: connections warm up, and what waits reaches its level.
WARM_UP: Final = 0.1
DRAIN_S: Final = 30
# Enough for any run, so that nothing waits for permits; TCP and the broker's memory bound what is on its way.
PERMITS: Final = 1_000_000_000
# Times that differ by less than a 32nd are counted together.
_BITS: Final = 5


class Histogram:
    """How often which time came, within 3 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()  # by the least time of a bucket, ns

    def add(self, ns: int, count: int = 1) -> None:
        shift = max(0, ns.bit_length() - _BITS - 1)
        self._counts[ns >> shift << shift] += count

    def merge(self, other: Histogram) -> None:
        """Add what another has counted."""
        self._counts.update(other._counts)

    def milliseconds(self, shares: Iterable[float]) -> list[float]:
        """The times that so large parts did not exceed."""
        times = sorted(self._counts)
        sums = list(accumulate(self._counts[one] for one in times))
        return [
            next((one / NS_PER_MS for one, sum_ in zip(times, sums, strict=True) if sum_ >= share * sums[-1]), 0.0)
            for share in (shares if sums else ())
        ]

    def rows(self) -> list[dict[str, float]]:
        """All buckets: from which time on, and how often."""
        return [{"fromMs": one / NS_PER_MS, "count": self._counts[one]} for one in sorted(self._counts)]


class Times:
    """From when entries were due until they came, in their order."""

    def __init__(self) -> None:
        self.taken = Histogram()
        self._due: deque[tuple[int, int]] = deque()  # entries up to here, in all; when they were due, ns
        self._came = 0

    def due(self, entries: int, at_ns: int) -> None:
        """Entries up to this number were due now."""
        self._due.append((entries, at_ns))

    def came(self, entries: int, now_ns: int, *, counts: bool) -> None:
        """All up to this number have come; `counts`: and it is not the warm-up any more."""
        while self._came < entries and self._due:
            last, due_ns = self._due[0]
            upto = min(last, entries)
            if counts:
                self.taken.add(now_ns - due_ns, upto - self._came)
            self._came = upto
            if upto == last:
                self._due.popleft()


class Plan(NamedTuple):
    """How much is to be done."""

    shape: Shape
    seconds: float
    rate: float  # entries per second of all producers together; 0: as many as there is room for
    window: int
    producers: int


class Peer:
    """A connection of a load, on which runs of frames come."""

    def __init__(self, connection: Connection, scanner: ReceiptScanner | MessageScanner | MessageCounter) -> None:
        self.connection = connection
        self.scanner = scanner
        self.times = Times()

    def receive(self) -> None:
        """Take what has come. Raises CommandFailed if it is not what a load without faults hears."""
        connection, inbound = self.connection, self.connection.inbound
        while connection.receive(0):
            others: list[int] = []
            try:
                inbound.begin = self.scanner.scan(inbound.data, inbound.begin, inbound.end, others)
            except UnexpectedFrame as error:
                raise CommandFailed(f"{error}; does somebody else use this topic?") from error
            for at in others:
                self._heard(at)

    def _heard(self, at: int) -> None:
        inbound = self.connection.inbound
        frame = decode_frame(inbound.data, at, at + frame_bytes(inbound.data, at))
        if frame.kind == BaseCommand.PING:
            self.connection.write(codec.pong())
        elif frame.kind in {BaseCommand.SEND_ERROR, BaseCommand.ERROR}:
            raise CommandFailed(f"the broker refused: {frame.body.message or frame.body.error}")
        elif frame.kind in {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}:
            raise CommandFailed("the broker has closed the topic, which moves or was deleted; measure again")


class Publisher(Peer):
    """A producer of one topic, at most a window of entries ahead of its receipts."""

    def __init__(self, cluster: Cluster, topic: str, plan: Plan, seed: int) -> None:
        """Open it. Raises ClientError."""
        self.receipts = ReceiptScanner.make(1)
        super().__init__(cluster.open_topic(topic), self.receipts)
        self.connection.open_producer(Producer(0, topic), f"opening a producer of {topic}")
        self.block = Block.make(plan.shape, seed)
        self.sent = 0
        self._window = plan.window
        self._interval_ns = NS_PER_S * plan.producers / plan.rate if plan.rate else 0.0
        # Fewer at once are not worth the system call; the window stays nearly full.
        self._step = 1 if plan.rate else max(1, min(plan.window // 8, len(self.block.ends)))
        self._row = 0

    def send(self, begun_ns: int, now_ns: int, also: Times | None = None) -> int:
        """Send what is due, as far as the window lets it; `also` is told, too. Returns when the next is due, in ns."""
        room = self._window - (self.sent - self.receipts.count)
        if self._interval_ns:
            room = min(room, int((now_ns - begun_ns) / self._interval_ns) + 1 - self.sent)
        while room >= self._step:
            ends = self.block.ends
            if self._row == len(ends):
                self.block.next_lap()
                self._row = 0
            begin = ends[self._row - 1] if self._row else 0
            go = min(room, len(ends) - self._row)
            if self._interval_ns:
                for entry in range(self.sent, self.sent + go):
                    self._due(entry + 1, begun_ns + round(entry * self._interval_ns), also)
            else:
                self._due(self.sent + go, now_ns, also)
            self._row += go
            self.sent += go
            room -= go
            self.connection.write(bytes(memoryview(self.block.frames)[begin : ends[self._row - 1]]))
        return begun_ns + round(self.sent * self._interval_ns) if self._interval_ns else now_ns + NS_PER_S

    def _due(self, entries: int, at_ns: int, also: Times | None) -> None:
        self.times.due(entries, at_ns)
        if also is not None:
            also.due(entries, at_ns)


class MessageCounter:
    """Counts MESSAGE frames, and the place of the last one."""

    def __init__(self, last: MessageId | None) -> None:
        """`last`: of the topic; None if it is empty."""
        self.count = self.nbytes = 0
        self.is_over = last is None
        self._last = last

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """As `MessageScanner.scan`, of whatever somebody else has published."""
        at, count, newest, nbytes = take_messages(data, start, end, others)
        self.count += count
        self.nbytes += nbytes
        if newest >= 0:
            found = decode_frame(data, newest, newest + frame_bytes(data, newest)).body.message_id
            self.is_over = self._last is not None and (found.ledgerId, found.entryId) >= self._last[:2]
        return at


class Reader(Peer):
    """A reader of one topic that leaves no trace."""

    def __init__(
        self, cluster: Cluster, topic: str, start: MessageId, scanner: MessageScanner | MessageCounter
    ) -> None:
        """Open it; messages come when it has asked. Raises ClientError."""
        super().__init__(cluster.open_topic(topic), scanner)
        self._consumer = Consumer(reading_body(topic, start))
        self.connection.subscribe(self._consumer, f"reading {topic}")

    def ask(self) -> None:
        """Ask for all."""
        self.connection.flow(self._consumer, PERMITS)


class Measured(NamedTuple):
    """Entries of the measured time, and how long they took."""

    seconds: float
    entries: int
    cores: float  # of this process, which must not be what was measured
    nbytes: int = 0  # with the head of each entry, where messages of others were read
    receipts: Histogram | None = None
    arrivals: Histogram | None = None


class Turns:
    """Takes turns of a load until its time is over, and measures after the warm-up."""

    def __init__(self, peers: Sequence[Peer], clock: Clock, cpu_ns: Callable[[], int]) -> None:
        self._by_number = {one.connection.fileno(): one for one in peers}
        self._clock = clock
        self._cpu_ns = cpu_ns

    def take(
        self, seconds: float, entries: Callable[[], int], send: Callable[[int, int], int], is_done: Callable[[], bool]
    ) -> Measured:
        """Send and receive for so long; `send` gets begin and time and returns when its next turn is, all in ns."""
        begun_ns = self._clock.monotonic_ns()
        warm_ns = begun_ns + round(WARM_UP * seconds * NS_PER_S)
        end_ns = warm_ns + round(seconds * NS_PER_S)
        first: tuple[int, int, int] | None = None  # when counting began: time, processor time, entries
        while (now_ns := self._clock.monotonic_ns()) < end_ns and not is_done():
            if first is None and now_ns >= warm_ns:
                first = now_ns, self._cpu_ns(), entries()
            self.receive(send(begun_ns, now_ns), counts=first is not None)
        since_ns, cpu_ns, before = first or (begun_ns, self._cpu_ns(), 0)
        passed_ns = max(1, self._clock.monotonic_ns() - since_ns)
        return Measured(passed_ns / NS_PER_S, entries() - before, (self._cpu_ns() - cpu_ns) / passed_ns)

    def receive(self, until_ns: int, *, counts: bool) -> None:
        """Take what comes until then; polls for the last stretch."""
        wait_s = max(0.0, (until_ns - self._clock.monotonic_ns() - POLL_NS) / NS_PER_S)
        ready, _, _ = select.select(self._by_number, (), (), min(wait_s, WAIT_S))
        for number in ready:
            peer = self._by_number[number]
            peer.receive()
            peer.times.came(peer.scanner.count, self._clock.monotonic_ns(), counts=counts)

    def drain(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait for what is on its way. Raises CommandFailed."""
        end_ns = self._clock.monotonic_ns() + DRAIN_S * NS_PER_S
        while not is_done():
            if self._clock.monotonic_ns() > end_ns:
                raise CommandFailed(f"{what} are missing {DRAIN_S} s after the load has ended")
            self.receive(end_ns, counts=False)


def publish(cluster: Cluster, topics: Sequence[str], plan: Plan, clock: Clock, cpu_ns: Callable[[], int]) -> Measured:
    """Publish to these topics in turns. Raises CommandFailed, ClientError."""
    with ExitStack() as stack:
        publishers = []
        for number in range(plan.producers):
            publishers.append(Publisher(cluster, topics[number % len(topics)], plan, number))
            stack.enter_context(publishers[-1].connection)
        turns = Turns(publishers, clock, cpu_ns)

        def came() -> int:
            return sum(one.receipts.count for one in publishers)

        measured = turns.take(
            plan.seconds,
            came,
            lambda begun_ns, now_ns: min(one.send(begun_ns, now_ns) for one in publishers),
            lambda: False,
        )
        turns.drain(lambda: came() == sum(one.sent for one in publishers), "receipts")
    receipts = Histogram()
    for publisher in publishers:
        receipts.merge(publisher.times.taken)
    return measured._replace(nbytes=measured.entries * plan.shape.entry_bytes, receipts=receipts)


def end_to_end(cluster: Cluster, topic: str, plan: Plan, clock: Clock, cpu_ns: Callable[[], int]) -> Measured:
    """Publish to a topic and read it meanwhile. Raises CommandFailed, ClientError."""
    publisher = Publisher(cluster, topic, plan, 0)
    with publisher.connection:
        scanner = MessageScanner(publisher.block.entries)
        reader = Reader(cluster, topic, LATEST, scanner)
        with reader.connection:
            reader.ask()
            turns = Turns((publisher, reader), clock, cpu_ns)
            measured = turns.take(
                plan.seconds,
                lambda: scanner.count,
                lambda begun_ns, now_ns: publisher.send(begun_ns, now_ns, reader.times),
                lambda: False,
            )
            turns.drain(lambda: scanner.count == publisher.sent, "messages")
    nbytes = measured.entries * plan.shape.entry_bytes
    return measured._replace(nbytes=nbytes, receipts=publisher.times.taken, arrivals=reader.times.taken)


def consume(
    cluster: Cluster, topics: Sequence[str], seconds: float, clock: Clock, cpu_ns: Callable[[], int]
) -> Measured:
    """Read these topics from their beginning until the end that they have now. Raises CommandFailed, ClientError."""
    with ExitStack() as stack:
        counters, readers = [], []
        for topic in topics:
            with Subscription.reading(cluster, topic, EARLIEST) as subscription:
                counters.append(MessageCounter(subscription.last_id()))
            readers.append(Reader(cluster, topic, EARLIEST, counters[-1]))
            stack.enter_context(readers[-1].connection)
        turns = Turns(readers, clock, cpu_ns)
        for reader in readers:
            reader.ask()
        measured = turns.take(
            seconds,
            lambda: sum(one.count for one in counters),
            lambda _begun_ns, now_ns: now_ns + NS_PER_S,
            lambda: all(one.is_over for one in counters),
        )
    return measured._replace(entries=sum(one.count for one in counters), nbytes=sum(one.nbytes for one in counters))
