# SPDX-License-Identifier: Apache-2.0
"""One socket to one broker: the handshake, requests that wait for their answer, frames that nobody asked for.

Why blocking: a task of Spark has one thread and nothing else to do. Whoever waits gives a deadline; nothing waits for
ever.
Where: `Cluster` opens connections; the reader takes runs of messages from one, the producer writes SENDs into one.

What others say unasked is dealt with whenever frames are read: PING is answered, and so is AUTH_CHALLENGE, with fresh
credentials. What is meant for the owner (receipts, CLOSE_CONSUMER, messages) waits for `next_frame`. A connection that
nobody reads from for a minute is closed by the broker, which takes it for dead: `is_alive` says so before it is used
again.
"""

from __future__ import annotations

import socket
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from penstock import __version__
from penstock.core.units import MIB, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.spark.client.errors import (
    BadAnswer,
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    Refused,
    RequestTimedOut,
    TlsFailed,
)
from penstock.spark.client.inbound import Inbound
from penstock.wire import codec
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.spark.client.endpoint import Address, Endpoint

CLIENT_VERSION: Final = f"penstock-spark-{__version__}"
# As current clients of Pulsar announce it; brokers answer with the lower of both sides'.
PROTOCOL_VERSION: Final = 21
_DEFAULT_MESSAGE_BYTES_MAX: Final = 5 * MIB

# The kind of a frame whose type a newer broker knows and we do not.
UNKNOWN: Final = 0

# The body of any command. Generated classes share no useful base: what a request takes and gives is said where it is.
Body: TypeAlias = Any

_KINDS: Final = {field.message_type.name: field.number for field in BaseCommand.DESCRIPTOR.fields if field.message_type}
_BODY_NAMES: Final = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}

# OpenSSL's numbers for a certificate that is made out to another name, or another address.
_OTHER_HOST: Final = (62, 64)
# What a broker says when it wants a certificate, and another one than ours; as parts of OpenSSL's words. The third is
# about one whose issuer has the name, and not the key, of somebody it trusts.
_ABOUT_CERTIFICATES: Final = ("CERTIFICATE", "UNKNOWN_CA", "DECRYPT_ERROR", "HANDSHAKE_FAILURE")


class Frame(NamedTuple):
    """One frame from the broker, copied out of the buffer."""

    kind: int  # BaseCommand.Type
    body: Body
    entry: bytes  # what follows the command: an entry for MESSAGE, nothing otherwise


