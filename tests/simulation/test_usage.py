# SPDX-License-Identifier: Apache-2.0
"""Usage is counted exactly through losses of power, on a disk that then forgets what was not synced."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from penstock.broker.records import usage as usage_module
from penstock.core.names import TopicName
from penstock.core.units import NS_PER_MS
from penstock.testing.client import entry
from penstock.testing.loop import VirtualLoop
from tests.broker.usage import records_of, summed, usage_of
from tests.net.harness import TOPIC, Client, topic_of
from tests.simulation.broker_world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

ROUNDS = 6
OTHER = "persistent://public/default/other"
TOPICS = (TOPIC, OTHER)
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
    records = await records_of(world.harness)
    used = summed(records, "topic", TOPIC)
    await world.stop()
    assert stored > 1_000
    assert (used.messages, used.bytes) == (stored, stored * ENTRY_BYTES)
    assert summed(records, "broker", "") == used


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


def in_virtual_time(seed: int, happens: Callable[[World], Coroutine[Any, Any, T]]) -> T:
    loop = VirtualLoop(seed, thread_delay_ns_max=NS_PER_MS)
    world = World(loop, Random(seed))

    async def main() -> T:
        world._own |= asyncio.all_tasks()  # noqa: SLF001 - it does not end with the power
        return await happens(world)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main())


@pytest.mark.parametrize("seed", range(8))
def test_records_add_up_to_the_entries_of_the_log_after_losses_of_power(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    in_virtual_time(seed, live)


async def publish(world: World, *topics: str, first: int) -> None:
    assert world.harness is not None
    for topic in topics:
        await (await Client.producing(world.harness.port, topic=topic)).published(PAYLOAD, first=first)


async def crash_at(world: World, step: int) -> bool:
    """Lose the power at one change of the disk while a cycle stores and records; whether it had ended before."""
    assert world.harness is not None
    usage = usage_of(world.harness)
    cycle, complete = usage._cycle, usage.cycles + 1  # noqa: SLF001
    await world.loop.until(lambda: usage._cycle > cycle, 5)  # noqa: SLF001 - now everything is read, and durable
    world.disk.lose_power_at(step)
    await asyncio.sleep(0.5)
    ended = usage.cycles >= complete
    await world.lose_power(kill=True)
    return ended


async def crash_twice(world: World, step: int) -> bool:
    """Crash at a step of a cycle, and somewhere in the next one; compare; whether the cycle has fewer steps."""
    world.limits = {"usage_records_enabled": True, "usage_records_interval_in_seconds": 2}
    await world.start()
    assert world.harness is not None
    usage = usage_of(world.harness)
    await publish(world, TOPIC, OTHER, first=FIRST)
    await world.loop.until(lambda: usage.cycles == 1, 5)
    await publish(world, TOPIC, OTHER, first=FIRST + 1)
    if step % 2:  # Counters are also stored without being recorded.
        usage._settled_bytes = -usage_module.SETTLE_BYTES  # noqa: SLF001
        await world.loop.until(lambda: usage._settled_bytes >= 0, 5)  # noqa: SLF001
        await publish(world, TOPIC, first=FIRST + 2)
    ended = await crash_at(world, step)
    await world.start()
    await publish(world, OTHER, first=FIRST + 3)
    await crash_at(world, world.chance.randint(1, step))
    await world.start()
    await world.stop()  # Now everything is recorded.
    await world.start()
    topics = world.harness.broker.topics
    stored = [(await topics.load(TopicName.parse(one))).last_entry_id + 1 for one in TOPICS]
    records = await records_of(world.harness)
    of_broker, of_topics = summed(records, "broker", ""), [summed(records, "topic", one) for one in TOPICS]
    await world.stop()
    assert [one.messages for one in of_topics] == stored
    assert (of_broker.messages, of_broker.bytes) == (sum(stored), sum(stored) * ENTRY_BYTES), f"crash at step {step}"
    return ended


def test_the_sum_of_a_broker_is_that_of_its_topics_wherever_it_crashes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    step = 1
    while not in_virtual_time(step, functools.partial(crash_twice, step=step)):
        step += 1
    assert step > 5, "a cycle stores counters, their sum, records, and that it is recorded"
