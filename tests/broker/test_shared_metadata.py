# SPDX-License-Identifier: Apache-2.0
"""Brokers that share metadata: all see the same changes in the same order, and no change undoes another.

Each seed is a story of several lives of one data directory, on a virtual loop: one writer and three brokers, whose
administrators add to the same counters, create and delete the same topics; brokers are killed. In some lives the power
goes, a sync fails or the disk is full. PENSTOCK_FAULT_SEEDS=5000 tells that many stories instead of a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.broker.changes import Changes
from penstock.core.broker_states import BrokerState
from penstock.core.errors import (
    ConfigurationError,
    DataDirectoryLocked,
    MetadataFailed,
    PenstockError,
    ServiceNotReady,
    TopicNotFound,
)
from penstock.core.membership import Member
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.core.units import NS_PER_MS
from penstock.net.metadata_link import follow, serve
from penstock.storage.catalog import Catalog, StoredCursor, SubscriptionRecord
from penstock.storage.cursor import Cursor
from penstock.storage.directory import DataDirectory, open_data_directory
from penstock.storage.shared_writer import Writer
from penstock.testing.disk import VirtualDisk
from penstock.testing.loop import VirtualLoop
from penstock.testing.vfs import sqlite_on
from tests.broker.cluster import socket_pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from penstock.storage.shared_view import Row

SEEDS = int(os.environ.get("PENSTOCK_FAULT_SEEDS", "60"))
DATA = DataDirectory(Path("/data"))
BROKERS = 3
LIVES = 3
OPERATIONS = 25  # of each administrator
ADMINISTRATORS = 2  # of each broker
COUNTERS = ("a", "b")
TOPICS = [f"persistent://public/default/{name}" for name in ("ewr", "jfk")]
HERE = Addresses(
    service=ServiceUrls("pulsar://127.0.0.1:6650", "pulsar+ssl://127.0.0.1:6651"),
    web=ServiceUrls("http://127.0.0.1:8080", None),
    listeners={"inside": ServiceUrls("pulsar://10.0.0.1:6650", None)},
)


class World:
    """One writer and its brokers, on one disk."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = cast("VirtualLoop", asyncio.get_running_loop())
        self.disk = VirtualDisk(self.loop)
        self.answered = dict.fromkeys(COUNTERS, 0)
        self.unknown = dict.fromkeys(COUNTERS, 0)  # additions that may have been stored or not
        self.writer: Writer
        self.brokers: list[Broker] = []

    def post(self, call: Callable[[], None]) -> None:
        self.loop.call_soon_threadsafe(call)

    async def start(self, vfs: str, brokers: int = BROKERS) -> None:
        open_data_directory(DATA.path, self.disk, brokers=brokers)
        self.writer = Writer.open(DATA, self.post, self.disk, brokers=brokers, exclusive=True, vfs=vfs)
        self.brokers = [Broker(self, number, vfs) for number in range(brokers)]
        for broker in self.brokers:
            await broker.start()

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        self.writer.close()
        await self.loop.quiet()


