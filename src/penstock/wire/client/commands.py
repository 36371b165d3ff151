# SPDX-License-Identifier: Apache-2.0
"""Commands of a client as frames; which answer each request has; and how each answer says no.

Why the generated classes as bodies: they name every field that the protocol has. What is added here is what they do
not say: which command a body belongs to, and what comes back for it.
Where: `ClientConnection` encodes with it; tests that write frames by hand use `frame`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.wire import codec
from penstock.wire.codec import BaseCommand

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from penstock.wire.client.frames import Body

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
    elif kind == BaseCommand.ACK_RESPONSE:
        failed = body.HasField("error")
    elif kind in _WITH_ERROR_CODE:
        return (body.error_code, body.error_message) if body.HasField("error_code") else None
    else:
        return None
    return (body.error, body.message) if failed else None


_WITH_ERROR_CODE: Final = frozenset(
    (
        BaseCommand.CONSUMER_STATS_RESPONSE,
        BaseCommand.GET_SCHEMA_RESPONSE,
        BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE,
    )
)
