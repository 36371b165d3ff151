# SPDX-License-Identifier: Apache-2.0
"""Tenants, namespaces, clusters and permissions: what the admin port does to them.

Plain functions on the broker, on its loop. They raise `core.errors` with Pulsar's texts and statuses, and return plain
values (copies). `namespace` is a `NamespaceName`, `topic` a `TopicName`, policies are Pulsar's JSON as a dict.

    list_tenants(broker) -> list[str]
    get_tenant(broker, tenant) -> {"adminRoles": [...], "allowedClusters": [...]}
    await create_tenant(broker, tenant, info)            info as above, None fields allowed
    await update_tenant(broker, tenant, info)
    await delete_tenant(broker, tenant, force=False)
    list_namespaces(broker, tenant) -> ["tenant/ns", ...]
    get_namespace(broker, namespace) -> Policies with every member Pulsar's has
    await create_namespace(broker, namespace, policies)  policies: dict or None
    await delete_namespace(broker, namespace, force=False)
    await unload_namespace(broker, namespace, bundle=None)
    await split_bundle(broker, namespace, bundle)
    list_clusters(broker) -> list[str]
    get_cluster(broker, cluster) -> ClusterData as a dict
    await create_cluster(broker, cluster, data)
    await update_cluster(broker, cluster, data)
    await delete_cluster(broker, cluster)

Permissions are in `permissions`.
"""

from __future__ import annotations

import contextlib
import re
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.topics import lookup, partitions
from penstock.broker.topics.places import bundles
from penstock.core.errors import AlreadyExists, NamespaceNotFound, NotAllowed, NotFound, PreconditionFailed
from penstock.core.names import NamespaceName, TopicName, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.broker import Broker
    from penstock.broker.changes import Submit


CLUSTER: Final = "cluster"  # the kind of document a cluster is
BUNDLES_MAX: Final = 2**32 - 1
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
_DOMAINS: Final = ("persistent", "non-persistent")


# -- tenants ----------------------------------------------------------------------------------------------------------


def list_tenants(broker: Broker) -> list[str]:
    """Names of all tenants."""
    return sorted(broker.catalog.tenants())


def get_tenant(broker: Broker, tenant: str) -> dict[str, Any]:
    """Who administers a tenant, and in which clusters it may be. Raises TenantNotFound."""
    broker.places.check_tenant(tenant)
    stored = broker.catalog.tenants()[tenant]
    return {
        "adminRoles": list(stored.get("adminRoles") or ()),
        # The tenants that penstock makes itself are where the broker is.
        "allowedClusters": list(stored.get("allowedClusters") or (broker.limits.cluster_name,)),
    }


async def create_tenant(broker: Broker, tenant: str, info: Mapping[str, Any]) -> None:
    """Create a tenant. Raises AlreadyExists, or PreconditionFailed for what cannot be."""
    _check_name(tenant, "Tenant name is not valid")
    stored = _tenant_info(broker, info)

    def put() -> Submit:
        if _is_taken(broker, broker.catalog.tenants().get(tenant)):
            raise AlreadyExists("Tenant already exist")
        return partial(broker.catalog.put_tenant, tenant, stored)

    await broker.changes.store_alone(put)


async def update_tenant(broker: Broker, tenant: str, info: Mapping[str, Any]) -> None:
    """Replace who administers a tenant and where it may be. Raises TenantNotFound, PreconditionFailed."""
    broker.places.check_tenant(tenant)
    stored = _tenant_info(broker, info)

    def put() -> Submit:
        broker.places.check_tenant(tenant)
        return partial(broker.catalog.put_tenant, tenant, stored)

    await broker.changes.store_alone(put)
    await broker.revocation.take_back(tenant)


async def delete_tenant(broker: Broker, tenant: str, *, force: bool = False) -> None:
    """Delete a tenant; forced, with all its namespaces and their topics.

    Raises:
        TenantNotFound: there is none.
        NotAllowed: it is forced, and `forceDeleteTenantAllowed` is off.
        AlreadyExists: it has namespaces.
    """
    if force and not broker.limits.force_delete_tenant:
        raise NotAllowed("Broker doesn't allow forced deletion of tenants")
    broker.places.check_tenant(tenant)
    if force:
        for namespace in list_namespaces(broker, tenant):
            with contextlib.suppress(NamespaceNotFound):  # Somebody else is deleting it.
                await broker.changes.finish(_delete_namespace(broker, NamespaceName.parse(namespace)))

    def delete() -> Submit:
        if list_namespaces(broker, tenant):
            raise AlreadyExists("The tenant still has active namespaces")
        return partial(broker.catalog.delete_tenant, tenant)

    await broker.changes.store_alone(delete)


def _tenant_info(broker: Broker, info: Mapping[str, Any]) -> dict[str, Any]:
    roles = list(info.get("adminRoles") or ())
    if any(role.strip() != role for role in roles):
        raise PreconditionFailed("AdminRoles contains whitespace in the beginning or end.")
    clusters = list(info.get("allowedClusters") or ())
    if not clusters or not all(cluster.strip() for cluster in clusters):
        raise PreconditionFailed("Clusters can not be empty")
    if not set(clusters) <= set(list_clusters(broker)):
        raise PreconditionFailed("Clusters do not exist")
    return {"adminRoles": sorted(set(roles)), "allowedClusters": sorted(set(clusters))}


