# SPDX-License-Identifier: Apache-2.0
"""Policies: the table they stand in, what holds when several levels speak, and how a change spreads."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.policies.policy_table import POLICIES, EffectivePolicies, effective, policy
from penstock.broker.policies.policy_values import (
    AutoTopicCreation,
    BacklogQuota,
    BacklogQuotas,
    DelayedDelivery,
    Inactive,
    Rate,
    RetentionBounds,
)
from penstock.broker.policies.unenforced_policies import EMPTY_NAMESPACE
from penstock.core.errors import NamespaceNotFound, NotAllowed, PreconditionFailed, TopicNotFound
from penstock.core.names import TopicName
from penstock.settings.model import KEYS
from tests.broker.governed import NAMESPACE, OTHER, configure
from tests.net.harness import TOPIC, Client, running, topic_of, turns, until
from tools.write_reference import default_keys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Harness

ROWS = pytest.mark.parametrize("attribute", POLICIES)
OF_NAMESPACES = pytest.mark.parametrize("attribute", [name for name, row in POLICIES.items() if row.namespace])
OF_TOPICS = pytest.mark.parametrize("attribute", [name for name, row in POLICIES.items() if row.topic])
PARTITIONED = "persistent://public/default/parts"

# What is set, and what comes of it.
SAMPLES: dict[str, tuple[Any, dict[str, Any]]] = {
    "retention": (
        {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
        {"retention": RetentionBounds(60, -1)},
    ),
    "messageTTL": (30, {"ttl_s": 30}),
    "backlogQuotaMap": (
        {
            "destination_storage": {"limitSize": 10, "policy": "producer_exception"},
            "message_age": {"limitTime": 20, "policy": "consumer_backlog_eviction"},
        },
        {
            "backlog_quota": BacklogQuotas(
                BacklogQuota(10, "producer_exception"), BacklogQuota(20, "consumer_backlog_eviction")
            )
        },
    ),
    "publishRate": (
        {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
        {"publish_rate": Rate(5, 0)},
    ),
    "dispatchRate": (
        {"dispatchThrottlingRateInMsg": 5, "ratePeriodInSecond": 3, "relativeToPublishRate": True},
        {"dispatch_rate": Rate(5, 0, 3, relative=True)},
    ),
    "subscriptionDispatchRate": ({"dispatchThrottlingRateInByte": 7}, {"subscription_dispatch_rate": Rate(0, 7)}),
    "subscriptionPolicies": (
        {"s": {"dispatchRate": {"dispatchThrottlingRateInMsg": 9}}},
        {"subscription_dispatch_rates": {"s": Rate(9)}},
    ),
    "subscribeRate": (
        {"subscribeThrottlingRatePerConsumer": 2, "ratePeriodInSecond": 10},
        {"subscribe_rate": Rate(2, 0, 10)},
    ),
    "maxProducersPerTopic": (3, {"max_producers": 3}),
    "maxConsumersPerTopic": (3, {"max_consumers": 3}),
    "maxConsumersPerSubscription": (3, {"max_consumers_per_subscription": 3}),
    "maxSubscriptionsPerTopic": (3, {"max_subscriptions": 3}),
    "maxUnackedMessagesPerConsumer": (3, {"max_unacked_per_consumer": 3}),
    "maxUnackedMessagesPerSubscription": (0, {"max_unacked_per_subscription": 0}),
    "deduplication": (True, {"deduplication": True}),
    "compactionThreshold": (100, {"compaction_threshold": 100}),
    "delayedDelivery": (
        {"active": False, "tickTime": 500, "maxDeliveryDelayInMillis": 9},
        {"delayed_delivery": DelayedDelivery(False, 500, 9)},
    ),
    "inactiveTopicPolicies": (
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 7,
            "deleteWhileInactive": False,
        },
        {"inactive": Inactive("delete_when_subscriptions_caught_up", 7, False)},
    ),
    "subscriptionTypesEnabled": (["Shared", "Failover"], {"subscription_types": frozenset({"Shared", "Failover"})}),
    "subscriptionExpirationTime": (5, {"subscription_expiration_minutes": 5}),
    "schemaCompatibilityStrategy": ("BACKWARD", {"schema_compatibility": "BACKWARD"}),
    "schemaValidationEnforced": (True, {"schema_validation_enforced": True}),
    "isAllowAutoUpdateSchema": (False, {"allow_auto_update_schema": False}),
    "encryptionRequired": (True, {"encryption_required": True}),
    "maxMessageSize": (100, {"max_message_bytes": 100}),
    "autoTopicCreation": (
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4},
        {"auto_topic_creation": AutoTopicCreation(allowed=True, partitions=4)},
    ),
    "autoSubscriptionCreation": (
        {"allowAutoSubscriptionCreation": False},
        {"allow_auto_subscription_creation": False},
    ),
    "maxTopicsPerNamespace": (9, {"max_topics_per_namespace": 9}),
}


def holds(policies: EffectivePolicies, meant: dict[str, Any]) -> bool:
    """Whether this is what holds."""
    return all(getattr(policies, attribute) == value for attribute, value in meant.items())


def example_of(attribute: str) -> dict[str, Any]:
    """What a policy's example comes to."""
    row = POLICIES[attribute]
    value = {**row.default(PolicyDefaults()), **row.example} if row.merged else row.example
    return {attribute: row.read(value)}


