# SPDX-License-Identifier: Apache-2.0
"""Rates of publishing, of delivery and of subscribing, with real clients and a clock that the test moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.publishing.limiters import RatePublish, throttled_events
from penstock.core.errors import TooManyRequests
from penstock.core.names import TopicName
from penstock.core.units import KIB, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.proxy.upstreams import VERSION
from penstock.testing.client import Type, frame, send
from penstock.wire.client import entries
from penstock.wire.pulsar_pb2 import MessageMetadata, ServerError
from tests.broker.governed import OTHER, configure, subscribe
from tests.net.harness import KEEP_ALIVE_S, TOPIC, Client, publish, running, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.broker.topics.topic import Topic
    from tests.net.harness import Harness


def publish_rate(messages: int = -1, nbytes: int = -1) -> dict[str, int]:
    """What the admin port takes."""
    return {"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": nbytes}


def dispatch_rate(messages: int = -1, nbytes: int = -1, *, period_s: int = 1, relative: bool = False) -> dict[str, Any]:
    """What the admin port takes."""
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": nbytes,
        "relativeToPublishRate": relative,
        "ratePeriodInSecond": period_s,
    }


def mutes(harness: Harness, client: Client) -> set[tuple[HoldKind, str | None]]:
    """Why this client is not read."""
    return {(mute.reason, mute.owner) for mute in harness.connection_of(client).muted.snapshot()}


def flow(permits: int, consumer_id: int = 0) -> bytes:
    """Ask for messages."""
    return frame(Type.FLOW, consumer_id=consumer_id, messagePermits=permits)


async def reached(read: Callable[[], int], least: int) -> None:
    """Wait until a number is as large as this."""
    await until(lambda: read() >= least)


# -- publishing


class NeverListed(dict[int, Any]):
    """A connection's producers, whose number must not matter to any single one of them."""

    def values(self) -> Any:  # noqa: ANN401
        raise AssertionError("all producers of a connection were looked at for the sake of one")


async def test_where_no_rate_is_a_producer_comes_and_goes_without_a_look_at_the_others(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    (session,) = harness.broker.sessions
    session.producers = NeverListed(session.producers)
    for producer_id in (1, 2):
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=producer_id)
        await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=producer_id)
    session.producers = dict(session.producers)


def held(harness: Harness) -> int:
    """How many SENDs wait."""
    return harness.broker.publish_services.held.sends


async def test_a_topic_without_a_rate_has_nothing_that_could_slow_it(harness: Harness) -> None:
    await Client.producing(harness.port)
    assert topic_of(harness).publish_lines == ()
    (session,) = harness.broker.sessions
    assert session.held is None


async def test_a_topic_takes_its_burst_and_then_its_rate(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    topic = topic_of(harness)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(1_000))
    client.publish(*[b""] * 3_000)
    await until(lambda: held(harness) == 2_000)
    assert topic.entries_in == 1_000
    for tenths in range(1, 4):
        harness.clock.advance(ms=100)
        await reached(lambda: topic.entries_in, 1_000 + 100 * tenths)
        await turns()
        assert topic.entries_in == 1_000 + 100 * tenths
    await harness.broker.policies.set_topic(TOPIC, "publishRate", None)
    await client.receipts(3_000)
    assert held(harness) == 0


async def test_bytes_are_limited_as_messages_are(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=10 * KIB))
    client.publish(*[bytes(KIB)] * 30)
    await until(lambda: held(harness) >= 18)
    await turns()
    assert 10 <= topic_of(harness).entries_in <= 12


async def test_a_limited_topic_counts_how_often_it_stopped_somebody(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=10))
    client.publish(bytes(KIB), b"next")
    await until(lambda: held(harness) == 1)
    assert topic_of(harness).publish_limited_times == 1


async def test_others_on_the_connection_of_a_limited_topic_go_on(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(10))
    client.publish(*[b""] * 100)
    await until(lambda: held(harness) == 90)
    await client.receipts(10)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=OTHER, producer_id=1)
    client.write(b"".join(publish(b"", row, 1) for row in range(500)))
    assert await client.receipts(500) == list(range(500))
    assert not harness.muted()
    assert held(harness) == 90