# -- namespaces -------------------------------------------------------------------------------------------------------


def list_namespaces(broker: Broker, tenant: str) -> list[str]:
    """Full names of a tenant's namespaces. Raises TenantNotFound."""
    broker.places.check_tenant(tenant)
    return sorted(name for name in broker.catalog.namespaces() if name.startswith(f"{tenant}/"))


def get_namespace(broker: Broker, namespace: NamespaceName) -> dict[str, Any]:
    """The namespace's Policies JSON, with every member Pulsar's has. Raises TenantNotFound, NamespaceNotFound."""
    broker.places.check_namespace(namespace)
    policies = broker.policies.as_pulsar_json(str(namespace))
    policies["replication_clusters"] = policies["replication_clusters"] or [broker.limits.cluster_name]
    if "bundles" not in broker.policies.namespace(str(namespace)):
        policies["bundles"] = bundles(broker.limits.namespace_bundles)
    return policies


async def create_namespace(broker: Broker, namespace: NamespaceName, policies: Mapping[str, Any] | None = None) -> None:
    """Create a namespace, with policies to begin with.

    Raises:
        TenantNotFound: its tenant does not exist.
        AlreadyExists: it does.
        PreconditionFailed: it would be in clusters that do not exist, or has no number of bundles.
    """
    broker.places.check_tenant(namespace.tenant)
    text = str(namespace)
    stored = {key: value for key, value in (policies or {}).items() if value is not None}
    number = (stored.get("bundles") or {}).get("numBundles") or broker.limits.namespace_bundles
    if not 0 < number <= BUNDLES_MAX:
        raise PreconditionFailed(
            f"Invalid number of bundles. Number of bundles has to be in the range of (0, 2^32), got {number}"
        )
    stored["bundles"] = stored.get("bundles") if _has_boundaries(stored) else bundles(number)
    stored["replication_clusters"] = list(stored.get("replication_clusters") or [broker.limits.cluster_name])
    if not set(stored["replication_clusters"]) <= set(list_clusters(broker)):
        raise PreconditionFailed("Clusters do not exist")

    def put() -> Submit:
        broker.places.check_tenant(namespace.tenant)
        if _is_taken(broker, broker.catalog.namespaces().get(text)):
            raise AlreadyExists("Namespace already exists")
        return partial(broker.catalog.put_namespace, text, stored)

    await broker.changes.store_alone(put)
    broker.policies.refresh()


def _has_boundaries(policies: Mapping[str, Any]) -> bool:
    return bool((policies.get("bundles") or {}).get("boundaries"))


async def delete_namespace(broker: Broker, namespace: NamespaceName, *, force: bool = False) -> None:
    """Delete a namespace; forced, with all its topics.

    Raises:
        TenantNotFound, NamespaceNotFound: there is none.
        NotAllowed: it is forced, and `forceDeleteNamespaceAllowed` is off.
        AlreadyExists: it has topics.
    """
    if force and not broker.limits.force_delete_namespace:
        raise NotAllowed("Broker doesn't allow forced deletion of namespaces")
    broker.places.check_namespace(namespace)
    text = str(namespace)
    if not force:
        mine = [name for domain in _DOMAINS for name in broker.topics.names.of(domain, text)]
        partitioned = [name for domain in _DOMAINS for name in broker.partitions.of_namespace(text, domain)]
        if any(not is_system_topic(name) for name in mine + partitioned):
            raise AlreadyExists("Cannot delete non empty namespace")
    await broker.changes.finish(_delete_namespace(broker, namespace))


async def _delete_namespace(broker: Broker, namespace: NamespaceName) -> None:
    broker.places.check_namespace(namespace)  # Perhaps somebody else is deleting it, and a third one makes it anew.
    text = str(namespace)
    broker.topics.closing.add(text)
    try:
        async with broker.changes.lock:
            pass  # A partitioned topic that was being made before is there now, and goes with the others.
        for domain in _DOMAINS:
            for name in list(broker.partitions.of_namespace(text, domain)):
                with contextlib.suppress(NotFound):  # Somebody else is deleting it.
                    await broker.partitions.delete(TopicName.parse(name), force=True)
            await broker.topics.arrived(f"{domain}://{text}/")
            rest = map(TopicName.parse, list(broker.topics.names.of(domain, text)))
            await partitions.in_turns(lambda topic: broker.topic_life.delete_if_there(topic, force=True), rest)
        await broker.changes.store_alone(lambda: partial(broker.catalog.delete_namespace, text))
    finally:
        broker.topics.closing.discard(text)
    broker.policies.refresh()


async def unload_namespace(broker: Broker, namespace: NamespaceName, bundle: str | None = None) -> None:
    """Take all topics of a namespace, or of a bundle of it, out of memory; whoever uses them comes back."""
    loaded = [name for name in in_bundle(broker, namespace, bundle) if broker.topics.get(name) is not None]
    await partitions.in_turns(broker.topic_life.unload, map(TopicName.parse, loaded))


