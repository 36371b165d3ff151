# SPDX-License-Identifier: Apache-2.0
"""Changes of the shared part of the catalog, as values.

Why values: a broker that follows sends its changes to the process that writes `meta.sqlite`. `store` writes a change
inside a transaction and returns the rows that it changed, or raises an error before it has written anything. Whether
something exists, and whether it still is as the caller has read it, is decided there, on the tables.
Where: `Catalog` makes them; `SharedStore` stores them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.core.errors import ChangedMeanwhile, NamespaceNotFound, TopicNotFound
from penstock.core.names import parent_text
from penstock.storage.catalog_rows import NOTHING, TopicRecord, to_json
from penstock.storage.shared_view import DELETIONS, LEDGER_IDS, NAMESPACES, PARTITIONED, SKIPPED, TENANTS, TOPICS, Row

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.shared_tables import SharedTables


class SharedChange(Protocol):
    """A change; a named tuple of JSON values."""

    def store(self, tables: SharedTables) -> Sequence[Row]: ...


class Put(NamedTuple):
    """Replace a record that is not a topic; None deletes it."""

    kind: str
    name: str
    value: Any | None
    # Only if the record still has this value; None: only if it does not exist.
    expected: Any | None = None
    conditional: bool = False
    # Only if a document of this kind and name exists.
    needed: Sequence[str] | None = None
    # Of a partitioned topic: the maximum number of topics in its namespace; 0: no maximum.
    topics_max: int = 0

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises ChangedMeanwhile; NotAllowed if the namespace would have too many topics."""
        check = _CHECKS.get(self.kind)
        # Not read if nothing depends on it: a damaged setting can be replaced.
        found = tables.text(self.kind, self.name) if self.conditional or check is not None else None
        if self.conditional:
            _check_unchanged(found, self.expected, f"{self.kind} {self.name}")
        if self.needed is not None and tables.text(*self.needed) is None:
            raise ChangedMeanwhile(f"{' '.join(self.needed)} was deleted meanwhile")
        if check is not None and (found is None or self.value is None):  # It is created or deleted.
            check(tables, self.name, self.value is not None)
        if self.kind == PARTITIONED:
            _check_free(
                self.name, self.value is not None and tables.text(DELETIONS, self.name) is not None, "is deleted"
            )
            tables.topic_counts.resize(self.name, found, self.value, self.topics_max)
        rows = [Row(self.kind, self.name, self.value, tables.put(self.kind, self.name, self.value))]
        if self.kind in _NOTED and self.value is None and tables.text(DELETIONS, self.name) is not None:
            # In the same transaction: what is created again is not being deleted.
            rows.append(Row(DELETIONS, self.name, None, tables.put(DELETIONS, self.name, None)))
        return rows


class DeleteUnused(NamedTuple):
    """Delete a document that no tenant or namespace names."""

    kind: str
    name: str
    users: Sequence[Sequence[str]]  # kinds of records, each with the key under which they name it

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises ChangedMeanwhile."""
        for kind, key in self.users:
            user = tables.one_with(kind, key, self.name)
            _check_free(self.name, user is not None, f"is in use by {user}")
        return [Row(self.kind, self.name, None, tables.put(self.kind, self.name, None))]


class CreateTopic(NamedTuple):
    """Create a topic with a ledger of its own; one that exists stays as it is."""

    name: str
    broker: int
    created_wall_ms: int
    properties: Mapping[str, str]
    topics_max: int = 0  # in its namespace; 0: no maximum

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises NamespaceNotFound, ChangedMeanwhile; NotAllowed if the namespace would have too many topics."""
        record = tables.topic(self.name)
        if record is not None:
            return [Row(TOPICS, self.name, record)]
        _, _, tenant, namespace, _ = self.name.split("/", 4)
        if not _takes_topics(tables, f"{tenant}/{namespace}"):
            raise NamespaceNotFound(f"{tenant}/{namespace}")
        parent = parent_text(self.name)
        if parent != self.name and tables.text(DELETIONS, parent) is not None:
            raise ChangedMeanwhile(f"the partitioned topic {parent} is being deleted")
        if (tables.text(PARTITIONED, parent) is not None) != (parent != self.name):
            raise ChangedMeanwhile(f"the partitioned topic {parent} was created or deleted meanwhile")
        tables.topic_counts.take(self.name, self.topics_max)
        ledger_id = tables.take_ledger_id()
        record = TopicRecord(self.name, ledger_id, self.broker, self.created_wall_ms, self.properties, NOTHING)
        tables.put_topic(record)
        return [Row(LEDGER_IDS, "", ledger_id + 1), Row(TOPICS, self.name, record)]


