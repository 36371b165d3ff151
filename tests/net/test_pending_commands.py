# SPDX-License-Identifier: Apache-2.0
"""Commands that wait and answers that nobody takes: charged, bounded, given back, and in order."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from penstock.broker.schemas.checks.model import Schema, SchemaType, Strategy
from penstock.core.names import TopicName
from penstock.core.units import KIB, MIB
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import WAITING_BYTES
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import USEFUL_BYTES
from penstock.net.command_scheduler import TURN_COMMANDS
from penstock.net.connection import ANSWERS_BYTES_MIN
from penstock.net.socket_reader import ARENA_BYTES, FIRST_READ_BYTES
from penstock.testing.client import Type, entry, frame, send
from penstock.wire import codec
from tests.broker.governed import subscribe
from tests.net.harness import TIMEOUT_S, TOPIC, Client, payload_for, running, topic_of, turns, until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from penstock.testing.certificates import Certificate
    from tests.net.harness import Harness

COMMANDS_BYTES = 64 * WAITING_BYTES
# Makes answers to CONSUMER_STATS so long that few of them fill a share and what the kernel takes beside it.
LONG_NAME = "n" * 3_000
STATS = 2_000


def reasons(harness: Harness, client: Client) -> list[HoldKind]:
    """Why a client is not read."""
    return [mute.reason for mute in harness.connection_of(client).muted.snapshot()]


def requests(kind: int, count: int, **fields: object) -> bytes:
    """As many requests, numbered from 1000."""
    return b"".join(frame(kind, request_id=1_000 + row, **fields) for row in range(count))


def subscribe_to_new_topics(client: Client, count: int) -> None:
    """Send as many requests that each make a topic, and so wait for the catalog."""
    for row in range(count):
        fields = {"topic": f"{TOPIC}{row}", "subscription": "s", "subType": 1}
        client.write(frame(Type.SUBSCRIBE, request_id=row, consumer_id=row, **fields))


def acknowledgements(ledger_id: int, count: int) -> bytes:
    """As many acknowledgements of entry 0 that want an answer, numbered from 1000."""
    ids = [{"ledgerId": ledger_id, "entryId": 0}]
    return requests(Type.ACK, count, consumer_id=0, ack_type=0, message_id=ids)


async def named_consumer(
    harness: Harness, subscription: str, port: int = 0, tls: ssl.SSLContext | None = None
) -> Client:
    """A client whose answers to CONSUMER_STATS are long."""
    client = await Client.connected(port or harness.port, tls)
    fields = {"subscription": subscription, "consumer_id": 0, "subType": 1, "consumer_name": LONG_NAME}
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, **fields)
    return client


def topic_name() -> TopicName:
    """The topic's name, taken apart."""
    return TopicName.parse(TOPIC)


async def answers(client: Client, kind: int, count: int) -> None:
    """As many answers come, each request's once; those to requests that wait may come in another order."""
    answered = [codec.body_in(await client.expect(kind)).request_id for _ in range(count)]
    assert sorted(answered) == [1_000 + row for row in range(count)]


async def test_requests_that_wait_are_charged_and_mute_their_connection_until_they_end(tmp_path: Path) -> None:
    async with running(tmp_path, commands_bytes=COMMANDS_BYTES) as broker:
        client = await Client.connected(broker.port)
        memory = broker.broker.commands_memory
        with broker.catalog_held():
            subscribe_to_new_topics(client, 100)
            await until(lambda: reasons(broker, client) == [HoldKind.COMMANDS])
            await turns()
            assert memory.share_bytes // 2 <= memory.used_bytes <= memory.share_bytes + 2 * WAITING_BYTES
            # What was read of the others is still the bytes that came, and charged.
            assert 0 < broker.used <= FIRST_READ_BYTES
        answered = [(await client.expect(Type.SUCCESS)).success.request_id for _ in range(100)]
        assert sorted(answered) == list(range(100))
        assert (memory.used_bytes, memory.busy) == (0, 0)
        assert not broker.muted()


async def test_a_client_with_too_many_waiting_requests_is_muted_alone(tmp_path: Path) -> None:
    async with running(tmp_path, commands_bytes=COMMANDS_BYTES) as broker:
        greedy, modest = await Client.connected(broker.port), await Client.connected(broker.port)
        with broker.catalog_held():
            subscribe_to_new_topics(greedy, 100)
            await until(lambda: reasons(broker, greedy) == [HoldKind.COMMANDS])
            modest.write(frame(Type.PING))
            await modest.expect(Type.PONG)
            await modest.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic="x/y/z")


