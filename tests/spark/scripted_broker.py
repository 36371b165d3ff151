# SPDX-License-Identifier: Apache-2.0
"""A broker in the test's own process whose answers and messages arrive in an order that a seed decides.

Why: the order in which frames of different consumers reach a client is the network's and the broker's choice. A real
broker makes the rare orders rarely; here each seed makes another one. Frames of one consumer keep their order, as they
do on a connection, and nothing is sent to a consumer without permits.
Where: tests of the client that Spark's tasks use. Topics are lists of entries; what is published is deduplicated by
producer name and sequence id, as brokers do it.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.core.errors import WireCode
from penstock.testing.client import frame
from penstock.wire import codec
from penstock.wire.client import entries
from penstock.wire.codec import BaseCommand, CommandMessage, MessageMetadata, SingleMessageMetadata

if TYPE_CHECKING:
    from types import TracebackType

HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 60.0
# So long the next command is waited for before a frame is sent; a client that writes at once is always read first.
PATIENCE_S: Final = 0.001
_BEFORE_ALL: Final = 2**63


class Stored(NamedTuple):
    """An entry of a topic."""

    ledger_id: int
    entry_id: int
    messages: int
    entry: bytes


def batch_of(values: list[bytes], *, publish_ms: int = 1) -> bytes:
    """An entry with these messages."""
    payload = entries.batch((SingleMessageMetadata(), value) for value in values)
    about = MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=publish_ms, num_messages_in_batch=len(values)
    )
    return entries.entry(about, payload)


@dataclass
class _Consumer:
    topic: str
    next_index: int
    permits: int = 0


@dataclass
class ScriptedBroker:
    """Listens on a port of its own. Use it in a `with`.

    Attributes:
        seed: of the order of frames.
        topics: entries by full name; may be changed before clients connect.
        partitions: of partitioned topics, by full name.
        hidden: entries that are passed over when they should be sent for the first time: (ledger, entry) by topic.
        tells_backlogs: whether consumers are told how many entries wait for them.
        ignores: entries that are passed over when they come, from now on.
        refusals: of producers whose name is in use.
        stored: how many entries were stored.
        duplicates: how many were not, because they were there.
    """

    seed: int
    topics: dict[str, list[Stored]] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    hidden: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    tells_backlogs: bool = True
    ignores: int = 0
    refusals: int = 0
    stored: int = 0
    duplicates: int = 0
    sequence_ids: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Condition()
        self.connected: dict[tuple[str, str], _Link] = {}
        self._listener = socket.create_server((HOST, 0))
        self.url = f"pulsar://{HOST}:{self._listener.getsockname()[1]}"
        self._links: list[_Link] = []
        self._thread = threading.Thread(target=self._accept, name="scripted", daemon=True)

    def add(self, topic: str, batches: list[list[bytes]], *, ledger_id: int = 1, first_entry_id: int = 0) -> None:
        """Append entries to a topic, one published each millisecond."""
        held = self.topics.setdefault(topic, [])
        for entry_id, values in enumerate(batches, first_entry_id):
            held.append(Stored(ledger_id, entry_id, len(values), batch_of(values, publish_ms=len(held) + 1)))

    def wait_for_refusals(self, count: int) -> None:
        """Wait until so many producers were refused."""
        with self.lock:
            assert self.lock.wait_for(lambda: self.refusals >= count, TIMEOUT_S)

    def cut(self) -> None:
        """End all connections."""
        for link in self._links:
            link.close()
        self._links.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = _Link(self, client, random.Random(self.seed * 1_000 + len(self._links)))
                self._links.append(link)
                link.thread.start()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self.cut()


class _Link:
    """One client's connection."""

    def __init__(self, broker: ScriptedBroker, peer: socket.socket, chance: random.Random) -> None:
        self._broker = broker
        self._peer = peer
        self._chance = chance
        self._consumers: dict[int, _Consumer] = {}
        self._producers: dict[int, tuple[str, str]] = {}
        self._streams: dict[object, deque[bytes]] = {}  # frames to be sent; those of one stream in their order
        self.thread = threading.Thread(target=self._serve, name="scripted", daemon=True)

    def close(self) -> None:
        """Cut the connection and wait until nobody uses it."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self._peer.close()

    def _serve(self) -> None:
        data = bytearray()
        with contextlib.suppress(OSError):
            while self._turn(data):
                pass
        with self._broker.lock:
            for key in self._producers.values():
                self._broker.connected.pop(key, None)
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)

    def _turn(self, data: bytearray) -> bool:
        """Read what has come; else send one frame, of a stream that chance chooses."""
        waits = any(self._streams.values()) or any(self._sendable(one) for one in self._consumers.values())
        if select.select([self._peer], [], [], PATIENCE_S if waits else None)[0]:
            came = self._peer.recv(65_536)
            if not came:
                return False
            data += came
            while len(data) >= 4 and len(data) >= (size := 4 + struct.unpack_from(">I", data)[0]):
                whole = bytes(data[:size])
                del data[:size]
                self._handle(whole)
            return True
        streams = [name for name, frames in self._streams.items() if frames]
        streams += [number for number, one in self._consumers.items() if self._sendable(one)]
        chosen = self._chance.choice(sorted(streams, key=str))
        if frames := self._streams.get(chosen):
            self._peer.sendall(frames.popleft())
        else:
            self._send_entry(chosen)
        return True

    # -- commands ----------------------------------------------------------------------------------------------------

    def _handle(self, whole: bytes) -> None:
        command_size = struct.unpack_from(">I", whole, 4)[0]
        command = codec.decode_command(whole[8 : 8 + command_size])
        body = codec.body_in(command)
        kind = BaseCommand.Type.Name(command.type).lower()
        if command.type == BaseCommand.SEND:
            self._store(body, whole[8 + command_size :])
            return
        answer = getattr(self, f"_on_{kind}")(body)
        if answer is not None:
            stream, data = answer
            self._streams.setdefault(stream, deque()).append(data)

    def _on_connect(self, _body: codec.CommandConnect) -> tuple[object, bytes]:
        said = {"server_version": "scripted", "protocol_version": 20, "max_message_size": 5 << 20}
        return "answers", frame(BaseCommand.CONNECTED, **said)

    def _on_partitioned_metadata(self, body: codec.CommandPartitionedTopicMetadata) -> tuple[object, bytes]:
        count = self._broker.partitions.get(body.topic, 0)
        return ("request", body.request_id), codec.partitioned_metadata(body.request_id, count)

    def _on_lookup(self, body: codec.CommandLookupTopic) -> tuple[object, bytes]:
        return ("request", body.request_id), codec.lookup_connect(body.request_id, self._broker.url, None)

    def _on_subscribe(self, body: codec.CommandSubscribe) -> tuple[object, bytes]:
        held = self._broker.topics.setdefault(body.topic, [])
        start = body.start_message_id.ledgerId, body.start_message_id.entryId
        if start[0] >= _BEFORE_ALL:
            start = (-1, -1)
        index = next((at for at, one in enumerate(held) if (one.ledger_id, one.entry_id) >= start), len(held))
        self._consumers[body.consumer_id] = _Consumer(body.topic, index)
        # The first frame of its stream: a consumer's messages follow the answer that opens it.
        return body.consumer_id, codec.success(body.request_id)

    def _on_flow(self, body: codec.CommandFlow) -> None:
        if (consumer := self._consumers.get(body.consumer_id)) is not None:
            consumer.permits += body.messagePermits

    def _on_get_last_message_id(self, body: codec.CommandGetLastMessageId) -> tuple[object, bytes]:
        consumer = self._consumers[body.consumer_id]
        held = self._broker.topics[consumer.topic]
        answer: dict[str, Any] = {"request_id": body.request_id}
        last = held[-1] if held else None
        answer["last_message_id"] = _id(last.ledger_id, last.entry_id) if last else _id(-1, -1)
        at = consumer.next_index
        if at < len(held):
            answer["consumer_mark_delete_position"] = _id(held[at].ledger_id, held[at].entry_id - 1)
        elif last:
            answer["consumer_mark_delete_position"] = answer["last_message_id"]
        return ("request", body.request_id), frame(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, **answer)

    def _on_consumer_stats(self, body: codec.CommandConsumerStats) -> tuple[object, bytes]:
        consumer = self._consumers[body.consumer_id]
        said: dict[str, Any] = {"request_id": body.request_id}
        if self._broker.tells_backlogs:
            said["msgBacklog"] = len(self._broker.topics[consumer.topic]) - consumer.next_index
        else:
            said |= {"error_code": int(WireCode.NOT_ALLOWED_ERROR), "error_message": "no statistics for you"}
        return ("request", body.request_id), frame(BaseCommand.CONSUMER_STATS_RESPONSE, **said)

    def _on_close_consumer(self, body: codec.CommandCloseConsumer) -> tuple[object, bytes]:
        self._consumers.pop(body.consumer_id, None)
        return body.consumer_id, codec.success(body.request_id)

    def _on_pong(self, _body: object) -> None:
        pass

    # -- messages ----------------------------------------------------------------------------------------------------

    def _sendable(self, consumer: _Consumer) -> bool:
        return consumer.permits > 0 and consumer.next_index < len(self._broker.topics[consumer.topic])

    def _send_entry(self, consumer_id: Any) -> None:  # noqa: ANN401 -- the number of a stream
        consumer = self._consumers[consumer_id]
        one = self._broker.topics[consumer.topic][consumer.next_index]
        consumer.next_index += 1
        consumer.permits -= one.messages
        hidden = self._broker.hidden.get(consumer.topic, set())
        if (one.ledger_id, one.entry_id) in hidden:
            hidden.remove((one.ledger_id, one.entry_id))
            return
        body = CommandMessage(consumer_id=consumer_id)
        body.message_id.ledgerId, body.message_id.entryId = one.ledger_id, one.entry_id
        command = BaseCommand(type=BaseCommand.MESSAGE, message=body).SerializeToString()
        sizes = struct.pack(">II", 4 + len(command) + len(one.entry), len(command))
        self._peer.sendall(sizes + command + one.entry)

    # -- publishing --------------------------------------------------------------------------------------------------

    def _on_producer(self, body: codec.CommandProducer) -> tuple[object, bytes]:
        key = body.topic, body.producer_name or f"unnamed-{self._chance.random()}"
        stream = ("request", body.request_id)
        with self._broker.lock:
            if key in self._broker.connected:
                self._broker.refusals += 1
                self._broker.lock.notify_all()
                busy = f"Producer with name '{key[1]}' is already connected to topic"
                return stream, codec.error(body.request_id, int(WireCode.PRODUCER_BUSY), busy)
            self._broker.connected[key] = self
            self._producers[body.producer_id] = key
            last = self._broker.sequence_ids.get(key, -1)
        said = {"request_id": body.request_id, "producer_name": key[1], "last_sequence_id": last}
        return stream, frame(BaseCommand.PRODUCER_SUCCESS, **said)

    def _store(self, body: codec.CommandSend, entry: bytes) -> None:
        """Store an entry unless it is there."""
        broker = self._broker
        key = self._producers[body.producer_id]
        highest = max(body.sequence_id, body.highest_sequence_id)
        with broker.lock:
            if broker.ignores:
                broker.ignores -= 1
                return
            if body.sequence_id <= broker.sequence_ids.get(key, -1):
                broker.duplicates += 1
            else:
                held = broker.topics.setdefault(key[0], [])
                held.append(Stored(1, len(held), max(1, body.num_messages), entry))
                broker.sequence_ids[key] = highest
                broker.stored += 1
        receipt = {"producer_id": body.producer_id, "sequence_id": body.sequence_id, "message_id": _id(1, 0)}
        answer = frame(BaseCommand.SEND_RECEIPT, **receipt)
        self._streams.setdefault(("producer", body.producer_id), deque()).append(answer)

    def _on_close_producer(self, body: codec.CommandCloseProducer) -> tuple[object, bytes]:
        with self._broker.lock:
            self._broker.connected.pop(self._producers.pop(body.producer_id), None)
        return ("producer", body.producer_id), codec.success(body.request_id)


def _id(ledger_id: int, entry_id: int) -> dict[str, int]:
    return {"ledgerId": ledger_id % 2**64, "entryId": entry_id % 2**64}
