# SPDX-License-Identifier: Apache-2.0
"""Counts of messages, asked for with the last message id, for whoever reads a topic in portions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.log_reads import LogReads
from penstock.wire import codec
from tests.broker.consuming import Peer, Type
from tests.net.harness import turns, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.net.harness import Harness

LEDGER = Peer.ledger_id


async def counted(peer: Peer, entry_id: int, *, ledger_id: int = LEDGER, **query: Any) -> Any:  # noqa: ANN401
    body = codec.CommandGetLastMessageId(
        consumer_id=0,
        request_id=0,
        count=codec.MessageCountQuery(ledger_id=ledger_id, entry_id=entry_id, **query),
    )
    return (await peer.request(Type.GET_LAST_MESSAGE_ID, body)).counted


async def published(harness: Harness) -> Peer:
    """Entries of 1, 10, 1 and 5 messages."""
    peer = await Peer.producing(harness)
    await peer.subscribe(permits=0)
    for messages in (1, 10, 1, 5):
        await peer.publish(b"x", messages=messages)
    return peer


async def test_messages_are_counted_from_a_position_to_the_end(harness: Harness) -> None:
    peer = await published(harness)
    found = await counted(peer, 1)
    assert (found.ledger_id, found.next_entry_id, found.entries, found.messages) == (LEDGER, 4, 3, 16)
    assert found.bytes > 0
    assert not found.next_publish_time


async def test_a_count_names_the_entry_that_exceeds_its_limit_and_when_that_was_published(harness: Harness) -> None:
    peer = await published(harness)
    found = await counted(peer, 0, messages_max=5, publish_time=True)
    assert (found.next_entry_id, found.messages, found.next_messages) == (1, 1, 10)
    assert found.next_publish_time > 0
    assert (await counted(peer, 0, bytes_max=0)).next_entry_id == 0
    assert (await counted(peer, 0, end_entry_id=2)).messages == 11


async def test_a_position_of_a_topic_that_was_deleted_counts_from_the_beginning(harness: Harness) -> None:
    peer = await published(harness)
    found = await counted(peer, 3, ledger_id=LEDGER + 100)
    assert (found.ledger_id, found.messages) == (LEDGER, 17)


async def test_a_count_is_only_answered_if_it_is_asked_for(harness: Harness) -> None:
    peer = await published(harness)
    body = codec.CommandGetLastMessageId(consumer_id=0, request_id=0)
    assert not (await peer.request(Type.GET_LAST_MESSAGE_ID, body)).HasField("counted")


async def test_one_count_at_a_time_leaves_a_reader_thread_to_those_who_read(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await published(harness)
    await counted(peer, 0)  # from now on it is known how many messages the last entry has
    counts: list[tuple[asyncio.Future[Any], Callable[[], Any]]] = []

    def hold(_reads: LogReads, read: Callable[[], Any]) -> asyncio.Future[Any]:
        counts.append((asyncio.get_running_loop().create_future(), read))
        return counts[-1][0]

    monkeypatch.setattr(LogReads, "in_thread", hold)
    query = codec.MessageCountQuery(ledger_id=LEDGER, entry_id=0)
    for number in range(1, 4):
        body = codec.CommandGetLastMessageId(consumer_id=0, request_id=1_000 + number, count=query)
        peer.send(Type.GET_LAST_MESSAGE_ID, body)
    for under_way in range(1, 4):
        await until(lambda wanted=under_way: len(counts) >= wanted)  # type: ignore[misc]
        await turns()
        assert len(counts) == under_way
        if under_way == 1:
            await peer.subscribe(consumer_id=1, name="another")
            assert len(await peer.payloads(4)) == 4
        future, read = counts[-1]
        future.set_result(read())
        answer, _ = await peer.next(Type.GET_LAST_MESSAGE_ID_RESPONSE)
        assert codec.body_in(answer).counted.messages == 17


@pytest.mark.parametrize("huge", [2**63, 2**64 - 1])
async def test_positions_that_cannot_be_are_answered(harness: Harness, huge: int) -> None:
    peer = await published(harness)
    assert (await counted(peer, huge, messages_max=huge, bytes_max=huge, end_entry_id=huge)).messages in (0, 17)
    assert (await counted(peer, 2**62)).messages == 0
