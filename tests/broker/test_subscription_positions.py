# SPDX-License-Identifier: Apache-2.0
"""Where a subscription begins and where it is moved to: initial positions, seeks, skips, expiry."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import ServiceNotReady, WireCode
from penstock.core.position import EARLIEST, LATEST
from penstock.testing.client import Refused
from penstock.wire import codec
from tests.broker.consuming import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Peer,
    Type,
    nothing_more,
    subscription_of,
)
from tests.net.harness import TOPIC, Harness, until

TYPES = [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED]


def seek(entry_id: int | None = None, ledger_id: int = Peer.ledger_id, **fields: Any) -> codec.CommandSeek:  # noqa: ANN401
    body = codec.CommandSeek(consumer_id=0, request_id=0, **fields)
    if entry_id is not None:
        body.message_id.ledgerId, body.message_id.entryId = ledger_id, entry_id
    return body


# -- seek -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
async def test_a_seek_disconnects_consumers_first_and_the_entry_named_is_the_next_one(
    harness: Harness, kind: int
) -> None:
    peer, other = await Peer.connected(harness), await Peer.connected(harness)
    await peer.produce()
    await peer.publish(*[b"%d" % number for number in range(6)])
    await peer.subscribe(kind)
    peer.acknowledge(*await peer.messages(6))
    if kind != EXCLUSIVE:
        await other.subscribe(kind)
    await peer.request(Type.SEEK, seek(2))
    order = [command.type for command in await peer.settled()]
    assert order.count(Type.CLOSE_CONSUMER) == 1  # before SUCCESS, which was waited for
    if kind != EXCLUSIVE:
        assert (await other.next(Type.CLOSE_CONSUMER))[0].close_consumer.request_id == 2**64 - 1
    peer.inbox.clear()
    await peer.subscribe(kind)
    again = await peer.messages(4)
    assert [(one.payload, one.message.redelivery_count) for one in again] == [(b"%d" % n, 0) for n in range(2, 6)]
    await nothing_more(harness, peer)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (EARLIEST, [b"0", b"1", b"2"]),
        (LATEST, [b"new"]),
        ((0, 5), [b"0"]),
        ((99, 0), [b"new"]),
        ((Peer.ledger_id, 2**64 - 1), [b"0"]),
        ((Peer.ledger_id, 77), [b"new"]),
    ],
)
async def test_a_seek_to_a_word_or_another_ledger_goes_to_an_end(
    harness: Harness, position: tuple[int, int], expected: list[bytes]
) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    await peer.subscribe()
    await peer.request(Type.SEEK, seek(position[1], position[0]))
    await peer.subscribe(permits=0)
    await peer.publish(b"new")
    peer.flow(len(expected))
    await peer.next(Type.CLOSE_CONSUMER)
    peer.inbox = [(command, entry) for command, entry in peer.inbox if command.type != Type.MESSAGE]
    assert await peer.payloads(len(expected)) == expected


@pytest.mark.parametrize("kind", TYPES)
async def test_a_seek_by_time_begins_with_what_was_published_since(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
    for time_ms in (1_000, 2_000, 3_000):
        await peer.publish(b"at %d" % time_ms, publish_time=time_ms)
    await peer.subscribe(kind, permits=0)
    await peer.request(Type.SEEK, seek(message_publish_time=1_001))
    await peer.subscribe(kind)
    assert await peer.payloads(2) == [b"at 2000", b"at 3000"]


async def test_a_seek_into_a_batch_delivers_the_members_named(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"ten", messages=10)
    await peer.subscribe(SHARED)
    peer.acknowledge(await peer.message())
    body = seek(0)
    body.message_id.ack_set.extend([0b11_1110_0000])
    await peer.request(Type.SEEK, body)
    await peer.subscribe(SHARED, permits=5)
    assert list((await peer.message()).message.ack_set) == [0b11_1110_0000]
    assert subscription_of(harness).consumers[0].permits == 0


async def test_a_reader_seeks_too_and_its_position_outlives_the_moment_without_a_consumer(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    start = codec.MessageIdData(ledgerId=EARLIEST[0], entryId=EARLIEST[1])
    await peer.subscribe(durable=False, start_message_id=start)
    await peer.messages(3)
    await peer.request(Type.SEEK, seek(1))
    await peer.subscribe(durable=False, start_message_id=start)
    assert await peer.payloads(2) == [b"1", b"2"]


async def test_a_seek_survives_a_crash_once_it_was_answered(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    await peer.subscribe()
    peer.acknowledge(*await peer.messages(3))
    await peer.request(Type.SEEK, seek(1))
    stored = harness.broker.catalog.cursor(TOPIC, "s")
    assert stored is not None
    assert stored.mark_delete == 0


async def test_a_seek_that_says_not_where_to_or_comes_from_nobody_is_refused(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe()
    for consumer_id in (0, 5):
        body = codec.CommandSeek(consumer_id=consumer_id, request_id=0)
        with pytest.raises(Refused) as refused:
            await peer.request(Type.SEEK, body)
        assert refused.value.code == WireCode.METADATA_ERROR


async def test_while_a_subscription_is_moved_nobody_joins_and_nobody_moves_it_again(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe()
    subscription = subscription_of(harness)
    subscription.fenced = True
    with pytest.raises(Refused) as refused:
        await peer.subscribe(consumer_id=1)
    assert refused.value.code == WireCode.SERVICE_NOT_READY
    with pytest.raises(ServiceNotReady, match="is being reset already"):
        await subscription.move_to(0)
    subscription.fenced = False


# -- the beginning ----------------------------------------------------------------------------------------------------


async def test_a_new_subscription_begins_where_it_is_told_and_an_old_one_where_it_was(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1")
    await peer.subscribe(name="late", consumer_id=1, earliest=False)
    await peer.subscribe(name="early", consumer_id=2)
    assert [subscription_of(harness, name).backlog for name in ("late", "early")] == [0, 2]
    await peer.close_consumer(1)
    await peer.publish(b"2")
    await peer.subscribe(name="late", consumer_id=1)  # earliest, which does not count any more
    assert subscription_of(harness, "late").backlog == 1


async def test_a_new_subscription_can_begin_some_seconds_ago(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    now_ms = harness.clock.wall_ms()
    for age_ms in (10_000, 5_000, 1_000):
        await peer.publish(b"%d" % age_ms, publish_time=now_ms - age_ms)
    await peer.subscribe(start_message_rollback_duration_sec=6)
    assert await peer.payloads(2) == [b"5000", b"1000"]


@pytest.mark.parametrize("batch_index", [-1, 0])
async def test_a_reader_gets_what_it_names_again_and_leaves_out_itself_what_it_has(
    harness: Harness, batch_index: int
) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    start = codec.MessageIdData(ledgerId=Peer.ledger_id, entryId=1, batch_index=batch_index)
    await peer.subscribe(durable=False, start_message_id=start)
    assert (await peer.message()).payload == b"1"


# -- moved by an administrator ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
async def test_skipped_entries_are_owed_by_nobody_and_not_delivered_again(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(*[b"%d" % number for number in range(10)])
    await peer.subscribe(kind, permits=4)
    received = await peer.messages(4)
    peer.acknowledge(received[1])
    await peer.settled()
    subscription = subscription_of(harness)
    subscription.moves.skip(5)  # 0, 2, 3, 4 and 5: 1 is acknowledged already
    assert (subscription.backlog, subscription.unacked, subscription.cursor.mark_delete) == (4, 0, 5)
    peer.redeliver()
    peer.flow(10)
    assert await peer.payloads(4) == [b"6", b"7", b"8", b"9"]
    subscription.moves.skip(100)
    assert (subscription.backlog, subscription.unacked) == (0, 0)


async def test_a_cleared_backlog_is_empty_also_of_what_waits_for_others(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1")
    await peer.publish(b"later", deliver_at_time=harness.clock.wall_ms() + 3_600_000)
    await peer.subscribe(SHARED)
    peer.redeliver(*await peer.messages(2))
    await peer.messages(2)
    subscription = subscription_of(harness)
    await until(lambda: subscription.delayed == 1)
    subscription.moves.skip_all()
    assert (subscription.backlog, subscription.unacked, subscription.delayed) == (0, 0, 0)
    peer.redeliver()
    await nothing_more(harness, peer)
    await peer.publish(b"new")
    assert (await peer.message()).payload == b"new"


async def test_expired_entries_are_acknowledged_and_counted(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    await peer.subscribe(permits=0)
    subscription = subscription_of(harness)
    assert subscription.expire_through(1) == 2
    assert (subscription.backlog, subscription.expired, subscription.last_expired_ms) == (1, 2, harness.clock.wall_ms())
    assert subscription.expire_through(0) == 0
    peer.flow(5)
    assert (await peer.message()).payload == b"2"


async def test_a_reset_from_outside_brings_its_consumers_back_to_the_entry(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    await peer.subscribe(FAILOVER)
    peer.acknowledge(*await peer.messages(3))
    await peer.settled()
    await subscription_of(harness).move_to(1)
    await peer.next(Type.CLOSE_CONSUMER)
    await peer.subscribe(FAILOVER)
    assert await peer.payloads(2) == [b"1", b"2"]


# -- the last message -------------------------------------------------------------------------------------------------


async def last_id(peer: Peer) -> Any:  # noqa: ANN401
    body = codec.CommandGetLastMessageId(consumer_id=0, request_id=0)
    return await peer.request(Type.GET_LAST_MESSAGE_ID, body)


async def test_the_last_message_id_names_the_last_member_of_a_batch_and_the_mark_delete_position(
    harness: Harness,
) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe()
    empty = await last_id(peer)
    assert (empty.last_message_id.ledgerId, empty.last_message_id.entryId) == (2**64 - 1, 2**64 - 1)
    await peer.publish(b"one")
    assert (await last_id(peer)).last_message_id.batch_index == -1
    await peer.publish(b"ten", messages=10)
    peer.acknowledge((await peer.messages(2))[0])
    last = await last_id(peer)
    assert (last.last_message_id.entryId, last.last_message_id.batch_index) == (1, 9)
    assert last.consumer_mark_delete_position.entryId == 0
