# SPDX-License-Identifier: Apache-2.0
"""Deliveries are planned, then performed: subscriptions of each type with plain objects around them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.subscriptions.dispatcher import HEADER_BYTES, alike_before, fitting
from penstock.broker.subscriptions.shared import Shared
from penstock.broker.subscriptions.state import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from penstock.governance.budget import Row
from penstock.wire import codec
from penstock.wire.varints import LOW_BITS
from tests.broker.outlets import Topic, World, batch_of

KEYS = [f"k{number % 7}" for number in range(60)]


def room_for(world: World, entries: int) -> int:
    return sum(length + HEADER_BYTES for length in world.topic.batch.lengths[:entries])


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_every_entry_is_delivered_once_and_costs_a_permit(kind: int, *, cached: bool) -> None:
    world = World(Topic(batch_of(KEYS), cached=cached), kind)
    members = [world.consumer() for _ in range(1 if kind == EXCLUSIVE else 3)]
    for _ in range(20):
        world.loop.turn()
        world.loop.pass_time()  # Failover waits a moment before it begins.
        await asyncio.sleep(0)
    came = Counter(entry_id for _, outlet in members for entry_id in outlet.entry_ids())
    assert came == dict.fromkeys(range(60), 1)
    for consumer, outlet in members:
        assert 1_000 - consumer.permits == consumer.messages_out == len(outlet.entry_ids())
    assert world.subscription.messages_out == 60
    assert world.room.taken_bytes == 0
    assert (world.topic.log.reads > 0) is not cached


def test_consumers_of_a_shared_subscription_take_turns() -> None:
    world = World(Topic(batch_of([""] * 8)), SHARED)
    (_, first), (_, second) = world.consumer(), world.consumer()
    world.loop.turn()
    assert first.entry_ids() == [0, 1, 4, 5]
    assert second.entry_ids() == [2, 3, 6, 7]


def test_turns_of_many_entries_are_laid_side_by_side_without_changing_their_number() -> None:
    world = World(Topic(batch_of([""] * 300)), SHARED)
    members = [world.consumer(permits=permits) for permits in (1_000, 70, 1_000)]
    world.loop.turn()
    assert [consumer.permits for consumer, _ in members] == [1_000 - 116, 0, 1_000 - 114]
    assert [list(outlet.entry_ids()) for _, outlet in members] == [
        list(range(116)),
        list(range(116, 186)),
        list(range(186, 300)),
    ]
    for consumer, outlet in members:
        world.acknowledge(consumer, *outlet.entry_ids())
    assert (world.subscription.unacked, world.subscription.backlog) == (0, 0)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_consumers_with_the_same_id_are_sent_the_same_frames_by_all_subscriptions(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[bytes]] = []
    topic = Topic(batch_of(["k"] * 40))
    topic.tail.alone.add(0)
    for others in ({}, {"s": None, "t": None}, {"s": None, "t": None}):
        monkeypatch.setattr(topic, "subscriptions", others)
        world = World(topic, kind)
        _, outlet = world.consumer(permits=25)
        deliver, frames = outlet.deliver, list[bytes]()

        def deliver_and_look(
            buffers: Any,  # noqa: ANN401 - as `deliver` takes them
            *given: Any,  # noqa: ANN401
            deliver: Any = deliver,  # noqa: ANN401
            frames: list[bytes] = frames,
        ) -> None:
            frames.append(b"".join(buffers))
            deliver(buffers, *given)

        monkeypatch.setattr(outlet, "deliver", deliver_and_look)
        world.loop.turn()
        assert outlet.entry_ids() == list(range(25))
        world.subscription.flow(world.subscription.consumers[0], 20)
        world.loop.turn()
        assert outlet.entry_ids() == list(range(40))
        sent.append(frames)
    assert sent[0] == sent[1] == sent[2]
    found = topic.tail.find(0)
    assert found is not None
    assert found[0] is not topic.batch  # It was replaced by its frames.


def test_turns_of_batches_are_not_laid_side_by_side() -> None:
    world = World(Topic(batch_of([""] * 300, [1, 2] * 150)), SHARED)
    (_, first), (_, second) = world.consumer(), world.consumer()
    world.loop.turn()
    assert first.entry_ids()[:4] == [0, 1, 4, 5]
    assert sorted(first.entry_ids() + second.entry_ids()) == list(range(300))


def test_what_finds_no_room_goes_to_others_in_another_plan() -> None:
    world = World(Topic(batch_of([""] * 8)), SHARED)
    (narrow, first), (wide, second) = (
        world.consumer(room_bytes=room_for(World(Topic(batch_of([""])), SHARED), 1)),
        world.consumer(),
    )
    world.loop.turn()
    assert first.entry_ids() == [0]
    assert second.entry_ids() == [1, 2, 3, 4, 5, 6, 7]
    assert (narrow.permits, wide.permits) == (999, 993)
    assert first.wanted_bytes > 1  # It is woken when there is room for the next.


def test_what_loses_its_room_while_others_are_sent_theirs_goes_to_anyone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Topic(batch_of([""] * 16)), SHARED)
    (_, first), (_, second) = world.consumer(), world.consumer()
    deliver = first.deliver

    def deliver_and_take_room(*given: Any) -> None:  # noqa: ANN401 - as `deliver` takes them
        deliver(*given)
        second.room_bytes = min(second.room_bytes, room_for(world, 3))

    monkeypatch.setattr(first, "deliver", deliver_and_take_room)
    world.loop.turn()
    assert sorted(first.entry_ids() + second.entry_ids()) == list(range(16))
    assert 3 <= len(second.entry_ids()) < 8
    assert world.subscription.messages_redelivered == 0
    assert world.subscription.unacked == 16


def test_entries_that_found_no_room_wait_for_the_consumer_of_their_key() -> None:
    world = World(Topic(batch_of(KEYS)), KEY_SHARED)
    members = [world.consumer(room_bytes=0), world.consumer()]
    world.loop.turn()
    (stuck, narrow), (_, wide) = members
    expected = [entry_id for entry_id in range(60) if entry_id not in wide.entry_ids()]
    assert expected
    assert narrow.entry_ids() == []
    narrow.room_bytes = 1 << 30
    world.subscription.flow(stuck, 1)
    world.loop.turn()
    assert narrow.entry_ids() == expected


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_what_a_consumer_leaves_behind_goes_to_others_without_a_redelivery_count(kind: int) -> None:
    world = World(Topic(batch_of(KEYS)), kind)
    (gone, _), (_, stays) = world.consumer(), world.consumer()
    world.loop.turn()
    world.subscription.remove(gone)
    world.loop.turn()
    assert sorted(stays.entry_ids()) == list(range(60))
    assert world.subscription.messages_redelivered == 0
    assert world.subscription.unacked == 60


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_memory_is_charged_for_what_consumers_owe_and_given_back_when_they_acknowledge(kind: int) -> None:
    world = World(Topic(batch_of(KEYS)), kind)
    consumer, outlet = world.consumer()
    world.loop.turn()
    assert world.memory.used_bytes > 0
    world.acknowledge(consumer, *outlet.entry_ids())
    assert (world.subscription.unacked, world.subscription.backlog, world.subscription.acks) == (0, 0, 60)
    world.subscription.remove(consumer)
    world.subscription.release()
    assert world.memory.used_bytes == 0


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_what_was_put_back_is_delivered_again_in_order(kind: int) -> None:
    world = World(Topic(batch_of(["k"] * 10, [3] * 10)), kind)
    consumer, outlet = world.consumer()
    world.loop.turn()
    assert outlet.entry_ids() == list(range(10))
    queued = outlet.queued.pop()
    taken = queued.put_back(1)  # Its client has begun to take the first entry.
    assert taken > 0
    assert list(queued.entry_ids) == [0]
    world.loop.turn()
    assert outlet.entry_ids() == list(range(1, 10))
    assert consumer.permits == 1_000 - 30
    assert world.subscription.unacked == (0 if kind == EXCLUSIVE else 30)


def test_redelivery_counts_are_of_what_was_asked_for_again() -> None:
    world = World(Topic(batch_of([""] * 4)), SHARED)
    consumer, outlet = world.consumer()
    world.loop.turn()
    outlet.queued.clear()
    world.subscription.redeliver(consumer, [2, 3], None)
    dispatcher = world.subscription.dispatcher
    assert dispatcher is not None
    assert dispatcher.redelivery_counts([0, 1, 2, 3]) == [0, 0, 1, 1]
    world.loop.turn()
    assert outlet.entry_ids() == [2, 3]
    assert world.subscription.messages_redelivered == consumer.messages_redelivered == 2


def test_a_consumer_at_its_bound_of_unacknowledged_messages_goes_on_at_half_of_it() -> None:
    world = World(Topic(batch_of([""] * 20)), SHARED)
    world.topic.policies.max_unacked_per_consumer = 8
    consumer, outlet = world.consumer()
    world.loop.turn()
    assert outlet.entry_ids() == list(range(8))
    world.acknowledge(consumer, 0, 1, 2)
    assert consumer.blocked
    world.acknowledge(consumer, 3)
    assert outlet.entry_ids() == list(range(12))


def test_failover_starts_over_after_its_delay_and_tells_every_consumer() -> None:
    world = World(Topic(batch_of([""] * 3), partition=0), FAILOVER)
    (active, outlet), (other, waiting) = world.consumer(), world.consumer()
    world.loop.turn()
    assert outlet.entry_ids() == []
    world.loop.pass_time()
    assert world.subscription.active_consumer is active
    assert outlet.entry_ids() == [0, 1, 2]
    world.acknowledge(active, 0)
    world.subscription.remove(active)
    world.loop.pass_time()
    assert waiting.entry_ids() == [1, 2]
    assert waiting.frames[-1] == codec.active_consumer_change(other.consumer_id, is_active=True)


async def test_a_read_that_failed_is_tried_again_and_nothing_is_lost() -> None:
    world = World(Topic(batch_of([""] * 5), cached=False), EXCLUSIVE)
    world.topic.log.broken = True
    _, outlet = world.consumer()
    world.loop.turn()
    await asyncio.sleep(0)
    world.loop.turn()
    assert (outlet.entry_ids(), world.room.taken_bytes, world.room.freed) == ([], 0, 1)
    assert world.subscription.reading.under_way  # It waits before it reads again.
    world.topic.log.broken = False
    world.loop.pass_time()
    await asyncio.sleep(0)
    world.loop.turn()
    assert outlet.entry_ids() == [0, 1, 2, 3, 4]


async def test_what_was_read_before_a_seek_is_not_delivered() -> None:
    world = World(Topic(batch_of([""] * 5), cached=False), EXCLUSIVE)
    consumer, outlet = world.consumer()
    world.loop.turn()
    await world.subscription.move_to(3)
    assert world.saves.saved == [world.subscription]
    assert world.subscription.consumers == []
    await asyncio.sleep(0)
    world.loop.turn()
    assert outlet.entry_ids() == []
    _, outlet = world.consumer()
    world.loop.turn()
    await asyncio.sleep(0)
    world.loop.turn()
    assert outlet.entry_ids() == [3, 4]
    assert consumer.messages_out == 0


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_skipped_entries_are_neither_owed_nor_delivered(kind: int) -> None:
    world = World(Topic(batch_of(["k"] * 6)), kind)
    _, outlet = world.consumer(permits=2)
    world.loop.turn()
    assert outlet.entry_ids() == [0, 1]
    world.subscription.moves.skip(4)
    assert world.subscription.unacked == 0
    assert (world.subscription.backlog, world.saves.moves) == (2, 1)


def test_a_planner_gives_no_consumer_more_than_its_permits() -> None:
    consumers = [World(Topic(batch_of([""])), SHARED).consumer(permits=permits)[0] for permits in (3, 0, 5)]
    dispatcher = Shared(
        consumers,
        memory=Row("dispatch", 1 << 20),
        wait_for_memory=lambda: None,
        wake=lambda: None,
        round_robin_entries_max=lambda: 2,
    )
    ready = dispatcher.ready()
    assert ready == [consumers[0], consumers[2]]
    plan = dispatcher.plan(batch_of([""] * 20), range(20), 20, None, ready)
    assert [(send.consumer, list(send.rows), send.messages) for send in plan.sends] == [
        (consumers[0], [0, 1], 2),
        (consumers[2], [2, 3], 2),
        (consumers[0], [4], 1),
        (consumers[2], [5, 6, 7], 3),
    ]
    assert (plan.reached, plan.in_order) == (8, True)


def test_stepping_back_reads_again_and_stepping_forward_does_nothing() -> None:
    world = World(Topic(batch_of([""] * 5)), EXCLUSIVE)
    reading = world.subscription.reading
    world.subscription.read_entry_id = 3
    before = reading.generation
    reading.step_back(4)
    assert (world.subscription.read_entry_id, reading.generation) == (3, before)
    reading.step_back(1)
    assert (world.subscription.read_entry_id, reading.generation) == (1, before + 1)


@given(lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=30), room_bytes=st.integers(0, 60_000))
def test_as_many_entries_fit_as_there_is_room_for_with_their_headers(lengths: list[int], room_bytes: int) -> None:
    fit = fitting(lengths, room_bytes)
    needed = [sum(length + HEADER_BYTES for length in lengths[:count]) for count in range(len(lengths) + 1)]
    assert needed[fit] <= room_bytes
    assert fit == len(lengths) or needed[fit + 1] > room_bytes


def test_entries_whose_ids_differ_in_their_high_part_are_not_sent_together() -> None:
    high = 1 << LOW_BITS
    assert alike_before([1, 2, 3], 2) == 2
    assert alike_before(range(high - 2, high + 3), 5) == 2
    assert alike_before([high - 3, high - 1, high, high + 5], 2) == 2