# -- the table


def test_defaults_of_the_table_are_the_defaults_of_what_holds() -> None:
    assert effective(topic={}, namespace={}, defaults=PolicyDefaults(), cluster="c") == EffectivePolicies(
        max_unacked_per_consumer=50_000,
        max_unacked_per_subscription=200_000,
        subscribe_rate=Rate(0, 0, 30),
    )


@pytest.mark.parametrize("key", SAMPLES)
def test_a_value_means_the_same_for_a_namespace_and_for_a_topic(key: str) -> None:
    value, meant = SAMPLES[key]
    row = policy(key)
    assert row is not None
    found = []
    if row.namespace is not None:
        stored = {row.namespace.key: {"c": value} if row.per_cluster else value}
        found.append(effective(topic={}, namespace=stored, defaults=PolicyDefaults(), cluster="c"))
    if row.topic is not None:
        found.append(effective(topic={row.topic.key: value}, namespace={}, defaults=PolicyDefaults(), cluster="c"))
    assert found
    assert all(holds(one, meant) for one in found)


@ROWS
def test_a_default_can_be_set_as_a_value(attribute: str) -> None:
    row = POLICIES[attribute]
    default = row.default(PolicyDefaults())
    assert row.checked(default) == default


@ROWS
def test_an_example_is_complete_and_differs_from_the_default(attribute: str) -> None:
    row = POLICIES[attribute]
    assert row.checked(row.example) == row.example
    assert not holds(EffectivePolicies(), example_of(attribute))


@ROWS
def test_the_configuration_has_the_keys_that_a_policy_defaults_to(attribute: str) -> None:
    known = {key.name for key in KEYS.values()}
    assert set(default_keys(POLICIES[attribute])) <= known


@ROWS
def test_a_policy_is_found_by_each_of_its_names(attribute: str) -> None:
    row = POLICIES[attribute]
    assert policy(row.name) is row
    if row.namespace is not None:
        assert row.namespace.key in EMPTY_NAMESPACE
        # A key that is another row's name belongs to that row; no two rows share a key.
        found = policy(row.namespace.key)
        assert found is row or (found is not None and found.name == row.namespace.key)


