# SPDX-License-Identifier: Apache-2.0
"""The catalog's records, and the rows that they are stored as.

Why: SQLite detects damage to its own structure, not to the values of a row: a flipped bit in a name would silently make
another topic of it. So every row has a checksum over its other columns, which is checked when the row is read. (The
head of a cursor has its own seal, `Cursor.head`, and falls back to its mark-delete entry, so it is not covered.) Where:
the catalog reads and writes rows only through these functions.
"""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.core.crc32c import crc32c
from penstock.storage.cursor import CursorPart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Properties: TypeAlias = Mapping[str, str]
    Policies: TypeAlias = Mapping[str, Any]  # JSON; the broker and the admin port check its content
    Document: TypeAlias = Mapping[str, Any]  # JSON as well
    Value: TypeAlias = str | int

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class DamagedRow(ValueError):
    """A row does not match its checksum."""


# Records are named tuples rather than dataclasses: a start may create a hundred thousand of them.
class TopicRecord(NamedTuple):
    """A topic, or one partition of a partitioned topic."""

    name: str  # in full: `persistent://tenant/namespace/name`
    ledger_id: int  # of its entries in the log; never reused, not even after the topic is deleted
    broker: int  # number of the broker process that serves it
    created_wall_ms: int
    properties: Properties
    policies: Policies  # topic policies


class StoredCursor(NamedTuple):
    """A subscription's last saved progress."""

    mark_delete: int  # stored apart, in case the rest is damaged
    encoded: bytes  # from `Cursor.head`


class SubscriptionRecord(NamedTuple):
    """A durable subscription; its progress is in `Catalog.cursor`."""

    topic: str
    name: str
    initial_position: str  # `earliest` or `latest`, as requested when it was created
    properties: Properties = NOTHING


# The first bytes of a subscription's name and properties, which count as part of the subscription itself.
PLAIN_BYTES: Final = 1_024
# The memory of a property besides its key and value.
_PAIR_BYTES: Final = 200


def bulk_bytes(name: str, properties: Properties) -> int:
    """Estimate the memory of a subscription's name and properties above `PLAIN_BYTES`."""
    nbytes = len(name) + sum(len(key) + len(value) + _PAIR_BYTES for key, value in properties.items())
    return max(0, nbytes - PLAIN_BYTES)


class CursorSave(NamedTuple):
    """A subscription's progress to be saved, and the parts that changed since the last save."""

    topic: str
    subscription: str
    cursor: StoredCursor
    parts: Sequence[CursorPart] = ()


def sealed(*values: Value) -> tuple[Value, ...]:
    """Return a row: the values and their checksum."""
    return (*values, seal_of(values))


def opened(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values of a row that `sealed` made. Raises DamagedRow."""
    values = row[:-1]
    if seal_of(values) != row[-1]:
        raise DamagedRow(f"the row of {values[0]!r} does not fit its checksum")
    return values


def seal_of(values: Sequence[Value]) -> int:
    """Return the checksum of a row's other columns."""
    return crc32c("\0".join(map(str, values)).encode())


def topic_row(record: TopicRecord) -> tuple[Value, ...]:
    """Return the columns of `topics`, in order."""
    name, ledger_id, broker, created_wall_ms, properties, policies = record
    return sealed(ledger_id, name, broker, created_wall_ms, to_json(properties), to_json(policies))


def topic_record(row: tuple[Any, ...]) -> TopicRecord:
    """Return the topic of a row. Raises DamagedRow."""
    ledger_id, name, broker, created_wall_ms, properties, policies = opened(row)
    return TopicRecord(name, ledger_id, broker, created_wall_ms, from_json(properties), from_json(policies))


def subscription_row(ledger_id: int, record: SubscriptionRecord, cursor: StoredCursor) -> tuple[Value | bytes, ...]:
    """Return the columns of `subscriptions`, in order."""
    return (*sealed(ledger_id, record.name, record.initial_position, to_json(record.properties)), *cursor)


def subscription_record(topic: str, row: tuple[Any, ...]) -> tuple[SubscriptionRecord, StoredCursor]:
    """Return the subscription of a row. Raises DamagedRow."""
    _, name, initial_position, properties = opened(row[:5])
    return SubscriptionRecord(topic, name, initial_position, from_json(properties)), StoredCursor(*row[5:])


def part_row(ledger_id: int, subscription: str, part: CursorPart) -> tuple[Value | bytes | None, ...]:
    """Return the columns of `cursor_parts`, in order. The checksum covers all, so that parts cannot be confused."""
    return (ledger_id, subscription, *part, _part_seal(ledger_id, subscription, *part))


def cursor_part(row: tuple[Any, ...]) -> CursorPart:
    """Return the part of a row. Raises DamagedRow."""
    *columns, found = row
    if found != _part_seal(*columns):
        raise DamagedRow(f"part {columns[3]} of the cursor of {columns[1]!r} does not fit its checksum")
    return CursorPart(*columns[2:])


def _part_seal(ledger_id: int, subscription: str, kind: int, number: int, value: bytes | None) -> int:
    return crc32c(value or b"", seal_of((ledger_id, subscription, kind, number)))


def to_json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), separators=(",", ":"), sort_keys=True)


def from_json(text: str) -> Mapping[str, Any]:
    """Return a stored mapping. Most are empty; these share one empty mapping."""
    return NOTHING if text == "{}" else json.loads(text)
