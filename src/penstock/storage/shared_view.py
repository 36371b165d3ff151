# SPDX-License-Identifier: Apache-2.0
"""The shared part of the catalog in memory: what all brokers of a cluster know.

Tenants, namespaces, topics with the broker that serves each, dynamic configuration, and documents (partitioned topics,
schemas, clusters, …). Each record has a kind and a name; a change is a few rows, each with the new value of one record.

Why rows: the process that writes `meta.sqlite` and the processes that follow it apply the same rows, in the same order.
Where: `SharedStore` keeps a view beside the file; `Follower` keeps one that it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.storage.catalog_rows import NOTHING, TopicRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.storage.catalog_rows import Document, Policies

    Value: TypeAlias = Mapping[str, Any] | str | int | TopicRecord

TENANTS: Final = "tenants"
NAMESPACES: Final = "namespaces"
CONFIGURATION: Final = "configuration"
TOPICS: Final = "topics"
# One record, named "": the first ledger id that was never given out. Its value only grows.
LEDGER_IDS: Final = "ledger-ids"
KINDS: Final = (TENANTS, NAMESPACES, CONFIGURATION, TOPICS, LEDGER_IDS)  # all others are kinds of documents
# Documents of partitioned topics.
PARTITIONED: Final = "partitioned"
# Documents of namespaces and partitioned topics that a broker is deleting: no broker creates topics in them.
DELETIONS: Final = "namespace-deletions"
# Documents of ranges that `SkipLedgerIds` skipped, each named by its first id.
SKIPPED: Final = "skipped-ledger-ids"


class Row(NamedTuple):
    """A record as a change left it."""

    kind: str
    name: str
    value: Value | None  # None: it was deleted
    grown_bytes: int = 0  # by how much the JSON of all documents of this kind grew


class SharedView:
    """All records of the shared part. Read on the loop; the mappings are live."""

    def __init__(self, topic_deleted: Callable[[TopicRecord], None] | None = None) -> None:
        """Args: topic_deleted: called for each topic that rows delete, after it is removed."""
        self.topic_deleted = topic_deleted
        self.tenants: dict[str, Policies] = {}
        self.namespaces: dict[str, Policies] = {}
        self.configuration: dict[str, str] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.ledger_ids_stop = 0
        self._tables: dict[str, dict[str, Any]] = {
            TENANTS: self.tenants,
            NAMESPACES: self.namespaces,
            CONFIGURATION: self.configuration,
            TOPICS: self.topics,
        }
        self._document_bytes: dict[str, int] = {}

    def documents(self, kind: str) -> Mapping[str, Document]:
        """Return all documents of a kind, by name."""
        return self._tables.get(kind, NOTHING)

    def document_bytes(self, kind: str) -> int:
        """How many bytes all documents of a kind are as JSON."""
        return self._document_bytes.get(kind, 0)

    def was_given_out(self, ledger_id: int) -> bool:
        """Whether this ledger id was ever given out, rather than skipped or still to come."""
        skipped = ((int(start), value["stop"]) for start, value in self.documents(SKIPPED).items())
        return ledger_id < self.ledger_ids_stop and not any(start <= ledger_id < stop for start, stop in skipped)

    def apply(self, rows: Iterable[Row]) -> None:
        """Replace and delete records."""
        for kind, name, value, grown_bytes in rows:
            if kind == LEDGER_IDS:
                assert isinstance(value, int)
                self.ledger_ids_stop = max(self.ledger_ids_stop, value)
                continue
            table = self._tables.setdefault(kind, {})
            if grown_bytes:
                self._document_bytes[kind] = self._document_bytes.get(kind, 0) + grown_bytes
            if value is not None:
                table[name] = value
                continue
            before = table.pop(name, None)
            if isinstance(before, TopicRecord) and self.topic_deleted is not None:
                self.topic_deleted(before)
