# SPDX-License-Identifier: Apache-2.0
"""Permissions of roles: on a namespace, on one topic, on a subscription name.

Where: the admin port calls this on the broker's loop. Permissions are stored in the namespace's policies
under `auth_policies`, where `access` reads them. They are kept while authentication is disabled.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access import Action
from penstock.core.errors import NamespaceNotFound, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.broker.policies.policies import PolicyService
    from penstock.core.names import NamespaceName, TopicName
    from penstock.storage.catalog import Catalog

    Grants = dict[str, list[str]]

AUTH: Final = "auth_policies"
NAMESPACE: Final = "namespace_auth"
TOPICS: Final = "destination_auth"
SUBSCRIPTIONS: Final = "subscription_auth_roles"

GRANTABLE: Final = frozenset(
    action.value
    for action in (Action.PRODUCE, Action.CONSUME, Action.FUNCTIONS, Action.SOURCES, Action.SINKS, Action.PACKAGES)
)


class Permissions:
    """Reads and changes permissions."""

    def __init__(
        self, *, catalog: Catalog, policies: PolicyService, check_namespace: Callable[[NamespaceName], None]
    ) -> None:
        """Receive the parts that this uses; `check_namespace` raises TenantNotFound or NamespaceNotFound."""
        self._catalog = catalog
        self._policies = policies
        self._check_namespace = check_namespace

    def get_namespace(self, namespace: NamespaceName) -> Grants:
        """Actions by role. Raises TenantNotFound, NamespaceNotFound."""
        return _plain(self._granted(namespace).get(NAMESPACE))

    def get_topic(self, name: TopicName) -> Grants:
        """Actions by role, granted on the namespace or on this topic."""
        granted = self._granted(name.namespace_name)
        grants = _plain(granted.get(NAMESPACE))
        of_topics = granted.get(TOPICS) or {}
        for topic in dict.fromkeys((str(name.parent), str(name))):
            for role, actions in _plain(of_topics.get(topic)).items():
                grants[role] = sorted({*grants.get(role, ()), *actions})
        return grants

    def get_subscription(self, namespace: NamespaceName) -> Grants:
        """Roles by subscription name."""
        return _plain(self._granted(namespace).get(SUBSCRIPTIONS))

    async def grant_namespace(self, namespace: NamespaceName, role: str, actions: Iterable[str]) -> None:
        """Grant a role these actions on all topics of a namespace, replacing earlier ones."""
        wanted = _checked(actions)
        await self._change(namespace, lambda granted: _put(_part(granted, NAMESPACE), role, wanted))

    async def revoke_namespace(self, namespace: NamespaceName, role: str) -> None:
        await self._change(namespace, lambda granted: _put(_part(granted, NAMESPACE), role, None))

    async def grant_topic(self, name: TopicName, role: str, actions: Iterable[str]) -> None:
        """Grant a role these actions on a topic and its partitions, replacing earlier ones."""
        wanted = _checked(actions)
        await self._change(
            name.namespace_name, lambda granted: _put(_part(_part(granted, TOPICS), str(name)), role, wanted)
        )

    async def revoke_topic(self, name: TopicName, role: str) -> None:
        """Revoke the permissions of a role on a topic. Raises PreconditionFailed if it has none."""

        def change(granted: dict[str, Any]) -> None:
            topics = _part(granted, TOPICS)
            if role not in (topics.get(str(name)) or {}):
                raise PreconditionFailed("Permissions are not set at the topic level")
            _put(topics, str(name), _put(_part(topics, str(name)), role, None) or None)

        await self._change(name.namespace_name, change)

    async def grant_subscription(self, namespace: NamespaceName, subscription: str, roles: Iterable[str]) -> None:
        """Allow only these roles to use subscriptions of this name."""
        wanted = sorted(set(roles))
        await self._change(namespace, lambda granted: _put(_part(granted, SUBSCRIPTIONS), subscription, wanted))

    async def revoke_subscription(self, namespace: NamespaceName, subscription: str, role: str) -> None:
        """Revoke a role's permission to use subscriptions of this name. Raises PreconditionFailed if it has none."""

        def change(granted: dict[str, Any]) -> None:
            of_names = _part(granted, SUBSCRIPTIONS)
            roles = of_names.get(subscription) or ()
            if role not in roles:
                raise PreconditionFailed(f"subscription {subscription!r} is not granted to role {role!r}")
            _put(of_names, subscription, [one for one in roles if one != role] or None)

        await self._change(namespace, change)

    async def forget_topic(self, name: TopicName) -> None:
        """Remove the permissions on a deleted topic: they must not apply to another topic of that name."""
        namespace = f"{name.tenant}/{name.namespace}"
        stored = self._catalog.namespaces().get(namespace) or {}
        if str(name) in ((stored.get(AUTH) or {}).get(TOPICS) or {}):
            with contextlib.suppress(NamespaceNotFound):  # The namespace was deleted meanwhile, with its permissions.
                await self._policies.update_namespace(
                    namespace, lambda policies: _put(_part(_part(policies, AUTH), TOPICS), str(name), None)
                )

    def _granted(self, namespace: NamespaceName) -> Mapping[str, Any]:
        self._check_namespace(namespace)
        return self._catalog.namespaces()[str(namespace)].get(AUTH) or {}

    async def _change(self, namespace: NamespaceName, how: Callable[[dict[str, Any]], object]) -> None:
        self._check_namespace(namespace)
        await self._policies.update_namespace(str(namespace), lambda stored: how(_part(stored, AUTH)))


def _part(whole: dict[str, Any], key: str) -> dict[str, Any]:
    part: dict[str, Any] = whole.setdefault(key, {})
    return part


def _put(part: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    if value is None:
        part.pop(key, None)
    else:
        part[key] = value
    return part


def _checked(actions: Iterable[str]) -> list[str]:
    wanted = sorted(set(actions))
    unknown = [action for action in wanted if action not in GRANTABLE]
    if unknown:
        raise PreconditionFailed(f"unknown actions {unknown}, want some of {sorted(GRANTABLE)}")
    return wanted


def _plain(grants: Mapping[str, Any] | None) -> Grants:
    return {key: list(values) for key, values in (grants or {}).items()}
