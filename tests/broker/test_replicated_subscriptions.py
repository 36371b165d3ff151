# SPDX-License-Identifier: Apache-2.0
"""Replicated subscriptions between clusters on one loop: a consumer that changes sides goes on where it was."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from penstock.authentication.authenticator import Authenticator
from penstock.authentication.credentials import ProviderOptions
from penstock.broker.access.rules import AccessRules
from penstock.broker.composition.administration import administration
from penstock.broker.replication.replication import MADE_AT_ONCE
from penstock.broker.replication.replicator import ANSWERS_MAX, Replicator
from penstock.core.checksum import seal
from penstock.core.position import Position
from penstock.testing.client import Type, frame, send
from penstock.testing.tokens import SECRET, data_url, token
from penstock.wire.client.frames import payload_in
from penstock.wire.markers import MARKER_BYTES_MAX, Marker, Request, Update, encode
from tests.broker.clusters import TOPIC, TOPIC_NAMESPACE, cluster, replicate, sending, stored
from tests.net.harness import Client, Harness, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.publishing.ports import ProducerClient
    from penstock.broker.subscriptions.subscription import Subscription


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[Harness, Harness]]:
    """Two clusters that replicate to each other."""
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        await replicate(east, west, "west", ["east", "west"])
        await replicate(west, east, "east", ["east", "west"])
        yield east, west


class Consuming:
    """A client with a replicated subscription `s`, from the first message on."""

    def __init__(self, client: Client, harness: Harness) -> None:
        self.client, self.harness = client, harness

    @classmethod
    async def open(cls, harness: Harness, *, replicated: bool = True) -> Consuming:
        client = await Client.connected(harness.port)
        await client.request(
            Type.SUBSCRIBE,
            Type.SUCCESS,
            topic=TOPIC,
            subscription="s",
            consumer_id=0,
            subType=1,
            initialPosition=1,
            replicate_subscription_state=replicated,
        )
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=1000))
        return cls(client, harness)

    async def take(self, count: int) -> list[bytes]:
        """Return the payloads of the next messages."""
        return [bytes(payload_in(await self.client.message())) for _ in range(count)]

    def acknowledge(self, *entry_ids: int) -> None:
        ledger_id = topic_of(self.harness).ledger_id
        ids = [{"ledgerId": ledger_id, "entryId": entry_id} for entry_id in entry_ids]
        self.client.write(frame(Type.ACK, consumer_id=0, ack_type=0, message_id=ids))


async def publish(harness: Harness, *payloads: bytes) -> None:
    client = await Client.producing(harness.port)
    client.write(b"".join(sending(number, payload) for number, payload in enumerate(payloads)))
    await client.receipts(len(payloads))
    await client.close()


def subscription_of(harness: Harness, name: str = "s") -> Subscription | None:
    topic = harness.broker.topics.get(TOPIC)
    return None if topic is None else topic.subscriptions.get(name)


def mark_delete(harness: Harness) -> int:
    subscription = subscription_of(harness)
    return -2 if subscription is None else subscription.cursor.mark_delete


def last_entry(harness: Harness) -> int:
    topic = harness.broker.topics.get(TOPIC)
    return -2 if topic is None else topic.last_entry_id


def replicator_to(harness: Harness, name: str) -> Replicator:
    replicator = topic_of(harness).subscriptions[f"pulsar.repl.{name}"].replicator
    assert isinstance(replicator, Replicator)
    return replicator


def numbers(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def test_a_consumer_that_changes_sides_goes_on_where_it_was(both: tuple[Harness, Harness]) -> None:
    east, west = both
    consumer = await Consuming.open(east)
    await publish(east, *numbers(10))
    assert await consumer.take(10) == numbers(10)
    consumer.acknowledge(*range(10))
    # The subscription is made there, though nobody has ever subscribed.
    await until(lambda: mark_delete(west) == 9)
    await consumer.client.close()
    await publish(east, *numbers(3, first=10))
    there = await Consuming.open(west)
    assert await there.take(3) == numbers(3, first=10)


async def test_a_subscription_whose_consumer_is_on_the_other_side_does_not_expire(
    both: tuple[Harness, Harness],
) -> None:
    east, west = both
    await west.broker.policies.set_namespace("public/default", "subscription_expiration_time_minutes", 1)
    consumer = await Consuming.open(east)
    await publish(east, *numbers(3))
    await consumer.take(3)
    consumer.acknowledge(0, 1, 2)
    await until(lambda: mark_delete(west) == 2)
    await administration(west.broker).subscriptions.create(topic_of(west).name, "other")
    await asyncio.sleep(61)
    await west.broker.retention.end_idle_subscriptions(topic_of(west))
    assert topic_of(west).subscriptions.keys() == {"pulsar.repl.east", "s"}


async def test_what_was_not_acknowledged_is_delivered_on_the_other_side(both: tuple[Harness, Harness]) -> None:
    east, west = both
    consumer = await Consuming.open(east)
    await publish(east, *numbers(5))
    await consumer.take(5)
    consumer.acknowledge(*range(5))
    await until(lambda: mark_delete(west) == 4)
    await publish(east, *numbers(5, first=5))
    await consumer.take(5)
    consumer.acknowledge(6, 7, 8, 9)  # and not 5
    await publish(west, b"of west")
    assert await consumer.take(1) == [b"of west"]
    await asyncio.sleep(10)
    assert mark_delete(west) == 4
    there = await Consuming.open(west)
    assert await there.take(6) == [*numbers(5, first=5), b"of west"]


async def test_messages_of_both_sides_in_any_order_are_acknowledged_on_both(both: tuple[Harness, Harness]) -> None:
    east, west = both
    consumer = await Consuming.open(east)
    for round_ in range(10):
        await publish(east if round_ % 2 else west, *numbers(5, first=5 * round_))
        await until(lambda r=round_: last_entry(east) == 5 * r + 4)  # type: ignore[misc]
        await consumer.take(5)
        consumer.acknowledge(*range(5 * round_, 5 * round_ + 5))
    await until(lambda: mark_delete(west) == 49)
    await asyncio.sleep(10)
    assert [len(stored(harness)) for harness in both] == [50, 50]  # messages, and no markers


async def test_an_answer_does_not_overtake_the_messages_that_it_is_about(both: tuple[Harness, Harness]) -> None:
    east, west = both
    await Consuming.open(east)
    await publish(west, *numbers(1))
    await until(lambda: last_entry(east) == 0)
    slow = {"dispatchThrottlingRateInMsg": 1, "ratePeriodInSecond": 1}
    await west.broker.policies.set_topic(TOPIC, "replicatorDispatchRate", slow)
    await publish(west, *numbers(20, first=1))
    for _ in range(60):
        topic_of(east).subscriptions["s"].acknowledge_through(last_entry(east))
        await asyncio.sleep(0.5)
        assert acknowledged(west) <= acknowledged(east)
    await until(lambda: mark_delete(west) == 20)


async def test_nothing_is_asked_if_no_subscription_is_replicated(both: tuple[Harness, Harness]) -> None:
    east, west = both
    consumer = await Consuming.open(east, replicated=False)
    await publish(east, *numbers(10))
    await consumer.take(10)
    consumer.acknowledge(*range(10))
    await until(lambda: last_entry(west) == 9)
    await asyncio.sleep(10)
    for harness, other in ((east, "west"), (west, "east")):
        replicator = replicator_to(harness, other)
        assert replicator.snapshots is None
        assert not replicator.markers_sent
    assert mark_delete(west) == -2


async def test_no_more_is_asked_when_messages_end_or_the_subscription_is_not_replicated_any_more(
    both: tuple[Harness, Harness],
) -> None:
    east, west = both
    consumer = await Consuming.open(east)
    await publish(east, *numbers(10))
    await consumer.take(10)
    consumer.acknowledge(*range(10))
    await until(lambda: mark_delete(west) == 9)
    await asyncio.sleep(5)
    sent = replicator_to(east, "west").markers_sent
    await asyncio.sleep(600)
    assert replicator_to(east, "west").markers_sent == sent
    for harness in both:
        admin = administration(harness.broker)
        await admin.subscriptions.set_replicated(topic_of(harness).name, "s", replicated=False)
    await publish(east, *numbers(10, first=10))
    topic_of(east).subscriptions["s"].acknowledge_through(19)
    await asyncio.sleep(10)
    assert replicator_to(east, "west").markers_sent == sent
    assert mark_delete(west) == 9


async def test_a_line_that_is_cut_again_and_again_delays_places_and_loses_none(both: tuple[Harness, Harness]) -> None:
    east, west = both
    await west.broker.policies.set_namespace("public/default", "deduplication", value=True)
    await Consuming.open(east)
    for round_ in range(5):
        await publish(east, *numbers(20, first=20 * round_))
        topic_of(east).subscriptions["s"].acknowledge_through(20 * round_ + 19)
        for harness in both:
            await turns(round_)
            for connection in harness.connections.all():
                connection.close("cut")
    await until(lambda: mark_delete(west) == 99)
    assert len(stored(west)) == 100


async def test_after_a_restart_places_are_kept_again_without_new_messages(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        west = await stack.enter_async_context(cluster(tmp_path, "west"))
        async with cluster(tmp_path, "east") as east:
            await replicate(east, west, "west", ["east", "west"])
            await replicate(west, east, "east", ["east", "west"])
            await Consuming.open(east)
            await publish(east, *numbers(10))
            await until(lambda: last_entry(west) == 9)
            await asyncio.sleep(5)
            assert mark_delete(west) == -2
        east = await stack.enter_async_context(cluster(tmp_path, "east"))
        await administration(west.broker).clusters.update(
            "east", {"brokerServiceUrl": f"pulsar://127.0.0.1:{east.port}"}
        )
        await until(lambda: east.broker.topics.get(TOPIC) is not None)
        subscription = topic_of(east).subscriptions["s"]
        assert subscription.replicated
        subscription.acknowledge_through(6)
        await asyncio.sleep(10)
        assert mark_delete(west) == -2  # 6 is before the only snapshot
        subscription.acknowledge_through(9)
        await until(lambda: mark_delete(west) == 9)


async def test_a_cluster_that_replicates_nothing_back_is_asked_ever_less_often(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        await replicate(east, west, "west", ["east", "west"])
        await Consuming.open(east)
        await publish(east, *numbers(10))
        await asyncio.sleep(1_200)
        snapshots = east.broker.replication().snapshots  # type: ignore[union-attr]
        assert 5 < snapshots.timed_out < 15
        assert snapshots.pending <= 1
        said = [record.message for record in caplog.records if "is the topic replicated back" in record.message]
        assert len(said) == 1
        assert "cluster west, which does not answer" in said[0]


@asynccontextmanager
async def three(directory: Path) -> AsyncIterator[dict[str, Harness]]:
    """Three clusters that replicate to each other."""
    names = ["a", "b", "c"]
    async with AsyncExitStack() as stack:
        clusters = {name: await stack.enter_async_context(cluster(directory, name)) for name in names}
        for name, harness in clusters.items():
            admin = administration(harness.broker)
            policies = harness.broker.policies
            await policies.set_namespace("public/default", "deduplication", value=True)
            # The tests compare what is stored.
            forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            await policies.set_namespace("public/default", "retention_policies", forever)
            for other in names:
                if other != name:
                    url = f"pulsar://127.0.0.1:{clusters[other].port}"
                    await admin.clusters.create(other, {"brokerServiceUrl": url})
            await admin.tenants.update("public", {"allowedClusters": names})
            await admin.policies.set_replication(TOPIC_NAMESPACE, names)
        yield clusters


def acknowledged(harness: Harness) -> set[bytes]:
    """Messages that the subscription will not deliver in this cluster."""
    subscription = subscription_of(harness)
    if subscription is None:
        return set()
    messages = stored(harness)[: last_entry(harness) + 1]
    cursor = subscription.cursor
    return {bytes(payload_in(entry)) for at, entry in enumerate(messages) if cursor.is_acknowledged(at)}


@pytest.mark.parametrize("seed", range(4))
async def test_no_cluster_passes_over_a_message_that_no_consumer_has_acknowledged(tmp_path: Path, seed: int) -> None:
    chance, done, published = Random(seed), set[bytes](), 0
    async with three(tmp_path) as clusters:
        for harness in clusters.values():
            await Consuming.open(harness)
        active = clusters["a"]
        for _ in range(40):
            move = chance.random()
            if move < 0.35:
                some = numbers(chance.randint(1, 8), first=published)
                published += len(some)
                await publish(chance.choice(list(clusters.values())), *some)
            elif move < 0.7:
                subscription = topic_of(active).subscriptions["s"]
                for entry_id, entry in enumerate(stored(active)[: last_entry(active) + 1]):
                    if chance.random() < 0.7:
                        subscription.moves.acknowledge_one(entry_id)
                        done.add(bytes(payload_in(entry)))
            elif move < 0.8:
                for connection in chance.choice(list(clusters.values())).connections.all():
                    connection.close("cut")
            elif move < 0.9:
                active = chance.choice(list(clusters.values()))
            await asyncio.sleep(chance.choice([0, 0.1, 1, 5]))
            for harness in clusters.values():
                assert acknowledged(harness) <= done
        await until(lambda: all(last_entry(harness) == published - 1 for harness in clusters.values()))
        topic_of(active).subscriptions["s"].acknowledge_through(published - 1)
        await until(lambda: all(mark_delete(harness) == published - 1 for harness in clusters.values()))


async def test_three_clusters_have_the_same_place(tmp_path: Path) -> None:
    async with three(tmp_path) as clusters:
        await Consuming.open(clusters["a"])
        for number, harness in enumerate(clusters.values()):
            await publish(harness, *numbers(10, first=10 * number))
        await until(lambda: all(last_entry(harness) == 29 for harness in clusters.values()))
        topic_of(clusters["a"]).subscriptions["s"].acknowledge_through(29)
        await until(lambda: mark_delete(clusters["b"]) == mark_delete(clusters["c"]) == 29)
        await asyncio.sleep(60)
        assert [len(stored(harness)) for harness in clusters.values()] == [30, 30, 30]


class Permitted:
    """The session of a client that may do everything."""

    def require(self, *_: object, **__: object) -> None:
        """Permit it."""


class Marked:
    """Markers of cluster west at east, as if they came through its replicator."""

    def __init__(self, east: Harness) -> None:
        self.east = east
        self.session = cast("ProducerClient", Permitted())

    def send(self, marker: Marker, *, source: str = "west") -> None:
        about, payload = encode(marker, cluster=source, publish_time_ms=1)
        data = about.SerializeToString()
        self.raw(seal(len(data).to_bytes(4, "big") + data + payload))

    def raw(self, entry: bytes) -> None:
        replication = self.east.broker.replication()
        assert replication is not None
        replication.marked(topic_of(self.east), entry, self.session)


@pytest.fixture
async def marked(both: tuple[Harness, Harness]) -> Marked:
    east, _ = both
    await Consuming.open(east)
    await publish(east, *numbers(10))
    await until(lambda: not topic_of(east).subscriptions["pulsar.repl.west"].backlog)
    return Marked(east)


@pytest.mark.parametrize(
    ("ledger", "entry_id", "name", "source"),
    [
        (1, 5, "s", "west"),  # of a topic that was deleted
        (0, 10, "s", "west"),  # behind the last message
        (0, -1, "s", "west"),
        (0, 5, "s", "north"),  # which the topic is not replicated to
        (0, 5, "pulsar.repl.west", "west"),
        (0, 5, "__compaction", "west"),
        (0, 5, " ", "west"),
    ],
)
async def test_places_that_cannot_be_true_move_no_subscription(
    marked: Marked, ledger: int, entry_id: int, name: str, source: str
) -> None:
    topic = topic_of(marked.east)
    topic.subscriptions["pulsar.repl.west"].cursor.reset(0)
    before = {one.name: one.cursor.mark_delete for one in topic.subscriptions.values()}
    position = Position(topic.ledger_id + ledger, entry_id)
    marked.send(Update(name, {"east": position, "north": Position(0, 3)}), source=source)
    assert {one.name: one.cursor.mark_delete for one in topic.subscriptions.values()} == before
    await turns()
    assert topic.subscriptions.keys() == before.keys()


async def test_a_place_without_this_cluster_or_that_cannot_be_read_is_ignored(marked: Marked) -> None:
    marked.send(Update("s", {"north": Position(0, 3)}))
    marked.raw(b"garbage")
    marked.raw(bytes(MARKER_BYTES_MAX + 1))
    assert mark_delete(marked.east) == -1


async def test_nothing_is_asked_or_taken_if_replicated_subscriptions_are_switched_off(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, "east", replicated_subscriptions=False) as east,
        cluster(tmp_path, "west") as west,
    ):
        await replicate(east, west, "west", ["east", "west"])
        await replicate(west, east, "east", ["east", "west"])
        await Consuming.open(east)
        await publish(east, *numbers(10))
        await until(lambda: last_entry(west) == 9)
        await asyncio.sleep(10)
        Marked(east).send(Update("s", {"east": Position(topic_of(east).ledger_id, 5)}))
        assert mark_delete(east) == -1
        topic_of(east).subscriptions["s"].acknowledge_through(9)
        await asyncio.sleep(10)
        assert not replicator_to(east, "west").markers_sent
        assert mark_delete(west) == -2


async def test_questions_without_end_take_bounded_memory(marked: Marked) -> None:
    replicator = replicator_to(marked.east, "west")
    replicator.subscription.cursor.reset(0)
    for number in range(10 * ANSWERS_MAX):
        marked.send(Request(f"{number}", "west"))
    assert len(replicator._markers) <= ANSWERS_MAX + 2  # noqa: SLF001 - what is kept


async def test_subscriptions_of_other_clusters_are_made_some_at_a_time(marked: Marked) -> None:
    topic = topic_of(marked.east)
    position = Position(topic.ledger_id, 5)
    for number in range(10 * MADE_AT_ONCE):
        marked.send(Update(f"made-{number}", {"east": position}))
    await until(lambda: sum(name.startswith("made-") for name in topic.subscriptions) == MADE_AT_ONCE)
    await turns()
    assert sum(name.startswith("made-") for name in topic.subscriptions) == MADE_AT_ONCE
    # The other cluster names the rest again.
    marked.send(Update("made-100", {"east": position}))
    await until(lambda: "made-100" in topic.subscriptions)


async def connected_as(harness: Harness, role: str) -> Client:
    client = await Client.open(harness.port)
    command = {"client_version": "test", "protocol_version": 20, "auth_method_name": "token"}
    client.write(frame(Type.CONNECT, **command, auth_data=token(role).encode()))
    await client.expect(Type.CONNECTED)
    return client


async def test_only_who_may_consume_moves_subscriptions_by_markers(tmp_path: Path) -> None:
    """A name like that of a replicator, and what a marker says of its cluster, prove nothing."""
    options = ProviderOptions(methods=frozenset({"token"}), token_secret_key=data_url(SECRET))
    rules = AccessRules(authorizing=True, super_user_roles=frozenset({"boss"}))
    async with cluster(tmp_path, "east", authenticator=Authenticator(options), access=rules) as east:
        admin = administration(east.broker)
        await replicate(east, 9, "west", ["east", "west"])
        await admin.permissions.grant_namespace(TOPIC_NAMESPACE, "edge", ["produce"])
        boss, edge = await connected_as(east, "boss"), await connected_as(east, "edge")
        await boss.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1, initialPosition=1
        )
        await boss.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
        boss.write(b"".join(sending(number, b"x") for number in range(10)))
        await boss.receipts(10)
        producer = "pulsar.repl.west--east"
        await edge.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0, producer_name=producer)

        async def forge(sequence_id: int, name: str) -> None:
            place = {"east": Position(topic_of(east).ledger_id, 9)}
            about, payload = encode(Update(name, place), cluster="west", publish_time_ms=1)
            about.producer_name, about.sequence_id = producer, sequence_id
            data = about.SerializeToString()
            edge.write(send(0, sequence_id, seal(len(data).to_bytes(4, "big") + data + payload), marker=True))
            await edge.receipts(1)

        await forge(0, "s")
        await forge(1, "another")
        await turns()
        assert mark_delete(east) == -1
        assert "another" not in topic_of(east).subscriptions

        await admin.permissions.grant_namespace(TOPIC_NAMESPACE, "edge", ["produce", "consume"])
        await forge(2, "s")
        await until(lambda: mark_delete(east) == 9)
