# SPDX-License-Identifier: Apache-2.0
"""Rows on topics and who uses them. `model.Settings` joins the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.settings.key import choice, names_among, row, switch, whole

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Tenants, namespaces and topics."""

    enable_persistent_topics: bool = row(
        "enablePersistentTopics", switch, True, "Whether `persistent://` topics are served.", dynamic=True
    )
    enable_non_persistent_topics: bool = row(
        "enableNonPersistentTopics", switch, True, "Whether `non-persistent://` topics are served.", dynamic=True
    )
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
    max_num_partitions_per_partitioned_topic: int = row(
        "maxNumPartitionsPerPartitionedTopic", whole(0), 0, "The most partitions of a topic; 0: 10,000.", dynamic=True
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
    delete_inactive_topics_enabled: bool = row(
        "brokerDeleteInactiveTopicsEnabled", switch, True, "Whether topics that nobody uses are deleted.", dynamic=True
    )
    delete_inactive_topics_frequency_s: int = row(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        whole(1),
        60,
        "How often topics that nobody uses are looked for.",
        dynamic=True,
    )
    delete_inactive_topics_max_inactive_s: int | None = row(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        whole(1),
        "<brokerDeleteInactiveTopicsFrequencySeconds>",
        "How long nobody must have used a topic.",
        dynamic=True,
    )
    delete_inactive_topics_mode: str = row(
        "brokerDeleteInactiveTopicsMode",
        choice("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        "delete_when_no_subscriptions",
        "Which topics count: those without subscriptions, or those whose subscriptions have no backlog as well. Unless "
        "this is set, here or as `inactiveTopicPolicies`, topics that hold messages stay.",
        dynamic=True,
    )
    delete_inactive_partitioned_metadata_enabled: bool = row(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        switch,
        False,
        "Whether a partitioned topic is forgotten when the last of its partitions was deleted so.",
        dynamic=True,
    )
    force_delete_tenant_allowed: bool = row(
        "forceDeleteTenantAllowed", switch, False, "Whether a tenant can be deleted with all it has.", dynamic=True
    )
    force_delete_namespace_allowed: bool = row(
        "forceDeleteNamespaceAllowed",
        switch,
        False,
        "Whether a namespace can be deleted with all its topics.",
        dynamic=True,
    )
    topic_level_policies_enabled: bool = row(
        "topicLevelPoliciesEnabled", switch, True, "Whether single topics can have policies of their own."
    )
    default_number_of_namespace_bundles: int = row(
        "defaultNumberOfNamespaceBundles",
        whole(1, 1 << 16),
        4,
        "Bundles that a new namespace shows; there is one broker, so that nothing follows from it.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Lookups and listings."""

    enable_topic_list_watcher: bool = row(
        "enableBrokerTopicListWatcher",
        switch,
        True,
        "Whether consumers of a pattern are told of topics that come and go; otherwise they ask.",
        dynamic=True,
    )
    enable_subscription_pattern_evaluation: bool = row(
        "enableBrokerSideSubscriptionPatternEvaluation",
        switch,
        True,
        "Whether the broker sends a consumer of a pattern only the topics that match.",
        dynamic=True,
    )
    subscription_pattern_length_max: int = row(
        "subscriptionPatternMaxLength", whole(1), 50, "The longest pattern the broker evaluates.", dynamic=True
    )
    max_concurrent_lookups: int = row(
        "maxConcurrentLookupRequest", whole(1), 50_000, "Lookups at work at once; more are refused.", dynamic=True
    )
    max_concurrent_topic_loads: int = row(
        "maxConcurrentTopicLoadRequest", whole(1), 5_000, "Topics being loaded at once; more wait.", dynamic=True
    )


@dataclass(frozen=True, kw_only=True)
class Clients:
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
    encryption_required: bool = row(
        "encryptionRequireOnProducer", switch, False, "Whether only producers that encrypt are let in.", dynamic=True
    )
    subscription_types_enabled: tuple[str, ...] = row(
        "subscriptionTypesEnabled",
        names_among(*SUBSCRIPTION_TYPES),
        SUBSCRIPTION_TYPES,
        "Types of subscription that are served.",
        dynamic=True,
    )
    strictly_verify_subscription_name: bool = row(
        "strictlyVerifySubscriptionName",
        switch,
        False,
        "Whether a new subscription's name may hold only letters, digits and `-=:._`.",
        dynamic=True,
    )
    subscription_expiration_time_min: int = row(
        "subscriptionExpirationTimeMinutes",
        whole(0),
        0,
        "A subscription that nobody used for this long is deleted; 0: never.",
        dynamic=True,
    )
    subscription_expiry_check_interval_min: int = row(
        "subscriptionExpiryCheckIntervalInMinutes",
        whole(1),
        5,
        "How often such subscriptions are looked for.",
        dynamic=True,
    )


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivery."""

    active_consumer_failover_delay_ms: int = row(
        "activeConsumerFailoverDelayTimeMillis",
        whole(0),
        1_000,
        "How long a Failover subscription waits before another consumer takes over.",
        dynamic=True,
    )
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
    dispatcher_max_round_robin_batch_size: int = row(
        "dispatcherMaxRoundRobinBatchSize",
        whole(1),
        20,
        "Entries that a Shared consumer is given before it is the next one's turn.",
        dynamic=True,
    )
    ack_at_batch_index_level_enabled: bool = row(
        "acknowledgmentAtBatchIndexLevelEnabled",
        switch,
        True,
        "Whether single messages of a batch can be acknowledged.",
    )
    key_shared_use_consistent_hashing: bool = row(
        "subscriptionKeySharedUseConsistentHashing",
        switch,
        True,
        "How keys of a Key_Shared subscription are divided: with a ring of hashes, or by splitting ranges.",
    )
    key_shared_replica_points: int = row(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        whole(1, 10_000),
        100,
        "Points of each consumer on that ring: more divide the keys more evenly.",
    )
    delayed_delivery_enabled: bool = row(
        "delayedDeliveryEnabled", switch, True, "Whether messages can ask to be delivered later."
    )
    delayed_delivery_tick_ms: int = row(
        "delayedDeliveryTickTimeMillis", whole(1), 1_000, "How exactly such a time is kept."
    )
    delayed_delivery_strict: bool = row(
        "isDelayedDeliveryDeliverAtTimeStrict",
        switch,
        False,
        "Whether such a message never comes early; otherwise it may, by delayedDeliveryTickTimeMillis.",
    )
    delayed_delivery_max_ms: int = row(
        "delayedDeliveryMaxDelayInMillis", whole(0), 0, "The longest delay a message may ask for; 0: no bound."
    )
    delayed_delivery_lookahead: int = row(
        "delayedDeliveryFixedDelayDetectionLookahead",
        whole(0),
        50_000,
        "After how many messages with one and the same delay Pulsar stops reading, to save memory. Any number "
        "is taken, and changes nothing: the index here is bounded in bytes, and what does not fit stays on disk.",
    )
    delayed_delivery_tracker: str = row(
        "delayedDeliveryTrackerFactoryClassName",
        str,
        "org.apache.pulsar.broker.delayed.InMemoryTopicDelayedDeliveryTrackerFactory",
        "Which tracker Pulsar would use. There is one here, shared by all subscriptions of a topic: any name is taken, "
        "and changes nothing.",
    )
