# SPDX-License-Identifier: Apache-2.0
"""Several brokers that share metadata: each knows the topics of all, and does its part of what administrators ask."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.elsewhere import Elsewhere
from penstock.core.broker_states import BrokerState
from penstock.core.errors import (
    AlreadyExists,
    NotFound,
    PartitionsElsewhere,
    PreconditionFailed,
    ServedElsewhere,
    ServiceNotReady,
    TopicNotFound,
)
from penstock.core.membership import alone
from penstock.core.names import NamespaceName, TopicName
from penstock.core.position import EARLIEST
from penstock.testing.client import Type
from tests.broker.cluster import several
from tests.net.harness import Client, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from penstock.broker.administration.administration import Administration
    from penstock.core.caller import Asker
    from penstock.core.membership import SharedMembership
    from tests.net.harness import Harness

NS = "persistent://public/default"
NAMESPACE = NamespaceName("public", "default")
P = TopicName.parse(f"{NS}/p")
STRING = {"name": "s", "schema_data": b"", "type": 1}


class Both:
    """Two brokers, a client of each, and their administration."""

    def __init__(self, harnesses: list[Harness], clients: list[Client], silent: set[int]) -> None:
        self.harnesses = harnesses
        self.silent = silent  # those that do not answer the other
        self.clients = clients
        self.admins: list[Administration] = [administration(one.broker) for one in harnesses]

    def topic_on(self, number: int) -> TopicName:
        """The name of a topic that its broker will be created on."""
        return TopicName.parse(f"{NS}/of-{number}")

    async def create(self, number: int) -> TopicName:
        """A topic that this broker serves, loaded there."""
        name = self.topic_on(number)
        await self.harnesses[number].broker.topics.get_or_create(name, create=True)
        await self.known(name)
        return name

    async def known(self, name: TopicName) -> None:
        await until(partial(known_everywhere, self.harnesses, name))

    def loaded(self, name: TopicName) -> list[int]:
        return [number for number, one in enumerate(self.harnesses) if one.broker.topics.get(name) is not None]


@asynccontextmanager
async def both_of(directory: Path) -> AsyncIterator[Both]:
    silent: set[int] = set()
    async with several(directory, silent=silent) as harnesses:
        clients = [await Client.connected(one.port) for one in harnesses]
        yield Both(harnesses, clients, silent)
        for client in clients:
            await client.close()


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Both]:
    async with both_of(tmp_path) as made:
        yield made


async def listed(client: Client, **fields: Any) -> list[str]:  # noqa: ANN401
    answer = await client.request(
        Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, namespace="public/default", **fields
    )
    return list(answer.getTopicsOfNamespaceResponse.topics)


async def test_topics_of_all_brokers_are_listed_by_each(both: Both) -> None:
    names = [str(await both.create(number)) for number in range(2)]
    for client in both.clients:
        assert await listed(client) == names
    await both.admins[1].topics.delete(both.topic_on(1))
    await until(lambda: not both.harnesses[0].broker.topics.exists(both.topic_on(1)))
    for client in both.clients:
        assert await listed(client) == names[:1]


async def test_a_broker_catches_up_with_what_another_one_has_changed_for_it() -> None:
    """Who deletes the last topic of a namespace may delete the namespace, at the same broker, at once."""
    order: list[str] = []

    class Other:
        async def ask(self, broker: int, method: str, target: str, value: object = None, *, by: Asker) -> Any:  # noqa: ANN401
            del broker, value, by
            order.append(f"{method} {target}")

    async def catch_up() -> None:
        order.append("catch up")

    elsewhere = Elsewhere(alone(), Other(), catch_up).on_behalf()
    await elsewhere.ask(1, "GET", "/stats")
    await elsewhere.ask(1, "DELETE", "/topic")
    assert order == ["GET /stats", "DELETE /topic", "catch up"]


async def test_a_watcher_hears_of_topics_of_all_brokers(both: Both) -> None:
    client = both.clients[0]
    await client.request(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        watcher_id=1,
        namespace="public/default",
        topics_pattern="public/default/of-.*",
    )
    await both.create(1)
    update = (await client.expect(Type.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert list(update.new_topics) == [str(both.topic_on(1))]
    await both.admins[1].topics.delete(both.topic_on(1))
    update = (await client.expect(Type.WATCH_TOPIC_UPDATE)).watchTopicUpdate
    assert list(update.deleted_topics) == [str(both.topic_on(1))]


async def test_non_persistent_topics_are_known_to_all_while_they_are_loaded(both: Both) -> None:
    names = [TopicName.parse(f"non-persistent://public/default/n-{number}") for number in range(8)]
    places = [both.harnesses[0].broker.placement.broker_of(name) for name in names]
    assert set(places) == {0, 1}
    assert places == [both.harnesses[1].broker.placement.broker_of(name) for name in names]
    name = names[places.index(1)]
    with pytest.raises(ServedElsewhere):
        await both.harnesses[0].broker.topics.get_or_create(name, create=True)
    await both.harnesses[1].broker.topics.get_or_create(name, create=True)
    await both.known(name)
    assert await listed(both.clients[0], mode=1) == [str(name)]
    await both.admins[1].topics.unload(name)
    await until(lambda: not both.harnesses[0].broker.topics.exists(name))
    assert await listed(both.clients[0], mode=1) == []


async def test_a_policy_that_one_broker_sets_is_in_force_on_topics_of_the_other(both: Both) -> None:
    name = await both.create(1)
    topic = both.harnesses[1].broker.topics.get(name)
    assert topic is not None
    await both.admins[0].policies.set_of_namespace(NAMESPACE, "maxConsumersPerTopic", 3)
    await until(lambda: topic.policies.max_consumers == 3)
    await both.admins[0].policies.set_of_topic(name, "maxConsumers", 2)
    await until(lambda: topic.policies.max_consumers == 2)


async def test_a_change_elsewhere_is_applied_to_the_topics_that_it_may_concern_and_no_others(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each of thousands of new topics, namespaces or groups would cost a look at thousands of topics."""
    here, there = both.harnesses[0].broker, both.admins[1]
    await there.tenants.create("shop", {"allowedClusters": ["test"]})
    await there.namespaces.create(NamespaceName("shop", "orders"))
    orders = TopicName.parse("persistent://shop/orders/t")
    await both.create(0)
    await here.topics.get_or_create(orders, create=True)
    await both.known(orders)
    await turns()
    applied: list[str] = []
    of_topic = here.policies.of_topic

    def noted(name: TopicName) -> object:
        applied.append(name.local)
        return of_topic(name)

    monkeypatch.setattr(here.policies, "of_topic", noted)
    await both.create(1)
    await there.resource_groups.put("gold", {"publishRateInMsgs": 7})
    await there.namespaces.create(NamespaceName("shop", "returns"))
    await turns()
    assert applied == []
    applied.clear()
    await there.resource_groups.attach_namespace(NamespaceName("shop", "orders"), "gold")
    await until(lambda: bool(applied))
    assert applied == ["t"]
    applied.clear()
    await there.resource_groups.attach_tenant("public", "gold")
    await until(lambda: bool(applied))
    assert applied == ["of-0"]
    assert "gold" in here.groups.in_use


