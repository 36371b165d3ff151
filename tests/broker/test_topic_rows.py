# SPDX-License-Identifier: Apache-2.0
"""The columns of all topics, as the broker reads them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.stats.topic_rows import ROWS_PER_TURN
from penstock.core.names import TopicName
from penstock.core.position import EARLIEST
from tests.net.harness import TOPIC, Client, running

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.stats.topic_rows import TopicColumns
    from tests.net.harness import Harness


def row(read: TopicColumns, name: str) -> dict[str, Any]:
    at = read.names.index(name)
    return {column: numbers[at] for column, numbers in read.columns.items()}


async def test_a_row_has_the_numbers_of_a_topic_and_the_sums_of_its_subscriptions(harness: Harness) -> None:
    broker = administration(harness.broker)
    for subscription in ("s", "t"):
        await broker.subscriptions.create(TopicName.parse(TOPIC), subscription, EARLIEST)
    producer = await Client.producing(harness.port)
    await producer.published(b"1", b"2", b"3")
    read = await broker.topic_rows.read()
    found = row(read, TOPIC)
    assert (found["msgBacklog"], found["publishers"], found["consumers"], found["subscriptions"]) == (6, 1, 0, 2)
    assert found["msgRateIn"] == 3
    assert read.counted["messagesIn"] == 3
    assert read.loaded == 1


async def test_topics_that_nobody_has_used_since_the_start_come_last_and_have_zeros(tmp_path: Path) -> None:
    names = [TopicName.parse(f"persistent://public/default/{name}") for name in "ab"]
    async with running(tmp_path) as before:
        for name in names:
            await administration(before.broker).topics.create(name)
    async with running(tmp_path) as harness:
        broker = administration(harness.broker)
        await broker.stats.of_topic(names[1])
        read = await broker.topic_rows.read()
        assert (read.names, read.loaded) == ([str(names[1]), str(names[0])], 1)
        assert set(row(read, str(names[0])).values()) == {0}


@pytest.mark.parametrize("subscriptions", [1, 3 * ROWS_PER_TURN])
async def test_the_loop_gets_its_turn_between_topics_and_between_subscriptions(
    harness: Harness, subscriptions: int
) -> None:
    broker = administration(harness.broker)
    name = TopicName.parse(TOPIC)
    await broker.topics.create(name)
    topic = harness.broker.topics.get(name)
    assert topic is not None
    await broker.subscriptions.create(name, "s", EARLIEST)
    (subscription,) = topic.subscriptions.values()
    many = dict.fromkeys((f"s{number}" for number in range(subscriptions)), subscription)
    topic.subscriptions.update(many)
    turns = 0
    reading = asyncio.ensure_future(broker.topic_rows.read())
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    for each in many:
        del topic.subscriptions[each]
    assert turns >= subscriptions // ROWS_PER_TURN
