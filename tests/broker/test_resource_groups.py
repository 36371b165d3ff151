# SPDX-License-Identifier: Apache-2.0
"""Resource groups on one broker: what they limit, and what they leave alone.

Names of tests begin with the shortcoming of Pulsar's resource groups that must not exist here, numbered as in
`docs/adr/0033-resource-groups-on-one-broker.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_values import MEMBERS
from penstock.core.errors import PenstockError
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import MIB, NS_PER_MS, NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import Amount, GroupRate, GroupRates, Meter
from penstock.testing.client import Type, frame, send
from penstock.wire.client import entries
from penstock.wire.pulsar_pb2 import MessageMetadata
from tests.broker.governed import OTHER, configure, subscribe
from tests.net.harness import TOPIC, Client, publish, running, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.groups.group import Group
    from tests.net.harness import Harness

SHOP = "persistent://shop/orders/t"
# The largest message that a broker takes, metadata included, is of 5 MiB.
LARGE = bytes(5 * MIB - 100)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        admin = administration(harness.broker)
        await admin.tenants.create("shop", {"allowedClusters": ["test"]})
        await admin.namespaces.create(NamespaceName("shop", "orders"))
        yield harness


def batch(sequence_id: int, messages: int) -> bytes:
    """A SEND of so many messages."""
    said = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, num_messages_in_batch=messages)
    return send(0, sequence_id, entries.entry(said, b""), num_messages=messages)


async def put(harness: Harness, group: str = "gold", **rates: int) -> None:
    await administration(harness.broker).resource_groups.put(group, rates)


async def attach(harness: Harness, group: str | None = "gold", namespace: str = "public/default") -> None:
    await administration(harness.broker).resource_groups.attach_namespace(NamespaceName.parse(namespace), group)


async def attach_tenant(harness: Harness, group: str | None = "gold", tenant: str = "public") -> None:
    await administration(harness.broker).resource_groups.attach_tenant(tenant, group)


def group_of(harness: Harness, name: str = "gold") -> Group:
    return harness.broker.groups.in_use[name]


async def accepted(harness: Harness, ms: int, *topics: str) -> list[int]:
    """How many entries each topic accepts in a time."""
    before = [topic_of(harness, name).entries_in for name in topics]
    await passes(ms)
    return [topic_of(harness, name).entries_in - count for name, count in zip(topics, before, strict=True)]


async def passes(ms: int) -> None:
    """Let time pass, and everything happen that happens in it."""
    await asyncio.sleep(ms / 1_000)
    await turns()


async def stay(client: Client) -> None:
    """Read all that comes, answer PINGs, and send one every 20 seconds; returns if one is not answered in 5."""
    loop = asyncio.get_running_loop()
    unanswered = False

    async def ping() -> None:
        nonlocal unanswered
        while not unanswered:
            unanswered = True
            client.write(frame(Type.PING))
            await asyncio.sleep(5)
            if not unanswered:
                await asyncio.sleep(15)

    pinging = loop.create_task(ping())
    try:
        while not pinging.done():
            kind = (await client.read()).type
            if kind == Type.PING:
                client.write(frame(Type.PONG))
            unanswered = unanswered and kind != Type.PONG
    finally:
        pinging.cancel()


async def add_producer(client: Client, producer_id: int, topic: str, **fields: object) -> None:
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer_id, **fields)


async def test_a_topic_without_a_group_has_nothing_that_could_slow_it(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    (session,) = harness.broker.sessions
    assert session.held is None
    assert topic_of(harness).publish_lines == ()
    await put(harness, publishRateInMsgs=1)
    assert session.held is None
    client.publish(*[b""] * 1_000)
    await client.receipts(1_000)


async def test_all_topics_of_all_namespaces_and_tenants_of_a_group_share_its_rate(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    await attach_tenant(harness, tenant="shop")
    clients = [await Client.producing(harness.port, topic=name) for name in (TOPIC, OTHER, SHOP)]
    for client in clients:
        client.publish(*[b""] * 1_000)
    await passes(2_000)
    counts = await accepted(harness, 10_000, TOPIC, OTHER, SHOP)
    assert abs(sum(counts) - 1_000) <= 5
    assert max(counts) - min(counts) <= 10, "topics get equal parts"


async def test_a_group_of_the_namespace_and_of_the_tenant_is_charged_once(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    await attach_tenant(harness)
    client = await Client.producing(harness.port)
    assert len(topic_of(harness).resource_groups) == 1
    client.publish(*[b""] * 1_000)
    (count,) = await accepted(harness, 5_000, TOPIC)
    assert 500 <= count <= 510
    assert group_of(harness).limiter.publish.messages_passed == count


@pytest.mark.parametrize(("of_namespace", "of_tenant"), [(20, 500), (500, 20)])
async def test_the_stricter_of_two_groups_wins(harness: Harness, of_namespace: int, of_tenant: int) -> None:
    await put(harness, "silver", publishRateInMsgs=of_tenant)
    await put(harness, publishRateInMsgs=of_namespace)
    await attach(harness)
    await attach_tenant(harness, "silver")
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 1_000)
    (count,) = await accepted(harness, 10_000, TOPIC)
    assert 200 <= count <= 205


@pytest.mark.parametrize(("of_group", "of_topic"), [(20, 500), (500, 20)])
async def test_the_stricter_of_group_and_topic_wins_and_neither_undoes_the_other(
    harness: Harness, of_group: int, of_topic: int
) -> None:
    await put(harness, publishRateInMsgs=of_group)
    await attach(harness)
    rate = {"publishThrottlingRateInMsg": of_topic, "publishThrottlingRateInByte": -1}
    client = await Client.producing(harness.port)
    await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
    client.publish(*[b""] * 2_000)
    await passes(2_000)
    (count,) = await accepted(harness, 10_000, TOPIC)
    assert 195 <= count <= 206


async def test_bytes_are_limited_as_messages_are(harness: Harness) -> None:
    await put(harness, publishRateInBytes=10_000)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[bytes(1_000)] * 500)
    await passes(10_000)
    assert 100_000 <= topic_of(harness).bytes_in <= 102_000


async def test_s12_all_connections_together_overshoot_by_one_message_not_by_one_read_each(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    clients = [await Client.producing(harness.port) for _ in range(20)]
    for client in clients:
        client.publish(*[b""] * 100)
    await turns()
    assert topic_of(harness).entries_in <= 6  # the burst of 50 ms, and one


async def test_one_message_a_second_and_batches_of_many(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.write(b"".join(batch(number, 10) for number in range(6)))
    await passes(5_000)
    assert [(await accepted(harness, 10_000, TOPIC))[0] for _ in range(4)] == [1, 1, 1, 1]


async def test_one_byte_a_second_lets_a_large_message_pass_and_others_wait_for_the_debt(harness: Harness) -> None:
    await put(harness, publishRateInBytes=1)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(bytes(MIB // 2), bytes(MIB // 2))
    assert await client.receipts(1) == [0]
    assert await accepted(harness, 10_000, TOPIC) == [0]
    await put(harness, publishRateInBytes=MIB)
    assert await client.receipts(1) == [1], "the debt is repaid at the new rate"


async def test_batches_of_a_thousand_at_one_message_a_second_pass_in_turn(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    await attach(harness, namespace="shop/orders")
    clients = [await Client.producing(harness.port, topic=name) for name in (TOPIC, SHOP)]
    staying = [asyncio.ensure_future(stay(client)) for client in clients]
    for client in clients:
        client.write(b"".join(batch(number, 1_000) for number in range(3)))
    await passes(1_000)
    assert sum(topic_of(harness, name).entries_in for name in (TOPIC, SHOP)) == 1, "it passes in debt"
    # From now on, one batch is due in 1,000 s.
    assert await accepted(harness, 4_000_000, TOPIC, SHOP) in ([2, 2], [1, 3], [3, 1])
    await passes(1_000_000)
    assert [topic_of(harness, name).entries_in for name in (TOPIC, SHOP)] == [3, 3]
    for one in staying:
        assert not one.done(), "each PING was answered, all the time"
        one.cancel()


async def test_five_mebibytes_at_one_byte_a_second_stall_only_their_group(tmp_path: Path) -> None:
    async with running(tmp_path, frame_bytes_max=6 * MIB) as harness:
        admin = administration(harness.broker)
        await admin.tenants.create("shop", {"allowedClusters": ["test"]})
        await admin.namespaces.create(NamespaceName("shop", "orders"))
        await put(harness, publishRateInBytes=1)
        await attach(harness)
        clients = [await Client.producing(harness.port, topic=name) for name in (TOPIC, OTHER)]
        for client in clients:
            await add_producer(client, 1, SHOP)
        # One message of each connection waits; a connection with more of them is muted until they have passed.
        clients[0].publish(LARGE, LARGE)
        clients[1].publish(LARGE)
        for client in clients:
            client.write(b"".join(publish(b"", turn, 1) for turn in range(20)))
        staying = [asyncio.ensure_future(stay(client)) for client in clients]
        await passes(1_000)
        assert sum(topic_of(harness, name).entries_in for name in (TOPIC, OTHER)) == 1, "it passes in debt"
        assert topic_of(harness, SHOP).entries_in == 40
        limiter = group_of(harness).limiter.publish
        debts = []
        for _ in range(2):
            debts.append(-(limiter.left(harness.clock.monotonic_ns())[1] or 0))
            await passes(1_000_000)
        assert debts[0] == pytest.approx(5 * MIB, abs=100), "61 days"
        assert debts[0] - debts[1] == pytest.approx(1_000, abs=1)
        await put(harness, publishRateInBytes=5 * MIB)
        await until(lambda: [topic_of(harness, name).entries_in for name in (TOPIC, OTHER)] == [2, 1])
        for one in staying:
            assert not one.done(), "each PING was answered, all the time"
            one.cancel()


async def test_receipts_come_in_order_and_everything_arrives(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=500)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[b"%d" % number for number in range(2_000)])
    assert await client.receipts(2_000) == list(range(2_000))


async def test_s11_producers_of_other_groups_consumers_and_pings_on_the_connection_go_on(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.connected(harness.port)
    for producer_id in range(200):
        await add_producer(
            client, producer_id, TOPIC if producer_id < 20 else f"persistent://shop/orders/{producer_id}"
        )
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=SHOP, subscription="s", consumer_id=0, subType=0, initialPosition=1
    )
    for turn in range(50):
        client.write(b"".join(publish(bytes(100), turn, producer_id) for producer_id in range(200)))
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=1) + frame(Type.PING))
        await turns()
    others = [topic_of(harness, f"persistent://shop/orders/{number}").entries_in for number in range(20, 200)]
    assert set(others) == {50}, "nothing of theirs waits"
    assert topic_of(harness).entries_in <= 2
    assert not harness.muted()
    (session,) = harness.broker.sessions
    assert session.held is not None
    assert sum(held.rows for held in session.held.waiting) == 20 * 50 - topic_of(harness).entries_in
    pongs = 0
    while pongs < 50:
        pongs += (await client.read()).type == Type.PONG


async def test_s11_the_connection_is_muted_when_it_holds_too_much_and_read_again_when_half_has_passed(
    harness: Harness,
) -> None:
    await put(harness, publishRateInBytes=1 * MIB)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[bytes(100_000)] * 200)
    await until(harness.muted)
    connection = harness.connection_of(client)
    assert {(mute.reason, mute.owner) for mute in connection.muted.snapshot()} == {(HoldKind.GROUP_QUOTA, "gold")}
    held = harness.broker.publish_services.held
    assert held.bytes <= harness.memory.size // 8 + MIB
    await until(lambda: not connection.muted)
    await client.receipts(200)
    assert (held.bytes, held.sends) == (0, 0)
    await until(lambda: harness.memory.available == harness.memory.size)


async def test_s11_when_all_connections_hold_what_they_may_others_are_muted_at_once(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port)
    held, others_bytes = harness.broker.publish_services.held, 3 * harness.memory.size // 8
    held.bytes += others_bytes
    client.publish(*[b""] * 50)
    await turns()
    connection = harness.connection_of(client)
    assert [(mute.reason, mute.owner) for mute in connection.muted.snapshot()] == [(HoldKind.GROUP_QUOTA, "gold")]
    assert topic_of(harness).entries_in == 1
    assert held.sends == 49
    held.bytes -= others_bytes
    assert await client.receipts(50) == list(range(50))
    assert not connection.muted


async def test_s11_what_cannot_be_held_does_not_pass_and_its_client_sends_it_again_later(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port)
    held, others_bytes = harness.broker.publish_services.held, harness.memory.size // 2
    held.bytes += others_bytes
    for _ in range(3):
        client.publish(*[b""] * 50)
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receipts(1)
        client = await Client.connected(harness.port)
        client.write(frame(Type.PRODUCER, topic=TOPIC, producer_id=0, request_id=1))
        await client.expect(Type.PRODUCER_SUCCESS)
    assert topic_of(harness).entries_in == 0
    assert harness.memory.available == harness.memory.size
    held.bytes -= others_bytes
    client.publish(*[b""] * 50)
    assert await client.receipts(50) == list(range(50))


async def test_memory_of_held_messages_is_given_back_when_the_client_or_the_topic_is_gone(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    client, other = await Client.producing(harness.port), await Client.producing(harness.port, topic=OTHER)
    for one in (client, other):
        one.publish(*[bytes(1_000)] * 100)
    await turns()
    held = harness.broker.publish_services.held
    assert held.sends >= 190
    client.abort()
    await administration(harness.broker).topics.unload(topic_of(harness, OTHER).name)
    await turns()
    assert (held.bytes, held.sends) == (0, 0)
    assert group_of(harness).limiter.publish.held == Amount()
    assert group_of(harness).publish.waiting == 0
    await until(lambda: harness.memory.available == harness.memory.size)


async def test_ten_administrators_at_once_under_load_lose_no_message_and_no_memory(harness: Harness) -> None:
    topics = (TOPIC, OTHER, SHOP, "non-persistent://public/default/n")
    clients = [await Client.producing(harness.port, topic=name) for name in topics]
    groups = administration(harness.broker).resource_groups

    async def administer(chance: Random) -> None:
        for _ in range(30):
            group = f"g{chance.randrange(4)}"
            namespace = NamespaceName.parse(chance.choice(["public/default", "shop/orders"]))
            change = chance.choice(
                [
                    partial(groups.put, group, {chance.choice(MEMBERS): chance.choice([-1, 50, 1_000])}),
                    partial(groups.delete, group),
                    partial(groups.attach_namespace, namespace, chance.choice([group, None])),
                    partial(groups.attach_tenant, namespace.tenant, chance.choice([group, None])),
                ]
            )
            with contextlib.suppress(PenstockError):
                await change()
            await passes(chance.randrange(20))

    async def publish_all(client: Client) -> list[int]:
        for first in range(0, 600, 20):
            client.publish(*[bytes(100)] * 20, first=first)
            await passes(20)
        return await client.receipts(600)

    publishing = [asyncio.ensure_future(publish_all(client)) for client in clients]
    await asyncio.gather(*(administer(Random(number)) for number in range(10)))
    for namespace in ("public/default", "shop/orders"):
        await attach(harness, None, namespace)
        await attach_tenant(harness, None, namespace.partition("/")[0])
    for receipts in await asyncio.gather(*publishing):
        assert receipts == list(range(600))
    held = harness.broker.publish_services.held
    assert (held.bytes, held.sends) == (0, 0)
    await until(lambda: harness.memory.available == harness.memory.size)
    for name in groups.names():
        await groups.delete(name)
    assert harness.broker.groups.in_use == {}


async def test_closing_a_producer_waits_until_its_messages_are_published(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 20)
    client.write(frame(Type.CLOSE_PRODUCER, request_id=99, producer_id=0))
    assert await client.receipts(20) == list(range(20))
    assert (await client.expect(Type.SUCCESS)).success.request_id == 99


async def test_attaching_detaching_and_changing_take_effect_on_live_producers_at_once(harness: Harness) -> None:
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 100)
    await client.receipts(100)
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    client.publish(*[b""] * 1_000, first=100)
    assert (await accepted(harness, 10_000, TOPIC))[0] <= 11
    await put(harness, publishRateInMsgs=100)
    assert 990 <= (await accepted(harness, 9_950, TOPIC))[0] + 10 <= 1_010
    client.publish(*[b""] * 1_000, first=1_100)
    await put(harness, publishRateInMsgs=1)
    assert (await accepted(harness, 10_000, TOPIC))[0] <= 11
    await attach(harness, None)
    await client.receipts(2_000)
    (session,) = harness.broker.sessions
    assert session.held is not None
    assert list(session.held.waiting) == []


async def test_a_group_that_is_made_after_its_name_was_stored_limits_at_once(harness: Harness) -> None:
    def name_it(stored: dict[str, object]) -> None:
        stored["resource_group_name"] = "gold"

    await harness.broker.policies.update_namespace("public/default", name_it)
    client = await Client.producing(harness.port)
    await put(harness, publishRateInMsgs=10)
    client.publish(*[b""] * 500)
    assert 100 <= (await accepted(harness, 10_000, TOPIC))[0] <= 102


async def test_moving_a_namespace_to_another_group_moves_what_waits(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await put(harness, "silver", publishRateInMsgs=100)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 500)
    await passes(1_000)
    await attach(harness, "silver")
    assert group_of(harness).limiter.publish.held == Amount()
    assert 495 <= (await accepted(harness, 5_000, TOPIC))[0] + 3 <= 510


async def test_s6_a_change_of_the_quota_forgives_no_debt_and_gives_no_burst(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 5_000)
    await passes(1_000)
    before = topic_of(harness).entries_in
    for change in range(100):
        await put(harness, publishRateInMsgs=100 + change % 2)
        await passes(10)
    assert topic_of(harness).entries_in - before <= 105


async def test_s6_unloading_its_topics_forgives_a_group_nothing(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.write(batch(0, 20))
    await client.receipts(1)
    await administration(harness.broker).topics.unload(topic_of(harness).name)
    again = await Client.producing(harness.port)
    again.publish(b"")
    await passes(15_000)
    assert topic_of(harness).entries_in == 0
    await again.receipts(1)


async def test_s14_a_group_limits_whatever_other_rates_are_set_or_switched_off(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    configure(harness, broker_publisher_throttling_max_message_rate=10_000, max_publish_rate_per_topic_in_messages=0)
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 1_000)
    assert 100 <= (await accepted(harness, 10_000, TOPIC))[0] <= 102


async def test_s15_a_quota_above_two_to_the_24th_is_enforced_exactly(harness: Harness) -> None:
    quota = 2**24 + 1
    await put(harness, publishRateInBytes=quota, publishRateInMsgs=2**31 - 1)
    await attach(harness)
    await Client.producing(harness.port)
    limiter = group_of(harness).limiter.publish
    assert limiter.share == GroupRate(2**31 - 1, quota)
    now_ns = harness.clock.monotonic_ns()
    limiter.charge(0, 1_000 * quota, now_ns)
    assert limiter.left(now_ns + 1_000 * NS_PER_S - 50 * NS_PER_MS)[1] == 0


@pytest.mark.parametrize("topic", ["non-persistent://public/default/t", "persistent://public/default/p-partition-0"])
async def test_non_persistent_topics_and_partitions_are_limited(harness: Harness, topic: str) -> None:
    if "-partition-" in topic:
        await administration(harness.broker).topics.create_partitioned(TopicName.parse(topic).parent, 2)
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port, topic=topic)
    client.publish(*[b""] * 1_000)
    assert 100 <= (await accepted(harness, 10_000, topic))[0] <= 102


# -- the order of topics


async def test_topics_get_equal_parts_whatever_they_send(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1_000)
    await attach(harness)
    batches, singles = await Client.producing(harness.port), await Client.producing(harness.port, topic=OTHER)
    for number in range(100):
        batches.write(batch(number, 100))
    singles.publish(*[b""] * 5_000)
    await passes(1_000)
    before = (topic_of(harness).messages_in, topic_of(harness, OTHER).messages_in)
    await passes(5_000)
    counts = [topic_of(harness).messages_in - before[0], topic_of(harness, OTHER).messages_in - before[1]]
    assert abs(sum(counts) - 5_000) <= 105
    assert abs(counts[0] - counts[1]) <= 205


async def test_by_usage_topics_get_parts_in_proportion_to_what_they_hold(harness: Harness) -> None:
    configure(harness, resource_group_topic_shares="usage")
    await put(harness, publishRateInMsgs=400)
    await attach(harness)
    clients = [await Client.producing(harness.port, topic=name) for name in (TOPIC, OTHER)]
    sent = [0, 0]
    counts = [0, 0]
    for _ in range(20):
        for which, rate in enumerate((300, 100)):
            clients[which].publish(*[b""] * rate, first=sent[which])
            sent[which] += rate
        counts = [sum(pair) for pair in zip(counts, await accepted(harness, 500, TOPIC, OTHER), strict=True)]
    assert 2 <= counts[0] / counts[1] <= 5
    configure(harness, resource_group_topic_shares="even")
    evenly = await accepted(harness, 4_000, TOPIC, OTHER)
    assert abs(evenly[0] - evenly[1]) <= 40


# -- dispatch


async def consumer(harness: Harness, topic: str, count: int) -> Client:
    """A topic with so many messages, and a consumer that wants them all."""
    producer = await Client.producing(harness.port, topic=topic)
    producer.publish(*[bytes(10)] * count)
    await producer.receipts(count)
    client = await Client.connected(harness.port)
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=topic, subscription="s", consumer_id=0, subType=0, initialPosition=1
    )
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=count))
    return client


def delivered(harness: Harness, *topics: str) -> list[int]:
    return [topic_of(harness, name).messages_out for name in topics]


async def test_s7_all_subscriptions_of_a_group_share_its_dispatch_rate(harness: Harness) -> None:
    await put(harness, dispatchRateInMsgs=100)
    await attach(harness)
    await attach_tenant(harness, tenant="shop")
    clients = [await consumer(harness, name, 2_000) for name in (TOPIC, SHOP)]
    await passes(1_000)
    before = delivered(harness, TOPIC, SHOP)
    await passes(10_000)
    counts = [after - count for after, count in zip(delivered(harness, TOPIC, SHOP), before, strict=True)]
    assert abs(sum(counts) - 1_000) <= 20
    assert abs(counts[0] - counts[1]) <= 100
    await attach(harness, None)
    await attach_tenant(harness, None, tenant="shop")
    await until(lambda: delivered(harness, TOPIC, SHOP) == [2_000, 2_000])
    assert len(clients) == 2


async def test_s7_dispatched_bytes_are_limited(harness: Harness) -> None:
    await put(harness, dispatchRateInBytes=1_000)
    await attach(harness)
    await consumer(harness, TOPIC, 1_000)
    before = topic_of(harness).bytes_out
    await passes(20_000)
    assert 20_000 <= topic_of(harness).bytes_out - before + 1_000 <= 22_000


async def test_batches_of_a_thousand_are_dispatched_in_turn_at_one_message_a_second(harness: Harness) -> None:
    await put(harness, dispatchRateInMsgs=1)
    await attach(harness)
    await attach(harness, namespace="shop/orders")
    staying = []
    for name in (TOPIC, SHOP):
        client = await Client.producing(harness.port, topic=name)
        client.write(b"".join(batch(number, 1_000) for number in range(3)))
        await client.receipts(3)
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=name, subscription="s", consumer_id=0, subType=0, initialPosition=1
        )
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10_000))
        staying.append(asyncio.ensure_future(stay(client)))
    await passes(1_000)
    before = delivered(harness, TOPIC, SHOP)
    assert sum(before) == 1_000
    await passes(4_000_000)
    counts = [after - count for after, count in zip(delivered(harness, TOPIC, SHOP), before, strict=True)]
    assert (sum(counts), min(counts) >= 1_000) == (4_000, True)
    await passes(1_000_000)
    assert delivered(harness, TOPIC, SHOP) == [3_000, 3_000]
    for one in staying:
        assert not one.done(), "each PING was answered, all the time"
        one.cancel()


async def test_a_consumer_at_the_end_of_its_topic_is_limited_too(harness: Harness) -> None:
    configure(harness, dispatch_throttling_on_non_backlog_consumer_enabled=False)
    await put(harness, dispatchRateInMsgs=10)
    await attach(harness)
    await consumer(harness, TOPIC, 500)
    await passes(10_000)
    assert 100 <= delivered(harness, TOPIC)[0] <= 103


async def test_a_non_persistent_topic_drops_what_exceeds_the_dispatch_rate(harness: Harness) -> None:
    topic = "non-persistent://public/default/t"
    await put(harness, dispatchRateInMsgs=10)
    await attach(harness)
    client = await Client.connected(harness.port)
    await client.request(Type.SUBSCRIBE, Type.SUCCESS, topic=topic, subscription="s", consumer_id=0, subType=0)
    client.write(frame(Type.FLOW, consumer_id=0, messagePermits=1_000))
    producer = await Client.producing(harness.port, topic=topic)
    producer.publish(*[b""] * 500)
    await producer.receipts(500)
    subscription = topic_of(harness, topic).subscriptions["s"]
    assert subscription.messages_out <= 2
    assert subscription.dropped == 500 - subscription.messages_out


# -- counters


async def test_s8_s9_counters_are_those_of_the_traffic_and_do_not_depend_on_walks(harness: Harness) -> None:
    await put(harness, dispatchRateInMsgs=10_000)
    await put(harness, "silver")
    await attach(harness)
    await attach(harness, "silver", "shop/orders")
    for name in (TOPIC, SHOP):
        client = await consumer(harness, name, 100)
        await client.expect(Type.ACTIVE_CONSUMER_CHANGE)
        for _ in range(100):
            await client.message()
    for name, topic in (("gold", TOPIC), ("silver", SHOP)):
        limiter, loaded = group_of(harness, name).limiter, topic_of(harness, topic)
        assert (limiter.publish.messages_passed, limiter.publish.bytes_passed) == (100, loaded.bytes_in)
        assert (limiter.dispatch.messages_passed, limiter.dispatch.bytes_passed) == (100, loaded.bytes_out)


async def test_the_meter_tells_demand_above_the_share(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port)
    meter = Meter(group_of(harness).limiter, harness.clock.monotonic_ns())
    client.publish(*[b""] * 200)
    await passes(5_000)
    usage = meter.take(harness.clock.monotonic_ns()).publish
    assert 50 <= usage.passed.messages <= 52
    assert usage.held.messages == 200 - topic_of(harness).entries_in
    assert usage.limited_ns >= 4_900 * NS_PER_MS
    await client.receipts(200)
    usage = meter.take(harness.clock.monotonic_ns()).publish
    assert usage.held == Amount()


async def test_a_share_that_is_set_from_outside_applies_at_once_to_those_who_wait(harness: Harness) -> None:
    await put(harness, publishRateInMsgs=1)
    await attach(harness)
    client = await Client.producing(harness.port)
    client.publish(*[b""] * 300)
    await passes(1_000)
    group_of(harness).set_share(GroupRates(GroupRate(100)), harness.clock.monotonic_ns())
    assert 195 <= (await accepted(harness, 2_000, TOPIC))[0] <= 206


async def test_a_changed_quota_or_attachment_looks_at_the_topics_that_it_concerns_and_no_others(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker has thousands of groups and topics, and changes are frequent."""
    await put(harness, publishRateInMsgs=100)
    await attach(harness)
    policies = harness.broker.policies
    for name in (SHOP, TOPIC):
        await harness.broker.topics.get_or_create(TopicName.parse(name), create=True)
    applied: list[str] = []
    of_topic = policies.of_topic

    def noted(name: TopicName) -> object:
        applied.append(str(name))
        return of_topic(name)

    monkeypatch.setattr(policies, "of_topic", noted)
    await put(harness, publishRateInMsgs=200)
    await put(harness, "silver", publishRateInMsgs=200)
    assert applied == []
    assert group_of(harness).limiter.share.publish.messages == 200
    await attach(harness, "silver", "shop/orders")
    assert applied == [SHOP]
    applied.clear()
    await attach_tenant(harness, "silver")
    assert applied == [TOPIC]
    applied.clear()
    await policies.set_topic(SHOP, "messageTTLInSeconds", 7)
    assert applied == [SHOP]


