# SPDX-License-Identifier: Apache-2.0
"""Delayed messages end to end: held back where consumers share, and nowhere else; due once for each subscription."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.core.units import MIB
from tests.broker.consuming import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Peer,
    delayed_of,
    nothing_more,
    pass_time,
    subscription_of,
)
from tests.net.harness import TOPIC, Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOUR_MS = 3_600_000
TICK_MS = 1_000


@pytest_asyncio.fixture(params=["from the tail cache", "from the log"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        harness.broker.tail_cache.limit_bytes = MIB if request.param == "from the tail cache" else 0
        yield harness


async def held(harness: Harness, count: int, name: str = "s") -> None:
    """Wait until so many messages wait to be due."""
    await until(lambda: subscription_of(harness, name).delayed == count)


# -- held, and due ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_delayed_message_comes_when_it_is_due_and_costs_nothing_before(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
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
    pass_time(harness, HOUR_MS)
    late = await peer.message()
    assert (late.payload, late.message.redelivery_count) == (b"later", 0)
    assert (subscription.delayed, consumer.permits) == (0, 7)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_the_timer_finds_what_is_due_by_itself(tmp_path: Path, kind: int) -> None:
    async with running(tmp_path, delayed_strict=True) as harness:
        peer = await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", {"active": True, "tickTime": 20})
        await peer.subscribe(kind)
        at_ms = harness.clock.wall_ms()
        await peer.publish(b"second", deliver_at_time=at_ms + 60)
        await peer.publish(b"first", deliver_at_time=at_ms + 30)
        await held(harness, 2)
        harness.clock.advance(ms=40)
        assert (await peer.message()).payload == b"first"
        harness.clock.advance(ms=40)
        assert (await peer.message()).payload == b"second"


@pytest.mark.parametrize("strict", [False, True], ids=["early by a tick at most", "strict"])
async def test_a_message_comes_within_a_tick_of_its_time_and_in_strict_mode_not_before(
    tmp_path: Path, *, strict: bool
) -> None:
    chance = random.Random(7)
    async with running(tmp_path, delayed_strict=strict) as harness:
        peer = await Peer.producing(harness)
        await peer.subscribe(SHARED)
        start_ms = harness.clock.wall_ms()
        delays_ms = [chance.randrange(2_000, 8_000) for _ in range(40)]
        for delay_ms in delays_ms:
            await peer.publish(b"%d" % (start_ms + delay_ms), deliver_at_time=start_ms + delay_ms)
        await held(harness, 40)
        came_ms = 0
        for _ in range(18):
            await nothing_more(harness, peer)
            pass_time(harness, TICK_MS // 2)
            now_ms = harness.clock.wall_ms()
            for _, entry in await arrived(harness, peer):
                early_ms = int(entry[-13:]) - now_ms
                assert -TICK_MS <= early_ms <= (0 if strict else TICK_MS)
                came_ms += 1
        assert came_ms == 40


async def arrived(harness: Harness, peer: Peer) -> list[tuple[object, bytes]]:
    """Everything that was delivered by now."""
    subscription = subscription_of(harness)
    await peer.settled()
    await until(lambda: subscription.at_rest)
    await peer.settled()
    came, peer.inbox = [one for one in peer.inbox if one[1]], []
    return came  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER])
async def test_a_single_consumer_gets_delayed_messages_at_once(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(kind)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    assert (await peer.message()).payload == b"later"
    assert topic_of(harness).delayed is None


async def test_many_delayed_messages_among_others_are_each_delivered_once(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(60):
        delay = {"deliver_at_time": due_ms + number % 7} if number % 3 else {}
        await peer.publish(b"%d" % number, **delay)
    await peer.subscribe(SHARED, permits=1_000)
    assert await peer.payloads(20) == [b"%d" % number for number in range(0, 60, 3)]
    await held(harness, 40)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert sorted(map(int, await peer.payloads(40))) == [number for number in range(60) if number % 3]
    await nothing_more(harness, peer)


async def test_a_hundred_thousand_entries_held_in_a_row_are_passed_in_one_step(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.publish(*(b"later" for _ in range(300)), deliver_at_time=due_ms)
    index = delayed_of(harness)
    index.manager.add_run(range(300, 100_000), [due_ms] * 99_700, harness.clock.wall_ms())
    view = subscription_of(harness).view
    assert view is not None
    assert view.next_wanted(0, 100_001) == 100_000


# -- permits, priorities, keys ----------------------------------------------------------------------------------------


async def test_no_more_is_taken_out_than_there_are_permits_for(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED, permits=3)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(10):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms)
    await held(harness, 10)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert await peer.payloads(3) == [b"0", b"1", b"2"]
    await nothing_more(harness, peer)
    assert subscription_of(harness).delayed == 7
    peer.flow(2)
    assert await peer.payloads(2) == [b"3", b"4"]
    peer.flow(100)
    assert await peer.payloads(5) == [b"%d" % number for number in range(5, 10)]
    await nothing_more(harness, peer)


async def test_after_a_pause_without_permits_later_messages_come_in_time(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_strict=True) as harness:
        peer = await Peer.producing(harness)
        await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", {"active": True, "tickTime": 20})
        await peer.subscribe(SHARED, permits=1)
        at_ms = harness.clock.wall_ms()
        for number, delay_ms in enumerate((30, 35, 200)):
            await peer.publish(b"%d" % number, deliver_at_time=at_ms + delay_ms)
        await held(harness, 3)
        harness.clock.advance(ms=60)
        assert (await peer.message()).payload == b"0"
        peer.flow(10)
        assert (await peer.message()).payload == b"1"
        harness.clock.advance(ms=160)
        assert (await peer.message()).payload == b"2"


async def test_messages_of_a_key_that_are_due_come_in_order_and_to_one_consumer(harness: Harness) -> None:
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.produce()
    for number, peer in enumerate((first, second)):
        await peer.subscribe(KEY_SHARED, consumer_name=f"c{number}", permits=1_000)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(40):
        delay = {"deliver_at_time": due_ms + number} if number % 2 else {}
        await first.publish(b"%d" % number, partition_key=f"k{number // 2 % 5}", **delay)
    await held(harness, 20)
    got: dict[int, list[bytes]] = {id(first): [], id(second): []}

    async def take(count: int) -> None:
        while sum(map(len, got.values())) < count:
            for peer in (first, second):
                got[id(peer)] += [entry for command, entry in await arrived(harness, peer) if entry]

    await take(20)
    pass_time(harness, HOUR_MS + TICK_MS)
    await take(40)
    homes: dict[bytes, int] = {}
    order: dict[bytes, list[int]] = {}
    for home, entries in got.items():
        for entry in entries:
            key = entry[entry.index(b"k") : entry.index(b"k") + 2]
            assert homes.setdefault(key, home) == home
            order.setdefault(key, []).append(number_of(entry))
    for numbers in order.values():
        undelayed, delayed = numbers[:4], numbers[4:]
        assert undelayed == sorted(undelayed)
        assert all(number % 2 == 0 for number in undelayed)
        assert delayed == sorted(delayed)


def number_of(entry: bytes) -> int:
    """The number that an entry's payload is."""
    metadata_bytes = int.from_bytes(entry[6:10], "big")
    return int(entry[10 + metadata_bytes :])


