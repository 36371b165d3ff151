# SPDX-License-Identifier: Apache-2.0
"""Identity of one client of the proxy: its role, its expiry, and what brokers are told about it.

Theory of operation
    Without authentication at the proxy, brokers are shown the client's own credentials, and check them.
    With it, the client is authenticated here. Brokers are shown the proxy's credentials and the client's role
    (`original_principal`); with `forwardAuthorizationCredentials` also what the client has shown, which brokers may
    check again. Values that a client itself writes into those fields are dropped.

    Expiry.     Credentials are looked at every `authenticationRefreshCheckSeconds`. If they have expired, the client is
                challenged and has until the next look to show new ones of the same role; a client that cannot is
                disconnected. A lookup of a client whose credentials have expired waits for new ones.
    Challenges. A broker challenges, too, if it checks what was forwarded: its challenge is passed on to the client. An
                answer to a challenge of the proxy ends here; any other is checked here and passed on. If the client's
                credentials are not forwarded, a broker means the proxy's, which is what it is answered with.
Where: each session has one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.authentication.credentials import Credentials, CredentialsExpired
from penstock.core.caller import check_passed_role
from penstock.core.errors import AuthenticationFailed, AuthorizationFailed, ServiceNotReady, WireCode
from penstock.governance.budget import Charge
from penstock.proxy.upstreams import VERSION, Identity, own_refused
from penstock.wire import codec
from penstock.wire.client.events import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.authentication.credentials import Identity as Found
    from penstock.authentication.identification import Identification
    from penstock.net.connection import Connection
    from penstock.net.keep_alive import Requests
    from penstock.net.own_credentials import OwnCredentials
    from penstock.proxy.proxy import Services
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address

log = logging.getLogger(__name__)

REFRESH: Final = b"PulsarAuthRefresh"
# The request id of what answers no request.
NO_REQUEST: Final = 2**64 - 1
# How long a lookup waits for new credentials: clients wait 30 s for its answer.
RENEWAL_S: Final = 20.0
_NO_METHOD: Final = "none"
# Prefix of the protocol's first authentication methods: AuthMethodAthens.
_LEGACY_PREFIX: Final = len("AuthMethod")
_METHOD_CHARS_MAX: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How a proxy authenticates its clients, and itself.

    Attributes:
        own: the credentials that brokers are shown.
        forward: whether they are also shown what the client has shown.
        methods: the enabled ones, for error texts.
        proxy_roles: roles of proxies, which clients cannot have.
        refresh_check_ns: how often credentials are looked at.
    """

    identification: Identification
    own: OwnCredentials
    forward: bool = False
    methods: frozenset[str] = frozenset()
    proxy_roles: frozenset[str] = frozenset()
    refresh_check_ns: int

    async def client(self, credentials: Credentials) -> Found:
        """Return the identity that these credentials prove, for a connection or a request to the admin port.

        Raises:
            AuthenticationFailed: they prove none; the reason is for the log.
            AuthorizationFailed: its role cannot be a client's, or cannot be passed on to brokers.
        """
        found = await self.identification.identify(credentials)
        if found.role in self.proxy_roles:
            raise AuthorizationFailed(f"Invalid roles: {found.role!r} is a proxy's (proxyRoles), and no client's")
        check_passed_role(found.role)
        return found


