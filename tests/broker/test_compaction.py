# SPDX-License-Identifier: Apache-2.0
"""Compaction: what is kept, against a model; and a broker that compacts, trims and restarts, or loses its topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.composition.administration import administration
from penstock.broker.topics.compaction import Outcome, Stored, TwoPhaseCompactor
from penstock.broker.topics.topic_states import COMPACTED_LEDGER
from penstock.core.checksum import is_sealed, seal
from penstock.core.errors import AlreadyExists, MetadataFailed, NotAllowed, PreconditionFailed
from penstock.core.names import COMPACTION_SUBSCRIPTION, TopicName
from penstock.core.position import LATEST
from penstock.storage.compacted import LatestKeys, MessageLocation
from penstock.testing.client import Type, frame
from penstock.wire import batches, metadata
from penstock.wire import compression as codecs
from penstock.wire.pulsar_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.net.harness import Client, Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    from penstock.broker.topics.topic import Topic
    from penstock.storage.metadata import Done

TOPIC = "persistent://public/default/t"
Message = tuple[str | None, bytes]  # key and payload


# ------------------------------------------------------------------------------------------------------------ messages


def sealed(said: MessageMetadata, payload: bytes) -> bytes:
    encoded = said.SerializeToString()
    return seal(len(encoded).to_bytes(4, "big") + encoded + payload)


def single(key: str | None, payload: bytes, **said: Any) -> bytes:  # noqa: ANN401
    """An entry with one message."""
    return sealed(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key, **said), payload)


def batch(messages: Sequence[Message], compression: int = codecs.NONE, **said: Any) -> bytes:  # noqa: ANN401
    """An entry with many."""
    payload = b""
    for key, body in messages:
        member = SingleMessageMetadata(partition_key=key, payload_size=len(body)).SerializeToString()
        payload += len(member).to_bytes(4, "big") + member + body
    kind, packed = codecs.compress(compression, payload)
    assert kind == compression
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=len(messages),
        compression=compression,  # type: ignore[arg-type]
        uncompressed_size=len(payload),
        **said,
    )
    return sealed(metadata, packed)


def messages_in(entry: bytes) -> list[tuple[int, str, bytes]]:
    """Index (-1 when it is no batch), key and payload of each message that is left of an entry."""
    assert is_sealed(entry)
    said = metadata.decode(entry)
    if not said.HasField("num_messages_in_batch"):
        return [(-1, said.partition_key, bytes(batches.payload_of(entry)))]
    payload = batches.decompressed(entry, said)
    found = list(batches.single_messages(payload, said.num_messages_in_batch))
    return [
        (index, one.key or "", payload[one.stop - one.message_bytes : one.stop])
        for index, one in enumerate(found)
        if not one.compacted_out
    ]


def compact(entries: Iterable[tuple[int, bytes]]) -> tuple[dict[int, bytes], Outcome]:
    """Compact in memory; what is kept, by entry id."""
    stored = [Stored(entry_id, entry, 1) for entry_id, entry in entries]
    kept: list[Stored] = []
    keys = LatestKeys()
    try:
        outcome = TwoPhaseCompactor(read=lambda: iter(stored), write=kept.extend, keys=keys, pause=lambda: None).run()
    finally:
        keys.close()
    return {one.entry_id: bytes(one.entry) for one in kept}, outcome


# -------------------------------------------------------------------------------------------------------- what is kept

message = st.tuples(st.sampled_from((None, "a", "b", "c", "ä")), st.sampled_from((b"", b"1", b"22")))
one_entry = st.one_of(message, st.lists(message, min_size=1, max_size=4))
topics = st.lists(one_entry, max_size=12)


def encoded(content: Message | list[Message]) -> bytes:
    return batch(content) if isinstance(content, list) else single(*content)


def model(content: Sequence[Message | list[Message]]) -> list[tuple[int, int, str, bytes]]:
    """What must be left: entry id, index, key and payload of the last message of each key, unless it is empty."""
    latest: dict[str, tuple[int, int, str, bytes]] = {}
    for entry_id, one in enumerate(content):
        for index, (key, payload) in enumerate(one) if isinstance(one, list) else [(-1, one)]:
            if key is not None:
                latest.pop(key, None)
                if payload:
                    latest[key] = (entry_id, index, key, payload)
    return sorted(latest.values())


def left_in(kept: dict[int, bytes]) -> list[tuple[int, int, str, bytes]]:
    return [(entry_id, *one) for entry_id, entry in kept.items() for one in messages_in(entry)]


@settings(deadline=None)
@given(content=topics)
def test_of_each_key_the_last_message_is_left_at_its_old_place(content: list[Message | list[Message]]) -> None:
    kept, _ = compact(enumerate(map(encoded, content)))
    assert left_in(kept) == model(content)


@settings(deadline=None)
@given(content=topics, cut=st.integers(0, 12))
def test_compacting_in_two_steps_is_compacting_once(content: list[Message | list[Message]], cut: int) -> None:
    entries = list(enumerate(map(encoded, content)))
    first, _ = compact(entries[:cut])
    second, _ = compact([*first.items(), *entries[cut:]])
    assert left_in(second) == model(content)


@settings(deadline=None)
@given(content=topics)
def test_every_message_is_kept_or_counted_as_dropped(content: list[Message | list[Message]]) -> None:
    kept, outcome = compact(enumerate(map(encoded, content)))
    total = sum(len(one) if isinstance(one, list) else 1 for one in content)
    assert len(left_in(kept)) + outcome.messages_dropped == total
    assert outcome.entries == len(kept)


@pytest.mark.parametrize("kind", [codecs.NONE, codecs.LZ4, codecs.ZLIB, codecs.ZSTD, codecs.SNAPPY])
def test_a_batch_that_loses_messages_stays_compressed_as_it_was(kind: int) -> None:
    kept, _ = compact([(0, batch([("a", b"1"), ("b", b"2"), ("c", b"3")], kind)), (1, single("b", b"4"))])
    assert left_in(kept) == [(0, 0, "a", b"1"), (0, 2, "c", b"3"), (1, -1, "b", b"4")]
    said = metadata.decode(kept[0])
    assert (said.compression, said.num_messages_in_batch) == (kind, 3)
    assert list(said.compacted_batch_indexes) == [0, 2]
    assert batches.last_index(said) == 2


def test_a_batch_that_loses_nothing_is_kept_byte_for_byte() -> None:
    whole = batch([("a", b"1"), ("b", b"2")], codecs.LZ4)
    kept, _ = compact([(0, whole)])
    assert kept == {0: whole}


@pytest.mark.parametrize("damage", ["unknown compression", "garbage"])
def test_a_batch_that_cannot_be_read_is_kept_as_it_is(damage: str) -> None:
    said = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    said.compression = codecs.LZ4 if damage == "garbage" else codecs.ZSTD  # type: ignore[assignment]
    said.uncompressed_size = 1_000
    unreadable = sealed(said, b"\xff\xff\x00")
    kept, _ = compact([(0, unreadable), (1, single("a", b"1")), (2, single("a", b"2"))])
    assert kept == {0: unreadable, 2: single("a", b"2")}


def test_an_encrypted_batch_is_kept_or_dropped_by_the_key_on_the_entry() -> None:
    def encrypted(key: str) -> bytes:
        said = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
        said.partition_key = key
        said.encryption_keys.add(key="k", value=b"v")
        return sealed(said, b"only its readers know")

    kept, _ = compact([(0, encrypted("a")), (1, encrypted("b")), (2, single("a", b"x"))])
    assert list(kept) == [1, 2]


def test_all_chunks_of_a_keys_last_message_are_kept_and_no_others() -> None:
    def chunk(uuid: str, index: int) -> bytes:
        return single("a", b"part", uuid=uuid, chunk_id=index, num_chunks_from_msg=2, total_chunk_msg_size=8)

    entries = [chunk("u", 0), chunk("v", 0), chunk("u", 1), chunk("v", 1), chunk("w", 0), single("b", b"x")]
    kept, _ = compact(enumerate(entries))
    assert list(kept) == [1, 3, 5]  # u is older, w never became whole


def test_compressed_and_empty_is_empty() -> None:
    kept, _ = compact([(0, single("a", b"1")), (1, single("a", b"\x00", uncompressed_size=0, compression=codecs.LZ4))])
    assert kept == {}


def test_keys_that_do_not_fit_into_memory_are_found_all_the_same() -> None:
    keys = LatestKeys(cache_bytes=64 * 1024)
    count = 20_000
    keys.apply((f"key {i}", MessageLocation(i, i % 3)) for i in range(count))
    keys.apply((f"key {i}", None) for i in range(0, count, 2))
    assert len(keys) == count // 2
    assert keys.find("key 7") == MessageLocation(7, 1)
    assert keys.find("key 8") is None
    keys.close()


# ------------------------------------------------------------------------------------------------------------ a broker


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        yield harness
        await close_clients()


async def close_clients() -> None:
    for client in Client.opened:
        await client.close()
    Client.opened.clear()


async def publish(client: Client, messages: Iterable[Message], *, first: int = 0) -> None:
    """Send single messages of producer 0 and wait for the receipts."""
    count = 0
    for sequence_id, (key, payload) in enumerate(messages, first):
        command = BaseCommand(type=Type.SEND)
        command.send.producer_id, command.send.sequence_id = 0, sequence_id
        data = command.SerializeToString()
        entry = single(key, payload)
        client.write((4 + len(data) + len(entry)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data + entry)
        count += 1
    assert len(await client.receipts(count)) == count


async def finished(harness: Harness, name: str = TOPIC) -> str:
    """Wait for the end of a compaction."""
    await until(lambda: harness.broker.compaction.progress(name).status != "RUNNING")
    return harness.broker.compaction.progress(name).status


async def compacted(harness: Harness) -> None:
    harness.broker.compaction.start(topic_of(harness))
    assert await finished(harness) == "SUCCESS", harness.broker.compaction.progress(TOPIC)


async def reading(harness: Harness, *, read_compacted: bool = True, **fields: Any) -> Client:  # noqa: ANN401
    """A reader from the earliest message on."""
    client = await Client.connected(harness.port)
    start = {"ledgerId": 2**64 - 1, "entryId": 2**64 - 1}
    said = {"subscription": "reader-1", "durable": False, "start_message_id": start, **fields}
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, consumer_id=0, subType=0, read_compacted=read_compacted, **said
    )
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=1000))
    return client


async def received(client: Client, count: int) -> list[tuple[int, str, bytes]]:
    """Entry id, key and payload of the next single messages."""
    out: list[tuple[int, str, bytes]] = []
    while len(out) < count:
        command, entry = await client.read_frame()
        if command.type == Type.MESSAGE:
            ((_, key, payload),) = messages_in(entry)
            out.append((command.message.message_id.entryId, key, payload))
    return out


async def last_message_id(client: Client) -> tuple[int, int]:
    client.write(frame(Type.GET_LAST_MESSAGE_ID, request_id=99, consumer_id=0))
    while True:
        command = await client.read()
        if command.type == Type.GET_LAST_MESSAGE_ID_RESPONSE:
            found = command.getLastMessageIdResponse.last_message_id
            return found.entryId, found.batch_index


async def test_a_reader_gets_what_is_left_and_then_what_is_new(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [(f"k{i % 3}", b"%d" % i) for i in range(9)])
    await compacted(harness)
    await publish(producer, [("k0", b"live")], first=9)
    reader = await reading(harness)
    assert await received(reader, 4) == [(6, "k0", b"6"), (7, "k1", b"7"), (8, "k2", b"8"), (9, "k0", b"live")]
    plain = await reading(harness, read_compacted=False, subscription="reader-2")
    assert [one[0] for one in await received(plain, 10)] == list(range(10))


async def test_nothing_is_trimmed_that_is_not_compacted_and_the_rest_may_go(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [(f"k{i % 1_500}", b"%d" % i) for i in range(3_000)])
    topic = topic_of(harness)
    await topic.open_subscription("s", durable=True, start=0)
    topic.subscriptions["s"].moves.skip_all()
    await compacted(harness)
    await publish(producer, [("new", b"x")] * 2_000, first=3_000)
    topic.subscriptions["s"].moves.skip_all()
    assert topic.subscriptions[COMPACTION_SUBSCRIPTION].cursor.mark_delete == 2_999
    assert topic.retained_from() == 3_000
    topic.first_entry_id = topic.retained_from()
    harness.broker.log.trim(topic.ledger_id, topic.first_entry_id)
    reader = await reading(harness)
    assert [one[0] for one in await received(reader, 1_000)] == list(range(1_500, 2_500))
    await compacted(harness)
    again = await reading(harness, subscription="reader-2")
    reader.write(frame(Type.FLOW, consumer_id=0, messagePermits=1000))
    assert [one[0] for one in await received(again, 1_000)] == list(range(1_500, 2_500))
    again.write(frame(Type.FLOW, consumer_id=0, messagePermits=1000))
    assert [one[0] for one in await received(again, 501)] == [*range(2_500, 3_000), 4_999]


async def test_a_durable_subscription_moves_over_what_was_compacted_away(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [(f"k{i % 2}", b"%d" % i) for i in range(10)])
    await compacted(harness)
    consumer = await reading(harness, durable=True, subscription="s", initialPosition=1)
    ids = [one[0] for one in await received(consumer, 2)]
    assert ids == [8, 9]
    subscription = topic_of(harness).subscriptions["s"]
    assert subscription.cursor.mark_delete == 7
    consumer.write(ack(topic_of(harness), *ids))
    await until(lambda: subscription.backlog == 0)


def ack(topic: Topic, *entry_ids: int) -> bytes:
    command = BaseCommand(type=Type.ACK)
    command.ack.consumer_id, command.ack.ack_type = 0, 0  # type: ignore[assignment]
    for entry_id in entry_ids:
        command.ack.message_id.add(ledgerId=topic.ledger_id, entryId=entry_id)
    data = command.SerializeToString()
    return (4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


async def test_the_last_message_of_a_compacted_topic_is_one_that_is_there(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1"), ("b", b"2"), ("c", b"3"), ("c", b"")])
    await compacted(harness)
    reader = await reading(harness)
    plain = await reading(harness, read_compacted=False, subscription="reader-2")
    assert await last_message_id(reader) == (1, -1)
    assert await last_message_id(plain) == (3, -1)


async def test_a_topic_of_which_nothing_is_left_has_no_last_message(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1"), ("a", b"")])
    await compacted(harness)
    reader = await reading(harness)
    assert await last_message_id(reader) == (2**64 - 1, -1)
    await publish(producer, [("a", b"2")], first=2)
    assert await received(reader, 1) == [(2, "a", b"2")]


async def test_a_reader_under_way_goes_on_in_the_new_ledger(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [(f"k{i}", b"%d" % i) for i in range(1_500)])
    await compacted(harness)
    reader = await reading(harness)
    assert [one[0] for one in await received(reader, 1_000)] == list(range(1_000))
    await publish(producer, [(f"k{i}", b"") for i in range(0, 1_500, 2)], first=1_500)
    await compacted(harness)
    reader.write(frame(Type.FLOW, consumer_id=0, messagePermits=1000))
    assert [one[0] for one in await received(reader, 250)] == list(range(1_001, 1_500, 2))


async def test_two_compactions_at_a_time_are_one_too_many(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1")])
    harness.disk.hold()
    harness.broker.compaction.start(topic_of(harness))
    with pytest.raises(AlreadyExists, match="in progress"):
        harness.broker.compaction.start(topic_of(harness))
    harness.disk.release()
    assert await finished(harness) == "SUCCESS"
    await compacted(harness)


async def test_the_admin_port_starts_compactions_and_tells_of_them(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1"), ("a", b"2")])
    name = topic_of(harness).name
    assert await administration(harness.broker).topics.compaction_status(name) == {"status": "NOT_RUN", "lastError": ""}
    await administration(harness.broker).topics.compact(name)
    assert (await administration(harness.broker).topics.compaction_status(name))["status"] == "RUNNING"
    await finished(harness)
    assert await administration(harness.broker).topics.compaction_status(name) == {"status": "SUCCESS", "lastError": ""}
    assert harness.broker.compaction.progress(TOPIC).removed == 1


async def test_a_non_persistent_topic_is_not_compacted(harness: Harness) -> None:
    name = TOPIC.replace("persistent", "non-persistent")
    await Client.producing(harness.port, topic=name)
    topic = harness.broker.topics.get(name)
    assert topic is not None
    with pytest.raises(NotAllowed):
        harness.broker.compaction.start(topic)


async def test_a_topic_is_compacted_by_itself_when_its_threshold_is_reached(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1"), ("a", b"2")])
    await harness.broker.policies.set_topic(TOPIC, "compactionThreshold", 100_000)
    await harness.broker.periodic_checks.run("compaction")
    assert harness.broker.compaction.progress(TOPIC).status == "NOT_RUN"
    assert topic_of(harness).subscriptions[COMPACTION_SUBSCRIPTION].cursor.mark_delete == -1
    await publish(producer, [("a", bytes(1_000))] * 150, first=2)
    await harness.broker.periodic_checks.run("compaction")
    assert await finished(harness) == "SUCCESS"
    assert topic_of(harness).subscriptions[COMPACTION_SUBSCRIPTION].backlog == 0
    await harness.broker.periodic_checks.run("compaction")
    assert harness.broker.compaction.progress(TOPIC).status == "SUCCESS"


async def test_what_was_compacted_before_is_dropped_and_only_the_new_ledger_is_left(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1")])
    await compacted(harness)
    first = harness.broker.states.of(TOPIC)[COMPACTED_LEDGER]
    await publish(producer, [("a", b"2")], first=1)
    await compacted(harness)
    second = harness.broker.states.of(TOPIC)[COMPACTED_LEDGER]
    await until(lambda: harness.broker.log.ledgers() == {topic_of(harness).ledger_id, second})
    assert first != second


async def test_a_topic_that_is_deleted_while_it_is_compacted_stays_deleted(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1")])
    topic = topic_of(harness)
    harness.broker.compaction.start(topic)
    harness.disk.hold()
    deleting = asyncio.ensure_future(harness.broker.topic_life.delete(topic.name, force=True))
    await until(lambda: topic.fenced)
    harness.disk.release()
    await deleting
    assert await finished(harness) in ("ERROR", "NOT_RUN")  # forgotten with its topic
    assert harness.broker.states.of(TOPIC) == {}
    await until(lambda: harness.broker.log.ledgers() == set())


async def test_a_deleted_topic_leaves_nothing_with_the_compactor(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("a", b"1")])
    await compacted(harness)
    await harness.broker.topic_life.delete(topic_of(harness).name, force=True)
    assert harness.broker.compaction._progress == {}  # noqa: SLF001


async def test_a_ledger_that_the_disk_may_name_is_not_dropped_when_it_says_that_it_failed(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await publish(producer, [("a", b"1"), ("b", b"2"), ("a", b"3")])
        put_document = harness.broker.catalog.put_document

        def put_and_fail(kind: str, name: str, value: Any, done: Done, **more: Any) -> None:  # noqa: ANN401
            put_document(kind, name, value, lambda _: done(MetadataFailed("the sync failed")), **more)

        harness.broker.catalog.put_document = put_and_fail  # type: ignore[method-assign]
        harness.broker.compaction.start(topic_of(harness))
        assert await finished(harness) == "ERROR"
        await close_clients()
    async with running(tmp_path) as harness:
        reader = await reading(harness)
        assert await received(reader, 2) == [(1, "b", b"2"), (2, "a", b"3")]
        await close_clients()


async def test_a_restart_knows_what_was_compacted(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await publish(producer, [("a", b"1"), ("b", b"2"), ("a", b"3")])
        await compacted(harness)
        await close_clients()
    async with running(tmp_path) as harness:
        await publish(await Client.producing(harness.port), [("c", b"4")], first=3)
        reader = await reading(harness)
        assert await received(reader, 3) == [(1, "b", b"2"), (2, "a", b"3"), (3, "c", b"4")]
        await compacted(harness)
        again = await reading(harness, subscription="reader-2")
        assert await received(again, 3) == [(1, "b", b"2"), (2, "a", b"3"), (3, "c", b"4")]
        await close_clients()


async def test_a_stop_ends_a_compaction_and_leaves_the_topic_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await publish(producer, [(f"k{i}", b"x") for i in range(3_000)])
        harness.broker.compaction.start(topic_of(harness))
        await close_clients()
    async with running(tmp_path) as harness:
        assert COMPACTED_LEDGER not in harness.broker.states.of(TOPIC)
        ledgers = harness.broker.log.ledgers()
        assert len(ledgers) == 1
        reader = await reading(harness)
        assert [one[0] for one in await received(reader, 1_000)] == list(range(1_000))
        await close_clients()


async def test_only_one_receiver_can_read_what_is_compacted(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    client.write(
        frame(
            Type.SUBSCRIBE, request_id=1, topic=TOPIC, subscription="s", consumer_id=0, subType=1, read_compacted=True
        )
    )
    assert "readCompacted only allowed" in (await client.expect(Type.ERROR)).error.message


# ------------------------------------------------------------------------------------- who touches its subscription

T = TopicName.parse(TOPIC)


async def test_nobody_but_compaction_moves_its_subscription(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("k", b"old")])
    await compacted(harness)
    await publish(producer, [("k", b"new")], first=1)
    subscriptions, name = administration(harness.broker).subscriptions, COMPACTION_SUBSCRIPTION
    for move in (
        subscriptions.skip_messages(T, name, 1),
        subscriptions.skip_all(T, name),
        subscriptions.expire_older_than(T, name, 0),
        subscriptions.expire_to_position(T, name, LATEST),
        subscriptions.reset_to_time(T, name, 2**60),
        subscriptions.reset_to_position(T, name, LATEST),
        subscriptions.clear_backlogs(T.namespace_name, name),
    ):
        with pytest.raises(NotAllowed, match="moved by compaction only"):
            await move
    assert topic_of(harness).subscriptions[name].cursor.mark_delete == 0


async def test_a_compacted_topic_goes_with_its_subscription_and_shows_no_old_values_over_a_restart(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        await publish(producer, [("k", b"old")])
        await compacted(harness)
        topic = topic_of(harness)
        compacted_ledger = topic.compacted
        assert compacted_ledger is not None
        await topic.open_subscription("s", durable=True, start=0)
        await administration(harness.broker).subscriptions.delete(T, COMPACTION_SUBSCRIPTION)
        await publish(producer, [("k", b"new")], first=1)
        topic.subscriptions["s"].moves.skip_all()
        await harness.broker.subscription_store.delete(topic.subscriptions["s"])
        assert topic.compacted is None
        await close_clients()
    async with running(tmp_path) as harness:
        assert compacted_ledger.ledger_id not in harness.broker.log.ledgers()
        topic = await harness.broker.topics.load(T)
        assert topic.compacted is None
        reader = await reading(harness)
        producer = await Client.producing(harness.port)
        await publish(producer, [("k", b"newest")], first=2)
        assert await received(reader, 3) == [(0, "k", b"old"), (1, "k", b"new"), (2, "k", b"newest")]


async def test_a_truncated_topic_shows_nothing_of_what_was_compacted(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("k", b"old")])
    await compacted(harness)
    await publish(producer, [("k", b"new")], first=1)
    await harness.broker.topic_life.truncate(topic_of(harness))
    assert topic_of(harness).compacted is None
    reader = await reading(harness)
    await publish(producer, [("k", b"newest")], first=2)
    assert await received(reader, 1) == [(2, "k", b"newest")]


async def test_while_a_topic_is_compacted_its_subscription_is_not_deleted(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish(producer, [("k", b"old")])
    topic = topic_of(harness)
    await compacted(harness)
    harness.broker.compaction.start(topic)
    with pytest.raises(PreconditionFailed, match="being compacted"):
        await administration(harness.broker).subscriptions.delete(T, COMPACTION_SUBSCRIPTION)
    assert await finished(harness) == "SUCCESS"
    assert COMPACTION_SUBSCRIPTION in topic.subscriptions
