# SPDX-License-Identifier: Apache-2.0
"""Clients that are sent on to another cluster: who goes when, what they are told, and holds that end by themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import AlreadyExists, PreconditionFailed, WireCode
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import NS_PER_S
from penstock.testing.client import Type, frame
from penstock.wire.pulsar_pb2 import CommandLookupTopicResponse, CommandTopicMigrated
from tests.net.harness import Client, publish, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.administration.migrations import Migrations
    from penstock.wire.pulsar_pb2 import BaseCommand
    from tests.net.harness import Harness

TOPIC = "persistent://public/default/t"
NAMESPACE = NamespaceName.parse("public/default")
URLS = {"brokerServiceUrl": "pulsar://west:6650", "serviceUrl": "http://west:8080"}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        yield harness


@pytest.fixture
async def migrations(harness: Harness) -> Migrations:
    """Operations of a broker that knows where its clients may go."""
    migrations = administration(harness.broker).migrations
    await migrations.set_cluster(harness.broker.limits.cluster_name, URLS, migrated=False)
    return migrations


async def told(client: Client) -> CommandTopicMigrated:
    return (await client.expect(Type.TOPIC_MIGRATED)).topicMigrated


async def opened(client: Client, kind: int, **fields: Any) -> BaseCommand:  # noqa: ANN401
    client.requests += 1
    client.write(frame(kind, request_id=client.requests, topic=TOPIC, **fields))
    return await client.read()


async def test_a_producer_has_its_receipts_before_it_is_sent_on(harness: Harness, migrations: Migrations) -> None:
    client = await Client.producing(harness.port)
    client.publish(*[b"%d" % number for number in range(50)])
    await until(lambda: topic_of(harness).next_entry_id == 50)
    await migrations.set_namespace(NAMESPACE, migrated=True, hold=None)
    assert await client.receipts(50) == list(range(50))
    said = await told(client)
    assert (said.resource_type, said.resource_id) == (CommandTopicMigrated.Producer, 0)
    assert (said.brokerServiceUrl, said.brokerServiceUrlTls) == ("pulsar://west:6650", "")
    await client.expect(Type.CLOSE_PRODUCER)


async def test_a_producer_that_comes_is_told_where_to_and_tries_again(harness: Harness, migrations: Migrations) -> None:
    await migrations.set_namespace(NAMESPACE, migrated=True, hold=None)
    client = await Client.connected(harness.port)
    said = await opened(client, Type.PRODUCER, producer_id=7)
    assert (said.topicMigrated.resource_id, said.topicMigrated.resource_type) == (7, CommandTopicMigrated.Producer)
    refused = await client.expect(Type.ERROR)
    assert int(refused.error.error) == WireCode.SERVICE_NOT_READY
    assert "pulsar://west:6650" in refused.error.message


async def test_a_consumer_goes_when_it_has_acknowledged_what_is_left(harness: Harness, migrations: Migrations) -> None:
    producer = await Client.producing(harness.port)
    await producer.published(b"a", b"b")
    consumer = await Client.consuming(harness.port)
    assert [(await consumer.message())[-1:] for _ in range(2)] == [b"a", b"b"]
    await migrations.set_namespace(NAMESPACE, migrated=True, hold=None)
    await told(producer)
    ledger_id = topic_of(harness).ledger_id
    ids = [{"ledgerId": ledger_id, "entryId": entry_id} for entry_id in range(2)]
    consumer.write(frame(Type.ACK, consumer_id=0, ack_type=0, message_id=ids[:1]))
    await asyncio.sleep(5)
    assert topic_of(harness).subscriptions["s"].consumers
    consumer.write(frame(Type.ACK, consumer_id=0, ack_type=0, message_id=ids[1:]))
    assert (await told(consumer)).resource_type == CommandTopicMigrated.Consumer
    await consumer.expect(Type.CLOSE_CONSUMER)


async def test_a_consumer_without_a_backlog_goes_at_once_and_one_that_comes_as_well(
    harness: Harness, migrations: Migrations
) -> None:
    consumer = await Client.consuming(harness.port)
    await migrations.set_namespace(NAMESPACE, migrated=True, hold=None)
    await told(consumer)
    await consumer.expect(Type.CLOSE_CONSUMER)
    said = await opened(consumer, Type.SUBSCRIBE, subscription="s", consumer_id=3, subType=1)
    assert (said.topicMigrated.resource_id, said.topicMigrated.resource_type) == (3, CommandTopicMigrated.Consumer)
    await consumer.expect(Type.CLOSE_CONSUMER)


async def test_clients_that_do_not_know_the_command_are_redirected_when_they_look_up(
    harness: Harness, migrations: Migrations
) -> None:
    client = await Client.open(harness.port)
    client.write(frame(Type.CONNECT, client_version="old", protocol_version=19))
    await client.expect(Type.CONNECTED)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
    await migrations.hold(NAMESPACE, "h", 10)
    await client.expect(Type.CLOSE_PRODUCER)
    await migrations.set_namespace(NAMESPACE, migrated=True, hold="h")
    answer = (await opened(client, Type.LOOKUP, authoritative=False)).lookupTopicResponse
    assert answer.response == CommandLookupTopicResponse.Redirect
    assert answer.brokerServiceUrl == "pulsar://west:6650"
    assert (await opened(client, Type.PRODUCER, producer_id=1)).type == Type.ERROR


async def test_clients_of_a_held_namespace_wait_and_go_on_when_the_hold_ends_by_itself(
    harness: Harness, migrations: Migrations
) -> None:
    client = await Client.producing(harness.port)
    began_ns = harness.broker.clock.monotonic_ns()
    await migrations.hold(NAMESPACE, "h", 10)
    await client.expect(Type.CLOSE_PRODUCER)
    assert topic_of(harness).rests
    answer = await opened(client, Type.PRODUCER, producer_id=1)
    assert answer.type == Type.PRODUCER_SUCCESS
    assert 9 * NS_PER_S < harness.broker.clock.monotonic_ns() - began_ns < 11 * NS_PER_S
    assert not topic_of(harness).rests
    client.write(publish(b"x", 0, 1))
    await client.expect(Type.SEND_RECEIPT)


@pytest.mark.parametrize("set_by_ms", [-3_600_000, -20_000, 3_600_000])
async def test_a_clock_that_is_set_makes_nobody_wait_longer_than_a_hold_may(
    harness: Harness, migrations: Migrations, set_by_ms: int
) -> None:
    client = await Client.producing(harness.port)
    await migrations.hold(NAMESPACE, "h", 10)
    await client.expect(Type.CLOSE_PRODUCER)
    harness.clock.step_wall(ms=set_by_ms)
    began_ns = harness.broker.clock.monotonic_ns()
    answer = await opened(client, Type.PRODUCER, producer_id=1)
    for _ in range(25):
        if answer.type == Type.PRODUCER_SUCCESS:
            break
        await asyncio.sleep(1)  # as clients do that are told to try again
        answer = await opened(client, Type.PRODUCER, producer_id=1)
    assert answer.type == Type.PRODUCER_SUCCESS
    assert harness.broker.clock.monotonic_ns() - began_ns <= 25 * NS_PER_S
    # Clients may have published since: what was carried over does not count.
    with pytest.raises(PreconditionFailed, match="has ended"):
        await migrations.set_namespace(NAMESPACE, migrated=True, hold="h")


async def test_clients_of_a_held_namespace_go_on_at_once_when_it_is_let_go(
    harness: Harness, migrations: Migrations
) -> None:
    client = await Client.connected(harness.port)
    await migrations.hold(NAMESPACE, "h", 20)
    opening = asyncio.ensure_future(opened(client, Type.SUBSCRIBE, subscription="s", consumer_id=0, subType=1))
    await asyncio.sleep(1)
    assert not opening.done()
    began_ns = harness.broker.clock.monotonic_ns()
    await migrations.let_go(NAMESPACE, "h")
    assert (await opening).type == Type.SUCCESS
    assert harness.broker.clock.monotonic_ns() - began_ns < NS_PER_S


async def test_a_hold_that_has_ended_moves_nobody(harness: Harness, migrations: Migrations) -> None:
    await migrations.hold(NAMESPACE, "h", 5)
    await asyncio.sleep(6)
    with pytest.raises(PreconditionFailed, match="has ended"):
        await migrations.set_namespace(NAMESPACE, migrated=True, hold="h")
    with pytest.raises(PreconditionFailed, match="take another name"):
        await migrations.hold(NAMESPACE, "h", 5)
    assert migrations.namespace(NAMESPACE) == {"migrated": False, "moved": False, "heldForMs": 0}
    await Client.producing(harness.port)


async def test_a_namespace_that_somebody_holds_is_nobody_elses(migrations: Migrations) -> None:
    await migrations.hold(NAMESPACE, "h", 5)
    with pytest.raises(AlreadyExists, match="held by h for 5"):
        await migrations.hold(NAMESPACE, "other", 5)
    await migrations.let_go(NAMESPACE, "other")
    assert migrations.namespace(NAMESPACE)["heldForMs"]


async def test_all_consumers_of_a_moved_namespace_go_whatever_is_left(harness: Harness, migrations: Migrations) -> None:
    producer = await Client.producing(harness.port)
    await producer.published(b"a")
    consumer = await Client.consuming(harness.port)
    await consumer.message()
    await migrations.hold(NAMESPACE, "h", 10)
    await consumer.expect(Type.CLOSE_CONSUMER)
    opening = asyncio.ensure_future(opened(consumer, Type.SUBSCRIBE, subscription="s", consumer_id=0, subType=1))
    await migrations.set_namespace(NAMESPACE, migrated=True, hold="h")
    assert "has moved to the cluster at pulsar://west:6650" in (await opening).error.message
    assert topic_of(harness).subscriptions["s"].backlog == 1  # Nothing is lost here.


async def test_a_restart_forgets_neither_where_clients_go_nor_that_a_namespace_is_held(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        migrations = administration(harness.broker).migrations
        await migrations.set_cluster(harness.broker.limits.cluster_name, URLS, migrated=False)
        await Client.producing(harness.port)
        await migrations.hold(NAMESPACE, "h", 20)
    async with running(tmp_path) as harness:
        migrations = administration(harness.broker).migrations
        await harness.broker.topics.load(TopicName.parse(TOPIC))
        assert topic_of(harness).rests
        await migrations.set_namespace(NAMESPACE, migrated=True, hold="h")
    async with running(tmp_path) as harness:
        client = await Client.connected(harness.port)
        assert "has moved" in (await opened(client, Type.PRODUCER, producer_id=0)).error.message


async def test_policies_and_clusters_do_not_show_what_a_move_keeps_in_them(
    harness: Harness, migrations: Migrations
) -> None:
    await migrations.hold(NAMESPACE, "h", 10)
    admin = administration(harness.broker)
    own = harness.broker.limits.cluster_name
    policies = admin.namespaces.get(NAMESPACE)
    assert policies["migrated"] is False
    assert "migration" not in policies
    assert "migration" not in admin.clusters.get(own)
    await admin.clusters.update(own, {"serviceUrl": "http://east:8080", "migration": {"migrated": True}})
    assert migrations.cluster(own) == {"migrated": False, "migratedClusterUrl": URLS}
    with pytest.raises(PreconditionFailed, match="Cluster url must not be empty"):
        await migrations.set_cluster(own, {}, migrated=True)
    with pytest.raises(PreconditionFailed, match="Illegal brokerServiceUrl"):
        await migrations.set_cluster(own, {"brokerServiceUrl": "http://west"}, migrated=True)


async def test_all_namespaces_go_with_their_cluster(harness: Harness, migrations: Migrations) -> None:
    client = await Client.producing(harness.port)
    await migrations.set_cluster(harness.broker.limits.cluster_name, URLS, migrated=True)
    await told(client)
    await client.expect(Type.CLOSE_PRODUCER)
    await migrations.set_cluster(harness.broker.limits.cluster_name, URLS, migrated=False)
    assert (await opened(client, Type.PRODUCER, producer_id=1)).type == Type.PRODUCER_SUCCESS
