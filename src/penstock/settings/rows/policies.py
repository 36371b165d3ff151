# SPDX-License-Identifier: Apache-2.0
"""Rows that namespaces and topics overrule: retention, quotas, rates, schemas. `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.settings.key import any_number, choice, fraction, row, switch, whole

QUOTA_POLICIES: Final = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
SCHEMA_STRATEGIES: Final = (
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Retention, expiry and backlog."""

    default_retention_time_min: int = row(
        "defaultRetentionTimeInMinutes",
        whole(-1),
        0,
        "How long acknowledged messages are kept; 0: not, -1: for ever.",
        dynamic=True,
    )
    default_retention_size_mb: int = row(
        "defaultRetentionSizeInMB",
        whole(-1),
        0,
        "How many MiB of them a topic keeps; 0: none, -1: any amount.",
        dynamic=True,
    )
    retention_check_interval_s: int = row(
        "retentionCheckIntervalInSeconds", whole(1), 120, "How often it is looked for what may go.", dynamic=True
    )
    ttl_s: int = row(
        "ttlDurationDefaultInSeconds",
        whole(0),
        0,
        "Messages older than this count as acknowledged by every subscription; 0: never.",
        dynamic=True,
    )
    message_expiry_check_interval_min: int = row(
        "messageExpiryCheckIntervalInMinutes", whole(1), 5, "How often such messages are looked for.", dynamic=True
    )
    backlog_quota_check_enabled: bool = row(
        "backlogQuotaCheckEnabled", switch, True, "Whether quotas of backlogs are enforced.", dynamic=True
    )
    backlog_quota_check_interval_s: int = row(
        "backlogQuotaCheckIntervalInSeconds", whole(1), 60, "How often they are.", dynamic=True
    )
    backlog_quota_bytes: int = row(
        "backlogQuotaDefaultLimitBytes",
        any_number,
        -1,
        "Bytes that the slowest subscription of a topic may be behind; 0 or less: no bound.",
        dynamic=True,
    )
    backlog_quota_gb: float = row(
        "backlogQuotaDefaultLimitGB",
        fraction,
        -1.0,
        "The same in GiB, as older files write it; counts when the other is not set.",
        dynamic=True,
    )
    backlog_quota_s: int = row(
        "backlogQuotaDefaultLimitSecond",
        any_number,
        -1,
        "Seconds that the slowest subscription may be behind; 0 or less: no bound.",
        dynamic=True,
    )
    backlog_quota_policy: str = row(
        "backlogQuotaDefaultRetentionPolicy",
        choice(*QUOTA_POLICIES),
        "producer_request_hold",
        "What happens then: producers wait, producers fail, or the oldest of the backlog is given up.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class Deduplication:
    """Deduplication and compaction."""

    deduplication_enabled: bool = row(
        "brokerDeduplicationEnabled", switch, False, "Whether messages that were sent twice are stored once."
    )
    deduplication_producers_max: int = row(
        "brokerDeduplicationMaxNumberOfProducers", whole(1), 10_000, "Producers that a topic remembers for it."
    )
    deduplication_entries_interval: int = row(
        "brokerDeduplicationEntriesInterval", whole(1), 1_000, "Entries after which it is stored what was seen of them."
    )
    deduplication_snapshot_interval_s: int = row(
        "brokerDeduplicationSnapshotIntervalSeconds", whole(1), 120, "And the time after which it is."
    )
    deduplication_snapshot_frequency_s: int = row(
        "brokerDeduplicationSnapshotFrequencyInSeconds", whole(0), 120, "How often that time is looked at; 0: never."
    )
    deduplication_producer_inactivity_min: int = row(
        "brokerDeduplicationProducerInactivityTimeoutMinutes",
        whole(1),
        360,
        "How long a producer that left is remembered for it.",
    )
    compaction_threshold_bytes: int = row(
        "brokerServiceCompactionThresholdInBytes",
        whole(0),
        0,
        "Bytes not yet compacted at which a topic is compacted by itself; 0: never.",
        dynamic=True,
    )
    compaction_monitor_interval_s: int = row(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        whole(1),
        60,
        "How often it is looked for such topics.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Rates. 0 or less: no bound."""

    publish_messages_per_s: int = row(
        "maxPublishRatePerTopicInMessages", any_number, 0, "Messages a second published to a topic.", dynamic=True
    )
    publish_bytes_per_s: int = row(
        "maxPublishRatePerTopicInBytes", any_number, 0, "Bytes a second published to a topic.", dynamic=True
    )
    broker_publish_messages_per_s: int = row(
        "brokerPublisherThrottlingMaxMessageRate",
        any_number,
        0,
        "Messages a second published to the broker.",
        dynamic=True,
    )
    broker_publish_bytes_per_s: int = row(
        "brokerPublisherThrottlingMaxByteRate", any_number, 0, "Bytes a second published to the broker.", dynamic=True
    )
    dispatch_messages_per_s: int = row(
        "dispatchThrottlingRatePerTopicInMsg", any_number, 0, "Messages a second delivered of a topic.", dynamic=True
    )
    dispatch_bytes_per_s: int = row(
        "dispatchThrottlingRatePerTopicInByte", any_number, 0, "Bytes a second delivered of a topic.", dynamic=True
    )
    subscription_dispatch_messages_per_s: int = row(
        "dispatchThrottlingRatePerSubscriptionInMsg",
        any_number,
        0,
        "Messages a second delivered to a subscription.",
        dynamic=True,
    )
    subscription_dispatch_bytes_per_s: int = row(
        "dispatchThrottlingRatePerSubscriptionInByte",
        any_number,
        0,
        "Bytes a second delivered to a subscription.",
        dynamic=True,
    )
    broker_dispatch_messages_per_s: int = row(
        "dispatchThrottlingRateInMsg", any_number, 0, "Messages a second delivered by the broker.", dynamic=True
    )
    broker_dispatch_bytes_per_s: int = row(
        "dispatchThrottlingRateInByte", any_number, 0, "Bytes a second delivered by the broker.", dynamic=True
    )
    dispatch_relative_to_publish: bool = row(
        "dispatchThrottlingRateRelativeToPublishRate",
        switch,
        False,
        "Whether what is published at the moment is added to rates of delivery.",
        dynamic=True,
    )
    throttle_batches: bool = row(
        "dispatchThrottlingOnBatchMessageEnabled",
        switch,
        False,
        "Whether a batch counts as one message for rates of delivery.",
        dynamic=True,
    )
    throttle_non_backlog_consumers: bool = row(
        "dispatchThrottlingOnNonBacklogConsumerEnabled",
        switch,
        True,
        "Whether rates of delivery hold for consumers that keep up, too.",
        dynamic=True,
    )
    subscribes_per_consumer: int = row(
        "subscribeThrottlingRatePerConsumer",
        any_number,
        0,
        "How often a consumer may subscribe in one period.",
        dynamic=True,
    )
    subscribe_period_s: int = row(
        "subscribeRatePeriodPerConsumerInSecond", whole(1), 30, "How long that period is.", dynamic=True
    )


@dataclass(frozen=True, kw_only=True)
class Schemas:
    """Schemas."""

    schema_compatibility_strategy: str = row(
        "schemaCompatibilityStrategy",
        choice(*SCHEMA_STRATEGIES),
        "FULL",
        "How a new schema of a topic must fit those before it.",
    )
    schema_validation_enforced: bool = row(
        "isSchemaValidationEnforced", switch, False, "Whether producers without a schema are kept from topics with one."
    )
    allow_auto_update_schema: bool = row(
        "isAllowAutoUpdateSchemaEnabled", switch, True, "Whether producers can add new schemas.", dynamic=True
    )
