# SPDX-License-Identifier: Apache-2.0
"""Topics that are created, published to, read and deleted, again and again, while faults happen.

Each time is a life of its own: what was published in one must not be seen in another. A partitioned one is given
another partition in each life.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import PenstockError
from penstock.wire.client import events
from penstock.wire.client.producer import Producer
from tests.jepsen.clients import ANSWER_S, PREFIX, RETRY_S, Run, reader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container

    from tests.jepsen.history import History

ENTRIES: Final = 5
PARTITIONS: Final = 2
# How long a broker may be down in a run.
WITHIN_S: Final = 90.0
TOPIC_PATH: Final = "/admin/v2/persistent/public/default"
DONE: Final = frozenset({200, 204})
# What is repeated may have been done before, by a request whose answer was lost.
CREATED, DELETED = DONE | {409}, DONE | {404}


class Lives:
    """One such topic."""

    def __init__(
        self,
        run: Run,
        http: Callable[..., Awaitable[tuple[int, Any]]],
        history: History,
        topic: str,
        *,
        partitioned: bool,
    ) -> None:
        self._run = run
        self._http = http
        self._history = history
        self._topic = topic
        self._partitioned = partitioned
        self._path = f"{TOPIC_PATH}/{topic}"
        self._number = 0

    async def work(self, *, pause_s: float = 0.0) -> None:
        """Let it live until nobody publishes any more, with this pause between two lives."""
        while self._run.sending:
            self._number += 1
            await self._live()
            await asyncio.sleep(pause_s)

    async def _live(self) -> None:
        used = await self._create()
        try:
            stored = await self._publish(used)
            self._note("read", await self._read(used, stored))
        except (OSError, PenstockError, TimeoutError):
            await asyncio.sleep(RETRY_S)
        await self._ask("DELETE", f"{self._path}{self._kind}?force=true", DELETED)
        # Of the broker that has deleted it. Others hear of it a moment later.
        status, _ = await self._ask("GET", f"{TOPIC_PATH}/{used}/stats", {200, 404})
        self._note("deleted", status)

    @property
    def _kind(self) -> str:
        return "/partitions" if self._partitioned else ""

    async def _create(self) -> str:
        """Create it; returns the topic to use."""
        await self._ask("PUT", self._path + self._kind, CREATED, PARTITIONS if self._partitioned else None)
        if not self._partitioned:
            return self._topic
        # Without a broker that is down it is 503, and done when that returns.
        await self._ask("POST", f"{self._path}/partitions", DONE | {503}, PARTITIONS + 1)
        found, deadline = 0, time.monotonic() + WITHIN_S
        while found != PARTITIONS + 1 and time.monotonic() < deadline:
            found = (await self._ask("GET", f"{self._path}/partitions", DONE))[1]["partitions"]
            await asyncio.sleep(0.05)
        self._note("grown", PARTITIONS + 1, found)
        return f"{self._topic}-partition-{self._run.chance.randrange(PARTITIONS + 1)}"

    async def _publish(self, topic: str) -> int:
        """Publish a few entries; returns how many were answered."""
        client = await self._run.connect(topic, proxied=self._run.chance.random() < 0.5)
        try:
            producer = Producer(1, PREFIX + topic, name=f"{self._topic}/{self._number}")
            await client.open_producer(producer, timeout_s=ANSWER_S)
            for number in range(ENTRIES):
                client.connection.send(producer, producer.metadata(int(time.time() * 1000), number), b"x")
                await client.drain()
                async with asyncio.timeout(ANSWER_S):
                    while not isinstance(await client.next_event(), events.Receipt):
                        pass
                self._note("kept", number)
            return ENTRIES
        finally:
            self._run.close(client)

    async def _read(self, topic: str, count: int) -> list[list[int]]:
        """Read so many entries from the beginning on; returns the life and the number of each."""
        found: list[list[int]] = []
        async with reader(self._run, topic) as messages:
            async for message in messages:
                about = message.metadata()
                found.append([int(about.producer_name.rpartition("/")[2]), about.sequence_id])
                if len(found) >= count:
                    break
        return found

    async def _ask(self, method: str, path: str, wanted: Container[int], value: object = None) -> tuple[int, Any]:
        """Ask until the answer is one of these."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            status, answer = await self._http(method, path, value)
            if status in wanted:
                return status, answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path} answers {status} for {WITHIN_S:g} s: {answer}")
            await asyncio.sleep(RETRY_S)

    def _note(self, what: str, *fields: object) -> None:
        self._history.add("life", self._topic, self._number, what, *fields)
