# SPDX-License-Identifier: Apache-2.0
"""How long it takes from reading an entry to its receipt, by namespace: the disk's time, and what limits add."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.topics.topic import LET_GO_S
from penstock.core.durations import BOUNDS_NS
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.testing.disk import VirtualDisk
from tests.net.harness import TOPIC, Client

if TYPE_CHECKING:
    from tests.net.harness import Harness

NAMESPACE = "public/default"


def up_to(harness: Harness, ms: float) -> int:
    """How many entries of the namespace took up to so long."""
    counts = harness.broker.publish_times.snapshot()[NAMESPACE].counts
    return sum(counts[: BOUNDS_NS.index(int(ms * NS_PER_MS)) + 1])


async def test_an_entry_takes_as_long_as_the_disk(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    assert isinstance(harness.disk, VirtualDisk)
    harness.disk.sync_ns = lambda: 40 * NS_PER_MS
    client.publish(*[b""] * 10)
    await client.receipts(10)
    assert (up_to(harness, 25), up_to(harness, 50)) == (0, 10)
    seen = harness.broker.publish_times.snapshot()[NAMESPACE]
    assert seen.count == 10
    assert 10 * 40 * NS_PER_MS <= seen.sum_ns < 10 * 50 * NS_PER_MS


async def test_the_time_for_which_a_limit_holds_an_entry_counts(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
    client.publish(*[b""] * 40)
    await client.receipts(40)
    # The burst of a second, then ten a second.
    assert up_to(harness, 50) == 10
    assert up_to(harness, 1_000) in {19, 20}
    assert harness.broker.publish_times.snapshot()[NAMESPACE].sum_ns > 30 * NS_PER_S


async def test_a_namespace_is_measured_while_one_of_its_topics_is_loaded(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    assert set(harness.broker.publish_times.snapshot()) >= {NAMESPACE}
    await client.close()
    for topic in list(harness.broker.topics.loaded()):
        await harness.broker.topic_life.unload(topic.name)
        del topic
    # As long as what has ended may still be asked for, and without the garbage collector.
    await asyncio.sleep(LET_GO_S + 1)
    assert NAMESPACE not in harness.broker.publish_times.snapshot()
