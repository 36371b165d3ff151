# SPDX-License-Identifier: Apache-2.0
"""Stored quotas of resource groups (PIP-82), and the groups of a namespace and its tenant.

A group is a document with the four members of Pulsar's ResourceGroup. A namespace names its group in its policies, a
tenant in its own JSON. A name whose group does not exist has no effect.
Where: `administration.resource_groups` changes these, `publishing.groups` enforces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.governance.resource_group import GroupRate, GroupRates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.catalog import Catalog

# The kind of document.
RESOURCE_GROUP: Final = "resource-group"
# The member of a tenant's JSON that names its group. Pulsar's TenantInfo has none.
OF_TENANT: Final = "resourceGroup"
# The member of a namespace's JSON, as in Pulsar's Policies.
OF_NAMESPACE: Final = "resource_group_name"
UNLIMITED: Final = -1
MEMBERS: Final = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")


def rates_in(stored: Mapping[str, Any]) -> GroupRates:
    """The quota in a stored document. What is missing, null or not positive is no limit."""
    messages_in, bytes_in, messages_out, bytes_out = (_limit(stored.get(member)) for member in MEMBERS)
    return GroupRates(GroupRate(messages_in, bytes_in), GroupRate(messages_out, bytes_out))


def _limit(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def tenant_group(catalog: Catalog, tenant: str) -> str:
    """The group of a tenant; empty: none."""
    return catalog.tenants().get(tenant, {}).get(OF_TENANT) or ""
