# SPDX-License-Identifier: Apache-2.0
"""The catalog: what was answered is there, in the view and after a restart."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.errors import (
    ChangedMeanwhile,
    MetadataFailed,
    NamespaceNotFound,
    PenstockError,
    SubscriptionNotFound,
    TopicNotFound,
)
from penstock.storage.catalog import LEDGER_IDS_PER_BLOCK, Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.storage.cursor import Cursor
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from penstock.storage.shared_view import DELETIONS, PARTITIONED
from penstock.storage.topic_data import create_for_new_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.storage.metadata import Done

FLIGHTS = "persistent://public/default/flights"
WEATHER = "persistent://public/default/weather"
AUDIT = SubscriptionRecord(FLIGHTS, "audit", "earliest", {"team": "ops"})
FRESH = StoredCursor(-1, b"fresh")


class Bench:
    """A catalog in a directory of its own, and a loop that runs when the test says so."""

    def __init__(self, path: Path) -> None:
        self.directory = open_data_directory(path, OsFiles())
        self.path = self.directory.metadata
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.catalog = Catalog.open(self.directory, self.posted.put)

    def turn(self) -> None:
        """Run one posted call, waiting for it."""
        self.posted.get()()

    def outcome(self, submit: Callable[[Done], None]) -> PenstockError | None:
        """Submit one change and wait for its answer."""
        answers: list[PenstockError | None] = []
        submit(answers.append)
        while not answers:
            self.turn()
        return answers[0]

    def succeed(self, submit: Callable[[Done], None]) -> None:
        assert self.outcome(submit) is None

    def create(self, name: str) -> None:
        self.succeed(lambda done: self.catalog.create_topic(name, properties={}, created_wall_ms=1, done=done))

    def restart(self) -> None:
        self.catalog.close()
        self.catalog = Catalog.open(self.directory, self.posted.put)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.catalog.close()


def test_a_new_catalog_has_the_default_tenants_and_namespaces_and_no_topics(bench: Bench) -> None:
    assert set(bench.catalog.tenants()) == {"public", "pulsar"}
    assert set(bench.catalog.namespaces()) == {"public/default", "pulsar/system"}
    assert not bench.catalog.topics()
    assert bench.catalog.failed is None


def test_everything_answered_is_there_after_a_restart(bench: Bench) -> None:
    catalog = bench.catalog
    bench.succeed(lambda done: catalog.put_tenant("acme", {"adminRoles": ["ann"]}, done))
    bench.succeed(lambda done: catalog.put_namespace("acme/air", {"retention": {"minutes": 5}}, done))
    bench.succeed(
        lambda done: catalog.create_topic(
            FLIGHTS, properties={"owner": "ann"}, created_wall_ms=1_357_034_400_000, done=done
        )
    )
    bench.succeed(lambda done: catalog.set_topic_policies(FLIGHTS, {"maxProducers": 3}, done))
    bench.succeed(lambda done: catalog.set_first_retained_entry(FLIGHTS, 7, done))
    bench.succeed(lambda done: catalog.create_subscription(AUDIT, FRESH, done))
    moved = StoredCursor(41, bytes(range(256)))
    bench.succeed(lambda done: catalog.save_cursors([CursorSave(FLIGHTS, "audit", moved)], done))
    bench.succeed(lambda done: catalog.set_configuration("maxTopics", "5", done))
    before = view(catalog)

    bench.restart()

    assert view(bench.catalog) == before
    record = bench.catalog.topic(FLIGHTS)
    assert record is not None
    assert record == (FLIGHTS, 1, 0, 1_357_034_400_000, {"owner": "ann"}, {"maxProducers": 3})
    assert bench.catalog.first_retained_entry(FLIGHTS) == 7
    assert list(bench.catalog.subscriptions(FLIGHTS)) == [AUDIT]
    assert bench.catalog.cursor(FLIGHTS, "audit") == moved
    assert bench.catalog.tenants()["acme"] == {"adminRoles": ["ann"]}
    assert bench.catalog.namespaces()["acme/air"] == {"retention": {"minutes": 5}}
    assert bench.catalog.configuration() == {"maxTopics": "5"}


def test_nothing_is_created_in_a_namespace_that_is_being_deleted_until_it_is_created_again(bench: Bench) -> None:
    catalog, name = bench.catalog, "acme/air"
    put = partial(catalog.put_namespace, name, {})
    topic = partial(catalog.create_topic, "persistent://acme/air/t", properties={}, created_wall_ms=1)
    parts = partial(catalog.put_document, PARTITIONED, "persistent://acme/air/p", {"partitions": 2})
    bench.succeed(lambda done: catalog.put_tenant("acme", {}, done))
    bench.succeed(put)
    bench.succeed(partial(catalog.put_document, DELETIONS, name, {"broker": 0}))
    assert isinstance(bench.outcome(lambda done: topic(done=done)), NamespaceNotFound)
    assert isinstance(bench.outcome(parts), ChangedMeanwhile)
    bench.succeed(partial(catalog.delete_namespace, name))
    assert not catalog.documents(DELETIONS)
    bench.restart()
    assert not bench.catalog.documents(DELETIONS)
    catalog = bench.catalog
    bench.succeed(partial(catalog.put_namespace, name, {}))
    bench.create("persistent://acme/air/t")


def view(catalog: Catalog) -> object:
    """All of it, comparable."""
    return (
        {name: dict(policies) for name, policies in catalog.tenants().items()},
        {name: dict(policies) for name, policies in catalog.namespaces().items()},
        {record.name: (record, catalog.first_retained_entry(record.name)) for record in catalog.topics()},
        {
            (record.name, subscription.name): (subscription, catalog.cursor(record.name, subscription.name))
            for record in catalog.topics()
            for subscription in catalog.subscriptions(record.name)
        },
        dict(catalog.configuration()),
    )


def test_a_change_shows_in_the_view_only_when_it_is_answered(bench: Bench) -> None:
    seen_at_answer: list[bool] = []
    bench.catalog.create_topic(
        FLIGHTS,
        properties={},
        created_wall_ms=1,
        done=lambda _: seen_at_answer.append(bench.catalog.topic(FLIGHTS) is not None),
    )
    assert bench.catalog.topic(FLIGHTS) is None

    bench.turn()

    assert seen_at_answer == [True]


def test_ten_thousand_creations_at_once_are_answered_in_order_from_few_commits(bench: Bench) -> None:
    answered: list[int] = []
    for number in range(10_000):
        done = partial(_note, answered, number)
        bench.catalog.create_topic(f"{FLIGHTS}-{number}", properties={}, created_wall_ms=1, done=done)
    commits = 0
    while len(answered) < 10_000:
        bench.turn()
        commits += 1

    assert answered == list(range(10_000))
    assert commits < 100
    assert len(bench.catalog.topics()) == 10_000


def _note(answered: list[int], number: int, error: PenstockError | None) -> None:
    assert error is None
    answered.append(number)


def test_creating_what_exists_changes_nothing(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.create_subscription(AUDIT, FRESH, done))
    before = view(bench.catalog)

    bench.succeed(
        lambda done: bench.catalog.create_topic(FLIGHTS, properties={"new": "x"}, created_wall_ms=9, done=done)
    )
    again = AUDIT._replace(initial_position="latest")
    bench.succeed(lambda done: bench.catalog.create_subscription(again, StoredCursor(99, b"far"), done))

    assert view(bench.catalog) == before
    bench.restart()
    assert view(bench.catalog) == before


def test_two_who_create_the_same_topic_at_once_get_the_same_one(bench: Bench) -> None:
    answers: list[PenstockError | None] = []
    for created_wall_ms in (1, 2):
        bench.catalog.create_topic(FLIGHTS, properties={}, created_wall_ms=created_wall_ms, done=answers.append)
    while len(answers) < 2:
        bench.turn()

    record = bench.catalog.topic(FLIGHTS)
    assert answers == [None, None]
    assert record is not None
    assert record.created_wall_ms == 1


def test_ledger_ids_never_come_back(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done))
    bench.create(FLIGHTS)
    assert ledger_id(bench, FLIGHTS) == 2

    bench.restart()
    bench.create(WEATHER)

    assert ledger_id(bench, WEATHER) == 1 + LEDGER_IDS_PER_BLOCK


def ledger_id(bench: Bench, name: str) -> int:
    record = bench.catalog.topic(name)
    assert record is not None
    return record.ledger_id


def test_ledger_ids_go_on_through_many_blocks(bench: Bench) -> None:
    answers: list[PenstockError | None] = []
    for number in range(2 * LEDGER_IDS_PER_BLOCK + 1):
        bench.catalog.create_topic(f"{FLIGHTS}-{number}", properties={}, created_wall_ms=1, done=answers.append)
    while len(answers) <= 2 * LEDGER_IDS_PER_BLOCK:
        bench.turn()
    assert [record.ledger_id for record in bench.catalog.topics()] == list(range(1, 2 * LEDGER_IDS_PER_BLOCK + 2))


def test_a_deleted_topic_takes_its_subscriptions_along(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.create_subscription(AUDIT, FRESH, done))

    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done))
    bench.create(FLIGHTS)

    assert not bench.catalog.subscriptions(FLIGHTS)
    assert bench.catalog.cursor(FLIGHTS, "audit") is None
    bench.restart()
    assert not bench.catalog.subscriptions(FLIGHTS)


def test_a_deleted_subscription_is_gone_and_a_late_save_does_not_bring_it_back(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.create_subscription(AUDIT, FRESH, done))

    bench.succeed(lambda done: bench.catalog.delete_subscription(FLIGHTS, "audit", done))
    late = [CursorSave(FLIGHTS, "audit", StoredCursor(3, b"late")), CursorSave(WEATHER, "audit", StoredCursor(3, b""))]
    bench.succeed(lambda done: bench.catalog.save_cursors(late, done))

    assert bench.catalog.cursor(FLIGHTS, "audit") is None
    bench.restart()
    assert not bench.catalog.subscriptions(FLIGHTS)


def test_a_change_to_what_does_not_exist_fails_alone(bench: Bench) -> None:
    bench.create(FLIGHTS)
    shared: list[PenstockError | None] = []
    own: list[PenstockError | None] = []
    catalog = bench.catalog

    catalog.delete_topic(WEATHER, shared.append)
    catalog.set_topic_policies(WEATHER, {}, shared.append)
    catalog.create_subscription(SubscriptionRecord(WEATHER, "audit", "latest"), FRESH, own.append)
    catalog.delete_subscription(FLIGHTS, "audit", own.append)
    catalog.set_topic_policies(FLIGHTS, {"maxProducers": 1}, shared.append)
    catalog.create_subscription(AUDIT, FRESH, own.append)
    while len(shared) < 3 or len(own) < 3:
        bench.turn()

    assert [type(answer) for answer in shared] == [TopicNotFound, TopicNotFound, type(None)]
    assert [type(answer) for answer in own] == [TopicNotFound, SubscriptionNotFound, type(None)]
    assert catalog.failed is None


def test_a_document_about_a_topic_that_is_gone_is_not_another_topics_of_its_name(bench: Bench) -> None:
    bench.create(FLIGHTS)
    old = ledger_id(bench, FLIGHTS)
    bench.succeed(lambda done: bench.catalog.put_document("topic-state", FLIGHTS, {"a": 1}, done, ledger_id=old))
    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done))
    for _ in range(2):
        outcome = bench.outcome(
            lambda done: bench.catalog.put_document("topic-state", FLIGHTS, {"a": 2}, done, ledger_id=old)
        )
        assert isinstance(outcome, TopicNotFound)
        bench.create(FLIGHTS)
    assert not bench.catalog.documents("topic-state")


def test_the_bytes_of_documents_are_those_of_what_is_stored_now_also_after_a_restart(bench: Bench) -> None:
    def bytes_after(name: str, document: dict[str, str] | None) -> int:
        bench.succeed(lambda done: bench.catalog.put_document("schema", name, document, done))
        return bench.catalog.document_bytes("schema")

    bench.create(FLIGHTS)
    assert bytes_after(FLIGHTS, {"a": "x" * 100}) == len('{"a":""}') + 100
    assert bytes_after(FLIGHTS, {"a": "é"}) == len(r'{"a":"\u00e9"}')
    assert bytes_after("other", {"a": ""}) == len(r'{"a":"\u00e9"}{"a":""}')
    bench.restart()
    assert bench.catalog.document_bytes("schema") == len(r'{"a":"\u00e9"}{"a":""}')
    bench.succeed(lambda done: bench.catalog.put_document("schema", FLIGHTS, None, done))
    assert bench.catalog.document_bytes("schema") == len('{"a":""}')
    assert bytes_after("other", None) == bytes_after("never was", None) == 0


def test_ledger_ids_that_somebody_else_has_are_skipped(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.skip_ledger_ids(5_000, done))
    bench.succeed(lambda done: bench.catalog.skip_ledger_ids(10, done))
    bench.create(WEATHER)
    bench.restart()
    bench.create(f"{FLIGHTS}-3")
    ids = [ledger_id(bench, name) for name in (FLIGHTS, WEATHER, f"{FLIGHTS}-3")]
    assert ids[0] < 5_000 <= ids[1] < ids[2]
    assert bench.catalog.was_given_out(ids[1])
    assert not bench.catalog.was_given_out(4_999)


def test_a_forgotten_configuration_value_is_gone(bench: Bench) -> None:
    bench.succeed(lambda done: bench.catalog.set_configuration("maxTopics", "5", done))
    bench.succeed(lambda done: bench.catalog.set_configuration("maxTopics", None, done))
    assert not bench.catalog.configuration()
    bench.restart()
    assert not bench.catalog.configuration()


def test_closing_commits_and_answers_what_was_submitted_and_refuses_the_rest(bench: Bench) -> None:
    answers: list[PenstockError | None] = []
    for number in range(50):
        bench.catalog.create_topic(f"{FLIGHTS}-{number}", properties={}, created_wall_ms=1, done=answers.append)
    bench.catalog.close()
    bench.catalog.create_topic(WEATHER, properties={}, created_wall_ms=1, done=answers.append)
    while len(answers) < 51:
        bench.turn()

    assert answers[:50] == [None] * 50
    assert isinstance(answers[50], MetadataFailed)
    bench.restart()
    assert len(bench.catalog.topics()) == 50


def test_a_clean_close_leaves_one_file(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.catalog.close()
    files = {str(path.relative_to(bench.path.parent)) for path in bench.path.parent.rglob("*") if path.is_file()}
    assert files == {"FORMAT", "lock", "meta.sqlite", "broker-0/topics.sqlite"}


def test_a_write_ahead_log_that_has_grown_is_folded_into_the_main_file(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.create_subscription(AUDIT, FRESH, done))
    wal = bench.directory.topics(0).with_name("topics.sqlite-wal")
    for size in range(40):
        saves = [CursorSave(FLIGHTS, "audit", StoredCursor(size, bytes(160_000)))]
        bench.succeed(partial(bench.catalog.save_cursors, saves))
    assert wal.stat().st_size < 5 << 20


def test_a_file_of_a_newer_schema_is_refused_by_name(bench: Bench) -> None:
    bench.catalog.close()
    db = apsw.Connection(str(bench.path))
    db.pragma("user_version", 99)
    db.close()

    with pytest.raises(MetadataFailed, match=r"meta\.sqlite has schema version 99"):
        Catalog.open(bench.directory, bench.posted.put)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    directory = open_data_directory(tmp_path, OsFiles())
    directory.metadata.write_bytes(b"not a database, but long enough to be taken for one" * 100)

    with pytest.raises(MetadataFailed, match=r"cannot open .*meta\.sqlite: NotADBError"):
        Catalog.open(directory, lambda _: None)


def test_a_row_that_is_not_what_was_written_is_refused_as_damaged(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.catalog.close()
    db = apsw.Connection(str(bench.path))
    db.execute("update topics set name = 'persistent://public/default/lights'")
    db.close()

    with pytest.raises(MetadataFailed, match=r"meta\.sqlite is damaged: DamagedRow: the row of 1 "):
        Catalog.open(bench.directory, bench.posted.put)


# -- two files


def rows_of(bench: Bench, ledger: int) -> int:
    """How many rows the broker's file has of a ledger; the catalog is closed."""
    db = apsw.Connection(str(bench.directory.topics(0)))
    tables = ("subscriptions", "cursor_parts", "retained", "documents")
    counts = [db.execute(f"select count(*) from {table} where ledger_id = ?", (ledger,)).get for table in tables]
    db.close()
    return sum(counts)


