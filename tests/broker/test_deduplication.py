# SPDX-License-Identifier: Apache-2.0
"""Deduplication: the decision by itself against a model, a broker under the test's hands, and one that is killed."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.broker.publishing.deduplication import KIND, NEVER, SequenceIds, Verdict, name_bytes
from penstock.core.checksum import seal
from penstock.core.errors import WireCode
from penstock.testing.client import RawClient, Type, entry, frame, send
from penstock.testing.process import BrokerProcess
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.net.harness import Client, Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


TOPIC = "persistent://public/default/t"

# ------------------------------------------------------------------------------------------------------- the decision


def uncounted(nbytes: int) -> None:
    """Take no account of names."""
    del nbytes


class AProducerThatSendsAgain(RuleBasedStateMachine):
    """Sends, resends what is not answered, and a log that persists in order: nothing is stored twice, nothing lost."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = SequenceIds(uncounted)
        self.log: list[int] = []  # appended, in order
        self.persisted = 0  # entries of it that are durable
        self.next = 0
        self.unanswered: list[int] = []

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        new = list(range(self.next, self.next + count))
        self.next += count
        self.unanswered += new
        assert self.ids.all_new("p", new, None) == new[-1]
        self.log += new

    @rule()
    def persist_one(self) -> None:
        if self.persisted < len(self.log):
            self.ids.persist("p", self.log[self.persisted])
            self.persisted += 1

    @rule(answered=st.booleans())
    def send_all_unanswered_again(self, *, answered: bool) -> None:
        kept = []
        for sequence_id in self.unanswered:
            verdict = self.ids.judge("p", sequence_id, sequence_id)
            if verdict is Verdict.NEW:
                self.log.append(sequence_id)
            if verdict is not Verdict.DUPLICATE or not answered:
                kept.append(sequence_id)
        self.unanswered = kept

    @precondition(lambda self: self.persisted < len(self.log))
    @rule()
    def crash(self) -> None:
        del self.log[self.persisted :]
        snapshot = self.ids.snapshot()
        self.ids = SequenceIds(uncounted)
        self.ids.restore(snapshot)
        self.send_all_unanswered_again(answered=True)  # before anything new, as clients do

    @invariant()
    def nothing_is_stored_twice_or_out_of_order(self) -> None:
        assert self.log == sorted(set(self.log))

    @invariant()
    def what_is_answered_is_stored(self) -> None:
        assert set(range(self.next)) - set(self.unanswered) <= set(self.log[: self.persisted])


TestAProducerThatSendsAgain = AProducerThatSendsAgain.TestCase

rising = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(steps=rising, spans=st.data(), pushed=st.integers(-1, 8))
def test_a_stretch_is_taken_at_once_exactly_when_each_of_its_entries_is_new(
    steps: list[int], spans: st.DataObject, pushed: int
) -> None:
    sequence_ids, highest, at = [], [], 0
    for step in steps:
        at += step
        sequence_ids.append(at)
        at += spans.draw(st.integers(0, 2))
        highest.append(at)
    at_once, one_by_one = SequenceIds(uncounted), SequenceIds(uncounted)
    if pushed > NEVER:
        at_once.push("p", pushed)
        one_by_one.push("p", pushed)
    verdicts = [one_by_one.judge("p", low, top) for low, top in zip(sequence_ids, highest, strict=True)]
    taken = at_once.all_new("p", sequence_ids, highest)
    assert (taken != NEVER) == (set(verdicts) == {Verdict.NEW})
    if taken != NEVER:
        assert taken == highest[-1]
        assert at_once.judge("p", taken, taken) is Verdict.IN_FLIGHT


def test_a_batch_is_compared_by_its_lowest_and_remembered_by_its_highest_id() -> None:
    ids = SequenceIds(uncounted)
    assert ids.judge("p", 0, 9) is Verdict.NEW
    assert ids.judge("p", 9, 12) is Verdict.IN_FLIGHT
    ids.persist("p", 9)
    assert ids.judge("p", 9, 12) is Verdict.DUPLICATE
    assert ids.judge("p", 10, 12) is Verdict.NEW
    assert ids.highest_persisted("p") == 9


