# SPDX-License-Identifier: Apache-2.0
"""What an administrator does to topics, subscriptions and messages, beside their life (`test_topic_life`)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.core.errors import (
    AlreadyExists,
    NamespaceNotFound,
    NotAcceptable,
    NotAllowed,
    NotFound,
    PenstockError,
    PreconditionFailed,
    SubscriptionNotFound,
    TopicNotFound,
    Unprocessable,
)
from penstock.core.names import NamespaceName, TopicName
from penstock.core.position import EARLIEST, LATEST, Position
from penstock.testing.client import Type, entry, frame, send
from tests.broker.listed import list_topics
from tests.net.harness import TOPIC, Client, Harness, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from penstock.broker.subscriptions.subscription import Subscription

T = TopicName.parse(TOPIC)
P = TopicName.parse("persistent://public/default/p")
N = TopicName.parse("non-persistent://public/default/n")
NAMESPACE = NamespaceName.parse("public/default")
COUNT = 5
NOW_MS = 1_700_000_000_000  # the harness's clock


@asynccontextmanager
async def filled(directory: Path, topic: TopicName = T, **limits: Any) -> AsyncIterator[tuple[Harness, Client]]:  # noqa: ANN401
    """A broker with a subscription `s` on a topic of five entries, published one second after another, up to now."""
    async with running(directory, **limits) as harness:
        client = await Client.connected(harness.port)
        await administration(harness.broker).subscriptions.create(topic, "s")
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(topic), producer_id=0)
        for number in range(COUNT):
            published_ms = NOW_MS - 1000 * (COUNT - 1 - number)
            client.write(send(0, number, entry(b"%d" % number, sequence_id=number, publish_time=published_ms)))
        await client.receipts(COUNT)
        yield harness, client
        await client.close()


def subscription(harness: Harness, name: str = "s", topic: TopicName = T) -> Subscription:
    found = harness.broker.topics.get(topic)
    assert found is not None
    return found.subscriptions[name]


def at(harness: Harness, entry_id: int) -> Position:
    topic = harness.broker.topics.get(T)
    assert topic is not None
    return Position(topic.ledger_id, entry_id)


async def refused(doing: Coroutine[Any, Any, object], kind: type[PenstockError], status: int) -> None:
    with pytest.raises(kind) as error:
        await doing
    assert error.value.http_status == status


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_once_with_its_properties(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await administration(broker).topics.create(T, {"team": "a"})
        await refused(administration(broker).topics.create(T), AlreadyExists, 409)
        await refused(administration(broker).topics.create_partitioned(T, 2), AlreadyExists, 409)
        await administration(broker).topics.update_properties(T, {"tier": "1"})
        assert administration(broker).topics.get_properties(T) == {"team": "a", "tier": "1"}
        await administration(broker).topics.remove_property(T, "team")
    async with running(tmp_path) as harness:
        assert administration(harness.broker).topics.get_properties(T) == {"tier": "1"}
        with pytest.raises(TopicNotFound):
            administration(harness.broker).topics.get_properties(P)


async def test_topics_are_listed_by_domain(harness: Harness) -> None:
    broker = harness.broker
    for name in (T, N):
        await administration(broker).topics.create(name)
    await administration(broker).topics.create_partitioned(P, 2)
    parts = [str(P.of_partition(index)) for index in range(2)]
    assert await list_topics(broker, NAMESPACE) == [*parts, str(T)]
    assert len(await list_topics(broker, NAMESPACE, system=True)) == 3
    assert await list_topics(broker, NAMESPACE, persistent=False) == [str(N)]
    assert administration(broker).topics.list_partitioned(NAMESPACE) == [str(P)]
    assert administration(broker).topics.list_partitioned(NAMESPACE, persistent=False) == []
    await refused(list_topics(broker, NamespaceName.parse("public/no")), NamespaceNotFound, 404)


# -- partitioned topics -----------------------------------------------------------------------------------------------


async def test_how_many_partitions_a_topic_has(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create_partitioned(P, 3, {"team": "a"})
    assert await administration(broker).topics.get_partitioned(P) == {"partitions": 3, "properties": {"team": "a"}}
    await administration(broker).topics.create(T)
    assert await administration(broker).topics.get_partitioned(T) == {"partitions": 0}
    other = TopicName.parse("other")
    await refused(administration(broker).topics.get_partitioned(other), TopicNotFound, 404)
    assert await administration(broker).topics.get_partitioned(other, check_auto_creation=True) == {"partitions": 0}


@pytest.mark.parametrize("count", [0, -1, 11])
async def test_a_partitioned_topic_has_a_sensible_number_of_partitions(tmp_path: Path, count: int) -> None:
    async with running(tmp_path, partitions_max=10) as harness:
        await refused(administration(harness.broker).topics.create_partitioned(P, count), NotAcceptable, 406)


async def test_a_slip_of_the_keyboard_makes_no_million_partitions_where_no_bound_is_set(harness: Harness) -> None:
    broker = harness.broker
    await refused(administration(broker).topics.create_partitioned(P, 2**31 - 1), NotAcceptable, 406)
    await administration(broker).topics.create_partitioned(P, 1)
    await refused(administration(broker).topics.update_partitioned(P, 2**31 - 1), Unprocessable, 422)
    assert broker.partitions.count(P) == 1


async def test_new_partitions_have_the_subscriptions_of_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, partitions_max=4) as harness:
        broker = harness.broker
        await administration(broker).topics.create_partitioned(P, 1)
        await administration(broker).subscriptions.create(P, "s")
        await administration(broker).topics.update_partitioned(P, 3)
        assert broker.partitions.count(P) == 3
        for index in range(3):
            assert await administration(broker).subscriptions.names(P.of_partition(index)) == ["s"]
            assert broker.catalog.cursor(str(P.of_partition(index)), "s") is not None
        await refused(administration(broker).topics.update_partitioned(P, 2), Unprocessable, 422)
        await refused(administration(broker).topics.update_partitioned(P, 5), Unprocessable, 422)
        await refused(administration(broker).topics.update_partitioned(P, 0), NotAcceptable, 406)
        await refused(administration(broker).topics.update_partitioned(T, 3), NotFound, 404)


async def test_a_partition_that_is_missing_is_made_again(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create_partitioned(P, 3)
    await administration(broker).topics.delete(P.of_partition(1))
    await administration(broker).topics.create_missed_partitions(P)
    assert len(await list_topics(broker, NAMESPACE)) == 3
    await refused(administration(broker).topics.create_missed_partitions(T), NotFound, 404)


async def test_what_is_asked_of_a_topic_is_not_asked_of_a_partitioned_one(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create_partitioned(P, 2)
    await administration(broker).subscriptions.create(P, "s")
    for doing in (
        administration(broker).topics.terminate(P),
        administration(broker).subscriptions.skip_messages(P, "s", 1),
        administration(broker).messages.peek(P, "s", 1),
        administration(broker).messages.last_id(P),
        administration(broker).messages.backlog_size(P, EARLIEST),
        administration(broker).subscriptions.reset_to_position(P, "s", Position(1, 1)),
    ):
        await refused(doing, NotAllowed, 405)
    await refused(administration(broker).topics.delete(P), AlreadyExists, 409)
    await refused(administration(broker).topics.terminate_partitions(T), NotAllowed, 405)
    await refused(administration(broker).topics.delete_partitioned(T), NotFound, 404)


# -- subscriptions are made and deleted -------------------------------------------------------------------------------


@pytest.mark.parametrize(("position", "backlog"), [(LATEST, 0), (EARLIEST, COUNT), (Position(1, 2), COUNT - 2)])
async def test_a_subscription_begins_where_it_is_told_to(tmp_path: Path, position: Position, backlog: int) -> None:
    async with filled(tmp_path) as (harness, _):
        if position not in (LATEST, EARLIEST):
            position = at(harness, position.entry_id)
        await administration(harness.broker).subscriptions.create(T, "new", position, properties={"a": "b"})
        assert subscription(harness, "new").backlog == backlog
        assert await administration(harness.broker).subscriptions.get_properties(T, "new") == {"a": "b"}
        await refused(administration(harness.broker).subscriptions.create(T, "new"), AlreadyExists, 409)
    async with running(tmp_path) as harness:
        topic = await harness.broker.topics.get_or_create(T, create=False)
        assert topic.subscriptions["new"].backlog == backlog
        await administration(harness.broker).subscriptions.update_properties(T, "new", {"c": "d"})
        assert await administration(harness.broker).subscriptions.get_properties(T, "new") == {"c": "d"}


async def test_a_subscription_of_a_partitioned_topic_is_one_of_each_partition(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create_partitioned(P, 3)
    await administration(broker).subscriptions.create(P.of_partition(1), "s")
    await administration(broker).subscriptions.create(P, "s")
    await administration(broker).subscriptions.create(P.of_partition(2), "other")
    assert await administration(broker).subscriptions.names(P) == ["other", "s"]
    await refused(administration(broker).subscriptions.create(P, "s"), AlreadyExists, 409)
    await administration(broker).subscriptions.update_properties(P, "s", {"a": "b"})
    assert await administration(broker).subscriptions.get_properties(P.of_partition(2), "s") == {"a": "b"}
    await administration(broker).subscriptions.delete(P, "s")
    assert await administration(broker).subscriptions.names(P) == ["other"]
    await refused(administration(broker).subscriptions.delete(P, "s"), SubscriptionNotFound, 404)


async def test_a_subscription_with_consumers_is_deleted_by_force_only(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, client):
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1, initialPosition=1
        )
        await refused(administration(harness.broker).subscriptions.delete(T, "s"), PreconditionFailed, 412)
        await administration(harness.broker).subscriptions.delete(T, "s", force=True)
        await client.expect(Type.CLOSE_CONSUMER)
        assert await administration(harness.broker).subscriptions.names(T) == []
    async with running(tmp_path) as harness:
        assert await administration(harness.broker).subscriptions.names(T) == []


# -- cursors move -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "backlog"),
    [
        (lambda h: administration(h.broker).subscriptions.skip_messages(T, "s", 2), 3),
        (lambda h: administration(h.broker).subscriptions.skip_messages(T, "s", 99), 0),
        (lambda h: administration(h.broker).subscriptions.skip_all(T, "s"), 0),
        (lambda h: administration(h.broker).subscriptions.expire_older_than(T, "s", 2), 3),
        (lambda h: administration(h.broker).subscriptions.expire_older_than(T, "s", 99), 5),
        (lambda h: administration(h.broker).subscriptions.expire_all_older_than(T, 1), 2),
        (lambda h: administration(h.broker).subscriptions.expire_to_position(T, "s", at(h, 2)), 2),
        (lambda h: administration(h.broker).subscriptions.expire_to_position(T, "s", at(h, 2), excluded=True), 3),
        (lambda h: administration(h.broker).subscriptions.reset_to_time(T, "s", NOW_MS - 1000), 2),
        (lambda h: administration(h.broker).subscriptions.reset_to_time(T, "s", NOW_MS + 1), 0),
        (lambda h: administration(h.broker).subscriptions.reset_to_time(T, "s", 0), 5),
        (lambda h: administration(h.broker).subscriptions.reset_to_position(T, "s", at(h, 3)), 2),
        (lambda h: administration(h.broker).subscriptions.reset_to_position(T, "s", at(h, 3), excluded=True), 1),
        (lambda h: administration(h.broker).subscriptions.reset_to_position(T, "s", at(h, 3), batch_index=0), 2),
        (
            lambda h: administration(h.broker).subscriptions.reset_to_position(
                T, "s", at(h, 3), batch_index=0, excluded=True
            ),
            1,
        ),
        (lambda h: administration(h.broker).subscriptions.reset_to_position(T, "s", EARLIEST), 5),
        (lambda h: administration(h.broker).subscriptions.reset_to_position(T, "s", LATEST), 0),
        (lambda h: administration(h.broker).subscriptions.clear_backlogs(NAMESPACE), 0),
        (lambda h: administration(h.broker).subscriptions.clear_backlogs(NAMESPACE, "s"), 0),
        (lambda h: administration(h.broker).subscriptions.clear_backlogs(NAMESPACE, "other"), 5),
    ],
)
async def test_a_cursor_that_was_moved_stays_where_it_is_over_a_restart(
    tmp_path: Path, move: Callable[[Harness], Coroutine[Any, Any, None]], backlog: int
) -> None:
    async with filled(tmp_path) as (harness, _):
        assert subscription(harness).backlog == COUNT
        await move(harness)
        assert subscription(harness).backlog == backlog
    async with running(tmp_path) as harness:
        topic = await harness.broker.topics.get_or_create(T, create=False)
        assert topic.subscriptions["s"].backlog == backlog


async def test_a_consumer_reads_on_from_where_its_cursor_was_moved(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, client):
        subscribe = {"topic": TOPIC, "subscription": "s", "consumer_id": 0, "subType": 0}
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, **subscribe)
        await client.expect(Type.ACTIVE_CONSUMER_CHANGE)
        await administration(harness.broker).subscriptions.reset_to_position(T, "s", at(harness, 3))
        await client.expect(Type.CLOSE_CONSUMER)
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, **subscribe)
        await client.expect(Type.ACTIVE_CONSUMER_CHANGE)
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
        assert [(await client.expect(Type.MESSAGE)).message.message_id.entryId for _ in range(2)] == [3, 4]


async def test_a_position_behind_the_end_does_not_expire_anything(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        doing = administration(harness.broker).subscriptions.expire_to_position(T, "s", at(harness, COUNT))
        await refused(doing, PreconditionFailed, 412)
        assert subscription(harness).backlog == COUNT


async def test_moves_reach_every_partition(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create_partitioned(P, 2)
    await administration(broker).subscriptions.create(P, "s")
    client = await Client.connected(harness.port)
    for index in range(2):
        topic = str(P.of_partition(index))
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=index)
        client.write(send(index, 0, entry(b"a", publish_time=NOW_MS - 60_000)))
        await client.receipts(1)

    def backlogs() -> list[int]:
        return [subscription(harness, topic=P.of_partition(index)).backlog for index in range(2)]

    assert backlogs() == [1, 1]
    await administration(broker).subscriptions.expire_older_than(P, "s", 30)
    assert backlogs() == [0, 0]
    await administration(broker).subscriptions.reset_to_time(P, "s", 0)
    assert backlogs() == [1, 1]
    await administration(broker).subscriptions.skip_all(P, "s")
    assert backlogs() == [0, 0]
    await administration(broker).subscriptions.reset_to_position(P, "s", EARLIEST)
    assert backlogs() == [1, 1]
    await administration(broker).topics.truncate(P)
    assert backlogs() == [0, 0]
    await refused(administration(broker).subscriptions.skip_all(P, "nobody"), SubscriptionNotFound, 404)


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_the_nth_message_that_is_not_acknowledged_is_peeked_at(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        broker = harness.broker
        subscription(harness).cursor.acknowledge_many([0, 2])
        seen = [(await administration(broker).messages.peek(T, "s", nth)).entry_id for nth in (1, 2, 3)]
        assert seen == [1, 3, 4]
        await refused(administration(broker).messages.peek(T, "s", 4), NotFound, 404)
        await refused(administration(broker).messages.peek(T, "nobody", 1), SubscriptionNotFound, 404)
        peeked = await administration(broker).messages.peek(T, "s", 1)
        assert peeked.entry == entry(b"1", sequence_id=1, publish_time=NOW_MS - 3000)
        assert (peeked.ledger_id, peeked.partition) == (at(harness, 1).ledger_id, -1)


async def test_messages_are_found_by_position_by_number_and_by_time(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        broker = harness.broker
        assert (await administration(broker).messages.get(T, at(harness, 2))).entry_id == 2
        await refused(administration(broker).messages.get(T, at(harness, COUNT)), NotFound, 404)
        await refused(administration(broker).messages.get(T, Position(10**6, 0)), NotFound, 404)
        for initial, nth, wanted in (("earliest", 1, 0), ("earliest", 3, 2), ("latest", 1, 4), ("latest", 99, 0)):
            assert (await administration(broker).messages.examine(T, initial, nth)).entry_id == wanted
        assert await administration(broker).messages.last_id(T) == (at(harness, COUNT - 1), -1)
        assert await administration(broker).messages.id_by_time(T, NOW_MS - 1500) == at(harness, 3)
        await refused(administration(broker).messages.id_by_index(T, 3), PreconditionFailed, 412)


async def test_an_empty_topic_has_no_last_message(harness: Harness) -> None:
    await administration(harness.broker).topics.create(T)
    assert await administration(harness.broker).messages.last_id(T) == (Position(-1, -1), -1)
    await refused(administration(harness.broker).messages.examine(T, "latest", 1), PreconditionFailed, 412)


async def test_the_backlog_behind_a_position_is_told_in_bytes(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        sizes = [
            await administration(harness.broker).messages.backlog_size(T, at(harness, entry_id))
            for entry_id in range(COUNT)
        ]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == await administration(harness.broker).messages.backlog_size(T, EARLIEST) > 0
        assert await administration(harness.broker).messages.backlog_size(T, LATEST) == 0


# -- topics that are not persistent -----------------------------------------------------------------------------------


async def test_a_topic_that_is_not_persistent_is_listed_and_deleted_and_keeps_nothing(harness: Harness) -> None:
    broker = harness.broker
    client = await Client.producing(harness.port, topic=str(N))
    assert await list_topics(broker, NAMESPACE, persistent=False) == [str(N)]
    assert await administration(broker).subscriptions.names(N) == []
    await refused(administration(broker).topics.delete(N), PreconditionFailed, 412)
    for doing in (
        administration(broker).subscriptions.create(N, "s"),
        administration(broker).topics.terminate(N),
        administration(broker).topics.truncate(N),
        administration(broker).subscriptions.skip_all(N, "s"),
        administration(broker).subscriptions.reset_to_time(N, "s", 0),
        administration(broker).messages.peek(N, "s", 1),
    ):
        await refused(doing, NotAllowed, 405)
    await administration(broker).topics.delete(N, force=True)
    await client.expect(Type.CLOSE_PRODUCER)
    assert await list_topics(broker, NAMESPACE, persistent=False) == []
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(N), producer_id=1)
    await administration(broker).topics.unload(N)
    await client.expect(Type.CLOSE_PRODUCER)
    await refused(administration(broker).topics.unload(N), TopicNotFound, 404)
