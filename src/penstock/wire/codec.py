# SPDX-License-Identifier: Apache-2.0
"""Commands as protobuf: frames decoded into events, replies built into frames.

Why protobuf here: everything but publishing and delivering is rare, and the generated classes read and write it right.
The two hot directions have a path of their own in `runs`, held to these classes byte by byte in tests.
Where: the only door to the generated classes; the broker imports the few it names from here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from penstock.core.errors import NotAllowed
from penstock.core.transaction_id import TransactionId
from penstock.wire.errors import ProtocolError
from penstock.wire.events import AckRun, Command, Flow, UnknownCommand
from penstock.wire.pulsar_pb2 import (
    AuthData,
    AuthMethod,
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandAuthChallenge,
    CommandAuthResponse,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandConnected,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandEndTxn,
    CommandError,
    CommandFlow,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandMessage,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
    CommandPing,
    CommandPong,
    CommandProducer,
    CommandProducerSuccess,
    CommandReachedEndOfTopic,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
    CommandSubscribe,
    CommandSuccess,
    CommandTcClientConnectRequest,
    CommandTopicMigrated,
    CommandUnsubscribe,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    FeatureFlags,
    IntRange,
    KeySharedMode,
    KeyValue,
    MessageCount,
    MessageCountQuery,
    MessageIdData,
    MessageMetadata,
    ProducerAccessMode,
    Schema,
    SingleMessageMetadata,
    TxnAction,
)
from penstock.wire.varints import encode_varint

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "COMMIT",
    "PROTOCOL_ACTIVE_CONSUMER_CHANGE",
    "SHARED_PRODUCER",
    "AuthMethod",
    "BaseCommand",
    "CommandAck",
    "CommandAddPartitionToTxn",
    "CommandAddSubscriptionToTxn",
    "CommandAuthResponse",
    "CommandCloseConsumer",
    "CommandCloseProducer",
    "CommandConnect",
    "CommandConsumerStats",
    "CommandEndTxn",
    "CommandFlow",
    "CommandGetLastMessageId",
    "CommandGetOrCreateSchema",
    "CommandGetSchema",
    "CommandGetTopicsOfNamespace",
    "CommandLookupTopic",
    "CommandLookupTopicResponse",
    "CommandMessage",
    "CommandNewTxn",
    "CommandPartitionedTopicMetadata",
    "CommandPartitionedTopicMetadataResponse",
    "CommandProducer",
    "CommandProducerSuccess",
    "CommandRedeliverUnacknowledgedMessages",
    "CommandSeek",
    "CommandSend",
    "CommandSendError",
    "CommandSendReceipt",
    "CommandSubscribe",
    "CommandTcClientConnectRequest",
    "CommandUnsubscribe",
    "CommandWatchTopicList",
    "CommandWatchTopicListClose",
    "FeatureFlags",
    "KeySharedMode",
    "MessageCount",
    "MessageCountQuery",
    "MessageIdData",
    "MessageMetadata",
    "MigratedUrls",
    "Schema",
    "SingleMessageMetadata",
    "TransactionCommand",
    "ack_response",
    "active_consumer_change",
    "body_in",
    "check_body",
    "checked_send",
    "close_consumer",
    "close_producer",
    "connected",
    "consumer_stats",
    "consumer_stats_failed",
    "decode_command",
    "duplicate_receipt",
    "encode",
    "error",
    "event_of",
    "get_or_create_schema_failed",
    "get_or_create_schema_response",
    "get_schema_failed",
    "get_schema_response",
    "is_rare",
    "last_message_id",
    "lookup_connect",
    "lookup_failed",
    "lookup_redirect",
    "partitioned_metadata",
    "partitioned_metadata_failed",
    "ping",
    "pong",
    "producer_success",
    "reached_end_of_topic",
    "send_error",
    "success",
    "transaction_answer",
    "transaction_of",
]

# Clients older than this do not know ACTIVE_CONSUMER_CHANGE.
PROTOCOL_ACTIVE_CONSUMER_CHANGE: Final = 12
# With which the name of a penstock proxy begins, in CONNECT to a broker.
PROXY_NAME: Final = "penstock-proxy-"
SHARED_PRODUCER: Final = ProducerAccessMode.Shared

COMMIT: Final = TxnAction.COMMIT
# What clients ask about transactions.
TransactionCommand: TypeAlias = CommandNewTxn | CommandAddPartitionToTxn | CommandAddSubscriptionToTxn | CommandEndTxn

_UINT64_MASK: Final = (1 << 64) - 1
# 64-bit words in all ack sets of one ACK: 256 KiB, 0.3 µs each. Clients group 1,000 batches of 1,000 messages at most.
ACK_WORDS_MAX: Final = 32_768

# A command's type is also the number of the BaseCommand field that holds its body, for every type.
_BODY_NAMES: Final[dict[int, str]] = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}


def _number(message: type[Message], name: str) -> int:
    return message.DESCRIPTOR.fields_by_name[name].number


_TYPE_NUMBER: Final = _number(BaseCommand, "type")
_COMMON_SEND_FIELDS: Final = frozenset(
    _number(CommandSend, name)
    for name in (
        "producer_id",
        "sequence_id",
        "num_messages",
        "highest_sequence_id",
        "txnid_least_bits",
        "txnid_most_bits",
    )
)


# -- decoding --------------------------------------------------------------------------------------------------------


def decode_command(data: bytes) -> BaseCommand:
    """Parse a BaseCommand; `type` is unset for a type that the definition does not know.

    Raises:
        ProtocolError: it cannot be parsed.
    """
    try:
        return BaseCommand.FromString(data)
    except DecodeError as cause:
        raise ProtocolError(f"unreadable command of {len(data)} bytes: {cause}") from None


def event_of(command: BaseCommand) -> AckRun | Flow | Command | UnknownCommand:
    """Return the event of a parsed command. Not for SEND, whose frame holds more than its command.

    Raises:
        ProtocolError: no type, no body, a required field is missing, or a text is not UTF-8.
    """
    if not command.HasField("type"):
        return UnknownCommand(_unknown_type(command))
    kind = command.type
    body = _checked_body(command, kind)
    if kind == BaseCommand.ACK:
        return _ack_run(command.ack)
    if kind == BaseCommand.FLOW:
        return Flow(command.flow.consumer_id, command.flow.messagePermits)
    _require_text(body)
    return Command(kind, body)


def body_in(command: BaseCommand) -> Any:  # noqa: ANN401 - the generated classes share no useful base
    """Return the body of a command whose type is known."""
    return getattr(command, _BODY_NAMES[command.type])


def check_body(command: BaseCommand, *, text: bool = True) -> None:
    """Check that a command of a known type has a complete body and, with `text`, that its texts are UTF-8.

    Raises:
        ProtocolError: it does not.
    """
    body = _checked_body(command, command.type)
    if text:
        _require_text(body)


def checked_send(command: BaseCommand) -> CommandSend:
    """Return the body of a SEND.

    Raises:
        ProtocolError: it is missing or incomplete.
    """
    _checked_body(command, BaseCommand.SEND)
    return command.send


def is_rare(send: CommandSend) -> bool:
    """Return whether a SEND has fields besides ids, the number of messages and a transaction."""
    return (
        any(field.number not in _COMMON_SEND_FIELDS for field, _ in send.ListFields()) or len(UnknownFieldSet(send)) > 0
    )


def _checked_body(command: BaseCommand, kind: BaseCommand.Type) -> Message:
    name = _BODY_NAMES[kind]
    if not command.HasField(name):
        raise ProtocolError(f"{BaseCommand.Type.Name(kind)} command without its {name!r} field")
    body: Message = getattr(command, name)
    if not body.IsInitialized():
        raise ProtocolError(f"{BaseCommand.Type.Name(kind)} command without a required field")
    return body


def _unknown_type(command: BaseCommand) -> int:
    """Return the number of a type that protobuf does not know."""
    for unknown in UnknownFieldSet(command):  # type: ignore[attr-defined]  # the stub forgets that it is a sequence
        if unknown.field_number == _TYPE_NUMBER and isinstance(unknown.data, int):
            return unknown.data
    raise ProtocolError("command without a type")


# Messages that come by the thousand, and hold numbers only.
_WITHOUT_TEXT: Final = frozenset((IntRange.DESCRIPTOR.name, MessageIdData.DESCRIPTOR.name))


def _require_text(message: Message) -> None:
    """Check that texts are UTF-8: otherwise protobuf would return them as `bytes` instead of `str`."""
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_STRING:
            if not isinstance(value, str) and (
                isinstance(value, bytes) or not all(isinstance(one, str) for one in value)
            ):
                raise ProtocolError(f"{descriptor.full_name} is not UTF-8")
        elif descriptor.message_type is not None and descriptor.message_type.name not in _WITHOUT_TEXT:
            for inner in (value,) if isinstance(value, Message) else value:
                _require_text(inner)


def _ack_run(ack: CommandAck) -> AckRun:
    ids = list(ack.message_id)
    run = AckRun(
        consumer_id=ack.consumer_id,
        cumulative=ack.ack_type == CommandAck.Cumulative,
        ledger_ids=[message_id.ledgerId for message_id in ids],
        entry_ids=[message_id.entryId for message_id in ids],
        request_id=ack.request_id if ack.HasField("request_id") else None,
        validation_error=ack.validation_error if ack.HasField("validation_error") else None,
        transaction=transaction_of(ack),
    )
    words = 0
    for row, message_id in enumerate(ids):
        if message_id.ack_set:
            words += len(message_id.ack_set)
            if words > ACK_WORDS_MAX:
                return _refused(run, f"ack sets of more than {ACK_WORDS_MAX:,} 64-bit words together")
            run.ack_sets[row] = list(message_id.ack_set)
            if run.transaction is not None:
                run.batch_sizes[row] = message_id.batch_size
    return run


def _refused(run: AckRun, has: str) -> AckRun:
    text = f"an ACK with {has} is refused, and nothing of it is acknowledged; acknowledge less in one command"
    return AckRun(run.consumer_id, run.cumulative, [], [], request_id=run.request_id, refused=NotAllowed(text))


def transaction_of(command: CommandAck | CommandSend) -> TransactionId | None:
    """Return the transaction that a command belongs to, if any."""
    if command.HasField("txnid_least_bits") or command.HasField("txnid_most_bits"):
        return TransactionId(command.txnid_most_bits, command.txnid_least_bits)
    return None


# -- encoding --------------------------------------------------------------------------------------------------------


def encode(kind: int, body: Message) -> bytes:
    """Return a frame with one command and no payload."""
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    getattr(command, _BODY_NAMES[kind]).MergeFrom(body)
    return _framed(command)


def _framed(command: BaseCommand) -> bytes:
    data = command.SerializeToString()
    return struct.pack(">II", 4 + len(data), len(data)) + data


def connected(
    server_version: str,
    protocol_version: int,
    message_bytes_max: int,
    *,
    topic_watchers: bool = False,
    positions: bool = False,
) -> bytes:
    """Encode CONNECTED.

    Its flags announce lookups of partitions without auto-creation, and perhaps topic list watchers and deduplication of
    replicated entries by their `positions` in the cluster that they come from.
    """
    body = CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
        feature_flags=FeatureFlags(
            supports_get_partitioned_metadata_without_auto_creation=True,
            supports_repl_dedup_by_lid_and_eid=positions,
            supports_topic_watchers=topic_watchers,
            supports_topic_watcher_reconcile=topic_watchers,
        ),
    )
    return encode(BaseCommand.CONNECTED, body)


def auth_challenge(server_version: str, protocol_version: int, method: str, data: bytes) -> bytes:
    """Encode AUTH_CHALLENGE: the client must authenticate (again)."""
    body = CommandAuthChallenge(
        server_version=server_version,
        protocol_version=protocol_version,
        challenge=AuthData(auth_method_name=method, auth_data=data),
    )
    return encode(BaseCommand.AUTH_CHALLENGE, body)


def ping() -> bytes:
    return _PING


def pong() -> bytes:
    return _PONG


def success(request_id: int) -> bytes:
    return encode(BaseCommand.SUCCESS, CommandSuccess(request_id=request_id))


def error(request_id: int, code: int, message: str) -> bytes:
    """Encode ERROR; a `request_id` of -1 answers CONNECT."""
    body = CommandError(request_id=request_id & _UINT64_MASK, error=code, message=message)  # type: ignore[arg-type]
    return encode(BaseCommand.ERROR, body)


def partitioned_metadata(request_id: int, partitions: int) -> bytes:
    """Encode the number of partitions; 0 for a topic that is not partitioned."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id, partitions=partitions, response=CommandPartitionedTopicMetadataResponse.Success
    )
    return encode(BaseCommand.PARTITIONED_METADATA_RESPONSE, body)