async def test_two_limited_topics_hold_their_own_messages_only(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=OTHER, producer_id=1)
    for name in (TOPIC, OTHER):
        await harness.broker.policies.set_topic(name, "publishRate", publish_rate(nbytes=10))
    client.write(b"".join(publish(bytes(100), row, producer_id) for row in range(2) for producer_id in range(2)))
    await until(lambda: held(harness) == 2)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", None)
    await until(lambda: held(harness) == 1)
    await harness.broker.policies.set_topic(OTHER, "publishRate", None)
    await client.receipts(4)


async def test_a_client_that_sends_on_is_muted_when_it_holds_as_much_as_it_may(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(1))
    half = harness.memory.size // 16 // (64 * KIB)
    client.publish(*[bytes(64 * KIB)] * half)
    await until(lambda: held(harness) == half - 1)
    assert not harness.muted(), "there is memory for more"
    client.publish(*[bytes(64 * KIB)] * (half + 20), first=half)
    await until(harness.muted)
    assert mutes(harness, client) == {(HoldKind.PUBLISH_RATE, TOPIC)}
    await harness.broker.policies.set_topic(TOPIC, "publishRate", None)
    assert not mutes(harness, client)


async def test_a_raised_rate_lets_go_at_once_when_the_debt_is_repaid_by_it(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=10))
    client.publish(bytes(KIB), b"next")
    await until(lambda: held(harness) == 1)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=KIB * KIB))
    assert held(harness) == 1, "the debt is not forgiven"
    harness.clock.advance(ms=20)
    await client.receipts(2)


async def test_a_publisher_that_waits_is_not_closed_for_being_silent(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=1))
    client.publish(bytes(KIB), b"next")
    await until(lambda: held(harness) == 1)
    for _ in range(3):
        harness.clock.advance(ms=(KEEP_ALIVE_S - 1) * 1000)
        client.write(frame(Type.PING))
        await turns()
        for session in list(harness.broker.sessions):
            session.check_alive(harness.clock.monotonic_ns())
    assert harness.connection_of(client).is_open


async def test_a_publisher_that_goes_away_while_it_waits_is_forgotten(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=100))
    client.publish(bytes(200), b"next")
    await until(lambda: held(harness) == 1)
    other = await Client.producing(harness.port)
    harness.connection_of(client).close("the test says so")
    assert held(harness) == 0
    harness.clock.advance(ms=10_000)
    await other.published(b"")


async def test_deleting_a_topic_lets_go_what_is_held(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(nbytes=1))
    client.publish(bytes(KIB), b"next")
    await until(lambda: held(harness) == 1)
    await harness.broker.topic_life.delete(TopicName.parse(TOPIC), force=True)
    await until(lambda: held(harness) == 0)


async def test_a_topic_that_is_unloaded_finds_its_debt_again(harness: Harness) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(50))
    for _ in range(5):
        client = await Client.producing(harness.port)
        client.publish(*[b""] * 100)
        await until(lambda: held(harness) >= 50)
        await administration(harness.broker).topics.unload(TopicName.parse(TOPIC))
        await client.close()
        await until(lambda: held(harness) == 0)
    await Client.producing(harness.port)
    assert topic_of(harness).last_entry_id + 1 == 50
    harness.clock.advance(ms=60_000)
    client = await Client.producing(harness.port)
    await client.published(*[b""] * 40)


@pytest.mark.parametrize("connections", [1, 50])
async def test_a_new_connection_finds_the_debt_of_the_others(harness: Harness, connections: int) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(50))
    for _ in range(connections):
        client = await Client.producing(harness.port)
        client.publish(*[b""] * 100)
        await until(lambda: held(harness) >= 50)
        await client.close()
        await until(lambda: held(harness) == 0)
    assert topic_of(harness).entries_in == 50


