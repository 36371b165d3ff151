# SPDX-License-Identifier: Apache-2.0
"""Settings of topics, clients and policies; most are declared in the broker, beside the code that uses them."""

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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Topics(TopicDefaults, TopicLimits):
    """Tenants, namespaces and topics."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Finding(FindingLimits):
    """Lookups and listings."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Clients(ClientDefaults, ClientLimits):
    """Producers, consumers and subscriptions."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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
        "The number of messages with the same delay after which Pulsar stops reading, to save memory. Accepted without "
        "effect: the index is limited in bytes, and messages that do not fit stay on disk.",
    )
    delayed_delivery_tracker: str = row(
        "delayedDeliveryTrackerFactoryClassName",
        str,
        "org.apache.pulsar.broker.delayed.InMemoryTopicDelayedDeliveryTrackerFactory",
        "The class of Pulsar's tracker. Accepted without effect: there is one tracker, shared by all subscriptions of "
        "a topic.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Retention(RetentionDefaults):
    """Retention, expiry and backlog."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Deduplication(DeduplicationLimits, DeduplicationDefaults):
    """Deduplication and compaction."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Rates(RateDefaults):
    """Rates. 0 or less: no bound."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Schemas(SchemaLimits, SchemaDefaults):
    """Schemas."""
