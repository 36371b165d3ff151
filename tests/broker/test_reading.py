# SPDX-License-Identifier: Apache-2.0
"""A broker on a disk that cannot read for a while: everything acknowledged is served once it can."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.topics.delayed import DelayedIndexes
from penstock.core.errors import ReadFailed
from penstock.core.names import TopicName
from penstock.core.position import Position
from penstock.core.units import NS_PER_S
from penstock.testing.client import Refused
from penstock.wire import codec
from tests.broker.consuming import EXCLUSIVE, KEY_SHARED, SHARED, Peer, Type, delayed_of, subscription_of
from tests.net.harness import TOPIC, Harness, running, topic_of, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.topics.topic import Topic

COUNT = 50
PAYLOADS = [b"payload %04d" % number for number in range(COUNT)]
T = TopicName.parse(TOPIC)


async def filled(harness: Harness) -> Peer:
    """A client that has published so many messages."""
    peer = await Peer.producing(harness)
    await peer.publish(*PAYLOADS)
    return peer


def break_reads(harness: Harness) -> None:
    """From now on no segment can be read."""
    harness.disk.read_error = OSError(errno.EIO, os.strerror(errno.EIO))


async def failed_often(harness: Harness) -> None:
    """Wait until reads were tried, and tried again."""
    wanted = harness.disk.failed_reads + 2
    await until(lambda: harness.disk.failed_reads >= wanted)
    await turns()


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_messages_that_could_not_be_read_for_a_while_are_all_delivered(harness: Harness, kind: int) -> None:
    peer = await filled(harness)
    break_reads(harness)
    await peer.subscribe(kind)
    await failed_often(harness)
    subscription = subscription_of(harness)
    assert (subscription.cursor.mark_delete, subscription.backlog) == (-1, COUNT)
    harness.disk.read_error = None
    assert await peer.payloads(COUNT) == PAYLOADS
    assert harness.broker.log.damage() == []
    assert topic_of(harness).first_entry_id == 0


async def test_messages_that_could_not_be_read_to_be_delivered_again_are(harness: Harness) -> None:
    peer = await filled(harness)
    await peer.subscribe(SHARED)
    received = await peer.messages(COUNT)
    break_reads(harness)
    peer.redeliver(*received)
    await failed_often(harness)
    assert subscription_of(harness).backlog == COUNT
    harness.disk.read_error = None
    assert await peer.payloads(COUNT) == PAYLOADS


async def test_who_seeks_while_nothing_can_be_read_does_not_wait_for_the_next_try(harness: Harness) -> None:
    peer = await filled(harness)
    break_reads(harness)
    await peer.subscribe(EXCLUSIVE)
    await failed_often(harness)
    harness.disk.read_error = None
    subscription = subscription_of(harness)
    subscription.reading.rewind()
    assert not subscription.reading.under_way  # it reads at the next opportunity
    assert await peer.payloads(COUNT) == PAYLOADS


async def test_questions_that_need_the_log_are_answered_with_try_again_and_then_with_the_truth(
    harness: Harness,
) -> None:
    peer = await filled(harness)
    await peer.subscribe(EXCLUSIVE, permits=0)
    broker, ledger_id = harness.broker, topic_of(harness).ledger_id
    break_reads(harness)
    for question in (
        lambda: administration(broker).messages.peek(T, "s", 1),
        lambda: administration(broker).messages.get(T, Position(ledger_id, 3)),
        lambda: administration(broker).messages.examine(T, "latest", 1),
        lambda: administration(broker).messages.last_id(T),
        lambda: administration(broker).messages.id_by_time(T, 1),
    ):
        with pytest.raises(ReadFailed):
            await question()
    last = codec.CommandGetLastMessageId(consumer_id=0, request_id=0)
    with pytest.raises(Refused, match="cannot be read"):
        await peer.request(Type.GET_LAST_MESSAGE_ID, last)
    harness.disk.read_error = None
    assert (await peer.request(Type.GET_LAST_MESSAGE_ID, last)).last_message_id.entryId == COUNT - 1
    assert (await administration(broker).messages.peek(T, "s", 1)).entry_id == 0


async def test_a_compaction_that_cannot_read_fails_and_leaves_everything_as_it_is(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(*PAYLOADS, partition_key="k")
    break_reads(harness)
    await administration(harness.broker).topics.compact(T)
    await until(lambda: harness.broker.compaction.progress(TOPIC).status == "ERROR")
    topic = topic_of(harness)
    assert topic.compacted is None
    assert topic.subscriptions["__compaction"].cursor.mark_delete == -1
    harness.disk.read_error = None
    await administration(harness.broker).topics.compact(T)
    await until(lambda: harness.broker.compaction.progress(TOPIC).status == "SUCCESS")


async def test_messages_that_cannot_be_read_do_not_get_too_old(harness: Harness) -> None:
    peer = await filled(harness)
    await peer.subscribe(EXCLUSIVE, permits=0)
    break_reads(harness)
    with pytest.raises(ReadFailed):
        await harness.broker.retention.expire(subscription_of(harness), 1)
    assert subscription_of(harness).backlog == COUNT


async def test_health_names_what_cannot_be_read_until_it_can_though_nobody_wants_it_any_more(harness: Harness) -> None:
    peer = await filled(harness)
    break_reads(harness)
    await peer.subscribe(EXCLUSIVE)
    await failed_often(harness)
    assert harness.broker.health.ok
    assert harness.broker.health.problems == ("segment 1 cannot be read: Input/output error",)
    await peer.close_consumer()
    harness.disk.read_error = None
    harness.clock.advance(ns=5 * NS_PER_S)
    await until(lambda: not harness.broker.health.problems)


@pytest.mark.real
async def test_who_seeks_by_time_finds_the_place_though_entries_in_the_middle_are_damaged(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.producing(harness)
        for number, payload in enumerate(PAYLOADS):
            await peer.publish(payload, publish_time=1_000 + number)
        path = tmp_path / "data" / "broker-0" / "log" / f"{1:016x}.seg"
        content = path.read_bytes()
        with path.open("r+b") as file:
            for number in range(15, 35):
                file.seek(content.index(PAYLOADS[number]))
                file.write(b"spoiled")
        assert await harness.broker.reads.first_published_since(topic_of(harness), 1_005) == 5
        assert await harness.broker.reads.first_published_since(topic_of(harness), 1_040) == 40


@pytest.mark.real
async def test_delayed_messages_whose_index_cannot_be_built_again_come_in_time_once_it_can(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.producing(harness)
        await peer.subscribe(SHARED)
        due_ms = harness.clock.wall_ms() + 3_600_000
        for number in range(COUNT):
            await peer.publish(b"%d" % number, deliver_at_time=due_ms)
        await harness.broker.delayed_indexes.save_of(topic_of(harness))
    (snapshot,) = (tmp_path / "data" / "broker-0" / "delayed").glob("*.snapshot")
    snapshot.unlink()
    async with running(tmp_path) as harness:
        break_reads(harness)
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED)
        await failed_often(harness)
        harness.disk.read_error = None
        await until(lambda: subscription_of(harness).delayed == COUNT)
        harness.clock.advance(ms=3_600_000 + 2_000)
        index = delayed_of(harness)
        index.deliver_due()
        assert sorted(map(int, await peer.payloads(COUNT))) == list(range(COUNT))


async def test_a_topic_that_deduplicates_takes_no_producer_until_its_log_can_be_read_and_then_no_duplicate(
    tmp_path: Path,
) -> None:
    policies = PolicyDefaults(broker_deduplication_enabled=True)
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.request(Type.PRODUCER, codec.CommandProducer(topic=TOPIC, producer_id=0, producer_name="p"))
        await peer.publish(*PAYLOADS)
    async with running(tmp_path, policies=policies) as harness:
        break_reads(harness)
        peer = await Peer.connected(harness)
        producer = codec.CommandProducer(topic=TOPIC, producer_id=0, producer_name="p")
        with pytest.raises(Refused, match="cannot be read"):
            await peer.request(Type.PRODUCER, producer)
        harness.disk.read_error = None
        answer = await peer.request(Type.PRODUCER, producer)
        assert answer.last_sequence_id == COUNT - 1
        await peer.publish(*PAYLOADS)
        assert topic_of(harness).last_entry_id == COUNT - 1


async def test_a_topic_that_cannot_be_loaded_leaves_no_memory_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(_indexes: DelayedIndexes, _topic: Topic) -> None:
        raise ReadFailed("the disk cannot be read")

    async with running(tmp_path) as harness:
        peer = await filled(harness)
        await peer.subscribe(SHARED)
        for message in (await peer.messages(COUNT))[1::2]:
            peer.acknowledge(message)
        await until(lambda: subscription_of(harness).cursor.range_count > COUNT // 3)
        await peer.client.close()
        await until(lambda: not topic_of(harness).producers and not subscription_of(harness).consumers)
        await administration(harness.broker).topics.unload(T)
        assert harness.broker.dispatch_memory.used_bytes == 0
        with monkeypatch.context() as patch:
            patch.setattr(DelayedIndexes, "load", unreadable)
            with pytest.raises(ReadFailed):
                await harness.broker.topics.get_or_create(T, create=False)
        assert harness.broker.dispatch_memory.used_bytes == 0
        await harness.broker.topics.get_or_create(T, create=False)
        assert harness.broker.dispatch_memory.used_bytes > 0
