# SPDX-License-Identifier: Apache-2.0
"""The catalog: tenants, namespaces, topics, subscriptions with their cursors, policies and dynamic configuration.

Why: the broker needs these at every connect, so it reads them from memory. Whatever it has answered to a client must
survive a crash, so changes go to the disk first.

Where: the broker reads records here and submits changes; the metadata thread commits them (see `metadata`).

Invariants:

- The view shows only durable state. A change appears in it on the loop, right before its `done` is called, so no client
  is told anything that a crash may undo.
- Changes happen in the order of submission, and each sees all earlier ones: whether something exists is decided on the
  tables, inside the transaction. Creating something that exists succeeds and changes nothing.
- A change whose success was answered survives. One that was not answered yet, or was answered with an error of the
  disk, may survive or not. After such an error every change is refused until a restart.
- Ledger ids are reserved in blocks and never reused, not even after a crash: a block is used only in or after the
  transaction that reserved it.

All methods but `Catalog.open` and `close`, which block, are called on the loop and return at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import apsw

from penstock.core.errors import MetadataFailed, SubscriptionNotFound, TopicNotFound
from penstock.storage.catalog_cursors import delete_parts, load_cursors, save_cursors, take_apart
from penstock.storage.catalog_rows import (
    MIGRATIONS,
    NOTHING,
    CursorSave,
    StoredCursor,
    SubscriptionRecord,
    TopicRecord,
    bulk_bytes,
    from_json,
    opened,
    sealed,
    subscription_record,
    subscription_row,
    to_json,
    topic_record,
    topic_row,
)
from penstock.storage.files import OsFiles
from penstock.storage.metadata import Change, MetadataFile, close_untouched, open_database

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from penstock.storage.catalog_rows import Document, Policies, Properties
    from penstock.storage.cursor import Cursor
    from penstock.storage.files import Files
    from penstock.storage.metadata import Done, Post

__all__ = ["LEDGER_IDS_PER_BLOCK", "Catalog", "CursorSave", "StoredCursor", "SubscriptionRecord", "TopicRecord"]

LEDGER_IDS_PER_BLOCK: Final = 1_000

_PUT_TOPIC: Final = "insert or replace into topics values (?, ?, ?, ?, ?, ?, ?, ?)"


class Catalog:
    """The catalog, in memory and on disk.

    Every change takes `done`. It is called on the loop with None once the change is durable and in the view, or with an
    error: `MetadataFailed` when the disk failed, or the error named at the method. Mappings that are passed in are
    kept: do not change them afterwards.
    """

    def __init__(self, db: apsw.Connection, path: Path, files: Files, post: Post, *, broker: int) -> None:
        self._broker = broker
        self._next_ledger_id = self._ledger_ids_stop = 0  # Of the block in use; metadata thread only.
        self._load(db)
        self._file = MetadataFile(db, path, files, post)

    @classmethod
    def open(
        cls,
        path: Path,
        post: Post,
        files: Files | None = None,
        *,
        broker: int = 0,
        exclusive: bool = False,
        vfs: str | None = None,
    ) -> Catalog:
        """Open or create the catalog at `path`; blocks until it is recovered and loaded.

        Args:
            path: the metadata file; its directory exists.
            post: passes a callable to the loop's thread; all answers come through it.
            files: the disk that `path` is on; None for the operating system's.
            broker: the broker process that topics created here belong to.
            exclusive: no other process may open the file until this one closes it.
            vfs: the SQLite VFS to reach that disk through; None for the operating system's.

        Raises:
            MetadataFailed: the file cannot be opened, read or written, or was written by a newer penstock.
        """
        files = files or OsFiles()
        db = open_database(path, MIGRATIONS, files, exclusive=exclusive, vfs=vfs)
        take_apart(db, path)
        try:
            return cls(db, path, files, post, broker=broker)
        except (apsw.Error, LookupError, TypeError, ValueError) as error:  # DamagedRow, or what cannot be read at all.
            close_untouched(db)
            raise MetadataFailed(
                f"{path} is damaged: {type(error).__name__}: {error}; "
                f"put a copy of it in its place, together with the -wal file beside that copy"
            ) from error

    @property
    def failed(self) -> str | None:
        """Why changes are refused until a restart; None if they are not."""
        return self._file.failed

    def close(self) -> None:
        """Commit and answer submitted changes, then close the file. Blocks."""
        self._file.close()

    # -- reading

    def topic(self, name: str) -> TopicRecord | None:
        """Return the topic of this full name, or None."""
        return self._topics.get(name)

    def topics(self) -> Collection[TopicRecord]:
        """Return all topics as a live view: do not keep it over a turn of the loop."""
        return self._topics.values()

    def subscriptions(self, topic: str) -> Collection[SubscriptionRecord]:
        """Return the durable subscriptions of a topic as a live view."""
        return self._subscriptions.get(topic, NOTHING).values()

    def subscription(self, topic: str, name: str) -> SubscriptionRecord | None:
        """Return the durable subscription of this name, or None."""
        return self._subscriptions.get(topic, NOTHING).get(name)

    def cursor(self, topic: str, subscription: str) -> StoredCursor | None:
        """Return a subscription's last saved progress, without the parts of its cursor."""
        return self._cursors.get((topic, subscription))

    def load_cursors(self, topic: str, take: Callable[[dict[str, Cursor]], None], done: Done) -> None:
        """Pass the cursors of a topic's subscriptions, by name, to `take` on the loop, right before `done`.

        They are loaded on the metadata thread, after all saves that were submitted. A subscription whose stored head is
        damaged is left out. `TopicNotFound` if the topic does not exist.
        """

        def store(db: apsw.Connection) -> dict[str, Cursor]:
            return load_cursors(db, _ledger_id(db, topic))

        self._submit(store, take, done)

    def tenants(self) -> Mapping[str, Policies]:
        """Return the policies of every tenant, by name."""
        return self._tenants

    def namespaces(self) -> Mapping[str, Policies]:
        """Return the policies of every namespace, by `tenant/namespace`."""
        return self._namespaces

    def configuration(self) -> Mapping[str, str]:
        """Return the dynamic configuration: values set at run time, by key."""
        return self._configuration

    def documents(self, kind: str) -> Mapping[str, Document]:
        """Return all documents of a kind, by name, as a live view."""
        return self._documents.get(kind, NOTHING)

    def document_bytes(self, kind: str) -> int:
        """How many bytes all documents of a kind are as JSON: about what they take in memory."""
        return self._document_bytes.get(kind, 0)

    # -- changing

    def put_document(
        self, kind: str, name: str, value: Document | None, done: Done, *, ledger_id: int | None = None
    ) -> None:
        """Store a document (JSON) under its kind and name; None deletes it.

        Documents are for small sets, or for what is looked up by one name: clusters, partitioned topics, schemas, topic
        states. A document is replaced as a whole.

        `ledger_id` is that of the topic of this name that the document is about. If that topic is gone, another topic
        may have the name: then the error is `TopicNotFound` and nothing changes.
        """

        def store(db: apsw.Connection) -> int:
            if ledger_id is not None and _ledger_id(db, name) != ledger_id:
                raise TopicNotFound(name)
            return _put_document(db, kind, name, value)

        def show(nbytes: int) -> None:
            self._show_document(kind, name, value, nbytes)

        self._submit(store, show, done)

    def delete_tenant(self, name: str, done: Done) -> None:
        """Delete a tenant. The caller makes sure that it has no namespaces."""
        self._delete("tenants", self._tenants, name, done)

    def delete_namespace(self, name: str, done: Done) -> None:
        """Delete a namespace. The caller makes sure that it has no topics."""
        self._delete("namespaces", self._namespaces, name, done)

    def set_topic_properties(self, name: str, properties: Properties, done: Done) -> None:
        """Replace a topic's properties. `TopicNotFound` if it does not exist."""
        self._update_topic(name, {"properties": properties}, done)

    def set_subscription_properties(self, topic: str, name: str, properties: Properties, done: Done) -> None:
        """Replace a subscription's properties. `TopicNotFound` or `SubscriptionNotFound` if it does not exist."""

        def store(db: apsw.Connection) -> tuple[SubscriptionRecord, StoredCursor]:
            ledger_id = _ledger_id(db, topic)
            for row in db.execute("select * from subscriptions where ledger_id = ? and name = ?", (ledger_id, name)):
                record, cursor = subscription_record(topic, row)
                record = record._replace(properties=properties)
                db.execute(
                    "insert or replace into subscriptions values (?, ?, ?, ?, ?, ?, ?)",
                    subscription_row(ledger_id, record, cursor),
                )
                return record, cursor
            raise SubscriptionNotFound(topic, name)

        def show(stored: tuple[SubscriptionRecord, StoredCursor]) -> None:
            self._show_record(stored[0])

        self._submit(store, show, done)

    def take_ledger_id(self, take: Callable[[int], None], done: Done) -> None:
        """Pass an unused ledger id to `take` on the loop, right before `done`. It is never given out again."""
        self._submit(self._take_ledger_id, take, done)

    def skip_ledger_ids(self, stop: int, done: Done) -> None:
        """Never give out ledger ids below `stop`: ids that the log has and this file does not know."""

        def store(db: apsw.Connection) -> None:
            if opened(_counter(db))[1] < stop:
                _put_counter(db, stop)
                self._next_ledger_id = self._ledger_ids_stop = 0

        self._submit(store, lambda _: None, done)

    def put_tenant(self, name: str, policies: Policies, done: Done) -> None:
        self._put("tenants", self._tenants, name, policies, done)

    def put_namespace(self, name: str, policies: Policies, done: Done) -> None:
        """Create a namespace (`tenant/namespace`), or replace its policies."""
        self._put("namespaces", self._namespaces, name, policies, done)

    def create_topic(self, name: str, *, properties: Properties, created_wall_ms: int, done: Done) -> None:
        """Create a topic with a ledger of its own. The caller makes sure that its namespace exists.

        If the topic exists already, it stays as it is. Either way, `topic(name)` returns it when `done` is called
        without an error.
        """

        def store(db: apsw.Connection) -> TopicRecord:
            existing = _find_topic(db, name)
            if existing:
                return existing
            record = TopicRecord(name, self._take_ledger_id(db), self._broker, created_wall_ms, properties, NOTHING, 0)
            db.execute(_PUT_TOPIC, topic_row(record))
            return record

        self._submit(store, self._show_topic, done)

    def set_topic_policies(self, name: str, policies: Policies, done: Done) -> None:
        """Replace the policies of this topic. `TopicNotFound` if it does not exist."""
        self._update_topic(name, {"policies": policies}, done)

    def set_first_retained_entry(self, name: str, entry_id: int, done: Done) -> None:
        """Record that entries before `entry_id` are deleted. `TopicNotFound` if the topic does not exist."""
        self._update_topic(name, {"first_retained_entry": entry_id}, done)

    def delete_topic(self, name: str, done: Done, *, documents: Sequence[str] = ()) -> None:
        """Delete a topic and its subscriptions; its ledger id is not reused. `TopicNotFound` if it does not exist.

        `documents`: kinds whose document of this name is deleted with it.
        """

        def store(db: apsw.Connection) -> None:
            ledger_id = _ledger_id(db, name)
            for kind in documents:
                _put_document(db, kind, name, None)
            delete_parts(db, ledger_id)
            db.execute("delete from subscriptions where ledger_id = ?", (ledger_id,))
            db.execute("delete from topics where ledger_id = ?", (ledger_id,))

        def show(_: None) -> None:
            del self._topics[name]
            for kind in documents:
                self._show_document(kind, name, None, 0)
            for subscription in list(self._subscriptions.get(name, ())):
                self._hide_subscription(name, subscription)
            self._subscriptions.pop(name, None)

        self._submit(store, show, done)

    def create_subscription(self, record: SubscriptionRecord, cursor: StoredCursor, done: Done) -> None:
        """Create a durable subscription. `TopicNotFound` if its topic does not exist.

        If the subscription exists already, it and its cursor stay as they are.
        """

        def store(db: apsw.Connection) -> tuple[SubscriptionRecord, StoredCursor]:
            ledger_id = _ledger_id(db, record.topic)
            key = (ledger_id, record.name)
            for row in db.execute("select * from subscriptions where ledger_id = ? and name = ?", key):
                return subscription_record(record.topic, row)
            db.execute(
                "insert into subscriptions values (?, ?, ?, ?, ?, ?, ?)", subscription_row(ledger_id, record, cursor)
            )
            return record, cursor

        self._submit(store, self._show_subscription, done)

    def delete_subscription(self, topic: str, name: str, done: Done) -> None:
        """Delete a durable subscription. `TopicNotFound` or `SubscriptionNotFound` if it does not exist."""

        def store(db: apsw.Connection) -> None:
            key = (_ledger_id(db, topic), name)
            db.execute("delete from subscriptions where ledger_id = ? and name = ?", key)
            if not db.changes():
                raise SubscriptionNotFound(topic, name)
            delete_parts(db, *key)

        def show(_: None) -> None:
            self._hide_subscription(topic, name)

        self._submit(store, show, done)

    def save_cursors(self, saves: Sequence[CursorSave], done: Done) -> None:
        """Save the progress of many subscriptions, all or none. Deleted subscriptions are left out.

        Costs the loop about 1 µs per cursor: pass some thousands at a time.
        """

        def store(db: apsw.Connection) -> None:
            save_cursors(db, saves)

        def show(_: None) -> None:
            for topic, subscription, cursor, _parts in saves:
                if (topic, subscription) in self._cursors:
                    self._cursors[topic, subscription] = cursor

        self._submit(store, show, done)

    def set_configuration(self, key: str, value: str | None, done: Done) -> None:
        """Set a dynamic configuration value; None deletes it."""

        def store(db: apsw.Connection) -> None:
            if value is None:
                db.execute("delete from configuration where name = ?", (key,))
            else:
                db.execute("insert or replace into configuration values (?, ?, ?)", sealed(key, value))

        def show(_: None) -> None:
            if value is None:
                self._configuration.pop(key, None)
            else:
                self._configuration[key] = value

        self._submit(store, show, done)

    # -- inside

    def _load(self, db: apsw.Connection) -> None:
        """Read everything into the view."""
        _, self.ledger_ids_stop = opened(_counter(db))  # ids that were given out before are below
        self._tenants: dict[str, Policies] = {name: from_json(text) for name, text in _rows(db, "tenants")}
        self._namespaces: dict[str, Policies] = {name: from_json(text) for name, text in _rows(db, "namespaces")}
        self._configuration: dict[str, str] = dict(_rows(db, "configuration"))
        self._topics = {record.name: record for record in map(topic_record, db.execute("select * from topics"))}
        self._subscriptions: dict[str, dict[str, SubscriptionRecord]] = {}
        self._cursors: dict[tuple[str, str], StoredCursor] = {}
        # The memory of names and properties of all subscriptions; see `catalog_rows.bulk_bytes`.
        self.bulk_bytes = 0
        names = {record.ledger_id: record.name for record in self._topics.values()}
        self._documents: dict[str, dict[str, Document]] = {}
        self._document_bytes: dict[str, int] = {}
        self._sizes: dict[tuple[str, str], int] = {}  # of each document, by kind and name
        for kind, name, text in _rows(db, "documents"):
            self._show_document(kind, name, json.loads(text), len(text))
        for row in db.execute("select * from subscriptions"):
            self._show_subscription(subscription_record(names[row[0]], row))

    def _show_topic(self, record: TopicRecord) -> None:
        self._topics[record.name] = record

    def _show_subscription(self, stored: tuple[SubscriptionRecord, StoredCursor]) -> None:
        record, cursor = stored
        self._show_record(record)
        self._cursors[record.topic, record.name] = cursor

    def _show_record(self, record: SubscriptionRecord) -> None:
        records = self._subscriptions.setdefault(record.topic, {})
        before = records.get(record.name)
        if before is not None:
            self.bulk_bytes -= bulk_bytes(before.name, before.properties)
        records[record.name] = record
        self.bulk_bytes += bulk_bytes(record.name, record.properties)

    def _hide_subscription(self, topic: str, name: str) -> None:
        record = self._subscriptions[topic].pop(name)
        del self._cursors[topic, name]
        self.bulk_bytes -= bulk_bytes(record.name, record.properties)

    def _show_document(self, kind: str, name: str, value: Document | None, nbytes: int) -> None:
        before_bytes = self._sizes.pop((kind, name), 0)
        self._document_bytes[kind] = self._document_bytes.get(kind, 0) + nbytes - before_bytes
        if value is None:
            self._documents.get(kind, {}).pop(name, None)
        else:
            self._documents.setdefault(kind, {})[name] = value
            self._sizes[kind, name] = nbytes

    def _submit(self, store: Callable[[apsw.Connection], Any], show: Callable[[Any], None], done: Done) -> None:
        self._file.submit(Change(store, show, done))

    def _put(self, table: str, view: dict[str, Policies], name: str, policies: Policies, done: Done) -> None:
        def store(db: apsw.Connection) -> None:
            _put_policies(db, table, name, policies)

        def show(_: None) -> None:
            view[name] = policies

        self._submit(store, show, done)

    def _delete(self, table: str, view: dict[str, Policies], name: str, done: Done) -> None:
        def store(db: apsw.Connection) -> None:
            db.execute(f"delete from {table} where name = ?", (name,))  # noqa: S608 - our names

        def show(_: None) -> None:
            view.pop(name, None)

        self._submit(store, show, done)

    def _update_topic(self, name: str, fields: dict[str, Any], done: Done) -> None:
        def store(db: apsw.Connection) -> TopicRecord:
            record = _find_topic(db, name)
            if record is None:
                raise TopicNotFound(name)
            record = record._replace(**fields)
            db.execute(_PUT_TOPIC, topic_row(record))
            return record

        self._submit(store, self._show_topic, done)

    def _take_ledger_id(self, db: apsw.Connection) -> int:
        """Return the next id of the current block, or of a new block. Metadata thread, inside a transaction."""
        if self._next_ledger_id == self._ledger_ids_stop:
            _, self._next_ledger_id = opened(_counter(db))
            self._ledger_ids_stop = self._next_ledger_id + LEDGER_IDS_PER_BLOCK
            _put_counter(db, self._ledger_ids_stop)
        self._next_ledger_id += 1
        return self._next_ledger_id - 1


