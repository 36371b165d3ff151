# SPDX-License-Identifier: Apache-2.0
"""Rows on topics, who uses them, and what policies overrule: most stand in the broker, beside what reads them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.limit_rows import (
    ClientLimits,
    DeduplicationLimits,
    DeliveryLimits,
    FindingLimits,
    SchemaLimits,
    TopicLimits,
)
from penstock.broker.policies.policy_defaults import (
    ClientDefaults,
    DeduplicationDefaults,
    DeliveryDefaults,
    RateDefaults,
    RetentionDefaults,
    SchemaDefaults,
    TopicDefaults,
)
from penstock.core.setting import row, whole


@dataclass(frozen=True, kw_only=True)
class Topics(TopicDefaults, TopicLimits):
    """Tenants, namespaces and topics."""


@dataclass(frozen=True, kw_only=True)
class Finding(FindingLimits):
    """Lookups and listings."""


@dataclass(frozen=True, kw_only=True)
class Clients(ClientDefaults, ClientLimits):
    """Producers, consumers and subscriptions."""


@dataclass(frozen=True, kw_only=True)
class Delivery(DeliveryDefaults, DeliveryLimits):
    """Delivery."""

    active_consumer_failover_delay_ms: int = row(
        "activeConsumerFailoverDelayTimeMillis",
        whole(0),
        1_000,
        "How long a Failover subscription waits before another consumer takes over.",
        dynamic=True,
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


@dataclass(frozen=True, kw_only=True)
class Retention(RetentionDefaults):
    """Retention, expiry and backlog."""


@dataclass(frozen=True, kw_only=True)
class Deduplication(DeduplicationLimits, DeduplicationDefaults):
    """Deduplication and compaction."""


@dataclass(frozen=True, kw_only=True)
class Rates(RateDefaults):
    """Rates. 0 or less: no bound."""


@dataclass(frozen=True, kw_only=True)
class Schemas(SchemaLimits, SchemaDefaults):
    """Schemas."""
