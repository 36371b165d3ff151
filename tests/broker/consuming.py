# SPDX-License-Identifier: Apache-2.0
"""A client of the in-process broker that subscribes, receives and acknowledges in every way the protocol has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.core.checksum import is_sealed
from penstock.testing.client import Refused
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.client.connection import ANSWERS
from penstock.wire.client.frames import payload_in
from penstock.wire.pulsar_pb2 import IntRange, KeySharedMeta, KeyValue
from tests.net.harness import TOPIC, Client, Harness, connect, topic_of, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.message import Message

    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.delayed_index import DelayedIndex

Type = codec.BaseCommand.Type
EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = range(4)


class Received(NamedTuple):
    """One MESSAGE."""

    message: codec.CommandMessage
    entry: bytes

    @property
    def entry_id(self) -> int:
        return self.message.message_id.entryId

    @property
    def payload(self) -> bytes:
        return bytes(payload_in(self.entry))


class Peer:
    """One connection; commands that nobody waits for are kept."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.inbox: list[tuple[codec.BaseCommand, bytes]] = []
        self._requests = 0
        self._sequence = 0

    @classmethod
    async def connected(cls, harness: Harness) -> Peer:
        peer = cls(await Client.open(harness.port))
        peer.client.write(connect())
        await peer.next(Type.CONNECTED)
        return peer

    @classmethod
    async def producing(cls, harness: Harness) -> Peer:
        """One that has a producer on TOPIC."""
        peer = await cls.connected(harness)
        await peer.produce()
        return peer

    # -- any command

    def send(self, kind: int, body: Message) -> None:
        self.client.write(codec.encode(kind, body))

    async def next(self, *kinds: int) -> tuple[codec.BaseCommand, bytes]:
        """The next command of these kinds; PINGs are answered, others are kept."""
        for index, (command, _) in enumerate(self.inbox):
            if command.type in kinds:
                return self.inbox.pop(index)
        while True:
            command, entry = await self.client.read_frame()
            if command.type in kinds:
                return command, entry
            if command.type == Type.PING:
                self.client.write(codec.pong())
            else:
                self.inbox.append((command, entry))

    async def request(self, kind: int, body: Any) -> Any:  # noqa: ANN401 - the answer's body
        self._requests += 1
        body.request_id = self._requests
        self.send(kind, body)
        command, _ = await self.next(ANSWERS[kind], Type.ERROR)
        if command.type == Type.ERROR:
            raise Refused(command.error.error, command.error.message)
        return codec.body_in(command)

    async def settled(self) -> list[codec.BaseCommand]:
        """What came until the broker answers a PING, but for messages still expected by nobody: all that was kept."""
        self.client.write(codec.ping())
        await self.next(Type.PONG)
        return [command for command, _ in self.inbox]

    # -- publishing

    async def produce(self, topic: str = TOPIC) -> None:
        await self.request(Type.PRODUCER, codec.CommandProducer(topic=topic, producer_id=0))

    async def publish(self, *payloads: bytes, messages: int = 1, **metadata: Any) -> list[int]:  # noqa: ANN401
        """Send entries of so many messages each; their entry ids."""
        for payload in payloads:
            about = codec.MessageMetadata(
                producer_name="p", sequence_id=self._sequence, publish_time=metadata.pop("publish_time", 1), **metadata
            )
            if messages > 1:
                about.num_messages_in_batch = messages
            command = codec.CommandSend(producer_id=0, sequence_id=self._sequence)
            if messages > 1:
                command.num_messages = messages
            self._sequence += 1
            self.client.write(entries.send(command, entries.entry(about, payload)))
        receipts = [(await self.next(Type.SEND_RECEIPT))[0].send_receipt for _ in payloads]
        return [receipt.message_id.entryId for receipt in receipts]

    # -- consuming

    async def subscribe(
        self,
        kind: int = EXCLUSIVE,
        *,
        topic: str = TOPIC,
        name: str = "s",
        consumer_id: int = 0,
        consumer_name: str = "",
        permits: int = 1_000,
        earliest: bool = True,
        ranges: Sequence[tuple[int, int]] | None = None,
        out_of_order: bool = False,
        properties: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 - any of the command's
    ) -> None:
        body = codec.CommandSubscribe(
            topic=topic,
            subscription=name,
            subType=kind,  # type: ignore[arg-type]
            consumer_id=consumer_id,
            consumer_name=consumer_name,
            request_id=0,
            initialPosition=codec.CommandSubscribe.Earliest if earliest else codec.CommandSubscribe.Latest,
            subscription_properties=[KeyValue(key=key, value=value) for key, value in (properties or {}).items()],
            metadata=[KeyValue(key=key, value=value) for key, value in (metadata or {}).items()],
            **fields,
        )
        if kind == KEY_SHARED:
            body.keySharedMeta.CopyFrom(
                KeySharedMeta(
                    keySharedMode=codec.KeySharedMode.AUTO_SPLIT if ranges is None else codec.KeySharedMode.STICKY,
                    hashRanges=[IntRange(start=start, end=end) for start, end in ranges or ()],
                    allowOutOfOrderDelivery=out_of_order,
                )
            )
        await self.request(Type.SUBSCRIBE, body)
        if permits:
            self.flow(permits, consumer_id=consumer_id)

    def flow(self, permits: int, *, consumer_id: int = 0) -> None:
        self.send(Type.FLOW, codec.CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    async def message(self) -> Received:
        command, entry = await self.next(Type.MESSAGE)
        assert is_sealed(entry)
        return Received(command.message, entry)

    async def messages(self, count: int) -> list[Received]:
        return [await self.message() for _ in range(count)]

    async def payloads(self, count: int) -> list[bytes]:
        return [received.payload for received in await self.messages(count)]

    def acknowledge(
        self, *received: Received | int, consumer_id: int = 0, cumulative: bool = False, words: Sequence[int] = ()
    ) -> None:
        """Acknowledge entries; with `words`, all but the members named there."""
        body = codec.CommandAck(
            consumer_id=consumer_id,
            ack_type=codec.CommandAck.Cumulative if cumulative else codec.CommandAck.Individual,
        )
        for one in received:
            message_id = body.message_id.add()
            if isinstance(one, int):
                message_id.ledgerId, message_id.entryId = self.ledger_id, one
            else:
                message_id.ledgerId, message_id.entryId = one.message.message_id.ledgerId, one.entry_id
            message_id.ack_set.extend(words)
        self.send(Type.ACK, body)

    ledger_id = 1  # of the first topic that is made

    def redeliver(self, *received: Received, consumer_id: int = 0, epoch: int | None = None) -> None:
        body = codec.CommandRedeliverUnacknowledgedMessages(
            consumer_id=consumer_id, message_ids=[one.message.message_id for one in received], consumer_epoch=epoch
        )
        self.send(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, body)

    async def close_consumer(self, consumer_id: int = 0) -> None:
        await self.request(Type.CLOSE_CONSUMER, codec.CommandCloseConsumer(consumer_id=consumer_id, request_id=0))


def subscription_of(harness: Harness, name: str = "s", topic: str = TOPIC) -> Subscription:
    return topic_of(harness, topic).subscriptions[name]


def delayed_of(harness: Harness) -> DelayedIndex:
    """The index of the topic's delayed messages, of which there are some."""
    index = topic_of(harness).delayed
    assert index is not None
    return index


def pass_time(harness: Harness, ms: int) -> None:
    """Let time pass, and the timer of the topic's delayed messages have its turn."""
    harness.clock.advance(ms=ms)
    delayed_of(harness).deliver_due()


async def nothing_more(harness: Harness, *peers: Peer, name: str = "s") -> None:
    """The broker has nothing to send to these peers, and has sent nothing that was not asked for."""
    subscription = subscription_of(harness, name)
    for peer in peers:
        await peer.settled()
    await until(lambda: subscription.at_rest)
    for peer in peers:
        assert [c.message.message_id.entryId for c in await peer.settled() if c.type == Type.MESSAGE] == []
