# SPDX-License-Identifier: Apache-2.0
"""Cursors in the catalog: in parts, only what changed, and cursors that an older version stored in one value."""

from __future__ import annotations

import struct
from queue import SimpleQueue
from typing import TYPE_CHECKING

import apsw
import pytest

from penstock.core.checksum import seal
from penstock.core.errors import MetadataFailed
from penstock.storage.catalog import Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.storage.catalog_rows import sealed
from penstock.storage.cursor import Cursor
from penstock.storage.directory import open_data_directory
from penstock.storage.files import OsFiles
from penstock.storage.schema import SHARED_MIGRATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.core.errors import PenstockError
    from penstock.storage.metadata import Done

FLIGHTS = "persistent://public/default/flights"


class Bench:
    """A catalog with one topic and its subscription `audit`."""

    def __init__(self, path: Path) -> None:
        self.directory = open_data_directory(path, OsFiles())
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.catalog = Catalog.open(self.directory, self.posted.put)
        self.succeed(lambda done: self.catalog.create_topic(FLIGHTS, properties={}, created_wall_ms=1, done=done))
        self.subscribe()

    def succeed(self, submit: Callable[[Done], None]) -> None:
        answers: list[PenstockError | None] = []
        submit(answers.append)
        while not answers:
            self.posted.get()()
        assert answers == [None]

    def subscribe(self) -> None:
        record, stored = SubscriptionRecord(FLIGHTS, "audit", "earliest"), StoredCursor(-1, Cursor().head())
        self.succeed(lambda done: self.catalog.create_subscription(record, stored, done))

    def save(self, cursor: Cursor) -> None:
        parts = cursor.take_changes()
        save = CursorSave(FLIGHTS, "audit", StoredCursor(cursor.mark_delete, cursor.head()), parts)
        self.succeed(lambda done: self.catalog.save_cursors([save], done))

    def load(self) -> dict[str, Cursor]:
        cursors: dict[str, Cursor] = {}
        self.succeed(lambda done: self.catalog.load_cursors(FLIGHTS, cursors.update, done))
        return cursors

    def database(self) -> apsw.Connection:
        """The file of the broker's topics, once the catalog is closed."""
        self.catalog.close()
        return apsw.Connection(str(self.directory.topics(0)))

    def reopen(self) -> None:
        self.catalog.close()
        self.catalog = Catalog.open(self.directory, self.posted.put)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.catalog.close()


def test_a_million_gaps_are_there_after_a_restart_in_rows_of_a_few_kilobytes(bench: Bench) -> None:
    cursor = Cursor(9)
    cursor.acknowledge_many(range(11, 2_000_011, 2))
    cursor.acknowledge_batch(14, [0b1100])
    bench.save(cursor)
    bench.reopen()

    again = bench.load()["audit"]

    assert (again.mark_delete, again.range_count, again.ack_set(14)) == (9, 1_000_000, [0b1100])
    large = "select count(*) from cursor_parts where length(value) > 9000"
    assert bench.database().execute(large).fetchall() == [(0,)]


def test_the_view_keeps_the_head_of_a_cursor_and_not_its_parts(bench: Bench) -> None:
    cursor = Cursor()
    cursor.acknowledge_many(range(1, 200_000, 2))
    bench.save(cursor)
    stored = bench.catalog.cursor(FLIGHTS, "audit")
    assert stored is not None
    assert len(stored.encoded) < 64


def test_parts_go_with_their_subscription_and_with_their_topic(bench: Bench) -> None:
    cursor = Cursor()
    cursor.acknowledge_many([5, 100_000])
    bench.save(cursor)
    bench.succeed(lambda done: bench.catalog.delete_subscription(FLIGHTS, "audit", done))
    bench.subscribe()
    assert not bench.load()["audit"].acknowledged_above

    cursor.reset(0)
    cursor.acknowledge(7)
    bench.save(cursor)
    bench.succeed(lambda done: bench.catalog.delete_topic(FLIGHTS, done))
    assert bench.database().execute("select count(*) from cursor_parts").fetchall() == [(0,)]