def test_producers_do_not_know_of_each_other() -> None:
    ids = SequenceIds(uncounted)
    assert ids.judge("p", 5, 5) is Verdict.NEW
    assert ids.judge("q", 5, 5) is Verdict.NEW
    assert ids.judge("p", 5, 5) is Verdict.IN_FLIGHT


def test_who_is_away_too_long_is_forgotten_and_who_is_there_never() -> None:
    ids = SequenceIds(uncounted)
    ids.restore({"there": 1, "away": 2})
    ids.expire({"there": 0}, now_ms=1_000, left_before_ms=0, producers_max=10, bytes_max=10**6)
    ids.expire({"there": 0}, now_ms=5_000, left_before_ms=1_000, producers_max=10, bytes_max=10**6)
    assert ids.snapshot() == {"there": 1, "away": 2}
    ids.expire({"there": 0}, now_ms=5_001, left_before_ms=1_001, producers_max=10, bytes_max=10**6)
    assert ids.snapshot() == {"there": 1}


def test_who_comes_back_is_away_anew() -> None:
    ids = SequenceIds(uncounted)
    ids.restore({"p": 1})
    ids.expire({}, now_ms=1_000, left_before_ms=0, producers_max=10, bytes_max=10**6)
    ids.expire({"p": 0}, now_ms=2_000, left_before_ms=0, producers_max=10, bytes_max=10**6)
    ids.expire({}, now_ms=3_000, left_before_ms=2_500, producers_max=10, bytes_max=10**6)
    assert ids.snapshot() == {"p": 1}


def test_when_there_are_too_many_names_those_go_that_left_first() -> None:
    ids = SequenceIds(uncounted)
    for number in range(4):
        ids.persist(f"p{number}", number)
        ids.expire({}, now_ms=number, left_before_ms=-1, producers_max=10, bytes_max=10**6)
    ids.expire({"p0": 0}, now_ms=9, left_before_ms=-1, producers_max=2, bytes_max=10**6)
    assert set(ids.snapshot()) == {"p0", "p3"}


def test_names_are_charged_while_they_are_remembered_and_the_long_ones_that_left_first_go() -> None:
    charged: list[int] = []
    ids = SequenceIds(charged.append)
    for number in range(4):
        ids.persist(f"{number}" * 4_096, number)
        ids.persist(f"{number}" * 4_096, number + 1)
        ids.expire({}, now_ms=number, left_before_ms=-1, producers_max=10, bytes_max=10**6)
    assert sum(charged) == ids.nbytes == 4 * name_bytes("x" * 4_096)
    ids.expire({}, now_ms=9, left_before_ms=-1, producers_max=10, bytes_max=9_000)
    assert set(ids.snapshot()) == {"2" * 4_096, "3" * 4_096}
    assert sum(charged) == ids.nbytes == 2 * name_bytes("x" * 4_096)
    ids.close()
    ids.persist("late", 1)
    assert sum(charged) == 0


# ------------------------------------------------------------------------------------- a broker under the test's hands


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        await set_policy(harness, value=True)
        yield harness
        for client in Client.opened:
            await client.close()
        Client.opened.clear()


async def set_policy(harness: Harness, *, value: bool | None) -> None:
    await harness.broker.policies.set_namespace("public/default", "deduplication", value)


async def producing(harness: Harness, name: str = "p", **fields: Any) -> tuple[Client, int]:  # noqa: ANN401
    """A client with producer 0 of this name, and the last sequence id that it was told."""
    client = await Client.connected(harness.port)
    answer = await client.request(
        Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0, producer_name=name, **fields
    )
    return client, answer.producer_success.last_sequence_id


