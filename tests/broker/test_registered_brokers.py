# SPDX-License-Identifier: Apache-2.0
"""Brokers that share quotas with those that are registered, in virtual time; `tests/net` has a real ZooKeeper."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.membership import Registration, Registry
from penstock.governance.presence import Presence
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import Message
from penstock.wire.codec import CommandSubscribe
from tests.broker.cluster import several
from tests.broker.test_quota_sharing import NAMESPACE, QUOTA, USAGE, Cluster, reporter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NAMES = ("broker-0", "broker-1")
RESERVE = 0.01


class Registered(Registry):
    """What one broker knows of a registry that the test keeps."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._presence = Presence(own)
        self._listeners: list[Callable[[], None]] = []
        self._problem: str | None = None

    @property
    def own(self) -> str:
        return self._own

    @property
    def names(self) -> frozenset[str]:
        return self._presence.names(self._now_ns())

    @property
    def registration(self) -> Registration:
        return Registration(
            registered_ms=None if self._problem else 1,
            problem=self._problem,
            members=len(self.names),
            losses=0,
            ignored={},
        )

    def hear(self, name: str, until_ns: int) -> None:
        self._presence.hear(name, until_ns, self._now_ns())

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def lists(self, *names: str) -> None:
        self._presence.set_listed(names, self._now_ns())
        self._tell(None)

    def is_lost(self) -> None:
        """The registry is not reached any more."""
        self._presence.lose()
        self._tell("the registry is not reached")

    def has_twin(self) -> None:
        """Another process has the name."""
        self._presence.give_way()
        self._tell("the name is taken")

    def _tell(self, problem: str | None) -> None:
        self._problem = problem
        for changed in self._listeners:
            changed()

    def _now_ns(self) -> int:
        return round(asyncio.get_running_loop().time() * 1_000_000_000)


class RegisteredCluster(Cluster):
    """Brokers with a registry."""

    registries: tuple[Registered, Registered]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[RegisteredCluster]:
    """Two brokers that are registered."""
    registries = (Registered(NAMES[0]), Registered(NAMES[1]))
    async with several(tmp_path, registries=registries) as harnesses:
        cluster = RegisteredCluster(harnesses)
        cluster.registries = registries
        for one in registries:
            one.lists(*NAMES)
        yield cluster


async def busy(cluster: Cluster) -> None:
    """Let both brokers be offered more than the quota, until they have equal parts."""
    await cluster.share_quota()
    for number in (0, 1):
        await cluster.offer(number, 20_000)
    await asyncio.sleep(2)
    assert await cluster.rates(2) == pytest.approx([QUOTA / 2] * 2, rel=0.1)


async def test_brokers_that_are_registered_share_a_quota(two: RegisteredCluster) -> None:
    await busy(two)
    assert two.sharing(0).members == 2
    assert two.harnesses[0].broker.health.problems == ()


async def test_nothing_changes_for_brokers_that_hear_each_other_while_the_registry_is_away(
    two: RegisteredCluster,
) -> None:
    await busy(two)
    for one in two.registries:
        one.is_lost()
    assert await two.rates(20) == pytest.approx([QUOTA / 2] * 2, rel=0.1)
    assert two.harnesses[0].broker.health.problems == ("the registry is not reached",)
    found = await administration(two.harnesses[0].broker, for_peers=True).why.of_namespace(NAMESPACE)
    (finding,) = found["findings"]
    assert finding["liftedBy"].endswith("; the registry is not reached")
    assert finding["numbers"]["members"] == 2


async def test_a_broker_that_alone_has_lost_the_registry_stays_for_both_while_it_is_heard(
    two: RegisteredCluster,
) -> None:
    await busy(two)
    two.registries[1].is_lost()
    two.registries[0].lists("broker-0")
    assert await two.rates(20) == pytest.approx([QUOTA / 2] * 2, rel=0.1)


async def test_a_broker_that_lost_the_registry_and_is_not_heard_leaves_its_share(two: RegisteredCluster) -> None:
    await busy(two)
    await two.sharing(1).stop()  # It reports nothing any more.
    await asyncio.sleep(4)
    two.registries[0].lists("broker-0")
    await two.offer(0, 20_000)
    await asyncio.sleep(2)
    assert two.share(0) == pytest.approx(QUOTA, rel=0.05)


async def test_a_broker_that_is_not_registered_has_the_reserve_and_reports_nothing(two: RegisteredCluster) -> None:
    two.registries[1].lists("broker-0")
    two.registries[0].lists("broker-0")
    await two.share_quota()
    for number in (0, 1):
        await two.offer(number, 20_000)
    await asyncio.sleep(2)
    assert two.share(0) == pytest.approx(QUOTA, rel=0.05)
    assert two.share(1) <= QUOTA * RESERVE
    assert two.sharing(1).sent == 0
    assert not two.sharing(0).refused
    for one in two.registries:
        one.lists(*NAMES)
    await asyncio.sleep(3)
    assert await two.rates(2) == pytest.approx([QUOTA / 2] * 2, rel=0.1)


async def test_a_twin_that_is_kept_out_does_not_push_the_first_one_aside(two: RegisteredCluster) -> None:
    await busy(two)
    two.registries[1].has_twin()
    sent = two.sharing(1).sent
    await asyncio.sleep(5)
    assert two.sharing(1).sent == sent
    assert two.share(1) <= QUOTA * RESERVE
    assert "the name is taken" in two.harnesses[1].broker.health.problems


async def test_reports_that_are_repeated_keep_no_broker_that_is_gone(two: RegisteredCluster) -> None:
    await two.share_quota()
    async with reporter(two) as (client, producer):
        body = CommandSubscribe(
            topic=USAGE, subscription="s", consumer_id=0, request_id=0, subType=CommandSubscribe.Shared, durable=False
        )
        await client.subscribe(Consumer(body, permits_max=100))
        reports: list[bytes] = []
        while len(reports) < 10:
            event = await client.next_event()
            if isinstance(event, Message):
                reports.append(bytes(event.payload))
        await two.sharing(1).stop()
        two.registries[0].lists("broker-0")
        for _ in range(10):
            for report in reports:
                client.connection.send(producer, producer.metadata(0), report)
            client.flush()
            await asyncio.sleep(0.5)
        assert two.sharing(0).refused["repeated"] > 0
    assert two.registries[0].names == {"broker-0"}