class Connection:
    """A connection that has been through its handshake. Use it in a `with`, or close it.

    Attributes:
        address: of the broker.
        protocol_version: what both sides speak.
        message_bytes_max: the largest message, payload and metadata together, that the broker takes.
        inbound: the receive buffer; the reader takes its messages from there (`receive`, then `inbound.take_messages`).
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
            BadAnswer: what answers is no Pulsar broker.
        """
        self.address = address
        self.protocol_version = 0
        self.message_bytes_max = _DEFAULT_MESSAGE_BYTES_MAX
        self.inbound = Inbound()
        self._endpoint = endpoint
        self._clock = clock or SystemClock()
        self._inbox: deque[Frame] = deque()
        self._requests = 0
        self._socket = _dial(endpoint, through or address)
        try:
            self._shake_hands(proxied=through is not None)
        except BaseException:
            self.close()
            raise

    # -- requests ----------------------------------------------------------------------------------------------------

    def request(self, body: Body, *, what: str, timeout_s: float | None = None) -> Body:
        """Send a command and wait for its answer; frames in between wait for `next_frame`.

        Args:
            body: one of the generated classes (`codec.CommandLookupTopic(topic=…, request_id=0)`); its `request_id` is
                set here.
            what: is being done, for the text of errors: "looking up topic t".
            timeout_s: None takes the endpoint's `operation_timeout_s`.

        Returns:
            The answer's body.

        Raises:
            Refused: the broker answered with an error, in whichever way this command has for it.
            ConnectionLost, RequestTimedOut, BadAnswer: no answer.
        """
        self._requests += 1
        body.request_id = self._requests
        self.write(frame(body))
        timeout_s = self._endpoint.operation_timeout_s if timeout_s is None else timeout_s
        deadline_ns = self._deadline(timeout_s)
        while True:
            came = self._next(deadline_ns)
            if came is None:
                raise RequestTimedOut(str(self.address), what, timeout_s)
            if getattr(came.body, "request_id", None) != self._requests:
                self._inbox.append(came)
            elif (refused := _refusal(came)) is not None:
                raise Refused(*refused, what)
            else:
                return came.body

    # -- frames ------------------------------------------------------------------------------------------------------

    def write(self, *parts: Buffer) -> None:
        """Send whole frames, in one piece if they are several parts; blocks while the broker does not take them.

        Raises:
            ConnectionLost: the broker is gone, or has not taken anything for the endpoint's `operation_timeout_s`.
        """
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            self._socket.settimeout(self._endpoint.operation_timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(self.address), _reason(error)) from error

    def next_frame(self, timeout_s: float) -> Frame | None:
        """The next frame that nobody asked for; None when none comes in time. 0 only takes what has come already.

        Raises:
            ConnectionLost, BadAnswer, UnusableFile: the connection ended; it speaks something else; no credentials.
        """
        if self._inbox:
            return self._inbox.popleft()
        return self._next(self._deadline(timeout_s))

    def receive(self, timeout_s: float) -> bool:
        """Read from the socket once, into `inbound`; False when nothing comes in time.

        Raises:
            ConnectionLost: it ended.
        """
        try:
            self._socket.settimeout(timeout_s)
            if not self.inbound.fill(self._socket):
                raise ConnectionLost(str(self.address), "the broker closed it")
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            raise ConnectionLost(str(self.address), _reason(error)) from error
        except ProtocolError as error:
            raise BadAnswer(str(self.address), str(error)) from error
        return True

    def take_other(self) -> Frame | None:
        """The one frame that stands before the messages in `inbound`, if it is whole.

        Also one that was the connection's own business and is dealt with: then there may be messages behind it.

        Raises:
            ConnectionLost, BadAnswer, UnusableFile: as `next_frame`.
        """
        came = self._take()
        if came is not None:
            self._answered(came)
        return came

    def remains(self) -> Iterator[Frame]:
        """What had come unasked by the time the connection ended or is given up; nothing is answered any more."""
        yield from self._inbox
        self._inbox.clear()
        with suppress(ClientError):
            while True:
                while (came := self._take()) is not None:
                    yield came
                if not self.receive(0):
                    return

    def is_alive(self) -> bool:
        """Whether it can still be used, as far as can be told without asking; what has come by now is read."""
        try:
            while (came := self._next(self._deadline(0))) is not None:
                self._inbox.append(came)
        except ClientError:
            return False
        return True

    def close(self) -> None:
        """Close the socket; a second time does nothing."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _deadline(self, timeout_s: float) -> int:
        return self._clock.monotonic_ns() + round(timeout_s * NS_PER_S)

    def _next(self, deadline_ns: int) -> Frame | None:
        """The next frame that is not dealt with here."""
        while True:
            came = self._take()
            if came is None:
                remaining_s = max(0.0, (deadline_ns - self._clock.monotonic_ns()) / NS_PER_S)
                if not self.receive(remaining_s) and remaining_s == 0.0:
                    return None
            elif not self._answered(came):
                return came

    def _take(self) -> Frame | None:
        try:
            found = self.inbound.take()
            return None if found is None else _decode(self.inbound.data, *found)
        except ProtocolError as error:
            raise BadAnswer(str(self.address), str(error)) from error

    def _answered(self, came: Frame) -> bool:
        """Deal with what is the connection's own business."""
        if came.kind == BaseCommand.PING:
            self.write(codec.pong())
        elif came.kind == BaseCommand.AUTH_CHALLENGE:
            credentials = self._endpoint.credentials
            answer = codec.CommandAuthResponse(client_version=CLIENT_VERSION, protocol_version=PROTOCOL_VERSION)
            answer.response.auth_method_name = credentials.method
            answer.response.auth_data = credentials.data()
            self.write(frame(answer))
        else:
            return came.kind in (BaseCommand.PONG, BaseCommand.ACTIVE_CONSUMER_CHANGE, UNKNOWN)
        return True

    def _shake_hands(self, *, proxied: bool) -> None:
        credentials = self._endpoint.credentials
        hello = codec.CommandConnect(client_version=CLIENT_VERSION, protocol_version=PROTOCOL_VERSION)
        hello.auth_method_name = credentials.method
        hello.auth_data = credentials.data()
        hello.feature_flags.supports_auth_refresh = True
        hello.feature_flags.supports_broker_entry_metadata = True
        if proxied:
            hello.proxy_to_broker_url = f"{self.address.host}:{self.address.port}"
        timeout_s = self._endpoint.operation_timeout_s
        try:
            with suppress(ConnectionLost):  # Whoever closed has perhaps said why.
                self.write(frame(hello))
            came = self._next(self._deadline(timeout_s))
        except ConnectionLost as error:
            # In TLS 1.3 the broker looks at our certificate only when our side of the handshake is over.
            if (failed := _tls_failed(self.address, error.__cause__)) is not None:
                raise failed from error
            raise BrokerUnreachable(
                str(self.address), f"it ended the connection during the handshake ({error})"
            ) from None
        if came is None:
            raise BrokerUnreachable(str(self.address), f"no answer to the handshake within {timeout_s:g} s")
        if came.kind == BaseCommand.ERROR:
            raise Refused(came.body.error, came.body.message, f"the connection to {self.address}")
        if came.kind != BaseCommand.CONNECTED:
            raise BadAnswer(str(self.address), f"a frame of type {came.kind} where CONNECTED was due")
        self.protocol_version = came.body.protocol_version
        if came.body.HasField("max_message_size"):
            self.message_bytes_max = came.body.max_message_size


