# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker, as its client sees it.

Theory of operation
    The owner of a socket reads into `room()` and reports with `received()`, or hands bytes to `receive_data()`. Then it
    asks for `next_event()` until there is none, and writes `data_to_send()`. Events are asked for, not pushed: a
    consumer's permits are refilled when its messages are taken, so what is kept here is never more than one read.
    Requests are numbered here. Each is answered by one event, `Answered` or `RequestFailed`, in whatever order the
    broker likes; how long to wait for it is the owner's business, who may also `give_up` a request.
    What the protocol wants of every client is done here and makes no event: PONG for PING, fresh credentials for an
    AUTH_CHALLENGE, FLOW when half of the permits are used.
    A broker that breaks the protocol raises ProtocolError: close the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.core.position import Position
from penstock.core.units import NS_PER_S
from penstock.wire import codec, metadata
from penstock.wire.client import events
from penstock.wire.client.events import BrokerSilent, RequestRefused
from penstock.wire.client.frames import (
    ANNOUNCED_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_PADDING_BYTES,
    MESSAGE_BYTES_MAX,
    UNKNOWN,
    Frame,
    Inbound,
    entry_in,
)
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.protobuf.message import Message

    from penstock.core.checksum import Buffer
    from penstock.wire.client.consumer import Consumer
    from penstock.wire.client.events import Event
    from penstock.wire.client.frames import Body
    from penstock.wire.client.producer import Producer
    from penstock.wire.codec import MessageMetadata

    Credentials = Callable[[bytes], bytes]

# ---------------------------------------------------------------------------------------------------------------------
# Commands of a client as frames; which answer each request has; and how each answer says no.
#
# Why the generated classes as bodies: they name every field that the protocol has. What is added here is what they do
# not say: which command a body belongs to, and what comes back for it. Where: `ClientConnection` encodes with it; tests
# that write frames by hand use `frame`.

PROTOCOL_VERSION: Final = 21  # as current clients announce it; a broker answers with the lower of both sides'
UINT64_MAX: Final = 2**64 - 1

_EMPTY: Final = BaseCommand()
_BODIES: Final[dict[int, type[Message]]] = {
    field.number: type(getattr(_EMPTY, field.name)) for field in BaseCommand.DESCRIPTOR.fields if field.message_type
}
_KINDS: Final = {body: kind for kind, body in _BODIES.items()}

# What answers a request when it succeeds. Each may be answered with ERROR instead.
ANSWERS: Final[dict[int, int]] = {
    BaseCommand.PRODUCER: BaseCommand.PRODUCER_SUCCESS,
    BaseCommand.CLOSE_PRODUCER: BaseCommand.SUCCESS,
    BaseCommand.SUBSCRIBE: BaseCommand.SUCCESS,
    BaseCommand.UNSUBSCRIBE: BaseCommand.SUCCESS,
    BaseCommand.SEEK: BaseCommand.SUCCESS,
    BaseCommand.CLOSE_CONSUMER: BaseCommand.SUCCESS,
    BaseCommand.ACK: BaseCommand.ACK_RESPONSE,
    BaseCommand.CONSUMER_STATS: BaseCommand.CONSUMER_STATS_RESPONSE,
    BaseCommand.GET_LAST_MESSAGE_ID: BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE,
    BaseCommand.LOOKUP: BaseCommand.LOOKUP_RESPONSE,
    BaseCommand.PARTITIONED_METADATA: BaseCommand.PARTITIONED_METADATA_RESPONSE,
    BaseCommand.GET_TOPICS_OF_NAMESPACE: BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
    BaseCommand.GET_SCHEMA: BaseCommand.GET_SCHEMA_RESPONSE,
    BaseCommand.GET_OR_CREATE_SCHEMA: BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
    BaseCommand.WATCH_TOPIC_LIST: BaseCommand.WATCH_TOPIC_LIST_SUCCESS,
    BaseCommand.WATCH_TOPIC_LIST_CLOSE: BaseCommand.SUCCESS,
    BaseCommand.NEW_TXN: BaseCommand.NEW_TXN_RESPONSE,
    BaseCommand.ADD_PARTITION_TO_TXN: BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
    BaseCommand.END_TXN: BaseCommand.END_TXN_RESPONSE,
}


def kind_of(body: Message) -> int:
    """The `BaseCommand.Type` that a body belongs to."""
    return _KINDS[type(body)]


