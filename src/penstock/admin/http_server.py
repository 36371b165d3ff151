# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the admin ports: uvicorn, and its limits.

Why limits: a caller must not be able to use up the broker's file descriptors or memory by sending little, slowly.
uvicorn limits the size of a request's head and the time between requests; `api` limits bodies. This module adds time
limits for complete requests and for reading the response, and limits the number of connections, unfinished TLS
handshakes included. Where: `server` imports this on its thread, at the first connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.admin.credentials import CERTIFICATE
from penstock.admin.http_memory import HttpMemory
from penstock.admin.middleware import PEER
from penstock.net.peer_socket import accept as accept_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from penstock.admin.server import AdminServer, Application

log = logging.getLogger(__name__)

IDLE_S: Final = 5
REQUEST_S: Final = 10.0
HANDSHAKE_S: Final = 10.0
# Without file descriptors, wait this long before accepting again; callers stay in the listen backlog meanwhile.
ACCEPT_PAUSE_S: Final = 0.2
# A response must be received within this many times `REQUEST_S`, even if the caller receives a little of it each time.
ANSWER_CHECKS_MAX: Final = 6
# When all connections are in use, one that was idle for this long is closed for a new one.
IDLE_IN_THE_WAY_S: Final = 1.0
# The first bytes of a TLS handshake. No request begins like this.
TLS_START: Final = b"\x16\x03"