async def test_partitions_on_several_brokers_share_the_schema_of_their_topic(both: Both) -> None:
    await both.admins[0].topics.create_partitioned(P, 2)
    await both.known(P.of_partition(1))
    for number, harness in enumerate(both.harnesses):
        partition = next(one for one in map(P.of_partition, range(2)) if harness.broker.placement.is_ours(one))
        answer = await both.clients[number].request(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(partition), producer_id=1, schema=STRING
        )
        assert answer.producer_success.schema_version == bytes(8)
        await turns()
    assert [one.version for one in both.harnesses[0].broker.schemas.versions(P)] == [0]
    assert [one.version for one in both.harnesses[1].broker.schemas.versions(P)] == [0]


async def test_an_operation_on_another_brokers_topic_is_passed_on_and_does_nothing_here(both: Both) -> None:
    name = await both.create(1)
    admin = both.admins[0]
    for refused in (
        admin.subscriptions.create(name, "s"),
        admin.subscriptions.names(name),
        admin.topics.unload(name),
        admin.topics.terminate(name),
        admin.messages.last_id(name),
        admin.stats.of_topic(name),
    ):
        with pytest.raises(ServedElsewhere) as error:
            await refused
        assert error.value.broker == 1
    assert both.loaded(name) == [1]


async def test_partitions_are_operated_on_by_their_brokers(both: Both) -> None:
    admin = both.admins[0]
    await admin.topics.create_partitioned(P, 4)
    await both.known(P.of_partition(3))
    ours = [one for one in map(P.of_partition, range(4)) if both.harnesses[0].broker.placement.is_ours(one)]
    assert len(ours) == 2
    with pytest.raises(PartitionsElsewhere) as rest:
        await admin.subscriptions.create(P, "s", EARLIEST)
    assert rest.value.done == 2
    assert set(rest.value.partitions.values()) == {1}
    for local in rest.value.partitions:
        await both.admins[1].subscriptions.create(TopicName.parse(f"{NS}/{local}"), "s", EARLIEST)
    assert await admin.subscriptions.names(P) == ["s"]
    for partition in map(P.of_partition, range(4)):
        assert both.loaded(partition) == [0 if partition in ours else 1]
    stats = await admin.partitioned_stats.of_topic(P)
    assert stats["partitions"].keys() == {str(P.of_partition(index)) for index in range(4)}
    assert stats["subscriptions"].keys() == {"s"}
    ends = await admin.topics.terminate_partitions(P)
    assert ends.keys() == {0, 1, 2, 3}


