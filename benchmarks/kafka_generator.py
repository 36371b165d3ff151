# SPDX-License-Identifier: Apache-2.0
"""The raw load generator for Apache Kafka: the loads of `generator` by produce and fetch requests.

Why: a client in Python spends more on a record than the broker does. Ready requests are sent in large writes, and each
answer is checked: its number, its error code and its offset must be the next ones.
Where: `run` starts it for the loads of `--peer kafka`. A topic has one partition; an entry is one record batch, with as
many records as the entry has messages, and a request of its own: a request may have one batch of a partition only. A
reader fetches from the first offset on, one fetch after the other, as Kafka's consumers do.

The versions of requests are without tagged fields, and all brokers from 2.4 to 4.x know them; the broker is asked for
what it knows first.
"""

from __future__ import annotations

import random
import struct
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from benchmarks import generator
from benchmarks.client import RETRY_S, TIMEOUT_S
from benchmarks.generator import Kit
from benchmarks.measure import Load
from benchmarks.plain_client import PlainClient
from penstock.cli.bench_frames import LAP, Block, Shape, spread
from penstock.cli.bench_scan import SAMPLE_ENTRIES, MessageScanner, ReceiptScanner, UnexpectedFrame
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Sequence


class Api(NamedTuple):
    """A kind of request: its key, and the version that is spoken here."""

    key: int
    version: int


PRODUCE: Final = Api(0, 8)
# From version 11 on, a replica that does not lead yet answers, too, and a topic would look ready too early.
FETCH: Final = Api(1, 10)
API_VERSIONS: Final = Api(18, 0)
CREATE_TOPICS: Final = Api(19, 4)

CLIENT: Final = "bench"
TIMEOUT_MS: Final = round(TIMEOUT_S * 1000)
ALL_REPLICAS: Final = -1
NO_ERROR, TOPIC_EXISTS = 0, 36
# What a topic answers while it is being made: unknown topic, not its leader, unknown leader epoch.
NOT_YET: Final = frozenset((3, 5, 6, 9, 76))
# Of a partition in one fetch. Consumers ask for 1 MiB by default; with more, the broker is the limit more surely.
FETCH_BYTES: Final = 4 * 1024 * 1024
FETCH_WAIT_MS: Final = 100
# Where the records of a batch begin, and how much of it stands before what its length counts.
RECORDS_AT: Final = 61
BATCH_SIZE_AT: Final = 8
BATCH_HEAD_BYTES: Final = 12
RECORD_COUNT_AT: Final = 57
# Of a fetch's answer, from its size on: what stands before the topic's name, and behind it up to the records.
_FETCHED_HEAD: Final = struct.Struct(">iiihiih")
_FETCHED_TAIL: Final = struct.Struct(">iihqqqii")
_OFFSET: Final = struct.Struct(">q")
_U32: Final = struct.Struct(">I")
# Where a request has its number: behind its size, its key and its version.
NUMBER_AT: Final = 8


def text(value: str) -> bytes:
    """Encode a string."""
    return struct.pack(">h", len(value)) + value.encode()


def request(api: Api, body: bytes, number: int = 0) -> bytes:
    """Encode a request."""
    head = struct.pack(">hhi", api.key, api.version, number) + text(CLIENT)
    return struct.pack(">i", len(head) + len(body)) + head + body


def topic_of(topic: str) -> str:
    """The name of a topic."""
    return topic.rpartition("/")[2]


def signed(value: int) -> bytes:
    """Encode a small signed integer as records do."""
    return encode_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def batch_of(bodies: Sequence[bytes], at_ms: int) -> bytes:
    """Encode a record batch (magic 2) of records without keys."""
    records = bytearray()
    for row, body in enumerate(bodies):
        record = b"\0\0" + signed(row) + signed(-1) + signed(len(body)) + body + b"\0"
        records += signed(len(record)) + record
    last = len(bodies) - 1
    sealed = struct.pack(">hiqqqhii", 0, last, at_ms, at_ms, -1, -1, -1, len(bodies)) + records
    head = struct.pack(">ibI", -1, 2, crc32c(sealed))
    return struct.pack(">qi", 0, len(head) + len(sealed)) + head + sealed