class ClientIdentity:
    """The identity of one client. All methods are called on the event loop.

    Attributes:
        identity: as brokers are told it; None before the client is authenticated.
    """

    def __init__(
        self, connection: Connection, services: Services, requests: Requests, reply: Callable[[bytes], None]
    ) -> None:
        """Args: reply: sends the client a frame of the proxy's own."""
        self.identity: Identity | None = None
        self.role: str | None = None  # authenticated here
        self._connection = connection
        self._services = services
        self._requests = requests
        self._reply = reply
        self._method = _NO_METHOD
        self._can_refresh = False
        self._protocol_version = 0
        self._expires_ms: int | None = None
        self._next_check_ns = 0
        self._challenges = 0  # of the proxy, without an answer so far
        self._postponed = False
        self._renewed: asyncio.Future[None] | None = None  # for those who wait for new credentials
        self._memory = Charge(services.sessions_memory)

    @property
    def own(self) -> OwnCredentials | None:
        """The proxy's credentials, if brokers are shown those."""
        authentication = self._services.authentication
        return None if authentication is None else authentication.own

    # -- CONNECT ------------------------------------------------------------------------------------------------------

    async def authenticate(self, body: codec.CommandConnect) -> Identity:
        """Return what brokers are told about the client that sent this CONNECT.

        Raises:
            AuthenticationFailed: its credentials are not accepted; the text is for the client.
            AuthorizationFailed: its role cannot be a client's.
            ServiceNotReady: there is no memory for another client's credentials.
        """
        self._method = _method(body)
        self._can_refresh = body.feature_flags.supports_auth_refresh
        self._protocol_version = body.protocol_version
        authentication = self._services.authentication
        if authentication is None:
            self._set(
                Identity(
                    self._method,
                    body.auth_data,
                    body.original_principal,
                    body.original_auth_data,
                    body.original_auth_method,
                )
            )
        else:
            self._set(await self._identified(authentication, body.auth_data))
            self._next_check_ns = self._services.clock.monotonic_ns() + authentication.refresh_check_ns
        assert self.identity is not None
        return self.identity

    async def _identified(self, authentication: Authentication, data: bytes) -> Identity:
        """Authenticate, and remember until when.

        Raises:
            AuthenticationFailed, AuthorizationFailed: the text is for the client.
        """
        try:
            found = await authentication.client(Credentials(self._method, data, self._connection.certificate))
        except AuthorizationFailed:
            raise
        except CredentialsExpired as error:
            raise AuthenticationFailed(
                "Failed to authenticate: the credentials have expired; give the client new ones"
            ) from error
        except AuthenticationFailed as error:
            raise AuthenticationFailed(
                f"Failed to authenticate with method {self._method[:_METHOD_CHARS_MAX]!r}: give the client valid "
                f"credentials for {' or '.join(sorted(authentication.methods))}; the proxy's log says what was wrong"
            ) from error
        except Exception as error:
            # An internal error of a provider refuses the client, too.
            log.exception("connection %s: authentication failed", self._connection.peer)
            raise AuthenticationFailed("Failed to authenticate: internal error; the proxy's log has it") from error
        if self.role is not None and found.role != self.role:
            raise AuthenticationFailed(
                "Failed to authenticate: the role of a connection cannot change; open another connection"
            ) from AuthenticationFailed(f"role {self.role!r} cannot become {found.role!r} in a refresh")
        own = authentication.own
        identity = Identity(own.method, b"", found.role, own=own)
        if authentication.forward:
            identity = identity._replace(original_data=_as_text(data), original_method=self._method)
        self.role, self._expires_ms = found.role, found.expires_ms
        return identity

    def greeting(self, connect: codec.CommandConnect) -> codec.CommandConnect:
        """Return the CONNECT that a broker is sent for this client's.

        It names the proxy as `proxy_to_broker_url`: brokers know by it that a proxy is in between, which counts what
        they deliver. Unlike `proxy_version`, this needs no role of a proxy.
        """
        assert self.identity is not None, "the client is authenticated first"
        if self.own is None:
            greeting = codec.CommandConnect()
            greeting.CopyFrom(connect)
        else:
            greeting = self.identity.hello().body(self.identity.shown())
            greeting.client_version = connect.client_version
            greeting.protocol_version = connect.protocol_version
            greeting.feature_flags.CopyFrom(connect.feature_flags)
        greeting.proxy_to_broker_url = VERSION
        return greeting

    def _set(self, identity: Identity) -> None:
        """Remember this identity, and charge for it. Raises ServiceNotReady."""
        self._memory.recharge_for("a client with its credentials", sum(len(each) for each in identity[:5]))
        self.identity = identity

    def close(self) -> None:
        """The client is gone."""
        self._memory.release()
        if self._renewed is not None and not self._renewed.done():
            self._renewed.cancel()

    # -- expiry -------------------------------------------------------------------------------------------------------

    def _has_expired(self) -> bool:
        return self._expires_ms is not None and self._services.clock.wall_ms() >= self._expires_ms

    def check(self, now_ns: int) -> None:
        """Challenge a client whose credentials have expired; close it if it cannot answer, or did not answer."""
        if now_ns < self._next_check_ns or not self._has_expired():
            return
        authentication = self._services.authentication
        assert authentication is not None, "only credentials that are checked here expire"
        connection = self._connection
        if not self._can_refresh:
            connection.close("the credentials have expired, and the client cannot refresh them")
        elif not self._challenges:
            self._challenge()
        elif connection.muted and not self._postponed:
            # It is not read at the moment, so its answer may be unread. Once more, and not for ever.
            self._postponed = True
            self._next_check_ns = now_ns + authentication.refresh_check_ns
        else:
            connection.close("the credentials have expired, and the client did not refresh them in time")

    def _challenge(self) -> None:
        authentication = self._services.authentication
        if authentication is not None:
            self._next_check_ns = self._services.clock.monotonic_ns() + authentication.refresh_check_ns
        self._challenges += 1
        self._postponed = False
        self._reply(codec.auth_challenge(VERSION, self._protocol_version, self._method, REFRESH))

    async def valid(self) -> Identity:
        """Return the identity, after a renewal if its credentials have expired."""
        assert self.identity is not None, "the client is authenticated first"
        if self._has_expired():
            await self.renewed(self.identity)
        return self.identity

    async def renewed(self, refused: Identity) -> bool:
        """Ask the client for new credentials, unless it has shown some since; returns whether it has."""
        if self.identity is not refused:
            return True
        if not self._can_refresh:
            return False
        if self._renewed is None:
            self._renewed = self._services.loop.create_future()
        waiting = self._renewed
        if not self._challenges:
            self._challenge()
        try:
            async with asyncio.timeout(RENEWAL_S):
                await asyncio.shield(waiting)
        except TimeoutError:
            return False
        return True

    # -- AUTH_RESPONSE ------------------------------------------------------------------------------------------------

    def answered(self, body: codec.CommandAuthResponse, to_broker: Callable[[codec.CommandAuthResponse], None]) -> None:
        """Take the client's answer to a challenge; `to_broker` sends one to the client's broker, if it has one."""
        ours = self._challenges > 0
        self._challenges -= ours
        if self._services.authentication is not None:
            self._requests.command_bytes = body.ByteSize()
            refresh = partial(self._refresh, self._services.authentication, body, ours, to_broker)
            self._requests.start(NO_REQUEST, refresh)
        elif ours and self.identity is not None:
            self._renew(self.identity._replace(data=body.response.auth_data))
        else:
            to_broker(body)

    async def _refresh(
        self,
        authentication: Authentication,
        body: codec.CommandAuthResponse,
        ours: bool,  # noqa: FBT001 - bound by `answered`
        to_broker: Callable[[codec.CommandAuthResponse], None],
    ) -> None:
        try:
            identity = await self._identified(authentication, body.response.auth_data)
        except (AuthenticationFailed, AuthorizationFailed) as error:
            log.warning("connection %s is refused: %s", self._connection.peer, error.__cause__ or error)
            self._reply(codec.error(NO_REQUEST, error.wire_code, str(error)))
            self._connection.close_after_flush(f"refused: {error}")
            return
        log.info("connection %s refreshed its credentials as role %r", self._connection.peer, self.role)
        self._renew(identity)
        if not ours and authentication.forward:
            to_broker(body)
        elif not ours:
            self.answer_for_proxy(to_broker)

    def answer_for_proxy(self, to_broker: Callable[[codec.CommandAuthResponse], None]) -> None:
        """Answer a challenge that means the proxy."""
        assert self.own is not None, "brokers are shown the proxy's credentials"
        answer = codec.CommandAuthResponse(client_version=VERSION, protocol_version=self._protocol_version)
        answer.response.auth_method_name = self.own.method
        answer.response.auth_data = self.own.read()
        to_broker(answer)

    def explained(self, frame: bytes, body: Body, broker: Address) -> bytes:
        """Return what the client is sent for a broker's answer to CONNECT: an error that it can understand."""
        assert self.identity is not None, "the client is authenticated first"
        error = own_refused(broker, self.identity, RequestRefused(body.error, body.message, "the connection"))
        return frame if error is None else codec.error(NO_REQUEST, WireCode.SERVICE_NOT_READY, str(error))

    def _renew(self, identity: Identity) -> None:
        try:
            self._set(identity)
        except ServiceNotReady as error:
            self._connection.close(str(error))
            return
        waiting, self._renewed = self._renewed, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def _as_text(data: bytes) -> str:
    """Return what a client has shown as it is forwarded. Raises AuthenticationFailed if it would arrive changed."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationFailed(
            "Failed to authenticate: the credentials are not UTF-8, so the proxy cannot forward them to brokers "
            "(forwardAuthorizationCredentials)"
        ) from None


def _method(body: codec.CommandConnect) -> str:
    if body.HasField("auth_method_name"):
        return body.auth_method_name
    if body.HasField("auth_method"):
        return codec.AuthMethod.Name(body.auth_method)[_LEGACY_PREFIX:].lower()
    return _NO_METHOD
