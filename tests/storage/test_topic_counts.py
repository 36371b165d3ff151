# SPDX-License-Identifier: Apache-2.0
"""Numbers of topics: kept up to date they are what a new count finds, and no change that has a maximum exceeds it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import NotAllowed, PenstockError
from penstock.core.system_topics import DECISION_TOPIC, USAGE_TOPIC, is_system_topic
from penstock.storage.catalog import Catalog
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from penstock.storage.shared_changes import CreateTopic, DeleteTopic, Put
from penstock.storage.shared_tables import SharedTables
from penstock.storage.shared_view import PARTITIONED, TOPICS
from penstock.storage.topic_counts import CREATING, TopicCounts

if TYPE_CHECKING:
    from penstock.storage.shared_changes import SharedChange

NAMESPACE = "public/default"
NS = f"persistent://{NAMESPACE}"
NAMES = ("p", "q", "t")

names = st.sampled_from([f"{NS}/{name}" for name in NAMES])
topics = st.one_of(
    names,
    st.builds("{}-partition-{}".format, names, st.integers(0, 4)),
    st.sampled_from([f"{NS}/p-partition-01", f"{NS}/p-partition-1-partition-1", USAGE_TOPIC]),
)
maxima = st.integers(0, 6)
documents = st.fixed_dictionaries(
    {"partitions": st.integers(1, 4)}, optional={CREATING: st.tuples(st.integers(0, 3), st.integers(0, 5))}
)


def create(name: str, topics_max: int) -> SharedChange:
    return CreateTopic(name, 0, 0, {}, topics_max)


def declare(name: str, document: dict[str, Any] | None, topics_max: int) -> SharedChange:
    return Put(PARTITIONED, name, document, topics_max=topics_max)


changes = st.lists(
    st.one_of(
        st.builds(create, topics, maxima),
        st.builds(DeleteTopic, topics),
        st.builds(declare, names, documents, maxima),
        st.builds(declare, names, st.none(), maxima),
    ),
    max_size=40,
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """The shared part of a new catalog."""
    directory = open_data_directory(tmp_path_factory.mktemp("data"), OsFiles())
    Catalog.open(directory, SimpleQueue[Callable[[], None]]().put).close()
    with contextlib.closing(apsw.Connection(str(directory.metadata))) as db:
        yield db


@contextlib.contextmanager
def tables_of(database: apsw.Connection) -> Iterator[SharedTables]:
    """Its tables, which afterwards are as they were."""
    database.execute("begin")
    try:
        yield SharedTables(database)
    finally:
        database.execute("rollback")


def existing(tables: SharedTables) -> list[str]:
    return [name for name in tables.names(TOPICS, f"{NS}/") if not is_system_topic(name)]


def expected(tables: SharedTables) -> int:
    """The topics, and the partitions that have a place and do not exist."""
    count, there = len(existing(tables)), set(existing(tables))
    for name in tables.names(PARTITIONED, f"{NS}/"):
        creating = json.loads(tables.text(PARTITIONED, name) or "{}").get(CREATING, (0, 0))
        count += sum(f"{name}-partition-{index}" not in there for index in range(*creating))
    return count


@given(changes=changes)
def test_a_number_that_is_kept_is_the_one_that_a_count_would_find(
    database: apsw.Connection, changes: list[SharedChange]
) -> None:
    with tables_of(database) as tables:
        for change in changes:
            with contextlib.suppress(PenstockError):
                change.store(tables)
            assert tables.topic_counts.of(NAMESPACE) == TopicCounts(tables).of(NAMESPACE) == expected(tables)


@given(changes=changes)
def test_no_change_with_a_maximum_makes_more_topics_than_that(
    database: apsw.Connection, changes: list[SharedChange]
) -> None:
    with tables_of(database) as tables:
        for change in changes:
            before = tables.topic_counts.of(NAMESPACE)
            topics_max = getattr(change, "topics_max", 0)
            try:
                change.store(tables)
            except NotAllowed:
                assert topics_max
                assert tables.topic_counts.of(NAMESPACE) == before
            except PenstockError:
                assert tables.topic_counts.of(NAMESPACE) == before
            else:
                after = tables.topic_counts.of(NAMESPACE)
                assert not topics_max or after <= max(before, topics_max)


def test_partitions_that_are_being_created_have_their_places_and_no_others(database: apsw.Connection) -> None:
    with tables_of(database) as tables:
        declare(f"{NS}/p", {"partitions": 2, CREATING: [0, 2]}, 3).store(tables)
        create(f"{NS}/t", 3).store(tables)
        for change in (create(f"{NS}/u", 3), declare(f"{NS}/q", {"partitions": 1, CREATING: [0, 1]}, 3)):
            with pytest.raises(NotAllowed, match=r"Exceed maximum number of topics in namespace\."):
                change.store(tables)
        for index in range(2):
            create(f"{NS}/p-partition-{index}", 3).store(tables)
        declare(f"{NS}/p", {"partitions": 2}, 3).store(tables)
        DeleteTopic(f"{NS}/p-partition-0").store(tables)
        create(f"{NS}/u", 3).store(tables)
        with pytest.raises(NotAllowed):
            create(f"{NS}/p-partition-0", 3).store(tables)


def test_partitions_that_are_created_on_first_use_need_room_when_they_are_declared_and_take_it_when_created(
    database: apsw.Connection,
) -> None:
    with tables_of(database) as tables:
        with pytest.raises(NotAllowed):
            declare(f"{NS}/p", {"partitions": 3}, 2).store(tables)
        declare(f"{NS}/p", {"partitions": 2}, 2).store(tables)
        create(f"{NS}/t", 2).store(tables)
        create(f"{NS}/p-partition-1", 2).store(tables)
        with pytest.raises(NotAllowed):
            create(f"{NS}/p-partition-0", 2).store(tables)


def test_topics_of_the_system_and_topics_that_are_not_stored_do_not_count(database: apsw.Connection) -> None:
    with tables_of(database) as tables:
        create(USAGE_TOPIC, 1).store(tables)
        create(DECISION_TOPIC, 1).store(tables)
        declare("non-persistent://public/default/p", {"partitions": 9}, 1).store(tables)
        assert (tables.topic_counts.of("pulsar/system"), tables.topic_counts.of(NAMESPACE)) == (0, 0)
