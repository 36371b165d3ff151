# SPDX-License-Identifier: Apache-2.0
"""Authentication of requests to a proxy's admin port, and what the cluster is told about their callers.

Why around the whole application: a route that is added later is guarded, too; only the paths of `open_paths` are not.
As in Pulsar's proxy, a request to the cluster carries the proxy's credentials, and the caller's role in
X-Original-Principal; what the caller itself writes there is dropped.
Where: `proxy_api` wraps its application in it if the proxy authenticates its clients.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse

from penstock.admin.credentials import METHOD_HEADER, ORIGINAL_HEADER, credentials_of
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed, PenstockError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.proxy.client_identity import Authentication

log = logging.getLogger(__name__)

# The key of the caller's role in the scope of a request.
_ROLE: Final = "penstock.role"
# Headers by which callers say who they are.
_OF_CALLERS: Final = frozenset({"authorization", METHOD_HEADER, ORIGINAL_HEADER})
_ALWAYS_OPEN: Final = frozenset({"/healthz", "/status.html"})
_METRICS: Final = "/metrics"
# Paths of the cluster, whose brokers decide what a role may do there.
_OF_CLUSTER: Final = ("/admin/", "/lookup/")
# Among them are paths of the proxy itself, which `penstock why` asks.
OWN_PATHS: Final = "/admin/v3/why/"


class ProxyGuard:
    """Lets authenticated requests through."""

    def __init__(
        self, authentication: Authentication, *, metrics_open: bool, superusers: frozenset[str] | None
    ) -> None:
        """Args: superusers: who may read what the proxy tells of itself, but for metrics; None: every role."""
        self._authentication = authentication
        self._open = _ALWAYS_OPEN | {_METRICS} if metrics_open else _ALWAYS_OPEN
        self._superusers = superusers

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind this guard."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] not in self._open:
                try:
                    scope[_ROLE] = await self._role(Request(scope))
                except PenstockError as error:
                    await JSONResponse({"reason": str(error)}, error.http_status, _asked(error))(scope, receive, send)
                    return
            await app(scope, receive, send)

        return guarded

    def to_cluster(self, request: Request, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the headers of a request that is sent on."""
        kept = [(name, value) for name, value in headers if name not in _OF_CALLERS]
        return [*kept, *self._authentication.own.http_headers(), (ORIGINAL_HEADER, request.scope[_ROLE])]

    async def _role(self, request: Request) -> str:
        """Return the caller's role. Raises AuthenticationFailed, AuthorizationFailed."""
        authentication = self._authentication
        try:
            role = (await authentication.client(credentials_of(request))).role
        except AuthenticationFailed as error:
            client = f"{request.client.host}:{request.client.port}" if request.client is not None else "unknown"
            log.warning("request of %s is refused: %s", client, error)
            raise AuthenticationFailed(
                f"Authentication required: send valid credentials for {' or '.join(sorted(authentication.methods))}; "
                f"the proxy's log says what was wrong"
            ) from error
        path = request.scope["path"]
        theirs = path == _METRICS or (path.startswith(_OF_CLUSTER) and not path.startswith(OWN_PATHS))
        if not theirs and self._superusers is not None and role not in self._superusers:
            raise AuthorizationFailed(f"role {role!r} is not among superUserRoles of this proxy")
        return role


def _asked(error: PenstockError) -> dict[str, str] | None:
    return {"www-authenticate": "Bearer"} if error.http_status == HTTPStatus.UNAUTHORIZED else None
