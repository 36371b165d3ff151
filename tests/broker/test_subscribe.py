# SPDX-License-Identifier: Apache-2.0
"""SUBSCRIBE: who is refused, with which code and which words; and what is kept of a subscription."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.core.errors import WireCode
from penstock.core.names import TopicName
from penstock.core.units import NS_PER_MS
from penstock.testing.client import Refused
from penstock.wire import codec
from penstock.wire.pulsar_pb2 import MessageIdData
from tests.broker.consuming import EXCLUSIVE, KEY_SHARED, SHARED, Peer, Type, subscription_of
from tests.net.harness import TOPIC, Harness, running, topic_of, turns, until

if TYPE_CHECKING:
    from pathlib import Path


async def refused(peer: Peer, **how: Any) -> tuple[int, str]:  # noqa: ANN401
    with pytest.raises(Refused) as refusal:
        await peer.subscribe(**how)
    return refusal.value.code, str(refusal.value)


@pytest.mark.parametrize("name", ["", "  ", "pulsar.dedup", "pulsar.repl.cluster-b", "__compaction"])
async def test_names_that_users_cannot_have_are_refused_with_pulsars_code(harness: Harness, name: str) -> None:
    peer = await Peer.connected(harness)
    code, _ = await refused(peer, name=name)
    assert code == WireCode.PRODUCER_BUSY


async def test_names_are_looked_at_strictly_where_that_is_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path, strict_subscription_names=True) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(name="a-b=c:d.e_f")
        assert (await refused(peer, name="a/b", consumer_id=1))[0] == WireCode.PRODUCER_BUSY


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_only_single_consumers_read_compacted(harness: Harness, kind: int) -> None:
    peer = await Peer.connected(harness)
    code, text = await refused(peer, kind=kind, read_compacted=True)
    assert code == WireCode.NOT_ALLOWED_ERROR
    assert "readCompacted only allowed on failover or exclusive subscriptions" in text


async def test_types_that_a_topic_does_not_serve_are_refused(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "subscriptionTypesEnabled", ["Shared"])
    code, text = await refused(peer, kind=KEY_SHARED)
    assert code == WireCode.NOT_ALLOWED_ERROR
    assert "doesn't support Key_Shared sub type!" in text
    await peer.subscribe(SHARED)


async def test_a_subscription_that_may_not_be_made_on_the_way_is_not_found(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_namespace(
        "public/default", "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}
    )
    assert (await refused(peer))[0] == WireCode.SUBSCRIPTION_NOT_FOUND
    await peer.subscribe(name="reader", durable=False)  # nothing is made for a reader


async def test_a_durable_subscription_and_a_reader_do_not_share_a_name(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe()
    assert (await refused(peer, durable=False, consumer_id=1))[0] == WireCode.NOT_ALLOWED_ERROR


@pytest.mark.parametrize(
    ("policy", "limits_to", "words"),
    [
        ("maxConsumersPerTopic", 2, "Topic reached max consumers limit"),
        ("maxConsumersPerSubscription", 2, "Subscription reached max consumers limit"),
    ],
)
async def test_more_consumers_than_there_may_be_are_refused(
    harness: Harness, policy: str, limits_to: int, words: str
) -> None:
    peer = await Peer.producing(harness)
    key = {"maxConsumersPerTopic": "maxConsumersPerTopic", "maxConsumersPerSubscription": "maxConsumersPerSubscription"}
    await harness.broker.policies.set_topic(TOPIC, key[policy], limits_to)
    for consumer_id in range(limits_to):
        await peer.subscribe(SHARED, consumer_id=consumer_id)
    code, text = await refused(peer, kind=SHARED, consumer_id=9)
    assert code == WireCode.CONSUMER_BUSY
    assert words in text


async def test_more_subscriptions_than_there_may_be_are_refused(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", 1)
    await peer.subscribe(name="one")
    code, text = await refused(peer, name="two", consumer_id=1)
    assert code == WireCode.NOT_ALLOWED_ERROR
    assert "Exceed the maximum number of subscriptions of the topic" in text
    code, _ = await refused(peer, name="reader", consumer_id=2, durable=False)
    assert code == WireCode.NOT_ALLOWED_ERROR


async def test_an_old_consumer_may_come_back_though_no_other_may_come(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await harness.broker.policies.set_topic(TOPIC, "maxSubscriptionsPerTopic", 1)
    await peer.subscribe(name="one")
    await peer.close_consumer()
    await peer.subscribe(name="one")


async def test_properties_are_kept_with_the_subscription_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED, properties={"owner": "ops", "empty": ""})
        assert subscription_of(harness).properties == {"owner": "ops", "empty": ""}
        await peer.subscribe(SHARED, consumer_id=1, properties={"owner": "somebody else"})
    async with running(tmp_path) as harness:
        peer = await Peer.connected(harness)
        await peer.subscribe(SHARED)
        assert subscription_of(harness).properties == {"owner": "ops", "empty": ""}


async def test_a_state_to_be_replicated_is_remembered_and_does_nothing(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(EXCLUSIVE, replicate_subscription_state=True)
    assert subscription_of(harness).replicated


async def test_a_refused_consumer_leaves_nothing_behind(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"x")
    await peer.subscribe(KEY_SHARED, ranges=[(0, 65_535)])
    await refused(peer, kind=KEY_SHARED, ranges=[(1, 2)], consumer_id=1)
    assert (await peer.message()).payload == b"x"
    await peer.close_consumer()
    await peer.subscribe(EXCLUSIVE)
    assert (await peer.message()).payload == b"x"


async def test_a_reader_that_comes_back_over_a_dead_connection_gets_what_is_new(tmp_path: Path) -> None:
    async with running(tmp_path, liveness_check_ns=20 * NS_PER_MS) as harness:
        dead, writer, back = [await Peer.connected(harness) for _ in range(3)]
        await writer.produce()
        await dead.subscribe(name="reader", durable=False)  # From now on it does not even answer PING.
        await writer.publish(b"a")
        start = MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
        await back.subscribe(name="reader", durable=False, start_message_id=start)
        await writer.publish(b"b")
        assert (await back.message()).payload == b"b"
        assert [consumer.outlet.is_open for consumer in subscription_of(harness, "reader").consumers] == [True]


async def test_who_subscribes_while_somebody_unsubscribes_is_told_to_try_again(harness: Harness) -> None:
    first, second = [await Peer.connected(harness) for _ in range(2)]
    await first.subscribe(SHARED)
    with harness.catalog_held():
        leaving = asyncio.ensure_future(
            first.request(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0, request_id=0))
        )
        await until(lambda: subscription_of(harness).fenced)
        assert (await refused(second, kind=SHARED, consumer_id=0))[0] == WireCode.SERVICE_NOT_READY
    await leaving
    await second.subscribe(SHARED)
    assert len(subscription_of(harness).consumers) == 1


async def test_a_subscription_goes_as_a_whole_when_its_client_goes_away_meanwhile(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe()
    topic = subscription_of(harness).topic
    with harness.catalog_held():
        peer.send(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0, request_id=9))
        await until(lambda: subscription_of(harness).fenced)
        peer.client.abort()
        await until(lambda: not harness.broker.sessions)
    await until(lambda: not topic.subscriptions)
    assert not harness.broker.catalog.subscriptions(TOPIC)


async def test_a_subscription_that_is_stored_is_known_also_when_its_client_went_away_meanwhile(
    harness: Harness,
) -> None:
    topic = await harness.broker.topics.get_or_create(TopicName.parse(TOPIC), create=True)
    with harness.catalog_held():
        coming = asyncio.ensure_future(topic.open_subscription("s", durable=True, start=0))
        await turns(2)
        coming.cancel()
        await asyncio.wait((coming,))
    await until(lambda: harness.broker.catalog.subscription(TOPIC, "s") is not None)
    await until(lambda: "s" in topic.subscriptions)


# -- closed while it comes ---------------------------------------------------------------------------------------------


def subscribe_of(consumer_id: int = 0, *, durable: bool = True, name: str = "s") -> codec.CommandSubscribe:
    """A SUBSCRIBE to be sent without waiting for its answer."""
    return codec.CommandSubscribe(
        topic=TOPIC,
        subscription=name,
        subType=codec.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
        request_id=77,
        durable=durable,
    )


@pytest.mark.parametrize("durable", [True, False])
async def test_a_consumer_that_is_closed_in_the_same_breath_does_not_come(harness: Harness, *, durable: bool) -> None:
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.produce()
    first.send(Type.SUBSCRIBE, subscribe_of(durable=durable))
    await first.close_consumer()
    await second.subscribe(EXCLUSIVE, durable=durable)
    assert [one.outlet.peer for one in subscription_of(harness).consumers] == [
        harness.connection_of(second.client).peer
    ]
    assert not any(command.type == Type.SUCCESS for command in await first.settled())


async def test_a_consumer_that_is_closed_while_its_subscription_is_stored_does_not_come(harness: Harness) -> None:
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.produce()
    with harness.catalog_held():
        first.send(Type.SUBSCRIBE, subscribe_of())
        await turns()
        await first.close_consumer()
    await until(lambda: "s" in topic_of(harness).subscriptions)
    await turns()
    await second.subscribe(EXCLUSIVE)
    assert len(subscription_of(harness).consumers) == 1
    await first.subscribe(EXCLUSIVE, name="other")  # Its id is free again.


async def test_a_client_that_goes_while_its_subscription_is_stored_leaves_no_consumer(harness: Harness) -> None:
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.produce()
    with harness.catalog_held():
        first.send(Type.SUBSCRIBE, subscribe_of())
        await turns()
        await first.client.close()
    await until(lambda: "s" in topic_of(harness).subscriptions)
    await turns()
    await second.subscribe(EXCLUSIVE)
    assert len(subscription_of(harness).consumers) == 1


async def test_a_subscription_that_is_not_durable_does_not_outlive_the_refusal_of_its_consumer(
    harness: Harness,
) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(EXCLUSIVE)
    await harness.broker.policies.set_topic(TOPIC, "maxConsumers", 1)
    await refused(peer, name="r", consumer_id=1, durable=False)
    assert set(topic_of(harness).subscriptions) == {"s"}


async def test_all_consumers_of_a_subscription_are_told_of_its_end_though_who_asked_for_it_goes(
    harness: Harness,
) -> None:
    first, second = await Peer.connected(harness), await Peer.connected(harness)
    await first.subscribe(SHARED)
    await second.subscribe(SHARED)
    with harness.catalog_held():
        first.send(Type.UNSUBSCRIBE, codec.CommandUnsubscribe(consumer_id=0, request_id=5, force=True))
        await turns()
        await first.client.close()
        await turns()
    command, _ = await second.next(Type.CLOSE_CONSUMER)
    assert command.close_consumer.consumer_id == 0
    assert not topic_of(harness).subscriptions
