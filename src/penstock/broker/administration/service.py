# SPDX-License-Identifier: Apache-2.0
"""Admin operations on brokers: identity, health, owned namespaces, shutdown."""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.topics.listing import Wanted
from penstock.core.errors import NotAllowed, NotFound, PreconditionFailed, ServiceNotReady
from penstock.core.names import NamespaceName
from penstock.core.units import NS_PER_MS
from penstock.net.listing_memory import LimitType, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from penstock.broker.elsewhere import Elsewhere
    from penstock.broker.health import Health
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.periodic_checks import PeriodicChecks
    from penstock.broker.stats import shapes
    from penstock.broker.topics.listing import Mode
    from penstock.broker.topics.listing_blocks import Listing
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.broker.topics.placement import Placement
    from penstock.broker.topics.shared_listings import SharedListings
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.core.membership import Membership
    from penstock.core.names import TopicName
    from penstock.core.service_urls import Addresses
    from penstock.net.listener import Connections
    from penstock.net.listing_memory import TopicListLimits, TopicListMemoryLimiter
    from penstock.storage.catalog import Catalog

    Json = dict[str, Any]

# ---------------------------------------------------------------------------------------------------------------------
# Topic lookups over HTTP.
#
# Clients of the binary protocol are answered in `commands.discovery`.


class LookupAdmin:
    """Lookups, of the topics of all brokers.

    Args:
        resources: checks tenants and namespaces.
        check_serving: raises ServiceNotReady, which names the topic, when topics are no longer served.
        placement: knows the broker of each topic.
    """

    def __init__(
        self,
        *,
        resources: NamespaceResources,
        check_serving: Callable[[TopicName], None],
        placement: Placement,
    ) -> None:
        self._resources = resources
        self._check_serving = check_serving
        self._placement = placement

    def of_topic(self, name: TopicName, listener: str | None = None) -> dict[str, str | None]:
        """Service URLs of a topic, whether or not it exists.

        Raises:
            ServiceNotReady: the broker is stopping, or the topic's broker is down.
            TenantNotFound, NamespaceNotFound: its tenant or namespace does not exist.
            PreconditionFailed: there is no such listener.
        """
        self._check_serving(name)
        self._resources.check_namespace(name.namespace_name)
        addresses = self._placement.addresses(name)
        urls, web_urls = addresses.service, addresses.web
        if listener is not None and listener.strip():
            named = addresses.listeners.get(listener)
            if named is None:
                raise PreconditionFailed(f"the broker do not have {listener} listener")
            urls = named
        return {
            "brokerUrl": urls.plain,
            "brokerUrlTls": urls.tls,
            "httpUrl": web_urls.plain,
            "httpUrlTls": web_urls.tls,
            "nativeUrl": urls.plain,
        }

    def bundle_of_topic(self, name: TopicName) -> str:
        """The bundle of a topic, as the range that contains the CRC-32 of its name."""
        bounds = self._resources.bundle_boundaries(name.namespace_name)
        at = bundle_index([int(bound, 16) for bound in bounds], str(name))
        return f"{bounds[at]}_{bounds[at + 1]}"


def bundle_index(bounds: list[int], topic: str) -> int:
    """Index of the bundle of a topic, given by its full name."""
    return min(bisect_right(bounds, zlib.crc32(topic.encode())), len(bounds) - 1) - 1


# ---------------------------------------------------------------------------------------------------------------------
# Topic listings for the admin API, and the memory that listings use.
#
# Why lists are lent: the response is written on another thread, which may be slow. Until it is written, the list stays
# charged as for a client of the binary protocol (PIP-442): heap memory while it is held, direct memory for the
# response. Why memory is shown: a waiting or refused listing should be explained by numbers and names (PIP-442 has
# metrics only, without names). Where: routes borrow lists through `admin.responses`, which cancels the loan when the
# request ends; the reference on topic listings explains each member of `memory`.

# Maximum number of waiting requests shown.
SHOWN_MAX: Final = 100


