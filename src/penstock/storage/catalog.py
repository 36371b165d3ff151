# SPDX-License-Identifier: Apache-2.0
"""The catalog: tenants, namespaces, topics, subscriptions with their cursors, policies and dynamic configuration.

Why: the broker needs these at every connect, so it reads them from memory. Whatever it has answered to a client must
survive a crash, so changes go to the disk first.

It has two parts. The shared part is what all brokers know (`shared_view`): one process writes it, and each change is a
value (`shared_changes`). The other part is what a broker stores about its own topics (`topic_data`). Where: the broker
reads records here and submits changes; the metadata threads commit them (see `metadata`).

Invariants:

- The view shows only durable state. A change appears in it on the loop, right before its `done` is called, so no client
  is told anything that a crash may undo.
- Changes of one part happen in the order of submission, and each sees all earlier ones: whether something exists is
  decided on the tables, inside the transaction. Creating something that exists succeeds and changes nothing. A change
  about a topic is about the topic that the view shows when it is submitted.
- A change whose success was answered survives. One that was not answered yet, or was answered with an error of the
  disk, may survive or not. After such an error every change of that part is refused until a restart.
- Ledger ids are reserved in blocks and never reused, not even after a crash: a block is used only in or after the
  transaction that reserved it.

All methods but `Catalog.open` and `close`, which block, are called on the loop and return at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.storage.catalog_rows import CursorSave, StoredCursor, SubscriptionRecord, TopicRecord
from penstock.storage.files import OsFiles
from penstock.storage.schema import KEPT_LEDGERS, TOPIC_KINDS
from penstock.storage.shared_changes import (
    CatchUp,
    ChangeTopic,
    CreateTopic,
    DeleteTopic,
    DeleteUnused,
    Put,
    SkipLedgerIds,
    TakeLedgerId,
)
from penstock.storage.shared_store import LocalPart
from penstock.storage.shared_tables import LEDGER_IDS_PER_BLOCK
from penstock.storage.shared_view import CONFIGURATION, KINDS, NAMESPACES, TENANTS
from penstock.storage.topic_data import TopicData

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from penstock.storage.catalog_rows import Document, Policies, Properties
    from penstock.storage.cursor import Cursor
    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import Files
    from penstock.storage.metadata import Done, Post
    from penstock.storage.shared_store import SharedPart
    from penstock.storage.shared_view import Row, Value
    from penstock.storage.transaction_rows import TransactionData

__all__ = ["LEDGER_IDS_PER_BLOCK", "Catalog", "CursorSave", "StoredCursor", "SubscriptionRecord", "TopicRecord"]


class Unconditional:
    """The type of `ALWAYS`."""


# Passed as `expected`: store the change whatever the record is now.
ALWAYS: Final = Unconditional()


class Catalog:
    """The catalog, in memory and on disk.

    Every change takes `done`. It is called on the loop with None once the change is durable and in the view, or with an
    error: `MetadataFailed` when the disk failed, or the error named at the method. Mappings that are passed in are
    kept: do not change them afterwards.

    Changes that replace a record take `expected`: the record as the caller has read it, or None if there was none. If
    it is another one by now, because another broker has changed it, the error is `ChangedMeanwhile`; the view then has
    the new record.
    """

    def __init__(self, shared: SharedPart, own: TopicData, *, broker: int) -> None:
        """Args: broker: the broker that this is the catalog of, and that serves the topics in `own`."""
        self._shared = shared
        self._view = shared.view
        self._own = own
        self._broker = broker
        shared.view.topic_deleted = own.topic_deleted

    @classmethod
    def open(
        cls,
        directory: DataDirectory,
        post: Post,
        files: Files | None = None,
        *,
        broker: int = 0,
        shared: SharedPart | None = None,
        exclusive: bool = False,
        vfs: str | None = None,
    ) -> Catalog:
        """Open or create the catalog in a data directory; blocks until it is recovered and loaded.

        Args:
            directory: the data directory; the broker's own directory exists.
            post: passes a callable to the loop's thread; all answers come through it.
            files: the disk that it is on; None for the operating system's.
            broker: the broker process that topics created here belong to.
            shared: the shared part, if another process writes it; None to write it here.
            exclusive: no other process may open the files until this one closes them.
            vfs: the SQLite VFS to reach that disk through; None for the operating system's.

        Raises:
            MetadataFailed: a file cannot be opened, read or written, or was written by a newer penstock.
            ConfigurationError: topics are placed on brokers that are not there.
        """
        files = files or OsFiles()
        shared = shared or LocalPart.open(directory, post, files, exclusive=exclusive, vfs=vfs)
        path = directory.topics(broker)
        try:
            own = TopicData.open(path, post, files, shared.view, broker=broker, exclusive=exclusive, vfs=vfs)
        except BaseException:
            shared.close()
            raise
        return cls(shared, own, broker=broker)

    @property
    def failed(self) -> str | None:
        """Why changes are refused until a restart; None if they are not."""
        return self._shared.failed or self._own.failed

    @property
    def failed_here(self) -> str | None:
        """As `failed`, of the files that this process writes: a new start of it reads them again."""
        return self._own.failed or (self._shared.failed if isinstance(self._shared, LocalPart) else None)

    def close(self) -> None:
        """Commit and answer submitted changes, then close the files. Blocks."""
        self._shared.close()
        self._own.close()

    def listen(self, changed: Callable[[Sequence[Row]], None]) -> None:
        """Call `changed` with the rows of each change that another broker has made, once they are in the view."""
        self._shared.listen(changed)

    # -- reading

    @property
    def bulk_bytes(self) -> int:
        """The memory of names and properties of all subscriptions; see `catalog_rows.bulk_bytes`."""
        return self._own.bulk_bytes

    def topic(self, name: str) -> TopicRecord | None:
        """Return the topic of this full name, or None."""
        return self._view.topics.get(name)

    def topics(self) -> Collection[TopicRecord]:
        """Return all topics of all brokers as a live view: do not keep it over a turn of the loop."""
        return self._view.topics.values()

    def is_own(self, record: TopicRecord) -> bool:
        """Whether this broker serves the topic."""
        return record.broker == self._broker

    def subscriptions(self, topic: str) -> Collection[SubscriptionRecord]:
        """Return the durable subscriptions of a topic of this broker as a live view."""
        return self._own.subscriptions(topic)

    def subscription(self, topic: str, name: str) -> SubscriptionRecord | None:
        """Return the durable subscription of this name, or None."""
        return self._own.subscription(topic, name)

    def cursor(self, topic: str, subscription: str) -> StoredCursor | None:
        """Return a subscription's last saved progress, without the parts of its cursor."""
        return self._own.cursor(topic, subscription)

    def first_retained_entry(self, topic: str) -> int:
        """Return the entry of a topic of this broker before which all are deleted."""
        return self._own.first_retained_entry(topic)

    def load_cursors(self, topic: str, take: Callable[[dict[str, Cursor]], None], done: Done) -> None:
        """Pass the cursors of a topic's subscriptions, by name, to `take` on the loop, right before `done`.

        They are loaded on the metadata thread, after all saves that were submitted. A subscription whose stored head is
        damaged is left out. `TopicNotFound` if the topic does not exist.
        """
        self._own.load_cursors(topic, take, done)

    def tenants(self) -> Mapping[str, Policies]:
        """Return the policies of every tenant, by name."""
        return self._view.tenants

    def namespaces(self) -> Mapping[str, Policies]:
        """Return the policies of every namespace, by `tenant/namespace`."""
        return self._view.namespaces

    def configuration(self) -> Mapping[str, str]:
        """Return the dynamic configuration: values set at run time, by key."""
        return self._view.configuration

    def documents(self, kind: str) -> Mapping[str, Document]:
        """Return all documents of a kind, by name, as a live view; of a kind about topics, those of this broker's."""
        return self._own.documents(kind) if kind in TOPIC_KINDS else self._view.documents(kind)

    def document_bytes(self, kind: str) -> int:
        """How many bytes all shared documents of a kind are as JSON: about what they take in memory."""
        return self._view.document_bytes(kind)

    def was_given_out(self, ledger_id: int) -> bool:
        """Whether this ledger id was ever given out."""
        return self._view.was_given_out(ledger_id)

    def kept_ledgers(self) -> set[int]:
        """Ledgers of this broker's log that are kept without a topic, because the catalog was older than the log."""
        return self._own.kept_ledgers()

    @property
    def transactions(self) -> TransactionData:
        """Stored rows about this broker's transactions, and about transactions in its topics."""
        return self._own.transactions

    # -- changing the shared part

    def put_document(
        self,
        kind: str,
        name: str,
        value: Document | None,
        done: Done,
        *,
        ledger_id: int | None = None,
        expected: Document | Unconditional | None = ALWAYS,
        topics_max: int = 0,
    ) -> None:
        """Store a document (JSON) under its kind and name; None deletes it.

        Documents are for small sets, or for what is looked up by one name: clusters, partitioned topics, schemas, topic
        states. A document is replaced as a whole.

        Documents of a kind in `TOPIC_KINDS` are named by topics of this broker, and deleted with them. `ledger_id` is
        that of the topic that such a document is about. If that topic is gone, another topic may have the name: then
        the error is `TopicNotFound` and nothing changes.

        `topics_max`: of a partitioned topic, see `create_topic`; for the partitions that it declares.
        """
        assert kind not in KINDS
        if kind in TOPIC_KINDS:
            self._own.put_document(kind, name, value, done, ledger_id=ledger_id)
        else:
            self._put(kind, name, value, done, expected, topics_max=topics_max)

    def delete_unused_document(self, kind: str, name: str, users: Sequence[tuple[str, str]], done: Done) -> None:
        """Delete a document that no record names: `ChangedMeanwhile` if one does.

        Args:
            kind: of the document.
            name: of the document.
            users: `TENANTS` or `NAMESPACES`, each with the key of their JSON that may name it.
            done: see above.
        """
        self._shared.submit(DeleteUnused(kind, name, users), done)

    def put_tenant(
        self,
        name: str,
        policies: Policies,
        done: Done,
        *,
        expected: Policies | Unconditional | None = ALWAYS,
        needed: tuple[str, str] | None = None,
    ) -> None:
        """Create a tenant, or replace its policies. `ChangedMeanwhile` without the document `needed`: kind, name."""
        self._put(TENANTS, name, policies, done, expected, needed)

    def delete_tenant(self, name: str, done: Done) -> None:
        """Delete a tenant. `ChangedMeanwhile` if it has namespaces."""
        self._put(TENANTS, name, None, done, ALWAYS)

    def put_namespace(
        self,
        name: str,
        policies: Policies,
        done: Done,
        *,
        expected: Policies | Unconditional | None = ALWAYS,
        needed: tuple[str, str] | None = None,
    ) -> None:
        """Create a namespace (`tenant/namespace`), or replace its policies.

        `ChangedMeanwhile` without its tenant, or without the document `needed`: kind, name.
        """
        self._put(NAMESPACES, name, policies, done, expected, needed)

    def delete_namespace(self, name: str, done: Done) -> None:
        """Delete a namespace. `ChangedMeanwhile` if it has topics or partitioned topics."""
        self._put(NAMESPACES, name, None, done, ALWAYS)

    def set_configuration(self, key: str, value: str | None, done: Done) -> None:
        """Set a dynamic configuration value; None deletes it."""
        self._put(CONFIGURATION, key, value, done, ALWAYS)

    def take_ledger_id(self, take: Callable[[int], None], done: Done) -> None:
        """Pass an unused ledger id to `take` on the loop, right before `done`. It is never given out again."""

        def took(rows: Sequence[Row]) -> None:
            ((_, _, stop, _),) = rows
            assert isinstance(stop, int)
            take(stop - 1)

        self._shared.submit(TakeLedgerId(), done, took)

    def skip_ledger_ids(self, stop: int, done: Done) -> None:
        """Never give out ledger ids below `stop`: ids that the log has and the shared part does not know."""
        self._shared.submit(SkipLedgerIds(stop), done)

    def create_topic(
        self,
        name: str,
        *,
        properties: Properties,
        created_wall_ms: int,
        done: Done,
        broker: int | None = None,
        topics_max: int = 0,
    ) -> None:
        """Create a topic with a ledger of its own.

        `NamespaceNotFound` without its namespace; `ChangedMeanwhile` if there is a partitioned topic of this name, or
        none of this partition.

        `broker`: number of the broker that serves it; None for this one. `topics_max`: `NotAllowed` if its namespace
        would have more topics than this; 0 for no maximum.

        If the topic exists already, it stays as it is. Either way, `topic(name)` returns it when `done` is called
        without an error.
        """
        place = self._broker if broker is None else broker
        self._shared.submit(CreateTopic(name, place, created_wall_ms, properties, topics_max), done)

    def set_topic_properties(
        self, name: str, properties: Properties, done: Done, *, expected: Properties | None = None
    ) -> None:
        """Replace a topic's properties. `TopicNotFound` if it does not exist. `expected`: None for any."""
        self._shared.submit(ChangeTopic(name, "properties", properties, expected), done)

    def set_topic_policies(
        self, name: str, policies: Policies, done: Done, *, expected: Policies | None = None
    ) -> None:
        """Replace the policies of this topic. `TopicNotFound` if it does not exist. `expected`: None for any."""
        self._shared.submit(ChangeTopic(name, "policies", policies, expected), done)

    def delete_topic(self, name: str, done: Done, ledger_id: int | None = None) -> None:
        """Delete a topic and its subscriptions; its ledger id is not reused.

        `TopicNotFound` if it does not exist, or has another ledger than `ledger_id`.

        Documents of `TOPIC_KINDS` are deleted with it.
        """
        self._shared.submit(DeleteTopic(name, ledger_id), done)

    def catch_up(self, done: Done) -> None:
        """Change nothing; when it is done, the shared part has all that any broker had stored before."""
        self._shared.submit(CatchUp(), done)

    # -- changing what belongs to this broker's topics: `ServiceNotReady` if another broker serves the topic

    def set_first_retained_entry(self, name: str, entry_id: int, done: Done) -> None:
        """Record that entries before `entry_id` are deleted. `TopicNotFound` if the topic does not exist."""
        self._own.set_first_retained_entry(name, entry_id, done)

    def keep_ledgers(self, ledgers: Collection[int], done: Done) -> None:
        """Replace `kept_ledgers`."""
        self._own.put_document(KEPT_LEDGERS, "", {"ledgers": sorted(ledgers)}, done, ledger_id=None)

    def create_subscription(self, record: SubscriptionRecord, cursor: StoredCursor, done: Done) -> None:
        """Create a durable subscription. `TopicNotFound` if its topic does not exist.

        If the subscription exists already, it and its cursor stay as they are.
        """
        self._own.create_subscription(record, cursor, done)

    def set_subscription_properties(self, topic: str, name: str, properties: Properties, done: Done) -> None:
        """Replace a subscription's properties. `TopicNotFound` or `SubscriptionNotFound` if it does not exist."""
        self._own.set_subscription_properties(topic, name, properties, done)

    def delete_subscription(self, topic: str, name: str, done: Done) -> None:
        """Delete a durable subscription. `TopicNotFound` or `SubscriptionNotFound` if it does not exist."""
        self._own.delete_subscription(topic, name, done)

    def save_cursors(self, saves: Sequence[CursorSave], done: Done) -> None:
        """Save the progress of many subscriptions, all or none. Deleted subscriptions are left out.

        Costs the loop about 1 µs per cursor: pass some thousands at a time.
        """
        self._own.save_cursors(saves, done)

    # -- inside

    def _put(
        self,
        kind: str,
        name: str,
        value: Value | None,
        done: Done,
        expected: Value | Unconditional | None,
        needed: tuple[str, str] | None = None,
        topics_max: int = 0,
    ) -> None:
        conditional = not isinstance(expected, Unconditional)
        before = expected if conditional else None
        self._shared.submit(Put(kind, name, value, before, conditional, needed, topics_max), done)
