# SPDX-License-Identifier: Apache-2.0
"""Messages of a topic and all its partitions, for one thread that prints them or sends them on.

Why Spark's client: it looks topics up, follows redirects, goes through proxies, and opens again what a broker closed
(docs/adr/0103-messages-on-the-command-line.md). Where: `consume`, `tail`, `export`, `replay`, `redrive`; `sending` for
what they and `produce` send.

A partition has a connection of its own. All are asked in turn for what has come; if none has anything, the thread
waits a twentieth of a second.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.cli.exits import CommandFailed, Exit, wrong
from penstock.core.errors import WireCode
from penstock.core.hashing import java_string_hash
from penstock.core.names import TopicName
from penstock.core.units import MIB, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.credentials import NO_CREDENTIALS, Credentials
from penstock.spark.client.endpoint import Endpoint, TlsOptions
from penstock.spark.client.errors import ClientError, ConnectionLost, Refused
from penstock.spark.client.message_id import EARLIEST, MessageId, signed
from penstock.spark.client.producer import Producer, ProducerOptions
from penstock.spark.client.subscription import Subscription, reading_body
from penstock.wire import codec
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import ConsumerClosed, EndOfTopic
from penstock.wire.client.events import Message as Entry
from penstock.wire.client.lookup import parse_service_url
from penstock.wire.messages import Message, messages_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from penstock.cli.contexts import Target
    from penstock.core.clock import Clock
    from penstock.core.position import Position
    from penstock.spark.client.connection import Connection

LATEST: Final = MessageId(2**63 - 1, 2**63 - 1)
PAUSE_S: Final = 0.05
_CONNECT_S: Final = 10.0
_WINDOW: Final = 1_000
_CHUNKS_BYTES_MAX: Final = 64 * MIB
# Options of Spark, in the errors of its client, and ours.
_OURS: Final = {
    "service.url": "--url",
    "tlsTrustCertsFilePath": "--cacert",
    "option token (as file:///path it may be renewed while a query runs)": "--token-file",
    "option token": "--token-file",
}
_STATUSES: Final = {
    WireCode.TOPIC_NOT_FOUND: Exit.NOT_FOUND,
    WireCode.SUBSCRIPTION_NOT_FOUND: Exit.NOT_FOUND,
    WireCode.AUTHENTICATION_ERROR: Exit.NOT_ALLOWED,
    WireCode.AUTHORIZATION_ERROR: Exit.NOT_ALLOWED,
}


@contextmanager
def connected(target: Target, *, wait_s: float = 30.0) -> Iterator[Cluster]:
    """A cluster, and errors as commands tell them. `wait_s`: how long what may pass is tried again."""
    from pathlib import Path

    try:
        addresses = parse_service_url(target.url)
    except ValueError as error:
        raise wrong(f"--url: {error}") from error
    token = target.token()
    endpoint = Endpoint(
        addresses=addresses,
        credentials=Credentials("token", token, target.token_file) if token else NO_CREDENTIALS,
        tls=TlsOptions(trusted=Path(target.cacert) if target.cacert else None),
        connect_timeout_s=min(wait_s, _CONNECT_S),
        operation_timeout_s=wait_s,
    )
    try:
        with Cluster(endpoint) as cluster:
            yield cluster
    except ClientError as error:
        raise CommandFailed(said(error), _status(error)) from error


def said(error: ClientError) -> str:
    """Return an error in the words of the command line."""
    text = str(error)
    for theirs, ours in _OURS.items():
        text = text.replace(theirs, ours)
    return text


def _status(error: ClientError) -> Exit:
    if isinstance(error, Refused):
        return Exit.NOT_FOUND if error.is_missing_topic else _STATUSES.get(error.code, Exit.FAILED)
    return Exit.NO_ANSWER if error.may_pass else Exit.FAILED


class Got(NamedTuple):
    """A message, and where to acknowledge it."""

    message: Message
    feed: Feed
    entry: Entry
    is_last: bool  # of its entry


class Feed:
    """One partition: a subscription, or a reader from `start` on."""

    def __init__(self, cluster: Cluster, topic: str, body: codec.CommandSubscribe) -> None:
        self.topic = topic
        self.start = (signed(body.start_message_id.ledgerId), signed(body.start_message_id.entryId))
        self.is_over = False  # The topic was terminated, and this was all.
        self._cluster = cluster
        self._consumer = Consumer(body, permits_max=_WINDOW)
        self._chunks: dict[str, list[Entry]] = {}
        self._pieces: dict[Position, list[Position]] = {}  # of whole messages in chunks, by their last
        self._connection = self._open()

    def next_entry(self) -> Entry | None:
        """Return the next entry that has come; None if none has. Raises ClientError."""
        try:
            event = self._connection.next_event(0)
            if isinstance(event, ConsumerClosed):
                raise ConnectionLost(str(self._connection.address), "the broker closed the consumer: the topic moves")
        except ConnectionLost:
            self._connection.close()
            self._connection = self._open()
            return None
        if isinstance(event, EndOfTopic):
            self.is_over = True
        if not isinstance(event, Entry):
            return None
        if not self._consumer.body.durable:  # A reader goes on where it was.
            start = self._consumer.body.start_message_id
            start.ledgerId, start.entryId = event.position.ledger_id, event.position.entry_id + 1
        return event

    def messages(self, entry: Entry) -> list[Message]:
        """Return the messages of an entry; none of a chunk that is not the last. Raises ProtocolError."""
        about = entry.metadata()
        if about.num_chunks_from_msg > 1:
            whole = self._joined(about, entry)
            found = [] if whole is None else list(messages_in(entry.entry, entry.position, whole))
        else:
            found = list(messages_in(entry.entry, entry.position))
        return [replace(one, topic=self.topic) for one in found]

    def acknowledge(self, entry: Entry) -> None:
        """Acknowledge an entry, and all pieces of its message. Raises ClientError."""
        positions = self._pieces.pop(entry.position, [entry.position])
        self._connection.acknowledge_each(self._consumer, positions)

    def fileno(self) -> int:
        """For selectors, after `next_entry` has had nothing."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _joined(self, about: codec.MessageMetadata, piece: Entry) -> bytes | None:
        pieces = self._chunks.setdefault(about.uuid, [])
        if about.chunk_id == 0:
            pieces.clear()
        if about.chunk_id != len(pieces):
            return None  # Sent twice, or the beginning is gone.
        pieces.append(piece)
        if about.total_chunk_msg_size > _CHUNKS_BYTES_MAX:
            raise CommandFailed(f"a message of {self.topic} is larger than {_CHUNKS_BYTES_MAX:,} bytes")
        if about.chunk_id < about.num_chunks_from_msg - 1:
            return None
        del self._chunks[about.uuid]
        self._pieces[piece.position] = [one.position for one in pieces]
        return b"".join(one.payload for one in pieces)

    def _open(self) -> Connection:
        return self._cluster.insist(self._open_once)

    def _open_once(self) -> Connection:
        connection = self._cluster.open_once(self.topic)
        self._consumer.body.consumer_id = connection.new_consumer_id()
        try:
            connection.subscribe(self._consumer, f"reading {self.topic}")
            connection.flow(self._consumer)
        except BaseException:
            connection.close()
            raise
        return connection


