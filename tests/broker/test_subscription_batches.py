# SPDX-License-Identifier: Apache-2.0
"""Single messages of a batch: acknowledged, not delivered again, counted, kept over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.broker.broker import Broker
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
from tests.net.harness import Harness, running, until

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.storage.results import ReadResult

ALL_BUT_FIRST_3_OF_10 = [0b11_1111_1000]


@pytest_asyncio.fixture(params=["from the tail cache", "from the log"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        harness.broker.tail_cache.budget_bytes = MIB if request.param == "from the tail cache" else 0
        yield harness


async def test_a_batch_comes_again_with_the_members_still_wanted_and_costs_no_more_permits_than_those(
    harness: Harness,
) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.subscribe(SHARED, permits=20)
    await peer.publish(b"ten", messages=10)
    first = await peer.message()
    assert list(first.message.ack_set) == []
    consumer = subscription_of(harness).consumers[0]
    assert (consumer.permits, consumer.unacked) == (10, 10)
    peer.acknowledge(first, words=ALL_BUT_FIRST_3_OF_10)
    await until(lambda: consumer.unacked == 7)
    peer.redeliver(first)
    again = await peer.message()
    assert list(again.message.ack_set) == ALL_BUT_FIRST_3_OF_10
    assert (again.message.redelivery_count, consumer.permits, consumer.unacked) == (1, 3, 7)
    peer.acknowledge(again)
    await until(lambda: consumer.unacked == 0)
    assert (subscription_of(harness).backlog, consumer.acks) == (0, 10)


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_whoever_comes_next_gets_only_what_was_left(harness: Harness, kind: int) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.publish(b"one", b"two")
    await peer.publish(b"ten", messages=10)
    await peer.publish(b"three")
    await peer.subscribe(kind)
    received = await peer.messages(4)
    peer.acknowledge(received[2], words=ALL_BUT_FIRST_3_OF_10)
    await peer.close_consumer()
    await peer.subscribe(kind, permits=12)
    again = await peer.messages(4)
    assert [(one.payload, list(one.message.ack_set)) for one in again] == [
        (b"one", []),
        (b"two", []),
        (b"ten", ALL_BUT_FIRST_3_OF_10),
        (b"three", []),
    ]
    assert subscription_of(harness).consumers[0].permits == 12 - 1 - 1 - 7 - 1


async def test_when_all_members_are_acknowledged_the_entry_is(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.subscribe(SHARED)
    await peer.publish(b"four", messages=4)
    batch = await peer.message()
    subscription = subscription_of(harness)
    for words in ([0b0111], [0b1010], [0b1101]):  # 3, then 0 and 2, then 1
        assert subscription.backlog == 1
        peer.acknowledge(batch, words=words)
        await peer.settled()
    assert (subscription.backlog, subscription.unacked, subscription.cursor.has_ack_sets) == (0, 0, False)


async def test_a_cumulative_acknowledgement_may_end_inside_a_batch(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.produce()
    await peer.subscribe(EXCLUSIVE)
    await peer.publish(b"one")
    await peer.publish(b"ten", messages=10)
    received = await peer.messages(2)
    peer.acknowledge(received[1], cumulative=True, words=ALL_BUT_FIRST_3_OF_10)
    peer.redeliver()
    again = await peer.message()
    assert (again.payload, list(again.message.ack_set)) == (b"ten", ALL_BUT_FIRST_3_OF_10)
    await nothing_more(harness, peer)


async def test_an_acknowledgement_of_members_by_somebody_else_is_taken_from_whoever_owes_them(harness: Harness) -> None:
    owner, other = await Peer.connected(harness), await Peer.connected(harness)
    await owner.produce()
    await owner.subscribe(SHARED, consumer_name="owner")
    await owner.publish(b"ten", messages=10)
    batch = await owner.message()
    await other.subscribe(SHARED, consumer_name="other", permits=0)
    other.acknowledge(batch, words=ALL_BUT_FIRST_3_OF_10)
    await other.settled()
    assert [consumer.unacked for consumer in subscription_of(harness).consumers] == [7, 0]


async def test_members_acknowledged_stay_so_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.produce()
        await peer.publish(b"ten", messages=10)
        await peer.subscribe(SHARED)
        peer.acknowledge(await peer.message(), words=ALL_BUT_FIRST_3_OF_10)
        await peer.settled()
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED)
        assert list((await peer.message()).message.ack_set) == ALL_BUT_FIRST_3_OF_10


async def test_switched_off_the_whole_batch_comes_again(tmp_path: Path) -> None:
    async with running(tmp_path, batch_index_acks=False) as harness:
        peer = await Peer.connected(harness)
        await peer.produce()
        await peer.subscribe(SHARED)
        await peer.publish(b"ten", messages=10)
        batch = await peer.message()
        peer.acknowledge(batch, words=ALL_BUT_FIRST_3_OF_10)
        peer.redeliver(batch)
        assert list((await peer.message()).message.ack_set) == []


async def test_switched_off_a_cumulative_acknowledgement_ends_before_the_batch(tmp_path: Path) -> None:
    async with running(tmp_path, batch_index_acks=False) as harness:
        peer = await Peer.connected(harness)
        await peer.produce()
        await peer.subscribe(EXCLUSIVE)
        await peer.publish(b"one")
        await peer.publish(b"ten", messages=10)
        received = await peer.messages(2)
        peer.acknowledge(received[1], cumulative=True, words=ALL_BUT_FIRST_3_OF_10)
        peer.redeliver()
        again = await peer.message()
        assert (again.payload, list(again.message.ack_set)) == (b"ten", [])
        await nothing_more(harness, peer)


async def test_no_more_is_read_than_permits_are_there_for_once_it_is_seen_how_large_batches_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    read_log = Broker.read_log

    def noted(self: Broker, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int) -> Future[ReadResult]:
        asked.append(entries_max)
        return read_log(self, ledger_id, entry_id, bytes_max=bytes_max, entries_max=entries_max)

    async with running(tmp_path) as harness:
        harness.broker.tail_cache.budget_bytes = 0
        peer = await Peer.connected(harness)
        await peer.produce()
        payloads = [b"%d" % number for number in range(12)]
        await peer.publish(*payloads, messages=100)
        await peer.publish(*payloads)
        monkeypatch.setattr(Broker, "read_log", noted)
        await peer.subscribe(permits=100)
        for number in range(12):
            assert (await peer.message()).payload == b"%d" % number
            peer.flow(100)
        assert asked == [100, *[1] * 11]
        # What comes alone is read by as many as there are permits for again.
        assert await peer.payloads(12) == payloads
        assert asked[-1] > 1
