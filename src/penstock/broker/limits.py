# SPDX-License-Identifier: Apache-2.0
"""What the broker was told: its part of the configuration, in the units it computes with.

Why one frozen value: configuration can change while the broker runs. `Broker.limits` is then replaced as a whole, so
that nobody sees half of a change; whoever needs a limit reads it from there at that moment and keeps no copy.
Where: app fills it from the settings; the reference of the configuration explains each key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.access.rules import AccessRules
from penstock.broker.policies.policy_values import PolicyDefaults
from penstock.core.units import MIB
from penstock.net.topic_list_limiter import TopicListLimits

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """The broker's limits and switches. For bounds (`…_max`), 0 is none."""

    message_bytes_max: int
    keep_alive_ns: int
    liveness_check_ns: int
    failover_delay_s: float
    round_robin_entries_max: int
    tail_cache_bytes: int
    cluster_name: str

    # Rows of the memory budget, each with one owner.
    commands_bytes: int = 64 * MIB  # commands being carried out
    sessions_bytes: int = 64 * MIB  # what clients call their producers, consumers and watchers, and say of them
    http_bytes: int = 64 * MIB  # requests at the admin port
    dispatch_bytes: int = 64 * MIB  # what consumers owe, and what cursors have above their mark-delete position

    # What namespaces and topics can overrule, how often it is looked after, and rates of the whole broker.
    policies: PolicyDefaults = field(default_factory=PolicyDefaults)

    # Roles, and what is checked of them.
    access: AccessRules = field(default_factory=AccessRules)

    # --- connections
    connections_max: int = 0  # brokerMaxConnections
    connections_per_address_max: int = 0  # brokerMaxConnectionsPerIp

    stop_s_max: float = 60.0  # brokerShutdownTimeoutMs
    status_file: Path | None = None  # statusFilePath

    # --- tenants, namespaces, topics
    persistent_topics: bool = True  # enablePersistentTopics
    non_persistent_topics: bool = True  # enableNonPersistentTopics
    partitions_max: int = 0  # maxNumPartitionsPerPartitionedTopic
    # Whether brokerDeleteInactiveTopicsMode was set, by anybody: only then topics go with the messages that they hold.
    delete_inactive_with_messages: bool = False
    delete_inactive_partitioned: bool = False  # brokerDeleteInactivePartitionedTopicMetadataEnabled
    force_delete_tenant: bool = False  # forceDeleteTenantAllowed
    force_delete_namespace: bool = False  # forceDeleteNamespaceAllowed
    namespace_bundles: int = 4  # defaultNumberOfNamespaceBundles

    # --- lookups and listings
    topic_list_watchers: bool = True  # enableBrokerTopicListWatcher
    evaluate_patterns: bool = True  # enableBrokerSideSubscriptionPatternEvaluation
    pattern_length_max: int = 50  # subscriptionPatternMaxLength
    lookups_max: int = 50_000  # maxConcurrentLookupRequest
    topic_loads_max: int = 5_000  # maxConcurrentTopicLoadRequest
    listings: TopicListLimits = field(default_factory=TopicListLimits)  # maxTopicListInFlight…

    # --- subscriptions
    strict_subscription_names: bool = False  # strictlyVerifySubscriptionName
    batch_index_acks: bool = True  # acknowledgmentAtBatchIndexLevelEnabled
    key_shared_consistent_hashing: bool = True  # subscriptionKeySharedUseConsistentHashing
    key_shared_points: int = 100  # subscriptionKeySharedConsistentHashingReplicaPoints
    delayed_strict: bool = False  # isDelayedDeliveryDeliverAtTimeStrict
    delayed_index_bytes: int = 64 * MIB  # its row of the memory budget

    # --- deduplication and compaction
    deduplication_producers_max: int = 10_000  # brokerDeduplicationMaxNumberOfProducers
    deduplication_entries_interval: int = 1_000  # brokerDeduplicationEntriesInterval
    deduplication_snapshot_s: int = 120  # brokerDeduplicationSnapshotIntervalSeconds
    deduplication_snapshot_check_s: int = 120  # brokerDeduplicationSnapshotFrequencyInSeconds; 0: never
    deduplication_inactivity_min: int = 360  # brokerDeduplicationProducerInactivityTimeoutMinutes
    compaction_check_s: int = 60  # brokerServiceCompactionMonitorIntervalInSeconds
    schema_bytes_max: int = MIB  # maxSchemaSize
