# SPDX-License-Identifier: Apache-2.0
"""Listening sockets, apart from what accepts on them.

Why: the supervisor of several brokers opens their ports, passes them on, and needs nothing else of `net`. A broker that
is started again has the same ports, and clients that connect meanwhile wait in the kernel.
Where: `processes.sockets` opens all ports of a broker.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Callable

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
