# SPDX-License-Identifier: Apache-2.0
"""The table of policies: what each is called where, what it may say, what holds when nobody said so, what it means.

Why one table: a policy has a name in the namespace's JSON, another in a topic's, a third in a path of the admin port, a
broker-wide default under a key of the configuration, and a meaning. Declared in five places these drift apart; here one
row is all five, and effective values, the admin port and the reference documentation are derived from it.
Where: `broker.policies` reads rows and stores values; nobody else looks at the JSON. `policy_checks` says what may be
set, `policy_values` what comes out. Pure: no broker, no clock.

A value has the shape in which the admin port takes and gives it. In a namespace's JSON the rates stand in a map by the
cluster's name; that, too, only the row knows. (Long as it is, the file is one table and what reads it.)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.policies import policy_checks as checks
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.policies.policy_values import (
    COMPATIBILITIES,
    QUOTA_AGE,
    QUOTA_SIZE,
    BacklogQuota,
    DelayedDelivery,
    EffectivePolicies,
    Inactive,
    Rate,
)
from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.broker.policies.policy_checks import Json

# What a namespace's older strategy, named after auto-update, means among the newer ones.
_AUTO_UPDATE: Final = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One row."""

    name: str  # the last part of the namespace's path on the admin port
    namespace_key: str | None  # in the namespace's JSON; None: only topics have it
    topic_key: str | None  # in the topic's; None: only namespaces have it
    topic_path: str = ""  # the last part of the topic's path, where it is another
    keys: str  # of the configuration, with the default
    text: str
    check: Callable[[Json], Json]  # the value to store; raises ValueError with a sentence
    default: Callable[[PolicyDefaults], Json]
    read: Callable[[Json], Mapping[str, Any]]  # attributes of EffectivePolicies
    per_cluster: bool = False
    merged: bool = False  # a map of which each level sets some
    unset: tuple[Json, ...] = ()  # values besides null that say nothing

    def says(self, value: Json) -> bool:
        """Whether the value sets anything in a namespace, where Pulsar's JSON has some values for "not set"."""
        return value is not None and value not in self.unset

    def says_of_topic(self, value: Json) -> bool:
        """Whether it sets anything in a topic, which can say no where its namespace says yes."""
        return value is False or self.says(value)


# -- reading: from a value to attributes


def _as(attribute: str, low: int = 0) -> Callable[[Json], Mapping[str, Any]]:
    return lambda value: {attribute: max(low, value)}


def _plainly(attribute: str) -> Callable[[Json], Mapping[str, Any]]:
    return lambda value: {attribute: value}


def _publish_rate(value: Json) -> Mapping[str, Any]:
    messages, nbytes = value["publishThrottlingRateInMsg"], value["publishThrottlingRateInByte"]
    return {"publish_rate": Rate(max(0, messages), max(0, nbytes))}


def _dispatch_rate(value: Json) -> Rate:
    return Rate(
        max(0, value["dispatchThrottlingRateInMsg"]),
        max(0, value["dispatchThrottlingRateInByte"]),
        max(1, value["ratePeriodInSecond"]),
        bool(value["relativeToPublishRate"]),
    )


def _default_dispatch(of: PolicyDefaults, messages: int, nbytes: int) -> Json:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": nbytes,
        "relativeToPublishRate": of.dispatch_throttling_rate_relative_to_publish_rate and max(messages, nbytes) > 0,
        "ratePeriodInSecond": 1,
    }


def _quota_value(size: int, seconds: int, policy: str) -> Json:
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": policy}


def _default_quotas(of: PolicyDefaults) -> Json:
    size, seconds = of.backlog_quota_default_limit_bytes, of.backlog_quota_default_limit_second
    policy = of.backlog_quota_default_retention_policy
    return {QUOTA_SIZE: _quota_value(size, -1, policy), QUOTA_AGE: _quota_value(-1, seconds, policy)}


