# SPDX-License-Identifier: Apache-2.0
"""Usage records and decision records: their fields, their Avro schemas, and how they are encoded.

Why in one module: it is a contract. Brokers write by it, Spark and other
readers read by it, and `docs/reference/records.md` is generated from it.

A record is identified by (broker, epoch, sequence): a reader that gets one twice drops one. Fields are only ever added,
at the end and with a default, so readers of any version read records of any other. `version` is raised with each.

Where: `penstock.broker.records` writes them to `core.system_topics.USAGE_TOPIC` and `DECISION_TOPIC`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Encode = Callable[[Any], bytes]

# ---------------------------------------------------------------------------------------------------------------------
# Encodes records in Avro's binary format.
#
# Why not a library: records are flat and of six types, and the broker needs no Avro otherwise. Tests read with
# fastavro. Where: `records` makes an encoder of each record's fields.

_DOUBLE: Final = struct.Struct("<d")
_NULL: Final = b"\x00"  # branch 0 of a union
_VALUE: Final = b"\x02"  # branch 1


def encode_long(value: int) -> bytes:
    """Encode a signed number of 64 bits: zigzag, then 7 bits per byte, the lowest first."""
    left = (value << 1) ^ (value >> 63)
    if left < 0x80:
        return left.to_bytes(1, "big")
    encoded = bytearray()
    while left >= 0x80:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def encode_string(value: str) -> bytes:
    encoded = value.encode()
    return encode_long(len(encoded)) + encoded


def _encode_strings(values: Sequence[str]) -> bytes:
    """Encode an array of strings."""
    if not values:
        return _NULL
    return encode_long(len(values)) + b"".join(map(encode_string, values)) + _NULL


def _encode_boolean(value: object) -> bytes:
    return b"\x01" if value else b"\x00"


def _optional(encode: Encode) -> Encode:
    return lambda value: _NULL if value is None else _VALUE + encode(value)


# By the name of a field's type in `records`.
ENCODERS: Final[Mapping[str, Encode]] = {
    "long": encode_long,
    "string": encode_string,
    "boolean": _encode_boolean,
    "strings": _encode_strings,
    "long?": _optional(encode_long),
    "double?": _optional(_DOUBLE.pack),
}

# The same types in a schema.
TYPES: Final[Mapping[str, Any]] = {
    "long": "long",
    "string": "string",
    "boolean": "boolean",
    "strings": {"type": "array", "items": "string"},
    "long?": ["null", "long"],
    "double?": ["null", "double"],
}

# Defaults by which a reader with this schema reads records that lack the field.
DEFAULTS: Final[Mapping[str, Any]] = {
    "long": 0,
    "string": "",
    "boolean": False,
    "strings": [],
    "long?": None,
    "double?": None,
}


R = TypeVar("R", "UsageRecord", "DecisionRecord")

RECORD_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class FieldMeaning:
    """Documentation of a field: its type, unit and meaning."""

    type: str
    unit: str
    text: str


def _field(kind: str, unit: str, text: str, *, default: object = ...) -> Any:  # noqa: ANN401 - the field's own type
    meaning = {"meaning": FieldMeaning(kind, unit, text)}
    return field(metadata=meaning) if default is ... else field(metadata=meaning, default=default)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """Usage of one topic, one resource group or one broker, by one broker's counters.

    Counters only grow. They count from `counters_since_ms` on; a record with the same broker, scope, name (topic or
    resource group) and `counters_since_ms` as an earlier one goes on from its values. The use between two such
    records is their difference; before the first one, its values are. So a lost record costs resolution, and nothing
    else.
    """

    version: int = _field("long", "", "Version of the record's fields.", default=RECORD_VERSION)
    broker: str = _field("string", "", "Name of the broker that counted: `broker-0`, …")
    epoch: int = _field("long", "", "Identifies a run of that broker; later runs have larger ones.")
    sequence: int = _field(
        "long", "", "Number of the record in that run, from 0. What a missing one would have said, later ones say."
    )
    from_ms: int = _field("long", "ms since 1970", "When the broker had read its counters the time before.")
    time_ms: int = _field("long", "ms since 1970", "When the broker read these counters.")
    scope: str = _field(
        "string",
        "",
        "`topic`, `group` (a resource group's traffic on this broker), `principal` (what clients of one role used of a "
        "namespace), `namespace` (what it stores on this broker) or `broker`. The record of a broker is the last one "
        "of its interval: everything that changed has been recorded, with smaller sequence numbers.",
    )
    tenant: str = _field("string", "", "Tenant of the topic.", default="")
    namespace: str = _field("string", "", "Namespace of the topic, as `tenant/namespace`.", default="")
    topic: str = _field("string", "", "Full name of the topic; of a partition, with its number.", default="")
    resource_groups: tuple[str, ...] = _field(
        "strings", "", "Groups that limited the topic at this time; of a group, its name.", default=()
    )
    counters_since_ms: int = _field(
        "long", "ms since 1970", "When the counters were 0. Unique for each start of counting."
    )
    ledger_id: int = _field("long", "", "Ledger of a persistent topic; -1 otherwise.", default=-1)
    last_entry_id: int = _field(
        "long", "", "Last entry of the ledger that is in the counters; -1 if there is none.", default=-1
    )
    published_messages: int = _field(
        "long", "messages", "Messages published. Of a persistent topic: those that are durable.", default=0
    )
    published_bytes: int = _field(
        "long", "bytes", "Size of these messages as stored: payload as sent, with its metadata.", default=0
    )
    dispatched_messages: int = _field(
        "long", "messages", "Messages sent to consumers, for each subscription, redeliveries included.", default=0
    )
    dispatched_bytes: int = _field("long", "bytes", "Size of these messages.", default=0)
    publish_limited_times: int = _field(
        "long", "times", "How often a publish rate made a producer of the topic wait.", default=0
    )
    publish_limited_ms: int | None = _field(
        "long?", "ms", "Of a group: for how long a producer has waited for it.", default=None
    )
    dispatch_limited_ms: int | None = _field(
        "long?", "ms", "Of a group: for how long a subscription has waited for it.", default=None
    )
    quota_publish_messages: float | None = _field(
        "double?", "messages/s", "Of a group: its quota, for all brokers together; null: no limit.", default=None
    )
    quota_publish_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    quota_dispatch_messages: float | None = _field("double?", "messages/s", "As above.", default=None)
    quota_dispatch_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    share_publish_messages: float | None = _field(
        "double?", "messages/s", "Of a group: this broker's share of the quota; null: no limit.", default=None
    )
    share_publish_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    share_dispatch_messages: float | None = _field("double?", "messages/s", "As above.", default=None)
    share_dispatch_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    needed_publish_messages: float | None = _field(
        "double?",
        "messages/s",
        "Of a group: the smallest share with which nothing would have waited on this broker since the record before, "
        "as far as the broker could see; null: not measured.",
        default=None,
    )
    needed_publish_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    needed_dispatch_messages: float | None = _field("double?", "messages/s", "As above.", default=None)
    needed_dispatch_bytes: float | None = _field("double?", "bytes/s", "As above.", default=None)
    held_publish_messages: float | None = _field(
        "double?", "messages", "Of a group: what waits to be published at `time_ms`.", default=None
    )
    held_publish_bytes: float | None = _field("double?", "bytes", "As above.", default=None)
    published_chunks: int | None = _field(
        "long?",
        "chunks",
        "Of a topic or a broker: chunks that were published beside the last one of each chunked message. With its last "
        "chunk, the message counts once in `published_messages`; null: each of its chunks does.",
        default=None,
    )
    role: str = _field(
        "string", "", "Of a principal: the role of its clients, of a proxy's the original one; empty without one.",
        default="",
    )  # fmt: skip
    subscription: str = _field(
        "string", "", "Of a principal: subscription of its consumers; empty for its producers.", default=""
    )
    connections: int | None = _field(
        "long?", "", "Of a principal: producers or consumers that are connected at `time_ms`.", default=None
    )
    connected_ms: int | None = _field(
        "long?", "ms", "Of a principal: for how long they were connected, added up.", default=None
    )
    stored_bytes: int | None = _field(
        "long?",
        "bytes",
        "Of a namespace: size of its topics on this broker when they were last looked at.",
        default=None,
    )
    stored_byte_hours: int | None = _field(
        "long?", "byte-hours", "Of a namespace: this size, times how long it was so.", default=None
    )
    committed_messages: int | None = _field(
        "long?",
        "messages",
        "Of a topic or a broker: of the published messages, those of transactions that were committed, counted when "
        "they were; a chunk counts as one. What ended after the last record before a crash is not in it, nor in the "
        "three below.",
        default=None,
    )
    committed_bytes: int | None = _field("long?", "bytes", "Size of these messages.", default=None)
    aborted_messages: int | None = _field(
        "long?",
        "messages",
        "Of a topic or a broker: of the published messages, those that nobody gets, because their transaction was "
        "aborted, counted when it was.",
        default=None,
    )
    aborted_bytes: int | None = _field("long?", "bytes", "Size of these messages.", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One decision of a limiter: it began or ended to slow somebody, changed a rate, or refused a request.

    Decisions are recorded as episodes: one record when an episode begins, one when it ends, and one a minute while it
    goes on. Refusals of one kind are counted together.
    """

    version: int = _field("long", "", "Version of the record's fields.", default=RECORD_VERSION)
    broker: str = _field("string", "", "Name of the broker that decided.")
    epoch: int = _field("long", "", "Identifies a run of that broker; later runs have larger ones.")
    sequence: int = _field(
        "long", "", "Number of the record in that run. Numbers that are missing were dropped, and counted."
    )
    time_ms: int = _field("long", "ms since 1970", "When it was decided.")
    kind: str = _field(
        "string",
        "",
        "`begun`, `goes-on`, `ended` (of an episode), `changed` (a step from one rate to another) or `refused`.",
    )
    limiter: str = _field("string", "", "What decided; see the table of limiters.")
    reason: str = _field("string", "", "Why, in words.", default="")
    tenant: str = _field("string", "", "Tenant that it is about, if one is known.", default="")
    namespace: str = _field("string", "", "Namespace that it is about, as `tenant/namespace`.", default="")
    topic: str = _field("string", "", "Topic that it is about.", default="")
    resource_group: str = _field("string", "", "Resource group that it is about.", default="")
    client: str = _field("string", "", "Address of the client that it is about.", default="")
    unit: str = _field("string", "", "Unit of `before` and `after`.", default="")
    before: float | None = _field("double?", "`unit`", "The limit, or what was asked for, before.", default=None)
    after: float | None = _field("double?", "`unit`", "The limit after.", default=None)
    since_ms: int = _field("long", "ms since 1970", "When the episode began.", default=0)
    times: int = _field("long", "times", "How often since then: waits begun, steps, or requests refused.", default=0)
    held_ms: int = _field("long", "ms", "For how long since then somebody was held back.", default=0)
    observed_only: bool = _field(
        "boolean", "", "Whether it was only recorded, and nobody was slowed (observe-only).", default=False
    )


class Codec(Generic[R]):
    """Encodes the records of one class.

    Attributes:
        schema: the Avro schema.
        definition: the same as JSON text, as it is registered for the topic.
    """

    def __init__(self, record: type[R]) -> None:
        meanings = meanings_of(record)
        self.schema: Mapping[str, Any] = {
            "type": "record",
            "name": record.__name__,
            "fields": [
                {"name": name, "type": TYPES[one.type], "default": DEFAULTS[one.type]} for name, one in meanings.items()
            ],
        }
        self.definition = json.dumps(self.schema, separators=(",", ":")).encode()
        self._encoders = [(name, ENCODERS[one.type]) for name, one in meanings.items()]

    def encode(self, record: R) -> bytes:
        """Encode a record. Budget: 10 µs."""
        return b"".join([encode(getattr(record, name)) for name, encode in self._encoders])


def meanings_of(record: type[R]) -> dict[str, FieldMeaning]:
    """Return what each field of a record class means, by name."""
    return {one.name: cast("FieldMeaning", one.metadata["meaning"]) for one in fields(record)}


USAGE: Final[Codec[UsageRecord]] = Codec(UsageRecord)
DECISION: Final[Codec[DecisionRecord]] = Codec(DecisionRecord)
