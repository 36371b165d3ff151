# SPDX-License-Identifier: Apache-2.0
"""What happens to a topic after it came: unloaded, terminated, truncated, deleted, and gone by itself."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.broker.topics.inactive import InactiveTopics
from penstock.broker.topics.topic_states import COMPACTED_LEDGER, ledgers_in_use
from penstock.core.errors import (
    AlreadyExists,
    MetadataFailed,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    ServiceNotReady,
    TopicNotFound,
    WireCode,
)
from penstock.core.names import TopicName
from penstock.core.position import Position
from penstock.core.units import NS_PER_S
from penstock.storage.catalog import Catalog
from penstock.storage.directory import DataDirectory
from penstock.storage.entry_log import AppendRun
from penstock.testing.client import RawClient, Refused, Type, entry, frame
from penstock.wire.pulsar_pb2 import BaseCommand, CommandMessage
from tests.broker.listed import list_topics
from tests.net.harness import TOPIC, Client, Harness, running, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from penstock.testing.process import BrokerProcess

T = TopicName.parse(TOPIC)
PARENT = TopicName.parse("persistent://public/default/p")
SHARED = 1


@asynccontextmanager
async def producing(directory: Path, **limits: Any) -> AsyncIterator[tuple[Harness, Client]]:  # noqa: ANN401
    async with running(directory, **limits) as harness:
        client = await Client.producing(harness.port)
        yield harness, client
        await client.close()


@pytest_asyncio.fixture
async def client(harness: Harness) -> AsyncIterator[Client]:
    """A client with a producer on the topic."""
    client = await Client.producing(harness.port)
    yield client
    await client.close()


async def subscribe(client: Client, *, consumer_id: int = 0, permits: int = 1000, **fields: Any) -> None:  # noqa: ANN401
    fields.setdefault("subscription", "s")
    await client.request(
        Type.SUBSCRIBE, Type.SUCCESS, topic=TOPIC, consumer_id=consumer_id, subType=SHARED, initialPosition=1, **fields
    )
    if permits:
        client.write(frame(Type.FLOW, consumer_id=consumer_id, messagePermits=permits))


def acknowledge(client: Client, message: CommandMessage) -> None:
    ack = BaseCommand(type=Type.ACK)
    ack.ack.consumer_id = message.consumer_id
    ack.ack.ack_type = 0  # type: ignore[assignment]
    ack.ack.message_id.add().CopyFrom(message.message_id)
    data = ack.SerializeToString()
    client.write((4 + len(data)).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data)


async def refused_producer(client: Client) -> int:
    error = (await client.request(Type.PRODUCER, Type.ERROR, topic=TOPIC, producer_id=1)).error
    return int(error.error)


async def entries_of(harness: Harness, name: TopicName = T) -> list[int]:
    topic = await harness.broker.topics.get_or_create(name, create=False)
    result = await harness.broker.reads.read(topic.ledger_id, 0, bytes_max=2**30, entries_max=1000)
    return [entry_id for batch in result.batches for entry_id in batch.entry_ids]


# -- unload -----------------------------------------------------------------------------------------------------------


async def test_what_was_sent_before_an_unload_is_answered_before_the_producer_is_told_to_go(
    harness: Harness, client: Client
) -> None:
    harness.disk.hold()
    client.publish(b"a", b"b")
    topic = topic_of(harness)
    await until(lambda: topic.next_entry_id == 2)
    unloading = asyncio.ensure_future(administration(harness.broker).topics.unload(T))
    await turns()
    # What comes now is swallowed: its producer is not one of the topic's any more.
    client.publish(b"late", first=2)
    await turns()
    harness.disk.release()
    await unloading
    # A producer told to go before its receipts came would send what is stored already once more.
    assert await client.receipts(2) == [0, 1]
    await client.expect(Type.CLOSE_PRODUCER)
    assert harness.broker.topics.get(T) is None
    assert await entries_of(harness) == [0, 1]


async def test_an_unloaded_topic_comes_back_with_everything(harness: Harness, client: Client) -> None:
    await subscribe(client)
    await client.published(b"a", b"b", b"c")
    (message, *_) = [(await client.expect(Type.MESSAGE)).message for _ in range(3)]
    acknowledge(client, message)
    subscription = topic_of(harness).subscriptions["s"]
    await until(lambda: subscription.cursor.mark_delete == 0)
    await administration(harness.broker).topics.unload(T)
    assert {(await client.read()).type for _ in range(2)} == {Type.CLOSE_CONSUMER, Type.CLOSE_PRODUCER}
    await subscribe(client)
    again = [(await client.expect(Type.MESSAGE)).message.message_id.entryId for _ in range(2)]
    assert again == [1, 2]
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=TOPIC, producer_id=0)
    client.publish(b"d", first=3)
    assert (await client.read()).type in {Type.SEND_RECEIPT, Type.MESSAGE}
    assert await entries_of(harness) == [0, 1, 2, 3]


async def test_whoever_asks_for_a_topic_that_is_being_unloaded_waits_and_gets_another_object(
    harness: Harness, client: Client
) -> None:
    before = harness.broker.topics.get(T)
    harness.disk.hold()
    client.publish(b"a")
    assert before is not None
    await until(lambda: before.next_entry_id == 1)
    unloading = asyncio.ensure_future(administration(harness.broker).topics.unload(T))
    await turns()
    asking = asyncio.ensure_future(harness.broker.topics.get_or_create(T, create=False))
    await turns()
    assert not asking.done()
    harness.disk.release()
    await unloading
    assert (await asking) is not before


async def test_a_cursor_of_an_unloaded_topic_is_not_stored_over_a_newer_one(harness: Harness, client: Client) -> None:
    await subscribe(client, permits=0)
    await client.published(b"a", b"b")
    old = topic_of(harness).subscriptions["s"]
    await administration(harness.broker).topics.delete(T, force=True)
    await administration(harness.broker).topics.create(T)
    await administration(harness.broker).subscriptions.create(T, "s")
    # Something that still holds the old object says that it moved.
    old.cursor.acknowledge_through(1)
    harness.broker.cursors.moved(old)
    await harness.broker.cursors.save(old)
    stored = harness.broker.catalog.cursor(TOPIC, "s")
    assert stored is not None
    assert stored.mark_delete == -1


# -- terminate --------------------------------------------------------------------------------------------------------


async def test_a_terminated_topic_takes_nothing_more_and_says_so(tmp_path: Path) -> None:
    async with producing(tmp_path) as (harness, client):
        await client.published(b"a", b"b")
        assert (await administration(harness.broker).topics.terminate(T)).entry_id == 1
        await client.expect(Type.CLOSE_PRODUCER)
        assert await refused_producer(client) == WireCode.TOPIC_TERMINATED_ERROR
        # Again changes nothing.
        assert (await administration(harness.broker).topics.terminate(T)).entry_id == 1
    async with running(tmp_path) as harness:
        client = await Client.connected(harness.port)
        assert await refused_producer(client) == WireCode.TOPIC_TERMINATED_ERROR


async def test_a_send_that_comes_while_a_topic_is_being_terminated_is_refused_or_before_the_end(
    harness: Harness, client: Client
) -> None:
    harness.disk.hold()
    client.publish(b"before")
    topic = topic_of(harness)
    await until(lambda: topic.next_entry_id == 1)
    ending = asyncio.ensure_future(administration(harness.broker).topics.terminate(T))
    await turns()
    client.publish(b"after", first=1)
    await turns()
    harness.disk.release()
    last = await ending
    assert (last.entry_id, await client.receipts(1)) == (0, [0])
    error = (await client.expect(Type.SEND_ERROR)).send_error
    assert (error.sequence_id, int(error.error)) == (1, WireCode.TOPIC_TERMINATED_ERROR)


async def test_a_consumer_hears_of_the_end_once_it_has_had_everything(harness: Harness, client: Client) -> None:
    await subscribe(client)
    await client.published(b"a")
    message = (await client.expect(Type.MESSAGE)).message
    await administration(harness.broker).topics.terminate(T)
    await client.expect(Type.CLOSE_PRODUCER)
    acknowledge(client, message)
    assert (await client.expect(Type.REACHED_END_OF_TOPIC)).reachedEndOfTopic.consumer_id == 0
    # Whoever subscribes to what is drained hears of it right away.
    await subscribe(client, consumer_id=1)
    assert (await client.expect(Type.REACHED_END_OF_TOPIC)).reachedEndOfTopic.consumer_id == 1


async def test_all_partitions_are_terminated_together(harness: Harness) -> None:
    await harness.broker.partitions.create(PARENT, 3)
    ends = await administration(harness.broker).topics.terminate_partitions(PARENT)
    assert {index: position.entry_id for index, position in ends.items()} == {0: -1, 1: -1, 2: -1}


# -- delete -----------------------------------------------------------------------------------------------------------


async def test_a_topic_in_use_is_deleted_by_force_only(harness: Harness, client: Client) -> None:
    with pytest.raises(PreconditionFailed, match="Including 0 consumers, 1 producers"):
        await administration(harness.broker).topics.delete(T)
    await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
    await subscribe(client)
    with pytest.raises(PreconditionFailed):
        await administration(harness.broker).topics.delete(T)
    await administration(harness.broker).topics.delete(T, force=True)
    await client.expect(Type.CLOSE_CONSUMER)
    assert harness.broker.catalog.topic(TOPIC) is None
    with pytest.raises(TopicNotFound):
        await administration(harness.broker).topics.delete(T, force=True)


async def test_a_subscription_without_consumers_goes_with_its_topic_loaded_or_not(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await administration(harness.broker).subscriptions.create(T, "s")
    async with running(tmp_path) as harness:
        assert harness.broker.topics.get(T) is None
        await administration(harness.broker).topics.delete(T)
        await administration(harness.broker).topics.create(T)
        assert await administration(harness.broker).subscriptions.names(T) == []


async def test_what_was_granted_on_a_topic_alone_goes_with_it(harness: Harness) -> None:
    broker = harness.broker
    await broker.partitions.create(PARENT, 2)
    for name in (PARENT, PARENT.of_partition(1)):
        await broker.permissions.grant_topic(name, "alice", ["produce"])
    await administration(broker).topics.delete_partitioned(PARENT)
    await broker.partitions.create(PARENT, 2)
    assert broker.permissions.get_topic(PARENT.of_partition(1)) == {}


async def test_a_topic_that_is_made_again_has_another_ledger_and_nothing_of_the_old_one(
    harness: Harness, client: Client
) -> None:
    broker = harness.broker
    await subscribe(client, permits=0)
    await client.published(b"a", b"b")
    old = topic_of(harness)
    await administration(broker).topics.terminate(T)
    await administration(broker).topics.delete(T, force=True)
    assert not broker.catalog.documents("topic-state")
    other = await Client.producing(harness.port)
    await other.close()
    new = topic_of(harness)
    assert new.ledger_id > old.ledger_id
    assert (new.last_entry_id, new.terminated, list(new.subscriptions)) == (-1, False, [])
    await broker.reads.settled()
    assert old.ledger_id not in broker.log.ledgers()


async def test_a_delete_that_the_disk_refuses_leaves_the_topic_as_it_was(harness: Harness) -> None:
    broker = harness.broker
    await administration(broker).topics.create(T)
    broker.catalog.close()  # From now on it refuses every change.
    with pytest.raises((MetadataFailed, RuntimeError)):
        await administration(broker).topics.delete(T)
    topic = topic_of(harness)
    assert not topic.fenced


async def test_a_delete_goes_on_when_whoever_asked_for_it_goes_away(harness: Harness, client: Client) -> None:
    harness.disk.hold()
    client.publish(b"a")
    topic = topic_of(harness)
    await until(lambda: topic.next_entry_id == 1)
    deleting = asyncio.ensure_future(administration(harness.broker).topics.delete(T, force=True))
    await turns()
    deleting.cancel()
    harness.disk.release()
    await until(lambda: harness.broker.topics.get(T) is None)
    assert harness.broker.catalog.topic(TOPIC) is None


async def test_partitions_go_with_their_partitioned_topic_and_are_not_made_again_meanwhile(harness: Harness) -> None:
    broker = harness.broker
    await broker.partitions.create(PARENT, 30)
    client = await Client.connected(harness.port)
    await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(PARENT.of_partition(7)), producer_id=0)
    with pytest.raises(PreconditionFailed):
        await administration(broker).topics.delete_partitioned(PARENT)
    assert broker.partitions.count(PARENT) == 30
    deleting = asyncio.ensure_future(administration(broker).topics.delete_partitioned(PARENT, force=True))
    asked = []
    while not deleting.done():
        # A client that comes back at once, and asks first how many partitions there are.
        try:
            asked.append(await broker.partitions.for_client(PARENT, create=True))
            await broker.topics.get_or_create(PARENT.of_partition(7), create=True)
        except (TopicNotFound, NotAllowed):
            pass
        await asyncio.sleep(0)
    await deleting
    assert await list_topics(broker, PARENT.namespace_name) == []
    assert administration(broker).topics.list_partitioned(PARENT.namespace_name) == []


@pytest.mark.parametrize("partitioned_first", [False, True])
async def test_a_name_does_not_become_a_topic_and_a_partitioned_topic_at_once(
    harness: Harness, *, partitioned_first: bool
) -> None:
    broker = harness.broker
    makers = [administration(broker).topics.create(T), administration(broker).topics.create_partitioned(T, 2)]
    with harness.catalog_held():
        making = []
        for maker in reversed(makers) if partitioned_first else makers:
            making.append(asyncio.ensure_future(maker))
            await turns(2)
    outcomes = await asyncio.gather(*making, return_exceptions=True)
    assert outcomes[0] is None
    assert isinstance(outcomes[1], (AlreadyExists, NotAllowed))
    assert (broker.partitions.count(T) > 0) is partitioned_first
    assert broker.topics.exists(T) is not partitioned_first


async def test_partitions_that_a_growth_left_behind_go_with_their_partitioned_topic(harness: Harness) -> None:
    broker = harness.broker
    await broker.partitions.create(PARENT, 2)
    # A crash between the partitions and the document that counts them.
    await broker.topics.create(PARENT.of_partition(2), {})
    await broker.topics.create(TopicName.parse("persistent://public/default/p-partition-x"), {})
    await administration(broker).topics.delete_partitioned(PARENT)
    left = await list_topics(broker, PARENT.namespace_name)
    assert left == ["persistent://public/default/p-partition-x"]


async def test_a_partitioned_topic_that_is_deleted_while_it_grows_leaves_nothing(harness: Harness) -> None:
    broker = harness.broker
    await broker.partitions.create(PARENT, 1)
    with harness.catalog_held():
        growing = asyncio.ensure_future(administration(broker).topics.update_partitioned(PARENT, 3))
        await turns(2)
        deleting = asyncio.ensure_future(administration(broker).topics.delete_partitioned(PARENT))
        await turns(2)
    await deleting
    with pytest.raises(NotFound):
        await growing
    assert await list_topics(broker, PARENT.namespace_name) == []
    assert administration(broker).topics.list_partitioned(PARENT.namespace_name) == []


async def test_growth_and_the_end_of_what_is_in_its_way_do_not_wait_for_each_other(tmp_path: Path) -> None:
    left_behind = PARENT.of_partition(1)
    async with running(tmp_path) as harness:
        broker = harness.broker
        await broker.partitions.create(PARENT, 1)
        await broker.topics.create(left_behind, {})
        await broker.permissions.grant_topic(left_behind, "somebody", ["consume"])
        with harness.catalog_held():
            deleting = asyncio.ensure_future(administration(broker).topics.delete(left_behind))
            await turns(2)
            growing = asyncio.ensure_future(administration(broker).topics.update_partitioned(PARENT, 2))
            await turns(2)
        async with asyncio.timeout(60):
            await deleting
            await growing
        assert broker.partitions.count(PARENT) == 2
        assert broker.topics.exists(left_behind)


# -- a crash between the catalog and the log --------------------------------------------------------------------------


@pytest.mark.real
async def test_a_ledger_that_a_crash_left_behind_is_given_up_at_the_next_start(tmp_path: Path) -> None:
    async with producing(tmp_path) as (harness, client):
        await client.published(b"a", b"b")
        ledger_id = topic_of(harness).ledger_id
    # The catalog has forgotten the topic, durably; the process died before the log heard of it.
    done: list[object] = []
    calls: list[Callable[[], None]] = []
    catalog = Catalog.open(DataDirectory(tmp_path / "data"), calls.append)
    catalog.delete_topic(TOPIC, done.append)
    catalog.close()
    for call in calls:
        call()
    assert done == [None]
    async with running(tmp_path) as harness:
        await harness.broker.reads.settled()
        assert ledger_id not in harness.broker.log.ledgers()
        # And only that: a new topic of the same name lives.
        await harness.broker.topics.get_or_create(T, create=True)


@pytest.mark.real
async def test_a_catalog_that_is_older_than_the_log_costs_no_message(tmp_path: Path) -> None:
    async with producing(tmp_path) as (harness, client):
        await client.published(b"a", b"b")
        ledger_id = topic_of(harness).ledger_id
    current, copy = tmp_path / "data" / "meta.sqlite", tmp_path / "meta.sqlite"
    current.rename(copy)
    for _ in range(2):  # It stays so, also when the newer catalog has given out ids itself.
        async with producing(tmp_path) as (harness, client):
            topic = topic_of(harness)
            assert topic.ledger_id > ledger_id
            await client.published(b"c")
            await harness.broker.reads.settled()
            assert harness.broker.log.ledgers() == {ledger_id, topic.ledger_id}
    copy.replace(current)
    async with running(tmp_path) as harness:
        assert await entries_of(harness) == [0, 1]


async def test_a_compacted_ledger_belongs_to_its_topic(tmp_path: Path) -> None:
    async with producing(tmp_path) as (harness, client):
        await client.published(b"a")
        broker = harness.broker
        taken: list[int] = []
        await broker.changes.stored(lambda done: broker.catalog.take_ledger_id(taken.append, done))
        stored = asyncio.Event()
        data = entry(b"compacted")
        run = AppendRun(
            groups=[(taken[0], 0, 1)],
            offsets=[0],
            lengths=[len(data)],
            message_counts=None,
            data=data,
            done=lambda _run, _error: stored.set(),
        )
        broker.log.append(run)
        await stored.wait()
        topic = topic_of(harness)
        await broker.states.change(topic, **{COMPACTED_LEDGER: taken[0]})
        assert taken[0] in ledgers_in_use(broker.catalog)
    async with running(tmp_path) as harness:
        broker = harness.broker
        await broker.reads.settled()
        assert taken[0] in broker.log.ledgers()
        await administration(broker).topics.delete(T)
        await broker.reads.settled()
        assert broker.log.ledgers() == set()


def test_a_kill_among_deletes_leaves_each_topic_whole_or_gone(own_broker: BrokerProcess) -> None:
    names = [f"persistent://public/default/t-{index}" for index in range(12)]
    with RawClient(own_broker.port) as client:
        for index, name in enumerate(names):
            client.produce(name, producer_id=index)
            assert client.publish([b"a", b"b", b"c"], producer_id=index) == [0, 1, 2]
    base = f"{own_broker.admin_url}/admin/v2/persistent/public/default"

    async def delete_some_and_kill() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            first = await http.delete(f"{base}/t-0")  # The admin port is up by now.
            assert first.status_code == 204, first.text
            deletes = [asyncio.ensure_future(http.delete(f"{base}/t-{index}")) for index in range(1, 12)]
            await asyncio.wait(deletes, return_when=asyncio.FIRST_COMPLETED)
            own_broker.kill()
            done = await asyncio.gather(*deletes, return_exceptions=True)
            answered = [i for i, one in enumerate(done, 1) if not isinstance(one, BaseException)]
            gone.update(f"persistent://public/default/t-{i}" for i in (0, *answered))

    gone: set[str] = set()
    asyncio.run(delete_some_and_kill())
    own_broker.start()
    with RawClient(own_broker.port) as client:
        for index, name in enumerate(names):
            try:
                client.subscribe(name, "s", consumer_id=index, force_topic_creation=False)
            except Refused as refused:
                assert refused.code == WireCode.TOPIC_NOT_FOUND  # noqa: PT017
                continue
            assert name not in gone
            assert [client.message().command.message.message_id.entryId for _ in range(3)] == [0, 1, 2]


# -- states of topics -------------------------------------------------------------------------------------------------


async def test_two_changes_of_one_topics_state_at_a_time_are_both_kept(harness: Harness) -> None:
    states = harness.broker.states
    topic = await harness.broker.topics.get_or_create(T, create=True)
    await asyncio.gather(states.change(topic, a=1), states.change(topic, b=2), states.change(topic, c=3))
    assert states.of(TOPIC) == {"a": 1, "b": 2, "c": 3}
    await asyncio.gather(states.change(topic, a=None), states.change(topic, b=None, c=4))
    assert states.of(TOPIC) == {"c": 4}
    await states.change(topic, c=None)
    assert TOPIC not in harness.broker.catalog.documents("topic-state")


async def test_a_change_that_nobody_waits_for_any_more_is_kept_by_the_next(harness: Harness) -> None:
    states = harness.broker.states
    topic = await harness.broker.topics.get_or_create(T, create=True)
    with harness.catalog_held():
        given_up = asyncio.ensure_future(states.change(topic, epoch=7))
        await turns(2)
        given_up.cancel()
        await asyncio.wait((given_up,))
        next_one = asyncio.ensure_future(states.change(topic, terminated=True))
        await turns(2)
    await next_one
    assert states.of(TOPIC) == {"epoch": 7, "terminated": True}


async def test_what_is_said_too_late_of_a_deleted_topic_is_not_said_of_the_next_of_its_name(harness: Harness) -> None:
    broker = harness.broker
    await broker.policies.set_namespace("public/default", "deduplication", value=True)
    old = await broker.topics.get_or_create(T, create=True)
    await broker.deduplication.ready(old)
    known = old.deduplication
    assert known is not None
    known.ids.persist("p", 1000)
    await broker.topic_life.delete(T, force=True)
    new = await broker.topics.get_or_create(T, create=True)
    with pytest.raises(TopicNotFound):
        await broker.states.change(old, terminated=True, compacted_ledger=99)
    old.closed = False  # As if it was about to store what it knows when the topic went.
    await broker.deduplication._store(old, known)  # noqa: SLF001
    assert broker.states.of(TOPIC) == {}
    await broker.topic_life.unload(new.name)
    loaded = await broker.topics.get_or_create(T, create=False)
    assert (loaded.terminated, loaded.compacted) == (False, None)
    await broker.deduplication.ready(loaded)
    assert loaded.deduplication is not None
    assert loaded.deduplication.ids.highest_persisted("p") == -1


async def test_a_topic_that_is_unloaded_meanwhile_is_terminated_whole_or_not(harness: Harness) -> None:
    broker = harness.broker
    topic = await broker.topics.get_or_create(T, create=True)
    harness.disk.hold()
    terminating = asyncio.ensure_future(harness.broker.topic_life.terminate(topic))
    await turns(2)
    unloading = asyncio.ensure_future(broker.topic_life.unload(T))
    await until(lambda: topic.fenced)
    harness.disk.release()
    outcome = (await asyncio.gather(terminating, unloading, return_exceptions=True))[0]
    loaded = await broker.topics.get_or_create(T, create=False)
    assert loaded is not topic
    assert loaded.terminated is not isinstance(outcome, ServiceNotReady)


# -- asked for while it goes ------------------------------------------------------------------------------------------


async def test_who_waits_for_the_end_of_a_delete_makes_the_topic_again_only_if_policies_let_it(
    harness: Harness,
) -> None:
    broker = harness.broker
    await administration(broker).topics.create(T)
    await broker.policies.set_namespace(
        "public/default", "autoTopicCreation", {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
    )
    with harness.catalog_held():
        deleting = asyncio.ensure_future(administration(broker).topics.delete(T))
        await until(lambda: (topic := broker.topics.get(T)) is not None and topic.fenced)
        asking = asyncio.ensure_future(broker.topics.get_or_create(T, create=True))
        await turns(2)
    await deleting
    with pytest.raises(TopicNotFound):
        await asking


async def test_who_only_looks_at_a_topic_that_is_being_deleted_does_not_bring_it_back(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await administration(harness.broker).topics.create(T)
    async with running(tmp_path) as harness:  # It is not loaded.
        broker = harness.broker
        with harness.catalog_held():
            deleting = asyncio.ensure_future(administration(broker).topics.delete(T))
            await turns(2)
            looks = [
                asyncio.ensure_future(administration(broker).stats.of_topic(T)),
                asyncio.ensure_future(administration(broker).messages.last_id(T)),
                asyncio.ensure_future(administration(broker).topics.trim(T)),
            ]
            await turns(2)
        await deleting
        for outcome in await asyncio.gather(*looks, return_exceptions=True):
            assert isinstance(outcome, TopicNotFound)
        assert not broker.topics.exists(T)


# -- truncate ---------------------------------------------------------------------------------------------------------


async def test_a_truncated_topic_has_no_messages_and_goes_on_counting(tmp_path: Path) -> None:
    async with producing(tmp_path) as (harness, client):
        await subscribe(client, permits=0)
        await client.published(b"a", b"b", b"c")
        await administration(harness.broker).topics.truncate(T)
        assert await administration(harness.broker).messages.last_id(T) == (Position(-1, -1), -1)
        assert await entries_of(harness) == []
    async with running(tmp_path) as harness:
        topic = await harness.broker.topics.get_or_create(T, create=False)
        assert (topic.next_entry_id, topic.subscriptions["s"].backlog) == (3, 0)


# -- topics that nobody uses ------------------------------------------------------------------------------------------


async def unused_for(harness: Harness, seconds: int, *, start_s: int = 10**6) -> None:
    """Let time pass for the broker's housekeeping, and let it look before and after."""
    broker = harness.broker
    look = InactiveTopics(
        topics=broker.topics,
        life=broker.topic_life,
        partitions=broker.partitions,
        policies=broker.policies,
        changes=broker.changes,
        limits=lambda: broker.limits,
        stopping=lambda: broker.stopping,
        now_ns=harness.clock.monotonic_ns(),
    )
    for now_s in (0, 60, 60 + seconds):
        look.tick((start_s + now_s) * NS_PER_S)
        await until(lambda: not look._looking)  # noqa: SLF001