def _quotas(value: Json) -> Mapping[str, Any]:
    size, age = value[QUOTA_SIZE], value[QUOTA_AGE]
    return {
        "backlog_quota_size": BacklogQuota(max(0, size["limitSize"]), size["policy"]),
        "backlog_quota_age": BacklogQuota(max(0, age["limitTime"]), age["policy"]),
    }


def _auto_topic(value: Json) -> Mapping[str, Any]:
    partitioned = value["topicType"] == "partitioned"
    return {
        "allow_auto_topic_creation": value["allowAutoTopicCreation"],
        "auto_topic_partitions": max(1, value["defaultNumPartitions"] or 1) if partitioned else 0,
    }


def _default_auto_topic(of: PolicyDefaults) -> Json:
    partitioned = of.allow_auto_topic_creation_type == "partitioned"
    return {
        "allowAutoTopicCreation": of.allow_auto_topic_creation,
        "topicType": of.allow_auto_topic_creation_type,
        "defaultNumPartitions": of.default_num_partitions if partitioned else None,
    }


def _default_inactive(of: PolicyDefaults) -> Json:
    after_s = of.broker_delete_inactive_topics_max_inactive_duration_seconds
    return {
        "inactiveTopicDeleteMode": of.broker_delete_inactive_topics_mode,
        "maxInactiveDurationSeconds": after_s or of.broker_delete_inactive_topics_frequency_seconds,
        "deleteWhileInactive": of.broker_delete_inactive_topics_enabled,
    }


def _bound(
    name: str, namespace_key: str, topic_key: str | None, attribute: str, key: str, text: str, *, topic_path: str = ""
) -> Policy:
    """A row of a plain bound: a whole number of which 0 is none."""
    default_field = _field_of(key)
    return Policy(
        name=name,
        namespace_key=namespace_key,
        topic_key=topic_key,
        topic_path=topic_path,
        keys=key,
        text=text,
        check=checks.number(0, name),
        default=lambda of: max(0, getattr(of, default_field)),
        read=_as(attribute),
    )


def _field_of(key: str) -> str:
    """The field of PolicyDefaults that is named after a key."""
    name = "".join("_" + c.lower() if c.isupper() else c for c in key)
    assert name in {one.name for one in fields(PolicyDefaults)}, name
    return name