def partitioned_metadata_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the error of a partitioned-metadata request."""
    body = CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=CommandPartitionedTopicMetadataResponse.Failed,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode(BaseCommand.PARTITIONED_METADATA_RESPONSE, body)


def lookup_connect(request_id: int, url: str, url_tls: str | None, *, through_service_url: bool = False) -> bytes:
    """Encode a lookup response: the topic is served at one of these URLs.

    `through_service_url`: the client connects to its own service URL for it, and names the broker's in CONNECT.
    """
    body = CommandLookupTopicResponse(
        request_id=request_id,
        response=CommandLookupTopicResponse.Connect,
        brokerServiceUrl=url,
        brokerServiceUrlTls=url_tls,
        authoritative=True,
        proxy_through_service_url=through_service_url,
    )
    return encode(BaseCommand.LOOKUP_RESPONSE, body)


def lookup_redirect(request_id: int, urls: MigratedUrls) -> bytes:
    """Encode a lookup response: ask the brokers of another cluster."""
    body = CommandLookupTopicResponse(
        request_id=request_id,
        response=CommandLookupTopicResponse.Redirect,
        brokerServiceUrl=urls.plain,
        brokerServiceUrlTls=urls.tls,
        authoritative=False,
    )
    return encode(BaseCommand.LOOKUP_RESPONSE, body)


def lookup_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the error of a lookup."""
    body = CommandLookupTopicResponse(
        request_id=request_id,
        response=CommandLookupTopicResponse.Failed,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode(BaseCommand.LOOKUP_RESPONSE, body)


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """Encode PRODUCER_SUCCESS; a `last_sequence_id` of -1 means that none is known.

    Not `ready`: the producer waits for exclusive access, and gets another PRODUCER_SUCCESS later.
    """
    body = CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return encode(BaseCommand.PRODUCER_SUCCESS, body)


def duplicate_receipt(producer_id: int, sequence_id: int, highest: int | None) -> bytes:
    """Encode the SEND_RECEIPT of a duplicate: the message id is (-1, -1), because it is not known any more."""
    body = CommandSendReceipt(producer_id=producer_id, sequence_id=sequence_id, highest_sequence_id=highest)
    body.message_id.ledgerId = body.message_id.entryId = _UINT64_MASK
    return encode(BaseCommand.SEND_RECEIPT, body)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """Encode SEND_ERROR: this entry was not stored."""
    body = CommandSendError(
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=code,  # type: ignore[arg-type]
        message=message,
    )
    return encode(BaseCommand.SEND_ERROR, body)


def close_producer(producer_id: int, request_id: int) -> bytes:
    """Encode an unsolicited CLOSE_PRODUCER, with `request_id` -1: the client looks the topic up again."""
    body = CommandCloseProducer(producer_id=producer_id, request_id=request_id & _UINT64_MASK)
    return encode(BaseCommand.CLOSE_PRODUCER, body)


def close_consumer(consumer_id: int, request_id: int) -> bytes:
    """Encode an unsolicited CLOSE_CONSUMER, with `request_id` -1: the client subscribes again."""
    body = CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id & _UINT64_MASK)
    return encode(BaseCommand.CLOSE_CONSUMER, body)


