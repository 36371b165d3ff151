# SPDX-License-Identifier: Apache-2.0
"""Finding topics: what exists, what is made on the way, what is partitioned, and what clients are told of it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.policies.policy_defaults import PolicyDefaults
from penstock.core.errors import NotAllowed, TopicNotFound, WireCode
from penstock.core.names import NamespaceName, TopicName
from penstock.core.units import KIB, MIB
from penstock.net.listing_memory import NOBODY
from penstock.testing.client import Type
from tests.broker.listed import list_topics
from tests.net.harness import Client, Harness, running, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

T = TopicName.parse("persistent://public/default/t")
PARENT = TopicName.parse("persistent://public/default/p")
PARTITIONED = PolicyDefaults(allow_auto_topic_creation_type="partitioned", default_num_partitions=4)
NAMESPACE = NamespaceName.parse("public/default")


@asynccontextmanager
async def connected(directory: Path, **limits: Any) -> AsyncIterator[tuple[Harness, Client]]:  # noqa: ANN401
    async with running(directory, **limits) as harness:
        client = await Client.connected(harness.port)
        yield harness, client
        await client.close()


async def refusal(client: Client, kind: int, **fields: Any) -> Any:  # noqa: ANN401
    return (await client.request(kind, Type.ERROR, **fields)).error


async def lookup(client: Client, topic: str, **fields: Any) -> Any:  # noqa: ANN401
    return (await client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=topic, **fields)).lookupTopicResponse


async def ask_partitions(client: Client, topic: TopicName | str, **fields: Any) -> Any:  # noqa: ANN401
    answer = await client.request(
        Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, topic=str(topic), **fields
    )
    return answer.partitionMetadataResponse


async def list_names(client: Client, **fields: Any) -> Any:  # noqa: ANN401
    fields.setdefault("namespace", "public/default")
    answer = await client.request(Type.GET_TOPICS_OF_NAMESPACE, Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, **fields)
    return answer.getTopicsOfNamespaceResponse


# -- tenants and namespaces -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "words"),
    [("persistent://nobody/ns/t", "Tenant nobody does not exist"), ("persistent://public/no/t", "Namespace not found")],
)
async def test_nothing_is_found_or_made_where_there_is_no_such_place(tmp_path: Path, topic: str, words: str) -> None:
    async with connected(tmp_path) as (harness, client):
        answer = await lookup(client, topic)
        assert (answer.error, words in answer.message) == (WireCode.TOPIC_NOT_FOUND, True)
        answer = await ask_partitions(client, topic)
        assert (answer.error, words in answer.message) == (WireCode.TOPIC_NOT_FOUND, True)
        for kind, fields in (
            (Type.PRODUCER, {"producer_id": 0}),
            (Type.SUBSCRIBE, {"subscription": "s", "consumer_id": 0, "subType": 0}),
        ):
            error = await refusal(client, kind, topic=topic, **fields)
            assert (error.error, words in error.message) == (WireCode.TOPIC_NOT_FOUND, True)
        assert not harness.broker.topics.loaded()


@pytest.mark.parametrize("namespace", ["public/default", "pulsar/system"])
async def test_the_namespaces_of_pulsar_are_there_from_the_first_start(tmp_path: Path, namespace: str) -> None:
    async with connected(tmp_path) as (_, client):
        assert (await lookup(client, f"persistent://{namespace}/t")).response == 1


async def test_a_namespace_takes_topics_as_soon_as_it_is_made(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await administration(harness.broker).tenants.create("acme", {"allowedClusters": ["test"]})
        await administration(harness.broker).namespaces.create(NamespaceName.parse("acme/sales"))
        await client.request(
            Type.PRODUCER, Type.PRODUCER_SUCCESS, topic="persistent://acme/sales/orders", producer_id=0
        )
        assert await list_topics(harness.broker, NamespaceName.parse("acme/sales")) == [
            "persistent://acme/sales/orders"
        ]


# -- lookup -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", ["t", "foo-.*", r"(a|b)\d+[^x]{2,}?", "foo-partition-.*"])
async def test_a_lookup_takes_any_name_and_makes_nothing(tmp_path: Path, local: str) -> None:
    async with connected(tmp_path) as (harness, client):
        answer = await lookup(client, f"persistent://public/default/{local}")
        assert (answer.response, answer.authoritative, answer.proxy_through_service_url) == (1, True, False)
        assert not harness.broker.topics.exists(TopicName("persistent", "public", "default", local))


async def test_a_blank_listener_is_none_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        assert (await lookup(client, str(T), advertised_listener_name="")).response == 1
        assert (await lookup(client, str(T), advertised_listener_name=" ")).response == 1
        answer = await lookup(client, str(T), advertised_listener_name="inside")
        # The C++ client goes by both: with MetadataError it asks again until it gives up.
        assert (answer.response, answer.error) == (2, WireCode.SERVICE_NOT_READY)
        assert answer.message == "the broker do not have inside listener"
        assert "inside" in answer.message


async def test_too_many_lookups_at_a_time_are_refused_and_their_places_come_back(tmp_path: Path) -> None:
    async with connected(tmp_path, lookups_max=1) as (harness, client):
        broker = harness.broker
        with broker.lookups.enter_or_refuse("lookup", "key"):
            assert (await lookup(client, str(T))).error == WireCode.TOO_MANY_REQUESTS
            assert (await ask_partitions(client, T)).error == WireCode.TOO_MANY_REQUESTS
            error = await refusal(client, Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default")
            assert error.error == WireCode.TOO_MANY_REQUESTS
            error = await refusal(
                client, Type.WATCH_TOPIC_LIST, watcher_id=0, namespace="public/default", topics_pattern=".*"
            )
            assert error.error == WireCode.TOO_MANY_REQUESTS
        # Those that fail give their place back as well.
        assert (await lookup(client, "persistent://nobody/ns/t")).error == WireCode.TOPIC_NOT_FOUND
        assert (await lookup(client, "a/b")).error == WireCode.INVALID_TOPIC_NAME
        assert (await refusal(client, Type.GET_TOPICS_OF_NAMESPACE, namespace="//")).error
        assert (await lookup(client, str(T))).response == 1
        assert broker.lookups.inside == 0


# -- made on the way --------------------------------------------------------------------------------------------------


async def test_many_who_ask_for_one_topic_at_a_time_get_one(harness: Harness) -> None:
    got = await asyncio.gather(*(harness.broker.topics.get_or_create(T, create=True) for _ in range(50)))
    assert len({id(topic) for topic in got}) == 1


async def test_whoever_may_create_does_also_while_somebody_who_may_not_asks(harness: Harness) -> None:
    topics = harness.broker.topics
    refused, made = await asyncio.gather(
        topics.get_or_create(T, create=False), topics.get_or_create(T, create=True), return_exceptions=True
    )
    assert isinstance(refused, TopicNotFound)
    assert topics.get(T) is made


async def test_topics_are_made_on_the_way_only_where_policies_let_them(tmp_path: Path) -> None:
    async with connected(tmp_path, policies=PolicyDefaults(allow_auto_topic_creation=False)) as (harness, client):
        error = await refusal(client, Type.PRODUCER, topic=str(T), producer_id=0)
        assert error.error == WireCode.TOPIC_NOT_FOUND
        assert (await ask_partitions(client, T)).error == WireCode.TOPIC_NOT_FOUND
        await harness.broker.policies.set_namespace(
            "public/default", "autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}
        )
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(T), producer_id=0)


async def test_loads_of_topics_wait_for_their_turn(tmp_path: Path) -> None:
    async with running(tmp_path, topic_loads_max=3) as harness:
        names = [TopicName.parse(f"t-{i}") for i in range(40)]
        await asyncio.gather(*(harness.broker.topics.get_or_create(name, create=True) for name in names))
        assert len(harness.broker.topics) == 40


async def test_a_namespace_takes_no_more_topics_than_it_may(tmp_path: Path) -> None:
    async with connected(tmp_path, policies=PolicyDefaults(max_topics_per_namespace=3)) as (harness, client):
        broker = harness.broker
        await broker.partitions.create(PARENT, 2)
        await administration(broker).topics.create(T)
        for attempt in (
            administration(broker).topics.create(TopicName.parse("another")),
            broker.partitions.create(TopicName.parse("q"), 1),
            broker.partitions.grow(PARENT, 3),
        ):
            with pytest.raises(NotAllowed, match=r"Exceed maximum number of topics in namespace\."):
                await attempt
        error = await refusal(client, Type.PRODUCER, topic="another", producer_id=0)
        assert error.error == WireCode.NOT_ALLOWED_ERROR
        await administration(broker).topics.delete(T)
        await administration(broker).topics.create(TopicName.parse("another"))


# -- partitioned topics -----------------------------------------------------------------------------------------------


async def test_the_partitions_of_a_partitioned_topic_are_made_with_it(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await harness.broker.partitions.create(PARENT, 3, {"team": "a"})
        assert (await ask_partitions(client, PARENT)).partitions == 3
        assert list((await list_names(client)).topics) == [f"{PARENT}-partition-{index}" for index in range(3)]
        assert administration(harness.broker).topics.get_properties(PARENT) == {"team": "a"}


async def test_nobody_uses_the_name_of_a_partitioned_topic_or_a_partition_it_does_not_have(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await harness.broker.partitions.create(PARENT, 2)
        for name, words in (
            (PARENT, "Found partitioned metadata for non-partitioned topic"),
            (PARENT.of_partition(2), "with max allowed 2 partitions"),
            (TopicName.parse("nothing-partition-0"), "Partition metadata not found for the partitioned topic"),
        ):
            for kind, fields in (
                (Type.PRODUCER, {"producer_id": 0}),
                (Type.SUBSCRIBE, {"subscription": "s", "consumer_id": 0, "subType": 0}),
            ):
                error = await refusal(client, kind, topic=str(name), **fields)
                assert error.error == WireCode.NOT_ALLOWED_ERROR
                assert words in error.message
            assert not harness.broker.topics.exists(name)


async def test_a_partition_that_was_not_made_yet_is_made_by_who_uses_it_first(tmp_path: Path) -> None:
    async with connected(tmp_path, policies=PARTITIONED) as (harness, client):
        assert (await ask_partitions(client, PARENT, metadata_auto_creation_enabled=True)).partitions == 4
        assert list((await list_names(client)).topics) == []
        partition = PARENT.of_partition(3)
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(partition), producer_id=0)
        assert list((await list_names(client)).topics) == [str(partition)]
        await administration(harness.broker).topics.create_missed_partitions(PARENT)
        assert len((await list_names(client)).topics) == 4


async def test_asking_for_partitions_makes_a_partitioned_topic_only_where_and_when_it_should(tmp_path: Path) -> None:
    async with connected(tmp_path, policies=PARTITIONED) as (harness, client):
        answer = await ask_partitions(client, PARENT, metadata_auto_creation_enabled=False)
        assert answer.error == WireCode.TOPIC_NOT_FOUND
        await administration(harness.broker).topics.create(T)
        assert (await ask_partitions(client, T)).partitions == 0
        # What the namespace says goes before what the broker says.
        await harness.broker.policies.set_namespace(
            "public/default",
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2},
        )
        assert (await ask_partitions(client, PARENT)).partitions == 2
        await harness.broker.policies.set_namespace(
            "public/default", "autoTopicCreation", {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
        )
        assert (await ask_partitions(client, "q")).error == WireCode.TOPIC_NOT_FOUND


async def test_many_who_ask_for_partitions_at_a_time_make_one_partitioned_topic(tmp_path: Path) -> None:
    async with running(tmp_path, policies=PARTITIONED, partitions_max=3) as harness:
        asked = (harness.broker.partitions.for_client(PARENT, create=True) for _ in range(20))
        assert set(await asyncio.gather(*asked)) == {3}


async def test_partitioned_topics_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await harness.broker.partitions.create(PARENT, 2, {"a": "b"})
    async with connected(tmp_path) as (harness, client):
        assert (await ask_partitions(client, PARENT)).partitions == 2
        assert administration(harness.broker).topics.list_partitioned(NAMESPACE) == [str(PARENT)]


async def test_a_partitioned_topic_that_is_not_persistent_has_partitions_while_they_are_used(tmp_path: Path) -> None:
    parent = TopicName.parse("non-persistent://public/default/p")
    async with connected(tmp_path) as (harness, client):
        await harness.broker.partitions.create(parent, 2)
        assert (await ask_partitions(client, parent)).partitions == 2
        await client.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=str(parent.of_partition(1)), producer_id=0)
        assert list((await list_names(client, mode=1)).topics) == [str(parent.of_partition(1))]
        assert (
            await refusal(client, Type.PRODUCER, topic=str(parent), producer_id=1)
        ).error == WireCode.NOT_ALLOWED_ERROR


# -- GET_TOPICS_OF_NAMESPACE ------------------------------------------------------------------------------------------


async def test_a_list_is_filtered_by_a_pattern_and_hashed_after_that(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        for name in ("a-1", "a-2", "b-1"):
            await administration(harness.broker).topics.create(TopicName.parse(name))
        whole = await list_names(client)
        assert (len(whole.topics), whole.filtered, whole.changed) == (3, False, True)
        some = await list_names(client, topics_pattern="public/default/a-.*")
        assert [name.rpartition("/")[2] for name in some.topics] == ["a-1", "a-2"]
        assert (some.filtered, some.changed) == (True, True)
        assert some.topics_hash != whole.topics_hash
        same = await list_names(client, topics_pattern="public/default/a-.*", topics_hash=some.topics_hash)
        assert (list(same.topics), same.changed, same.topics_hash) == ([], False, some.topics_hash)
        other = await list_names(client, topics_pattern="public/default/a-.*", topics_hash=whole.topics_hash)
        assert (len(other.topics), other.changed) == (2, True)


@pytest.mark.parametrize("pattern", ["public/default/" + 40 * "a?", "public/default/(?!a).*"])
async def test_what_the_broker_does_not_filter_the_client_does(tmp_path: Path, pattern: str) -> None:
    async with connected(tmp_path) as (harness, client):
        await administration(harness.broker).topics.create(T)
        answer = await list_names(client, topics_pattern=pattern)
        assert (list(answer.topics), answer.filtered) == ([str(T)], False)


async def test_a_broken_pattern_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        error = await refusal(
            client, Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default", topics_pattern="public/default/("
        )
        assert error.error == WireCode.INVALID_TOPIC_NAME


async def test_a_namespace_that_is_not_there_has_no_topics(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client):
        answer = await list_names(client, namespace="public/nothing")
        assert (list(answer.topics), answer.topics_hash) == ([], "00000000")


# -- WATCH_TOPIC_LIST -------------------------------------------------------------------------------------------------


async def watch(client: Client, watcher_id: int = 7, pattern: str = "public/default/a.*", **fields: Any) -> Any:  # noqa: ANN401
    answer = await client.request(
        Type.WATCH_TOPIC_LIST,
        Type.WATCH_TOPIC_LIST_SUCCESS,
        watcher_id=watcher_id,
        namespace="public/default",
        topics_pattern=pattern,
        **fields,
    )
    return answer.watchTopicListSuccess


async def update(client: Client) -> Any:  # noqa: ANN401
    return (await client.expect(Type.WATCH_TOPIC_UPDATE)).watchTopicUpdate


async def test_a_watcher_hears_of_topics_that_come_and_go_and_of_no_others(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        broker = harness.broker
        await administration(broker).topics.create(TopicName.parse("a0"))
        began = await watch(client)
        assert (began.watcher_id, list(began.topic)) == (7, ["persistent://public/default/a0"])
        for name in ("b", "non-persistent://public/default/a", "a1"):
            await administration(broker).topics.create(TopicName.parse(name))
        came = await update(client)
        assert (came.watcher_id, list(came.new_topics), list(came.deleted_topics)) == (
            7,
            ["persistent://public/default/a1"],
            [],
        )
        assert came.topics_hash == (await list_names(client, topics_pattern="public/default/a.*")).topics_hash
        await administration(broker).topics.delete(TopicName.parse("a0"))
        went = await update(client)
        assert list(went.deleted_topics) == ["persistent://public/default/a0"]


async def test_partitions_are_told_one_by_one(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await watch(client)
        await harness.broker.partitions.create(TopicName.parse("a"), 3)
        told: list[str] = []
        while len(told) < 3:
            told += (await update(client)).new_topics
        assert sorted(told) == [f"persistent://public/default/a-partition-{index}" for index in range(3)]


async def test_a_client_that_knows_the_list_is_not_told_it_again(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await administration(harness.broker).topics.create(TopicName.parse("a0"))
        known = await watch(client)
        again = await watch(client, watcher_id=8, topics_hash=known.topics_hash)
        assert (list(again.topic), again.topics_hash) == ([], known.topics_hash)


async def test_the_same_watcher_id_again_brings_the_list_as_it_is_now(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await watch(client)
        await administration(harness.broker).topics.create(TopicName.parse("a0"))
        await update(client)
        assert list((await watch(client)).topic) == ["persistent://public/default/a0"]
        await administration(harness.broker).topics.create(TopicName.parse("a1"))
        assert list((await update(client)).new_topics) == ["persistent://public/default/a1"]


async def test_a_closed_watcher_hears_nothing_and_closing_one_that_is_not_there_succeeds(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await watch(client)
        for _ in range(2):
            await client.request(Type.WATCH_TOPIC_LIST_CLOSE, Type.SUCCESS, watcher_id=7)
        await administration(harness.broker).topics.create(TopicName.parse("a0"))
        assert (await lookup(client, str(T))).response == 1  # the next thing it hears


async def test_watchers_end_with_their_connection(tmp_path: Path) -> None:
    async with connected(tmp_path) as (harness, client):
        await watch(client)
        assert len(harness.broker.shared_listings) == 1
        client.abort()
        await until(lambda: not harness.broker.sessions)
        assert len(harness.broker.shared_listings) == 0  # nobody listens any more


@pytest.mark.parametrize(
    ("limits", "pattern", "words"),
    [
        ({"topic_list_watchers": False}, "a.*", "disabled"),
        ({"evaluate_patterns": False}, "a.*", "Evaluating subscription patterns is disabled"),
        ({"pattern_length_max": 3}, "a.*b", "Pattern longer than maximum: 3"),
        ({}, "(?!a).*", "RE2"),
    ],
)
async def test_a_watcher_that_cannot_be_is_refused_so_that_the_client_asks_for_lists(
    tmp_path: Path, limits: dict[str, Any], pattern: str, words: str
) -> None:
    async with connected(tmp_path, **limits) as (_, client):
        error = await refusal(
            client, Type.WATCH_TOPIC_LIST, watcher_id=0, namespace="public/default", topics_pattern=pattern
        )
        assert error.error == WireCode.NOT_ALLOWED_ERROR
        assert words in error.message


@pytest.mark.parametrize(
    ("domain", "limit"), [("persistent", "persistent_topics"), ("non-persistent", "non_persistent_topics")]
)
async def test_a_kind_of_topics_can_be_switched_off(tmp_path: Path, domain: str, limit: str) -> None:
    async with connected(tmp_path, **{limit: False}) as (_, client):
        error = await refusal(client, Type.PRODUCER, topic=f"{domain}://public/default/t", producer_id=0)
        assert error.error == WireCode.NOT_ALLOWED_ERROR
        assert "switched off" in error.message


async def test_a_watcher_that_does_not_read_hears_the_truth_when_it_reads_again(tmp_path: Path) -> None:
    async with connected(tmp_path, outbound_bytes=MIB) as (harness, client):
        broker = harness.broker
        await watch(client)
        (session,) = broker.sessions
        watcher = session.watchers[7]
        client.stop_reading()
        # More than the socket takes: from then on nothing is sent, and what was not told is kept once per topic.
        for number in range(3):
            await administration(broker).topics.create(TopicName.parse(f"a{number}"))
        while session.connection.writable:
            session.reply(bytes(64 * KIB))
            await asyncio.sleep(0)
        for _ in range(3):
            await administration(broker).topics.delete(TopicName.parse("a0"))
            await administration(broker).topics.create(TopicName.parse("a0"))
        await administration(broker).topics.delete(TopicName.parse("a1"))
        for number in range(100, 110):
            await administration(broker).topics.create(TopicName.parse(f"a{number}"))
            await administration(broker).topics.delete(TopicName.parse(f"a{number}"))
        await turns()
        # What happens meanwhile is kept once, for all lists.
        assert watcher._shared._changes == {}  # noqa: SLF001
        async with watcher._shared.asked(NOBODY, None) as listing:  # noqa: SLF001
            assert list(listing.names()) == [f"persistent://public/default/a{number}" for number in (0, 2)]
        client.abort()
