# SPDX-License-Identifier: Apache-2.0
"""Builds administration and statistics, passing each part what it uses.

Why apart: imported by the first admin request, on the admin API's thread, so the start is faster.
Where: `app` passes it to the gateway of the admin API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.administration.administration import Administration
from penstock.broker.administration.backup_admin import BackupAdmin
from penstock.broker.administration.clusters import Clusters
from penstock.broker.administration.copies import Copies
from penstock.broker.administration.delayed_admin import DelayedAdmin
from penstock.broker.administration.finder import Finder
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
from penstock.broker.elsewhere import NOWHERE
from penstock.broker.publishing.own_entries import OwnEntries
from penstock.broker.stats.backlog_analysis import BacklogAnalysis
from penstock.broker.stats.snapshot import Snapshots
from penstock.broker.stats.stats_partitioned import PartitionedStats
from penstock.broker.stats.topic_rows import TopicRows
from penstock.broker.stats.topic_stats import InternalStats, TopicStats
from penstock.broker.stats.why import Why
from penstock.stats.limit_holds import LimitHolds

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def administration(broker: Broker, *, for_peers: bool = False) -> Administration:
    """Build it; `for_peers`: for requests of other brokers, which concern this broker's topics alone."""
    elsewhere = NOWHERE if for_peers else broker.elsewhere.on_behalf()
    catalog, changes, reads = broker.catalog, broker.changes, broker.reads
    topics, resources, partitions, limits = broker.topics, broker.resources, broker.partitions, broker.limits_in_force
    placement = broker.placement
    finder = Finder(topics=topics, catalog=catalog, resources=resources, partitions=partitions, placement=placement)
    clusters = Clusters(
        catalog=catalog,
        changes=changes,
        limits=limits,
        addresses=broker.addresses,
        changed=broker.policies.refresh_clusters,
    )
    groups = ResourceGroups(
        catalog=catalog,
        changes=changes,
        policies=broker.policies,
        resources=resources,
        groups=broker.groups,
        clock=broker.clock,
    )
    namespaces = Namespaces(
        catalog=catalog,
        changes=changes,
        policies=broker.policies,
        topics=topics,
        resources=resources,
        partitions=partitions,
        life=broker.topic_life,
        clusters=clusters,
        limits=limits,
        check_group=groups.check_exists,
        placement=placement,
        elsewhere=elsewhere,
        deleting=broker.deleting,
    )
    stats = TopicStats(
        topics=topics,
        partitions=partitions,
        quotas=broker.quotas,
        message_rates=broker.message_rates,
        reads=reads,
        compaction=broker.compaction,
        clock=broker.clock,
        web_url=broker.addresses.web.plain,
    )
    internal_stats = InternalStats(stats=stats, quotas=broker.quotas, reads=reads, broker=placement.own)
    why = Why(
        topics=topics,
        transactions=broker.transactions,
        resources=resources,
        partitions=partitions.count,
        quotas=broker.quotas,
        limits=LimitHolds(
            broker.clock,
            lambda: broker.groups.in_use,
            broker.sharing,
            broker.connections.memory,
            lambda: broker.throttling.measured if broker.throttling is not None else None,
        ),
        clients=broker.sessions,
        clock=broker.clock,
        holds_of_all=broker.holds_of_all,
        listings=broker.listings,
        budget=broker.budget,
        elsewhere=elsewhere,
    )
    return Administration(
        access=broker.access,
        health=lambda: broker.health,
        service=Service(
            catalog=catalog,
            resources=resources,
            checks=broker.periodic_checks,
            limits=limits,
            health=lambda: broker.health,
            addresses=broker.addresses,
            membership=broker.membership,
            elsewhere=elsewhere,
            shut_down=broker.shut_down,
            loop=broker.loop,
        ),
        backup=BackupAdmin(log=broker.log, reads=reads, broker=placement.own, elsewhere=elsewhere),
        configuration=broker.configuration,
        quotas=ResourceQuotas(catalog=catalog, changes=changes, resources=resources),
        resource_groups=groups,
        clusters=clusters,
        migrations=Migrations(
            catalog=catalog,
            clusters=clusters,
            policies=broker.policies,
            migration=broker.migration,
            clock=broker.clock,
        ),
        tenants=Tenants(
            catalog=catalog,
            changes=changes,
            resources=resources,
            clusters=clusters,
            namespaces=namespaces,
            limits=limits,
            revoke=broker.revocation.disconnect_unauthorized,
        ),
        namespaces=namespaces,
        policies=PolicyAdmin(
            policies=broker.policies, topics=topics, partitions=partitions, clusters=clusters, limits=limits
        ),
        permissions=broker.permissions,
        topics=TopicAdmin(
            catalog=catalog,
            changes=changes,
            topics=topics,
            resources=resources,
            partitions=partitions,
            life=broker.topic_life,
            retention=broker.retention,
            compaction=broker.compaction,
            finder=finder,
            elsewhere=elsewhere,
            coordinators=placement.brokers if broker.limits.transactions else 0,
        ),
        subscriptions=SubscriptionAdmin(
            catalog=catalog,
            reads=reads,
            cursors=broker.cursors,
            store=broker.subscription_store,
            topics=topics,
            partitions=partitions,
            retention=broker.retention,
            compaction=broker.compaction,
            namespaces=namespaces,
            finder=finder,
            elsewhere=elsewhere,
        ),
        messages=MessageAdmin(reads=reads, quotas=broker.quotas, rates=broker.rates, finder=finder, limits=limits),
        sending=MessageSending(
            access=broker.access,
            topics=topics,
            partitions=partitions,
            quotas=broker.quotas,
            schemas=broker.schemas,
            rates=broker.rates,
            reads=reads,
            entries=OwnEntries(broker.log, broker.tail_cache, broker.loop),
            cursors=broker.cursors,
            finder=finder,
            placement=placement,
            elsewhere=broker.elsewhere.on_behalf(),
            check_writable=broker.check_writable,
            clock=broker.clock,
            redriving=broker.redriving,
        ),
        delayed=DelayedAdmin(
            changes=changes,
            reads=reads,
            cursors=broker.cursors,
            states=broker.states,
            clock=broker.clock,
            finder=finder,
        ),
        schemas=SchemaAdmin(registry=broker.schemas, policies=broker.policies, resources=resources),
        lookup=LookupAdmin(
            resources=resources,
            check_serving=broker.check_lookup,
            placement=broker.placement,
        ),
        listings=ListingAdmin(
            shared=broker.shared_listings,
            limiter=broker.listings,
            limits=lambda: broker.limits.listings,
            connections=broker.connections,
            clock=broker.clock,
            resources=resources,
        ),
        stats=stats,
        partitioned_stats=PartitionedStats(
            stats=stats,
            internal=internal_stats,
            catalog=catalog,
            topics=topics,
            partitions=partitions,
            placement=placement,
            elsewhere=elsewhere,
        ),
        internal_stats=internal_stats,
        backlogs=BacklogAnalysis(stats=stats, reads=reads),
        snapshots=Snapshots(
            cluster=broker.limits.cluster_name,
            started_at_ms=broker.started_at_ms,
            stopping=lambda: broker.stopping,
            health=lambda: broker.health,
            membership=broker.membership,
            topics=broker.topics,
            transactions=broker.transactions,
            lookups=broker.lookups,
            clients=broker.sessions,
            message_rates=broker.message_rates,
            connections=broker.connections,
            log=broker.log,
            listings=broker.shared_listings,
            budget=broker.budget,
            holds=why.counts,
            groups=broker.groups,
            sharing=broker.sharing,
            throttling=broker.throttling,
            recorder=broker.recorder,
            loop_turns=broker.loop_turns,
            publish_times=broker.publish_times,
            dispatch_waits=broker.dispatch_waits,
            clock=broker.clock,
            disk_space=broker.disk_space,
            replication=broker.replication,
            expiries=broker.expiries,
        ),
        topic_rows=TopicRows(broker.topics, catalog, broker.message_rates, broker.clock),
        transactions=TransactionAdmin(broker.transactions, broker.topics, finder, broker.clock, elsewhere),
        why=why,
    )


def copies(broker: Broker) -> Copies:
    """Build what copies topics of another cluster."""
    return Copies(
        admin=administration(broker),
        topics=broker.topics,
        partitions=broker.partitions,
        schemas=broker.schemas,
        reads=broker.reads,
        entries=OwnEntries(broker.log, broker.tail_cache, broker.loop),
    )
