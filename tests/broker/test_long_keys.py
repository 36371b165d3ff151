# SPDX-License-Identifier: Apache-2.0
"""Key_Shared with keys as long as messages: in order, one consumer each, a slice in each turn, and nothing kept."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.broker.subscriptions import key_ranges
from penstock.broker.subscriptions.key_shared import KEYS_BYTES_MAX, LONG_KEY_BYTES, KeyShared, LongKeys
from penstock.core.hashing import hash_in_slices, sticky_hash
from penstock.core.units import KIB
from tests.broker.consuming import KEY_SHARED, Peer, subscription_of
from tests.net.harness import running, turns, until

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.net.harness import Harness

LENGTHS = (LONG_KEY_BYTES, LONG_KEY_BYTES + 1, 9 * KIB, KEYS_BYTES_MAX + 1)
KEYS = [letter * length for length in LENGTHS for letter in "abc"]


def run(slices: Generator[None, None, int]) -> tuple[int, int]:
    """How many steps it takes, and what comes of it."""
    steps = 0
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return steps, end.value
        steps += 1


@given(st.binary(max_size=200), st.sampled_from([4, 8, 64]))
def test_a_hash_is_the_same_however_it_is_cut(key: bytes, slice_bytes: int) -> None:
    assert run(hash_in_slices(key, slice_bytes)) == (-(-(len(key) & ~3) // slice_bytes), sticky_hash(key))


async def test_one_asker_is_served_at_a_time_and_one_that_is_gone_is_passed_over() -> None:
    hasher = LongKeys(asyncio.get_running_loop())
    hashed: list[int] = []
    asked: list[str] = []
    hasher.start([bytes(100 * KIB)], hashed.extend, lambda: None)
    hasher.start([b"x"], hashed.extend, lambda: asked.append("gone"))
    hasher.start([b"y"], hashed.extend, lambda: hasher.start([b"y"], hashed.extend, lambda: None))
    await until(lambda: len(hashed) == 2)
    assert hashed == [sticky_hash(bytes(100 * KIB)), sticky_hash(b"y")]
    assert asked == ["gone"]


@pytest.mark.parametrize("cached", [False, True])
async def test_messages_with_long_keys_go_out_in_order_to_one_consumer_each_and_no_key_is_kept(
    tmp_path: Path, *, cached: bool
) -> None:
    async with running(tmp_path, tail_cache_bytes=(1 << 24) * cached) as harness:
        producer = await Peer.producing(harness)
        remembered = key_ranges._remembered_hash.cache_info().currsize  # noqa: SLF001 - that is what must not grow
        expected: dict[str, list[bytes]] = {key: [] for key in KEYS}
        for number in range(3):
            for key in KEYS:
                payload = b"%d" % (number * len(KEYS) + KEYS.index(key))
                expected[key].append(payload)
                await producer.publish(payload, partition_key=key)
        consumers = [await Peer.connected(harness) for _ in range(3)]
        for number, peer in enumerate(consumers):
            await peer.subscribe(KEY_SHARED, consumer_name=f"c{number}", permits=0)
        other = await Peer.connected(harness)  # of another subscription, at the same time
        await other.subscribe(KEY_SHARED, name="other", permits=1_000)
        for peer in consumers:
            peer.flow(1_000)
        count = 3 * len(KEYS)
        assert sorted(await other.payloads(count)) == sorted(chain.from_iterable(expected.values()))
        subscription = subscription_of(harness)
        await until(lambda: subscription.messages_out == count)
        received = [
            await peer.payloads(consumer.messages_out)
            for peer, consumer in zip(consumers, subscription.consumers, strict=True)
        ]
        for payloads in expected.values():
            (owner,) = [each for each in received if payloads[0] in each]
            assert [one for one in owner if one in payloads] == payloads
        assert key_ranges._remembered_hash.cache_info().currsize == remembered  # noqa: SLF001
        delivery = subscription.dispatcher
        assert isinstance(delivery, KeyShared)
        assert all(isinstance(one, int) for one in delivery._long_hashes.values())  # noqa: SLF001


async def test_a_delayed_message_with_a_long_key_comes_when_it_is_due(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.subscribe(KEY_SHARED)
    key = "k" * (64 * KIB)
    await peer.publish(b"later", partition_key=key, deliver_at_time=harness.clock.wall_ms() + 60_000)
    await peer.publish(b"now", partition_key=key)
    assert (await peer.message()).payload == b"now"
    harness.clock.advance(ns=61 * 10**9)
    subscription_of(harness).wake()
    assert (await peer.message()).payload == b"later"


async def test_a_consumer_that_leaves_while_its_keys_are_hashed_leaves_nothing_behind(harness: Harness) -> None:
    peer = await Peer.producing(harness)
    await peer.publish(b"x", partition_key="k" * (500 * KIB))
    await peer.subscribe(KEY_SHARED)
    await peer.close_consumer()
    await peer.subscribe(KEY_SHARED)
    assert (await peer.message()).payload == b"x"
    await turns()


async def test_a_topic_that_stores_nothing_drops_what_would_take_long_to_hash(harness: Harness) -> None:
    topic = "non-persistent://public/default/t"
    peer = await Peer.connected(harness)
    await peer.produce(topic)
    await peer.subscribe(KEY_SHARED, topic=topic)
    await peer.settled()
    await peer.publish(b"long", partition_key="k" * (100 * KIB))
    await peer.publish(b"short", partition_key="k" * KIB)
    assert (await peer.message()).payload == b"short"
    assert subscription_of(harness, topic=topic).dropped == 1
