# SPDX-License-Identifier: Apache-2.0
"""Commands of a broker, as events of a client.

PINGs, authentication challenges and commands of newer brokers are answered or passed over by `ClientConnection`, and
make no event. `body` is the generated class of the command.
Where: made by `ClientConnection.next_event`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.checksum import is_sealed
from penstock.core.errors import PenstockError, WireCode
from penstock.core.position import Position
from penstock.wire import metadata
from penstock.wire.client.frames import payload_in

if TYPE_CHECKING:
    from penstock.wire.client.frames import Body
    from penstock.wire.codec import CommandMessage, FeatureFlags, MessageMetadata


# -- what a broker refuses a client, and what ends a connection that neither side closed -------------------------------

_CODES: Final = {int(code): code for code in WireCode}

# Errors after which the same request may succeed, after a pause and a new lookup.
RETRIABLE: Final = frozenset(
    {
        WireCode.PERSISTENCE_ERROR,
        WireCode.CONSUMER_BUSY,
        WireCode.SERVICE_NOT_READY,
        WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
        WireCode.TOO_MANY_REQUESTS,
        WireCode.PRODUCER_BUSY,
    }
)


class RequestRefused(PenstockError):
    """The broker answered with an error.

    Attributes:
        code: the protocol's error code; a number that this version does not know reads as UNKNOWN_ERROR.
        said: the broker's message.
        what: the request, for the text: "looking up topic t".
    """

    def __init__(self, code: int, said: str, what: str) -> None:
        self.code = _CODES.get(code, WireCode.UNKNOWN_ERROR)
        self.said, self.what = said, what
        super().__init__(f"{what} was refused with {self.code.name}: {said}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, after a new lookup."""
        return self.code in RETRIABLE


class BrokerSilent(PenstockError):
    """Nothing came for so long that the broker, or the network, counts as gone; close the connection."""

    def __init__(self, silent_ns: int) -> None:
        super().__init__(f"the broker has sent nothing for {silent_ns / 1e9:g} s and did not answer a PING")


@dataclass(frozen=True, slots=True)
class Connected:
    """The handshake is over."""

    server_version: str
    protocol_version: int
    message_bytes_max: int  # the largest message, payload and metadata together, that the broker takes
    features: FeatureFlags


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """The broker does not let us in, or let us stay; it closes the connection."""

    error: RequestRefused


@dataclass(frozen=True, slots=True)
class Answered:
    """A request succeeded."""

    request_id: int
    body: Body


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request was refused."""

    request_id: int
    error: RequestRefused


@dataclass(frozen=True, slots=True)
class Receipt:
    """An entry is stored. Of one that was stored before, the broker may not know the position: (-1, -1)."""

    producer_id: int
    sequence_id: int
    position: Position


@dataclass(frozen=True, slots=True)
class SendFailed:
    """An entry was not stored. It stays pending in its producer."""

    producer_id: int
    sequence_id: int
    error: RequestRefused


@dataclass(frozen=True, slots=True)
class ProducerClosed:
    """The broker closed a producer. Look its topic up again, or connect to the URL named here."""

    producer_id: int
    url: str = ""
    url_tls: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerClosed:
    """The broker closed a consumer. Look its topic up again, or connect to the URL named here."""

    consumer_id: int
    url: str = ""
    url_tls: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """An entry for a consumer, from the checksum's magic on. Whether the checksum matches was not looked at yet."""

    consumer_id: int
    body: CommandMessage
    entry: bytes

    @property
    def position(self) -> Position:
        """Where the entry is."""
        return Position(self.body.message_id.ledgerId, self.body.message_id.entryId)

    @property
    def is_whole(self) -> bool:
        """Whether the checksum matches."""
        return is_sealed(self.entry)

    def metadata(self) -> MessageMetadata:
        """The entry's metadata, decoded anew. Raises ProtocolError."""
        return metadata.decode(self.entry)

    @property
    def payload(self) -> memoryview:
        """The bytes behind the metadata: the message, or all messages of a batch. Raises ProtocolError."""
        return payload_in(self.entry)


@dataclass(frozen=True, slots=True)
class ActiveConsumerChanged:
    """Whether messages of a Failover subscription now come to this consumer."""

    consumer_id: int
    is_active: bool


@dataclass(frozen=True, slots=True)
class EndOfTopic:
    """The topic is terminated, and this consumer has had all of it."""

    consumer_id: int


@dataclass(frozen=True, slots=True)
class TopicListChanged:
    """Topics of a watched namespace appeared or went."""

    watcher_id: int
    new: list[str]
    deleted: list[str]
    hash: str


@dataclass(frozen=True, slots=True)
class TopicMigrated:
    """The topic of a producer or consumer now lives in another cluster."""

    is_producer: bool
    member_id: int
    url: str
    url_tls: str


Event: TypeAlias = (
    Connected
    | ConnectionRefused
    | Answered
    | RequestFailed
    | Receipt
    | SendFailed
    | ProducerClosed
    | ConsumerClosed
    | Message
    | ActiveConsumerChanged
    | EndOfTopic
    | TopicListChanged
    | TopicMigrated
)
