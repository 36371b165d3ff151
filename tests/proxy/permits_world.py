# SPDX-License-Identifier: Apache-2.0
"""A proxy before one broker that lists topics, and the permits that it has given."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.net.listing_memory import LimitType, Owner, TopicListMemoryLimiter
from penstock.testing.client import Type, entry, send
from tests.net.harness import until
from tests.proxy.in_process import running_proxy
from tests.proxy.listing_broker import Broker, listing_broker

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    import pytest

    from tests.proxy.in_process import Peer, RunningProxy

HEAP, DIRECT = LimitType.HEAP_MEMORY, LimitType.DIRECT_MEMORY
SMALL = {"maxTopicListInFlightHeapMemSizeMB": "1", "maxTopicListInFlightDirectMemSizeMB": "1"}
# A frame of the broker with a payload, that the proxy does not look into.
MESSAGE = send(0, 0, entry(b"x" * 5_000))


class World:
    """A proxy before one broker."""

    def __init__(self, broker: Broker, proxy: RunningProxy, limiter: TopicListMemoryLimiter) -> None:
        self.broker = broker
        self.proxy = proxy
        self.limiter = limiter

    async def client(self, *, through: bool = True, refreshes: bool = False) -> tuple[Peer, asyncio.StreamWriter]:
        """A client, and what its broker writes to."""
        before = set(self.broker.open)
        client = await self.proxy.client()
        self.proxy.connect(client, through=through, refreshes=refreshes)
        await client.next(Type.CONNECTED)
        opened = [writer for writer in self.broker.open if writer not in before]
        return client, opened[0] if opened else next(iter(self.broker.open))

    def held(self) -> tuple[int, int]:
        """Bytes of heap and of direct memory."""
        return self.limiter.limiter(HEAP).acquired, self.limiter.limiter(DIRECT).acquired

    async def all_returned(self) -> None:
        """Wait until no permit is held or waited for."""
        await until(lambda: self.held() == (0, 0) and not self.waiting())

    def waiting(self) -> int:
        return sum(self.limiter.limiter(kind).queue_size for kind in LimitType)

    async def take_all(self, kind: LimitType) -> Any:  # noqa: ANN401 - a permit
        """Take all memory that there is."""
        return await self.limiter.acquire(self.limiter.limiter(kind).available, kind, owner=Owner("other", -1))


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch, **more: str) -> AsyncIterator[World]:
    made: list[TopicListMemoryLimiter] = []

    def make(*args: Any, **named: Any) -> TopicListMemoryLimiter:  # noqa: ANN401 - as the class
        made.append(TopicListMemoryLimiter(*args, **named))
        return made[-1]

    monkeypatch.setattr("penstock.proxy_app.TopicListMemoryLimiter", make)
    async with listing_broker() as (broker, port), running_proxy(f"pulsar://127.0.0.1:{port}", **more) as proxy:
        yield World(broker, proxy, made[0])
