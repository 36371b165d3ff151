# SPDX-License-Identifier: Apache-2.0
"""Permits that wait for the dispatch limit of a group: rates, bounds, fairness, and consumers that get nothing."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from penstock.core.units import NS_PER_S
from penstock.governance.resource_group import GroupRate, GroupRates
from penstock.groups.held_permits import OUTSTANDING_NS
from tests.groups.permit_world import QUEUE, Consumer, World, windows


@pytest.mark.parametrize(
    ("batch", "precise", "round_trip_s"),
    [
        (1, True, 0.001),
        (1, True, 0.05),
        (10, True, 0.005),
        (10, True, 0.05),
        (10, False, 0.005),
        (10, False, 0.05),
        (100, False, 0.002),
    ],
)
async def test_a_backlog_is_delivered_at_the_rate_of_its_group(batch: int, precise: bool, round_trip_s: float) -> None:
    world = World()
    group = world.group(messages=1_000)
    consumers = [
        Consumer(world, group, backlog=100_000, batch=batch, precise=precise, round_trip_s=round_trip_s)
        for _ in range(3)
    ]
    for consumer in consumers:
        consumer.subscribe()
    await asyncio.sleep(30)
    assert all(950 <= rate <= 1_050 for rate in windows(consumers, start_s=0.5, stop_s=30))
    assert group.limiter.dispatch.messages_passed == sum(consumer.total for consumer in consumers)
    totals = sorted(consumer.total for consumer in consumers)
    assert totals[0] > 0.9 * totals[-1], "equal parts"


async def test_a_rate_in_bytes_is_kept_without_knowing_sizes_before() -> None:
    world = World()
    group = world.group(nbytes=100_000)
    large = Consumer(world, group, backlog=10_000, entry_bytes=5_000)
    small = Consumer(world, group, backlog=100_000, entry_bytes=100)
    large.subscribe()
    small.subscribe()
    await asyncio.sleep(20)
    used = large.total * 5_000 + small.total * 100
    assert used == pytest.approx(2_000_000, rel=0.05)
    assert small.total * 100 == pytest.approx(large.total * 5_000, rel=0.2)


async def test_one_busy_consumer_among_many_idle_ones_gets_the_whole_rate() -> None:
    world = World()
    group = world.group(messages=1_000)
    idle = [Consumer(world, group) for _ in range(100)]
    busy = Consumer(world, group, backlog=100_000)
    for consumer in [*idle, busy]:
        consumer.subscribe()
    await asyncio.sleep(20)
    assert all(950 <= rate <= 1_050 for rate in windows([busy], start_s=2, stop_s=20))
    assert group.dispatch.permits <= 100 + 1_000 * 0.1


async def test_topics_that_all_become_busy_at_once_exceed_the_share_by_a_bound_that_is_repaid() -> None:
    world = World()
    group = world.group(messages=1_000)
    consumers = [Consumer(world, group) for _ in range(50)]
    for consumer in consumers:
        consumer.subscribe()
    for consumer in consumers:  # Each was busy once, alone, and has steps of some size.
        consumer.publish(200)
        await asyncio.sleep(1)
    assert group.dispatch.permits <= 2 * 1_000 * OUTSTANDING_NS / NS_PER_S + 50
    assert all(not consumer.backlog for consumer in consumers)
    before = sum(consumer.total for consumer in consumers)
    for consumer in consumers:
        consumer.publish(1_000)
    await asyncio.sleep(1)
    after_one = sum(consumer.total for consumer in consumers) - before
    assert after_one <= 1_000 + 2 * 1_000 * OUTSTANDING_NS / NS_PER_S + 50 + 50
    await asyncio.sleep(19)
    assert sum(consumer.total for consumer in consumers) - before == pytest.approx(20_000, rel=0.01)


async def test_a_lone_message_comes_at_once_and_a_trickle_is_not_delayed() -> None:
    world = World()
    group = world.group(messages=100)
    consumer = Consumer(world, group)
    consumer.subscribe()
    await asyncio.sleep(5)
    for _ in range(200):
        sent_s = world.now_s()
        consumer.publish(1)
        await asyncio.sleep(0.02)
        assert consumer.got[-1][0] - sent_s <= consumer.round_trip_s
    assert consumer.total == 200


async def test_a_consumer_without_a_queue_asks_for_each_message() -> None:
    world = World()
    group = world.group(messages=10)
    consumer = Consumer(world, group, backlog=1_000, queue=0)
    for number in range(50):
        consumer.permits.flow(1)
        await world.loop.until(partial(consumer.has, number + 1), 60)
    assert world.now_s() == pytest.approx(5, rel=0.1)
    assert set(consumer.flows) == {1}


async def test_a_batch_larger_than_the_queue_passes_and_its_debt_is_repaid() -> None:
    world = World()
    group = world.group(messages=100)
    consumer = Consumer(world, group, backlog=100, batch=1_000, queue=10)
    consumer.subscribe()
    await asyncio.sleep(60)
    assert consumer.total == pytest.approx(6_000, abs=1_000)
    assert max(messages for _, messages in consumer.got) == 1_000


async def test_the_stricter_of_two_groups_limits_and_both_are_charged() -> None:
    world = World()
    strict, lax = world.group("strict", messages=100), world.group("lax", messages=1_000)
    both = Consumer(world, strict, lax, backlog=10_000)
    other = Consumer(world, lax, backlog=100_000)
    both.subscribe()
    other.subscribe()
    await asyncio.sleep(20)
    assert both.total == pytest.approx(2_000, rel=0.05)
    assert other.total == pytest.approx(18_000, rel=0.05)
    assert lax.limiter.dispatch.messages_passed == both.total + other.total


async def test_all_that_waits_passes_when_its_group_is_removed() -> None:
    world = World()
    group = world.group(messages=1)
    consumer = Consumer(world, group, backlog=5_000)
    consumer.subscribe()
    await asyncio.sleep(1)
    assert consumer.total <= 3
    consumer.permits.limit(())
    await asyncio.sleep(1)
    assert consumer.permits.wanted == 0
    assert consumer.broker_permits + consumer.total >= QUEUE
    assert (group.dispatch.consumers, group.dispatch.permits, group.dispatch.waiting) == (0, 0, 0)


async def test_a_consumer_that_leaves_leaves_nothing_behind() -> None:
    world = World()
    group = world.group(messages=10)
    consumers = [Consumer(world, group, backlog=1_000) for _ in range(5)]
    for consumer in consumers:
        consumer.subscribe()
    await asyncio.sleep(3)
    for consumer in consumers:
        consumer.permits.leave()
    flows = [len(consumer.flows) for consumer in consumers]
    assert (group.dispatch.consumers, group.dispatch.permits, group.dispatch.waiting) == (0, 0, 0)
    assert group.limiter.dispatch.waits_since_ns is None
    await asyncio.sleep(10)
    assert [len(consumer.flows) for consumer in consumers] == flows


async def test_what_an_idle_consumer_reserved_returns_to_the_others() -> None:
    world = World()
    group = world.group(messages=10)  # A burst of less than a message.
    idle, busy = Consumer(world, group), Consumer(world, group, backlog=1_000)
    idle.subscribe()
    await asyncio.sleep(10)
    busy.subscribe()
    await asyncio.sleep(10)
    assert busy.total == pytest.approx(100, abs=5)


async def test_a_consumer_older_than_its_group_is_limited_by_all_its_permits_at_a_time() -> None:
    world = World()
    group = world.group(messages=100)
    consumer = Consumer(world, group, backlog=100_000, queue=100, exact=False)
    consumer.broker_permits = 60  # Nobody knows of them.
    consumer.publish(0)
    consumer.permits.flow(40)
    await asyncio.sleep(20)
    assert consumer.total == pytest.approx(2_000, rel=0.1)


async def test_messages_that_cannot_be_counted_do_not_stop_a_consumer() -> None:
    world = World()
    group = world.group(messages=1_000)
    consumer = Consumer(world, group, backlog=0, queue=100)
    consumer.subscribe()
    await asyncio.sleep(1)
    sent = sum(consumer.flows)
    consumer.permits.delivered(1, 100, unread=1)
    assert consumer.permits.wanted == 0
    assert sum(consumer.flows) == 100 > sent
    assert group.dispatch.permits == 0


@pytest.mark.parametrize("change", [0.5, 3.0])
async def test_a_changed_share_counts_at_once(change: float) -> None:
    world = World()
    group = world.group(messages=400)
    consumer = Consumer(world, group, backlog=100_000)
    consumer.subscribe()
    await asyncio.sleep(5)
    before = consumer.total
    group.set_share(GroupRates(dispatch=GroupRate(400 * change)), world.clock.monotonic_ns())
    await asyncio.sleep(5)
    assert consumer.total - before == pytest.approx(2_000 * change, rel=0.05)


async def test_a_group_in_debt_is_seen_to_wait_nearly_all_the_time() -> None:
    """So that the exchange gives this proxy more."""
    world = World()
    group = world.group(messages=200)
    consumer = Consumer(world, group, backlog=100_000)
    consumer.subscribe()
    await asyncio.sleep(10)
    assert group.limiter.dispatch.limited_ns(world.clock.monotonic_ns()) >= 0.95 * 10 * NS_PER_S
