# SPDX-License-Identifier: Apache-2.0
"""Backlog quotas and bounds on producers, with clients that are told what Pulsar's are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.policies.policy_values import EVICTION, EXCEPTION, HOLD, QUOTA_AGE, QUOTA_SIZE
from penstock.core.units import KIB
from penstock.testing.client import Type, frame
from penstock.wire.pulsar_pb2 import ServerError
from tests.broker.governed import (
    NAMESPACE,
    OTHER,
    acknowledge_through,
    configure,
    publish_now,
    subscribe,
    subscription_of,
)
from tests.net.harness import TOPIC, Client, topic_of

if TYPE_CHECKING:
    from penstock.wire.pulsar_pb2 import BaseCommand
    from tests.net.harness import Harness

QUOTA_CHECK = "backlog quota check"


async def bound_backlog(harness: Harness, kind: str, policy: str, *, size: int = -1, seconds: int = -1) -> None:
    """Set a quota for the topic."""
    quota = {"limitSize": size, "limitTime": seconds, "policy": policy}
    await harness.broker.policies.set_topic_quota(TOPIC, kind, quota)


async def refused(client: Client, **fields: Any) -> BaseCommand:  # noqa: ANN401
    """The error a producer gets."""
    return await client.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, **{"producer_id": 0, **fields})


async def told_to_connect_anew(client: Client) -> int:
    """The id of the producer that the broker closes."""
    return (await client.expect(Type.CLOSE_PRODUCER)).close_producer.producer_id


# -- sizes


async def test_sizes_are_those_of_the_stored_entries(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness, "one")
    await subscribe(harness, "two")
    await publish_now(harness, producer, [bytes(1_000)] * 10)
    acknowledge_through(harness, 4, "two")
    topic = topic_of(harness)
    sizes = await harness.broker.quotas.sizes(topic)
    assert sizes.storage == topic.bytes_in
    assert sizes.backlogs == {"one": topic.bytes_in, "two": topic.bytes_in // 2}
    assert await harness.broker.quotas.backlog_bytes(topic) == topic.bytes_in
    assert await harness.broker.quotas.bytes_from(topic, 9) == topic.bytes_in // 10


async def test_a_topic_that_nobody_subscribed_to_has_no_backlog(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await publish_now(harness, producer, [bytes(1_000)] * 10, ago_ms=60_000)
    assert await harness.broker.quotas.backlog_bytes(topic_of(harness)) == 0
    assert await harness.broker.quotas.backlog_age_s(topic_of(harness)) == 0


async def test_the_age_of_a_backlog_is_that_of_its_oldest_message(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await publish_now(harness, producer, [b"old"], ago_ms=90_000)
    await publish_now(harness, producer, [b"young"], ago_ms=10_000)
    assert await harness.broker.quotas.backlog_age_s(topic_of(harness)) == 90
    acknowledge_through(harness, 0)
    assert await harness.broker.quotas.backlog_age_s(topic_of(harness)) == 10
    acknowledge_through(harness, 1)
    assert await harness.broker.quotas.backlog_age_s(topic_of(harness)) == 0


# -- backlogs


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (HOLD, ServerError.ProducerBlockedQuotaExceededError),
        (EXCEPTION, ServerError.ProducerBlockedQuotaExceededException),
    ],
)
@pytest.mark.parametrize("kind", [QUOTA_SIZE, QUOTA_AGE])
async def test_over_the_quota_producers_are_disconnected_and_told_when_they_come_back(
    harness: Harness, policy: str, error: int, kind: str
) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await bound_backlog(harness, kind, policy, size=10 * KIB, seconds=60)
    await publish_now(harness, producer, [bytes(KIB)] * 9, ago_ms=50_000)
    await harness.broker.periodic_checks.run(QUOTA_CHECK)
    await publish_now(harness, producer, [bytes(KIB)] * 2)
    harness.clock.advance(ms=11_000)
    await harness.broker.periodic_checks.run(QUOTA_CHECK)
    assert await told_to_connect_anew(producer) == 0
    answer = await refused(producer)
    assert answer.error.error == error
    assert answer.error.message == "Cannot create producer on topic with backlog quota exceeded"
    acknowledge_through(harness, 10)
    await producer.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)


async def test_a_quota_of_size_evicts_the_oldest_of_the_slowest_subscriptions(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    for name in ("slow", "slower", "fast"):
        await subscribe(harness, name)
    await bound_backlog(harness, QUOTA_SIZE, EVICTION, size=10 * KIB)
    await publish_now(harness, producer, [bytes(KIB)] * 40)
    acknowledge_through(harness, 9, "slow")
    acknowledge_through(harness, 36, "fast")
    await harness.broker.periodic_checks.run(QUOTA_CHECK)
    topic = topic_of(harness)
    assert 8 * KIB < await harness.broker.quotas.backlog_bytes(topic) <= 9 * KIB
    assert subscription_of(harness, "slow").backlog == subscription_of(harness, "slower").backlog
    assert subscription_of(harness, "fast").backlog == 3
    await publish_now(harness, producer, [b"the producer was not disturbed"])


async def test_a_quota_of_age_evicts_what_is_older_than_nine_tenths_of_it(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await bound_backlog(harness, QUOTA_AGE, EVICTION, seconds=100)
    await publish_now(harness, producer, [b""] * 5, ago_ms=150_000)
    await publish_now(harness, producer, [b""] * 5, ago_ms=95_000)
    await publish_now(harness, producer, [b""] * 5, ago_ms=85_000)
    await harness.broker.periodic_checks.run(QUOTA_CHECK)
    assert subscription_of(harness).backlog == 5


async def test_a_quota_of_the_namespace_holds_unless_the_topic_has_its_own(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    await publish_now(harness, producer, [bytes(KIB)] * 5)
    quota = {"limitSize": KIB, "policy": EXCEPTION}
    await harness.broker.policies.set_namespace_quota(NAMESPACE, QUOTA_SIZE, quota)
    other = await Client.connected(harness.port)
    assert (await refused(other)).error.error == ServerError.ProducerBlockedQuotaExceededException
    await bound_backlog(harness, QUOTA_SIZE, HOLD, size=100 * KIB)
    await other.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)


async def test_the_check_can_be_switched_off(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness)
    configure(harness, backlog_quota_check_enabled=False, backlog_quota_default_limit_bytes=10)
    await publish_now(harness, producer, [bytes(KIB)])
    await harness.broker.periodic_checks.run(QUOTA_CHECK)
    await publish_now(harness, producer, [b"still there"])


async def test_non_durable_subscriptions_count_for_no_backlog(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await subscribe(harness, "reader", durable=False)
    await publish_now(harness, producer, [bytes(KIB)] * 5)
    assert await harness.broker.quotas.backlog_bytes(topic_of(harness)) == 0


# -- bounds


async def test_a_topic_takes_no_more_producers_than_it_may_have(harness: Harness) -> None:
    first = await Client.producing(harness.port)
    await harness.broker.policies.set_namespace(NAMESPACE, "maxProducersPerTopic", 1)
    second = await Client.connected(harness.port)
    answer = await refused(second)
    assert answer.error.error == ServerError.ProducerBusy
    assert answer.error.message == f"Topic '{TOPIC}' reached max producers limit"
    await second.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=OTHER, producer_id=1)
    await first.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
    await second.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)


async def test_producers_that_come_at_the_same_time_share_the_last_place(harness: Harness) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "maxProducers", 2)
    client = await Client.connected(harness.port)
    for producer_id in range(5):
        client.requests += 1
        client.write(_producer(client.requests, producer_id))
    answers = [(await client.read()).type for _ in range(5)]
    assert sorted(answers) == sorted([Type.PRODUCER_SUCCESS] + [Type.ERROR] * 4)


def _producer(request_id: int, producer_id: int) -> bytes:
    return frame(Type.PRODUCER, request_id=request_id, producer_id=producer_id, topic=TOPIC)


async def test_a_producer_that_comes_back_under_its_name_needs_no_second_place(harness: Harness) -> None:
    client = await Client.connected(harness.port)
    wanted = {"topic": TOPIC, "producer_name": "p", "user_provided_producer_name": True}
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, producer_id=0, epoch=0, **wanted)
    await harness.broker.policies.set_topic(TOPIC, "maxProducers", 1)
    harness.connection_of(client).close("the network went away")
    again = await Client.connected(harness.port)
    await again.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, producer_id=0, epoch=1, **wanted)


async def test_one_address_takes_no_more_producers_of_a_topic_than_it_may_have(harness: Harness) -> None:
    await Client.producing(harness.port)
    configure(harness, max_same_address_producers_per_topic=1)
    answer = await refused(await Client.connected(harness.port))
    assert answer.error.error == ServerError.ProducerBusy
    assert answer.error.message == f"Topic '{TOPIC}' reached max same address producers limit"
