# SPDX-License-Identifier: Apache-2.0
"""What administrators ask of the broker as a whole: who it is, whether it is well, what it is told; and its end.

Where: the admin port's routes on brokers run these on the broker's loop.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.errors import NotAllowed, NotFound, PreconditionFailed
from penstock.core.names import NamespaceName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from penstock.broker.broker import Broker

    Json = dict[str, Any]

# The kind of document that a resource quota is, and the name of the one for all bundles.
QUOTA: Final = "resource-quota"
DEFAULT_QUOTA: Final = "default"
# Pulsar's defaults. Its load balancer divides bundles by them among brokers; alone, a broker has nothing to divide.
_QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}


def broker_id(broker: Broker) -> str:
    """The broker's name among brokers: host and port of its admin port."""
    url = broker.web_urls.plain or broker.web_urls.tls or broker.service_urls.plain or broker.service_urls.tls or ""
    return url.partition("://")[2]


def active_brokers(broker: Broker, cluster: str | None = None) -> list[str]:
    """The brokers of a cluster: this one. Raises NotFound for a cluster that is not ours."""
    _check_cluster(broker, cluster)
    return [broker_id(broker)]


def leader(broker: Broker) -> Json:
    """The broker that leads: alone, this one."""
    return {"brokerId": broker_id(broker), "serviceUrl": broker.web_urls.plain or broker.web_urls.tls}


def owned_namespaces(broker: Broker, cluster: str, of_broker: str) -> Json:
    """The bundles that a broker serves: all of them. Raises NotFound for a broker that is not this one."""
    _check_cluster(broker, cluster)
    check_broker(broker, of_broker)
    status = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    return dict.fromkeys(place(broker).bundles, status)


def check_broker(broker: Broker, of_broker: str | None) -> None:
    """Raises NotFound for a broker that is not this one; None means this one."""
    if of_broker is not None and of_broker != broker_id(broker):
        raise NotFound(f"broker {of_broker} does not exist; this one is {broker_id(broker)}")


def ill(broker: Broker) -> str | None:
    """Why the broker cannot do its work; None while it can."""
    health = broker.health
    return None if health.ok else health.reason


def status_file(broker: Broker) -> Path | None:
    """The file whose presence says that the broker is in service; None when there is none, or when it is ill."""
    return broker.limits.status_file if broker.health.ok else None


def internal_configuration(_broker: Broker) -> Json:
    """Where metadata is kept: in the broker's own data directory."""
    return {
        "metadataStoreUrl": "sqlite:meta.sqlite",
        "configurationMetadataStoreUrl": "sqlite:meta.sqlite",
        "ledgersRootPath": "broker-0/log",
        "bookkeeperMetadataServiceUri": None,
        "stateStorageServiceUrl": None,
    }


async def check_backlog_quotas(broker: Broker) -> None:
    """Enforce quotas of backlogs now."""
    await broker.rounds.run("backlog quota check")


def shut_down(broker: Broker) -> None:
    """End the process as SIGTERM would; answers under way go out first.

    Raises:
        NotAllowed: the broker runs inside another program.
    """
    if broker.shut_down is None:
        raise NotAllowed("this broker runs inside another program, which alone can end it")
    broker.loop.call_soon(broker.shut_down)


# -- configuration ---------------------------------------------------------------------------------------------------


def dynamic_keys(broker: Broker) -> list[str]:
    """See `Configuration.dynamic`."""
    return broker.configuration.dynamic()


def overridden(broker: Broker) -> dict[str, str]:
    """See `Configuration.overridden`."""
    return broker.configuration.overridden()


def runtime(broker: Broker) -> dict[str, str]:
    """See `Configuration.runtime`."""
    return broker.configuration.runtime()


async def put_setting(broker: Broker, key: str, value: str) -> None:
    """See `Configuration.put`."""
    await broker.configuration.put(key, value)


async def remove_setting(broker: Broker, key: str) -> None:
    """See `Configuration.remove`."""
    await broker.configuration.remove(key)


# -- resource quotas -------------------------------------------------------------------------------------------------


def quota(broker: Broker, namespace: NamespaceName | None = None, bundle: str | None = None) -> Json:
    """What a bundle is expected to carry; of all bundles without one. Raises NamespaceNotFound, PreconditionFailed."""
    stored = broker.catalog.documents(QUOTA)
    name = _quota_name(broker, namespace, bundle)
    return dict(stored.get(name) or stored.get(DEFAULT_QUOTA) or _QUOTA)


async def put_quota(
    broker: Broker, value: Mapping[str, Any] | None, namespace: NamespaceName | None = None, bundle: str | None = None
) -> None:
    """Set it, or with None let the one of all bundles count again. Raises as `quota` does."""
    name = _quota_name(broker, namespace, bundle)
    document = dict(value) if value is not None else None
    await broker.changes.stored(lambda done: broker.catalog.put_document(QUOTA, name, document, done))


def _quota_name(broker: Broker, namespace: NamespaceName | None, bundle: str | None) -> str:
    if namespace is None:
        return DEFAULT_QUOTA
    bounds = broker.places.boundaries(namespace)
    if bundle not in {f"{low}_{high}" for low, high in pairwise(bounds)}:
        raise PreconditionFailed(f"namespace {namespace} has no bundle {bundle}; it is cut at {', '.join(bounds)}")
    return f"{namespace}/{bundle}"


# -- statistics ------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where the broker is reached, and what it serves there."""

    web_url: str | None
    web_url_tls: str | None
    service_url: str | None
    service_url_tls: str | None
    persistent_topics: bool
    non_persistent_topics: bool
    bundles: list[str]


def place(broker: Broker) -> Place:
    """What a load report says of the broker beside its load."""
    return Place(
        broker.web_urls.plain or None,
        broker.web_urls.tls,
        broker.service_urls.plain or None,
        broker.service_urls.tls,
        broker.limits.persistent_topics,
        broker.limits.non_persistent_topics,
        [f"{name}/{low}_{high}" for name in broker.catalog.namespaces() for low, high in _bundles(broker, name)],
    )


def _bundles(broker: Broker, namespace: str) -> Iterable[tuple[str, str]]:
    bounds = broker.places.boundaries(NamespaceName(*namespace.split("/")))
    return pairwise(bounds)


def _check_cluster(broker: Broker, cluster: str | None) -> None:
    if cluster is not None and cluster != broker.limits.cluster_name:
        raise NotFound(f"Cluster does not exist: cluster={cluster}")