async def test_a_new_connection_waits_for_its_turn_while_nothing_more_can_be_held(harness: Harness) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", publish_rate(50))
    first = await Client.producing(harness.port)
    first.publish(*[b""] * 100)
    await until(lambda: held(harness) == 50)
    memory = harness.broker.publish_services.held
    memory.bytes += harness.memory.size
    for _ in range(5):
        client = await Client.producing(harness.port)
        client.publish(*[b""] * 100)
        await turns()
        assert mutes(harness, client) == {(HoldKind.PUBLISH_RATE, TOPIC)}
    assert topic_of(harness).entries_in == 50
    memory.bytes -= harness.memory.size
    for _ in range(60):
        harness.clock.advance(ms=1_000)
        await turns()
    await until(lambda: topic_of(harness).entries_in == 600)
    assert not harness.muted()


async def test_the_rate_of_the_broker_holds_over_all_topics_and_can_be_changed_at_run_time(harness: Harness) -> None:
    first = await Client.producing(harness.port)
    configure(harness, broker_publisher_throttling_max_byte_rate=1_000)
    second = await Client.producing(harness.port, topic=OTHER)
    await first.published(bytes(900))
    await second.published(bytes(900))
    second.publish(bytes(900))
    await until(lambda: held(harness) == 1)
    first.publish(bytes(900))
    await until(lambda: held(harness) == 2)
    configure(harness, broker_publisher_throttling_max_byte_rate=0)
    await until(lambda: held(harness) == 0)
    assert topic_of(harness).publish_lines == ()


def _own_rate(topic: Topic) -> float | None:
    (limit,) = topic.publish_lines
    assert isinstance(limit, RatePublish)
    return limit.limiter.share.messages


async def test_a_rate_of_the_namespace_holds_for_each_of_its_topics_unless_they_have_their_own(
    harness: Harness,
) -> None:
    await Client.producing(harness.port)
    await Client.producing(harness.port, topic=OTHER)
    await harness.broker.policies.set_namespace("public/default", "publishRate", publish_rate(5))
    await harness.broker.policies.set_topic(OTHER, "publishRate", publish_rate(7))
    assert [_own_rate(topic_of(harness))] == [5]
    assert [_own_rate(topic_of(harness, OTHER))] == [7]


async def test_topics_that_are_not_persistent_are_limited_too(harness: Harness) -> None:
    name = "non-persistent://public/default/n"
    await harness.broker.policies.set_namespace("public/default", "publishRate", publish_rate(nbytes=10))
    client = await Client.producing(harness.port, topic=name)
    client.publish(bytes(100), b"next")
    await until(lambda: held(harness) == 1)


# -- delivering


async def delivered(client: Client, count: int) -> None:
    """Take so many messages."""
    for _ in range(count):
        await client.message()


async def test_what_a_topic_without_storage_delivers_is_limited_too_and_the_rest_dropped(harness: Harness) -> None:
    name = "non-persistent://public/default/n"
    await harness.broker.policies.set_namespace("public/default", "dispatchRate", dispatch_rate(20))
    consumer = await Client.connected(harness.port)
    await consumer.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=name, subscription="s", consumer_id=0, subType=1, durable=False
    )
    consumer.write(flow(1_000))
    producer = await Client.producing(harness.port, topic=name)
    (subscription,) = topic_of(harness, name).subscriptions.values()
    for seconds in range(3):
        await producer.published(*[b""] * 100)
        await delivered(consumer, 20)
        await turns()
        assert subscription.messages_out == 20 * (seconds + 1)
        harness.clock.advance(ms=1_000)


