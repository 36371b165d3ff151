# SPDX-License-Identifier: Apache-2.0
"""The catalog's records, and the rows they are stored as.

Why: SQLite finds damage to its own structure, not to what stands in a row: a flipped bit in a name would quietly make
another topic of it. So every row carries a checksum over its other columns, which is checked when it is read. (The head
of a cursor is sealed already, by `Cursor.head`, and falls back to its mark-delete entry: it stays outside.)
Where: the catalog reads and writes rows only through the functions here.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from crc32c import crc32c

from penstock.storage.cursor import CursorPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Properties: TypeAlias = Mapping[str, str]
    Policies: TypeAlias = Mapping[str, Any]  # JSON; what may stand in it is the broker's and the admin port's business
    Document: TypeAlias = Mapping[str, Any]  # JSON as well
    Value: TypeAlias = str | int

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class DamagedRow(ValueError):
    """A row is not what was written."""


# Records are named tuples rather than dataclasses: a hundred thousand of them are made before the broker is ready.
class TopicRecord(NamedTuple):
    """A topic, or one partition of one."""

    name: str  # in full: `persistent://tenant/namespace/name`
    ledger_id: int  # where its entries are in the log; its own for ever, also after it is deleted
    broker: int  # number of the broker process that serves it
    created_wall_ms: int
    properties: Properties  # what its creator attached
    policies: Policies  # what is set for this topic alone
    first_retained_entry: int  # entries before this one are gone


class StoredCursor(NamedTuple):
    """A subscription's progress as of its last save."""

    mark_delete: int  # readable by itself, should the rest be damaged
    encoded: bytes  # what `Cursor.head` returned


class SubscriptionRecord(NamedTuple):
    """A durable subscription; its progress is `Catalog.cursor`."""

    topic: str
    name: str
    initial_position: str  # `earliest` or `latest`, as asked for when it was created
    properties: Properties = NOTHING


# So many bytes of a subscription's name and properties count as part of what a subscription takes anyway.
PLAIN_BYTES: Final = 1_024
# A pair of properties beside its two texts, in memory.
_PAIR_BYTES: Final = 200


def bulk_bytes(name: str, properties: Properties) -> int:
    """About how many bytes of memory a subscription's name and properties take beyond those of a plain one."""
    nbytes = len(name) + sum(len(key) + len(value) + _PAIR_BYTES for key, value in properties.items())
    return max(0, nbytes - PLAIN_BYTES)


class CursorSave(NamedTuple):
    """A subscription's progress, to be saved, and what changed of it since the last save."""

    topic: str
    subscription: str
    cursor: StoredCursor
    parts: Sequence[CursorPart] = ()


def sealed(*values: Value) -> tuple[Value, ...]:
    """A row: the values and the checksum over them."""
    return (*values, _seal(values))


def opened(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a row that `sealed` made. Raises DamagedRow."""
    values = row[:-1]
    if _seal(values) != row[-1]:
        raise DamagedRow(f"the row of {values[0]!r} does not fit its checksum")
    return values


def _seal(values: Sequence[Value]) -> int:
    return crc32c("\0".join(map(str, values)).encode())


def topic_row(record: TopicRecord) -> tuple[Value, ...]:
    """The columns of `topics`, in order."""
    name, ledger_id, broker, created_wall_ms, properties, policies, first_retained_entry = record
    return sealed(
        ledger_id, name, broker, created_wall_ms, to_json(properties), to_json(policies), first_retained_entry
    )


def topic_record(row: tuple[Any, ...]) -> TopicRecord:
    """The topic of a row. Raises DamagedRow."""
    ledger_id, name, broker, created_wall_ms, properties, policies, first_retained_entry = opened(row)
    return TopicRecord(
        name, ledger_id, broker, created_wall_ms, from_json(properties), from_json(policies), first_retained_entry
    )


def subscription_row(ledger_id: int, record: SubscriptionRecord, cursor: StoredCursor) -> tuple[Value | bytes, ...]:
    """The columns of `subscriptions`, in order."""
    return (*sealed(ledger_id, record.name, record.initial_position, to_json(record.properties)), *cursor)


def subscription_record(topic: str, row: tuple[Any, ...]) -> tuple[SubscriptionRecord, StoredCursor]:
    """The subscription of a row. Raises DamagedRow."""
    _, name, initial_position, properties = opened(row[:5])
    return SubscriptionRecord(topic, name, initial_position, from_json(properties)), StoredCursor(*row[5:])


def part_row(ledger_id: int, subscription: str, part: CursorPart) -> tuple[Value | bytes | None, ...]:
    """The columns of `cursor_parts`, in order. The checksum covers them all: a part must not become another one."""
    return (ledger_id, subscription, *part, _part_seal(ledger_id, subscription, *part))


def cursor_part(row: tuple[Any, ...]) -> CursorPart:
    """The part of a row. Raises DamagedRow."""
    *columns, found = row
    if found != _part_seal(*columns):
        raise DamagedRow(f"part {columns[3]} of the cursor of {columns[1]!r} does not fit its checksum")
    return CursorPart(*columns[2:])


def _part_seal(ledger_id: int, subscription: str, kind: int, number: int, value: bytes | None) -> int:
    return crc32c(value or b"", _seal((ledger_id, subscription, kind, number)))


def to_json(value: Mapping[str, Any]) -> str:
    """A mapping as it is stored."""
    return json.dumps(dict(value), separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> Mapping[str, Any]:
    """A stored mapping. Most records carry nothing: they share one empty mapping."""
    return NOTHING if text == "{}" else json.loads(text)


def _insert(table: str, *values: Value) -> str:
    return f"insert into {table} values {sealed(*values)!r}"  # noqa: S608 - our names


# Script i leads from schema version i to i + 1; a released one is never edited.
MIGRATIONS: Final = (
    f"""
    create table counters (name text primary key, value integer not null, seal integer not null) without rowid;
    create table tenants (name text primary key, policies text not null, seal integer not null) without rowid;
    create table namespaces (name text primary key, policies text not null, seal integer not null) without rowid;
    create table topics (
        ledger_id integer primary key,
        name text not null unique,
        broker integer not null,
        created_wall_ms integer not null,
        properties text not null,
        policies text not null,
        first_retained_entry integer not null,
        seal integer not null);
    create table subscriptions (
        ledger_id integer not null,
        name text not null,
        initial_position text not null,
        properties text not null,
        seal integer not null,
        mark_delete integer not null,
        cursor blob not null,
        unique (ledger_id, name));
    create table configuration (name text primary key, value text not null, seal integer not null) without rowid;
    {_insert("counters", "next_ledger_id", 1)};
    {_insert("tenants", "public", "{}")};
    {_insert("tenants", "pulsar", "{}")};
    {_insert("namespaces", "public/default", "{}")};
    {_insert("namespaces", "pulsar/system", "{}")};
    """,
    """
    create table documents (
        kind text not null,
        name text not null,
        value text not null,
        seal integer not null,
        primary key (kind, name)) without rowid;
    """,
    # Acknowledged entries above the mark-delete position, and batches acknowledged in part. Cursors that have them in
    # `subscriptions.cursor` still are taken apart by `Catalog`, which can read them.
    """
    create table cursor_parts (
        ledger_id integer not null,
        name text not null,
        kind integer not null,
        number integer not null,
        value blob not null,
        seal integer not null,
        unique (ledger_id, name, kind, number));
    """,
)
