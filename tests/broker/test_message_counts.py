# SPDX-License-Identifier: Apache-2.0
"""Counts of messages, asked for with the last message id, for whoever reads a topic in portions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.wire import codec
from tests.broker.consuming import Peer, Type

if TYPE_CHECKING:
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


@pytest.mark.parametrize("huge", [2**63, 2**64 - 1])
async def test_positions_that_cannot_be_are_answered(harness: Harness, huge: int) -> None:
    peer = await published(harness)
    assert (await counted(peer, huge, messages_max=huge, bytes_max=huge, end_entry_id=huge)).messages in (0, 17)
    assert (await counted(peer, 2**62)).messages == 0
