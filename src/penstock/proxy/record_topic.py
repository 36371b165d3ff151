# SPDX-License-Identifier: Apache-2.0
"""A topic of records on the cluster, as this proxy writes it: as a client, with the proxy's own credentials.

Why no queue here: usage is cumulative, so a record that was not written costs resolution only, and decisions have a
bounded queue of their own. A write that fails raises; the next one connects again.
Where: `records` makes one for usage and one for decisions.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ServiceNotReady
from penstock.net.client import AsyncClient  # noqa: TC001 -- also for `_dial`
from penstock.records.entries import entries_of
from penstock.wire import batches, compression
from penstock.wire.client.events import ProducerClosed, Receipt, SendFailed
from penstock.wire.client.lookup import Lookup, Redirect
from penstock.wire.client.producer import Producer
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.proxy.upstreams import Identity, Upstreams

# Time to look the topic up, to connect and to open the producer; and for the receipt of one entry.
OPEN_S: Final = 10.0
RECEIPT_S: Final = 10.0


class RecordTopic:
    """Writes records. All methods are called on the event loop, one `write` at a time."""

    def __init__(self, name: str, definition: bytes, *, upstreams: Upstreams, identity: Identity, clock: Clock) -> None:
        """Receive what this uses.

        Args:
            name: full name of the topic.
            definition: the Avro schema of its records.
            upstreams: connects to brokers.
            identity: the proxy's own credentials.
            clock: for publish times.
        """
        self.name = name
        self._schema = Schema(name="record", schema_data=definition, type=Schema.Avro)
        self._upstreams = upstreams
        self._identity = identity
        self._clock = clock
        self._client: AsyncClient | None = None
        self._producer = Producer(0, name)

    async def create(self) -> None:
        """Open the producer: the broker creates the topic and its schema. Raises PenstockError."""
        await self._opened()

    async def write(self, records: Sequence[bytes], time_ms: int) -> None:
        """Publish encoded records; returns when they are stored.

        Raises:
            PenstockError: they were not stored, or not all of them.
        """
        for some in entries_of(records):
            client = await self._opened()
            try:
                async with asyncio.timeout(RECEIPT_S):
                    await self._publish(client, some, time_ms)
            except BaseException as error:
                await self.close()
                if isinstance(error, OSError | TimeoutError):
                    raise ServiceNotReady(f"{self.name}: {str(error) or 'no receipt in time'}") from error
                raise

    async def _publish(self, client: AsyncClient, records: Sequence[bytes], time_ms: int) -> None:
        about = self._producer.metadata(self._clock.wall_ms())
        payload = batches.fill(about, records, time_ms, compression.ZSTD)
        client.connection.send(self._producer, about, payload, messages=len(records))
        await client.drain()
        while True:
            event = await client.next_event()
            if isinstance(event, Receipt):
                return
            if isinstance(event, SendFailed):
                raise event.error
            if isinstance(event, ProducerClosed):
                raise ServiceNotReady(f"the broker closed {self.name}")

    async def close(self) -> None:
        """Disconnect; the next write connects again."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
            await client.closed()

    async def _opened(self) -> AsyncClient:
        if self._client is not None and not self._client.is_over:
            return self._client
        await self.close()
        try:
            async with asyncio.timeout(OPEN_S):
                client = await dial_owner(self._upstreams, self._identity, self.name)
                try:
                    producer = Producer(0, self.name, schema=self._schema)
                    await client.open_producer(producer)
                except BaseException:
                    client.close()
                    raise
        except (OSError, TimeoutError) as error:
            raise ServiceNotReady(f"{self.name}: {str(error) or 'no answer in time'}") from error
        self._client, self._producer = client, producer
        return client


async def dial_owner(upstreams: Upstreams, identity: Identity, topic: str) -> AsyncClient:
    """Connect to the broker that serves a topic. Raises OSError, PenstockError."""
    lookup = Lookup(topic)
    address = await upstreams.cluster(identity)
    while True:
        async with upstreams.client(address, identity) as client:
            found = lookup.answered(await client.request(lookup.question(address), f"looking up {topic}"))
        address = found.address
        if not isinstance(found, Redirect):
            return await upstreams.connect(address, identity)