async def test_a_topic_that_nobody_uses_goes(harness: Harness, client: Client) -> None:
    await unused_for(harness, 3600)
    assert harness.broker.topics.get(T) is not None, "it has a producer"
    await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
    await unused_for(harness, 60, start_s=2 * 10**6)
    assert not harness.broker.topics.exists(T)


@pytest.mark.parametrize(
    ("mode", "backlog", "goes"),
    [
        ("delete_when_no_subscriptions", 0, False),
        ("delete_when_no_subscriptions", 1, False),
        ("delete_when_subscriptions_caught_up", 0, True),
        ("delete_when_subscriptions_caught_up", 1, False),
    ],
)
async def test_a_subscription_or_its_backlog_keeps_a_topic(
    tmp_path: Path, mode: str, backlog: int, *, goes: bool
) -> None:
    defaults = PolicyDefaults(broker_delete_inactive_topics_mode=mode)
    async with producing(tmp_path, policies=defaults) as (harness, client):
        await administration(harness.broker).subscriptions.create(T, "s")
        client.publish(*backlog * [b"a"])
        await client.receipts(backlog)
        await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)
        await unused_for(harness, 60)
        assert harness.broker.topics.exists(T) is not goes


async def published_and_left(harness: Harness, client: Client, *, topic: TopicName = T) -> None:
    """Three messages are acknowledged to their producer, which goes."""
    await client.published(b"a", b"b", b"c")
    await client.request(Type.CLOSE_PRODUCER, Type.SUCCESS, producer_id=0)


