# SPDX-License-Identifier: Apache-2.0
"""Many entries acknowledged one by one above some that are not: stored, charged, and given back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.subscriptions.delivery import Delivery
from penstock.wire import codec
from tests.broker.consuming import SHARED, Peer, Type, nothing_more, subscription_of
from tests.net.harness import Harness, running, topic_of, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from penstock.broker.subscriptions.dispatcher import Dispatcher, Send
    from penstock.storage.catalog import CursorSave
    from penstock.storage.metadata import Done
    from penstock.storage.results import Batch
    from penstock.wire.pulsar_pb2 import CommandAckResponse

ENTRIES = 24_000
INDIVIDUAL = codec.CommandAck.Individual


async def published(harness: Harness, entries: int) -> Peer:
    """A client that has published so many entries, and has a Shared subscription that was sent none of them."""
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED, permits=0)
    for _ in range(0, entries, 1_000):
        await peer.publish(*(b"x" for _ in range(1_000)))
    return peer


async def acknowledged(peer: Peer, entry_ids: range, request_id: int = 77) -> CommandAckResponse:
    """Acknowledge these entries one by one, in one command, and wait for the answer."""
    ids = [codec.MessageIdData(ledgerId=peer.ledger_id, entryId=entry_id) for entry_id in entry_ids]
    peer.send(Type.ACK, codec.CommandAck(consumer_id=0, ack_type=INDIVIDUAL, message_id=ids, request_id=request_id))
    command, _ = await peer.next(Type.ACK_RESPONSE)
    return command.ackResponse


async def test_what_an_ack_response_confirmed_is_not_delivered_again_however_many_gaps_there_are(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as harness:
        peer = await published(harness, ENTRIES)
        answer = await acknowledged(peer, range(1, ENTRIES, 2))
        assert not answer.HasField("error")
        assert subscription_of(harness).cursor.range_count == ENTRIES // 2
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED, permits=ENTRIES)
        assert [one.entry_id for one in await peer.messages(ENTRIES // 2)] == list(range(0, ENTRIES, 2))
        await nothing_more(harness, peer)


async def test_entries_between_acknowledged_ones_go_out_together(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.broker.tail_cache.limit_bytes = 0
    peer = await published(harness, 1_000)
    await acknowledged(peer, range(1, 1_000, 2))
    await peer.close_consumer()
    sent: list[int] = []
    perform = Delivery.send

    def counted(self: Delivery, dispatcher: Dispatcher, send: Send, batch: Batch, counts: Sequence[int] | None) -> int:
        sent.append(len(send.rows))
        return perform(self, dispatcher, send, batch, counts)

    monkeypatch.setattr(Delivery, "send", counted)

    await peer.subscribe(SHARED, permits=1_000)

    assert [one.entry_id for one in await peer.messages(500)] == list(range(0, 1_000, 2))
    assert len(sent) <= 20


async def test_a_topic_that_is_loaded_again_knows_what_was_acknowledged_out_of_order(harness: Harness) -> None:
    peer = await published(harness, 1_000)
    await acknowledged(peer, range(1, 1_000, 2))
    await peer.close_consumer()
    topic = topic_of(harness)
    await harness.broker.cursors.save(*topic.subscriptions.values())
    harness.broker.topics.remove(topic)

    await peer.subscribe(SHARED, permits=0)

    assert topic_of(harness) is not topic
    assert subscription_of(harness).cursor.range_count == 500


async def test_gaps_are_charged_to_the_dispatch_row_and_given_back_when_they_are_closed(harness: Harness) -> None:
    row = harness.broker.dispatch_memory
    peer = await published(harness, 10_000)
    before = row.used_bytes
    await acknowledged(peer, range(1, 10_000, 2))
    await until(lambda: row.used_bytes - before > 1_250)
    assert row.used_bytes - before < 20_000
    await acknowledged(peer, range(0, 10_000, 2))
    await until(lambda: row.used_bytes == before)


async def test_a_subscription_that_ends_gives_back_what_its_gaps_were_charged(harness: Harness) -> None:
    row = harness.broker.dispatch_memory
    peer = await published(harness, 1_000)
    await acknowledged(peer, range(1, 1_000, 2))
    await until(lambda: row.used_bytes > 0)
    await peer.request(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0, request_id=0))
    assert row.used_bytes == 0


async def test_thousands_who_wait_for_an_ack_response_share_a_few_saves(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await published(harness, 2_000)
    saves = 0
    save_cursors = harness.broker.catalog.save_cursors

    def counted(changed: Sequence[CursorSave], done: Done) -> None:
        nonlocal saves
        saves += 1
        save_cursors(changed, done)

    monkeypatch.setattr(harness.broker.catalog, "save_cursors", counted)
    for entry_id in range(1, 2_000, 2):
        one = codec.MessageIdData(ledgerId=peer.ledger_id, entryId=entry_id)
        peer.send(Type.ACK, codec.CommandAck(consumer_id=0, ack_type=INDIVIDUAL, message_id=[one], request_id=entry_id))
    answers = [(await peer.next(Type.ACK_RESPONSE))[0].ackResponse for _ in range(1_000)]
    assert [answer.request_id for answer in answers] == list(range(1, 2_000, 2))
    assert 1 <= saves < 100
