# SPDX-License-Identifier: Apache-2.0
"""Listening sockets, and the registry of the connections that came through them.

Where: app opens one listener per port (plain, TLS); the broker asks the registry to free memory, and the registry wakes
whoever waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB
from penstock.governance.muting import MuteReason
from penstock.net.connection import ARENA_BYTES, Connection, Handler, Outbound

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.memory_pool import Lease
    from penstock.governance.request_memory import RequestMemory

log = logging.getLogger(__name__)

# The kernel holds at most about this much per connection and direction; without it, about 4 MiB.
SOCKET_RECEIVE_BYTES: Final = 512 * KIB
SOCKET_SEND_BYTES: Final = 256 * KIB
BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 64
# Out of descriptors: wait this long before accepting again, clients stay in the backlog meanwhile.
ACCEPT_PAUSE_S: Final = 0.2
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# Descriptors that connections leave to segments, the catalog and the admin port: a log that cannot open its next
# segment is worse than a client that waits.
RESERVED_DESCRIPTORS: Final = 128


class Connections:
    """All open connections, what they share, and who waits for request memory."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        memory: RequestMemory,
        outbound: Outbound,
        clock: Clock,
        frame_bytes_max: int,
    ) -> None:
        self.loop = loop
        self.memory = memory
        self.outbound = outbound
        self.clock = clock
        self.frame_bytes_max = frame_bytes_max
        self.accepted = 0
        self.refused = 0
        self.reserved_descriptors = 0  # beside those that are reserved always: for callers of the admin port
        self._refusing = False
        # Whether one more from this address may come in; else what to tell it. See `count` and `of_address`.
        self.admit: Callable[[str], bytes | None] = _everybody
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self._open: dict[int, Connection] = {}
        self._addresses: dict[int, str] = {}
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Connection]:
        """Every open connection."""
        return list(self._open.values())

    def of_address(self, address: str) -> int:
        """How many connections are open from this address."""
        return self._of_address.get(address, 0)

    def accept(
        self,
        sock: socket.socket,
        address: str,
        tls: ssl.SSLContext | None,
        new_handler: Callable[[Connection], Handler],
    ) -> None:
        """Take over a socket that was just accepted."""
        refusal = self.admit(address)
        if refusal is not None:
            self.refused += 1
            if not self._refusing:  # Said once, until somebody is let in again.
                log.warning("client %s is turned away: %d connections are open", address, len(self._open))
            self._refusing = True
            _turn_away(sock, refusal if tls is None else b"")
            return
        self._refusing = False
        self.accepted += 1
        connection = Connection(sock, connection_id=self.accepted, shared=self, tls=tls)
        self._open[connection.id] = connection
        self._addresses[connection.id] = address
        self._of_address[address] += 1
        connection.handler = new_handler(connection)
        connection.start()

    def gone(self, connection: Connection) -> None:
        """The connection's socket was closed: what it held is free, its leases come back on their own."""
        self._open.pop(connection.id, None)
        address = self._addresses.pop(connection.id)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]  # Addresses come and go; nothing of them stays.
        self.memory.forget(connection.id, self.clock.monotonic_ns())
        self.wake()

    def release(self, lease: Lease) -> None:
        """The requests of a lease were answered."""
        self.memory.release(lease)
        if self.memory.waiting:
            self.wake()

    def wake(self) -> None:
        """Let those read whose turn has come."""
        now_ns = self.clock.monotonic_ns()
        while owners := self.memory.wake(now_ns):
            for owner in owners:
                connection = self._open[owner]
                connection.unmute(MuteReason.REQUEST_MEMORY)
                if connection.muted:
                    # Its turn would be wasted: the next one in line gets it.
                    self.memory.pause(owner, now_ns)

    def evict_slow(self) -> None:
        """Close those whose unfinished frames hold memory that others wait for."""
        for owner in self.memory.evict(self.clock.monotonic_ns()):
            self._open[owner].close("evicted: its unfinished frame held request memory that others wait for")


def _everybody(_address: str) -> bytes | None:
    return None


def _turn_away(sock: socket.socket, words: bytes) -> None:
    """Say so, and close. Under TLS nothing is said: a handshake would cost what the bound is there to save."""
    with sock, contextlib.suppress(OSError):
        if words:
            sock.send(words)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(SOCKET_RECEIVE_BYTES)  # What lies unread at the close would take our words back.


class Listener:
    """One listening socket."""

    def __init__(
        self,
        connections: Connections,
        new_handler: Callable[[Connection], Handler],
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._connections = connections
        self._new_handler = new_handler
        self.tls = tls  # replaced when certificates are read again; counts for those who connect from then on
        self._loop = connections.loop
        self._pausing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit these; set later they would not shrink the window already offered.
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_RECEIVE_BYTES)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_SEND_BYTES)
            self._sock.bind((host, port))
            self._sock.listen(BACKLOG)
            self._sock.setblocking(False)
        except OSError:
            self._sock.close()
            raise
        self.port: int = self._sock.getsockname()[1]

    def start(self) -> None:
        """Begin to accept."""
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def close(self) -> None:
        """Stop accepting; connections stay."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _on_acceptable(self) -> None:
        reserved = RESERVED_DESCRIPTORS + self._connections.reserved_descriptors
        descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - reserved
        for _ in range(ACCEPTS_PER_TURN):
            if len(self._connections) >= descriptors_max:
                self._pause("the limit of open files leaves no more for connections")
                return
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                self._pausing = False  # nobody waits any more
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._pause(error.strerror or str(error))
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.accept(sock, address[0], self.tls, self._new_handler)

    def _pause(self, why: str) -> None:
        if not self._pausing:  # Said once, however often it is tried again.
            log.warning("cannot accept more than %d connections: %s", len(self._connections), why)
        self._pausing = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self.start()
