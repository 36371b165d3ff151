# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: held back where consumers share, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.broker.subscriptions import delays
from penstock.broker.subscriptions.delays import Delays, Held
from penstock.core.units import MIB
from tests.broker.consuming import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Peer,
    nothing_more,
    subscription_of,
)
from tests.net.harness import TOPIC, Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOUR_MS = 3_600_000


@pytest_asyncio.fixture(params=["from the tail cache", "from the log"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        harness.broker.tail_cache.budget_bytes = MIB if request.param == "from the tail cache" else 0
        yield harness


def test_what_is_held_comes_out_when_due_earliest_first() -> None:
    held = Delays()
    for entry_id, at_ms in enumerate((30, 10, 20)):
        held.hold(entry_id, at_ms, slot=entry_id + 5)
    assert (held.next_ms, len(held), held.full) == (10, 3, False)
    assert held.due(9) == []
    assert held.due(20) == [Held(10, 1, 6), Held(20, 2, 7)]
    assert held.next_ms == 30
    held.clear()
    assert held.next_ms is None


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_delayed_message_comes_when_it_is_due_and_costs_nothing_before(harness: Harness, kind: int) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.subscribe(kind, permits=10)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.publish(b"now 0", partition_key="k")
    await peer.publish(b"later", partition_key="k", deliver_at_time=due_ms)
    await peer.publish(b"now 1", partition_key="k", deliver_at_time=harness.clock.wall_ms())
    assert await peer.payloads(2) == [b"now 0", b"now 1"]
    subscription = subscription_of(harness)
    await nothing_more(harness, peer)
    (consumer,) = subscription.consumers
    assert (subscription.delayed, subscription.unacked, consumer.permits) == (1, 2, 8)
    harness.clock.advance(ms=HOUR_MS)
    subscription.delivery._look_for_due()  # type: ignore[union-attr]  # noqa: SLF001 - the timer's turn has come
    late = await peer.message()
    assert (late.payload, late.message.redelivery_count) == (b"later", 0)
    assert (subscription.delayed, consumer.permits) == (0, 7)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_the_timer_finds_what_is_due_by_itself(tmp_path: Path, kind: int) -> None:
    async with running(tmp_path, delayed_strict=True) as harness:
        peer = await Peer.connected(harness)
        await peer.produce()
        await peer.subscribe(kind)
        at_ms = harness.clock.wall_ms()
        await peer.publish(b"second", deliver_at_time=at_ms + 40)
        await peer.publish(b"first", deliver_at_time=at_ms + 20)
        subscription = subscription_of(harness)
        await until(lambda: subscription.delayed == 2)
        harness.clock.advance(ms=20)
        assert (await peer.message()).payload == b"first"
        harness.clock.advance(ms=20)
        assert (await peer.message()).payload == b"second"


async def test_a_message_may_come_a_tick_early_unless_we_are_strict(tmp_path: Path) -> None:
    for strict in (False, True):
        async with running(tmp_path / str(strict), delayed_strict=strict) as harness:
            peer = await Peer.connected(harness)
            await peer.produce()
            await peer.subscribe(SHARED)
            await peer.publish(b"in a second", deliver_at_time=harness.clock.wall_ms() + 1_000)
            subscription = subscription_of(harness)
            if strict:
                await nothing_more(harness, peer)
                assert subscription.delayed == 1
            else:
                assert (await peer.message()).payload == b"in a second"


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_a_single_consumer_gets_delayed_messages_at_once(harness: Harness, kind: int) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.subscribe(kind)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    assert (await peer.message()).payload == b"later"


async def test_where_delays_are_switched_off_nothing_is_held(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", {"active": False, "tickTime": 1_000})
    for kind, name in ((SHARED, "shared"), (KEY_SHARED, "keys")):
        await peer.subscribe(kind, name=name, consumer_id=kind)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    assert await peer.payloads(2) == [b"later", b"later"]


async def test_many_delayed_messages_among_others_are_each_delivered_once(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(60):
        delay = {"deliver_at_time": due_ms + number % 7} if number % 3 else {}
        await peer.publish(b"%d" % number, **delay)
    await peer.subscribe(SHARED, permits=1_000)
    assert await peer.payloads(20) == [b"%d" % number for number in range(0, 60, 3)]
    subscription = subscription_of(harness)
    await until(lambda: subscription.delayed == 40)
    harness.clock.advance(ms=HOUR_MS + 10)
    subscription.delivery._look_for_due()  # type: ignore[union-attr]  # noqa: SLF001 - the timer's turn has come
    assert sorted(map(int, await peer.payloads(40))) == [number for number in range(60) if number % 3]
    await nothing_more(harness, peer)


async def test_what_is_held_waits_for_the_next_consumer_too(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await peer.subscribe(SHARED)
    subscription = subscription_of(harness)
    await until(lambda: subscription.delayed == 1)
    await peer.close_consumer()
    assert subscription.delayed == 0
    await peer.subscribe(SHARED)
    await until(lambda: subscription.delayed == 1)
    await peer.close_consumer()
    harness.clock.advance(ms=HOUR_MS)
    await peer.subscribe(SHARED)
    assert (await peer.message()).payload == b"later"


async def test_when_too_much_is_held_reading_stops_until_some_is_due(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delays, "HELD_MAX", 3)
    peer = await Peer.connected(harness)
    await peer.produce()
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.subscribe(SHARED)
    for number in range(3):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms)
    await peer.publish(b"behind")
    subscription = subscription_of(harness)
    await until(lambda: subscription.delayed == 3)
    await nothing_more(harness, peer)
    harness.clock.advance(ms=HOUR_MS)
    subscription.delivery._look_for_due()  # type: ignore[union-attr]  # noqa: SLF001 - the timer's turn has come
    assert sorted(await peer.payloads(4)) == [b"0", b"1", b"2", b"behind"]


async def test_a_clock_set_back_does_not_lose_what_is_held(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_strict=True) as harness:
        peer = await Peer.connected(harness)
        await peer.produce()
        await peer.subscribe(SHARED)
        await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + 20)
        subscription = subscription_of(harness)
        await until(lambda: subscription.delayed == 1)
        harness.clock.step_wall(ms=-60_000)
        subscription.delivery._look_for_due()  # type: ignore[union-attr]  # noqa: SLF001 - the timer's turn has come
        await nothing_more(harness, peer)
        harness.clock.advance(ms=60_020)
        subscription.delivery._look_for_due()  # type: ignore[union-attr]  # noqa: SLF001 - the timer's turn has come
        assert (await peer.message()).payload == b"later"