async def test_what_is_read_over_rest_counts_for_the_dispatch_rates(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", dispatch_rate(2))
    await producer.published(*[b""] * 5)
    name, messages = TopicName.parse(TOPIC), administration(harness.broker).messages
    for nth in (1, 2):
        await messages.examine(name, "earliest", nth)
    with pytest.raises(TooManyRequests, match="dispatch rate"):
        await messages.examine(name, "earliest", 3)
    harness.clock.advance(ms=1_000)
    three = (messages.examine(name, "earliest", nth) for nth in (3, 4, 5))
    read = await asyncio.gather(*three, return_exceptions=True)
    assert [isinstance(one, TooManyRequests) for one in read] == [False, False, True]


async def test_a_subscription_delivers_its_rate_in_each_period_and_no_more(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 100)
    consumer = await Client.consuming(harness.port)
    (subscription,) = topic_of(harness).subscriptions.values()
    for seconds in range(5):
        await delivered(consumer, 20)
        await turns()
        assert subscription.messages_out == 20 * (seconds + 1)
        harness.clock.advance(ms=1_000)
        consumer.write(flow(1))  # Whatever asks for a dispatch finds the gate open again.
    events = dict[str, Any](throttled_events(subscription))
    assert events["dispatchThrottledMsgEventsBySubscriptionLimit"] == sum(events.values()) == 4


async def test_the_timer_wakes_a_subscription_when_its_debt_is_repaid(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 30)
    consumer = await Client.consuming(harness.port)
    await delivered(consumer, 20)
    harness.clock.advance(ms=1_000)
    await delivered(consumer, 10)


async def test_all_subscriptions_of_a_topic_share_its_rate(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 30)
    for name in ("one", "two"):
        await subscribe(harness, name, permits=1_000)
    subscriptions = topic_of(harness).subscriptions.values()
    await until(lambda: sum(subscription.messages_out for subscription in subscriptions) >= 20)
    await turns()
    assert sum(subscription.messages_out for subscription in subscriptions) == 20


async def test_bytes_delivered_overshoot_by_one_entry_and_it_is_repaid(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", dispatch_rate(nbytes=5_000))
    await producer.published(*[bytes(2_000)] * 20)
    consumer = await Client.consuming(harness.port)
    (subscription,) = topic_of(harness).subscriptions.values()
    for seconds in range(1, 5):
        await reached(lambda: subscription.bytes_out, 5_000 * seconds)
        await turns()
        assert subscription.bytes_out < 5_000 * seconds + 2_100
        harness.clock.advance(ms=1_000)
        consumer.write(flow(1))


async def test_the_rate_of_the_broker_is_shared_by_all_topics(harness: Harness) -> None:
    configure(harness, dispatch_throttling_rate_in_msg=10)
    producer = await Client.producing(harness.port)
    await producer.published(*[b""] * 30)
    consumer = await Client.consuming(harness.port)
    await delivered(consumer, 10)
    await turns()
    (subscription,) = topic_of(harness).subscriptions.values()
    assert subscription.messages_out == 10
    assert throttled_events(subscription)["dispatchThrottledMsgEventsByBrokerLimit"] == 1
    configure(harness, dispatch_throttling_rate_in_msg=0)
    await delivered(consumer, 20)


async def test_consumers_that_keep_up_may_be_exempt(harness: Harness) -> None:
    configure(
        harness,
        dispatch_throttling_rate_per_topic_in_msg=1,
        dispatch_throttling_on_non_backlog_consumer_enabled=False,
    )
    producer = await Client.producing(harness.port)
    consumer = await Client.consuming(harness.port)
    producer.publish(*[b""] * 50)
    await delivered(consumer, 50)


async def test_a_relative_rate_follows_what_is_published(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", dispatch_rate(10, relative=True))
    consumer = await Client.consuming(harness.port)
    await producer.published(*[b""] * 100)
    await delivered(consumer, 10)
    harness.clock.advance(ms=1_000)
    consumer.write(flow(1))
    await delivered(consumer, 10)
    await until(lambda: topic_of(harness).dispatch_limiter.rate.messages == 110)  # type: ignore[union-attr]


async def test_one_subscription_can_have_a_rate_of_its_own(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(1))
    await harness.broker.policies.set_subscription_rate(TOPIC, "s", dispatch_rate(20))
    await producer.published(*[b""] * 30)
    consumer = await Client.consuming(harness.port)
    await delivered(consumer, 20)
    await harness.broker.policies.set_subscription_rate(TOPIC, "s", None)
    harness.clock.advance(ms=1_000)
    consumer.write(flow(1))
    await delivered(consumer, 1)
    await turns()
    (subscription,) = topic_of(harness).subscriptions.values()
    assert subscription.messages_out == 21


async def test_what_is_delivered_again_is_charged_again(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 15)
    consumer = await Client.consuming(harness.port)
    await delivered(consumer, 15)
    consumer.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0))
    await delivered(consumer, 5)
    await turns()
    (subscription,) = topic_of(harness).subscriptions.values()
    assert subscription.messages_out == 20


async def test_a_subscription_that_is_made_anew_finds_what_the_last_one_left(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 100)
    for number in range(5):
        reader = await Client.connected(harness.port)
        await reader.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=TOPIC,
            subscription=f"reader-{number}",
            consumer_id=0,
            subType=1,
            initialPosition=1,
        )
        reader.write(flow(1_000))
        if number == 0:
            await delivered(reader, 20)
        await turns()
        (subscription,) = topic_of(harness).subscriptions.values()
        assert subscription.messages_out == (20 if number == 0 else 0)
        await reader.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=0)
    harness.clock.advance(ms=1_000)
    (await Client.consuming(harness.port)).write(flow(1))
    await reached(lambda: sum(one.messages_out for one in topic_of(harness).subscriptions.values()), 20)


