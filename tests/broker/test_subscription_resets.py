# SPDX-License-Identifier: Apache-2.0
"""Moves into batches, and by numbers that an administrator may choose freely."""

from __future__ import annotations

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import NotFound, PreconditionFailed
from penstock.core.names import TopicName
from penstock.core.position import Position
from tests.broker.consuming import SHARED, Peer, subscription_of
from tests.net.harness import TOPIC, Harness

T = TopicName.parse(TOPIC)
HUGE = 2**31 - 1


async def claiming(harness: Harness, *sizes: int) -> Peer:
    """A client that has published entries whose metadata says so many messages each, and has a subscription."""
    peer = await Peer.producing(harness)
    for size in sizes:
        await peer.publish(b"x", num_messages_in_batch=size)
    await peer.subscribe(SHARED, permits=0)
    return peer


@pytest.mark.parametrize("index", [0, 1, HUGE - 1])
async def test_a_reset_into_an_entry_that_claims_two_billion_messages_is_refused(harness: Harness, index: int) -> None:
    await claiming(harness, 1, HUGE)
    with pytest.raises(PreconditionFailed, match=r"says that it holds 2,147,483,647 messages; up to 1,048,576"):
        await administration(harness.broker).subscriptions.reset_to_position(T, "s", Position(1, 1), batch_index=index)
    assert subscription_of(harness).cursor.mark_delete == -1


async def test_a_subscription_cannot_be_made_within_an_entry_that_claims_two_billion_messages(harness: Harness) -> None:
    await claiming(harness, HUGE)
    with pytest.raises(PreconditionFailed):
        await administration(harness.broker).subscriptions.create(T, "new", Position(1, 0), batch_index=5)
    assert await administration(harness.broker).subscriptions.names(T) == ["s"]


@pytest.mark.parametrize(
    ("size", "index", "wanted"),
    [
        (10, 3, 7),
        (64, 63, 1),
        (64, 0, 64),
        (65, 64, 1),
        (1_000, 130, 870),
        (1_048_576, 5, 1_048_571),
    ],
)
async def test_a_reset_into_a_batch_wants_what_comes_from_its_index_on(
    harness: Harness, size: int, index: int, wanted: int
) -> None:
    await claiming(harness, size)
    await administration(harness.broker).subscriptions.reset_to_position(T, "s", Position(1, 0), batch_index=index)
    cursor = subscription_of(harness).cursor
    assert (cursor.mark_delete, cursor.wanted_of(0)) == (-1, wanted)
    words = cursor.ack_set(0)
    assert words is not None
    assert words[index // 64] & (1 << index % 64) or words[index // 64] < 0
    assert harness.broker.dispatch_memory.used_bytes >= size // 8


@pytest.mark.parametrize("index", [10, HUGE])
async def test_a_reset_behind_the_last_message_of_a_batch_begins_with_the_next_entry(
    harness: Harness, index: int
) -> None:
    await claiming(harness, 10, 1)
    await administration(harness.broker).subscriptions.reset_to_position(T, "s", Position(1, 0), batch_index=index)
    assert subscription_of(harness).cursor.mark_delete == 0


async def test_skipping_and_peeking_count_what_is_not_acknowledged_however_large_the_number(harness: Harness) -> None:
    await claiming(harness, *(1 for _ in range(10)))
    subscription = subscription_of(harness)
    subscription.cursor.acknowledge_many([1, 2, 5])
    found = await administration(harness.broker).messages.peek(T, "s", 4)
    assert found.entry_id == 6
    for nth in (8, HUGE):
        with pytest.raises(NotFound):
            await administration(harness.broker).messages.peek(T, "s", nth)
    await administration(harness.broker).subscriptions.skip_messages(T, "s", 3)
    assert subscription.cursor.mark_delete == 5
    await administration(harness.broker).subscriptions.skip_messages(T, "s", HUGE)
    assert subscription.cursor.mark_delete == 9
