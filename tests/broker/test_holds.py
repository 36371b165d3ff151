# SPDX-License-Identifier: Apache-2.0
"""Situations in which something waits, or nothing does: the first finding is the reason, nothing else is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.names import TopicName
from penstock.core.units import KIB
from tests.broker.consuming import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Peer, subscription_of
from tests.broker.governed import configure
from tests.broker.test_resource_groups import attach, harness, passes, put
from tests.net.harness import TOPIC, topic_of, until

if TYPE_CHECKING:
    from tests.net.harness import Harness

__all__ = ["harness"]


async def findings(harness: Harness, topic: str = TOPIC) -> list[dict[str, Any]]:
    """What is found of a topic."""
    found: list[dict[str, Any]] = (await administration(harness.broker).why.of_topic(TopicName.parse(topic)))[
        "findings"
    ]
    return found


async def only(harness: Harness, reason: str) -> dict[str, Any]:
    """The only finding, which has this reason."""
    (found,) = await findings(harness)
    assert found["reason"] == reason
    return found


async def published(harness: Harness, *payloads: bytes, **metadata: Any) -> Peer:  # noqa: ANN401
    peer = await Peer.producing(harness)
    await peer.publish(*payloads, **metadata)
    return peer


# -- healthy


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_nothing_holds_a_subscription_that_keeps_up(harness: Harness, kind: int) -> None:
    consumer = await Peer.connected(harness)
    producer = await Peer.producing(harness)
    await consumer.subscribe(kind, permits=1_000)
    for _ in range(5):
        await producer.publish(*[b"x"] * 20, partition_key="k")
        consumer.acknowledge(*await consumer.messages(20))
        await passes(1_000)
        assert await findings(harness) == []


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_a_queue_that_is_full_between_two_flows_holds_nobody(harness: Harness, kind: int) -> None:
    await published(harness, *[b"x"] * 200)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(kind, permits=10)
    for _ in range(10):
        consumer.acknowledge(*await consumer.messages(10))
        assert await findings(harness) == []
        consumer.flow(10)
        await passes(1)


async def test_a_subscription_without_messages_waits_for_nothing(harness: Harness) -> None:
    await Peer.producing(harness)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=0)
    await passes(20_000)
    assert await findings(harness) == []


async def test_unacknowledged_messages_alone_are_no_reason_to_wait(harness: Harness) -> None:
    await published(harness, *[b"x"] * 10)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=10)
    await consumer.messages(10)
    await passes(20_000)
    assert await findings(harness) == []


# -- consumers


async def test_a_subscription_without_consumer_says_so_and_how_much_waits(harness: Harness) -> None:
    await published(harness, *[b"x"] * 10)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=0)
    await consumer.close_consumer()
    await passes(7_000)
    found = await only(harness, "no-consumer")
    assert (found["what"], found["limit"]) == (f"subscription s of {TOPIC}", "it has no consumer")
    assert found["numbers"] == {"waiting_entries": 10}
    assert found["forMs"] == pytest.approx(7_000, abs=100)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_a_consumer_that_asks_for_no_messages_is_named(harness: Harness, kind: int) -> None:
    await published(harness, *[b"x"] * 10)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(kind, permits=0, consumer_name="silent")
    await passes(10_000)
    found = await only(harness, "no-permits")
    assert found["what"].startswith("consumer silent at 127.0.0.1:")
    assert found["limit"] == "its client asks for no messages"
    assert found["numbers"]["waiting_entries"] == 10
    assert found["forMs"] >= 9_000


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
async def test_a_consumer_whose_queue_is_full_is_named_until_it_asks_for_more(harness: Harness, kind: int) -> None:
    await published(harness, *[b"x"] * 20)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(kind, permits=5, consumer_name="slow")
    await consumer.messages(5)
    await passes(3_000)
    found = await only(harness, "queue-full")
    assert found["what"].startswith("consumer slow at ")
    assert found["limit"] == "its client has as many messages as it has asked for"
    assert found["numbers"]["waiting_entries"] == 15
    assert found["numbers"]["held_percent"] == 100
    consumer.flow(100)
    await consumer.messages(15)
    await passes(2_000)
    assert await findings(harness) == []


async def test_a_consumer_that_is_always_behind_is_held_for_longer_than_since_its_last_message(
    harness: Harness,
) -> None:
    await published(harness, *[b"x"] * 200)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=5)
    for _ in range(20):
        consumer.acknowledge(*await consumer.messages(5))
        await passes(500)
        consumer.flow(5)
    await passes(100)
    found = await only(harness, "queue-full")
    assert found["forMs"] >= 9_000
    assert found["numbers"]["held_percent"] >= 90
    assert found["numbers"]["got_messages_per_s"] == pytest.approx(10, rel=0.2)


async def test_a_client_that_does_not_read_is_named_with_its_unsent_bytes(harness: Harness) -> None:
    await published(harness, *[bytes(900 * KIB)] * 40)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=1_000, consumer_name="deaf")
    await passes(5_000)
    found = await only(harness, "outbound")
    assert found["what"].startswith("consumer deaf at ")
    assert found["limit"] == "its client does not read what it is sent"
    assert found["numbers"]["unsent_bytes"] > 0


async def test_keys_that_another_consumer_still_holds_name_its_first_unacknowledged_message(harness: Harness) -> None:
    first = await Peer.connected(harness)
    producer = await Peer.producing(harness)
    await first.subscribe(KEY_SHARED, consumer_name="a")
    for number in range(60):
        await producer.publish(b"x", partition_key=f"key-{number}")
    await first.messages(60)
    second = await Peer.connected(harness)
    await second.subscribe(KEY_SHARED, consumer_name="b")
    for number in range(60):
        await producer.publish(b"x", partition_key=f"key-{number}")
    await passes(5_000)
    found = await only(harness, "key-blocked")
    assert found["what"].startswith("consumer b at ")
    held = next(iter(subscription_of(harness).dispatcher.draining(subscription_of(harness).consumers[0])))  # type: ignore[union-attr]
    assert held.entries == 1
    assert " of consumer a at 127.0.0.1:" in found["limit"]
    assert found["limit"].startswith("keys are blocked by message 1:")
    assert found["numbers"]["waiting_entries"] > 0
    assert found["numbers"]["unacked_by_it"] == 60 + 60 - found["numbers"]["waiting_entries"]
    assert found["forMs"] >= 4_000
    first.acknowledge(*range(120))
    await until(lambda: not subscription_of(harness).dispatcher.has_replay)  # type: ignore[union-attr]
    await passes(2_000)
    assert await findings(harness) == []


async def test_one_consumer_of_keys_without_permits_is_named_while_others_go_on(harness: Harness) -> None:
    fast, slow = await Peer.connected(harness), await Peer.connected(harness)
    producer = await Peer.producing(harness)
    await fast.subscribe(KEY_SHARED, consumer_name="fast", permits=10_000)
    await slow.subscribe(KEY_SHARED, consumer_name="slow", permits=1)
    for number in range(60):
        await producer.publish(b"x", partition_key=f"key-{number}")
    await passes(3_000)
    found = await only(harness, "queue-full")
    assert found["what"].startswith("consumer slow at ")
    assert found["numbers"]["waiting_entries"] > 0


async def test_keys_that_fill_the_look_ahead_are_named_before_it(harness: Harness) -> None:
    slow = await Peer.connected(harness)
    await slow.subscribe(KEY_SHARED, consumer_name="slow", permits=1)
    fast = await Peer.connected(harness)
    await fast.subscribe(KEY_SHARED, consumer_name="fast", permits=100_000)
    producer = await Peer.producing(harness)
    for _ in range(9):
        await producer.publish(*[b"x"] * 500, partition_key=await _key_of(harness, "slow"))
    await passes(3_000)
    found, ahead = await findings(harness)
    assert found["reason"] == "queue-full"
    assert ahead["reason"] == "look-ahead"
    assert ahead["numbers"]["set_aside_entries"] == ahead["numbers"]["set_aside_entries_max"] == 4_000


async def _key_of(harness: Harness, name: str) -> str:
    from penstock.broker.subscriptions.key_shared import hash_of

    order = subscription_of(harness).dispatcher.order  # type: ignore[union-attr]
    for number in range(1_000):
        consumer = order.selector.select(order.selector.slot(hash_of(f"k{number}".encode())))
        if consumer is not None and consumer.name == name:
            return f"k{number}"
    raise AssertionError(f"no key for {name}")


# -- limits


async def test_unacknowledged_messages_of_a_subscription_are_the_reason_while_they_are_too_many(
    harness: Harness,
) -> None:
    configure(harness, max_unacked_messages_per_subscription=10)
    await published(harness, *[b"x"] * 50)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED, permits=20)
    received = await consumer.messages(20)
    consumer.flow(1_000)
    await passes(0)
    found = await only(harness, "unacked-messages")
    assert (found["numbers"]["unacked"], found["numbers"]["unacked_max"]) == (20, 10)
    consumer.acknowledge(*received)
    await consumer.messages(30)
    await passes(2_000)
    assert await findings(harness) == []


async def test_delayed_messages_wait_as_asked_and_slow_nobody(harness: Harness) -> None:
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED)
    await published(harness, *[b"x"] * 3, deliver_at_time=harness.clock.wall_ms() + 600_000)
    await passes(2_000)
    answer = await administration(harness.broker).why.of_topic(TopicName.parse(TOPIC))
    (found,) = answer["findings"]
    assert (found["reason"], found["effect"], answer["slowed"]) == ("delayed", "waits", False)
    assert found["numbers"]["delayed_entries"] == 3


async def test_a_dispatch_rate_holds_since_it_began_and_not_since_the_last_token(harness: Harness) -> None:
    configure(harness, dispatch_throttling_on_non_backlog_consumer_enabled=True)
    await published(harness, *[b"x"] * 200)
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", rate)
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED)
    await passes(20_100)
    found = await only(harness, "dispatch-rate")
    assert found["limit"] == "dispatch rate of the topic"
    assert found["forMs"] >= 19_000
    assert found["numbers"]["got_messages_per_s"] == pytest.approx(5, abs=0.5)
    assert found["numbers"]["held_percent"] >= 95


async def test_a_publish_quota_holds_since_it_began_with_what_was_wanted_and_got(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=50)
    await attach(harness)
    producer = await Peer.producing(harness)
    for number in range(20):
        producer.client.publish(*[b"x"] * 60, first=60 * number)
        await passes(1_000)
    found = await only(harness, "group-quota")
    assert found["forMs"] >= 18_000
    assert found["numbers"]["got_messages_per_s"] == pytest.approx(50, rel=0.1)
    assert found["numbers"]["wanted_messages_per_s"] == pytest.approx(60, rel=0.1)
    assert topic_of(harness).entries_in < 1_100
    await attach(harness, None)
    assert await findings(harness) == []