POLICIES: Final = (
    Policy(
        name="retention",
        namespace_key="retention_policies",
        topic_key="retentionPolicies",
        keys="defaultRetentionTimeInMinutes, defaultRetentionSizeInMB",
        text="How long and how much is kept of what every subscription has acknowledged.",
        check=checks.retention,
        default=lambda of: {
            "retentionTimeInMinutes": of.default_retention_time_in_minutes,
            "retentionSizeInMB": of.default_retention_size_in_mb,
        },
        read=lambda value: {
            "retention_minutes": value["retentionTimeInMinutes"],
            "retention_mb": value["retentionSizeInMB"],
        },
    ),
    Policy(
        name="messageTTL",
        namespace_key="message_ttl_in_seconds",
        topic_key="messageTTLInSeconds",
        keys="ttlDurationDefaultInSeconds",
        text="Seconds after which a message that nobody acknowledged counts as acknowledged.",
        check=checks.message_ttl,
        default=lambda of: max(0, of.ttl_duration_default_in_seconds),
        read=_as("ttl_s"),
    ),
    Policy(
        name="backlogQuotaMap",
        namespace_key="backlog_quota_map",
        topic_key="backLogQuotaMap",
        keys="backlogQuotaDefaultLimitBytes, backlogQuotaDefaultLimitSecond, backlogQuotaDefaultRetentionPolicy",
        text="How large and how old a backlog may become, and what happens then.",
        check=checks.backlog_quotas,
        default=_default_quotas,
        read=_quotas,
        merged=True,
        unset=({},),
    ),
    Policy(
        name="publishRate",
        namespace_key="publishMaxMessageRate",
        topic_key="publishRate",
        keys="maxPublishRatePerTopicInMessages, maxPublishRatePerTopicInBytes",
        text="Messages and bytes a second that may be published to a topic.",
        check=checks.publish_rate,
        default=lambda of: {
            "publishThrottlingRateInMsg": of.max_publish_rate_per_topic_in_messages,
            "publishThrottlingRateInByte": of.max_publish_rate_per_topic_in_bytes,
        },
        read=_publish_rate,
        per_cluster=True,
    ),
    Policy(
        name="dispatchRate",
        namespace_key="topicDispatchRate",
        topic_key="dispatchRate",
        keys="dispatchThrottlingRatePerTopicInMsg, dispatchThrottlingRatePerTopicInByte",
        text="Messages and bytes in a period that a topic delivers, over all its subscriptions.",
        check=checks.dispatch_rate,
        default=lambda of: _default_dispatch(
            of,
            of.dispatch_throttling_rate_per_topic_in_msg,
            of.dispatch_throttling_rate_per_topic_in_byte,
        ),
        read=lambda value: {"dispatch_rate": _dispatch_rate(value)},
        per_cluster=True,
    ),
    Policy(
        name="subscriptionDispatchRate",
        namespace_key="subscriptionDispatchRate",
        topic_key="subscriptionDispatchRate",
        keys="dispatchThrottlingRatePerSubscriptionInMsg, dispatchThrottlingRatePerSubscriptionInByte",
        text="Messages and bytes in a period that each subscription delivers.",
        check=checks.dispatch_rate,
        default=lambda of: _default_dispatch(
            of,
            of.dispatch_throttling_rate_per_subscription_in_msg,
            of.dispatch_throttling_rate_per_subscription_in_byte,
        ),
        read=lambda value: {"subscription_dispatch_rate": _dispatch_rate(value)},
        per_cluster=True,
    ),
    Policy(
        name="subscriptionPolicies",
        namespace_key=None,
        topic_key="subscriptionPolicies",
        topic_path="{subscription}/dispatchRate",
        keys="",
        text="The same for one subscription of the topic.",
        check=checks.subscription_policies,
        default=lambda _: {},
        read=lambda value: {
            "subscription_dispatch_rates": MappingProxyType(
                {name: _dispatch_rate(one["dispatchRate"]) for name, one in value.items()}
            )
        },
    ),
    Policy(
        name="subscribeRate",
        namespace_key="clusterSubscribeRate",
        topic_key="subscribeRate",
        keys="subscribeThrottlingRatePerConsumer, subscribeRatePeriodPerConsumerInSecond",
        text="How often one consumer may subscribe in a period.",
        check=checks.subscribe_rate,
        default=lambda of: {
            "subscribeThrottlingRatePerConsumer": of.subscribe_throttling_rate_per_consumer,
            "ratePeriodInSecond": of.subscribe_rate_period_per_consumer_in_second,
        },
        read=lambda value: {
            "subscribe_rate": Rate(
                max(0, value["subscribeThrottlingRatePerConsumer"]), 0, max(1, value["ratePeriodInSecond"])
            )
        },
        per_cluster=True,
    ),
    _bound(
        "maxProducersPerTopic",
        "max_producers_per_topic",
        "maxProducerPerTopic",
        "max_producers",
        "maxProducersPerTopic",
        "Producers a topic takes at the same time.",
        topic_path="maxProducers",
    ),
    _bound(
        "maxConsumersPerTopic",
        "max_consumers_per_topic",
        "maxConsumerPerTopic",
        "max_consumers",
        "maxConsumersPerTopic",
        "Consumers a topic takes at the same time.",
        topic_path="maxConsumers",
    ),
    _bound(
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "max_consumers_per_subscription",
        "maxConsumersPerSubscription",
        "Consumers a subscription takes at the same time.",
    ),
    _bound(
        "maxSubscriptionsPerTopic",
        "max_subscriptions_per_topic",
        "maxSubscriptionsPerTopic",
        "max_subscriptions",
        "maxSubscriptionsPerTopic",
        "Subscriptions a topic takes.",
    ),
    _bound(
        "maxUnackedMessagesPerConsumer",
        "max_unacked_messages_per_consumer",
        "maxUnackedMessagesOnConsumer",
        "max_unacked_per_consumer",
        "maxUnackedMessagesPerConsumer",
        "Unacknowledged messages at which a Shared or Key_Shared consumer gets no more.",
        topic_path="maxUnackedMessagesOnConsumer",
    ),
    _bound(
        "maxUnackedMessagesPerSubscription",
        "max_unacked_messages_per_subscription",
        "maxUnackedMessagesOnSubscription",
        "max_unacked_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "The same over all consumers of such a subscription.",
        topic_path="maxUnackedMessagesOnSubscription",
    ),
    Policy(
        name="deduplication",
        namespace_key="deduplicationEnabled",
        topic_key="deduplicationEnabled",
        topic_path="deduplicationEnabled",
        keys="brokerDeduplicationEnabled",
        text="Whether a message that a producer sends again is stored once.",
        check=checks.boolean("deduplication"),
        default=lambda of: of.broker_deduplication_enabled,
        read=_plainly("deduplication"),
    ),
    _bound(
        "compactionThreshold",
        "compaction_threshold",
        "compactionThreshold",
        "compaction_threshold",
        "brokerServiceCompactionThresholdInBytes",
        "Bytes not yet compacted at which a topic is compacted.",
    ),
    Policy(
        name="delayedDelivery",
        namespace_key="delayed_delivery_policies",
        topic_key="delayedDelivery",
        keys="delayedDeliveryEnabled, delayedDeliveryTickTimeMillis, delayedDeliveryMaxDelayInMillis",
        text="Whether messages may be delayed, at which resolution, and for how long at most.",
        check=checks.delayed_delivery,
        default=lambda of: {
            "tickTime": of.delayed_delivery_tick_time_millis,
            "active": of.delayed_delivery_enabled,
            "maxDeliveryDelayInMillis": of.delayed_delivery_max_delay_in_millis,
        },
        read=lambda value: {
            "delayed_delivery": DelayedDelivery(
                value["active"], value["tickTime"], max(0, value["maxDeliveryDelayInMillis"])
            )
        },
    ),
    Policy(
        name="inactiveTopicPolicies",
        namespace_key="inactive_topic_policies",
        topic_key="inactiveTopicPolicies",
        keys="brokerDeleteInactiveTopicsEnabled, brokerDeleteInactiveTopicsMode, "
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        text="Whether, and after how long without use, a topic is deleted.",
        check=checks.inactive_topics,
        default=_default_inactive,
        read=lambda value: {
            "inactive": Inactive(
                value["inactiveTopicDeleteMode"], value["maxInactiveDurationSeconds"], value["deleteWhileInactive"]
            )
        },
    ),
    Policy(
        name="subscriptionTypesEnabled",
        namespace_key="subscription_types_enabled",
        topic_key="subscriptionTypesEnabled",
        keys="subscriptionTypesEnabled",
        text="Types of subscription that consumers may ask for.",
        check=checks.subscription_types,
        default=lambda of: list(of.subscription_types_enabled),
        read=lambda value: {"subscription_types": frozenset(value)},
        unset=([],),
    ),
    _bound(
        "subscriptionExpirationTime",
        "subscription_expiration_time_minutes",
        None,
        "subscription_expiration_minutes",
        "subscriptionExpirationTimeMinutes",
        "Minutes after which a subscription without consumers and acknowledgements is deleted.",
    ),
    Policy(
        name="schemaCompatibilityStrategy",
        namespace_key="schema_compatibility_strategy",
        topic_key="schemaCompatibilityStrategy",
        keys="schemaCompatibilityStrategy",
        text="What a new schema of a topic must be compatible with.",
        check=checks.one_of("schemaCompatibilityStrategy", COMPATIBILITIES),
        default=lambda of: of.schema_compatibility_strategy,
        read=_plainly("schema_compatibility"),
        unset=("UNDEFINED",),
    ),
    Policy(
        name="schemaValidationEnforced",
        namespace_key="schema_validation_enforced",
        topic_key="schemaValidationEnforced",
        keys="isSchemaValidationEnforced",
        text="Whether producers without a schema are turned away from a topic that has one.",
        check=checks.boolean("schemaValidationEnforced"),
        default=lambda of: of.is_schema_validation_enforced,
        read=_plainly("schema_validation_enforced"),
        unset=(False,),
    ),
    Policy(
        name="isAllowAutoUpdateSchema",
        namespace_key="is_allow_auto_update_schema",
        topic_key=None,
        keys="isAllowAutoUpdateSchemaEnabled",
        text="Whether producers may bring a new version of a schema.",
        check=checks.boolean("isAllowAutoUpdateSchema"),
        default=lambda of: of.is_allow_auto_update_schema_enabled,
        read=_plainly("allow_auto_update_schema"),
    ),
    Policy(
        name="encryptionRequired",
        namespace_key="encryption_required",
        topic_key=None,
        keys="encryptionRequireOnProducer",
        text="Whether messages that are not encrypted are turned away.",
        check=checks.boolean("encryptionRequired"),
        default=lambda of: of.encryption_require_on_producer,
        read=_plainly("encryption_required"),
        unset=(False,),
    ),
    Policy(
        name="maxMessageSize",
        namespace_key=None,
        topic_key="maxMessageSize",
        keys="maxMessageSize",
        text="The largest message, in bytes, that a topic takes.",
        check=checks.number(0, "maxMessageSize"),
        default=lambda of: of.max_message_bytes,
        read=_plainly("max_message_bytes"),
        unset=(0,),
    ),
    Policy(
        name="autoTopicCreation",
        namespace_key="autoTopicCreationOverride",
        topic_key=None,
        keys="allowAutoTopicCreation, allowAutoTopicCreationType, defaultNumPartitions",
        text="Whether producers and consumers create the topics they name, and with how many partitions.",
        check=checks.auto_topic_creation,
        default=_default_auto_topic,
        read=_auto_topic,
    ),
    Policy(
        name="autoSubscriptionCreation",
        namespace_key="autoSubscriptionCreationOverride",
        topic_key="autoSubscriptionCreationOverride",
        keys="allowAutoSubscriptionCreation",
        text="Whether consumers create the subscriptions they name.",
        check=checks.auto_subscription_creation,
        default=lambda of: {"allowAutoSubscriptionCreation": of.allow_auto_subscription_creation},
        read=lambda value: {"allow_auto_subscription_creation": value["allowAutoSubscriptionCreation"]},
    ),
    _bound(
        "maxTopicsPerNamespace",
        "max_topics_per_namespace",
        None,
        "max_topics_per_namespace",
        "maxTopicsPerNamespace",
        "Topics a namespace takes, each partition counted.",
    ),
)

