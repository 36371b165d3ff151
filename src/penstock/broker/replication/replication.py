# SPDX-License-Identifier: Apache-2.0
"""Decides which topics of this broker are replicated to which clusters, and makes and ends their replicators.

Where: topics say when they are loaded, before anybody uses them, and when their policies change; administration says
when a cluster changes. Nothing of it exists until an administrator has named another cluster.

A cursor `pulsar.repl.CLUSTER` begins behind the last message, as in Apache Pulsar, unless an administrator has created
it before, or `replicationStartAt` is `earliest`. It is deleted when the topic is not replicated there any more. Topics
with such a cursor are loaded when the broker starts: what they have not sent must not wait for a client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from penstock.broker.access import Action
from penstock.broker.policies.policy_values import CLUSTERS
from penstock.broker.replication.remote import Remote
from penstock.broker.replication.replicator import Replicator, ReplicatorServices, Turns
from penstock.broker.replication.snapshots import SnapshotServices, TopicSnapshots
from penstock.broker.subscriptions.replicating import with_replicated
from penstock.core.errors import AuthorizationFailed, PenstockError
from penstock.core.names import REPLICATOR_PREFIX, TopicName, is_brokers_own
from penstock.governance.replication_window import ReplicationWindow
from penstock.wire.errors import ProtocolError
from penstock.wire.markers import Request, Response, Update, decode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping
    from random import Random

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.publishing.ports import ProducerClient, PublishedTopic
    from penstock.broker.schemas.schema_registry import SchemaRegistry
    from penstock.broker.subscriptions.replicating import SubscribedReplicator
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.subscription_store import SubscriptionStore
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.net.listener import Connections
    from penstock.stats.expiry import Expiry
    from penstock.storage.catalog import Catalog

log = logging.getLogger(__name__)

# Subscriptions that other clusters have and that are made here at a time; the other cluster names the rest again.
MADE_AT_ONCE: Final = 32

# The property of a cursor that this broker has made: it goes when its cluster is not named any more.
MADE: Final = {"replicator": "penstock"}
EARLIEST: Final = "earliest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationParts:
    """Parts of the broker that replication uses."""

    catalog: Catalog
    changes: Changes
    topics: TopicDirectory
    store: SubscriptionStore
    schemas: SchemaRegistry
    partitions: Callable[[TopicName], int]
    connections: Connections
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    limits: Callable[[], BrokerLimits]
    clock: Clock
    remote_defaults: Mapping[str, Any]


class Replication:
    """All replicators of a broker. All methods are called on the event loop."""

    def __init__(self, parts: ReplicationParts, chance: Random) -> None:
        """Receive what this uses. Args: chance: of pauses."""
        self._parts = parts
        self._catalog = parts.catalog
        self._topics = parts.topics
        self._chance = chance
        self._remotes: dict[str, Remote] = {}
        self._window = ReplicationWindow[Replicator](parts.connections.outbound)
        self._granting = False
        self._stopping = False
        self._services = ReplicatorServices(
            cluster=parts.limits().cluster_name,
            window=self._window,
            granted=self._grant_soon,
            schemas=parts.schemas,
            partitions=parts.partitions,
            clock=parts.clock,
            chance=chance,
            turns=Turns(),
        )
        self._made: set[tuple[str, str]] = set()  # subscriptions that are being made, with their topics
        self.snapshots = SnapshotServices(
            cluster=self._services.cluster, limits=parts.limits, clock=parts.clock, chance=chance
        )

    # -- topics -------------------------------------------------------------------------------------------------------

    async def prepare(self, topic: Topic) -> None:
        """Make the cursors of a topic that is being loaded: what is published from now on is replicated.

        Raises MetadataFailed.
        """
        await self._make_cursors(topic)
        for name, subscription in list(topic.subscriptions.items()):
            if _cluster_of(name) not in {None, *self.wanted(topic)} and subscription.properties == MADE:
                await self._parts.store.delete(subscription)
        self._start(topic)
        self._follow(topic)

    def changed(self, topic: Topic) -> None:
        """The policies of a topic may have changed, or the data of clusters."""
        running = {one.replicator.cluster for one in topic.subscriptions.values() if self._is_current(one.replicator)}
        if topic.fenced or topic.closed or self._stopping:
            return
        if running != set(self.wanted(topic)):
            self._parts.changes.finish(self._adapt(topic))
        else:
            self._follow(topic)

    def _is_current(self, replicator: SubscribedReplicator | None) -> TypeGuard[Replicator]:
        """Whether this is a replicator that uses what is set now about its cluster."""
        known = self._catalog.documents(CLUSTERS)
        return isinstance(replicator, Replicator) and known.get(replicator.cluster) == replicator.remote.data

    def wanted(self, topic: Topic) -> list[str]:
        """Return the other clusters that a topic is replicated to."""
        clusters, own = topic.policies.replication_clusters, self._services.cluster
        if own not in clusters or not topic.persistent or topic.system:
            return []
        known = self._catalog.documents(CLUSTERS)
        return [cluster for cluster in clusters if cluster != own and cluster in known]

    async def _adapt(self, topic: Topic) -> None:
        async with self._topics.locked(topic.name) as current:
            if current is not topic or topic.fenced or topic.closed:
                return
            wanted = self.wanted(topic)
            for subscription in list(topic.subscriptions.values()):
                replicator = subscription.replicator
                if replicator is None or (replicator.cluster in wanted and self._is_current(replicator)):
                    continue
                replicator.end()
                if replicator.cluster not in wanted:
                    log.info("%s is not replicated to cluster %s any more", topic.text, replicator.cluster)
                    with contextlib.suppress(PenstockError):
                        await self._parts.store.delete(subscription)
            await self._make_cursors(topic)
            self._start(topic)
            self._follow(topic)

    async def _make_cursors(self, topic: Topic) -> None:
        for cluster in self.wanted(topic):
            name = f"{REPLICATOR_PREFIX}{cluster}"
            if name not in topic.subscriptions:
                earliest = self._parts.limits().replication_start_at == EARLIEST
                start = topic.first_entry_id if earliest else topic.next_entry_id
                await topic.open_subscription(name, durable=True, start=start, properties=MADE)

    def _start(self, topic: Topic) -> None:
        for cluster in self.wanted(topic):
            subscription = topic.subscriptions.get(f"{REPLICATOR_PREFIX}{cluster}")
            if subscription is not None and subscription.replicator is None:
                Replicator(subscription, self._remote(cluster), self._services).attach()

    async def load_all(self) -> None:
        """Load topics of this broker that may have something to send, one after another."""
        names = [record.name for record in self._catalog.topics() if self._catalog.is_own(record)]
        for number, name in enumerate(names):
            if any(one.name.startswith(REPLICATOR_PREFIX) for one in self._catalog.subscriptions(name)):
                with contextlib.suppress(PenstockError):
                    await self._topics.load(TopicName.parse(name))
            if number % 100 == 0:
                await asyncio.sleep(0)
            if self._stopping:
                return

    # -- replicated subscriptions -------------------------------------------------------------------------------------

    def _follow(self, topic: Topic) -> None:
        """Take snapshots of a topic while it is replicated and has subscriptions that ask for it."""
        replicators = _replicators_of(topic)
        if not replicators:
            return
        wanted = any(one.replicated for one in topic.subscriptions.values())
        before = {one.snapshots for one in replicators}
        same = before.pop() if wanted and len(before) == 1 else None
        if isinstance(same, TopicSnapshots):
            same.subscriptions_changed()
            return
        for other in before:
            if other is not None:
                other.close()
        if wanted:
            TopicSnapshots(topic, replicators, self.snapshots)

    def marked(self, published: PublishedTopic, entry: bytes, session: ProducerClient) -> None:
        """Handle a marker of another cluster. Those of clusters that the topic is not replicated to are ignored.

        Markers move subscriptions, here or there. So who sends them must be allowed to consume: a producer's name, and
        what a marker says of its cluster, prove nothing.
        """
        topic = self._topics.get(published.text)
        if topic is None or topic.closed or not self._parts.limits().replicated_subscriptions:
            return
        try:
            decoded = decode(entry)
        except ProtocolError as error:
            log.debug("%s: a marker is ignored: %s", topic.text, error)
            return
        if decoded is None:
            return
        cluster, marker = decoded
        replicator = next((one for one in _replicators_of(topic) if one.cluster == cluster), None)
        if replicator is None:
            return
        try:
            about = marker.subscription if isinstance(marker, Update) else None
            session.require(Action.CONSUME, topic.name, subscription=about)
        except AuthorizationFailed as error:
            replicator.refuse_markers(error)
            return
        match marker:
            case Request():
                replicator.answer(marker.snapshot_id)
            case Response():
                if isinstance(replicator.snapshots, TopicSnapshots):
                    replicator.snapshots.answered(cluster, marker)
            case Update():
                self._update(topic, cluster, marker)

    def _update(self, topic: Topic, cluster: str, update: Update) -> None:
        """Acknowledge what a subscription has acknowledged in another cluster."""
        name, position = update.subscription, update.positions.get(self._services.cluster)
        if position is None or not name.strip() or is_brokers_own(name):
            return
        if position.ledger_id != topic.ledger_id or position.entry_id > topic.last_entry_id:
            return  # It is about a topic that was deleted.
        subscription = topic.subscriptions.get(name)
        if subscription is None:
            if name not in topic.coming and (topic.text, name) not in self._made and len(self._made) < MADE_AT_ONCE:
                self._made.add((topic.text, name))
                self._parts.changes.finish(self._make(topic, cluster, name, position.entry_id + 1))
        elif subscription.durable and not subscription.fenced:
            subscription.acknowledge_through(position.entry_id)
            if subscription.places is not None:
                subscription.places.told()

    async def _make(self, topic: Topic, cluster: str, name: str, start: int) -> None:
        properties = with_replicated({}, replicated=True)
        try:
            await topic.open_subscription(name, durable=True, start=start, properties=properties)
        except PenstockError as error:
            log.warning("%s: subscription %s of cluster %s is not made here: %s", topic.text, name, cluster, error)
        finally:
            self._made.discard((topic.text, name))

    # -- clusters -----------------------------------------------------------------------------------------------------

    def _remote(self, cluster: str) -> Remote:
        """Return the cluster as it is set now; what was set before is closed."""
        data, remote = self._catalog.documents(CLUSTERS)[cluster], self._remotes.get(cluster)
        if remote is None or remote.data != data:
            if remote is not None:
                self._parts.changes.finish(remote.close())
            remote = self._remotes[cluster] = Remote(
                cluster,
                data,
                defaults=self._parts.remote_defaults,
                in_thread=self._parts.in_thread,
                now_ns=self._parts.clock.monotonic_ns,
                chance=self._chance,
            )
        return remote

    def expiries(self) -> Iterator[Expiry]:
        """Yield when certificates and tokens that are shown to other clusters expire. Called in a thread."""
        for remote in list(self._remotes.values()):
            yield from remote.expiries()

    # -- room ---------------------------------------------------------------------------------------------------------

    def _grant_soon(self) -> None:
        if not self._granting:
            self._granting = True
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        self._granting = False
        for replicator in self._window.grants():
            replicator.subscription.wake()
        self._parts.connections.outbound_freed()

    # -- stopping -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all replicators, before cursors are stored, and close all connections."""
        self._stopping = True
        for topic in self._topics.loaded():
            for subscription in list(topic.subscriptions.values()):
                if isinstance(subscription.replicator, Replicator):
                    subscription.replicator.end()
        for remote in self._remotes.values():
            await remote.close()


def _replicators_of(topic: Topic) -> list[Replicator]:
    found = (subscription.replicator for subscription in topic.subscriptions.values())
    return [one for one in found if isinstance(one, Replicator)]


def _cluster_of(subscription: str) -> str | None:
    """Return the cluster of a replicator's cursor; None for other subscriptions."""
    return subscription.removeprefix(REPLICATOR_PREFIX) if subscription.startswith(REPLICATOR_PREFIX) else None