def fill(bench: Bench) -> int:
    """Create a topic with everything; returns its ledger."""
    catalog = bench.catalog
    bench.create(FLIGHTS)
    cursor = Cursor()
    cursor.acknowledge_many([3, 9_000])
    bench.succeed(lambda done: catalog.create_subscription(AUDIT, FRESH, done))
    save = CursorSave(FLIGHTS, "audit", StoredCursor(-1, cursor.head()), cursor.take_changes())
    bench.succeed(lambda done: catalog.save_cursors([save], done))
    bench.succeed(lambda done: catalog.set_first_retained_entry(FLIGHTS, 2, done))
    bench.succeed(lambda done: catalog.put_document("topic-state", FLIGHTS, {"a": 1}, done))
    return ledger_id(bench, FLIGHTS)


def test_the_rows_of_a_deleted_topic_are_deleted(bench: Bench) -> None:
    ledger = fill(bench)
    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done))
    bench.catalog.close()
    assert rows_of(bench, ledger) == 0


def test_rows_that_a_crash_left_of_a_deleted_topic_are_deleted_at_the_next_start(bench: Bench) -> None:
    ledger = fill(bench)
    bench.catalog.close()
    db = apsw.Connection(str(bench.path))
    db.execute("delete from topics")
    db.close()
    assert rows_of(bench, ledger) >= 4

    bench.restart()
    assert not bench.catalog.subscriptions(FLIGHTS)
    bench.catalog.close()

    assert rows_of(bench, ledger) == 0


