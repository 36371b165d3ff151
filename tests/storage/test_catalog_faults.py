# SPDX-License-Identifier: Apache-2.0
"""The catalog on a bad disk: what comes back is the state after some number of whole changes, none answered missing.

That holds for the shared part, and for what the broker stores about its topics, each by itself; rows of topics that the
shared part does not have are not shown.

Each seed is a story of several lives of one directory. In each life random changes are submitted in bursts, and at a
random moment the power goes, a sync fails or the disk is full. Then the process starts again, after a power cut or
not. A plain model is told the same changes. PENSTOCK_FAULT_SEEDS=5000 tells that many stories instead of a few;
`make crash` tells 2,000.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from penstock.core.errors import MetadataFailed, PenstockError
from penstock.storage import metadata
from penstock.storage.catalog import Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.storage.cursor import Cursor
from penstock.storage.directory import DataDirectory, open_data_directory
from penstock.testing.files import FaultyFiles
from penstock.testing.vfs import sqlite_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.metadata import Done

SEEDS = int(os.environ.get("PENSTOCK_FAULT_SEEDS", "100"))
FLIPS = SEEDS // 2
LIVES = 3
DATA = DataDirectory(Path("/data"))
SHARED, OWN = PARTS = ("shared", "own")
THREADS = {SHARED: "penstock-metadata", OWN: "penstock-topic-data"}
FILES = [path.with_name(path.name + suffix) for path in (DATA.metadata, DATA.topics(0)) for suffix in ("", "-wal")]
TOPICS = [f"persistent://public/default/{name}" for name in ("ewr", "jfk", "lga")]
SUBSCRIPTIONS = ["audit", "work"]

# What one part of a catalog says, comparable: without ledger ids, which are watched by themselves. Records of a topic
# have its time of creation in their key, which is unique here.
State = dict[Any, Any]


def state_of(catalog: Catalog, loop: SteppedLoop) -> dict[str, State]:
    cursors = {topic.name: loaded(catalog, topic.name, loop) for topic in catalog.topics()}
    return {
        SHARED: {
            **{("namespace", name): dict(policies) for name, policies in catalog.namespaces().items()},
            **{("topic", topic.name, topic.created_wall_ms): dict(topic.policies) for topic in catalog.topics()},
            **{("configuration", key): value for key, value in catalog.configuration().items()},
        },
        OWN: {
            **{
                ("retained", topic.name, topic.created_wall_ms): catalog.first_retained_entry(topic.name)
                for topic in catalog.topics()
                if catalog.first_retained_entry(topic.name)
            },
            **{
                ("subscription", topic.name, topic.created_wall_ms, subscription.name): (
                    subscription.initial_position,
                    *progress(
                        catalog.cursor(topic.name, subscription.name), cursors[topic.name].get(subscription.name)
                    ),
                )
                for topic in catalog.topics()
                for subscription in catalog.subscriptions(topic.name)
            },
        },
    }


def shown(own: State, shared: State) -> State:
    """The records of topics that the shared part has."""
    return {key: value for key, value in own.items() if ("topic", *key[1:3]) in shared}


def loaded(catalog: Catalog, topic: str, loop: SteppedLoop) -> dict[str, Cursor]:
    """The cursors of a topic, parts and all."""
    cursors: dict[str, Cursor] = {}
    errors: list[PenstockError | None] = []
    catalog.load_cursors(topic, cursors.update, errors.append)
    while not errors:
        loop.go[loop.turn()].release()
    if errors[0] is not None:
        raise errors[0]
    return cursors


# What is acknowledged above mark-delete and which batches are in part; None when some of it is damaged, which is told.
Above: TypeAlias = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]] | None


def progress(stored: StoredCursor | None, cursor: Cursor | None) -> tuple[int, Above]:
    """What a subscription goes on from."""
    assert stored is not None
    if cursor is None:
        return stored.mark_delete, None
    return cursor.mark_delete, None if cursor.lost_parts else above(cursor)


def above(cursor: Cursor) -> Above:
    ranges = cursor.unacknowledged_ranges(0, cursor.last_acknowledged + 1)
    return tuple(ranges), tuple(sorted(cursor.partly_acknowledged(0, 10**7).items()))


class SteppedLoop:
    """The test is the loop, and lets a metadata thread go on only when the next burst is queued.

    So a burst is one transaction, only one thread runs at a time, and a seed writes the same bytes every time.
    """

    def __init__(self) -> None:
        self.posted: SimpleQueue[tuple[str, Callable[[], None]]] = SimpleQueue()
        self.go = {name: threading.Semaphore(0) for name in THREADS.values()}

    def post(self, call: Callable[[], None]) -> None:
        name = threading.current_thread().name
        self.posted.put((name, call))
        self.go[name].acquire()

    def turn(self) -> str:
        """Run one posted call; returns the thread that posted it."""
        name, call = self.posted.get()
        call()
        return name

    def close(self, catalog: Catalog) -> None:
        """Close one part after the other."""
        for part, name in ((catalog._shared, THREADS[SHARED]), (catalog._own, THREADS[OWN])):  # noqa: SLF001
            for _ in range(4):  # More than the thread has left to post.
                self.go[name].release()
            part.close()


class Story:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.disk = FaultyFiles()
        open_data_directory(DATA.path, self.disk)
        self.wall_ms = 0
        # As it will be when all that was submitted is stored.
        self.model: dict[str, State] = {
            SHARED: {("namespace", "public/default"): {}, ("namespace", "pulsar/system"): {}},
            OWN: {},
        }
        # After each change from the last answered one on.
        self.possible: dict[str, list[State]] = {part: [dict(self.model[part])] for part in PARTS}
        # As it was before the last answered burst that changed it.
        self.before_last: dict[str, State] = {part: self.possible[part][0] for part in PARTS}
        self.cursors: dict[Any, Cursor] = {}
        self.owners: dict[int, int] = {}  # ledger id -> when its topic was created

    def run(self) -> None:
        for _ in range(LIVES):
            fault = self.plan()
            self.live(fault)
            if fault == "power" or self.chance.random() < 0.5:
                self.disk.crash(self.chance)
            else:
                self.disk.kill()
        self.live("none", bursts=0)

    def plan(self) -> str:
        """Let something happen somewhere on the way."""
        fault = self.chance.choice(("power", "power", "sync", "full", "none"))
        if fault == "power":
            self.disk.lose_power_at(self.chance.randrange(1, 250), cut_ratio=self.chance.random())
        elif fault == "sync":
            self.disk.fail_sync_at(self.chance.randrange(1, 50))
        elif fault == "full":
            self.disk.run_full_after(self.chance.randrange(600_000))
        return fault

    def live(self, fault: str, bursts: int = 12) -> None:
        """Start, compare, change, and stop or fail."""
        loop = SteppedLoop()
        with sqlite_on(self.disk, seed=self.seed) as vfs:
            try:
                catalog = Catalog.open(DATA, loop.post, self.disk, exclusive=True, vfs=vfs)
            except MetadataFailed:
                assert fault != "none"
                return
            try:
                self.compare(catalog, loop)
            except MetadataFailed:
                assert fault != "none"
                loop.close(catalog)
                return
            first = dict.fromkeys(PARTS, True)
            for _ in range(bursts):
                part = self.chance.choice(PARTS)
                if first[OWN]:
                    part = OWN
                # A waiting thread takes the first change at once, alone; from then on it is held where it has posted.
                size = 1 if first[part] else self.chance.randrange(1, 7)
                self.burst(part, catalog, loop, size, goes=first[part])
                first[part] = False
            if fault == "kill":
                self.disk.lose_power()
            loop.close(catalog)
            assert catalog.failed is None or fault != "none"

    def burst(self, part: str, catalog: Catalog, loop: SteppedLoop, size: int, *, goes: bool) -> None:
        """Submit changes as one transaction; `goes`: the thread goes on by itself with the first that it sees."""
        answers: list[PenstockError | None] = []
        for _ in range(size):
            self.change(part, catalog)(answers.append)
        if not goes:
            loop.go[THREADS[part]].release()
        while len(answers) < size:
            loop.turn()
        if not any(isinstance(answer, MetadataFailed) for answer in answers):
            possible = self.possible[part]
            if possible[-1] != possible[0]:
                self.before_last[part] = possible[0]
            del possible[:-1]  # Answered: only the newest state may come back.

    def compare(self, catalog: Catalog, loop: SteppedLoop) -> None:
        found = state_of(catalog, loop)
        assert found[SHARED] in self.possible[SHARED]
        assert found[OWN] in [shown(own, found[SHARED]) for own in self.possible[OWN]]
        self.cursors = {
            ("subscription", topic.name, topic.created_wall_ms, name): cursor
            for topic in catalog.topics()
            for name, cursor in loaded(catalog, topic.name, loop).items()
        }
        self.model = found
        self.possible = {part: [dict(found[part])] for part in PARTS}
        for topic in catalog.topics():
            assert self.owners.setdefault(topic.ledger_id, topic.created_wall_ms) == topic.created_wall_ms

    # -- changes: each tells the model and returns how to submit it

    def change(self, part: str, catalog: Catalog) -> Callable[[Done], None]:
        draws = {
            SHARED: (
                *(self.create_topic, self.create_topic, self.delete_topic, self.set_policies),
                *(self.put_namespace, self.set_configuration),
            ),
            OWN: (
                *(self.trim, self.subscribe, self.subscribe, self.unsubscribe, self.save_cursors, self.save_cursors),
            ),
        }
        submit = self.chance.choice(draws[part])(catalog)
        self.possible[part].append(dict(self.model[part]))
        return submit

    def modelled(self, topic: str) -> tuple[str, str, int] | None:
        """The key of a topic in the model."""
        return next((key for key in self.model[SHARED] if key[:2] == ("topic", topic)), None)

    def create_topic(self, catalog: Catalog) -> Callable[[Done], None]:
        topic = self.chance.choice(TOPICS)
        self.wall_ms += 1
        if self.modelled(topic) is None:
            self.model[SHARED]["topic", topic, self.wall_ms] = {}
        create = partial(catalog.create_topic, topic, properties={}, created_wall_ms=self.wall_ms)
        return lambda done: create(done=done)

    def delete_topic(self, catalog: Catalog) -> Callable[[Done], None]:
        topic = self.chance.choice(TOPICS)
        self.model[SHARED].pop(self.modelled(topic), None)
        return partial(catalog.delete_topic, topic)

    def set_policies(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, policies = self.chance.choice(TOPICS), {"maxProducers": self.chance.randrange(1_000)}
        key = self.modelled(topic)
        if key is not None:
            self.model[SHARED][key] = policies
        return partial(catalog.set_topic_policies, topic, policies)

    def put_namespace(self, catalog: Catalog) -> Callable[[Done], None]:
        policies = {"retention": self.chance.randrange(1_000)}
        self.model[SHARED]["namespace", "public/default"] = policies
        return partial(catalog.put_namespace, "public/default", policies)

    def set_configuration(self, catalog: Catalog) -> Callable[[Done], None]:
        value = str(self.chance.randrange(1_000))
        self.model[SHARED]["configuration", "maxTopics"] = value
        return partial(catalog.set_configuration, "maxTopics", value)

    # -- and of one topic, as the view shows it

    def trim(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, first = self.chance.choice(TOPICS), self.chance.randrange(1, 1_000)
        record = catalog.topic(topic)
        if record is not None:
            self.model[OWN]["retained", topic, record.created_wall_ms] = first
        return partial(catalog.set_first_retained_entry, topic, first)

    def subscribe(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, subscription = self.chance.choice(TOPICS), self.chance.choice(SUBSCRIPTIONS)
        cursor, record = Cursor(), catalog.topic(topic)
        if record is not None:
            key = ("subscription", topic, record.created_wall_ms, subscription)
            if key not in self.model[OWN]:
                self.model[OWN][key] = ("latest", -1, above(cursor))
                self.cursors[key] = cursor
        stored = StoredCursor(-1, cursor.head())
        return partial(catalog.create_subscription, SubscriptionRecord(topic, subscription, "latest"), stored)

    def unsubscribe(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, subscription = self.chance.choice(TOPICS), self.chance.choice(SUBSCRIPTIONS)
        record = catalog.topic(topic)
        if record is not None:
            self.model[OWN].pop(("subscription", topic, record.created_wall_ms, subscription), None)
        return partial(catalog.delete_subscription, topic, subscription)

    def save_cursors(self, catalog: Catalog) -> Callable[[Done], None]:
        saves = []
        for key, value in self.model[OWN].items():
            record = catalog.topic(key[1])
            if key[0] == "subscription" and record is not None and record.created_wall_ms == key[2]:
                cursor = self.cursors[key]
                self.move(cursor)
                self.model[OWN][key] = (value[0], cursor.mark_delete, above(cursor))
                stored = StoredCursor(cursor.mark_delete, cursor.head())
                saves.append(CursorSave(key[1], key[3], stored, cursor.take_changes()))
        return partial(catalog.save_cursors, saves)

    def move(self, cursor: Cursor) -> None:
        """Some pages long now and then, so that one change needs several writes; and in several parts."""
        first, chance = cursor.mark_delete + 2, self.chance
        count, step = chance.choice(((20, 2), (800, 2), (40, 9_000)))
        draw = chance.random()
        if draw < 0.15:
            cursor.reset(chance.randrange(1_000))
        elif draw < 0.3:
            cursor.acknowledge_through(first + chance.randrange(200_000))
        else:
            cursor.acknowledge_many([first + chance.randrange(count) * step for _ in range(count)])
            cursor.acknowledge_batch(first + 1, [chance.randrange(1, 2**63)] * chance.choice((1, 300)))


@pytest.mark.parametrize("block", range(10))
def test_what_was_answered_survives_whatever_the_disk_does(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "WAL_PAGES_MAX", 30)  # So that checkpoints meet faults too.
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            Story(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_seed_writes_the_same_bytes_however_its_threads_are_scheduled() -> None:
    def written() -> dict[Path, bytes]:
        story = Story(25)
        story.live("kill")
        story.disk.kill()
        files = {path: story.disk.open(path) for path in FILES if story.disk.exists(path)}
        return {path: file.read(file.size(), 0) for path, file in files.items()}

    usual_s = sys.getswitchinterval()
    expected = written()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            assert written() == expected
    finally:
        sys.setswitchinterval(usual_s)


def without_holes(own: State) -> State:
    """What remains when the holes of every cursor are forgotten."""
    return {key: value[:2] if key[0] == "subscription" else value for key, value in own.items()}


@pytest.mark.parametrize("block", range(5))
def test_a_flipped_bit_is_told_or_changes_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may cost the last commit, which looks as if it was torn, or the holes of the cursor that it is in."""
    monkeypatch.setattr(metadata, "WAL_PAGES_MAX", 30)
    for seed in range(block * FLIPS // 5, (block + 1) * FLIPS // 5):
        story = Story(seed)
        story.live(story.chance.choice(("none", "kill")))
        story.disk.kill()
        sizes = {path: story.disk.open(path).size() for path in FILES if story.disk.exists(path)}
        path = story.chance.choice([path for path, size in sizes.items() if size])
        story.disk.flip(path, story.chance.randrange(8 * sizes[path]))
        try:
            with sqlite_on(story.disk) as vfs:
                loop = SteppedLoop()
                catalog = Catalog.open(DATA, loop.post, story.disk, exclusive=True, vfs=vfs)
                found = state_of(catalog, loop)
                loop.close(catalog)
        except MetadataFailed:
            continue  # Told.
        assert found[SHARED] in [*story.possible[SHARED], story.before_last[SHARED]], f"seed {seed}"
        # A topic that is back, because the commit that deleted it was lost, is back without what was stored about it.
        there = {key: value for key, value in found[SHARED].items() if key in story.possible[SHARED][-1]}
        found[OWN] = shown(found[OWN], there)
        expected = [shown(own, there) for own in (*story.possible[OWN], story.before_last[OWN])]
        assert without_holes(found[OWN]) in [without_holes(own) for own in expected], f"seed {seed}"
        damaged = [key for key, value in found[OWN].items() if key[0] == "subscription" and value[2] is None]
        assert len(damaged) <= 1, f"seed {seed}"
        assert found[OWN] in expected or damaged, f"seed {seed}"


def break_sync(disk: FaultyFiles) -> None:
    disk.fail_sync_at(1)


def fill(disk: FaultyFiles) -> None:
    disk.run_full_after(0)


@pytest.mark.parametrize(("fault", "reason"), [(break_sync, "IOError"), (fill, "FullError")])
def test_after_a_failure_of_the_disk_nothing_is_accepted_until_a_restart(
    fault: Callable[[FaultyFiles], None], reason: str
) -> None:
    disk, posted = formatted(FaultyFiles()), SimpleQueue[Any]()
    with sqlite_on(disk) as vfs:
        catalog = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        fault(disk)
        answers: list[PenstockError | None] = []
        for topic in TOPICS:
            catalog.create_topic(topic, properties={}, created_wall_ms=1, done=answers.append)
            posted.get()()
            disk.run_full_after(None)

        assert [type(answer) for answer in answers] == [MetadataFailed] * 3
        assert catalog.failed is not None
        assert catalog.failed.startswith(reason)
        assert not catalog.topics()
        catalog.close()

        restarted = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        restarted.create_topic(TOPICS[0], properties={}, created_wall_ms=1, done=answers.append)
        posted.get()()
        assert answers[3] is None
        assert restarted.failed is None
        restarted.close()


class FaultyDirectory(FaultyFiles):
    """A disk that, when broken, syncs files and no directories."""

    broken = False

    def sync_directory(self, path: Path) -> None:
        if self.broken:
            raise OSError(errno.EIO, f"cannot sync {path}")
        super().sync_directory(path)


def test_a_directory_that_cannot_be_synced_keeps_the_catalog_from_opening() -> None:
    disk = FaultyDirectory()
    open_data_directory(DATA.path, disk)
    disk.broken = True
    with (
        sqlite_on(disk) as vfs,
        pytest.raises(MetadataFailed, match=r"cannot open /data/meta\.sqlite.*cannot sync /data"),
    ):
        Catalog.open(DATA, SteppedLoop().post, disk, exclusive=True, vfs=vfs)


def test_a_write_ahead_log_damaged_in_the_middle_is_refused_by_name() -> None:
    disk, posted = formatted(FaultyFiles()), SimpleQueue[Any]()
    with sqlite_on(disk) as vfs:
        catalog = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        for topic in TOPICS:
            catalog.create_topic(topic, properties={}, created_wall_ms=1, done=lambda _: None)
            posted.get()()
        disk.lose_power()
        catalog.close()
        disk.kill()
        disk.flip(DATA.metadata.with_name("meta.sqlite-wal"), 8 * 5_000)

        with pytest.raises(MetadataFailed, match=r"meta\.sqlite-wal is damaged after frame \d+: \d+ commits behind it"):
            Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_while_opening_after_a_failed_sync_leaves_a_catalog_that_opens(seed: int) -> None:
    """What the failed sync left in the page cache must not get into the main file before it is on the disk itself."""
    disk, posted, chance = formatted(FaultyFiles()), SimpleQueue[Any](), random.Random(seed)
    with sqlite_on(disk) as vfs:
        catalog = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        create(catalog, TOPICS[0], posted)
        catalog.close()
        catalog = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        disk.fail_sync_at(1)
        create(catalog, TOPICS[1], posted)
        catalog.close()
        disk.kill()
        disk.lose_power_at(chance.randrange(1, 30))
        with suppress(MetadataFailed):
            Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs).close()
        disk.crash(chance)

        reopened = Catalog.open(DATA, posted.put, disk, exclusive=True, vfs=vfs)
        assert reopened.topic(TOPICS[0]) is not None
        reopened.close()


def create(catalog: Catalog, topic: str, posted: SimpleQueue[Any]) -> None:
    """Create a topic that takes ten pages."""
    catalog.create_topic(topic, properties={"note": "x" * 40_000}, created_wall_ms=1, done=lambda _: None)
    posted.get()()


def formatted(disk: FaultyFiles) -> FaultyFiles:
    """A disk with an empty data directory."""
    open_data_directory(DATA.path, disk)
    return disk
