# SPDX-License-Identifier: Apache-2.0
"""Topics are moved to fewer brokers with all that belongs to them, also through crashes at any moment and bad disks.

Everything is on a disk in memory. PENSTOCK_FAULT_SEEDS=5000 tries every moment of a move instead of some.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.topics.namespaces import drop_unknown_ledgers
from penstock.core.checksum import seal
from penstock.core.clock import ManualClock
from penstock.core.errors import ConfigurationError, DataDirectoryLocked, MetadataFailed, PenstockError
from penstock.core.units import KIB, TIB
from penstock.processes import moving, removal
from penstock.processes.moving import Disk
from penstock.processes.removal import leave_only
from penstock.storage.catalog import Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.storage.compacted import wrap
from penstock.storage.cursor import Cursor
from penstock.storage.directory import DataDirectory, open_data_directory
from penstock.storage.entry_log import EntryLog
from penstock.storage.limits import LogLimits
from penstock.storage.shared_store import LocalPart
from penstock.storage.snapshots import Snapshots
from penstock.testing.files import FaultyFiles
from penstock.testing.vfs import sqlite_on
from tests.storage.logs import entries, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.metadata import Done

DATA = DataDirectory(Path("/data"))
LIMITS = LogLimits(segment_bytes=64 * KIB, run_bytes_max=16 * KIB, commit_bytes_max=32 * KIB, spares_max=1)
CRASHES = int(os.environ.get("PENSTOCK_FAULT_SEEDS", "40"))
T = "persistent://public/default/"
NONCES = count(1)


@dataclass
class Life:
    """The storage of all brokers, open as while they serve."""

    shared: LocalPart
    answers: SimpleQueue[Callable[[], None]]
    catalogs: dict[int, Catalog] = field(default_factory=dict)
    logs: dict[int, EntryLog] = field(default_factory=dict)
    snapshots: dict[int, Snapshots] = field(default_factory=dict)

    def do(self, submit: Callable[[Done], None]) -> None:
        """Make a change durable."""
        errors: list[PenstockError | None] = []
        submit(errors.append)
        while not errors:
            self.answers.get()()
        assert errors == [None]

    def create(self, name: str, broker: int, first: int = 0, number: int = 20, size: int = 200) -> int:
        """Create a topic with entries; returns its ledger."""
        catalog, topic = self.catalogs[broker], T + name
        self.do(lambda done: catalog.create_topic(topic, properties={"of": name}, created_wall_ms=1, done=done))
        record = catalog.topic(topic)
        assert record is not None
        self.append(broker, record.ledger_id, first, number, size)
        return record.ledger_id

    def append(self, broker: int, ledger_id: int, first: int, number: int, size: int = 200) -> None:
        step = max(1, 10 * KIB // (size + 20))
        for start in range(first, first + number, step):
            sent = entries(start, min(step, first + number - start), size)
            self.logs[broker].append(run_of([(ledger_id, start, sent)], message_counts=[3] * len(sent)))
            self.logs[broker].commit()

    def subscribe(self, broker: int, name: str, subscription: str, cursor: Cursor) -> None:
        catalog, topic = self.catalogs[broker], T + name
        stored = StoredCursor(cursor.mark_delete, cursor.head())
        record = SubscriptionRecord(topic, subscription, "earliest", {"a": "b"})
        self.do(lambda done: catalog.create_subscription(record, StoredCursor(-1, Cursor().head()), done))
        save = CursorSave(topic, subscription, stored, cursor.take_changes())
        self.do(lambda done: catalog.save_cursors([save], done))

    def document(self, broker: int, kind: str, name: str, value: dict[str, Any]) -> None:
        self.do(lambda done: self.catalogs[broker].put_document(kind, T + name, value, done))

    def state(self) -> dict[str, Any]:
        """All that there is of each topic, wherever it is."""
        return {record.name.removeprefix(T): self.of(record.name) for record in self.shared.view.topics.values()}

    def of(self, topic: str) -> dict[str, Any]:
        record = self.shared.view.topics[topic]
        catalog, log = self.catalogs[record.broker], self.logs[record.broker]
        state = catalog.documents("topic-state").get(topic, {})
        first = catalog.first_retained_entry(topic)
        log.trim(record.ledger_id, first)  # as a broker does that loads the topic
        cursors: dict[str, Cursor] = {}
        self.do(lambda done: catalog.load_cursors(topic, cursors.update, done))
        return {
            "record": record._replace(broker=0),
            "entries": content(log, record.ledger_id),
            "last": log.last_entry(record.ledger_id),
            "first": first,
            "compacted": content(log, state.get("compacted_ledger", 0)),
            "state": state,
            "dedup": catalog.documents("dedup").get(topic),
            "subscriptions": {
                one.name: (one, catalog.cursor(topic, one.name), told(cursors[one.name]))
                for one in catalog.subscriptions(topic)
            },
            "snapshot": self.snapshots[record.broker].load(record.ledger_id),
        }


def content(log: EntryLog, ledger_id: int) -> tuple[list[Any], list[int]]:
    """Entries with their message counts, and the ids of damaged ones; ids are ascending."""
    found, damaged, entry_id = [], [], 0
    while entry_id <= log.last_entry(ledger_id):
        result = log.read(ledger_id, entry_id, bytes_max=10_000, entries_max=2**30)
        for batch in result.batches:
            counts = batch.message_counts or [1] * len(batch.lengths)
            found += [(at, bytes(entry), n) for (at, entry), n in zip(batch.entries(), counts, strict=True)]
        damaged += [one for _, one in result.damaged]
        assert result.next_entry_id > entry_id
        entry_id = result.next_entry_id
    return found, damaged


def told(cursor: Cursor) -> Any:  # noqa: ANN401
    ranges = list(cursor.unacknowledged_ranges(0, 10_000))
    return cursor.mark_delete, ranges, dict(cursor.partly_acknowledged(0, 10_000)), cursor.lost_parts


@contextmanager
def serving(files: FaultyFiles, brokers: int) -> Iterator[Life]:
    """Start that many brokers, as `--brokers` does."""
    answers: SimpleQueue[Callable[[], None]] = SimpleQueue()
    with ExitStack() as stack:
        vfs = stack.enter_context(sqlite_on(files))
        directory = open_data_directory(DATA.path, files, brokers=brokers)
        shared = LocalPart.open(directory, answers.put, files, exclusive=True, vfs=vfs, brokers=brokers)
        stack.callback(shared.close)
        life = Life(shared, answers)
        for broker in range(brokers):
            log = EntryLog.open(
                DATA.broker(broker), files, LIMITS, lambda call: call(),
                clock=ManualClock(), nonce=lambda: next(NONCES), index_vfs=vfs, background=False,
            )  # fmt: skip
            stack.callback(log.close)
            catalog = Catalog.open(directory, answers.put, files, broker=broker, shared=shared, exclusive=True, vfs=vfs)
            stack.callback(catalog.close)
            drop_unknown_ledgers(catalog, log)
            log.commit()
            log.maintain()
            life.logs[broker], life.catalogs[broker] = log, catalog
            life.snapshots[broker] = Snapshots(DATA.broker(broker) / "delayed", files)
        yield life


def move(files: FaultyFiles, brokers: int = 1, free_bytes: int = TIB, limits: LogLimits = LIMITS) -> None:
    """What a start with so many brokers does first."""
    with sqlite_on(files) as vfs:
        disk = Disk(directory=DATA, files=files, limits=limits, clock=ManualClock(), vfs=vfs, exclusive=True)
        leave_only(disk, brokers, lambda _: free_bytes)


def filled() -> FaultyFiles:
    """A disk with three brokers and one of each that a topic may have."""
    files = FaultyFiles()
    with serving(files, 3) as life:
        life.create("stays", 0)
        plain = life.create("plain", 1, number=400)
        cursor = Cursor(7)
        cursor.acknowledge_many([*range(20, 300, 2)])
        cursor.acknowledge_batch(301, [0b011])
        life.subscribe(1, "plain", "gaps", cursor)
        life.subscribe(1, "plain", "done", Cursor(399))
        life.do(lambda done: life.catalogs[1].set_first_retained_entry(T + "plain", 5, done))
        life.document(1, "dedup", "plain", {"at": 3, "producers": {"p": 17}})
        life.snapshots[1].save(plain, [b"delayed messages" * 100])
        compacted = life.create("compacted", 1)
        (compacted_id,) = taken(life)
        kept = [wrap(entry_id, seal(b"kept")) for entry_id in (3, 9, 12)]
        life.logs[1].append(run_of([(compacted_id, 0, kept)]))
        life.logs[1].commit()
        state = {"compacted_ledger": compacted_id, "compacted_horizon": 15, "compacted_entries": 3, "epoch": 4}
        life.document(1, "topic-state", "compacted", state)
        emptied = life.create("emptied", 1)
        life.do(lambda done: life.catalogs[1].set_first_retained_entry(T + "emptied", 20, done))
        life.logs[1].trim(emptied, 20)
        life.create("unused", 1, number=0)
        life.create("large", 2, number=6, size=15 * KIB)
        life.create("other", 2)
        assert compacted
    return files


def taken(life: Life) -> list[int]:
    ids: list[int] = []
    life.do(lambda done: life.catalogs[1].take_ledger_id(ids.append, done))
    return ids


def copy_of(files: FaultyFiles) -> FaultyFiles:
    """Another disk with the same content."""
    other = FaultyFiles()
    for path, inode in files._names.items():  # noqa: SLF001
        file = other.open(path, create=True)
        file.write([inode.data.read(inode.data.size, 0)], 0)
        file.truncate(inode.data.size)
        file.sync()
        other.sync_directory(path.parent)
    other.changes = other.syncs = 0
    return other


@pytest.fixture(scope="module")
def disk() -> FaultyFiles:
    return filled()


@pytest.fixture(scope="module")
def before(disk: FaultyFiles) -> dict[str, Any]:
    with serving(copy_of(disk), 3) as life:
        return life.state()


def left(files: FaultyFiles, broker: int) -> list[Path]:
    return DATA.files_of(broker, files)


def test_all_that_a_topic_has_comes_along_and_nothing_is_left(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    move(files)
    with serving(files, 1) as life:
        assert life.state() == before
    assert len(before["plain"]["entries"][0]) == 395
    assert before["plain"]["snapshot"]
    assert len(before["compacted"]["compacted"][0]) == 3
    assert before["emptied"]["last"] == 19
    assert (left(files, 1), left(files, 2)) == ([], [])


def test_a_crash_at_any_moment_loses_and_doubles_nothing(disk: FaultyFiles, before: dict[str, Any]) -> None:
    whole = copy_of(disk)
    move(whole)
    moments = range(1, whole.changes + 1, max(1, whole.changes // CRASHES))
    cut = random.Random(7)
    for moment in moments:
        files = copy_of(disk)
        files.lose_power_at(moment, cut_ratio=cut.random())
        with suppress(PenstockError, OSError):
            move(files)
        if cut.random() < 0.5:
            files.crash(cut)
        else:
            files.kill()
        if cut.random() < 0.3:
            with serving(files, 3) as life:
                assert life.state() == before, moment
        move(files)
        with serving(files, 1) as life:
            assert life.state() == before, moment
        assert (left(files, 1), left(files, 2)) == ([], []), moment


def test_a_crash_between_batches_loses_and_doubles_nothing(
    disk: FaultyFiles, before: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BATCH_TOPICS", 1)
    test_a_crash_at_any_moment_loses_and_doubles_nothing(disk, before)


def test_a_failed_sync_or_a_full_disk_stops_the_move_and_the_next_start_goes_on(
    disk: FaultyFiles, before: dict[str, Any]
) -> None:
    whole = copy_of(disk)
    move(whole)
    chance = random.Random(3)
    for number in range(CRASHES // 2):
        files = copy_of(disk)
        if number % 2:
            files.fail_sync_at(chance.randrange(1, whole.syncs + 1))
        else:
            files.run_full_after(chance.randrange(400 * KIB))
        with suppress(PenstockError):
            move(files)
        files.crash(chance)
        move(files)
        with serving(files, 1) as life:
            assert life.state() == before, number


def test_partitions_go_to_the_remaining_brokers_in_turn_and_other_topics_where_there_are_fewest() -> None:
    files = FaultyFiles()
    with serving(files, 4) as life:
        for number in range(4):
            life.create(f"here-{number}", 0)
        for number in range(4):
            life.create(f"other-{number}", 2)
        life.do(lambda done: life.catalogs[0].put_document("partitioned", T + "parts", {"partitions": 4}, done))
        for number in range(4):
            life.create(f"parts-partition-{number}", 3)
        whole = life.state()
    move(files, 2)
    with serving(files, 2) as life:
        assert life.state() == whole
        places = {name: life.shared.view.topics[T + name].broker for name in whole}
    assert {places[f"here-{number}"] for number in range(4)} == {0}
    assert {places[f"other-{number}"] for number in range(4)} == {1}
    assert sorted(places[f"parts-partition-{number}"] for number in range(4)) == [0, 0, 1, 1]
    assert places["parts-partition-0"] == places["parts-partition-2"]


def test_brokers_can_be_added_again_and_left_out_again(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    move(files)
    with serving(files, 3) as life:
        plain = life.shared.view.topics[T + "plain"].ledger_id
        life.append(0, plain, 400, 30)
        life.create("later", 2)
        after = life.state()
    move(files, 2)
    move(files, 1)
    with serving(files, 1) as life:
        assert life.state() == after
        assert life.state().keys() == {*before, "later"}
        assert [entry_id for entry_id, _, _ in life.state()["plain"]["entries"][0]] == [*range(5, 430)]


def test_a_copy_that_an_interrupted_move_has_left_does_no_harm_when_the_topic_has_changed_since(
    disk: FaultyFiles,
) -> None:
    files = copy_of(disk)
    files.lose_power_at(200)
    with pytest.raises(PenstockError):
        move(files)
    files.kill()
    with serving(files, 3) as life:
        plain = life.shared.view.topics[T + "plain"]
        assert plain.broker == 1
        life.append(1, plain.ledger_id, 400, 30)
        life.do(lambda done: life.catalogs[1].delete_subscription(T + "plain", "gaps", done))
        after = life.state()
    move(files)
    with serving(files, 1) as life:
        assert life.state() == after


def test_a_topic_with_damage_comes_along_and_the_damage_is_told(
    disk: FaultyFiles, before: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    files = copy_of(disk)
    entry = before["plain"]["entries"][0][100][1]
    (path,) = (path for path in left(files, 1) if path.suffix == ".seg" and entry in content_of(files, path))
    files.flip(path, (content_of(files, path).index(entry) + 30) * 8)
    move(files)
    with serving(files, 1) as life:
        found, damaged = life.state()["plain"]["entries"]
        assert damaged == [105]
        assert found == [one for one in before["plain"]["entries"][0] if one[0] != 105]
        assert [one.entry_id for one in life.logs[0].damage()] == [105]
    assert "1 entries of topics that are moved from broker 1 to 0 were damaged before, and stay so" in caplog.text


def content_of(files: FaultyFiles, path: Path) -> bytes:
    file = files.open(path)
    return file.read(file.size(), 0)


def test_without_space_nothing_is_begun(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    with pytest.raises(ConfigurationError, match=r"has 1000 bytes of free space.*start with --brokers 3"):
        move(files, free_bytes=1000)
    with serving(files, 3) as life:
        assert life.state() == before
        assert {record.broker for record in life.shared.view.topics.values()} == {0, 1, 2}


@pytest.mark.parametrize("size", [1, 200, 15 * KIB])
def test_the_space_that_is_asked_for_is_enough_and_not_much_more(size: int) -> None:
    files = FaultyFiles()
    with serving(files, 2) as life:
        life.create("large", 1, number=600_000 // (size + 100), size=size)
    before_bytes = log_bytes(files, 0)
    with pytest.raises(ConfigurationError) as error:
        move(files, free_bytes=0)
    asked = int(str(error.value).split("up to ")[1].split()[0]) - removal.SLACK_BYTES
    payload = log_bytes(files, 1)
    move(files)
    assert log_bytes(files, 0) - before_bytes <= asked <= 2 * payload + 3 * LIMITS.segment_bytes


def log_bytes(files: FaultyFiles, broker: int) -> int:
    return sum(len(content_of(files, path)) for path in left(files, broker) if path.suffix == ".seg")


def test_while_a_file_of_the_log_is_missing_nothing_is_begun(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    hidden = next(path for path in left(files, 1) if path.suffix == ".seg")
    files.hide(hidden)
    with pytest.raises(ConfigurationError, match=r"topics of broker 1 cannot be moved.*autoSkipNonRecoverableData"):
        move(files)
    files.show(hidden)
    move(files)
    with serving(files, 1) as life:
        assert life.state() == before


def test_what_is_missing_can_be_given_up(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    files.hide(next(path for path in left(files, 1) if path.suffix == ".seg"))
    move(files, limits=replace(LIMITS, skip_missing=True))
    with serving(files, 1) as life:
        found, damaged = life.state()["plain"]["entries"]
        assert sorted([*damaged, *(entry_id for entry_id, _, _ in found)]) == [*range(5, 400)]
        assert {*found} < {*before["plain"]["entries"][0]}
        assert damaged


def test_without_the_rows_of_its_topics_no_broker_is_left_out(disk: FaultyFiles) -> None:
    files = copy_of(disk)
    for path in (DATA.topics(1), DATA.topics(1).with_name("topics.sqlite-wal")):
        with suppress(FileNotFoundError):
            files.delete(path)
    with pytest.raises(MetadataFailed, match=r"broker-1/topics\.sqlite is missing"):
        move(files)


def test_ledgers_that_the_shared_part_never_gave_out_are_kept_where_they_are(
    disk: FaultyFiles, before: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    files = copy_of(disk)
    with serving(files, 3) as life:
        life.append(1, 1_000_000, 0, 5)
    move(files)
    assert "broker-1 has entries of topics that meta.sqlite does not know" in caplog.text
    with serving(files, 2) as life:
        assert life.state() == before
        assert len(content(life.logs[1], 1_000_000)[0]) == 5
        assert life.logs[1].ledgers() == {1_000_000}
    move(files)
    with serving(files, 2) as life:
        assert life.logs[1].ledgers() == {1_000_000}


def test_a_directory_that_is_in_use_is_left_to_the_start_to_refuse(disk: FaultyFiles) -> None:
    files = copy_of(disk)
    lock = DATA.lock(files)
    changes = files.changes
    move(files)
    assert files.changes == changes
    lock.release()


def test_while_a_broker_still_runs_nothing_is_begun(disk: FaultyFiles, before: dict[str, Any]) -> None:
    files = copy_of(disk)
    lock = files.lock(DATA.broker(2) / "lock", "77")
    with pytest.raises(DataDirectoryLocked, match="in use by process 77"):
        move(files)
    lock.release()
    with serving(files, 3) as life:
        assert life.state() == before
        assert {record.broker for record in life.shared.view.topics.values()} == {0, 1, 2}


def test_brokers_without_topics_leave_nothing_behind() -> None:
    files = FaultyFiles()
    with serving(files, 3) as life:
        life.create("stays", 0)
        gone = life.create("gone", 2)
        life.do(lambda done: life.catalogs[2].delete_topic(T + "gone", done))
        life.logs[2].drop(gone)
    assert left(files, 2)
    move(files)
    assert (left(files, 1), left(files, 2)) == ([], [])
    with serving(files, 1) as life:
        assert life.state().keys() == {"stays"}
