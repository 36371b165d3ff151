# SPDX-License-Identifier: Apache-2.0
"""What consumers owe: counted as a dict would, charged to its row, and bounded without losing or refusing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from penstock.broker.subscriptions.entry_counts import TOGETHER_MIN, EntryCounts
from penstock.broker.subscriptions.shared import PENDING_ALWAYS, Shared
from tests.broker.consuming import KEY_SHARED, SHARED, Peer, subscription_of
from tests.net.harness import running, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Harness

ids = st.lists(st.integers(0, 70), max_size=2 * TOGETHER_MIN, unique=True).map(sorted)


@settings(max_examples=200)
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "add many", "pop", "up", "set", "through"]), ids), max_size=12))
def test_it_counts_as_a_dict_does(steps: list[tuple[str, list[int]]]) -> None:
    owed = EntryCounts()
    model: dict[int, int] = {}
    for step, entry_ids in steps:
        if step.startswith("add"):
            new = [one for one in entry_ids if one not in model]
            numbers = [1 + one * 7 % 20 for one in new] if step == "add many" and new else None
            owed.add(new, numbers)
            model.update(zip(new, numbers or [1] * len(new), strict=True))
        elif step == "pop":
            total, foreign = owed.pop_all(entry_ids)
            assert foreign == [one for one in entry_ids if one not in model]
            assert total == sum(model.pop(one, 0) for one in entry_ids)
        elif step == "up":
            owed.count_up(entry_ids)
            model.update({one: model.get(one, 0) + 1 for one in entry_ids})
        elif step == "set":
            for one in entry_ids[:3]:
                owed.set(one, 5)
                model[one] = 5
        else:
            assert owed.through(30) == sorted(one for one in model if one <= 30)
        assert {one: owed.get(one) for one in owed} == model
        assert len(owed) == len(model)


def test_an_entry_named_twice_is_removed_once_and_was_not_missing() -> None:
    for count in (1, TOGETHER_MIN):
        owed = EntryCounts()
        owed.add(range(count), None)
        assert owed.pop_all([*range(count), 0]) == (count, [])
        assert not owed


def owed_of(harness: Harness, name: str = "s") -> Shared:
    delivery = subscription_of(harness, name).dispatcher
    assert isinstance(delivery, Shared)
    return delivery


def books_agree(harness: Harness) -> bool:
    """What is charged is what there is: nothing of the cursors here, whose acknowledgements have no gaps in the end."""
    deliveries = [one.dispatcher for topic in harness.broker.topics.loaded() for one in topic.subscriptions.values()]
    for delivery in deliveries:
        if isinstance(delivery, Shared):
            owed = sum(len(consumer.pending_acks) for consumer in delivery.consumers)
            assert delivery._pending == owed  # noqa: SLF001 - counted along, and counted anew
            assert delivery._charge.charged_bytes == delivery.held_bytes()  # noqa: SLF001
    return True


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_without_memory_for_what_it_would_owe_a_consumer_gets_the_rest_when_it_acknowledges(
    tmp_path: Path, kind: int
) -> None:
    count = 1_000
    async with running(
        tmp_path, tail_cache_bytes=1 << 24, dispatch_bytes=400 * (4 if kind == SHARED else 154)
    ) as harness:
        row = harness.broker.dispatch_memory
        hog, honest = await Peer.connected(harness), await Peer.connected(harness)
        await hog.produce()
        payloads = [b"%d" % number for number in range(count)]
        for first in range(0, count, 100):
            await hog.publish(*payloads[first : first + 100], partition_key="k")
        await hog.subscribe(kind, permits=count)
        subscription = subscription_of(harness)
        await until(lambda: subscription.messages_out > 0)
        await turns()
        assert PENDING_ALWAYS <= subscription.unacked < count
        assert row.used_bytes <= row.limit_bytes

        # Others are served beside it, and nothing comes of it but waiting.
        await honest.subscribe(kind, name="honest", permits=count)
        for name, peer in (("honest", honest), ("s", hog)):
            received: list[bytes] = []
            while len(received) < count:
                message = await peer.message()
                received.append(message.payload)
                peer.acknowledge(message)
                assert books_agree(harness)
            assert received == payloads
            await until(lambda name=name: subscription_of(harness, name).unacked == 0)  # type: ignore[misc]
        for peer in (hog, honest):
            await peer.close_consumer()
        await until(lambda: row.used_bytes == 0)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_what_is_owed_waits_or_was_given_back_is_charged_until_the_last_consumer_leaves(
    harness: Harness, kind: int
) -> None:
    row = harness.broker.dispatch_memory
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.produce()
    await first.publish(*[b"x"] * 60, messages=3)
    await first.subscribe(kind, permits=1_000)
    received = await first.messages(60)
    assert books_agree(harness)
    assert row.used_bytes == owed_of(harness).held_bytes() > 0
    first.redeliver(*received[:20])
    again = await first.messages(20)
    assert [one.message.redelivery_count for one in again] == [1] * 20
    first.acknowledge(*received[:10])
    await until(lambda: subscription_of(harness).unacked == 150)
    await second.subscribe(kind, permits=0)
    assert books_agree(harness)
    first.client.abort()
    await until(lambda: len(subscription_of(harness).consumers) == 1)
    assert books_agree(harness)
    second.flow(1_000)
    assert len(await second.messages(50)) == 50
    assert books_agree(harness)
    subscription_of(harness).moves.skip_all()
    assert books_agree(harness)
    assert row.used_bytes == subscription_of(harness).memory.charged_bytes  # of the cursor
    await second.close_consumer()
