# SPDX-License-Identifier: Apache-2.0
"""The catalog: what was answered is there, in the view and after a restart."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.errors import MetadataFailed, PenstockError, SubscriptionNotFound, TopicNotFound
from penstock.storage.catalog import LEDGER_IDS_PER_BLOCK, Catalog, CursorSave, StoredCursor, SubscriptionRecord

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
        self.path = path / "meta.sqlite"
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.catalog = Catalog.open(self.path, self.posted.put)

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
        self.catalog = Catalog.open(self.path, self.posted.put)


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
    assert record == (FLIGHTS, 1, 0, 1_357_034_400_000, {"owner": "ann"}, {"maxProducers": 3}, 7)
    assert list(bench.catalog.subscriptions(FLIGHTS)) == [AUDIT]
    assert bench.catalog.cursor(FLIGHTS, "audit") == moved
    assert bench.catalog.tenants()["acme"] == {"adminRoles": ["ann"]}
    assert bench.catalog.namespaces()["acme/air"] == {"retention": {"minutes": 5}}
    assert bench.catalog.configuration() == {"maxTopics": "5"}


def view(catalog: Catalog) -> object:
    """All of it, comparable."""
    return (
        {name: dict(policies) for name, policies in catalog.tenants().items()},
        {name: dict(policies) for name, policies in catalog.namespaces().items()},
        {record.name: record for record in catalog.topics()},
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
    answers: list[PenstockError | None] = []
    catalog = bench.catalog

    catalog.delete_topic(WEATHER, answers.append)
    catalog.set_topic_policies(WEATHER, {}, answers.append)
    catalog.create_subscription(SubscriptionRecord(WEATHER, "audit", "latest"), FRESH, answers.append)
    catalog.delete_subscription(FLIGHTS, "audit", answers.append)
    catalog.set_topic_policies(FLIGHTS, {"maxProducers": 1}, answers.append)
    while len(answers) < 5:
        bench.turn()

    assert [type(answer) for answer in answers[:3]] == [TopicNotFound] * 3
    assert isinstance(answers[3], SubscriptionNotFound)
    assert answers[4] is None
    assert catalog.failed is None


def test_a_document_about_a_topic_that_is_gone_is_not_another_topics_of_its_name(bench: Bench) -> None:
    bench.create(FLIGHTS)
    old = ledger_id(bench, FLIGHTS)
    bench.succeed(lambda done: bench.catalog.put_document("state", FLIGHTS, {"a": 1}, done, ledger_id=old))
    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done, documents=["state"]))
    for _ in range(2):
        outcome = bench.outcome(
            lambda done: bench.catalog.put_document("state", FLIGHTS, {"a": 2}, done, ledger_id=old)
        )
        assert isinstance(outcome, TopicNotFound)
        bench.create(FLIGHTS)
    assert not bench.catalog.documents("state")


def test_ledger_ids_that_somebody_else_has_are_skipped(bench: Bench) -> None:
    bench.create("first")
    bench.succeed(lambda done: bench.catalog.skip_ledger_ids(5_000, done))
    bench.succeed(lambda done: bench.catalog.skip_ledger_ids(10, done))
    bench.create("second")
    bench.restart()
    bench.create("third")
    ids = [ledger_id(bench, name) for name in ("first", "second", "third")]
    assert ids[0] < 5_000 <= ids[1] < ids[2]
    assert bench.catalog.ledger_ids_stop > ids[1]


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
    assert [path.name for path in bench.path.parent.iterdir()] == ["meta.sqlite"]


def test_a_write_ahead_log_that_has_grown_is_folded_into_the_main_file(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.succeed(lambda done: bench.catalog.create_subscription(AUDIT, FRESH, done))
    wal = bench.path.with_name("meta.sqlite-wal")
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
        Catalog.open(bench.path, bench.posted.put)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    path.write_bytes(b"not a database, but long enough to be taken for one" * 100)

    with pytest.raises(MetadataFailed, match=r"cannot open .*meta\.sqlite: NotADBError"):
        Catalog.open(path, lambda _: None)


def test_a_row_that_is_not_what_was_written_is_refused_as_damaged(bench: Bench) -> None:
    bench.create(FLIGHTS)
    bench.catalog.close()
    db = apsw.Connection(str(bench.path))
    db.execute("update topics set name = 'persistent://public/default/lights'")
    db.close()

    with pytest.raises(MetadataFailed, match=r"meta\.sqlite is damaged: DamagedRow: the row of 1 "):
        Catalog.open(bench.path, bench.posted.put)
