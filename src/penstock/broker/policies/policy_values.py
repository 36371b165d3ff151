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
COMPATIBILITIES: Final = (
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