class ListingAdmin:
    """Topic listings, and their memory."""

    def __init__(
        self,
        *,
        shared: SharedListings,
        limiter: TopicListMemoryLimiter,
        limits: Callable[[], TopicListLimits],
        connections: Connections,
        clock: Clock,
        resources: NamespaceResources,
    ) -> None:
        self._shared = shared
        self._limiter = limiter
        self._limits = limits
        self._connections = connections
        self._clock = clock
        self._resources = resources

    async def lend(
        self, namespace: NamespaceName, mode: Mode, lend: Callable[[Listing], None], *, system: bool = False
    ) -> None:
        """Call `lend` with the topics of a namespace, partitions one by one; keep the list until cancelled.

        Raises:
            TenantNotFound, NamespaceNotFound: there is no such namespace.
            PermitError, TooManyRequests: there was no memory in time.
        """
        self._resources.check_namespace(namespace)
        limits = self._limits()
        deadline_ns = self._clock.monotonic_ns() + max(limits.heap_timeout_ns, limits.direct_timeout_ns)
        owner = Owner(namespace.tenant, object())  # each request is an owner of its own
        wanted = Wanted(str(namespace), mode, system=system)
        async with (
            self._shared.of(wanted).asked(owner, deadline_ns) as listing,
            self._limiter.with_acquired_permits(
                listing.written_bytes, LimitType.DIRECT_MEMORY, owner=owner, deadline_ns=deadline_ns
            ),
        ):
            lend(listing)
            await asyncio.Future()

    def memory(self) -> shapes.ListingMemories:
        """Current use of both memories by listings, and the waiting requests."""
        return {"heap": self._memory(LimitType.HEAP_MEMORY), "direct": self._memory(LimitType.DIRECT_MEMORY)}

    def _memory(self, kind: LimitType) -> shapes.ListingMemory:
        both = self._shared.snapshot()
        seen = both.heap if kind is LimitType.HEAP_MEMORY else both.direct
        return {
            "limitBytes": seen.permits_max,
            "usedBytes": seen.acquired,
            "queueSize": seen.queue_size,
            "queueMaxSize": seen.queue_max,
            "timeoutMillis": seen.timeout_ns // NS_PER_MS,
            "longestWaitMillis": seen.oldest_wait_ns // NS_PER_MS,
            "timeouts": seen.timeouts_total,
            "refusedQueueFull": seen.queue_full_total,
            "refusedBeyondLimit": seen.beyond_limit_total,
            "cancelled": seen.cancelled_total,
            "waiting": self._waiting(kind) if seen.queue_size else [],
        }

    def _waiting(self, kind: LimitType) -> list[shapes.WaitingListing]:
        peers: dict[Hashable, str] = {connection.id: connection.peer for connection in self._connections.all()}
        return [
            {
                "tenant": one.owner.tenant,
                "address": peers.get(one.owner.connection),
                "wantsBytes": one.wants,
                "hasBytes": one.has,
                "waitedMillis": one.waited_ns // NS_PER_MS,
            }
            for one in self._limiter.limiter(kind).waiting(SHOWN_MAX)
        ]


class LocalBrokerData(NamedTuple):
    """Service URLs of the broker, and what it serves."""

    web_url: str | None
    web_url_tls: str | None
    service_url: str | None
    service_url_tls: str | None
    persistent_topics: bool
    non_persistent_topics: bool
    bundles: list[str]


