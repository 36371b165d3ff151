# SPDX-License-Identifier: Apache-2.0
"""Settings that are the defaults of policies, and how often the broker looks after policies: one row each.

Why here: a setting is declared beside the code that reads it. A row is the attribute that the broker reads, the key of
`broker.conf`, its parser, its default and its sentence in the reference.
Where: `penstock.settings` joins these groups with its own, and fills a `PolicyDefaults` by the names of the fields;
`policies.policy_table` reads it. Fields are named after their keys, in the keys' units.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.policies.policy_values import (
    COMPATIBILITIES,
    HOLD,
    INACTIVE_MODES,
    QUOTA_POLICIES,
    SUBSCRIPTION_TYPES,
)
from penstock.core.setting import any_number, choice, fraction, names_among, row, size, switch, whole
from penstock.core.units import MIB


@dataclass(frozen=True, kw_only=True)
class MessageDefaults:
    """Memory."""

    max_message_bytes: int = row(
        "maxMessageSize", size(1), 5 * MIB, "The largest message, in bytes, as clients are told when they connect."
    )


@dataclass(frozen=True, kw_only=True)
class TopicDefaults:
    """Tenants, namespaces and topics."""

    allow_auto_topic_creation: bool = row(
        "allowAutoTopicCreation",
        switch,
        True,
        "Whether producers and consumers create the topics they name.",
        dynamic=True,
    )
    allow_auto_topic_creation_type: str = row(
        "allowAutoTopicCreationType",
        choice("partitioned", "non-partitioned"),
        "non-partitioned",
        "What kind of topic they create.",
        dynamic=True,
    )
    default_num_partitions: int = row(
        "defaultNumPartitions", whole(1), 1, "Partitions of a partitioned topic that is created so.", dynamic=True
    )
    max_topics_per_namespace: int = row(
        "maxTopicsPerNamespace", whole(0), 0, "The most topics of a namespace; 0: no bound.", dynamic=True
    )
    allow_auto_subscription_creation: bool = row(
        "allowAutoSubscriptionCreation",
        switch,
        True,
        "Whether consumers create the subscriptions they name.",
        dynamic=True,
    )
    broker_delete_inactive_topics_enabled: bool = row(
        "brokerDeleteInactiveTopicsEnabled", switch, True, "Whether topics that nobody uses are deleted.", dynamic=True
    )
    broker_delete_inactive_topics_frequency_seconds: int = row(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        whole(1),
        60,
        "How often topics that nobody uses are looked for.",
        dynamic=True,
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = row(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        whole(1),
        "<brokerDeleteInactiveTopicsFrequencySeconds>",
        "How long nobody must have used a topic.",
        dynamic=True,
    )
    broker_delete_inactive_topics_mode: str = row(
        "brokerDeleteInactiveTopicsMode",
        choice(*INACTIVE_MODES),
        INACTIVE_MODES[0],
        "Which topics count: those without subscriptions, or those whose subscriptions have no backlog as well. Unless "
        "this is set, here or as `inactiveTopicPolicies`, topics that hold messages stay.",
        dynamic=True,
    )
    topic_level_policies_enabled: bool = row(
        "topicLevelPoliciesEnabled", switch, True, "Whether single topics can have policies of their own."
    )


@dataclass(frozen=True, kw_only=True)
class ClientDefaults:
    """Producers, consumers and subscriptions."""

    max_producers_per_topic: int = row(
        "maxProducersPerTopic", whole(0), 0, "The most producers of a topic; 0: no bound.", dynamic=True
    )
    max_same_address_producers_per_topic: int = row(
        "maxSameAddressProducersPerTopic", whole(0), 0, "The same, from one address; 0: no bound.", dynamic=True
    )
    max_consumers_per_topic: int = row(
        "maxConsumersPerTopic", whole(0), 0, "The most consumers of a topic; 0: no bound.", dynamic=True
    )
    max_same_address_consumers_per_topic: int = row(
        "maxSameAddressConsumersPerTopic", whole(0), 0, "The same, from one address; 0: no bound.", dynamic=True
    )
    max_consumers_per_subscription: int = row(
        "maxConsumersPerSubscription", whole(0), 0, "The most consumers of a subscription; 0: no bound.", dynamic=True
    )
    max_subscriptions_per_topic: int = row(
        "maxSubscriptionsPerTopic", whole(0), 0, "The most subscriptions of a topic; 0: no bound.", dynamic=True
    )
    encryption_require_on_producer: bool = row(
        "encryptionRequireOnProducer", switch, False, "Whether only producers that encrypt are let in.", dynamic=True
    )
    subscription_types_enabled: tuple[str, ...] = row(
        "subscriptionTypesEnabled",
        names_among(*SUBSCRIPTION_TYPES),
        SUBSCRIPTION_TYPES,
        "Types of subscription that are served.",
        dynamic=True,
    )
    subscription_expiration_time_minutes: int = row(
        "subscriptionExpirationTimeMinutes",
        whole(0),
        0,
        "A subscription that nobody used for this long is deleted; 0: never.",
        dynamic=True,
    )
    subscription_expiry_check_interval_in_minutes: int = row(
        "subscriptionExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often such subscriptions are looked for.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class DeliveryDefaults:
    """Delivery."""

    max_unacked_messages_per_consumer: int = row(
        "maxUnackedMessagesPerConsumer",
        whole(0),
        50_000,
        "Unacknowledged messages at which a Shared consumer gets no more; 0: no bound.",
        dynamic=True,
    )
    max_unacked_messages_per_subscription: int = row(
        "maxUnackedMessagesPerSubscription",
        whole(0),
        200_000,
        "The same over all consumers of a Shared subscription; 0: no bound.",
        dynamic=True,
    )
    delayed_delivery_enabled: bool = row(
        "delayedDeliveryEnabled", switch, True, "Whether messages can ask to be delivered later."
    )
    delayed_delivery_tick_time_millis: int = row(
        "delayedDeliveryTickTimeMillis", whole(1), 1_000, "How exactly such a time is kept."
    )
    delayed_delivery_max_delay_in_millis: int = row(
        "delayedDeliveryMaxDelayInMillis", whole(0), 0, "The longest delay a message may ask for; 0: no bound."
    )


@dataclass(frozen=True, kw_only=True)
class RetentionDefaults:
    """Retention, expiry and backlog."""

    default_retention_time_in_minutes: int = row(
        "defaultRetentionTimeInMinutes",
        whole(-1),
        0,
        "How long acknowledged messages are kept; 0: not, -1: for ever.",
        dynamic=True,
    )
    default_retention_size_in_mb: int = row(
        "defaultRetentionSizeInMB",
        whole(-1),
        0,
        "How many MiB of them a topic keeps; 0: none, -1: any amount.",
        dynamic=True,
    )
    retention_check_interval_in_seconds: int = row(
        "retentionCheckIntervalInSeconds", whole(1), 120, "How often it is looked for what may go.", dynamic=True
    )
    ttl_duration_default_in_seconds: int = row(
        "ttlDurationDefaultInSeconds",
        whole(0),
        0,
        "Messages older than this count as acknowledged by every subscription; 0: never.",
        dynamic=True,
    )
    message_expiry_check_interval_in_minutes: int = row(
        "messageExpiryCheckIntervalInMinutes", whole(1), 5, "How often such messages are looked for.", dynamic=True
    )
    backlog_quota_check_enabled: bool = row(
        "backlogQuotaCheckEnabled", switch, True, "Whether quotas of backlogs are enforced.", dynamic=True
    )
    backlog_quota_check_interval_in_seconds: int = row(
        "backlogQuotaCheckIntervalInSeconds", whole(1), 60, "How often they are.", dynamic=True
    )
    backlog_quota_default_limit_bytes: int = row(
        "backlogQuotaDefaultLimitBytes",
        any_number,
        -1,
        "Bytes that the slowest subscription of a topic may be behind; 0 or less: no bound.",
        dynamic=True,
    )
    backlog_quota_default_limit_gb: float = row(
        "backlogQuotaDefaultLimitGB",
        fraction,
        -1.0,
        "The same in GiB, as older files write it; counts when the other is not set.",
        dynamic=True,
    )
    backlog_quota_default_limit_second: int = row(
        "backlogQuotaDefaultLimitSecond",
        any_number,
        -1,
        "Seconds that the slowest subscription may be behind; 0 or less: no bound.",
        dynamic=True,
    )
    backlog_quota_default_retention_policy: str = row(
        "backlogQuotaDefaultRetentionPolicy",
        choice(*QUOTA_POLICIES),
        HOLD,
        "What happens then: producers wait, producers fail, or the oldest of the backlog is given up.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class DeduplicationDefaults:
    """Deduplication and compaction."""

    broker_deduplication_enabled: bool = row(
        "brokerDeduplicationEnabled", switch, False, "Whether messages that were sent twice are stored once."
    )
    broker_service_compaction_threshold_in_bytes: int = row(
        "brokerServiceCompactionThresholdInBytes",
        whole(0),
        0,
        "Bytes not yet compacted at which a topic is compacted by itself; 0: never.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class RateDefaults:
    """Rates. 0 or less: no bound."""

    max_publish_rate_per_topic_in_messages: int = row(
        "maxPublishRatePerTopicInMessages", any_number, 0, "Messages a second published to a topic.", dynamic=True
    )
    max_publish_rate_per_topic_in_bytes: int = row(
        "maxPublishRatePerTopicInBytes", any_number, 0, "Bytes a second published to a topic.", dynamic=True
    )
    broker_publisher_throttling_max_message_rate: int = row(
        "brokerPublisherThrottlingMaxMessageRate",
        any_number,
        0,
        "Messages a second published to the broker.",
        dynamic=True,
    )
    broker_publisher_throttling_max_byte_rate: int = row(
        "brokerPublisherThrottlingMaxByteRate", any_number, 0, "Bytes a second published to the broker.", dynamic=True
    )
    dispatch_throttling_rate_per_topic_in_msg: int = row(
        "dispatchThrottlingRatePerTopicInMsg", any_number, 0, "Messages a second delivered of a topic.", dynamic=True
    )
    dispatch_throttling_rate_per_topic_in_byte: int = row(
        "dispatchThrottlingRatePerTopicInByte", any_number, 0, "Bytes a second delivered of a topic.", dynamic=True
    )
    dispatch_throttling_rate_per_subscription_in_msg: int = row(
        "dispatchThrottlingRatePerSubscriptionInMsg",
        any_number,
        0,
        "Messages a second delivered to a subscription.",
        dynamic=True,
    )
    dispatch_throttling_rate_per_subscription_in_byte: int = row(
        "dispatchThrottlingRatePerSubscriptionInByte",
        any_number,
        0,
        "Bytes a second delivered to a subscription.",
        dynamic=True,
    )
    dispatch_throttling_rate_in_msg: int = row(
        "dispatchThrottlingRateInMsg", any_number, 0, "Messages a second delivered by the broker.", dynamic=True
    )
    dispatch_throttling_rate_in_byte: int = row(
        "dispatchThrottlingRateInByte", any_number, 0, "Bytes a second delivered by the broker.", dynamic=True
    )
    dispatch_throttling_rate_relative_to_publish_rate: bool = row(
        "dispatchThrottlingRateRelativeToPublishRate",
        switch,
        False,
        "Whether what is published at the moment is added to rates of delivery.",
        dynamic=True,
    )
    dispatch_throttling_on_batch_message_enabled: bool = row(
        "dispatchThrottlingOnBatchMessageEnabled",
        switch,
        False,
        "Whether a batch counts as one message for rates of delivery.",
        dynamic=True,
    )
    dispatch_throttling_on_non_backlog_consumer_enabled: bool = row(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        switch,
        True,
        "Whether rates of delivery hold for consumers that keep up, too.",
        dynamic=True,
    )
    subscribe_throttling_rate_per_consumer: int = row(
        "subscribeThrottlingRatePerConsumer",
        any_number,
        0,
        "How often a consumer may subscribe in one period.",
        dynamic=True,
    )
    subscribe_rate_period_per_consumer_in_second: int = row(
        "subscribeRatePeriodPerConsumerInSecond", whole(1), 30, "How long that period is.", dynamic=True
    )


@dataclass(frozen=True, kw_only=True)
class SchemaDefaults:
    """Schemas."""

    schema_compatibility_strategy: str = row(
        "schemaCompatibilityStrategy",
        choice(*COMPATIBILITIES),
        "FULL",
        "How a new schema of a topic must fit those before it.",
    )
    is_schema_validation_enforced: bool = row(
        "isSchemaValidationEnforced", switch, False, "Whether producers without a schema are kept from topics with one."
    )
    is_allow_auto_update_schema_enabled: bool = row(
        "isAllowAutoUpdateSchemaEnabled", switch, True, "Whether producers can add new schemas.", dynamic=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefaults(
    MessageDefaults,
    TopicDefaults,
    ClientDefaults,
    DeliveryDefaults,
    RetentionDefaults,
    DeduplicationDefaults,
    RateDefaults,
    SchemaDefaults,
):
    """What holds for topics of which neither they nor their namespaces say anything; and what is the broker's alone."""

    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: the frequency
