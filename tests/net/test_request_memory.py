# SPDX-License-Identifier: Apache-2.0
"""KIP-72 over sockets: muted when memory is short, read again when it is not, and nothing left behind, ever.

P and B numbers are the cases of Kafka's tests, and those beyond, as listed in docs/adr/0004-request-memory.md.
"""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.testing.client import Type, frame
from penstock.testing.loop import VirtualLoop
from tests.net.harness import KEEP_ALIVE_S, SMALL, Client, Harness, connect, payload_for, publish, running, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Transport

FRAME_BYTES = 100 * KIB
LARGEST = payload_for(FRAME_BYTES)


async def fill(broker: Harness, client: Client) -> None:
    """Hold the disk and let one frame take the whole pool, which must be of one frame."""
    broker.disk.hold()
    client.publish(LARGEST)
    await until(lambda: broker.memory.available == 0)


# ------------------------------------------------------------------------------------------ P14 to P19: mute and unmute


async def test_p14_p15_p16_a_connection_is_muted_without_memory_and_read_when_there_is_some(
    transport: Transport,
) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        first, second = await Client.producing(*where), await Client.producing(*where, topic="other")
        assert broker.memory.available == FRAME_BYTES

        await fill(broker, first)
        second.publish(LARGEST)
        await until(broker.muted)
        await turns()
        assert broker.memory.is_out_of_memory
        assert broker.used == FRAME_BYTES
        assert broker.muted() == [broker.connection_of(second)]

        broker.disk.release()
        assert await first.receipts(1) == [0]
        assert await second.receipts(1) == [0]
        assert broker.memory.available == FRAME_BYTES
        assert not broker.muted()


async def test_p17_a_part_of_a_record_is_looked_at_once_and_then_left_alone(transport: Transport) -> None:
    async with transport.running() as (broker, where):
        useless, busy = await Client.producing(*where), await Client.producing(*where)
        useless.write(publish(SMALL)[:100])
        connection = broker.connection_of(useless)
        await until(lambda: broker.snapshot().held_bytes == 100)

        reads = connection.read_count
        for row in range(100):
            await busy.published(SMALL, first=row)
        assert connection.read_count == reads
        assert broker.used == 100


async def test_p18_what_tls_has_decrypted_already_is_served_at_once_after_unmuting(transport: Transport) -> None:
    loop = asyncio.get_running_loop()
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        filler, waiting = await Client.producing(*where), await Client.producing(*where)
        await fill(broker, filler)
        # All of it fits in one record: the socket will have nothing more to say when there is memory again.
        waiting.publish(SMALL, SMALL)
        await until(broker.muted)

        broker.disk.release()
        assert await filler.receipts(1) == [0]
        freed_at_s = loop.time()
        assert await waiting.receipts(2) == [0, 1]
        assert loop.time() - freed_at_s < 1.0  # 0.05 s when the machine has nothing else to do; a timer would need more


async def test_p19_pipelined_sends_keep_their_order_through_mutings(transport: Transport) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        clients = [await Client.producing(*where, topic=f"t{row}") for row in range(4)]
        sizes = [700, 90 * KIB, 20 * KIB, 60 * KIB, 1] * 6
        for client in clients:
            client.publish(*map(bytes, sizes))
        for client in clients:
            assert await client.receipts(len(sizes)) == list(range(len(sizes)))
        assert broker.snapshot().used_bytes_max <= 2 * FRAME_BYTES - 1


# ---------------------------------------------------------------------------- P20: what keep-alive makes of being muted


