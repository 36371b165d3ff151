# SPDX-License-Identifier: Apache-2.0
"""Rates: what counters were, and how fast they grew since."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from penstock.broker.stats import message_rates
from penstock.broker.subscriptions.subscription import Subscription
from penstock.core.names import TopicName
from penstock.core.units import NS_PER_S
from penstock.storage.cursor import Cursor

if TYPE_CHECKING:
    from penstock.broker.topics.topic import Topic
    from tests.net.harness import Harness


@pytest.fixture
async def topic(harness: Harness) -> Topic:
    return await harness.broker.topics.create(TopicName.parse("t"), {})


@pytest.fixture
def subscription(topic: Topic) -> Subscription:
    return topic.add_subscription("s", cursor=Cursor(), durable=False)


async def pass_time(harness: Harness, seconds: int) -> None:
    """Let the broker take its notes after this time."""
    harness.clock.advance(ns=seconds * NS_PER_S)
    broker = harness.broker
    broker.message_rates.tick(harness.clock.monotonic_ns())
    for _ in range(2 + len(broker.topics)):
        await asyncio.sleep(0)


def publish(topic: Topic, messages: int) -> None:
    topic.messages_in += messages
    topic.bytes_in += 10 * messages


async def test_a_rate_is_what_came_since_the_older_of_two_notes(harness: Harness, topic: Topic) -> None:
    rates = harness.broker.message_rates
    await pass_time(harness, 30)
    publish(topic, 300)
    await pass_time(harness, 30)
    publish(topic, 60)
    harness.clock.advance(ns=15 * NS_PER_S)
    # 45 seconds since the first note.
    assert tuple(rates.rates_in(topic)) == pytest.approx((360 / 45, 3600 / 45))
    await pass_time(harness, 15)
    # The note before this one was taken after the 300.
    assert rates.rates_in(topic).messages == pytest.approx(60 / 30)
    await pass_time(harness, 30)
    assert rates.rates_in(topic) == (0, 0)


async def test_in_the_first_second_one_message_is_one_a_second(harness: Harness, topic: Topic) -> None:
    publish(topic, 1)
    assert harness.broker.message_rates.rates_in(topic) == (1, 10)


async def test_what_goes_out_and_comes_back_has_rates_too(
    harness: Harness, topic: Topic, subscription: Subscription
) -> None:
    await pass_time(harness, 30)
    subscription.messages_out += 100
    subscription.bytes_out += 1000
    subscription.acks += 50
    subscription.messages_redelivered += 25
    subscription.expired += 10
    subscription.dropped += 5
    harness.clock.advance(ns=10 * NS_PER_S)
    seconds = 40  # since the broker started: its first note is younger than that
    rate = harness.broker.message_rates.rates_out(subscription)
    assert rate == pytest.approx((100 / seconds, 1000 / seconds, 50 / seconds, 25 / seconds, 10 / seconds, 5 / seconds))


async def test_a_topic_that_was_loaded_anew_counts_from_zero(harness: Harness, topic: Topic) -> None:
    publish(topic, 1000)
    await pass_time(harness, 30)
    await pass_time(harness, 30)
    topic.messages_in = topic.bytes_in = 30
    harness.clock.advance(ns=10 * NS_PER_S)
    assert harness.broker.message_rates.rates_in(topic).messages == pytest.approx(30 / 40)


async def test_notes_keep_nothing_alive(harness: Harness, topic: Topic) -> None:
    topic.add_subscription("gone soon", cursor=Cursor(), durable=False)
    await pass_time(harness, 30)
    assert len(harness.broker.message_rates._newer.rates_out) == 1  # noqa: SLF001
    del topic.subscriptions["gone soon"]
    gc.collect()
    subscriptions = [one for one in gc.get_objects() if type(one) is Subscription]
    assert "gone soon" not in {one.name for one in subscriptions}


async def test_many_topics_are_noted_in_turns(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_rates, "ROWS_PER_TURN", 2)
    broker = harness.broker
    topics = [await broker.topics.create(TopicName.parse(f"t{index}"), {}) for index in range(10)]
    for topic in topics:
        publish(topic, 1)
    harness.clock.advance(ns=30 * NS_PER_S)
    broker.message_rates.tick(harness.clock.monotonic_ns())
    turns = 0
    while broker.message_rates._noting is not None:  # noqa: SLF001
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 5
    assert len(broker.message_rates._newer.rates_in) == 10  # noqa: SLF001