class Service:
    """The broker, and its knowledge of the others. A broker's id is host and port of its admin API."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        resources: NamespaceResources,
        checks: PeriodicChecks[Topic],
        limits: Callable[[], BrokerLimits],
        health: Callable[[], Health],
        addresses: Addresses,
        membership: Membership,
        elsewhere: Elsewhere,
        shut_down: Callable[[], None] | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._catalog = catalog
        self._resources = resources
        self._rounds = checks
        self._limits = limits
        self._health = health
        self._addresses = addresses
        self._membership = membership
        self._elsewhere = elsewhere
        self._shut_down = shut_down  # ends the process; None: not allowed
        self._loop = loop

    @property
    def id(self) -> str:
        """The id of this broker."""
        return _id(self._addresses)

    @property
    def number(self) -> int:
        """The number of this broker."""
        return self._membership.own

    async def answers(self, target: str) -> tuple[list[Any], list[int]]:
        """As `Elsewhere.answers`: what the other brokers answer, and the numbers of those that do not."""
        return await self._elsewhere.answers(target)

    def names(self, cluster: str | None = None) -> list[str]:
        """Ids of the brokers of a cluster that serve. Raises NotFound for another cluster."""
        self._check_cluster(cluster)
        return [_id(self._ready()[number]) for number in sorted(self._ready())]

    def leader(self) -> Json:
        """The leader broker: the first one that serves. Nothing depends on it."""
        first = self._ready()[min(self._ready())]
        return {"brokerId": _id(first), "serviceUrl": first.web.plain or first.web.tls}

    def _ready(self) -> dict[int, Addresses]:
        members = self._membership.members.values()
        others = {one.number: one.addresses for one in members if one.allows.serves}
        return {**others, self._membership.own: self._addresses}

    def owned_namespaces(self, cluster: str, broker_id: str) -> Json:
        """The bundles that a broker serves: all, for each of them has topics of every broker.

        Raises NotFound for an unknown broker id.
        """
        self._check_cluster(cluster)
        self._number(broker_id)
        status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
        return dict.fromkeys(self.local_broker_data().bundles, status)

    async def catch_up(self) -> None:
        """As `Elsewhere.catch_up`."""
        await self._elsewhere.catch_up()

    async def check_healthy(self, broker_id: str | None) -> None:
        """Raises ServiceNotReady if a broker is not healthy, NotFound for an unknown id; None means this broker."""
        number = self._number(broker_id)
        if number != self._membership.own:
            await self._elsewhere.ask(number, "GET", "/admin/v2/brokers/health")
            return
        reason = self.unhealthy_reason()
        if reason is not None:
            raise ServiceNotReady(reason)

    def _number(self, broker_id: str | None) -> int:
        numbers = {_id(addresses): number for number, addresses in self._ready().items()}
        number = self._membership.own if broker_id is None else numbers.get(broker_id)
        if number is None:
            raise NotFound(f"broker {broker_id} does not exist, or is down; this one is {self.id}")
        return number

    def unhealthy_reason(self) -> str | None:
        """Why the broker is unhealthy; None if it is healthy."""
        health = self._health()
        return None if health.ok else health.reason

    def status_file(self) -> Path | None:
        """The file whose presence means that the broker is in service; None if not set, or if it is unhealthy."""
        return self._limits().status_file if self._health().ok else None

    def internal_configuration(self) -> Json:
        """Where metadata is stored: in the broker's data directory."""
        return {
            "metadataStoreUrl": "sqlite:meta.sqlite",
            "configurationMetadataStoreUrl": "sqlite:meta.sqlite",
            "ledgersRootPath": f"broker-{self._membership.own}/log",
            "bookkeeperMetadataServiceUri": None,
            "stateStorageServiceUrl": None,
        }

    async def check_backlog_quotas(self) -> None:
        await self._rounds.run("backlog quota check")
        await self._elsewhere.ask_all("GET", "/admin/v2/brokers/backlog-quota-check", self._elsewhere.running())

    def shut_down(self) -> None:
        """End the process like SIGTERM; pending responses are sent first.

        Raises:
            NotAllowed: the broker is embedded in another program.
        """
        if self._shut_down is None:
            raise NotAllowed("this broker runs inside another program, which alone can end it")
        self._loop.call_soon(self._shut_down)

    def local_broker_data(self) -> LocalBrokerData:
        """Broker data of a load report, without the load."""
        web, service, limits = self._addresses.web, self._addresses.service, self._limits()
        return LocalBrokerData(
            web.plain or None,
            web.tls,
            service.plain or None,
            service.tls,
            limits.persistent_topics,
            limits.non_persistent_topics,
            [bundle for namespace in self._catalog.namespaces() for bundle in self._bundles(namespace)],
        )

    def _bundles(self, namespace: str) -> list[str]:
        bounds = self._resources.bundle_boundaries(NamespaceName(*namespace.split("/")))
        return [f"{namespace}/{low}_{high}" for low, high in pairwise(bounds)]

    def _check_cluster(self, cluster: str | None) -> None:
        if cluster is not None and cluster != self._limits().cluster_name:
            raise NotFound(f"Cluster does not exist: cluster={cluster}")


def _id(addresses: Addresses) -> str:
    web, service = addresses.web, addresses.service
    return (web.plain or web.tls or service.plain or service.tls or "").partition("://")[2]
