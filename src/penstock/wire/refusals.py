# SPDX-License-Identifier: Apache-2.0
"""Answers to commands that exceed a bound of `wire.bounds` and were not decoded.

Why in one place: for every command, the client gets an error that names field, size and bound, as an answer to its
request. A command without request id has no answer: its connection is closed, and the error is logged.
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
# Clients do not retry after this code.
CODE: Final = WireCode.NOT_ALLOWED_ERROR
# The request id of an error answer to CONNECT, which has no id.
_NO_REQUEST: Final = 2**64 - 1

# Commands with an error frame of their own; all others with a request id are answered with ERROR.
_FAILED: Final[dict[int, Callable[[int, int, str], bytes]]] = {
    Type.LOOKUP: codec.lookup_failed,
    Type.PARTITIONED_METADATA: codec.partitioned_metadata_failed,
    Type.CONSUMER_STATS: codec.consumer_stats_failed,
    Type.GET_SCHEMA: codec.get_schema_failed,
    Type.GET_OR_CREATE_SCHEMA: codec.get_or_create_schema_failed,
}


def answer(refused: RefusedCommand) -> bytes | None:
    """The error frame that the client expects; None if the command has no answer."""
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
