# SPDX-License-Identifier: Apache-2.0
"""Settings that the broker reads as they are written: one row each, the attribute with its key of `broker.conf`.

Where: `limits.BrokerLimits` is made of these groups, and `penstock.settings` joins them with its own. They import
nothing else of the broker: a program that only explains its flags does without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.core.setting import row, size, switch, whole
from penstock.core.units import MIB


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Connections."""

    connections_max: int = row(
        "brokerMaxConnections", whole(0), 0, "Connections of Pulsar clients at once; 0: no bound.", dynamic=True
    )
    connections_per_address_max: int = row(
        "brokerMaxConnectionsPerIp", whole(0), 0, "The same, of one address; 0: no bound.", dynamic=True
    )
    status_file: Path | None = row(
        "statusFilePath",
        Path,
        "<none>",
        "File whose presence says OK at /status.html; take it away before maintenance. Not set: there is no such page.",
    )


@dataclass(frozen=True, kw_only=True)
class TopicLimits:
    """Tenants, namespaces and topics."""

    persistent_topics: bool = row(
        "enablePersistentTopics", switch, True, "Whether `persistent://` topics are served.", dynamic=True
    )
    non_persistent_topics: bool = row(
        "enableNonPersistentTopics", switch, True, "Whether `non-persistent://` topics are served.", dynamic=True
    )
    partitions_max: int = row(
        "maxNumPartitionsPerPartitionedTopic", whole(0), 0, "The most partitions of a topic; 0: 10,000.", dynamic=True
    )
    delete_inactive_partitioned: bool = row(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        switch,
        False,
        "Whether a partitioned topic is forgotten when the last of its partitions was deleted so.",
        dynamic=True,
    )
    force_delete_tenant: bool = row(
        "forceDeleteTenantAllowed", switch, False, "Whether a tenant can be deleted with all it has.", dynamic=True
    )
    force_delete_namespace: bool = row(
        "forceDeleteNamespaceAllowed",
        switch,
        False,
        "Whether a namespace can be deleted with all its topics.",
        dynamic=True,
    )
    namespace_bundles: int = row(
        "defaultNumberOfNamespaceBundles",
        whole(1, 1 << 16),
        4,
        "Bundles that a new namespace shows; there is one broker, so that nothing follows from it.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class FindingLimits:
    """Lookups and listings."""

    topic_list_watchers: bool = row(
        "enableBrokerTopicListWatcher",
        switch,
        True,
        "Whether consumers of a pattern are told of topics that come and go; otherwise they ask.",
        dynamic=True,
    )
    evaluate_patterns: bool = row(
        "enableBrokerSideSubscriptionPatternEvaluation",
        switch,
        True,
        "Whether the broker sends a consumer of a pattern only the topics that match.",
        dynamic=True,
    )
    pattern_length_max: int = row(
        "subscriptionPatternMaxLength", whole(1), 50, "The longest pattern the broker evaluates.", dynamic=True
    )
    lookups_max: int = row(
        "maxConcurrentLookupRequest", whole(1), 50_000, "Lookups at work at once; more are refused.", dynamic=True
    )
    topic_loads_max: int = row(
        "maxConcurrentTopicLoadRequest", whole(1), 5_000, "Topics being loaded at once; more wait.", dynamic=True
    )


@dataclass(frozen=True, kw_only=True)
class ClientLimits:
    """Producers, consumers and subscriptions."""

    strict_subscription_names: bool = row(
        "strictlyVerifySubscriptionName",
        switch,
        False,
        "Whether a new subscription's name may hold only letters, digits and `-=:._`.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class DeliveryLimits:
    """Delivery."""

    round_robin_entries_max: int = row(
        "dispatcherMaxRoundRobinBatchSize",
        whole(1),
        20,
        "Entries that a Shared consumer is given before it is the next one's turn.",
        dynamic=True,
    )
    batch_index_acks: bool = row(
        "acknowledgmentAtBatchIndexLevelEnabled",
        switch,
        True,
        "Whether single messages of a batch can be acknowledged.",
    )
    key_shared_consistent_hashing: bool = row(
        "subscriptionKeySharedUseConsistentHashing",
        switch,
        True,
        "How keys of a Key_Shared subscription are divided: with a ring of hashes, or by splitting ranges.",
    )
    key_shared_points: int = row(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        whole(1, 10_000),
        100,
        "Points of each consumer on that ring: more divide the keys more evenly.",
    )
    delayed_strict: bool = row(
        "isDelayedDeliveryDeliverAtTimeStrict",
        switch,
        False,
        "Whether such a message never comes early; otherwise it may, by delayedDeliveryTickTimeMillis.",
    )


@dataclass(frozen=True, kw_only=True)
class DeduplicationLimits:
    """Deduplication and compaction."""

    deduplication_producers_max: int = row(
        "brokerDeduplicationMaxNumberOfProducers", whole(1), 10_000, "Producers that a topic remembers for it."
    )
    deduplication_entries_interval: int = row(
        "brokerDeduplicationEntriesInterval", whole(1), 1_000, "Entries after which it is stored what was seen of them."
    )
    deduplication_snapshot_s: int = row(
        "brokerDeduplicationSnapshotIntervalSeconds", whole(1), 120, "And the time after which it is."
    )
    deduplication_snapshot_check_s: int = row(
        "brokerDeduplicationSnapshotFrequencyInSeconds", whole(0), 120, "How often that time is looked at; 0: never."
    )
    deduplication_inactivity_min: int = row(
        "brokerDeduplicationProducerInactivityTimeoutMinutes",
        whole(1),
        360,
        "How long a producer that left is remembered for it.",
    )
    compaction_check_s: int = row(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        whole(1),
        60,
        "How often it is looked for such topics.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class SchemaLimits:
    """Schemas."""

    schema_bytes_max: int = row(
        "maxSchemaSize",
        size(1),
        MIB,
        "The largest definition of a schema that a client or an administrator may give, in bytes.",
    )
