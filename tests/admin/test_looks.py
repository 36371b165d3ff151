# SPDX-License-Identifier: Apache-2.0
"""One look for all consoles: shared, charged, and taken again when it is old."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.admin.gateway import Ask, BrokerGateway
from penstock.admin.http_memory import HttpMemory
from penstock.admin.looks import OVERVIEW_FRESH_S_PER_ROW, TABLE_FRESH_S_PER_ROW, Looks
from penstock.admin.topic_table import Wanted
from penstock.broker.composition.administration import administration
from penstock.core.names import TopicName
from penstock.core.position import EARLIEST
from penstock.core.units import MIB
from penstock.governance.budget import Row

if TYPE_CHECKING:
    from tests.net.harness import Harness

TOPICS = 3


@pytest.fixture
async def looks(harness: Harness) -> Looks:
    """Looks at a broker with a few topics, each with a subscription."""
    broker = administration(harness.broker)
    for number in range(TOPICS):
        name = TopicName.parse(f"persistent://public/default/t{number}")
        await broker.topics.create(name)
        await broker.subscriptions.create(name, "s", EARLIEST)
    return Looks(Ask(BrokerGateway(lambda: broker, harness.broker.loop, lambda _snapshot: [])))


async def test_all_who_look_at_once_share_one_look_and_so_do_those_that_come_soon_after(looks: Looks) -> None:
    memory = HttpMemory()
    for shared in (looks.topics, looks.overview):
        first, *others = await asyncio.gather(*(shared.get(memory) for _ in range(10)))
        assert all(other is first for other in others)
        assert await shared.get(memory) is first


async def test_a_look_has_all_topics_and_their_sums(looks: Looks) -> None:
    page = await (await looks.topics.get(HttpMemory())).page(Wanted("", "", "name", 10))
    assert [row["name"] for row in page["topics"]] == [f"persistent://public/default/t{one}" for one in range(TOPICS)]
    seen = await looks.overview.get(HttpMemory())
    assert seen["topics"] == seen["loaded"] == seen["subscriptions"] == TOPICS


async def test_counters_of_topics_are_as_old_as_the_overview_that_has_them(looks: Looks) -> None:
    memory = HttpMemory()
    before = await looks.topics.get(memory)
    await looks.overview.get(memory)
    assert await looks.topics.get(memory) is not before


async def test_a_look_is_charged_as_long_as_it_is_kept(looks: Looks) -> None:
    memory = HttpMemory(Row("http", MIB))
    table = await looks.topics.get(memory)
    assert memory.used_bytes == table.size_bytes > 0


async def test_who_gives_up_does_not_end_the_look_of_others(looks: Looks) -> None:
    memory = HttpMemory()
    impatient = asyncio.create_task(looks.topics.get(memory))
    patient = asyncio.create_task(looks.topics.get(memory))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).totals()["topics"] == TOPICS


def test_looking_takes_a_thirtieth_of_the_time_at_most() -> None:
    # As measured: 5 µs for a topic or subscription with traffic, of which a row has half; and what waits there.
    for loop_s_per_row, fresh_s_per_row in ((3.3e-6, TABLE_FRESH_S_PER_ROW), (8.3e-6, OVERVIEW_FRESH_S_PER_ROW)):
        assert loop_s_per_row <= fresh_s_per_row / 30
