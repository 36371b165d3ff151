# SPDX-License-Identifier: Apache-2.0
"""The brokers behind a proxy: how they are reached, and the connections on which lookups are asked.

Lookups of clients with the same credentials share a connection to each broker. Everything else of a client has a
connection of its own (`relay`). A connection that nobody has used for a minute is closed.
Where: `session` asks for one per lookup.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock import __version__
from penstock.core.errors import ServiceNotReady, WireCode
from penstock.core.units import NS_PER_S
from penstock.net.client import AskingClient, AsyncClient
from penstock.wire.client.connection import ClientConnection, Hello
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import FRAME_BYTES_MAX
from penstock.wire.codec import PROXY_NAME

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.net.own_credentials import OwnCredentials
    from penstock.wire.client.lookup import Address

log = logging.getLogger(__name__)

IDLE_NS: Final = 60 * NS_PER_S
# What a proxy says of itself. Brokers with authorization accept it from proxy roles only, so it is left out without.
VERSION: Final = f"{PROXY_NAME}{__version__}"


class Identity(NamedTuple):
    """Identity of a connection to a broker: the proxy's or the client's credentials, and the client's role.

    Connections and answers are shared by clients only if all of this is equal.
    """

    method: str
    data: bytes  # of a client; empty for the proxy's own
    original_principal: str = ""
    original_data: str = ""
    original_method: str = ""
    own: OwnCredentials | None = None  # the proxy's, for a client that was authenticated here, or for itself

    def shown(self) -> bytes:
        """Return what the broker is shown now."""
        return self.data if self.own is None else self.own.read()

    @property
    def speaks_for_client(self) -> bool:
        """Whether this is the proxy, and what it does for a client."""
        return self.own is not None and bool(self.original_principal)

    def hello(self) -> Hello:
        """Return what CONNECT says."""
        return Hello(
            auth_method=self.method,
            original_principal=self.original_principal,
            original_auth_data=self.original_data,
            original_auth_method=self.original_method,
            proxy_version=VERSION if self.speaks_for_client else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamOptions:
    """How brokers are reached."""

    addresses: tuple[Address, ...]  # of the cluster, tried in turn
    tls: ssl.SSLContext | None = None
    own_tls: ssl.SSLContext | None = None  # with the proxy's certificate, which is not shown for what clients show
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 25.0

    def context(self, address: Address, identity: Identity) -> ssl.SSLContext | None:
        """Return the TLS context for a connection to this broker; None: without TLS."""
        if not address.tls:
            return None
        found = self.tls if identity.own is None else self.own_tls or self.tls
        assert found is not None, "an address with TLS is never reached without"
        return found


class LookupsFull(ServiceNotReady):
    """All connections for lookups are in use."""


@dataclass(slots=True)
class _Shared:
    client: AskingClient
    used_ns: int
    users: int = 0


@dataclass(slots=True)
class Upstreams:
    """Connections to brokers, by broker and identity."""

    options: UpstreamOptions
    clock: Clock
    memory: Row  # of large answers
    connections_max: int = 200  # each remembers up to 64 KiB of a client's credentials
    _open: dict[tuple[Address, Identity], _Shared] = field(default_factory=dict)
    _opening: dict[tuple[Address, Identity], asyncio.Task[_Shared]] = field(default_factory=dict)
    _silent_ns: dict[Address, int] = field(default_factory=dict)  # when an address did not answer last

    def __len__(self) -> int:
        return len(self._open)

    async def dial(self, address: Address) -> socket.socket:
        """Return a socket that is connected to this broker. Raises ServiceNotReady."""
        try:
            async with asyncio.timeout(self.options.connect_timeout_s):
                return await _connected(address)
        except (OSError, TimeoutError) as error:
            reason = str(error) or f"no answer within {self.options.connect_timeout_s:g} s"
            raise ServiceNotReady(f"broker {address} cannot be reached: {reason}") from error

    @contextlib.asynccontextmanager
    async def client(self, address: Address, identity: Identity) -> AsyncIterator[AsyncClient]:
        """Lend the connection to this broker for this identity. Raises ServiceNotReady, RequestRefused."""
        key = address, identity
        shared = self._open.get(key)
        if shared is None or shared.client.is_over:
            shared = await self._opened(key)
        shared.users += 1
        try:
            yield shared.client
        finally:
            shared.users -= 1
            shared.used_ns = self.clock.monotonic_ns()

    async def cluster(self, identity: Identity) -> Address:
        """Return the first address of the cluster that accepts this identity. Raises as `client`.

        An address that did not answer is asked last from then on: a broker may be frozen, which no connection tells.
        """
        error: ServiceNotReady | None = None
        for address in sorted(self.options.addresses, key=lambda one: self._silent_ns.get(one, -1)):
            try:
                async with self.client(address, identity):
                    return address
            except LookupsFull:
                raise
            except ServiceNotReady as failed:
                self.did_not_answer(address)
                error = failed
        assert error is not None
        raise error

    def did_not_answer(self, address: Address) -> None:
        """Ask this address last."""
        if address in self.options.addresses:
            self._silent_ns[address] = self.clock.monotonic_ns()

    async def _opened(self, key: tuple[Address, Identity]) -> _Shared:
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._open_one(key))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def _open_one(self, key: tuple[Address, Identity]) -> _Shared:
        self.close_idle(make_room=True)
        if len(self._open) + len(self._opening) > self.connections_max:
            raise LookupsFull(f"all {self.connections_max} connections for lookups are in use; try again")
        shared = self._open[key] = _Shared(await self._connect_to_ask(*key), self.clock.monotonic_ns())
        return shared

    async def _connect_to_ask(self, address: Address, identity: Identity) -> AskingClient:
        connection = ClientConnection(
            identity.hello(), credentials=lambda _challenge: identity.shown(), answer_bytes_max=FRAME_BYTES_MAX
        )
        with _explained(address, identity):
            return await AskingClient.open_charged(
                self.memory,
                address,
                connection,
                tls=self.options.context(address, identity),
                timeout_s=self.options.connect_timeout_s,
            )

    async def connect(self, address: Address, identity: Identity) -> AsyncClient:
        """Open a connection to a broker for the caller alone. Raises ServiceNotReady, RequestRefused."""
        connection = ClientConnection(identity.hello(), credentials=lambda _challenge: identity.shown())
        with _explained(address, identity):
            return await AsyncClient.open(
                address.host,
                address.port,
                connection,
                tls=self.options.context(address, identity),
                timeout_s=self.options.connect_timeout_s,
            )

    def close_idle(self, *, make_room: bool = False) -> None:
        """Close connections that are over or were not used for a minute; any idle one, if there is no room."""
        now_ns = self.clock.monotonic_ns()
        full = make_room and len(self._open) >= self.connections_max
        for key, shared in list(self._open.items()):
            if shared.client.is_over or (not shared.users and (full or now_ns - shared.used_ns >= IDLE_NS)):
                shared.client.close()
                del self._open[key]

    async def close(self) -> None:
        """Close all connections."""
        for task in self._opening.values():
            task.cancel()
        open_now, self._open = self._open, {}
        for shared in open_now.values():
            shared.client.close()
        for shared in open_now.values():
            await shared.client.closed()


@contextlib.contextmanager
def _explained(address: Address, identity: Identity) -> Iterator[None]:
    """Say to a client what it may do about a connection that failed. Raises ServiceNotReady, RequestRefused."""
    try:
        yield
    except RequestRefused as error:
        raise own_refused(address, identity, error) or error from error
    except (OSError, TimeoutError) as error:
        raise ServiceNotReady(f"broker {address} cannot be reached: {str(error) or 'no answer in time'}") from error


def own_refused(address: Address, identity: Identity, error: RequestRefused) -> ServiceNotReady | None:
    """Return the error for a client if a broker has refused the proxy's own credentials, which is not its fault."""
    if error.code != WireCode.AUTHENTICATION_ERROR or identity.own is None or identity.original_data:
        return None
    log.error("broker %s refuses the proxy's own credentials (brokerClientAuthentication…): %s", address, error.said)
    return ServiceNotReady(f"broker {address} refuses the credentials of this proxy, whose log says more; try again")


async def _connected(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    error: OSError | None = None
    for family, kind, protocol, _, where in await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, where)
        except OSError as failed:
            sock.close()
            error = failed
        except BaseException:
            sock.close()
            raise
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise error or OSError("it has no address")
