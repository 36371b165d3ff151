# SPDX-License-Identifier: Apache-2.0
"""The socket pair between the writer of the shared metadata and a broker that follows it.

Why apart from `storage`: the two ends are without sockets, and tested without. Where: the supervisor calls `serve` for
each process that it starts, with its end of the pair; the process calls `follow` with the other.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.core.errors import MetadataFailed
from penstock.core.units import MIB
from penstock.storage.shared_follower import Follower

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from penstock.core.broker_states import BrokerState
    from penstock.storage.shared_writer import Writer

    Send = Callable[[bytes], None]

log = logging.getLogger(__name__)

# A broker that does not read is cut off when this much waits for it: more than the snapshot of a million topics.
UNSENT_BYTES_MAX: Final = 512 * MIB


class _Link(asyncio.Protocol):
    """One end: passes on what comes, and the end of the connection."""

    def __init__(self, connected: Callable[[Send], tuple[Callable[[bytes], None], Callable[[], None]]]) -> None:
        """Args: connected: called once with `send`; returns what takes received bytes, and what to call at the end."""
        self._connected = connected
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._receive, self._ended = self._connected(self.send)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._ended()

    def send(self, data: bytes) -> None:
        """Send; does nothing once the connection has ended."""
        transport = self._transport
        if transport is None:
            return
        transport.write(data)
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            log.error("a broker does not read the changes of metadata: %d bytes wait; it is cut off", UNSENT_BYTES_MAX)
            transport.abort()

    def close(self) -> None:
        """End the connection after what is being sent."""
        if self._transport is not None:
            self._transport.close()


async def serve(
    writer: Writer, sock: socket.socket, renewed: Callable[[BrokerState], None] = lambda _state: None
) -> Callable[[], None]:
    """Let a broker follow over this socket, which belongs to the link from now on; returns how to end it.

    `renewed` is called when the broker says that it works, with its state.
    """

    def connected(send: Send) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        session = writer.connect(send, renewed)
        return session.receive, partial(writer.disconnect, session)

    link = _Link(connected)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    return link.close


async def follow(
    broker: int, sock: socket.socket, ended: Callable[[], None] = lambda: None
) -> tuple[Follower, Callable[[], None]]:
    """Follow over this socket; returns the follower with its snapshot, and how to end the link.

    Args:
        broker: the number of this broker.
        sock: belongs to the link from now on.
        ended: called when the writer is gone.

    Raises:
        MetadataFailed: the writer is gone, or has failed.
    """
    loaded: asyncio.Future[Follower] = asyncio.get_running_loop().create_future()

    def connected(send: Send) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        def changed() -> None:
            if not loaded.done() and (follower.loaded or follower.failed is not None):
                loaded.set_result(follower)

        def gone() -> None:
            follower.end("the process that writes the metadata is gone")
            ended()

        follower = Follower(broker, send, changed)
        return follower.receive, gone

    link = _Link(connected)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    follower = await loaded
    if not follower.loaded:
        link.close()
        raise MetadataFailed(f"the metadata cannot be read: {follower.failed}")
    return follower, link.close