# What the JSON of a namespace of which nothing is set looks like; members without a row above are kept as they are set.
EMPTY_NAMESPACE: Final[Mapping[str, Json]] = MappingProxyType(
    {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [],
        "allowed_clusters": [],
        "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "persistence": None,
        "deduplicationEnabled": None,
        "autoTopicCreationOverride": None,
        "autoSubscriptionCreationOverride": None,
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "message_ttl_in_seconds": None,
        "subscription_expiration_time_minutes": None,
        "retention_policies": None,
        "deleted": False,
        "encryption_required": False,
        "delayed_delivery_policies": None,
        "inactive_topic_policies": None,
        "subscription_auth_mode": "None",
        "max_producers_per_topic": None,
        "max_consumers_per_topic": None,
        "max_consumers_per_subscription": None,
        "max_unacked_messages_per_consumer": None,
        "max_unacked_messages_per_subscription": None,
        "max_subscriptions_per_topic": None,
        "compaction_threshold": None,
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "offload_deletion_lag_ms": None,
        "max_topics_per_namespace": None,
        "schema_auto_update_compatibility_strategy": None,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": None,
        "schema_validation_enforced": False,
        "offload_policies": None,
        "deduplicationSnapshotIntervalSeconds": None,
        "subscription_types_enabled": [],
        "properties": {},
        "resource_group_name": None,
        "migrated": False,
        "dispatcherPauseOnAckStatePersistentEnabled": None,
        "entryFilters": None,
    }
)
# Members of a topic's JSON that are kept as they are set, and mean nothing here.
KEPT_OF_TOPICS: Final = frozenset(
    {
        "replicatorDispatchRate",
        "persistence",
        "deduplicationSnapshotIntervalSeconds",
        "entryFilters",
        "offloadPolicies",
        "replicationClusters",
        "shadowTopics",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "resourceGroupName",
    }
)

