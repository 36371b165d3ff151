# SPDX-License-Identifier: Apache-2.0
"""Transactions together with everything else that a topic does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from penstock.broker.composition.administration import administration
from penstock.core.errors import NotFound
from penstock.core.names import TopicName
from penstock.core.position import Position
from penstock.storage.transaction_rows import TopicTransactions
from penstock.wire import codec
from tests.broker.consuming import KEY_SHARED, SHARED, nothing_more, pass_time, subscription_of
from tests.broker.test_transactions import acknowledging, connected, producing, sending
from tests.net.harness import TOPIC, Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.broker.transacting import TransactingPeer

NAME = TopicName.parse(TOPIC)
HOUR_MS = 3_600_000
Type = codec.BaseCommand.Type


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        yield harness


async def last_id(peer: TransactingPeer) -> int:
    body: Any = await peer.request(Type.GET_LAST_MESSAGE_ID, codec.CommandGetLastMessageId(consumer_id=0, request_id=0))
    entry_id: int = body.last_message_id.entryId
    return entry_id


async def test_the_last_message_is_never_of_an_open_or_an_aborted_transaction(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    await peer.publish(b"plain")
    transaction = await sending(peer, b"1", b"2")
    assert await last_id(peer) == 0
    await peer.abort(transaction)
    assert await last_id(peer) == 0
    await peer.commit(await sending(peer, b"3"))
    assert await last_id(peer) == 3


async def test_a_topic_of_aborted_messages_only_has_no_last_one(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    await peer.abort(await sending(peer, b"1"))
    assert await last_id(peer) == 2**64 - 1


async def test_the_place_of_a_reader_is_named_before_aborted_messages_that_are_still_there(harness: Harness) -> None:
    """A client that compares it with where it stopped would take them for removed."""
    peer = await producing(harness)
    await peer.abort(await sending(peer, b"x"))
    await peer.commit(await sending(peer, b"a"))
    await peer.subscribe(permits=0)
    body: Any = await peer.request(Type.GET_LAST_MESSAGE_ID, codec.CommandGetLastMessageId(consumer_id=0, request_id=0))
    assert body.consumer_mark_delete_position.entryId == 2**64 - 1
    assert subscription_of(harness).cursor.mark_delete == 0


async def test_delayed_messages_wait_for_the_commit_and_for_their_time(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    due = {"deliver_at_time": harness.clock.wall_ms() + HOUR_MS}
    transaction = await peer.open(20 * HOUR_MS)
    late = await peer.open(20 * HOUR_MS)
    for each in (transaction, late):
        await peer.add_topics(each)
    await peer.send_in(transaction, b"in time", metadata=due)
    await peer.send_in(late, b"late", metadata=due)
    await peer.commit(transaction)
    pass_time(harness, HOUR_MS + 1_000)
    assert await peer.payloads(1) == [b"in time"]
    await nothing_more(harness, peer)
    await peer.commit(late)
    assert await peer.payloads(1) == [b"late"]


async def test_delayed_messages_of_an_aborted_transaction_are_never_due(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    due = {"deliver_at_time": harness.clock.wall_ms() + HOUR_MS}
    await peer.abort(await sending(peer, b"never", metadata=due))
    await peer.publish(b"plain", deliver_at_time=due["deliver_at_time"])
    assert subscription_of(harness).delayed == 1
    pass_time(harness, HOUR_MS + 1_000)
    assert await peer.payloads(1) == [b"plain"]
    await nothing_more(harness, peer)


async def test_an_index_of_delayed_messages_made_during_a_transaction_knows_its_messages(harness: Harness) -> None:
    peer = await producing(harness)
    due = {"deliver_at_time": harness.clock.wall_ms() + HOUR_MS}
    transaction = await sending(peer, b"delayed", metadata=due)
    await peer.subscribe(SHARED)
    await peer.commit(transaction)
    await nothing_more(harness, peer)
    pass_time(harness, HOUR_MS + 1_000)
    assert await peer.payloads(1) == [b"delayed"]


async def test_messages_that_are_sent_twice_are_stored_once(harness: Harness) -> None:
    peer = await producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "deduplication", value=True)
    await peer.subscribe()
    await peer.publish(b"first")
    transaction = await peer.open()
    await peer.add_topics(transaction)
    await peer.send_in(transaction, b"once")
    assert await peer.send_in(transaction, b"once", again=True) == [2**64 - 1]
    await peer.commit(transaction)
    assert await peer.payloads(2) == [b"first", b"once"]
    await nothing_more(harness, peer)


async def test_compaction_takes_neither_open_nor_aborted_messages(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.publish(b"old", partition_key="k")
    await peer.abort(await sending(peer, b"aborted", metadata={"partition_key": "k"}))
    transaction = await sending(peer, b"open", metadata={"partition_key": "k"})
    await administration(harness.broker).topics.compact(NAME)
    await until(lambda: topic_of(harness).compacted is not None)
    await peer.subscribe(read_compacted=True)
    assert await peer.payloads(1) == [b"old"]
    await peer.commit(transaction)
    assert await peer.payloads(1) == [b"open"]


async def test_nothing_of_an_open_transaction_is_skipped_or_expired(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    await peer.publish(b"plain")
    transaction = await sending(peer, b"1")
    subscription = subscription_of(harness)
    subscription.moves.skip_all()
    harness.clock.advance(ms=1_000)
    await harness.broker.retention.expire(subscription, 0)
    assert subscription.cursor.mark_delete == 0
    await peer.commit(transaction)
    assert subscription.backlog == 1


async def test_a_terminated_topic_ends_after_its_last_transaction(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    await harness.broker.topic_life.terminate(topic_of(harness))
    assert Type.REACHED_END_OF_TOPIC not in [command.type for command in await peer.settled()]
    await peer.commit(transaction)
    received = await peer.message()
    assert received.payload == b"1"
    peer.acknowledge(received)
    await peer.next(Type.REACHED_END_OF_TOPIC)


async def test_a_seek_leaves_pending_acknowledgements_pending(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1", b"2")
    received = await peer.messages(2)
    transaction = await acknowledging(peer, received[0])
    await subscription_of(harness).move_to(0)
    await peer.subscribe(SHARED, consumer_id=1)
    assert await peer.payloads(1) == [b"2"]
    await peer.commit(transaction)
    assert subscription_of(harness).cursor.mark_delete == 0


async def test_a_deleted_subscription_takes_its_acknowledgements_along(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1")
    transaction = await acknowledging(peer, *await peer.messages(1))
    await peer.request(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0, request_id=0))
    await peer.subscribe(SHARED, consumer_id=1)
    await peer.commit(transaction)
    assert subscription_of(harness).backlog == 1
    assert harness.broker.dispatch_memory.used_bytes < 1_500


async def test_the_order_of_keys_holds_over_transactions(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(KEY_SHARED)
    transaction = await sending(peer, b"1", b"2", metadata={"partition_key": "k"})
    await peer.publish(b"3", partition_key="k")
    await peer.commit(transaction)
    assert await peer.payloads(3) == [b"1", b"2", b"3"]


async def test_what_subscribes_during_a_transaction_at_the_end_gets_it(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.publish(b"before")
    transaction = await sending(peer, b"1")
    await peer.subscribe(earliest=False)
    await peer.commit(transaction)
    assert await peer.payloads(1) == [b"1"]


async def test_aborted_entries_are_forgotten_when_they_are_trimmed(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        await peer.subscribe()
        await peer.abort(await sending(peer, b"1"))
        await peer.publish(*[b"%d" % number for number in range(2_000)])
        peer.acknowledge(*await peer.messages(1_000))
        topic = topic_of(harness)
        await until(lambda: subscription_of(harness).cursor.mark_delete >= 1_000)
        await harness.broker.cursors.save_moved()
        assert topic.first_entry_id == 1_000
        await peer.commit(await sending(peer, b"last"))
        assert topic.transactions is None
        loaded: list[TopicTransactions] = []
        load = partial(harness.broker.catalog.transactions.load, topic.ledger_id, loaded.append)
        await harness.broker.changes.stored(load)
        assert loaded == [TopicTransactions([], [], [])]
    async with running(tmp_path) as harness:
        assert (await harness.broker.topics.load(NAME)).transactions is None


@pytest.mark.parametrize("consumers", [1, 2])
async def test_a_reader_of_another_topic_is_not_held(harness: Harness, consumers: int) -> None:
    peer = await producing(harness)
    await sending(peer, b"open")
    other = await connected(harness)
    await other.produce("persistent://public/default/free")
    for consumer_id in range(consumers):
        await other.subscribe(SHARED, topic="persistent://public/default/free", consumer_id=consumer_id)
    await other.publish(b"1")
    assert await other.payloads(1) == [b"1"]


async def test_a_delayed_message_of_an_open_transaction_cannot_be_cancelled(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    due = {"deliver_at_time": harness.clock.wall_ms() + HOUR_MS}
    transaction = await sending(peer, b"delayed", metadata=due)
    position = Position(topic_of(harness).ledger_id, 0)
    with pytest.raises(NotFound):
        await administration(harness.broker).delayed.cancel(NAME, position)
    await peer.commit(transaction)
    await administration(harness.broker).delayed.cancel(NAME, position)
    assert subscription_of(harness).backlog == 0
