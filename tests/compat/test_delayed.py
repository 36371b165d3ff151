# SPDX-License-Identifier: Apache-2.0
"""Delayed delivery, as the official client and an administrator see it; the plain cases are with the producers."""

from __future__ import annotations

import time
from datetime import timedelta

import pulsar
import pytest

from tests.compat.clients import TIMEOUT_MS, Admin, has_nothing, numbered, path_of, until

Shared, KeyShared = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
SOON_S = 2.2

pytestmark = pytest.mark.feature("delayed")


@pytest.mark.parametrize("kind", [Shared, KeyShared], ids=["shared", "keys"])
def test_messages_with_and_without_a_delay_interleave_and_none_is_lost(
    client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=kind)
    producer = client.create_producer(topic, batching_enabled=False)
    due_ms = int((time.time() + SOON_S) * 1000)
    for number, payload in enumerate(numbered(20)):
        delay = {"deliver_at": due_ms} if number % 2 else {}
        producer.send(payload, partition_key=f"k{number % 4}", **delay)
    came = [consumer.receive(TIMEOUT_MS).data() for _ in range(20)]
    assert set(came[:10]) == {payload for number, payload in enumerate(numbered(20)) if number % 2 == 0}
    assert set(came[10:]) == {payload for number, payload in enumerate(numbered(20)) if number % 2}


def test_every_subscription_gets_a_delayed_message_once(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, f"s{number}", consumer_type=Shared) for number in range(3)]
    client.create_producer(topic).send(b"later", deliver_after=timedelta(seconds=SOON_S))
    for consumer in consumers:
        message = consumer.receive(TIMEOUT_MS)
        assert (message.data(), message.redelivery_count()) == (b"later", 0)
        consumer.acknowledge(message)
    for consumer in consumers:
        assert has_nothing(consumer)


def test_a_delayed_message_waits_for_a_consumer_that_goes_and_comes_back(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Shared)
    client.create_producer(topic).send(b"later", deliver_after=timedelta(seconds=SOON_S))
    consumer.close()
    assert client.subscribe(topic, "s", consumer_type=Shared).receive(TIMEOUT_MS).data() == b"later"


def test_what_waits_is_counted_and_cleared_with_the_backlog(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for payload in numbered(5):
        producer.send(payload, deliver_after=timedelta(hours=1))
    stats = f"{path_of(topic)}/stats"
    until(lambda: admin.get(stats)["subscriptions"]["s"]["msgDelayed"] == 5)
    assert admin.get(stats)["subscriptions"]["s"]["msgBacklog"] == 5
    admin.post(f"{path_of(topic)}/subscription/s/skip_all")
    until(lambda: admin.get(stats)["subscriptions"]["s"]["msgBacklog"] == 0)
    producer.send(b"now")
    assert consumer.receive(TIMEOUT_MS).data() == b"now"


def test_a_longer_delay_than_the_policy_allows_is_refused(client: pulsar.Client, admin: Admin, topic: str) -> None:
    producer = client.create_producer(topic)
    path = f"{path_of(topic)}/delayedDelivery"
    admin.post(path, {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 5000})
    until(lambda: (admin.get(path) or {}).get("maxDeliveryDelayInMillis") == 5000)
    producer.send(b"soon", deliver_after=timedelta(seconds=1))
    with pytest.raises(pulsar.PulsarException):  # which one, depends on the client's release
        producer.send(b"late", deliver_after=timedelta(minutes=1))


def test_where_delays_are_switched_off_messages_come_at_once(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Shared)
    producer = client.create_producer(topic)
    path = f"{path_of(topic)}/delayedDelivery"
    admin.post(path, {"tickTime": 1000, "active": False, "maxDeliveryDelayInMillis": 0})
    until(lambda: (admin.get(path) or {}).get("active") is False)
    producer.send(b"at once", deliver_after=timedelta(hours=1))
    assert consumer.receive(TIMEOUT_MS).data() == b"at once"


@pytest.mark.penstock_only("Pulsar 4.2 has no way to take a delayed message back")
def test_a_cancelled_message_never_comes(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    gone = producer.send(b"gone", deliver_after=timedelta(seconds=SOON_S))
    producer.send(b"kept", deliver_after=timedelta(seconds=SOON_S))
    admin.delete(f"{path_of(topic)}/delayed/ledger/{gone.ledger_id()}/entry/{gone.entry_id()}")
    assert consumer.receive(TIMEOUT_MS).data() == b"kept"
    assert has_nothing(consumer)
