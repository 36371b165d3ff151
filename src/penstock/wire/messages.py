# SPDX-License-Identifier: Apache-2.0
"""Single messages: what people see, export and send, whatever entries they are stored in.

Why JSON: one message, one object, with everything that must survive an export: value, key, properties, event time. A
value that is no UTF-8 is written in base64, under another name. Where: the command line, and the routes of messages of
the admin port.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.core.checksum import is_sealed, seal
from penstock.wire import batches, compression, metadata
from penstock.wire.codec import MessageMetadata, SingleMessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from penstock.core.position import Position
    from penstock.wire.pulsar_pb2 import KeyValue

Json: TypeAlias = Any
_SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. `key` is None if it has none; `value` is None for a tombstone, which deletes its key."""

    value: bytes | None
    key: str | None = None
    key_is_base64: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int = 0
    publish_time_ms: int = 0
    topic: str = ""
    id: str = ""  # ledger:entry, and :index in a batch
    producer: str = ""
    deliver_at_ms: int = 0
    is_encrypted: bool = False
    is_chunk: bool = False  # a piece of a message that was sent in several entries
    schema_version: bytes = b""

    def as_json(self) -> dict[str, Json]:
        """Return it as an object, without what it does not have."""
        made: dict[str, Json] = {"topic": self.topic, "id": self.id, "publishTime": self.publish_time_ms}
        if self.event_time_ms:
            made["eventTime"] = self.event_time_ms
        if self.key is not None:
            made["keyBase64" if self.key_is_base64 else "key"] = self.key
        if self.properties:
            made["properties"] = dict(self.properties)
        return made | _written(self.value)

    def metadata(self) -> SingleMessageMetadata:
        """Return what it says of itself in the protocol."""
        said = SingleMessageMetadata(payload_size=0)
        if self.key is not None:
            said.partition_key, said.partition_key_b64_encoded = self.key, self.key_is_base64
        if self.event_time_ms:
            said.event_time = self.event_time_ms
        if self.value is None:
            said.null_value = True
        for name, text in self.properties.items():
            said.properties.add(key=name, value=text)
        return said

    def entry(self, producer: str, publish_time_ms: int, schema_version: bytes) -> bytes:
        """Return a sealed entry that holds this message alone."""
        value = self.value or b""
        about = MessageMetadata(producer_name=producer, sequence_id=0, publish_time=publish_time_ms)
        about.uncompressed_size = len(value)
        if self.key is not None:
            about.partition_key, about.partition_key_b64_encoded = self.key, self.key_is_base64
        if self.event_time_ms:
            about.event_time = self.event_time_ms
        if self.deliver_at_ms:
            about.deliver_at_time = self.deliver_at_ms
        if self.value is None:
            about.null_value = True
        if schema_version:
            about.schema_version = schema_version
        for name, text in self.properties.items():
            about.properties.add(key=name, value=text)
        said = about.SerializeToString()
        return seal(len(said).to_bytes(_SIZE_BYTES, "big") + said + value)

    def key_bytes(self) -> bytes | None:
        """Return the key as bytes; None if it has none."""
        if self.key is None:
            return None
        return b64decode(self.key) if self.key_is_base64 else self.key.encode()


def _written(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"valueBase64": b64encode(value).decode()}


def messages_in(entry: bytes, position: Position, payload: bytes | None = None) -> Iterator[Message]:
    """Yield the messages of a sealed entry. Encrypted ones, and pieces in chunks, have their bytes as they are.

    Args:
        entry: as it was stored and delivered.
        position: where it is.
        payload: of a message in chunks, put together.

    Raises:
        ProtocolError: it is damaged.
        UnsupportedVersion: its compression is not known.
    """
    if not is_sealed(entry):
        raise ProtocolError(f"the checksum of entry {position} does not match")
    about = metadata.decode(entry)
    data = bytes(batches.payload_of(entry)) if payload is None else payload
    if payload is None and about.num_chunks_from_msg > 1:
        # Compressed as a whole: a piece has its bytes as they are.
        yield replace(_message(about, about, data, str(position)), is_chunk=True)
        return
    if not about.encryption_keys:
        # Of chunks, their size together is bounded by what was received.
        data = compression.decompress(about.compression, data, about.uncompressed_size)
    place = f"{position.ledger_id}:{position.entry_id}"
    if not about.HasField("num_messages_in_batch") or about.encryption_keys:
        yield _message(about, about, data, place)
        return
    for index, (said, value) in enumerate(_batch(data, about.num_messages_in_batch)):
        if not said.compacted_out:
            yield _message(about, said, value, f"{place}:{index}")


def _batch(data: bytes, count: int) -> Iterator[tuple[SingleMessageMetadata, bytes]]:
    at = 0
    for _ in range(count):
        start = at + _SIZE_BYTES
        stop = start + int.from_bytes(data[at:start], "big")
        said = SingleMessageMetadata.FromString(data[start:stop])
        at = stop + said.payload_size
        if at > len(data):
            raise ProtocolError("a message in a batch is longer than the batch")
        yield said, data[stop:at]


def _message(
    about: MessageMetadata, said: MessageMetadata | SingleMessageMetadata, value: bytes, place: str
) -> Message:
    return Message(
        value=None if said.null_value else value,
        key=said.partition_key if said.HasField("partition_key") else None,
        key_is_base64=said.partition_key_b64_encoded,
        properties=_pairs(said.properties),
        event_time_ms=said.event_time,
        publish_time_ms=about.publish_time,
        id=place,
        producer=about.producer_name,
        deliver_at_ms=about.deliver_at_time,
        is_encrypted=bool(about.encryption_keys),
        schema_version=about.schema_version,
    )


def _pairs(properties: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in properties}


# -- which messages are meant: * and ? in a pattern stand for others ---------------------------------------------------


def has_key(*patterns: str) -> Callable[[Message], bool]:
    """Return a test for messages with a key of one of these patterns."""
    return lambda message: message.key is not None and any(fnmatchcase(message.key, one) for one in patterns)


def has_property(text: str) -> Callable[[Message], bool]:
    """Return a test for messages with a property. Args: text: `NAME=PATTERN`; `NAME` alone: with any value."""
    name, _, pattern = text.partition("=")
    wanted = pattern or "*"
    return lambda message: name in message.properties and fnmatchcase(message.properties[name], wanted)


def has_text(text: str) -> Callable[[Message], bool]:
    """Return a test for messages whose value is text that contains this one, in any case."""
    wanted = text.casefold()

    def test(message: Message) -> bool:
        try:
            return wanted in (message.value or b"").decode().casefold()
        except UnicodeDecodeError:
            return False

    return test
