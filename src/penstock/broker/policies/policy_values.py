# SPDX-License-Identifier: Apache-2.0
"""What policies come to: the broker's defaults, and what holds for one topic.

Where: app fills `PolicyDefaults` from the configuration, `policy_table` makes an `EffectivePolicies` of them and of
what namespaces and topics say; the rest of the broker reads that, as `Topic.policies`. Nothing here but values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
QUOTA_SIZE: Final = "destination_storage"
QUOTA_AGE: Final = "message_age"
HOLD: Final = "producer_request_hold"
EXCEPTION: Final = "producer_exception"
EVICTION: Final = "consumer_backlog_eviction"
QUOTA_POLICIES: Final = (HOLD, EXCEPTION, EVICTION)
INACTIVE_MODES: Final = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")


class Rate(NamedTuple):
    """So many messages and bytes in a period; 0: not limited in that. `relative` adds what is published."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False

    @property
    def limited(self) -> bool:
        """Whether it limits anything."""
        return self.messages > 0 or self.bytes > 0


class BacklogQuota(NamedTuple):
    """How much backlog (bytes or seconds; 0: any) a topic may have, and what happens beyond it."""

    limit: int = 0
    policy: str = HOLD


class DelayedDelivery(NamedTuple):
    """Whether messages may be delayed, at which resolution and for how long at most (0: any)."""

    active: bool = True
    tick_ms: int = 1000
    max_ms: int = 0


class Inactive(NamedTuple):
    """Whether, and after how long without use, a topic is deleted."""

    mode: str = INACTIVE_MODES[0]
    max_inactive_s: int = 60
    delete: bool = True


UNLIMITED: Final = Rate()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefaults:
    """What holds for topics of which neither they nor their namespaces say anything; and what is the broker's alone.

    Fields are named after the keys of the configuration, which say what they mean.
    """

    default_retention_time_in_minutes: int = 0
    default_retention_size_in_mb: int = 0
    ttl_duration_default_in_seconds: int = 0
    backlog_quota_default_limit_bytes: int = -1
    backlog_quota_default_limit_second: int = -1
    backlog_quota_default_retention_policy: str = HOLD
    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_same_address_producers_per_topic: int = 0
    max_same_address_consumers_per_topic: int = 0
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    max_publish_rate_per_topic_in_messages: int = 0
    max_publish_rate_per_topic_in_bytes: int = 0
    broker_publisher_throttling_max_message_rate: int = 0
    broker_publisher_throttling_max_byte_rate: int = 0
    dispatch_throttling_rate_in_msg: int = 0
    dispatch_throttling_rate_in_byte: int = 0
    dispatch_throttling_rate_per_topic_in_msg: int = 0
    dispatch_throttling_rate_per_topic_in_byte: int = 0
    dispatch_throttling_rate_per_subscription_in_msg: int = 0
    dispatch_throttling_rate_per_subscription_in_byte: int = 0
    dispatch_throttling_rate_relative_to_publish_rate: bool = False
    dispatch_throttling_on_non_backlog_consumer_enabled: bool = True
    dispatch_throttling_on_batch_message_enabled: bool = False
    subscribe_throttling_rate_per_consumer: int = 0
    subscribe_rate_period_per_consumer_in_second: int = 30
    broker_deduplication_enabled: bool = False
    broker_service_compaction_threshold_in_bytes: int = 0
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_time_millis: int = 1000
    delayed_delivery_max_delay_in_millis: int = 0
    broker_delete_inactive_topics_enabled: bool = True
    broker_delete_inactive_topics_mode: str = INACTIVE_MODES[0]
    broker_delete_inactive_topics_frequency_seconds: int = 60
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: the frequency
    subscription_types_enabled: tuple[str, ...] = SUBSCRIPTION_TYPES
    subscription_expiration_time_minutes: int = 0
    schema_compatibility_strategy: str = "FULL"
    is_schema_validation_enforced: bool = False
    is_allow_auto_update_schema_enabled: bool = True
    encryption_require_on_producer: bool = False
    max_message_size: int = 5 * MIB
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: str = "non-partitioned"
    default_num_partitions: int = 1
    allow_auto_subscription_creation: bool = True
    max_topics_per_namespace: int = 0
    topic_level_policies_enabled: bool = True
    # How often the broker looks, in the units of the keys.
    backlog_quota_check_enabled: bool = True
    backlog_quota_check_interval_in_seconds: int = 60
    message_expiry_check_interval_in_minutes: int = 5
    subscription_expiry_check_interval_in_minutes: int = 5
    retention_check_interval_in_seconds: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """What holds for one topic: its own policies over its namespace's over the broker's defaults.

    Topics that say nothing of their own share one value. Bounds of 0 are none, but for `retention_*`, where 0 keeps
    nothing that was acknowledged and -1 is without bound.
    """

    retention_minutes: int = 0
    retention_mb: int = 0
    ttl_s: int = 0
    backlog_quota_size: BacklogQuota = field(default_factory=BacklogQuota)
    backlog_quota_age: BacklogQuota = field(default_factory=BacklogQuota)
    max_producers: int = 0
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_unacked_per_consumer: int = 0
    max_unacked_per_subscription: int = 0
    publish_rate: Rate = UNLIMITED
    dispatch_rate: Rate = UNLIMITED
    subscription_dispatch_rate: Rate = UNLIMITED
    # Subscriptions that have a rate of their own, by name.
    subscription_dispatch_rates: Mapping[str, Rate] = field(default_factory=lambda: MappingProxyType({}))
    subscribe_rate: Rate = UNLIMITED
    deduplication: bool = False
    compaction_threshold: int = 0
    delayed_delivery: DelayedDelivery = field(default_factory=DelayedDelivery)
    inactive: Inactive = field(default_factory=Inactive)
    subscription_types: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    subscription_expiration_minutes: int = 0
    schema_compatibility: str = "FULL"
    schema_validation_enforced: bool = False
    allow_auto_update_schema: bool = True
    encryption_required: bool = False
    max_message_bytes: int = 5 * MIB
    allow_auto_topic_creation: bool = True
    auto_topic_partitions: int = 0
    allow_auto_subscription_creation: bool = True
    max_topics_per_namespace: int = 0
