# SPDX-License-Identifier: Apache-2.0
"""Deletions at several brokers, while clients of others go on creating topics, and while some do not answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.broker_states import BrokerState
from penstock.core.errors import (
    NamespaceNotFound,
    NotFound,
    PenstockError,
    PreconditionFailed,
    ServiceNotReady,
    TopicNotFound,
)
from penstock.core.names import NamespaceName, TopicName
from penstock.storage.shared_view import DELETIONS, PARTITIONED
from tests.broker.cluster import several
from tests.net.harness import until

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from penstock.core.membership import SharedMembership
    from tests.net.harness import Harness

GONE = NamespaceName("public", "gone")


def topic(number: int, domain: str = "persistent") -> TopicName:
    return TopicName.parse(f"{domain}://{GONE}/t-{number}")


async def create(harness: Harness, name: TopicName) -> None:
    await harness.broker.topics.get_or_create(name, create=True)


async def prepared(harnesses: list[Harness]) -> None:
    """The namespace, with topics on all brokers."""
    await administration(harnesses[0].broker).namespaces.create(GONE)
    await until(lambda: all(str(GONE) in one.broker.catalog.namespaces() for one in harnesses))
    for number, harness in enumerate(harnesses):
        await create(harness, topic(number))
    await until(lambda: all(one.broker.topics.count(str(GONE)) == len(harnesses) for one in harnesses))


class Reconnecting:
    """Clients of one broker: as soon as one of its topics is deleted, they create it again, or a partitioned one."""

    def __init__(self, asking: Harness, asked: Harness) -> None:
        self._ask = asking.broker.elsewhere.ask
        self._asked = asked
        self.outcomes: list[PenstockError | None] = []
        asking.broker.elsewhere.ask = self.ask  # type: ignore[method-assign]

    async def ask(self, broker: int, method: str, target: str, value: object = None) -> object:
        answer = await self._ask(broker, method, target, value)
        assert method == "DELETE"
        await self._try(create(self._asked, topic(1)))
        parts = TopicName.parse(f"persistent://{GONE}/parts")
        await self._try(administration(self._asked.broker).topics.create_partitioned(parts, 2))
        return answer

    async def _try(self, creating: Awaitable[object]) -> None:
        try:
            await creating
        except PenstockError as error:
            self.outcomes.append(error)
        else:
            self.outcomes.append(None)


async def test_a_namespace_is_deleted_while_clients_of_another_broker_create_topics_in_it(tmp_path: Path) -> None:
    async with several(tmp_path, 2) as (here, there):
        await prepared([here, there])
        clients = Reconnecting(here, there)
        await administration(here.broker).namespaces.delete_with_topics(GONE)
        assert [type(outcome) for outcome in clients.outcomes] == [NamespaceNotFound] * 2
        await until(lambda: str(GONE) not in there.broker.catalog.namespaces())
        for one in (here, there):
            assert not one.broker.topics.names.of("persistent", str(GONE))
            assert one.broker.topics.loaded() == []
            assert not list(one.broker.partitioned.of_namespace(str(GONE), "persistent"))


async def refuse(_broker: int, _method: str, _target: str, _value: object = None) -> None:
    raise ServiceNotReady("broker 1 does not answer")


async def test_a_namespace_that_could_not_be_deleted_at_one_broker_is_deleted_when_that_answers(tmp_path: Path) -> None:
    async with several(tmp_path, 2) as (here, there):
        await prepared([here, there])
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady, match="the rest of public/gone is deleted when all brokers answer"):
            await administration(here.broker).namespaces.delete_with_topics(GONE)
        for number, harness in ((7, here), (8, there)):
            with pytest.raises(NamespaceNotFound):
                await create(harness, topic(number))
        await asyncio.sleep(60)
        assert str(GONE) in there.broker.catalog.namespaces()
        here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
        await until(lambda: str(GONE) not in there.broker.catalog.namespaces())
        assert not there.broker.catalog.documents(DELETIONS)
        assert not there.broker.topics.names.of("persistent", str(GONE))


@pytest.mark.parametrize("answers", ["again", "after a restart of all"])
async def test_a_partitioned_topic_that_could_not_be_deleted_at_one_broker_is_deleted_when_that_answers(
    tmp_path: Path, answers: str
) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admins = [administration(one.broker) for one in (here, there)]
        await admins[0].topics.create_partitioned(name, 4)
        await until(lambda: there.broker.topics.exists(name.of_partition(3)))
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady, match=r"the rest of .*/parts is deleted when all brokers answer"):
            await admins[0].topics.delete_partitioned(name, force=True)
        await until(lambda: there.broker.catalog.documents(DELETIONS))
        for admin in admins:
            with pytest.raises(NotFound):
                await admin.topics.update_partitioned(name, 8)
            # Not that it exists: whoever is told so goes on with a topic that is gone a moment later.
            with pytest.raises(ServiceNotReady, match="is being deleted: try again"):
                await admin.topics.create_partitioned(name, 4)
        for harness in (here, there):
            with pytest.raises(TopicNotFound):
                await create(harness, name.of_partition(0))
        if answers == "again":
            here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
            await until(lambda: not there.broker.catalog.documents(DELETIONS))
            await admins[1].topics.create_partitioned(name, 2)
    if answers != "again":
        async with several(tmp_path, 2) as (here, there):
            await until(lambda: not there.broker.catalog.documents(DELETIONS))
            assert not there.broker.topics.names.of("persistent", "public/default")


async def create_subscribed(here: Harness, there: Harness, name: TopicName) -> None:
    """Create it with two partitions and a subscription."""
    await administration(here.broker).topics.create_partitioned(name, 2)
    for partition in (name.of_partition(0), name.of_partition(1)):
        await until(partial(there.broker.topics.exists, partition))
        owner = (here, there)[there.broker.placement.owner(partition)]
        await administration(owner.broker).subscriptions.create(partition, "s")


@pytest.mark.parametrize("answers", ["again", "after a restart of all"])
async def test_partitions_that_could_not_be_added_at_one_broker_are_added_when_that_answers(
    tmp_path: Path, answers: str
) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admin = administration(here.broker)
        await create_subscribed(here, there, name)
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady, match=r"the rest of .*/parts is created when all brokers answer"):
            await admin.topics.update_partitioned(name, 6)
        await asyncio.sleep(60)
        assert there.broker.partitions.count(name) == 2
        if answers == "again":
            here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
            await until(lambda: there.broker.partitions.count(name) == 6)
            await until_grown(here, there, name, 6)
    if answers != "again":
        async with several(tmp_path, 2) as (here, there):
            await until_grown(here, there, name, 6)


async def until_grown(here: Harness, there: Harness, name: TopicName, partitions: int) -> None:
    """Wait until it has so many partitions, all with their subscription, and nothing is noted any more."""
    document = {"partitions": partitions, "properties": {}}
    await until(lambda: there.broker.catalog.documents(PARTITIONED)[str(name)] == document)
    for partition in there.broker.partitions.names(name):
        owner = (here, there)[there.broker.placement.owner(partition)]
        assert [one.name for one in owner.broker.catalog.subscriptions(str(partition))] == ["s"], partition


async def test_partitions_that_a_broker_was_adding_that_is_left_out_are_added_by_another(tmp_path: Path) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 3) as harnesses:
        catalog, changes = harnesses[2].broker.catalog, harnesses[2].broker.changes
        noted = {"partitions": 2, "properties": {}, "creating": [2, 4], "created_by": 2}
        await changes.stored(partial(catalog.put_document, PARTITIONED, str(name), noted))
    async with several(tmp_path, 2) as harnesses:  # Broker 2 is left out.
        await until(lambda: harnesses[1].broker.partitions.count(name) == 4)
        assert harnesses[1].broker.topics.exists(name.of_partition(3))


async def test_partitions_that_are_added_by_a_second_request_are_not_added_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admin = administration(here.broker)
        await create_subscribed(here, there, name)
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady):
            await admin.topics.update_partitioned(name, 6)
        here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
        await admin.topics.update_partitioned(name, 6)
        await until_grown(here, there, name, 6)
        assert here.broker.partitions.unfinished() == []
        await asyncio.sleep(60)
        await until_grown(here, there, name, 6)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_topic_that_is_deleted_before_its_partitions_are_added_stays_deleted(tmp_path: Path) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admin = administration(here.broker)
        await create_subscribed(here, there, name)
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady):
            await admin.topics.update_partitioned(name, 6)
        here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
        await admin.topics.delete_partitioned(name, force=True)
        await asyncio.sleep(60)
        assert not there.broker.topics.names.of("persistent", "public/default")
        assert not there.broker.catalog.documents(PARTITIONED)
        assert here.broker.partitions.unfinished() == []


async def test_a_smaller_request_that_succeeds_does_not_end_a_larger_one_that_waits(tmp_path: Path) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admin = administration(here.broker)
        await create_subscribed(here, there, name)
        ask = here.broker.elsewhere.ask
        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(ServiceNotReady):
            await admin.topics.update_partitioned(name, 6)
        here.broker.elsewhere.ask = ask  # type: ignore[method-assign]
        await admin.topics.update_partitioned(name, 4)
        await until_grown(here, there, name, 6)


async def test_a_partitioned_topic_in_use_at_another_broker_is_used_as_before(tmp_path: Path) -> None:
    name = TopicName.parse("persistent://public/default/parts")
    async with several(tmp_path, 2) as (here, there):
        admin = administration(here.broker)
        await admin.topics.create_partitioned(name, 4)

        async def refuse(_broker: int, _method: str, _target: str, _value: object = None) -> None:
            raise PreconditionFailed("Topic has 1 clients connected")

        here.broker.elsewhere.ask = refuse  # type: ignore[method-assign, assignment]
        with pytest.raises(PreconditionFailed):
            await admin.topics.delete_partitioned(name, force=True)
        assert not here.broker.catalog.documents(DELETIONS)
        await admin.topics.update_partitioned(name, 4)
        await until(lambda: not there.broker.catalog.documents(DELETIONS))


async def test_a_namespace_is_created_again_right_after_its_deletion(tmp_path: Path) -> None:
    async with several(tmp_path, 2) as harnesses:
        for number in (0, 1, 0):
            await prepared(harnesses)
            await administration(harnesses[number].broker).namespaces.delete_with_topics(GONE)
            await until(lambda: all(str(GONE) not in one.broker.catalog.namespaces() for one in harnesses))


async def test_a_deletion_of_a_broker_that_is_left_out_is_finished_by_another(
    tmp_path: Path,
) -> None:
    async with several(tmp_path, 3) as harnesses:
        await prepared(harnesses[:2])
        catalog = harnesses[2].broker.catalog
        await harnesses[2].broker.changes.stored(partial(catalog.put_document, DELETIONS, str(GONE), {"broker": 2}))
        await until(lambda: "public/gone" in harnesses[1].broker.catalog.documents(DELETIONS))
        with pytest.raises(NamespaceNotFound):
            await create(harnesses[1], topic(7))
    async with several(tmp_path, 2) as harnesses:  # Broker 2 is left out.
        await until(lambda: str(GONE) not in harnesses[1].broker.catalog.namespaces())
        assert not harnesses[1].broker.catalog.documents(DELETIONS)


async def test_a_deletion_of_a_suspect_broker_is_taken_over_and_one_of_a_broker_that_serves_is_not(
    tmp_path: Path,
) -> None:
    async with several(tmp_path, 2) as (here, there):
        await prepared([here, there])
        note = partial(there.broker.catalog.put_document, DELETIONS, str(GONE), {"broker": 1})
        await there.broker.changes.stored(note)
        await until(lambda: here.broker.catalog.documents(DELETIONS))
        with pytest.raises(NamespaceNotFound):
            await administration(here.broker).namespaces.delete_with_topics(GONE)
        membership = cast("SharedMembership", here.broker.membership)
        members = membership.members
        membership.update({**members, 1: replace(members[1], state=BrokerState.SUSPECT)})
        await administration(here.broker).namespaces.delete_with_topics(GONE)
        await until(lambda: str(GONE) not in there.broker.catalog.namespaces())
        assert not here.broker.catalog.documents(DELETIONS)
