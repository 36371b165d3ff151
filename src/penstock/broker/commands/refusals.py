# SPDX-License-Identifier: Apache-2.0
"""Answers to commands that hold more than they may (`wire.bounds`), which were not decoded.

Why one place: whatever the command, its client hears the sentence that names field, size and bound, in the answer that
it waits for. Only a command without a request id has none: its connection is closed, and the sentence is in the log.
Where: the session asks for the answer to each `RefusedCommand`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import WireCode
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.message import Message

    from penstock.wire.events import RefusedCommand

Type = codec.BaseCommand.Type
# Clients do not try again what is not allowed.
CODE: Final = WireCode.NOT_ALLOWED_ERROR
# The request id of an answer to CONNECT, which has none.
_NO_REQUEST: Final = 2**64 - 1

# Commands whose failure has a frame of its own; to all others with a request id ERROR is the answer.
_FAILED: Final[dict[int, Callable[[int, int, str], bytes]]] = {
    Type.LOOKUP: codec.lookup_failed,
    Type.PARTITIONED_METADATA: codec.partitioned_metadata_failed,
    Type.CONSUMER_STATS: codec.consumer_stats_failed,
    Type.GET_SCHEMA: codec.get_schema_failed,
    Type.GET_OR_CREATE_SCHEMA: codec.get_or_create_schema_failed,
}


def answer(refused: RefusedCommand) -> bytes | None:
    """The answer that the client waits for; None when the command has none."""
    kind, body, text = refused.type, refused.body, refused.text
    if kind == Type.CONNECT:
        return codec.error(_NO_REQUEST, CODE, text)
    if "request_id" not in body.DESCRIPTOR.fields_by_name or not body.HasField("request_id"):
        return None
    return _answer(kind, body, text)


def _answer(kind: int, body: Message, text: str) -> bytes:
    request_id: int = body.request_id  # type: ignore[attr-defined]  # of whichever command it is
    if kind == Type.ACK:
        return codec.ack_response(body.consumer_id, request_id, error=CODE, message=text)  # type: ignore[attr-defined]
    return _FAILED.get(kind, codec.error)(request_id, CODE, text)
