# SPDX-License-Identifier: Apache-2.0
"""Clients that do everything in any order, and go in the middle of it, by seed; topics come and go meanwhile.

What must hold when all are gone: nothing of them is left, in any book, and whoever comes next can do everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import PenstockError
from penstock.core.names import TopicName
from penstock.testing.client import Type, frame
from tests.broker.governed import NAMESPACE, configure
from tests.net.harness import Client, publish, running, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.net.harness import Harness

SEEDS = range(int(os.environ.get("PENSTOCK_SIM_SEEDS", "20")))  # `make sim` has more
ONE = os.environ.get("PENSTOCK_SIM_SEED")
TOPICS = [*(f"persistent://public/default/x{number}" for number in range(3)), "non-persistent://public/default/n"]
CLIENTS = 6
VISITS = 12  # connections of each
COMMANDS_MAX = 50  # of one connection
RATES: dict[str, list[dict[str, int]]] = {
    "publishRate": [{"publishThrottlingRateInMsg": n, "publishThrottlingRateInByte": -1} for n in (1, 50)],
    "dispatchRate": [{"dispatchThrottlingRateInMsg": 100}],
    "subscriptionDispatchRate": [{"dispatchThrottlingRateInMsg": 100}],
}


def commands(rng: random.Random) -> list[Callable[[], bytes]]:
    """What a client may send next."""
    topic, number, request_id = rng.choice(TOPICS), rng.randrange(4), rng.randrange(1_000, 10_000)
    ask: dict[str, Any] = {"request_id": request_id}
    optional: dict[str, Any] = {
        "producer_name": rng.choice("abc"),
        "topic_epoch": rng.randrange(5),
        "epoch": rng.randrange(3),
        "initial_subscription_name": "i",
    }
    said = {key: value for key, value in optional.items() if rng.random() < 0.3}
    return [
        *2
        * [
            lambda: frame(
                Type.PRODUCER, topic=topic, producer_id=number, producer_access_mode=rng.randrange(4), **said, **ask
            )
        ],
        *2
        * [
            lambda: frame(
                Type.SUBSCRIBE,
                topic=topic,
                subscription=rng.choice("st"),
                consumer_id=number,
                consumer_name=rng.choice("uvw"),
                subType=rng.randrange(4),
                durable=rng.random() < 0.6,
                initialPosition=1,
                **ask,
            )
        ],
        lambda: b"".join(publish(bytes(rng.choice((1, 1_000, 20_000))), row, number) for row in range(10)),
        lambda: frame(Type.FLOW, consumer_id=number, messagePermits=rng.choice((1, 1_000))),
        lambda: frame(Type.CLOSE_PRODUCER, producer_id=number, **ask),
        lambda: frame(Type.CLOSE_CONSUMER, consumer_id=number, **ask),
        lambda: frame(Type.UNSUBSCRIBE, consumer_id=number, force=rng.random() < 0.5, **ask),
        lambda: frame(Type.SEEK, consumer_id=number, message_publish_time=1, **ask),
        lambda: frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=number),
        lambda: frame(Type.GET_LAST_MESSAGE_ID, consumer_id=number, **ask),
        lambda: frame(Type.WATCH_TOPIC_LIST, watcher_id=number, namespace=NAMESPACE, topics_pattern="x.*", **ask),
        lambda: frame(Type.GET_TOPICS_OF_NAMESPACE, namespace=NAMESPACE, **ask),
        lambda: frame(Type.PARTITIONED_METADATA, topic=topic, **ask),
    ]


async def visit(harness: Harness, rng: random.Random) -> None:
    """Connect, send commands in any order, and be gone, mostly without waiting for the answers."""
    client = await Client.connected(harness.port)
    for _ in range(rng.randrange(1, COMMANDS_MAX)):
        client.write(rng.choice(commands(rng))())
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        for _ in range(rng.randrange(20)):
            await client.read()
    client.abort()


async def stay_away_never(harness: Harness, rng: random.Random) -> None:
    for _ in range(VISITS):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(0.2):  # Whoever is not read, for a rate, gives up.
                await visit(harness, rng)


async def administer(harness: Harness, rng: random.Random, clients: asyncio.Future[Any]) -> None:
    """Unload, delete and limit topics until the clients are through."""
    broker = harness.broker
    while not clients.done():
        name = TopicName.parse(rng.choice(TOPICS))
        with contextlib.suppress(PenstockError):
            match rng.randrange(6):
                case 0:
                    await administration(broker).topics.unload(name)
                case 1:
                    await administration(broker).topics.delete(name, force=True)
                case 2:
                    key = rng.choice(list(RATES))
                    await broker.policies.set_namespace(NAMESPACE, key, rng.choice([None, *RATES[key]]))
                case 3:
                    await broker.policies.set_namespace(NAMESPACE, "deduplication", rng.choice((None, True)))
                case 4:
                    configure(harness, broker_publisher_throttling_max_message_rate=rng.choice((0, 200)))
                case _:
                    await administration(broker).topics.terminate(name)
                    await administration(broker).topics.delete(name, force=True)
        harness.clock.advance(ms=rng.randrange(500))
        await asyncio.sleep(0.002)


def left_behind(harness: Harness) -> list[object]:
    """What is still in the books though nobody is there."""
    broker, found = harness.broker, list[object]()
    for topic in broker.topics.loaded():
        access = topic.write_access
        if topic.producers or access.holder or access.waiting or topic.fenced:
            found.append((topic.text, topic.producers, access.holder, access.waiting))
        for subscription in topic.subscriptions.values():
            if subscription.consumers or subscription.unacked or subscription.dispatcher or subscription.fenced:
                found.append((topic.text, subscription.name, subscription.consumers))
    connections = harness.connections
    books = {
        "watchers": broker.topics.feed._listeners,  # noqa: SLF001
        "loads": broker.topics.loading,
        "lookups": broker.lookups.inside,
        "changes of states": broker.states._changing,  # noqa: SLF001
        "unfinished work": broker.changes.unfinished,
        "addresses": connections.of_address("127.0.0.1"),
        "unsent bytes": connections.outbound.used_bytes,
        "request memory": harness.used,
    }
    return found + [name for name, book in books.items() if book]


async def work(harness: Harness, topic: str) -> None:
    """What anybody must be able to do with a topic that nobody uses."""
    client = await Client.connected(harness.port)
    said: dict[str, Any] = {"topic": topic, "producer_id": 0, "producer_access_mode": 1}
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, **said)
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, topic=topic, subscription="new", consumer_id=0, subType=1)
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
    client.publish(b"a")
    came = {(await client.read()).type for _ in range(2)}
    assert came == {Type.SEND_RECEIPT, Type.MESSAGE}
    client.abort()


@pytest.mark.parametrize("seed", [int(ONE)] if ONE else SEEDS)
async def test_clients_that_go_in_the_middle_of_everything_leave_nothing_behind(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    rng = random.Random(seed)
    async with running(tmp_path, liveness_check_ns=20_000_000) as harness:
        broker = harness.broker
        clients = asyncio.gather(*(stay_away_never(harness, random.Random(rng.random())) for _ in range(CLIENTS)))
        await administer(harness, random.Random(rng.random()), clients)
        await clients
        for client in Client.opened:
            client.abort()
        configure(harness, broker_publisher_throttling_max_message_rate=0)
        for key in (*RATES, "deduplication"):
            await broker.policies.set_namespace(NAMESPACE, key, None)
        # Who is not read, for a rate, is not seen to be gone.

        def all_are_gone() -> bool:
            harness.clock.advance(ms=1_000)
            return not broker.sessions

        await until(all_are_gone)
        await until(lambda: not broker.changes.unfinished)
        await broker.reads.settled()
        assert left_behind(harness) == []
        assert [record.getMessage() for record in caplog.records] == []
        for topic in TOPICS:
            await work(harness, topic)
