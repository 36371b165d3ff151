# SPDX-License-Identifier: Apache-2.0
"""Tenants and namespaces as places: whether they exist, asked before anything is looked up or created in them.

Where: commands that find topics, the directory, and the admin port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core.errors import NamespaceNotFound, TenantNotFound

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.core.names import NamespaceName


def check_tenant(broker: Broker, tenant: str) -> None:
    """Raises TenantNotFound."""
    if tenant not in broker.catalog.tenants():
        raise TenantNotFound(tenant)


def check_namespace(broker: Broker, namespace: NamespaceName) -> None:
    """Raises TenantNotFound or NamespaceNotFound, the latter also while the namespace is being deleted."""
    check_tenant(broker, namespace.tenant)
    text = str(namespace)
    if text not in broker.catalog.namespaces() or text in broker.topics.closing:
        raise NamespaceNotFound(text)


def bundles(number: int) -> dict[str, Any]:
    """The hash ranges of so many bundles. A broker that is alone serves all of them."""
    size = 2**32 // number
    boundaries = [f"0x{index * size:08x}" for index in range(number)]
    return {"boundaries": [*boundaries, "0xffffffff"], "numBundles": number}
