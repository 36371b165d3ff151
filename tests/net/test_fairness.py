# SPDX-License-Identifier: Apache-2.0
"""Small frames beside large ones, over sockets: whoever sends whole frames does not wait for those who do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.core.units import KIB
from tests.net.harness import SMALL, Client, Harness, payload_for, publish, running, turns, until

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from tests.net.harness import Transport

FRAME_BYTES = 100 * KIB
LARGEST = payload_for(FRAME_BYTES)
POOL_BYTES = 4 * FRAME_BYTES
MOST = FRAME_BYTES * 9 // 10


async def stalled(broker: Harness, where: tuple[int, ssl.SSLContext | None]) -> list[Client]:
    """Connections that hold all but the reserve with nine tenths of a frame each, and some that wait behind them."""
    clients = [await Client.producing(*where, topic=f"large-{row}") for row in range(8)]
    for client in clients:
        client.write(publish(LARGEST)[:MOST])
    await until(lambda: broker.used >= broker.memory.ordinary_bytes and len(broker.muted()) >= 3)
    return clients


async def test_small_frames_pass_while_unfinished_large_ones_hold_all_that_they_may(transport: Transport) -> None:
    async with transport.running(pool_bytes=POOL_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        honest = await Client.producing(*where, topic="honest")
        await stalled(broker, where)
        for row in range(20):
            honest.publish(SMALL, SMALL, first=2 * row)
            assert await honest.receipts(2) == [2 * row, 2 * row + 1]
        # Not by luck: the others still have all of their part, and nobody was evicted.
        assert broker.used >= broker.memory.ordinary_bytes
        assert broker.snapshot().evicted_total == 0
        assert broker.snapshot().reserve_used_bytes == 0


async def test_a_small_frame_that_comes_in_two_pieces_passes_when_it_is_whole(transport: Transport) -> None:
    async with transport.running(pool_bytes=POOL_BYTES, frame_bytes_max=FRAME_BYTES) as (broker, where):
        honest = await Client.producing(*where, topic="honest")
        await stalled(broker, where)
        first, second = publish(SMALL, 0), publish(SMALL, 1)
        honest.write(first + second[:700])
        assert await honest.receipts(1) == [0]
        await turns()
        # Under TLS its next record ends the frame; nobody tells us of it but a second look.
        honest.write(second[700:])
        assert await honest.receipts(1) == [1]


async def test_a_batch_larger_than_one_look_passes_when_it_is_whole(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=POOL_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        honest = await Client.producing(broker.port, topic="honest")
        await stalled(broker, (broker.port, None))
        for row in range(5):
            honest.publish(bytes(80 * KIB), first=row)
            assert await honest.receipts(1) == [row]
        assert broker.used >= broker.memory.ordinary_bytes


@pytest.mark.parametrize("sent_bytes", [2, 700])
async def test_a_small_frame_begun_before_the_memory_was_spent_is_finished(tmp_path: Path, sent_bytes: int) -> None:
    async with running(tmp_path, pool_bytes=POOL_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        honest = await Client.producing(broker.port, topic="honest")
        honest.write(publish(SMALL)[:sent_bytes])
        await until(lambda: broker.used == sent_bytes)
        large = await stalled(broker, (broker.port, None))
        honest.write(publish(SMALL)[sent_bytes:])
        if sent_bytes < 4:  # Nobody knows how long it is: it waits, and goes first when something comes free.
            await turns()
            large[0].abort()
        assert await honest.receipts(1) == [0]


async def test_who_goes_while_part_of_a_frame_lies_at_its_socket_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=POOL_BYTES, frame_bytes_max=FRAME_BYTES) as broker:
        honest = await Client.producing(broker.port, topic="honest")
        large = await stalled(broker, (broker.port, None))
        honest.write(publish(SMALL)[:700])
        await until(lambda: broker.connection_of(honest).muted)
        honest.abort()
        for client in large:
            client.abort()
        await until(lambda: len(broker.connections) == 0)
        assert (broker.used, broker.memory.waiting) == (0, False)
