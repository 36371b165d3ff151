# SPDX-License-Identifier: Apache-2.0
"""The catalog on a bad disk: what comes back is the state after some number of whole changes, none answered missing.

Each seed is a story of several lives of one directory. In each life random changes are submitted in bursts, and at a
random moment the power goes, a sync fails or the disk is full. Then the process starts again, after a power cut or
not. A plain model is told the same changes.
"""

from __future__ import annotations

import copy
import random
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import MetadataFailed, PenstockError
from penstock.storage import metadata
from penstock.storage.catalog import Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.testing.files import FaultyFiles
from penstock.testing.vfs import sqlite_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.metadata import Done

SEEDS = 300
LIVES = 3
PATH = Path("/data/meta.sqlite")
TOPICS = [f"persistent://public/default/{name}" for name in ("ewr", "jfk", "lga")]
SUBSCRIPTIONS = ["audit", "work"]

# What a catalog says, comparable: without ledger ids, which are watched by themselves.
State = dict[str, Any]


class SteppedLoop:
    """The test is the loop, and lets the metadata thread go on only when the next burst is queued.

    So a burst is one transaction, and a seed tells the same story every time.
    """

    def __init__(self) -> None:
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.go = threading.Semaphore(0)

    def post(self, call: Callable[[], None]) -> None:
        self.posted.put(call)
        self.go.acquire()

    def turn(self) -> None:
        self.posted.get()()