async def partitioned(both: Both) -> list[str]:
    """Four partitions; returns those of broker 1."""
    await both.admins[0].topics.create_partitioned(P, 4)
    await both.known(P.of_partition(3))
    placement = both.harnesses[1].broker.placement
    return [str(one) for one in map(P.of_partition, range(4)) if placement.is_ours(one)]


async def test_statistics_are_given_without_the_partitions_of_a_broker_that_does_not_answer(both: Both) -> None:
    theirs = await partitioned(both)
    both.silent.add(1)
    began_s = asyncio.get_running_loop().time()
    stats = await both.admins[0].partitioned_stats.of_topic(P)
    assert stats["unansweredPartitions"] == theirs
    assert stats["partitions"].keys() == {str(P.of_partition(index)) for index in range(4)} - set(theirs)
    assert (await both.admins[0].partitioned_stats.internal(P))["unansweredPartitions"] == theirs
    assert asyncio.get_running_loop().time() - began_s <= 11, "five seconds each, for all partitions together"
    why = await both.admins[0].why.of_topic(P)
    assert why["unanswered"] == [1]


async def test_a_suspect_broker_is_not_waited_for(both: Both) -> None:
    theirs = await partitioned(both)
    both.silent.add(1)
    set_state(both, 1, BrokerState.SUSPECT)
    began_s = asyncio.get_running_loop().time()
    stats = await both.admins[0].partitioned_stats.of_topic(P)
    assert stats["unansweredPartitions"] == theirs
    assert (await both.admins[0].why.of_topic(P))["unanswered"] == [1]
    assert asyncio.get_running_loop().time() - began_s < 1


async def test_nothing_is_passed_on_to_a_broker_that_crashes_again_and_again(both: Both) -> None:
    name = await both.create(1)
    set_state(both, 1, BrokerState.CRASH_LOOPING)
    with pytest.raises(ServiceNotReady, match=r"broker 1, which serves .*, is crash-looping"):
        await both.admins[0].topics.unload(name)
    with pytest.raises(ServiceNotReady, match="broker 1 crashes again and again"):
        await both.admins[0].topics.delete(name)


