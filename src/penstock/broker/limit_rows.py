# SPDX-License-Identifier: Apache-2.0
"""Settings that the broker reads unchanged: one row each, an attribute with its key of `broker.conf`.

Where: `limits.BrokerLimits` is made of these groups, and `penstock.settings` joins them with its own. They import
nothing else of the broker, for programs that only explain their flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.core.setting import (
    choice,
    dynamic,
    names,
    part_above_zero,
    part_of_one,
    row,
    seconds,
    size,
    switch,
    topic,
    topics_or_namespaces,
    whole,
)
from penstock.core.system_topics import REPORTS_TOPIC
from penstock.core.units import MIB


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ConnectionLimits:
    """Connections."""

    connections_max: int = dynamic(
        "brokerMaxConnections", whole(0), 0, "Maximum number of connections of Pulsar clients; 0: no limit."
    )
    connections_per_address_max: int = dynamic(
        "brokerMaxConnectionsPerIp", whole(0), 0, "Maximum number of connections from one IP address; 0: no limit."
    )
    status_file: Path | None = row(
        "statusFilePath",
        Path,
        "<none>",
        "/status.html answers OK while this file exists; remove it before maintenance. Not set: there is no such page.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TopicLimits:
    """Tenants, namespaces and topics."""

    persistent_topics: bool = dynamic(
        "enablePersistentTopics", switch, True, "Whether `persistent://` topics are served."
    )
    non_persistent_topics: bool = dynamic(
        "enableNonPersistentTopics", switch, True, "Whether `non-persistent://` topics are served."
    )
    partitions_max: int = dynamic(
        "maxNumPartitionsPerPartitionedTopic", whole(0), 0, "Maximum number of partitions of a topic; 0: 10,000."
    )
    delete_inactive_partitioned: bool = dynamic(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        switch,
        False,
        "Whether the metadata of a partitioned topic is deleted when all its partitions were deleted as inactive.",
    )
    force_delete_tenant: bool = dynamic(
        "forceDeleteTenantAllowed",
        switch,
        False,
        "Whether a tenant can be deleted together with its namespaces and topics.",
    )
    force_delete_namespace: bool = dynamic(
        "forceDeleteNamespaceAllowed", switch, False, "Whether a namespace can be deleted together with its topics."
    )
    read_only_topics: tuple[str, ...] = row(
        "readOnlyTopics",
        topics_or_namespaces,
        (),
        "Topics, and namespaces as tenant/namespace, to which no client publishes, separated by commas; a partitioned "
        "topic with its partitions. `penstock mirror` sets it.",
    )
    replication_start_at: str = dynamic(
        "replicationStartAt",
        choice("latest", "earliest"),
        "latest",
        "Where a topic begins when it is to be replicated to another cluster: behind its last message, or with the "
        "first one that it has.",
    )
    replicated_subscriptions: bool = dynamic(
        "enableReplicatedSubscriptions",
        switch,
        True,
        "Whether subscriptions that ask for it keep their places in other clusters.",
    )
    subscription_snapshots_every_ms: int = dynamic(
        "replicatedSubscriptionsSnapshotFrequencyMillis",
        whole(1),
        1_000,
        "How often other clusters are asked how far they are, for replicated subscriptions, while there are messages.",
    )
    subscription_snapshots_timeout_s: int = dynamic(
        "replicatedSubscriptionsSnapshotTimeoutSeconds",
        whole(1),
        30,
        "How long their answers are waited for.",
    )
    subscription_snapshots_max: int = dynamic(
        "replicatedSubscriptionsSnapshotMaxCachedPerSubscription",
        whole(3),
        10,
        "Answers that each replicated subscription remembers; if there are more, every place of its backlog is nearer "
        "to one of those that are kept.",
    )
    namespace_bundles: int = dynamic(
        "defaultNumberOfNamespaceBundles",
        whole(1, 1 << 16),
        4,
        "Number of bundles of a new namespace. It is only shown: one broker serves all bundles.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FindingLimits:
    """Lookups and listings."""

    topic_list_watchers: bool = dynamic(
        "enableBrokerTopicListWatcher",
        switch,
        True,
        "Whether the broker notifies pattern consumers of new and deleted topics; otherwise they poll.",
    )
    evaluate_patterns: bool = dynamic(
        "enableBrokerSideSubscriptionPatternEvaluation",
        switch,
        True,
        "Whether the broker evaluates the patterns of pattern consumers and sends only the topics that match.",
    )
    pattern_length_max: int = dynamic(
        "subscriptionPatternMaxLength", whole(1), 50, "Maximum length of a pattern that the broker evaluates."
    )
    lookups_max: int = dynamic(
        "maxConcurrentLookupRequest", whole(1), 50_000, "Maximum number of concurrent lookups; more are rejected."
    )
    topic_loads_max: int = dynamic(
        "maxConcurrentTopicLoadRequest",
        whole(1),
        5_000,
        "Maximum number of topics that are loaded concurrently; more wait.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClientLimits:
    """Producers, consumers and subscriptions."""

    strict_subscription_names: bool = dynamic(
        "strictlyVerifySubscriptionName",
        switch,
        False,
        "Whether the name of a new subscription may contain only letters, digits and `-=:._`.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeliveryLimits:
    """Delivery."""

    round_robin_entries_max: int = dynamic(
        "dispatcherMaxRoundRobinBatchSize",
        whole(1),
        20,
        "Maximum number of entries that a Shared subscription sends to one consumer before it goes on to the next.",
    )
    batch_index_acks: bool = row(
        "acknowledgmentAtBatchIndexLevelEnabled",
        switch,
        True,
        "Whether messages of a batch can be acknowledged one by one.",
    )
    key_shared_consistent_hashing: bool = row(
        "subscriptionKeySharedUseConsistentHashing",
        switch,
        True,
        "How a Key_Shared subscription divides keys among its consumers: by consistent hashing, or by splitting "
        "hash ranges.",
    )
    key_shared_points: int = row(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        whole(1, 10_000),
        100,
        "Points of each consumer on the ring of consistent hashing; more points divide the keys more evenly.",
    )
    delayed_strict: bool = row(
        "isDelayedDeliveryDeliverAtTimeStrict",
        switch,
        False,
        "Whether a delayed message is never delivered early; otherwise it may be, by up to "
        "delayedDeliveryTickTimeMillis.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeduplicationLimits:
    """Deduplication and compaction."""

    deduplication_producers_max: int = row(
        "brokerDeduplicationMaxNumberOfProducers",
        whole(1),
        10_000,
        "Maximum number of producers that a topic tracks for deduplication.",
    )
    deduplication_entries_interval: int = row(
        "brokerDeduplicationEntriesInterval",
        whole(1),
        1_000,
        "A deduplication snapshot is taken after so many entries.",
    )
    deduplication_snapshot_s: int = row(
        "brokerDeduplicationSnapshotIntervalSeconds",
        whole(1),
        120,
        "A deduplication snapshot is taken after so many seconds.",
    )
    deduplication_snapshot_check_s: int = row(
        "brokerDeduplicationSnapshotFrequencyInSeconds",
        whole(0),
        120,
        "How often the broker checks whether a snapshot is due by time, in seconds; 0: never.",
    )
    deduplication_inactivity_min: int = row(
        "brokerDeduplicationProducerInactivityTimeoutMinutes",
        whole(1),
        360,
        "How long a disconnected producer is tracked for deduplication, in minutes.",
    )
    compaction_check_s: int = dynamic(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        whole(1),
        60,
        "How often the broker checks compaction thresholds, in seconds.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TransactionLimits:
    """Transactions."""

    transactions: bool = row(
        "transactionCoordinatorEnabled",
        switch,
        True,
        "Whether clients may use transactions. Those that use none cost nothing; Apache Pulsar's default is `false`.",
    )
    transactions_max: int = dynamic(
        "maxActiveTransactionsPerCoordinator",
        whole(0),
        10_000,
        "Maximum number of open transactions of a broker; more are refused. 0: no limit but their row of the memory.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchemaLimits:
    """Schemas."""

    schema_bytes_max: int = row("maxSchemaSize", size(1), MIB, "Maximum size of a schema definition, in bytes.")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MaskingLimits:
    """Masking of messages in the admin port and the console. Clients get messages as they are."""

    masked_properties: tuple[str, ...] = dynamic(
        "maskedMessageProperties",
        names,
        (),
        "Properties whose values are shown as `***`: names separated by commas, in which `*` and `?` stand for other "
        "characters; `key` masks the key. Routes that return whole entries are refused while something is masked.",
    )
    masked_fields: tuple[str, ...] = dynamic(
        "maskedMessageFields",
        names,
        (),
        "Fields of JSON values that are shown as `***`, at any depth, written as in `maskedMessageProperties`. A value "
        "that is no JSON is hidden as a whole.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RecordLimits:
    """Usage records and decision records."""

    usage_records_enabled: bool = row(
        "usageRecordsEnabled",
        switch,
        False,
        "Whether this broker counts what each topic and resource group uses, through restarts and crashes, and records "
        "it on `persistent://pulsar/system/usage`.",
    )
    usage_records_interval_in_seconds: float = dynamic(
        "usageRecordsIntervalInSeconds",
        seconds(1, 3_600),
        60,
        "Interval of usage records, in seconds. Topics without any change are not recorded.",
    )
    governance_records_enabled: bool = row(
        "governanceRecordsEnabled",
        switch,
        False,
        "Whether this broker records what its limiters decide (who was slowed or refused, why and for how long) on "
        "`persistent://pulsar/system/governance`.",
    )
    governance_records_per_second: int = dynamic(
        "governanceRecordsPerSecond",
        whole(1, 10_000),
        100,
        "Maximum number of decision records per second; more are dropped, and counted.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ThrottlingLimits:
    """Adaptive publish throttling (experimental)."""

    adaptive_throttling: bool = row(
        "adaptivePublisherThrottlingEnabled",
        switch,
        False,
        "Whether publish rates are lowered when memory, a backlog quota or the disk runs out.",
    )
    adaptive_observe_only: bool = dynamic(
        "adaptivePublisherThrottlingObserveOnly",
        switch,
        False,
        "Whether decisions are only logged and counted. If it is switched on, all limits are lifted at once.",
    )
    adaptive_interval_ms: int = dynamic(
        "adaptivePublisherThrottlingIntervalMs", whole(10, 3_600_000), 1_000, "Milliseconds between two evaluations."
    )
    adaptive_memory_high: float = dynamic(
        "adaptivePublisherThrottlingMemoryHighWatermarkPct",
        part_of_one,
        0.85,
        "The part of memoryLimitMB that is in use when the memory pressure is 1, so that rates fall to their floor.",
    )
    adaptive_memory_low: float = dynamic(
        "adaptivePublisherThrottlingMemoryLowWatermarkPct",
        part_of_one,
        0.70,
        "The part of memoryLimitMB up to which the memory pressure is 0. It must be below the high watermark.",
    )
    adaptive_backlog_high: float = dynamic(
        "adaptivePublisherThrottlingBacklogHighWatermarkPct",
        part_of_one,
        0.90,
        "The part of its backlog quota that the backlog of a topic uses when its backlog pressure is 1. Topics without "
        "a quota by size have no backlog pressure.",
    )
    adaptive_backlog_low: float = dynamic(
        "adaptivePublisherThrottlingBacklogLowWatermarkPct",
        part_of_one,
        0.75,
        "The part of the backlog quota up to which the backlog pressure is 0. It must be below the high watermark.",
    )
    adaptive_min_rate_factor: float = dynamic(
        "adaptivePublisherThrottlingMinRateFactor",
        part_above_zero,
        0.10,
        "The floor: a topic may always publish this part of its natural rate.",
    )
    adaptive_max_rate_change_factor: float = dynamic(
        "adaptivePublisherThrottlingMaxRateChangeFactor",
        part_above_zero,
        0.25,
        "The most that a rate changes in one evaluation, as a part of the natural rate.",
    )
    adaptive_per_topic_metrics: bool = dynamic(
        "adaptivePublisherThrottlingPerTopicMetricsEnabled",
        switch,
        False,
        "Whether metrics of each topic are exported: six series for each of at most 5,000 topics.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SharingLimits:
    """Quotas of resource groups that several brokers share."""

    resource_usage_publish_to_topic: bool = dynamic(
        "resourceUsagePublishToTopic",
        switch,
        True,
        "Whether brokers share the quotas of resource groups. Otherwise each broker enforces whole quotas.",
    )
    resource_usage_publish_topic_name: str = row(
        "resourceUsagePublishTopicName",
        topic,
        REPORTS_TOPIC,
        "The topic on which brokers report what their resource groups use. Its tenant and namespace are created. Only "
        "brokers publish to it.",
    )
    resource_usage_publish_interval_in_secs: float = dynamic(
        "resourceUsagePublishIntervalInSecs",
        seconds(0.1, 3_600),
        1,
        "Interval of usage reports, in seconds; may be a fraction. Large changes are reported earlier. A broker that "
        "is not heard for ten intervals counts as if it wanted everything. Pulsar's name "
        "`resourceUsageTransportPublishIntervalInSecs` is understood, too.",
    )
    resource_usage_complete_report_cycles: int = dynamic(
        "resourceUsageCompleteReportCycles",
        whole(1, 1_000),
        5,
        "A report lists all groups in use, not only those whose use has changed, once in so many intervals.",
    )
    resource_group_share_strategy: str = dynamic(
        "resourceGroupShareStrategy",
        choice("max-min", "pulsar", "residual-even", "residual-proportional"),
        "max-min",
        "How brokers divide quotas: by max-min fairness, as Apache Pulsar, or by one of the two rules of PIP-82.",
    )
