# SPDX-License-Identifier: Apache-2.0
"""Resource quotas of bundles, as administrators set them. Alone, a broker has nobody to share bundles with by them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.changes import Changes
    from penstock.broker.topics.places import Places
    from penstock.core.names import NamespaceName
    from penstock.storage.catalog import Catalog

    Json = dict[str, Any]

# The kind of document that a resource quota is, and the name of the one for all bundles.
KIND: Final = "resource-quota"
DEFAULT: Final = "default"
# Pulsar's defaults. Its load balancer divides bundles by them among brokers; alone, a broker has nothing to divide.
_QUOTA: Final = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100_000.0,
    "bandwidthOut": 300_000.0,
    "memory": 80.0,
    "dynamic": True,
}


class ResourceQuotas:
    """What bundles are expected to carry: kept and shown."""

    def __init__(self, *, catalog: Catalog, changes: Changes, places: Places) -> None:
        self._catalog = catalog
        self._changes = changes
        self._places = places

    def expected(self, namespace: NamespaceName | None = None, bundle: str | None = None) -> Json:
        """What a bundle is expected to carry; without one, any bundle. Raises NamespaceNotFound, PreconditionFailed."""
        stored = self._catalog.documents(KIND)
        name = self._name(namespace, bundle)
        return dict(stored.get(name) or stored.get(DEFAULT) or _QUOTA)

    async def put(
        self, value: Mapping[str, Any] | None, namespace: NamespaceName | None = None, bundle: str | None = None
    ) -> None:
        """Set it, or with None let the one of all bundles count again. Raises as `expected` does."""
        name = self._name(namespace, bundle)
        document = dict(value) if value is not None else None
        await self._changes.stored(lambda done: self._catalog.put_document(KIND, name, document, done))

    def _name(self, namespace: NamespaceName | None, bundle: str | None) -> str:
        if namespace is None:
            return DEFAULT
        bounds = self._places.boundaries(namespace)
        if bundle not in {f"{low}_{high}" for low, high in pairwise(bounds)}:
            raise PreconditionFailed(f"namespace {namespace} has no bundle {bundle}; it is cut at {', '.join(bounds)}")
        return f"{namespace}/{bundle}"
