# SPDX-License-Identifier: Apache-2.0
"""Authorization: pure, over the policies of tenants and namespaces in Pulsar's JSON.

    superuser      everything
    tenant admin   everything in the tenant: its `adminRoles`
    permissions    `auth_policies` of a namespace: actions by role, on the namespace (`namespace_auth`) or on a topic
                   (`destination_auth`), and the roles that may use a subscription (`subscription_auth_roles`)

Where: `AccessControl.require` calls `denial` for each role that must be authorized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.broker.access.actions import Action
from penstock.core.names import COMPACTION_SUBSCRIPTION, NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.broker.access.rules import AccessRules

    Policies: TypeAlias = Mapping[str, Any]

# Members of a namespace's `auth_policies`.
GRANTS: Final = ("auth_policies", "subscription_auth_mode")

Resource: TypeAlias = "TopicName | NamespaceName | str | None"


class Authorizer:
    """Rules, tenants and namespaces, read anew for each decision."""

    def __init__(self, rules: AccessRules, tenants: Mapping[str, Policies], namespaces: Mapping[str, Policies]) -> None:
        self._rules = rules
        self._tenants = tenants
        self._namespaces = namespaces

    def denial(self, role: str | None, action: Action, resource: Resource, subscription: str | None) -> str | None:
        """Why this role may not do that; None if it may."""
        if role is None or not role:
            return "it has no role"
        if role in self._rules.super_user_roles:
            return None
        if action is Action.SUPERUSER:
            return "it is not among superUserRoles"
        if self._is_tenant_admin(role, resource):
            return None
        if action in {Action.TENANT_ADMIN, Action.NAMESPACE_ADMIN}:
            return f"it is no admin of tenant {_tenant(resource)}"
        return self._grant_denial(role, action, resource, subscription)

    def _is_tenant_admin(self, role: str, resource: Resource) -> bool:
        tenant = self._tenants.get(_tenant(resource) or "")
        return tenant is not None and role in (tenant.get("adminRoles") or ())

    def _grant_denial(self, role: str, action: Action, resource: Resource, subscription: str | None) -> str | None:
        if isinstance(resource, str) or resource is None:
            return "grants are on namespaces and topics"
        namespace = resource.namespace_name if isinstance(resource, TopicName) else resource
        policies = self._namespaces.get(str(namespace))
        if policies is None:
            return f"nothing is granted on namespace {namespace}, which does not exist"
        granted = policies.get("auth_policies") or {}
        if subscription == COMPACTION_SUBSCRIPTION and action is Action.CONSUME:
            return f"subscription {subscription} is the broker's own, and for admins of the tenant only"
        if subscription is not None and action is Action.CONSUME:
            denial = _subscription_denial(role, subscription, policies, granted)
            if denial is not None:
                return denial
        wanted = {"produce", "consume"} if action is Action.LOOKUP else {action.value}
        if any(self._holds(role, wanted, grants) for grants in _grants(granted, resource)):
            return None
        return f"{' or '.join(sorted(wanted))} is not granted to it on {resource}"

    def _holds(self, role: str, wanted: set[str], grants: Mapping[str, Iterable[str]]) -> bool:
        """Whether one of the actions is granted to this role, or to a pattern that matches it."""
        if not wanted.isdisjoint(grants.get(role) or ()):
            return True
        if not self._rules.allow_wildcards:
            return False
        return any(_matches(pattern, role) and not wanted.isdisjoint(actions) for pattern, actions in grants.items())


def _grants(granted: Policies, resource: TopicName | NamespaceName) -> Iterable[Mapping[str, Iterable[str]]]:
    """Actions by role on the namespace; for a topic also those on itself or on its partitioned topic."""
    yield granted.get("namespace_auth") or {}
    if isinstance(resource, TopicName):
        of_topics = granted.get("destination_auth") or {}
        for name in {resource, resource.parent}:
            yield of_topics.get(str(name)) or {}


def _subscription_denial(role: str, subscription: str, policies: Policies, granted: Policies) -> str | None:
    roles = (granted.get("subscription_auth_roles") or {}).get(subscription)
    if roles and role not in roles:
        return f"subscription {subscription!r} is granted to others"
    if policies.get("subscription_auth_mode") == "Prefix" and not subscription.startswith(role):
        return f"the subscription's name needs to be prefixed by the authentication role, like {role}-xxxx"
    return None


def _matches(pattern: str, role: str) -> bool:
    """Whether a role matches; a star at one end of the pattern matches anything."""
    if pattern.endswith("*") and role.startswith(pattern[:-1]):
        return True
    return pattern.startswith("*") and role.endswith(pattern[1:])


def _tenant(resource: Resource) -> str | None:
    return resource.tenant if isinstance(resource, TopicName | NamespaceName) else resource
