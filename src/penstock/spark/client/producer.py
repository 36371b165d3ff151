# SPDX-License-Identifier: Apache-2.0
"""Entries on their way into one topic: many sent before the first is answered, each answered before it is forgotten.

Why entries, not messages: `spark.entries` makes whole batches out of Arrow columns; what is left to do for each is a
header, a checksum and a place in the queue of those not yet answered.
Where: the writer's tasks open one for each partition they write to.

**What survives what.** An entry stays here until its receipt has come. If the connection ends, the broker restarts or
the topic moves, the producer looks it up anew, opens itself under the same name and sends again what was not answered.
On a topic that deduplicates, the broker says at that point which sequence id it has stored last under this name
(`last_sequence_id`); what is stored is then not sent again, and nothing is there twice. On others, what was stored and
not answered is.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import WireCode
from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.spark.client.errors import ClientError, ConnectionLost, Refused
from penstock.wire import codec, compression
from penstock.wire.client import producer as protocol
from penstock.wire.client.events import ProducerClosed, Receipt, SendFailed

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection
    from penstock.spark.client.encryption import Encryption
    from penstock.wire.client.events import Event
    from penstock.wire.codec import MessageMetadata, SingleMessageMetadata

_log: Final = logging.getLogger(__name__)
# Each producer has a connection to itself, and so its id there needs not tell it from others.
PRODUCER_ID: Final = 0
# What a frame holds beside the metadata and the payload that the broker's limit is about; generous.
_HEADER_BYTES: Final = 1 * KIB
# Before sending, when we have not for so long, we look for receipts and answer what the broker asks. An entry whose
# receipt lies unread when the connection ends is sent again; and receipts that are on their way when we write to a
# connection that the broker has closed never come. A look costs a system call.
_LOOK_NS: Final = 10 * NS_PER_MS


class NoReceipt(ClientError):
    """Entries were sent and not answered for longer than we wait."""

    def __init__(self, topic: str, timeout_s: float, why: str) -> None:
        super().__init__(
            f"{topic} has taken nothing for {timeout_s:g} s ({why}); look at the broker's log and its limits "
            "(rates, quotas, memory), or raise pulsar.producer.sendTimeoutMs"
        )


class OtherAttempt(ClientError):
    """Another attempt of the same task has written meanwhile, with entries that were cut elsewhere."""

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(
            f"{topic}: another attempt of this task has written as {name} meanwhile; the task must be run again, and "
            "then sends what is missing"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How entries are sent; can be pickled."""

    compression: int = compression.NONE  # `MessageMetadata.compression`
    encryption: Encryption | None = None
    # Kept until answered. Both bound what has to be sent again; the second also how many receipts lie unread.
    pending_bytes_max: int = 16 * MIB
    pending_entries_max: int = 1_000
    # How long nothing may be answered before we give up: long enough for a broker to be restarted.
    send_timeout_s: float = 120.0