async def test_subscriptions_that_read_again_at_once_do_not_pass_one_entry_each(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    await producer.published(*[bytes(1_000)] * 6)
    clients = [await subscribe(harness, name, permits=100) for name in ("a", "b", "c")]
    for client in clients:
        for _ in range(6):
            await client.message()
    subscriptions = topic_of(harness).subscriptions.values()
    await put(harness, dispatchRateInMsgs=1)
    await attach(harness)
    before = sum(one.messages_out for one in subscriptions)
    for client in clients:
        client.write(frame(Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=0))
    await turns()
    assert sum(one.messages_out for one in subscriptions) == before + 1
    await passes(3_500)
    assert sum(one.messages_out for one in subscriptions) == before + 4


@pytest.mark.parametrize("said", [None, 1, 0, -9])
async def test_a_batch_counts_for_what_it_holds_whatever_its_send_says(harness: Harness, said: int | None) -> None:
    await put(harness, publishRateInMsgs=10, dispatchRateInMsgs=10)
    await attach(harness)
    client = await Client.producing(harness.port)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=100)
    fields = {} if said is None else {"num_messages": said}
    stored = entries.entry(metadata, b"")
    client.write(b"".join(send(0, number, stored, **fields) for number in range(3)))
    await turns()
    topic = topic_of(harness)
    assert (topic.entries_in, topic.messages_in) == (1, 100)
    await passes(10_000)
    assert (topic.entries_in, topic.messages_in) == (2, 200)
    await subscribe(harness, permits=1_000)
    await turns()
    assert topic.subscriptions["s"].messages_out == 100