def test_no_two_policies_share_a_key() -> None:
    rows = POLICIES.values()
    for levels in ([row.namespace for row in rows], [row.topic for row in rows]):
        given = [level.key for level in levels if level is not None]
        assert len(given) == len(set(given))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 10}),
        ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 10}),
        ("retention", 7),
        ("messageTTL", -1),
        ("messageTTL", "10"),
        ("messageTTL", True),
        ("maxProducersPerTopic", -1),
        ("backlogQuotaMap", {"no_such_kind": {}}),
        ("backlogQuotaMap", {"message_age": {"policy": "no_such_policy"}}),
        ("backlogQuotaMap", {"message_age": {"limitTime": "1"}}),
        ("dispatchRate", {"ratePeriodInSecond": 0}),
        ("dispatchRate", {"dispatchThrottlingRateInMsg": True}),
        ("subscribeRate", {"ratePeriodInSecond": -1}),
        ("deduplication", 1),
        ("subscriptionTypesEnabled", ["Shared", "No_Such_Type"]),
        ("schemaCompatibilityStrategy", "NO_SUCH_STRATEGY"),
        ("inactiveTopicPolicies", {"inactiveTopicDeleteMode": "never"}),
        ("inactiveTopicPolicies", {"maxInactiveDurationSeconds": 0}),
        ("autoTopicCreation", {"topicType": "partitioned"}),
        ("autoTopicCreation", {"topicType": "partitioned", "defaultNumPartitions": 0}),
        ("autoTopicCreation", {"topicType": "non-partitioned", "defaultNumPartitions": 2}),
        ("autoTopicCreation", {"topicType": "round"}),
    ],
)
def test_what_cannot_be_is_refused(key: str, value: Any) -> None:  # noqa: ANN401
    row = policy(key)
    assert row is not None
    with pytest.raises(PreconditionFailed):
        row.checked(value)


def test_what_another_version_stored_and_we_cannot_read_counts_as_not_set() -> None:
    found = effective(
        topic={"messageTTLInSeconds": "soon"},
        namespace={"retention_policies": [1], "message_ttl_in_seconds": 5, "max_producers_per_topic": None},
        defaults=PolicyDefaults(),
        cluster="c",
    )
    assert (found.ttl_s, found.retention.minutes, found.max_producers) == (5, 0, 0)


def test_a_strategy_under_its_older_name_counts_where_there_is_none_under_the_newer() -> None:
    older = {"schema_auto_update_compatibility_strategy": "Backward"}
    newer = {"schema_compatibility_strategy": "FORWARD", **older}
    found = [effective(topic={}, namespace=one, defaults=PolicyDefaults(), cluster="c") for one in (older, newer)]
    assert [one.schema_compatibility for one in found] == ["BACKWARD", "FORWARD"]


def test_rates_of_another_cluster_do_not_hold_here() -> None:
    namespace = {"publishMaxMessageRate": {"elsewhere": {"publishThrottlingRateInMsg": 5}}}
    assert not effective(topic={}, namespace=namespace, defaults=PolicyDefaults(), cluster="here").publish_rate.limited


def test_each_level_may_set_one_of_the_backlog_quotas() -> None:
    found = effective(
        topic={"backLogQuotaMap": {"message_age": {"limitTime": 3}}},
        namespace={"backlog_quota_map": {"destination_storage": {"limit": 2}, "message_age": {"limitTime": 9}}},
        defaults=PolicyDefaults(),
        cluster="c",
    )
    assert (found.backlog_quota.size.limit, found.backlog_quota.age.limit) == (2, 3)


# -- set, applied, removed


@OF_NAMESPACES
async def test_a_policy_of_the_namespace_holds_for_its_topics_until_it_is_removed(
    tmp_path: Path, attribute: str
) -> None:
    row, meant = POLICIES[attribute], example_of(attribute)
    value = row.example
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        book = harness.broker.policies
        before = topic_of(harness).policies
        assert not holds(before, meant)
        await book.set_namespace(NAMESPACE, row.name, value)
        assert holds(topic_of(harness).policies, meant)
        assert holds(book.of_namespace(NAMESPACE), meant)
        assert book.set_in_namespace(NAMESPACE, row.name) == value
        await book.set_namespace(NAMESPACE, row.name, None)
        assert topic_of(harness).policies == before
        assert not row.says(book.set_in_namespace(NAMESPACE, row.name))


@OF_TOPICS
async def test_a_policy_of_a_topic_holds_for_it_alone_until_it_is_removed(tmp_path: Path, attribute: str) -> None:
    row, meant = POLICIES[attribute], example_of(attribute)
    value = row.example
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        await Client.producing(harness.port, topic=OTHER)
        book = harness.broker.policies
        before = topic_of(harness).policies
        await book.set_topic(TOPIC, row.name, value)
        assert holds(topic_of(harness).policies, meant)
        assert topic_of(harness, OTHER).policies is before
        assert book.applied_to_topic(TopicName.parse(TOPIC), row.name) == value
        assert book.set_in_topic(TOPIC, row.name) == value
        await book.set_topic(TOPIC, row.name, None)
        assert topic_of(harness).policies == before
        assert book.set_in_topic(TOPIC, row.name) is None


