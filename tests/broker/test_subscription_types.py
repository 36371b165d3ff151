# SPDX-License-Identifier: Apache-2.0
"""Exclusive, Failover and Shared: who is active, what comes back, what is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import WireCode
from penstock.core.names import TopicName
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
from tests.net.harness import TOPIC, Harness, running, topic_of, until

if TYPE_CHECKING:
    from pathlib import Path


async def told_active(peer: Peer, consumer_id: int = 0) -> bool:
    """What the next ACTIVE_CONSUMER_CHANGE says to this consumer."""
    while True:
        change = (await peer.next(Type.ACTIVE_CONSUMER_CHANGE))[0].active_consumer_change
        if change.consumer_id == consumer_id:
            return change.is_active


# -- Exclusive and Failover -------------------------------------------------------------------------------------------


async def test_an_exclusive_consumer_is_told_that_it_is_the_active_one(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(EXCLUSIVE)
    assert await told_active(peer)


async def test_a_second_exclusive_consumer_is_refused(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(EXCLUSIVE)
    with pytest.raises(Refused, match="Exclusive consumer is already connected") as refused:
        await peer.subscribe(EXCLUSIVE, consumer_id=1)
    assert refused.value.code == WireCode.CONSUMER_BUSY


async def test_all_are_told_when_the_active_one_changes_and_a_newcomer_alone_when_it_does_not(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(FAILOVER, consumer_id=1, consumer_name="b", priority_level=1)
    assert await told_active(peer, 1)
    await peer.subscribe(FAILOVER, consumer_id=2, consumer_name="a", priority_level=2)
    assert not await told_active(peer, 2)
    assert Type.ACTIVE_CONSUMER_CHANGE not in [command.type for command in await peer.settled()]
    await peer.subscribe(FAILOVER, consumer_id=0, consumer_name="z", priority_level=0)
    changes = [(await peer.next(Type.ACTIVE_CONSUMER_CHANGE))[0].active_consumer_change for _ in range(3)]
    assert {(change.consumer_id, change.is_active) for change in changes} == {(0, True), (1, False), (2, False)}
    await peer.close_consumer(0)
    changes = [(await peer.next(Type.ACTIVE_CONSUMER_CHANGE))[0].active_consumer_change for _ in range(2)]
    assert {(change.consumer_id, change.is_active) for change in changes} == {(1, True), (2, False)}


async def test_partitions_take_turns_among_the_best_consumers(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await administration(harness.broker).topics.create_partitioned(TopicName.parse(TOPIC), 4)
    for index in range(4):
        topic = f"{TOPIC}-partition-{index}"
        for number, name in enumerate("cab"):
            await peer.subscribe(FAILOVER, topic=topic, consumer_id=10 * index + number, consumer_name=name, permits=0)
        active = subscription_of(harness, topic=topic).active_consumer
        assert active is not None
        assert active.name == "abca"[index]


async def test_the_first_failover_consumer_waits_for_its_turn_too_and_permits_are_kept_meanwhile(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, failover_delay_s=0.2) as harness:
        peer = await Peer.producing(harness)
        await peer.publish(b"one")
        await peer.subscribe(FAILOVER)
        subscription = subscription_of(harness)
        assert subscription.active_consumer is subscription.consumers[0]
        assert [command.type for command in await peer.settled()] == []  # neither told nor sent anything yet
        assert subscription.consumers[0].permits == 1_000
        assert await told_active(peer)
        assert (await peer.message()).payload == b"one"


async def test_a_failover_consumer_that_comes_during_the_wait_may_take_the_turn(tmp_path: Path) -> None:
    async with running(tmp_path, failover_delay_s=0.2) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(FAILOVER, consumer_id=0, priority_level=1)
        await peer.subscribe(FAILOVER, consumer_id=1, priority_level=0)
        assert [await told_active(peer, 0), await told_active(peer, 1)] == [False, True]


async def test_an_exclusive_consumer_waits_for_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, failover_delay_s=3_600.0) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(EXCLUSIVE)
        assert await told_active(peer)


async def test_redelivery_without_ids_starts_over_and_carries_the_new_epoch_but_no_counts(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1", b"2")
    await peer.subscribe(EXCLUSIVE, consumer_epoch=4)
    first = await peer.messages(3)
    assert {one.message.consumer_epoch for one in first} == {4}
    peer.acknowledge(first[0])
    peer.redeliver(epoch=5)
    again = await peer.messages(2)
    assert [(one.payload, one.message.consumer_epoch, one.message.redelivery_count) for one in again] == [
        (b"1", 5, 0),
        (b"2", 5, 0),
    ]


# -- Shared -----------------------------------------------------------------------------------------------------------


async def test_a_cumulative_acknowledgement_is_ignored_where_consumers_share(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1")
    await peer.subscribe(SHARED)
    received = await peer.messages(2)
    peer.acknowledge(received[1], cumulative=True)
    await peer.settled()
    assert subscription_of(harness).backlog == 2


async def test_who_joins_a_consumer_that_was_served_is_served_next(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(SHARED, consumer_id=0)
    await peer.publish(b"0")
    served = [(await peer.message()).message.consumer_id]
    await peer.subscribe(SHARED, consumer_id=1)
    for payload in (b"1", b"2"):
        await peer.publish(payload)
        served.append((await peer.message()).message.consumer_id)
    assert served == [0, 1, 0]


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_each_redelivery_counts_one_more_until_the_message_is_acknowledged(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"x")
    await peer.subscribe(kind)
    for count in range(4):
        received = await peer.message()
        assert received.message.redelivery_count == count
        if count % 2:
            peer.redeliver()  # all that is not acknowledged
        else:
            peer.redeliver(received)
    peer.acknowledge(await peer.message())
    await peer.settled()
    assert subscription_of(harness).consumers[0].messages_redelivered == 4
    assert subscription_of(harness).backlog == 0


async def test_what_a_leaver_had_goes_to_others_with_its_count_and_to_a_later_one_without(harness: Harness) -> None:
    leaver, other = await Peer.connected(harness), await Peer.connected(harness)
    await leaver.produce()
    await leaver.publish(b"x")
    await leaver.subscribe(SHARED)
    leaver.redeliver(await leaver.message())
    assert (await leaver.message()).message.redelivery_count == 1
    await other.subscribe(SHARED)
    await leaver.client.close()
    assert (await other.message()).message.redelivery_count == 1
    # With the last consumer goes what was counted, as in Pulsar.
    await other.close_consumer()
    await other.subscribe(SHARED)
    assert (await other.message()).message.redelivery_count == 0


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_a_consumer_that_owes_too_much_gets_nothing_until_half_is_acknowledged_and_its_permits_are_kept(
    harness: Harness, kind: int
) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "maxUnackedMessagesOnConsumer", 10)
    await peer.publish(*[b"%d" % number for number in range(15)], partition_key="k")
    await peer.subscribe(kind, permits=100)
    received = await peer.messages(10)
    await nothing_more(harness, peer)
    (consumer,) = subscription_of(harness).consumers
    assert (consumer.blocked, consumer.unacked) == (True, 10)
    peer.flow(1)
    peer.acknowledge(*received[:4])
    await nothing_more(harness, peer)
    assert consumer.permits == 91
    peer.acknowledge(received[4])
    assert [one.payload for one in await peer.messages(5)] == [b"%d" % number for number in range(10, 15)]
    assert consumer.permits == 86


async def test_consumers_that_together_owe_too_much_get_nothing_until_half_is_acknowledged(harness: Harness) -> None:
    one, other = await Peer.connected(harness), await Peer.connected(harness)
    await one.produce()
    await harness.broker.policies.set_topic(TOPIC, "maxUnackedMessagesOnSubscription", 4)
    await one.subscribe(SHARED, permits=2)
    await other.subscribe(SHARED, permits=2)
    await one.publish(*[b"x"] * 6)
    received = await one.messages(2)
    await other.messages(2)
    one.flow(2)
    other.flow(2)
    subscription = subscription_of(harness)
    await nothing_more(harness, one, other)
    assert subscription.blocked
    one.acknowledge(*received)
    await until(lambda: subscription.unacked == 4)


async def test_a_bound_that_is_lifted_lets_go_at_once(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "maxUnackedMessagesOnConsumer", 1)
    await peer.publish(b"0", b"1")
    await peer.subscribe(SHARED)
    await peer.message()
    await nothing_more(harness, peer)
    await harness.broker.policies.set_topic(TOPIC, "maxUnackedMessagesOnConsumer", None)
    assert (await peer.message()).payload == b"1"


# -- all types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_consumers_are_told_of_the_end_of_a_terminated_topic_once_all_is_acknowledged(
    harness: Harness, kind: int
) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"last")
    await peer.subscribe(kind)
    received = await peer.message()
    topic_of(harness).terminated = True
    subscription_of(harness).tell_of_end()
    assert Type.REACHED_END_OF_TOPIC not in [command.type for command in await peer.settled()]
    peer.acknowledge(received)
    end = (await peer.next(Type.REACHED_END_OF_TOPIC))[0].reachedEndOfTopic
    assert end.consumer_id == 0
    await peer.close_consumer()
    await peer.subscribe(kind, consumer_id=7)  # at once, when there was nothing left
    assert (await peer.next(Type.REACHED_END_OF_TOPIC))[0].reachedEndOfTopic.consumer_id == 7


@pytest.mark.parametrize("kind", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
async def test_what_is_counted_of_a_consumer(harness: Harness, kind: int) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"one")
    await peer.publish(b"three", messages=3)
    harness.clock.advance(ms=1_000)
    await peer.subscribe(kind, consumer_name="c", permits=10, metadata={"team": "blue"})
    received = await peer.messages(2)
    peer.acknowledge(*received)
    await peer.settled()
    subscription = subscription_of(harness)
    (consumer,) = subscription.consumers
    now_ms = harness.clock.wall_ms()
    assert (consumer.messages_out, consumer.entries_out, consumer.permits) == (4, 2, 6)
    assert consumer.bytes_out == subscription.bytes_out > 0
    assert (consumer.last_flow_ms, consumer.last_consumed_ms, consumer.last_acked_ms) == (now_ms, now_ms, now_ms)
    assert (subscription.messages_out, subscription.acks, subscription.last_acked_ms) == (4, 2, now_ms)
    assert consumer.acks == (4 if kind in (SHARED, KEY_SHARED) else 2)
    assert (consumer.metadata, consumer.client_version, consumer.read_position_when_joining) == (
        {"team": "blue"},
        "test",
        0,
    )
    assert consumer.address.startswith("127.0.0.1:")


async def test_a_consumer_can_ask_for_its_own_figures(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"0", b"1")
    await peer.subscribe(KEY_SHARED, consumer_name="c", permits=10)
    await peer.messages(2)
    stats = await peer.request(Type.CONSUMER_STATS, codec.CommandConsumerStats(request_id=0, consumer_id=0))
    assert (stats.consumerName, stats.type, stats.availablePermits) == ("c", "Key_Shared", 8)
    assert (stats.unackedMessages, stats.msgBacklog, stats.blockedConsumerOnUnackedMsgs) == (2, 2, False)
    assert not stats.HasField("error_code")
