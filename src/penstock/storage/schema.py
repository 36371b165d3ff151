# SPDX-License-Identifier: Apache-2.0
"""The tables of the metadata files, and how files of earlier versions become files of this one.

    meta.sqlite              the shared part: tenants, namespaces, topics, configuration, documents
    broker-N/topics.sqlite   what broker N stores about its topics: subscriptions, cursors, states, deleted entries

In format 1 of the data directory all of that was in `meta.sqlite`, for one broker. `Split` writes the second file under
another name, whole and durable, and renames it; then a transaction of `meta.sqlite` drops what was moved. So a crash at
any moment leaves either a complete `meta.sqlite`, and the next start begins again, or both files. Where:
`SharedStore.open` and `TopicData.open` pass these to `open_database`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.storage.catalog_rows import opened, seal_of, sealed
from penstock.storage.metadata import close_untouched, damage_named, fold, open_database

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import apsw

    from penstock.storage.catalog_rows import Value
    from penstock.storage.files import Files
    from penstock.storage.metadata import Migration

# Kinds of documents about a broker's topics, and one about its log.
KEPT_LEDGERS: Final = "kept-ledgers"
# Counters of a topic for usage records, and what is kept about counting as a whole.
USAGE_COUNTS: Final = "usage-counts"
USAGE_STATE: Final = "usage-state"
TOPIC_KINDS: Final = ("topic-state", "dedup", KEPT_LEDGERS, USAGE_COUNTS, USAGE_STATE)
# The ledger id that documents about the whole log are stored under; topics have ids from 1.
WHOLE_LOG: Final = 0


def _insert(table: str, *values: Value) -> str:
    return f"insert into {table} values {sealed(*values)!r}"  # noqa: S608 - our names


_SUBSCRIPTIONS: Final = """
    create table subscriptions (
        ledger_id integer not null,
        name text not null,
        initial_position text not null,
        properties text not null,
        seal integer not null,
        mark_delete integer not null,
        cursor blob not null,
        unique (ledger_id, name));
"""
# Acknowledged entries above the mark-delete position, and partly acknowledged batches. `TopicData` converts cursors
# that still have them in `subscriptions.cursor`.
_CURSOR_PARTS: Final = """
    create table cursor_parts (
        ledger_id integer not null,
        name text not null,
        kind integer not null,
        number integer not null,
        value blob not null,
        seal integer not null,
        unique (ledger_id, name, kind, number));
"""

# Open transactions and the last that have ended, what belongs to them, and the entries of those that were aborted.
_TRANSACTIONS: Final = """
    create table transactions (
        coordinator integer not null,
        number integer not null,
        status integer not null,
        started_ms integer not null,
        timeout_ms integer not null,
        owner text not null,
        seal integer not null,
        primary key (coordinator, number)) without rowid;
    create table transaction_parts (
        ledger_id integer not null,
        subscription text not null,
        coordinator integer not null,
        number integer not null,
        first_entry integer not null,
        seal integer not null,
        primary key (ledger_id, subscription, coordinator, number)) without rowid;
    create table pending_acks (
        ledger_id integer not null,
        subscription text not null,
        coordinator integer not null,
        number integer not null,
        row integer not null,
        value text not null,
        seal integer not null,
        primary key (ledger_id, subscription, coordinator, number, row)) without rowid;
    create table aborted_entries (
        ledger_id integer not null,
        first_entry integer not null,
        last_entry integer not null,
        seal integer not null,
        primary key (ledger_id, first_entry)) without rowid;
"""

# Script i migrates schema version i to i + 1; a released one is never edited.
SHARED_MIGRATIONS: Final = (
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
    {_SUBSCRIPTIONS}
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
    _CURSOR_PARTS,
)
_SHARED_ONLY: Final = f"""
    drop table subscriptions;
    drop table cursor_parts;
    delete from documents where kind in {TOPIC_KINDS!r};
    alter table topics rename to topics_before;
    create table topics (
        ledger_id integer primary key,
        name text not null unique,
        broker integer not null,
        created_wall_ms integer not null,
        properties text not null,
        policies text not null,
        seal integer not null);
    insert into topics select ledger_id, name, broker, created_wall_ms, properties, policies,
        seal_of(ledger_id, name, broker, created_wall_ms, properties, policies) from topics_before;
    drop table topics_before;
