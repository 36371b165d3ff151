# SPDX-License-Identifier: Apache-2.0
"""No name that a client may choose exempts it from a limit: that of a topic, of a producer or of a subscription.

Each limit is tried with each name, at a broker and through a proxy. The oracle is one sentence: what passes is at most
rate * time + one burst.

What Apache Pulsar 4.2.4 does, with authorization and for every role that may produce: it accepts producers of
`__change_events` and `__transaction_buffer_snapshot…` in any namespace, exempts these topics from rates, quotas and
bounds, and hides them in listings. It refuses to create a persistent topic `…__transaction_pending_ack`: producers and
consumers get NotAllowedError ("Can not create transaction system topic"), REST answers 400 ("Cannot create topic in
system topic format!"). A producer named `pulsar.repl.x` is exempt from maxProducersPerTopic for everybody.

penstock keeps nothing in such topics. Here they are topics like all others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import HOLD, QUOTA_SIZE
from penstock.core.errors import AlreadyExists, NotAllowed
from penstock.core.names import NamespaceName, TopicName
from penstock.core.system_topics import DECISION_TOPIC, REPORTS_TOPIC, USAGE_TOPIC
from penstock.core.units import KIB
from penstock.testing.client import Type, frame
from penstock.wire.pulsar_pb2 import ServerError
from tests.broker.governed import configure
from tests.broker.listed import list_topics
from tests.broker.throttled import Sensors
from tests.net.harness import Client, running, topic_of, turns
from tests.proxied.tenants import Tenant, made, namespace_of, policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from penstock.broker.topics.topic import Topic

PARTITIONED = "persistent://public/default/__change_events"
STORED = [
    "persistent://public/default/t",
    "persistent://public/default/__change_events",
    "persistent://public/default/__change_events-partition-0",
    "persistent://public/default/__transaction_buffer_snapshot",
    "persistent://public/default/__transaction_buffer_snapshot_segments",
    "persistent://public/default/__transaction_buffer_snapshot_indexes",
    "persistent://public/default/t-s__transaction_pending_ack",
    "persistent://public/default/__consumer_offsets",
    "persistent://public/default/healthcheck",
    "persistent://pulsar/system/transaction_coordinator_assign",
    "persistent://pulsar/system/__transaction_log_7",
    "persistent://pulsar/system/usage-partition-x",
]
NOT_STORED = [
    "non-persistent://public/default/t",
    "non-persistent://public/default/__change_events",
    "non-persistent://public/default/t-s__transaction_pending_ack",
    "non-persistent://pulsar/system/mine",
    "non-persistent://pulsar/system/resource-usage-partition-x",
    "non-persistent://pulsar/system/proxy-resource-usage",
]
PRODUCERS = ["pulsar.repl.x", "pulsar.repl.test", "multiTopicsReader-1", "broker-0", "penstock", "pulsar.dedup"]
SUBSCRIPTIONS = ["s", "multiTopicsReader-1", "reader-1", "__pending_ack_state", "broker-0"]

RATE = 50
SECONDS = 3
# Several times what a limit lets pass.
MANY = 2_000


async def group(tenant: Tenant, name: str, **rates: int) -> None:
    """Attach a resource group with these rates to the namespace of a topic."""
    groups = administration(tenant.broker.broker).resource_groups
    await groups.put("gold", rates)
    await groups.attach_namespace(TopicName.parse(name).namespace_name, "gold")


def publish_rate() -> dict[str, int]:
    return {"publishThrottlingRateInMsg": RATE, "publishThrottlingRateInByte": -1}


def dispatch_rate() -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": RATE,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 1,
    }


# -- publishing

Limiting: TypeAlias = "Callable[[Tenant, str], Awaitable[None]]"


async def by_group(tenant: Tenant, name: str) -> None:
    await group(tenant, name, publishRateInMsgs=RATE)


async def by_topic(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "publishRate", publish_rate())


async def by_broker(tenant: Tenant, _name: str) -> None:
    configure(tenant.broker, broker_publisher_throttling_max_message_rate=RATE)


PUBLISH_LIMITS: list[Limiting] = [by_group, by_topic, by_broker]


async def passes(client: Client, topic: Topic) -> int:
    """How many of many messages pass in the time."""
    before = topic.entries_in
    for first in range(0, MANY, 100):
        client.publish(*[b""] * 100, first=first)
    await asyncio.sleep(SECONDS)
    await turns()
    return topic.entries_in - before


# A second's burst, and one read of a muted connection.
MOST = RATE * (SECONDS + 1) + 2 * RATE


@pytest.mark.parametrize("limit", PUBLISH_LIMITS)
@pytest.mark.parametrize("name", STORED + NOT_STORED)
async def test_no_name_of_a_topic_escapes_a_publish_limit(tenant: Tenant, name: str, limit: Limiting) -> None:
    await made(tenant, name)
    await limit(tenant, name)
    client = await tenant.producing(name)
    assert 0 < await passes(client, tenant.topic(name)) <= MOST
    assert tenant.topic(name).publish_limited_times, "metrics say that it was limited"


@pytest.mark.parametrize("limit", PUBLISH_LIMITS)
@pytest.mark.parametrize("producer", PRODUCERS)
async def test_no_name_of_a_producer_escapes_a_publish_limit(tenant: Tenant, producer: str, limit: Limiting) -> None:
    name = "persistent://public/default/t"
    await limit(tenant, name)
    client = await tenant.producing(name, producer_name=producer)
    assert 0 < await passes(client, tenant.topic(name)) <= MOST


@pytest.mark.parametrize("name", STORED + NOT_STORED)
async def test_why_names_the_group_that_slows_a_topic_of_any_name(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    await by_group(tenant, name)
    client = await tenant.producing(name)
    await passes(client, tenant.topic(name))
    (finding, *_) = (await administration(tenant.broker.broker).why.of_topic(TopicName.parse(name)))["findings"]
    assert finding["limit"] == "publish quota of resource group gold"


@pytest.mark.parametrize("name", STORED + NOT_STORED)
async def test_adaptive_throttling_knows_a_topic_of_any_name(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    client = await tenant.producing(name)
    await client.published(b"")
    await asyncio.sleep(1.5)
    assert tenant.topic(name).adaptive is not None


# -- dispatching


async def to_group(tenant: Tenant, name: str) -> None:
    await group(tenant, name, dispatchRateInMsgs=RATE)


async def to_topic(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "dispatchRate", dispatch_rate())


async def to_subscription(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "subscriptionDispatchRate", dispatch_rate())


async def to_broker(tenant: Tenant, _name: str) -> None:
    configure(tenant.broker, dispatch_throttling_rate_in_msg=RATE)


DISPATCH_LIMITS: list[Limiting] = [to_group, to_topic, to_subscription, to_broker]


async def sent(tenant: Tenant, name: str, subscription: str = "s", **fields: object) -> int:
    """How many of many stored messages a consumer is sent in the time."""
    configure(tenant.broker, dispatch_throttling_on_non_backlog_consumer_enabled=True)
    producer = await tenant.producing(name)
    await producer.published(*[b""] * MANY)
    await tenant.subscribed(name, subscription, permits=10_000, **fields)
    await asyncio.sleep(SECONDS)
    await turns()
    return tenant.topic(name).messages_out


@pytest.mark.parametrize("limit", DISPATCH_LIMITS)
@pytest.mark.parametrize("name", STORED)
async def test_no_name_of_a_topic_escapes_a_dispatch_limit(tenant: Tenant, name: str, limit: Limiting) -> None:
    await made(tenant, name)
    await limit(tenant, name)
    assert 0 < await sent(tenant, name) <= MOST


@pytest.mark.parametrize("limit", DISPATCH_LIMITS)
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
async def test_no_name_of_a_subscription_escapes_a_dispatch_limit(
    tenant: Tenant, subscription: str, limit: Limiting, *, durable: bool
) -> None:
    name = "persistent://public/default/t"
    await limit(tenant, name)
    assert 0 < await sent(tenant, name, subscription, durable=durable) <= MOST


# -- quotas and numbers


async def over_quota(tenant: Tenant, name: str) -> None:
    """Publish ten times the backlog quota of the namespace of a topic."""
    quota = {"limitSize": 10 * KIB, "limitTime": -1, "policy": HOLD}
    await policy(tenant, name, "backlog_quota_map", {QUOTA_SIZE: quota})
    client = await tenant.producing(name)
    await client.published(*[bytes(KIB)] * 100)


@pytest.mark.parametrize("name", STORED)
async def test_no_name_of_a_topic_escapes_a_backlog_quota(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    await tenant.subscribed(name)
    await over_quota(tenant, name)
    assert await tenant.refused(name) == ServerError.ProducerBlockedQuotaExceededError


@pytest.mark.parametrize("subscription", ["__pending_ack_state", "reader-1", "s"])
async def test_no_name_of_a_subscription_escapes_a_backlog_quota(tenant: Tenant, subscription: str) -> None:
    name = "persistent://public/default/t"
    await tenant.subscribed(name, subscription)
    await over_quota(tenant, name)
    assert await tenant.refused(name) == ServerError.ProducerBlockedQuotaExceededError


async def test_a_client_cannot_make_the_subscription_of_compaction(tenant: Tenant) -> None:
    """Its backlog does not count in a quota, it never expires, and it keeps all messages."""
    name = "persistent://public/default/t"
    await tenant.producing(name)
    assert await tenant.refused(name, initial_subscription_name="__compaction") == ServerError.NotAllowedError
    with pytest.raises(NotAllowed, match="__compaction"):
        await administration(tenant.broker.broker).subscriptions.create(TopicName.parse(name), "__compaction")
    assert "__compaction" not in tenant.topic(name).subscriptions


@pytest.mark.parametrize("name", [one for one in STORED if "-partition-0" not in one])
async def test_no_name_of_a_topic_escapes_the_bound_on_topics(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "max_topics_per_namespace", 1)
    await tenant.producing(f"persistent://{namespace_of(name)}/first")
    assert await tenant.refused(name) == ServerError.NotAllowedError
    topics = administration(tenant.broker.broker).topics
    with pytest.raises(NotAllowed, match="Exceed maximum number of topics"):
        await topics.create(TopicName.parse(name))
    with pytest.raises(NotAllowed, match="Exceed maximum number of topics"):
        await topics.create_partitioned(TopicName.parse(name), 2)


@pytest.mark.parametrize("name", [one for one in STORED if "-partition-0" not in one])
async def test_a_topic_of_any_name_counts_for_the_bound_on_topics(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "max_topics_per_namespace", 1)
    await tenant.producing(name)
    assert await tenant.refused(f"persistent://{namespace_of(name)}/second") == ServerError.NotAllowedError


@pytest.mark.parametrize("name", STORED + NOT_STORED)
async def test_no_name_of_a_topic_escapes_the_bound_on_producers(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    await policy(tenant, name, "max_producers_per_topic", 1)
    await tenant.producing(name)
    for producer in ("", *PRODUCERS):
        assert await tenant.refused(name, producer_name=producer) == ServerError.ProducerBusy


@pytest.mark.parametrize("name", STORED + NOT_STORED)
async def test_a_topic_of_any_name_is_listed(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    await tenant.producing(name)
    topic = TopicName.parse(name)
    assert name in await list_topics(tenant.broker.broker, topic.namespace_name, persistent=topic.is_persistent)
    client = await tenant.connected()
    mode = 0 if topic.is_persistent else 1
    client.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=1, namespace=namespace_of(name), mode=mode))
    answer = (await client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)).getTopicsOfNamespaceResponse
    assert name in answer.topics


async def test_a_partitioned_topic_of_any_name_is_listed(tenant: Tenant) -> None:
    topics = administration(tenant.broker.broker).topics
    await topics.create_partitioned(TopicName.parse(PARTITIONED), 2)
    assert topics.list_partitioned(NamespaceName.parse("public/default")) == [PARTITIONED]


# -- lifecycle


@pytest.mark.parametrize("name", STORED)
async def test_a_topic_of_any_name_keeps_its_namespace_from_being_deleted(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    await tenant.producing(name)
    with pytest.raises(AlreadyExists):
        await administration(tenant.broker.broker).namespaces.delete(TopicName.parse(name).namespace_name)


@pytest.mark.parametrize("name", [one for one in NOT_STORED if "proxy" not in one])
async def test_a_topic_of_any_name_is_created_only_where_topics_may_be(tenant: Tenant, name: str) -> None:
    await policy(tenant, name, "autoTopicCreation", {"allowAutoTopicCreation": False, "topicType": "non-partitioned"})
    assert await tenant.refused(name) == ServerError.TopicNotFound


@pytest.mark.parametrize("name", STORED)
async def test_a_topic_of_any_name_is_deleted_when_nobody_uses_it(tenant: Tenant, name: str) -> None:
    await made(tenant, name)
    client = await tenant.producing(name)
    await client.close()
    await asyncio.sleep(200)
    assert not tenant.broker.broker.topics.exists(TopicName.parse(name))


@pytest.mark.parametrize("name", STORED)
async def test_a_topic_of_any_name_is_there_after_a_restart(tmp_path: Path, name: str) -> None:
    """Also in the data directory of an earlier version, where it was exempt."""
    async with running(tmp_path) as broker:
        await made(Tenant(broker, Sensors(), None), name)
        await (await Client.producing(broker.port, topic=name)).published(b"kept")
    async with running(tmp_path) as broker:
        await Tenant(broker, Sensors(), None).subscribed(name, permits=1)
        assert topic_of(broker, name).subscriptions["s"].backlog == 1


# -- system topics


@pytest.mark.parametrize("name", [REPORTS_TOPIC, USAGE_TOPIC, f"{USAGE_TOPIC}-partition-7", DECISION_TOPIC])
async def test_clients_neither_create_nor_write_system_topics(tenant: Tenant, name: str) -> None:
    assert await tenant.refused(name) == ServerError.NotAllowedError
    assert await tenant.refused(name, producer_name="pulsar.repl.x") == ServerError.NotAllowedError
    topics, topic = administration(tenant.broker.broker).topics, TopicName.parse(name)
    for attempt in (topics.create(topic), topics.create_partitioned(topic, 2), topics.update_partitioned(topic, 3)):
        with pytest.raises(NotAllowed, match="only they create it"):
            await attempt


async def test_what_clients_may_create_makes_no_partitions_of_the_topic_of_reports(tenant: Tenant) -> None:
    """With partitions, brokers could not use it."""
    many = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    await policy(tenant, REPORTS_TOPIC, "autoTopicCreation", many)
    client = await tenant.connected()
    client.write(frame(Type.PARTITIONED_METADATA, request_id=1, topic=REPORTS_TOPIC))
    answer = (await client.expect(Type.PARTITIONED_METADATA_RESPONSE)).partitionMetadataResponse
    assert answer.partitions == 0


# -- what a client claims


async def test_a_subscription_whose_state_is_to_be_replicated_expires_as_others(tenant: Tenant) -> None:
    """Its topic is not replicated, so the claim would only keep what the operator wants to end."""
    name = "persistent://public/default/t"
    await policy(tenant, name, "subscriptionExpirationTime", 1)
    await tenant.producing(name)
    client = await tenant.subscribed(name, replicate_subscription_state=True)
    await client.close()
    await asyncio.sleep(600)
    assert "s" not in tenant.topic(name).subscriptions
