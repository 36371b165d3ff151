# SPDX-License-Identifier: Apache-2.0
"""Settings that are defaults of policies, and intervals of periodic checks: one row each.

Why here: a setting is declared beside the code that reads it. A row has the attribute that the broker reads, the key of
`broker.conf`, its parser, its default and its sentence in the reference.
Where: `penstock.settings` joins these groups with its own, and fills a `PolicyDefaults` by field name;
`policies.policy_table` reads it. Fields are named after their keys, in the keys' units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.broker.policies.policy_values import (
    COMPATIBILITIES,
    EVICTION,
    HOLD,
    INACTIVE_MODES,
    QUOTA_POLICIES,
    SUBSCRIPTION_TYPES,
)
from penstock.core.setting import any_number, choice, dynamic, fraction, names_among, row, size, switch, whole
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

    allow_auto_topic_creation: bool = dynamic(
        "allowAutoTopicCreation", switch, True, "Whether producers and consumers create a topic that does not exist."
    )
    allow_auto_topic_creation_type: str = dynamic(
        "allowAutoTopicCreationType",
        choice("partitioned", "non-partitioned"),
        "non-partitioned",
        "Whether a topic that is created automatically is partitioned.",
    )
    default_num_partitions: int = dynamic(
        "defaultNumPartitions", whole(1), 1, "Partitions of a partitioned topic that is created automatically."
    )
    max_topics_per_namespace: int = dynamic(
        "maxTopicsPerNamespace",
        whole(0),
        0,
        "Maximum number of topics in a namespace, each partition counted; 0: no limit.",
    )
    allow_auto_subscription_creation: bool = dynamic(
        "allowAutoSubscriptionCreation", switch, True, "Whether consumers create a subscription that does not exist."
    )
    broker_delete_inactive_topics_enabled: bool = dynamic(
        "brokerDeleteInactiveTopicsEnabled", switch, True, "Whether inactive topics are deleted."
    )
    broker_delete_inactive_topics_frequency_seconds: int = dynamic(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        whole(1),
        60,
        "How often the broker looks for inactive topics, in seconds.",
    )
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = dynamic(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        whole(1),
        "<brokerDeleteInactiveTopicsFrequencySeconds>",
        "How long a topic must be unused before it counts as inactive, in seconds.",
    )
    broker_delete_inactive_topics_mode: str = dynamic(
        "brokerDeleteInactiveTopicsMode",
        choice(*INACTIVE_MODES),
        INACTIVE_MODES[0],
        "Which topics are inactive: those without subscriptions, or also those whose subscriptions have no backlog. "
        "Topics that hold messages are deleted only if this or `inactiveTopicPolicies` is set.",
    )
    topic_level_policies_enabled: bool = row(
        "topicLevelPoliciesEnabled", switch, True, "Whether topics can have policies of their own."
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClientDefaults:
    """Producers, consumers and subscriptions."""

    max_producers_per_topic: int = dynamic(
        "maxProducersPerTopic", whole(0), 0, "Maximum number of producers of a topic; 0: no limit."
    )
    max_same_address_producers_per_topic: int = dynamic(
        "maxSameAddressProducersPerTopic",
        whole(0),
        0,
        "Maximum number of producers of a topic from one IP address; 0: no limit.",
    )
    max_consumers_per_topic: int = dynamic(
        "maxConsumersPerTopic", whole(0), 0, "Maximum number of consumers of a topic; 0: no limit."
    )
    max_same_address_consumers_per_topic: int = dynamic(
        "maxSameAddressConsumersPerTopic",
        whole(0),
        0,
        "Maximum number of consumers of a topic from one IP address; 0: no limit.",
    )
    max_consumers_per_subscription: int = dynamic(
        "maxConsumersPerSubscription", whole(0), 0, "Maximum number of consumers of a subscription; 0: no limit."
    )
    max_subscriptions_per_topic: int = dynamic(
        "maxSubscriptionsPerTopic", whole(0), 0, "Maximum number of subscriptions of a topic; 0: no limit."
    )
    encryption_require_on_producer: bool = dynamic(
        "encryptionRequireOnProducer", switch, False, "Whether producers must encrypt their messages."
    )
    subscription_types_enabled: tuple[str, ...] = dynamic(
        "subscriptionTypesEnabled",
        names_among(*SUBSCRIPTION_TYPES),
        SUBSCRIPTION_TYPES,
        "Subscription types that consumers may use.",
    )
    subscription_expiration_time_minutes: int = dynamic(
        "subscriptionExpirationTimeMinutes",
        whole(0),
        0,
        "A subscription is deleted when it was unused for so many minutes; 0: never.",
    )
    subscription_expiry_check_interval_in_minutes: int = dynamic(
        "subscriptionExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often the broker looks for unused subscriptions, in minutes.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeliveryDefaults:
    """Delivery."""

    max_unacked_messages_per_consumer: int = dynamic(
        "maxUnackedMessagesPerConsumer",
        whole(0),
        50_000,
        "A consumer of a Shared or Key_Shared subscription gets no more messages while it has so many "
        "unacknowledged; 0: no limit.",
    )
    max_unacked_messages_per_subscription: int = dynamic(
        "maxUnackedMessagesPerSubscription",
        whole(0),
        200_000,
        "A Shared or Key_Shared subscription delivers no more messages while so many are unacknowledged; 0: no limit.",
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

    default_retention_time_in_minutes: int = dynamic(
        "defaultRetentionTimeInMinutes",
        whole(-1),
        0,
        "How many minutes acknowledged messages are retained; 0: not at all, -1: without limit.",
    )
    default_retention_size_in_mb: int = dynamic(
        "defaultRetentionSizeInMB",
        whole(-1),
        0,
        "How many MiB of acknowledged messages a topic retains; 0: none, -1: without limit.",
    )
    retention_check_interval_in_seconds: int = dynamic(
        "retentionCheckIntervalInSeconds",
        whole(1),
        120,
        "How often the broker deletes messages that need not be retained any more, in seconds.",
    )
    ttl_duration_default_in_seconds: int = dynamic(
        "ttlDurationDefaultInSeconds",
        whole(0),
        0,
        "Messages expire after so many seconds: they count as acknowledged by every subscription; 0: never.",
    )
    message_expiry_check_interval_in_minutes: int = dynamic(
        "messageExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often the broker looks for expired messages, in minutes.",
    )
    backlog_quota_check_enabled: bool = dynamic(
        "backlogQuotaCheckEnabled", switch, True, "Whether backlog quotas are enforced."
    )
    backlog_quota_check_interval_in_seconds: int = dynamic(
        "backlogQuotaCheckIntervalInSeconds", whole(1), 60, "How often backlog quotas are checked, in seconds."
    )
    backlog_quota_default_limit_bytes: int = dynamic(
        "backlogQuotaDefaultLimitBytes",
        any_number,
        -1,
        "Backlog quota of a topic by size, in bytes; 0 or less: no limit.",
    )
    backlog_quota_default_limit_gb: float = dynamic(
        "backlogQuotaDefaultLimitGB",
        fraction,
        -1.0,
        "Older name of backlogQuotaDefaultLimitBytes, in GiB; used when that key is not set.",
    )
    backlog_quota_default_limit_second: int = dynamic(
        "backlogQuotaDefaultLimitSecond",
        any_number,
        -1,
        "Backlog quota of a topic by time, in seconds; 0 or less: no limit.",
    )
    backlog_quota_default_retention_policy: str = dynamic(
        "backlogQuotaDefaultRetentionPolicy",
        choice(*QUOTA_POLICIES),
        HOLD,
        "What happens when a backlog quota is exceeded: producers wait, producers fail, or the oldest messages of the "
        "backlog are dropped.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RecordDefaults:
    """Usage records and decision records."""

    records_retention_time_in_minutes: int = dynamic(
        "recordsRetentionTimeInMinutes",
        whole(1),
        7 * 24 * 60,
        "How many minutes acknowledged records are retained, unless a policy of their topic or namespace says "
        "otherwise.",
    )
    records_retention_size_in_mb: int = dynamic(
        "recordsRetentionSizeInMB",
        whole(1),
        1024,
        "How many MiB of records each broker keeps of each kind, whether they were acknowledged or not; the oldest are "
        "dropped. Policies of their topic or namespace may say otherwise.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeduplicationDefaults:
    """Deduplication and compaction."""

    broker_deduplication_enabled: bool = row(
        "brokerDeduplicationEnabled", switch, False, "Whether message deduplication is enabled."
    )
    broker_service_compaction_threshold_in_bytes: int = dynamic(
        "brokerServiceCompactionThresholdInBytes",
        whole(0),
        0,
        "A topic is compacted automatically when its uncompacted backlog has so many bytes; 0: never.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RateDefaults:
    """Rates. 0 or less: no bound."""

    max_publish_rate_per_topic_in_messages: int = dynamic(
        "maxPublishRatePerTopicInMessages",
        any_number,
        0,
        "Maximum rate at which messages are published to a topic, in messages per second.",
    )
    max_publish_rate_per_topic_in_bytes: int = dynamic(
        "maxPublishRatePerTopicInBytes",
        any_number,
        0,
        "Maximum rate at which messages are published to a topic, in bytes per second.",
    )
    broker_publisher_throttling_max_message_rate: int = dynamic(
        "brokerPublisherThrottlingMaxMessageRate",
        any_number,
        0,
        "Maximum rate at which messages are published to the broker, in messages per second.",
    )
    broker_publisher_throttling_max_byte_rate: int = dynamic(
        "brokerPublisherThrottlingMaxByteRate",
        any_number,
        0,
        "Maximum rate at which messages are published to the broker, in bytes per second.",
    )
    dispatch_throttling_rate_per_topic_in_msg: int = dynamic(
        "dispatchThrottlingRatePerTopicInMsg",
        any_number,
        0,
        "Maximum dispatch rate of a topic, in messages per second.",
    )
    dispatch_throttling_rate_per_topic_in_byte: int = dynamic(
        "dispatchThrottlingRatePerTopicInByte", any_number, 0, "Maximum dispatch rate of a topic, in bytes per second."
    )
    dispatch_throttling_rate_per_subscription_in_msg: int = dynamic(
        "dispatchThrottlingRatePerSubscriptionInMsg",
        any_number,
        0,
        "Maximum dispatch rate of a subscription, in messages per second.",
    )
    dispatch_throttling_rate_per_subscription_in_byte: int = dynamic(
        "dispatchThrottlingRatePerSubscriptionInByte",
        any_number,
        0,
        "Maximum dispatch rate of a subscription, in bytes per second.",
    )
    dispatch_throttling_rate_per_replicator_in_msg: int = dynamic(
        "dispatchThrottlingRatePerReplicatorInMsg",
        any_number,
        0,
        "Maximum rate at which a topic is replicated to each other cluster, in messages per second.",
    )
    dispatch_throttling_rate_per_replicator_in_byte: int = dynamic(
        "dispatchThrottlingRatePerReplicatorInByte",
        any_number,
        0,
        "Maximum rate at which a topic is replicated to each other cluster, in bytes per second.",
    )
    dispatch_throttling_rate_in_msg: int = dynamic(
        "dispatchThrottlingRateInMsg", any_number, 0, "Maximum dispatch rate of the broker, in messages per second."
    )
    dispatch_throttling_rate_in_byte: int = dynamic(
        "dispatchThrottlingRateInByte", any_number, 0, "Maximum dispatch rate of the broker, in bytes per second."
    )
    dispatch_throttling_rate_relative_to_publish_rate: bool = dynamic(
        "dispatchThrottlingRateRelativeToPublishRate",
        switch,
        False,
        "Whether dispatch rates are relative: the current publish rate is added to them.",
    )
    dispatch_throttling_on_batch_message_enabled: bool = dynamic(
        "dispatchThrottlingOnBatchMessageEnabled",
        switch,
        False,
        "Whether a batch counts as one message for dispatch rates.",
    )
    dispatch_throttling_on_non_backlog_consumer_enabled: bool = dynamic(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        switch,
        True,
        "Whether dispatch rates also apply to consumers without backlog.",
    )
    resource_group_topic_shares: str = dynamic(
        "resourceGroupTopicShares",
        choice("even", "usage"),
        "even",
        "How topics of a resource group that is in debt share its publish rate: in equal parts, or by what they send.",
    )
    subscribe_throttling_rate_per_consumer: int = dynamic(
        "subscribeThrottlingRatePerConsumer",
        any_number,
        0,
        "How often a consumer may subscribe in one period; 0 or less: no limit.",
    )
    subscribe_rate_period_per_consumer_in_second: int = dynamic(
        "subscribeRatePeriodPerConsumerInSecond",
        whole(1),
        30,
        "Length of the period of subscribeThrottlingRatePerConsumer, in seconds.",
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
    is_allow_auto_update_schema_enabled: bool = dynamic(
        "isAllowAutoUpdateSchemaEnabled", switch, True, "Whether producers can register new versions of a schema."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefaults(
    MessageDefaults,
    TopicDefaults,
    ClientDefaults,
    DeliveryDefaults,
    RetentionDefaults,
    RecordDefaults,
    DeduplicationDefaults,
    RateDefaults,
    SchemaDefaults,
):
    """Settings that apply to topics without policies of their own or of their namespace."""

    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: the frequency


def defaults_of_records(defaults: PolicyDefaults) -> PolicyDefaults:
    """Return the defaults for topics of records: bounded on the disk, and no default that is meant for messages."""
    return replace(
        defaults,
        default_retention_time_in_minutes=defaults.records_retention_time_in_minutes,
        default_retention_size_in_mb=defaults.records_retention_size_in_mb,
        backlog_quota_default_limit_bytes=defaults.records_retention_size_in_mb * MIB,
        backlog_quota_default_retention_policy=EVICTION,
        backlog_quota_default_limit_second=-1,
        ttl_duration_default_in_seconds=0,
        broker_deduplication_enabled=False,
        broker_service_compaction_threshold_in_bytes=0,
    )
