# SPDX-License-Identifier: Apache-2.0
"""What roles are granted: on a namespace, on one topic, on a subscription's name.

Plain functions on the broker, on its loop, for the admin port. What is granted stands in the namespace's policies under
`auth_policies`, where `access` reads it; it is kept also while nobody has to show who it is.

    get_namespace(broker, namespace) -> {role: [actions]}
    await grant_namespace(broker, namespace, role, actions)
    await revoke_namespace(broker, namespace, role)
    get_topic(broker, name) -> {role: [actions]}            with what is granted on its namespace
    await grant_topic(broker, name, role, actions)
    await revoke_topic(broker, name, role)
    get_subscription(broker, namespace) -> {subscription: [roles]}
    await grant_subscription(broker, namespace, subscription, roles)
    await revoke_subscription(broker, namespace, subscription, role)
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.access import Action
from penstock.core.errors import NamespaceNotFound, PreconditionFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.broker.broker import Broker
    from penstock.core.names import NamespaceName, TopicName

    Grants = dict[str, list[str]]

AUTH: Final = "auth_policies"
NAMESPACE: Final = "namespace_auth"
TOPICS: Final = "destination_auth"
SUBSCRIPTIONS: Final = "subscription_auth_roles"

GRANTABLE: Final = frozenset(
    action.value
    for action in (Action.PRODUCE, Action.CONSUME, Action.FUNCTIONS, Action.SOURCES, Action.SINKS, Action.PACKAGES)
)


def get_namespace(broker: Broker, namespace: NamespaceName) -> Grants:
    """Actions by role. Raises TenantNotFound, NamespaceNotFound."""
    return _plain(_granted(broker, namespace).get(NAMESPACE))


def get_topic(broker: Broker, name: TopicName) -> Grants:
    """Actions by role: those granted on the namespace, and those on this topic."""
    granted = _granted(broker, name.namespace_name)
    grants = _plain(granted.get(NAMESPACE))
    of_topics = granted.get(TOPICS) or {}
    for topic in dict.fromkeys((str(name.parent), str(name))):
        for role, actions in _plain(of_topics.get(topic)).items():
            grants[role] = sorted({*grants.get(role, ()), *actions})
    return grants


def get_subscription(broker: Broker, namespace: NamespaceName) -> Grants:
    """Roles by subscription."""
    return _plain(_granted(broker, namespace).get(SUBSCRIPTIONS))


async def grant_namespace(broker: Broker, namespace: NamespaceName, role: str, actions: Iterable[str]) -> None:
    """Let a role do exactly this on all topics of a namespace."""
    wanted = _checked(actions)
    await _change(broker, namespace, lambda granted: _put(_part(granted, NAMESPACE), role, wanted))


async def revoke_namespace(broker: Broker, namespace: NamespaceName, role: str) -> None:
    """Take from a role what it was granted on the namespace."""
    await _change(broker, namespace, lambda granted: _put(_part(granted, NAMESPACE), role, None))


async def grant_topic(broker: Broker, name: TopicName, role: str, actions: Iterable[str]) -> None:
    """Let a role do exactly this on one topic, and on its partitions."""
    wanted = _checked(actions)
    await _change(
        broker, name.namespace_name, lambda granted: _put(_part(_part(granted, TOPICS), str(name)), role, wanted)
    )


async def revoke_topic(broker: Broker, name: TopicName, role: str) -> None:
    """Take from a role what it was granted on a topic. Raises PreconditionFailed when that is nothing."""
    of_topics = _granted(broker, name.namespace_name).get(TOPICS) or {}
    if role not in (of_topics.get(str(name)) or {}):
        raise PreconditionFailed("Permissions are not set at the topic level")

    def change(granted: dict[str, Any]) -> None:
        topics = _part(granted, TOPICS)
        _put(topics, str(name), _put(_part(topics, str(name)), role, None) or None)

    await _change(broker, name.namespace_name, change)


async def grant_subscription(broker: Broker, namespace: NamespaceName, subscription: str, roles: Iterable[str]) -> None:
    """Let only these roles use subscriptions of this name."""
    wanted = sorted(set(roles))
    await _change(broker, namespace, lambda granted: _put(_part(granted, SUBSCRIPTIONS), subscription, wanted))


async def revoke_subscription(broker: Broker, namespace: NamespaceName, subscription: str, role: str) -> None:
    """Take a subscription's name from a role. Raises PreconditionFailed when it did not have it."""
    if role not in get_subscription(broker, namespace).get(subscription, ()):
        raise PreconditionFailed(f"subscription {subscription!r} is not granted to role {role!r}")

    def change(granted: dict[str, Any]) -> None:
        of_names = _part(granted, SUBSCRIPTIONS)
        _put(of_names, subscription, [one for one in of_names.get(subscription, ()) if one != role] or None)

    await _change(broker, namespace, change)


async def forget_topic(broker: Broker, name: TopicName) -> None:
    """A topic is gone: what was granted on it alone must not hold for another one of its name."""
    namespace = f"{name.tenant}/{name.namespace}"
    stored = broker.catalog.namespaces().get(namespace) or {}
    if str(name) in ((stored.get(AUTH) or {}).get(TOPICS) or {}):
        with contextlib.suppress(NamespaceNotFound):  # It went meanwhile, with all that was granted in it.
            await broker.policies.update_namespace(
                namespace, lambda policies: _put(_part(_part(policies, AUTH), TOPICS), str(name), None)
            )


def _granted(broker: Broker, namespace: NamespaceName) -> Mapping[str, Any]:
    broker.places.check_namespace(namespace)
    return broker.catalog.namespaces()[str(namespace)].get(AUTH) or {}


async def _change(broker: Broker, namespace: NamespaceName, how: Callable[[dict[str, Any]], object]) -> None:
    broker.places.check_namespace(namespace)
    await broker.policies.update_namespace(str(namespace), lambda stored: how(_part(stored, AUTH)))


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
