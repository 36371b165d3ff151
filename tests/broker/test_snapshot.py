# SPDX-License-Identifier: Apache-2.0
"""The one view of a broker, taken of real parts on the test's own loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.broker.broker import Broker
from penstock.broker.composition.administration import administration
from penstock.broker.composition.commands import commands
from penstock.broker.limits import BrokerLimits, LimitsInForce
from penstock.core.clock import ManualClock
from penstock.core.names import TopicName
from penstock.core.units import MIB, NS_PER_S
from penstock.governance.budget import ROWS, Budget
from penstock.governance.holds import HoldKind
from penstock.governance.outbound import Outbound
from penstock.governance.request_memory import RequestMemory
from penstock.governance.request_values import RequestLimits
from penstock.net.listener import Connections, Listener, listen_for_clients
from penstock.stats import reading
from penstock.stats.snapshot import MemoryUse
from penstock.storage.catalog import Catalog
from penstock.storage.cursor import Cursor
from penstock.storage.directory import open_data_directory
from penstock.storage.entry_log import EntryLog, LogLimits
from penstock.storage.files import OsFiles

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

LIMITS = BrokerLimits(
    message_bytes_max=MIB,
    keep_alive_ns=30 * NS_PER_S,
    liveness_check_ns=5 * NS_PER_S,
    failover_delay_s=1,
    round_robin_entries_max=20,
    memory_limit_bytes=0,
    memory_rows={"tail-cache": MIB},
    cluster_name="here",
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ns=NS_PER_S, wall_ms=1_357_035_420_000)


def budget_of(limits: BrokerLimits) -> Budget:
    budget = Budget(limits.memory_rows)
    budget.row("http")  # which the admin port has, before there is a broker
    return budget


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    loop = asyncio.get_running_loop()
    files = OsFiles()

    def post(callback: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(callback)

    directory = open_data_directory(tmp_path / "data", files)
    entry_log = EntryLog.open(directory.broker(0), files, LogLimits(), post, clock=clock)
    catalog = Catalog.open(directory, post)
    memory = RequestMemory(RequestLimits(request_bytes_max=4 * MIB, requests_max=0, frame_bytes_max=2 * MIB))
    connections = Connections(
        loop=loop, memory=memory, outbound=Outbound(8 * MIB), clock=clock, frame_bytes_max=2 * MIB - 4
    )
    broker = Broker(
        entry_log=entry_log,
        catalog=catalog,
        connections=connections,
        limits=LimitsInForce(LIMITS),
        clock=clock,
        loop=loop,
        budget=budget_of(LIMITS),
    )
    yield broker
    await broker.stop()
    catalog.close()
    entry_log.close()


async def test_an_idle_broker_has_nothing_and_is_well(broker: Broker, clock: ManualClock) -> None:
    clock.advance(ms=60_000)
    seen = await administration(broker).snapshots.take()
    assert (seen.cluster, seen.health.ok, seen.stopping) == ("here", True, False)
    assert seen.taken_at_ms - seen.started_at_ms == 60_000
    assert (seen.topics, seen.muted, seen.connections_open) == ((), (), 0)
    assert (seen.request_memory.size_bytes, seen.request_memory.used_bytes) == (4 * MIB, 0)
    assert sorted(seen.memory) == sorted(row.name for row in ROWS)
    assert seen.memory["outbound"] == MemoryUse(used_bytes=0, limit_bytes=8 * MIB)
    assert seen.memory["tail-cache"].limit_bytes == MIB
    assert MIB < seen.process.resident_bytes < 2**40
    assert seen.process.cpu_ns > 0


async def test_a_topic_shows_its_subscriptions_and_what_they_have_not_acknowledged(broker: Broker) -> None:
    topic = await broker.topics.get_or_create(TopicName.parse("public/default/flights"), create=True)
    topic.last_entry_id = 9
    topic.messages_in, topic.entries_in, topic.bytes_in = 100, 10, 5_000
    cursor = Cursor(mark_delete=3)
    cursor.acknowledge_many([6])
    topic.add_subscription("audit", cursor=cursor, durable=True)
    (seen,) = (await administration(broker).snapshots.take()).topics
    (subscription,) = seen.subscriptions
    assert (seen.name, seen.namespace) == ("persistent://public/default/flights", "public/default")
    assert (seen.messages_in, seen.entries_in, seen.bytes_in, seen.producers) == (100, 10, 5_000, 0)
    assert (subscription.name, subscription.type, subscription.durable) == ("audit", "Exclusive", True)
    assert (subscription.backlog, subscription.consumers) == (5, 0)


async def test_a_subscription_of_a_topic_that_stores_nothing_has_no_backlog(broker: Broker) -> None:
    topic = await broker.topics.get_or_create(TopicName.parse("non-persistent://public/default/radar"), create=True)
    topic.last_entry_id = 9
    topic.add_subscription("screen", cursor=Cursor(), durable=False)
    (seen,) = (await administration(broker).snapshots.take()).topics
    assert seen.subscriptions[0].backlog == 0


@pytest.mark.real
async def test_a_muted_connection_shows_since_when_and_why_oldest_reason_first(
    broker: Broker, clock: ManualClock
) -> None:
    listener = Listener(broker.connections, listen_for_clients("127.0.0.1", 0))
    listener.start(commands(broker).open_session)
    _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    while not broker.connections.accepted:  # noqa: ASYNC110 -- the listener announces nothing
        await asyncio.sleep(0)
    (connection,) = broker.connections.all()
    connection.mute(HoldKind.STORAGE)
    clock.advance(ms=500)
    connection.mute(HoldKind.OUTBOUND)
    clock.advance(ms=250)
    seen = await administration(broker).snapshots.take()
    listener.close()
    writer.close()
    (muted,) = seen.muted
    assert muted.peer == connection.peer
    assert muted.muted_ns == 750_000_000
    assert muted.reasons == ("storage", "outbound")
    assert (muted.held_bytes, muted.want_bytes) == (0, 0)
    assert (seen.connections_accepted, seen.connections_open) == (1, 1)


async def test_a_broker_that_stops_says_so(broker: Broker) -> None:
    broker.stopping = True
    seen = await administration(broker).snapshots.take()
    assert seen.stopping
    assert (seen.health.ok, seen.health.reason) == (False, "stopping")


async def test_many_topics_are_read_in_portions_with_turns_for_others_between(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS_PER_TURN", 10)
    for number in range(95):
        await broker.topics.get_or_create(TopicName.parse(f"non-persistent://public/default/t-{number}"), create=True)
    taking = asyncio.ensure_future(administration(broker).snapshots.take())
    turns = 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(taking.result().topics) == 95
    assert turns >= 10


async def test_a_topic_with_many_subscriptions_is_read_in_portions_too(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ROWS_PER_TURN", 10)
    topic = await broker.topics.get_or_create(TopicName.parse("non-persistent://public/default/t"), create=True)
    for number in range(95):
        topic.add_subscription(f"s-{number}", cursor=Cursor(), durable=False)
    taking = asyncio.ensure_future(administration(broker).snapshots.take())
    turns = 0
    while not taking.done():
        await asyncio.sleep(0)
        turns += 1
    (seen,) = taking.result().topics
    assert len(seen.subscriptions) == 95
    assert turns >= 9


async def test_requests_that_arrive_while_a_snapshot_is_taken_share_it_and_a_later_one_gets_its_own(
    broker: Broker,
) -> None:
    snapshots = administration(broker).snapshots
    first, impatient, second = (asyncio.ensure_future(snapshots.take()) for _ in range(3))
    await asyncio.sleep(0)
    impatient.cancel()
    assert await first is await second
    assert impatient.cancelled()
    assert await snapshots.take() is not await first


async def test_snapshots_in_use_are_few_and_a_request_beyond_them_gets_the_newest(
    broker: Broker, clock: ManualClock
) -> None:
    snapshots = administration(broker).snapshots
    held = [await snapshots.take() for _ in range(reading.HELD_MAX)]
    assert await snapshots.take() is held[-1]
    held.pop(0)
    assert await snapshots.take() is not held[-1]
    held.append(await snapshots.take())
    clock.advance(ns=reading.HELD_NS_MAX)
    assert await snapshots.take() is not held[-1]