class ChangeTopic(NamedTuple):
    """Replace one field of a topic: `properties` or `policies`."""

    name: str
    field: str
    value: Mapping[str, Any]
    expected: Mapping[str, Any] | None = None  # only if the field still has this value; None: always

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises TopicNotFound or ChangedMeanwhile."""
        record = tables.topic(self.name)
        if record is None:
            raise TopicNotFound(self.name)
        if self.expected is not None:
            _check_unchanged(to_json(getattr(record, self.field)), self.expected, f"{self.field} of {self.name}")
        values: dict[str, Any] = {self.field: self.value}
        record = record._replace(**values)
        tables.put_topic(record)
        return [Row(TOPICS, self.name, record)]


class DeleteTopic(NamedTuple):
    """Delete a topic. Its ledger id is not reused."""

    name: str
    ledger_id: int | None = None  # only the topic with this ledger

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises TopicNotFound."""
        record = tables.topic(self.name)
        if record is None or self.ledger_id not in {None, record.ledger_id}:
            raise TopicNotFound(self.name)
        tables.delete_topic(self.name)
        tables.topic_counts.give_back(self.name)
        return [Row(TOPICS, self.name, None)]


class PlaceTopics(NamedTuple):
    """Record on which broker each of these topics is, all or none. Their entries are there already."""

    places: Sequence[tuple[str, int, int]]  # name, ledger id, number of the broker

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Raises TopicNotFound."""
        records = []
        for name, ledger_id, broker in self.places:
            record = tables.topic(name)
            if record is None or record.ledger_id != ledger_id:
                raise TopicNotFound(name)
            records.append(record._replace(broker=broker))
        for record in records:
            tables.put_topic(record)
        return [Row(TOPICS, record.name, record) for record in records]


class TakeLedgerId(NamedTuple):
    """Take a ledger id that nobody else has; it is the one before that of the returned row."""

    def store(self, tables: SharedTables) -> Sequence[Row]:
        return [Row(LEDGER_IDS, "", tables.take_ledger_id() + 1)]


class SkipLedgerIds(NamedTuple):
    """Never give out ids below `stop`, and remember which of them were not given out so far."""

    stop: int

    def store(self, tables: SharedTables) -> Sequence[Row]:
        start = tables.skip_ledger_ids(self.stop)
        if start >= self.stop:
            return []
        skipped = {"stop": self.stop}
        grown_bytes = tables.put(SKIPPED, str(start), skipped)
        return [Row(SKIPPED, str(start), skipped, grown_bytes), Row(LEDGER_IDS, "", self.stop)]


class CatchUp(NamedTuple):
    """Change nothing: when it is answered, the view of who submitted it has every change that was stored before."""

    def store(self, tables: SharedTables) -> Sequence[Row]:
        """Read and write nothing."""
        del tables
        return []


# Kinds of records whose deletion is noted first.
_NOTED: Final = frozenset({NAMESPACES, PARTITIONED})

# What a broker sends to the writer; topics are placed while none runs.
CHANGES: Final = (CatchUp, Put, DeleteUnused, CreateTopic, ChangeTopic, DeleteTopic, TakeLedgerId, SkipLedgerIds)


# -- what must hold between records; `created`: the record is created, else it is deleted


def _check_tenant(tables: SharedTables, name: str, created: bool) -> None:  # noqa: FBT001
    if not created:
        _check_free(name, any(True for _ in tables.names(NAMESPACES, f"{name}/")), "has namespaces by now")


def _check_namespace(tables: SharedTables, name: str, created: bool) -> None:  # noqa: FBT001
    if created:
        _check_free(name, tables.text(TENANTS, name.partition("/")[0]) is None, "has no tenant any more")
        return
    within = ((TOPICS, "persistent"), (PARTITIONED, "persistent"), (PARTITIONED, "non-persistent"))
    for kind, domain in within:
        _check_free(name, any(True for _ in tables.names(kind, f"{domain}://{name}/")), "has topics by now")


def _check_partitioned(tables: SharedTables, name: str, created: bool) -> None:  # noqa: FBT001
    if created:
        _, _, tenant, namespace, _ = name.split("/", 4)
        _check_free(name, not _takes_topics(tables, f"{tenant}/{namespace}"), "has no namespace any more")
        _check_free(name, tables.topic(name) is not None, "is a topic without partitions by now")
        return
    partitions = (one for one in tables.names(TOPICS, f"{name}-partition-") if parent_text(one) == name)
    _check_free(name, any(True for _ in partitions), "has partitions by now")


_CHECKS: Final = {TENANTS: _check_tenant, NAMESPACES: _check_namespace, PARTITIONED: _check_partitioned}


def _takes_topics(tables: SharedTables, namespace: str) -> bool:
    """Whether a namespace exists, and no broker is deleting it."""
    return tables.text(NAMESPACES, namespace) is not None and tables.text(DELETIONS, namespace) is None


def _check_unchanged(found: str | None, expected: Any | None, what: str) -> None:  # noqa: ANN401 - JSON
    if isinstance(expected, str):
        same = found == expected
    elif expected is None or found is None:
        same = found is expected
    else:  # Compared as JSON: the text may have been written by another version.
        same = json.loads(found) == json.loads(to_json(expected))
    if not same:
        raise ChangedMeanwhile(f"{what} was changed meanwhile")


def _check_free(name: str, taken: bool, why: str) -> None:  # noqa: FBT001
    if taken:
        raise ChangedMeanwhile(f"{name} {why}")