def set_state(both: Both, number: int, state: BrokerState) -> None:
    membership = cast("SharedMembership", both.harnesses[0].broker.membership)
    members = membership.members
    membership.update({**members, number: replace(members[number], state=state)})


async def test_a_namespace_is_cleared_without_a_broker_that_does_not_serve_and_the_caller_is_told_which(
    both: Both,
) -> None:
    names = [await both.create(number) for number in range(2)]
    for number, name in enumerate(names):
        await both.admins[number].subscriptions.create(name, "s", EARLIEST)
    set_state(both, 1, BrokerState.SUSPECT)
    subscriptions, namespaces = both.admins[0].subscriptions, both.admins[0].namespaces
    operations: list[Callable[[], Awaitable[None]]] = [
        lambda: subscriptions.clear_backlogs(NAMESPACE),
        lambda: subscriptions.delete_everywhere(NAMESPACE, "s"),
        lambda: namespaces.unload(NAMESPACE),
        both.admins[0].service.check_backlog_quotas,
    ]
    for operation in operations:
        with pytest.raises(ServiceNotReady, match="is done, but not for the topics of broker 1, which did not answer"):
            await operation()
    assert await subscriptions.names(names[0]) == []
    assert [both.loaded(name) for name in names] == [[], [1]]


async def test_a_broker_that_is_down_has_nothing_loaded_and_one_without_topics_of_the_namespace_is_not_asked(
    both: Both,
) -> None:
    await both.create(0)
    set_state(both, 1, BrokerState.SUSPECT)
    await both.admins[0].namespaces.unload(NAMESPACE)
    await both.admins[0].subscriptions.clear_backlogs(NAMESPACE)
    set_state(both, 1, BrokerState.READY)
    await both.create(1)
    set_state(both, 1, BrokerState.STARTING)
    await both.admins[0].namespaces.unload(NAMESPACE)
    with pytest.raises(ServiceNotReady, match="not for the topics of broker 1"):
        await both.admins[0].subscriptions.clear_backlogs(NAMESPACE)


def known_everywhere(harnesses: list[Harness], name: TopicName) -> bool:
    return all(one.broker.topics.exists(name) for one in harnesses)


async def test_what_one_broker_refuses_is_refused_when_the_others_have_done_their_part(tmp_path: Path) -> None:
    async with several(tmp_path, 3) as harnesses:
        admins = [administration(one.broker) for one in harnesses]
        names = [TopicName.parse(f"{NS}/of-{number}") for number in range(3)]
        for number, name in enumerate(names):
            await harnesses[number].broker.topics.get_or_create(name, create=True)
            await until(partial(known_everywhere, harnesses, name))
            await admins[number].subscriptions.create(name, "s", EARLIEST)
        client = await Client.connected(harnesses[1].port)
        fields = {"topic": str(names[1]), "subscription": "s", "consumer_id": 0, "subType": 1}
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, **fields)
        with pytest.raises(PreconditionFailed, match="consumers"):
            await admins[0].subscriptions.delete_everywhere(NAMESPACE, "s")
        assert [await admins[number].subscriptions.names(name) for number, name in enumerate(names)] == [[], ["s"], []]
        await client.close()


async def test_new_partitions_get_the_subscriptions_of_the_first_on_every_broker(both: Both) -> None:
    await both.admins[0].topics.create_partitioned(P, 1)
    await both.known(P.of_partition(0))
    first = both.harnesses[0].broker.placement.broker_of(P.of_partition(0))
    assert first is not None
    await both.admins[first].subscriptions.create(P, "s", EARLIEST)
    await both.admins[1 - first].topics.update_partitioned(P, 4)
    for index in range(4):
        partition = P.of_partition(index)
        owner = both.harnesses[0].broker.placement.broker_of(partition)
        assert owner is not None
        assert await both.admins[owner].subscriptions.names(partition) == ["s"]


