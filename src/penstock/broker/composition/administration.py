# SPDX-License-Identifier: Apache-2.0
"""Builds administration and statistics, passing each part what it uses.

Why apart: imported by the first admin request, on the admin API's thread, so the start is faster.
Where: `app` passes it to the gateway of the admin API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.administration.administration import Administration
from penstock.broker.administration.clusters import Clusters
from penstock.broker.administration.delayed_admin import DelayedAdmin
from penstock.broker.administration.finder import Finder
from penstock.broker.administration.listing_admin import ListingAdmin
from penstock.broker.administration.lookup_admin import LookupAdmin
from penstock.broker.administration.message_admin import MessageAdmin
from penstock.broker.administration.namespaces import Namespaces
from penstock.broker.administration.policy_admin import PolicyAdmin
from penstock.broker.administration.resource_quotas import ResourceQuotas
from penstock.broker.administration.schema_admin import SchemaAdmin
from penstock.broker.administration.service import Service
from penstock.broker.administration.subscription_admin import SubscriptionAdmin
from penstock.broker.administration.tenants import Tenants
from penstock.broker.administration.topic_admin import TopicAdmin
from penstock.broker.stats.backlog_analysis import BacklogAnalysis
from penstock.broker.stats.snapshot import Snapshots
from penstock.broker.stats.stats import TopicStats
from penstock.broker.stats.stats_internal import InternalStats
from penstock.broker.stats.stats_partitioned import PartitionedStats

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


def administration(broker: Broker) -> Administration:
    catalog, changes, reads = broker.catalog, broker.changes, broker.reads
    topics, places, partitions, limits = broker.topics, broker.places, broker.partitions, broker.limits_in_force
    finder = Finder(topics=topics, catalog=catalog, places=places, partitions=partitions)
    clusters = Clusters(catalog=catalog, changes=changes, limits=limits, addresses=broker.addresses)
    namespaces = Namespaces(
        catalog=catalog,
        changes=changes,
        policies=broker.policies,
        topics=topics,
        places=places,
        partitions=partitions,
        life=broker.topic_life,
        clusters=clusters,
        limits=limits,
    )
    stats = TopicStats(
        topics=topics,
        partitions=partitions,
        quotas=broker.quotas,
        meters=broker.meters,
        reads=reads,
        compaction=broker.compaction,
        clock=broker.clock,
        web_url=broker.addresses.web.plain,
    )
    internal_stats = InternalStats(stats=stats, quotas=broker.quotas, reads=reads)
    return Administration(
        access=broker.access,
        health=lambda: broker.health,
        service=Service(
            catalog=catalog,
            places=places,
            rounds=broker.rounds,
            limits=limits,
            health=lambda: broker.health,
            addresses=broker.addresses,
            shut_down=broker.shut_down,
            loop=broker.loop,
        ),
        configuration=broker.configuration,
        quotas=ResourceQuotas(catalog=catalog, changes=changes, places=places),
        clusters=clusters,
        tenants=Tenants(
            catalog=catalog,
            changes=changes,
            places=places,
            clusters=clusters,
            namespaces=namespaces,
            limits=limits,
            revoke=broker.revocation.take_back,
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
            places=places,
            partitions=partitions,
            life=broker.topic_life,
            retention=broker.retention,
            compaction=broker.compaction,
            finder=finder,
        ),
        subscriptions=SubscriptionAdmin(
            catalog=catalog,
            changes=changes,
            reads=reads,
            cursors=broker.cursors,
            store=broker.subscription_store,
            topics=topics,
            partitions=partitions,
            retention=broker.retention,
            compaction=broker.compaction,
            namespaces=namespaces,
            finder=finder,
        ),
        messages=MessageAdmin(reads=reads, quotas=broker.quotas, finder=finder),
        delayed=DelayedAdmin(
            changes=changes,
            reads=reads,
            cursors=broker.cursors,
            states=broker.states,
            clock=broker.clock,
            finder=finder,
        ),
        schemas=SchemaAdmin(registry=broker.schemas, policies=broker.policies, places=places),
        lookup=LookupAdmin(
            places=places,
            check_serving=broker.check_lookup,
            addresses=broker.addresses,
        ),
        listings=ListingAdmin(
            shared=broker.shared_listings,
            limiter=broker.listings,
            limits=lambda: broker.limits.listings,
            connections=broker.connections,
            clock=broker.clock,
            places=places,
        ),
        stats=stats,
        partitioned_stats=PartitionedStats(
            stats=stats, internal=internal_stats, catalog=catalog, topics=topics, partitions=partitions
        ),
        internal_stats=internal_stats,
        backlogs=BacklogAnalysis(stats=stats, reads=reads),
        snapshots=Snapshots(
            cluster=broker.limits.cluster_name,
            started_at_ms=broker.started_at_ms,
            stopping=lambda: broker.stopping,
            health=lambda: broker.health,
            topics=broker.topics,
            lookups=broker.lookups,
            clients=broker.sessions,
            meters=broker.meters,
            connections=broker.connections,
            log=broker.log,
            listings=broker.shared_listings,
            tail_cache=broker.tail_cache,
            delayed_memory=lambda: broker.delays.memory,
            rows=(
                broker.commands_memory,
                broker.sessions_memory,
                broker.metadata_memory,
                broker.dispatch_memory,
                broker.http_memory,
            ),
            loop_turns=broker.loop_turns,
            clock=broker.clock,
        ),
    )
