# SPDX-License-Identifier: Apache-2.0
"""The admin port itself, and its twin with TLS: bound from the start, asleep until somebody calls.

Why asleep: the HTTP stack costs half a second and 20 MiB, which a broker under test or at the edge never needs.
The kernel keeps the first caller waiting while it is imported.
Why a thread: rendering ten thousand topics takes longer than publishers should wait. Both ports share it.
Where: app constructs it, starts it when the broker is ready, and stops it before the broker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB, MIB

if TYPE_CHECKING:
    import ssl

    import uvicorn

    from penstock.admin.gateway import Gateway
    from penstock.governance.memory_row import MemoryRow

log = logging.getLogger(__name__)

# Callers that the kernel keeps waiting; the first wait for the imports.
BACKLOG: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What callers may use of us."""

    connections_max: int = 64  # over both ports; more are closed as they come
    requests_max: int = 64  # more at once are answered with 503: scrapers and people are few
    head_bytes_max: int = 16 * KIB
    entry_bytes_max: int = 5 * MIB + 64 * KIB  # the largest entry that there can be to be shown


class AdminServer:
    """The HTTP ports. Its methods are called on the broker's loop."""

    def __init__(
        self,
        *,
        host: str,
        port: int | None,
        loop: asyncio.AbstractEventLoop,
        tls_port: int | None = None,
        tls: ssl.SSLContext | None = None,
        limits: HttpLimits | None = None,
        memory: MemoryRow | None = None,
    ) -> None:
        """Bind the ports (0: a free one; None: not at all) and listen. Raises OSError.

        `memory` is what all requests together may take. Only the ports' thread charges it.

        `tls_port` wants `tls`, which may be replaced at any time: it counts for those who connect from then on.
        """
        self.tls = tls
        self.limits = limits or HttpLimits()
        self.memory = memory
        self._plain = _listening(host, port)
        try:
            self._secure = _listening(host, tls_port if tls is not None else None)
        except OSError:
            if self._plain is not None:
                self._plain.close()
            raise
        self.port: int = self._plain.getsockname()[1] if self._plain is not None else 0
        self.tls_port: int = self._secure.getsockname()[1] if self._secure is not None else 0
        self._gateway: Gateway | None = None  # until it is started
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._ended = loop.create_future()
        self._stopping = False
        self._server: uvicorn.Server | None = None

    @property
    def plain_socket(self) -> socket.socket | None:
        """Where callers without TLS come in."""
        return self._plain

    @property
    def secure_socket(self) -> socket.socket | None:
        """Where callers with TLS come in."""
        return self._secure

    def start(self, gateway: Gateway) -> None:
        """Wait for the first caller, without taking its connection; callers ask through `gateway`."""
        self._gateway = gateway
        for sock in self._sockets():
            self._loop.add_reader(sock.fileno(), self._on_first_caller)

    async def stop(self) -> None:
        """Let answers under way end, within limits; then close the ports and end the thread."""
        # The thread publishes its server and then looks at this flag; here it is the other way round. One of them sees.
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            await self._ended
            self._thread.join()
        else:
            self._forget_callers()
        for sock in self._sockets():
            sock.close()

    def _sockets(self) -> list[socket.socket]:
        return [sock for sock in (self._plain, self._secure) if sock is not None]

    def _forget_callers(self) -> None:
        for sock in self._sockets():
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())

    def _on_first_caller(self) -> None:
        self._forget_callers()
        self._thread = threading.Thread(target=self._run, name="penstock-admin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """On the thread: import the HTTP stack and serve until told to stop."""
        try:
            from penstock.admin.http_server import http_server  # noqa: PLC0415 -- see above

            assert self._gateway is not None
            server = self._server = http_server(self, self._gateway)
            if not self._stopping:
                asyncio.run(server.serve(sockets=[]))
        except Exception:  # Publishing goes on without it.
            log.exception("the admin port is closed after an error of its own")
            for sock in self._sockets():
                sock.close()
        finally:
            self._loop.call_soon_threadsafe(self._ended.set_result, None)


def _listening(host: str, port: int | None) -> socket.socket | None:
    if port is None:
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock
