# SPDX-License-Identifier: Apache-2.0
"""A network in memory: sockets with bounded buffers, which the broker's connections use unchanged.

Why: the buffer sizes and timing of real sockets depend on the kernel and the machine. Here the test decides both: a
client that does not read blocks the sender after a known number of bytes, and sent bytes arrive at once.
Where: `VirtualLoop.network`. `Listener` makes its socket with `Network.socket`; a client connects by the loop's
`create_connection`, which `asyncio.open_connection` calls.

A socket behaves as on Linux: it takes as much as there is room for, is writable again when a third of its buffer is
free, and gives the bytes sent before the peer closed, then EOF; sending to a closed peer resets the connection.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self, cast

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from penstock.storage.files import Buffer

# Descriptors of this network; real ones are far lower.
_FIRST_DESCRIPTOR: Final = 1 << 20
_FIRST_CLIENT_PORT: Final = 40_000
_FIRST_PORT: Final = 20_000
# Default buffer size, as on Linux.
_BUFFER_BYTES: Final = 212_992


class Network:
    """All sockets of one loop."""

    def __init__(self, chance: random.Random | None = None) -> None:
        """With `chance`, sends and reads may be shorter than possible."""
        self.chance = chance
        self.descriptors = count(_FIRST_DESCRIPTOR)
        self.ports = count(_FIRST_PORT)
        self._client_ports = count(_FIRST_CLIENT_PORT)
        self.sockets: dict[int, MemorySocket] = {}
        self.listening: dict[int, MemorySocket] = {}

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A socket that can listen; as `socket.socket`."""
        return cast("socket.socket", MemorySocket(self, family, kind))

    def connect(self, port: int, host: str = "127.0.0.1") -> MemorySocket:
        """A socket of this host, connected to the listener at this port. Raises ConnectionRefusedError."""
        listener = self.listening.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        near, far = MemorySocket(self), MemorySocket(self)
        near.name = far.peer_name = (host, next(self._client_ports))
        near.peer_name = far.name = ("127.0.0.1", port)
        far.options = dict(listener.options)
        near.peer, far.peer = far, near
        listener.backlog.append(far)
        return near

    def events(self, descriptor: int, wanted: int) -> int:
        """Which of these events of `selectors` the socket is ready for."""
        found = self.sockets.get(descriptor)
        return 0 if found is None else found.events(wanted)


class MemorySocket:
    """One end of a connection, or a listening socket."""

    def __init__(self, network: Network, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> None:
        self._network = network
        self._family, self._kind = family, kind
        self._descriptor = next(network.descriptors)
        network.sockets[self._descriptor] = self
        self.options: dict[tuple[int, int], int] = {}
        self.name = self.peer_name = ("127.0.0.1", 0)
        self.peer: MemorySocket | None = None
        self.backlog: list[MemorySocket] = []
        self.inbox = bytearray()
        self.ended = False  # the peer has shut down sending
        self.reset = False  # the peer closed with unread bytes, or was sent more
        self.shut = False  # this end has shut down sending

    # -- attributes ---------------------------------------------------------------------------------------------------

    @property
    def family(self) -> int:
        return self._family

    @property
    def type(self) -> int:
        return self._kind

    @property
    def proto(self) -> int:
        return socket.IPPROTO_TCP

    def __repr__(self) -> str:
        return f"<MemorySocket {self.name} - {self.peer_name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._descriptor

    def gettimeout(self) -> float | None:
        """Always 0: the socket never blocks."""
        return 0.0

    def settimeout(self, value: float | None) -> None:
        """Does nothing: the socket never blocks."""

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as socket's
        """Does nothing: the socket never blocks."""

    def setsockopt(self, level: int, option: int, value: Any, *_: Any) -> None:  # noqa: ANN401
        """Set an option; only buffer sizes have an effect."""
        self.options[level, option] = value

    def getsockopt(self, level: int, option: int, *_: Any) -> int:  # noqa: ANN401
        return self.options.get((level, option), 0)

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def getpeername(self) -> tuple[str, int]:
        if self.peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.peer_name

    # -- listening ----------------------------------------------------------------------------------------------------

    def bind(self, address: Any) -> None:  # noqa: ANN401 - as socket's
        port = address[1] or next(self._network.ports)
        if port in self._network.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.name = (address[0], port)

    def listen(self, backlog: int = 0) -> None:
        del backlog
        self._network.listening[self.name[1]] = self

    def accept(self) -> tuple[MemorySocket, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        sock = self.backlog.pop(0)
        return sock, sock.peer_name

    # -- bytes --------------------------------------------------------------------------------------------------------

    def buffer_bytes(self, option: int) -> int:
        """Size of the send or receive buffer."""
        return 2 * self.options.get((socket.SOL_SOCKET, option), _BUFFER_BYTES)  # Linux doubles the value.

    @property
    def _capacity(self) -> int:
        assert self.peer is not None
        return self.buffer_bytes(socket.SO_SNDBUF) + self.peer.buffer_bytes(socket.SO_RCVBUF)

    def events(self, wanted: int = selectors.EVENT_READ | selectors.EVENT_WRITE) -> int:
        """Which of these events of `selectors` would not block now."""
        ready = 0
        if wanted & selectors.EVENT_READ and (self.inbox or self.ended or self.reset or self.backlog):
            ready = selectors.EVENT_READ
        if wanted & selectors.EVENT_WRITE and self.peer is not None:
            room = self._capacity - len(self.peer.inbox)
            if self.reset or self.peer.fileno() < 0 or 3 * room >= self._capacity:
                ready |= selectors.EVENT_WRITE
        return ready

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Take as many bytes as there is room for."""
        del flags
        return self._send([data])

    def sendmsg(self, buffers: Iterable[Buffer], *_: Any) -> int:  # noqa: ANN401
        return self._send(buffers)

    def _send(self, buffers: Iterable[Buffer]) -> int:
        self._check_open()
        peer = self.peer
        if peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if self.shut or (self.reset and self.ended):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        if peer.fileno() < 0:
            self.reset = self.ended = True  # the reset that answers it
            return sum(memoryview(buffer).nbytes for buffer in buffers)
        left = room = self._some(self._capacity - len(peer.inbox))
        if room <= 0:
            raise BlockingIOError
        for buffer in buffers:
            piece = memoryview(buffer).cast("B")[:left]
            peer.inbox += piece
            left -= len(piece)
            if not left:
                break
        return room - left

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_open()
        if not self.inbox:
            if self.reset:
                self.reset, self.ended = False, True
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if self.ended:
                return b""
            raise BlockingIOError
        size = self._some(min(size, len(self.inbox)))
        data = bytes(memoryview(self.inbox)[:size])
        if not flags & socket.MSG_PEEK:
            del self.inbox[:size]
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:  # noqa: ANN401
        view = memoryview(buffer)
        data = self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def recvmsg_into(
        self,
        buffers: Iterable[Any],
        *_: Any,  # noqa: ANN401
    ) -> tuple[int, list[Any], int, Any]:
        views = [memoryview(buffer) for buffer in buffers]
        data = self.recv(sum(map(len, views)))
        at = 0
        for view in views:
            piece = data[at : at + len(view)]
            view[: len(piece)] = piece
            at += len(piece)
        return len(data), [], 0, None

    def _some(self, size: int) -> int:
        """Return the size, or by chance less."""
        chance = self._network.chance
        if chance is None or size <= 1 or chance.random() < 0.7:
            return size
        return chance.randint(1, size)

    # -- closing ------------------------------------------------------------------------------------------------------

    def shutdown(self, how: int) -> None:
        self._check_open()
        if self.peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        if how != socket.SHUT_RD and not self.shut:
            self.shut = True
            self.peer.ended = True

    def close(self) -> None:
        if self._descriptor < 0:
            return
        del self._network.sockets[self._descriptor]
        self._descriptor = -1
        if self._network.listening.get(self.name[1]) is self:
            del self._network.listening[self.name[1]]
            for waiting in self.backlog:
                waiting.close()
        if self.peer is not None:
            self.peer.ended = True
            if self.inbox:  # unread bytes reset the connection
                self.peer.reset = True
        self.inbox.clear()

    def detach(self) -> int:
        """Always raises: there is no real descriptor."""
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
