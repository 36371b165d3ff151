# SPDX-License-Identifier: Apache-2.0
"""The broker: parts shared by all sessions, and periodic work.

Where: app builds it over the log, the catalog and the request memory; listeners pass connections to it.

Guarantees: a topic, subscription or acknowledgement that was answered is stored; moved cursors are stored in less than
a second (`CursorSaves`); if the disk fails, publishers get errors and `/healthz` reports it, while consumers continue.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final, cast

from penstock.broker.access import OPEN, AccessControl
from penstock.broker.changes import Changes
from penstock.broker.commands.sessions import Revocation, Sessions
from penstock.broker.configuration import Configuration, NoKeys
from penstock.broker.elsewhere import Elsewhere
from penstock.broker.followed import Followed
from penstock.broker.healing import Healing
from penstock.broker.health import Health
from penstock.broker.log_reads import LogReads
from penstock.broker.metadata_memory import MetadataMemory
from penstock.broker.periodic_checks import PeriodicChecks, periodic_checks
from penstock.broker.policies.permissions import Permissions
from penstock.broker.policies.policies import PolicyService
from penstock.broker.policies.policy_values import CLUSTERS
from penstock.broker.policies.quotas import Quotas
from penstock.broker.policies.retention import Retention
from penstock.broker.publishing.deduplication import Deduplication
from penstock.broker.publishing.publish import PublishServices
from penstock.broker.publishing.rates import Rates
from penstock.broker.publishing.resource_groups import Groups
from penstock.broker.records.recorder import Recorder, RecorderParts
from penstock.broker.renewals import STALLED_NS, Renewals
from penstock.broker.schemas.schema_registry import SchemaRegistry
from penstock.broker.stats.message_rates import MessageRates
from penstock.broker.subscriptions.acknowledging import CursorSaves
from penstock.broker.subscriptions.consumer import DispatchServices
from penstock.broker.subscriptions.cursor_memory import MemoryWaits
from penstock.broker.subscriptions.key_shared import LongKeys
from penstock.broker.subscriptions.tail import TailCache
from penstock.broker.topics.compaction import Compactor
from penstock.broker.topics.concurrency_limit import ConcurrencyLimit
from penstock.broker.topics.delayed import DelayedIndexes
from penstock.broker.topics.deleting import Deleting
from penstock.broker.topics.directory import TopicDirectory, TopicIndex, TopicLoader
from penstock.broker.topics.inactive import InactiveTopics
from penstock.broker.topics.migration import Migration
from penstock.broker.topics.namespaces import NamespaceResources, drop_unknown_ledgers, name_missing
from penstock.broker.topics.non_persistent import NonPersistentTopics
from penstock.broker.topics.partitioned import PartitionedTopics
from penstock.broker.topics.partitions import Partitions
from penstock.broker.topics.placement import Placement
from penstock.broker.topics.restoring import Restoring
from penstock.broker.topics.shared_listings import SharedListings
from penstock.broker.topics.subscription_store import SubscriptionStore
from penstock.broker.topics.topic import Topic, TopicServices
from penstock.broker.topics.topic_life import Deletions, TopicLife, disconnect_producers
from penstock.broker.topics.topic_states import TopicStates
from penstock.broker.topics.unfinished import Unfinished
from penstock.broker.transactions.coordinator import Coordinator
from penstock.broker.transactions.open_transactions import TransactionServices
from penstock.broker.transactions.others import OtherBrokers
from penstock.core.broker_states import BrokerState
from penstock.core.durations import DurationsByName
from penstock.core.errors import MetadataFailed, NoRoom, NotAllowed, ServiceNotReady, StorageReadOnly
from penstock.core.membership import alone
from penstock.core.service_urls import Addresses
from penstock.governance.delayed_memory import DelayedMemory
from penstock.governance.holds import Hold, HoldKind
from penstock.governance.memory_pool import CommandMemory
from penstock.groups.held_sends import HeldMemory
from penstock.net.listing_memory import TopicListMemoryLimiter
from penstock.net.loop_turns import LoopTurns
from penstock.stats.disk_space import DiskSpace
from penstock.stats.expiry import Expiries, of_contexts
from penstock.stats.process import MemorySensor, give_back

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.authentication.authenticator import Authenticator
    from penstock.broker.access import Access
    from penstock.broker.configuration import Keys
    from penstock.broker.elsewhere import Requests
    from penstock.broker.limits import BrokerLimits, LimitsInForce
    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic
    from penstock.broker.publishing.quota_sharing import QuotaSharing
    from penstock.broker.records.usage_counts import CountedTopic
    from penstock.broker.replication.replication import Replication
    from penstock.core.clock import Clock
    from penstock.core.membership import Membership, Registry
    from penstock.core.names import TopicName
    from penstock.governance.budget import Budget
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from penstock.net.listener import Connections
    from penstock.net.usage_topic import Reporting
    from penstock.stats.disk_space import DiskUse
    from penstock.stats.expiry import Expiry
    from penstock.storage.catalog import Catalog, TopicRecord
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.snapshots import Snapshots

log = logging.getLogger(__name__)

# Interval of the tick: evictions, keep-alives, stalls.
TICK_S: Final = 0.25

# Who is refused if this fails.
_FAILS: Final = {
    HoldKind.LOG_READ_ONLY: "whoever publishes to persistent topics of this broker",
    HoldKind.CATALOG: "whoever makes or changes topics, subscriptions or policies at this broker",
    HoldKind.DISK_FULL: "whoever publishes to persistent topics of this broker",
}


class Broker:
    """One broker process."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        connections: Connections,
        limits: LimitsInForce,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        keys: Keys | None = None,
        apply_elsewhere: Callable[[Keys], None] = lambda _keys: None,
        authenticator: Authenticator | None = None,
        snapshots: Snapshots | None = None,
        addresses: Addresses | None = None,
        membership: Membership | None = None,
        peers: Requests | None = None,
        reporting: Reporting | None = None,
        registry: Registry | None = None,
        budget: Budget,
        loop_turns: LoopTurns | None = None,
        shut_down: Callable[[], None] | None = None,
        start_again: Callable[[], None] | None = None,
        disk_use: Callable[[], DiskUse] | None = None,
        certificates: Callable[[], Iterable[tuple[str, ssl.SSLContext | None]]] | None = None,
        dispatch_soon: Callable[[Callable[[], object]], object] | None = None,
        remote_defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Build the parts.

        Args:
            entry_log: stores entries.
            catalog: stores metadata.
            connections: all client connections.
            limits: the current limits, which configuration changes replace.
            clock: wall clock and monotonic clock.
            loop: the event loop of everything here.
            keys: all settings, for dynamic configuration; None: nothing can be changed.
            apply_elsewhere: applies changed settings outside the broker.
            authenticator: authenticates clients; None: no authentication.
            snapshots: stores snapshots of delayed messages; None: they are not stored.
            addresses: the broker's service URLs.
            membership: the brokers of the cluster; None: this one alone.
            peers: requests to the other brokers; None: nobody may be asked.
            reporting: usage reports to the other brokers; None: quotas are not shared.
            registry: where those register that share quotas, beside `membership`; None: nowhere.
            budget: to which the broker adds its rows.
            loop_turns: measures turns of the loop, if any.
            shut_down: ends the process; None: administrators cannot.
            start_again: ends the process and starts it again; None: after a final failure of the disk, a person does.
            disk_use: measures the disk, and may block; None: nobody does.
            certificates: those of the ports, by what they are for; None: nobody asks when they expire.
            dispatch_soon: makes the call of a dispatch soon, on the loop; None: in the next turn.
            remote_defaults: what other clusters are shown if their data says nothing, by its names there.
        """
        self.log = entry_log
        self.catalog = catalog
        self.connections = connections
        self.limits_in_force = limits
        self.clock = clock
        self.loop = loop
        self._remote_defaults = remote_defaults or {}
        self.changes = Changes(loop)
        self.reads = LogReads(entry_log, loop)
        self.disk_space = DiskSpace(disk_use, self.reads.in_thread) if disk_use is not None else None
        self._certificates = certificates
        self.expiries = Expiries(self._expiring, self.reads.in_thread) if certificates is not None else None
        self.access: Access = (
            OPEN if authenticator is None else AccessControl(authenticator, lambda: limits.now.access, catalog, clock)
        )
        self.sessions = Sessions()
        self.revocation = Revocation(self.access, self.sessions)
        self.addresses = addresses or Addresses()
        self.membership = membership or alone()
        self.registry = registry
        self.elsewhere = Elsewhere(self.membership, peers, partial(self.changes.stored, catalog.catch_up))
        self._apply_elsewhere = apply_elsewhere
        self.configuration = Configuration(catalog, self.changes, keys or NoKeys(limits.now), self._put_in_force)
        self.shut_down = shut_down
        self.loop_turns = loop_turns or LoopTurns()
        self.publish_times = DurationsByName()
        self.dispatch_waits = DurationsByName()
        self.stopping = False
        self.redriving: set[str] = set()  # dead letter topics, while somebody sends their messages once more
        self.started_at_ms = clock.wall_ms()
        # Generates producer names that are unique in the cluster.
        own = f"-{self.membership.own}" if len(self.membership.members) > 1 else ""  # they may start in the same ms
        instance = f"{limits.now.cluster_name}-{self.started_at_ms}{own}"
        self.producer_names = (f"{instance}-{number}" for number in count(1))
        self.budget = budget
        budget.add(connections.memory)
        budget.add(connections.outbound)
        self.commands_memory = budget.add(CommandMemory(budget.limit_bytes("commands")))
        self.sessions_memory = budget.row("sessions")
        self.dispatch_memory = budget.row("dispatch")
        self._make_namespaces()
        self._make_policies()
        self._make_services(snapshots, dispatch_soon or loop.call_soon)
        self._make_topics()
        self._make_housekeeping()
        self.sharing = self._sharing(reporting) if reporting is not None else None
        self.groups.sharing = self.sharing
        self._replication: Replication | None = None
        self._loader.prepare = self._prepare_replication
        self.migration = Migration(
            catalog=catalog,
            cluster=limits.now.cluster_name,
            loaded=self.index.loaded,
            reads=self.reads,
            changes=self.changes,
            clock=clock,
        )
        self.policies.namespace_changed = self.migration.namespace_changed
        self.transactions = self._coordinator()
        self.recorder = self._recorder()
        self._loader.counts = self.recorder.usage
        self.throttling = self._throttling() if limits.now.adaptive_throttling else None
        if self.recorder.decisions is not None:
            self.budget.add(self.recorder.decisions.memory)
        if self.throttling is not None and self.recorder.decisions is not None:
            self.throttling.observer = self.recorder.decisions.throttled
        self.followed = Followed(
            catalog=catalog,
            changes=self.changes,
            index=self.index,
            placement=self.placement,
            policies=self.policies,
            schemas=self.schemas,
            configuration=self.configuration,
            revocation=self.revocation,
        )
        if self.non_persistent is not None:
            self.non_persistent.forget_last_run()
        self.unfinished.start()
        if (replication := self.replication()) is not None:
            self.changes.finish(replication.load_all())
        drop_unknown_ledgers(catalog, entry_log)
        name_missing(catalog, entry_log)
        self._healing = self._heals_by(start_again) if start_again is not None else None
        self.renewals = Renewals(self.membership, self._own_state)
        self._failed_ns: dict[HoldKind, int] = {}  # since when, by what fails
        self.log.when_room_ends(self.sessions.disconnect_producers)
        self._tick_timer = loop.call_later(TICK_S, self._tick)

    def _make_namespaces(self) -> None:
        catalog = self.catalog
        clock, loop, limits = self.clock, self.loop, self.limits_in_force
        self.deletions = Deletions(catalog, self.changes, self.membership)
        self.resources = NamespaceResources(catalog, lambda: limits.now.namespace_bundles)
        self.partitioned = PartitionedTopics(catalog, self.resources)
        several = len(self.membership.members) > 1
        self.non_persistent = NonPersistentTopics(catalog, self.changes, own=self.membership.own) if several else None
        self.index = TopicIndex(catalog, self.non_persistent)
        self.placement = Placement(
            self.membership, self.addresses, record=catalog.topic, records=catalog.topics(), clock=clock
        )
        self.states = TopicStates(catalog, self.changes)
        # Limits concurrent lookup requests.
        self.lookups = ConcurrencyLimit(lambda: limits.now.lookups_max)
        # Limits the memory of topic listings (PIP-442).
        self.listings = TopicListMemoryLimiter(limits.now.listings, clock=clock, loop=loop)
        for row in self.listings.rows():
            self.budget.add(row)
        self.shared_listings = SharedListings(
            self.index.names, self.index.feed, self.listings, clock=clock, loop=loop, chance=Random()
        )

    def _make_policies(self) -> None:
        entry_log, catalog = self.log, self.catalog
        clock, loop, limits = self.clock, self.loop, self.limits_in_force
        self.groups = Groups(catalog, clock, loop, lambda: limits.now.policies)
        self.rates = Rates(clock, loop, lambda: limits.now.policies, self.groups)
        self.metadata_memory = self.budget.add(MetadataMemory(catalog, self.budget.limit_bytes("metadata")))
        self.deduplication = Deduplication(
            catalog=catalog,
            changes=self.changes,
            reads=self.reads,
            memory=self.metadata_memory,
            clock=clock,
            loop=loop,
            limits=limits,
        )
        self.cursors = CursorSaves(catalog, entry_log, loop)
        self.subscription_store = SubscriptionStore(
            catalog=catalog,
            changes=self.changes,
            memory=self.metadata_memory,
        )
        self.policies: PolicyService = PolicyService(
            catalog=catalog,
            changes=self.changes,
            loop=loop,
            cluster=limits.now.cluster_name,
            defaults=lambda: limits.now.policies,
            exists=self.index.exists,
            loaded=self.index.loaded,
            refresh_rates=self.rates.refresh,
            revoke=self.revocation.disconnect_unauthorized,
        )
        self.permissions = Permissions(
            catalog=catalog, policies=self.policies, check_namespace=self.resources.check_namespace
        )
        self.retention = Retention[Topic](
            catalog=catalog,
            changes=self.changes,
            reads=self.reads,
            clock=clock,
            trim_log=entry_log.trim,
            replay_from=self.deduplication.replay_from,
            save_cursors=self._save_cursors,
            delete_subscription=self._delete_subscription,
        )
        self.quotas = Quotas[Topic](
            defaults=lambda: limits.now.policies,
            reads=self.reads,
            retention=self.retention,
            clock=clock,
            disconnect_producers=partial(disconnect_producers, reads=self.reads),
        )
        self.schemas = SchemaRegistry(
            catalog=catalog,
            changes=self.changes,
            clock=clock,
            memory=self.metadata_memory,
            bytes_max=lambda: limits.now.schema_bytes_max,
        )

    def _make_services(
        self, snapshots: Snapshots | None, dispatch_soon: Callable[[Callable[[], object]], object]
    ) -> None:
        entry_log, catalog = self.log, self.catalog
        clock, loop, limits, connections = self.clock, self.loop, self.limits_in_force, self.connections
        self.tail_cache = self.budget.add(TailCache(self.budget.limit_bytes("tail-cache")))
        self.publish_services = PublishServices(
            entry_log,
            self.tail_cache,
            release=connections.release,
            recorded=self.deduplication.recorded,
            name_comes=self.deduplication.make_room,
            held=HeldMemory(connections.memory, clock),
            # The coordinator is made later.
            refused_in_transaction=lambda *about: self.transactions.refusal(*about),  # noqa: PLW0108
            sent_in_transaction=lambda *about: self.transactions.sent(*about),  # noqa: PLW0108
            marked=self._marked,
            turn=self.loop_turns,
        )
        self.long_keys = LongKeys(loop)
        self.memory_waits = MemoryWaits(loop)
        self.dispatch_services = DispatchServices(
            clock=clock,
            loop=loop,
            dispatch_soon=dispatch_soon,
            limits=lambda: self.limits,
            log=entry_log,
            reads=self.reads,
            outlets=connections,
            memory=self.dispatch_memory,
            memory_waits=self.memory_waits,
            long_keys=self.long_keys,
            cursors=self.cursors,
            properties=self._subscription_properties,
            turn=self.loop_turns,
        )
        self.delayed_indexes = DelayedIndexes(
            entry_log=entry_log,
            catalog=catalog,
            changes=self.changes,
            reads=self.reads,
            clock=clock,
            loop=loop,
            limits=limits,
            stopping=lambda: self.stopping,
            snapshots=snapshots,
            memory=self.budget.add(DelayedMemory(self.budget.limit_bytes("delayed-index"))),
        )

    def _make_topics(self) -> None:
        """Make the parts that load, create, change and delete topics."""
        entry_log, catalog = self.log, self.catalog
        clock, loop, limits = self.clock, self.loop, self.limits_in_force
        topic_services = TopicServices(
            clock=clock,
            changes=self.changes,
            states=self.states,
            rates=self.rates,
            deduplication=self.deduplication,
            delayed_indexes=self.delayed_indexes,
            store=self.subscription_store,
            tail_cache=self.tail_cache,
            dispatch=self.dispatch_services,
            policies_of=self.policies.of_topic,
            publish_times=self.publish_times,
            dispatch_waits=self.dispatch_waits,
            replication_changed=self._replication_changed,
            reports_topic=limits.now.resource_usage_publish_topic_name,
            message_bytes_max=limits.now.message_bytes_max,
        )
        loader = TopicLoader(
            entry_log=entry_log,
            catalog=catalog,
            changes=self.changes,
            clock=clock,
            states=self.states,
            delayed_indexes=self.delayed_indexes,
            deduplication=self.deduplication,
            rates=self.rates,
            make_topic=partial(Topic, topic_services),
            own=self.membership.own,
            created=self._topic_created,
            restoring=Restoring(catalog.transactions, self.changes, self.reads),
            non_persistent=self.non_persistent,
        )
        self._loader = loader
        self.topics = TopicDirectory(
            self.index,
            loader,
            resources=self.resources,
            partitioned=self.partitioned,
            placement=self.placement,
            policies_of=self.policies.of_namespace,
            limits=limits,
        )
        self.compaction = Compactor(
            entry_log=entry_log,
            catalog=catalog,
            changes=self.changes,
            reads=self.reads,
            states=self.states,
            clock=clock,
            loop=loop,
            locked=self.topics.locked,
            stopping=lambda: self.stopping,
        )
        self.topic_life = TopicLife(
            entry_log=entry_log,
            catalog=catalog,
            changes=self.changes,
            reads=self.reads,
            topics=self.topics,
            states=self.states,
            cursors=self.cursors,
            delayed_indexes=self.delayed_indexes,
            compaction=self.compaction,
            retention=self.retention,
            placement=self.placement,
            elsewhere=self.elsewhere,
            forget=self._forget_topic,
        )
        self.partitions = Partitions(
            catalog=catalog,
            changes=self.changes,
            resources=self.resources,
            topics=self.topics,
            life=self.topic_life,
            placement=self.placement,
            elsewhere=self.elsewhere,
            deletions=self.deletions,
            policies_of=self.policies.of_namespace,
            partitions_max=lambda: limits.now.partitions_max,
        )
        self.deleting = Deleting(
            catalog=catalog,
            changes=self.changes,
            topics=self.topics,
            resources=self.resources,
            partitions=self.partitions,
            life=self.topic_life,
            deletions=self.deletions,
            refresh_namespace=self.policies.refresh_namespace,
        )
        self.unfinished = Unfinished(
            changes=self.changes, deleting=self.deleting, partitions=self.partitions, membership=self.membership
        )

    def _make_housekeeping(self) -> None:
        clock, loop, limits = self.clock, self.loop, self.limits_in_force
        self.message_rates = MessageRates(self.topics.loaded, clock=clock, loop=loop)
        self.inactive = InactiveTopics(
            topics=self.topics,
            life=self.topic_life,
            partitions=self.partitions,
            policies=self.policies,
            changes=self.changes,
            limits=limits,
            stopping=lambda: self.stopping,
            now_ns=clock.monotonic_ns(),
        )
        self.periodic_checks = PeriodicChecks(
            periodic_checks(
                limits,
                retention=self.retention,
                quotas=self.quotas,
                deduplication=self.deduplication,
                compaction=self.compaction,
            ),
            topics=self.topics.loaded,
            changes=self.changes,
            stopping=lambda: self.stopping,
            now_ns=clock.monotonic_ns(),
        )

    def _coordinator(self) -> Coordinator:
        return Coordinator(
            TransactionServices(
                catalog=self.catalog,
                changes=self.changes,
                topics=self.topics,
                others=OtherBrokers(self.catalog, self.changes, self.membership, self.elsewhere),
                memory=self.dispatch_memory,
                limits=lambda: self.limits,
                clock=self.clock,
            )
        )

    def _recorder(self) -> Recorder:
        return Recorder(
            RecorderParts(
                entry_log=self.log,
                catalog=self.catalog,
                changes=self.changes,
                reads=self.reads,
                topics=self.topics,
                partitions=self.partitions,
                placement=self.placement,
                membership=self.membership,
                schemas=self.schemas,
                groups=self.groups,
                connections=self.connections,
                listings=self.listings,
                refused=self.sessions.take_refused,
                tail_cache=self.tail_cache,
                trim_soon=self._trim_soon,
                limits=self.limits_in_force,
                clock=self.clock,
                loop=self.loop,
            )
        )

    def _sharing(self, reporting: Reporting) -> QuotaSharing:
        from penstock.broker.publishing.quota_sharing import (  # noqa: PLC0415 -- a single broker needs none of it
            QuotaSharing,
            sharing_options,
        )

        return QuotaSharing(
            self.groups,
            reporting,
            membership=self.membership,
            registry=self.registry,
            owner=self.placement.owner,
            options=lambda: sharing_options(self.limits),
            catalog=self.catalog,
            changes=self.changes,
            clock=self.clock,
            loop=self.loop,
        )

    # -- replication --------------------------------------------------------------------------------------------------

    def replication(self) -> Replication | None:
        """Return what replicates topics to other clusters; None while no other cluster is named."""
        if self._replication is None and self.catalog.documents(CLUSTERS).keys() - {self.limits.cluster_name}:
            from penstock.broker.replication.replication import (  # noqa: PLC0415 -- most brokers need none of it
                Replication,
                ReplicationParts,
            )

            parts = ReplicationParts(
                catalog=self.catalog,
                changes=self.changes,
                topics=self.topics,
                store=self.subscription_store,
                schemas=self.schemas,
                partitions=self.partitioned.count,
                connections=self.connections,
                in_thread=self.reads.in_thread,
                limits=lambda: self.limits,
                clock=self.clock,
                remote_defaults=self._remote_defaults,
            )
            self._replication = Replication(parts, Random())
        return self._replication

    async def _prepare_replication(self, topic: Topic) -> None:
        if (replication := self.replication()) is not None:
            await replication.prepare(topic)
        self.migration.topic_changed(topic)

    def _replication_changed(self, topic: Topic) -> None:
        if (replication := self.replication()) is not None:
            replication.changed(topic)
        self.migration.topic_changed(topic)

    def _marked(self, topic: PublishedTopic, marker: bytes, session: ProducerClient) -> None:
        if (replication := self.replication()) is not None:
            replication.marked(topic, marker, session)

    def _throttling(self) -> AdaptiveThrottling[PublishedTopic]:
        # Off by default: then none of it is loaded.
        from penstock.broker.publishing.backlog_sizes import BacklogSizes, DiskDelay  # noqa: PLC0415
        from penstock.groups.adaptive_throttling import AdaptiveThrottling  # noqa: PLC0415

        throttling = AdaptiveThrottling(
            limits=lambda: self.limits,
            topics=self.topics.loaded,
            changed=self.rates.adaptive_changed,
            backlogs=BacklogSizes(lambda topic: self.quotas.backlog_bytes(cast("Topic", topic)), self.changes.finish),
            memory=MemorySensor(self.limits.memory_limit_bytes, self.budget.used_bytes),
            disk_delay=DiskDelay(self.reads, self.clock),
            give_back=lambda: self.reads.in_thread(give_back),
            row=self.sessions_memory,
            clock=self.clock,
            loop=self.loop,
        )
        self.rates.throttling = throttling
        return throttling

    # -- callbacks between parts --------------------------------------------------------------------------------------

    def _topic_created(self, record: TopicRecord) -> None:
        """Add a stored topic to the index, if another broker serves it; own topics are listed when they are loaded."""
        self.placement.created(record)
        if record.broker != self.membership.own:
            self.index.add_name(record.name)

    async def _forget_topic(self, name: TopicName) -> None:
        """Remove schemas and permissions of a deleted topic, and what else only its name would bring back."""
        self.rates.topic_deleted(str(name))
        await self.schemas.forget(name)
        await self.permissions.forget_topic(name)

    def _trim_soon(self, counted: CountedTopic) -> None:
        topic = self.topics.get(counted.text)
        if topic is not None and topic.retained_from() > topic.first_entry_id:
            for subscription in topic.subscriptions.values():
                self.cursors.moved(subscription)  # A save trims.

    async def _save_cursors(self, topic: Topic) -> None:
        await self.cursors.save(*topic.subscriptions.values())

    async def _delete_subscription(self, topic: Topic, name: str) -> None:
        await self.subscription_store.delete(topic.subscriptions[name])

    def _subscription_properties(self, topic: str, name: str) -> Mapping[str, str]:
        record = self.catalog.subscription(topic, name)
        return record.properties if record is not None else {}

    @property
    def limits(self) -> BrokerLimits:
        return self.limits_in_force.now

    def _put_in_force(self, keys: Keys) -> None:
        """Apply changed limits to the parts that do not read them each time."""
        before, now = self.limits, keys.limits
        self.limits_in_force.now = now
        if before.access != now.access:
            self.changes.finish(self.revocation.disconnect_unauthorized())
        self.tail_cache.limit_bytes = now.memory_rows["tail-cache"]
        self.listings.set_limits(now.listings)
        self.policies.refresh()
        if self.throttling is not None:
            self.throttling.options_changed()
        self._apply_elsewhere(keys)

    # -- checks -------------------------------------------------------------------------------------------------------

    @property
    def health(self) -> Health:
        if self.stopping:
            return Health(ok=False, reason="stopping")
        for reason in self._failures().values():
            return Health(ok=False, reason=reason)
        if self.log.health.stalled:
            return Health(ok=False, reason="the disk holds a write for too long")
        problems = (
            *self.log.problems(),
            *self.renewals.problems(self.clock.monotonic_ns()),
            *self._not_registered(),
            *self.configuration.problems(),
        )
        notes = self.expiries.notes(self.clock.wall_ms()) if self.expiries is not None else ()
        return Health(ok=True, reason="ok", problems=problems, notes=tuple(notes))

    def holds_of_all(self) -> Iterator[Hold]:
        """Yield the holds of everybody."""
        for kind, reason in self._failures().items():
            yield Hold(kind=kind, what=_FAILS[kind], of=reason, since_ns=self._failed_ns.get(kind))

    def _failures(self) -> dict[HoldKind, str]:
        """Return the failures of the disk now, with their reasons."""
        health = self.log.health
        reasons = {
            HoldKind.LOG_READ_ONLY: health.read_only,
            HoldKind.CATALOG: self.catalog.failed,
            HoldKind.DISK_FULL: health.no_room,
        }
        return {kind: reason for kind, reason in reasons.items() if reason is not None}

    def _own_state(self) -> BrokerState:
        if self.stopping:
            return BrokerState.DRAINING
        failing = self._failures()
        if failing:
            return BrokerState.FULL if failing.keys() == {HoldKind.DISK_FULL} else BrokerState.READ_ONLY
        return BrokerState.SUSPECT if self.log.commit_ns > STALLED_NS else BrokerState.READY

    def _expiring(self) -> Iterator[Expiry]:
        """Yield when certificates and tokens expire. Called in a thread: files are read."""
        if self._certificates is not None:
            yield from of_contexts(self._certificates())
        if self._replication is not None:
            yield from self._replication.expiries()

    def _not_registered(self) -> list[str]:
        problem = self.registry.registration.problem if self.registry is not None else None
        return [problem] if problem is not None else []

    def check_lookup(self, name: TopicName) -> None:
        """Raises ServiceNotReady while the broker stops."""
        if self.stopping:
            raise ServiceNotReady(f"broker is stopping; look {name} up again")

    def check_writable(self, name: TopicName) -> None:
        """Raises NotAllowed if a topic is read-only, StorageReadOnly or NoRoom if publishing is impossible."""
        read_only = self.limits.read_only_topics
        if read_only and not {str(name), str(name.parent), str(name.namespace_name)}.isdisjoint(read_only):
            raise NotAllowed(f"{name} is read-only at this broker (readOnlyTopics): publish where it comes from")
        health = self.log.health
        if health.read_only is not None:
            raise StorageReadOnly(health.read_only)
        if health.no_room is not None:
            raise NoRoom(health.no_room)

    def _heals_by(self, start_again: Callable[[], None]) -> Healing:
        def failed() -> str | None:
            health = self.log.health
            return health.read_only if health.heals else self.catalog.failed_here

        return Healing(
            failed=failed,
            probe=self.log.probe,
            in_thread=self.reads.in_thread,
            start_again=start_again,
            now_ns=self.clock.monotonic_ns(),
        )

    # -- the tick -----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._tick_timer = self.loop.call_later(TICK_S, self._tick)
        now_ns = self.clock.monotonic_ns()
        self.renewals.tick(now_ns)
        self.sessions.check_alive(now_ns)
        self.connections.evict_slow()
        log_health = self.log.health
        # Without room, clients are read: what they acknowledge makes room, and they have no producers.
        self.sessions.mute_publishers(stalled=log_health.stalled and log_health.no_room is None)
        self._failed_ns = {kind: self._failed_ns.get(kind, now_ns) for kind in self._failures()}
        if log_health.no_room is not None:
            self.sessions.disconnect_producers()
        self.reads.try_unreadable(now_ns)
        self.message_rates.tick(now_ns)
        self.inactive.tick(now_ns)
        self.unfinished.tick(now_ns)
        self.transactions.tick(now_ns)
        self.delayed_indexes.tick(now_ns)
        self.periodic_checks.tick(now_ns)
        self.recorder.tick(now_ns)
        if self.disk_space is not None:
            self.disk_space.tick(now_ns)
        if self.expiries is not None:
            self.expiries.tick(now_ns)
        if self._healing is not None:
            self._healing.tick(now_ns)

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Disconnect clients, complete accepted messages, store cursors, close."""
        self.stopping = True
        self.listings.close()
        self._tick_timer.cancel()
        self.unfinished.stop()
        self.renewals.renew(self.clock.monotonic_ns())  # The last time: it drains from now on.
        if self.throttling is not None:
            self.throttling.stop()
        if self.sharing is not None:
            await self.sharing.stop()
        self.message_rates.stop()
        self.compaction.stop()
        await self.transactions.stop()
        await self.changes.finished()
        if self._replication is not None:
            await self._replication.stop()
        self.sessions.disconnect_members()
        await self.reads.settled()
        await self.recorder.stop()
        # The failure was logged; acknowledgements that were not stored are lost, and messages redelivered.
        with contextlib.suppress(MetadataFailed):
            await self.cursors.save_moved()
        await self.delayed_indexes.stop(self.topics.loaded())
        self.sessions.close("broker is stopping")
        self.access.close()
        self.reads.close()
        self.compaction.close()