def test_rows_of_ledgers_that_the_shared_part_has_never_given_out_are_kept(bench: Bench) -> None:
    """It is an older copy, and the right one may come back."""
    ledger = fill(bench)
    bench.catalog.close()
    current, copy = bench.path, bench.path.with_name("copy")
    current.rename(copy)
    for _ in range(2):
        bench.restart()
        assert not bench.catalog.subscriptions(FLIGHTS)
        bench.succeed(lambda done: bench.catalog.skip_ledger_ids(ledger + 1, done))
        bench.create(WEATHER)
        assert ledger_id(bench, WEATHER) > ledger
        bench.catalog.close()
    copy.replace(current)

    bench.restart()

    assert list(bench.catalog.subscriptions(FLIGHTS)) == [AUDIT]
    assert bench.catalog.first_retained_entry(FLIGHTS) == 2
    assert bench.catalog.documents("topic-state") == {FLIGHTS: {"a": 1}}


def test_a_missing_file_of_a_broker_that_has_run_is_refused_with_what_to_do(bench: Bench) -> None:
    fill(bench)
    bench.catalog.close()
    own = bench.directory.topics(0)
    own.unlink()
    (bench.directory.broker(0) / "log" / "0000000000000001.seg").touch()

    with pytest.raises(MetadataFailed, match=r"topics\.sqlite is missing, and 1 topics have their subscriptions in it"):
        bench.restart()

    own.touch()
    bench.restart()
    assert not bench.catalog.subscriptions(FLIGHTS)
    assert bench.catalog.topic(FLIGHTS) is not None