def sending(sequence_id: int, *, highest: int | None = None, **said: Any) -> bytes:  # noqa: ANN401
    """A SEND of producer 0, and an entry whose metadata says the same."""
    if highest is not None:
        said["highest_sequence_id"] = highest
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **said).SerializeToString()
    stored = seal(len(metadata).to_bytes(4, "big") + metadata + b"%d" % sequence_id)
    command = BaseCommand(type=Type.SEND)
    command.send.producer_id, command.send.sequence_id = 0, sequence_id
    if highest is not None:
        command.send.highest_sequence_id = highest
    if "chunk_id" in said:
        command.send.is_chunk = True
    data = command.SerializeToString()
    return (4 + len(data) + len(stored)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + stored


async def receipt(client: Client) -> tuple[int, int]:
    """Sequence id and entry id; -1 for that of a duplicate."""
    got = (await client.expect(Type.SEND_RECEIPT)).send_receipt
    position = (got.message_id.ledgerId, got.message_id.entryId)
    return got.sequence_id, -1 if position == (2**64 - 1, 2**64 - 1) else got.message_id.entryId


def document(harness: Harness) -> dict[str, Any] | None:
    found = harness.broker.catalog.documents(KIND).get(TOPIC)
    return None if found is None else dict(found)


async def test_a_message_that_is_stored_is_answered_and_not_stored_again(harness: Harness) -> None:
    client, last = await producing(harness)
    assert last == -1
    client.write(sending(0) + sending(1))
    assert [await receipt(client), await receipt(client)] == [(0, 0), (1, 1)]
    client.write(sending(0) + sending(1) + sending(2))
    assert [await receipt(client) for _ in range(3)] == [(0, -1), (1, -1), (2, 2)]
    assert topic_of(harness).last_entry_id == 2


async def test_a_message_that_is_on_its_way_to_the_disk_is_answered_with_an_error(harness: Harness) -> None:
    first, _ = await producing(harness)
    harness.disk.hold()
    first.write(sending(0))
    await until(lambda: topic_of(harness).next_entry_id == 1)
    reads = harness.connection_of(first).read_count
    first.write(sending(0))
    await until(lambda: harness.connection_of(first).read_count > reads)
    harness.disk.release()
    assert await receipt(first) == (0, 0)
    refused = (await first.expect(Type.SEND_ERROR)).send_error
    assert (refused.sequence_id, int(refused.error)) == (0, WireCode.PERSISTENCE_ERROR)
    first.write(sending(0))
    assert await receipt(first) == (0, -1)


async def test_a_producer_that_comes_back_is_told_its_last_sequence_id(harness: Harness) -> None:
    client, _ = await producing(harness)
    client.write(sending(5, highest=9))
    assert await receipt(client) == (5, 0)
    await client.close()
    await until(lambda: not topic_of(harness).producers)
    again, last = await producing(harness)
    assert last == 9
    again.write(sending(9) + sending(10))
    assert [await receipt(again), await receipt(again)] == [(9, -1), (10, 1)]


async def test_of_a_chunked_message_only_the_last_chunk_counts(harness: Harness) -> None:
    client, _ = await producing(harness)
    chunks = [sending(3, chunk_id=i, num_chunks_from_msg=3, uuid="u", total_chunk_msg_size=3) for i in range(3)]
    client.write(b"".join(chunks))
    assert [await receipt(client) for _ in chunks] == [(3, 0), (3, 1), (3, 2)]
    client.write(b"".join(chunks))
    assert [await receipt(client) for _ in chunks] == [(3, 3), (3, 4), (3, -1)]


async def test_good_and_refused_entries_of_one_read_are_answered_in_order(harness: Harness) -> None:
    client, _ = await producing(harness)
    client.write(sending(0))
    assert await receipt(client) == (0, 0)
    client.write(sending(1) + sending(0) + sending(2) + sending(3) + sending(1))
    assert [await receipt(client) for _ in range(2)] == [(1, 1), (0, -1)]
    assert [await receipt(client) for _ in range(2)] == [(2, 2), (3, 3)]
    assert (await client.expect(Type.SEND_ERROR)).send_error.sequence_id == 1  # it was on its way in this very read
    assert topic_of(harness).next_entry_id == 4


async def test_topics_without_deduplication_store_what_they_get(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        client, last = await producing(harness)
        client.write(sending(0) + sending(0))
        assert [await receipt(client), await receipt(client)] == [(0, 0), (0, 1)]
        assert last == -1
        assert document(harness) is None
        assert not topic_of(harness).producers["p"].careful
        await client.close()


async def test_switched_on_it_knows_what_connected_producers_have_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        client, _ = await producing(harness)
        client.write(sending(0) + sending(1))
        assert [await receipt(client), await receipt(client)] == [(0, 0), (1, 1)]
        await set_policy(harness, value=True)
        await until(lambda: (d := topic_of(harness).deduplication) is not None and d.known)
        client.write(sending(1) + sending(2))
        assert [await receipt(client), await receipt(client)] == [(1, -1), (2, 2)]
        await client.close()


async def test_what_is_published_while_it_is_switched_on_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        client, _ = await producing(harness)
        harness.disk.hold()
        client.write(sending(0))
        await until(lambda: topic_of(harness).next_entry_id == 1)
        await set_policy(harness, value=True)
        client.write(sending(1))
        await until(lambda: topic_of(harness).next_entry_id == 2)
        harness.disk.release()
        assert [await receipt(client), await receipt(client)] == [(0, 0), (1, 1)]
        await until(lambda: (d := topic_of(harness).deduplication) is not None and d.known)
        client.write(sending(0) + sending(1) + sending(2))
        assert [await receipt(client) for _ in range(3)] == [(0, -1), (1, -1), (2, 2)]
        await client.close()


async def test_switched_off_it_forgets(harness: Harness) -> None:
    client, _ = await producing(harness)
    client.write(sending(0))
    await receipt(client)
    assert document(harness) is not None
    await set_policy(harness, value=False)
    await until(lambda: document(harness) is None)
    client.write(sending(0))
    assert await receipt(client) == (0, 1)


async def test_switched_off_and_on_again_it_stores_what_it_knows_anew(harness: Harness) -> None:
    client, _ = await producing(harness)
    client.write(sending(0))
    await receipt(client)
    await asyncio.gather(set_policy(harness, value=False), set_policy(harness, value=True))
    await until(lambda: (d := topic_of(harness).deduplication) is not None and d.known)
    assert document(harness) == {"entry_id": 0, "sequence_ids": {"p": 0}}
    client.write(sending(0))
    assert await receipt(client) == (0, -1)


async def test_every_so_many_entries_what_is_known_is_stored(harness: Harness) -> None:
    client, _ = await producing(harness)
    interval = harness.broker.limits.deduplication_entries_interval
    assert document(harness) == {"entry_id": -1, "sequence_ids": {}}
    client.write(b"".join(sending(i) for i in range(interval - 1)))
    for _ in range(interval - 1):
        await receipt(client)
    assert document(harness) == {"entry_id": -1, "sequence_ids": {}}
    client.write(sending(interval - 1))
    await receipt(client)
    await until(lambda: document(harness) == {"entry_id": interval - 1, "sequence_ids": {"p": interval - 1}})
    assert harness.broker.deduplication.replay_from(topic_of(harness)) == interval


async def test_entries_behind_the_snapshot_are_kept_for_the_next_recovery(harness: Harness) -> None:
    client, _ = await producing(harness)
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=0)
    topic = topic_of(harness)
    interval = harness.broker.limits.deduplication_entries_interval
    assert harness.broker.deduplication.replay_from(topic) == 0
    topic.next_entry_id = 5 * interval
    topic.last_entry_id = 5 * interval - 1
    topic.subscriptions["s"].cursor.acknowledge_through(5 * interval - 1)
    assert topic.retained_from() == 0


async def test_a_restart_reads_what_came_after_the_snapshot(tmp_path: Path) -> None:
    for start in (0, 1_500, 1_500):
        async with running(tmp_path) as harness:
            await set_policy(harness, value=True)
            client, last = await producing(harness)
            assert last == start - 1
            if not start:
                client.write(b"".join(sending(i) for i in range(1_500)))
                for _ in range(1_500):
                    await receipt(client)
            client.write(sending(1_499))
            assert await receipt(client) == (1_499, -1)
            await client.close()


# ------------------------------------------------------------------------------------------- a broker that is killed


@pytest.fixture
def killed_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerProcess]:
    monkeypatch.setenv("PENSTOCK_BROKER_DEDUPLICATION_ENABLED", "true")
    monkeypatch.setenv("PENSTOCK_BROKER_DEDUPLICATION_ENTRIES_INTERVAL", "50")
    with BrokerProcess(tmp_path / "data") as process:
        yield process


