# SPDX-License-Identifier: Apache-2.0
"""Topic listings as responses of the admin port: written a block at a time, from memory that the broker lends.

Why not a plain response: a hundred thousand names would be a Python list, a JSON text and its bytes at once, none of
them charged. And a caller that disconnects while the broker waits for memory must not keep its place in the queue.
Where: routes return a `ListingResponse`; the broker's side is `broker.administration.service`.
"""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fastapi.responses import Response

from penstock.admin.models import Reason
from penstock.core.checksum import SEAL_BYTES
from penstock.core.errors import PreconditionFailed
from penstock.wire import metadata
from penstock.wire.compression import DECOMPRESSED_BYTES_MAX, NONE, decompress
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from starlette.types import Receive, Scope, Send

    from penstock.admin.gateway import Ask
    from penstock.admin.http_memory import RequestCharge
    from penstock.broker.administration.message_admin import RawMessage
    from penstock.broker.topics.listing import Mode
    from penstock.broker.topics.listing_blocks import Listing
    from penstock.core.names import NamespaceName
    from penstock.wire.codec import MessageMetadata


# ---------------------------------------------------------------------------------------------------------------------
# One entry as a response of the admin port: the payload, and its metadata in headers.
#
# Why headers: Pulsar's admin clients expect that. They take the payload decompressed, and split a batch into its
# messages themselves if `X-Pulsar-num-batch-message` says that it is one.
#
# Why capital letters: HTTP ignores case, but Pulsar's Java client looks for `X-Pulsar-PROPERTY-` with exactly this
# case.

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


TOO_MANY_LISTINGS: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.TOO_MANY_REQUESTS: {
        "model": Reason,
        "description": "The memory for this listing was not available in time",
    }
}


class ListingResponse(Response):
    """The topics of a namespace as a JSON array. Errors of the broker are answered as for any route."""

    media_type = "application/json"

    def __init__(self, ask: Ask, namespace: NamespaceName, mode: Mode, *, system: bool) -> None:
        super().__init__(status_code=HTTPStatus.OK)
        self._ask = ask
        self._namespace = namespace
        self._mode = mode
        self._system = system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as others call it
        """Borrow the listing, write it and return it; return it at once when the caller disconnects."""
        loop = asyncio.get_running_loop()
        lent: asyncio.Future[Listing] = loop.create_future()

        def take(listing: Listing) -> None:
            if not lent.done():
                lent.set_result(listing)

        def lend(listing: Listing) -> None:  # On the broker's loop.
            with suppress(RuntimeError):  # This one is closed.
                loop.call_soon_threadsafe(take, listing)

        loan = asyncio.ensure_future(
            self._ask(lambda broker: broker.listings.lend(self._namespace, self._mode, lend, system=self._system))
        )
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((loan, lent, gone), return_when=asyncio.FIRST_COMPLETED)
            if lent.done():
                await self._write(lent.result(), send)
            elif loan.done():
                loan.result()  # Raises what the broker did.
        finally:
            for waiting in (loan, lent, gone):
                waiting.cancel()
            await asyncio.wait((loan, gone))

    async def _write(self, listing: Listing, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        for piece in _json(listing):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"]"})


def _json(listing: Listing) -> Iterator[bytes]:
    """Yield the array without its last bracket, a block at a time."""
    before = "["
    for block in listing.blocks:
        yield (before + json.dumps(block.names, ensure_ascii=False, separators=(",", ":"))[1:-1]).encode()
        before = ","
    if not listing.blocks:
        yield before.encode()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