async def test_a_disconnect_gives_back_in_the_same_turn_what_its_requests_were_charged(tmp_path: Path) -> None:
    async with running(tmp_path, commands_bytes=COMMANDS_BYTES) as broker:
        client = await Client.connected(broker.port)
        memory = broker.broker.commands_memory
        with broker.catalog_held():
            subscribe_to_new_topics(client, 100)
            await until(lambda: reasons(broker, client))
            broker.connection_of(client).close("the test says so")
            assert (memory.used_bytes, memory.busy, broker.used) == (0, 0, 0)


async def test_a_producer_that_waits_for_its_turn_does_not_mute_its_connection(tmp_path: Path) -> None:
    async with running(tmp_path, commands_bytes=COMMANDS_BYTES) as broker:
        first, waiting = await Client.producing(broker.port), await Client.connected(broker.port)
        for row in range(100):
            waiting.write(frame(Type.PRODUCER, request_id=row, producer_id=row, topic=TOPIC, producer_access_mode=2))
        for _ in range(100):
            assert not (await waiting.expect(Type.PRODUCER_SUCCESS)).producer_success.producer_ready
        assert not broker.muted()
        assert broker.broker.commands_memory.used_bytes == 0
        assert broker.broker.sessions_memory.used_bytes >= 100 * WAITING_BYTES
        waiting.abort()
        await until(lambda: len(broker.connections) == 1)
        await first.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
    assert broker.broker.sessions_memory.used_bytes == 0


async def test_producers_that_wait_are_refused_when_their_row_is_used_up(tmp_path: Path) -> None:
    async with running(tmp_path, sessions_bytes=3 * KIB) as broker:
        await Client.producing(broker.port)
        waiting = await Client.connected(broker.port)
        answer = await waiting.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, producer_id=0, producer_access_mode=2)
        assert "that waits takes" in answer.error.message
        assert topic_of(broker).write_access.waiting == type(topic_of(broker).write_access.waiting)()


@pytest.mark.parametrize("secure", [False, True])
async def test_a_client_that_takes_no_answers_gets_no_more_of_them_made(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, *, secure: bool
) -> None:
    async with running(tmp_path, tls=server_tls, outbound_bytes=0) as broker:
        context = certificate.client() if secure else None
        client = await named_consumer(broker, "s", broker.tls_port if secure else broker.port, context)
        client.stop_reading()
        connection = broker.connection_of(client)
        client.write(requests(Type.CONSUMER_STATS, STATS, consumer_id=0))
        await until(lambda: reasons(broker, client) == [HoldKind.OUTBOUND])
        await turns()
        assert connection.out_bytes <= ANSWERS_BYTES_MIN + 4 * KIB
        assert broker.used <= FIRST_READ_BYTES

        client.go_on_reading()
        await answers(client, Type.CONSUMER_STATS_RESPONSE, STATS)
        assert not broker.muted()
        assert broker.used == 0


async def test_commands_publishes_and_acknowledgements_of_one_read_are_carried_out_in_their_order(
    harness: Harness,
) -> None:
    client = await Client.producing(harness.port)
    data, expected = [], []
    for row in range(500):
        data.append(frame(Type.LOOKUP, topic="x/y/z", request_id=1_000 + row))
        expected.append(1_000 + row)
        if row % 3 == 0:
            data.append(send(0, row, entry(b"x" * 100, sequence_id=row)))
    client.write(b"".join(data))
    seen: list[int] = []
    sequence_ids: list[int] = []
    while len(seen) < 500 or len(sequence_ids) < 167:
        command = await client.read()
        if command.type == Type.LOOKUP_RESPONSE:
            seen.append(command.lookupTopicResponse.request_id)
        else:
            assert command.type == Type.SEND_RECEIPT
            sequence_ids.append(command.send_receipt.sequence_id)
    assert seen == expected
    assert sequence_ids == list(range(0, 500, 3))
    await until(lambda: harness.used == 0)


async def test_a_ping_of_another_client_does_not_wait_for_a_flood_of_commands(harness: Harness) -> None:
    count = 10_000
    loud, quiet = await Client.connected(harness.port), await Client.connected(harness.port)
    loud.write(requests(Type.LOOKUP, count, topic="x/y/z"))
    await loud.expect(Type.LOOKUP_RESPONSE)
    quiet.write(frame(Type.PING))
    await quiet.expect(Type.PONG)
    # The flood is not over: its last commands have not even been read.
    assert harness.connection_of(loud).bytes_in < len(requests(Type.LOOKUP, count, topic="x/y/z"))


