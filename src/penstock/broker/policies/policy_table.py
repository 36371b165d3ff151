# SPDX-License-Identifier: Apache-2.0
"""The table of policies: each row is one policy, and the attribute that the broker reads.

Why one table: a policy has a key in the namespace's JSON, another in a topic's, an admin path, a broker-wide default
with a setting, a shape and a meaning. Declared in five places, these would diverge. Here a field of `EffectivePolicies`
has all of them; the admin API's routes and models, the JSON of an empty namespace, the reference documentation and the
tests' examples are derived from it.
Where: `policies` reads rows and stores values; no other code reads the JSON. `shapes` defines valid values,
`policy_values` the results, `policy_defaults` the settings. Pure: no broker, no clock.

A value has the shape of the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.broker.policies.policy_parts import (
    BACKLOG_QUOTA,
    DISPATCH_EXAMPLE,
    DISPATCH_RATE,
    SubscriptionRates,
    auto_topic_of,
    backlog_quotas_of,
    bound,
    default_auto_topic,
    default_dispatch,
    default_inactive,
    default_quotas,
    dispatch_rate_of,
    either_both_or_none,
    quota_value,
    some_time,
    switch,
    with_partitions,
    with_period,
    with_tick,
)
from penstock.broker.policies.policy_rows import Level, Policy
from penstock.broker.policies.policy_values import (
    AUTO_UPDATE,
    COMPATIBILITIES,
    EVICTION,
    EXCEPTION,
    INACTIVE_MODES,
    QUOTA_AGE,
    QUOTA_SIZE,
    SUBSCRIPTION_TYPES,
    AutoTopicCreation,
    BacklogQuotas,
    DelayedDelivery,
    Inactive,
    Rate,
    RetentionBounds,
)
from penstock.broker.policies.shapes import Each, Object, Whole, Word, Words, flag, text, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.policies.policy_defaults import PolicyDefaults
    from penstock.broker.policies.shapes import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """Policies in force for one topic: its own over its namespace's over the broker's defaults.

    Topics without policies of their own share one value. A bound of 0 means no limit, except in `retention`.
    """

    retention: RetentionBounds = Policy(
        name="retention",
        namespace=Level("retention_policies"),
        topic=Level("retentionPolicies"),
        text="How long, and how many, messages are retained that every subscription has acknowledged.",
        shape=Object(
            "retention",
            "How long, and how many, acknowledged messages are retained; -1: without limit.",
            {
                "retentionTimeInMinutes": whole(0, required=True),
                "retentionSizeInMB": whole(0, long=True, required=True),
            },
            either_both_or_none,
        ),
        default=lambda of: {
            "retentionTimeInMinutes": of.default_retention_time_in_minutes,
            "retentionSizeInMB": of.default_retention_size_in_mb,
        },
        read=lambda value: RetentionBounds(value["retentionTimeInMinutes"], value["retentionSizeInMB"]),
        example={"retentionTimeInMinutes": 7, "retentionSizeInMB": 8},
    ).row()
    ttl_s: int = Policy(
        name="messageTTL",
        namespace=Level("message_ttl_in_seconds"),
        topic=Level("messageTTLInSeconds", routed=False),
        text="Seconds after which a message expires: it counts as acknowledged by every subscription.",
        shape=Whole("messageTTL", refusal="Invalid value for message TTL: want seconds, 0 or more"),
        default=lambda of: max(0, of.ttl_duration_default_in_seconds),
        read=lambda value: max(0, cast("int", value)),
        example=7,
    ).row()
    backlog_quota: BacklogQuotas = Policy(
        name="backlogQuotaMap",
        namespace=Level("backlog_quota_map", routed=False),
        topic=Level("backLogQuotaMap", routed=False),
        text="Size and age that a backlog may have, and what happens when it exceeds them.",
        shape=Each("backlog quotas", BACKLOG_QUOTA, (QUOTA_SIZE, QUOTA_AGE)),
        default=default_quotas,
        read=backlog_quotas_of,
        merged=True,
        nothing={},
        example={
            QUOTA_SIZE: quota_value(1_000, -1, EXCEPTION),
            QUOTA_AGE: quota_value(-1, 60, EVICTION),
        },
    ).row()
    publish_rate: Rate = Policy(
        name="publishRate",
        namespace=Level("publishMaxMessageRate"),
        topic=Level("publishRate"),
        per_cluster=True,
        text="Messages and bytes per second that may be published to a topic.",
        shape=Object(
            "publishRate",
            "Messages and bytes per second that may be published; -1: no limit.",
            {"publishThrottlingRateInMsg": whole(-1), "publishThrottlingRateInByte": whole(-1, long=True)},
        ),
        default=lambda of: {
            "publishThrottlingRateInMsg": of.max_publish_rate_per_topic_in_messages,
            "publishThrottlingRateInByte": of.max_publish_rate_per_topic_in_bytes,
        },
        read=lambda value: Rate(
            max(0, value["publishThrottlingRateInMsg"]), max(0, value["publishThrottlingRateInByte"])
        ),
        example={"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 50},
    ).row()
    dispatch_rate: Rate = Policy(
        name="dispatchRate",
        namespace=Level("topicDispatchRate"),
        topic=Level("dispatchRate"),
        per_cluster=True,
        text="Messages and bytes per period that a topic delivers to all its subscriptions together.",
        shape=DISPATCH_RATE,
        default=lambda of: default_dispatch(
            of, of.dispatch_throttling_rate_per_topic_in_msg, of.dispatch_throttling_rate_per_topic_in_byte
        ),
        read=dispatch_rate_of,
        example=DISPATCH_EXAMPLE,
    ).row()
    subscription_dispatch_rate: Rate = Policy(
        name="subscriptionDispatchRate",
        namespace=Level("subscriptionDispatchRate"),
        topic=Level("subscriptionDispatchRate"),
        per_cluster=True,
        text="Messages and bytes per period that each subscription delivers.",
        shape=DISPATCH_RATE,
        default=lambda of: default_dispatch(
            of,
            of.dispatch_throttling_rate_per_subscription_in_msg,
            of.dispatch_throttling_rate_per_subscription_in_byte,
        ),
        read=dispatch_rate_of,
        example=DISPATCH_EXAMPLE,
    ).row()
    replicator_dispatch_rate: Rate = Policy(
        name="replicatorDispatchRate",
        namespace=Level("replicatorDispatchRate"),
        topic=Level("replicatorDispatchRate"),
        per_cluster=True,
        text="Messages and bytes per period that a topic sends to each cluster that it is replicated to.",
        shape=DISPATCH_RATE,
        default=lambda of: default_dispatch(
            of,
            of.dispatch_throttling_rate_per_replicator_in_msg,
            of.dispatch_throttling_rate_per_replicator_in_byte,
        ),
        read=dispatch_rate_of,
        example=DISPATCH_EXAMPLE,
    ).row()
    # With this cluster itself; none: it is not replicated.
    replication_clusters: tuple[str, ...] = Policy(
        name="replication",
        namespace=Level("replication_clusters", routed=False),
        topic=Level("replicationClusters"),
        text="Clusters that have a topic's messages, this one included: they are replicated to the others.",
        shape=Words("replication"),
        default=lambda _: [],
        read=tuple,
        nothing=[],
        example=["standalone"],
    ).row()
    # By subscription name.
    subscription_dispatch_rates: Mapping[str, Rate] = Policy(
        name="subscriptionPolicies",
        topic=Level("subscriptionPolicies", path="{subscription}/dispatchRate", routed=False),
        text="Dispatch rates of single subscriptions of a topic.",
        shape=SubscriptionRates(),
        default=lambda _: {},
        read=lambda value: MappingProxyType(
            {name: dispatch_rate_of(one["dispatchRate"]) for name, one in value.items()}
        ),
        example={"s": {"dispatchRate": DISPATCH_EXAMPLE}},
    ).row()
    subscribe_rate: Rate = Policy(
        name="subscribeRate",
        namespace=Level("clusterSubscribeRate"),
        topic=Level("subscribeRate"),
        per_cluster=True,
        text="How often one consumer may subscribe per period; the consumers of a role are counted together.",
        shape=Object(
            "subscribeRate",
            "How often a consumer may subscribe per period; -1: no limit.",
            {"subscribeThrottlingRatePerConsumer": whole(-1), "ratePeriodInSecond": whole(30)},
            with_period,
        ),
        default=lambda of: {
            "subscribeThrottlingRatePerConsumer": of.subscribe_throttling_rate_per_consumer,
            "ratePeriodInSecond": of.subscribe_rate_period_per_consumer_in_second,
        },
        read=lambda value: Rate(
            max(0, value["subscribeThrottlingRatePerConsumer"]), 0, max(1, value["ratePeriodInSecond"])
        ),
        example={"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 10},
    ).row()
    max_producers: int = bound(
        "maxProducersPerTopic",
        "Maximum number of producers of a topic.",
        lambda of: of.max_producers_per_topic,
        namespace=Level("max_producers_per_topic"),
        topic=Level("maxProducerPerTopic", path="maxProducers"),
    ).row()
    max_consumers: int = bound(
        "maxConsumersPerTopic",
        "Maximum number of consumers of a topic.",
        lambda of: of.max_consumers_per_topic,
        namespace=Level("max_consumers_per_topic"),
        topic=Level("maxConsumerPerTopic", path="maxConsumers"),
    ).row()
    max_consumers_per_subscription: int = bound(
        "maxConsumersPerSubscription",
        "Maximum number of consumers of a subscription.",
        lambda of: of.max_consumers_per_subscription,
        namespace=Level("max_consumers_per_subscription"),
        topic=Level("maxConsumersPerSubscription"),
    ).row()
    max_subscriptions: int = bound(
        "maxSubscriptionsPerTopic",
        "Maximum number of subscriptions of a topic.",
        lambda of: of.max_subscriptions_per_topic,
        namespace=Level("max_subscriptions_per_topic"),
        topic=Level("maxSubscriptionsPerTopic"),
    ).row()
    max_unacked_per_consumer: int = bound(
        "maxUnackedMessagesPerConsumer",
        "Unacknowledged messages with which a Shared or Key_Shared consumer gets no more messages.",
        lambda of: of.max_unacked_messages_per_consumer,
        namespace=Level("max_unacked_messages_per_consumer"),
        topic=Level("maxUnackedMessagesOnConsumer", path="maxUnackedMessagesOnConsumer"),
    ).row()
    max_unacked_per_subscription: int = bound(
        "maxUnackedMessagesPerSubscription",
        "Unacknowledged messages with which a Shared or Key_Shared subscription delivers no more messages.",
        lambda of: of.max_unacked_messages_per_subscription,
        namespace=Level("max_unacked_messages_per_subscription"),
        topic=Level("maxUnackedMessagesOnSubscription", path="maxUnackedMessagesOnSubscription"),
    ).row()
    deduplication: bool = switch(
        "deduplication",
        "Whether message deduplication is enabled.",
        lambda of: of.broker_deduplication_enabled,
        namespace=Level("deduplicationEnabled"),
        topic=Level("deduplicationEnabled", path="deduplicationEnabled"),
    ).row()
    compaction_threshold: int = bound(
        "compactionThreshold",
        "Size of the uncompacted backlog, in bytes, at which a topic is compacted.",
        lambda of: of.broker_service_compaction_threshold_in_bytes,
        namespace=Level("compaction_threshold", verb="PUT"),
        topic=Level("compactionThreshold"),
        long=True,
    ).row()
    delayed_delivery: DelayedDelivery = Policy(
        name="delayedDelivery",
        namespace=Level("delayed_delivery_policies"),
        topic=Level("delayedDelivery"),
        text="Whether delayed delivery is enabled, its resolution, and the maximum delay.",
        shape=Object(
            "delayedDelivery",
            "Whether delayed delivery is enabled, its resolution, and the maximum delay; 0: no limit.",
            {
                "tickTime": whole(1000, long=True),
                "active": flag(default=True),
                "maxDeliveryDelayInMillis": whole(0, long=True),
            },
            with_tick,
        ),
        default=lambda of: {
            "tickTime": of.delayed_delivery_tick_time_millis,
            "active": of.delayed_delivery_enabled,
            "maxDeliveryDelayInMillis": of.delayed_delivery_max_delay_in_millis,
        },
        read=lambda value: DelayedDelivery(
            value["active"], value["tickTime"], max(0, value["maxDeliveryDelayInMillis"])
        ),
        example={"tickTime": 500, "active": True, "maxDeliveryDelayInMillis": 1_000},
    ).row()
    inactive: Inactive = Policy(
        name="inactiveTopicPolicies",
        namespace=Level("inactive_topic_policies"),
        topic=Level("inactiveTopicPolicies"),
        text="Whether an inactive topic is deleted, and when it counts as inactive.",
        shape=Object(
            "inactiveTopicPolicies",
            "Whether an inactive topic is deleted, and when it counts as inactive.",
            {
                "inactiveTopicDeleteMode": text(INACTIVE_MODES[0], *INACTIVE_MODES),
                "maxInactiveDurationSeconds": whole(60),
                "deleteWhileInactive": flag(default=False),
            },
            some_time,
        ),
        default=default_inactive,
        read=lambda value: Inactive(
            value["inactiveTopicDeleteMode"], value["maxInactiveDurationSeconds"], value["deleteWhileInactive"]
        ),
        example={
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 7_200,
            "deleteWhileInactive": True,
        },
    ).row()
    subscription_types: frozenset[str] = Policy(
        name="subscriptionTypesEnabled",
        namespace=Level("subscription_types_enabled", unset=[]),
        topic=Level("subscriptionTypesEnabled"),
        text="Subscription types that consumers may use.",
        shape=Words("subscription types", SUBSCRIPTION_TYPES),
        default=lambda of: list(of.subscription_types_enabled),
        read=lambda value: frozenset(cast("list[str]", value)),
        nothing=[],
        example=["Exclusive", "Failover"],
    ).row()
    subscription_expiration_minutes: int = bound(
        "subscriptionExpirationTime",
        "Minutes after which an unused subscription is deleted.",
        lambda of: of.subscription_expiration_time_minutes,
        namespace=Level("subscription_expiration_time_minutes"),
    ).row()
    schema_compatibility: str = Policy(
        name="schemaCompatibilityStrategy",
        namespace=Level("schema_compatibility_strategy", verb="PUT", unset="UNDEFINED"),
        topic=Level("schemaCompatibilityStrategy", verb="PUT"),
        text="Compatibility check of a new schema of a topic.",
        shape=Word("schemaCompatibilityStrategy", COMPATIBILITIES),
        older=("schema_auto_update_compatibility_strategy", AUTO_UPDATE),
        default=lambda of: of.schema_compatibility_strategy,
        read=str,
        nothing="UNDEFINED",
        example="BACKWARD",
    ).row()
    schema_validation_enforced: bool = switch(
        "schemaValidationEnforced",
        "Whether producers without a schema are rejected on a topic with a schema.",
        lambda of: of.is_schema_validation_enforced,
        namespace=Level("schema_validation_enforced", removable=False, unset=False),
        topic=Level("schemaValidationEnforced", removable=False, unset=False),
        nothing=False,
    ).row()
    allow_auto_update_schema: bool = switch(
        "isAllowAutoUpdateSchema",
        "Whether producers may register new versions of a schema.",
        lambda of: of.is_allow_auto_update_schema_enabled,
        namespace=Level("is_allow_auto_update_schema", removable=False, unset=True),
        example=False,
    ).row()
    encryption_required: bool = switch(
        "encryptionRequired",
        "Whether producers must encrypt their messages.",
        lambda of: of.encryption_require_on_producer,
        namespace=Level("encryption_required", removable=False, unset=False),
        nothing=False,
    ).row()
    max_message_bytes: int = Policy(
        name="maxMessageSize",
        topic=Level("maxMessageSize"),
        text="Maximum size of a message of a topic, in bytes.",
        shape=Whole("maxMessageSize"),
        default=lambda of: of.max_message_bytes,
        read=int,
        nothing=0,
        example=7_000,
    ).row()
    auto_topic_creation: AutoTopicCreation = Policy(
        name="autoTopicCreation",
        namespace=Level("autoTopicCreationOverride"),
        text="Whether producers and consumers create a topic that does not exist, and with how many partitions.",
        shape=Object(
            "autoTopicCreation",
            "Whether producers and consumers create a topic that does not exist, and with how many partitions.",
            {
                "allowAutoTopicCreation": flag(default=True, required=True),
                "topicType": text("non-partitioned"),
                "defaultNumPartitions": whole(),
            },
            with_partitions,
        ),
        default=default_auto_topic,
        read=auto_topic_of,
        example={"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
    ).row()
    allow_auto_subscription_creation: bool = Policy(
        name="autoSubscriptionCreation",
        namespace=Level("autoSubscriptionCreationOverride"),
        topic=Level("autoSubscriptionCreationOverride"),
        text="Whether consumers create a subscription that does not exist.",
        shape=Object(
            "autoSubscriptionCreation",
            "Whether consumers create a subscription that does not exist.",
            {"allowAutoSubscriptionCreation": flag(default=True, required=True)},
        ),
        default=lambda of: {"allowAutoSubscriptionCreation": of.allow_auto_subscription_creation},
        read=lambda value: bool(value["allowAutoSubscriptionCreation"]),
        example={"allowAutoSubscriptionCreation": False},
    ).row()
    max_topics_per_namespace: int = bound(
        "maxTopicsPerNamespace",
        "Maximum number of topics in a namespace, each partition counted.",
        lambda of: of.max_topics_per_namespace,
        namespace=Level("max_topics_per_namespace", unset=0),
        example=70,
    ).row()
    resource_group: str = Policy(
        name="resourcegroup",
        namespace=Level("resource_group_name", routed=False),
        text="The resource group that limits what its namespaces publish and receive together.",
        shape=Word("resourcegroup"),
        default=lambda _: "",
        read=str,
        example="gold",
    ).row()
    # The group of the tenant. It is not a policy of namespaces, so it has no row.
    tenant_resource_group: str = ""

    @property
    def resource_groups(self) -> tuple[str, ...]:
        """The groups that limit the topic, each once: its namespace's and its tenant's."""
        names = (self.resource_group, self.tenant_resource_group)
        return tuple(dict.fromkeys(name for name in names if name))


POLICIES: Final[Mapping[str, Policy[Any]]] = {
    one.name: one.metadata["policy"] for one in fields(EffectivePolicies) if one.metadata
}

_BY_ANY_NAME: Final = {
    alias: one
    for one in POLICIES.values()
    # If two rows share a key, the most specific one wins.
    for alias in (
        *((one.topic.path, one.topic.key) if one.topic is not None else ()),
        *((one.namespace.key,) if one.namespace is not None else ()),
        one.name,
    )
    if alias
}


def policy(key: str) -> Policy[Any] | None:
    """Find a row by its name in the admin API, its key in a namespace's JSON or its key in a topic's JSON."""
    return _BY_ANY_NAME.get(key)


def effective(
    *,
    topic: Mapping[str, Json],
    namespace: Mapping[str, Json],
    defaults: PolicyDefaults,
    cluster: str,
    tenant_resource_group: str = "",
) -> EffectivePolicies:
    """Combine what is set for a topic and its namespace with the defaults."""
    return EffectivePolicies(
        **{
            attribute: row.read(row.applied(topic=topic, namespace=namespace, defaults=defaults, cluster=cluster))
            for attribute, row in POLICIES.items()
        },
        tenant_resource_group=tenant_resource_group,
    )
