# SPDX-License-Identifier: Apache-2.0
"""Counts that have a maximum: however many ask at once, and by whatever way, exactly as many exist as there may be."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.topics.partitioned import KIND as PARTITIONED
from penstock.core.errors import NotAllowed, PenstockError
from penstock.core.names import TopicName
from penstock.testing.client import Refused
from penstock.wire import codec
from tests.broker.cluster import several
from tests.broker.consuming import SHARED, Peer
from tests.net.harness import TOPIC, Client, connect, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from tests.net.harness import Harness

NS = "persistent://public/default"
Type = codec.BaseCommand.Type
ORDERS = range(5)  # in which those that ask at once are let go
LAZY = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}


async def at_once(attempts: Sequence[Callable[[], Awaitable[object]]], order: int) -> list[Any]:
    """Let all attempts go in the same turn of the loop; what became of each, in their own order."""
    rng = random.Random(order)
    places = rng.sample(range(len(attempts)), len(attempts))
    outcomes = await asyncio.gather(*(attempts[place]() for place in places), return_exceptions=True)
    became = dict(zip(places, outcomes, strict=True))
    return [became[place] for place in sorted(became)]


def succeeded(outcomes: Sequence[object]) -> int:
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, (PenstockError, Refused)):
            raise outcome
    return sum(not isinstance(outcome, BaseException) for outcome in outcomes)


def named(text: str) -> TopicName:
    return TopicName.parse(f"{NS}/{text}")


def stored(harness: Harness) -> list[str]:
    """The stored topics of the namespace."""
    return sorted(one.name for one in harness.broker.catalog.topics() if one.name.startswith(f"{NS}/"))


# -- topics -----------------------------------------------------------------------------------------------------------


def ways_to_create(harness: Harness, peers: Sequence[Peer]) -> list[Callable[[], Awaitable[object]]]:
    """Each creates one topic that no other creates."""
    admin = administration(harness.broker)
    ways: list[Callable[[], Awaitable[object]]] = []
    for number, peer in enumerate(peers):
        ways += [
            partial(admin.topics.create, named(f"made-{number}")),
            partial(admin.topics.create_partitioned, named(f"parts-{number}"), 1),
            partial(admin.subscriptions.create, named(f"read-{number}"), "s"),
            partial(peer.produce, f"{NS}/written-{number}"),
        ]
    return ways


@pytest.mark.parametrize("maximum", [1, 5])
@pytest.mark.parametrize("order", ORDERS)
async def test_topics_that_are_created_at_once_are_as_many_as_a_namespace_may_have(
    tmp_path: Path, maximum: int, order: int
) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=maximum)) as harness:
        peers = [await Peer.connected(harness) for _ in range(4)]
        outcomes = await at_once(ways_to_create(harness, peers), order)
        assert (succeeded(outcomes), len(stored(harness))) == (maximum, maximum)
        # Room that is given back is room for exactly one.
        freed = TopicName.parse(stored(harness)[0])
        if freed.partition >= 0:
            await administration(harness.broker).topics.delete_partitioned(freed.parent)
        else:
            await administration(harness.broker).topics.delete(freed, force=True)
        again = [partial(harness.broker.topics.get_or_create, named(f"again-{n}"), create=True) for n in range(3)]
        assert succeeded(await at_once(again, order)) == 1
        assert len(stored(harness)) == maximum


@pytest.mark.parametrize("order", ORDERS)
async def test_topics_that_brokers_create_at_once_are_as_many_as_a_namespace_may_have(
    tmp_path: Path, order: int
) -> None:
    async with several(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=5)) as harnesses:
        ways: list[Callable[[], Awaitable[object]]] = []
        for harness in harnesses:
            broker, own = harness.broker, harness.broker.membership.own
            for number in range(5):
                ways += [
                    partial(broker.topics.get_or_create, named(f"t-{number}-{own}"), create=True),
                    partial(broker.partitions.create, named(f"p-{number}-{own}"), 1),
                ]
        outcomes = await at_once(ways, order)
        await until(lambda: stored(harnesses[0]) == stored(harnesses[1]))
        assert len(stored(harnesses[0])) == 5
        refused = [one for one in outcomes if isinstance(one, BaseException)]
        assert all(isinstance(one, NotAllowed) for one in refused), refused


@pytest.mark.parametrize("order", ORDERS)
async def test_of_partitioned_topics_that_are_created_at_once_those_with_room_get_all_their_partitions(
    tmp_path: Path, order: int
) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=7)) as harness:
        create = administration(harness.broker).topics.create_partitioned
        outcomes = await at_once([partial(create, named(f"p-{n}"), 3) for n in range(4)], order)
        assert succeeded(outcomes) == 2
        assert len(stored(harness)) == 6
        assert len(list(harness.broker.partitions.of_namespace("public/default", "persistent"))) == 2


@pytest.mark.parametrize("order", ORDERS)
async def test_of_partitioned_topics_that_grow_at_once_those_with_room_grow(tmp_path: Path, order: int) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=7)) as harness:
        admin, names = administration(harness.broker).topics, [named(f"p-{n}") for n in range(3)]
        for name in names:
            await admin.create_partitioned(name, 1)
        outcomes = await at_once([partial(admin.update_partitioned, name, 4) for name in names], order)
        assert succeeded(outcomes) == 1
        assert sorted(harness.broker.partitions.count(name) for name in names) == [1, 1, 4]
        assert len(stored(harness)) == 6
        await harness.broker.topics.get_or_create(named("last"), create=True)
        with pytest.raises(NotAllowed, match=r"Exceed maximum number of topics in namespace\."):
            await harness.broker.topics.get_or_create(named("over"), create=True)


@pytest.mark.parametrize("order", ORDERS)
async def test_topics_do_not_take_the_room_of_partitions_that_are_being_created(tmp_path: Path, order: int) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=6)) as harness:
        admin = administration(harness.broker).topics
        await admin.create_partitioned(named("p"), 2)
        grow = partial(admin.update_partitioned, named("p"), 5)
        outcomes = await at_once([grow, *(partial(admin.create, named(f"t-{n}")) for n in range(5))], order)
        assert len(stored(harness)) == 6
        grown = not isinstance(outcomes[0], BaseException)
        assert harness.broker.partitions.count(named("p")) == (5 if grown else 2)


@pytest.mark.parametrize("order", ORDERS)
async def test_partitions_that_are_created_on_first_use_or_by_request_have_room_or_are_refused(
    tmp_path: Path, order: int
) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=3)) as harness:
        broker, admin = harness.broker, administration(harness.broker).topics
        await broker.policies.set_namespace("public/default", "autoTopicCreation", LAZY)
        assert await broker.partitions.for_client(named("lazy"), create=True) == 2
        assert stored(harness) == []  # Nobody has used a partition yet.
        for number in range(2):
            await admin.create(named(f"t-{number}"))
        first, second = (named("lazy").of_partition(index) for index in range(2))
        outcomes = await at_once(
            [
                partial(broker.topics.get_or_create, first, create=True),
                partial(broker.topics.get_or_create, second, create=True),
                partial(admin.create_missed_partitions, named("lazy")),
            ],
            order,
        )
        assert any(isinstance(one, NotAllowed) for one in outcomes)
        assert len(stored(harness)) == 3


async def test_a_growth_that_fails_gives_back_what_it_did_not_use(tmp_path: Path) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=6)) as harness:
        broker, admin = harness.broker, administration(harness.broker)
        await admin.topics.create_partitioned(named("p"), 1)
        for subscription in ("a", "b"):
            await admin.subscriptions.create(named("p"), subscription)
        # The new partitions may not have the subscriptions of the first one.
        await broker.policies.set_topic(str(named("p")), "maxSubscriptionsPerTopic", 1)
        with pytest.raises(NotAllowed, match="maximum number of subscriptions"):
            await admin.topics.update_partitioned(named("p"), 3)
        assert "creating" not in broker.catalog.documents(PARTITIONED)[str(named("p"))]
        there = len(stored(harness))
        made = await at_once([partial(admin.topics.create, named(f"t-{n}")) for n in range(6)], 0)
        assert succeeded(made) == 6 - there
        assert len(stored(harness)) == 6


@pytest.mark.parametrize("turns", range(0, 12, 3))
async def test_a_topic_whose_client_leaves_while_it_is_created_counts_if_it_exists(tmp_path: Path, turns: int) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=2)) as harness:
        leaving = [await Peer.connected(harness) for _ in range(2)]
        for number, peer in enumerate(leaving):
            peer.send(Type.PRODUCER, codec.CommandProducer(topic=f"{NS}/left-{number}", producer_id=0, request_id=1))
        for _ in range(turns):
            await asyncio.sleep(0)
        for peer in leaving:
            await peer.client.close()
        await until(lambda: len(harness.connections) == 0 and not harness.broker.topics.loading)
        there = len(stored(harness))
        make = harness.broker.topics.get_or_create
        made = await at_once([partial(make, named(f"t-{n}"), create=True) for n in range(4)], 0)
        assert (succeeded(made), len(stored(harness))) == (2 - there, 2)


# -- subscriptions, consumers, producers and connections ---------------------------------------------------------------


@pytest.mark.parametrize("maximum", [1, 4])
@pytest.mark.parametrize("order", ORDERS)
async def test_subscriptions_that_are_created_at_once_are_as_many_as_a_topic_may_have(
    tmp_path: Path, maximum: int, order: int
) -> None:
    async with running(tmp_path) as harness:
        await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", maximum)
        create = administration(harness.broker).subscriptions.create
        ways: list[Callable[[], Awaitable[object]]] = []
        for number in range(3):
            durable, reader, producer = [await Peer.connected(harness) for _ in range(3)]
            command = codec.CommandProducer(topic=TOPIC, producer_id=0, initial_subscription_name=f"initial-{number}")
            ways += [
                partial(durable.subscribe, SHARED, name=f"durable-{number}"),
                partial(reader.subscribe, SHARED, name=f"reader-{number}", durable=False),
                partial(producer.request, Type.PRODUCER, command),
                partial(create, TopicName.parse(TOPIC), f"made-{number}"),
            ]
        outcomes = await at_once(ways, order)
        assert (succeeded(outcomes), len(topic_of(harness).subscriptions)) == (maximum, maximum)


async def test_many_may_open_the_last_subscription_at_once_if_it_is_the_same(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", 2)
        await peer.subscribe(name="first")
        peers = [await Peer.connected(harness) for _ in range(4)]
        outcomes = await at_once([partial(one.subscribe, SHARED, name="last") for one in peers], 0)
        assert succeeded(outcomes) == 4
        with pytest.raises(Refused, match="maximum number of subscriptions"):
            await peer.subscribe(name="over", consumer_id=1)


async def test_a_subscription_whose_client_leaves_or_that_is_deleted_makes_room(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", 2)
        leaving = [await Peer.connected(harness) for _ in range(2)]
        for number, peer in enumerate(leaving):
            body = codec.CommandSubscribe(topic=TOPIC, subscription=f"left-{number}", request_id=1, consumer_id=0)
            body.durable, body.subType = number == 0, codec.CommandSubscribe.Shared
            peer.send(Type.SUBSCRIBE, body)
            await peer.client.close()
        await until(lambda: len(harness.connections) == 1 and not harness.broker.changes.unfinished)
        there = len(topic_of(harness).subscriptions)
        peers = [await Peer.connected(harness) for _ in range(4)]
        outcomes = await at_once([partial(one.subscribe, name=f"s-{n}") for n, one in enumerate(peers)], 0)
        assert succeeded(outcomes) == 2 - there
        deleted = next(iter(topic_of(harness).subscriptions))
        await administration(harness.broker).subscriptions.delete(TopicName.parse(TOPIC), deleted, force=True)
        await (await Peer.connected(harness)).subscribe(name="in its place")


async def test_compaction_has_its_subscription_whatever_the_maximum(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", 1)
        await peer.publish(b"x", partition_key="k")
        admin = administration(harness.broker).topics
        await admin.compact(TopicName.parse(TOPIC))
        await until(lambda: harness.broker.compaction.progress(TOPIC).status == "SUCCESS")
        await peer.subscribe(name="one")


@pytest.mark.parametrize("policy", ["maxConsumers", "maxConsumersPerSubscription"])
@pytest.mark.parametrize("order", ORDERS)
async def test_consumers_that_come_at_once_are_as_many_as_there_may_be(tmp_path: Path, policy: str, order: int) -> None:
    async with running(tmp_path) as harness:
        await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, policy, 3)
        peers = [await Peer.connected(harness) for _ in range(8)]
        outcomes = await at_once([partial(peer.subscribe, SHARED) for peer in peers], order)
        assert (succeeded(outcomes), len(topic_of(harness).subscriptions["s"].consumers)) == (3, 3)


@pytest.mark.parametrize("order", ORDERS)
async def test_producers_that_come_at_once_are_as_many_as_there_may_be(tmp_path: Path, order: int) -> None:
    async with running(tmp_path, policies=PolicyDefaults(max_producers_per_topic=3)) as harness:
        peers = [await Peer.connected(harness) for _ in range(8)]
        assert succeeded(await at_once([peer.produce for peer in peers], order)) == 3
        assert len(topic_of(harness).producers) == 3


@pytest.mark.parametrize("order", ORDERS)
async def test_clients_of_one_address_are_as_many_as_there_may_be(tmp_path: Path, order: int) -> None:
    bounds = PolicyDefaults(max_same_address_producers_per_topic=2, max_same_address_consumers_per_topic=3)
    async with running(tmp_path, policies=bounds) as harness:
        peers = [await Peer.connected(harness) for _ in range(12)]
        comings = [peer.produce if number % 2 else partial(peer.subscribe, SHARED) for number, peer in enumerate(peers)]
        await at_once(comings, order)
        topic = topic_of(harness)
        assert (len(topic.producers), len(topic.subscriptions["s"].consumers)) == (2, 3)


@pytest.mark.parametrize("limit", ["connections_max", "connections_per_address_max"])
async def test_connections_that_come_at_once_are_as_many_as_there_may_be(tmp_path: Path, limit: str) -> None:
    bounds: dict[str, Any] = {limit: 3}
    async with running(tmp_path, **bounds) as harness:
        clients = await asyncio.gather(*(Client.open(harness.port) for _ in range(8)))
        for client in clients:
            client.write(connect())
        answers = await asyncio.gather(*(client.read() for client in clients))
        assert sorted(answer.type == Type.CONNECTED for answer in answers) == [False] * 5 + [True] * 3
        assert len(harness.connections) == 3
