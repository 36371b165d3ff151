# SPDX-License-Identifier: Apache-2.0
"""A proxy before a broker, both on the test's loop: virtual time, and a network in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.authentication.identification import Identification
from penstock.broker.access.rules import AccessRules
from penstock.core.units import MIB, NS_PER_S
from penstock.governance.budget import Row
from penstock.governance.memory_pool import CommandMemory
from penstock.governance.outbound import Outbound
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import LENGTH_BYTES, RequestLimits
from penstock.groups.held_permits import PermitSteps
from penstock.groups.held_sends import HeldMemory
from penstock.net.listener import Connections, Listener, listen_for_clients
from penstock.net.listing_memory import TopicListLimits, TopicListMemoryLimiter
from penstock.net.own_credentials import OwnCredentials
from penstock.proxy.client_identity import Authentication
from penstock.proxy.groups import ProxyGroups
from penstock.proxy.listings import Listings
from penstock.proxy.proxy import Proxy, Services
from penstock.proxy.targets import AllowedTargets, Targets
from penstock.proxy.traffic import Traffic
from penstock.proxy.upstreams import UpstreamOptions, Upstreams
from penstock.testing.client import Type, frame
from penstock.testing.loop import VirtualLoop
from penstock.testing.tokens import SECRET, data_url, token
from penstock.wire.client.lookup import Address
from penstock.wire.relayed import RelayReader
from tests.net.harness import Client, Harness, close_clients, until

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncIterator, Callable
    from typing import Any

FRAME_BYTES_MAX: Final = MIB
REFRESH_NS: Final = 60 * NS_PER_S
# Longer than any test: no PING comes between.
KEEP_ALIVE_NS: Final = 10_000 * NS_PER_S
PROXY: Final = "proxy"
RULES: Final = AccessRules(
    authorizing=True,
    super_user_roles=frozenset({"root", PROXY}),
    proxy_roles=frozenset({PROXY}),
    refresh_check_ns=REFRESH_NS,
)


@dataclass(frozen=True)
class _Limits:
    keep_alive_ns: int = KEEP_ALIVE_NS
    liveness_check_ns: int = NS_PER_S


class _VirtualUpstreams(Upstreams):
    async def dial(self, address: Address) -> socket.socket:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        sock: Any = loop.network.connect(address.port)
        return sock  # type: ignore[no-any-return]


@dataclass
class Proxied:
    """A running proxy."""

    services: Services
    connections: Connections
    broker: Harness
    port: int
    tls_port: int
    closed: list[str]  # why clients were disconnected

    @property
    def target(self) -> str:
        """The broker, as a client asks for it."""
        (address,) = self.services.upstreams.options.addresses
        return f"{address.host}:{address.port}"

    async def connected(self, shown: str, **fields: Any) -> Client:  # noqa: ANN401
        """Return a client that has shown this token, and was let in."""
        client = await self.client(shown, **fields)
        await client.expect(Type.CONNECTED)
        return client

    async def client(self, shown: str, tls: ssl.SSLContext | None = None, **fields: Any) -> Client:  # noqa: ANN401
        """Return a client that has shown this token."""
        client = await Client.open(self.tls_port if tls is not None else self.port, tls)
        client.write(hello(shown, **fields))
        return client

    def roles(self) -> list[tuple[str | None, str | None]]:
        """Roles of the broker's connections: the proxy's, and for whom it asks."""
        return sorted((session.role, session.original_role) for session in self.broker.broker.sessions)


def hello(shown: str, *, refreshes: bool = False, **fields: Any) -> bytes:  # noqa: ANN401
    """Return a CONNECT with this token."""
    command = {
        "client_version": "test",
        "protocol_version": 20,
        "auth_method_name": "token",
        "auth_data": shown.encode(),
    }
    if refreshes:
        command["feature_flags"] = {"supports_auth_refresh": True}
    return frame(Type.CONNECT, **(command | fields))


def tokens(*methods: str) -> Authenticator:
    """Return providers of tokens, and of other methods."""
    return Authenticator(ProviderOptions(methods=frozenset({"token", *methods}), token_secret_key=data_url(SECRET)))


@asynccontextmanager
async def proxied(
    broker: Harness,
    *,
    authenticates: bool = True,
    forward: bool = False,
    anonymous: str | None = None,
    sessions_bytes: int = MIB,
    tls: ssl.SSLContext | None = None,
    providers: Callable[[], Authenticator] = tokens,
    own: OwnCredentials | None = None,
    brokers_tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    keep_alive_ns: int = KEEP_ALIVE_NS,
) -> AsyncIterator[Proxied]:
    """Compose a proxy as `penstock.proxy_app` does; at the end nothing may be charged.

    `brokers_tls`: for connections to the broker: what clients ask with their own credentials, and what the proxy does.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    clock = broker.clock
    connections = Connections(
        loop=loop,
        memory=RequestMemory(
            RequestLimits(request_bytes_max=16 * MIB, requests_max=-1, frame_bytes_max=FRAME_BYTES_MAX)
        ),
        outbound=Outbound(16 * MIB),
        clock=clock,
        frame_bytes_max=FRAME_BYTES_MAX - LENGTH_BYTES,
        new_reader=RelayReader,
    )
    sessions = Row("sessions", sessions_bytes)
    tls_contexts = brokers_tls or (None, None)
    address = Address("127.0.0.1", broker.port if brokers_tls is None else broker.tls_port, tls=brokers_tls is not None)
    options = UpstreamOptions(addresses=(address,), tls=tls_contexts[0], own_tls=tls_contexts[1])
    upstreams = _VirtualUpstreams(options, clock, sessions)
    limiter = TopicListMemoryLimiter(TopicListLimits(), clock=clock, loop=loop)
    identification = Identification(providers(), lambda: anonymous, clock)
    closed: list[str] = []
    services = Services(
        loop=loop,
        clock=clock,
        limits=lambda: _Limits(keep_alive_ns),
        upstreams=upstreams,
        listings=Listings(limiter, upstreams, clock, loop),
        groups=ProxyGroups(clock, loop),
        held=HeldMemory(connections.memory, clock),
        permit_steps=PermitSteps(clock, loop),
        targets=Targets(AllowedTargets(), (address,), tls=address.tls),
        release=connections.release,
        commands_memory=CommandMemory(MIB),
        sessions_memory=sessions,
        traffic=Traffic(),
        usage=None,
        frame_bytes_max=FRAME_BYTES_MAX,
        authentication=Authentication(
            identification=identification,
            own=own or OwnCredentials("token", data=token(PROXY).encode()),
            forward=forward,
            methods=frozenset({"token"}),
            proxy_roles=frozenset({PROXY}),
            refresh_check_ns=REFRESH_NS,
        )
        if authenticates
        else None,
        closed=lambda _session, reason: closed.append(reason),
    )
    proxy = Proxy(services, connections)
    ports = []
    listeners = []
    for context in (None, tls):
        listener = Listener(connections, listen_for_clients("127.0.0.1", 0, loop.network.socket), tls=context)
        listener.start(proxy.open_session)
        ports.append(listener.port)
        listeners.append(listener)
    proxy.start()
    try:
        yield Proxied(services, connections, broker, ports[0], ports[1], closed)
        await close_clients()
    finally:
        for listener in listeners:
            listener.close()
        await proxy.stop(1.0, closed.append)
        identification.close()
    await until(lambda: sessions.used_bytes == 0)
    await until(lambda: services.commands_memory.used_bytes == 0)
    await until(lambda: connections.memory.available == connections.memory.size)
