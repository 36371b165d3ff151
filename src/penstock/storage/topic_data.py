# SPDX-License-Identifier: Apache-2.0
"""Rows of a broker about its own topics: subscriptions with their cursors, states, and which entries are deleted.

Why apart from the shared part: acknowledgements are saved every second, and only the broker that serves a topic needs
them. So each broker has a file of its own, written by a thread of its own.

Rows belong to a ledger id, which is never reused. A deleted topic is first removed from the shared part; its rows here
are deleted after that, or at the next start if a crash comes between. Rows of ledgers that the shared part never gave
out are kept: it is an older copy, and the right one may still come back.

Where: `Catalog` passes on to this what concerns one topic. All methods but `open`, `load` and `close`, which block, are
called on the loop and return at once. Invariants as in `catalog`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import (
    MetadataFailed,
    PenstockError,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.storage.catalog_cursors import delete_parts, load_cursors, save_cursors, take_apart
from penstock.storage.catalog_rows import (
    NOTHING,
    bulk_bytes,
    opened,
    sealed,
    subscription_record,
    subscription_row,
    to_json,
)
from penstock.storage.metadata import Change, MetadataFile, damage_named, open_database
from penstock.storage.schema import KEPT_LEDGERS, TOPIC_DATA_MIGRATIONS, WHOLE_LOG
from penstock.storage.transaction_rows import (
    TABLES_OF_TOPICS,
    TransactionData,
    delete_of_subscription,
    stored_transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    import apsw

    from penstock.storage.catalog_rows import (
        CursorSave,
        Document,
        Properties,
        StoredCursor,
        SubscriptionRecord,
        TopicRecord,
    )
    from penstock.storage.cursor import Cursor
    from penstock.storage.files import Files
    from penstock.storage.metadata import Done, Post
    from penstock.storage.shared_view import SharedView

_PUT_SUBSCRIPTION: Final = "insert or replace into subscriptions values (?, ?, ?, ?, ?, ?, ?)"
_ONE_SUBSCRIPTION: Final = "select * from subscriptions where ledger_id = ? and name = ?"


class TopicData:
    """The records of one broker's topics, in memory and on disk."""

    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        files: Files,
        post: Post,
        shared: SharedView,
        *,
        broker: int,
    ) -> None:
        self._broker = broker
        self._topics = shared.topics
        self._subscriptions: dict[str, dict[str, SubscriptionRecord]] = {}
        self._cursors: dict[tuple[str, str], StoredCursor] = {}
        self._documents: dict[str, dict[str, Document]] = {}
        self._first_retained: dict[str, int] = {}
        # The memory of names and properties of all subscriptions; see `catalog_rows.bulk_bytes`.
        self.bulk_bytes = 0
        unknown = self._load(db)
        transactions = stored_transactions(db)
        self._file = MetadataFile(db, path, files, post, thread_name="penstock-topic-data")
        self.transactions = TransactionData(self._file, transactions, self._show_cursors)
        # Of topics that were deleted right before the last stop.
        gone = [ledger_id for ledger_id in unknown - self.kept_ledgers() if shared.was_given_out(ledger_id)]
        if gone:
            self._delete_rows(*gone)

    @classmethod
    def open(
        cls,
        path: Path,
        post: Post,
        files: Files,
        shared: SharedView,
        *,
        broker: int,
        exclusive: bool,
        vfs: str | None,
    ) -> TopicData:
        """Open or create the file at `path`, and load it; blocks.

        Args:
            path: the file; its directory exists.
            post: passes a callable to the loop's thread.
            files: the disk that `path` is on.
            shared: the shared part; its topics say which of the rows are in use.
            broker: the broker whose topics these are.
            exclusive: no other process may open the file until this one closes it.
            vfs: the SQLite VFS to reach that disk through; None for the operating system's.

        Raises:
            MetadataFailed: the file cannot be opened, read or written, or was written by a newer penstock.
        """
        if not files.exists(path):
            check_new(path, files, sum(record.broker == broker for record in shared.topics.values()))
        db = open_database(path, TOPIC_DATA_MIGRATIONS, files, exclusive=exclusive, vfs=vfs)
        take_apart(db, path)
        with damage_named(db, path):
            return cls(db, path, files, post, shared, broker=broker)

    @property
    def failed(self) -> str | None:
        """Why changes are refused until a restart; None if they are not."""
        return self._file.failed

    def close(self) -> None:
        """Commit and answer submitted changes, then close the file. Blocks."""
        self._file.close()

    # -- reading: as `Catalog`

    def subscriptions(self, topic: str) -> Collection[SubscriptionRecord]:
        return self._subscriptions.get(topic, NOTHING).values()

    def subscription(self, topic: str, name: str) -> SubscriptionRecord | None:
        return self._subscriptions.get(topic, NOTHING).get(name)

    def cursor(self, topic: str, subscription: str) -> StoredCursor | None:
        return self._cursors.get((topic, subscription))

    def first_retained_entry(self, topic: str) -> int:
        return self._first_retained.get(topic, 0)

    def documents(self, kind: str) -> Mapping[str, Document]:
        """Return the documents of one of `TOPIC_KINDS`, by topic."""
        return self._documents.get(kind, NOTHING)

    def kept_ledgers(self) -> set[int]:
        """Ledgers of the log that are kept, though the shared part does not know them."""
        return set(self.documents(KEPT_LEDGERS).get("", {}).get("ledgers", ()))

    def load_cursors(self, topic: str, take: Callable[[dict[str, Cursor]], None], done: Done) -> None:
        """As `Catalog.load_cursors`."""
        ledger_id = self._ledger_id(topic)
        self._submit(lambda db: load_cursors(db, _found(ledger_id)), take, done)

    # -- changing: as `Catalog`

    def create_subscription(self, record: SubscriptionRecord, cursor: StoredCursor, done: Done) -> None:
        ledger_id = self._ledger_id(record.topic)

        def store(db: apsw.Connection) -> tuple[SubscriptionRecord, StoredCursor]:
            key = (_found(ledger_id), record.name)
            for row in db.execute(_ONE_SUBSCRIPTION, key):
                return subscription_record(record.topic, row)
            db.execute(_PUT_SUBSCRIPTION, subscription_row(key[0], record, cursor))
            return record, cursor

        def show(stored: tuple[SubscriptionRecord, StoredCursor]) -> None:
            self._check_there(record.topic, ledger_id)
            self._show_subscription(*stored)

        self._submit(store, show, done)

    def set_subscription_properties(self, topic: str, name: str, properties: Properties, done: Done) -> None:
        ledger_id = self._ledger_id(topic)

        def store(db: apsw.Connection) -> SubscriptionRecord:
            key = (_found(ledger_id), name)
            for row in db.execute(_ONE_SUBSCRIPTION, key):
                record, cursor = subscription_record(topic, row)
                record = record._replace(properties=properties)
                db.execute(_PUT_SUBSCRIPTION, subscription_row(key[0], record, cursor))
                return record
            raise SubscriptionNotFound(topic, name)

        def show(record: SubscriptionRecord) -> None:
            self._check_there(topic, ledger_id)
            self._show_record(record)

        self._submit(store, show, done)

    def delete_subscription(self, topic: str, name: str, done: Done) -> None:
        ledger_id = self._ledger_id(topic)

        def store(db: apsw.Connection) -> None:
            key = (_found(ledger_id), name)
            db.execute("delete from subscriptions where ledger_id = ? and name = ?", key)
            if not db.changes():
                raise SubscriptionNotFound(topic, name)
            delete_parts(db, *key)
            delete_of_subscription(db, *key)

        def show(_: None) -> None:
            self._check_there(topic, ledger_id)
            self._hide_subscription(topic, name)

        self._submit(store, show, done)

    def save_cursors(self, saves: Sequence[CursorSave], done: Done) -> None:
        topics = self._topics
        owned = [(topics[save.topic].ledger_id, save) for save in saves if save.topic in topics]

        self._submit(lambda db: save_cursors(db, owned), lambda _: self._show_cursors(saves), done)

    def set_first_retained_entry(self, topic: str, entry_id: int, done: Done) -> None:
        ledger_id = self._ledger_id(topic)

        def store(db: apsw.Connection) -> None:
            db.execute("insert or replace into retained values (?, ?, ?)", sealed(_found(ledger_id), entry_id))

        def show(_: None) -> None:
            self._check_there(topic, ledger_id)
            self._first_retained[topic] = entry_id

        self._submit(store, show, done)

    def put_document(self, kind: str, topic: str, value: Document | None, done: Done, *, ledger_id: int | None) -> None:
        """Store a document about a topic, or about the whole log if `topic` is empty; None deletes it.

        `TopicNotFound` if the topic does not exist, or is not the one with this ledger id, except for a deletion.
        """
        found = self._ledger_id(topic) if topic else WHOLE_LOG
        if ledger_id is not None and found != ledger_id:
            found = TopicNotFound(topic)

        def store(db: apsw.Connection) -> None:
            if value is None:
                db.execute("delete from documents where kind = ? and ledger_id = ?", (kind, _found(found)))
            else:
                row = sealed(kind, _found(found), to_json(value))
                db.execute("insert or replace into documents values (?, ?, ?, ?)", row)

        def show(_: None) -> None:
            if topic:
                self._check_there(topic, found)
            self._show_document(kind, topic, value)

        if value is None and ledger_id is None and isinstance(found, TopicNotFound):
            self._submit(lambda _db: None, lambda _: None, done)  # It went with its topic.
        else:
            self._submit(store, show, done)

    def topic_deleted(self, record: TopicRecord) -> None:
        """Delete the rows of a topic that was deleted; nobody waits for that."""
        if record.broker != self._broker:
            return
        for subscription in list(self._subscriptions.get(record.name, ())):
            self._hide_subscription(record.name, subscription)
        self._subscriptions.pop(record.name, None)
        self._first_retained.pop(record.name, None)
        for documents in self._documents.values():
            documents.pop(record.name, None)
        self._delete_rows(record.ledger_id)

    # -- inside

    def _load(self, db: apsw.Connection) -> set[int]:
        """Read everything into the view; returns the ledgers with rows that belong to no topic of this broker."""
        names = {record.ledger_id: record.name for record in self._topics.values() if record.broker == self._broker}
        names[WHOLE_LOG] = ""
        unknown: set[int] = set()
        for row in db.execute("select * from subscriptions"):
            if row[0] in names:
                self._show_subscription(*subscription_record(names[row[0]], row))
            else:
                unknown.add(row[0])
        for ledger_id, first_entry in map(opened, db.execute("select * from retained")):
            if ledger_id in names:
                self._first_retained[names[ledger_id]] = first_entry
            else:
                unknown.add(ledger_id)
        for kind, ledger_id, text in map(opened, db.execute("select * from documents")):
            if ledger_id in names:
                self._show_document(kind, names[ledger_id], json.loads(text))
            else:
                unknown.add(ledger_id)
        return unknown

    def _ledger_id(self, topic: str) -> int | PenstockError:
        """The ledger of a topic of this broker, or the error for whoever needs it."""
        record = self._topics.get(topic)
        if record is None:
            return TopicNotFound(topic)
        if record.broker != self._broker:
            return ServiceNotReady(f"{topic} is served by broker {record.broker}, not by {self._broker}; look it up")
        return record.ledger_id

    def _check_there(self, topic: str, ledger_id: int | PenstockError) -> None:
        """Raises TopicNotFound if the topic was deleted while its change was stored; its rows are deleted next."""
        if self._ledger_id(topic) != ledger_id:
            raise TopicNotFound(topic)

    def _delete_rows(self, *ledger_ids: int) -> None:
        keys = [(ledger_id,) for ledger_id in ledger_ids]

        def store(db: apsw.Connection) -> None:
            for table in ("cursor_parts", "subscriptions", "retained", "documents", *TABLES_OF_TOPICS):
                db.executemany(f"delete from {table} where ledger_id = ?", keys)  # noqa: S608 - our names

        self._submit(store, lambda _: None, lambda _: None)

    def _show_subscription(self, record: SubscriptionRecord, cursor: StoredCursor) -> None:
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

    def _show_cursors(self, saves: Iterable[CursorSave]) -> None:
        for topic, subscription, cursor, _parts in saves:
            if (topic, subscription) in self._cursors:
                self._cursors[topic, subscription] = cursor

    def _show_document(self, kind: str, topic: str, value: Document | None) -> None:
        if value is None:
            self._documents.get(kind, {}).pop(topic, None)
        else:
            self._documents.setdefault(kind, {})[topic] = value

    def _submit(self, store: Callable[[apsw.Connection], Any], show: Callable[[Any], None], done: Done) -> None:
        self._file.submit(Change(store, show, done))


def _found(ledger_id: int | PenstockError) -> int:
    if isinstance(ledger_id, PenstockError):
        raise ledger_id
    return ledger_id


def create_for_new_broker(path: Path, files: Files) -> None:
    """Create the file, empty, for a broker that has never run. Called before its log is created.

    Other brokers may have placed topics on it already. Without the file but with a log, it would seem to be lost.

    Raises:
        MetadataFailed: it cannot be created.
    """
    try:
        if not files.exists(path) and not files.names(path.parent / "log"):
            files.open(path, create=True).close()
            files.sync_directory(path.parent)
    except OSError as error:
        raise MetadataFailed(f"cannot create {path}: {error.strerror or error}") from error


def check_new(path: Path, files: Files, topics: int) -> None:
    """Raises MetadataFailed if a broker that has run before lacks this file."""
    log = path.parent / "log"
    if topics and files.exists(log) and files.names(log):
        raise MetadataFailed(
            f"{path} is missing, and {topics} topics have their subscriptions in it: put a copy of it in its place; "
            f"to go on without these subscriptions, create it as an empty file"
        )