def encode(body: Message) -> bytes:
    """A frame that holds this command and no payload."""
    return codec.encode(kind_of(body), body)


def frame(kind: int, **fields: Any) -> bytes:  # noqa: ANN401 - whatever the command's fields are
    """A frame with one command; keyword arguments are fields of its body, a dict for a message inside it."""
    return codec.encode(kind, _BODIES[kind](**fields))


def refusal_in(kind: int, body: Body) -> tuple[int, str] | None:
    """The code and message of an answer that is an error; several commands have their own way to say no."""
    if kind == BaseCommand.ERROR:
        return body.error, body.message
    if kind == BaseCommand.LOOKUP_RESPONSE:
        failed = body.response == codec.CommandLookupTopicResponse.Failed
    elif kind == BaseCommand.PARTITIONED_METADATA_RESPONSE:
        failed = body.response == codec.CommandPartitionedTopicMetadataResponse.Failed
    elif kind in _WITH_ERROR:
        failed = body.HasField("error")
    elif kind in _WITH_ERROR_CODE:
        return (body.error_code, body.error_message) if body.HasField("error_code") else None
    else:
        return None
    return (body.error, body.message) if failed else None


_WITH_ERROR: Final = frozenset(
    (
        BaseCommand.ACK_RESPONSE,
        BaseCommand.NEW_TXN_RESPONSE,
        BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE,
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        BaseCommand.END_TXN_RESPONSE,
    )
)
_WITH_ERROR_CODE: Final = frozenset(
    (
        BaseCommand.CONSUMER_STATS_RESPONSE,
        BaseCommand.GET_SCHEMA_RESPONSE,
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
    )
)


# What current clients of Pulsar say they can do, as far as this one does it.
FEATURES: Final = frozenset({"supports_auth_refresh", "supports_broker_entry_metadata"})
# As Pulsar's clients do: a PING after 30 s without a word from the broker, and the end after 30 s more.
KEEP_ALIVE_NS: Final = 30 * NS_PER_S
# What a broker says in an error, as far as it is kept: errors outlive their frames.
SAID_CHARS_MAX: Final = 4_000
# PINGs and challenges that are answered before the answers are written: a broker sends one at a time, and the answer to
# a challenge may be a thousand times as large.
UNASKED_MAX: Final = 16
_ANSWER_KINDS: Final = frozenset(ANSWERS.values()) | {BaseCommand.ERROR}


