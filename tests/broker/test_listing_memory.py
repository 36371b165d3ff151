# SPDX-License-Identifier: Apache-2.0
"""The memory of listings in a running broker (PIP-442): what is charged, to whom, who waits, and that all of it is free
at the end, which the harness checks after every test.

Apache Pulsar's own mechanism lets listings that each hold a part wait for one another, fails a later listing because an
earlier one could never fit, keeps the places of clients that are gone, and ties all who share a listing to the request
of the first. None of that happens here. Defects of the limiter itself are excluded in tests/net and tests/governance.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.broker.commands.lookups import wait_ns_max
from penstock.broker.topics.listing import Wanted
from penstock.broker.topics.listing_blocks import BLOCK_NAMES
from penstock.core.errors import TooManyRequests, WireCode
from penstock.core.units import KIB, MIB, NS_PER_MS, NS_PER_S
from penstock.net.connection import ANSWER_BYTES
from penstock.net.listing_memory import INITIAL_BYTES, NOBODY, LimitType, TopicListLimits
from penstock.net.loop import SLOTS
from penstock.net.unsent_pieces import REFERENCE_BYTES
from penstock.testing.client import Type, frame
from tests.broker.listed import (
    DIRECT,
    HEAP,
    LIMITS,
    NAMESPACE,
    acquired,
    all_taken,
    answer,
    ask,
    full_name,
    list_sizes,
    listed,
    refusal,
    waiting,
)
from tests.net.harness import Client, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Harness

LARGE = TopicListLimits(heap_bytes_max=8 * MIB, direct_bytes_max=9 * MIB)
MODEST = replace(LIMITS, heap_bytes_max=8 * MIB)
SHORT = replace(LIMITS, heap_timeout_ns=300 * NS_PER_MS, direct_timeout_ns=300 * NS_PER_MS)


# -- one list for all who ask -----------------------------------------------------------------------------------------


async def test_a_list_that_many_ask_for_at_once_is_charged_once_and_sent_to_each(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000) as (harness, _, names):
        clients = [await Client.connected(harness.port) for _ in range(20)]
        assembled, _ = await list_sizes(harness)
        async with all_taken(harness, DIRECT):
            for client in clients:
                ask(client)
            await until(lambda: waiting(harness, DIRECT) == 1 and harness.broker.lookups.inside == 20)
            await turns()
            assert acquired(harness, HEAP) == assembled == 1_000 * (100 + 32)
            assert len(harness.broker.shared_listings) == 1
        for client in clients:
            assert list((await answer(client)).topics) == names


async def test_the_bytes_that_go_out_are_the_same_objects_for_everybody(tmp_path: Path) -> None:
    async with listed(tmp_path, 20_000, LARGE, length=200) as (harness, _, _names):
        clients = [await Client.connected(harness.port) for _ in range(2)]
        async with all_taken(harness, DIRECT):
            for client in clients:
                client.stop_reading()
                ask(client)
            await until(lambda: waiting(harness, DIRECT) == 1 and harness.broker.lookups.inside == 2)
        await until(lambda: acquired(harness, HEAP) == 0)
        queues = [{id(buffer) for buffer in harness.connection_of(client).queue.buffers} for client in clients]
        assert len(queues[0] & queues[1]) > 0


async def test_who_asks_while_another_still_reads_gets_the_same_bytes_and_only_then_are_they_forgotten(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 20_000, LARGE, length=200) as (harness, slow, names):
        slow.stop_reading()
        _, written = await list_sizes(harness)
        ask(slow)
        await until(lambda: acquired(harness, DIRECT) and not acquired(harness, HEAP))
        before = {id(buffer) for buffer in harness.connection_of(slow).queue.buffers}
        other = await Client.connected(harness.port)
        other.stop_reading()
        harness.broker.topics.remove_name(names[-1])
        ask(other)
        await until(lambda: harness.connection_of(other).out_bytes and not acquired(harness, HEAP))
        # Both versions share all blocks but the last one.
        assert written < acquired(harness, DIRECT) < written + written // 10
        assert len(before & {id(buffer) for buffer in harness.connection_of(other).queue.buffers}) > 1
        for client in (slow, other):
            client.go_on_reading()
        assert [len((await answer(client)).topics) for client in (slow, other)] == [20_000, 19_999]
        await until(lambda: len(harness.broker.shared_listings) == 0)


async def test_a_list_is_as_new_as_the_request_though_an_older_one_was_being_gathered(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000) as (harness, client, names):
        async with all_taken(harness, DIRECT):
            ask(client, 1)
            await until(lambda: waiting(harness, DIRECT) == 1)
            harness.broker.topics.add_name(f"{names[500]}-new")
            ask(client, 2)
            await until(lambda: harness.broker.lookups.inside == 2)
            await turns()
        first, second = await answer(client), await answer(client)
        assert (len(first.topics), len(second.topics)) == (1_000, 1_001)
        assert f"{names[500]}-new" in second.topics


async def test_a_list_that_the_client_knows_is_not_sent_again_and_takes_next_to_no_direct_memory(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 5_000, replace(LIMITS, direct_bytes_max=600 * KIB)) as (harness, client, _):
        ask(client)
        known = await answer(client)
        async with harness.broker.listings.with_acquired_permits(599 * KIB, DIRECT):
            ask(client, topics_hash=known.topics_hash)
            same = await answer(client)
        assert (list(same.topics), same.changed, same.topics_hash) == ([], False, known.topics_hash)


async def test_nothing_is_kept_of_a_list_that_was_sent(tmp_path: Path) -> None:
    async with listed(tmp_path, 100) as (harness, client, _):
        ask(client)
        await answer(client)
        await until(lambda: not acquired(harness, HEAP) and not acquired(harness, DIRECT))
        assert len(harness.broker.shared_listings) == 0


# -- waiting for memory -----------------------------------------------------------------------------------------------


async def test_a_request_waits_with_nothing_then_with_an_estimate_then_with_what_the_list_takes(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 1_000) as (harness, client, _):
        limiter = harness.broker.listings
        async with all_taken(harness, HEAP) as held:
            ask(client)
            await until(lambda: waiting(harness, HEAP) == 1)
            estimated = await limiter.update(held, MIB - INITIAL_BYTES)
            await until(lambda: acquired(harness, HEAP) == MIB and waiting(harness, HEAP) == 1)
            assert limiter.limiter(HEAP).snapshot().waiting_updates == 1
            limiter.release(estimated)
        assert len((await answer(client)).topics) == 1_000


async def test_first_listings_that_each_need_most_of_the_memory_are_all_answered(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000, replace(LIMITS, heap_bytes_max=140 * KIB), length=100) as (harness, client, _):
        async with all_taken(harness, HEAP):
            for number in range(30):  # each another pattern, so each another list, of 129 KiB
                ask(client, number, topics_pattern=f"{NAMESPACE}/t-[0-9]+-x{{{number},}}.*")
            share = harness.broker.shared_listings.share
            await until(lambda: share.waiting == 30 - SLOTS == 30 - waiting(harness, HEAP))
        for _ in range(30):
            assert len((await answer(client)).topics) == 1_000


@pytest.mark.parametrize(
    ("limits", "words", "key"),
    [
        ({"heap_bytes_max": 64 * KIB}, "Failed due to heap memory limit exceeded", "HeapMemSizeMB"),
        ({"direct_bytes_max": 64 * KIB}, "Cannot acquire permits for direct memory", "DirectMemSizeMB"),
    ],
)
async def test_a_list_that_can_never_fit_is_refused_each_time_and_spoils_nothing(
    tmp_path: Path, limits: dict[str, int], words: str, key: str
) -> None:
    async with listed(tmp_path, 1_000, replace(LIMITS, **limits)) as (harness, client, names):
        for number in range(3):
            ask(client, number)
            error = await refusal(client)
            assert (error.request_id, error.error) == (number, WireCode.TOO_MANY_REQUESTS)
            assert error.message.startswith(words)
            assert "can never be had" in error.message
            assert key in error.message
        assert (acquired(harness, HEAP), acquired(harness, DIRECT)) == (0, 0)
        for name in names[10:]:
            harness.broker.topics.remove_name(name)
        ask(client)
        assert len((await answer(client)).topics) == 10


@pytest.mark.parametrize(
    ("kind", "words"),
    [(HEAP, "Failed due to heap memory limit exceeded"), (DIRECT, "Cannot acquire permits for direct memory")],
)
async def test_who_waits_for_memory_until_the_timeout_is_refused_and_may_ask_again(
    tmp_path: Path, kind: LimitType, words: str
) -> None:
    async with listed(tmp_path, 10, replace(SHORT, heap_timeout_ns=NS_PER_MS, direct_timeout_ns=NS_PER_MS)) as (
        harness,
        client,
        _,
    ):
        async with all_taken(harness, kind):
            ask(client)
            error = await refusal(client)
            assert (error.error, error.message.startswith(words)) == (WireCode.TOO_MANY_REQUESTS, True)
        ask(client)
        assert len((await answer(client)).topics) == 10


async def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, replace(LIMITS, direct_queue_max=1)) as (harness, client, _):
        async with all_taken(harness, DIRECT):
            ask(client, 1)
            ask(client, 2, topics_pattern=f"{NAMESPACE}/t-.*")
            error = await refusal(client)
            assert "waiting places are taken" in error.message
        assert (await answer(client)).request_id == 3 - error.request_id


async def test_a_client_that_goes_while_it_waits_frees_its_place_in_the_same_turn(tmp_path: Path) -> None:
    for kind in LimitType:
        async with listed(tmp_path / kind.value, 10) as (harness, client, _), all_taken(harness, kind):
            ask(client)
            await until(lambda: waiting(harness, kind) == 1)  # noqa: B023 - called before the next round
            harness.connection_of(client).close("gone")
            assert waiting(harness, kind) == 0


async def test_when_the_first_who_asked_goes_the_others_get_their_list_all_the_same(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000) as (harness, first, names):
        others = [await Client.connected(harness.port) for _ in range(5)]
        async with all_taken(harness, HEAP):
            ask(first)
            await until(lambda: waiting(harness, HEAP) == 1)
            for other in others:
                ask(other)
            await until(lambda: harness.broker.lookups.inside == 6)
            first.abort()
            await until(lambda: harness.broker.lookups.inside == 5)
            # One of the others asks now, and the rest wait for that.
            await until(lambda: waiting(harness, HEAP) == 1)
        for other in others:
            assert list((await answer(other)).topics) == names


async def test_nobody_waits_for_anothers_request_longer_than_for_its_own(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, replace(SHORT, heap_timeout_ns=NS_PER_S, direct_timeout_ns=NS_PER_S)) as (
        harness,
        first,
        _,
    ):
        shared = harness.broker.shared_listings.of(Wanted(NAMESPACE))
        async with all_taken(harness, HEAP):
            ask(first)
            await until(lambda: waiting(harness, HEAP) == 1)
            now_ns = harness.clock.monotonic_ns()
            with pytest.raises(TooManyRequests, match="somebody else waits for the memory of the same list"):
                async with shared.asked(NOBODY, now_ns + NS_PER_MS):
                    pass
            assert waiting(harness, HEAP) == 1
        assert len((await answer(first)).topics) == 10


async def test_a_proxy_is_answered_sooner_so_that_its_client_still_hears_of_it(tmp_path: Path) -> None:
    async with listed(tmp_path, 1) as (harness, _client, _):
        proxy = await Client.open(harness.port)
        proxy.write(frame(Type.CONNECT, client_version="test", protocol_version=20, proxy_version="4.2"))
        await proxy.expect(Type.CONNECTED)
        limits, proxied = harness.broker.limits.listings, [session.through_proxy for session in harness.broker.sessions]
        waits = {through_proxy: wait_ns_max(limits, through_proxy=through_proxy) for through_proxy in proxied}
        assert waits == {False: 25 * NS_PER_S, True: 20 * NS_PER_S}


# -- many patterns ----------------------------------------------------------------------------------------------------


def _pattern(number: int) -> str:
    """One of many that all names match."""
    return f"{NAMESPACE}/t-[0-9]+-x{{{number % 30},}}.*" + "|n" * (number // 30)


async def test_of_many_lists_that_one_connection_asks_for_the_first_is_answered_before_the_last_is_begun(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 3_000, LARGE) as (harness, client, names):
        share = harness.broker.shared_listings.share
        for number in range(100):
            ask(client, number, topics_pattern=_pattern(number))
        await until(lambda: share.waiting > 0)
        assert len((await answer(client)).topics) == len(names)
        assert share.waiting > 50
        for _ in range(99):
            assert len((await answer(client)).topics) == len(names)


async def test_a_client_that_asks_for_one_list_does_not_wait_for_the_hundred_of_another(tmp_path: Path) -> None:
    async with listed(tmp_path, 3_000, LARGE) as (harness, greedy, names):
        share = harness.broker.shared_listings.share
        modest = await Client.connected(harness.port)
        for number in range(100):
            ask(greedy, number, topics_pattern=_pattern(number))
        await until(lambda: share.waiting > 90)
        ask(modest, topics_pattern=f"{NAMESPACE}/.*")
        assert len((await answer(modest)).topics) == len(names)
        assert share.waiting > 50
        for _ in range(100):
            await answer(greedy)


async def test_who_waits_for_others_lists_until_the_deadline_is_refused(tmp_path: Path) -> None:
    async with listed(tmp_path, 10, SHORT) as (harness, client, names):
        async with all_taken(harness, HEAP):
            for number in range(30):
                ask(client, number, topics_pattern=_pattern(number))
            errors = [await refusal(client) for _ in range(30)]
            assert {error.error for error in errors} == {WireCode.TOO_MANY_REQUESTS}
            assert sorted(error.request_id for error in errors) == list(range(30))
        ask(client)
        assert list((await answer(client)).topics) == names
        assert harness.broker.shared_listings.share.inside == 0


async def test_a_pattern_takes_memory_only_once_it_is_its_turn(tmp_path: Path) -> None:
    async with listed(tmp_path, 10) as (harness, client, _), all_taken(harness, HEAP):
        for number in range(30):
            ask(client, number, topics_pattern=_pattern(number))
        share = harness.broker.shared_listings.share
        await until(lambda: share.waiting == 30 - SLOTS)
        lists = harness.broker.shared_listings._lists.values()  # noqa: SLF001
        assert len(lists) == 30
        assert all(one._filter.pattern is None for one in lists)  # noqa: SLF001
        client.abort()
        await until(lambda: not harness.broker.lookups.inside)


# -- clients that do not read -----------------------------------------------------------------------------------------


async def test_a_client_that_never_reads_its_list_holds_its_own_direct_memory_and_nothing_else(tmp_path: Path) -> None:
    async with listed(tmp_path, 20_000, LARGE, length=200) as (harness, slow, names):
        slow.stop_reading()
        _, written = await list_sizes(harness)
        ask(slow)
        await until(lambda: acquired(harness, DIRECT) and not acquired(harness, HEAP))
        own = REFERENCE_BYTES * 20_000 // BLOCK_NAMES + 100
        assert written < acquired(harness, DIRECT) < written + own
        quick = await Client.connected(harness.port)
        ask(quick)
        assert len((await answer(quick)).topics) == len(names)
        await until(lambda: acquired(harness, DIRECT) < written + own)
        slow.abort()
        await until(lambda: acquired(harness, DIRECT) == 0)


async def test_a_client_that_asks_a_thousand_times_and_reads_nothing_pays_for_a_thousand_heads(tmp_path: Path) -> None:
    async with listed(tmp_path, 1_000) as (harness, client, _):
        _, written = await list_sizes(harness)
        client.stop_reading()
        for number in range(1_000):
            ask(client, number)
        connection = harness.connection_of(client)
        await until(lambda: connection.out_bytes > 990 * ANSWER_BYTES and not harness.broker.lookups.inside)
        assert written < acquired(harness, DIRECT) < written + 1_000 * 100
        assert connection.out_bytes < 1_000 * (ANSWER_BYTES + 100)
        assert acquired(harness, HEAP) == 0
        client.go_on_reading()
        for _ in range(1_000):
            assert len((await answer(client)).topics) == 1_000
        await until(lambda: acquired(harness, DIRECT) == connection.out_bytes == 0)


async def test_clients_that_read_nothing_of_one_list_keep_nobody_from_it(tmp_path: Path) -> None:
    async with listed(tmp_path, 6_000, MODEST) as (harness, _, names):
        _, written = await list_sizes(harness)
        assert written > LIMITS.direct_bytes_max // 2  # two lists would be more than all direct memory
        slow = [await Client.connected(harness.port) for _ in range(20)]
        for client in slow:
            client.stop_reading()
            for number in range(4):
                ask(client, number)
        quick = [await Client.connected(harness.port) for _ in range(20)]
        for client in quick:
            for number in range(4):
                ask(client, number)
        for client in quick:
            for _ in range(4):
                assert len((await answer(client)).topics) == len(names)
        assert acquired(harness, DIRECT) < written + 80 * 200
        assert harness.broker.listings.snapshot().direct.timeouts_total == 0
        assert all(not harness.connection_of(client).muted for client in slow)
        for client in slow:
            client.go_on_reading()
            for _ in range(4):
                assert len((await answer(client)).topics) == len(names)


async def test_old_versions_that_slow_clients_still_read_are_charged_and_bounded(tmp_path: Path) -> None:
    async with listed(tmp_path, 2_000, replace(MODEST, direct_timeout_ns=300 * NS_PER_MS)) as (harness, _, names):
        _, written = await list_sizes(harness)
        readers: list[Client] = []
        charged = [0]
        while True:
            slow = await Client.connected(harness.port)
            slow.stop_reading()
            await _fill_socket(harness, slow)
            ask(slow)
            await until(lambda: acquired(harness, DIRECT) > charged[-1] or _timed_out(harness))
            if _timed_out(harness):
                break
            readers.append(slow)
            charged.append(acquired(harness, DIRECT))
            assert charged[-1] - charged[-2] > written
            assert charged[-1] <= LIMITS.direct_bytes_max
            for number, name in enumerate(names):  # no block is as it was
                harness.broker.topics.remove_name(name)
                names[number] = f"{name}+"
                harness.broker.topics.add_name(names[number])
        assert len(readers) >= LIMITS.direct_bytes_max // written - 1
        for client in readers:
            client.abort()
        await until(lambda: acquired(harness, DIRECT) == 0)


def _timed_out(harness: Harness) -> bool:
    return harness.broker.listings.snapshot().direct.timeouts_total > 0


async def _fill_socket(harness: Harness, client: Client) -> None:
    """See that nothing more goes out to this client."""
    connection = harness.connection_of(client)
    while not connection.out_bytes:
        connection.deliver((bytes(MIB),), MIB)
        await turns(2)


@pytest.mark.timeout(60)
async def test_many_connections_that_ask_at_once_for_long_names_all_get_them_from_little_memory(
    tmp_path: Path,
) -> None:
    async with listed(tmp_path, 300, length=512) as (harness, _, names):
        clients = [await Client.connected(harness.port) for _ in range(100)]
        for client in clients:
            ask(client)
        answers = await asyncio.gather(*map(answer, clients))
        assert all(list(one.topics) == names for one in answers)
        await until(lambda: not acquired(harness, HEAP) and not acquired(harness, DIRECT))
        assert harness.broker.listings.limiter(DIRECT).available == MIB


async def test_a_list_of_a_hundred_thousand_topics_lets_others_have_their_turn(tmp_path: Path) -> None:
    limits = TopicListLimits(heap_bytes_max=64 * MIB, direct_bytes_max=64 * MIB)
    async with listed(tmp_path, 0, limits) as (harness, client, _):
        for number in range(100_000):
            harness.broker.topics.names.add(full_name(number, 60))
        turns_taken = 0
        listing = asyncio.ensure_future(answer(client))
        client.reader._limit = 16 * MIB  # type: ignore[attr-defined]  # noqa: SLF001
        ask(client)
        while not listing.done():
            await asyncio.sleep(0)
            turns_taken += 1
        assert len(listing.result().topics) == 100_000
        assert turns_taken > 20


# -- all of it at once ------------------------------------------------------------------------------------------------


async def _restless(harness: Harness, chance: random.Random) -> None:
    """A client that asks and watches this and that, and at the end either goes or takes all its answers."""
    client = await Client.connected(harness.port)
    asked = range(chance.randrange(1, 8))
    for request_id in asked:
        pattern = f"{NAMESPACE}/t-.*{chance.randrange(3)}-x*" if chance.random() < 0.7 else ""
        if chance.random() < 0.5:
            ask(client, request_id, topics_pattern=pattern)
        else:
            fields = {"watcher_id": request_id, "namespace": NAMESPACE, "topics_pattern": pattern}
            client.write(frame(Type.WATCH_TOPIC_LIST, request_id=request_id, **fields))
        await turns(chance.randrange(3))
    if chance.random() < 0.3:
        client.abort()
        return
    answered: list[int] = []
    while len(answered) < len(asked):
        command = await client.read()
        bodies = (command.getTopicsOfNamespaceResponse, command.watchTopicListSuccess, command.error)
        answered += (body.request_id for body in bodies if body.HasField("request_id"))
    assert sorted(answered) == list(asked)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_whoever_comes_goes_and_changes_things_each_request_is_answered_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    limits = TopicListLimits(
        heap_bytes_max=45 * KIB,
        direct_bytes_max=35 * KIB,
        heap_queue_max=4,
        direct_queue_max=4,
        heap_timeout_ns=20 * NS_PER_MS,
        direct_timeout_ns=20 * NS_PER_MS,
    )
    async with listed(tmp_path, 200, limits) as (harness, _, names):
        restless = [asyncio.ensure_future(_restless(harness, chance)) for _ in range(15)]
        for _ in range(40):
            name = chance.choice(names)
            harness.broker.topics.remove_name(name)
            await turns(1)
            harness.broker.topics.add_name(name)
        await asyncio.gather(*restless)