def produce(topic: str, batch: bytes, number: int = 0) -> bytes:
    """Encode a request to append one batch to the only partition of a topic."""
    head = struct.pack(">hhii", -1, ALL_REPLICAS, TIMEOUT_MS, 1)
    return request(PRODUCE, head + text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch, number)


class KafkaClient(PlainClient):
    """A connection to the broker."""

    def __init__(self, port: int) -> None:
        """Connect, and make sure that the broker knows the versions that are spoken here."""
        super().__init__(port)
        answer = self.ask(API_VERSIONS, b"")
        (error, count) = struct.unpack_from(">hi", answer)
        known = {key: (least, most) for key, least, most in struct.iter_unpack(">hhh", answer[6 : 6 + 6 * count])}
        for api in (PRODUCE, FETCH, CREATE_TOPICS):
            least, most = known.get(api.key, (0, -1))
            if error or not least <= api.version <= most:
                raise UnexpectedFrame(
                    f"the broker serves versions {least} to {most} of request {api.key} (error {error}), "
                    f"and this generator speaks {api.version}: measure a Kafka between 2.4 and 4.x"
                )

    def ask(self, api: Api, body: bytes) -> bytes:
        """Make one request before the load; return the answer behind its number."""
        self.socket.sendall(request(api, body))
        self.read_until(lambda: self.answer_end(self.begin) > 0, "an answer of Kafka")
        stop = self.answer_end(self.begin)
        answer = bytes(self.data[self.begin + 8 : stop])
        self.begin = stop
        return answer

    def answer_end(self, at: int) -> int:
        """Where the answer that begins at `at` ends; 0: it is not complete."""
        if at + 4 > self.end:
            return 0
        stop = at + 4 + int(_U32.unpack_from(self.data, at)[0])
        return stop if stop <= self.end else 0

    def make_topic(self, topic: str) -> None:
        """Create a topic with one partition, if there is none, and wait until it is served."""
        head = struct.pack(">i", 1) + text(topic) + struct.pack(">ihii", 1, 1, 0, 0)
        answer = self.ask(CREATE_TOPICS, head + struct.pack(">i?", TIMEOUT_MS, False))
        (error,) = struct.unpack_from(">h", answer, 8 + 2 + len(topic))
        if error not in {NO_ERROR, TOPIC_EXISTS}:
            raise UnexpectedFrame(f"Kafka does not create the topic {topic}: error code {error}")
        deadline_s = time.monotonic() + TIMEOUT_S
        while error := self.error_of_fetch(topic):
            if error not in NOT_YET or time.monotonic() > deadline_s:
                raise UnexpectedFrame(f"Kafka does not serve the topic {topic}: error code {error}")
            time.sleep(RETRY_S)

    def error_of_fetch(self, topic: str) -> int:
        """The error code with which a topic's partition is fetched; 0: it is served."""
        answer = self.ask(FETCH, fetch_body(topic, 0, wait_ms=0))
        at = _FETCHED_HEAD.size - 8 + len(topic)  # the size and the number are off
        (error,) = struct.unpack_from(">h", answer, 4)
        return int(error or struct.unpack_from(">h", answer, at + 8)[0])

    def other(self, at: int) -> int:
        """Nothing but answers of the right kind comes; this one is not complete."""
        return at


def fetch_body(topic: str, offset: int, *, wait_ms: int = FETCH_WAIT_MS) -> bytes:
    """Encode what a fetch from an offset on asks for; it waits so long for a first record."""
    head = struct.pack(">iiiibiii", -1, wait_ms, 1, FETCH_BYTES, 0, 0, -1, 1) + text(topic)
    return head + struct.pack(">iiiqqii", 1, 0, -1, offset, -1, FETCH_BYTES, 0)