class Story:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = FaultyFiles()
        self.wall_ms = 0
        self.model: State = {
            "namespaces": {"public/default": {}, "pulsar/system": {}},
            "topics": {},
            "subscriptions": {},
            "configuration": {},
        }
        self.possible: list[State] = [copy.deepcopy(self.model)]  # After each change from the last answered one on.
        self.owners: dict[int, int] = {}  # ledger id -> when its topic was created, which is unique here

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
            self.disk.lose_power_at(self.chance.randrange(1, 150), cut_ratio=self.chance.random())
        elif fault == "sync":
            self.disk.fail_sync_at(self.chance.randrange(1, 30))
        elif fault == "full":
            self.disk.run_full_after(self.chance.randrange(500_000))
        return fault

    def live(self, fault: str, bursts: int = 8) -> None:
        """Start, compare, change, and stop or fail."""
        loop = SteppedLoop()
        with sqlite_on(self.disk) as vfs:
            try:
                catalog = Catalog.open(PATH, loop.post, self.disk, exclusive=True, vfs=vfs)
            except MetadataFailed:
                assert fault != "none"
                return
            self.compare(catalog)
            # The first burst is a single change: the waiting thread takes it at once, alone.
            for size in [1] + [self.chance.randrange(1, 7) for _ in range(bursts)] if bursts else []:
                answers: list[PenstockError | None] = []
                for _ in range(size):
                    self.change(catalog)(answers.append)
                loop.go.release()
                self.settle(loop, answers, size)
            loop.go.release()
            catalog.close()
            assert catalog.failed is None or fault != "none"

    def settle(self, loop: SteppedLoop, answers: list[PenstockError | None], size: int) -> None:
        while len(answers) < size:
            loop.turn()
        if not any(isinstance(answer, MetadataFailed) for answer in answers):
            del self.possible[:-1]  # Answered: only the newest state may come back.

    def compare(self, catalog: Catalog) -> None:
        found: State = {
            "namespaces": {name: dict(policies) for name, policies in catalog.namespaces().items()},
            "topics": {
                topic.name: (topic.created_wall_ms, dict(topic.policies), topic.first_retained_entry)
                for topic in catalog.topics()
            },
            "subscriptions": {
                (topic.name, subscription.name): (
                    subscription.initial_position,
                    catalog.cursor(topic.name, subscription.name),
                )
                for topic in catalog.topics()
                for subscription in catalog.subscriptions(topic.name)
            },
            "configuration": dict(catalog.configuration()),
        }
        assert found in self.possible
        self.model = found
        self.possible = [copy.deepcopy(found)]
        for topic in catalog.topics():
            assert self.owners.setdefault(topic.ledger_id, topic.created_wall_ms) == topic.created_wall_ms

    # -- changes: each tells the model and returns how to submit it

    def change(self, catalog: Catalog) -> Callable[[Done], None]:
        draw = self.chance.choice(
            (
                *(self.create_topic, self.create_topic, self.delete_topic, self.set_policies, self.trim),
                *(self.subscribe, self.subscribe, self.unsubscribe, self.save_cursors, self.save_cursors),
                *(self.put_namespace, self.set_configuration),
            )
        )
        submit = draw(catalog)
        self.possible.append(copy.deepcopy(self.model))
        return submit

    def create_topic(self, catalog: Catalog) -> Callable[[Done], None]:
        topic = self.chance.choice(TOPICS)
        self.wall_ms += 1
        self.model["topics"].setdefault(topic, (self.wall_ms, {}, 0))
        create = partial(catalog.create_topic, topic, properties={}, created_wall_ms=self.wall_ms)
        return lambda done: create(done=done)

    def delete_topic(self, catalog: Catalog) -> Callable[[Done], None]:
        topic = self.chance.choice(TOPICS)
        self.model["topics"].pop(topic, None)
        for subscription in SUBSCRIPTIONS:
            self.model["subscriptions"].pop((topic, subscription), None)
        return partial(catalog.delete_topic, topic)

    def set_policies(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, policies = self.chance.choice(TOPICS), {"maxProducers": self.chance.randrange(1_000)}
        if topic in self.model["topics"]:
            created, _, first = self.model["topics"][topic]
            self.model["topics"][topic] = (created, policies, first)
        return partial(catalog.set_topic_policies, topic, policies)

    def trim(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, first = self.chance.choice(TOPICS), self.chance.randrange(1_000)
        if topic in self.model["topics"]:
            self.model["topics"][topic] = (*self.model["topics"][topic][:2], first)
        return partial(catalog.set_first_retained_entry, topic, first)

    def subscribe(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, subscription = self.chance.choice(TOPICS), self.chance.choice(SUBSCRIPTIONS)
        cursor = StoredCursor(-1, b"fresh")
        if topic in self.model["topics"]:
            self.model["subscriptions"].setdefault((topic, subscription), ("latest", cursor))
        return partial(catalog.create_subscription, SubscriptionRecord(topic, subscription, "latest"), cursor)

    def unsubscribe(self, catalog: Catalog) -> Callable[[Done], None]:
        topic, subscription = self.chance.choice(TOPICS), self.chance.choice(SUBSCRIPTIONS)
        self.model["subscriptions"].pop((topic, subscription), None)
        return partial(catalog.delete_subscription, topic, subscription)

    def save_cursors(self, catalog: Catalog) -> Callable[[Done], None]:
        # Some pages long now and then, so that one change needs several writes.
        cursor = StoredCursor(self.chance.randrange(1_000), self.chance.randbytes(self.chance.choice((20, 20, 20_000))))
        subscriptions = self.model["subscriptions"]
        known = [key for key in subscriptions if catalog.topic(key[0]) is not None]
        for key in known:
            subscriptions[key] = (subscriptions[key][0], cursor)
        return partial(catalog.save_cursors, [CursorSave(topic, name, cursor) for topic, name in known])

    def put_namespace(self, catalog: Catalog) -> Callable[[Done], None]:
        policies = {"retention": self.chance.randrange(1_000)}
        self.model["namespaces"]["public/default"] = policies
        return partial(catalog.put_namespace, "public/default", policies)

    def set_configuration(self, catalog: Catalog) -> Callable[[Done], None]:
        value = str(self.chance.randrange(1_000))
        self.model["configuration"]["maxTopics"] = value
        return partial(catalog.set_configuration, "maxTopics", value)


@pytest.mark.parametrize("block", range(10))
def test_what_was_answered_survives_whatever_the_disk_does(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "WAL_PAGES_MAX", 30)  # So that checkpoints meet faults too.
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            Story(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