class Feeds:
    """All partitions of a topic; use it in a `with`."""

    def __init__(self, feeds: Sequence[Feed], clock: Clock | None = None) -> None:
        self.feeds = feeds
        self._clock = clock or SystemClock()

    def messages(self, *, idle_s: float | None = None) -> Iterator[Got | None]:
        """Yield messages as they come; None where there is nothing to do but wait.

        Args: idle_s: end when nothing has come for so long; None: go on until all topics are terminated.
        """
        since_ns = self._clock.monotonic_ns()
        while not all(feed.is_over for feed in self.feeds):
            came = False
            for feed in self.feeds:
                for got in self._of(feed):
                    came = True
                    yield got
            if came:
                since_ns = self._clock.monotonic_ns()
                continue
            yield None
            if idle_s is not None and self._clock.monotonic_ns() - since_ns >= idle_s * NS_PER_S:
                return
            threading.Event().wait(PAUSE_S)

    def _of(self, feed: Feed) -> Iterator[Got]:
        for _ in range(_WINDOW):
            if (entry := feed.next_entry()) is None:
                return
            found = feed.messages(entry)
            for number, message in enumerate(found, 1):
                yield Got(message, feed, entry, is_last=number == len(found))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for feed in self.feeds:
            feed.close()


def subscription_body(topic: str, name: str, kind: int, *, earliest: bool) -> codec.CommandSubscribe:
    """Return the command that opens a consumer of a durable subscription."""
    return codec.CommandSubscribe(
        topic=topic,
        subscription=name,
        subType=kind,  # type: ignore[arg-type]  # enums are numbers
        consumer_id=0,
        request_id=0,
        consumer_name=f"penstock-cli-{os.getpid()}",
        initialPosition=int(earliest),  # type: ignore[arg-type]
        durable=True,
    )


