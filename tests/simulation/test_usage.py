# SPDX-License-Identifier: Apache-2.0
"""Usage is counted exactly through losses of power, on a disk that then forgets what was not synced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from random import Random

import pytest

from penstock.core.names import TopicName
from penstock.core.units import NS_PER_MS
from penstock.testing.client import entry
from penstock.testing.loop import VirtualLoop
from tests.broker.usage import records_of, summed
from tests.net.harness import TOPIC, Client, topic_of
from tests.simulation.broker_world import World

ROUNDS = 6
# All sequence ids take as many bytes, so that all entries are equally large.
FIRST = 1_000_000
PAYLOAD = bytes(200)
ENTRY_BYTES = len(entry(PAYLOAD, sequence_id=FIRST))


async def live(world: World) -> None:
    """Publish, acknowledge and crash, again and again; then compare what was recorded with the log."""
    world.limits = {"usage_records_enabled": True, "usage_records_interval_in_seconds": 1}
    for number in range(ROUNDS):
        await world.start()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await publish_for_a_while(world, FIRST + number * 100_000)
        await (world.lose_power(kill=world.chance.random() < 0.3) if world.chance.random() < 0.8 else world.stop())
    await world.start()
    assert world.harness is not None
    topics, name = world.harness.broker.topics, TopicName.parse(TOPIC)
    stored = (await topics.load(name)).last_entry_id + 1
    await world.stop()
    await world.start()
    used = summed(await records_of(world.harness), "topic", TOPIC)
    await world.stop()
    assert stored > 1_000
    assert (used.messages, used.bytes) == (stored, stored * ENTRY_BYTES)


async def publish_for_a_while(world: World, first: int) -> None:
    """Publish in bursts, and acknowledge everything; often the last burst is not answered before the crash."""
    assert world.harness is not None
    producer = await Client.producing(world.harness.port)
    await Client.consuming(world.harness.port, permits=100_000)
    sent = first
    for _ in range(world.chance.randint(1, 5)):
        count = world.chance.randint(1, 1_500)
        producer.publish(*[PAYLOAD] * count, first=sent)
        sent += count
        await producer.receipts(count)
        topic = topic_of(world.harness)
        topic.subscriptions["s"].acknowledge_through(topic.last_entry_id)
        await world.pause(1_500)
    producer.publish(*[PAYLOAD] * world.chance.randint(1, 500), first=sent)
    await world.pause(20)


@pytest.mark.parametrize("seed", range(8))
def test_records_add_up_to_the_entries_of_the_log_after_losses_of_power(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    loop = VirtualLoop(seed, thread_delay_ns_max=NS_PER_MS)
    world = World(loop, Random(seed))

    async def main() -> None:
        world._own |= asyncio.all_tasks()  # noqa: SLF001 - it does not end with the power
        await live(world)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
