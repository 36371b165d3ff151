# SPDX-License-Identifier: Apache-2.0
"""Admin operations on resource groups (PIP-82): their quotas, and which namespaces and tenants belong to them.

All changes are made under the lock of all changes, so a group that is being deleted cannot be attached, and one that is
attached cannot be deleted; the metadata thread looks for users of a group, since there may be a hundred thousand. A
change is in force when its request is answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypedDict

from penstock.broker.administration.clusters import check_name
from penstock.broker.policies.policy_values import (
    MEMBERS,
    OF_NAMESPACE,
    OF_TENANT,
    RESOURCE_GROUP,
    UNLIMITED,
    rates_in,
    tenant_group,
)
from penstock.core.errors import ChangedMeanwhile, NotFound, PreconditionFailed
from penstock.core.units import NS_PER_MS
from penstock.storage.shared_view import NAMESPACES, TENANTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.changes import Changes, Submit
    from penstock.broker.policies.policies import PolicyService
    from penstock.broker.topics.namespaces import NamespaceResources
    from penstock.core.clock import Clock
    from penstock.core.names import NamespaceName
    from penstock.governance.resource_group import ClassLimiter
    from penstock.groups.group import Group, GroupsInUse
    from penstock.storage.catalog import Catalog


class ResourceGroups:
    """Resource groups, stored as Pulsar's ResourceGroup: four rates per second; -1: no limit."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        policies: PolicyService,
        resources: NamespaceResources,
        groups: GroupsInUse,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._policies = policies
        self._resources = resources
        self._groups = groups
        self._clock = clock

    def names(self) -> list[str]:
        """All names, in no order: there may be thousands, and to sort them is not the loop's work."""
        return list(self._catalog.documents(RESOURCE_GROUP))

    def get(self, group: str) -> dict[str, int]:
        """The quota of a group, all four members. Raises NotFound."""
        stored = self._catalog.documents(RESOURCE_GROUP).get(group)
        if stored is None:
            raise NotFound("ResourceGroup does not exist")
        return _complete(stored)

    async def put(self, group: str, rates: Mapping[str, int | None]) -> None:
        """Create a group, or change those of its rates that are given. Raises PreconditionFailed."""
        check_name(group, "Resource group name is not valid")
        given = _checked(group, rates)

        def put() -> Submit:
            # Merged with what is stored now: another administrator may have changed another rate.
            before = self._catalog.documents(RESOURCE_GROUP).get(group)
            merged = {**_complete(before or {}), **given}
            return partial(self._catalog.put_document, RESOURCE_GROUP, group, merged, expected=before)

        await self._changes.store_alone(put)
        self._policies.refresh_groups()

    # -- quotas that are only observed

    def observe(self, group: str, rates: Mapping[str, int | None]) -> None:
        """Count on this broker what a quota would do, beside the one in force, until it restarts or is told to end.

        Raises:
            NotFound: no topic of this group is in use here.
            PreconditionFailed: a rate is not possible, or none is a limit.
        """
        quota = rates_in(_checked(group, rates))
        if not (quota.publish.limited or quota.dispatch.limited):
            raise PreconditionFailed(f"nothing to observe for resource group {group!r}: want at least one rate")
        found = self._in_use(group)
        if found is None:
            raise NotFound(f"no topic of resource group {group!r} is in use on this broker")
        found.observe(quota, self._clock.monotonic_ns())

    def observed(self, group: str) -> dict[str, Observed | None]:
        """Return the effect of an observed quota, by class of traffic; None: not observed. Raises NotFound."""
        found, now_ns = self._in_use(group), self._clock.monotonic_ns()
        if found is None:
            return {"publish": None, "dispatch": None}
        limiter = found.limiter
        return {"publish": _observed(limiter.publish, now_ns), "dispatch": _observed(limiter.dispatch, now_ns)}

    def observe_no_more(self, group: str) -> None:
        """End to observe. Raises NotFound."""
        found = self._in_use(group)
        if found is not None:
            found.observe(None, self._clock.monotonic_ns())

    def _in_use(self, group: str) -> Group | None:
        """The group; None: no topic of it is in use here. Raises NotFound."""
        self.get(group)
        return self._groups.in_use.get(group)

    async def delete(self, group: str) -> None:
        """Delete a group. Raises NotFound; PreconditionFailed while a namespace or a tenant is attached."""
        self.get(group)
        await self._changes.finish(self._delete(group))

    async def _delete(self, group: str) -> None:
        async with self._changes.lock:
            self.get(group)
            users = ((TENANTS, OF_TENANT), (NAMESPACES, OF_NAMESPACE))
            try:
                await self._changes.stored(partial(self._catalog.delete_unused_document, RESOURCE_GROUP, group, users))
            except ChangedMeanwhile as error:
                raise PreconditionFailed(f"ResourceGroup is in use: {error}; detach it first") from error
        self._policies.refresh_groups()

    # -- attaching

    def of_namespace(self, namespace: NamespaceName) -> str | None:
        """The group of a namespace. Raises TenantNotFound, NamespaceNotFound."""
        self._resources.check_namespace(namespace)
        return self._policies.namespace(str(namespace)).get(OF_NAMESPACE)

    async def attach_namespace(self, namespace: NamespaceName, group: str | None) -> None:
        """Attach a namespace to a group, instead of an earlier one; None detaches it.

        Raises:
            TenantNotFound, NamespaceNotFound: it does not exist.
            PreconditionFailed: there is no such group.
        """
        self._resources.check_namespace(namespace)

        def attached(_before: object) -> str | None:
            self.check_exists(group)
            return group

        await self._policies.change_namespace(str(namespace), OF_NAMESPACE, attached)

    def of_tenant(self, tenant: str) -> str | None:
        """The group of a tenant. Raises TenantNotFound."""
        self._resources.check_tenant(tenant)
        return tenant_group(self._catalog, tenant) or None

    async def attach_tenant(self, tenant: str, group: str | None) -> None:
        """Attach a tenant to a group, instead of an earlier one; None detaches it. Raises as `attach_namespace`."""
        self._resources.check_tenant(tenant)

        def put() -> Submit:
            self._resources.check_tenant(tenant)
            self.check_exists(group)
            before = self._catalog.tenants()[tenant]
            stored = {key: value for key, value in before.items() if key != OF_TENANT}
            if group is not None:
                stored[OF_TENANT] = group
            needed = (RESOURCE_GROUP, group) if group is not None else None
            return partial(self._catalog.put_tenant, tenant, stored, expected=before, needed=needed)

        await self._changes.store_alone(put)
        self._policies.refresh_namespace(tenant)

    def check_exists(self, group: str | None) -> None:
        """Raises PreconditionFailed if a group is named and does not exist."""
        if group is not None and group not in self._catalog.documents(RESOURCE_GROUP):
            raise PreconditionFailed(f"ResourceGroup does not exist: create {group!r} first")


