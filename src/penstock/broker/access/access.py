# SPDX-License-Identifier: Apache-2.0
"""Authentication and authorization: the object that all other parts ask.

Where: the broker makes one. Sessions ask before they carry out a command, admin routes before they answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.authentication.identification import Identification
from penstock.broker.access.actions import Action
from penstock.broker.access.authorization import Authorizer
from penstock.core.errors import AuthorizationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.authentication.authenticator import Authenticator
    from penstock.authentication.credentials import Credentials, Identity
    from penstock.broker.access.authorization import Resource
    from penstock.broker.access.rules import AccessRules
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog

# Pulsar's texts, which people search for.
_REFUSALS: Final = {
    Action.SUPERUSER: "This operation requires super-user access",
    Action.TENANT_ADMIN: "Don't have permission to administrate resources on this tenant",
    Action.NAMESPACE_ADMIN: "Don't have permission to administrate resources on this tenant",
    Action.LOOKUP: "Client is not authorized to Lookup",
    Action.PRODUCE: "Client is not authorized to Produce",
    Action.CONSUME: "Client is not authorized to Subscribe",
}


class Access:
    """Allows every action, without authentication."""

    enabled = False  # whether clients must authenticate
    of_brokers = False  # whether its clients are the other brokers of this cluster

    def require(
        self,
        role: str | None,
        original_role: str | None,
        action: Action,
        resource: Resource,
        *,
        subscription: str | None = None,
        refusal: str | None = None,
    ) -> None:
        """Raises AuthorizationFailed unless the caller may do this; behind a proxy, both roles must be authorized.

        Args:
            role: the authenticated role of the connection.
            original_role: the role of the client behind a proxy, or None.
            action: the requested action.
            resource: a topic, a namespace, a tenant's name, or None for the cluster.
            subscription: the subscription, with `Action.CONSUME`.
            refusal: replaces the usual error text; the reason is appended.
        """

    def reload(self) -> None:
        """Read keys and users again, for clients that connect from now on."""

    def close(self) -> None: ...


class AccessControl(Access):
    """Authenticates clients and enforces permissions."""

    enabled = True

    def __init__(
        self, authenticator: Authenticator, rules: Callable[[], AccessRules], catalog: Catalog, clock: Clock
    ) -> None:
        self._rules = rules
        self._catalog = catalog
        self._identification = Identification(authenticator, lambda: self.rules.anonymous_role, clock)

    @property
    def rules(self) -> AccessRules:
        return self._rules()

    def reload(self) -> None:
        self._identification.reload()

    def close(self) -> None:
        self._identification.close()

    async def identify(self, credentials: Credentials) -> Identity:
        """See `Identification`. Raises AuthenticationFailed."""
        return await self._identification.identify(credentials)

    def check_pair(self, role: str, original_role: str | None) -> None:
        """Raises AuthorizationFailed unless proxies, and only proxies, act for another role.

        Pulsar only warns of others that do; to name one's own role is allowed to everybody, as there.
        """
        proxies = self.rules.proxy_roles
        if not self.rules.authorizing:
            return
        if role in proxies and (not original_role or original_role in proxies):
            raise AuthorizationFailed(f"proxy role {role!r} must name the role of its client, which is not a proxy's")
        if role not in proxies and original_role and original_role != role:
            raise AuthorizationFailed(f"role {role!r} acts for {original_role!r}, and is not among proxyRoles")

    def require(
        self,
        role: str | None,
        original_role: str | None,
        action: Action,
        resource: Resource,
        *,
        subscription: str | None = None,
        refusal: str | None = None,
    ) -> None:
        rules = self.rules
        if not rules.authorizing:
            return
        authorizer = Authorizer(rules, self._catalog.tenants(), self._catalog.namespaces())
        for asking in (role,) if original_role is None else (original_role, role):
            denial = authorizer.denial(asking, action, resource, subscription)
            if denial is not None:
                said = refusal or _REFUSALS.get(action, f"Client is not authorized to use {action.value}")
                raise AuthorizationFailed(f"{said}: role {asking!r}: {denial}")


OPEN: Final = Access()
