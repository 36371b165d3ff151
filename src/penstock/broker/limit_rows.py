# SPDX-License-Identifier: Apache-2.0
"""Settings that the broker reads unchanged: one row each, an attribute with its key of `broker.conf`.

Where: `limits.BrokerLimits` is made of these groups, and `penstock.settings` joins them with its own. They import
nothing else of the broker, for programs that only explain their flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.core.setting import row, size, switch, whole
from penstock.core.units import MIB


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ConnectionLimits:
    """Connections."""

    connections_max: int = row(
        "brokerMaxConnections",
        whole(0),
        0,
        "Maximum number of connections of Pulsar clients; 0: no limit.",
        dynamic=True,
    )
    connections_per_address_max: int = row(
        "brokerMaxConnectionsPerIp",
        whole(0),
        0,
        "Maximum number of connections from one IP address; 0: no limit.",
        dynamic=True,
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

    persistent_topics: bool = row(
        "enablePersistentTopics", switch, True, "Whether `persistent://` topics are served.", dynamic=True
    )
    non_persistent_topics: bool = row(
        "enableNonPersistentTopics", switch, True, "Whether `non-persistent://` topics are served.", dynamic=True
    )
    partitions_max: int = row(
        "maxNumPartitionsPerPartitionedTopic",
        whole(0),
        0,
        "Maximum number of partitions of a topic; 0: 10,000.",
        dynamic=True,
    )
    delete_inactive_partitioned: bool = row(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        switch,
        False,
        "Whether the metadata of a partitioned topic is deleted when all its partitions were deleted as inactive.",
        dynamic=True,
    )
    force_delete_tenant: bool = row(
        "forceDeleteTenantAllowed",
        switch,
        False,
        "Whether a tenant can be deleted together with its namespaces and topics.",
        dynamic=True,
    )
    force_delete_namespace: bool = row(
        "forceDeleteNamespaceAllowed",
        switch,
        False,
        "Whether a namespace can be deleted together with its topics.",
        dynamic=True,
    )
    namespace_bundles: int = row(
        "defaultNumberOfNamespaceBundles",
        whole(1, 1 << 16),
        4,
        "Number of bundles of a new namespace. It is only shown: one broker serves all bundles.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class FindingLimits:
    """Lookups and listings."""

    topic_list_watchers: bool = row(
        "enableBrokerTopicListWatcher",
        switch,
        True,
        "Whether the broker notifies pattern consumers of new and deleted topics; otherwise they poll.",
        dynamic=True,
    )
    evaluate_patterns: bool = row(
        "enableBrokerSideSubscriptionPatternEvaluation",
        switch,
        True,
        "Whether the broker evaluates the patterns of pattern consumers and sends only the topics that match.",
        dynamic=True,
    )
    pattern_length_max: int = row(
        "subscriptionPatternMaxLength",
        whole(1),
        50,
        "Maximum length of a pattern that the broker evaluates.",
        dynamic=True,
    )
    lookups_max: int = row(
        "maxConcurrentLookupRequest",
        whole(1),
        50_000,
        "Maximum number of concurrent lookups; more are rejected.",
        dynamic=True,
    )
    topic_loads_max: int = row(
        "maxConcurrentTopicLoadRequest",
        whole(1),
        5_000,
        "Maximum number of topics that are loaded concurrently; more wait.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ClientLimits:
    """Producers, consumers and subscriptions."""

    strict_subscription_names: bool = row(
        "strictlyVerifySubscriptionName",
        switch,
        False,
        "Whether the name of a new subscription may contain only letters, digits and `-=:._`.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DeliveryLimits:
    """Delivery."""

    round_robin_entries_max: int = row(
        "dispatcherMaxRoundRobinBatchSize",
        whole(1),
        20,
        "Maximum number of entries that a Shared subscription sends to one consumer before it goes on to the next.",
        dynamic=True,
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
    compaction_check_s: int = row(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        whole(1),
        60,
        "How often the broker checks compaction thresholds, in seconds.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SchemaLimits:
    """Schemas."""

    schema_bytes_max: int = row(
        "maxSchemaSize",
        size(1),
        MIB,
        "Maximum size of a schema definition, in bytes.",
    )