async def test_acknowledged_messages_that_nobody_subscribed_to_stay_by_default(
    harness: Harness, client: Client
) -> None:
    await published_and_left(harness, client)
    await unused_for(harness, 10**5)
    topic = topic_of(harness)
    assert (topic.first_entry_id, topic.last_entry_id) == (0, 2)


@pytest.mark.parametrize("where", ["mode", "namespace", "topic"])
async def test_a_topic_goes_with_its_messages_where_an_operator_said_so(tmp_path: Path, where: str) -> None:
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 60,
        "deleteWhileInactive": True,
    }
    async with producing(tmp_path, delete_inactive_with_messages=where == "mode") as (harness, client):
        if where == "namespace":
            await harness.broker.policies.set_namespace("public/default", "inactiveTopicPolicies", policy)
        if where == "topic":
            await harness.broker.policies.set_topic(T, "inactiveTopicPolicies", policy)
        await published_and_left(harness, client)
        await unused_for(harness, 60)
        assert not harness.broker.topics.exists(T)


async def test_a_topic_goes_by_default_once_its_last_subscription_has_acknowledged_everything_and_left(
    harness: Harness,
    client: Client,
) -> None:
    await administration(harness.broker).subscriptions.create(T, "s")
    await published_and_left(harness, client)
    topic = topic_of(harness)
    topic.subscriptions["s"].moves.skip_all()
    await harness.broker.subscription_store.delete(topic.subscriptions["s"])
    await unused_for(harness, 60)
    assert not harness.broker.topics.exists(T)


