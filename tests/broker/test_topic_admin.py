# SPDX-License-Identifier: Apache-2.0
"""What an administrator does to topics, subscriptions and messages, beside their life (`test_topic_life`)."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.administration import topic_admin
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
        await topic_admin.create_subscription(harness.broker, topic, "s")
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
        await topic_admin.create_topic(broker, T, {"team": "a"})
        await refused(topic_admin.create_topic(broker, T), AlreadyExists, 409)
        await refused(topic_admin.create_partitioned(broker, T, 2), AlreadyExists, 409)
        await topic_admin.update_properties(broker, T, {"tier": "1"})
        assert topic_admin.get_properties(broker, T) == {"team": "a", "tier": "1"}
        await topic_admin.remove_property(broker, T, "team")
    async with running(tmp_path) as harness:
        assert topic_admin.get_properties(harness.broker, T) == {"tier": "1"}
        with pytest.raises(TopicNotFound):
            topic_admin.get_properties(harness.broker, P)


async def test_topics_are_listed_by_domain(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        for name in (T, N, TopicName.parse("__change_events")):
            await topic_admin.create_topic(broker, name)
        await topic_admin.create_partitioned(broker, P, 2)
        parts = [str(P.of_partition(index)) for index in range(2)]
        assert await list_topics(broker, NAMESPACE) == [*parts, str(T)]
        assert len(await list_topics(broker, NAMESPACE, system=True)) == 4
        assert await list_topics(broker, NAMESPACE, persistent=False) == [str(N)]
        assert topic_admin.list_partitioned(broker, NAMESPACE) == [str(P)]
        assert topic_admin.list_partitioned(broker, NAMESPACE, persistent=False) == []
        await refused(list_topics(broker, NamespaceName.parse("public/no")), NamespaceNotFound, 404)


# -- partitioned topics -----------------------------------------------------------------------------------------------


async def test_how_many_partitions_a_topic_has(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 3, {"team": "a"})
        assert await topic_admin.get_partitioned(broker, P) == {"partitions": 3, "properties": {"team": "a"}}
        await topic_admin.create_topic(broker, T)
        assert await topic_admin.get_partitioned(broker, T) == {"partitions": 0}
        other = TopicName.parse("other")
        await refused(topic_admin.get_partitioned(broker, other), TopicNotFound, 404)
        assert await topic_admin.get_partitioned(broker, other, check_auto_creation=True) == {"partitions": 0}


@pytest.mark.parametrize("count", [0, -1, 11])
async def test_a_partitioned_topic_has_a_sensible_number_of_partitions(tmp_path: Path, count: int) -> None:
    async with running(tmp_path, partitions_max=10) as harness:
        await refused(topic_admin.create_partitioned(harness.broker, P, count), NotAcceptable, 406)


async def test_a_slip_of_the_keyboard_makes_no_million_partitions_where_no_bound_is_set(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await refused(topic_admin.create_partitioned(broker, P, 2**31 - 1), NotAcceptable, 406)
        await topic_admin.create_partitioned(broker, P, 1)
        await refused(topic_admin.update_partitioned(broker, P, 2**31 - 1), Unprocessable, 422)
        assert broker.partitions.count(P) == 1


async def test_new_partitions_have_the_subscriptions_of_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, partitions_max=4) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 1)
        await topic_admin.create_subscription(broker, P, "s")
        await topic_admin.update_partitioned(broker, P, 3)
        assert broker.partitions.count(P) == 3
        for index in range(3):
            assert await topic_admin.list_subscriptions(broker, P.of_partition(index)) == ["s"]
            assert broker.catalog.cursor(str(P.of_partition(index)), "s") is not None
        await refused(topic_admin.update_partitioned(broker, P, 2), Unprocessable, 422)
        await refused(topic_admin.update_partitioned(broker, P, 5), Unprocessable, 422)
        await refused(topic_admin.update_partitioned(broker, P, 0), NotAcceptable, 406)
        await refused(topic_admin.update_partitioned(broker, T, 3), NotFound, 404)


async def test_a_partition_that_is_missing_is_made_again(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 3)
        await topic_admin.delete_topic(broker, P.of_partition(1))
        await topic_admin.create_missed_partitions(broker, P)
        assert len(await list_topics(broker, NAMESPACE)) == 3
        await refused(topic_admin.create_missed_partitions(broker, T), NotFound, 404)


async def test_what_is_asked_of_a_topic_is_not_asked_of_a_partitioned_one(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 2)
        await topic_admin.create_subscription(broker, P, "s")
        for doing in (
            topic_admin.terminate(broker, P),
            topic_admin.skip_messages(broker, P, "s", 1),
            topic_admin.peek_message(broker, P, "s", 1),
            topic_admin.last_message_id(broker, P),
            topic_admin.backlog_size(broker, P, EARLIEST),
            topic_admin.reset_to_position(broker, P, "s", Position(1, 1)),
        ):
            await refused(doing, NotAllowed, 405)
        await refused(topic_admin.delete_topic(broker, P), AlreadyExists, 409)
        await refused(topic_admin.terminate_partitions(broker, T), NotAllowed, 405)
        await refused(topic_admin.delete_partitioned(broker, T), NotFound, 404)


# -- subscriptions are made and deleted -------------------------------------------------------------------------------


@pytest.mark.parametrize(("position", "backlog"), [(LATEST, 0), (EARLIEST, COUNT), (Position(1, 2), COUNT - 2)])
async def test_a_subscription_begins_where_it_is_told_to(tmp_path: Path, position: Position, backlog: int) -> None:
    async with filled(tmp_path) as (harness, _):
        if position not in (LATEST, EARLIEST):
            position = at(harness, position.entry_id)
        await topic_admin.create_subscription(harness.broker, T, "new", position, properties={"a": "b"})
        assert subscription(harness, "new").backlog == backlog
        assert topic_admin.get_subscription_properties(harness.broker, T, "new") == {"a": "b"}
        await refused(topic_admin.create_subscription(harness.broker, T, "new"), AlreadyExists, 409)
    async with running(tmp_path) as harness:
        topic = await harness.broker.topics.get_or_create(T, create=False)
        assert topic.subscriptions["new"].backlog == backlog
        await topic_admin.update_subscription_properties(harness.broker, T, "new", {"c": "d"})
        assert topic_admin.get_subscription_properties(harness.broker, T, "new") == {"c": "d"}


async def test_a_subscription_of_a_partitioned_topic_is_one_of_each_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 3)
        await topic_admin.create_subscription(broker, P.of_partition(1), "s")
        await topic_admin.create_subscription(broker, P, "s")
        await topic_admin.create_subscription(broker, P.of_partition(2), "other")
        assert await topic_admin.list_subscriptions(broker, P) == ["other", "s"]
        await refused(topic_admin.create_subscription(broker, P, "s"), AlreadyExists, 409)
        await topic_admin.update_subscription_properties(broker, P, "s", {"a": "b"})
        assert topic_admin.get_subscription_properties(broker, P.of_partition(2), "s") == {"a": "b"}
        await topic_admin.delete_subscription(broker, P, "s")
        assert await topic_admin.list_subscriptions(broker, P) == ["other"]
        await refused(topic_admin.delete_subscription(broker, P, "s"), SubscriptionNotFound, 404)


async def test_a_subscription_with_consumers_is_deleted_by_force_only(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, client):
        await client.request(
            Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, subscription="s", consumer_id=0, subType=1, initialPosition=1
        )
        await refused(topic_admin.delete_subscription(harness.broker, T, "s"), PreconditionFailed, 412)
        await topic_admin.delete_subscription(harness.broker, T, "s", force=True)
        await client.expect(Type.CLOSE_CONSUMER)
        assert await topic_admin.list_subscriptions(harness.broker, T) == []
    async with running(tmp_path) as harness:
        assert await topic_admin.list_subscriptions(harness.broker, T) == []


# -- cursors move -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("move", "backlog"),
    [
        (lambda h: topic_admin.skip_messages(h.broker, T, "s", 2), 3),
        (lambda h: topic_admin.skip_messages(h.broker, T, "s", 99), 0),
        (lambda h: topic_admin.skip_all(h.broker, T, "s"), 0),
        (lambda h: topic_admin.expire_older_than(h.broker, T, "s", 2), 3),
        (lambda h: topic_admin.expire_older_than(h.broker, T, "s", 99), 5),
        (lambda h: topic_admin.expire_all_older_than(h.broker, T, 1), 2),
        (lambda h: topic_admin.expire_to_position(h.broker, T, "s", at(h, 2)), 2),
        (lambda h: topic_admin.expire_to_position(h.broker, T, "s", at(h, 2), excluded=True), 3),
        (lambda h: topic_admin.reset_to_time(h.broker, T, "s", NOW_MS - 1000), 2),
        (lambda h: topic_admin.reset_to_time(h.broker, T, "s", NOW_MS + 1), 0),
        (lambda h: topic_admin.reset_to_time(h.broker, T, "s", 0), 5),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", at(h, 3)), 2),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", at(h, 3), excluded=True), 1),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", at(h, 3), batch_index=0), 2),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", at(h, 3), batch_index=0, excluded=True), 1),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", EARLIEST), 5),
        (lambda h: topic_admin.reset_to_position(h.broker, T, "s", LATEST), 0),
        (lambda h: topic_admin.clear_namespace_backlog(h.broker, NAMESPACE), 0),
        (lambda h: topic_admin.clear_namespace_backlog(h.broker, NAMESPACE, "s"), 0),
        (lambda h: topic_admin.clear_namespace_backlog(h.broker, NAMESPACE, "other"), 5),
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
        await topic_admin.reset_to_position(harness.broker, T, "s", at(harness, 3))
        await client.expect(Type.CLOSE_CONSUMER)
        await client.request(Type.SUBSCRIBE, Type.SUCCESS, **subscribe)
        await client.expect(Type.ACTIVE_CONSUMER_CHANGE)
        client.write(frame(Type.FLOW, consumer_id=0, messagePermits=10))
        assert [(await client.expect(Type.MESSAGE)).message.message_id.entryId for _ in range(2)] == [3, 4]


async def test_a_position_behind_the_end_does_not_expire_anything(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        doing = topic_admin.expire_to_position(harness.broker, T, "s", at(harness, COUNT))
        await refused(doing, PreconditionFailed, 412)
        assert subscription(harness).backlog == COUNT


async def test_moves_reach_every_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        await topic_admin.create_partitioned(broker, P, 2)
        await topic_admin.create_subscription(broker, P, "s")
        client = await Client.connected(harness.port)
        for index in range(2):
            topic = str(P.of_partition(index))
            await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=index)
            client.write(send(index, 0, entry(b"a", publish_time=NOW_MS - 60_000)))
            await client.receipts(1)

        def backlogs() -> list[int]:
            return [subscription(harness, topic=P.of_partition(index)).backlog for index in range(2)]

        assert backlogs() == [1, 1]
        await topic_admin.expire_older_than(broker, P, "s", 30)
        assert backlogs() == [0, 0]
        await topic_admin.reset_to_time(broker, P, "s", 0)
        assert backlogs() == [1, 1]
        await topic_admin.skip_all(broker, P, "s")
        assert backlogs() == [0, 0]
        await topic_admin.reset_to_position(broker, P, "s", EARLIEST)
        assert backlogs() == [1, 1]
        await topic_admin.truncate(broker, P)
        assert backlogs() == [0, 0]
        await refused(topic_admin.skip_all(broker, P, "nobody"), SubscriptionNotFound, 404)


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_the_nth_message_that_is_not_acknowledged_is_peeked_at(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        broker = harness.broker
        subscription(harness).cursor.acknowledge_many([0, 2])
        seen = [(await topic_admin.peek_message(broker, T, "s", nth)).entry_id for nth in (1, 2, 3)]
        assert seen == [1, 3, 4]
        await refused(topic_admin.peek_message(broker, T, "s", 4), NotFound, 404)
        await refused(topic_admin.peek_message(broker, T, "nobody", 1), SubscriptionNotFound, 404)
        peeked = await topic_admin.peek_message(broker, T, "s", 1)
        assert peeked.entry == entry(b"1", sequence_id=1, publish_time=NOW_MS - 3000)
        assert (peeked.ledger_id, peeked.partition) == (at(harness, 1).ledger_id, -1)


async def test_messages_are_found_by_position_by_number_and_by_time(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        broker = harness.broker
        assert (await topic_admin.get_message(broker, T, at(harness, 2))).entry_id == 2
        await refused(topic_admin.get_message(broker, T, at(harness, COUNT)), NotFound, 404)
        await refused(topic_admin.get_message(broker, T, Position(10**6, 0)), NotFound, 404)
        for initial, nth, wanted in (("earliest", 1, 0), ("earliest", 3, 2), ("latest", 1, 4), ("latest", 99, 0)):
            assert (await topic_admin.examine_message(broker, T, initial, nth)).entry_id == wanted
        assert await topic_admin.last_message_id(broker, T) == (at(harness, COUNT - 1), -1)
        assert await topic_admin.message_id_by_time(broker, T, NOW_MS - 1500) == at(harness, 3)
        await refused(topic_admin.message_id_by_index(broker, T, 3), PreconditionFailed, 412)


async def test_an_empty_topic_has_no_last_message(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await topic_admin.create_topic(harness.broker, T)
        assert await topic_admin.last_message_id(harness.broker, T) == (Position(-1, -1), -1)
        await refused(topic_admin.examine_message(harness.broker, T, "latest", 1), PreconditionFailed, 412)


async def test_the_backlog_behind_a_position_is_told_in_bytes(tmp_path: Path) -> None:
    async with filled(tmp_path) as (harness, _):
        sizes = [await topic_admin.backlog_size(harness.broker, T, at(harness, entry_id)) for entry_id in range(COUNT)]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] == await topic_admin.backlog_size(harness.broker, T, EARLIEST) > 0
        assert await topic_admin.backlog_size(harness.broker, T, LATEST) == 0


# -- topics that are not persistent -----------------------------------------------------------------------------------


async def test_a_topic_that_is_not_persistent_is_listed_and_deleted_and_keeps_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        broker = harness.broker
        client = await Client.producing(harness.port, topic=str(N))
        assert await list_topics(broker, NAMESPACE, persistent=False) == [str(N)]
        assert await topic_admin.list_subscriptions(broker, N) == []
        await refused(topic_admin.delete_topic(broker, N), PreconditionFailed, 412)
        for doing in (
            topic_admin.create_subscription(broker, N, "s"),
            topic_admin.terminate(broker, N),
            topic_admin.truncate(broker, N),
            topic_admin.skip_all(broker, N, "s"),
            topic_admin.reset_to_time(broker, N, "s", 0),
            topic_admin.peek_message(broker, N, "s", 1),
        ):
            await refused(doing, NotAllowed, 405)
        await topic_admin.delete_topic(broker, N, force=True)
        await client.expect(Type.CLOSE_PRODUCER)
        assert await list_topics(broker, NAMESPACE, persistent=False) == []
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(N), producer_id=1)
        await topic_admin.unload(broker, N)
        await client.expect(Type.CLOSE_PRODUCER)
        await refused(topic_admin.unload(broker, N), TopicNotFound, 404)
