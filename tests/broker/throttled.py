# SPDX-License-Identifier: Apache-2.0
"""What tests of adaptive throttling share: a broker whose memory and disk are told, and its log lines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.stats.process import ProcessMemory
from penstock.testing.client import Type
from tests.net.harness import TOPIC, Client, publish, running, topic_of, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from typing import Self

    import pytest

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.governance.adaptive_throttle import Throttle
    from penstock.groups.adaptive_throttling import AdaptiveThrottling
    from tests.net.harness import Harness

CYCLE_MS = 1_000


class Sensors:
    """The memory and the disk that a broker believes to have."""

    def __init__(self) -> None:
        self.memory = 0.0
        self.disk_s = 0.0
        self.error: Exception | None = None

    def measured(self) -> ProcessMemory:
        """As `MemorySensor` does."""
        if self.error is not None:
            raise self.error
        return ProcessMemory(1_000, round(1_000 * self.memory), 1_000, {"requests": 7})

    def delay(self) -> float:
        """As `DiskDelay` does."""
        return self.disk_s


@asynccontextmanager
async def throttled(directory: Path, **limits: Any) -> AsyncIterator[tuple[Harness, Sensors]]:  # noqa: ANN401
    """A broker with adaptive throttling."""
    async with running(directory, adaptive_throttling=True, **limits) as harness:
        sensors, throttling = Sensors(), throttling_of(harness)
        throttling.memory, throttling.disk_delay = sensors.measured, sensors.delay
        yield harness, sensors


def throttling_of(harness: Harness) -> AdaptiveThrottling[PublishedTopic]:
    """Its throttle."""
    throttling = harness.broker.throttling
    assert throttling is not None
    return throttling


def throttle_of(harness: Harness, name: str = TOPIC) -> Throttle:
    """The state of a topic that has received messages."""
    adaptive = topic_of(harness, name).adaptive
    assert adaptive is not None
    return adaptive.throttle


def change(harness: Harness, **settings: Any) -> None:  # noqa: ANN401
    """Change settings at run time."""
    harness.broker.limits_in_force.now = replace(harness.broker.limits, **settings)
    throttling_of(harness).options_changed()


async def cycles(count: float = 1) -> None:
    """Let time pass."""
    await asyncio.sleep(count * CYCLE_MS / 1_000)
    await turns()


class Publisher:
    """A client that publishes at a steady rate, as clients do: with at most 1,000 messages unanswered."""

    WINDOW = 1_000
    PARTS = 10

    def __init__(self, client: Client, producer_id: int = 0, payload: bytes = b"x" * 100) -> None:
        self.client = client
        self.producer_id = producer_id
        self.others: dict[int, Publisher] = {}  # on the same client, by producer id; this one reads for them
        self.sent = 0
        self.answered = 0
        self.wanted = 0.0
        self._payload = payload
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def connected(cls, harness: Harness, topic: str = TOPIC, payload: bytes = b"x" * 100) -> Self:
        """A client with a producer."""
        return cls(await Client.producing(harness.port, topic=topic), payload=payload)

    def start(self, per_s: int) -> None:
        """Publish from now on."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send(per_s))]
        if not self.producer_id:
            self._tasks.append(loop.create_task(self._read()))

    async def stop(self) -> None:
        """Publish nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _send(self, per_s: int) -> None:
        while True:
            self.wanted += per_s / self.PARTS
            room = self.WINDOW - (self.sent - self.answered)
            count = min(int(self.wanted), room)
            if count:
                rows = range(self.sent, self.sent + count)
                self.client.write(b"".join(publish(self._payload, row, self.producer_id) for row in rows))
                self.sent += count
                self.wanted = min(self.wanted - count, float(self.WINDOW))
            await asyncio.sleep(1 / self.PARTS)

    async def _read(self) -> None:
        while True:
            command = await self.client.read()
            if command.type == Type.SEND_RECEIPT:
                self.others.get(command.send_receipt.producer_id, self).answered += 1


async def rates(harness: Harness, seconds: int, *topics: str) -> list[float]:
    """Messages per second that each topic accepts."""
    before = [topic_of(harness, name).messages_in for name in topics]
    await cycles(seconds)
    return [(topic_of(harness, name).messages_in - count) / seconds for name, count in zip(topics, before, strict=True)]


def lines(caplog: pytest.LogCaptureFixture, word: str = "[AdaptiveThrottle]") -> list[str]:
    """Log lines with this word."""
    return [message for message in caplog.messages if word in message]