async def test_a_topic_stays_while_retention_says_so_or_nothing_is_to_be_deleted(harness: Harness) -> None:
    broker = harness.broker
    for name in ("kept", "off", "non-persistent://public/default/n"):
        await broker.topics.get_or_create(TopicName.parse(name), create=True)
    await broker.policies.set_topic(
        "persistent://public/default/kept", "retention", {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1}
    )
    await broker.policies.set_topic(
        "persistent://public/default/off",
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 1,
            "deleteWhileInactive": False,
        },
    )
    await unused_for(harness, 60)
    left = {topic.name.local for topic in broker.topics.loaded()}
    assert left == {"kept", "off"}
    await unused_for(harness, 600, start_s=2 * 10**6)
    assert {topic.name.local for topic in broker.topics.loaded()} == {"off"}


async def test_a_topic_that_is_loaded_to_be_looked_at_was_not_unused_since_the_beginning_of_time(
    harness: Harness,
) -> None:
    broker = harness.broker
    harness.clock.advance(ns=10**6 * NS_PER_S)
    await administration(broker).topics.create(T)
    topic = topic_of(harness)
    now_ns = harness.clock.monotonic_ns()
    assert not harness.broker.inactive.is_due(topic, now_ns + 59 * NS_PER_S)
    assert harness.broker.inactive.is_due(topic, now_ns + 60 * NS_PER_S)


