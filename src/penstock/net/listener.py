# SPDX-License-Identifier: Apache-2.0
"""Listening sockets, and the registry of their connections.

Where: app opens one listener per port (plain, TLS). The broker releases request memory through the registry, which then
wakes the connections that wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.core.spare_buffers import SpareBuffers
from penstock.core.units import KIB
from penstock.governance.holds import HoldKind
from penstock.governance.outbound import STUCK_NS
from penstock.net.command_scheduler import CommandScheduler
from penstock.net.connection import Connection, Handler
from penstock.net.peer_socket import accept as accept_peer
from penstock.net.socket_reader import ARENA_BYTES
from penstock.wire.bounds import BOUNDS
from penstock.wire.frame_reader import FrameReader

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.governance.memory_pool import Lease
    from penstock.governance.outbound import Outbound
    from penstock.governance.request_memory import RequestMemory
    from penstock.wire.bounds import Bounds


# ---------------------------------------------------------------------------------------------------------------------
# Listening sockets, apart from what accepts on them.
#
# Why: the supervisor of several brokers opens their ports, passes them on, and needs nothing else of `net`. A broker
# that is started again has the same ports, and clients that connect meanwhile wait in the kernel. Where:
# `processes.sockets` opens all ports of a broker.

# The kernel buffers at most about this much per client connection and direction; by default it would be about 4 MiB.
SOCKET_RECEIVE_BYTES: Final = 512 * KIB
SOCKET_SEND_BYTES: Final = 256 * KIB
# Connections that the kernel keeps waiting.
CLIENTS_BACKLOG: Final = 1024
WEB_BACKLOG: Final = 64


def listen_for_clients(
    host: str, port: int, new_socket: Callable[[int, int], socket.socket] = socket.socket
) -> socket.socket:
    """Return a socket that listens for clients (port 0: a free one). Raises OSError."""
    # Accepted sockets inherit the buffer sizes; set later they would not shrink the window already offered.
    sizes = {socket.SO_RCVBUF: SOCKET_RECEIVE_BYTES, socket.SO_SNDBUF: SOCKET_SEND_BYTES}
    return _listening(host, port, CLIENTS_BACKLOG, sizes, new_socket)


def listen_for_callers(host: str, port: int) -> socket.socket:
    """Return a socket that listens for callers of the admin port (0: a free one). Raises OSError."""
    return _listening(host, port, WEB_BACKLOG, {}, socket.socket)


def _listening(
    host: str, port: int, backlog: int, sizes: dict[int, int], new_socket: Callable[[int, int], socket.socket]
) -> socket.socket:
    sock = new_socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option, nbytes in sizes.items():
            sock.setsockopt(socket.SOL_SOCKET, option, nbytes)
        sock.bind((host, port))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


log = logging.getLogger(__name__)

ACCEPTS_PER_TURN: Final = 64
# Without file descriptors, wait this long before accepting again; clients stay in the listen backlog meanwhile.
ACCEPT_PAUSE_S: Final = 0.2
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# File descriptors that are kept for segments, the catalog and the admin port: a log that cannot open its next segment
# is worse than a client that waits.
RESERVED_DESCRIPTORS: Final = 128

# Arenas that are kept for the next reads, when no entry in them is used any more: as many as one commit frees.
ARENAS_SPARE_MAX: Final = 16

# The address of other brokers of this machine, to which limits of clients do not apply.
PEER: Final = "broker"
# How often stalled clients are searched while connections wait for outbound memory.
LOOK_FOR_STALLED_S: Final = 0.05
# About how many bytes are put back in one turn of the loop.
PUT_BACK_BYTES_MAX: Final = 256 * KIB


class Connections:
    """All open connections and what they share."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        memory: RequestMemory,
        outbound: Outbound[Connection],
        clock: Clock,
        frame_bytes_max: int,
        bounds: Bounds = BOUNDS,
        admit: Callable[[Connections, str], bytes | None] | None = None,
        reserved_descriptors: int = 0,
        new_reader: Callable[..., FrameReader] = FrameReader,
        flush_soon: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """Take what all connections share.

        Args:
            loop: on which they live.
            memory: is charged with the bytes that they read.
            outbound: is charged with the bytes that they write.
            clock: the time.
            frame_bytes_max: how large a frame may be.
            bounds: of the fields of commands.
            admit: says whether one more from this address may come in: None, or what to tell it.
            reserved_descriptors: open files kept free for callers of the admin port, beside those that always are.
            new_reader: makes the reader that cuts the stream of a client.
            flush_soon: calls the flush of a connection for which something was queued; None: in the next turn.
        """
        self.loop = loop
        self.memory = memory
        self.outbound = outbound
        self.clock = clock
        self.frame_bytes_max = frame_bytes_max
        self.bounds = bounds
        self.accepted = 0
        self.refused = 0
        self.reserved_descriptors = reserved_descriptors
        self.new_reader = new_reader
        self.flush_soon = flush_soon or loop.call_soon
        self._refusing = False
        self._granting = False
        self._looking = False  # for stalled clients, because connections wait for outbound memory
        self._looking_since_ns = 0
        self._admit = admit or _everybody
        self._arenas = SpareBuffers(ARENA_BYTES, ARENAS_SPARE_MAX)
        self.arena = self._arenas.take()  # what all of them read into, until a run keeps it
        self.turns = CommandScheduler(loop, clock)
        self._open: dict[int, Connection] = {}
        self._addresses: dict[int, str] = {}
        self._of_address: Counter[str] = Counter()

    def current_arena(self) -> memoryview:
        """Return the arena of now; nobody may hold it when somebody else reads."""
        return self.arena

    def replace_arena(self) -> None:
        """Read into another arena from now on: a run keeps this one."""
        self.arena = self._arenas.take()

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Connection]:
        """Return every open connection."""
        return list(self._open.values())

    def of_address(self, address: str) -> int:
        """Return how many connections are open from this address."""
        return self._of_address.get(address, 0)

    def accept(
        self,
        sock: socket.socket,
        address: str,
        tls: ssl.SSLContext | None,
        new_handler: Callable[[Connection], Handler],
    ) -> None:
        """Create a connection for an accepted socket, or refuse it."""
        refusal = self._admit(self, address) if address != PEER else None
        if refusal is not None:
            self.refused += 1
            if not self._refusing:  # Log it once, until a client is accepted again.
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
        """Release what a closed connection held; its leases are released on their own."""
        self._open.pop(connection.id, None)
        address = self._addresses.pop(connection.id)
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]  # Otherwise old addresses would fill the memory.
        self.memory.forget(connection.id, self.clock.monotonic_ns())
        self.wake()
        self.outbound_freed()

    def release(self, lease: Lease) -> None:
        """Release a lease whose requests were answered."""
        self.memory.release(lease)
        if self.memory.waiting:
            self.wake()

    def wake(self) -> None:
        """Let connections read that now get request memory."""
        now_ns = self.clock.monotonic_ns()
        while owners := self.memory.wake(now_ns):
            for owner in owners:
                connection = self._open[owner]
                connection.unmute(HoldKind.REQUEST_MEMORY)
                if connection.muted:
                    # It could not use its turn: the next connection gets it.
                    self.memory.pause(owner, now_ns)

    def outbound_freed(self) -> None:
        """Once per turn of the loop, let connections continue that waited for outbound memory."""
        if not self._granting and (len(self.outbound) or self.outbound.turn is not None):
            self._granting = True
            self.loop.call_soon(self._grant_room)

    def _grant_room(self) -> None:
        outbound, before = self.outbound, self.outbound.turn
        if before is not None and outbound.ends_turn(before):
            # The entry it wanted room for was delivered to another consumer, or no longer exists.
            before.wanted_bytes, before.wanting = 1, None
        turn = outbound.turn
        for connection in outbound.grants():
            connection.go_on()
        self._granting = False
        if outbound.turn is not turn:
            # Call this again after the dispatches that follow: if none of them used the turn, the next connection gets
            # it.
            self.outbound_freed()
        if len(outbound) and not self._looking:
            self._looking, self._looking_since_ns = True, self.clock.monotonic_ns()
            self.loop.call_later(LOOK_FOR_STALLED_S, self._look_for_stalled)

    def _look_for_stalled(self) -> None:
        """While connections wait for room, put back entries that are queued for stalled clients, some at a time."""
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
        """Close connections whose unfinished frames or unsent bytes hold memory that others wait for."""
        now_ns = self.clock.monotonic_ns()
        for owner in self.memory.evict(now_ns):
            self._open[owner].close("evicted: its unfinished frame held request memory that others wait for")
        stuck = self.outbound.overdue(now_ns) or self._most_stalled(now_ns)
        if stuck is not None:
            stuck.close("evicted: it did not read what it was sent, with memory that others wait for")

    def _most_stalled(self, now_ns: int) -> Connection | None:
        """Return the connection that holds most, of those that have been stalled for long while others wait."""
        if not self._looking or now_ns - self._looking_since_ns < STUCK_NS:
            return None
        stalled = [one for one in self._open.values() if one.out_bytes and one.stalled_ns(now_ns) >= STUCK_NS]
        return max(stalled, key=lambda one: one.out_bytes, default=None)


