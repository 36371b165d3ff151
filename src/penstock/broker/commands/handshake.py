# SPDX-License-Identifier: Apache-2.0
"""The handshake: CONNECT, AUTH_RESPONSE, and new challenges when credentials expire.

Where: called from the session's table of handlers. Other commands are refused until the handshake is complete. Its time
limit is enforced by the keep-alive.

Theory of operation, with authentication enabled:
    CONNECT names an authentication method. Its provider returns the role and the expiry time of the credentials; a slow
        provider runs on a thread. On any failure the client gets "Failed to authenticate" with request id -1 and is
        disconnected; the reason is logged.
    Every `authenticationRefreshCheckSeconds` credentials are checked. If they have expired and the client supports it,
        it is challenged and has until the next check to send credentials of the same role; other clients are
        disconnected. A client whose connection is not read at that moment loses its producers and consumers, and is
        challenged when it is read again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.authentication.credentials import Credentials
from penstock.broker.access import AccessControl
from penstock.broker.commands.authentication_state import AuthenticationState
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed, WireCode
from penstock.governance.holds import HoldKind
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.authentication.credentials import Identity
    from penstock.broker.access import Access
    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.limits import BrokerLimits
    from penstock.core.clock import Clock

log = logging.getLogger(__name__)

SERVER_VERSION: Final = f"Pulsar Server{__version__}-penstock"
PROTOCOL_VERSION_MAX: Final = 21
REFRESH: Final = b"PulsarAuthRefresh"
# The request id of an error answer to CONNECT, which has no id.
NO_REQUEST: Final = 2**64 - 1
_NO_METHOD: Final = "none"
# Prefix of the protocol's first authentication methods: AuthMethodAthens.
_LEGACY_PREFIX: Final = len("AuthMethod")


class Handshake:
    """Authenticates clients at CONNECT and when credentials expire. All methods are called on the event loop."""

    def __init__(self, *, access: Access, limits: Callable[[], BrokerLimits], clock: Clock) -> None:
        self._access = access if isinstance(access, AccessControl) else None
        self._limits = limits
        self._clock = clock
        self.handlers: Mapping[int, Handler] = {
            codec.BaseCommand.CONNECT: self._on_connect,
            codec.BaseCommand.AUTH_RESPONSE: self._on_auth_response,
        }

    def _on_connect(self, session: Session, body: codec.CommandConnect) -> None:
        if session.authentication is not None:
            # A client cannot change its role.
            session.connection.close("CONNECT came twice")
            return
        session.client_version = body.client_version
        # A client that was told to stay on the URL that it came by names its broker there, and is no proxy for that.
        named = body.proxy_to_broker_url.startswith(codec.PROXY_NAME)
        session.through_proxy = bool(body.proxy_version or body.original_principal or named)
        session.protocol_version = min(PROTOCOL_VERSION_MAX, body.protocol_version)
        session.names_positions = body.feature_flags.supports_repl_dedup_by_lid_and_eid
        access = self._access
        if access is None:
            self._welcome(session)
            return
        session.authentication = AuthenticationState(
            method=_method(body),
            can_refresh=body.feature_flags.supports_auth_refresh,
            next_check_ns=self._clock.monotonic_ns() + access.rules.refresh_check_ns,
        )
        session.requests.start(NO_REQUEST, partial(self._authenticate, session, session.authentication, access, body))

    async def _authenticate(
        self, session: Session, state: AuthenticationState, access: AccessControl, body: codec.CommandConnect
    ) -> None:
        try:
            certificate = session.connection.certificate
            identity = await access.identify(Credentials(state.method, body.auth_data, certificate))
            original_role, shown = await _original(access, state, body)
            _check_roles(access, identity.role, original_role, body)
        except (AuthenticationFailed, AuthorizationFailed) as error:
            _refuse(session, error)
            return
        except Exception:
            # An internal error of a provider refuses the client, too.
            log.exception("connection %s: authentication failed", session.connection.peer)
            _refuse(session, AuthenticationFailed("an error of our own"))
            return
        session.role, session.original_role = identity.role, original_role
        state.expires_ms = (shown or identity).expires_ms
        self._welcome(session)

    def _welcome(self, session: Session) -> None:
        session.connected = True
        session.connection.admit()
        limits = self._limits()
        session.reply(
            codec.connected(
                SERVER_VERSION,
                session.protocol_version,
                limits.message_bytes_max,
                topic_watchers=limits.topic_list_watchers,
                positions=True,
            )
        )

    def check_authentication(self, session: Session, state: AuthenticationState, now_ns: int) -> None:
        """Challenge a client whose credentials have expired; close it if it cannot answer, or did not answer."""
        if now_ns < state.next_check_ns or not session.connected:
            return
        if state.expires_ms is None or self._clock.wall_ms() < state.expires_ms:
            return
        connection = session.connection
        if state.challenged and any(mute.reason is not HoldKind.OUTBOUND for mute in connection.muted.snapshot()):
            # The connection is not read, so its answer may be unread: it is not closed, but cannot go on either.
            session.suspend("the credentials have expired, and are not refreshed while the client is muted")
            return
        state.next_check_ns = now_ns + self._limits().access.refresh_check_ns
        if session.original_role is not None and not state.of_original:
            connection.close("the credentials have expired, and those of a proxy's client are not shown to us")
        elif not state.can_refresh:
            connection.close("the credentials have expired, and the client cannot refresh them")
        elif state.challenged:
            connection.close("the credentials have expired, and the client did not refresh them in time")
        else:
            state.challenged = True
            session.reply(codec.auth_challenge(SERVER_VERSION, session.protocol_version, state.method, REFRESH))

    def _on_auth_response(self, session: Session, body: codec.CommandAuthResponse) -> None:
        """Check new credentials; an AUTH_RESPONSE without a challenge is ignored."""
        state, access = session.authentication, self._access
        if state is None or not state.challenged or access is None:
            return
        state.challenged = False
        session.requests.start(NO_REQUEST, partial(self._refresh, session, state, access, body.response.auth_data))

    async def _refresh(self, session: Session, state: AuthenticationState, access: AccessControl, data: bytes) -> None:
        expected = session.original_role if state.of_original else session.role
        try:
            # The certificate of the connection is the proxy's, never its client's.
            certificate = None if state.of_original else session.connection.certificate
            identity = await access.identify(Credentials(state.method, data, certificate))
            if identity.role != expected:
                raise AuthenticationFailed(f"role {expected!r} cannot become {identity.role!r} in a refresh")
            if identity.expired(self._clock.wall_ms()):
                raise AuthenticationFailed("what it was refreshed with has expired already")
        except AuthenticationFailed as error:
            _refuse(session, error)
        else:
            state.expires_ms = identity.expires_ms
            log.info("connection %s refreshed its credentials as role %r", session.connection.peer, expected)


def _method(body: codec.CommandConnect) -> str:
    if body.HasField("auth_method_name"):
        return body.auth_method_name
    if body.HasField("auth_method"):
        return codec.AuthMethod.Name(body.auth_method)[_LEGACY_PREFIX:].lower()
    return _NO_METHOD


async def _original(
    access: AccessControl, state: AuthenticationState, body: codec.CommandConnect
) -> tuple[str | None, Identity | None]:
    """Role of the client behind a proxy, and its identity if it is authenticated here.

    Raises:
        AuthenticationFailed: what is forwarded proves nothing, or another role. The certificate of the connection is
            no proof: it is the proxy's.
    """
    if not body.original_principal:
        return None, None
    if not access.rules.authenticate_original:
        return body.original_principal, None
    method = body.original_auth_method or _NO_METHOD
    shown = await access.identify(Credentials(method, body.original_auth_data.encode()))
    if shown.role != body.original_principal:
        raise AuthenticationFailed(
            f"the proxy says {body.original_principal!r}, and what it forwards is of {shown.role!r}"
        )
    state.of_original = True
    state.method = method
    return shown.role, shown


def _check_roles(access: AccessControl, role: str, original_role: str | None, body: codec.CommandConnect) -> None:
    access.check_pair(role, original_role)
    if access.rules.authorizing and body.HasField("proxy_version") and role not in access.rules.proxy_roles:
        raise AuthorizationFailed("Must not set proxyVersion without connecting as a ProxyRole.")


def _refuse(session: Session, error: AuthenticationFailed | AuthorizationFailed) -> None:
    """Send the client an authentication error, then close."""
    log.warning("connection %s is refused: %s", session.connection.peer, error)
    session.detach_all()
    unknown = isinstance(error, AuthenticationFailed)
    code = WireCode.AUTHENTICATION_ERROR if unknown else WireCode.AUTHORIZATION_ERROR
    session.reply(codec.error(NO_REQUEST, code, "Failed to authenticate" if unknown else "Invalid roles."))
    session.connection.close_after_flush(f"refused: {error}")
