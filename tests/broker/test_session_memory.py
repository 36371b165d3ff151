# SPDX-License-Identifier: Apache-2.0
"""What producers, consumers and watchers take of the memory of sessions, and how they give it back."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.commands import session_memory
from penstock.broker.composition.administration import administration
from penstock.core.errors import WireCode
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.testing.client import Type, frame
from penstock.wire.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.net.harness import TOPIC, Client, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

NAME = "n" * 4 * KIB


async def produce(client: Client, number: int, **fields: Any) -> None:  # noqa: ANN401
    fields = {"topic": TOPIC, "producer_name": f"{NAME[:-4]}{number:04}"} | fields
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, producer_id=number, **fields)


async def consume(client: Client, number: int, **fields: Any) -> None:  # noqa: ANN401
    fields = {"topic": TOPIC, "subscription": "s", "subType": 1, "consumer_name": NAME} | fields
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, consumer_id=number, **fields)


async def consume_by_key(client: Client, number: int) -> None:
    await consume(client, number, subscription="k", subType=3)


async def read(client: Client, number: int) -> None:
    await consume(client, number, subscription=f"{NAME[:-4]}{number:04}", durable=False)


async def watch(client: Client, number: int) -> None:
    fields = {"namespace": "public/default", "topics_pattern": "persistent://public/default/t.*"}
    await client.request(Type.WATCH_TOPIC_LIST, Type.WATCH_TOPIC_LIST_SUCCESS, watcher_id=number, **fields)


MEMBERS = [
    (produce, Type.CLOSE_PRODUCER, "producer_id"),
    (consume, Type.CLOSE_CONSUMER, "consumer_id"),
    (consume_by_key, Type.CLOSE_CONSUMER, "consumer_id"),
    (read, Type.CLOSE_CONSUMER, "consumer_id"),
    (watch, Type.WATCH_TOPIC_LIST_CLOSE, "watcher_id"),
]
KINDS = ["producer", "consumer", "key-shared", "reader", "watcher"]


async def join_all(join: Callable[..., Awaitable[None]], client: Client, count: int) -> None:
    for number in range(count):
        await join(client, number)


def used(broker: Harness) -> int:
    """Bytes that are charged."""
    return broker.broker.sessions_memory.used_bytes


@pytest.mark.parametrize(("join", "leave", "number"), MEMBERS, ids=KINDS)
async def test_a_member_is_charged_while_it_is_there_and_gives_all_back_however_it_goes(
    harness: Harness, join: Callable[..., Awaitable[None]], leave: int, number: str
) -> None:
    client = await Client.connected(harness.port)
    await join(client, 1)
    one = used(harness)
    assert one >= session_memory.OBJECT_BYTES
    await join(client, 2)
    assert used(harness) == 2 * one
    await client.request(leave, Type.SUCCESS, **{number: 1})
    await until(lambda: used(harness) == one)
    await client.request(leave, Type.SUCCESS, **{number: 1})  # again, for nothing
    assert used(harness) == one
    await join(client, 1)
    await client.close()
    await until(lambda: used(harness) == 0)


@pytest.mark.parametrize(("join", "leave", "number"), MEMBERS, ids=KINDS)
async def test_who_finds_no_memory_is_refused_and_may_come_when_others_have_gone(
    tmp_path: Path, join: Callable[..., Awaitable[None]], leave: int, number: str
) -> None:
    async with running(tmp_path, sessions_bytes=40 * KIB) as broker:
        client = await Client.connected(broker.port)
        with pytest.raises(AssertionError, match="producers, consumers and watchers have") as refused:
            await join_all(join, client, 41)
        assert "try again when others are closed, or raise sessionsMB" in str(refused.value)
        full = used(broker)
        assert full <= 40 * KIB
        await client.request(leave, Type.SUCCESS, **{number: 0})
        await join(client, 9_999)
        assert used(broker) == full


async def test_a_refusal_for_memory_is_one_after_which_clients_try_again(tmp_path: Path) -> None:
    async with running(tmp_path, sessions_bytes=KIB) as broker:
        client = await Client.connected(broker.port)
        client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=0, request_id=1))
        assert (await client.expect(Type.ERROR)).error.error == int(WireCode.TOO_MANY_REQUESTS)
        assert used(broker) == 0


async def test_who_is_refused_for_another_reason_is_not_charged(harness: Harness) -> None:
    client, other = await Client.connected(harness.port), await Client.connected(harness.port)
    await produce(client, 0, producer_access_mode=1)
    await consume(client, 0, subType=0)
    before = used(harness)
    with pytest.raises(AssertionError, match="exclusive producer"):
        await produce(other, 1)
    await client.expect(Type.ACTIVE_CONSUMER_CHANGE)
    with pytest.raises(AssertionError, match="ConsumerBusy"):
        await consume(client, 1, subType=0)
    assert used(harness) == before


async def test_a_producer_that_waits_for_its_turn_is_charged_and_gives_back_when_its_client_goes(
    harness: Harness,
) -> None:
    client, other = await Client.connected(harness.port), await Client.connected(harness.port)
    await produce(client, 0, producer_access_mode=1)
    before = used(harness)
    await produce(other, 1, producer_access_mode=2)
    assert used(harness) > before + session_memory.OBJECT_BYTES
    await other.close()
    await until(lambda: used(harness) == before)


@pytest.mark.parametrize("join", [produce, consume, consume_by_key, read, watch], ids=KINDS)
async def test_what_members_are_charged_covers_what_they_take(
    harness: Harness, join: Callable[..., Awaitable[None]]
) -> None:
    client = await Client.connected(harness.port)
    await join(client, 0)
    charged = used(harness)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1, 101):
            await join(client, number)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used(harness) == 101 * charged
    assert taken < 100 * charged * 1.25


async def subscribe_with_properties(client: Client, number: int) -> BaseCommand:
    """A durable subscription with 60 KiB of properties; the answer."""
    client.write(
        frame(
            Type.SUBSCRIBE,
            topic=TOPIC,
            subscription=f"s{number}",
            subType=CommandSubscribe.Shared,
            consumer_id=number,
            request_id=number,
            subscription_properties=[{"key": "k", "value": "v" * 60 * KIB}],
        )
    )
    return await client.read()


async def test_properties_of_subscriptions_have_a_bound_in_all_which_is_known_after_a_restart(tmp_path: Path) -> None:
    for again in (False, True):
        async with running(tmp_path, metadata_bytes=200 * KIB) as broker:
            client = await Client.connected(broker.port)
            if not again:
                for number in range(3):
                    assert (await subscribe_with_properties(client, number)).type == Type.SUCCESS
            refused = (await subscribe_with_properties(client, 3)).error
            assert WireCode(refused.error) is WireCode.TOO_MANY_REQUESTS
            assert "delete others, or raise metadataMB" in refused.message
    async with running(tmp_path, metadata_bytes=200 * KIB) as broker:
        client = await Client.connected(broker.port)
        assert (await subscribe_with_properties(client, 0)).type == Type.SUCCESS  # it is there
        await client.request(Type.UNSUBSCRIBE, Type.SUCCESS, consumer_id=0)
        assert (await subscribe_with_properties(client, 3)).type == Type.SUCCESS
        client.write(frame(Type.PING))
        await client.expect(Type.PONG)
        await administration(broker.broker).topics.delete(TopicName.parse(TOPIC), force=True)
        assert broker.broker.catalog.bulk_bytes == 0
