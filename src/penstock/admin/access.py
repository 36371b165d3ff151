# SPDX-License-Identifier: Apache-2.0
"""Authorization on the admin port: each route has one of these checks.

Why a dependency and not a list of paths: the check is beside the route that it guards, and a test finds a route without
one by `unguarded`.

Where: groups of routes write `dependencies=[needs.tenant_admin]`. Credentials are checked here, on the admin thread.
What their role may do is asked on the broker's loop, for the {tenant}, {namespace}, {topic} and {subscription} of the
path.

See `credentials` for where they are looked for; without any, the role is `anonymousUserRole`. Wrong credentials are
refused; others are not tried. A proxy names its client's role in X-Original-Principal. Requests of other brokers of
this cluster, which come over a socket of their own, say who asks instead (`core.caller`): a caller that was proven
there is authorized here again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from fastapi import Depends, FastAPI, Request
from starlette.exceptions import HTTPException

from penstock.admin.credentials import ORIGINAL_HEADER, credentials_of
from penstock.admin.gateway import FROM_PEER
from penstock.broker.access import Access, AccessControl, Action
from penstock.core.caller import CALLER, HEADER, Caller, check_passed_role, decode_asker
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed, PenstockError
from penstock.core.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fastapi.params import Depends as Dependency
    from starlette.types import Scope

    from penstock.admin.gateway import Gateway
    from penstock.broker.access.authorization import Resource
    from penstock.broker.administration.administration import Administration
    from penstock.core.caller import Asker

log = logging.getLogger(__name__)

# The key of passed checks in the scope of a request.
_PASSED: Final = "penstock.passed"
# What brokers do at each other as work of their own: see `Elsewhere`. It is about topics, never about the cluster.
_OWN_WORK: Final = frozenset({Action.LOOKUP, Action.CONSUME, Action.NAMESPACE_ADMIN})


class Check:
    """One kind of check. FastAPI calls it with the request; it raises AuthenticationFailed or AuthorizationFailed."""

    def __init__(
        self, gateway: Gateway, action: Action | None, *, known: bool = True, of_namespace: bool = False
    ) -> None:
        self._gateway = gateway
        self._action = action
        self._known = known
        self._of_namespace = of_namespace  # even where the path names a topic

    async def __call__(self, request: Request) -> None:
        """Accept the request, or raise."""
        passed = request.scope.setdefault(_PASSED, set())
        if self not in passed:
            await self._look_at(request)
            passed.add(self)

    async def administers(self, request: Request) -> Callable[[str], bool]:
        """Return whether the caller administers a tenant. The result is called on the broker's loop."""
        access = await self._gateway.ask(_access_of)
        if not isinstance(access, AccessControl):
            return lambda _tenant: True
        asker = await self._asker(access, request)
        # A broker that asks for itself does so on nobody's behalf.
        return partial(_administers, access, asker) if isinstance(asker, Caller) else lambda _tenant: True

    async def _look_at(self, request: Request) -> None:
        if not self._known:
            return
        access = await self._gateway.ask(_access_of)
        if not isinstance(access, AccessControl):
            return
        asker = await self._asker(access, request)
        if isinstance(asker, Caller):
            CALLER.set(asker)  # Before: the log says who was refused.
            await self._authorize(access, asker, request.path_params)
        elif self._action not in _OWN_WORK:
            raise AuthorizationFailed(f"broker {asker.number} has no such work of its own")

    async def _authorize(self, access: AccessControl, caller: Caller, path: Mapping[str, str]) -> None:
        role, original_role, action = caller.role, caller.original_role, self._action

        async def allowed(_broker: Administration) -> None:
            access.check_pair(role, original_role)
            if action is not None:
                resource = _resource(action, path, of_namespace=self._of_namespace)
                access.require(role, original_role, action, resource, subscription=path.get("subscription"))

        try:
            await self._gateway.ask(allowed)
        except AuthorizationFailed as error:
            if FROM_PEER.get():  # The broker that passed it on has allowed it.
                log.warning("role %r, proven by %s at another broker, is refused: %s", role, caller.proven_by, error)
            raise

    async def _asker(self, access: AccessControl, request: Request) -> Asker:
        return _named_by_peer(request) if FROM_PEER.get() else await self._proven(access, request)

    async def _proven(self, access: AccessControl, request: Request) -> Caller:
        try:
            credentials = credentials_of(request)
            identity = await access.identify(credentials)
        except AuthenticationFailed as error:
            client = f"{request.client.host}:{request.client.port}" if request.client is not None else "unknown"
            log.warning("request of %s is refused: %s", client, error)
            raise AuthenticationFailed("Authentication required") from error
        return Caller(identity.role, credentials.method, _original_role(request))