def frame(body: Body) -> bytes:
    """A frame that holds this command and no payload."""
    return codec.encode(_KINDS[body.DESCRIPTOR.name], body)


def _dial(endpoint: Endpoint, address: Address) -> socket.socket:
    """A connected socket, TLS included. Raises BrokerUnreachable, TlsFailed, UnusableFile."""
    context = endpoint.tls.context() if address.tls else None
    try:
        # The receive buffer is left to the kernel: it grows further than most machines let us ask for.
        plain = socket.create_connection((address.host, address.port), endpoint.connect_timeout_s)
    except OSError as error:
        raise BrokerUnreachable(str(address), _reason(error)) from error
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if context is None else context.wrap_socket(plain, server_hostname=address.host)
    except BaseException as error:
        plain.close()
        if not isinstance(error, OSError):
            raise
        if (failed := _tls_failed(address, error)) is not None:
            raise failed from error
        # A broker that is just starting or stopping, or a port that takes our greeting for nonsense.
        why = f"it ended the connection during the TLS handshake ({_reason(error)}); does this port speak TLS?"
        raise BrokerUnreachable(str(address), why) from error


def _tls_failed(address: Address, error: BaseException | None) -> TlsFailed | None:
    """What the two sides disagree about, and what to do; None when the connection has only ended."""
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


def _decode(data: bytearray, begin: int, stop: int) -> Frame:
    """Read one frame. Raises ProtocolError."""
    command_stop = begin + 8 + int.from_bytes(data[begin + 4 : begin + 8], "big")
    if command_stop > stop:
        raise ProtocolError("a command longer than its frame")
    command = codec.decode_command(bytes(data[begin + 8 : command_stop]))
    if not command.HasField("type"):
        return Frame(UNKNOWN, None, b"")
    body = getattr(command, _BODY_NAMES[command.type])
    if not body.IsInitialized():
        raise ProtocolError(f"a command of type {command.type} without what belongs to it")
    return Frame(command.type, body, bytes(data[command_stop:stop]))


def _refusal(answer: Frame) -> tuple[int, str] | None:
    """The error's code and text, if the answer is one: several commands have their own way to say no."""
    kind, body = answer.kind, answer.body
    if kind == BaseCommand.ERROR:
        return body.error, body.message
    if kind == BaseCommand.LOOKUP_RESPONSE and body.response == codec.CommandLookupTopicResponse.Failed:
        return body.error, body.message
    failed = codec.CommandPartitionedTopicMetadataResponse.Failed
    if kind == BaseCommand.PARTITIONED_METADATA_RESPONSE and body.response == failed:
        return body.error, body.message
    if kind == BaseCommand.ACK_RESPONSE and body.HasField("error"):
        return body.error, body.message
    if kind in (BaseCommand.GET_SCHEMA_RESPONSE, BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE) and body.HasField(
        "error_code"
    ):
        return body.error_code, body.error_message
    return None
