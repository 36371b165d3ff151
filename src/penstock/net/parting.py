# SPDX-License-Identifier: Apache-2.0
"""The end of a connection that is closed so that its client receives everything that was sent to it.

Why: a socket that is closed while bytes of the client lie there unread is reset, and a reset may discard what the
client has not read yet, such as receipts. So only our side is ended; what the client still sends is read and discarded,
until it closes its side, as clients do at once. How long that may take is up to the caller, who then closes it.
Where: `Connection.part`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Parting:
    """Ends our side of a socket, and reads the other until it ends, too."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, arena: Callable[[], memoryview]) -> None:
        self._sock = sock
        self._loop = loop
        self._arena = arena
        self._begun = False

    def begin(self, ended: Callable[[], None]) -> None:
        """End our side; `ended` is called when the client has ended its own, or the connection is broken."""
        if self._begun:
            return
        self._begun = True
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._loop.call_soon(ended)
            return
        self._loop.add_reader(self._sock.fileno(), self._discard, ended)

    def _discard(self, ended: Callable[[], None]) -> None:
        try:
            if self._sock.recv_into(self._arena()):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        ended()