class Observed(TypedDict):
    """Effect of an observed quota, if it were enforced; limits per second, -1: none."""

    shareInMsgs: float
    shareInBytes: float
    observedMs: int
    limitedMs: int
    limitedInForceMs: int
    arrivedMessages: int
    arrivedBytes: int


def _observed(limiter: ClassLimiter, now_ns: int) -> Observed | None:
    one = limiter.observed
    if one is None:
        return None
    return {
        "shareInMsgs": UNLIMITED if one.share.messages is None else one.share.messages,
        "shareInBytes": UNLIMITED if one.share.bytes is None else one.share.bytes,
        "observedMs": (now_ns - one.since_ns) // NS_PER_MS,
        "limitedMs": one.limited_ns(now_ns) // NS_PER_MS,
        "limitedInForceMs": (limiter.limited_ns(now_ns) - one.limited_before_ns) // NS_PER_MS,
        "arrivedMessages": one.arrived.messages,
        "arrivedBytes": one.arrived.bytes,
    }


def _checked(group: str, rates: Mapping[str, int | None]) -> dict[str, int]:
    """The rates that are given. Raises PreconditionFailed."""
    given = {member: value for member in MEMBERS if (value := rates.get(member)) is not None}
    for member, value in given.items():
        if value < UNLIMITED or value == 0:
            raise PreconditionFailed(
                f"{member} of resource group {group!r} must be 1 or more per second, or -1: no limit; got {value}"
            )
    return given


def _complete(stored: Mapping[str, int | None]) -> dict[str, int]:
    """All members of a stored group; what is missing or null is no limit (S10)."""
    return {member: UNLIMITED if (value := stored.get(member)) is None else value for member in MEMBERS}
