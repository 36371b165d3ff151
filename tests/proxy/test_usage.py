# SPDX-License-Identifier: Apache-2.0
"""Counters of usage in the proxy: exact by receipts, and bounded."""

from __future__ import annotations

import asyncio
import io
from itertools import count
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from penstock.accounting.records import USAGE
from penstock.accounting.totals import Totals
from penstock.core.clock import ManualClock
from penstock.core.errors import NotAllowed
from penstock.core.names import TopicName
from penstock.governance.budget import Row
from penstock.proxy.groups import ProxyGroups
from penstock.proxy.response_stream import ResponseStream
from penstock.proxy.usage import CLIENT_BYTES_MAX, TOPIC_BYTES, RelayedUsage, UsageCounts
from penstock.proxy.usage_records import IDLE_CYCLES_MAX, UsageRecords
from penstock.wire import codec
from penstock.wire.client.connection import encode
from penstock.wire.client.entries import entry
from penstock.wire.codec import CommandSend, MessageMetadata
from penstock.wire.events import PublishRun
from penstock.wire.relayed import Answered, MessageCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC = "persistent://acme/shop/orders"


def decoded(record: bytes) -> dict[str, Any]:
    read = fastavro.schemaless_reader(io.BytesIO(record), fastavro.parse_schema(dict(USAGE.schema)))
    assert isinstance(read, dict)
    return read


class Published:
    """A topic of a producer."""

    def __init__(self, text: str = TOPIC) -> None:
        self.name = TopicName.parse(text)
        self.publish_limited_times = 0


def run(*sends: tuple[int, int], counts: list[int] | None = None) -> PublishRun:
    """SENDs by producer and length."""
    return PublishRun(
        b"", producer_ids=[one for one, _ in sends], lengths=[length for _, length in sends], message_counts=counts
    )


def chunk_of(number: int, chunks: int) -> bytes:
    """A stored chunk."""
    about = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    about.uuid, about.chunk_id, about.num_chunks_from_msg, about.total_chunk_msg_size = "u", number, chunks, chunks
    return entry(about, b"x")


def answers(producer_id: int, sends: int, *, stored: bool = True) -> list[Answered]:
    one = Answered(producer_id, stored=stored)
    one.sends = sends
    return [one]


def counts_of(size_bytes: int = 1_000_000) -> UsageCounts:
    numbers = count(1)
    rows = Row("usage", size_bytes), Row("usage-unanswered", size_bytes)
    return UsageCounts(*rows, lambda: next(numbers), ["persistent://pulsar/system/mine"])


def totals(counts: UsageCounts) -> dict[str, Totals]:
    return {topic.text: topic.totals for topic in counts.topics()}


def test_a_publish_counts_when_it_is_acknowledged() -> None:
    counts = counts_of()
    usage = RelayedUsage(counts)
    usage.opened(7, Published())
    usage.passed(run((7, 100), (7, 50), (7, 8), counts=[10, 1, 3]))
    assert totals(counts) == {}
    usage.answered(answers(7, 1))
    assert totals(counts) == {TOPIC: Totals(10, 100)}
    usage.answered([*answers(7, 1, stored=False), *answers(7, 1)])
    assert totals(counts) == {TOPIC: Totals(13, 108)}
    usage.close()
    assert counts.memory.used_bytes == TOPIC_BYTES + 2 * len(TOPIC)


def test_a_chunk_that_others_follow_is_no_message_of_its_own() -> None:
    counts = counts_of()
    usage = RelayedUsage(counts)
    usage.opened(7, Published())
    chunks = [chunk_of(number, 3) for number in range(3)]
    starts = [sum(map(len, chunks[:row])) for row in range(3)]
    sent = PublishRun(
        b"".join(chunks), producer_ids=[7] * 3, offsets=starts, lengths=list(map(len, chunks)),
        rare={row: CommandSend(is_chunk=True) for row in range(3)},
    )  # fmt: skip
    usage.passed(sent)
    usage.answered(answers(7, 1))
    assert totals(counts)[TOPIC].whole_messages_in == 0
    usage.answered(answers(7, 2))
    assert totals(counts) == {TOPIC: Totals(3, sum(sent.lengths), chunks_in=2)}
    assert totals(counts)[TOPIC].whole_messages_in == 1


