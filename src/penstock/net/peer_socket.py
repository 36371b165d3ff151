# SPDX-License-Identifier: Apache-2.0
"""The socket at which a broker takes requests of the other brokers of this machine.

Why apart from `peers`: the supervisor opens these sockets, and sends nothing.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from typing import Final

BACKLOG: Final = 64
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def listen_for_peers() -> socket.socket:
    """Return a socket that listens for the other brokers."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0penstock-{os.getpid()}-{secrets.token_hex(8)}")
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def is_of_our_user(sock: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket belongs to the user of this process."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