class MigratedUrls(NamedTuple):
    """Where the brokers of the cluster are to which topics were moved."""

    plain: str | None
    tls: str | None


def topic_migrated(resource_id: int, urls: MigratedUrls, *, producer: bool) -> bytes:
    """Encode TOPIC_MIGRATED: from now on, this producer or consumer looks its topic up at another cluster."""
    body = CommandTopicMigrated(
        resource_id=resource_id,
        resource_type=CommandTopicMigrated.Producer if producer else CommandTopicMigrated.Consumer,
        brokerServiceUrl=urls.plain,
        brokerServiceUrlTls=urls.tls,
    )
    return encode(BaseCommand.TOPIC_MIGRATED, body)


def ack_response(consumer_id: int, request_id: int, *, error: int | None = None, message: str | None = None) -> bytes:
    """Encode ACK_RESPONSE; `error` and `message` together mean that the ACK failed."""
    body = CommandAckResponse(
        consumer_id=consumer_id,
        request_id=request_id,
        error=error,  # type: ignore[arg-type]
        message=message,
    )
    return encode(BaseCommand.ACK_RESPONSE, body)


def active_consumer_change(consumer_id: int, *, is_active: bool) -> bytes:
    """Tell a consumer of a failover subscription whether it is the active one."""
    body = CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return encode(BaseCommand.ACTIVE_CONSUMER_CHANGE, body)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Tell a consumer that the topic is terminated and all its messages were delivered."""
    return encode(BaseCommand.REACHED_END_OF_TOPIC, CommandReachedEndOfTopic(consumer_id=consumer_id))


def last_message_id(
    request_id: int,
    ledger_id: int,
    entry_id: int,
    *,
    partition: int,
    batch_index: int,
    mark_delete: tuple[int, int],
    counted: MessageCount | None = None,
) -> bytes:
    """Encode the topic's last message id (-1, -1 without messages) and the subscription's mark-delete position."""
    body = CommandGetLastMessageIdResponse(
        counted=counted,
        request_id=request_id,
        last_message_id=_message_id(ledger_id, entry_id, partition=partition, batch_index=batch_index),
        consumer_mark_delete_position=_message_id(*mark_delete, partition=partition, batch_index=-1),
    )
    return encode(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE, body)


def transaction_answer(
    kind: int, request_id: int, transaction: TransactionId | None, *, error: int | None = None, message: str = ""
) -> bytes:
    """Encode the response to a command about transactions, of the type that follows that of the command."""
    answer = BaseCommand(type=kind + 1)  # type: ignore[arg-type]
    body = getattr(answer, _BODY_NAMES[kind + 1])
    body.request_id = request_id
    if transaction is not None:
        body.txnid_most_bits, body.txnid_least_bits = transaction
    if error is not None:
        body.error, body.message = error, message
    return _framed(answer)


def consumer_stats(request_id: int, stats: Mapping[str, Any]) -> bytes:
    """Encode CONSUMER_STATS_RESPONSE; the keys of `stats` are field names of the command."""
    return encode(BaseCommand.CONSUMER_STATS_RESPONSE, CommandConsumerStatsResponse(request_id=request_id, **stats))


def consumer_stats_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the error of a CONSUMER_STATS."""
    body = CommandConsumerStatsResponse(
        request_id=request_id,
        error_code=code,  # type: ignore[arg-type]
        error_message=message,
    )
    return encode(BaseCommand.CONSUMER_STATS_RESPONSE, body)


