# SPDX-License-Identifier: Apache-2.0
"""A whole proxy on the test's own loop, before a broker that does what the test says, and clients of asyncio streams.

Why not processes: the test decides when the broker answers, and sees both sides of the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock import proxy_app, settings
from penstock.net.loop_turns import LoopTurns
from penstock.testing.client import Type, frame
from penstock.wire.client.frames import Frame, Inbound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TIMEOUT_S = 60.0


class Peer:
    """One end of a connection: frames in, frames out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._inbound = Inbound()
        self.client_version = ""  # as the other end has said, if this is a broker's

    async def read(self) -> Frame | None:
        """The next frame; None at the end."""
        while (came := self._inbound.take_frame()) is None:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self.reader.read(65_536)
            if not data:
                return None
            self._inbound.add(data)
        return came

    async def next(self, kind: int) -> Frame:
        """The next frame, which must be of this type."""
        came = await self.read()
        assert came is not None, "the connection ended"
        assert came.kind == kind, came.command
        return came

    def write(self, data: bytes) -> None:
        self.writer.write(data)


@dataclass
class ScriptedBroker:
    """Answers CONNECT and lookups, if it may; the test has the connections that were opened for clients, in order."""

    greets: bool = True
    port: int = 0
    opened: asyncio.Queue[Peer] = field(default_factory=asyncio.Queue)
    connections: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        peer = Peer(reader, writer)
        if self.greets:
            with contextlib.suppress(ConnectionError, AssertionError):
                peer.client_version = (await peer.next(Type.CONNECT)).body.client_version
                peer.write(frame(Type.CONNECTED, server_version="scripted", protocol_version=20))
        self.opened.put_nowait(peer)


@asynccontextmanager
async def scripted_broker(*, greets: bool = True) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker(greets)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        for writer in broker.connections:
            writer.close()


class RunningProxy:
    """A proxy of this process."""

    def __init__(self, serving: proxy_app.Serving, upstream: str) -> None:
        self.serving = serving
        self.upstream = upstream
        self.port = int(serving.url.rpartition(":")[2])
        self._clients: list[Peer] = []

    async def client(self) -> Peer:
        """A client that has not said anything yet."""
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(peer)
        return peer

    def close_clients(self) -> None:
        for peer in self._clients:
            peer.writer.close()

    def forget_clients(self) -> None:
        """Those of now are closed by the test."""
        self._clients.clear()

    def connect(self, client: Peer, *, through: bool = True, refreshes: bool = False) -> None:
        """Send CONNECT; `through`: to the broker; `refreshes`: it can show new credentials."""
        named: dict[str, object] = {"proxy_to_broker_url": self.upstream.partition("://")[2]} if through else {}
        if refreshes:
            named["feature_flags"] = {"supports_auth_refresh": True}
        client.write(frame(Type.CONNECT, client_version="test", protocol_version=20, **named))


@asynccontextmanager
async def running_proxy(upstream: str, **more: str) -> AsyncIterator[RunningProxy]:
    """Run a proxy with these settings, by their keys; stopping it closes all connections."""
    flags = {
        "brokerServiceURL": upstream,
        "brokerServicePort": "0",
        "webServicePort": "0",
        "bindAddress": "127.0.0.1",
        **more,
    }
    async with contextlib.AsyncExitStack() as stack:
        proxy = RunningProxy(await proxy_app.start(settings.load(flags=flags), LoopTurns(), stack), upstream)
        try:
            yield proxy
        finally:
            proxy.close_clients()


def dead_port() -> socket.socket:
    """A socket that is bound and does not listen: whoever connects to it is refused."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock
