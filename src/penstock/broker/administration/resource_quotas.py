# SPDX-License-Identifier: Apache-2.0
"""Resource quotas of bundles. They are stored only: a single broker has no load to balance."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.core.names import NamespaceName
    from penstock.storage.catalog import Catalog

    Json = dict[str, Any]

# The kind of document, and the name of the default quota of all bundles.
KIND: Final = "resource-quota"
DEFAULT: Final = "default"
# Pulsar's defaults. Its load balancer distributes bundles by them; a single broker does not use them.
_QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}


class ResourceQuotas:
    """Resource quotas of bundles; stored and shown, without effect."""

    def __init__(self, *, catalog: Catalog, changes: Changes, resources: NamespaceResources) -> None:
        self._catalog = catalog
        self._changes = changes
        self._resources = resources

    def expected(self, namespace: NamespaceName | None = None, bundle: str | None = None) -> Json:
        """The quota of a bundle, or the default one. Raises NamespaceNotFound, PreconditionFailed."""
        stored = self._catalog.documents(KIND)
        name = self._name(namespace, bundle)
        return dict(stored.get(name) or stored.get(DEFAULT) or _QUOTA)

    async def put(
        self, value: Mapping[str, Any] | None, namespace: NamespaceName | None = None, bundle: str | None = None
    ) -> None:
        """Set a quota; None restores the default. Raises as `expected` does."""
        name = self._name(namespace, bundle)
        document = dict(value) if value is not None else None
        await self._changes.stored(lambda done: self._catalog.put_document(KIND, name, document, done))

    def _name(self, namespace: NamespaceName | None, bundle: str | None) -> str:
        if namespace is None:
            return DEFAULT
        bounds = self._resources.bundle_boundaries(namespace)
        if bundle not in {f"{low}_{high}" for low, high in pairwise(bounds)}:
            raise PreconditionFailed(f"namespace {namespace} has no bundle {bundle}; it is cut at {', '.join(bounds)}")
        return f"{namespace}/{bundle}"