async def test_a_topic_that_another_broker_creates_before_it_is_deleted_is_deleted_there(both: Both) -> None:
    name = both.topic_on(1)
    life = both.harnesses[0].broker.topic_life
    async with both.harnesses[0].broker.topics.locked(name):
        deletion = asyncio.ensure_future(life.delete_if_there(name, force=True))
        await turns()
        await both.create(1)
    assert await deletion
    assert both.loaded(name) == [], "its broker would go on to accept messages that nobody finds again"
    assert not any(one.broker.catalog.topic(str(name)) for one in both.harnesses)


async def test_a_partitioned_topic_is_deleted_on_all_brokers(both: Both) -> None:
    await both.admins[0].topics.create_partitioned(P, 4)
    await both.known(P.of_partition(3))
    await both.admins[1].topics.delete_partitioned(P)
    await until(lambda: not both.harnesses[0].broker.topics.count("public/default"))
    assert both.harnesses[1].broker.topics.count("public/default") == 0
    await both.admins[0].topics.create_partitioned(P, 2)


async def test_a_partitioned_topic_in_use_on_one_broker_keeps_its_partitions_on_all(both: Both) -> None:
    await both.admins[0].topics.create_partitioned(P, 4)
    await both.known(P.of_partition(3))
    partition = next(one for one in map(P.of_partition, range(4)) if both.harnesses[1].broker.placement.is_ours(one))
    await both.clients[1].request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(partition), producer_id=1)
    with pytest.raises(PreconditionFailed, match="1 producers"):
        await both.admins[0].topics.delete_partitioned(P)
    assert both.harnesses[0].broker.topics.count("public/default") == 4
    await both.admins[0].topics.delete_partitioned(P, force=True)
    await until(lambda: not both.harnesses[0].broker.topics.count("public/default"))


async def test_a_namespace_is_unloaded_cleared_and_deleted_on_all_brokers(both: Both) -> None:
    namespace = NamespaceName("public", "ns")
    await both.admins[0].namespaces.create(namespace)
    await until(lambda: "public/ns" in both.harnesses[1].broker.catalog.namespaces())
    names = [TopicName.parse(f"persistent://public/ns/of-{number}") for number in range(2)]
    for number, name in enumerate(names):
        await both.harnesses[number].broker.topics.get_or_create(name, create=True)
        await both.known(name)
        await both.admins[number].subscriptions.create(name, "s", EARLIEST)
    await both.admins[0].subscriptions.clear_backlogs(namespace)
    await both.admins[1].subscriptions.delete_everywhere(namespace, "s")
    for number, name in enumerate(names):
        assert await both.admins[number].subscriptions.names(name) == []
    await both.admins[0].namespaces.unload(namespace)
    assert [both.loaded(name) for name in names] == [[], []]
    with pytest.raises(AlreadyExists):
        await both.admins[0].namespaces.delete(namespace)
    await both.admins[0].namespaces.delete_with_topics(namespace)
    await until(lambda: all("public/ns" not in one.broker.catalog.namespaces() for one in both.harnesses))
    for harness in both.harnesses:
        with pytest.raises(TopicNotFound):
            await harness.broker.topics.load(names[0])


async def test_internal_statistics_say_in_which_log_a_topic_is(both: Both) -> None:
    for number, admin in enumerate(both.admins):
        stats = await admin.internal_stats.of_topic(await both.create(number), metadata=True)
        assert stats["ledgers"][0]["metadata"] == f"{{log=broker-{number}, firstEntry=0}}"


async def test_any_broker_names_all_and_the_health_of_each(both: Both) -> None:
    ids = ["broker-0:6650", "broker-1:6650"]
    for admin in both.admins:
        assert admin.service.names() == ids
        assert admin.service.leader()["brokerId"] == ids[0]
        for one in (None, *ids):
            await admin.service.check_healthy(one)
            assert one is None or admin.service.owned_namespaces("test", one)
    with pytest.raises(NotFound, match="broker-2:6650 does not exist"):
        await both.admins[0].service.check_healthy("broker-2:6650")