def test_publishes_of_several_producers_in_one_run_belong_to_their_topics() -> None:
    counts = counts_of()
    usage = RelayedUsage(counts)
    usage.opened(1, Published())
    usage.opened(2, Published(f"{TOPIC}-2"))
    usage.passed(run((1, 10), (2, 20), (1, 30), (3, 40)))
    usage.answered([*answers(2, 5), *answers(1, 2), *answers(3, 1)])
    assert totals(counts) == {TOPIC: Totals(2, 40), f"{TOPIC}-2": Totals(1, 20)}
    assert counts.sum == Totals(3, 60)


def test_what_a_broker_never_acknowledged_is_not_counted() -> None:
    counts = counts_of()
    usage = RelayedUsage(counts)
    usage.opened(1, Published())
    usage.passed(run((1, 10), (1, 10)))
    usage.answered(answers(1, 1))
    usage.close()  # The broker is gone; the client sends the second again, over another connection.
    again = RelayedUsage(counts)
    again.opened(1, Published())
    again.passed(run((1, 10)))
    again.answered(answers(1, 1))
    assert totals(counts) == {TOPIC: Totals(2, 20)}


def test_receipts_that_come_after_the_producer_was_closed_count() -> None:
    counts = counts_of()
    usage = RelayedUsage(counts)
    usage.opened(1, Published())
    usage.passed(run((1, 10)))
    usage.forget(1)
    usage.answered(answers(1, 1))
    assert totals(counts) == {TOPIC: Totals(1, 10)}
    usage.answered(answers(1, 1))
    assert counts.sum == Totals(1, 10)
    assert counts.memory.used_bytes == TOPIC_BYTES + 2 * len(TOPIC)


def test_without_memory_publishes_count_when_they_are_passed_on() -> None:
    counts = counts_of(TOPIC_BYTES + 2 * len(TOPIC))
    usage = RelayedUsage(counts)
    usage.opened(1, Published())
    usage.passed(run((1, 1)))
    usage.answered(answers(1, 1))
    assert counts.unanswered.try_charge(counts.unanswered.limit_bytes)
    for _ in range(3):
        usage.passed(run((1, 10), (1, 20)))
    assert totals(counts) == {TOPIC: Totals(7, 91)}
    usage.answered(answers(1, 6))
    assert totals(counts) == {TOPIC: Totals(7, 91)}


def test_a_client_whose_publishes_nobody_acknowledges_adds_nothing_and_leaves_memory_to_others() -> None:
    counts = counts_of(10 * CLIENT_BYTES_MAX)
    attacker = RelayedUsage(counts)
    attacker.opened(1, Published())
    for _ in range(500):
        attacker.passed(run(*[(1, 1_000_000)] * 1_000))
    assert counts.unanswered.used_bytes <= CLIENT_BYTES_MAX
    assert (totals(counts), counts.sum) == ({}, Totals())
    attacker.close()
    assert counts.unanswered.used_bytes == 0


def test_ten_thousand_topics_are_bounded_and_the_sum_stays_exact() -> None:
    counts = counts_of(1_000_000)
    for number in range(10_000):
        counts.add(f"{TOPIC}-{number:05}", Totals(1, 100, 2, 300))
    assert counts.memory.used_bytes <= 1_000_000
    assert 0 < len(counts) < 1_200
    assert counts.sum == Totals(10_000, 1_000_000, 20_000, 3_000_000)
    assert counts.left_out == 3 * (10_000 - len(counts))


def test_topics_of_records_are_not_counted() -> None:
    counts = counts_of()
    for text in ("persistent://pulsar/system/usage-partition-0", "persistent://pulsar/system/mine"):
        counts.add(text, Totals(1, 1))
    assert (len(counts), counts.sum) == (0, Totals())


