# SPDX-License-Identifier: Apache-2.0
"""The catalog on a bad disk: what comes back is the state after some number of whole changes, none answered missing.

Each seed is a story of several lives of one directory. In each life random changes are submitted in bursts, and at a
random operation of the disk something happens: the power goes, a sync fails, a write fails, the disk is full. Then the
process starts again, with or without the power having been cut. A plain model is told the same changes.
"""

from __future__ import annotations

import copy
import random
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import MetadataFailed, PenstockError
from penstock.storage import metadata
from penstock.storage.catalog import Catalog, CursorSave, StoredCursor, SubscriptionRecord
from penstock.testing.vfs import sqlite_on
from tests.storage.bad_disk import BadDisk, Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.metadata import Done

SEEDS = 300
LIVES = 3
PATH = Path("/data/meta.sqlite")
TOPICS = [f"persistent://public/default/{name}" for name in ("ewr", "jfk", "lga")]
SUBSCRIPTIONS = ["audit", "work"]
FAULTS = [Fault.POWER, Fault.POWER, Fault.SYNC, Fault.WRITE, Fault.FULL, Fault.NONE]

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
        self.disk = BadDisk(self.chance)
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
            self.disk.plan(self.chance.choice(FAULTS), after=self.chance.randrange(120))
            self.live()
            if self.chance.random() < 0.7:
                self.disk.lose_power()
            self.disk.plan(Fault.NONE, after=0)
        self.live(bursts=0)

    def live(self, bursts: int = 8) -> None:
        """Start, compare, change, and stop or fail."""
        loop = SteppedLoop()
        with sqlite_on(self.disk) as vfs:
            try:
                catalog = Catalog.open(PATH, loop.post, exclusive=True, vfs=vfs)
            except MetadataFailed:
                assert self.disk.struck
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
            assert catalog.failed is None or self.disk.struck

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
                (topic.name, subscription.name): (subscription.initial_position, catalog.cursor(topic.name, subscription.name))
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

    def change(self, catalog: Catalog) -> Callable[[Done], None]:
        """Draw a change, tell the model, and return how to submit it."""
        chance, model = self.chance, self.model
        topic, subscription = chance.choice(TOPICS), chance.choice(SUBSCRIPTIONS)
        value = chance.randrange(1_000)
        submit: Callable[[Done], None]
        match chance.choice(["topic", "topic", "policies", "trim", "namespace", "subscribe", "save", "save", "set", "drop", "leave"]):
            case "topic":
                self.wall_ms += 1
                wall_ms = self.wall_ms
                model["topics"].setdefault(topic, (wall_ms, {}, 0))
                submit = lambda done: catalog.create_topic(topic, properties={}, created_wall_ms=wall_ms, done=done)
            case "policies":
                if topic in model["topics"]:
                    created, _, first = model["topics"][topic]
                    model["topics"][topic] = (created, {"maxProducers": value}, first)
                submit = lambda done: catalog.set_topic_policies(topic, {"maxProducers": value}, done)
            case "trim":
                if topic in model["topics"]:
                    model["topics"][topic] = (*model["topics"][topic][:2], value)
                submit = lambda done: catalog.set_first_retained_entry(topic, value, done)
            case "namespace":
                model["namespaces"]["public/default"] = {"retention": value}
                submit = lambda done: catalog.put_namespace("public/default", {"retention": value}, done)
            case "subscribe":
                if topic in model["topics"]:
                    model["subscriptions"].setdefault((topic, subscription), ("latest", StoredCursor(-1, b"fresh")))
                record = SubscriptionRecord(topic, subscription, "latest")
                submit = lambda done: catalog.create_subscription(record, StoredCursor(-1, b"fresh"), done)
            case "save":
                # Several pages long now and then, so that one change needs several writes.
                cursor = StoredCursor(value, chance.randbytes(chance.choice([20, 20, 20_000])))
                shown = [key for key in model["subscriptions"] if catalog.cursor(*key) is not None]
                model["subscriptions"] |= {key: (model["subscriptions"][key][0], cursor) for key in shown}
                saves = [CursorSave(*key, cursor) for key in shown]
                submit = lambda done: catalog.save_cursors(saves, done)
            case "set":
                model["configuration"]["maxTopics"] = str(value)
                submit = lambda done: catalog.set_configuration("maxTopics", str(value), done)
            case "drop":
                model["topics"].pop(topic, None)
                model["subscriptions"] = {key: kept for key, kept in model["subscriptions"].items() if key[0] != topic}
                submit = lambda done: catalog.delete_topic(topic, done)
            case _:
                model["subscriptions"].pop((topic, subscription), None)
                submit = lambda done: catalog.delete_subscription(topic, subscription, done)
        self.possible.append(copy.deepcopy(model))
        return submit


@pytest.mark.parametrize("block", range(10))
def test_what_was_answered_survives_whatever_the_disk_does(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "WAL_PAGES_MAX", 30)  # So that checkpoints meet faults too.
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        try:
            Story(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
