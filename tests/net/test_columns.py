# SPDX-License-Identifier: Apache-2.0
"""What publishes of a few bytes take while they wait for the disk is what the books say they take."""

from __future__ import annotations

import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from penstock.core.checksum import SEAL_BYTES
from penstock.core.units import KIB, MIB
from penstock.testing.client import Type, entry, send
from tests.net.harness import Client, running, turns, until

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 20_000


def tiny(producer_id: int, sequence_id: int, *, sealed: bool, batch: bool) -> bytes:
    """A SEND of an empty message."""
    stored = entry(b"", sequence_id=sequence_id)
    fields = {"num_messages": 2, "highest_sequence_id": sequence_id + 1} if batch else {}
    return send(producer_id, sequence_id, stored if sealed else stored[SEAL_BYTES:], **fields)


@pytest.mark.parametrize("producers", [1, 50])
@pytest.mark.parametrize(
    ("sealed", "batch"), [(True, False), (True, True), (False, False)], ids=["plain", "batches", "unsealed"]
)
async def test_what_tiny_publishes_take_is_counted_within_a_quarter(
    tmp_path: Path, producers: int, *, sealed: bool, batch: bool
) -> None:
    async with running(tmp_path, pool_bytes=64 * MIB) as broker:
        client = await Client.connected(broker.port)
        for row in range(producers):
            await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=f"t{row}", producer_id=row)
        # What is made once is made with the first frames. The length of their sequence ids changes once.
        ids = range((1 << 14) - 500, (1 << 14) - 500 + COUNT)
        frames = [tiny(row % producers, number, sealed=sealed, batch=batch) for row, number in enumerate(ids)]
        client.write(b"".join(frames[:1_000]))
        await client.receipts(1_000)
        data = b"".join(frames[1_000:])
        broker.disk.hold()
        gc.collect()
        tracemalloc.start()
        try:
            client.write(data)
            await until(lambda: broker.snapshot().requests == COUNT - 1_000)
            await turns()
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert broker.used > 2 * len(data)
        assert 0.75 * broker.used <= taken <= 1.25 * broker.used
        broker.disk.release()
        await client.receipts(COUNT - 1_000)
        assert broker.used == 0


async def test_tiny_publishes_are_read_in_small_pieces_so_that_their_columns_pass_the_bound_by_little(
    tmp_path: Path,
) -> None:
    pool = 256 * KIB
    async with running(tmp_path, pool_bytes=pool, frame_bytes_max=64 * KIB) as broker:
        client = await Client.producing(broker.port)
        client.write(b"".join(tiny(0, row, sealed=True, batch=False) for row in range(COUNT)))
        assert await client.receipts(COUNT) == list(range(COUNT))
        assert broker.snapshot().used_bytes_max <= pool + 100 * KIB