class Broker:
    """One broker process, as far as metadata goes."""

    def __init__(self, world: World, number: int, vfs: str) -> None:
        self.world = world
        self.number = number
        self.vfs = vfs
        self.changes = Changes(world.loop)
        self.catalog: Catalog
        self.seen: dict[str, int] = {}
        self._ends: list[Callable[[], None]] = []

    async def start(self) -> None:
        world = self.world
        near, far = socket_pair(world.loop)
        self._ends = [await serve(world.writer, near)]
        follower, end = await follow(self.number, far)
        self._ends.append(end)
        self.catalog = Catalog.open(
            DATA, world.post, world.disk, broker=self.number, shared=follower, exclusive=True, vfs=self.vfs
        )
        self.follower = follower
        self.seen = {name: value["n"] for name, value in self.catalog.documents("counter").items()}
        self.catalog.listen(self.changed_elsewhere)

    async def stop(self) -> None:
        """As a process ends: at once, whatever it has sent."""
        self.end_links()
        self.catalog.close()

    def end_links(self) -> None:
        for end in self._ends:
            end()

    def changed_elsewhere(self, rows: Sequence[Row]) -> None:
        """Every change of a counter comes, once, in order."""
        for kind, name, value, _ in rows:
            if kind == "counter":
                assert isinstance(value, dict)
                assert value["n"] == self.seen.get(name, 0) + 1
                assert self.catalog.documents("counter")[name] == value
                self.seen[name] = value["n"]

    async def add(self, name: str) -> None:
        """Add one to a counter, as an administrator changes a policy."""

        def decide() -> Callable[[Any], None]:
            before = self.catalog.documents("counter").get(name)
            assert (before or {"n": 0})["n"] == self.seen.get(name, 0)
            value = {"n": self.seen.get(name, 0) + 1}

            def submit(done: Callable[[PenstockError | None], None]) -> None:
                def stored(error: PenstockError | None) -> None:
                    if error is None:
                        assert self.catalog.documents("counter")[name] == value
                        assert self.seen.get(name, 0) + 1 == value["n"]
                        self.seen[name] = value["n"]
                    done(error)

                self.catalog.put_document("counter", name, value, stored, expected=before)

            return submit

        try:
            await self.changes.store_alone(decide)
        except MetadataFailed:
            self.world.unknown[name] += 1
            raise
        self.world.answered[name] += 1

    async def administer(self, chance: random.Random) -> None:
        for _ in range(OPERATIONS):
            catalog, topic = self.catalog, chance.choice(TOPICS)
            stored = self.changes.stored
            try:
                match chance.randrange(7):
                    case 0:
                        create = partial(catalog.create_topic, topic, properties={}, created_wall_ms=1)
                        await stored(lambda done: create(done=done))  # noqa: B023 - called at once
                    case 1:
                        await stored(partial(catalog.delete_topic, topic))
                    case 2:
                        await stored(partial(catalog.set_configuration, "key", str(chance.randrange(9))))
                    case 3:
                        note = {"text": "x" * chance.randrange(100)}
                        await stored(partial(catalog.put_document, "note", topic, chance.choice((note, None))))
                    case _:
                        await self.add(chance.choice(COUNTERS))
            except TopicNotFound:
                pass
            except MetadataFailed:
                if self.world.writer.failed is not None:
                    return
            await asyncio.sleep(chance.random() / 100)


async def killing(world: World) -> None:
    """End brokers at any moment, and start them again."""
    for _ in range(world.chance.randrange(10)):
        await asyncio.sleep(world.chance.random() / 10)
        broker = world.chance.choice(world.brokers)
        await broker.stop()
        if world.writer.failed is None:
            with contextlib.suppress(MetadataFailed):  # It fails in this very moment.
                await broker.start()


def view_of(catalog: Catalog) -> object:
    return (
        {record.name: record for record in catalog.topics()},
        dict(catalog.configuration()),
        dict(catalog.documents("counter")),
        dict(catalog.documents("note")),
        catalog.document_bytes("note"),
        {name: dict(policies) for name, policies in catalog.namespaces().items()},
    )


async def live(world: World, fault: str) -> None:
    with sqlite_on(world.disk) as vfs:
        await world.start(vfs)
        check_counters(world)
        world.disk.sync_ns = lambda: world.chance.randrange(20 * NS_PER_MS)  # So that commits have many changes.
        if fault == "power":
            world.disk.lose_power_at(world.chance.randrange(1, 400), cut_ratio=world.chance.random())
        elif fault == "sync":
            world.disk.fail_sync_at(world.chance.randrange(1, 60))
        elif fault == "full":
            world.disk.run_full_after(world.chance.randrange(400_000))
        administrators: list[Coroutine[Any, Any, None]] = [
            broker.administer(random.Random(world.chance.random()))
            for broker in world.brokers
            for _ in range(ADMINISTRATORS)
        ]
        await asyncio.gather(*administrators, killing(world))
        await world.loop.quiet()
        if fault == "none":
            assert world.writer.failed is None
        if world.writer.failed is not None:
            await check_all_refuse(world)
        elif fault == "none":
            await check_all_alike(world)
        await world.stop()


