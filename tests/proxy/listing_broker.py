# SPDX-License-Identifier: Apache-2.0
"""A broker that lists topics when the test says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from penstock.testing.client import Type, frame
from penstock.wire.client.frames import Frame, Inbound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TOPICS = [f"persistent://public/default/topic-{number:06}" for number in range(1_000)]
LIST_BYTES = len(frame(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=1, topics=TOPICS))


def listing(request_id: int) -> bytes:
    return frame(
        Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, request_id=request_id, topics=TOPICS, topics_hash="h", changed=True
    )


def watched(request_id: int, watcher_id: int) -> bytes:
    return frame(
        Type.WATCH_TOPIC_LIST_SUCCESS, request_id=request_id, watcher_id=watcher_id, topic=TOPICS, topics_hash="h"
    )


def update(watcher_id: int, topics: list[str]) -> bytes:
    return frame(Type.WATCH_TOPIC_UPDATE, watcher_id=watcher_id, new_topics=topics, topics_hash="h2")


class Broker:
    """A broker that lists topics when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Frame] = []
        self.others: list[Frame] = []  # all but CONNECT and what was asked
        self.watching: list[tuple[Frame, asyncio.StreamWriter]] = []  # watchers, and where to write their updates
        self.closed: list[Frame] = []  # watchers
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.open: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self.connections = 0
        self.answer: Callable[[int], bytes] = listing
        self.watched: Callable[[int, int], bytes] = watched

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open[writer] = asyncio.current_task()
        inbound = Inbound()
        try:
            while data := await reader.read(65_536):
                inbound.add(data)
                while (came := inbound.take_frame()) is not None:
                    await self._answer(came, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _answer(self, came: Frame, writer: asyncio.StreamWriter) -> None:
        if came.kind == Type.CONNECT:
            writer.write(frame(Type.CONNECTED, server_version="s", protocol_version=20))
        elif came.kind == Type.GET_TOPICS_OF_NAMESPACE:
            self.asked.append(came)
            await self.may_answer.wait()
            writer.write(self.answer(came.body.request_id))
        elif came.kind == Type.WATCH_TOPIC_LIST:
            self.watching.append((came, writer))
            await self.may_answer.wait()
            writer.write(self.watched(came.body.request_id, came.body.watcher_id))
        elif came.kind == Type.WATCH_TOPIC_LIST_CLOSE:
            self.closed.append(came)
            writer.write(frame(Type.SUCCESS, request_id=came.body.request_id))
        else:
            self.others.append(came)
        await writer.drain()


@asynccontextmanager
async def listing_broker() -> AsyncIterator[tuple[Broker, int]]:
    """Run one; gives its port, too."""
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    try:
        yield broker, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer, task in broker.open.items():
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
