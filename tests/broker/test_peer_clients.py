# SPDX-License-Identifier: Apache-2.0
"""What brokers may do as clients of each other: report on the usage topic, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.commands import PEER_COMMANDS, commands
from penstock.core.errors import WireCode
from penstock.net.listener import Listener, listen_for_clients
from penstock.testing.client import Type, frame
from tests.net.harness import TOPIC, Client, Harness, publish, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.testing.loop import VirtualLoop

USAGE = "non-persistent://pulsar/system/resource-usage"
OTHERS = (
    TOPIC,
    "non-persistent://pulsar/system/other",
    "persistent://pulsar/system/resource-usage",
    "persistent://pulsar/system/usage",
    f"{USAGE}-partition-0",
    f"{USAGE}/",
    "resource-usage",
    "persistent://public/default/__change_events",
)


@asynccontextmanager
async def serving_peers(directory: Path) -> AsyncIterator[tuple[Harness, int]]:
    """A broker, and a port of the virtual network at which it serves clients as it serves other brokers."""
    async with running(directory) as harness:
        loop: VirtualLoop = harness.broker.loop  # type: ignore[assignment]
        listener = Listener(harness.connections, listen_for_clients("127.0.0.1", 0, loop.network.socket))
        listener.start(commands(harness.broker, for_peers=True).open_session)
        try:
            yield harness, listener.port
        finally:
            listener.close()


async def test_a_broker_reports_on_the_usage_topic_and_hears_the_reports(tmp_path: Path) -> None:
    async with serving_peers(tmp_path) as (harness, port):
        await prepare(harness)
        client = await Client.connected(port)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=USAGE, producer_id=0)
        await client.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=USAGE,
            subscription="broker-1-1",
            subType=0,
            consumer_id=0,
            durable=False,
        )
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
        client.write(publish(b"report"))
        kinds = [(await client.read_frame()).kind for _ in range(3)]
        assert sorted(kinds) == [Type.SEND_RECEIPT, Type.MESSAGE, Type.ACTIVE_CONSUMER_CHANGE]
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)


async def prepare(harness: Harness) -> None:
    """Create the namespace of the usage topic, as brokers do before they connect."""
    broker = harness.broker
    await broker.changes.stored(lambda done: broker.catalog.put_tenant("pulsar", {}, done))
    policies = {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}}
    await broker.changes.stored(lambda done: broker.catalog.put_namespace("pulsar/system", policies, done))


@pytest.mark.parametrize("topic", OTHERS)
async def test_no_other_topic_is_there_for_it(tmp_path: Path, topic: str) -> None:
    async with serving_peers(tmp_path) as (harness, port):
        await prepare(harness)
        client = await Client.connected(port)
        for kind, fields in (
            (Type.PRODUCER, {"producer_id": 0}),
            (Type.PRODUCER, {"producer_id": 1, "producer_name": "pulsar.repl.far"}),
            (Type.SUBSCRIBE, {"subscription": "s", "subType": 0, "consumer_id": 0}),
        ):
            answer = (await client.request(kind, Type.ERROR, topic=topic, **fields)).error
            assert WireCode(answer.error) in {WireCode.AUTHORIZATION_ERROR, WireCode.INVALID_TOPIC_NAME}
        client.write(publish(b"to a producer that is not there"))
        await client.closed()
        assert harness.broker.topics.loaded() == []


def test_these_commands_are_all_that_it_may_send() -> None:
    assert {Type.Name(Type.ValueType(kind)) for kind in PEER_COMMANDS} == {
        "CONNECT",
        "PRODUCER",
        "SUBSCRIBE",
        "PING",
        "PONG",
    }


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Type.LOOKUP, {"topic": USAGE}),
        (Type.PARTITIONED_METADATA, {"topic": USAGE}),
        (Type.GET_TOPICS_OF_NAMESPACE, {"namespace": "public/default"}),
        (Type.WATCH_TOPIC_LIST, {"namespace": "pulsar/system", "watcher_id": 0, "topics_pattern": ".*"}),
        (Type.GET_SCHEMA, {"topic": USAGE}),
        (Type.GET_LAST_MESSAGE_ID, {"consumer_id": 0}),
        (Type.SEEK, {"consumer_id": 0}),
        (Type.UNSUBSCRIBE, {"consumer_id": 0}),
        (Type.CLOSE_PRODUCER, {"producer_id": 0}),
        (Type.NEW_TXN, {"tc_id": 0}),
    ],
    ids=lambda value: Type.Name(value) if isinstance(value, int) else "",
)
async def test_any_other_command_ends_the_connection(tmp_path: Path, kind: int, fields: dict[str, Any]) -> None:
    async with serving_peers(tmp_path) as (harness, port):
        await prepare(harness)
        client = await Client.connected(port)
        client.write(frame(kind, request_id=1, **fields) + frame(Type.PING))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.read()


async def test_the_first_command_is_connect(tmp_path: Path) -> None:
    async with serving_peers(tmp_path) as (_, port):
        client = await Client.open(port)
        client.write(frame(Type.PRODUCER, request_id=1, topic=USAGE, producer_id=0))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.read()
