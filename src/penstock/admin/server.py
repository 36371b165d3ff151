# SPDX-License-Identifier: Apache-2.0
"""The admin port itself: bound from the start, asleep until somebody calls.

Why asleep: the HTTP stack costs half a second and 20 MiB, which a broker under test or at the edge never needs.
The kernel keeps the first caller waiting while it is imported.
Why a thread: rendering ten thousand topics takes longer than publishers should wait.
Where: app constructs it, starts it when the broker is ready, and stops it before the broker.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import uvicorn

    from penstock.admin.gateway import Gateway

log = logging.getLogger(__name__)

# Callers that the kernel keeps waiting; the first wait for the imports.
BACKLOG: Final = 64


class AdminServer:
    """One HTTP port. Its methods are called on the broker's loop."""

    def __init__(self, *, host: str, port: int, gateway: Gateway, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the port (0: a free one) and listen. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        self._gateway = gateway
        self._loop = loop
        self._thread: threading.Thread | None = None
        self._ended = loop.create_future()
        self._stopping = False
        self._server: uvicorn.Server | None = None

    def start(self) -> None:
        """Wait for the first caller, without taking its connection."""
        self._loop.add_reader(self._sock.fileno(), self._on_first_caller)

    async def stop(self) -> None:
        """Let answers under way end, within limits; then close the port and end the thread."""
        # The thread publishes its server and then looks at this flag; here it is the other way round. One of them sees.
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            await self._ended
            self._thread.join()
        elif self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()

    def _on_first_caller(self) -> None:
        self._loop.remove_reader(self._sock.fileno())
        self._thread = threading.Thread(target=self._run, name="penstock-admin", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """On the thread: import the HTTP stack and serve until told to stop."""
        try:
            from penstock.admin.web import http_server  # noqa: PLC0415 -- see above

            server = self._server = http_server(self._gateway)
            if not self._stopping:
                asyncio.run(server.serve(sockets=[self._sock]))
        except Exception:  # Publishing goes on without it.
            log.exception("the admin port is closed after an error of its own")
            self._sock.close()
        finally:
            self._loop.call_soon_threadsafe(self._ended.set_result, None)