def _everybody(_connections: Connections, _address: str) -> bytes | None:
    return None


def _turn_away(sock: socket.socket, words: bytes) -> None:
    """Send the refusal and close. Under TLS nothing is sent: a handshake would cost what the limit is meant to save."""
    with sock, contextlib.suppress(OSError):
        if words:
            sock.send(words)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(
                SOCKET_RECEIVE_BYTES
            )  # Closing with unread bytes would reset the connection and drop the refusal.


class Listener:
    """One listening socket."""

    def __init__(
        self,
        connections: Connections,
        sock: socket.socket,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Take a socket that listens already; connections wait in the kernel until `start`."""
        self._connections = connections
        self._new_handler: Callable[[Connection], Handler] | None = None  # until it is started
        self.tls = tls  # replaced when certificates are reloaded; used for later connections
        self._loop = connections.loop
        self._pausing = False
        self._sock = sock
        # Other brokers connect by an inbox, which has no port.
        self._of_peers = sock.family is socket.AF_UNIX
        self.port: int = 0 if self._of_peers else sock.getsockname()[1]

    def start(self, new_handler: Callable[[Connection], Handler]) -> None:
        """Start to accept connections; `new_handler` makes the handler of each."""
        self._new_handler = new_handler
        self._accept()

    def _accept(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._on_acceptable)

    def close(self) -> None:
        """Stop accepting; open connections stay."""
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
                sock, address = (accept_peer(self._sock), (PEER,)) if self._of_peers else self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                self._pausing = False  # no client waits any more
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    raise
                self._pause(error.strerror or str(error))
                return
            sock.setblocking(False)
            if not self._of_peers:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert self._new_handler is not None
            self._connections.accept(sock, address[0], self.tls, self._new_handler)

    def _pause(self, why: str) -> None:
        if not self._pausing:  # Log it once, not at every retry.
            log.warning("cannot accept more than %d connections: %s", len(self._connections), why)
        self._pausing = True
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._sock.fileno() >= 0:
            self._accept()
