# SPDX-License-Identifier: Apache-2.0
"""All operations of the admin API, which routes call through the gateway.

Everything is called on the broker's loop, raises `core.errors` with Pulsar's texts and statuses, and returns plain
values, which may be used on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.access import Access
    from penstock.broker.administration.backup_admin import BackupAdmin
    from penstock.broker.administration.clusters import Clusters
    from penstock.broker.administration.delayed_admin import DelayedAdmin
    from penstock.broker.administration.message_admin import MessageAdmin
    from penstock.broker.administration.message_sending import MessageSending
    from penstock.broker.administration.migrations import Migrations
    from penstock.broker.administration.namespaces import Namespaces, Tenants
    from penstock.broker.administration.policy_admin import PolicyAdmin
    from penstock.broker.administration.resource_groups import ResourceGroups
    from penstock.broker.administration.resource_quotas import ResourceQuotas
    from penstock.broker.administration.schema_admin import SchemaAdmin
    from penstock.broker.administration.service import ListingAdmin, LookupAdmin, Service
    from penstock.broker.administration.subscription_admin import SubscriptionAdmin
    from penstock.broker.administration.topic_admin import TopicAdmin
    from penstock.broker.administration.transaction_admin import TransactionAdmin
    from penstock.broker.configuration import Configuration
    from penstock.broker.health import Health
    from penstock.broker.policies.permissions import Permissions
    from penstock.broker.stats.backlog_analysis import BacklogAnalysis
    from penstock.broker.stats.snapshot import Snapshots
    from penstock.broker.stats.stats_partitioned import PartitionedStats
    from penstock.broker.stats.topic_rows import TopicRows
    from penstock.broker.stats.topic_stats import InternalStats, TopicStats
    from penstock.broker.stats.why import Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Administration:
    """Admin operations of one broker."""

    access: Access
    health: Callable[[], Health]
    service: Service
    backup: BackupAdmin
    configuration: Configuration
    quotas: ResourceQuotas
    resource_groups: ResourceGroups
    clusters: Clusters
    migrations: Migrations
    tenants: Tenants
    namespaces: Namespaces
    policies: PolicyAdmin
    permissions: Permissions
    topics: TopicAdmin
    subscriptions: SubscriptionAdmin
    messages: MessageAdmin
    sending: MessageSending
    delayed: DelayedAdmin
    schemas: SchemaAdmin
    lookup: LookupAdmin
    listings: ListingAdmin
    stats: TopicStats
    partitioned_stats: PartitionedStats
    internal_stats: InternalStats
    backlogs: BacklogAnalysis
    snapshots: Snapshots
    topic_rows: TopicRows
    transactions: TransactionAdmin
    why: Why