def no_credentials(challenge: bytes) -> bytes:  # noqa: ARG001 - as Credentials are asked
    """For brokers that ask for none."""
    return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The client's fields of CONNECT.

    Attributes:
        client_version: for the broker's log and statistics.
        auth_method: the method that its credentials belong to: "none", "token", …
        protocol_version: the highest that it speaks.
        features: names of FeatureFlags that it supports.
        proxy_to_broker_url: host:port of the broker to be connected to, said to a proxy.
        original_principal: the role of the client for whom a proxy speaks.
        original_auth_data: the data that this client has shown, and
        original_auth_method: by which method.
        proxy_version: of the proxy that speaks.
    """

    client_version: str = "penstock"
    auth_method: str = "none"
    protocol_version: int = PROTOCOL_VERSION
    features: frozenset[str] = FEATURES
    proxy_to_broker_url: str = ""
    original_principal: str = ""
    original_auth_data: str = field(default="", repr=False)
    original_auth_method: str = ""
    proxy_version: str = ""

    def body(self, auth_data: bytes) -> codec.CommandConnect:
        """The command."""
        said = {
            name: value
            for name in ("proxy_to_broker_url", "original_principal", "original_auth_data", "original_auth_method",
                         "proxy_version")
            if (value := getattr(self, name))
        }  # fmt: skip
        body = codec.CommandConnect(
            client_version=self.client_version,
            protocol_version=self.protocol_version,
            auth_method_name=self.auth_method,
            auth_data=auth_data,
            **said,
        )
        for name in self.features:
            setattr(body.feature_flags, name, True)
        return body


class _Request(NamedTuple):
    """A request that was not answered yet."""

    kind: int
    what: str
    member: Producer | Consumer | None


class ClientConnection:
    """A client's end of the protocol. CONNECT is queued when it is made.

    Attributes:
        inbound: the receive buffer. A reader in bulk takes MESSAGE frames from there itself, and counts them with
            `Consumer.took` and `flow`.
        connected: the broker's answer to CONNECT; None before the handshake is over.
    """

    def __init__(
        self,
        hello: Hello | None = None,
        *,
        credentials: Credentials = no_credentials,
        inbound: Inbound | None = None,
        answer_bytes_max: int | None = None,
    ) -> None:
        """Begin with CONNECT.

        Args:
            hello: the fields of CONNECT.
            credentials: asked for each challenge, so that what expires may be renewed; what it raises is passed on.
            inbound: where to receive; its bound on frames becomes the broker's with the handshake.
            answer_bytes_max: for a connection that only asks: the largest answer, whatever the broker announces. All
                that nobody asked for breaks the protocol then.
        """
        self.inbound = inbound or Inbound()
        self._asks_only = answer_bytes_max is not None
        if answer_bytes_max is not None:
            self.inbound.frame_bytes_max = answer_bytes_max
        self._unasked = 0  # PINGs and challenges since the last write
        self.connected: events.Connected | None = None
        self._hello = hello or Hello()
        self._credentials = credentials
        self._out: list[Buffer] = []
        self._requests: dict[int, _Request] = {}
        self._last_request_id = 0
        self._producers: dict[int, Producer] = {}
        self._consumers: dict[int, Consumer] = {}
        self._heard = False
        self._heard_ns: int | None = None
        self._asked_ns: int | None = None
        self.command(self._hello.body(credentials(b"")))

    # -- bytes -------------------------------------------------------------------------------------------------------

    def room(self) -> memoryview:
        """Where the next read puts its bytes; release it before anything else is called. Raises ProtocolError."""
        return self.inbound.room()

    def received(self, nbytes: int) -> None:
        """So many bytes were read into `room()`."""
        self.inbound.filled(nbytes)
        self._heard = True

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that were read elsewhere. Raises ProtocolError."""
        self.inbound.add(data)
        self._heard = True

    def data_to_send(self) -> list[Buffer]:
        """Return the bytes to write, in order; they count as written."""
        self._unasked = 0
        out, self._out = self._out, []
        return out

    def next_event(self, *, before_messages: bool = False) -> Event | None:
        """The next event in what was received; None when more must be received first.

        Args:
            before_messages: None also when the next frame is a MESSAGE, for readers that take these from `inbound`.

        Raises:
            ProtocolError: the bytes are not the protocol, or not in its order.
        """
        while not (before_messages and self.inbound.is_message) and (frame := self.inbound.take_frame()) is not None:
            event = self._event_of(frame)
            if event is not None:
                return event
        return None

    def take_receipts(self) -> int:
        """Take the receipts that come next in what was received, without an event for each.

        Returns how many entries they answer. Raises ProtocolError as `next_event`.
        """
        answered, inbound = 0, self.inbound
        while inbound.is_receipt and self.connected is not None:
            begin = inbound.begin
            frame = inbound.take_frame()
            if frame is None:
                break
            if frame.kind != BaseCommand.SEND_RECEIPT:  # It has a second type: an event for `next_event`.
                inbound.begin = begin
                break
            body = frame.command.send_receipt
            producer = self._producers.get(body.producer_id)
            if producer is not None and producer.answered(body.sequence_id):
                answered += 1
        return answered

    # -- commands ----------------------------------------------------------------------------------------------------

    def command(self, body: Message) -> None:
        """Queue a command that has no answer."""
        self._out.append(encode(body))

    def request(self, body: Body, what: str = "", *, member: Producer | Consumer | None = None) -> int:
        """Queue a command that is answered; returns the request id, which is set here.

        Args:
            body: one of the generated classes with a `request_id`.
            what: is being done, for the text of errors: "looking up topic t".
            member: who is opened by it, if it opens one.
        """
        self._last_request_id += 1
        body.request_id = self._last_request_id
        kind = kind_of(body)
        self._requests[self._last_request_id] = _Request(kind, what or BaseCommand.Type.Name(kind), member)
        self.command(body)
        return self._last_request_id

    def forget_request(self, request_id: int) -> None:
        """Pass over the answer to a request, should one still come."""
        self._requests.pop(request_id, None)

    def open_producer(self, producer: Producer) -> int:
        """Open a producer, the first time or once more; returns the request id.

        Its pending entries are sent again as soon as the broker has answered.
        """
        return self.request(producer.opening(), f"opening a producer on {producer.topic}", member=producer)

    def send(
        self,
        producer: Producer,
        about: MessageMetadata,
        payload: Buffer,
        *,
        messages: int = 1,
        is_chunk: bool = False,
        is_marker: bool = False,
    ) -> None:
        """Send an entry; arguments as `Producer.add`. Its receipt is an event."""
        made = producer.add(about, payload, messages=messages, is_chunk=is_chunk, is_marker=is_marker)
        self._out += (made.head, made.payload)

    def close_producer(self, producer: Producer) -> int:
        """Close a producer; returns the request id. Its pending entries stay pending."""
        self._producers.pop(producer.producer_id, None)
        body = codec.CommandCloseProducer(producer_id=producer.producer_id, request_id=0)
        return self.request(body, f"closing a producer on {producer.topic}")

    def subscribe(self, consumer: Consumer, what: str = "") -> int:
        """Open a consumer, the first time or once more; returns the request id. Permits follow the answer."""
        return self.request(consumer.body, what or f"subscribing to {consumer.topic}", member=consumer)

    def flow(self, consumer: Consumer, permits: int | None = None) -> None:
        """Grant so many permits; None refills them when less than half is left."""
        if permits is None:
            permits = consumer.refill()
        else:
            consumer.permits += permits
        if permits > 0:
            self.command(codec.CommandFlow(consumer_id=consumer.consumer_id, messagePermits=permits))

    def acknowledge(
        self,
        consumer: Consumer,
        positions: Iterable[Position],
        *,
        cumulative: bool = False,
        ack_set: Iterable[int] = (),
        wait: bool = False,
        what: str = "",
    ) -> int | None:
        """Acknowledge entries.

        Args:
            consumer: the receiver of the messages.
            positions: of the entries; of the last one for a cumulative acknowledgement.
            cumulative: with everything before it.
            ack_set: of each, the messages of its batch that are not acknowledged: a bit each, in signed 64-bit words.
            wait: ask for an answer, which comes when the acknowledgement is durable.
            what: is being done, for the text of errors.

        Returns:
            The request id of the answer, if one was asked for.
        """
        body = codec.CommandAck(
            consumer_id=consumer.consumer_id,
            ack_type=codec.CommandAck.Cumulative if cumulative else codec.CommandAck.Individual,
        )
        words = list(ack_set)
        for position in positions:
            body.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id, ack_set=words)
        if wait:
            return self.request(body, what)
        self.command(body)
        return None

    def redeliver(self, consumer: Consumer, positions: Iterable[Position]) -> None:
        """Ask for these entries again."""
        body = codec.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer.consumer_id)
        for position in positions:
            body.message_ids.add(ledgerId=position.ledger_id, entryId=position.entry_id)
        self.command(body)

    def redeliver_all(self, consumer: Consumer) -> None:
        """Ask again for all that is not acknowledged.

        A consumer that has an epoch drops what the broker sent before it heard of that.
        """
        body = codec.CommandRedeliverUnacknowledgedMessages(consumer_id=consumer.consumer_id)
        if consumer.body.HasField("consumer_epoch"):
            consumer.body.consumer_epoch += 1
            body.consumer_epoch = consumer.body.consumer_epoch
        self.command(body)

    def close_consumer(self, consumer: Consumer) -> int:
        """Close a consumer; returns the request id."""
        self._consumers.pop(consumer.consumer_id, None)
        body = codec.CommandCloseConsumer(consumer_id=consumer.consumer_id, request_id=0)
        return self.request(body, f"closing a consumer of {consumer.topic}")

    # -- time --------------------------------------------------------------------------------------------------------

    def keep_alive(self, now_ns: int) -> int:
        """Send a PING when the broker has been silent for KEEP_ALIVE_NS; returns when to call this again.

        Bytes that came since the last call count as having come now.

        Raises:
            BrokerSilent: it has sent nothing for KEEP_ALIVE_NS since the PING.
        """
        if self._heard or self._heard_ns is None:
            self._heard, self._heard_ns, self._asked_ns = False, now_ns, None
        if self._asked_ns is not None and now_ns - self._asked_ns >= KEEP_ALIVE_NS:
            raise BrokerSilent(now_ns - self._heard_ns)
        if self._asked_ns is None and now_ns - self._heard_ns >= KEEP_ALIVE_NS:
            self._out.append(codec.ping())
            self._asked_ns = now_ns
        return (self._heard_ns if self._asked_ns is None else self._asked_ns) + KEEP_ALIVE_NS

    # -- what comes --------------------------------------------------------------------------------------------------

    def _event_of(self, frame: Frame) -> Event | None:
        kind = frame.kind
        if self._asks_only and (kind == BaseCommand.MESSAGE or kind in _UNASKED):
            raise ProtocolError(f"a frame of type {BaseCommand.Type.Name(kind)} for a client that only asks")
        if kind == BaseCommand.MESSAGE and self.connected is not None:
            return self._message(frame)
        if self.connected is not None and (handler := _UNASKED.get(kind)) is not None:
            return handler(self, frame.body)
        if kind in (BaseCommand.PING, BaseCommand.AUTH_CHALLENGE):
            self._unasked += 1
            if self._unasked > UNASKED_MAX:  # They cost more to answer than to send.
                raise ProtocolError(f"more than {UNASKED_MAX} PINGs and challenges at once")
        if kind == BaseCommand.PING:
            self._out.append(codec.pong())
            return None
        if kind == BaseCommand.AUTH_CHALLENGE:
            self._show_credentials(frame.body)
            return None
        if kind == BaseCommand.CONNECTED:
            return self._shaken_hands(frame.body)
        if kind == BaseCommand.ERROR and self.connected is None:
            said = frame.body.message[:SAID_CHARS_MAX]
            return events.ConnectionRefused(RequestRefused(frame.body.error, said, "the connection"))
        if self.connected is None:
            raise ProtocolError(f"a frame of type {kind} where CONNECTED was due")
        if kind in _ANSWER_KINDS:
            return self._answer(kind, frame.body)
        if kind in (BaseCommand.PONG, UNKNOWN):
            return None
        raise ProtocolError(f"a frame of type {BaseCommand.Type.Name(kind)}, which no client is sent")

    def _shaken_hands(self, body: Body) -> Event:
        if self.connected is not None:
            raise ProtocolError("CONNECTED came twice")
        message_bytes_max = body.max_message_size if body.HasField("max_message_size") else MESSAGE_BYTES_MAX
        if not 0 < message_bytes_max <= ANNOUNCED_BYTES_MAX:
            raise ProtocolError(f"a largest message of {message_bytes_max} bytes: want 1 to {ANNOUNCED_BYTES_MAX}")
        # Not below the usual: a limit that was lowered leaves larger entries in the topics.
        if not self._asks_only:
            self.inbound.frame_bytes_max = max(FRAME_BYTES_MAX, message_bytes_max + FRAME_PADDING_BYTES)
        self.connected = events.Connected(
            body.server_version, body.protocol_version, message_bytes_max, body.feature_flags
        )
        return self.connected

    def _show_credentials(self, body: Body) -> None:
        answer = codec.CommandAuthResponse(
            client_version=self._hello.client_version, protocol_version=self._hello.protocol_version
        )
        answer.response.auth_method_name = self._hello.auth_method
        answer.response.auth_data = self._credentials(body.challenge.auth_data)
        self.command(answer)

    def _answer(self, kind: int, body: Body) -> Event | None:
        request_id: int = body.request_id
        request = self._requests.get(request_id)
        if request is None:
            if kind == BaseCommand.ERROR and request_id == UINT64_MAX:
                return events.ConnectionRefused(RequestRefused(body.error, body.message, "the connection"))
            if request_id > self._last_request_id:
                raise ProtocolError(f"an answer to request {request_id}, and the last one was {self._last_request_id}")
            return None  # Of a request that was given up.
        if kind not in (ANSWERS[request.kind], BaseCommand.ERROR):
            raise ProtocolError(f"an answer of type {kind} to a request of type {request.kind}")
        if kind == BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            return None  # It waits for its turn to write alone, and is answered again when that has come.
        del self._requests[request_id]
        if (refused := refusal_in(kind, body)) is not None:
            code, said = refused
            return events.RequestFailed(request_id, RequestRefused(code, said[:SAID_CHARS_MAX], request.what))
        if request.member is not None:
            self._opened(request.kind, request.member, body)
        return events.Answered(request_id, body)

    def _opened(self, kind: int, member: Producer | Consumer, body: Body) -> None:
        if kind == BaseCommand.PRODUCER:
            producer: Producer = member  # type: ignore[assignment]
            producer.opened(body)
            self._producers[producer.producer_id] = producer
            for pending in producer.pending:
                self._out += (pending.head, pending.payload)
        else:
            consumer: Consumer = member  # type: ignore[assignment]
            consumer.opened()
            self._consumers[consumer.consumer_id] = consumer
            self.flow(consumer)

    def _message(self, frame: Frame) -> Event | None:
        body: codec.CommandMessage = frame.body
        consumer = self._consumers.get(body.consumer_id)
        if consumer is None:
            return None  # It was on its way when the consumer was closed.
        message = events.Message(body.consumer_id, body, entry_in(frame.entry))
        if consumer.permits_max:
            consumer.took(_messages_in(message))
            self.flow(consumer)
        if body.HasField("consumer_epoch") and body.consumer_epoch < consumer.body.consumer_epoch:
            return None
        return message

    def _receipt(self, body: codec.CommandSendReceipt) -> Event | None:
        producer = self._producers.get(body.producer_id)
        if producer is None or not producer.answered(body.sequence_id):
            return None
        position = Position(_signed(body.message_id.ledgerId), _signed(body.message_id.entryId))
        return events.Receipt(body.producer_id, body.sequence_id, position)

    def _send_error(self, body: Body) -> Event:
        producer = self._producers.get(body.producer_id)
        what = f"an entry for {producer.topic if producer else f'producer {body.producer_id}'}"
        return events.SendFailed(body.producer_id, body.sequence_id, RequestRefused(body.error, body.message, what))

    def _producer_closed(self, body: codec.CommandCloseProducer) -> Event:
        self._producers.pop(body.producer_id, None)
        return events.ProducerClosed(body.producer_id, body.assignedBrokerServiceUrl, body.assignedBrokerServiceUrlTls)

    def _consumer_closed(self, body: codec.CommandCloseConsumer) -> Event:
        self._consumers.pop(body.consumer_id, None)
        return events.ConsumerClosed(body.consumer_id, body.assignedBrokerServiceUrl, body.assignedBrokerServiceUrlTls)

    def _active_changed(self, body: Body) -> Event:
        return events.ActiveConsumerChanged(body.consumer_id, body.is_active)

    def _end_of_topic(self, body: Body) -> Event:
        return events.EndOfTopic(body.consumer_id)

    def _topics_changed(self, body: Body) -> Event:
        return events.TopicListChanged(
            body.watcher_id, list(body.new_topics), list(body.deleted_topics), body.topics_hash
        )

    def _migrated(self, body: Body) -> Event:
        return events.TopicMigrated(
            body.resource_type == 0, body.resource_id, body.brokerServiceUrl, body.brokerServiceUrlTls
        )