async def reader_of_all(harness: Harness, name: str, topic: str = TOPIC, *, durable: bool = True) -> Client:
    """A client whose subscription of this name wants everything."""
    client = await subscribe(harness, name, permits=1_000, topic=topic, durable=durable)
    await turns()
    return client


async def test_a_subscription_that_ended_with_its_consumer_leaves_its_debt_too(harness: Harness) -> None:
    name = "non-persistent://public/default/n"
    await harness.broker.policies.set_namespace("public/default", "subscriptionDispatchRate", dispatch_rate(20))
    producer = await Client.producing(harness.port, topic=name)
    for visit in range(5):
        consumer = await reader_of_all(harness, "s", name, durable=False)
        await producer.published(*[b""] * 100)
        (subscription,) = topic_of(harness, name).subscriptions.values()
        if visit == 0:
            await delivered(consumer, 20)
        await turns()
        assert subscription.messages_out == (20 if visit == 0 else 0)
        await consumer.close()
        await until(lambda: not topic_of(harness, name).subscriptions)


async def test_subscriptions_of_a_topic_that_is_unloaded_find_each_its_own_debt_again(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(20))
    for idle in ("a", "c"):
        await (await reader_of_all(harness, idle)).close()
    await producer.published(*[b""] * 100)
    passed = 0
    for _ in range(6):
        busy = await reader_of_all(harness, "b")
        if not passed:
            await delivered(busy, 20)
        await turns()
        passed += topic_of(harness).subscriptions["b"].messages_out
        await administration(harness.broker).topics.unload(TopicName.parse(TOPIC))
        await busy.close()
    assert passed == 20


async def test_two_subscriptions_at_once_have_a_rate_each(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionDispatchRate", dispatch_rate(20))
    await producer.published(*[b""] * 100)
    for name in ("a", "b"):
        client = await Client.connected(harness.port)
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription=name, consumer_id=0, initialPosition=1, subType=1
        )
        client.write(flow(1_000))
        await delivered(client, 20)


# -- subscribing


async def test_another_name_each_time_is_no_other_consumer(tmp_path: Path) -> None:
    async with running(tmp_path, keep_alive_ns=2 * KEEP_ALIVE_S * NS_PER_S) as harness:
        await Client.producing(harness.port)
        rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 30}
        await harness.broker.policies.set_topic(TOPIC, "subscribeRate", rate)
        answers = []
        for number in range(5):
            client = await Client.connected(harness.port)
            wanted = {"subscription": f"s{number}", "consumer_name": f"c{number}", "subType": 1}
            client.write(frame(Type.SUBSCRIBE, consumer_id=number, request_id=7, topic=TOPIC, **wanted))
            answers.append((await client.read()).type)
            await client.close()
            await turns()
        assert answers == [Type.SUCCESS] * 2 + [Type.ERROR] * 3