class PunctualProtocol(H11Protocol):
    """A connection that is closed when it sends no request and receives no response for `REQUEST_S`.

    A body must arrive within that time too, even if some of it keeps coming; otherwise the response is 408. Unreadable
    requests, and those whose head is too large, are answered in the common format of errors.
    """

    _seen: tuple[object, int] = (None, 0)
    _timer: asyncio.TimerHandle | None = None
    _heard = False
    _unsent_checks = 0  # of the current response
    _quiet_since_s = 0.0
    began: Callable[[PunctualProtocol], None] | None = None
    ended: Callable[[PunctualProtocol], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self.app_state = {**self.app_state, CERTIFICATE: tls.getpeercert() or None}
        self._quiet_since_s = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_S, self._check)
        if self.began is not None:
            self.began(self)

    def quiet_since_s(self) -> float | None:
        """Return since when the connection is idle, in the loop's time; None during a request."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete and self.conn.their_state is not h11.SEND_BODY:
            return None
        return self._quiet_since_s

    def on_response_complete(self) -> None:
        self._quiet_since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        if self.ended is not None:
            self.ended(self)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, unless they are TLS."""
        if not self._heard and self.scheme == "http" and data.startswith(TLS_START):
            address = ":".join(map(str, self.client or ("unknown",)))
            log.info("caller %s speaks TLS, and this port is for those without; see webServicePortTls", address)
            self.transport.abort()
            return
        self._heard = True
        super().data_received(data)

    def _check(self) -> None:
        # There is a new cycle for each request, and none before the first; uvicorn's types do not say so.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        unsent_bytes = self.transport.get_write_buffer_size()
        answering = cycle is not None and not cycle.response_complete
        waits_for_us = answering and unsent_bytes == 0 and self.conn.their_state is not h11.SEND_BODY
        if self._seen == (cycle, unsent_bytes) and not waits_for_us:
            if answering:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {REQUEST_S:g} s")
            else:
                self.transport.abort()
            return
        self._unsent_checks = self._unsent_checks + 1 if answering and unsent_bytes and self._seen[0] is cycle else 0
        if self._unsent_checks >= ANSWER_CHECKS_MAX:
            self.transport.abort()
            return
        self._seen = (cycle, unsent_bytes)
        self._timer = self.loop.call_later(REQUEST_S, self._check)

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; uvicorn calls this where it has caught the error."""
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", None) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            limit = self.config.h11_max_incomplete_event_size
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head is larger than {limit} bytes")
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, f"not a request: {error or msg}")

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer and close; only close, if another response has begun."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()
            return
        body = json.dumps({"reason": reason})
        # Not through h11: the application may still wait for the rest of a body, and h11's state must stay as it is.
        self.transport.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()
        )
        self.transport.close()


class AdminHttp(uvicorn.Server):
    """uvicorn on two ports; this class accepts the connections itself.

    Why not asyncio's servers: they have no limit of connections, and keep the TLS context they started with.
    """

    def __init__(self, config: uvicorn.Config, ports: AdminServer) -> None:
        super().__init__(config)
        self._ports = ports
        self._open = 0  # connections, TLS handshakes included
        self._refusing = False
        self._pausing = False
        self._callers: dict[PunctualProtocol, None] = {}  # the oldest first
        self._handshakes: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        for sock in self._sockets():
            asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and let current responses finish."""
        for sock in self._sockets():
            asyncio.get_running_loop().remove_reader(sock.fileno())
            sock.close()
        for handshake in self._handshakes:
            handshake.cancel()
        self.config.timeout_graceful_shutdown = self._ports.grace_s  # type: ignore[assignment]  # it may have fractions
        await super().shutdown(sockets)
        unfinished = cast("set[PunctualProtocol]", self.server_state.connections)
        self._ports.cut_off = len(unfinished)
        for connection in unfinished:
            connection.transport.abort()
        await asyncio.sleep(0)  # Then they are closed.

    def _sockets(self) -> list[socket.socket]:
        ports = self._ports
        return [sock for sock in (ports.plain_socket, ports.secure_socket, ports.peers_socket) if sock is not None]

    def _accept(self, listening: socket.socket) -> None:
        of_peers = listening is self._ports.peers_socket
        try:
            sock, address = (accept_peer(listening), ("",)) if of_peers else listening.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            self._pause(listening, error)
            return
        self._pausing = False
        if of_peers:
            self._accept_peer(sock)
            return
        if self._open >= self._ports.limits.connections_max and not self._make_way():
            if not self._refusing:  # Log it once, until a caller is accepted again.
                log.warning("caller %s is turned away: %d connections are open", address[0], self._open)
            self._refusing = True
            sock.close()
            return
        self._refusing = False
        self._open += 1
        sock.setblocking(False)
        # A head and its body are two writes: the second must not wait 40 ms for the caller's delayed acknowledgement.
        # asyncio does this only for sockets that it creates itself.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._ports.tls if listening is self._ports.secure_socket else None
        task = asyncio.get_running_loop().create_task(self._connect(sock, address[0], tls))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _accept_peer(self, sock: socket.socket) -> None:
        """Serve another broker, whose connections do not count: they are those of callers that it has accepted."""
        task = asyncio.get_running_loop().create_task(self._connect_peer(sock))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _connect_peer(self, sock: socket.socket) -> None:
        def protocol() -> PunctualProtocol:
            return PunctualProtocol(self.config, self.server_state, {**self.lifespan.state, PEER: True})

        await asyncio.get_running_loop().connect_accepted_socket(protocol, sock)

    async def _connect(self, sock: socket.socket, address: str, tls: ssl.SSLContext | None) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._new_protocol, sock, ssl=tls, ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None
            )
        except OSError as error:
            self._open -= 1
            log.info("caller %s: TLS handshake failed: %s", address, _plain_reason(error))

    def _new_protocol(self) -> PunctualProtocol:
        protocol = PunctualProtocol(self.config, self.server_state, self.lifespan.state)
        protocol.began = self._began
        protocol.ended = self._ended
        return protocol

    def _began(self, protocol: PunctualProtocol) -> None:
        self._callers[protocol] = None

    def _ended(self, protocol: PunctualProtocol) -> None:
        # A connection that was closed for another one is not counted any more.
        if protocol in self._callers:
            del self._callers[protocol]
            self._open -= 1

    def _make_way(self) -> bool:
        """Close the connection that was idle for longest; return False if all have a current request."""
        now_s = asyncio.get_running_loop().time()
        quiet = {caller: since_s for caller in self._callers if (since_s := caller.quiet_since_s()) is not None}
        caller = min(quiet, key=quiet.__getitem__, default=None)
        if caller is None or quiet[caller] > now_s - IDLE_IN_THE_WAY_S:
            return False
        self._ended(caller)
        caller.transport.abort()
        return True

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        if not self._pausing:  # Log it once, not at every retry.
            log.warning("cannot accept callers: %s", error.strerror or error)
        self._pausing = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        loop.call_later(ACCEPT_PAUSE_S, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)


def _plain_reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in {"HTTP_REQUEST", "WRONG_VERSION_NUMBER"}:
            return "the caller does not speak TLS; see webServicePort"
        return error.reason.lower().replace("_", " ")
    return str(error) or type(error).__name__


def _is_no_cut(record: logging.LogRecord) -> bool:
    """Return whether a line of uvicorn is not about responses that a stop cuts off: it writes a traceback of each."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError) and not record.getMessage().startswith("Cancel ")


def http_server(ports: AdminServer, application: Application) -> uvicorn.Server:
    """Return the server, to be started without other sockets than those of `ports`."""
    limits = ports.limits
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)
    config = uvicorn.Config(
        application(HttpMemory(ports.memory, entry_bytes_max=limits.entry_bytes_max)),
        http=PunctualProtocol,
        ws="none",
        lifespan="off",
        log_config=None,  # its lines go to the same log as all others
        log_level="error",  # errors of clients are not logged
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=limits.head_bytes_max,
        timeout_keep_alive=IDLE_S,
    )
    return AdminHttp(config, ports)