# What a broker sends unasked.
_UNASKED: Final[dict[int, Callable[[ClientConnection, Body], Event | None]]] = {
    BaseCommand.SEND_RECEIPT: ClientConnection._receipt,  # noqa: SLF001 - its own
    BaseCommand.SEND_ERROR: ClientConnection._send_error,  # noqa: SLF001
    BaseCommand.CLOSE_PRODUCER: ClientConnection._producer_closed,  # noqa: SLF001
    BaseCommand.CLOSE_CONSUMER: ClientConnection._consumer_closed,  # noqa: SLF001
    BaseCommand.ACTIVE_CONSUMER_CHANGE: ClientConnection._active_changed,  # noqa: SLF001
    BaseCommand.REACHED_END_OF_TOPIC: ClientConnection._end_of_topic,  # noqa: SLF001
    BaseCommand.WATCH_TOPIC_UPDATE: ClientConnection._topics_changed,  # noqa: SLF001
    BaseCommand.TOPIC_MIGRATED: ClientConnection._migrated,  # noqa: SLF001
}


def _messages_in(message: events.Message) -> int:
    """How many permits an entry has used: those of its messages that are still wanted."""
    if message.body.ack_set:
        return sum((word & UINT64_MAX).bit_count() for word in message.body.ack_set)
    return metadata.batch_size(message.entry) or 1


def _signed(number: int) -> int:
    """A number from a field without a sign that holds one with a sign."""
    return number - 2**64 if number >= 2**63 else number
