# SPDX-License-Identifier: Apache-2.0
"""The raw load generator for NATS JetStream: the loads of `generator` and `fan_out`, in its text protocol.

Why: NATS' own client in Python spends more on a message than the server does. As for Pulsar, ready bytes are sent in
large writes, and every receipt is checked: it must be the next of its stream.
Where: `run` starts it for the loads of `--peer nats`. A topic is a stream with one subject, on files; an entry is one
message. A consumer that reads alone pulls without acknowledging, as official clients do in order; one of a subscription
is durable and acknowledges each message by itself, for groups are not known here, or all up to the last of a group.
"""

from __future__ import annotations

import json
import random
import re
import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks import fan_out, fan_out_row, generator
from benchmarks.generator import Kit
from benchmarks.loads import ONE_KIB
from benchmarks.measure import Load
from benchmarks.plain_client import PlainClient
from penstock.cli.bench_frames import LAP, Block, Shape, spread
from penstock.cli.bench_scan import SAMPLE_ENTRIES, MessageScanner, ReceiptScanner, UnexpectedFrame

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'
# Of messages that a lone reader has asked for and not got, at most; again when half has come. The server sends what was
# asked for without regard to what the reader has taken, and closes the connection when 64 MiB wait for it.
PULLED_MAX: Final = 10_000
PULLED_BYTES_MAX: Final = 16 * 1024 * 1024
END: Final = b"\r\n"


def stream_of(topic: str) -> str:
    """The name of a topic's stream, which is also its subject."""
    return topic.rpartition("/")[2]


def publication(subject: str, reply: str, body: bytes) -> bytes:
    """Encode one message that is to be answered."""
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + END


class NatsClient(PlainClient):
    """A connection to the server, subscribed to all that begins with its inbox."""

    def __init__(self, port: int, inbox: str) -> None:
        """Connect; `inbox` must be of this connection alone."""
        super().__init__(port)
        self.inbox = f"_INBOX.{inbox}"
        self.socket.sendall(CONNECT + f"SUB {self.inbox}.* 1\r\n".encode())

    def ask(self, subject: str, body: object) -> dict[str, Any]:
        """Make a request of JetStream before the load, and return its answer. Raises UnexpectedFrame."""
        self.socket.sendall(publication(f"$JS.API.{subject}", f"{self.inbox}.api", json.dumps(body).encode()))
        answer: dict[str, Any] = json.loads(self.take_one())
        if error := answer.get("error"):
            raise UnexpectedFrame(f"NATS refuses {subject}: {error.get('description')} ({error.get('err_code')})")
        return answer

    def take_one(self) -> bytes:
        """Wait for one message, before the load. Raises TimeoutError."""
        came: list[bytes] = []

        def is_there() -> bool:
            while (found := self.message(self.begin)) is not None:
                self.begin, body = found
                if body is not None:
                    came.append(body)
                    return True
            return False

        self.read_until(is_there, "an answer of NATS")
        return came[0]

    def message(self, at: int) -> tuple[int, bytes | None] | None:
        """What begins at `at`: where it ends, and its body if it is a message; None: it is not complete.

        Raises:
            UnexpectedFrame: it is an error.
        """
        line_end = self.data.find(END, at, self.end)
        if line_end < 0:
            return None
        line, after = bytes(self.data[at:line_end]), line_end + 2
        kind = line.partition(b" ")[0]
        if kind in {b"MSG", b"HMSG"}:
            stop = after + int(line.rpartition(b" ")[2])
            return (stop + 2, bytes(self.data[after:stop])) if stop + 2 <= self.end else None
        # Pings stay unanswered: a PONG would have to wait for the end of a message that is sent in parts, and the
        # server gives up on a client after four minutes, long after a load has ended.
        if kind not in {b"PING", b"PONG", b"INFO", b"+OK"}:
            raise UnexpectedFrame(f"NATS says: {line.decode(errors='replace')}")
        return after, None

    def other(self, at: int) -> int:
        """Take what stands between receipts or messages."""
        found = self.message(at)
        if found is None:
            return at
        stop, body = found
        if body is not None:
            raise UnexpectedFrame(f"in the middle of a load: {body[:200].decode(errors='replace')}")
        return stop

    def make_stream(self, topic: str) -> None:
        """Create the stream of a topic, on files; one that is there already stays."""
        name = stream_of(topic)
        self.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "storage": "file", "num_replicas": 1})

    def make_consumer(self, topic: str, name: str, acknowledges: str) -> None:
        """Create a consumer from the first message on, durable if it acknowledges; one that is there stays."""
        stream = stream_of(topic)
        config: dict[str, object] = {"name": name, "ack_policy": acknowledges, "deliver_policy": "all"}
        if acknowledges != "none":
            config |= {"durable_name": name, "max_ack_pending": -1}
        self.ask(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})

    def pull(self, topic: str, name: str, count: int) -> bytes:
        """Encode a request for so many messages."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream_of(topic)}.{name}"
        return publication(subject, f"{self.inbox}.pull", b'{"batch":%d}' % count)


class NatsBlock(Block):
    """Messages of a connection's producers in turns; a lap sends the same bytes again."""

    @classmethod
    def of(cls, load: Load, connection: int) -> NatsBlock:
        """Encode what a connection sends."""
        made, chance = cls(bytearray(), [], [], load.producers), random.Random(load.seed + connection)
        subjects = [stream_of(topic) for topic in load.topics(connection)]
        for row in range(LAP * load.producers):
            body = chance.randbytes(spread(load.shape.entry_bytes, chance))
            producer = row % load.producers
            made.entries.append(body)
            made.frames += publication(subjects[producer], f"_INBOX.{inbox_of(load, connection)}.{producer}", body)
            made.ends.append(len(made.frames))
        return made

    def next_lap(self) -> None:
        """Nothing changes."""
        self.lap += 1