async def test_acknowledgements_that_want_answers_share_the_saves_of_their_cursor(harness: Harness) -> None:
    count = 1_000
    producer = await Client.producing(harness.port)
    await producer.published(b"x")
    consumer = await subscribe(harness)
    saves = 0
    save = harness.broker.catalog.save_cursors

    def counted(*args: object) -> None:
        nonlocal saves
        saves += 1
        save(*args)  # type: ignore[arg-type]

    harness.broker.catalog.save_cursors = counted  # type: ignore[assignment, method-assign]
    with harness.catalog_held():
        consumer.write(acknowledgements(topic_of(harness).ledger_id, count))
        await until(lambda: len(harness.broker.sessions) == 2)
        await until(lambda: harness.broker.commands_memory.used_bytes >= 100 * WAITING_BYTES)
        assert saves <= 2
    await answers(consumer, Type.ACK_RESPONSE, count)
    assert saves < count // 10


async def test_a_large_last_entry_is_read_once_for_all_who_ask_for_its_id(tmp_path: Path) -> None:
    count = 300
    async with running(tmp_path, frame_bytes_max=5 * MIB) as broker:
        producer = await Client.producing(broker.port)
        await producer.published(bytes(4 * MIB))
        consumer = await subscribe(broker)
        reads = 0
        read = broker.broker.log.read

        def counted(*args: object, **bounds: object) -> object:
            nonlocal reads
            reads += 1
            return read(*args, **bounds)  # type: ignore[arg-type]

        broker.broker.log.read = counted  # type: ignore[assignment, method-assign]
        consumer.write(requests(Type.GET_LAST_MESSAGE_ID, count, consumer_id=0))
        await answers(consumer, Type.GET_LAST_MESSAGE_ID_RESPONSE, count)
        assert reads == 1

        await producer.published(b"x", first=1)
        answer = await consumer.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=0)
        assert answer.getLastMessageIdResponse.last_message_id.entryId == 1
        assert reads == 2


@pytest.mark.real
async def test_a_large_schema_exists_once_however_many_answers_wait_to_be_sent(harness: Harness) -> None:
    definition = b'{"type":"string","doc":"' + b"d" * (500 * KIB) + b'"}'
    name = topic_name()
    await harness.broker.topics.get_or_create(name, create=True)
    registry = harness.broker.schemas
    await registry.put(name, Schema(SchemaType.JSON, definition, {}), Strategy.FULL)
    clients = [await Client.connected(harness.port) for _ in range(10)]
    tracemalloc.start()
    try:
        for client in clients:
            client.stop_reading()
            client.write(requests(Type.GET_SCHEMA, 50, topic=TOPIC))
        await until(lambda: all(harness.connection_of(client).out_bytes > 20 * KIB for client in clients))
        assert tracemalloc.get_traced_memory()[0] < 3 * len(definition)
    finally:
        tracemalloc.stop()
    for client in clients:
        client.go_on_reading()
    for client in clients:
        for row in range(50):
            answer = (await client.expect(Type.GET_SCHEMA_RESPONSE)).getSchemaResponse
            assert (answer.request_id, answer.schema.schema_data) == (1_000 + row, definition)
    await until(lambda: not registry._in_use)  # noqa: SLF001


async def test_schemas_that_start_again_from_version_0_are_not_taken_for_the_forgotten_ones(harness: Harness) -> None:
    name, registry = topic_name(), harness.broker.schemas
    await registry.put(name, Schema(SchemaType.STRING, b"", {"was": "first"}), Strategy.FULL)
    before = registry.latest(name)
    await registry.forget(name)
    await registry.put(name, Schema(SchemaType.STRING, b"", {"was": "second"}), Strategy.FULL)
    after = registry.latest(name)
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == (0, 0)
    assert after.schema.properties == {"was": "second"}


async def test_closes_of_producers_that_wait_for_the_disk_are_charged(tmp_path: Path) -> None:
    async with running(tmp_path, commands_bytes=COMMANDS_BYTES) as broker:
        client = await Client.producing(broker.port)
        broker.disk.hold()
        client.publish(b"x")
        await until(lambda: broker.used)
        client.write(b"".join(frame(Type.CLOSE_PRODUCER, producer_id=7, request_id=1_000 + row) for row in range(100)))
        await until(lambda: reasons(broker, client) == [HoldKind.COMMANDS])
        broker.disk.release()
        await client.receipts(1)
        await answers(client, Type.SUCCESS, 100)
        assert broker.broker.commands_memory.used_bytes == 0


