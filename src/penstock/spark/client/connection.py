# SPDX-License-Identifier: Apache-2.0
"""One connection to one broker, whose errors say which option of Spark's to look at.

Where: `Cluster` opens connections; the reader takes runs of messages from one, the producer sends through one. The
protocol is `wire.client`'s, the socket `net.blocking`'s.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final, Self

from penstock import __version__
from penstock.core.units import MIB
from penstock.net.blocking import BlockingClient, NoAnswer, dial, secure
from penstock.spark.client.errors import (
    BadAnswer,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    Refused,
    RequestTimedOut,
    TlsFailed,
)
from penstock.wire.client.connection import ClientConnection, Hello
from penstock.wire.client.events import Answered, RequestFailed, RequestRefused
from penstock.wire.client.frames import Inbound
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.core.position import Position
    from penstock.spark.client.endpoint import Endpoint
    from penstock.wire.client.consumer import Consumer
    from penstock.wire.client.events import Event
    from penstock.wire.client.frames import Body
    from penstock.wire.client.lookup import Address, Owner
    from penstock.wire.client.producer import Producer
    from penstock.wire.codec import MessageMetadata

CLIENT_VERSION: Final = f"penstock-spark-{__version__}"
# Many reads of the socket fit before what is unfinished has to be moved to the front.
BUFFER_BYTES: Final = 4 * MIB

# OpenSSL's numbers for a certificate that is made out to another name, or another address.
_OTHER_HOST: Final = (62, 64)
# What a broker says when it wants a certificate, and another one than ours; as parts of OpenSSL's words. The third is
# about one whose issuer has the name, and not the key, of somebody it trusts.
_ABOUT_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "DECRYPT_ERROR", "HANDSHAKE_FAILURE")


class Connection:
    """A connection that has been through its handshake. Use it in a `with`, or close it.

    All its methods raise:
        ConnectionLost: the connection ended, or the broker took nothing for the endpoint's `operation_timeout_s`.
        BadAnswer: it speaks something else.
        UnusableFile: it asked for credentials, and there are none.

    Attributes:
        address: of the broker.
        owner: the answer of the lookup that led here, if one did.
        message_bytes_max: the largest message, payload and metadata together, that the broker takes.
        inbound: the receive buffer; the reader takes its messages from there (`receive`, then `take_messages`).
    """

    def __init__(
        self, endpoint: Endpoint, address: Address, *, through: Address | None = None, clock: Clock | None = None
    ) -> None:
        """Connect and shake hands.

        Args:
            endpoint: credentials, TLS and timeouts.
            address: the broker to speak to.
            through: connect to this proxy instead, and ask it to pass everything on to `address`.
            clock: for deadlines.

        Raises:
            BrokerUnreachable, TlsFailed: no connection, or no answer.
            UnusableFile: a certificate or token that the options name cannot be read.
            Refused: the broker does not let us in, and why (AUTHENTICATION_ERROR …).
            BadAnswer: the peer is no Pulsar broker.
        """
        self.address = address
        self.owner: Owner | None = None
        self.inbound = Inbound(buffer_bytes=BUFFER_BYTES)
        self._told = _Told(str(address))
        self._last_consumer_id = 0
        self._timeout_s = endpoint.operation_timeout_s
        credentials = endpoint.credentials
        hello = Hello(
            client_version=CLIENT_VERSION,
            auth_method=credentials.method,
            proxy_to_broker_url=f"{address.host}:{address.port}" if through else "",
        )
        peer = _dial(endpoint, through or address)
        try:
            self._protocol = ClientConnection(
                hello, credentials=lambda _challenge: credentials.data(), inbound=self.inbound
            )
            self._client = BlockingClient(peer, self._protocol, write_timeout_s=self._timeout_s, clock=clock)
            self.message_bytes_max = self._shake_hands()
        except BaseException:
            peer.close()
            raise

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, body: Body, *, what: str) -> Body:
        """Send a command and wait for its answer; events in between wait for `next_event`.

        Args:
            body: one of the generated classes (`codec.CommandLookupTopic(topic=…, request_id=0)`); its `request_id` is
                set here.
            what: is being done, for the text of errors: "looking up topic t".

        Returns:
            The answer's body.

        Raises:
            Refused: the broker answered with an error.
            RequestTimedOut: it did not answer within the endpoint's `operation_timeout_s`.
        """
        return self._answer(self._protocol.request(body, what), what)

    def begin(self, body: Body, what: str) -> int:
        """Send a command with others, for `answers`; returns its request id. What is sent waits for the next wait."""
        return self._protocol.request(body, what)

    def new_consumer_id(self) -> int:
        """An id that no consumer of this connection has had: late frames of one are not taken for another's."""
        self._last_consumer_id += 1
        return self._last_consumer_id

    def begin_subscribe(self, consumer: Consumer, what: str) -> int:
        """The same to open a consumer."""
        return self._protocol.subscribe(consumer, what)

    def answers(self, wanted: Iterable[int], what: str) -> tuple[dict[int, Body | Refused], list[Event]]:
        """Wait for the answers to requests that were begun, in whatever order they come.

        Returns:
            The answer, or the error, of each, and the other events that came in between.

        Raises:
            RequestTimedOut: one is not answered within the endpoint's `operation_timeout_s` after the one before it.
        """
        left = set(wanted)
        found: dict[int, Body | Refused] = {}
        others: list[Event] = []
        while left:
            event = self.next_event(self._timeout_s)
            if event is None:
                raise RequestTimedOut(str(self.address), what, self._timeout_s)
            if isinstance(event, Answered) and event.request_id in left:
                found[event.request_id] = event.body
                left.discard(event.request_id)
            elif isinstance(event, RequestFailed) and event.request_id in left:
                found[event.request_id] = Refused(event.error.code, event.error.said, event.error.what)
                left.discard(event.request_id)
            else:
                others.append(event)
        return found, others

    def open_producer(self, producer: Producer, what: str) -> None:
        """Open a producer, and send again what it has pending. Raises as `request`."""
        self._answer(self._protocol.open_producer(producer), what)
        with self._told:
            self._client.flush()

    def subscribe(self, consumer: Consumer, what: str) -> None:
        """Open a consumer. Raises as `request`."""
        self._answer(self._protocol.subscribe(consumer, what), what)

    def unsubscribe(self, consumer: Consumer) -> None:
        """Close a consumer; frames on their way to it are passed over. Raises as `request`."""
        what = f"closing our consumer of {consumer.topic}"
        self._answer(self.begin_unsubscribe(consumer), what)
        self.forget_events()

    def begin_unsubscribe(self, consumer: Consumer) -> int:
        """Close a consumer with others, for `answers`; returns the request id."""
        return self._protocol.close_consumer(consumer)

    def forget_events(self) -> None:
        """Forget events that were not asked for: the connection begins something new."""
        self._client.forget_events()

    def acknowledge(self, consumer: Consumer, position: Position, what: str) -> None:
        """Acknowledge an entry and all before it, durably. Raises as `request`."""
        request_id = self._protocol.acknowledge(consumer, [position], cumulative=True, wait=True, what=what)
        assert request_id is not None
        self._answer(request_id, what)

    def acknowledge_each(self, consumer: Consumer, positions: Iterable[Position], *, wait: bool = False) -> None:
        """Acknowledge these entries and no others; with `wait`, durably. Raises as `request`."""
        request_id = self._protocol.acknowledge(consumer, positions, wait=wait)
        if request_id is not None:
            self._answer(request_id, f"acknowledging entries of {consumer.topic}")
            return
        with self._told:
            self._client.flush()

    # -- everything else ---------------------------------------------------------------------------------------------

    def send(
        self, producer: Producer, about: MessageMetadata, payload: Buffer, *, messages: int = 1, is_chunk: bool = False
    ) -> None:
        """Send an entry; arguments as `Producer.add`."""
        self._protocol.send(producer, about, payload, messages=messages, is_chunk=is_chunk)
        with self._told:
            self._client.flush()

    def flow(self, consumer: Consumer, permits: int | None = None) -> None:
        """Grant permits; None refills them when less than half is left."""
        self._protocol.flow(consumer, permits)
        with self._told:
            self._client.flush()

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        with self._told:
            self._client.write(data)

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event; None when none comes in time. 0 only takes what has come already."""
        with self._told:
            return self._client.next_event(timeout_s)

    def take_receipts(self) -> int:
        """Take the receipts that come next in `inbound`, without an event for each; returns how many entries have one.

        None is taken before events that wait.
        """
        with self._told:
            return self._client.take_receipts()

    def receive(self, timeout_s: float) -> bool:
        """Read from the socket once, into `inbound`; False when nothing comes in time."""
        with self._told:
            return self._client.receive(timeout_s)

    def take_event(self) -> Event | None:
        """The next event in `inbound` up to the next messages, which may stand there now; None when there is none."""
        with self._told:
            return self._client.take_event(before_messages=True)

    def remains(self) -> Iterator[Event]:
        """Yield events that came before the connection ended or is given up; nothing is answered any more."""
        with self._told:
            yield from self._client.remains()

    def fileno(self) -> int:
        """For selectors, as `BlockingClient.fileno`."""
        return self._client.fileno()

    def is_alive(self) -> bool:
        """Whether it can still be used, as far as can be told without asking; bytes that have come are read."""
        try:
            with self._told:
                self._client.poll()
        except ClientError:
            return False
        return True

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _answer(self, request_id: int, what: str) -> Body:
        try:
            with self._told:
                return self._client.answer(request_id, self._timeout_s)
        except NoAnswer:
            raise RequestTimedOut(str(self.address), what, self._timeout_s) from None

    def _shake_hands(self) -> int:
        """Raises as the constructor; returns the largest message that the broker takes."""
        try:
            with self._told:
                return self._client.shake_hands(self._timeout_s).message_bytes_max
        except NoAnswer:
            why = f"no answer to the handshake within {self._timeout_s:g} s"
            raise BrokerUnreachable(str(self.address), why) from None
        except Refused as refused:
            raise Refused(refused.code, refused.said, f"the connection to {self.address}") from None
        except BadAnswer as error:
            error.may_pass = False  # Another service listens there: it will not become a broker while we wait.
            raise
        except ConnectionLost as error:
            # In TLS 1.3 the broker looks at our certificate only when our side of the handshake is over.
            if (failed := _tls_failed(self.address, error.__cause__)) is not None:
                raise failed from error
            raise BrokerUnreachable(
                str(self.address), f"it ended the connection during the handshake ({error})"
            ) from None


class _Told:
    """Says what happened in the words of Spark's errors; NoAnswer is the caller's to tell."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RequestRefused):
            raise Refused(error.code, error.said, error.what) from None
        if isinstance(error, ProtocolError):
            raise BadAnswer(self._address, str(error)) from error
        if isinstance(error, OSError):
            raise ConnectionLost(self._address, _reason(error)) from error