def test_a_save_for_a_subscription_that_is_gone_leaves_no_parts(bench: Bench) -> None:
    bench.succeed(lambda done: bench.catalog.delete_subscription(FLIGHTS, "audit", done))
    cursor = Cursor()
    cursor.acknowledge(7)
    bench.save(cursor)
    assert bench.database().execute("select count(*) from cursor_parts").fetchall() == [(0,)]


@pytest.mark.parametrize("change", ["number = number + 1", "value = x'01'", "kind = 1"])
def test_a_part_that_is_not_what_was_written_is_left_out_counted_and_forgotten(bench: Bench, change: str) -> None:
    cursor = Cursor()
    cursor.acknowledge_many([5, 100_000])
    bench.save(cursor)
    db = bench.database()
    db.execute(f"update cursor_parts set {change} where number = 1")
    db.close()
    bench.reopen()

    again = bench.load()["audit"]

    assert again.lost_parts == 1
    assert list(again.unacknowledged_ranges(0, 200_000)) == [(0, 4), (6, 200_000)]
    bench.save(again)
    assert not bench.load()["audit"].lost_parts


def inline(mark_delete: int, ranges: list[tuple[int, int]], ack_sets: dict[int, bytes]) -> bytes:
    """A cursor as older versions stored it, in one value."""
    body = struct.pack("<BqII", 1, mark_delete, len(ranges), len(ack_sets))
    for side in (0, 1):
        body += b"".join(struct.pack("<q", one[side]) for one in ranges)
    for entry_id, bits in ack_sets.items():
        body += struct.pack("<qI", entry_id, len(bits) // 8) + bits
    return seal(body)


def make_old(bench: Bench, cursor: bytes) -> None:
    """Make the data directory one of the version before cursors were stored in parts, with this cursor."""
    bench.catalog.close()
    bench.directory.topics(0).unlink()
    bench.directory.metadata.unlink()
    (bench.directory.path / "FORMAT").write_text("penstock 1\n")
    db = apsw.Connection(str(bench.directory.metadata))
    old = SHARED_MIGRATIONS[:2]
    db.execute(f"begin; {';'.join(old)}; pragma user_version = {len(old)}; commit")
    db.execute("insert into topics values (?, ?, ?, ?, ?, ?, ?, ?)", sealed(1, FLIGHTS, 0, 1, "{}", "{}", 0))
    subscription = (*sealed(1, "audit", "earliest", "{}"), 4, cursor)
    db.execute("insert into subscriptions values (?, ?, ?, ?, ?, ?, ?)", subscription)
    db.close()


def test_a_catalog_of_an_older_version_is_converted_when_it_is_opened(bench: Bench) -> None:
    ranges = [(first, first) for first in range(6, 20_006, 2)]
    make_old(bench, inline(4, ranges, {5: b"\x05" + bytes(7)}))

    bench.reopen()

    again = bench.load()["audit"]
    assert (again.mark_delete, again.range_count, again.ack_set(5)) == (4, 10_000, [5])
    stored = bench.catalog.cursor(FLIGHTS, "audit")
    assert stored is not None
    assert len(stored.encoded) < 64


def test_an_ack_set_of_an_older_version_that_is_larger_than_allowed_is_delivered_again(bench: Bench) -> None:
    make_old(bench, inline(4, [(6, 6)], {5: b"\xff" * 200_000}))
    bench.reopen()
    again = bench.load()["audit"]
    assert (again.mark_delete, again.is_acknowledged(6), again.ack_set(5)) == (4, True, None)


def test_a_damaged_cursor_of_an_older_version_does_not_keep_the_catalog_from_opening(bench: Bench) -> None:
    make_old(bench, inline(4, [(6, 6)], {})[:-1] + b"?")
    bench.reopen()
    assert bench.load() == {}


def test_cursors_that_cannot_be_converted_keep_the_catalog_from_opening(bench: Bench) -> None:
    make_old(bench, inline(4, [(6, 6)], {}))
    bench.reopen()
    db = bench.database()
    db.execute("update subscriptions set mark_delete = 4, cursor = ?", (inline(4, [(6, 6)], {}),))
    db.execute("create trigger refuse before update on subscriptions begin select raise(abort, 'no room'); end")
    db.close()
    with pytest.raises(MetadataFailed, match="cannot bring the cursors"):
        Catalog.open(bench.directory, bench.posted.put)
