# SPDX-License-Identifier: Apache-2.0
"""Each kind of hold, live: a whole broker is brought into it, and says its sentence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import MetadataFailed
from penstock.core.names import NamespaceName
from penstock.core.units import KIB, MIB
from penstock.governance.holds import HoldKind
from penstock.net.listing_memory import LimitType, Owner
from penstock.stats.findings import SENTENCES
from penstock.testing.client import Refused, Type
from tests.broker.consuming import FAILOVER, KEY_SHARED, SHARED, Peer, subscription_of
from tests.broker.governed import configure
from tests.broker.test_holds import disk_of, key_of, of_tenant, publish_until_held, published
from tests.broker.test_resource_groups import attach, passes, put
from tests.broker.throttled import Publisher, cycles, throttled
from tests.broker.transacting import TransactingPeer
from tests.net.harness import TOPIC, running, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from tests.net.harness import Harness


async def consuming(harness: Harness, kind: int = SHARED, **fields: Any) -> Peer:  # noqa: ANN401
    consumer = await Peer.connected(harness)
    await consumer.subscribe(kind, **fields)
    return consumer


# -- everybody


async def fail_the_disk(harness: Harness) -> None:
    producer = await published(harness, b"x")
    await passes(2_000)
    disk_of(harness).fail_sync_at(1)
    producer.client.publish(b"x")
    await until(lambda: harness.broker.log.health.read_only is not None)


async def fail_the_catalog(harness: Harness) -> None:
    await Peer.producing(harness)
    await passes(2_000)
    disk_of(harness).fail_sync_at(1)
    with pytest.raises(MetadataFailed):
        await administration(harness.broker).tenants.create("other", {"allowedClusters": ["test"]})


async def fill_the_disk(harness: Harness) -> None:
    await Peer.producing(harness)
    disk_of(harness).run_full_after(0)
    harness.broker.log._maintenance.no_room = "the disk has no room for the next segment"  # noqa: SLF001
    await passes(2_000)


async def hold_the_disk(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    harness.disk.hold()
    producer.client.publish(b"x")
    await passes(5_000)


async def use_request_memory_up(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    harness.disk.hold()
    producer.client.publish(*[bytes(500 * KIB)] * 20)
    await until(harness.muted)


async def leave_requests_unanswered(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    harness.disk.hold()
    producer.client.publish(*[b"x"] * 500)
    await until(harness.muted)


# -- publishers


async def exceed_a_backlog_quota(harness: Harness) -> None:
    await (await consuming(harness, permits=0)).close_consumer()
    quota = {"limitSize": 50, "policy": "producer_exception"}
    await harness.broker.policies.set_namespace_quota("public/default", "destination_storage", quota)
    await published(harness, *[bytes(100)] * 20)


async def be_refused_by_a_backlog_quota(harness: Harness) -> None:
    await exceed_a_backlog_quota(harness)
    with pytest.raises(Refused):
        await (await Peer.connected(harness)).produce()


async def exceed_a_publish_rate(harness: Harness) -> None:
    producer = await Peer.producing(harness)
    rate = {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
    await publish_until_held(harness, producer)


async def exceed_a_group(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    await publish_until_held(harness, await Peer.producing(harness))


async def wait_for_exclusive_access(harness: Harness) -> None:
    await Peer.producing(harness)
    second = (await Peer.connected(harness)).client
    fields = {"topic": TOPIC, "producer_id": 0, "producer_name": "second", "producer_access_mode": 2}
    await second.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, **fields)
    await passes(2_000)


async def send_too_many_commands(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    harness.connection_of(peer.client).mute(HoldKind.COMMANDS)


# -- consumers


async def have_no_consumer(harness: Harness) -> None:
    await (await consuming(harness, permits=0)).close_consumer()
    await published(harness, b"x")


async def be_reset(harness: Harness) -> None:
    await published(harness, b"x")
    await consuming(harness, permits=0)
    subscription_of(harness).fenced = True


async def change_the_active_consumer(harness: Harness) -> None:
    await published(harness, b"x")
    await consuming(harness, FAILOVER)
    await passes(100)


async def fail_to_read(harness: Harness) -> None:
    await published(harness, *[bytes(100 * KIB)] * 30)
    harness.broker.tail_cache.limit_bytes = 0
    harness.disk.read_error = OSError(5, "Input/output error")
    await consuming(harness)
    await passes(2_000)


async def exceed_a_dispatch_rate(harness: Harness) -> None:
    configure(harness, dispatch_throttling_on_non_backlog_consumer_enabled=True)
    await published(harness, *[b"x"] * 50)
    rate = {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 5}
    await harness.broker.policies.set_topic(TOPIC, "dispatchRate", rate)
    await consuming(harness)
    await passes(1_000)


async def use_dispatch_memory_up(harness: Harness) -> None:
    await published(harness, *[b"x"] * 200)
    harness.broker.dispatch_memory.limit_bytes = 0
    await consuming(harness)
    await passes(1_000)


async def acknowledge_nothing(harness: Harness) -> None:
    configure(harness, max_unacked_messages_per_consumer=10)
    await published(harness, *[b"x"] * 50)
    consumer = await consuming(harness, permits=20)
    await consumer.messages(10)
    consumer.flow(1_000)
    await passes(0)


async def read_nothing(harness: Harness) -> None:
    await published(harness, *[bytes(900 * KIB)] * 40)
    await consuming(harness)
    await passes(3_000)


async def ask_for_nothing(harness: Harness) -> None:
    await published(harness, b"x")
    await consuming(harness, permits=0)
    await passes(2_000)


async def take_nothing(harness: Harness) -> None:
    await published(harness, *[b"x"] * 10)
    await consuming(harness, permits=5)
    await passes(2_000)


async def hold_keys(harness: Harness) -> None:
    await consuming(harness, KEY_SHARED, consumer_name="a")
    producer = await Peer.producing(harness)
    keys = [f"key-{number}" for number in range(40)]
    for key in keys:
        await producer.publish(b"x", partition_key=key)
    await consuming(harness, KEY_SHARED, consumer_name="b")
    for key in keys:
        await producer.publish(b"x", partition_key=key)
    await passes(2_000)


async def fill_the_look_ahead(harness: Harness) -> None:
    await consuming(harness, KEY_SHARED, consumer_name="slow", permits=1)
    await consuming(harness, KEY_SHARED, consumer_name="fast", permits=100_000)
    producer = await Peer.producing(harness)
    key = key_of(harness, "slow")
    for _ in range(9):
        await producer.publish(*[b"x"] * 500, partition_key=key)
    await passes(2_000)


async def delay_messages(harness: Harness) -> None:
    await consuming(harness)
    await published(harness, b"x", deliver_at_time=harness.clock.wall_ms() + 60_000)


async def list_beyond_memory(harness: Harness) -> None:
    limiter = harness.broker.listings.limiter(LimitType.HEAP_MEMORY)
    held = await limiter.acquire(limiter.snapshot().permits_max, owner=Owner("public", 1))
    waiting = asyncio.ensure_future(limiter.acquire(1_000, owner=Owner("public", 2)))
    waiting.add_done_callback(lambda done: limiter.release(done.result()))
    harness.broker.loop.call_later(5, limiter.release, held)
    await passes(1_000)


async def use_memory_of_clients_up(harness: Harness) -> None:
    await Peer.producing(harness)
    row = harness.broker.sessions_memory
    row.limit_bytes = row.used_bytes
    with pytest.raises(Refused):
        await (await Peer.connected(harness)).produce()


async def leave_a_transaction_open(harness: Harness) -> None:
    await consuming(harness)
    peer = await TransactingPeer.connected(harness)
    assert isinstance(peer, TransactingPeer)
    await peer.produce()
    transaction = await peer.open()
    await peer.add_topics(transaction)
    await peer.send_in(transaction, b"x")


async def replicate_to_nowhere(harness: Harness) -> None:
    admin = administration(harness.broker)
    await admin.clusters.create("west", {"brokerServiceUrl": "pulsar://127.0.0.1:1"})
    await admin.tenants.update("public", {"allowedClusters": ["test", "west"]})
    await admin.policies.set_replication(NamespaceName.parse("public/default"), ["test", "west"])
    await published(harness, b"x")
    replicator = subscription_of(harness, "pulsar.repl.west").replicator
    assert replicator is not None
    await until(lambda: replicator.problem)


@dataclass(frozen=True)
class Staged:
    """How a broker comes to hold something, and what it is started with."""

    stage: Callable[[Harness], Awaitable[None]]
    options: Mapping[str, Any] = field(default_factory=dict)


STAGES: Final[Mapping[HoldKind, Staged]] = {
    HoldKind.LOG_READ_ONLY: Staged(fail_the_disk),
    HoldKind.CATALOG: Staged(fail_the_catalog),
    HoldKind.DISK_FULL: Staged(fill_the_disk),
    HoldKind.STORAGE: Staged(hold_the_disk),
    HoldKind.REQUEST_MEMORY: Staged(use_request_memory_up, {"pool_bytes": 2 * MIB}),
    HoldKind.REQUEST_COUNT: Staged(leave_requests_unanswered, {"requests_max": 100}),
    HoldKind.BACKLOG_QUOTA: Staged(be_refused_by_a_backlog_quota),
    HoldKind.PUBLISH_RATE: Staged(exceed_a_publish_rate),
    HoldKind.GROUP_QUOTA: Staged(exceed_a_group),
    HoldKind.EXCLUSIVE_ACCESS: Staged(wait_for_exclusive_access),
    HoldKind.COMMANDS: Staged(send_too_many_commands),
    HoldKind.NO_CONSUMER: Staged(have_no_consumer),
    HoldKind.REPLICATION: Staged(replicate_to_nowhere),
    HoldKind.RESETTING: Staged(be_reset),
    HoldKind.TRANSACTION: Staged(leave_a_transaction_open),
    HoldKind.FAILOVER_DELAY: Staged(change_the_active_consumer, {"failover_delay_s": 5.0}),
    HoldKind.UNREADABLE: Staged(fail_to_read),
    HoldKind.DISPATCH_RATE: Staged(exceed_a_dispatch_rate),
    HoldKind.DISPATCH_MEMORY: Staged(use_dispatch_memory_up),
    HoldKind.UNACKED: Staged(acknowledge_nothing),
    HoldKind.OUTBOUND: Staged(read_nothing),
    HoldKind.NO_PERMITS: Staged(ask_for_nothing),
    HoldKind.QUEUE_FULL: Staged(take_nothing),
    HoldKind.KEY_BLOCKED: Staged(hold_keys),
    HoldKind.LOOK_AHEAD: Staged(fill_the_look_ahead),
    HoldKind.DELAYED: Staged(delay_messages),
    HoldKind.TOPIC_LIST_MEMORY: Staged(list_beyond_memory),
    HoldKind.MEMORY_ROW: Staged(use_memory_of_clients_up),
    HoldKind.WOULD_REFUSE: Staged(exceed_a_backlog_quota),
}
# Live in tests/proxied/test_holds.py, and below.
OF_PROXIES: Final = {HoldKind.UPSTREAM, HoldKind.STOPPING}
ELSEWHERE: Final = {HoldKind.ADAPTIVE_RATE}
# All tenants are told.
OF_ALL: Final = {
    HoldKind.LOG_READ_ONLY,
    HoldKind.CATALOG,
    HoldKind.DISK_FULL,
    HoldKind.DISPATCH_MEMORY,
    HoldKind.MEMORY_ROW,
}
# The metric does not compare backlogs with quotas.
NOT_COUNTED: Final = {HoldKind.BACKLOG_QUOTA, HoldKind.WOULD_REFUSE}
# What a finding may follow: its cause.
AFTER: Final = {HoldKind.LOOK_AHEAD, HoldKind.WOULD_REFUSE}


def test_every_kind_of_hold_is_shown_live() -> None:
    assert STAGES.keys() | OF_PROXIES | ELSEWHERE == set(HoldKind)


@pytest.mark.parametrize("kind", STAGES, ids=lambda kind: kind.value)
async def test_a_broker_that_holds_something_says_so_first(tmp_path: Path, kind: HoldKind) -> None:
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(running(tmp_path, **STAGES[kind].options))
        stack.callback(let_go, harness)
        await administration(harness.broker).tenants.create("shop", {"allowedClusters": ["test"]})
        await STAGES[kind].stage(harness)
        found = await of_tenant(harness)
        assert found, "nothing is found"
        (one,) = [each for each in found if each["reason"] == kind.value][:1] or [found[0]]
        assert says(one, kind), one
        assert kind in AFTER or found[0] is one, found
        counts = await administration(harness.broker).why.counts()
        assert counts[kind] >= (kind not in NOT_COUNTED), counts
        if kind not in OF_ALL:
            assert await of_tenant(harness, "shop") == [], "nobody else is told"


async def test_an_adaptive_throttle_says_so_first(tmp_path: Path) -> None:
    async with throttled(tmp_path) as (harness, sensors):
        publisher = await Publisher.connected(harness)
        publisher.start(400)
        await cycles(10)
        sensors.memory = 0.8
        await cycles(5)
        found = (await of_tenant(harness))[0]
        assert says(found, HoldKind.ADAPTIVE_RATE), found
        await publisher.stop()


def let_go(harness: Harness) -> None:
    """End the faults of the disk, so that the broker can stop."""
    disk_of(harness).heal_all()


def says(found: Mapping[str, Any], kind: HoldKind) -> bool:
    """Whether a finding is of this kind, and has its sentence."""
    start, _, end = SENTENCES[kind].limit.partition("{of}")
    limit = found["limit"]
    return found["reason"] == kind.value and limit.startswith(start) and limit.endswith(end) and bool(found["liftedBy"])