# -- answers in the stream


def receipts(*producer_ids: int) -> bytes:
    frames = [
        encode(codec.CommandSendReceipt(producer_id=one, sequence_id=2**40)) if one else codec.pong()
        for one in producer_ids
    ]
    return b"".join(frames)


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 11, 12, 13, 17, 1_000])
def test_answers_are_found_however_the_stream_is_divided(piece: int) -> None:
    stream = ResponseStream(frame_bytes_max=1_000)
    stream.counter = MessageCounter(answers=True)
    data = receipts(5, 5, 300, 0, 5, 2**20, 2**20)
    for start in range(0, len(data), piece):
        list(stream.passed(data[start : start + piece]))
    found: list[tuple[int, int]] = []
    for one in stream.counter.take_answered():
        assert one.stored
        if found and found[-1][0] == one.producer_id:
            one.sends += found.pop()[1]
        found.append((one.producer_id, one.sends))
    assert found == [(5, 2), (300, 1), (5, 1), (2**20, 2)]


# -- records


class Topic:
    """A topic of records in memory."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.refuses = False

    async def create(self) -> None:
        """See `RecordWriter`."""

    async def write(self, records: Sequence[bytes], time_ms: int) -> None:
        """See `RecordWriter`."""
        if self.refuses:
            raise NotAllowed("no permission")
        self.records += records


def recording(topic: Topic, clock: ManualClock, loop: asyncio.AbstractEventLoop, nbytes: int = 10**6) -> UsageRecords:
    return UsageRecords(
        topic,
        ProxyGroups(clock, loop),
        Row("usage", nbytes),
        Row("usage-unanswered", nbytes),
        name="proxy-a",
        own_topics=(),
        interval_s=60,
        clock=clock,
        loop=loop,
    )


async def cycle(records: UsageRecords, clock: ManualClock) -> None:
    """Let an interval pass."""
    clock.advance(ns=60 * 10**9)
    records.tick()
    await records.finished()


async def test_records_that_could_not_be_written_are_made_up_for() -> None:
    topic, clock = Topic(), ManualClock()
    records = recording(topic, clock, asyncio.get_running_loop())
    records.counts.add(TOPIC, Totals(1, 10))
    await cycle(records, clock)
    topic.refuses = True
    records.counts.add(TOPIC, Totals(2, 20))
    await cycle(records, clock)
    await cycle(records, clock)
    assert records.failures == 2
    topic.refuses = False
    await cycle(records, clock)
    await cycle(records, clock)
    seen = [decoded(one) for one in topic.records]
    assert [(one["scope"], one["published_messages"], one["published_bytes"]) for one in seen] == [
        ("topic", 1, 10),
        ("broker", 1, 10),
        ("topic", 3, 30),
        ("broker", 3, 30),
        ("broker", 3, 30),
    ]
    assert seen[0]["counters_since_ms"] == seen[2]["counters_since_ms"]
    assert {one["broker"] for one in seen} == {"proxy-a"}


async def test_idle_topics_are_forgotten_only_when_memory_is_short() -> None:
    topic, clock = Topic(), ManualClock()
    records = recording(topic, clock, asyncio.get_running_loop(), nbytes=10 * (TOPIC_BYTES + 2 * len(TOPIC) + 4))
    records.counts.add(TOPIC, Totals(1, 10))
    for _ in range(2 * IDLE_CYCLES_MAX):
        await cycle(records, clock)
    assert len(records.counts) == 1
    for number in range(8):
        records.counts.add(f"{TOPIC}-{number}", Totals(1, 10))
    for _ in range(2 * IDLE_CYCLES_MAX):
        await cycle(records, clock)
    assert len(records.counts) < 6
    records.counts.add(TOPIC, Totals(1, 10))
    await cycle(records, clock)
    of_topic = [one for one in (decoded(each) for each in topic.records) if one["topic"] == TOPIC]
    assert [one["published_messages"] for one in of_topic] == [1, 1]
    assert len({one["counters_since_ms"] for one in of_topic}) == 2