async def test_somebody_who_asked_for_a_topic_since_the_last_look_has_used_it(harness: Harness) -> None:
    topic = await harness.broker.topics.get_or_create(T, create=True)
    assert not harness.broker.inactive.is_due(topic, 10**6 * NS_PER_S)
    await harness.broker.topics.get_or_create(T, create=True)
    assert not harness.broker.inactive.is_due(topic, (10**6 + 3600) * NS_PER_S)
    assert harness.broker.inactive.is_due(topic, (10**6 + 7200) * NS_PER_S)


@pytest.mark.parametrize("forget", [False, True])
async def test_an_empty_partitioned_topic_goes_with_its_last_partition_only_if_told_so(
    tmp_path: Path, *, forget: bool
) -> None:
    async with running(tmp_path, delete_inactive_partitioned=forget) as harness:
        await harness.broker.partitions.create(PARENT, 2)
        await unused_for(harness, 60)
        assert not harness.broker.topics.loaded()
        assert (harness.broker.partitions.count(PARENT) == 0) is forget


async def test_messages_that_a_deleted_subscription_acknowledged_can_still_be_looked_at(
    harness: Harness, client: Client
) -> None:
    await administration(harness.broker).subscriptions.create(T, "s")
    await published_and_left(harness, client)
    await administration(harness.broker).subscriptions.skip_all(T, "s")
    await administration(harness.broker).subscriptions.delete(T, "s")
    message = await administration(harness.broker).messages.examine(T, "earliest", 1)
    assert message.entry_id == 0
