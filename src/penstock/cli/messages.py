# SPDX-License-Identifier: Apache-2.0
"""Messages as the command line shows, stores and sends them.

Why JSON lines: one message, one line, with everything that must survive an export: value, key, properties, event time.
A value that is no UTF-8 is written in base64, under another name. Where: `feeds` makes messages of entries; `consume`,
`export` and the like print them; `import` reads them back.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as BadBase64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from penstock.cli.exits import wrong
from penstock.wire import compression
from penstock.wire.codec import SingleMessageMetadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.wire.client.events import Message as Entry
    from penstock.wire.codec import MessageMetadata
    from penstock.wire.pulsar_pb2 import KeyValue

Json: TypeAlias = Any

# The columns of CSV: properties as JSON, times in ms since 1970. An import needs only `value` or `valueBase64`.
COLUMNS: Final = ("id", "topic", "publishTime", "eventTime", "key", "properties", "value", "valueBase64")
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


def message_of(given: Mapping[str, Json], where: str) -> Message:
    """Return the message that an object of `as_json` describes. Raises CommandFailed, which names `where` it stands."""
    try:
        value = _bytes_of(given)
        is_base64 = bool(given.get("keyBase64"))
        key = given["keyBase64"] if is_base64 else given.get("key")
        properties = given.get("properties") or {}
        if is_base64:
            b64decode(given["keyBase64"], validate=True)
        if not isinstance(properties, dict) or not all(isinstance(one, str) for one in properties.values()):
            raise ValueError("properties must be an object of texts")
        if key is not None and not isinstance(key, str):
            raise ValueError("key must be a text")
        return Message(
            value=value,
            key=key,
            key_is_base64=is_base64,
            properties=properties,
            event_time_ms=int(given.get("eventTime") or 0),
        )
    except (ValueError, TypeError, BadBase64) as error:
        raise wrong(f"{where} is no message: {error}") from None


def _bytes_of(given: Mapping[str, Json]) -> bytes | None:
    if given.get("valueBase64"):
        return b64decode(given["valueBase64"], validate=True)
    if "value" not in given:
        raise ValueError("it has neither value nor valueBase64")
    value = given["value"]
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value).encode()  # An object that somebody wrote without quotes around it.


def messages_in(entry: Entry, payload: bytes | None = None) -> Iterator[Message]:
    """Yield the messages of an entry. Encrypted ones have their bytes as they are.

    Args:
        entry: as it was delivered.
        payload: of a message in chunks, put together.

    Raises:
        ProtocolError: it is damaged.
        UnsupportedVersion: its compression is not known.
    """
    if not entry.is_whole:
        raise ProtocolError(f"the checksum of entry {entry.position} does not match")
    about = entry.metadata()
    data = bytes(entry.payload) if payload is None else payload
    if not about.encryption_keys:
        # Of chunks, their size together is bounded by what was received.
        data = compression.decompress(about.compression, data, about.uncompressed_size)
    place = f"{entry.position.ledger_id}:{entry.position.entry_id}"
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
    )


def _pairs(properties: Iterable[KeyValue]) -> dict[str, str]:
    return {pair.key: pair.value for pair in properties}