def get_schema_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the error of a GET_SCHEMA."""
    body = CommandGetSchemaResponse(
        request_id=request_id,
        error_code=code,  # type: ignore[arg-type]
        error_message=message,
    )
    return encode(BaseCommand.GET_SCHEMA_RESPONSE, body)


def get_schema_response(
    request_id: int, *, name: str, kind: int, data: bytes, properties: Mapping[str, str], version: bytes
) -> tuple[bytes, bytes]:
    """Encode a topic's schema and its version; `kind` is the number of the schema type.

    The frame is two buffers; the second one is `data` itself, so that a schema of a megabyte is not copied for each
    reader. To put it at the end, the messages around it are encoded by hand: the lengths of three messages, each of
    which is the last field of the one around it.
    """
    schema = Schema(
        name=name,
        type=kind,  # type: ignore[arg-type]
        properties=[KeyValue(key=key, value=value) for key, value in properties.items()],
    )
    body = CommandGetSchemaResponse(request_id=request_id, schema_version=version)
    size, head = len(data), b""
    for around, number in (
        (schema, _number(Schema, "schema_data")),
        (body, _number(CommandGetSchemaResponse, "schema")),
        (BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE), BaseCommand.GET_SCHEMA_RESPONSE),
    ):
        head = around.SerializePartialToString() + encode_varint(number << 3 | 2) + encode_varint(size) + head
        size = len(head) + len(data)
    return struct.pack(">II", 4 + size, size) + head, data


def get_or_create_schema_response(request_id: int, version: bytes) -> bytes:
    """Encode the version of the schema."""
    body = CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return encode(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, body)


def get_or_create_schema_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the error of a GET_OR_CREATE_SCHEMA."""
    body = CommandGetOrCreateSchemaResponse(
        request_id=request_id,
        error_code=code,  # type: ignore[arg-type]
        error_message=message,
    )
    return encode(BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, body)


def _message_id(ledger_id: int, entry_id: int, *, partition: int, batch_index: int) -> MessageIdData:
    return MessageIdData(
        ledgerId=ledger_id & _UINT64_MASK, entryId=entry_id & _UINT64_MASK, partition=partition, batch_index=batch_index
    )


_PING: Final = encode(BaseCommand.PING, CommandPing())
_PONG: Final = encode(BaseCommand.PONG, CommandPong())
