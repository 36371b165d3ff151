# SPDX-License-Identifier: Apache-2.0
"""The admin port, and the one with TLS: bound at the start, without a thread until the first connection.

Why: the HTTP stack takes a fifth of a second and 10 MiB, which a broker in a test or at the edge never needs. The
kernel keeps the first connection waiting while it is imported. Why a thread: rendering ten thousand topics takes longer
than publishers should wait. Both ports share it. Where: app creates it, starts it when the broker is ready, and stops
it before the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    import uvicorn
    from starlette.types import ASGIApp

    from penstock.admin.gateway import Gateway
    from penstock.admin.http_memory import HttpMemory
    from penstock.governance.budget import Row
    from penstock.net.peers import Peers

    Application: TypeAlias = Callable[[HttpMemory], ASGIApp]

log = logging.getLogger(__name__)

# How long current responses may take when the broker stops.
GRACE_S: Final = 2.0
# What stopping the thread takes beside that: it looks ten times a second whether it shall, and waits for its tasks.
STOP_OVERHEAD_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """The limits of the admin ports, and the consoles of other clusters that theirs leads to, by name."""

    connections_max: int = 64  # of both ports; further ones are closed
    requests_max: int = 64  # at a time; further ones get 503
    head_bytes_max: int = 16 * KIB
    entry_bytes_max: int = 5 * MIB + 64 * KIB  # the largest possible entry
    consoles: tuple[tuple[str, str], ...] = ()


class AdminServer:
    """The HTTP ports. Its methods are called on the broker's loop."""

    def __init__(
        self,
        *,
        plain: socket.socket | None,
        loop: asyncio.AbstractEventLoop,
        secure: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
        peers: socket.socket | None = None,
        limits: HttpLimits | None = None,
        memory: Row | None = None,
    ) -> None:
        """Take listening sockets, without TLS and with it, and the inbox for other brokers; None: no such port.

        `memory` is shared by all requests; only the ports' thread charges it. `secure` needs `tls`, which may be
        replaced at any time: later connections use it.
        """
        self.tls = tls
        self.limits = limits or HttpLimits()
        self.memory = memory
        self._plain = plain
        self._secure = secure
        self.peers_socket = peers
        self.port: int = self._plain.getsockname()[1] if self._plain is not None else 0
        self.tls_port: int = self._secure.getsockname()[1] if self._secure is not None else 0
        self._application: Application | None = None  # until it is started
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._ended = loop.create_future()
        self._stopping = False
        self.grace_s = GRACE_S
        self.cut_off = 0
        self._server: uvicorn.Server | None = None

    @property
    def plain_socket(self) -> socket.socket | None:
        """The listening socket without TLS."""
        return self._plain

    @property
    def secure_socket(self) -> socket.socket | None:
        """The listening socket with TLS."""
        return self._secure

    def start(self, gateway: Gateway, peers: Peers | None = None) -> None:
        """Wait for the first connection, without accepting it; routes reach the broker through `gateway`.

        `peers`: the other brokers of the cluster.
        """

        def application(memory: HttpMemory) -> ASGIApp:
            from penstock.admin.front import WithConsole  # noqa: PLC0415 -- on the thread, see above
            from penstock.admin.probes import Probes  # noqa: PLC0415

            def rest() -> ASGIApp:
                from penstock.admin import api  # noqa: PLC0415 -- not for probes

                return api.build(gateway, memory, requests_max=self.limits.requests_max, peers=peers)

            return WithConsole(Probes(gateway, memory, rest), "broker", memory, self.limits.consoles)

        self.start_with(application)

    def start_with(self, application: Application) -> None:
        """Wait for the first connection, and serve what `application` builds then, on the thread."""
        self._application = application
        for sock in self._sockets():
            self._loop.add_reader(sock.fileno(), self._on_first_caller)

    async def stop(self, limit_s: float = GRACE_S + STOP_OVERHEAD_S) -> None:
        """Let current responses finish, within limits; then close the ports and end the thread.

        `limit_s`: for all of it, in seconds. `cut_off` says afterwards how many responses were not finished.
        """
        self.grace_s = max(0.0, min(GRACE_S, limit_s - STOP_OVERHEAD_S))
        # The thread sets its server and then reads this flag; here it is the other way round. So one of them sees the
        # other.
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            await asyncio.shield(self._ended)
            self._thread.join()
        else:
            self._forget_callers()
        for sock in self._sockets():
            sock.close()

    def _sockets(self) -> list[socket.socket]:
        return [sock for sock in (self._plain, self._secure, self.peers_socket) if sock is not None]

    def _forget_callers(self) -> None:
        for sock in self._sockets():
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())

    def _on_first_caller(self) -> None:
        self._forget_callers()
        self._thread = threading.Thread(target=self._run, name="penstock-admin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """On the thread: import the HTTP stack and serve until `stop`."""
        try:
            from penstock.admin.http_server import http_server  # noqa: PLC0415 -- see above

            assert self._application is not None
            server = self._server = http_server(self, self._application)
            if not self._stopping:
                asyncio.run(server.serve(sockets=[]))
        except Exception:  # The broker goes on without it.
            log.exception("the admin port is closed after an error of its own")
            for sock in self._sockets():
                sock.close()
        finally:
            with contextlib.suppress(RuntimeError):  # `stop` may have been abandoned, and the loop closed.
                self._loop.call_soon_threadsafe(self._ended.set_result, None)