async def test_the_topic_wins_over_the_namespace_and_that_over_the_configuration(harness: Harness) -> None:
    await Client.producing(harness.port)
    book = harness.broker.policies

    async def change(step: str) -> int:
        if step == "configuration":
            configure(harness, ttl_duration_default_in_seconds=1)
        elif step == "namespace":
            await book.set_namespace(NAMESPACE, "messageTTL", 2)
        elif step == "topic":
            await book.set_topic(TOPIC, "messageTTL", 3)
        elif step == "topic: none":
            await book.set_topic(TOPIC, "messageTTL", 0)
        else:
            await book.delete_topic_policies(TOPIC)
        return topic_of(harness).policies.ttl_s

    steps = ("configuration", "namespace", "topic", "topic: none", "topic: nothing said")
    assert [await change(step) for step in steps] == [1, 2, 3, 0, 2]


async def test_a_topic_may_say_no_where_its_namespace_says_yes(harness: Harness) -> None:
    await Client.producing(harness.port)
    await harness.broker.policies.set_namespace(NAMESPACE, "schemaValidationEnforced", value=True)
    await harness.broker.policies.set_topic(TOPIC, "schemaValidationEnforced", value=False)
    assert not topic_of(harness).policies.schema_validation_enforced


async def test_policies_are_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        await harness.broker.policies.set_namespace(NAMESPACE, "messageTTL", 2)
        await harness.broker.policies.set_topic(TOPIC, "maxProducers", 3)
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        policies = topic_of(harness).policies
        assert (policies.ttl_s, policies.max_producers) == (2, 3)


async def test_changes_made_at_the_same_time_are_all_kept(harness: Harness) -> None:
    await Client.producing(harness.port)
    book = harness.broker.policies
    changes = [book.set_topic(TOPIC, key, 7) for key in ("messageTTL", "maxProducers", "maxConsumers")]
    changes += [book.set_namespace(NAMESPACE, key, 8) for key in ("compactionThreshold", "maxTopicsPerNamespace")]
    await asyncio.gather(*changes)
    policies = topic_of(harness).policies
    assert (policies.ttl_s, policies.max_producers, policies.max_consumers) == (7, 7, 7)
    assert (policies.compaction_threshold, policies.max_topics_per_namespace) == (8, 8)


async def test_a_change_reaches_every_loaded_topic(harness: Harness) -> None:
    names = [TopicName.parse(f"non-persistent://public/default/n{number}") for number in range(450)]
    topics = [await harness.broker.topics.get_or_create(name, create=True) for name in names]
    await harness.broker.policies.set_namespace(NAMESPACE, "messageTTL", 9)
    await until(lambda: all(topic.policies.ttl_s == 9 for topic in topics))
    assert len({id(topic.policies) for topic in topics}) == 1, "they share one value"


async def test_what_is_set_for_a_partitioned_topic_holds_for_its_partitions(harness: Harness) -> None:
    broker = harness.broker
    document = {"partitions": 2, "properties": {}}
    await broker.changes.stored(lambda done: broker.catalog.put_document("partitioned", PARTITIONED, document, done))
    partition = f"{PARTITIONED}-partition-0"
    await Client.producing(harness.port, topic=partition)
    await broker.policies.set_topic(PARTITIONED, "messageTTL", 4)
    assert topic_of(harness, partition).policies.ttl_s == 4
    await broker.policies.set_topic(f"{PARTITIONED}-partition-1", "messageTTL", 5)
    assert topic_of(harness, partition).policies.ttl_s == 5
    assert broker.catalog.documents("partitioned")[PARTITIONED]["partitions"] == 2


# -- what is refused


