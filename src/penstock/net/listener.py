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
from penstock.governance.outbound import STUCK_NS
from penstock.net.command_scheduler import CommandScheduler
from penstock.net.connection import ARENA_BYTES, Connection, Handler
from penstock.wire.bounds import BOUNDS

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.memory_pool import Lease
    from penstock.governance.outbound import Outbound
    from penstock.governance.request_memory import RequestMemory
    from penstock.wire.bounds import Bounds

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

# While somebody waits for outbound memory, how often we look for clients that take nothing.
LOOK_FOR_STALLED_S: Final = 0.05
# What is put back in one turn of the loop, about.
PUT_BACK_BYTES_MAX: Final = 256 * KIB


class Connections:
    """All open connections, what they share, and who waits for request memory."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        memory: RequestMemory,
        outbound: Outbound[Connection],
        clock: Clock,
        frame_bytes_max: int,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self.loop = loop
        self.memory = memory
        self.outbound = outbound
        self.clock = clock
        self.frame_bytes_max = frame_bytes_max
        self.bounds = bounds
        self.accepted = 0
        self.refused = 0
        self.reserved_descriptors = 0  # beside those that are reserved always: for callers of the admin port
        self._refusing = False
        self._granting = False
        self._looking = False  # for clients that take nothing, because somebody waits
        self._looking_since_ns = 0
        # Whether one more from this address may come in; else what to tell it. See `count` and `of_address`.
        self.admit: Callable[[str], bytes | None] = _everybody
        self.arena = memoryview(bytearray(ARENA_BYTES))
        self.turns = CommandScheduler(loop, clock)
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
        self.outbound_freed()

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

    def outbound_freed(self) -> None:
        """There may be room for those who wait to be sent something; they hear of it once a turn of the loop."""
        if not self._granting and (len(self.outbound) or self.outbound.turn is not None):
            self._granting = True
            self.loop.call_soon(self._grant_room)

    def _grant_room(self) -> None:
        outbound, before = self.outbound, self.outbound.turn
        if before is not None and outbound.ends_turn(before):
            # What it wanted room for went to somebody else, or is not there any more.
            before.wanted_bytes, before.wanting = 1, None
        turn = outbound.turn
        for connection in outbound.grants():
            connection.go_on()
        self._granting = False
        if outbound.turn is not turn:
            # Behind the dispatches that this caused: a turn that none of them used goes to the next one.
            self.outbound_freed()
        if len(outbound) and not self._looking:
            self._looking, self._looking_since_ns = True, self.clock.monotonic_ns()
            self.loop.call_later(LOOK_FOR_STALLED_S, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        """While some wait for room: what is queued for clients that take nothing is put back, some of it at a time."""
        self._looking = bool(len(self.outbound))
        if not self._looking:
            return
        put_back_bytes, now_ns = 0, self.clock.monotonic_ns()
        for connection in list(self._open.values()):
            put_back_bytes += connection.put_back_if_stalled(now_ns)
            if put_back_bytes >= PUT_BACK_BYTES_MAX:
                break
        self.outbound_freed()
        self.loop.call_later(0 if put_back_bytes else LOOK_FOR_STALLED_S, self._look_for_stalled)

    def evict_slow(self) -> None:
        """Close those whose unfinished frames, or whose unsent bytes, hold memory that others wait for."""
        now_ns = self.clock.monotonic_ns()
        for owner in self.memory.evict(now_ns):
            self._open[owner].close("evicted: its unfinished frame held request memory that others wait for")
        stuck = self.outbound.overdue(now_ns) or self._most_stalled(now_ns)
        if stuck is not None:
            stuck.close("evicted: it did not read what it was sent, with memory that others wait for")

    def _most_stalled(self, now_ns: int) -> Connection | None:
        """Of those who take nothing while others wait, and have for long, the one that holds most."""
        if not self._looking or now_ns - self._looking_since_ns < STUCK_NS:
            return None
        stalled = [one for one in self._open.values() if one.out_bytes and one.stalled_ns(now_ns) >= STUCK_NS]
        return max(stalled, key=lambda one: one.out_bytes, default=None)


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
        new_socket: Callable[[int, int], socket.socket] = socket.socket,
    ) -> None:
        self._connections = connections
        self._new_handler = new_handler
        self.tls = tls  # replaced when certificates are read again; counts for those who connect from then on
        self._loop = connections.loop
        self._pausing = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = new_socket(family, socket.SOCK_STREAM)
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