def in_bundle(broker: Broker, namespace: NamespaceName, bundle: str | None) -> list[str]:
    """Full names of the topics of a namespace, or of a bundle of it."""
    broker.places.check_namespace(namespace)
    names = [name for domain in _DOMAINS for name in broker.topics.names.of(domain, str(namespace))]
    if bundle is None:
        return names
    at = _bundle_index(broker, namespace, bundle)
    bounds = [int(bound, 16) for bound in broker.places.boundaries(namespace)]
    return [name for name in names if lookup.bundle_index(bounds, name) == at]


async def split_bundle(broker: Broker, namespace: NamespaceName, bundle: str) -> None:
    """Cut a bundle in the middle of its range. Raises NotFound."""
    broker.places.check_namespace(namespace)
    at = _bundle_index(broker, namespace, bundle)
    boundaries = broker.places.boundaries(namespace)
    middle = (int(boundaries[at], 16) + int(boundaries[at + 1], 16)) // 2
    cut = [*boundaries[: at + 1], f"0x{middle:08x}", *boundaries[at + 1 :]]
    await broker.policies.update_namespace(
        str(namespace),
        lambda stored: stored.update(bundles={"boundaries": cut, "numBundles": len(cut) - 1}),
    )


def _bundle_index(broker: Broker, namespace: NamespaceName, bundle: str) -> int:
    boundaries = broker.places.boundaries(namespace)
    names = [f"{low}_{high}" for low, high in pairwise(boundaries)]
    if bundle not in names:
        raise NotFound(f"Namespace {namespace} has no bundle {bundle}; it has {', '.join(names)}")
    return names.index(bundle)


# -- clusters ---------------------------------------------------------------------------------------------------------


def list_clusters(broker: Broker) -> list[str]:
    """Names of all clusters: the broker's own, and what was made."""
    return sorted({broker.limits.cluster_name, *broker.catalog.documents(CLUSTER)})


def get_cluster(broker: Broker, cluster: str) -> dict[str, Any]:
    """What is known of a cluster, as ClusterData. Raises NotFound."""
    _check_cluster(broker, cluster)
    stored = dict(broker.catalog.documents(CLUSTER).get(cluster) or {})
    if cluster == broker.limits.cluster_name:
        stored.setdefault("serviceUrl", broker.web_urls.plain or None)
        stored.setdefault("serviceUrlTls", broker.web_urls.tls)
        stored.setdefault("brokerServiceUrl", broker.service_urls.plain or None)
        stored.setdefault("brokerServiceUrlTls", broker.service_urls.tls)
    return stored


async def create_cluster(broker: Broker, cluster: str, data: Mapping[str, Any]) -> None:
    """Make a cluster known. Raises AlreadyExists, PreconditionFailed."""
    _check_name(cluster, "Cluster name is not valid")
    ours: dict[str, Any] | None = {} if cluster == broker.limits.cluster_name else None
    if _is_taken(broker, broker.catalog.documents(CLUSTER).get(cluster, ours)):
        raise AlreadyExists("Cluster already exists")
    await _put_cluster(broker, cluster, data)


async def update_cluster(broker: Broker, cluster: str, data: Mapping[str, Any]) -> None:
    """Replace what is known of a cluster. Raises NotFound."""
    _check_cluster(broker, cluster)
    await _put_cluster(broker, cluster, data)


async def delete_cluster(broker: Broker, cluster: str) -> None:
    """Forget a cluster. Raises NotFound, or PreconditionFailed while namespaces are in it."""
    _check_cluster(broker, cluster)
    used = any(
        cluster in (policies.get("replication_clusters") or ()) for policies in broker.catalog.namespaces().values()
    )
    if used or cluster == broker.limits.cluster_name:
        raise PreconditionFailed("Cluster not empty")
    await broker.changes.stored(lambda done: broker.catalog.put_document(CLUSTER, cluster, None, done))


async def _put_cluster(broker: Broker, cluster: str, data: Mapping[str, Any]) -> None:
    stored = {key: value for key, value in data.items() if value is not None}
    await broker.changes.stored(lambda done: broker.catalog.put_document(CLUSTER, cluster, stored, done))


def _check_cluster(broker: Broker, cluster: str) -> None:
    if cluster not in list_clusters(broker):
        raise NotFound("Cluster does not exist")


def _is_taken(broker: Broker, stored: Mapping[str, Any] | None) -> bool:
    """Whether a cluster, a tenant or a namespace is there, and not to be created.

    Under authorization, Pulsar has no tenant `public`, nor its own cluster, before a superuser creates them, and
    set-ups begin with that. Ours are there from the start; as long as nothing was said about them, they can be created.
    """
    return stored is not None and bool(stored or not broker.limits.access.authorizing)


def _check_name(name: str, refusal: str) -> None:
    if _ENTITY.fullmatch(name) is None:
        raise PreconditionFailed(f"{refusal}: {name!r} may hold letters, digits and - = : . _ only")
