# SPDX-License-Identifier: Apache-2.0
"""Policies as the admin port takes and gives them. What values they may have is for `broker.policy_table` to say."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import ConfigDict, Field

from penstock.admin.models import AuthAction, Bundles, Int, Long, Model, Properties

Compatibility: TypeAlias = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
AutoUpdateCompatibility: TypeAlias = Literal[
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
]
SubscriptionType: TypeAlias = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
SubscriptionAuthMode: TypeAlias = Literal["None", "Prefix"]


class Retention(Model):
    """How long and how much is kept of what is acknowledged; -1: without bound."""

    minutes: Int = Field(alias="retentionTimeInMinutes")
    megabytes: Long = Field(alias="retentionSizeInMB")


class BacklogQuota(Model):
    """How large (bytes) or old (seconds) a backlog may become, and what happens then. `limit` is an older name."""

    limit: Long | None = None
    limit_size: Long | None = Field(None, alias="limitSize")
    limit_time: Int | None = Field(None, alias="limitTime")
    policy: Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"] | None = None


class BacklogQuotas(Model):
    """Quotas by what they measure."""

    size: BacklogQuota | None = Field(None, alias="destination_storage")
    age: BacklogQuota | None = Field(None, alias="message_age")


class PublishRate(Model):
    """Messages and bytes a second that may be published; -1: any."""

    messages: Int = Field(-1, alias="publishThrottlingRateInMsg")
    bytes: Long = Field(-1, alias="publishThrottlingRateInByte")


class DispatchRate(Model):
    """Messages and bytes that may be delivered in a period; -1: any."""

    messages: Int = Field(-1, alias="dispatchThrottlingRateInMsg")
    bytes: Long = Field(-1, alias="dispatchThrottlingRateInByte")
    relative: bool = Field(False, alias="relativeToPublishRate")
    period_s: Int = Field(1, alias="ratePeriodInSecond")


class SubscribeRate(Model):
    """How often a consumer may subscribe in a period; -1: as it likes."""

    per_consumer: Int = Field(-1, alias="subscribeThrottlingRatePerConsumer")
    period_s: Int = Field(30, alias="ratePeriodInSecond")


class Persistence(Model):
    """Copies of an entry, in a cluster that makes some. Kept as it is set; an entry log on one disk makes one."""

    ensemble: Int = Field(2, alias="bookkeeperEnsemble")
    write_quorum: Int = Field(2, alias="bookkeeperWriteQuorum")
    ack_quorum: Int = Field(2, alias="bookkeeperAckQuorum")
    mark_delete_rate: float = Field(0.0, alias="managedLedgerMaxMarkDeleteRate", allow_inf_nan=False)


class DelayedDelivery(Model):
    """Whether messages may be delayed, at which resolution and for how long."""

    tick_ms: Long = Field(1000, alias="tickTime")
    active: bool = True
    max_ms: Long = Field(0, alias="maxDeliveryDelayInMillis")


class InactiveTopics(Model):
    """Whether, and when, topics that nobody uses are deleted."""

    mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"] | None = Field(
        None, alias="inactiveTopicDeleteMode"
    )
    max_inactive_s: Int = Field(60, alias="maxInactiveDurationSeconds")
    delete: bool = Field(False, alias="deleteWhileInactive")


class AutoTopicCreation(Model):
    """Whether topics are created by whoever names them, and of which kind."""

    allow: bool = Field(alias="allowAutoTopicCreation")
    topic_type: str | None = Field(None, alias="topicType")
    partitions: Int | None = Field(None, alias="defaultNumPartitions")


class AutoSubscriptionCreation(Model):
    """Whether subscriptions are created by whoever names them."""

    allow: bool = Field(alias="allowAutoSubscriptionCreation")


class EntryFilters(Model):
    """Filters of another broker's making. Kept as they are set; none is loaded here."""

    names: str | None = Field(None, alias="entryFilterNames")


class Offload(Model):
    """Where old entries go, in a cluster that offloads. Kept as it is set; nothing is offloaded here."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)


class AuthPolicies(Model):
    """Who may do what in a namespace."""

    namespaces: dict[str, list[AuthAction]] | None = Field(None, alias="namespace_auth")
    topics: dict[str, dict[str, list[AuthAction]]] | None = Field(None, alias="destination_auth")
    subscriptions: dict[str, list[str]] | None = Field(None, alias="subscription_auth_roles")


class Policies(Model):
    """All policies of a namespace. Rates are by the name of the cluster."""

    auth_policies: AuthPolicies | None = None
    replication_clusters: list[str] | None = None
    allowed_clusters: list[str] | None = None
    bundles: Bundles | None = None
    backlog_quota_map: BacklogQuotas | None = None
    cluster_dispatch_rate: dict[str, DispatchRate] | None = Field(None, alias="clusterDispatchRate")
    topic_dispatch_rate: dict[str, DispatchRate] | None = Field(None, alias="topicDispatchRate")
    subscription_dispatch_rate: dict[str, DispatchRate] | None = Field(None, alias="subscriptionDispatchRate")
    replicator_dispatch_rate: dict[str, DispatchRate] | None = Field(None, alias="replicatorDispatchRate")
    cluster_subscribe_rate: dict[str, SubscribeRate] | None = Field(None, alias="clusterSubscribeRate")
    persistence: Persistence | None = None
    deduplication: bool | None = Field(None, alias="deduplicationEnabled")
    auto_topic_creation: AutoTopicCreation | None = Field(None, alias="autoTopicCreationOverride")
    auto_subscription_creation: AutoSubscriptionCreation | None = Field(None, alias="autoSubscriptionCreationOverride")
    publish_rate: dict[str, PublishRate] | None = Field(None, alias="publishMaxMessageRate")
    latency_stats_sample_rate: dict[str, Int] | None = None
    message_ttl_in_seconds: Int | None = None
    subscription_expiration_time_minutes: Int | None = None
    retention_policies: Retention | None = None
    deleted: bool | None = None
    encryption_required: bool | None = None
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopics | None = None
    subscription_auth_mode: SubscriptionAuthMode | None = None
    max_producers_per_topic: Int | None = None
    max_consumers_per_topic: Int | None = None
    max_consumers_per_subscription: Int | None = None
    max_unacked_messages_per_consumer: Int | None = None
    max_unacked_messages_per_subscription: Int | None = None
    max_subscriptions_per_topic: Int | None = None
    compaction_threshold: Long | None = None
    offload_threshold: Long | None = None
    offload_threshold_in_seconds: Long | None = None
    offload_deletion_lag_ms: Long | None = None
    max_topics_per_namespace: Int | None = None
    schema_auto_update_compatibility_strategy: AutoUpdateCompatibility | None = None
    schema_compatibility_strategy: Compatibility | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_validation_enforced: bool | None = None
    offload_policies: Offload | None = None
    deduplication_snapshot_interval: Int | None = Field(None, alias="deduplicationSnapshotIntervalSeconds")
    subscription_types_enabled: list[SubscriptionType] | None = None
    properties: Properties | None = None
    resource_group_name: str | None = None
    migrated: bool | None = None
    dispatcher_pause_on_ack_state: bool | None = Field(None, alias="dispatcherPauseOnAckStatePersistentEnabled")
    entry_filters: EntryFilters | None = Field(None, alias="entryFilters")