async def test_p20_a_muted_connection_is_not_closed_for_the_silence_we_impose_on_it(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        filler, muted = await Client.producing(broker.port), await Client.producing(broker.port)
        await fill(broker, filler)
        muted.publish(LARGEST)
        await until(broker.muted)

        for _ in range(4):
            broker.clock.advance(ms=KEEP_ALIVE_S * 1000)
            for session in list(broker.broker.sessions):
                session.check_alive(broker.clock.monotonic_ns())
        assert broker.connection_of(muted).is_open

        broker.disk.release()
        await muted.expect(Type.PING)


async def test_p20_a_silent_client_is_closed_after_two_keep_alive_intervals(harness: Harness) -> None:
    silent, talking = await Client.connected(harness.port), await Client.connected(harness.port)
    mute = await Client.open(harness.port)
    await until(lambda: len(harness.connections) == 3)

    for _ in range(2):
        harness.clock.advance(ms=KEEP_ALIVE_S * 1000)
        for session in list(harness.broker.sessions):
            session.check_alive(harness.clock.monotonic_ns())
        await talking.expect(Type.PING)
        talking.write(frame(Type.PONG) + frame(Type.PING))
        await talking.expect(Type.PONG)

    await silent.closed()
    await mute.closed()
    assert [connection.is_open for connection in harness.connections.all()] == [True]


# -------------------------------------------------------------------------- P21 to P33: nothing is left of a connection


async def test_p21_a_closed_connection_leaves_no_reference_not_even_to_the_garbage_collector(
    transport: Transport,
) -> None:
    async with transport.running() as (broker, where):
        client = await Client.producing(*where)
        client.write(publish(SMALL)[:500])
        await until(lambda: broker.snapshot().held_bytes == 500)
        connection = weakref.ref(broker.connection_of(client))
        gc.disable()
        try:
            client.abort()
            await until(lambda: connection() is None)
        finally:
            gc.enable()
        assert broker.used == 0


def is_muted(broker: Harness, client: Client) -> bool:
    """Whether this client is not read."""
    return bool(broker.connection_of(client).muted)


def frame_of(size: int) -> bytes:
    """The beginning of a frame that announces so many bytes."""
    return size.to_bytes(4, "big") + b"\x00\x00\x00\x02\x08\x06"


BAD_INPUT = {
    "p22 unknown command": b"\x00\x00\x00\x08\x00\x00\x00\x04\x08\xc8\x01\x00",
    "p22 a server's command": frame(Type.PRODUCER_SUCCESS, request_id=1, producer_name="p"),
    "p23 not protobuf": b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
    "p23 a command longer than its frame": b"\x00\x00\x00\x08\x00\x00\x00\x05\x08\x12\x92\x01",
    "p23 a second CONNECT of nothing but garbage": b"\x00\x00\x00\x06\x00\x00\x00\x02\x08\x02",
    "p26 oversize": frame_of(MIB + 1),
    "p27 negative": frame_of(2**32 - 1),
    "p28 zero": bytes(4) + b"\x00\x00\x00\x02\x08\x06",
    "a producer nobody opened": publish(SMALL, producer_id=7),
}


@pytest.mark.parametrize("bad", BAD_INPUT.values(), ids=BAD_INPUT.keys())
async def test_p22_p23_p26_p27_p28_bad_input_closes_the_connection_and_gives_every_byte_back(
    harness: Harness, bad: bytes
) -> None:
    bystander, client = await Client.producing(harness.port), await Client.producing(harness.port)
    client.write(publish(SMALL) + bad)
    await client.closed()
    await until(lambda: harness.used == 0)
    assert len(harness.connections) == 1
    bystander.publish(SMALL)
    assert await bystander.receipts(1) == [0]


async def test_p23_an_entry_with_a_wrong_checksum_is_answered_with_an_error_and_its_memory_is_free(
    harness: Harness,
) -> None:
    client = await Client.producing(harness.port)
    broken = bytearray(publish(SMALL, 0))
    broken[-1] ^= 1
    client.write(bytes(broken) + publish(SMALL, 1))
    assert (await client.expect(Type.SEND_ERROR)).send_error.sequence_id == 0
    assert await client.receipts(1) == [1]
    assert harness.used == 0


@pytest.mark.parametrize("sent_bytes", [2, 100, 70 * KIB])
async def test_p29_gone_in_the_middle_of_a_frame_gives_every_byte_back(transport: Transport, sent_bytes: int) -> None:
    async with transport.running(frame_bytes_max=FRAME_BYTES) as (broker, where):
        client = await Client.producing(*where)
        client.write(publish(LARGEST)[:sent_bytes])
        await until(lambda: broker.used == sent_bytes)
        client.abort()
        await until(lambda: broker.used == 0)
        assert len(broker.connections) == 0


async def test_p30_gone_while_muted_gives_every_byte_and_the_place_in_the_queue_back(transport: Transport) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        filler = await Client.producing(*where)
        gone = [await Client.producing(*where, topic=f"t{row}") for row in range(3)]
        last = await Client.producing(*where, topic="last")
        await fill(broker, filler)
        for client in [*gone, last]:
            client.publish(LARGEST)
            await until(partial(is_muted, broker, client))
        for client in gone:
            client.abort()

        broker.disk.release()
        assert await filler.receipts(1) == [0]
        assert await last.receipts(1) == [0]
        await until(lambda: len(broker.connections) == 2)
        await until(lambda: broker.used == 0)
        assert not broker.memory.waiting


async def test_p31_the_broker_stops_while_clients_are_muted_and_gives_every_byte_back(transport: Transport) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        filler, muted = await Client.producing(*where), await Client.producing(*where)
        await fill(broker, filler)
        muted.publish(LARGEST)
        await until(broker.muted)
    # `running` has waited until all is free.
    assert broker.used == 0
    assert not broker.memory.waiting
    assert len(broker.connections) == 0
    await filler.closed()
    await muted.closed()


async def test_p33_commands_are_free_at_once_and_publishes_when_they_are_answered(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    harness.disk.hold()
    client.write(frame(Type.PING) + publish(SMALL) + frame(Type.PING))
    await client.expect(Type.PONG)
    await client.expect(Type.PONG)
    assert harness.used == len(publish(SMALL))
    harness.disk.release()
    assert await client.receipts(1) == [0]
    assert harness.used == 0


# -------------------------------------------------------------------------------------------------------------- beyond


async def test_b4_who_waits_is_read_by_the_release_itself_and_not_by_a_timer(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        filler, waiting = await Client.producing(broker.port), await Client.producing(broker.port)
        await fill(broker, filler)
        waiting.publish(SMALL)
        await until(broker.muted)
        connection = broker.connection_of(waiting)
        reads = connection.read_count

        broker.disk.release()
        await until(lambda: broker.used < FRAME_BYTES or connection.read_count > reads)
        for _ in range(2):  # one turn of the loop for the wake-up, one to be sure
            await asyncio.sleep(0)
        assert connection.read_count == reads + 1
        assert await waiting.receipts(1) == [0]


async def test_b5_who_announces_much_and_sends_little_holds_little_and_stops_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=2 * FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        dribblers = [await Client.producing(broker.port, topic=f"d{row}") for row in range(100)]
        for dribbler in dribblers:
            dribbler.write(publish(LARGEST)[:200])
        await until(lambda: broker.used == 100 * 200)
        honest = await Client.producing(broker.port, topic="honest")
        for row in range(100):
            honest.publish(*[SMALL] * 10, first=10 * row)
            assert await honest.receipts(10) == list(range(10 * row, 10 * row + 10))
        assert not broker.muted()
        assert broker.used == 100 * 200


async def test_b5_frames_that_stall_are_evicted_once_others_wait_and_not_before(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        stalling, honest = await Client.producing(broker.port), await Client.producing(broker.port, topic="honest")
        stalling.write(publish(LARGEST)[:-1])
        await until(lambda: broker.used == FRAME_BYTES - 1)
        broker.clock.advance(ns=10 * NS_PER_S)
        broker.connections.evict_slow()
        await turns()
        assert broker.connection_of(stalling).is_open  # nobody waits

        honest.publish(SMALL)
        await until(broker.muted)
        broker.clock.advance(ns=2 * NS_PER_S)
        broker.connections.evict_slow()
        await stalling.closed()
        assert await honest.receipts(1) == [0]
        assert broker.snapshot().evicted_total == 1


async def test_b8_what_was_accepted_is_kept_when_the_connection_goes_while_its_next_frame_waits(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        client = await Client.producing(broker.port)
        await fill(broker, client)
        client.publish(LARGEST, first=1)
        await until(broker.muted)
        client.abort()
        broker.disk.release()
        await until(lambda: len(broker.connections) == 0)

        consumer = await Client.consuming(broker.port)
        assert (await consumer.expect(Type.MESSAGE)).message.message_id.entryId == 0
        assert broker.used == 0


async def test_b9_commands_before_the_next_publish_are_carried_out_without_memory(transport: Transport) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        filler, other = await Client.producing(*where), await Client.producing(*where, topic="other")
        await fill(broker, filler)

        other.write(frame(Type.PING) + frame(Type.PING) + publish(SMALL) + frame(Type.PING))
        await other.expect(Type.PONG)
        await other.expect(Type.PONG)
        await until(broker.muted)
        await turns()
        assert broker.used == FRAME_BYTES
        assert broker.muted() == [broker.connection_of(other)]

        broker.disk.release()
        await other.expect(Type.PONG)
        assert await other.receipts(1) == [0]


async def test_commands_without_memory_keep_their_boundaries_when_a_socket_gives_them_in_pieces(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        filler, other = await Client.producing(broker.port), await Client.connected(broker.port)
        await fill(broker, filler)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.network.chance = random.Random(5)
        for _ in range(4):
            other.write(frame(Type.PING))
            await other.expect(Type.PONG)
        assert broker.used == FRAME_BYTES
        broker.disk.release()


async def test_b9_who_only_consumes_is_not_muted_because_others_publish_too_much(transport: Transport) -> None:
    async with transport.running(pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        filler = await Client.producing(*where)
        await filler.published(SMALL, SMALL)
        await fill(broker, filler)
        flooder = await Client.producing(*where, topic="flood")  # without memory, even this works
        flooder.publish(LARGEST)
        await until(broker.muted)

        consumer = await Client.consuming(*where, permits=1)
        for row in range(2):
            message = (await consumer.expect(Type.MESSAGE)).message
            assert message.message_id.entryId == row
            consumer.write(frame(Type.FLOW, consumer_id=0, messagePermits=1))
        assert broker.muted() == [broker.connection_of(flooder)]
        assert [reader.owner for reader in broker.snapshot().muted] == [broker.connection_of(flooder).id]


async def test_b9_a_publish_in_disguise_gets_no_memory_by_it(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        filler, client = await Client.producing(broker.port), await Client.producing(broker.port)
        await fill(broker, filler)
        honest = publish(SMALL)
        command_bytes = int.from_bytes(honest[4:8], "big")
        # Protobuf lets the last of two values win: this command begins as a PING and ends as a SEND.
        command = b"\x08\x12" + honest[8 : 8 + command_bytes]
        body = len(command).to_bytes(4, "big") + command + honest[8 + command_bytes :]
        client.write(len(body).to_bytes(4, "big") + body)
        await client.closed()
        assert broker.used == FRAME_BYTES


async def test_b10_every_muted_connection_tells_since_when_why_and_what_it_wants(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        filler, muted = await Client.producing(broker.port), await Client.producing(broker.port)
        await fill(broker, filler)
        broker.clock.advance(ns=7)
        muted.publish(LARGEST)
        await until(broker.muted)

        (seen,) = broker.snapshot().muted
        assert seen.owner == broker.connection_of(muted).id
        assert seen.reason is HoldKind.REQUEST_MEMORY
        assert seen.since_ns == broker.clock.monotonic_ns() == broker.connection_of(muted).muted.since_ns
        assert (seen.held_bytes, seen.missing_bytes) == (0, 0)
        assert seen.want_bytes > 0


async def test_the_number_of_requests_mutes_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, requests_max=10) as broker:
        first, second = await Client.producing(broker.port), await Client.producing(broker.port, topic="other")
        broker.disk.hold()
        first.publish(*[b""] * 10)
        await until(lambda: broker.snapshot().requests == 10)
        second.publish(b"")
        await until(broker.muted)
        (seen,) = broker.snapshot().muted
        assert seen.reason is HoldKind.REQUEST_COUNT
        broker.disk.release()
        assert await first.receipts(10) == list(range(10))
        assert await second.receipts(1) == [0]


# A client that is gone before its request's task began leaves a coroutine that nobody has awaited.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_clients_that_die_at_random_leave_nothing_behind(transport: Transport) -> None:
    chance = random.Random(5)
    async with (
        transport.running(pool_bytes=2 * FRAME_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where),
        AsyncExitStack() as stack,
    ):
        survivor = await Client.producing(*where, topic="survivor")
        stack.push_async_callback(survivor.close)
        for life in range(60):
            client = await Client.open(*where)
            said = connect() + frame(Type.PRODUCER, topic=f"t{life % 5}", producer_id=0, request_id=1)
            client.write(said[: chance.choice([len(said), chance.randrange(len(said))])])
            data = b"".join(publish(bytes(chance.randrange(FRAME_BYTES // 2)), row) for row in range(4))
            client.write(data[: chance.randrange(len(data))])
            if chance.random() < 0.2:
                (broker.disk.hold if chance.random() < 0.5 else broker.disk.release)()
            await turns(chance.randrange(4))
            (client.abort if chance.random() < 0.7 else client.writer.close)()
        broker.disk.release()
        survivor.publish(LARGEST)
        assert await survivor.receipts(1) == [0]
        await until(lambda: len(broker.connections) == 1)
        await until(lambda: broker.used == 0)
        assert not broker.memory.waiting
        assert broker.connections.outbound.used_bytes == 0
        assert len(broker.connections.outbound) == 0
        assert broker.snapshot().used_bytes_max <= 3 * FRAME_BYTES - 1
