# SPDX-License-Identifier: Apache-2.0
"""Brokers that share the quota of a resource group over the usage topic, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.broker_states import BrokerState
from penstock.core.errors import PenstockError
from penstock.core.membership import Member, SharedMembership
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import NS_PER_S
from penstock.core.usage_report import Covered, UsageReport
from penstock.net.client import AsyncClient
from penstock.testing.client import Type, frame
from penstock.wire.client.consumer import Consumer
from penstock.wire.client.events import Message
from penstock.wire.client.producer import Producer
from penstock.wire.codec import CommandSubscribe
from penstock.wire.pulsar_pb2 import ServerError
from penstock.wire.usage_reports import encode
from tests.broker.cluster import KEY, several
from tests.broker.governed import configure
from tests.net.harness import Client, until
from tests.net.harness import topic_of as topic_of_harness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.publishing.quota_sharing import QuotaSharing
    from penstock.groups.group import Group
    from tests.net.harness import Harness

NAMESPACE = NamespaceName("public", "default")
USAGE = "non-persistent://pulsar/system/resource-usage"
QUOTA = 1_000


class Cluster:
    """Brokers, and a group of which each serves a topic."""

    def __init__(self, harnesses: list[Harness]) -> None:
        self.harnesses = harnesses
        self.groups = administration(harnesses[0].broker).resource_groups

    async def attach(self, quota: int = QUOTA) -> None:
        """Create the group, attach the namespace, load a topic on each broker."""
        await self.groups.put("group", {"publishRateInMsgs": quota})
        await self.groups.attach_namespace(NAMESPACE, "group")
        for number, harness in enumerate(self.harnesses):
            await harness.broker.topics.get_or_create(TopicName.parse(topic_of(number)), create=True)
        await until(lambda: all("group" in one.broker.groups.in_use for one in self.harnesses))

    async def share_quota(self) -> None:
        """Attach, and wait until all know what the others use."""
        await self.attach()
        await until(lambda: all(self.sharing(number).connected for number in range(len(self.harnesses))))
        await asyncio.sleep(2)

    def sharing(self, number: int) -> QuotaSharing:
        sharing = self.harnesses[number].broker.sharing
        assert sharing is not None
        return sharing

    def group(self, number: int) -> Group:
        return self.harnesses[number].broker.groups.in_use["group"]

    def share(self, number: int) -> float:
        share = self.group(number).limiter.share.publish.messages
        assert share is not None
        return share

    async def offer(self, number: int, messages: int) -> None:
        """Let a client send so many messages at once to the topic of a broker."""
        client = await Client.connected(self.harnesses[number].port)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic_of(number), producer_id=0)
        client.publish(*[b"x"] * messages)

    async def rates(self, seconds: int) -> list[float]:
        """Messages per second that each broker accepts."""
        before = [self.group(number).limiter.publish.messages_passed for number in range(len(self.harnesses))]
        await asyncio.sleep(seconds)
        return [
            (self.group(number).limiter.publish.messages_passed - one) / seconds for number, one in enumerate(before)
        ]


def topic_of(number: int) -> str:
    return f"persistent://{NAMESPACE}/of-{number}"


@asynccontextmanager
async def reporter(cluster: Cluster) -> AsyncIterator[tuple[AsyncClient, Producer]]:
    """A process that connects as brokers do, and publishes what it likes."""
    owner = cluster.harnesses[0].broker.placement.owner(TopicName.parse(USAGE))
    async with await AsyncClient.open("127.0.0.1", cluster.harnesses[owner].peer_port) as client:
        producer = Producer(0, USAGE)
        await client.open_producer(producer)
        yield client, producer


@asynccontextmanager
async def cluster_of(directory: Path, brokers: int = 2) -> AsyncIterator[Cluster]:
    async with several(directory, brokers) as harnesses:
        yield Cluster(harnesses)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path) as cluster:
        yield cluster


async def test_busy_brokers_have_equal_parts_and_the_quota_together(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.share_quota()
        for number in range(3):
            await cluster.offer(number, 6_000)
        await asyncio.sleep(2)
        rates = await cluster.rates(5)
    assert sum(rates) == pytest.approx(QUOTA, rel=0.05)
    assert rates == pytest.approx([QUOTA / 3] * 3, rel=0.1)


async def test_what_an_idle_broker_leaves_is_used_by_the_other(two: Cluster) -> None:
    await two.share_quota()
    await two.offer(0, 10_000)
    await asyncio.sleep(2)
    busy, idle = await two.rates(5)
    assert busy == pytest.approx(QUOTA, rel=0.05)
    assert idle == 0


async def test_a_changed_quota_changes_all_shares(two: Cluster) -> None:
    await two.share_quota()
    for number in (0, 1):
        await two.offer(number, 6_000)
    await asyncio.sleep(2)
    await two.groups.put("group", {"publishRateInMsgs": QUOTA // 2})
    await asyncio.sleep(1)
    assert await two.rates(5) == pytest.approx([QUOTA / 4] * 2, rel=0.1)


async def test_nothing_is_shared_while_no_group_is_attached(two: Cluster) -> None:
    await two.groups.put("group", {"publishRateInMsgs": QUOTA})
    await asyncio.sleep(5)
    broker = two.harnesses[0].broker
    assert not two.sharing(0).connected
    assert two.sharing(0).sent == 0
    assert broker.topics.get(USAGE) is None
    assert len(broker.sessions) == 0


async def test_sharing_ends_with_the_last_attachment(two: Cluster) -> None:
    await two.share_quota()
    assert two.share(0) < QUOTA
    await two.groups.attach_namespace(NAMESPACE, None)
    await until(lambda: not any(two.sharing(number).connected for number in (0, 1)))
    assert [two.share(number) for number in (0, 1)] == [QUOTA] * 2
    sent = two.sharing(0).sent
    await asyncio.sleep(5)
    assert two.sharing(0).sent == sent


async def test_each_broker_enforces_the_whole_quota_if_reports_are_switched_off(two: Cluster) -> None:
    await two.share_quota()
    for harness in two.harnesses:
        limits = harness.broker.limits
        harness.broker.limits_in_force.now = replace(limits, resource_usage_publish_to_topic=False)
        harness.broker.policies.refresh()
    assert [two.share(number) for number in (0, 1)] == [QUOTA] * 2


async def test_a_broker_that_is_lost_leaves_its_share_at_once_and_the_topic_moves(two: Cluster) -> None:
    await two.share_quota()
    owner = two.harnesses[0].broker.placement.owner(TopicName.parse(USAGE))
    other = two.harnesses[1 - owner]
    membership = other.broker.membership
    assert isinstance(membership, SharedMembership)
    lost = Member(owner, BrokerState.STARTING, membership.members[owner].addresses)
    membership.update({**membership.members, owner: lost})
    await until(lambda: two.share(1 - owner) == QUOTA)
    await until(lambda: other.broker.topics.get(USAGE) is not None)
    await until(lambda: two.sharing(1 - owner).connected)


async def test_a_broker_that_stops_says_that_it_uses_nothing(two: Cluster) -> None:
    await two.share_quota()
    await two.offer(1, 2_000)
    await until(lambda: "broker-1" in two.sharing(0).others("group"))
    await two.sharing(1).stop()
    await until(lambda: not two.sharing(0).others("group"))


async def test_reports_go_on_after_the_connection_was_lost(two: Cluster) -> None:
    await two.share_quota()
    for harness in two.harnesses:
        for connection in harness.connections.all():
            connection.close("the test closes it")
    await until(lambda: any(two.sharing(number).failures for number in (0, 1)))
    await until(lambda: all(two.sharing(number).connected for number in (0, 1)))
    received = two.sharing(0).received
    await until(lambda: two.sharing(0).received > received)


async def test_no_client_publishes_to_the_topic(two: Cluster) -> None:
    await two.share_quota()
    owner = two.harnesses[0].broker.placement.owner(TopicName.parse(USAGE))
    client = await Client.connected(two.harnesses[owner].port)
    error = (await client.request(Type.PRODUCER, Type.ERROR, topic=USAGE, producer_id=0)).error
    assert error.error == ServerError.NotAllowedError
    assert error.message == f"{USAGE} is a topic of the brokers: only they publish to it"


async def test_a_report_that_is_not_signed_is_ignored_and_counted(two: Cluster) -> None:
    await two.share_quota()
    shares = [two.share(number) for number in (0, 1)]
    owner = two.harnesses[0].broker.placement.owner(TopicName.parse(USAGE))
    client = await Client.connected(two.harnesses[owner].peer_port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=USAGE, producer_id=0)
    client.publish(b"", b"forged", bytes(100_000))
    await until(lambda: two.sharing(0).refused["forged"] == 3)
    assert [two.share(number) for number in (0, 1)] == shares


async def test_a_report_that_is_repeated_is_ignored_and_counted(two: Cluster) -> None:
    await two.share_quota()
    async with reporter(two) as (client, producer):
        body = CommandSubscribe(
            topic=USAGE, subscription="s", consumer_id=0, request_id=0, subType=CommandSubscribe.Shared, durable=False
        )
        await client.subscribe(Consumer(body, permits_max=100))
        report = None
        while not isinstance(report, Message):
            report = await client.next_event()
        client.connection.send(producer, producer.metadata(0), bytes(report.payload))
        client.flush()
        # One of the two brokers has sent it.
        await until(lambda: sum(two.sharing(number).refused["repeated"] for number in (0, 1)) == 1)


@pytest.mark.parametrize("ahead_ms", [600_000, -600_000])
async def test_clocks_that_are_ten_minutes_apart_change_no_share(two: Cluster, ahead_ms: int) -> None:
    two.harnesses[1].clock.step_wall(ms=ahead_ms)
    await two.share_quota()
    for number in (0, 1):
        await two.offer(number, 10_000)
    await asyncio.sleep(2)
    assert await two.rates(5) == pytest.approx([QUOTA / 2] * 2, rel=0.05)
    two.harnesses[1].clock.step_wall(ms=-2 * ahead_ms)  # An administrator sets it, and too far.
    await asyncio.sleep(2)
    assert await two.rates(5) == pytest.approx([QUOTA / 2] * 2, rel=0.05)
    assert sum(sum(two.sharing(number).refused.values()) for number in (0, 1)) <= 1


async def test_of_two_brokers_with_one_name_only_the_later_has_a_share(two: Cluster) -> None:
    """The supervisor numbers brokers, so such a twin is one that somebody started beside it, with its key."""
    await two.share_quota()
    for number in (0, 1):
        await two.offer(number, 10_000)
    await asyncio.sleep(2)
    wall_ms = two.harnesses[0].clock.wall_ms()
    async with reporter(two) as (client, producer):

        async def report_as_twin(incarnation: int) -> None:
            report = UsageReport("broker-0", incarnation, 1, wall_ms, (), Covered())
            client.connection.send(producer, producer.metadata(wall_ms), encode(report, KEY))
            client.flush()
            await asyncio.sleep(1)

        await report_as_twin(incarnation=1)
        assert two.sharing(0).refused["twin"] == 1
        assert [two.share(number) for number in (0, 1)] == pytest.approx([QUOTA / 2] * 2, rel=0.05), "it began earlier"
        await report_as_twin(incarnation=wall_ms + 1_000_000)
        assert two.sharing(0).refused["twin"] == 2
        assert two.share(0) <= QUOTA * 0.01, "it gives way"
        assert two.share(1) >= QUOTA * 0.9, "the twin uses nothing"


async def test_a_report_that_makes_no_sense_is_counted_though_it_is_signed(two: Cluster) -> None:
    await two.share_quota()
    async with reporter(two) as (client, producer):
        nobody = UsageReport("", 1, 1, 0, (), Covered())
        client.connection.send(producer, producer.metadata(0), encode(nobody, KEY))
        client.flush()
        await until(lambda: all(two.sharing(number).refused["malformed"] == 1 for number in (0, 1)))


async def test_administrators_of_all_brokers_at_once_leave_one_quota(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 3) as cluster:
        await cluster.share_quota()
        clients = [await Client.producing(one.port, topic=topic_of(n)) for n, one in enumerate(cluster.harnesses)]

        async def publish_all(client: Client) -> list[int]:
            for first in range(0, 1_000, 20):
                client.publish(*[bytes(100)] * 20, first=first)
                await asyncio.sleep(0.05)
            return await client.receipts(1_000)

        async def administer(number: int) -> None:
            chance = Random(number)
            groups = administration(cluster.harnesses[number % 3].broker).resource_groups
            for _ in range(30):
                group = f"g{chance.randrange(4)}"
                change = chance.choice(
                    [
                        partial(groups.put, group, {"publishRateInMsgs": chance.choice([-1, 100, 1_000])}),
                        partial(groups.delete, group),
                        partial(groups.attach_namespace, NAMESPACE, chance.choice([group, "group", None])),
                        partial(groups.attach_tenant, NAMESPACE.tenant, chance.choice([group, None])),
                    ]
                )
                with contextlib.suppress(PenstockError):
                    await change()
                await asyncio.sleep(chance.random() / 10)

        publishing = [asyncio.ensure_future(publish_all(client)) for client in clients]
        await asyncio.gather(*(administer(number) for number in range(10)))
        await cluster.groups.attach_tenant(NAMESPACE.tenant, None)
        await cluster.groups.attach_namespace(NAMESPACE, "group")
        for receipts in await asyncio.gather(*publishing):
            assert receipts == list(range(1_000)), "no message was lost, none twice"
        for name in cluster.groups.names():
            if name != "group":
                await cluster.groups.delete(name)
        for harness in cluster.harnesses:
            await until(lambda: set(harness.broker.groups.in_use) == {"group"})  # noqa: B023 -- awaited here
            held = harness.broker.publish_services.held
            assert (held.bytes, held.sends) == (0, 0)
        for client in clients:
            client.publish(*[b"x"] * 6_000, first=1_000)
        await asyncio.sleep(3)
        assert await cluster.rates(5) == pytest.approx([QUOTA / 3] * 3, rel=0.1)


async def test_a_group_that_is_attached_while_searches_are_put_off_is_found_soon(two: Cluster) -> None:
    sharing = two.sharing(0)
    await two.groups.put("group", {"publishRateInMsgs": QUOTA})
    sharing._search_at_ns = two.harnesses[0].clock.monotonic_ns() + NS_PER_S  # noqa: SLF001 -- as if it had been slow
    await two.groups.attach_namespace(NAMESPACE, "group")
    assert sharing._running is None  # noqa: SLF001
    await until(lambda: sharing.connected)


async def test_the_topic_needs_no_automatic_creation_of_topics(two: Cluster) -> None:
    for harness in two.harnesses:
        configure(harness, allow_auto_topic_creation=False)
    await two.groups.put("group", {"publishRateInMsgs": QUOTA})
    await two.groups.attach_namespace(NAMESPACE, "group")
    await until(lambda: all(two.sharing(number).connected for number in (0, 1)))


async def test_no_limit_of_others_concerns_the_reports(two: Cluster) -> None:
    """Neither the rates, quotas and bounds of the namespace, nor those of the brokers, and nothing is throttled."""
    await two.share_quota()
    await two.groups.put("tiny", {"publishRateInMsgs": 1, "dispatchRateInMsgs": 1})
    await two.groups.attach_tenant("pulsar", "tiny")
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 1}
    await two.harnesses[0].broker.policies.set_namespace("pulsar/system", "publishRate", rate)
    for harness in two.harnesses:
        configure(
            harness, max_producers_per_topic=1, max_consumers_per_topic=1, max_same_address_producers_per_topic=1,
            max_same_address_consumers_per_topic=1, dispatch_throttling_rate_in_msg=1,
            broker_publisher_throttling_max_message_rate=1, broker_publisher_throttling_max_byte_rate=1,
        )  # fmt: skip
        for connection in harness.connections.all():
            connection.close("the test closes it")
    await until(lambda: any(two.sharing(number).failures for number in (0, 1)))
    await until(lambda: all(two.sharing(number).connected for number in (0, 1)))
    await two.offer(1, 2_000)
    before = [(two.sharing(number).sent, two.sharing(number).received) for number in (0, 1)]
    await asyncio.sleep(60)
    for number in (0, 1):
        sent, received = before[number]
        assert two.sharing(number).connected
        assert two.sharing(number).sent - sent >= 60
        assert two.sharing(number).received - received >= 59


async def test_a_client_that_reads_the_reports_pays_for_it(two: Cluster) -> None:
    await two.groups.put("tiny", {"dispatchRateInMsgs": 1})
    await two.groups.attach_tenant("pulsar", "tiny")
    await two.share_quota()
    owner = two.harnesses[0].broker.placement.owner(TopicName.parse(USAGE))
    harness = two.harnesses[owner]
    client = await Client.connected(harness.port)
    for number in range(10):
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=USAGE, subscription=f"s-{number}", consumer_id=number, subType=1
        )
        client.write(frame(Type.FLOW, consumer_id=number, messagePermits=1_000))
    await asyncio.sleep(60)
    topic = topic_of_harness(harness, USAGE)
    assert sum(topic.subscriptions[f"s-{number}"].messages_out for number in range(10)) <= 62
    assert topic.messages_in >= 120


async def test_the_reports_may_have_a_topic_of_another_name(tmp_path: Path) -> None:
    other = "non-persistent://pulsar/reports/r"
    async with several(tmp_path, 2, resource_usage_publish_topic_name=other) as harnesses:
        cluster = Cluster(harnesses)
        await cluster.share_quota()
        owner = harnesses[0].broker.placement.owner(TopicName.parse(other))
        topic = topic_of_harness(harnesses[owner], other)
        assert topic.system
        client = await Client.connected(harnesses[owner].port)
        error = (await client.request(Type.PRODUCER, Type.ERROR, topic=other, producer_id=0)).error
        assert error.error == ServerError.NotAllowedError


async def test_every_broker_explains_what_slows_a_namespace_on_all(two: Cluster) -> None:
    await two.share_quota()
    await two.offer(1, 5_000)
    await asyncio.sleep(2)
    for harness in two.harnesses:
        found = await administration(harness.broker).why.of_namespace(NAMESPACE)
        assert (found["producers"], found["unanswered"]) == (1, [])
        (finding,) = found["findings"]
        assert finding["numbers"]["quota_messages_per_s"] == QUOTA
    await two.offer(0, 5_000)
    await asyncio.sleep(2)
    own = await administration(two.harnesses[0].broker, for_peers=True).why.of_namespace(NAMESPACE)
    (finding,) = own["findings"]
    assert finding["numbers"]["broker-1_wants_messages_per_s"] > 0


async def test_another_interval_is_used_without_a_restart(two: Cluster) -> None:
    await two.share_quota()
    for harness in two.harnesses:
        limits = replace(harness.broker.limits, resource_usage_publish_interval_in_secs=0.1)
        harness.broker.limits_in_force.now = limits
        harness.broker.policies.refresh()
    sent = two.sharing(0).sent
    await asyncio.sleep(2)
    assert two.sharing(0).sent >= sent + 15
    assert sum(two.share(number) for number in (0, 1)) == pytest.approx(QUOTA, rel=0.05)