class OfBrokers(Check):
    """A check that only other brokers of this cluster pass, with work of their own, whether anybody is authorized."""

    async def _look_at(self, request: Request) -> None:
        if FROM_PEER.get() and not isinstance(_named_by_peer(request), Caller):
            return
        if not FROM_PEER.get():
            await super()._look_at(request)  # Whoever has no credentials is told that first.
        raise AuthorizationFailed("only brokers of this cluster ask each other for this")


class Needs:
    """The checks, one attribute for each kind of caller."""

    def __init__(self, gateway: Gateway) -> None:
        def check(action: Action | None, *, known: bool = True, of_namespace: bool = False) -> Dependency:
            dependency: Dependency = Depends(Check(gateway, action, known=known, of_namespace=of_namespace))
            return dependency

        self.superuser = check(Action.SUPERUSER)
        # The same for routes that need it for some bodies only.
        self.check_superuser = Check(gateway, Action.SUPERUSER)
        self.tenant_admin = check(Action.TENANT_ADMIN)
        self.namespace_admin = check(Action.NAMESPACE_ADMIN)
        self.topic_lookup = check(Action.LOOKUP)
        self.namespace_lookup = check(Action.LOOKUP, of_namespace=True)
        self.produce = check(Action.PRODUCE)
        self.consume = check(Action.CONSUME)
        # Any authenticated caller.
        self.anybody = check(None)
        # Brokers of this cluster, for themselves.
        self.brokers: Dependency = Depends(OfBrokers(gateway, None))
        # Any caller: probes and scrapers have no token.
        self.nobody = check(None, known=False)


async def check_before_body(scope: Scope) -> None:
    """Run the checks of the route before the body is read. Raises HTTPException.

    Why: FastAPI reads and parses a body before it runs dependencies. A caller without permission must not cause that
    work.
    """
    for check in _checks(scope.get("route")):
        try:
            await check(Request(scope))
        except PenstockError as error:
            raise HTTPException(error.http_status, str(error)) from error


def unguarded(app: FastAPI) -> list[str]:
    """Return the routes of an application that have no check."""
    return [str(getattr(route, "path", route)) for route in _routes(app.routes) if not _checks(route)]


def _administers(access: Access, asker: Caller, tenant: str) -> bool:
    try:
        access.require(asker.role, asker.original_role, Action.TENANT_ADMIN, tenant)
    except AuthorizationFailed:
        return False
    return True


def _named_by_peer(request: Request) -> Asker:
    """Return who asks, as another broker says. Raises AuthenticationFailed."""
    try:
        asker = decode_asker(request.headers.get(HEADER, ""))
    except ValueError as error:
        raise AuthenticationFailed(f"a broker has passed on a request, and {error}") from error
    if isinstance(asker, Caller) and not asker.role:
        raise AuthenticationFailed("a broker has passed on a request of a caller that it has not authenticated")
    return asker


def _original_role(request: Request) -> str | None:
    """Return the role that a proxy names; None: none. Raises AuthorizationFailed for one that may have been changed."""
    named = request.headers.getlist(ORIGINAL_HEADER)
    if len(named) > 1:
        # A proxy that adds its header behind one of its caller's: which of them is meant, nobody can know.
        raise AuthorizationFailed(f"the header {ORIGINAL_HEADER} came {len(named)} times, and may come once")
    if not named or not named[0]:
        return None
    check_passed_role(named[0])
    return named[0]


async def _access_of(broker: Administration) -> Access:
    return broker.access


def _resource(action: Action, path: Mapping[str, str], *, of_namespace: bool) -> Resource:
    """Return the resource that the path names, as far as the action concerns it. Raises InvalidTopicName."""
    if action is Action.SUPERUSER:
        return None
    if action is Action.TENANT_ADMIN:
        return path["tenant"]
    if action is Action.NAMESPACE_ADMIN or of_namespace or "topic" not in path:
        return NamespaceName(path["tenant"], path["namespace"])
    domain = path.get("domain", "persistent")
    return TopicName.parse(f"{domain}://{path['tenant']}/{path['namespace']}/{path['topic']}")


def _routes(routes: Iterable[object]) -> Iterator[object]:
    """Yield every route, also those of included routers, which newer releases of FastAPI keep apart."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from included()


def _checks(route: object) -> list[Check]:
    dependant = getattr(route, "dependant", None)
    return [each.call for each in getattr(dependant, "dependencies", ()) if isinstance(each.call, Check)]
