# SPDX-License-Identifier: Apache-2.0
"""Lists of topics that a proxy sends to a client between the frames of the client's broker.

Why not as other answers of the proxy: a list is charged to permits of its own until the client has it, also while it
waits for the end of a frame. The request that waits stays charged to its client, which bounds their number.
Where: each `relay` has one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.net.connection import Connection
    from penstock.net.send_queue import Buffer
    from penstock.proxy.response_stream import ResponseStream


class OwnList(NamedTuple):
    """A frame of the proxy: a head, and the rest in pieces, of which `release` releases the memory."""

    head: bytes
    rest: Sequence[Buffer]
    release: Callable[[], None]


class InsertedLists:
    """The lists for one client.

    Attributes:
        waiting: those that wait for the end of a frame; while there are any, `deliver` must be called.
    """

    def __init__(self, connection: Connection, stream: ResponseStream, loop: asyncio.AbstractEventLoop) -> None:
        """Args: stream: what the broker sends."""
        self._connection = connection
        self._stream = stream
        self._loop = loop
        self.waiting: list[tuple[OwnList, asyncio.Future[None]]] = []

    async def send(self, listed: OwnList) -> None:
        """Send a list; returns when it is queued. It is released when the client has it, or is gone."""
        if self._stream.between_frames:
            write_list(self._connection, listed)
            return
        waiting = listed, self._loop.create_future()
        self.waiting.append(waiting)
        try:
            await waiting[1]
        except asyncio.CancelledError:
            if waiting in self.waiting:
                self.waiting.remove(waiting)
                listed.release()
            raise

    def deliver(self, data: bytes, pass_on: Callable[[Iterable[bytes]], None]) -> bytes:
        """Pass the next bytes of the broker on as far as lists wait, with these in between; return what is left."""
        stream = self._stream
        while data and self.waiting:
            stop = stream.next_stop
            pass_on(stream.passed(data[:stop]))
            data = data[stop:]
            if stream.between_frames:
                waiting, self.waiting = self.waiting, []
                for listed, queued in waiting:
                    write_list(self._connection, listed)
                    if not queued.done():
                        queued.set_result(None)
        return data


def write_list(connection: Connection, listed: OwnList) -> None:
    """Queue a list. No frame of a broker may be unfinished."""
    connection.write_shared(listed.head, listed.rest, sum(map(len, listed.rest)), listed.release)