def _rows(db: apsw.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    return map(opened, db.execute(f"select * from {table}"))  # noqa: S608 - our names


def _counter(db: apsw.Connection) -> tuple[Any, ...]:
    row: tuple[Any, ...]
    (row,) = db.execute("select * from counters where name = 'next_ledger_id'")
    return row


def _put_counter(db: apsw.Connection, next_ledger_id: int) -> None:
    db.execute("insert or replace into counters values (?, ?, ?)", sealed("next_ledger_id", next_ledger_id))


def _put_policies(db: apsw.Connection, table: str, name: str, policies: Policies) -> None:
    row = sealed(name, to_json(policies))
    db.execute(f"insert or replace into {table} values (?, ?, ?)", row)  # noqa: S608 - our names


def _put_document(db: apsw.Connection, kind: str, name: str, value: Document | None) -> int:
    """Store or delete a document; returns how long its JSON is."""
    if value is None:
        db.execute("delete from documents where kind = ? and name = ?", (kind, name))
        return 0
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    db.execute("insert or replace into documents values (?, ?, ?, ?)", sealed(kind, name, text))
    return len(text)


def _find_topic(db: apsw.Connection, name: str) -> TopicRecord | None:
    for row in db.execute("select * from topics where name = ?", (name,)):
        return topic_record(row)
    return None


def _ledger_id(db: apsw.Connection, topic: str) -> int:
    for (ledger_id,) in db.execute("select ledger_id from topics where name = ?", (topic,)):
        return int(ledger_id)
    raise TopicNotFound(topic)