class KafkaBlock(Block):
    """Produce requests of a connection's producers in turns; a lap changes their numbers only."""

    @classmethod
    def of(cls, load: Load, connection: int) -> KafkaBlock:
        """Encode what a connection sends. Times are those of now, for a broker deletes what is old."""
        made, chance = cls(bytearray(), [], [], load.producers), random.Random(load.seed + connection)
        shape, topics, at_ms = load.shape, topics_of(load, connection), round(time.time() * 1000)
        for row in range(LAP * load.producers):
            bodies = [chance.randbytes(spread(shape.message_bytes, chance)) for _ in range(shape.messages)]
            batch = batch_of(bodies, at_ms)
            made.entries.append(batch[RECORDS_AT:])
            made.sequence_at.append(len(made.frames) + NUMBER_AT)
            made.frames += produce(topics[row % load.producers], batch, row)
            made.ends.append(len(made.frames))
        return made

    def next_lap(self) -> None:
        """Give every request its next number."""
        self.lap += 1
        first = self.lap * len(self.ends)
        for row, at in enumerate(self.sequence_at):
            _U32.pack_into(self.frames, at, (first + row) & 0x7FFF_FFFF)


def topics_of(load: Load, connection: int) -> list[str]:
    """Name the topics of a connection's producers; all names are equally long, and so are all answers."""
    return [
        f"{topic_of(load.topic)}-{row:05}"
        for row in range(connection * load.producers, (connection + 1) * load.producers)
    ]


class KafkaReceipts(ReceiptScanner):
    """Counts answers to produce requests, and checks number, error code and offset of each."""

    def __init__(self, topics: Sequence[str], messages: int) -> None:
        """Expect answers in the order of requests, whose topics are these in turns."""
        super().__init__([0] * len(topics))
        self.topics = [topic.encode() for topic in topics]
        self.messages = messages
        # Size, number, topics, name; partitions, number, error, offset; two times, record errors, message; delay.
        self.answer = struct.Struct(f">iiih{len(topics[0])}siihqqqihi")

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:  # noqa: ARG002 -- there are none
        """Take whole answers. Raises UnexpectedFrame for one that is not as it must be."""
        if end - start >= 4 and _U32.unpack_from(data, start)[0] != self.answer.size - 4:
            raise UnexpectedFrame(f"Kafka refuses request {self.count}: {bytes(data[start : min(end, start + 200)])!r}")
        whole = (end - start) // self.answer.size
        stop = start + whole * self.answer.size
        size, producers, count = self.answer.size - 4, len(self.topics), self.count
        expected, messages = self.expected, self.messages
        with memoryview(data) as view:
            for came in self.answer.iter_unpack(view[start:stop]):
                row = count % producers
                wanted = (size, count & 0x7FFF_FFFF, 1, len(self.topics[row]), self.topics[row], 1, 0, 0, expected[row])
                if came[:9] != wanted:
                    raise UnexpectedFrame(f"answer {count} of Kafka is {came[:9]}, and {wanted} was due")
                expected[row] += messages
                count += 1
        self.count = count
        return stop