class Producer:
    """Sends to one topic without partitions, or one partition. Use it in a `with`: a clean end waits for all receipts.

    Attributes:
        topic: its full name.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        name: str = "",
        schema: codec.Schema | None = None,
        options: ProducerOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Look the topic up, connect to its broker and open.

        Args:
            cluster: for lookups; not used by another thread meanwhile.
            topic: a full name.
            name: for deduplication across processes; empty: the broker chooses one.
            schema: of the values; a topic that has none yet takes it as its first.
            options: limits and compression.
            clock: publish times and deadlines.

        Raises:
            Refused: by the broker, and why. ClientError: no connection.
        """
        self.topic = topic
        self._options = options or ProducerOptions()
        self._encryption = self._options.encryption
        self._producer = protocol.Producer(
            PRODUCER_ID, topic, name=name, schema=schema, encrypts=self._encryption is not None
        )
        self._cluster = cluster
        self._clock = clock or SystemClock()
        self._looked_ns = self._clock.monotonic_ns()
        self._trouble_since_ns: int | None = None
        self._backoff = cluster.backoff()
        self._connection: Connection | None = None
        self._await_turn()

    @property
    def message_bytes_max(self) -> int:
        """The largest entry that the broker takes; larger messages go in chunks."""
        return self._connected.message_bytes_max

    @property
    def name(self) -> str:
        """As given, or as the broker chose it."""
        return self._producer.name

    @property
    def last_sequence_id(self) -> int:
        """The highest that the topic had stored under this name when the producer was opened.

        -1 when there was none, or when the topic does not deduplicate.
        """
        return self._producer.last_sequence_id

    @property
    def pending_bytes(self) -> int:
        """Bytes of payload sent and not answered."""
        return self._producer.pending_bytes

    @property
    def pending_entries(self) -> int:
        """Entries sent and not answered."""
        return len(self._producer.pending)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_batch(
        self,
        payload: Buffer,
        rows: int,
        sequence_id: int,
        first: SingleMessageMetadata | None = None,
        *,
        highest: int | None = None,
    ) -> None:
        """Send a batch that `entries.batches` cut; waits while too much is not answered yet.

        Args:
            payload: not compressed.
            rows: how many messages it holds.
            sequence_id: of the first.
            highest: of the last, if the others' do not just follow the first.
            first: the key fields of the first message, by which brokers pass on the whole batch.

        Raises:
            Refused, NoReceipt, ClientError: an entry could not be stored; this one, or one before.
        """
        metadata = self._metadata(sequence_id)
        metadata.num_messages_in_batch = rows
        if rows > 1:
            metadata.highest_sequence_id = sequence_id + rows - 1 if highest is None else highest
        if first is not None and first.HasField("partition_key"):
            metadata.partition_key = first.partition_key
            metadata.partition_key_b64_encoded = first.partition_key_b64_encoded
        self._post(metadata, self._compressed(metadata, payload), rows)
        self._relieve()

    def send_single(
        self, value: Buffer, said: SingleMessageMetadata, sequence_id: int, *, deliver_at_ms: int | None = None
    ) -> None:
        """Send one message that is no batch, in chunks if it is larger than the broker takes.

        Args:
            value: the message, not compressed.
            said: its fields, apart from its size.
            sequence_id: its own.
            deliver_at_ms: shared subscriptions do not get it before this time.

        Raises:
            As `send_batch`.
        """
        metadata = self._metadata(sequence_id)
        if deliver_at_ms is not None:
            metadata.deliver_at_time = deliver_at_ms
        if said.properties:
            metadata.properties.extend(said.properties)
        if said.HasField("partition_key"):
            metadata.partition_key = said.partition_key
            metadata.partition_key_b64_encoded = said.partition_key_b64_encoded
        if said.event_time:
            metadata.event_time = said.event_time
        if said.null_value:
            metadata.null_value = True
        payload = self._compressed(metadata, value)
        room = self.message_bytes_max - metadata.ByteSize() - _HEADER_BYTES
        if len(payload) <= room:
            self._post(metadata, payload)
        else:
            self._post_chunks(metadata, payload, room)
        self._relieve()

    def flush(self) -> None:
        """Wait until everything was answered. Raises as `send_batch`."""
        self._await_receipts(bytes_left=0, entries_left=0)

    def close(self) -> None:
        """Close without waiting for receipts; a second time does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def finish(self) -> None:
        """Wait for all receipts, then take leave of the broker, so that the name is free for the next producer.

        Does nothing once closed.
        """
        if self._connection is None:
            return
        self.flush()
        try:
            self._connected.request(
                codec.CommandCloseProducer(producer_id=PRODUCER_ID, request_id=0), what=f"closing {self._what}"
            )
        except ClientError:
            pass  # Everything is stored; the broker sees the connection end.
        else:
            connection, self._connection = self._connected, None
            self._cluster.give_back(connection)  # A producer of another name may come next.
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.close()

    # -- entries -----------------------------------------------------------------------------------------------------

    def _metadata(self, sequence_id: int) -> MessageMetadata:
        metadata = self._producer.metadata(self._clock.wall_ms(), sequence_id)
        if self._encryption is not None:
            self._encryption.announce(metadata)
        return metadata

    def _compressed(self, metadata: MessageMetadata, payload: Buffer) -> Buffer:
        kind = self._options.compression
        if kind == compression.NONE:
            return payload
        kind, compressed = compression.compress(kind, bytes(payload))
        if kind != compression.NONE:
            metadata.compression = kind  # type: ignore[assignment]
            metadata.uncompressed_size = len(payload)
        return compressed

    def _post_chunks(self, metadata: MessageMetadata, payload: Buffer, room: int) -> None:
        view = memoryview(payload)
        chunks = -(-len(view) // room)
        metadata.uuid = f"{self.name}-{metadata.sequence_id}"
        metadata.num_chunks_from_msg, metadata.total_chunk_msg_size = chunks, len(view)
        for chunk_id in range(chunks):
            metadata.chunk_id = chunk_id
            part = view[chunk_id * room : (chunk_id + 1) * room]
            self._post(metadata, part, is_chunk=True)

    def _post(self, metadata: MessageMetadata, payload: Buffer, rows: int = 1, *, is_chunk: bool = False) -> None:
        """Send an entry, which is pending from now on."""
        if self._encryption is not None:
            payload = self._encryption.encrypted(metadata, payload)
        self._look()
        try:
            self._connected.send(self._producer, metadata, payload, messages=rows, is_chunk=is_chunk)
        except ClientError as error:
            self._recover(error)

    # -- receipts ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take what has come by now, unless we just did."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._looked_ns < _LOOK_NS:
            return
        self._looked_ns = now_ns
        try:
            while (event := self._connected.next_event(0)) is not None:
                self._take(event)
        except ClientError as error:
            self._recover(error)

    def _relieve(self) -> None:
        """Once too much is not answered yet, wait until half of it is."""
        options = self._options
        if self.pending_bytes > options.pending_bytes_max or self.pending_entries > options.pending_entries_max:
            self._await_receipts(
                bytes_left=options.pending_bytes_max // 2, entries_left=options.pending_entries_max // 2
            )

    def _await_receipts(self, *, bytes_left: int, entries_left: int) -> None:
        """Take receipts until no more than so much is pending."""
        timeout_s = self._options.send_timeout_s
        while self.pending_entries and (self.pending_bytes > bytes_left or self.pending_entries > entries_left):
            try:
                event = self._connected.next_event(timeout_s)
                if event is None:
                    raise NoReceipt(self.topic, timeout_s, "no receipt came")
                self._take(event)
            except ClientError as error:
                self._recover(error)

    def _take(self, event: Event) -> None:
        if isinstance(event, Receipt):
            self._connected.take_receipts()  # those that came with it
            self._trouble_since_ns = None
            self._backoff.reset()
        elif isinstance(event, SendFailed):
            raise Refused(event.error.code, event.error.said, event.error.what)
        elif isinstance(event, ProducerClosed):
            raise ConnectionLost(str(self._connected.address), f"the broker gave {self.topic} away")

    # -- connections -------------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        return f"a producer on {self.topic}"

    @property
    def _connected(self) -> Connection:
        assert self._connection is not None, "the producer is closed"
        return self._connection

    def _await_turn(self, timeout_s: float | None = None) -> None:
        """Open; wait while another attempt of the same task writes under this name. Raises ClientError."""
        while True:
            try:
                return self._cluster.insist(self._open, timeout_s=timeout_s)
            except Refused as refused:
                # Spark ends the other attempt, or this one; a broker ends connections that do not answer.
                if refused.code is not WireCode.PRODUCER_BUSY:
                    raise
                _log.warning("%s: %s; waiting until it ends", self.topic, refused.said)

    def _open(self) -> None:
        """Connect to the topic's broker, open, and send again what was not answered. Raises ClientError."""
        self.close()
        connection = self._cluster.open_once(self.topic)
        try:
            connection.open_producer(self._producer, f"opening {self._what}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self._check_alone()

    def _check_alone(self) -> None:
        """Raises OtherAttempt if another attempt has stored a part of an entry that is pending here."""
        pending = self._producer.pending
        if pending and pending[0].sequence_id <= self.last_sequence_id < pending[0].highest_sequence_id:
            raise OtherAttempt(self.topic, self.name)

    def _recover(self, error: ClientError) -> None:
        """After an error that may pass: open again and send again what was not answered. Raises it otherwise."""
        if not error.may_pass:
            raise error
        self._take_what_came()
        now_ns = self._clock.monotonic_ns()
        if self._trouble_since_ns is None:
            self._trouble_since_ns = now_ns
        elif now_ns - self._trouble_since_ns > self._options.send_timeout_s * NS_PER_S:
            raise NoReceipt(self.topic, self._options.send_timeout_s, str(error)) from error
        else:
            threading.Event().wait(self._backoff.next_s())
        self._await_turn(self._options.send_timeout_s)

    def _take_what_came(self) -> None:
        """Receipts that lie unread on a connection that has ended: what they answer is stored, and not sent again."""
        if self._connection is not None:
            with suppress(ClientError):
                for event in self._connection.remains():
                    if isinstance(event, Receipt):
                        self._take(event)