def _dial(endpoint: Endpoint, address: Address) -> socket.socket:
    """A connected socket, TLS included. Raises BrokerUnreachable, TlsFailed, UnusableFile."""
    context = endpoint.tls.context() if address.tls else None
    try:
        plain = dial(address.host, address.port, endpoint.connect_timeout_s)
    except OSError as error:
        raise BrokerUnreachable(str(address), _reason(error)) from error
    try:
        return plain if context is None else secure(plain, context, address.host)
    except OSError as error:
        if (failed := _tls_failed(address, error)) is not None:
            raise failed from error
        # A broker that is just starting or stopping, or a port that takes our greeting for nonsense.
        why = f"it ended the connection during the TLS handshake ({_reason(error)}); does this port speak TLS?"
        raise BrokerUnreachable(str(address), why) from error


def _tls_failed(address: Address, error: BaseException | None) -> TlsFailed | None:
    """Return an error with the two sides' disagreement and advice; None when the connection has only ended."""
    if not isinstance(error, ssl.SSLError) or isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return None
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OTHER_HOST:
        advice = (
            "the certificate must be made out to the host in this address, which service.url or the broker's "
            "advertisedAddress gives: use the name it has, or set tlsHostnameVerificationEnable=false"
        )
    elif isinstance(error, ssl.SSLCertVerificationError):
        advice = "let tlsTrustCertsFilePath name the certificate that signed the broker's"
    elif "ALERT" in reason and any(part in reason for part in _ABOUT_CERTIFICATES):
        advice = (
            "the broker wants to see a certificate that its own tlsTrustCertsFilePath vouches for: give it in "
            "tlsCertificateFilePath and tlsKeyFilePath"
        )
    else:
        advice = "check that service.url has the right scheme (pulsar or pulsar+ssl) and port"
    return TlsFailed(str(address), _reason(error), advice)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return error.strerror or str(error) or type(error).__name__