async def check_all_alike(world: World) -> None:
    views = [view_of(broker.catalog) for broker in world.brokers if broker.follower.failed is None]
    assert all(view == views[0] for view in views)
    fresh = world.brokers[0]
    await fresh.stop()
    await fresh.start()
    assert view_of(fresh.catalog) == views[0]
    check_counters(world)


async def check_all_refuse(world: World) -> None:
    for broker in world.brokers:
        assert broker.catalog.failed is not None
        with pytest.raises(MetadataFailed):
            await broker.add("a")


def check_counters(world: World) -> None:
    """What was answered is there, and nothing that was not asked for."""
    for name in COUNTERS:
        found = world.brokers[0].catalog.documents("counter").get(name, {"n": 0})["n"]
        assert world.answered[name] <= found <= world.answered[name] + world.unknown[name]
        world.answered[name], world.unknown[name] = found, 0


async def story(seed: int) -> None:
    world = World(seed)
    for _ in range(LIVES):
        fault = world.chance.choice(("none", "none", "power", "sync", "full"))
        await live(world, fault)
        if fault == "power" or world.chance.random() < 0.5:
            world.disk.crash(world.chance)
        else:
            world.disk.kill()
        world.disk.heal_all()
    await live(world, "none")


@pytest.mark.parametrize("block", range(6))
def test_all_brokers_see_every_change_once_and_in_order_and_none_is_lost(block: int) -> None:
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        try:
            with asyncio.Runner(loop_factory=partial(VirtualLoop, seed)) as runner:
                runner.run(story(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


# -- one thing at a time


@contextlib.asynccontextmanager
async def running(brokers: int = 2) -> AsyncIterator[World]:
    world = World(seed=1)
    with sqlite_on(world.disk) as vfs:
        await world.start(vfs, brokers)
        yield world
        await world.stop()


async def create(broker: Broker, topic: str, place: int) -> None:
    catalog = broker.catalog
    create = partial(catalog.create_topic, topic, properties={}, created_wall_ms=1, broker=place)
    await broker.changes.stored(lambda done: create(done=done))


async def test_brokers_are_told_who_there_is_now_and_when_that_changes() -> None:
    async with running() as world:
        first, second = world.brokers
        heard: list[object] = []
        first.follower.membership.listen(lambda: heard.append(dict(first.follower.membership.members)))
        both = [Member(0, BrokerState.READY, HERE), Member(1, BrokerState.STARTING)]

        world.writer.set_members(both)
        await world.loop.quiet()
        assert heard == [dict(enumerate(both))]

        await second.stop()
        await second.start()
        assert second.follower.membership.members == dict(enumerate(both))
        assert second.follower.membership.own == 1


async def test_a_topic_is_known_to_all_brokers_and_served_by_one() -> None:
    async with running() as world:
        first, second = world.brokers
        await create(first, TOPICS[0], place=1)
        await world.loop.quiet()
        subscription, cursor = SubscriptionRecord(TOPICS[0], "s", "earliest"), StoredCursor(-1, Cursor().head())

        await second.changes.stored(partial(second.catalog.create_subscription, subscription, cursor))
        with pytest.raises(ServiceNotReady, match="is served by broker 1, not by 0"):
            await first.changes.stored(partial(first.catalog.create_subscription, subscription, cursor))

        assert not first.catalog.subscriptions(TOPICS[0])
        assert list(second.catalog.subscriptions(TOPICS[0])) == [subscription]
        await first.changes.stored(partial(first.catalog.delete_topic, TOPICS[0]))
        await world.loop.quiet()
        assert not second.catalog.subscriptions(TOPICS[0])


async def test_a_broker_that_has_caught_up_knows_what_was_stored_before() -> None:
    async with running() as world:
        first, second = world.brokers
        await create(first, TOPICS[0], place=0)
        await second.changes.stored(second.catalog.catch_up)
        assert second.catalog.topic(TOPICS[0]) is not None
        await first.changes.stored(partial(first.catalog.delete_topic, TOPICS[0]))
        await second.changes.stored(second.catalog.catch_up)
        assert second.catalog.topic(TOPICS[0]) is None


async def test_a_change_without_an_answer_fails_when_the_writer_is_gone_and_so_do_later_ones() -> None:
    async with running() as world:
        first, _ = world.brokers
        waiting = asyncio.ensure_future(create(first, TOPICS[0], place=0))
        await asyncio.sleep(0)
        first.end_links()
        with pytest.raises(MetadataFailed, match=r"is gone; the change may have been stored or not"):
            await waiting
        with pytest.raises(
            MetadataFailed, match=r"refuses changes since: the process that writes the metadata is gone"
        ):
            await create(first, TOPICS[1], place=0)


async def test_a_data_directory_has_one_writer() -> None:
    async with running() as world:
        with sqlite_on(world.disk) as vfs, pytest.raises(DataDirectoryLocked, match="/data is in use by process"):
            Writer.open(DATA, world.post, world.disk, brokers=2, exclusive=True, vfs=vfs)


async def test_fewer_brokers_than_topics_are_placed_on_are_refused_with_what_to_do() -> None:
    world = World(seed=1)
    with sqlite_on(world.disk) as vfs:
        await world.start(vfs, 3)
        await create(world.brokers[0], TOPICS[0], place=2)
        await world.stop()
        expected = (
            rf"broker 2 has 1 \(such as {TOPICS[0]}\); start penstock with --brokers 3, or once more, so that it moves"
        )
        with pytest.raises(ConfigurationError, match=expected):
            await world.start(vfs, 2)
        with pytest.raises(ConfigurationError, match=expected):
            Catalog.open(DATA, world.post, world.disk, exclusive=True, vfs=vfs)

        await world.start(vfs, 3)
        await world.brokers[0].changes.stored(partial(world.brokers[0].catalog.delete_topic, TOPICS[0]))
        await world.stop()
        Catalog.open(DATA, world.post, world.disk, exclusive=True, vfs=vfs).close()


async def test_what_must_hold_between_records_is_decided_by_the_writer() -> None:
    """Each broker does what its own view allows, at the same time as the other one."""
    async with running() as world:
        first, second = (broker.catalog for broker in world.brokers)
        outcomes: list[PenstockError | None] = []
        for submit in (
            partial(first.put_tenant, "acme", {}),
            partial(second.put_namespace, "acme/air", {}),
            partial(first.delete_tenant, "acme"),
            partial(first.put_namespace, "gone/air", {}),
            partial(second.create_topic, "persistent://acme/sea/t", properties={}, created_wall_ms=1),
            partial(second.create_topic, "persistent://acme/air/t", properties={}, created_wall_ms=1),
            partial(first.delete_namespace, "acme/air"),
        ):
            submit(done=outcomes.append)
            await world.loop.quiet()
        refused = [type(outcome).__name__ for outcome in outcomes]
        none, changed = "NoneType", "ChangedMeanwhile"
        assert refused == [none, none, changed, changed, "NamespaceNotFound", none, changed]


async def test_an_answer_that_comes_after_the_catalog_was_closed_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as world:
        first, second = world.brokers
        waiting = asyncio.ensure_future(create(first, TOPICS[0], place=0))
        await asyncio.sleep(0)
        first.follower.close()
        with pytest.raises(MetadataFailed, match="penstock is stopping; the change may have been stored or not"):
            await waiting
        await world.loop.quiet()
        assert second.catalog.topic(TOPICS[0]) is not None
    assert not caplog.records
