# SPDX-License-Identifier: Apache-2.0
"""Key_Shared subscriptions of a running broker: who gets which key, and when."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from penstock.broker.subscriptions import key_shared
from penstock.broker.subscriptions.key_ranges import hash_of, slot_of
from penstock.broker.subscriptions.key_shared import KeyShared
from penstock.core.errors import WireCode
from penstock.core.units import MIB
from penstock.testing.client import Refused
from tests.broker.consuming import KEY_SHARED, SHARED, Peer, nothing_more, subscription_of
from tests.net.harness import Harness, running, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LOW, HIGH = (0, 32_767), (32_768, 65_535)
LOW_KEYS = [key for key in (f"k{number}" for number in range(40)) if slot_of(key.encode()) <= LOW[1]]
HIGH_KEYS = [key for key in (f"k{number}" for number in range(40)) if slot_of(key.encode()) > LOW[1]]


@pytest_asyncio.fixture(params=["from the tail cache", "from the log"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        harness.broker.tail_cache.limit_bytes = MIB if request.param == "from the tail cache" else 0
        yield harness


def keys(harness: Harness) -> KeyShared:
    delivery = subscription_of(harness).dispatcher
    assert isinstance(delivery, KeyShared)
    return delivery


@pytest.mark.parametrize("ring", [True, False])
async def test_a_key_goes_to_one_consumer_in_order(tmp_path: Path, *, ring: bool) -> None:
    async with running(tmp_path, key_shared_consistent_hashing=ring) as harness:
        peers = [await Peer.connected(harness) for _ in range(3)]
        for index, peer in enumerate(peers):
            await peer.subscribe(KEY_SHARED, consumer_name=f"c{index}")
        await peers[0].produce()
        for number in range(120):
            await peers[0].publish(b"%d" % number, partition_key=f"k{number % 30}")
        subscription = subscription_of(harness)
        await until(lambda: subscription.unacked == 120)
        owners: dict[int, int] = {}
        for index, peer in enumerate(peers):
            numbers: dict[int, list[int]] = defaultdict(list)
            for payload in await peer.payloads(subscription.consumers[index].messages_out):
                numbers[int(payload) % 30].append(int(payload))
            assert all(list(range(key, 120, 30)) == came for key, came in numbers.items())
            owners.update(dict.fromkeys(numbers, index))
        assert len(owners) == 30
        assert set(owners.values()) == {0, 1, 2}


async def test_the_ordering_key_counts_before_the_partition_key_and_without_keys_messages_spread(
    harness: Harness,
) -> None:
    low, high = await Peer.connected(harness), await Peer.connected(harness)
    await low.subscribe(KEY_SHARED, ranges=[LOW])
    await high.subscribe(KEY_SHARED, ranges=[HIGH])
    await low.produce()
    await low.publish(b"ordering", partition_key=HIGH_KEYS[0], ordering_key=LOW_KEYS[0].encode())
    await low.publish(b"partition", partition_key=HIGH_KEYS[0])
    assert (await low.message()).payload == b"ordering"
    assert (await high.message()).payload == b"partition"
    await low.publish(*[b"none"] * 40)
    subscription = subscription_of(harness)
    await until(lambda: subscription.unacked == 42)
    assert min(consumer.messages_out for consumer in subscription.consumers) > 5


async def test_a_stuck_consumer_does_not_hold_up_the_keys_of_others_and_gets_its_own_in_order_later(
    harness: Harness,
) -> None:
    stuck, quick = await Peer.connected(harness), await Peer.connected(harness)
    await stuck.subscribe(KEY_SHARED, ranges=[LOW], permits=1)
    await quick.subscribe(KEY_SHARED, ranges=[HIGH])
    await quick.produce()
    for number in range(50):
        await quick.publish(b"low %d" % number, partition_key=LOW_KEYS[number % 3])
        await quick.publish(b"high %d" % number, partition_key=HIGH_KEYS[number % 3])
    assert await quick.payloads(50) == [b"high %d" % number for number in range(50)]
    assert len(keys(harness).order) == 49
    await nothing_more(harness, quick)
    stuck.flow(100)
    came = await stuck.payloads(50)
    for key in range(3):
        of_key = [payload for payload in came if int(payload.split()[1]) % 3 == key]
        assert of_key == [b"low %d" % number for number in range(key, 50, 3)]


async def test_looking_ahead_ends_at_its_bound_and_goes_on_when_there_is_room(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "LOOK_AHEAD_PER_CONSUMER", 10)
    stuck, quick = await Peer.connected(harness), await Peer.connected(harness)
    await stuck.subscribe(KEY_SHARED, ranges=[LOW], permits=0)
    await quick.subscribe(KEY_SHARED, ranges=[HIGH])
    await quick.produce()
    for number in range(30):
        await quick.publish(b"%d" % number, partition_key=LOW_KEYS[0])
    await quick.publish(b"behind", partition_key=HIGH_KEYS[0])
    await nothing_more(harness, quick)
    assert len(keys(harness).order) == 20
    stuck.flow(30)
    assert await stuck.payloads(30) == [b"%d" % number for number in range(30)]
    assert (await quick.message()).payload == b"behind"


async def test_a_key_that_moved_waits_until_its_old_consumer_has_acknowledged(harness: Harness) -> None:
    old, new = await Peer.connected(harness), await Peer.connected(harness)
    await old.subscribe(KEY_SHARED, consumer_name="old")
    await old.produce()
    names = [f"k{number}" for number in range(20)]
    for name in names:
        await old.publish(f"{name} before".encode(), partition_key=name)
    held = {one.payload.split()[0].decode(): one for one in await old.messages(20)}
    await new.subscribe(KEY_SHARED, consumer_name="new")
    for name in names:
        await old.publish(f"{name} after".encode(), partition_key=name)
    first, second = subscription_of(harness).consumers
    order = keys(harness).order
    moved = [name for name in names if order.selector.select(order.selector.slot(hash_of(name.encode()))) is second]
    assert moved
    assert sorted(await old.payloads(20 - len(moved))) == sorted(f"{n} after".encode() for n in names if n not in moved)
    await nothing_more(harness, new, old)
    assert sorted(slot for slot, _ in keys(harness).draining(first)) == sorted(
        order.selector.slot(hash_of(name.encode())) for name in moved
    )
    for count, name in enumerate(moved, 1):
        old.acknowledge(held[name])
        assert (await new.message()).payload == f"{name} after".encode()
        assert keys(harness).drained(first) == count
    await nothing_more(harness, new, old)


async def test_when_a_consumer_leaves_its_keys_go_on_elsewhere_in_order_and_not_counted(harness: Harness) -> None:
    leaving, staying = await Peer.connected(harness), await Peer.connected(harness)
    await leaving.subscribe(KEY_SHARED, consumer_name="leaving")
    await leaving.produce()
    for number in range(10):
        await leaving.publish(b"%d" % number, partition_key="k")
    await leaving.messages(10)
    await staying.subscribe(KEY_SHARED, consumer_name="staying")
    await leaving.close_consumer()
    again = await staying.messages(10)
    assert [(one.payload, one.message.redelivery_count) for one in again] == [(b"%d" % n, 0) for n in range(10)]


async def test_out_of_order_delivery_does_not_wait_for_the_old_consumer(harness: Harness) -> None:
    old, new = await Peer.connected(harness), await Peer.connected(harness)
    await old.subscribe(KEY_SHARED, consumer_name="old", out_of_order=True)
    await old.produce()
    names = [f"k{number}" for number in range(20)]
    for name in names:
        await old.publish(name.encode(), partition_key=name)
    await old.messages(20)
    await new.subscribe(KEY_SHARED, consumer_name="new", out_of_order=True)
    for name in names:
        await old.publish(name.encode(), partition_key=name)
    subscription = subscription_of(harness)
    await until(lambda: subscription.unacked == 40)
    assert subscription.consumers[1].messages_out > 0


async def test_a_negative_acknowledgement_brings_the_message_back_to_the_same_consumer(harness: Harness) -> None:
    a, b = await Peer.connected(harness), await Peer.connected(harness)
    await a.subscribe(KEY_SHARED, ranges=[LOW])
    await b.subscribe(KEY_SHARED, ranges=[HIGH])
    await a.produce()
    await a.publish(b"one", b"two", partition_key=LOW_KEYS[0])
    first, _ = await a.messages(2)
    a.redeliver(first)
    again = await a.message()
    assert (again.payload, again.message.redelivery_count) == (b"one", 1)
    await nothing_more(harness, a, b)


async def test_a_key_in_nobodys_range_is_kept_until_somebody_asks_for_it(harness: Harness) -> None:
    low, high = await Peer.connected(harness), await Peer.connected(harness)
    await low.subscribe(KEY_SHARED, ranges=[LOW])
    await low.produce()
    await low.publish(b"high", partition_key=HIGH_KEYS[0])
    await low.publish(b"low", partition_key=LOW_KEYS[0])
    assert (await low.message()).payload == b"low"
    await nothing_more(harness, low)
    await high.subscribe(KEY_SHARED, ranges=[HIGH])
    assert (await high.message()).payload == b"high"


@pytest.mark.parametrize("ranges", [[], [(9, 3)], [(0, 5), (5, 9)], [(0, 65_536)], [(100, 200)]])
async def test_sticky_ranges_that_cannot_be_are_refused(harness: Harness, ranges: list[tuple[int, int]]) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(KEY_SHARED, ranges=[(150, 160)])
    with pytest.raises(Refused) as refused:
        await peer.subscribe(KEY_SHARED, ranges=ranges, consumer_id=1)
    assert refused.value.code == WireCode.CONSUMER_ASSIGN_ERROR
    assert len(subscription_of(harness).consumers) == 1


async def test_the_ranges_of_a_client_that_no_longer_answers_are_free(harness: Harness) -> None:
    dead, newcomer = await Peer.connected(harness), await Peer.connected(harness)
    await dead.subscribe(KEY_SHARED, ranges=[LOW])
    await newcomer.subscribe(KEY_SHARED, ranges=[LOW])  # the dead one reads no PING
    assert len(subscription_of(harness).consumers) == 1


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"kind": SHARED}, "Active subscription type of 'Key_Shared' is different than .* 'Shared'"),
        ({"kind": KEY_SHARED, "ranges": [LOW]}, "key_shared mode of 'AUTO_SPLIT' is different than .* 'STICKY'"),
        ({"kind": KEY_SHARED, "out_of_order": True}, "does not allow out of order delivery"),
    ],
)
async def test_consumers_that_disagree_on_how_keys_are_divided_do_not_mix(
    harness: Harness, how: dict[str, object], complaint: str
) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(KEY_SHARED)
    with pytest.raises(Refused, match=complaint) as refused:
        await peer.subscribe(consumer_id=1, **how)  # type: ignore[arg-type]
    assert refused.value.code == WireCode.CONSUMER_BUSY


async def test_a_topic_that_stores_nothing_delivers_by_key_and_drops_what_nobody_has_permits_for(
    harness: Harness,
) -> None:
    topic = "non-persistent://public/default/n"
    low, high = await Peer.connected(harness), await Peer.connected(harness)
    await low.subscribe(KEY_SHARED, topic=topic, ranges=[LOW], permits=1)
    await high.subscribe(KEY_SHARED, topic=topic, ranges=[HIGH])
    await low.settled()
    await high.settled()
    await high.produce(topic)
    for number in range(6):
        await high.publish(b"%d" % number, partition_key=(LOW_KEYS, HIGH_KEYS)[number % 2][0])
    assert await low.payloads(1) == [b"0"]
    assert await high.payloads(3) == [b"1", b"3", b"5"]
    assert subscription_of(harness, topic=topic).dropped == 2


async def test_what_it_looks_like_from_outside(harness: Harness) -> None:
    peer = await Peer.connected(harness)
    await peer.subscribe(KEY_SHARED, ranges=[LOW, (50_000, 60_000)])
    (consumer,) = subscription_of(harness).consumers
    assert keys(harness).hash_ranges() == {consumer: [LOW, (50_000, 60_000)]}
    assert consumer.key_sharing.mode == "STICKY"