_BY_ANY_NAME: Final = {
    alias: row
    for row in POLICIES
    # The most specific spelling wins where two rows share one.
    for alias in (row.topic_path, row.topic_key, row.namespace_key, row.name)
    if alias
}


def policy(key: str) -> Policy | None:
    """The row of this key: the name on a path, the key in a namespace's JSON or that in a topic's."""
    return _BY_ANY_NAME.get(key)


def checked(row: Policy, value: Json) -> Json:
    """The value as it is to be stored. Raises PreconditionFailed."""
    try:
        return row.check(value)
    except ValueError as error:
        raise PreconditionFailed(str(error)) from None


def in_namespace(row: Policy, policies: Mapping[str, Json], cluster: str) -> Json:
    """What a namespace's JSON says of this policy; None when it says nothing."""
    if row.namespace_key is None:
        return None
    value = policies.get(row.namespace_key)
    if value is not None and row.per_cluster:
        value = value.get(cluster)
    if row.name == "schemaCompatibilityStrategy" and not row.says(value):
        value = _AUTO_UPDATE.get(policies.get("schema_auto_update_compatibility_strategy") or "")
    return _sound(row, value) if row.says(value) else None


def in_topic(row: Policy, policies: Mapping[str, Json]) -> Json:
    """What a topic's JSON says of this policy; None when it says nothing."""
    value = policies.get(row.topic_key) if row.topic_key is not None else None
    return _sound(row, value) if row.says_of_topic(value) else None


def _sound(row: Policy, value: Json) -> Json:
    """The value with every member, or None if it is nothing that can be."""
    try:
        return row.check(value)
    except ValueError:
        return None  # Whoever stored it knew another version of this policy.


def applied(
    row: Policy, *, topic: Mapping[str, Json], namespace: Mapping[str, Json], defaults: PolicyDefaults, cluster: str
) -> Json:
    """The value in force, in the shape of the admin port."""
    of_topic, of_namespace = in_topic(row, topic), in_namespace(row, namespace, cluster)
    if row.merged:
        return {**row.default(defaults), **(of_namespace or {}), **(of_topic or {})}
    if of_topic is not None:
        return of_topic
    return of_namespace if of_namespace is not None else row.default(defaults)


def effective(
    *, topic: Mapping[str, Json], namespace: Mapping[str, Json], defaults: PolicyDefaults, cluster: str
) -> EffectivePolicies:
    """What all rows together mean."""
    attributes: dict[str, Any] = {}
    for row in POLICIES:
        value = applied(row, topic=topic, namespace=namespace, defaults=defaults, cluster=cluster)
        attributes.update(row.read(value))
    return EffectivePolicies(**attributes)
