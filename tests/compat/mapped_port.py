# SPDX-License-Identifier: Apache-2.0
"""A mapped port, as container engines and port-forwards make: bytes that come at one address are passed to another."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE_BYTES: Final = 65_536


class MappedPort:
    """Passes connections on to the address of a service URL. `received` counts the bytes that clients sent."""

    def __init__(self, url: str = "") -> None:
        """Listen on a free port. Without a URL connections are closed at once, until `lead_to` is called."""
        self._target: tuple[str, int] | None = None
        if url:
            self.lead_to(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.received = 0
        self.url = f"{urlsplit(url).scheme or 'tcp'}://127.0.0.1:{self._listener.getsockname()[1]}"

    def lead_to(self, url: str) -> None:
        """Pass what comes from now on to the address of a URL."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._target = parts.hostname, parts.port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections, and listen no longer."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._target is None:
                    client.close()
                    continue
                broker = socket.create_connection(self._target)
                self._sockets += client, broker
                for ends in ((client, broker, self._count), (broker, client, _ignore)):
                    thread = threading.Thread(target=_pass_on, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self.received += nbytes


def _pass_on(source: socket.socket, target: socket.socket, count: Callable[[int], None]) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            count(len(piece))
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


def _ignore(_nbytes: int) -> None:
    pass
