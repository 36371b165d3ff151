# SPDX-License-Identifier: Apache-2.0
"""One entry as a response of the admin port: the payload, and its metadata in headers.

Why headers: Pulsar's admin clients expect that. They take the payload decompressed, and split a batch into its messages
themselves if `X-Pulsar-num-batch-message` says that it is one.

Why capital letters: HTTP ignores case, but Pulsar's Java client looks for `X-Pulsar-PROPERTY-` with exactly this case.

Where: routes of `messages`. Decompressing is charged before it begins, and done in a thread, so that probes are
answered meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi.responses import Response

from penstock.core.checksum import SEAL_BYTES
from penstock.core.errors import PreconditionFailed
from penstock.wire import metadata
from penstock.wire.compression import DECOMPRESSED_BYTES_MAX, NONE, decompress
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.admin.http_memory import RequestCharge
    from penstock.broker.administration.message_admin import RawMessage
    from penstock.wire.codec import MessageMetadata
_LENGTH_BYTES: Final = 4
_PROPERTY: Final = "X-Pulsar-PROPERTY-"
_TOKEN: Final = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # the characters of a header's name
# Java's HTTP clients accept heads of 8 KiB. In addition, one header has all properties as JSON.
_PROPERTY_HEADERS_BYTES_MAX: Final = 4_096
_SEPARATORS_BYTES: Final = 4  # colon, space, end of line


def iso_time(wall_ms: int) -> str:
    """Return a time in the format of Pulsar's admin clients: 2026-11-21T10:00:00.123Z; '' for an invalid one."""
    try:
        moment = datetime.fromtimestamp(wall_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


class MessageResponse(Response):
    """A response whose headers keep their case."""

    media_type = "application/octet-stream"

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Add the headers as they are; content type and length are added."""
        super().init_headers()
        self.raw_headers += [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()
        ]


async def message_response(message: RawMessage, charge: RequestCharge) -> Response:
    """Return the entry as an HTTP response; the memory for decompressing it is charged.

    Raises:
        PreconditionFailed: the entry is no readable message, or is too large when decompressed.
        UnsupportedVersion: its compression is not supported.
        ServiceNotReady: there is currently no memory for it.
    """
    charge.recharge(2 * len(message.entry))
    try:
        described = metadata.decode(message.entry)
        start = SEAL_BYTES + _LENGTH_BYTES
        payload = message.entry[start + int.from_bytes(message.entry[SEAL_BYTES:start], "big") :]
        # An encrypted payload was compressed before; only its consumers can undo either.
        if described.compression != NONE and not described.encryption_keys:
            size = described.uncompressed_size
            # Once while it is created and once as the result.
            await charge.charge_when_free(2 * min(size, DECOMPRESSED_BYTES_MAX))
            payload = await asyncio.to_thread(decompress, described.compression, payload, size)
    except ProtocolError as error:
        raise PreconditionFailed(f"entry {message.ledger_id}:{message.entry_id} does not read: {error}") from error
    headers = {"X-Pulsar-Message-ID": f"{message.ledger_id}:{message.entry_id}"}
    headers |= _headers(described)
    if described.HasField("num_messages_in_batch"):
        headers["X-Pulsar-batch-size"] = str(len(message.entry) - described.ByteSize())
    return MessageResponse(payload, headers=headers)


def _headers(described: MessageMetadata) -> dict[str, str]:
    headers = {
        name: text
        for field, (name, write) in _FIELDS.items()
        if described.HasField(field)
        for text in [_header_text(write(getattr(described, field)))]
        if text
    }
    properties = {pair.key: pair.value for pair in described.properties}
    headers["X-Pulsar-PROPERTY"] = json.dumps(properties)
    headers |= _property_headers(properties)
    headers["X-Pulsar-Is-Encrypted"] = _flag(described.encryption_keys)
    if described.encryption_keys:
        keys = {pair.key: _base64(pair.value) for pair in described.encryption_keys}
        headers["X-Pulsar-Base64-encryption-keys"] = json.dumps(keys)
    if described.replicate_to:
        headers["X-Pulsar-replicated-to"] = json.dumps(list(described.replicate_to))
    return headers


def _property_headers(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a header for each property whose name is valid for one, as far as there is room.

    The Java client reads these.
    """
    headers = {}
    left = _PROPERTY_HEADERS_BYTES_MAX
    for key, value in properties.items():
        text = _header_text(value)
        left -= len(_PROPERTY) + len(key) + len(text) + _SEPARATORS_BYTES
        if left < 0:
            break
        if _TOKEN.fullmatch(key) and text == text.strip():
            headers[_PROPERTY + key] = text
    return headers


def _header_text(text: str) -> str:
    """Escape a header's value as in a URL unless it is printable ASCII."""
    return text if text.isascii() and text.isprintable() else quote(text, safe=" /:+=,-_.")


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _flag(value: object) -> str:
    return "true" if value else "false"


def _compression(value: int) -> str:
    return ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")[value] if 0 <= value <= 4 else str(value)


# The header of each field of MessageMetadata, and the format of its value.
_FIELDS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "producer_name": ("X-Pulsar-producer-name", str),
    "sequence_id": ("X-Pulsar-sequence-id", str),
    "publish_time": ("X-Pulsar-publish-time", iso_time),
    "event_time": ("X-Pulsar-event-time", iso_time),
    "deliver_at_time": ("X-Pulsar-deliver-at-time", iso_time),
    "num_messages_in_batch": ("X-Pulsar-num-batch-message", str),
    "null_value": ("X-Pulsar-null-value", _flag),
    "replicated_from": ("X-Pulsar-replicated-from", str),
    "partition_key": ("X-Pulsar-partition-key", str),
    "partition_key_b64_encoded": ("X-Pulsar-partition-key-b64-encoded", _flag),
    "null_partition_key": ("X-Pulsar-null-partition-key", _flag),
    "compression": ("X-Pulsar-compression", _compression),
    "uncompressed_size": ("X-Pulsar-uncompressed-size", str),
    "encryption_algo": ("X-Pulsar-encryption-algo", str),
    "encryption_param": ("X-Pulsar-Base64-encryption-param", _base64),
    "marker_type": ("X-Pulsar-marker-type", str),
    "txnid_least_bits": ("X-Pulsar-txnid-least-bits", str),
    "txnid_most_bits": ("X-Pulsar-txnid-most-bits", str),
    "highest_sequence_id": ("X-Pulsar-highest-sequence-id", str),
    "uuid": ("X-Pulsar-uuid", str),
    "num_chunks_from_msg": ("X-Pulsar-num-chunks-from-msg", str),
    "total_chunk_msg_size": ("X-Pulsar-total-chunk-msg-size", str),
    "chunk_id": ("X-Pulsar-chunk-id", str),
    "schema_version": ("X-Pulsar-Base64-schema-version-b64encoded", _base64),
    "ordering_key": ("X-Pulsar-Base64-ordering-key", _base64),
}
