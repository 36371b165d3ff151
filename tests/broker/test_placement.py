# SPDX-License-Identifier: Apache-2.0
"""Which broker of several serves a topic, and what clients are told that ask another one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.topics.placement import EXPECTED_MAX, EXPECTED_NS, Placement
from penstock.core.broker_states import BrokerState
from penstock.core.clock import ManualClock
from penstock.core.errors import ServedElsewhere, ServiceNotReady, WireCode
from penstock.core.membership import Member, SharedMembership
from penstock.core.names import TopicName
from penstock.core.service_urls import Addresses, ServiceUrls
from penstock.testing.client import Type
from tests.net.harness import Client, Harness, running

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.topics.placement import TopicPlace

NS = "persistent://public/default"
CONNECT = 1


class Record:
    def __init__(self, name: str, broker: int) -> None:
        self.name, self.broker = name, broker


class Cluster:
    """Some brokers and topics, as broker 0 sees them."""

    def __init__(self, *states: BrokerState) -> None:
        self.membership = SharedMembership(0, lambda _: None)
        self.clock = ManualClock()
        self.records: dict[str, Record] = {}
        self.set(*states)
        self.placement = self.started()

    def set(self, *states: BrokerState) -> None:
        self.membership.update({number: Member(number, state, at(number)) for number, state in enumerate(states)})

    def started(self) -> Placement:
        def record(name: str) -> TopicPlace | None:
            return self.records.get(name)

        return Placement(self.membership, at(0), record=record, records=self.records.values(), clock=self.clock)

    def create(self, name: str, broker: int) -> None:
        self.records[name] = Record(name, broker)
        self.placement.created(self.records[name])


def at(number: int) -> Addresses:
    return Addresses(
        service=ServiceUrls(f"pulsar://h:{number}", f"pulsar+ssl://h:{number}"),
        web=ServiceUrls(f"http://h:{number}", None),
        listeners={"inside": ServiceUrls(f"pulsar://inside:{number}", None)},
    )


def topic(local: str, domain: str = "persistent") -> TopicName:
    return TopicName.parse(f"{domain}://public/default/{local}")


READY, STARTING, DEAD = BrokerState.READY, BrokerState.STARTING, BrokerState.ENDED


def test_new_topics_are_spread_evenly_although_none_of_them_is_created_yet() -> None:
    cluster = Cluster(READY, READY, READY)
    places = Counter(cluster.placement.place(topic(f"t-{number}")) for number in range(30))
    assert places == {0: 10, 1: 10, 2: 10}


def test_a_new_topic_goes_where_the_fewest_topics_are_and_stays_there_when_it_is_looked_up_again() -> None:
    cluster = Cluster(READY, READY)
    for number in range(3):
        cluster.create(f"{NS}/old-{number}", 0)
    assert [cluster.placement.place(topic("a")), cluster.placement.place(topic("b"))] == [1, 1]
    for number in range(9):
        cluster.create(f"{NS}/new-{number}", 1)
    assert cluster.placement.place(topic("a")) == 1
    cluster.clock.advance(ns=EXPECTED_NS)
    assert cluster.placement.place(topic("c")) == 0


def test_a_topic_that_was_looked_up_but_never_created_counts_for_a_while_only() -> None:
    cluster = Cluster(READY, READY)
    for number in range(EXPECTED_MAX + 100):
        cluster.placement.place(topic(f"never-{number}"))
    cluster.clock.advance(ns=EXPECTED_NS)
    cluster.create(f"{NS}/a", 1)
    assert [cluster.placement.place(topic(f"t-{number}")) for number in range(1)] == [0]


def test_partitions_are_spread_over_the_ready_brokers_in_turn() -> None:
    cluster = Cluster(READY, STARTING, READY, READY)
    places = [cluster.placement.place(topic(f"p-partition-{index}")) for index in range(9)]
    assert set(places[:3]) == {0, 2, 3}
    assert places == places[:3] * 3


def test_a_topic_is_where_its_record_says_whoever_has_fewer() -> None:
    cluster = Cluster(READY, READY)
    cluster.create(f"{NS}/a", 1)
    cluster.create(f"{NS}/b", 1)
    assert cluster.started().addresses(topic("a")) == at(1)
    with pytest.raises(ServedElsewhere, match=f"{NS}/a is served by broker 1"):
        cluster.placement.check_ours(topic("a"))
    cluster.placement.check_ours(topic("new"))  # It may be created here.


def test_the_broker_of_a_topic_is_named_while_it_is_started_again_and_not_when_it_has_ended() -> None:
    cluster = Cluster(READY, STARTING)
    cluster.create(f"{NS}/a", 1)
    assert cluster.placement.addresses(topic("a")) == at(1)
    cluster.set(READY, DEAD)
    with pytest.raises(ServiceNotReady, match=f"broker 1, which serves {NS}/a, is ended"):
        cluster.placement.addresses(topic("a"))
    assert cluster.placement.addresses(topic("new")) == at(0)


def test_a_system_topic_moves_at_once_when_its_broker_is_lost_and_only_then() -> None:
    ready, starting = BrokerState.READY, BrokerState.STARTING
    cluster = Cluster(*[ready] * 4)
    usage = TopicName.parse("non-persistent://pulsar/system/resource-usage")
    owner = cluster.placement.owner(usage)
    for lost in range(4):
        cluster.set(*(starting if number == lost else ready for number in range(4)))
        assert (cluster.placement.owner(usage) == owner) == (lost != owner)


def test_non_persistent_topics_move_only_when_a_broker_is_dead() -> None:
    cluster = Cluster(READY, READY, READY)
    names = [topic(f"t-{number}", "non-persistent") for number in range(60)]
    before = [cluster.placement.broker_of(name) for name in names]
    assert set(before) == {0, 1, 2}
    cluster.set(READY, STARTING, READY)
    assert [cluster.placement.broker_of(name) for name in names] == before
    cluster.set(READY, DEAD, READY)
    assert {cluster.placement.broker_of(name) for name in names} == {0, 2}


# -- on the wire ------------------------------------------------------------------------------------------------------


async def create_on(harness: Harness, name: TopicName, number: int) -> None:
    """A topic that another broker has created."""
    broker = harness.broker
    await broker.changes.stored(
        lambda done: broker.catalog.create_topic(str(name), properties={}, created_wall_ms=0, done=done, broker=number)
    )
    broker.topics.add_name(str(name))


async def lookup(client: Client, name: TopicName, **fields: Any) -> Any:  # noqa: ANN401
    return (await client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=str(name), **fields)).lookupTopicResponse


async def test_a_lookup_is_answered_with_the_topics_broker(tmp_path: Path) -> None:
    membership = Cluster(READY, READY).membership
    async with running(tmp_path, membership=membership, addresses=at(0)) as harness:
        await create_on(harness, topic("a"), 1)
        await create_on(harness, topic("b"), 0)
        client = await Client.connected(harness.port)
        answer = await lookup(client, topic("a"))
        assert (answer.response, answer.authoritative) == (CONNECT, True)
        assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == ("pulsar://h:1", "pulsar+ssl://h:1")
        assert (await lookup(client, topic("a"), advertised_listener_name="inside")).brokerServiceUrl == (
            "pulsar://inside:1"
        )
        assert (await lookup(client, topic("b"))).brokerServiceUrl == "pulsar://h:0"
        found = administration(harness.broker).lookup.of_topic(topic("a"))
        assert (found["brokerUrl"], found["httpUrl"]) == ("pulsar://h:1", "http://h:1")

        membership.update({0: Member(0, READY, at(0)), 1: Member(1, DEAD)})
        answer = await lookup(client, topic("a"))
        assert (answer.error, "broker 1" in answer.message) == (WireCode.SERVICE_NOT_READY, True)
        await client.close()


async def test_producers_and_consumers_at_the_wrong_broker_are_told_to_look_up_again(tmp_path: Path) -> None:
    membership = Cluster(READY, READY).membership
    async with running(tmp_path, membership=membership, addresses=at(0)) as harness:
        await create_on(harness, topic("a"), 1)
        client = await Client.connected(harness.port)
        for kind, fields in (
            (Type.PRODUCER, {"producer_id": 0}),
            (Type.SUBSCRIBE, {"subscription": "s", "consumer_id": 0, "subType": 0}),
        ):
            error = (await client.request(kind, Type.ERROR, topic=str(topic("a")), **fields)).error
            assert error.error == int(WireCode.SERVICE_NOT_READY)
            assert "look it up again" in error.message
        assert harness.broker.topics.loaded() == []
        assert not harness.broker.catalog.subscriptions(str(topic("a")))
        await client.close()


async def test_what_an_administrator_creates_is_placed_and_loaded_only_on_its_own_broker(tmp_path: Path) -> None:
    membership = Cluster(READY, READY).membership
    async with running(tmp_path, membership=membership, addresses=at(0)) as harness:
        broker = administration(harness.broker)
        await broker.topics.create(topic("one"))
        await broker.topics.create(topic("two"))
        await broker.topics.create_partitioned(topic("p"), 4)
        records = {record.name: record.broker for record in harness.broker.catalog.topics()}
        assert sorted(records.values()) == [0, 0, 0, 1, 1, 1]
        assert {records[f"{NS}/one"], records[f"{NS}/two"]} == {0, 1}
        assert {one.text for one in harness.broker.topics.loaded()} == {name for name, at in records.items() if not at}
        assert harness.broker.topics.count("public/default") == 6
