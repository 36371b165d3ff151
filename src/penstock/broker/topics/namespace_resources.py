# SPDX-License-Identifier: Apache-2.0
"""Checks that tenants and namespaces exist, before a topic is looked up or created in them.

Where: commands that find topics, the directory, and the admin API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import NamespaceNotFound, TenantNotFound
from penstock.storage.shared_view import DELETIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.names import NamespaceName
    from penstock.storage.catalog import Catalog


class NamespaceResources:
    """The stored tenants and namespaces.

    `deleting` holds the full names of namespaces and partitioned topics that this broker is deleting: nothing is
    created in them. Those that any broker is deleting are in the catalog (`deletions`).
    """

    def __init__(self, catalog: Catalog, bundles_default: Callable[[], int]) -> None:
        """Args: bundles_default: number of bundles of a namespace that does not set it."""
        self._catalog = catalog
        self._bundles_default = bundles_default
        self.deleting: set[str] = set()

    def check_tenant(self, tenant: str) -> None:
        if tenant not in self._catalog.tenants():
            raise TenantNotFound(tenant)

    def check_namespace(self, namespace: NamespaceName) -> None:
        """Raises TenantNotFound or NamespaceNotFound, the latter also while the namespace is being deleted."""
        self.check_exists(namespace)
        if self.is_deleting(str(namespace)):
            raise NamespaceNotFound(str(namespace))

    def is_deleting(self, name: str) -> bool:
        """Whether a broker is deleting this namespace or partitioned topic."""
        return name in self.deleting or name in self._catalog.documents(DELETIONS)

    def check_exists(self, namespace: NamespaceName) -> None:
        """Raises TenantNotFound or NamespaceNotFound; not because the namespace is being deleted."""
        self.check_tenant(namespace.tenant)
        if str(namespace) not in self._catalog.namespaces():
            raise NamespaceNotFound(str(namespace))

    def bundle_boundaries(self, namespace: NamespaceName) -> list[str]:
        """The hash boundaries of a namespace's bundles, from 0x00000000 to 0xffffffff."""
        self.check_namespace(namespace)
        stored = self._catalog.namespaces()[str(namespace)].get("bundles") or {}
        return list(stored.get("boundaries") or bundles(self._bundles_default())["boundaries"])


def bundles(number: int) -> dict[str, Any]:
    """The bundles data of a namespace with so many bundles, as in Pulsar's Policies."""
    size = 2**32 // number
    boundaries = [f"0x{index * size:08x}" for index in range(number)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": number}
