# SPDX-License-Identifier: Apache-2.0
"""A proxy's part in recording: usage records and decision records on topics of the cluster, if they are switched on.

Where: `proxy_app` makes one; the proxy ticks it, and stops it after its clients.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.accounting.records import DECISION, USAGE
from penstock.core.errors import ServiceNotReady
from penstock.net.client import AsyncClient  # noqa: TC001 -- also for `_dial`
from penstock.proxy.usage_records import FAREWELL_S as USAGE_FAREWELL_S
from penstock.proxy.usage_records import UsageRecords
from penstock.records.decisions import FAREWELL_S as DECISIONS_FAREWELL_S
from penstock.records.decisions import DecisionRecords, entries_of
from penstock.records.limiters_seen import LimitersSeen
from penstock.stats.recorded import snapshot_of
from penstock.wire import batches, compression
from penstock.wire.client.events import ProducerClosed, Receipt, SendFailed
from penstock.wire.client.lookup import Lookup, Redirect
from penstock.wire.client.producer import Producer
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.clock import Clock
    from penstock.proxy.recorder_parts import RecorderParts
    from penstock.proxy.upstreams import Identity, Upstreams
    from penstock.stats.snapshot import RecordsSnapshot


# ---------------------------------------------------------------------------------------------------------------------
# A topic of records on the cluster, as this proxy writes it: as a client, with the proxy's own credentials.
#
# Why no queue here: usage is cumulative, so a record that was not written costs resolution only, and decisions have a
# bounded queue of their own. A write that fails raises; the next one connects again. Where: `records` makes one for
# usage and one for decisions.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOptions:
    """Options of records: topics, interval and rate.

    Attributes:
        name: of this proxy, in records; unique among proxies and brokers.
        usage_topic: None: no usage records.
        decision_topic: None: no decision records.
        interval_s: of usage records.
        per_second: how many decision records may be made each second.
    """

    name: str
    usage_topic: str | None
    decision_topic: str | None
    interval_s: float
    per_second: int


class Recorder:
    """The records of this proxy. All methods are called on the event loop.

    Attributes:
        usage: counts and records usage; None: it is switched off.
        decisions: records decisions of limiters; None: it is switched off.
    """

    def __init__(self, options: RecorderOptions, parts: RecorderParts) -> None:
        self._options = options
        self._parts = parts
        self._topics: list[RecordTopic] = []
        self.usage = self._usage_records(options.usage_topic) if options.usage_topic is not None else None
        self.decisions = self._decision_records(options.decision_topic) if options.decision_topic is not None else None

    def tick(self, now_ns: int) -> None:
        if self.usage is not None:
            self.usage.tick()
        if self.decisions is not None:
            self.decisions.tick(now_ns)

    async def stop(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        """Record what is left, for `limit_s` seconds at most; no client is connected any more.

        `cut_off` is told of what was not recorded.
        """
        await asyncio.gather(self._stop_decisions(limit_s, cut_off), self._stop_usage(limit_s, cut_off))
        await asyncio.gather(*(topic.close() for topic in self._topics))

    async def _stop_decisions(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        if self.decisions is not None:
            lost = await self.decisions.stop(min(limit_s, DECISIONS_FAREWELL_S))
            if lost:
                cut_off(f"{lost} decision records were not stored")

    async def _stop_usage(self, limit_s: float, cut_off: Callable[[str], None]) -> None:
        if self.usage is not None and not await self.usage.stop(min(limit_s, USAGE_FAREWELL_S)):
            cut_off("the last usage records were not stored")

    def snapshot(self) -> RecordsSnapshot | None:
        """Counters for metrics; None if nothing is recorded."""
        return snapshot_of(self.usage, self.decisions)

    def _usage_records(self, topic: str) -> UsageRecords:
        parts, options = self._parts, self._options
        return UsageRecords(
            self._topic(topic, USAGE.definition),
            parts.groups,
            parts.memory,
            parts.unanswered,
            name=options.name,
            own_topics=[name for name in (options.usage_topic, options.decision_topic) if name is not None],
            interval_s=options.interval_s,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _decision_records(self, topic: str) -> DecisionRecords:
        parts = self._parts
        return DecisionRecords(
            self._topic(topic, DECISION.definition),
            LimitersSeen(
                connections=parts.connections.all,
                groups=lambda: parts.groups.in_use,
                listings=parts.listings,
                refused=parts.traffic.take_refused,
                now_ns=parts.clock.monotonic_ns(),
            ),
            name=self._options.name,
            epoch=self.usage.epoch if self.usage is not None else parts.clock.wall_ms(),
            per_second=lambda: self._options.per_second,
            clock=parts.clock,
            loop=parts.loop,
        )

    def _topic(self, name: str, definition: bytes) -> RecordTopic:
        parts = self._parts
        topic = RecordTopic(name, definition, upstreams=parts.upstreams, identity=parts.identity, clock=parts.clock)
        self._topics.append(topic)
        return topic