async def test_many_consumers_that_stay_may_all_subscribe_and_come_back_together(tmp_path: Path) -> None:
    async with running(tmp_path, keep_alive_ns=2 * KEEP_ALIVE_S * NS_PER_S) as harness:
        await Client.producing(harness.port)
        rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 30}
        await harness.broker.policies.set_topic(TOPIC, "subscribeRate", rate)
        for _ in range(2):
            client = await Client.connected(harness.port)
            for number in range(20):
                await client.request(
                    Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=number, subType=1
                )
            await client.close()
            await turns()


async def test_a_consumer_that_subscribes_too_often_is_told_so(tmp_path: Path) -> None:
    async with running(tmp_path, keep_alive_ns=2 * KEEP_ALIVE_S * NS_PER_S) as harness:
        await Client.producing(harness.port)
        rate = {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 30}
        await harness.broker.policies.set_topic(TOPIC, "subscribeRate", rate)
        client = await Client.connected(harness.port)
        wanted = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "subType": 1, "consumer_name": "c"}
        for _ in range(2):
            await client.request(Type.SUBSCRIBE, Type.SUCCESS, **wanted)
            await client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=0)
        refused = await client.request(Type.SUBSCRIBE, Type.ERROR, **wanted)
        assert refused.error.error == ServerError.NotAllowedError
        assert refused.error.message == "Subscribe limited by subscribe rate limit per consumer."
        harness.clock.advance(ms=30_000)
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, **wanted)


# An entry of a hundred messages, whose SEND says that it is one.
MISLABELLED = send(
    0,
    0,
    entries.entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=100), b""),
)


async def test_where_publishing_is_limited_the_messages_of_each_entry_are_counted(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    for limit, messages in ((None, 1), (publish_rate(1_000), 101), (None, 102)):
        await harness.broker.policies.set_topic(TOPIC, "publishRate", limit)
        client.write(MISLABELLED)
        await client.receipts(1)
        assert topic_of(harness).messages_in == messages


@pytest.mark.parametrize("policy", ["dispatchRate", "subscriptionDispatchRate"])
@pytest.mark.parametrize("stored_before", [False, True])
async def test_where_delivery_is_limited_the_messages_of_each_entry_are_counted_whenever_it_was_stored(
    harness: Harness, policy: str, *, stored_before: bool
) -> None:
    client = await Client.producing(harness.port)
    if not stored_before:
        await harness.broker.policies.set_topic(TOPIC, policy, dispatch_rate(50))
    client.write(MISLABELLED * 3)
    await client.receipts(3)
    await harness.broker.policies.set_topic(TOPIC, policy, dispatch_rate(50))
    await Client.consuming(harness.port)
    await until(lambda: topic_of(harness).subscriptions["s"].messages_out > 0)
    await turns()
    assert topic_of(harness).subscriptions["s"].messages_out == 100


@pytest.mark.parametrize(
    ("proxy", "delivered"),
    [
        ({}, 3),
        ({"proxy_to_broker_url": "broker:6650"}, 3),  # a client that was told to stay on its URL
        ({"proxy_to_broker_url": VERSION}, 1),
        ({"proxy_version": "3.0.0"}, 1),
    ],
)
async def test_a_proxys_consumer_pays_permits_for_all_messages_of_an_entry(
    harness: Harness, proxy: dict[str, str], delivered: int
) -> None:
    """Else the proxy, which counts them, would take permits for used that the broker still has."""
    producer = await Client.producing(harness.port)
    producer.write(MISLABELLED * 3)
    await producer.receipts(3)
    consumer = await Client.open(harness.port)
    consumer.write(frame(Type.CONNECT, client_version="test", protocol_version=20, **proxy))
    await consumer.expect(Type.CONNECTED)
    wanted = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "subType": 1, "initialPosition": 1}
    await consumer.request(Type.SUBSCRIBE, Type.SUCCESS, **wanted)
    consumer.write(flow(10))
    (attached,) = topic_of(harness).subscriptions["s"].consumers
    await until(lambda: attached.entries_out == delivered)
    await turns()
    assert attached.entries_out == delivered
