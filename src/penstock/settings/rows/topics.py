# SPDX-License-Identifier: Apache-2.0
"""Settings of topics, clients and policies; most are declared in the broker, beside the code that uses them."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.limit_rows import (
    ClientLimits,
    DeduplicationLimits,
    DeliveryLimits,
    FindingLimits,
    MaskingLimits,
    RecordLimits,
    SchemaLimits,
    SharingLimits,
    ThrottlingLimits,
    TopicLimits,
    TransactionLimits,
)
from penstock.broker.policies.policy_defaults import (
    ClientDefaults,
    DeduplicationDefaults,
    DeliveryDefaults,
    RateDefaults,
    RecordDefaults,
    RetentionDefaults,
    SchemaDefaults,
    TopicDefaults,
)
from penstock.core.setting import dynamic, row, whole, zookeeper


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

    active_consumer_failover_delay_ms: int = dynamic(
        "activeConsumerFailoverDelayTimeMillis",
        whole(0),
        1_000,
        "How long a Failover subscription waits before another consumer takes over.",
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
class Transactions(TransactionLimits):
    """Transactions."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Rates(RateDefaults):
    """Rates. 0 or less: no bound."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Sharing(SharingLimits):
    """Quotas of resource groups that several brokers share."""

    membership_url: str | None = row(
        "membershipUrl",
        zookeeper,
        "<none>",
        "Where those that share quotas register, in the form of Pulsar's `metadataStoreUrl`: "
        "`zk:HOST:PORT,HOST:PORT/PATH`; the path is `/penstock` by default. Give each cluster a path of its own. "
        "Needs `penstock[zookeeper]`. If it is not set, the supervisor says which brokers serve, and proxies know each "
        "other by their reports. No metadata is stored there.",
    )
    membership_session_timeout_ms: int = row(
        "membershipSessionTimeoutMillis",
        whole(1_000, 600_000),
        30_000,
        "How long ZooKeeper waits for a process that is silent before it is no member; like Pulsar's "
        "`metadataStoreSessionTimeoutMillis`. ZooKeeper may set it to one of its own limits (usually 4 and 40 s).",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Records(RecordLimits, RecordDefaults):
    """Usage records and decision records."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Throttling(ThrottlingLimits):
    """Adaptive publish throttling (experimental)."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Schemas(SchemaLimits, SchemaDefaults):
    """Schemas."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Masking(MaskingLimits):
    """Messages that people look at."""