def reader_body(topic: str, start: MessageId) -> codec.CommandSubscribe:
    """Return the command that opens a reader from `start` on, which leaves no trace."""
    return reading_body(topic, start)


def ends(cluster: Cluster, topics: Sequence[str]) -> dict[str, MessageId | None]:
    """Return the last message id of each topic now; None of an empty one. Raises ClientError."""
    found = {}
    for topic in topics:
        with Subscription.reading(cluster, topic, EARLIEST) as subscription:
            found[topic] = subscription.last_id()
    return found


def start_of(cluster: Cluster, topic: str, since: str) -> MessageId:
    """Return where to begin: `earliest`, `latest`, a message id `LEDGER:ENTRY`, or a time. Raises CommandFailed."""
    if since in {"earliest", "latest"}:
        return EARLIEST if since == "earliest" else LATEST
    if position := position_of(since):
        return position
    with Subscription.reading(cluster, topic, EARLIEST) as subscription:
        return subscription.id_at(time_ms(since))


def position_of(place: str) -> MessageId | None:
    """Return the message id that `LEDGER:ENTRY` names; None if a place is something else."""
    ledger, colon, entry = place.partition(":")
    return MessageId(int(ledger), int(entry)) if colon and ledger.isdecimal() and entry.isdecimal() else None


def time_ms(text: str) -> int:
    """Return a time in ms since 1970: itself, ISO 8601, or an age as `90s`, `15m`, `2h`, `1d`. Raises CommandFailed."""
    from datetime import datetime

    if text.isdecimal():
        return int(text)
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    if text[-1:] in units and text[:-1].isdecimal():
        return SystemClock().wall_ms() - int(text[:-1]) * units[text[-1]]
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise wrong(
            f"{text!r} is no place in a topic: want earliest, latest, LEDGER:ENTRY, a time as 2026-11-23T10:00:00 or "
            "an age as 15m"
        ) from None


class Sending:
    """Sends messages to a topic, by their keys to its partitions; use it in a `with`, which waits for all receipts."""

    def __init__(self, cluster: Cluster, topic: str, *, compression: int = 0, send_timeout_s: float = 120.0) -> None:
        self.sent = 0
        name = str(TopicName.parse(topic))
        options = ProducerOptions(compression=compression, send_timeout_s=send_timeout_s)
        self._producers = [Producer(cluster, one, options=options) for one in cluster.partitions(name, create=True)]
        self._sequence_ids = [0] * len(self._producers)

    def send(self, message: Message, *, deliver_at_ms: int | None = None) -> None:
        """Send one message; waits while too many are not answered. Raises ClientError."""
        key = message.key_bytes()
        # As Java's client without other advice; those without a key take turns.
        number = (self.sent if key is None else java_string_hash(key)) % len(self._producers)
        self._producers[number].send_single(
            message.value or b"", message.metadata(), self._sequence_ids[number], deliver_at_ms=deliver_at_ms
        )
        self._sequence_ids[number] += 1
        self.sent += 1

    def flush(self) -> None:
        """Wait for all receipts. Raises ClientError."""
        for producer in self._producers:
            producer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for producer in self._producers:
            if error is None:
                producer.finish()
            producer.close()
