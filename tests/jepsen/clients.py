# SPDX-License-Identifier: Apache-2.0
"""The clients of a run: publishers and consumers that connect again whatever happens, and write down what they hear.

They are built on the client half of the protocol (`penstock.net.client`), because official clients hide what was
answered when. Each has a connection of its own, directly or through the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import PenstockError
from penstock.net.client import AsyncClient
from penstock.wire.client import entries, events
from penstock.wire.client.connection import ClientConnection, Hello
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.lookup import Address, Lookup, Owner
from penstock.wire.client.producer import Producer
from penstock.wire.codec import CommandSubscribe, SingleMessageMetadata

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from penstock.core.position import Position
    from tests.jepsen.history import History

PREFIX: Final = "persistent://public/default/"
RETRY_S: Final = 0.15
ANSWER_S: Final = 10.0
IDLE_S: Final = 0.5
# Entries that a publisher has unanswered.
WINDOW: Final = 30
CHUNKS: Final = 3
KEYS: Final = 16
TYPES: Final = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}
EARLIEST: Final = 1


class Ports(Protocol):
    """Where the brokers and the proxy are now."""

    @property
    def any_broker(self) -> int: ...

    @property
    def proxy(self) -> int | None: ...


@dataclass
class Kind:
    """What is published to a topic."""

    topic: str
    subscriptions: tuple[str, ...]  # name/type
    batch: int = 0  # the most messages of a batch; 0: single messages
    chunks: bool = False
    keys: bool = False
    delayed: bool = False
    entries_per_s: float = 60.0


@dataclass
class Run:
    """What all clients share."""

    ports: Ports
    history: History
    chance: random.Random
    sending: bool = True  # False: what is pending is still sent
    ending: bool = False
    epochs: int = 0
    opened: int = 0  # connections so far
    clients: set[AsyncClient] = field(default_factory=set)  # connected ones, whose lines a fault may cut

    def cut_lines(self, share: float) -> None:
        """Close some connections without a word."""
        for client in [one for one in self.clients if self.chance.random() < share]:
            client.close()

    async def connect(self, topic: str, *, proxied: bool) -> AsyncClient:
        """Connect to the broker of a topic. Raises as `AsyncClient.open`."""
        port = self.ports.any_broker
        async with await AsyncClient.open("127.0.0.1", port, timeout_s=ANSWER_S) as asking:
            full = topic if "://" in topic else PREFIX + topic
            lookup, address = Lookup(full), Address("127.0.0.1", port, tls=False)
            answer = await asking.request(lookup.question(address), timeout_s=ANSWER_S)
            owner = lookup.answered(answer)
        assert isinstance(owner, Owner), owner
        proxy = self.ports.proxy
        if proxied and proxy is not None:
            hello = Hello(proxy_to_broker_url=f"{owner.address.host}:{owner.address.port}")
            client = await AsyncClient.open("127.0.0.1", proxy, ClientConnection(hello), timeout_s=ANSWER_S)
        else:
            client = await AsyncClient.open("127.0.0.1", owner.address.port, timeout_s=ANSWER_S)
        self.clients.add(client)
        self.opened += 1
        return client

    def close(self, client: AsyncClient) -> None:
        """Close a connection."""
        client.close()
        self.clients.discard(client)


class Publisher:
    """Publishes to one topic, in order, and sends again what was not answered."""

    def __init__(self, run: Run, kind: Kind, name: str, *, proxied: bool) -> None:
        self.kind = kind
        self._run = run
        self._proxied = proxied
        self._producer = Producer(1, PREFIX + kind.topic, name=name)
        self._unanswered: deque[tuple[int, int, int]] = deque()  # first, count, chunk: of the producer's pending ones
        self._next = 0

    @property
    def pending(self) -> int:
        return len(self._unanswered)

    async def work(self) -> None:
        """Publish until the run has ended."""
        while not self._run.ending:
            client: AsyncClient | None = None
            try:
                client = await self._run.connect(self.kind.topic, proxied=self._proxied)
                before = len(self._producer.pending)
                await client.open_producer(self._producer, timeout_s=ANSWER_S)
                # What the topic has stored under this name was answered by the opening.
                for _ in range(before - len(self._producer.pending)):
                    self._take_receipt(-1, -1)
                await self._publish(client)
            except (OSError, PenstockError, TimeoutError):
                await asyncio.sleep(RETRY_S)
            finally:
                if client is not None:
                    self._run.close(client)

    async def _publish(self, client: AsyncClient) -> None:
        listening = asyncio.ensure_future(self._listen(client))
        try:
            while not self._run.ending and not listening.done():
                if self._run.sending and self.pending < WINDOW:
                    self._send(client)
                    await client.drain()
                await asyncio.sleep(1 / self.kind.entries_per_s)
            if listening.done():
                listening.result()
        finally:
            listening.cancel()

    async def _listen(self, client: AsyncClient) -> None:
        while True:
            event = await client.next_event()
            if isinstance(event, events.Receipt):
                self._take_receipt(event.position.ledger_id, event.position.entry_id)
            elif isinstance(event, events.ProducerClosed | events.SendFailed):
                return  # As official clients do: connect again, and send again what is pending.

    def _take_receipt(self, ledger_id: int, entry_id: int) -> None:
        first, count, chunk = self._unanswered.popleft()
        self._run.history.add("stored", self.kind.topic, self._producer.name, first, count, chunk, ledger_id, entry_id)

    def _send(self, client: AsyncClient) -> None:
        kind, chance = self.kind, self._run.chance
        first = self._next
        count = chance.randint(1, kind.batch) if kind.batch else 1
        self._next += count
        about = self._producer.metadata(int(time.time() * 1000), first)
        key = ""
        if kind.keys:
            key = about.partition_key = f"k{chance.randrange(KEYS)}"
        if kind.delayed and chance.random() < 0.5:
            wait_s = chance.uniform(0.2, 3.0)
            about.deliver_at_time = int((time.time() + wait_s) * 1000)
            self._run.history.add("late", kind.topic, self._producer.name, first, self._run.history.now() + wait_s)
        if kind.chunks and chance.random() < 0.5:
            for chunk in range(CHUNKS):
                piece = self._producer.metadata(0, first)
                piece.uuid, piece.num_chunks_from_msg, piece.chunk_id = f"{self._producer.name}-{first}", CHUNKS, chunk
                piece.total_chunk_msg_size = CHUNKS * len(_CHUNK)
                self._note(first, 1, key, chunk)
                client.connection.send(self._producer, piece, _CHUNK, is_chunk=True)
            return
        self._note(first, count, key, -1)
        if kind.batch:
            about.num_messages_in_batch = count
        client.connection.send(self._producer, about, _batch(count) if kind.batch else b"x" * 100, messages=count)

    def _note(self, first: int, count: int, key: str, chunk: int) -> None:
        self._unanswered.append((first, count, chunk))
        self._run.history.add("send", self.kind.topic, self._producer.name, first, count, key, chunk)


@contextlib.asynccontextmanager
async def reader(
    run: Run, topic: str, *, compacted: bool = False, name: str = "reader", start: Position | None = None
) -> AsyncIterator[AsyncIterator[events.Message]]:
    """Read a topic from its beginning or `start` on, until nothing comes any more. Raises as `AsyncClient.open`."""
    client = await run.connect(topic, proxied=False)
    run.clients.discard(client)  # A reader that is cut would have to begin again.
    async with client:
        body = CommandSubscribe(
            topic=PREFIX + topic,
            subscription=name,
            subType=TYPES["exclusive"],  # type: ignore[arg-type]
            consumer_id=1,
            request_id=0,
            durable=False,
            read_compacted=compacted,
            initialPosition=EARLIEST,  # type: ignore[arg-type]
        )
        body.start_message_id.ledgerId, body.start_message_id.entryId = start or (2**64 - 1, 2**64 - 1)
        await client.subscribe(Consumer(body, permits_max=8_000), timeout_s=ANSWER_S)
        yield _messages(client)


async def _messages(client: AsyncClient) -> AsyncIterator[events.Message]:
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(4 * IDLE_S):
                event = await client.next_event()
            if isinstance(event, events.Message):
                yield event


async def read_compacted(run: Run, topic: str) -> dict[str, list[object]]:
    """Return the last message of each key, (producer, first), as a reader of the compacted topic gets it."""
    found: dict[str, list[object]] = {}
    async with reader(run, topic, compacted=True) as messages:
        async for message in messages:
            about = message.metadata()
            found[about.partition_key] = [about.producer_name, about.sequence_id]
    return found


async def read_places(run: Run, topic: str) -> list[tuple[int, int, int]]:
    """Return where each entry of a topic is, (ledger, entry), and its size in bytes."""
    async with reader(run, topic) as messages:
        return [(one.position.ledger_id, one.position.entry_id, len(one.entry)) async for one in messages]


_CHUNK: Final = b"c" * 20_000


@functools.cache
def _batch(count: int) -> bytes:
    """The payload of a batch. What it holds is named by its metadata."""
    return entries.batch([(SingleMessageMetadata(), b"m")] * count)


class Subscriber:
    """One consumer of a subscription, that acknowledges in one of the ways there are."""

    def __init__(self, run: Run, topic: str, subscription: str, number: int, *, proxied: bool) -> None:
        self.subscription = f"{topic}/{subscription}"
        self.paused_until = 0.0
        self._run = run
        self._topic = topic
        self._type = subscription.partition("/")[2]
        self._proxied = proxied
        self._number = number
        self._waiting: Position | None = None

    async def work(self) -> None:
        """Consume until the run has ended."""
        while not self._run.ending:
            client: AsyncClient | None = None
            acknowledging: set[asyncio.Task[None]] = set()
            try:
                client = await self._run.connect(self._topic, proxied=self._proxied)
                self._run.epochs += 1
                epoch, self._waiting = self._run.epochs, None
                self._run.history.add("open", self.subscription, epoch)
                consumer = self.consumer()
                await client.subscribe(consumer, timeout_s=ANSWER_S)
                while not self._run.ending:
                    try:
                        async with asyncio.timeout(IDLE_S):
                            event = await client.next_event()
                    except TimeoutError:
                        self._acknowledge_rest(client, consumer)
                        continue
                    if isinstance(event, events.ConsumerClosed):
                        break
                    if isinstance(event, events.Message):
                        self._take(client, consumer, event, epoch, acknowledging)
                    if self.paused_until > time.monotonic():  # A slow reader.
                        await asyncio.sleep(self.paused_until - time.monotonic())
            except (OSError, PenstockError, TimeoutError):
                await asyncio.sleep(RETRY_S)
            finally:
                if client is not None:
                    self._run.close(client)
                await asyncio.gather(*acknowledging, return_exceptions=True)

    def _acknowledge_rest(self, client: AsyncClient, consumer: Consumer) -> None:
        """Nothing came for a while: acknowledge what waits for a later message."""
        if self._waiting is not None:
            client.connection.acknowledge(consumer, [self._waiting], cumulative=True)
            client.flush()
            self._waiting = None

    def consumer(self) -> Consumer:
        """What it subscribes as."""
        body = CommandSubscribe(
            topic=PREFIX + self._topic,
            subscription=self.subscription.split("/")[1],
            subType=TYPES[self._type],  # type: ignore[arg-type]
            consumer_id=1,
            request_id=0,
            consumer_name=f"c{self._number}",
            initialPosition=EARLIEST,  # type: ignore[arg-type]
        )
        return Consumer(body, permits_max=8_000)

    def _take(
        self,
        client: AsyncClient,
        consumer: Consumer,
        event: events.Message,
        epoch: int,
        acknowledging: set[asyncio.Task[None]],
    ) -> None:
        assert event.is_whole, f"{self.subscription}: {event.position} does not match its checksum"
        about, position = event.metadata(), event.position
        count = about.num_messages_in_batch if about.HasField("num_messages_in_batch") else 1
        indexes = _indexes(event.body.ack_set, count) if event.body.ack_set else None
        chunk = about.chunk_id if about.HasField("chunk_id") and about.num_chunks_from_msg else -1
        self._run.history.add(
            "recv", self.subscription, epoch, about.producer_name, about.sequence_id, count, chunk,
            position.ledger_id, position.entry_id, indexes,
        )  # fmt: skip
        chance = self._run.chance
        parts: list[tuple[str, list[int] | None]] = [("entry", None)]
        if self._type in {"exclusive", "failover"} and chance.random() < 0.5:
            if chance.random() < 0.8:
                self._waiting = position  # A later one acknowledges it, too.
                return
            parts, self._waiting = [("up-to", None)], None
        elif self._type == "shared" and count > 1 and chance.random() < 0.5:
            middle = count // 2
            parts = [("indexes", list(range(middle))), ("indexes", list(range(middle, count)))]
        for kind, some in parts:
            left = () if some is None else _words(some, count)
            wait = chance.random() < 0.3
            asked = client.connection.acknowledge(
                consumer, [position], cumulative=kind == "up-to", ack_set=left, wait=wait
            )
            if asked is not None:
                task = asyncio.ensure_future(
                    self._confirm(client, asked, position.ledger_id, position.entry_id, kind, some)
                )
                acknowledging.add(task)
                task.add_done_callback(acknowledging.discard)
        client.flush()

    async def _confirm(
        self, client: AsyncClient, asked: int, ledger_id: int, entry_id: int, kind: str, some: list[int] | None
    ) -> None:
        try:
            await client.answer(asked, timeout_s=ANSWER_S)
        except (OSError, PenstockError, TimeoutError):
            return
        self._run.history.add("acked", self.subscription, ledger_id, entry_id, kind, some)


def _indexes(words: object, count: int) -> list[int]:
    """The messages of a batch that are left, from words with a bit for each."""
    bits = sum((word & (2**64 - 1)) << 64 * place for place, word in enumerate(words))  # type: ignore[arg-type, var-annotated]
    return [index for index in range(count) if bits >> index & 1]


def _words(acknowledged: list[int], count: int) -> list[int]:
    """Signed 64-bit words with a bit for each message that is not acknowledged."""
    bits = (1 << count) - 1
    for index in acknowledged:
        bits &= ~(1 << index)
    words = [bits >> 64 * place & (2**64 - 1) for place in range(-(-count // 64))]
    return [word - 2**64 if word >= 2**63 else word for word in words]
