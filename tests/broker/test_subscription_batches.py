# SPDX-License-Identifier: Apache-2.0
"""Single messages of a batch: acknowledged, not delivered again, counted, kept over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.broker.log_reads import LogReads
from penstock.core.errors import WireCode
from penstock.core.units import MIB
from penstock.net.connection import Connection
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
from tests.net.harness import Harness, running, until

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from penstock.core.checksum import Buffer
    from penstock.net.send_queue import QueuedEntries
    from penstock.storage.results import ReadResult
    from penstock.wire.pulsar_pb2 import CommandAckResponse

ALL_BUT_FIRST_3_OF_10 = [0b11_1111_1000]


@pytest_asyncio.fixture(params=["from the tail cache", "from the log"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        harness.broker.tail_cache.limit_bytes = MIB if request.param == "from the tail cache" else 0
        yield harness


async def test_a_batch_comes_again_with_the_members_still_wanted_and_costs_no_more_permits_than_those(
    harness: Harness,
) -> None:
    peer = await Peer.producing(harness)
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
    peer = await Peer.producing(harness)
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
    peer = await Peer.producing(harness)
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
    peer = await Peer.producing(harness)
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
        peer = await Peer.producing(harness)
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
        peer = await Peer.producing(harness)
        await peer.subscribe(SHARED)
        await peer.publish(b"ten", messages=10)
        batch = await peer.message()
        peer.acknowledge(batch, words=ALL_BUT_FIRST_3_OF_10)
        peer.redeliver(batch)
        assert list((await peer.message()).message.ack_set) == []


async def test_switched_off_a_cumulative_acknowledgement_ends_before_the_batch(tmp_path: Path) -> None:
    async with running(tmp_path, batch_index_acks=False) as harness:
        peer = await Peer.producing(harness)
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
    read = LogReads.read

    def noted(
        self: LogReads, ledger_id: int, entry_id: int, *, bytes_max: int, entries_max: int, first_bytes_max: int
    ) -> Future[ReadResult]:
        asked.append(entries_max)
        return read(
            self,
            ledger_id,
            entry_id,
            bytes_max=bytes_max,
            entries_max=entries_max,
            first_bytes_max=first_bytes_max,
        )

    async with running(tmp_path) as harness:
        harness.broker.tail_cache.limit_bytes = 0
        peer = await Peer.producing(harness)
        payloads = [b"%d" % number for number in range(12)]
        await peer.publish(*payloads, messages=100)
        await peer.publish(*payloads)
        monkeypatch.setattr(LogReads, "read", noted)
        await peer.subscribe(permits=100)
        for number in range(12):
            assert (await peer.message()).payload == b"%d" % number
            peer.flow(100)
        assert asked == [100, *[1] * 11]
        # What comes alone is read by as many as there are permits for again.
        assert await peer.payloads(12) == payloads
        assert asked[-1] > 1


# -- bounds -----------------------------------------------------------------------------------------------------------

WORDS = [-1] * 1_000  # of a batch of 64,000 messages, all of them wanted still


async def asked(peer: Peer, members: Mapping[int, Sequence[int]], *entry_ids: int) -> CommandAckResponse:
    """Acknowledge all but these members of batches, and whole entries, in one command; the answer."""
    body = codec.CommandAck(consumer_id=0, ack_type=codec.CommandAck.Individual, request_id=5)
    for entry_id, words in (*members.items(), *((entry_id, ()) for entry_id in entry_ids)):
        body.message_id.add(ledgerId=peer.ledger_id, entryId=entry_id, ack_set=words)
    peer.send(Type.ACK, body)
    return (await peer.next(Type.ACK_RESPONSE))[0].ackResponse


async def with_entries(harness: Harness, count: int) -> Peer:
    """A client that has published so many entries, and has a subscription that was sent none of them."""
    peer = await Peer.producing(harness)
    await peer.publish(*(b"ten" for _ in range(count)), messages=10)
    await peer.subscribe(SHARED, permits=0)
    return peer


async def test_ack_sets_that_do_not_fit_the_memory_are_refused_and_never_forgotten_after_a_success(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as harness:
        row = harness.broker.dispatch_memory
        row.limit_bytes = row.used_bytes + 100_000
        peer = await with_entries(harness, 20)
        answers = [await asked(peer, {entry_id: WORDS}) for entry_id in range(20)]
        assert row.used_bytes <= row.limit_bytes
        kept = [entry_id for entry_id, answer in enumerate(answers) if not answer.HasField("error")]
        assert 0 < len(kept) < 20
        assert all("raise memoryLimitMB" in answer.message for answer in answers[len(kept) :])
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED)
        received = await peer.messages(20)
        assert [one.entry_id for one in received if list(one.message.ack_set) == WORDS] == kept


async def test_whole_entries_are_acknowledged_where_ack_sets_are_refused(harness: Harness) -> None:
    peer = await with_entries(harness, 4)
    harness.broker.dispatch_memory.limit_bytes = 100
    answer = await asked(peer, {0: WORDS}, 1, 3)
    assert int(answer.error) == WireCode.TOO_MANY_REQUESTS
    cursor = subscription_of(harness).cursor
    assert [cursor.is_acknowledged(entry_id) for entry_id in range(4)] == [False, True, False, True]
    assert not cursor.has_ack_sets


async def test_an_ack_set_gives_back_what_it_was_charged_when_its_entry_is_acknowledged(harness: Harness) -> None:
    peer = await with_entries(harness, 4)
    row = harness.broker.dispatch_memory
    before = row.used_bytes
    await asked(peer, {0: WORDS, 1: WORDS})
    assert row.used_bytes - before >= 2 * 8_000
    await asked(peer, {}, 0, 1)
    await until(lambda: row.used_bytes == before)


async def test_ack_sets_for_entries_that_do_not_exist_cost_nothing(harness: Harness) -> None:
    peer = await with_entries(harness, 4)
    row = harness.broker.dispatch_memory
    before = row.used_bytes
    assert not (await asked(peer, dict.fromkeys(range(4, 34), WORDS))).HasField("error")
    assert (row.used_bytes, subscription_of(harness).cursor.has_ack_sets) == (before, False)


async def test_more_ack_sets_in_one_command_than_allowed_are_refused_altogether(harness: Harness) -> None:
    peer = await with_entries(harness, 40)
    answer = await asked(peer, dict.fromkeys(range(39), WORDS), 39)
    assert "32,768" in answer.message
    assert subscription_of(harness).backlog == 40


async def test_a_seek_into_a_batch_is_refused_where_the_memory_is_used_up(harness: Harness) -> None:
    peer = await with_entries(harness, 4)
    harness.broker.dispatch_memory.limit_bytes = 100
    seek = codec.CommandSeek(consumer_id=0, request_id=0)
    seek.message_id.CopyFrom(codec.MessageIdData(ledgerId=peer.ledger_id, entryId=2, ack_set=WORDS))
    with pytest.raises(Refused, match="memoryLimitMB"):
        await peer.request(Type.SEEK, seek)
    assert subscription_of(harness).cursor.mark_delete == -1


async def test_ack_sets_on_their_way_to_a_client_take_no_more_than_its_room(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    deliver = Connection.deliver

    def noted(self: Connection, out: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None = None) -> None:
        sent.append(nbytes)
        deliver(self, out, nbytes, entries)

    monkeypatch.setattr(Connection, "room_bytes", property(lambda _: 100_000))
    monkeypatch.setattr(Connection, "deliver", noted)
    peer = await with_entries(harness, 120)
    for first in range(0, 120, 30):
        await asked(peer, dict.fromkeys(range(first, first + 30), WORDS))
    peer.flow(120 * 10)
    assert [list(one.message.ack_set) for one in await peer.messages(120)] == [WORDS] * 120
    assert max(sent) <= 100_000


async def test_entries_that_come_again_are_counted_though_one_between_them_is_owed_in_part(harness: Harness) -> None:
    peer = await with_entries(harness, 3)
    peer.flow(30)
    received = await peer.messages(3)
    peer.acknowledge(received[1], words=ALL_BUT_FIRST_3_OF_10)
    consumer = subscription_of(harness).consumers[0]
    await until(lambda: consumer.unacked == 27)
    peer.flow(30)
    peer.redeliver(received[0], received[2])
    assert [one.entry_id for one in await peer.messages(2)] == [0, 2]
    assert consumer.unacked == 27