class Resending:
    """A producer as clients are: whatever is not answered is sent again, in order, after every lost connection."""

    WINDOW = 100

    def __init__(self, topic: str, rng: random.Random) -> None:
        self.topic = topic
        self.rng = rng
        self.next = 0
        self.unanswered: dict[int, bytes] = {}
        self.answered = 0

    def run_until_killed(self, port: int) -> None:
        """Publish until the connection breaks."""
        client = RawClient(port)
        try:
            client.produce(self.topic, producer_name="p")
            client.write(b"".join(self.unanswered.values()))
            while True:
                burst = []
                while len(self.unanswered) < self.WINDOW:
                    body = b"%d:" % self.next + self.rng.randbytes(self.rng.choice((10, 1_000, 20_000)))
                    self.unanswered[self.next] = send(0, self.next, entry(body, sequence_id=self.next))
                    burst.append(self.unanswered[self.next])
                    self.next += 1
                client.write(b"".join(burst))
                while len(self.unanswered) > self.WINDOW // 2:
                    answer = client.next(Type.SEND_RECEIPT, Type.SEND_ERROR).command
                    if answer.type == Type.SEND_ERROR:
                        break  # Not known yet: connect anew.
                    if self.unanswered.pop(answer.send_receipt.sequence_id, None) is not None:
                        self.answered += 1
        except OSError:
            pass
        finally:
            client.close()

    def finish(self, port: int) -> None:
        """Send again what is left until all of it is answered."""
        with RawClient(port) as client:
            client.produce(self.topic, producer_name="p")
            client.write(b"".join(self.unanswered.values()))
            while self.unanswered:
                got = client.next(Type.SEND_RECEIPT).command.send_receipt.sequence_id
                del self.unanswered[got]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_broker_leaves_each_message_exactly_once(killed_broker: BrokerProcess, seed: int) -> None:
    rng = random.Random(seed)
    topic = f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"
    producer = Resending(topic, random.Random(rng.random()))
    with RawClient(killed_broker.port) as client:
        client.subscribe(topic, "check", permits=0)
    for _ in range(4):
        worker = threading.Thread(target=producer.run_until_killed, args=(killed_broker.port,))
        worker.start()
        enough = producer.answered + rng.randrange(50, 600)
        while producer.answered < enough and worker.is_alive():
            worker.join(0.001)
        killed_broker.kill()
        worker.join()
        killed_broker.start()
    producer.finish(killed_broker.port)
    with RawClient(killed_broker.port) as client:
        client.subscribe(topic, "check", permits=1_000_000)
        stored = [int(client.message().payload.partition(b":")[0]) for _ in range(producer.next)]
        client.write(frame(Type.PING))
        assert client.read().command.type == Type.PONG  # and no message more
    assert stored == list(range(producer.next))
