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
from penstock.storage.shared_writer import Follower

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from penstock.core.broker_states import BrokerState
    from penstock.storage.shared_writer import Sending, Writer

log = logging.getLogger(__name__)

# What may wait for a broker that is behind, of the 48 MiB that the supervisor may use. One that is behind by more for
# BEHIND_S is cut off: it ends, and takes a snapshot when it is started again. A snapshot waits as rows, not as bytes.
UNSENT_BYTES: Final = 2 * MIB
# Longer than a frozen broker has until it is killed, and than the largest turn of a broker's loop when it starts.
BEHIND_S: Final = 10.0
# At most: one commit of many large documents is more than UNSENT_BYTES, and is read at once.
UNSENT_BYTES_MAX: Final = 32 * MIB


class _Link(asyncio.Protocol):
    """One end: passes on what comes, and the end of the connection. What the other end does not read is bounded."""

    def __init__(self, connected: Callable[[Sending], tuple[Callable[[bytes], None], Callable[[], None]]]) -> None:
        """Args: connected: called once with this link; returns what takes received bytes, and what is called last."""
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._streamed: Iterator[bytes] | None = None  # is sent first, as it is read
        self._behind_it: list[bytes] = []
        self._behind_bytes = 0
        self._full = False
        self._cut_off: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(UNSENT_BYTES)
        self._receive, self._ended = self._connected(self)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.resume_writing()
        self._transport = self._streamed = None
        self._behind_it, self._behind_bytes = [], 0
        self._ended()

    def pause_writing(self) -> None:
        self._full = True
        self._cut_off = asyncio.get_running_loop().call_later(BEHIND_S, self._abort)

    def resume_writing(self) -> None:
        self._full = False
        if self._cut_off is not None:
            self._cut_off.cancel()
            self._cut_off = None
        self._go_on()

    def send(self, data: bytes) -> None:
        """Send, after what is being streamed; does nothing once the connection has ended."""
        transport = self._transport
        if transport is None:
            return
        if self._streamed is not None:
            self._behind_it.append(data)
            self._behind_bytes += len(data)
        else:
            transport.write(data)
        if transport.get_write_buffer_size() + self._behind_bytes > UNSENT_BYTES_MAX:
            self._abort()

    def stream(self, parts: Iterator[bytes]) -> None:
        """Send these, each when there is room for it."""
        assert self._streamed is None, "one at a time"
        self._streamed = parts
        self._go_on()

    def _go_on(self) -> None:
        while self._transport is not None and self._streamed is not None and not self._full:
            part = next(self._streamed, None)
            if part is not None:
                self._transport.write(part)
                continue
            self._streamed = None
            waiting, self._behind_it, self._behind_bytes = self._behind_it, [], 0
            for data in waiting:
                self.send(data)

    def _abort(self) -> None:
        if self._transport is not None:
            log.error(
                "a broker does not read the changes of metadata: it is cut off, and takes a snapshot if it returns"
            )
            self._transport.abort()

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

    def connected(link: Sending) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        session = writer.connect(link, renewed)
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

    def connected(link: Sending) -> tuple[Callable[[bytes], None], Callable[[], None]]:
        def changed() -> None:
            if not loaded.done() and (follower.loaded or follower.failed is not None):
                loaded.set_result(follower)

        def gone() -> None:
            follower.end("the process that writes the metadata is gone")
            ended()

        follower = Follower(broker, link.send, changed)
        follower.begin()
        return follower.receive, gone

    link = _Link(connected)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
    follower = await loaded
    if not follower.loaded:
        link.close()
        raise MetadataFailed(f"the metadata cannot be read: {follower.failed}")
    return follower, link.close