async def test_without_request_memory_commands_are_carried_out_one_by_one_until_their_answers_fill_the_share(
    tmp_path: Path,
) -> None:
    frame_bytes = 100 * KIB
    async with running(tmp_path, pool_bytes=frame_bytes, frame_bytes_max=frame_bytes, outbound_bytes=0) as broker:
        filler, asking = await Client.producing(broker.port), await named_consumer(broker, "s")
        broker.disk.hold()
        filler.publish(bytes(frame_bytes - KIB))
        await until(lambda: broker.used > frame_bytes - KIB)
        filler.publish(bytes(frame_bytes - KIB), first=1)
        await until(lambda: reasons(broker, filler) == [HoldKind.REQUEST_MEMORY])
        used = broker.used
        asking.stop_reading()
        asking.write(requests(Type.CONSUMER_STATS, STATS, consumer_id=0))
        await until(lambda: reasons(broker, asking) == [HoldKind.OUTBOUND])
        await turns()
        assert broker.connection_of(asking).out_bytes <= ANSWERS_BYTES_MIN + 4 * KIB
        assert broker.used == used
        asking.go_on_reading()
        await answers(asking, Type.CONSUMER_STATS_RESPONSE, STATS)
        broker.disk.release()
        assert await filler.receipts(2) == [0, 1]


@pytest.mark.real
async def test_commands_that_nobody_takes_the_answers_of_do_not_keep_request_memory_from_others(tmp_path: Path) -> None:
    frame_bytes = 64 * KIB
    async with running(tmp_path, pool_bytes=frame_bytes, frame_bytes_max=frame_bytes, outbound_bytes=0) as broker:
        lazy: list[Client] = []
        while broker.memory.available >= USEFUL_BYTES:
            client = await named_consumer(broker, f"s{len(lazy)}")
            client.stop_reading()
            client.write(requests(Type.CONSUMER_STATS, STATS, consumer_id=0))
            lazy.append(client)
            await until(lambda: len(broker.muted()) == len(lazy))
            await turns()
        publisher = await Client.producing(broker.port)
        publisher.publish(payload_for(frame_bytes - KIB))
        await until(lambda: broker.memory.waiting)
        for _ in range(8):
            broker.clock.advance(ms=500)
            broker.connections.evict_slow()
            await turns(3)
        assert await publisher.receipts(1) == [0]
        assert broker.snapshot().evicted_total > 0


async def test_small_answers_that_wait_for_the_socket_are_kept_in_few_buffers(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    client.stop_reading()
    connection = harness.connection_of(client)
    connection.write_frame(bytes(8 * MIB))
    await turns()
    before = len(connection.queue.buffers)
    for row in range(10_000):
        connection.write_frame(row.to_bytes(20, "big"))
    assert len(connection.queue.buffers) - before <= 10_000 * 20 // (7 * KIB)
    client.go_on_reading()
    async with asyncio.timeout(TIMEOUT_S):
        await client.reader.readexactly(8 * MIB)
        for row in range(10_000):
            assert await client.reader.readexactly(20) == row.to_bytes(20, "big")


async def test_a_connection_that_waits_for_its_turn_is_not_watched_until_it_had_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    changes: list[tuple[str, int]] = []
    watch, forget = loop.add_reader, loop.remove_reader

    def add_reader(descriptor: int, callback: Callable[[], object]) -> None:
        changes.append(("watched", descriptor))
        watch(descriptor, callback)

    def remove_reader(descriptor: int) -> bool:
        changes.append(("not watched", descriptor))
        return forget(descriptor)

    async with running(tmp_path) as harness:
        client = await Client.connected(harness.port)
        monkeypatch.setattr(loop, "add_reader", add_reader)
        monkeypatch.setattr(loop, "remove_reader", remove_reader)
        client.write(requests(Type.PARTITIONED_METADATA, 2 * TURN_COMMANDS, topic=TOPIC))
        await until(lambda: changes)
        assert changes[0][0] == "not watched"
        for _ in range(2 * TURN_COMMANDS):
            await client.expect(Type.PARTITIONED_METADATA_RESPONSE)
        await turns()
        assert changes[-1] == ("watched", changes[0][1])
        assert (await client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=TOPIC)) is not None
        monkeypatch.undo()


async def test_reads_become_small_again_when_they_bring_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    grant = RequestMemory.try_charge

    def granted(memory: RequestMemory, owner: int, wanted: int, missing_bytes: int, now_ns: int) -> int:
        asked.append(wanted)
        return grant(memory, owner, wanted, missing_bytes, now_ns)

    async with running(tmp_path) as harness:
        client = await Client.producing(harness.port)
        monkeypatch.setattr(RequestMemory, "try_charge", granted)
        client.publish(*[b"x" * 64 * KIB] * 10)
        await client.receipts(10)
        assert max(asked) == ARENA_BYTES
        for _ in range(4):
            client.write(frame(Type.PING))
            await client.expect(Type.PONG)
        assert asked[-1] == FIRST_READ_BYTES
