# SPDX-License-Identifier: Apache-2.0
"""Watchers of topic lists, when memory is short and when they are many: what they are told, and what they are charged.

In Apache Pulsar's own mechanism an update larger than the limit is never sent, what watchers remember is not charged,
one watcher's failures slow the others, and a watcher may wait longer than its client does. None of that happens here.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.topics.listing_blocks import BLOCK_BYTES, EVENTS_MAX, REFERENCE_BYTES, topics_hash
from penstock.broker.topics.patterns import Pattern
from penstock.broker.topics.shared_listings import EVENTS_PER_STEP, WATCHERS_PER_TURN
from penstock.core.errors import WireCode
from penstock.core.units import KIB, MIB, NS_PER_MS
from penstock.net.listing_memory import INITIAL_BYTES
from penstock.testing.client import Type, frame
from tests.broker.listed import (
    DIRECT,
    HEAP,
    LIMITS,
    NAMESPACE,
    acquired,
    all_taken,
    full_name,
    listed,
    refusal,
    waiting,
)
from tests.net.harness import Client, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.topics.watchers import TopicListWatcher
    from penstock.net.listing_memory import LimitType
    from tests.net.harness import Harness

ALL = f"{NAMESPACE}/.*"
SHORT = replace(LIMITS, heap_timeout_ns=150 * NS_PER_MS, direct_timeout_ns=150 * NS_PER_MS)
BRIEF = replace(LIMITS, heap_timeout_ns=NS_PER_MS, direct_timeout_ns=NS_PER_MS)


def watch(client: Client, watcher_id: int = 7, pattern: str = ALL, **fields: Any) -> None:  # noqa: ANN401
    client.requests += 1
    client.write(
        frame(
            Type.WATCH_TOPIC_LIST,
            request_id=client.requests,
            watcher_id=watcher_id,
            namespace=NAMESPACE,
            topics_pattern=pattern,
            **fields,
        )
    )


async def success(client: Client) -> Any:  # noqa: ANN401
    return (await client.expect(Type.WATCH_TOPIC_LIST_SUCCESS)).watchTopicListSuccess


async def watching(client: Client, watcher_id: int = 7, pattern: str = ALL, **fields: Any) -> Any:  # noqa: ANN401
    watch(client, watcher_id, pattern, **fields)
    return await success(client)


async def update(client: Client) -> Any:  # noqa: ANN401
    return (await client.expect(Type.WATCH_TOPIC_UPDATE)).watchTopicUpdate


def watcher_of(harness: Harness, watcher_id: int = 7) -> TopicListWatcher:
    (watcher,) = [session.watchers[watcher_id] for session in harness.broker.sessions if watcher_id in session.watchers]
    return watcher


# -- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HEAP, DIRECT])
async def test_a_watcher_that_finds_no_memory_is_answered_when_some_comes_free(tmp_path: Path, kind: LimitType) -> None:
    async with listed(tmp_path, 10) as (harness, client, names):
        async with all_taken(harness, kind):
            watch(client)
            await until(lambda: waiting(harness, kind) == 1)
        assert list((await success(client)).topic) == names


async def test_a_full_queue_is_tried_again_after_a_while(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, replace(LIMITS, direct_queue_max=1)) as (harness, client, names):
        other = await Client.connected(harness.port)
        async with all_taken(harness, DIRECT):
            watch(other)
            await until(lambda: waiting(harness, DIRECT) == 1)
            watch(client)
            await until(lambda: waiting(harness, DIRECT) == 1 and harness.broker.lookups.inside == 2)
            await turns()
        for one in (client, other):
            assert list((await success(one)).topic) == names


async def test_a_watcher_without_memory_is_refused_before_its_client_gives_up_and_may_come_again(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 10, SHORT) as (harness, client, names):
        async with all_taken(harness, DIRECT):
            watch(client)
            error = await refusal(client)
            assert error.error == WireCode.TOO_MANY_REQUESTS
            assert not [one for session in harness.broker.sessions for one in session.watchers]
            assert len(harness.broker.shared_listings) == 0
        assert list((await watching(client)).topic) == names
        await turns()
        harness.broker.topics.add_name(full_name(77))
        assert list((await update(client)).new_topics) == [full_name(77)]  # and no second SUCCESS before it


async def test_a_watcher_whose_list_can_never_fit_is_refused_at_once(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000, replace(LIMITS, heap_bytes_max=64 * KIB)) as (harness, client, _):
        watch(client)
        assert "can never be had" in (await refusal(client)).message
        assert acquired(harness, HEAP) == 0


async def test_a_watcher_that_is_closed_before_it_watches_is_told_so_and_frees_its_place(tmp_path: Path) -> None:
    async with listed(tmp_path, 10) as (harness, client, _), all_taken(harness, DIRECT):
        watch(client)
        await until(lambda: waiting(harness, DIRECT) == 1)
        client.write(frame(Type.WATCH_TOPIC_LIST_CLOSE, request_id=2, watcher_id=7))
        await client.expect(Type.SUCCESS)
        assert (await refusal(client)).error == WireCode.SERVICE_NOT_READY
        assert waiting(harness, DIRECT) == 0
        assert len(harness.broker.shared_listings) == 0


async def test_no_update_comes_before_the_answer_and_what_happened_meanwhile_comes_once(tmp_path: Path) -> None:
    async with listed(tmp_path, 10) as (harness, client, names):
        async with all_taken(harness, DIRECT):
            watch(client)
            await until(lambda: waiting(harness, DIRECT) == 1)
            harness.broker.topics.remove_name(names[3])
            harness.broker.topics.add_name(full_name(77))
            await turns()
        assert list((await success(client)).topic) == names
        now = await update(client)
        assert (list(now.new_topics), list(now.deleted_topics)) == ([full_name(77)], [names[3]])
        left = [name for name in names if name != names[3]]
        assert now.topics_hash == topics_hash([*left, full_name(77)])


async def test_asking_again_brings_the_list_as_it_is_in_place_of_an_update_that_waited(tmp_path: Path) -> None:
    async with listed(tmp_path, 3) as (harness, client, names):
        known = await watching(client)
        async with all_taken(harness, DIRECT):
            harness.broker.topics.add_name(full_name(77))
            await until(lambda: waiting(harness, DIRECT) == 1)
            watch(client, topics_hash=known.topics_hash)
            await turns()
            assert waiting(harness, DIRECT) == 1
        again = await success(client)
        assert list(again.topic) == [*names, full_name(77)]
        harness.broker.topics.add_name(full_name(78))
        assert list((await update(client)).new_topics) == [full_name(78)]


# -- updates ----------------------------------------------------------------------------------------------------------


async def test_an_update_that_finds_no_memory_in_time_is_sent_later(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, BRIEF) as (harness, client, _):
        await watching(client)
        async with all_taken(harness, DIRECT):
            harness.broker.topics.add_name(full_name(77))
            await until(lambda: harness.broker.listings.snapshot().direct.timeouts_total == 2)
            harness.broker.topics.add_name(full_name(78))
        assert list((await update(client)).new_topics) == [full_name(77), full_name(78)]


async def test_an_update_larger_than_all_direct_memory_is_sent_once_the_limit_is_raised(tmp_path: Path) -> None:
    limits = replace(LIMITS, direct_bytes_max=500)
    async with listed(tmp_path, 1, limits) as (harness, client, names):
        await watching(client)
        for number in range(70, 80):
            harness.broker.topics.add_name(full_name(number))
        await until(lambda: harness.broker.listings.snapshot().direct.beyond_limit_total == 1)
        harness.broker.listings.set_limits(LIMITS)
        new = [full_name(number) for number in range(70, 80)]
        now = await update(client)
        assert (list(now.new_topics), now.topics_hash) == (new, topics_hash([*names, *new]))


async def test_one_watchers_failures_do_not_slow_another_nor_its_success_hurry_the_first(tmp_path: Path) -> None:
    limits = replace(LIMITS, direct_bytes_max=500)
    async with listed(tmp_path, 1, limits) as (harness, client, _):
        await watching(client, 7, f"{NAMESPACE}/(large.*|t-.*)")
        await watching(client, 8, f"{NAMESPACE}/s.*")
        harness.broker.topics.add_name(f"persistent://{NAMESPACE}/large-{1_000 * 'x'}")
        for number in range(3):
            await until(lambda: harness.broker.listings.snapshot().direct.beyond_limit_total > number)  # noqa: B023
            harness.broker.topics.add_name(f"persistent://{NAMESPACE}/s-{number}")
            assert (await update(client)).watcher_id == 8
        waits = [watcher_of(harness, one)._backoff.next_s() for one in (7, 8)]  # noqa: SLF001
        assert waits[0] > 0.7
        assert waits[1] < 0.2


async def test_more_watchers_than_are_woken_in_a_turn_all_hear_of_everything_once(tmp_path: Path) -> None:
    count = 2 * WATCHERS_PER_TURN + 10
    async with listed(tmp_path, 5) as (harness, client, names):
        for watcher_id in range(count):
            await watching(client, watcher_id)
        heard: dict[int, list[str]] = {watcher_id: [] for watcher_id in range(count)}
        for number in range(70, 75):
            harness.broker.topics.add_name(full_name(number))
            await turns(1)
        wanted = [full_name(number) for number in range(70, 75)]
        while any(one != wanted for one in heard.values()):
            told = await update(client)
            heard[told.watcher_id] += told.new_topics
        await until(lambda: {watcher.known.digest for watcher in _watchers(harness)} == {topics_hash(names + wanted)})


def _watchers(harness: Harness) -> list[Any]:
    return [watcher for session in harness.broker.sessions for watcher in session.watchers.values()]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_comes_and_goes_each_client_ends_with_what_there_is(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    limits = replace(BRIEF, direct_bytes_max=4 * KIB, direct_queue_max=3)
    async with listed(tmp_path, 20, limits) as (harness, _, names):
        there = set(names)
        clients = [await Client.connected(harness.port) for _ in range(8)]
        known = [set((await watching(client)).topic) for client in clients]
        for _ in range(150):
            name = full_name(chance.randrange(40))
            (harness.broker.topics.remove_name if name in there else harness.broker.topics.add_name)(name)
            there ^= {name}
            await turns(chance.randrange(2))
        for client, told in zip(clients, known, strict=True):
            digest = topics_hash(told)
            while told != there:
                now = await update(client)
                assert not told & set(now.new_topics)
                assert set(now.deleted_topics) <= told
                told -= set(now.deleted_topics)
                told |= set(now.new_topics)
                digest = now.topics_hash
                assert digest == topics_hash(told)


# -- what is kept -----------------------------------------------------------------------------------------------------


async def test_what_watchers_remember_is_charged_once_for_all_who_know_the_same(tmp_path: Path) -> None:
    async with listed(tmp_path, 500) as (harness, client, _):
        remembered = BLOCK_BYTES + 500 * REFERENCE_BYTES + Pattern(ALL).size_bytes
        for watcher_id in range(30):
            await watching(client, watcher_id)
            await until(lambda: acquired(harness, HEAP) == remembered)
        assert len({id(watcher.known) for watcher in _watchers(harness)}) == 1
        await watching(client, 99, f"{NAMESPACE}/t-0.*")
        remembered_2 = BLOCK_BYTES + 500 * REFERENCE_BYTES + Pattern(f"{NAMESPACE}/t-0.*").size_bytes
        await until(lambda: acquired(harness, HEAP) == remembered + remembered_2)
        harness.broker.topics.add_name(full_name(777))
        for _ in range(31):
            await update(client)
        await until(lambda: acquired(harness, HEAP) == remembered + remembered_2 + 2 * REFERENCE_BYTES)
        for watcher_id in (*range(30), 99):
            client.write(frame(Type.WATCH_TOPIC_LIST_CLOSE, request_id=watcher_id, watcher_id=watcher_id))
            await client.expect(Type.SUCCESS)
        assert acquired(harness, HEAP) == 0


async def test_a_watcher_that_does_not_read_is_charged_for_the_names_it_has_not_heard_are_gone(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 500, outbound_bytes=MIB) as (harness, slow, names):
        quick = await Client.connected(harness.port)
        watched_bytes = INITIAL_BYTES + Pattern(ALL).size_bytes
        for client in (slow, quick):
            await watching(client)
        slow.stop_reading()
        connection = harness.connection_of(slow)
        while connection.writable:
            connection.write_frame(bytes(64 * KIB))
            await turns(1)
        for name in names[:499]:
            harness.broker.topics.remove_name(name)
        assert len((await update(quick)).deleted_topics) == 499
        await until(lambda: acquired(harness, HEAP) == watched_bytes + 500 * (100 + 32))
        slow.abort()
        harness.broker.topics.add_name(names[0])
        await update(quick)
        await until(lambda: acquired(harness, HEAP) == watched_bytes)


async def test_watching_nothing_is_charged_too(tmp_path: Path) -> None:
    async with listed(tmp_path, 0) as (harness, client, _):
        for number in range(5):
            assert list((await watching(client, number, f"{NAMESPACE}/none-{number}")).topic) == []
        await until(lambda: acquired(harness, HEAP) == 5 * (INITIAL_BYTES + Pattern(f"{NAMESPACE}/none-0").size_bytes))


async def test_a_list_that_is_asked_for_while_it_is_watched_is_charged_as_written_until_it_is_sent(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 500) as (harness, client, names):
        await watching(client)
        remembered = BLOCK_BYTES + 500 * REFERENCE_BYTES + Pattern(ALL).size_bytes
        await until(lambda: acquired(harness, HEAP) == remembered)
        async with all_taken(harness, DIRECT):
            client.write(frame(Type.GET_TOPICS_OF_NAMESPACE, request_id=5, namespace=NAMESPACE, topics_pattern=ALL))
            await until(lambda: waiting(harness, DIRECT) == 1)
            assert acquired(harness, HEAP) == 500 * (100 + 32) + Pattern(ALL).size_bytes
        got = await client.expect(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        assert list(got.getTopicsOfNamespaceResponse.topics) == names
        await until(lambda: acquired(harness, HEAP) == remembered)


async def test_a_watched_list_that_cannot_grow_now_is_told_when_it_can(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, BRIEF) as (harness, client, _):
        await watching(client)
        async with all_taken(harness, HEAP):
            harness.broker.topics.add_name(full_name(77))
            await until(lambda: harness.broker.listings.snapshot().heap.timeouts_total == 2)
        assert list((await update(client)).new_topics) == [full_name(77)]


async def test_watchers_of_patterns_of_their_own_are_refused_when_no_memory_is_left_for_more(tmp_path: Path) -> None:
    limits = replace(SHORT, heap_bytes_max=100 * KIB)
    async with listed(tmp_path, 10, limits) as (harness, client, _):
        watched = 0
        while True:
            watch(client, watched, pattern_of_its_own(watched))
            answer = await client.read()
            if answer.error.request_id:
                break
            watched += 1
            each = INITIAL_BYTES + Pattern(pattern_of_its_own(0)).size_bytes
            await until(lambda: acquired(harness, HEAP) == watched * each)  # noqa: B023
        assert watched == limits.heap_bytes_max // each
        assert int(answer.error.error) == WireCode.TOO_MANY_REQUESTS
        assert answer.error.message.startswith("Failed due to heap memory limit exceeded")
        client.write(frame(Type.WATCH_TOPIC_LIST_CLOSE, request_id=999, watcher_id=0))
        await client.expect(Type.SUCCESS)
        assert acquired(harness, HEAP) == (watched - 1) * each
        await watching(client, watched, pattern_of_its_own(watched))


def pattern_of_its_own(number: int) -> str:
    """One of many, all of the same size."""
    return f"{NAMESPACE}/t-.*[0x]{{5}}.*{number:03}.*"


async def test_watchers_of_one_pattern_share_what_it_takes(tmp_path: Path) -> None:
    async with listed(tmp_path, 10) as (harness, client, _):
        for number in range(20):
            await watching(client, number, pattern_of_its_own(1))
        each = INITIAL_BYTES + Pattern(pattern_of_its_own(1)).size_bytes
        await until(lambda: acquired(harness, HEAP) == each)


async def test_a_client_that_does_not_read_has_one_update_under_way_however_many_topics_come(tmp_path: Path) -> None:
    async with listed(tmp_path, 5) as (harness, client, names):
        for number in range(5):
            await watching(client, number)
        client.stop_reading()
        connection = harness.connection_of(client)
        while not connection.out_bytes:
            connection.deliver((bytes(MIB),), MIB)
            await turns(2)
        for number in range(100, 300):
            harness.broker.topics.add_name(full_name(number))
            await turns(3)
        assert len(connection.queue.passing) <= 5
        assert acquired(harness, DIRECT) < 10 * KIB
        client.abort()
        assert len(names) == 5


# -- events -----------------------------------------------------------------------------------------------------------


async def stuffed(harness: Harness, client: Client) -> None:
    """See that nothing more goes out to this client until it reads."""
    client.stop_reading()
    connection = harness.connection_of(client)
    while not connection.out_bytes:
        connection.write_frame(frame(Type.PONG) * KIB)
        await turns(2)


async def test_topics_that_come_at_once_are_compared_with_no_pattern_in_the_turn_in_which_they_come(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 5, replace(LIMITS, heap_bytes_max=8 * MIB)) as (harness, client, _):
        for number in range(50):
            await watching(client, number, f"{NAMESPACE}/t-.*{number}-x*")
        lists = list(harness.broker.shared_listings._lists.values())  # noqa: SLF001
        before = [one._read for one in lists]  # noqa: SLF001
        names = [full_name(number) for number in range(100, 600)]
        for name in names:
            harness.broker.topics.add_name(name)
        assert [one._read for one in lists] == before  # noqa: SLF001
        wanted = {number: {name for name in names if name.rstrip("x").endswith(f"{number}-")} for number in range(50)}
        heard: dict[int, set[str]] = {number: set() for number in range(50)}
        while heard != wanted:
            told = await update(client)
            heard[told.watcher_id] |= set(told.new_topics)
        # All have read it, and it is kept no more.
        await until(lambda: all(one._read == before[0] + 500 for one in lists))  # noqa: SLF001


async def test_of_more_news_than_is_kept_a_client_that_reads_again_hears_what_it_comes_to(tmp_path: Path) -> None:
    async with listed(tmp_path, 300, replace(LIMITS, heap_bytes_max=8 * MIB)) as (harness, client, names):
        await watching(client)
        there = set(names)
        await stuffed(harness, client)
        for number in range(200, 200 + EVENTS_MAX):
            name = full_name(number)
            (harness.broker.topics.remove_name if name in there else harness.broker.topics.add_name)(name)
            there ^= {name}
            if number % 100 == 0:
                await turns(2)
        (events,) = harness.broker.shared_listings._events.values()  # noqa: SLF001
        for number in range(100):
            harness.broker.topics.remove_name(names[number])
            there.discard(names[number])
        assert len(events) == EVENTS_MAX
        (shared,) = harness.broker.shared_listings._lists.values()  # noqa: SLF001
        assert len(shared._changes) <= EVENTS_PER_STEP  # noqa: SLF001
        client.go_on_reading()
        told = set(names)
        while told != there:
            command = await client.read()
            if command.type == Type.WATCH_TOPIC_UPDATE:
                now = command.watchTopicUpdate
                told -= set(now.deleted_topics)
                told |= set(now.new_topics)
                assert now.topics_hash == topics_hash(told)