def test_a_broker_that_begins_to_run_has_its_file_before_its_log_though_topics_were_placed_on_it(bench: Bench) -> None:
    fill(bench)
    bench.catalog.close()
    own = bench.directory.topics(0)
    own.unlink()
    create_for_new_broker(own, OsFiles())
    (bench.directory.broker(0) / "log" / "0000000000000001.seg").touch()
    bench.restart()
    assert bench.catalog.topic(FLIGHTS) is not None

    bench.catalog.close()
    own.unlink()
    create_for_new_broker(own, OsFiles())
    assert not own.exists(), "of a broker that has run, it is not made anew"
    own.touch()
    bench.restart()


def test_a_change_about_a_topic_that_is_deleted_meanwhile_fails_and_leaves_nothing(bench: Bench) -> None:
    bench.create(FLIGHTS)
    ledger = ledger_id(bench, FLIGHTS)
    for _ in range(20):  # The two files answer in either order.
        shared: list[PenstockError | None] = []
        own: list[PenstockError | None] = []
        bench.catalog.delete_topic(FLIGHTS, shared.append)
        bench.catalog.create_subscription(AUDIT, FRESH, own.append)
        while not (shared and own):
            bench.turn()
        assert own == [None] or isinstance(own[0], TopicNotFound)
        assert not bench.catalog.subscriptions(FLIGHTS)
        bench.create(FLIGHTS)
    bench.catalog.close()
    assert rows_of(bench, ledger) == 0