async def test_what_does_not_exist_has_no_policies_to_set(harness: Harness) -> None:
    book = harness.broker.policies
    with pytest.raises(NamespaceNotFound):
        await book.set_namespace("public/nowhere", "messageTTL", 1)
    with pytest.raises(TopicNotFound):
        await book.set_topic(TOPIC, "messageTTL", 1)
    await Client.producing(harness.port)
    with pytest.raises(PreconditionFailed, match="no policy 'noSuchPolicy'"):
        await book.set_topic(TOPIC, "noSuchPolicy", 1)
    with pytest.raises(PreconditionFailed, match="no policy 'noSuchPolicy'"):
        await book.set_namespace(NAMESPACE, "noSuchPolicy", 1)


async def test_policies_of_topics_can_be_switched_off(harness: Harness) -> None:
    await Client.producing(harness.port)
    configure(harness, topic_level_policies_enabled=False)
    with pytest.raises(NotAllowed):
        await harness.broker.policies.set_topic(TOPIC, "messageTTL", 1)


@pytest.mark.parametrize("first", ["retention", "quota"])
async def test_a_backlog_may_not_be_allowed_to_outgrow_what_is_retained(harness: Harness, first: str) -> None:
    await Client.producing(harness.port)
    book = harness.broker.policies

    async def retain() -> None:
        await book.set_namespace(NAMESPACE, "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10})

    async def bound() -> None:
        await book.set_namespace_quota(NAMESPACE, "destination_storage", {"limitSize": 10 << 20})

    steps = [retain, bound] if first == "retention" else [bound, retain]
    await steps[0]()
    with pytest.raises(PreconditionFailed, match="Retention Quota must exceed configured backlog quota"):
        await steps[1]()


# -- the namespace's JSON


async def test_the_json_of_a_namespace_has_every_member_that_pulsar_has(harness: Harness) -> None:
    await harness.broker.policies.set_namespace(NAMESPACE, "messageTTL", 2)
    await _set_publish_rate(harness)
    shown = harness.broker.policies.as_pulsar_json(NAMESPACE)
    assert shown.keys() == EMPTY_NAMESPACE.keys()
    assert shown["message_ttl_in_seconds"] == 2
    assert shown["publishMaxMessageRate"] == {
        "test": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1}
    }
    assert shown["schema_compatibility_strategy"] == "UNDEFINED"


async def _set_publish_rate(harness: Harness) -> None:
    await harness.broker.policies.set_namespace(NAMESPACE, "publishRate", {"publishThrottlingRateInMsg": 5})


async def test_members_that_mean_nothing_here_are_kept_as_they_are_set(harness: Harness) -> None:
    await Client.producing(harness.port)
    book = harness.broker.policies
    await book.set_namespace(NAMESPACE, "persistence", {"bookkeeperEnsemble": 2})
    await book.set_topic(TOPIC, "persistence", {"bookkeeperEnsemble": 3})
    assert book.set_in_namespace(NAMESPACE, "persistence") == {"bookkeeperEnsemble": 2}
    assert book.set_in_topic(TOPIC, "persistence") == {"bookkeeperEnsemble": 3}
    assert book.as_pulsar_json(NAMESPACE)["persistence"] == {"bookkeeperEnsemble": 2}


async def test_what_is_shown_cannot_change_what_is_stored(harness: Harness) -> None:
    await harness.broker.policies.set_namespace(NAMESPACE, "properties", {"ours": "yes"})
    for _ in range(2):
        shown = harness.broker.policies.as_pulsar_json(NAMESPACE)
        assert shown["properties"] == {"ours": "yes"}
        assert shown["topicDispatchRate"] == {}
        shown["properties"]["mine"] = "now"
        shown["topicDispatchRate"]["mine"] = "now"


async def test_a_change_that_nobody_waits_for_any_more_is_in_force_when_it_is_stored(harness: Harness) -> None:
    policies = harness.broker.policies
    topic = await harness.broker.topics.get_or_create(TopicName.parse(TOPIC), create=True)
    with harness.catalog_held():
        changes = [
            asyncio.ensure_future(policies.set_namespace("public/default", "maxProducersPerTopic", 3)),
            asyncio.ensure_future(policies.set_topic(TOPIC, "maxConsumers", 4)),
        ]
        await turns(2)
        for change in changes:
            change.cancel()
        await asyncio.wait(changes)
    await until(lambda: (topic.policies.max_producers, topic.policies.max_consumers) == (3, 4))
