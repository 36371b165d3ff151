# SPDX-License-Identifier: Apache-2.0
"""Situations in which something waits, or nothing does: the first finding is the reason, nothing else is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.subscriptions.key_ranges import hash_of
from penstock.broker.subscriptions.key_shared import KeyShared
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.testing.client import Refused, Type
from penstock.testing.disk import VirtualDisk
from tests.broker.consuming import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED, Peer, subscription_of
from tests.broker.governed import configure
from tests.broker.test_resource_groups import attach, harness, passes, put
from tests.net.harness import TOPIC, Client, topic_of, until

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
        await producer.publish(*[b"x"] * 500, partition_key=key_of(harness, "slow"))
    await passes(3_000)
    found, ahead = await findings(harness)
    assert found["reason"] == "queue-full"
    assert ahead["reason"] == "look-ahead"
    assert ahead["numbers"]["set_aside_entries"] == ahead["numbers"]["set_aside_entries_max"] == 4_000


def key_of(harness: Harness, name: str) -> str:
    """A key of this consumer."""
    dispatcher = subscription_of(harness).dispatcher
    assert isinstance(dispatcher, KeyShared)
    selector = dispatcher.order.selector
    for number in range(1_000):
        consumer = selector.select(selector.slot(hash_of(b"k%d" % number)))
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
    assert found["numbers"] == {"delayed_entries": 3, "next_in_s": pytest.approx(598, abs=1.5)}


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


# -- what refuses everybody


def disk_of(harness: Harness) -> VirtualDisk:
    assert isinstance(harness.disk, VirtualDisk)
    return harness.disk


async def reasons(harness: Harness, topic: str = TOPIC) -> list[str]:
    return [found["reason"] for found in await findings(harness, topic)]


async def test_a_disk_that_failed_is_named_before_a_quota_that_is_used_up(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    producer = await Peer.producing(harness)
    await publish_until_held(harness, producer)
    disk_of(harness).fail_sync_at(1)
    await passes(5_000)
    first, *_ = await findings(harness)
    assert first["reason"] == "log-read-only"
    assert first["limit"] == "the log is read-only: Input/output error (errno 5)"
    assert first["forMs"] is not None
    disk_of(harness).heal_all()


async def test_a_full_disk_is_named_while_producers_are_refused(harness: Harness) -> None:
    await Peer.producing(harness)
    disk_of(harness).run_full_after(0)
    harness.broker.log._maintenance.no_room = "the disk has no room for the next segment: no space left"  # noqa: SLF001
    await passes(3_000)
    assert topic_of(harness).producers == {}
    (found,) = await findings(harness)
    assert (found["reason"], found["numbers"]) == ("disk-full", {})
    assert found["limit"].startswith("the disk is full: the disk has no room for the next segment: ")
    assert found["forMs"] >= 1_000
    disk_of(harness).heal_all()


async def test_a_disk_that_holds_a_write_mutes_publishers_and_is_named(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    harness.disk.hold()
    producer.client.publish(b"x")
    await passes(9_000)
    assert await reasons(harness) == ["storage"]
    harness.disk.release()
    await passes(2_000)
    assert await reasons(harness) == []


# -- publishers


async def publish_until_held(harness: Harness, producer: Peer, count: int = 200) -> None:
    producer.client.publish(*[b"x"] * count)
    await until(lambda: bool(topic_of(harness).waiting.messages))


async def test_a_producer_below_its_quota_is_not_slowed(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    producer = await Peer.producing(harness)
    for number in range(40):
        producer.client.publish(b"x", first=number)
        await passes(100)
        assert await reasons(harness) == []


async def test_a_quota_that_is_exceeded_in_bursts_is_told_by_its_share_of_the_time(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    producer = await Peer.producing(harness)
    for number in range(8):
        producer.client.publish(*[b"x"] * 15, first=15 * number)
        await passes(2_000)
    (found,) = await findings(harness)
    assert found["forMs"] >= 14_000
    assert 60 <= found["numbers"]["held_percent"] <= 80
    assert found["numbers"]["got_messages_per_s"] == pytest.approx(7.5, rel=0.2)


async def test_a_publish_rate_of_the_broker_says_which_setting_raises_it(harness: Harness) -> None:
    configure(harness, broker_publisher_throttling_max_message_rate=10)
    producer = await Peer.producing(harness)
    await publish_until_held(harness, producer)
    found = await only(harness, "publish-rate")
    assert found["limit"] == "publish rate of the broker"
    assert found["liftedBy"].endswith("raise brokerPublisherThrottlingMaxMessageRate and …MaxByteRate")


async def test_the_first_limit_that_holds_is_the_reason(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    await put(harness, publishRateInMsgs=1_000)
    await attach(harness)
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
    await publish_until_held(harness, producer)
    found = await only(harness, "publish-rate")
    assert found["limit"] == f"publish rate of {TOPIC}"


async def test_a_backlog_quota_slows_nobody_before_it_refuses_a_producer(harness: Harness) -> None:
    consumer = await Peer.connected(harness)
    producer = await Peer.producing(harness)
    await consumer.subscribe(SHARED, permits=0)
    await consumer.close_consumer()
    quota = {"limitSize": 50, "policy": "producer_request_hold"}
    await harness.broker.policies.set_namespace_quota("public/default", "destination_storage", quota)
    await producer.publish(*[bytes(100)] * 20)
    of_consumers, would_refuse = await findings(harness)
    assert (of_consumers["reason"], would_refuse["reason"]) == ("no-consumer", "would-refuse-producers")
    assert would_refuse["effect"] == "would-refuse"
    late = await Peer.connected(harness)
    for _ in range(3):
        with pytest.raises(Refused):
            await late.produce()
        await passes(1_000)
    refused, _ = await findings(harness)
    assert (refused["reason"], refused["effect"]) == ("backlog-quota", "slows")
    assert refused["what"] == f"new producers of {TOPIC}"
    assert refused["numbers"]["refused_times"] == 3
    assert refused["forMs"] == pytest.approx(3_000, abs=200)
    await passes(180_000)
    assert await reasons(harness) == ["no-consumer", "would-refuse-producers"], "nobody asks any more"


async def test_the_only_effect_of_a_backlog_quota_that_evicts_is_none(harness: Harness) -> None:
    consumer = await Peer.connected(harness)
    producer = await Peer.producing(harness)
    await consumer.subscribe(SHARED, permits=0)
    quota = {"limitSize": 50, "policy": "consumer_backlog_eviction"}
    await harness.broker.policies.set_namespace_quota("public/default", "destination_storage", quota)
    await producer.publish(*[bytes(100)] * 20)
    await passes(2_000)
    assert await reasons(harness) == ["no-permits"]


# -- connections


async def of_tenant(harness: Harness, tenant: str = "public") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await administration(harness.broker).why.of_tenant(tenant))["findings"]
    return found


async def test_a_consumer_of_a_tenant_whose_connection_is_not_read_is_named(harness: Harness) -> None:
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED)
    harness.connection_of(consumer.client).mute(HoldKind.COMMANDS)
    (found,) = await of_tenant(harness)
    assert found["what"].startswith("client at 127.0.0.1:")
    assert (found["limit"], found["reason"]) == ("too many of its commands wait", "commands")
    assert await of_tenant(harness, "shop") == []


async def test_a_client_that_has_nothing_yet_and_is_not_read_is_nobodys(harness: Harness) -> None:
    client = await Peer.connected(harness)
    harness.connection_of(client.client).mute(HoldKind.REQUEST_MEMORY)
    (found,) = await of_tenant(harness, "shop")
    assert found["what"].startswith("client at 127.0.0.1:")
    assert found["tenants"] == [], "only administrators of the broker are told"


async def test_reads_that_fail_are_named(harness: Harness) -> None:
    await published(harness, *[bytes(100 * KIB)] * 30)
    harness.broker.tail_cache.limit_bytes = 0
    harness.disk.read_error = OSError(5, "Input/output error")
    consumer = await Peer.connected(harness)
    await consumer.subscribe(SHARED)
    await passes(5_000)
    found = await only(harness, "unreadable")
    assert found["numbers"]["waiting_entries"] > 0
    harness.disk.read_error = None


async def test_a_producer_that_waits_for_exclusive_access_is_told_for_whom(harness: Harness) -> None:
    first = await Peer.producing(harness)
    holder = next(iter(topic_of(harness).producers))
    clients = [await Client.connected(harness.port) for _ in range(2)]
    for name, client in zip(("second", "third"), clients, strict=True):
        fields = {"topic": TOPIC, "producer_id": 0, "producer_name": name, "producer_access_mode": 2}
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, **fields)
    await passes(7_000)
    answer = await administration(harness.broker).why.of_producer("third")
    (found,) = answer["findings"]
    assert (answer["slowed"], answer["producers"]) == (False, 1), "it has asked to wait"
    assert (found["reason"], found["effect"]) == ("exclusive-access", "waits")
    assert found["what"] == f"producer third of {TOPIC}"
    assert found["limit"] == f"its topic is for one producer at a time, now for producer {holder}"
    assert found["numbers"] == {"connected_producers": 1, "waiting_before": 1}
    assert found["forMs"] == pytest.approx(7_000, abs=100)
    await first.client.close()
    await passes(1_000)
    (found,) = await findings(harness)
    assert found["limit"].endswith("now for producer second")
    assert found["numbers"] == {"connected_producers": 1, "waiting_before": 0}
