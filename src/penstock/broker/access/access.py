# SPDX-License-Identifier: Apache-2.0
"""The one object that is asked who somebody is and what they may do.

Where: the broker makes one. Sessions ask before they carry out a command, routes of the admin port before they answer.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from penstock.broker.access.actions import Action
from penstock.broker.access.authorization import Authority
from penstock.broker.access.credentials import Identity
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.access.authentication import Authenticator
    from penstock.broker.access.authorization import Resource
    from penstock.broker.access.credentials import Credentials
    from penstock.broker.access.rules import AccessRules
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog

# Pulsar's words, by which people search.
_REFUSALS: Final = {
    Action.SUPERUSER: "This operation requires super-user access",
    Action.TENANT_ADMIN: "Don't have permission to administrate resources on this tenant",
    Action.NAMESPACE_ADMIN: "Don't have permission to administrate resources on this tenant",
    Action.LOOKUP: "Client is not authorized to Lookup",
    Action.PRODUCE: "Client is not authorized to Produce",
    Action.CONSUME: "Client is not authorized to Subscribe",
}


class Access:
    """Lets everybody do everything, and asks nobody who they are."""

    enabled = False  # whether clients must show who they are

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
        """Return if the caller may do this; behind a proxy, both roles must be allowed to.

        Args:
            role: who is connected.
            original_role: whom a proxy speaks for; None without a proxy.
            action: what is asked for.
            resource: a topic, a namespace, a tenant's name, or None for the cluster.
            subscription: whose messages are asked for, with `Action.CONSUME`.
            refusal: what to say instead of the usual words; the reason is added.

        Raises:
            AuthorizationFailed: it may not.
        """

    def reload(self) -> None:
        """Read keys and users again, for those who come from now on."""

    def close(self) -> None:
        """Nobody is looked at any more."""


class Guard(Access):
    """Knows who somebody is, and lets them do what was granted."""

    enabled = True

    def __init__(
        self, authenticator: Authenticator, rules: Callable[[], AccessRules], catalog: Catalog, clock: Clock
    ) -> None:
        self._authenticator = authenticator
        self._rules = rules
        self._catalog = catalog
        self._clock = clock
        # One, however many ask: guessing passwords must not take the processor from those who publish.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="authentication")

    @property
    def rules(self) -> AccessRules:
        """The rules in force."""
        return self._rules()

    def reload(self) -> None:
        """See `Access.reload`."""
        self._authenticator.reload()

    def close(self) -> None:
        """See `Access.close`."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def identify(self, credentials: Credentials) -> Identity:
        """Who shows these credentials. On any loop; whoever shows nothing we know how to read is the anonymous role.

        Raises:
            AuthenticationFailed: with the reason for the log; a client is told nothing but that.
        """
        provider = self._authenticator.provider(credentials.method)
        now_ms = self._clock.wall_ms()
        if provider is not None and provider.slow:
            return await asyncio.wrap_future(self._thread.submit(provider.identify, credentials, now_ms))
        if provider is not None:
            return provider.identify(credentials, now_ms)
        if self.rules.anonymous_role is None:
            raise AuthenticationFailed(f"there is no provider {credentials.method[:50]!r}, and no anonymousUserRole")
        return Identity(self.rules.anonymous_role)

    def check_pair(self, role: str, original_role: str | None) -> None:
        """Only a proxy speaks for others, and it always does. Raises AuthorizationFailed."""
        proxies = self.rules.proxy_roles
        if self.rules.authorizing and role in proxies and (not original_role or original_role in proxies):
            raise AuthorizationFailed(f"proxy role {role!r} must name the role of its client, which is not a proxy's")

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
        """See `Access.require`."""
        rules = self.rules
        if not rules.authorizing:
            return
        authority = Authority(rules, self._catalog.tenants(), self._catalog.namespaces())
        for asking in (role,) if original_role is None else (original_role, role):
            denial = authority.denial(asking, action, resource, subscription)
            if denial is not None:
                said = refusal or _REFUSALS.get(action, f"Client is not authorized to use {action.value}")
                raise AuthorizationFailed(f"{said}: role {asking!r}: {denial}")


OPEN: Final = Access()