class KafkaMessages(MessageScanner):
    """Counts the batches of fetches, checks their offsets, and a sample of their records."""

    def __init__(self, entries: list[bytes], topic: str) -> None:
        """Expect the batches of a topic from its first on."""
        super().__init__(entries)
        self.offset = 0  # the next one
        self.records_at = _FETCHED_HEAD.size + len(topic) + _FETCHED_TAIL.size
        self.tail_at = _FETCHED_HEAD.size + len(topic)
        self.answered = True

    def scan(self, data: bytearray, start: int, end: int, others: list[int]) -> int:  # noqa: ARG002 -- there are none
        """Take the answer to the one fetch that is out, if it is complete."""
        if start + 4 > end:
            return start
        stop = start + 4 + int(_U32.unpack_from(data, start)[0])
        if stop > end:
            return start
        error, at = _FETCHED_HEAD.unpack_from(data, start)[3], start + self.records_at
        if error or at > stop:
            raise UnexpectedFrame(f"Kafka answers a fetch with error code {error} and {stop - start} bytes")
        partition_error = _FETCHED_TAIL.unpack_from(data, start + self.tail_at)[2]
        if partition_error:
            raise UnexpectedFrame(f"Kafka answers a fetch from {self.offset} with error code {partition_error}")
        self.take(data, at, stop)
        self.answered = True
        return stop

    def take(self, data: bytearray, at: int, stop: int) -> None:
        """Take whole batches; the last one may be cut.

        All have equally many records, so the offset behind the last one says whether any is missing or came twice.
        """
        size_of, first, last, count = _U32.unpack_from, at, at, 0
        while at + RECORDS_AT <= stop:
            following = at + BATCH_HEAD_BYTES + size_of(data, at + BATCH_SIZE_AT)[0]
            if following > stop:
                break
            last, at, count = at, following, count + 1
        if not count:
            return
        begin, end = _OFFSET.unpack_from(data, first)[0], _OFFSET.unpack_from(data, last)[0]
        records = size_of(data, last + RECORD_COUNT_AT)[0]
        if begin != self.offset or end != begin + (count - 1) * records:
            raise UnexpectedFrame(f"{count} batches of {records} records from {begin} to {end}, {self.offset} was due")
        self.offset = end + records
        self.count += count
        if self.count - self.sampled_at >= SAMPLE_ENTRIES:
            if data[last + RECORDS_AT : at] != self.entries[(self.count - 1) % len(self.entries)]:
                raise UnexpectedFrame(f"the bytes of the batch at offset {end} are not what was published")
            self.sampled_at = self.count
            self.samples += 1


class KafkaPublisher(generator.Publisher):
    """A connection that produces to a topic for each of its producers."""

    @staticmethod
    def make_block(load: Load, connection: int = 0) -> Block:
        return KafkaBlock.of(load, connection)

    def open(self, load: Load, connection: int) -> KafkaClient:
        """Connect, and create the topics."""
        topics = topics_of(load, connection)
        client = KafkaClient(load.port)
        for topic in topics:
            client.make_topic(topic)
        self.receipts = KafkaReceipts(topics, load.shape.messages)
        return client


class KafkaConsumer(generator.Consumer):
    """A reader that has one fetch out at a time."""

    def open(self, load: Load, subscription: str) -> KafkaClient:  # noqa: ARG002 -- others name theirs
        """Connect; nothing is kept of a reader at the broker."""
        self.topic = topics_of(load, 0)[0]
        self.messages: KafkaMessages = KafkaMessages(self.messages.entries, self.topic)
        return KafkaClient(load.port)

    def start(self) -> None:
        """Fetch for the first time."""
        self.client.socket.setblocking(False)
        self.fetch()

    def receive(self) -> None:
        """Take what was fetched, and fetch on."""
        self.client.receive(self.messages.scan)
        if self.messages.answered:
            self.fetch()

    def fetch(self) -> None:
        """Ask for what follows."""
        self.messages.answered = False
        self.client.socket.send(request(FETCH, fetch_body(self.topic, self.messages.offset)))


KIT: Final = Kit(KafkaPublisher, KafkaConsumer)


def acknowledge_one(port: int) -> None:
    """Publish one record and wait for its receipt."""
    load = Load(port=port, topic="first", shape=Shape(1024))
    (topic,) = topics_of(load, 0)
    with closing(KafkaClient(port)) as client:
        client.make_topic(topic)
        batch = batch_of([b"x" * load.shape.message_bytes], round(time.time() * 1000))
        receipts = KafkaReceipts([topic], 1)
        client.socket.sendall(produce(topic, batch))
        client.read_until(lambda: client.answer_end(client.begin) > 0, "the receipt of the first record")
        first = receipts.answer.unpack_from(client.data, client.begin)
        if first[7]:
            raise UnexpectedFrame(f"Kafka refuses the first record: error code {first[7]}")


if __name__ == "__main__":
    generator.main(KIT)