async def test_those_who_want_the_same_entries_at_the_same_time_share_one_read(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(*(b"%d" % number for number in range(20)))
    again = topic_of(harness).replay_reads
    first = again.read([2, 5, 9])
    assert again.read([5, 6]) is first
    other = again.read([3, 5])
    assert other is not first
    (batch,) = (await first).batches
    assert list(batch.entry_ids) == [2, 5, 9]
    assert [bytes(entry)[-1:] for _, entry in batch.entries()] == [b"2", b"5", b"9"]
    await other
    assert again.read([2, 5, 9]) is not first


# -- several subscriptions: one index ---------------------------------------------------------------------------------


async def test_every_subscription_gets_each_message_once_and_shares_one_index(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    names = [f"s{number}" for number in range(5)]
    for consumer_id, name in enumerate(names):
        await peer.subscribe(SHARED, name=name, consumer_id=consumer_id)
    index = delayed_of(harness)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(20):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms + 10 * number)
    for name in names:
        await held(harness, 20, name)
    assert index.manager.topic_delayed_messages() == 20
    assert len({subscription_of(harness, name).view.buffer_memory_bytes() for name in names}) == 1  # type: ignore[union-attr]
    pass_time(harness, HOUR_MS + TICK_MS)
    came = await peer.messages(100)
    for consumer_id in range(5):
        mine = [one.payload for one in came if one.message.consumer_id == consumer_id]
        assert sorted(map(int, mine)) == list(range(20))
    for name in names:
        await nothing_more(harness, peer, name=name)
    assert harness.broker.delayed_indexes.memory.used_bytes == 0


async def test_a_thousand_subscriptions_cost_the_index_of_one(tmp_path: Path) -> None:
    sizes = []
    for count in (1, 10, 1_000):
        async with running(tmp_path / str(count)) as harness:
            peer = await Peer.producing(harness)
            await peer.subscribe(SHARED)
            topic, index = topic_of(harness), topic_of(harness).delayed
            assert index is not None
            for number in range(1, count):
                other = await topic.open_subscription(f"s{number}", durable=False, start=0)
                other.view = index.view_of(other)
            await peer.publish(*(b"x" for _ in range(200)), deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
            assert {one.delayed for one in topic.subscriptions.values()} == {200}
            sizes.append(index.manager.topic_buffer_memory_bytes())
    assert len(set(sizes)) == 1


async def test_a_subscription_made_later_finds_what_was_delayed_before(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.publish(b"now")
    await peer.publish(b"later", deliver_at_time=due_ms)
    peer.acknowledge(await peer.message())
    await peer.subscribe(SHARED, name="new", consumer_id=1)
    assert (await peer.message()).payload == b"now"
    await held(harness, 1, "new")
    pass_time(harness, HOUR_MS + TICK_MS)
    assert await peer.payloads(2) == [b"later", b"later"]


async def test_messages_published_before_anybody_shared_are_found_in_the_log(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    for number in range(30):
        delay = {"deliver_at_time": harness.clock.wall_ms() + HOUR_MS} if number % 3 == 0 else {}
        await peer.publish(b"%d" % number, **delay)
    assert topic_of(harness).delayed is None
    await peer.subscribe(KEY_SHARED)
    assert sorted(map(int, await peer.payloads(20))) == [number for number in range(30) if number % 3]
    await held(harness, 10)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert sorted(map(int, await peer.payloads(10))) == list(range(0, 30, 3))


# -- gaps of other implementations ------------------------------------------------------------------------------------


async def test_what_was_acknowledged_above_others_is_not_offered_again(harness: Harness) -> None:
    """Left open by PIP-448: positions that were acknowledged above the mark-delete position come back for ever."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"kept")
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(5):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms)
    kept = await peer.message()
    await held(harness, 5)
    pass_time(harness, HOUR_MS + TICK_MS)
    peer.acknowledge(*await peer.messages(5))
    await peer.settled()
    for _ in range(3):
        pass_time(harness, TICK_MS)
        await nothing_more(harness, peer)
    assert subscription_of(harness).cursor.mark_delete == kept.entry_id - 1


async def test_a_stuck_subscription_keeps_nothing_from_others_and_does_not_spin(harness: Harness) -> None:
    """Left open by PIP-448: one subscription that takes nothing pins the index, and keeps dispatch in a loop."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    await peer.subscribe(SHARED, name="stuck", consumer_id=1, permits=0)
    for number in range(20):
        await peer.publish(b"%d" % number, deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 20)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert len(await peer.payloads(20)) == 20
    await nothing_more(harness, peer)
    stuck = subscription_of(harness, "stuck")
    assert not stuck._scheduled  # noqa: SLF001 - it is at rest
    peer.flow(100, consumer_id=1)
    assert len(await peer.payloads(20)) == 20


async def test_a_subscription_that_changes_its_type_takes_its_progress_along(harness: Harness) -> None:
    """Left open by PIP-448: the index goes on talking to the dispatcher of the type before."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.publish(b"later", partition_key="k", deliver_at_time=due_ms)
    await held(harness, 1)
    await peer.close_consumer()
    await peer.subscribe(KEY_SHARED)
    await held(harness, 1)
    await peer.close_consumer()
    await peer.subscribe(EXCLUSIVE)
    assert (await peer.message()).payload == b"later"
    assert topic_of(harness).delayed is None
    await peer.close_consumer()
    await peer.subscribe(SHARED)
    await held(harness, 1)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert (await peer.message()).payload == b"later"


async def test_clearing_the_backlog_clears_what_is_delayed(harness: Harness) -> None:
    """Left open by PIP-448: clear-backlog leaves delayed messages to be delivered later."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    await peer.subscribe(SHARED, name="other", consumer_id=1)
    for number in range(10):
        await peer.publish(b"%d" % number, deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 10)
    subscription_of(harness).moves.skip_all()
    assert (subscription_of(harness).delayed, subscription_of(harness, "other").delayed) == (0, 10)
    pass_time(harness, HOUR_MS + TICK_MS)
    came = await peer.messages(10)
    assert {one.message.consumer_id for one in came} == {1}
    await nothing_more(harness, peer)


async def test_each_subscription_counts_its_own(harness: Harness) -> None:
    """Left open by PIP-448: what one subscription holds is told of all, and pauses all."""
    peer = await Peer.producing(harness)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    await peer.subscribe(SHARED)
    for number in range(4):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms)
    await peer.subscribe(SHARED, name="late", consumer_id=1, earliest=False)
    await peer.publish(b"4", deliver_at_time=due_ms)
    await held(harness, 5)
    await held(harness, 1, "late")
    subscription_of(harness).moves.skip(2)
    assert (subscription_of(harness).delayed, subscription_of(harness, "late").delayed) == (3, 1)


# -- moved from outside -----------------------------------------------------------------------------------------------


async def test_what_is_held_waits_for_the_next_consumer_too(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await peer.subscribe(SHARED)
    await held(harness, 1)
    await peer.close_consumer()
    await peer.subscribe(SHARED)
    await held(harness, 1)
    await peer.close_consumer()
    harness.clock.advance(ms=HOUR_MS)
    await peer.subscribe(SHARED)
    assert (await peer.message()).payload == b"later"


async def test_what_was_due_and_not_acknowledged_comes_again_for_the_next_consumer(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    for number in range(6):
        await peer.publish(b"%d" % number, deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 6)
    pass_time(harness, HOUR_MS + TICK_MS)
    came = await peer.messages(6)
    peer.acknowledge(came[1], came[4])
    await peer.close_consumer()
    await peer.subscribe(SHARED)
    assert await peer.payloads(4) == [b"0", b"2", b"3", b"5"]
    await nothing_more(harness, peer)


async def test_a_delayed_message_that_is_given_back_comes_again_with_a_count(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 1)
    pass_time(harness, HOUR_MS + TICK_MS)
    peer.redeliver(await peer.message())
    again = await peer.message()
    assert (again.payload, again.message.redelivery_count) == (b"later", 1)


async def test_seeking_back_finds_delayed_messages_that_everybody_had_acknowledged(harness: Harness) -> None:
    """Left open by PIP-448: what was pruned is lost to who seeks back."""
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(6):
        await peer.publish(b"%d" % number, **({"deliver_at_time": due_ms} if number % 2 else {}))
    assert await peer.payloads(3) == [b"0", b"2", b"4"]
    await held(harness, 3)
    subscription = subscription_of(harness)
    subscription.moves.skip_all()
    assert subscription.delayed == 0
    await subscription.move_to(0)
    await peer.subscribe(SHARED)
    assert await peer.payloads(3) == [b"0", b"2", b"4"]
    await held(harness, 3)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert await peer.payloads(3) == [b"1", b"3", b"5"]


async def test_skipped_and_expired_messages_are_not_delivered_when_due(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    for number in range(9):
        await peer.publish(b"%d" % number, deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 9)
    subscription = subscription_of(harness)
    subscription.moves.skip(3)
    subscription.expire_through(5)
    assert subscription.delayed == 3
    pass_time(harness, HOUR_MS + TICK_MS)
    assert await peer.payloads(3) == [b"6", b"7", b"8"]
    await nothing_more(harness, peer)


async def test_the_last_subscription_that_goes_takes_the_index_along(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await held(harness, 1)
    assert harness.broker.delayed_indexes.memory.used_bytes > 0
    await peer.close_consumer()
    await harness.broker.subscription_store.delete(subscription_of(harness))
    assert topic_of(harness).delayed is None
    assert harness.broker.delayed_indexes.memory.used_bytes == 0


# -- policies ---------------------------------------------------------------------------------------------------------


async def test_where_delays_are_switched_off_nothing_is_held(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", {"active": False, "tickTime": 1_000})
    for kind, name in ((SHARED, "shared"), (KEY_SHARED, "keys")):
        await peer.subscribe(kind, name=name, consumer_id=kind)
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    assert await peer.payloads(2) == [b"later", b"later"]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_switching_delays_off_delivers_what_is_held_at_once_and_on_again_holds_what_comes(
    harness: Harness, kind: int
) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(kind)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for number in range(5):
        await peer.publish(b"%d" % number, deliver_at_time=due_ms + 1_000 * number)
    await held(harness, 5)
    policies = harness.broker.policies
    await policies.set_topic(TOPIC, "delayedDelivery", {"active": False, "tickTime": 1_000})
    assert sorted(await peer.payloads(5)) == [b"0", b"1", b"2", b"3", b"4"]
    await peer.publish(b"5", deliver_at_time=due_ms)
    assert (await peer.message()).payload == b"5"
    await policies.set_topic(TOPIC, "delayedDelivery", {"active": True, "tickTime": 1_000})
    await peer.publish(b"6", deliver_at_time=due_ms)
    await held(harness, 1)
    await nothing_more(harness, peer)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert (await peer.message()).payload == b"6"
    await nothing_more(harness, peer)


async def test_a_change_of_the_tick_delivers_nothing_twice(harness: Harness) -> None:
    """Left open by PIP-448: a message that two ticks were in force for lies in two places."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    due_ms = harness.clock.wall_ms() + HOUR_MS
    for tick_ms in (1_000, 100, 5_000):
        await harness.broker.policies.set_topic(TOPIC, "delayedDelivery", {"active": True, "tickTime": tick_ms})
        await peer.publish(b"%d" % tick_ms, deliver_at_time=due_ms)
        await peer.close_consumer()
        await peer.subscribe(SHARED)
    await held(harness, 3)
    pass_time(harness, HOUR_MS + 5_000)
    assert sorted(map(int, await peer.payloads(3))) == [100, 1_000, 5_000]
    await nothing_more(harness, peer)


# -- the clock --------------------------------------------------------------------------------------------------------


async def test_a_clock_set_back_does_not_lose_what_is_held(tmp_path: Path) -> None:
    async with running(tmp_path, delayed_strict=True) as harness:
        peer = await Peer.producing(harness)
        await peer.subscribe(SHARED)
        await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + 20)
        await held(harness, 1)
        harness.clock.step_wall(ms=-60_000)
        pass_time(harness, 0)
        await nothing_more(harness, peer)
        pass_time(harness, 60_000 + TICK_MS)
        assert (await peer.message()).payload == b"later"


async def test_a_clock_set_forward_delivers_what_is_due_by_it(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.producing(harness)
        await peer.subscribe(SHARED)
        for hours in (1, 2, 3):
            await peer.publish(b"%d" % hours, deliver_at_time=harness.clock.wall_ms() + hours * HOUR_MS)
        await held(harness, 3)
        harness.clock.step_wall(ms=2 * HOUR_MS + TICK_MS)
        pass_time(harness, 0)
        assert await peer.payloads(2) == [b"1", b"2"]
        await nothing_more(harness, peer)


async def test_a_large_delayed_message_is_held_as_a_small_one_is(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED)
    large = bytes(600_000)
    await peer.publish(large + b"later", deliver_at_time=harness.clock.wall_ms() + HOUR_MS)
    await peer.publish(large + b"now")
    assert (await peer.message()).payload[-3:] == b"now"
    await held(harness, 1)
    pass_time(harness, HOUR_MS + TICK_MS)
    assert (await peer.message()).payload[-5:] == b"later"