def inbox_of(load: Load, connection: int) -> str:
    """A name that no other connection has."""
    return f"{stream_of(load.topic)}-{connection}"


class NatsReceipts(ReceiptScanner):
    """Counts receipts, and checks that those of each stream have consecutive sequence numbers from 1 on."""

    def __init__(self, inbox: str, producers: int) -> None:
        """Expect them below an inbox, with the number of their producer behind it."""
        super().__init__([1] * producers)
        head = rb"MSG _INBOX\." + re.escape(inbox.encode())
        self.one = re.compile(head + rb'\.(\d+) 1 \d+\r\n\{"stream":"[^"]+", ?"seq":(\d+)\}\r\n')
        self.many = re.compile(rb"(?:" + head + rb'\.\d+ 1 \d+\r\n\{"stream":"[^"]+", ?"seq":\d+\}\r\n)*+')

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take the receipts that stand in a row, and say where something else begins."""
        matched = self.many.match(data, start, end)
        stop = matched.end() if matched else start
        taken = self.one.findall(data, start, stop)
        if len(self.expected) == 1:
            due = self.expected[0]
            if [int(number) for _, number in taken] != list(range(due, due + len(taken))):
                raise UnexpectedFrame(f"receipts from sequence number {due} on are missing or out of order")
            self.expected[0] = due + len(taken)
        else:
            for row, number in taken:
                producer = int(row)
                if int(number) != self.expected[producer]:
                    due = self.expected[producer]
                    raise UnexpectedFrame(f"a receipt for {int(number)} of stream {producer} where {due} was due")
                self.expected[producer] += 1
        self.count += len(taken)
        if stop < end:
            others.append(stop)
        return stop


class NatsMessages(MessageScanner):
    """Counts messages, compares a sample with what was published, and can keep where to acknowledge each."""

    def __init__(self, entries: list[bytes], take: Callable[[bytes], None] | None = None) -> None:
        """Hand each message's reply subject to `take`. Without it the messages are all of a stream, in order."""
        super().__init__(entries)
        self.take = take

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        """Take whole messages, and say where something else begins."""
        at = start
        while (line_end := data.find(END, at, end)) >= 0:
            head = bytes(data[at:line_end]).split(b" ")
            if len(head) != 5 or head[0] != b"MSG":
                others.append(at)
                break
            stop = line_end + 2 + int(head[4])
            if stop + 2 > end:
                break
            self.count += 1
            if self.take is not None:
                self.take(head[3])
            if self.count - self.sampled_at >= SAMPLE_ENTRIES:
                self.compare(head[3], data[line_end + 2 : stop])
            at = stop + 2
        return at

    def compare(self, reply: bytes, body: bytearray) -> None:
        """Check one message: `$JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.…` says which it is."""
        words = reply.split(b".")
        delivered, sequence = int(words[4]), int(words[5])
        if delivered != 1 or (self.take is None and sequence != self.count):
            raise UnexpectedFrame(f"message {sequence}, delivered {delivered} times, came as number {self.count}")
        if body != self.entries[(sequence - 1) % len(self.entries)]:
            raise UnexpectedFrame(f"the bytes of message {sequence} are not what was published")
        self.sampled_at = self.count
        self.samples += 1


