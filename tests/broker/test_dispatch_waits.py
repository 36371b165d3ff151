# SPDX-License-Identifier: Apache-2.0
"""How long entries wait from when they are durable until they are sent, by namespace."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core.durations import BOUNDS_NS
from penstock.core.units import MIB, NS_PER_MS, NS_PER_S
from penstock.testing.client import Type, frame
from tests.net.harness import Client

if TYPE_CHECKING:
    from penstock.core.durations import DurationsSnapshot
    from tests.net.harness import Harness

NAMESPACE = "public/default"


def waits(harness: Harness) -> DurationsSnapshot:
    return harness.broker.dispatch_waits.snapshot()[NAMESPACE]


async def both(harness: Harness, permits: int) -> tuple[Client, Client]:
    """A producer, and a consumer that has been there for a second."""
    harness.broker.tail_cache.limit_bytes = MIB
    producer = await Client.producing(harness.port)
    consumer = await Client.consuming(harness.port, permits=permits)
    await asyncio.sleep(1)
    return producer, consumer


async def test_what_a_consumer_takes_at_once_waits_for_nothing(harness: Harness) -> None:
    producer, consumer = await both(harness, permits=1_000)
    producer.publish(*[b""] * 10)
    for _ in range(10):
        await consumer.message()
    assert waits(harness).count == 10
    assert sum(waits(harness).counts[: BOUNDS_NS.index(NS_PER_MS) + 1]) == 10


async def test_the_time_for_which_a_consumer_asks_for_nothing_counts(harness: Harness) -> None:
    producer, consumer = await both(harness, permits=4)
    await producer.published(*[b""] * 10)
    await asyncio.sleep(7)
    consumer.write(frame(Type.FLOW, consumer_id=0, messagePermits=1_000))
    for _ in range(10):
        await consumer.message()
    assert waits(harness).count == 10
    assert 6 * 7 * NS_PER_S <= waits(harness).sum_ns < 6 * 8 * NS_PER_S


async def test_what_was_there_before_the_consumer_or_is_sent_again_does_not_count(harness: Harness) -> None:
    producer, consumer = await both(harness, permits=1_000)
    await producer.published(*[b""] * 10)
    for _ in range(10):
        await consumer.message()
    await consumer.close()
    await producer.published(*[b""] * 10, first=10)
    await asyncio.sleep(7)
    again = await Client.consuming(harness.port)
    for _ in range(20):
        await again.message()
    assert waits(harness).count == 10
    assert waits(harness).sum_ns < NS_PER_S
