# SPDX-License-Identifier: Apache-2.0
"""Settings that are defaults of policies, and intervals of periodic checks: one row each.

Why here: a setting is declared beside the code that reads it. A row has the attribute that the broker reads, the key of
`broker.conf`, its parser, its default and its sentence in the reference.
Where: `penstock.settings` joins these groups with its own, and fills a `PolicyDefaults` by field name;
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MessageDefaults:
    """Memory."""

    max_message_bytes: int = row(
        "maxMessageSize", size(1), 5 * MIB, "Maximum size of a message, in bytes. Clients are told when they connect."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TopicDefaults:
    """Tenants, namespaces and topics."""

    allow_auto_topic_creation: bool = row(
        "allowAutoTopicCreation",
        switch,
        True,
        "Whether producers and consumers create a topic that does not exist.",
        dynamic=True,
    )
    allow_auto_topic_creation_type: str = row(
        "allowAutoTopicCreationType",
        choice("partitioned", "non-partitioned"),
        "non-partitioned",
        "Whether a topic that is created automatically is partitioned.",
        dynamic=True,
    )
    default_num_partitions: int = row(
        "defaultNumPartitions",
        whole(1),
        1,
        "Partitions of a partitioned topic that is created automatically.",
        dynamic=True,
    )
    max_topics_per_namespace: int = row(
        "maxTopicsPerNamespace",
        whole(0),
        0,
        "Maximum number of topics in a namespace, each partition counted; 0: no limit.",
        dynamic=True,
    )
    allow_auto_subscription_creation: bool = row(
        "allowAutoSubscriptionCreation",
        switch,
        True,
        "Whether consumers create a subscription that does not exist.",
        dynamic=True,
    )
    broker_delete_inactive_topics_enabled: bool = row(
        "brokerDeleteInactiveTopicsEnabled", switch, True, "Whether inactive topics are deleted.", dynamic=True
    )
    broker_delete_inactive_topics_frequency_seconds: int = row(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        whole(1),
        60,
        "How often the broker looks for inactive topics, in seconds.",
        dynamic=True,
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = row(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        whole(1),
        "<brokerDeleteInactiveTopicsFrequencySeconds>",
        "How long a topic must be unused before it counts as inactive, in seconds.",
        dynamic=True,
    )
    broker_delete_inactive_topics_mode: str = row(
        "brokerDeleteInactiveTopicsMode",
        choice(*INACTIVE_MODES),
        INACTIVE_MODES[0],
        "Which topics are inactive: those without subscriptions, or also those whose subscriptions have no backlog. "
        "Topics that hold messages are deleted only if this or `inactiveTopicPolicies` is set.",
        dynamic=True,
    )
    topic_level_policies_enabled: bool = row(
        "topicLevelPoliciesEnabled", switch, True, "Whether topics can have policies of their own."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClientDefaults:
    """Producers, consumers and subscriptions."""

    max_producers_per_topic: int = row(
        "maxProducersPerTopic", whole(0), 0, "Maximum number of producers of a topic; 0: no limit.", dynamic=True
    )
    max_same_address_producers_per_topic: int = row(
        "maxSameAddressProducersPerTopic",
        whole(0),
        0,
        "Maximum number of producers of a topic from one IP address; 0: no limit.",
        dynamic=True,
    )
    max_consumers_per_topic: int = row(
        "maxConsumersPerTopic", whole(0), 0, "Maximum number of consumers of a topic; 0: no limit.", dynamic=True
    )
    max_same_address_consumers_per_topic: int = row(
        "maxSameAddressConsumersPerTopic",
        whole(0),
        0,
        "Maximum number of consumers of a topic from one IP address; 0: no limit.",
        dynamic=True,
    )
    max_consumers_per_subscription: int = row(
        "maxConsumersPerSubscription",
        whole(0),
        0,
        "Maximum number of consumers of a subscription; 0: no limit.",
        dynamic=True,
    )
    max_subscriptions_per_topic: int = row(
        "maxSubscriptionsPerTopic",
        whole(0),
        0,
        "Maximum number of subscriptions of a topic; 0: no limit.",
        dynamic=True,
    )
    encryption_require_on_producer: bool = row(
        "encryptionRequireOnProducer", switch, False, "Whether producers must encrypt their messages.", dynamic=True
    )
    subscription_types_enabled: tuple[str, ...] = row(
        "subscriptionTypesEnabled",
        names_among(*SUBSCRIPTION_TYPES),
        SUBSCRIPTION_TYPES,
        "Subscription types that consumers may use.",
        dynamic=True,
    )
    subscription_expiration_time_minutes: int = row(
        "subscriptionExpirationTimeMinutes",
        whole(0),
        0,
        "A subscription is deleted when it was unused for so many minutes; 0: never.",
        dynamic=True,
    )
    subscription_expiry_check_interval_in_minutes: int = row(
        "subscriptionExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often the broker looks for unused subscriptions, in minutes.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeliveryDefaults:
    """Delivery."""

    max_unacked_messages_per_consumer: int = row(
        "maxUnackedMessagesPerConsumer",
        whole(0),
        50_000,
        "A consumer of a Shared or Key_Shared subscription gets no more messages while it has so many "
        "unacknowledged; 0: no limit.",
        dynamic=True,
    )
    max_unacked_messages_per_subscription: int = row(
        "maxUnackedMessagesPerSubscription",
        whole(0),
        200_000,
        "A Shared or Key_Shared subscription delivers no more messages while so many are unacknowledged; 0: no limit.",
        dynamic=True,
    )
    delayed_delivery_enabled: bool = row(
        "delayedDeliveryEnabled", switch, True, "Whether delayed delivery of messages is enabled."
    )
    delayed_delivery_tick_time_millis: int = row(
        "delayedDeliveryTickTimeMillis",
        whole(1),
        1_000,
        "Resolution of delivery times of delayed messages, in milliseconds.",
    )
    delayed_delivery_max_delay_in_millis: int = row(
        "delayedDeliveryMaxDelayInMillis", whole(0), 0, "Maximum delay of a message, in milliseconds; 0: no limit."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RetentionDefaults:
    """Retention, expiry and backlog."""

    default_retention_time_in_minutes: int = row(
        "defaultRetentionTimeInMinutes",
        whole(-1),
        0,
        "How many minutes acknowledged messages are retained; 0: not at all, -1: without limit.",
        dynamic=True,
    )
    default_retention_size_in_mb: int = row(
        "defaultRetentionSizeInMB",
        whole(-1),
        0,
        "How many MiB of acknowledged messages a topic retains; 0: none, -1: without limit.",
        dynamic=True,
    )
    retention_check_interval_in_seconds: int = row(
        "retentionCheckIntervalInSeconds",
        whole(1),
        120,
        "How often the broker deletes messages that need not be retained any more, in seconds.",
        dynamic=True,
    )
    ttl_duration_default_in_seconds: int = row(
        "ttlDurationDefaultInSeconds",
        whole(0),
        0,
        "Messages expire after so many seconds: they count as acknowledged by every subscription; 0: never.",
        dynamic=True,
    )
    message_expiry_check_interval_in_minutes: int = row(
        "messageExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often the broker looks for expired messages, in minutes.",
        dynamic=True,
    )
    backlog_quota_check_enabled: bool = row(
        "backlogQuotaCheckEnabled", switch, True, "Whether backlog quotas are enforced.", dynamic=True
    )
    backlog_quota_check_interval_in_seconds: int = row(
        "backlogQuotaCheckIntervalInSeconds",
        whole(1),
        60,
        "How often backlog quotas are checked, in seconds.",
        dynamic=True,
    )
    backlog_quota_default_limit_bytes: int = row(
        "backlogQuotaDefaultLimitBytes",
        any_number,
        -1,
        "Backlog quota of a topic by size, in bytes; 0 or less: no limit.",
        dynamic=True,
    )
    backlog_quota_default_limit_gb: float = row(
        "backlogQuotaDefaultLimitGB",
        fraction,
        -1.0,
        "Older name of backlogQuotaDefaultLimitBytes, in GiB; used when that key is not set.",
        dynamic=True,
    )
    backlog_quota_default_limit_second: int = row(
        "backlogQuotaDefaultLimitSecond",
        any_number,
        -1,
        "Backlog quota of a topic by time, in seconds; 0 or less: no limit.",
        dynamic=True,
    )
    backlog_quota_default_retention_policy: str = row(
        "backlogQuotaDefaultRetentionPolicy",
        choice(*QUOTA_POLICIES),
        HOLD,
        "What happens when a backlog quota is exceeded: producers wait, producers fail, or the oldest messages of the "
        "backlog are dropped.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeduplicationDefaults:
    """Deduplication and compaction."""

    broker_deduplication_enabled: bool = row(
        "brokerDeduplicationEnabled", switch, False, "Whether message deduplication is enabled."
    )
    broker_service_compaction_threshold_in_bytes: int = row(
        "brokerServiceCompactionThresholdInBytes",
        whole(0),
        0,
        "A topic is compacted automatically when its uncompacted backlog has so many bytes; 0: never.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RateDefaults:
    """Rates. 0 or less: no bound."""

    max_publish_rate_per_topic_in_messages: int = row(
        "maxPublishRatePerTopicInMessages",
        any_number,
        0,
        "Maximum rate at which messages are published to a topic, in messages per second.",
        dynamic=True,
    )
    max_publish_rate_per_topic_in_bytes: int = row(
        "maxPublishRatePerTopicInBytes",
        any_number,
        0,
        "Maximum rate at which messages are published to a topic, in bytes per second.",
        dynamic=True,
    )
    broker_publisher_throttling_max_message_rate: int = row(
        "brokerPublisherThrottlingMaxMessageRate",
        any_number,
        0,
        "Maximum rate at which messages are published to the broker, in messages per second.",
        dynamic=True,
    )
    broker_publisher_throttling_max_byte_rate: int = row(
        "brokerPublisherThrottlingMaxByteRate",
        any_number,
        0,
        "Maximum rate at which messages are published to the broker, in bytes per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_per_topic_in_msg: int = row(
        "dispatchThrottlingRatePerTopicInMsg",
        any_number,
        0,
        "Maximum dispatch rate of a topic, in messages per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_per_topic_in_byte: int = row(
        "dispatchThrottlingRatePerTopicInByte",
        any_number,
        0,
        "Maximum dispatch rate of a topic, in bytes per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_per_subscription_in_msg: int = row(
        "dispatchThrottlingRatePerSubscriptionInMsg",
        any_number,
        0,
        "Maximum dispatch rate of a subscription, in messages per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_per_subscription_in_byte: int = row(
        "dispatchThrottlingRatePerSubscriptionInByte",
        any_number,
        0,
        "Maximum dispatch rate of a subscription, in bytes per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_in_msg: int = row(
        "dispatchThrottlingRateInMsg",
        any_number,
        0,
        "Maximum dispatch rate of the broker, in messages per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_in_byte: int = row(
        "dispatchThrottlingRateInByte",
        any_number,
        0,
        "Maximum dispatch rate of the broker, in bytes per second.",
        dynamic=True,
    )
    dispatch_throttling_rate_relative_to_publish_rate: bool = row(
        "dispatchThrottlingRateRelativeToPublishRate",
        switch,
        False,
        "Whether dispatch rates are relative: the current publish rate is added to them.",
        dynamic=True,
    )
    dispatch_throttling_on_batch_message_enabled: bool = row(
        "dispatchThrottlingOnBatchMessageEnabled",
        switch,
        False,
        "Whether a batch counts as one message for dispatch rates.",
        dynamic=True,
    )
    dispatch_throttling_on_non_backlog_consumer_enabled: bool = row(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        switch,
        True,
        "Whether dispatch rates also apply to consumers without backlog.",
        dynamic=True,
    )
    subscribe_throttling_rate_per_consumer: int = row(
        "subscribeThrottlingRatePerConsumer",
        any_number,
        0,
        "How often a consumer may subscribe in one period; 0 or less: no limit.",
        dynamic=True,
    )
    subscribe_rate_period_per_consumer_in_second: int = row(
        "subscribeRatePeriodPerConsumerInSecond",
        whole(1),
        30,
        "Length of the period of subscribeThrottlingRatePerConsumer, in seconds.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchemaDefaults:
    """Schemas."""

    schema_compatibility_strategy: str = row(
        "schemaCompatibilityStrategy",
        choice(*COMPATIBILITIES),
        "FULL",
        "Compatibility check of a new schema of a topic.",
    )
    is_schema_validation_enforced: bool = row(
        "isSchemaValidationEnforced",
        switch,
        False,
        "Whether producers without a schema are rejected on topics with a schema.",
    )
    is_allow_auto_update_schema_enabled: bool = row(
        "isAllowAutoUpdateSchemaEnabled",
        switch,
        True,
        "Whether producers can register new versions of a schema.",
        dynamic=True,
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
    """Settings that apply to topics without policies of their own or of their namespace."""

    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: the frequency