class NatsPublisher(generator.Publisher):
    """A connection that publishes to a stream for each of its producers."""

    @staticmethod
    def make_block(load: Load, connection: int = 0) -> Block:
        return NatsBlock.of(load, connection)

    def open(self, load: Load, connection: int) -> NatsClient:
        """Connect, and create the streams."""
        client = NatsClient(load.port, inbox_of(load, connection))
        for topic in load.topics(connection):
            client.make_stream(topic)
        self.receipts = NatsReceipts(inbox_of(load, connection), load.producers)
        return client


class NatsConsumer(generator.Consumer):
    """A reader of a stream that gets all messages in order and acknowledges none."""

    client: NatsClient

    def open(self, load: Load, subscription: str) -> NatsClient:
        """Connect, and create the consumer."""
        self.messages = NatsMessages(self.messages.entries)
        client = NatsClient(load.port, f"{inbox_of(load, 0)}-{subscription}")
        client.make_consumer(load.topic, subscription, "none")
        self.pull = partial(client.pull, load.topic, subscription)
        self.pulled = max(2, min(PULLED_MAX, PULLED_BYTES_MAX // load.shape.entry_bytes))
        return client

    def start(self) -> None:
        """Ask for the first messages."""
        self.client.socket.sendall(self.pull(self.pulled))
        self.client.socket.setblocking(False)

    def receive(self) -> None:
        """Take messages, and ask for more when half of those asked for has come."""
        self.client.receive(self.messages.scan)
        due = self.messages.count - self.asked_at
        if due >= self.pulled // 2:
            self.asked_at += due
            self.client.socket.send(self.pull(due))


class NatsMember(fan_out.Consumer):
    """A consumer of a subscription, one of several or alone."""

    def open(self, port: int, topic: str, subscription: str) -> NatsClient:
        """Connect, and create the subscription's consumer, which all its members share."""
        client = NatsClient(port, f"{stream_of(topic)}-{subscription}-{id(self)}")
        client.make_consumer(topic, subscription, "all" if self.cumulative else "explicit")
        load = Load(port=port, topic=topic, shape=ONE_KIB)
        self.messages = NatsMessages(NatsBlock.of(load, 0).entries, self.ids.append)
        self.pull = partial(client.pull, topic, subscription)
        return client

    def more(self, permits: int) -> bytes:
        return self.pull(permits)

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:
        at = self.messages.scan(data, start, end, others)
        self.count = self.messages.count
        return at

    def encode(self, ready: list[bytes | bytearray]) -> bytes:
        """Acknowledge each, or all up to the last: an empty message to where it says."""
        return b"".join([b"PUB " + reply + b" 0\r\n\r\n" for reply in (ready[-1:] if self.cumulative else ready)])


KIT: Final = Kit(NatsPublisher, NatsConsumer)


def acknowledge_one(port: int) -> None:
    """Publish one message and wait for its receipt."""
    load = Load(port=port, topic="first", shape=Shape(1024))
    with closing(NatsClient(port, "first-one")) as client:
        client.make_stream(load.topic)
        client.socket.sendall(publication("first", f"{client.inbox}.0", b"x" * load.shape.message_bytes))
        if b'"seq"' not in (answer := client.take_one()):
            raise UnexpectedFrame(f"NATS refuses the first message: {answer.decode(errors='replace')}")


def main() -> None:
    """Drive one load and print its result."""
    if sys.argv[1] in generator.MODES:
        generator.main(KIT)
    else:
        fan_out_row.main(NatsPublisher, NatsMember)


if __name__ == "__main__":
    main()
