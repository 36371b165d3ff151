# SPDX-License-Identifier: Apache-2.0
"""One broker's connection to the usage topic, on which brokers report what their resource groups use (PIP-82).

Why a topic and not a protocol of its own: the topic's broker sends each report to all, which anybody allowed to can
consume, too. Why a connection also to the own broker: one way for all.
Where: `broker.publishing.quota_sharing` opens it while quotas are shared, and moves it when the topic moves.

A report that cannot be sent is dropped: the next ones say the same. After each (re)connection the caller is told, since
reports of others may have been missed, and own ones lost.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.clock import Backoff
from penstock.core.errors import PenstockError
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import ConsumerClosed, Message, ProducerClosed, SendFailed
from penstock.wire.client.producer import Producer
from penstock.wire.codec import CommandSubscribe
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.net.client import AsyncClient

    Dial: TypeAlias = Callable[[int], Awaitable[AsyncClient]]

log = logging.getLogger(__name__)

# Pauses between attempts to connect. A broker that begins to serve the topic does so within milliseconds.
FIRST_PAUSE_S: Final = 0.02
LAST_PAUSE_S: Final = 1.0
# Time to connect, and to open the producer and the consumer; a broker that hangs must not be waited for.
OPEN_S: Final = 5.0
# Reports without a receipt after which the broker counts as hanging.
PENDING_MAX: Final = 1_000
# Time for the last report, when this broker stops.
FAREWELL_S: Final = 0.5
FAREWELL_LOOKS: Final = 25
# A warning is logged once, after so many attempts in a row: a topic that moves fails once or twice.
WARN_AFTER: Final = 5
_PERMITS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Reporting:
    """How brokers of one cluster report to each other.

    Attributes:
        dial: connects to a broker as one that may use the usage topic. Raises OSError, PenstockError.
        key: signs reports. Only brokers of the cluster know it.
    """

    dial: Dial
    key: bytes


class UsageTopic:
    """Publishes reports, and hears those of all brokers, its own ones included.

    Attributes:
        is_open: whether reports can be sent.
    """

    def __init__(
        self,
        name: str,
        subscription: str,
        dial: Dial,
        *,
        owner: Callable[[], int],
        prepare: Callable[[], Awaitable[None]],
        clock: Clock,
        heard: Callable[[Buffer], None],
        connected: Callable[[], None],
        failed: Callable[[], None],
    ) -> None:
        """Receive what this uses.

        Args:
            name: full name of the topic.
            subscription: of this broker; no other process has it.
            dial: connects to a broker.
            owner: returns the broker that serves the topic now.
            prepare: creates what the topic needs to exist.
            clock: for the publish time.
            heard: takes the payload of each message.
            connected: called when reports can be sent.
            failed: called when a connection failed or ended.
        """
        self._name = name
        self._subscription = subscription
        self._dial = dial
        self._owner = owner
        self._prepare = prepare
        self._clock = clock
        self._heard = heard
        self._connected = connected
        self._failed = failed
        self._broker = -1
        self._task: asyncio.Task[None] | None = None
        self._client: AsyncClient | None = None
        self._producer = Producer(0, name)

    @property
    def is_open(self) -> bool:
        return self._client is not None and not self._client.is_over

    def move(self) -> None:
        """Connect to the broker that serves the topic now, and stay connected; another connection ends."""
        if self._task is None or self._broker != self._owner():
            if self._task is not None:
                self._task.cancel()
            self._task = asyncio.get_running_loop().create_task(self._stay_connected(self._task))

    def publish(self, payload: bytes) -> bool:
        """Send a report, if there is a connection; returns whether it was sent."""
        client = self._client
        if client is None or client.is_over:
            return False
        if len(self._producer.pending) >= PENDING_MAX:
            client.close()
            return False
        try:
            client.connection.send(self._producer, self._producer.metadata(self._clock.wall_ms()), payload)
            client.flush()
        except (OSError, PenstockError):
            return False
        return True

    async def close(self) -> None:
        """Wait a moment for the receipts of what was sent, and disconnect."""
        if self._client is not None and self._producer.pending:
            for _ in range(FAREWELL_LOOKS):
                await asyncio.sleep(FAREWELL_S / FAREWELL_LOOKS)
                if not self._producer.pending:
                    break
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _stay_connected(self, before: asyncio.Task[None] | None) -> None:
        self._broker = self._owner()
        if before is not None:
            await asyncio.wait((before,))
        pauses = Backoff(Random(), first_s=FIRST_PAUSE_S, last_s=LAST_PAUSE_S)
        attempts = 0
        while True:
            broker = self._broker = self._owner()
            try:
                await self._prepare()
                async with asyncio.timeout(OPEN_S):
                    client = await self._dial(broker)
                async with client:
                    await self._open(client)
                    pauses.reset()
                    attempts = 0
                    log.debug("usage reports go over broker %d", broker)
                    await self._hear(client)
            except (OSError, PenstockError) as error:
                self._failed()
                attempts += 1
                if attempts == WARN_AFTER:
                    log.warning(
                        "no usage reports over broker %d, trying again: %s; shares of resource groups stay as they "
                        "are, or shrink", broker, error,
                    )  # fmt: skip
            except Exception:
                self._failed()
                log.exception("usage reports over broker %d failed, trying again", broker)
            finally:
                self._client = None
            await asyncio.sleep(pauses.next_s())

    async def _open(self, client: AsyncClient) -> None:
        producer = Producer(0, self._name)
        await client.open_producer(producer, timeout_s=OPEN_S)
        body = CommandSubscribe(
            topic=self._name, subscription=self._subscription, subType=CommandSubscribe.Exclusive,
            consumer_id=0, request_id=0, durable=False, initialPosition=CommandSubscribe.Latest,
        )  # fmt: skip
        await client.subscribe(Consumer(body, permits_max=_PERMITS_MAX), timeout_s=OPEN_S)
        self._client, self._producer = client, producer
        self._connected()

    async def _hear(self, client: AsyncClient) -> None:
        while True:
            event = await client.next_event()
            if isinstance(event, Message):
                try:
                    payload: Buffer = event.payload
                except ProtocolError:
                    payload = b""  # It counts as forged.
                self._heard(payload)
            elif isinstance(event, ProducerClosed | ConsumerClosed | SendFailed):
                raise ConnectionError(f"the topic {self._name} was closed there")