"""  # noqa: S608 - our names

TOPIC_DATA_MIGRATIONS: Final = (
    f"""
    {_SUBSCRIPTIONS}
    {_CURSOR_PARTS}
    create table retained (
        ledger_id integer primary key,
        first_entry integer not null,
        seal integer not null);
    create table documents (
        kind text not null,
        ledger_id integer not null,
        value text not null,
        seal integer not null,
        primary key (kind, ledger_id)) without rowid;
    """,
    _TRANSACTIONS,
    # The end of a transaction finds its own rows, however many others are open.
    """
    create index transaction_parts_of on transaction_parts (coordinator, number);
    create index pending_acks_of on pending_acks (coordinator, number);
    """,
)


def shared_migrations(split: Split) -> Sequence[Migration]:
    """Return the migrations of `meta.sqlite`."""
    return (*SHARED_MIGRATIONS, split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The last migration of `meta.sqlite`: moves what concerns one topic to the file of broker 0.

    Attributes:
        path: the file of broker 0.
        files, vfs, exclusive: as of `open_database`.
    """

    path: Path
    files: Files
    vfs: str | None
    exclusive: bool

    def __call__(self, shared: apsw.Connection, started_at: int) -> None:
        """Raises apsw.Error, OSError, MetadataFailed."""
        if started_at > 0:  # A new file has nothing to move.
            self._write_topic_data(shared)
        shared.create_scalar_function("seal_of", lambda *values: seal_of(values))
        shared.execute(_SHARED_ONLY)

    def _write_topic_data(self, shared: apsw.Connection) -> None:
        draft = self.path.with_name(f"{self.path.name}.draft")
        for name in (draft.name, f"{draft.name}-wal", f"{self.path.name}-wal"):
            with suppress(FileNotFoundError):
                self.files.delete(self.path.with_name(name))
        db = open_database(draft, TOPIC_DATA_MIGRATIONS, self.files, exclusive=self.exclusive, vfs=self.vfs)
        try:
            with damage_named(db, Path(shared.filename)), db:
                _copy(shared, db)
            fold(db, draft, self.files)
            db.close()
        except BaseException:
            close_untouched(db)
            raise
        self.files.rename(draft, self.path)
        self.files.sync_directory(self.path.parent)


def _copy(shared: apsw.Connection, db: apsw.Connection) -> None:
    for table, columns in (("subscriptions", 7), ("cursor_parts", 6)):
        rows = shared.execute(f"select * from {table}")  # noqa: S608 - our names
        marks = ", ".join("?" * columns)
        db.executemany(f"insert into {table} values ({marks})", rows)  # noqa: S608 - our names
    db.executemany("insert into retained values (?, ?, ?)", _retained(shared))
    db.executemany("insert into documents values (?, ?, ?, ?)", _documents(shared))


def _retained(shared: apsw.Connection) -> Iterator[tuple[Value, ...]]:
    for row in shared.execute("select * from topics"):
        ledger_id, *_, first_retained_entry = opened(row)
        if first_retained_entry:
            yield sealed(ledger_id, first_retained_entry)


def _documents(shared: apsw.Connection) -> Iterator[tuple[Value, ...]]:
    ledger_ids = dict(shared.execute("select name, ledger_id from topics"))
    for row in shared.execute(f"select * from documents where kind in {TOPIC_KINDS!r}"):  # noqa: S608 - our names
        kind, name, text = opened(row)
        ledger_id = ledger_ids.get(name, WHOLE_LOG if kind == KEPT_LEDGERS else None)
        if ledger_id is not None:
            yield sealed(kind, ledger_id, text)
