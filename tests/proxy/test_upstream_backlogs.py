# SPDX-License-Identifier: Apache-2.0
"""Backlogs of the cluster: what is asked, how much at a time, and what happens when there is no answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.core.errors import ServiceNotReady
from penstock.core.names import TopicName
from penstock.governance.budget import Row
from penstock.proxy.throttling import (
    AT_A_TIME,
    KEPT_NS,
    TOPICS_KEPT_NS,
    TOPICS_PER_CYCLE,
    PublishedTopic,
    PublishedTopics,
    UpstreamBacklogs,
)
from penstock.testing.loop import VirtualClock, VirtualLoop
from tests.proxy.polled import FakePolls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.groups.adaptive_publish import AdaptiveTopic

NO_THROTTLE = cast("AdaptiveTopic", None)


class World:
    """A proxy's topics, and what it knows of their backlogs."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = VirtualClock(loop.virtual_time)
        self.memory = Row("sessions", 1 << 24)
        self.topics = PublishedTopics(self.memory, self.clock)
        self.polls = FakePolls()
        self.backlogs = UpstreamBacklogs(self.polls, self.topics.loaded, lambda: 1.0, self.clock, loop)

    def topic(self, local: str = "t", *, domain: str = "persistent") -> PublishedTopic:
        topic = self.topics.opened(TopicName.parse(f"{domain}://shop/orders/{local}"), object(), lambda: None)
        assert topic is not None
        return topic

    def says(self, local: str, backlog: int, quota: int) -> None:
        self.polls.answers[f"/admin/v2/persistent/shop/orders/{local}/stats"] = {
            "backlogSize": backlog,
            "backlogQuotaLimitSize": quota,
        }

    def part(self, topic: PublishedTopic) -> float:
        return self.backlogs.part(topic, NO_THROTTLE, 0.75)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.backlogs.stop()


async def test_the_backlog_is_what_the_cluster_says_and_what_was_published_since() -> None:
    async with world() as here:
        topic = here.topic()
        topic.bytes_in = 5_000
        here.says("t", 600, 1_000)
        assert here.part(topic) == 0.0
        await asyncio.sleep(1.5)
        assert here.part(topic) == pytest.approx(0.6)
        topic.bytes_in += 300
        assert here.part(topic) == pytest.approx(0.9)
        here.says("t", 0, 1_000)
        await asyncio.sleep(1)
        assert here.part(topic) == 0.0


async def test_a_topic_without_a_quota_or_a_disk_has_no_backlog_pressure() -> None:
    async with world() as here:
        topic, other = here.topic(), here.topic("n", domain="non-persistent")
        here.says("t", 600, -1)
        await asyncio.sleep(2.5)
        assert here.part(topic) == here.part(other) == 0.0
        assert all("non-persistent" not in path for path in here.polls.asked)


async def test_a_cycle_asks_for_a_bounded_number_of_topics_and_all_in_turns() -> None:
    async with world() as here:
        topics = [here.topic(f"t{number}") for number in range(4 * TOPICS_PER_CYCLE)]
        for number in range(len(topics)):
            here.says(f"t{number}", 500, 1_000)
        await asyncio.sleep(1.5)
        assert len(here.polls.asked) == TOPICS_PER_CYCLE
        await asyncio.sleep(4)
        assert all(here.part(topic) == 0.5 for topic in topics)
        assert here.polls.at_a_time == AT_A_TIME


async def test_failures_are_counted_and_logged_once_and_old_answers_do_not_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with world() as here:
        topic = here.topic()
        here.says("t", 900, 1_000)
        await asyncio.sleep(1.5)
        here.polls.fails_s = 5.0
        await asyncio.sleep(KEPT_NS / 1e9 - 2)
        assert here.part(topic) == pytest.approx(0.9)
        await asyncio.sleep(5)
        assert here.part(topic) == 0.0
        assert here.backlogs.failures >= 5
        assert caplog.text.count("backlogs are not known") == 1
        here.polls.fails_s = None
        await asyncio.sleep(10)
        assert here.part(topic) == pytest.approx(0.9)
        assert "known again" in caplog.text


async def test_a_defect_does_not_end_the_questions(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as here:
        topic = here.topic()
        here.says("t", 900, 1_000)
        right = here.backlogs._topics  # noqa: SLF001
        here.backlogs._topics = lambda: [topic][1:2] * (1 // 0)  # noqa: SLF001
        await asyncio.sleep(2.5)
        assert "ZeroDivisionError" in caplog.text
        here.backlogs._topics = right  # noqa: SLF001
        await asyncio.sleep(1)
        assert here.part(topic) == pytest.approx(0.9)


async def test_topics_are_kept_for_a_while_after_their_last_producer_and_give_their_memory_back() -> None:
    async with world() as here:
        producers = [object(), object()]
        name = TopicName.parse("persistent://shop/orders/t")
        topic = here.topics.opened(name, producers[0], lambda: None)
        assert here.topics.opened(name, producers[1], lambda: None) is topic
        forgotten: list[PublishedTopic] = []
        here.topics.throttling = cast("Any", SimpleNamespace(forget_topic=forgotten.append))
        here.topics.closed(topic, producers[0])
        await asyncio.sleep(TOPICS_KEPT_NS / 1e9 + 1)
        assert here.topics.loaded() == [topic]
        here.topics.closed(topic, producers[1])
        assert here.topics.loaded() == [topic]
        assert here.topics.opened(name, producers[0], lambda: None) is topic
        here.topics.closed(topic, producers[0])
        await asyncio.sleep(TOPICS_KEPT_NS / 1e9 + 1)
        assert here.topics.loaded() == []
        assert (forgotten, topic.closed, here.memory.used_bytes) == ([topic], True, 0)


async def test_a_producer_is_refused_without_memory_and_not_left_unlimited() -> None:
    async with world() as here:
        here.memory.charge(here.memory.limit_bytes)
        with pytest.raises(ServiceNotReady, match="raise sessionsMB"):
            here.topics.opened(TopicName.parse("t"), object(), lambda: None)
