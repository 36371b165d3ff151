# SPDX-License-Identifier: Apache-2.0
"""What consumers are sent stays within the outbound budget, whoever does not read, and those who read go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB, MIB
from penstock.governance.outbound import Outbound
from penstock.net.connection import STALLED_NS
from penstock.net.send_queue import PIECE_BYTES, SENT_BYTES_KEPT
from penstock.net.tls import TLS_WRITE_BYTES
from tests.broker.consuming import EXCLUSIVE, KEY_SHARED, SHARED, Peer
from tests.net.harness import Client, running, turns, until

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from penstock.net.connection import Connection
    from penstock.testing.certificates import Certificate
    from tests.net.harness import Harness

BUDGET = 4 * MIB
# Of the broker's own commands to these clients (PING, SUCCESS): they are never refused.
ANSWERS = 64 * KIB


class Watched(Outbound["Connection"]):
    """Remembers the most that was ever in use."""

    most_bytes = 0

    def charge(self, nbytes: int) -> None:
        super().charge(nbytes)
        self.most_bytes = max(self.most_bytes, self.used_bytes)


def watch(harness: Harness, budget_bytes: int = BUDGET, entry_bytes_max: int = MIB) -> Watched:
    """Replace the books before anybody is connected."""
    watched = Watched(budget_bytes, entry_bytes_max=entry_bytes_max)
    harness.connections.outbound = watched
    return watched


async def published(harness: Harness, count: int, size: int) -> None:
    peer = await Peer.producing(harness)
    for _ in range(0, count, 32):
        await peer.publish(*[bytes(size)] * 32)


async def lazy_ones(
    harness: Harness, count: int, kind: int, *, together: bool = False, tls: ssl.SSLContext | None = None
) -> list[Peer]:
    """Consumers that subscribe and never read again."""
    peers = []
    for number in range(count):
        peer = Peer(await Client.connected(harness.tls_port if tls else harness.port, tls))
        await peer.subscribe(kind, name="lazy" if together else f"lazy-{number}", permits=0)
        peer.client.stop_reading()
        peers.append(peer)
    for peer in peers:
        peer.flow(10_000)
    return peers


async def while_time_goes_by(harness: Harness, reader: Peer, count: int) -> list[int]:
    """The sizes of what a reader receives, while the broker finds out who does not read."""
    received = asyncio.create_task(reader.payloads(count))
    while not received.done():
        await turns(5)
        harness.clock.advance(ns=STALLED_NS)
        harness.connections.evict_slow()
    return list(map(len, await received))


def pinned_bytes(connection: Connection) -> int:
    """What the queue of a connection keeps in memory: whole buffers, also those of which a part was sent."""
    whole = {}
    for buffer in connection.queue.buffers:
        base = buffer.obj if isinstance(buffer, memoryview) else buffer
        whole[id(base)] = len(memoryview(base))
    return sum(whole.values())


@pytest.mark.parametrize(
    ("kind", "together"), [(EXCLUSIVE, False), (SHARED, False), (SHARED, True), (KEY_SHARED, True)]
)
@pytest.mark.parametrize("cached", [False, True])
async def test_consumers_that_do_not_read_never_hold_more_than_the_budget_and_others_go_on(
    tmp_path: Path, kind: int, *, together: bool, cached: bool
) -> None:
    count = 640
    async with running(tmp_path, tail_cache_bytes=32 * MIB if cached else 0) as harness:
        books = watch(harness)
        await published(harness, count, 8 * KIB)
        await lazy_ones(harness, 24, kind, together=together)
        await until(lambda: books.used_bytes > BUDGET // 4)
        await turns()

        reader = await Peer.connected(harness)
        await reader.subscribe(EXCLUSIVE, name="reader", permits=count)
        assert await while_time_goes_by(harness, reader, count) == [8 * KIB] * count
        assert books.most_bytes <= BUDGET + ANSWERS
    assert (books.used_bytes, len(books), books.turn) == (0, 0, None)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
@pytest.mark.parametrize("batched", [1, 3])
@pytest.mark.parametrize("secure", [False, True])
async def test_what_was_put_back_comes_when_the_client_reads_again_whole_and_once(
    tmp_path: Path, certificate: Certificate, server_tls: ssl.SSLContext, kind: int, *, batched: int, secure: bool
) -> None:
    sizes = [3_000, 40_000, 200, 17_000, 90_000] * 32
    async with running(tmp_path, tail_cache_bytes=MIB, tls=server_tls) as harness:
        books = watch(harness)
        producer = await Peer.producing(harness)
        payloads = [number.to_bytes(4, "big") * (size // 4) for number, size in enumerate(sizes)]
        for first in range(0, len(payloads), 32):
            # One key: Key_Shared promises no order between keys, and messages without one spread.
            await producer.publish(*payloads[first : first + 32], messages=batched, partition_key="flight")
        lazy = await lazy_ones(harness, 6, kind, tls=certificate.client() if secure else None)
        await until(lambda: books.used_bytes > MIB)
        await turns()
        # Under TLS, what was encrypted already stays as well.
        largest = max(sizes) + KIB + (TLS_WRITE_BYTES if secure else 0)

        def put_back() -> bool:
            harness.clock.advance(ns=STALLED_NS)
            for connection in harness.connections.all():
                connection.put_back_if_stalled(harness.clock.monotonic_ns())
            return all(connection.out_bytes <= largest for connection in harness.connections.all())

        await until(put_back)
        # Reads that are under way end.
        await until(lambda: books.used_bytes == sum(one.out_bytes for one in harness.connections.all()))
        for peer in lazy:
            peer.client.go_on_reading()
            received = await peer.messages(len(payloads))
            assert sorted(one.payload for one in received) == payloads
            if kind != SHARED:
                assert [one.payload for one in received] == payloads
            await peer.client.close()
    assert (books.used_bytes, len(books), books.turn) == (0, 0, None)


async def test_large_entries_go_out_in_turns_beside_consumers_that_read_nothing(tmp_path: Path) -> None:
    size, count = 900 * KIB, 32
    async with running(tmp_path) as harness:
        books = watch(harness)
        await published(harness, count, size)
        lazy = await lazy_ones(harness, 8, EXCLUSIVE)
        await until(lambda: books.turn is not None and len(books) > 0)

        reader = await Peer.connected(harness)
        await reader.subscribe(EXCLUSIVE, name="reader", permits=count)
        assert await while_time_goes_by(harness, reader, count) == [size] * count
        assert books.most_bytes <= BUDGET + ANSWERS
        # Some were closed; as many as stood in the way, and the reader was not among them.
        assert 0 < len(harness.connections) <= len(lazy) + 2
    assert (books.used_bytes, len(books), books.turn) == (0, 0, None)


@pytest.mark.parametrize("cached", [False, True])
async def test_entries_that_wait_for_a_client_do_not_keep_the_run_they_came_in(tmp_path: Path, *, cached: bool) -> None:
    """Each run holds entries of many topics' worth of bytes; a consumer with one permit waits for one of them."""
    async with running(tmp_path, tail_cache_bytes=32 * MIB if cached else 0) as harness:
        books = watch(harness, 64 * MIB)
        await published(harness, 96, 20 * KIB)
        await lazy_ones(harness, 6, EXCLUSIVE)
        await until(lambda: books.used_bytes > MIB)
        await turns()
        held = pinned = 0
        for connection in harness.connections.all():
            held += connection.out_bytes
            pinned += pinned_bytes(connection)
            assert pinned_bytes(connection) <= connection.out_bytes + max(SENT_BYTES_KEPT, PIECE_BYTES)
        assert books.used_bytes == held
        assert pinned <= held * 1.25


@pytest.mark.parametrize("cached", [False, True])
async def test_batches_of_the_usual_size_come_whole_from_the_arenas_that_they_were_read_into(
    tmp_path: Path, *, cached: bool
) -> None:
    async with running(tmp_path, tail_cache_bytes=8 * MIB if cached else 0) as harness:
        consumer = await Peer.connected(harness)
        await consumer.subscribe(EXCLUSIVE, name="reader", permits=1_000)
        producer = await Peer.producing(harness)
        payloads = [number.to_bytes(4, "big") * (32 * KIB) for number in range(96)]
        for first in range(0, len(payloads), 24):
            await producer.publish(*payloads[first : first + 24])
        assert await consumer.payloads(len(payloads)) == payloads
        again = await Peer.connected(harness)
        await again.subscribe(EXCLUSIVE, name="again", permits=1_000)
        assert await again.payloads(len(payloads)) == payloads
        await until(lambda: harness.connections.memory.snapshot(0).used_bytes == 0)
