# SPDX-License-Identifier: Apache-2.0
"""Transactions: what is sent and acknowledged in one happens together, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
import pytest_asyncio

from penstock.broker.composition.administration import administration
from penstock.broker.stats.snapshot import TransactionsSnapshot
from penstock.broker.topics.topic_life import disconnect_producers
from penstock.broker.transactions.coordinator import DEADLINES_MIN, TIMEOUTS_IN_TURN
from penstock.core.errors import CoordinatorNotFound, TransactionNotFound, WireCode
from penstock.core.names import TopicName
from penstock.core.system_topics import COORDINATORS
from penstock.core.transaction_id import TransactionId
from penstock.storage.metadata import Change
from penstock.testing.client import Refused
from penstock.wire.client.connection import frame
from tests.broker.consuming import EXCLUSIVE, KEY_SHARED, SHARED, Received, nothing_more, subscription_of
from tests.broker.transacting import MINUTE_MS, TransactingPeer, Type, ids
from tests.net.harness import TOPIC, Harness, metadata_files, running, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OTHER = "persistent://public/default/other"
NAME = TopicName.parse(TOPIC)
DAY_MS = 24 * 3_600_000


@pytest_asyncio.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with running(tmp_path) as harness:
        yield harness


async def connected(harness: Harness) -> TransactingPeer:
    peer = await TransactingPeer.connected(harness)
    return cast("TransactingPeer", peer)


async def producing(harness: Harness) -> TransactingPeer:
    peer = await connected(harness)
    await peer.produce()
    return peer


async def sending(peer: TransactingPeer, *payloads: bytes, **how: Any) -> TransactionId:  # noqa: ANN401
    """An open transaction that has sent this to the topic."""
    transaction = await peer.open()
    await peer.add_topics(transaction)
    await peer.send_in(transaction, *payloads, **how)
    return transaction


async def acknowledging(peer: TransactingPeer, *received: Received, **how: Any) -> TransactionId:  # noqa: ANN401
    """An open transaction that has acknowledged this."""
    transaction = await peer.open()
    await peer.add_subscription(transaction)
    await peer.acknowledge_in(transaction, *received, **how)
    return transaction


def used(harness: Harness) -> int:
    return harness.broker.dispatch_memory.used_bytes


# -- coordinators


async def test_a_client_finds_the_coordinator(harness: Harness) -> None:
    peer = await connected(harness)
    about = {"topic": COORDINATORS, "metadata_auto_creation_enabled": False}
    assert (await peer.client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, **about)) \
        .partitionMetadataResponse.partitions == 1  # fmt: skip
    found = await peer.client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=f"{COORDINATORS}-partition-0")
    assert found.lookupTopicResponse.response == found.lookupTopicResponse.Connect
    await peer.ask(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=0)
    with pytest.raises(Refused) as refused:
        await peer.ask(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=1)
    assert refused.value.code == WireCode.TRANSACTION_COORDINATOR_NOT_FOUND


async def test_a_broker_without_transactions_says_so_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, transactions=False) as harness:
        peer = await connected(harness)
        about = {"topic": COORDINATORS, "metadata_auto_creation_enabled": False}
        answer = await peer.client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, **about)
        assert answer.partitionMetadataResponse.partitions == 0
        for kind, fields in ((Type.TC_CLIENT_CONNECT_REQUEST, {"tc_id": 0}), (Type.NEW_TXN, {"txn_ttl_seconds": 1})):
            with pytest.raises(Refused, match="transactions are not enabled") as refused:
                await peer.ask(kind, **fields)
            assert refused.value.code == WireCode.NOT_ALLOWED_ERROR


async def test_no_two_transactions_ever_have_the_same_id(tmp_path: Path) -> None:
    seen = []
    for _ in range(2):
        async with running(tmp_path) as harness:
            peer = await connected(harness)
            seen += [await peer.open() for _ in range(2)]
    assert len(set(seen)) == 4
    assert seen == sorted(seen)


# -- sends


async def test_what_is_sent_is_delivered_together_at_the_commit(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1", b"2")
    await nothing_more(harness, peer)
    assert subscription_of(harness).backlog == 0
    await peer.commit(transaction)
    assert await peer.payloads(2) == [b"1", b"2"]
    assert topic_of(harness).transactions is None
    assert harness.broker.transactions.committed_total == 1


async def test_what_was_aborted_is_never_delivered(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"aborted", b"this too")
    await peer.publish(b"plain")
    await nothing_more(harness, peer)
    await peer.abort(transaction)
    assert await peer.payloads(1) == [b"plain"]
    assert subscription_of(harness).backlog == 1
    await peer.subscribe(SHARED, name="later", consumer_id=1)
    assert await peer.payloads(1) == [b"plain"]
    await subscription_of(harness, "later").move_to(0)
    await peer.subscribe(SHARED, name="later", consumer_id=2)
    assert await peer.payloads(1) == [b"plain"]
    assert harness.broker.transactions.aborted_total == 1


async def test_readers_stop_before_the_first_open_transaction_and_no_other(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    await peer.publish(b"before")
    first = await sending(peer, b"a")
    await peer.publish(b"between")
    second = await sending(peer, b"b")
    await peer.commit(second)
    assert await peer.payloads(1) == [b"before"]
    await nothing_more(harness, peer)
    await peer.commit(first)
    assert await peer.payloads(3) == [b"a", b"between", b"b"]


async def test_a_transaction_that_has_sent_nothing_holds_nobody(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await peer.open()
    await peer.add_topics(transaction)
    await peer.publish(b"plain")
    assert await peer.payloads(1) == [b"plain"]
    await peer.commit(transaction)
    assert topic_of(harness).transactions is None


async def test_several_topics_see_it_in_one_moment(harness: Harness) -> None:
    peer = await producing(harness)
    other = await connected(harness)
    await other.produce(OTHER)
    await other.subscribe(topic=OTHER)
    await peer.subscribe()
    transaction = await peer.open()
    await peer.add_topics(transaction, TOPIC, OTHER)
    await peer.send_in(transaction, b"here")
    await other.send_in(transaction, b"there")
    with harness.catalog_held():
        peer.client.write(ending(peer, transaction))
        await turns()
        assert [topic_of(harness, name).last_entry_id for name in (TOPIC, OTHER)] == [-1, -1]
    assert await peer.payloads(1) == [b"here"]
    assert await other.payloads(1) == [b"there"]


def ending(peer: TransactingPeer, transaction: TransactionId) -> bytes:

    return frame(Type.END_TXN, request_id=77, **ids(transaction), txn_action=0)


async def test_a_topic_takes_no_entries_of_a_transaction_that_it_was_not_told_of(harness: Harness) -> None:
    peer = await producing(harness)
    transaction = await peer.open()
    for forged in (transaction, TransactionId(0, 2**63), TransactionId(2**64 - 1, 0)):
        with pytest.raises(Refused, match="may not send to") as refused:
            await peer.send_in(forged, b"x")
        assert refused.value.code == WireCode.NOT_ALLOWED_ERROR
    await peer.add_topics(transaction)
    await peer.send_in(transaction, b"1")
    await peer.commit(transaction)
    with pytest.raises(Refused, match="may not send to"):
        await peer.send_in(transaction, b"late")


async def test_nobody_sends_in_the_transaction_of_another_role(harness: Harness) -> None:
    peer = await producing(harness)
    transaction = await sending(peer, b"1")
    (producer,) = topic_of(harness).producers.values()
    producer.session.role = "mallory"  # type: ignore[attr-defined]  # as authentication has proven it
    with pytest.raises(Refused, match="role 'mallory' did not open transaction") as refused:
        await peer.send_in(transaction, b"2")
    assert refused.value.code == WireCode.NOT_ALLOWED_ERROR


async def test_a_send_in_a_transaction_is_refused_when_there_is_no_memory_for_what_it_holds(harness: Harness) -> None:
    peer = await producing(harness)
    transaction = await sending(peer, b"1")
    row = harness.broker.dispatch_memory
    room = row.available_bytes
    row.charge(room)  # Others use it up.
    with pytest.raises(Refused, match="or raise memoryLimitMB"):
        await peer.send_in(transaction, b"2")
    row.release(room)
    await peer.send_in(transaction, b"3")
    await peer.commit(transaction)
    assert topic_of(harness).last_entry_id == 1


async def test_ended_transactions_with_long_timeouts_leave_nothing_behind(harness: Harness) -> None:
    peer = await connected(harness)
    for _ in range(3 * DEADLINES_MIN):
        await peer.commit(await peer.open(DAY_MS))
    coordinator = harness.broker.transactions
    assert not coordinator.open_ones()
    assert len(coordinator._deadlines) <= DEADLINES_MIN + 1  # noqa: SLF001


async def test_non_persistent_topics_have_no_transactions(harness: Harness) -> None:
    peer = await connected(harness)
    transaction = await peer.open()
    with pytest.raises(Refused, match="persistent topics"):
        await peer.add_topics(transaction, "non-persistent://public/default/n")


# -- the end


async def test_the_same_end_twice_is_one_and_another_end_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        transaction = await sending(peer, b"1")
        await peer.commit(transaction)
    async with running(tmp_path) as harness:
        peer = await connected(harness)
        await peer.commit(transaction)
        with pytest.raises(Refused, match=r"Transaction \(0,0\) is committed") as refused:
            await peer.abort(transaction)
        assert refused.value.code == WireCode.INVALID_TXN_STATUS
        with pytest.raises(Refused) as refused:
            await peer.commit(TransactionId(0, 999))
        assert refused.value.code == WireCode.TRANSACTION_NOT_FOUND
        with pytest.raises(Refused, match="is committed"):
            await peer.add_topics(transaction)


async def test_after_its_timeout_a_transaction_is_aborted(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    await peer.publish(b"plain")
    harness.clock.advance(ms=MINUTE_MS)
    assert await peer.payloads(1) == [b"plain"]
    with pytest.raises(Refused, match="is aborted"):
        await peer.commit(transaction)
    assert harness.broker.transactions.timed_out_total == 1
    assert used(harness) < 1_000


async def test_of_a_commit_and_a_timeout_at_once_one_wins(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    with harness.catalog_held():
        peer.client.write(ending(peer, transaction))
        await turns()
        harness.clock.advance(ms=2 * MINUTE_MS)
        await turns()
    assert await peer.payloads(1) == [b"1"]
    assert harness.broker.transactions.timed_out_total == 0


async def test_many_that_were_left_open_are_aborted_some_in_a_turn(harness: Harness) -> None:
    count = 3 * TIMEOUTS_IN_TURN
    coordinator, before = harness.broker.transactions, used(harness)
    for _ in range(count):
        await coordinator.open(0, "", 1_000)
    harness.clock.advance(ms=1_000)
    coordinator.tick(harness.clock.monotonic_ns())
    seen = set()

    def ended() -> bool:
        seen.add(coordinator.timed_out_total)
        return coordinator.timed_out_total == count

    await until(ended)
    assert {TIMEOUTS_IN_TURN, 2 * TIMEOUTS_IN_TURN} <= seen, "others were served in between"
    assert (coordinator.open_ones(), used(harness)) == ([], before)


async def test_only_so_many_are_open(tmp_path: Path) -> None:
    async with running(tmp_path, transactions_max=2) as harness:
        peer = await connected(harness)
        first = await peer.open()
        await peer.open()
        with pytest.raises(Refused, match="maxActiveTransactionsPerCoordinator") as refused:
            await peer.open()
        assert refused.value.code == WireCode.TOO_MANY_REQUESTS
        await peer.abort(first)
        await peer.open()


async def test_a_client_that_opens_and_leaves_costs_memory_until_the_timeout(tmp_path: Path) -> None:
    async with running(tmp_path, dispatch_bytes=10_000) as harness:
        peer = await connected(harness)
        for _ in range(10):
            await peer.open()
        with pytest.raises(Refused, match="unacknowledged messages and acknowledgements have 10,000 of 10,000"):
            await peer.open()
        harness.clock.advance(ms=MINUTE_MS)
        await until(lambda: used(harness) == 0)
        await peer.open()


@pytest.mark.parametrize("timeout_ms", [0, 25 * 60 * MINUTE_MS, 2**63])
async def test_a_timeout_has_limits(harness: Harness, timeout_ms: int) -> None:
    peer = await connected(harness)
    with pytest.raises(Refused, match="may be open for"):
        await peer.open(timeout_ms)


# -- a restart


async def restarted(tmp_path: Path, how: str, *payloads: bytes, named: bool = True) -> TransactionId:
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        await peer.subscribe()
        await peer.publish(b"before")
        transaction = await sending(peer, *payloads, named=named)
        await peer.publish(b"after")
        if how == "aborted":
            await peer.abort(transaction)
        return transaction


@pytest.mark.parametrize("named", [True, False])
async def test_an_open_transaction_goes_on_after_a_restart(tmp_path: Path, *, named: bool) -> None:
    transaction = await restarted(tmp_path, "open", b"1", b"2", named=named)
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        await peer.subscribe()
        assert await peer.payloads(1) == [b"before"]
        await nothing_more(harness, peer)
        await peer.send_in(transaction, b"3")
        await peer.commit(transaction)
        assert await peer.payloads(4) == [b"1", b"2", b"after", b"3"]


async def test_a_transaction_that_was_only_opened_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A client that was told of it sends in it when the broker is back, and may not notice that it was away."""
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        used, ended, left = [await peer.open() for _ in range(3)]
        await peer.commit(ended)
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        await peer.subscribe()
        await peer.add_topics(used)
        await peer.send_in(used, b"in")
        await peer.commit(used)
        assert await peer.payloads(1) == [b"in"]
        await peer.commit(ended)
        with pytest.raises(Refused, match="is committed"):
            await peer.abort(ended)
        assert [one.id for one in harness.broker.transactions.open_ones()] == [left]
        harness.clock.advance(ms=MINUTE_MS + 1_000)
        await until(lambda: not harness.broker.transactions.open_count)
    async with running(tmp_path) as harness:
        assert not harness.broker.transactions.open_count
        with pytest.raises(Refused, match="is aborted"):
            await (await connected(harness)).commit(left)


@pytest.mark.parametrize("how", ["open", "aborted"])
async def test_what_is_aborted_stays_aborted_after_a_restart(tmp_path: Path, how: str) -> None:
    transaction = await restarted(tmp_path, how, b"1", b"2", named=False)
    async with running(tmp_path) as harness:
        peer = await connected(harness)
        await peer.abort(transaction)
        await peer.subscribe()
        assert await peer.payloads(2) == [b"before", b"after"]
    async with running(tmp_path) as harness:
        peer = await connected(harness)
        for consumer_id, name in enumerate(("s", "new")):
            await peer.subscribe(SHARED, name=name, consumer_id=consumer_id)
            assert await peer.payloads(2) == [b"before", b"after"]
            await nothing_more(harness, peer, name=name)


async def test_a_timeout_goes_on_over_a_restart(tmp_path: Path) -> None:
    await restarted(tmp_path, "open", b"1")
    async with running(tmp_path) as harness:
        harness.clock.advance(ms=MINUTE_MS)
        await until(lambda: harness.broker.transactions.timed_out_total == 1)
        peer = await connected(harness)
        await peer.subscribe()
        assert await peer.payloads(2) == [b"before", b"after"]


async def test_a_topic_is_unloaded_with_an_open_transaction(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    await harness.broker.topic_life.unload(NAME)
    await peer.commit(transaction)
    await peer.subscribe()
    assert await peer.payloads(1) == [b"1"]


async def test_a_topic_that_is_unloaded_while_it_is_added_takes_messages_when_it_is_loaded_again(
    harness: Harness,
) -> None:
    peer = await producing(harness)
    transaction = await peer.open()
    with harness.catalog_held():
        adding = asyncio.ensure_future(peer.add_topics(transaction))
        await turns()
        unloading = asyncio.ensure_future(harness.broker.topic_life.unload(NAME))
        await turns()
    await asyncio.gather(adding, unloading)
    await peer.subscribe()
    again = await producing(harness)
    await again.send_in(transaction, b"1")
    await again.commit(transaction)
    assert await peer.payloads(1) == [b"1"]


async def test_two_that_end_a_transaction_at_once_get_the_same_answer(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    with harness.catalog_held():
        peer.client.write(2 * ending(peer, transaction))
        await turns()
    answers = [(await peer.next(Type.END_TXN_RESPONSE))[0] for _ in range(2)]
    assert not any(answer.endTxnResponse.HasField("error") for answer in answers)
    assert await peer.payloads(1) == [b"1"]
    assert harness.broker.transactions.committed_total == 1


async def test_an_end_that_cannot_be_stored_leaves_the_transaction_open(harness: Harness) -> None:
    peer = await producing(harness)
    transaction = await sending(peer, b"1")
    for file in metadata_files(harness.broker.catalog):
        file.submit(Change(lambda _db: 1 // 0, lambda _: None, lambda _: None))
    for end in (peer.commit, peer.abort):
        with pytest.raises(Refused, match="refuses changes since"):
            await end(transaction)
        found, entries = harness.broker.transactions.find(transaction), topic_of(harness).transactions
        assert found is not None
        assert found.is_open
        assert entries is not None
        assert entries.takes(transaction)
    with pytest.raises(Refused, match="refuses changes since"):
        await peer.open()
    assert harness.broker.transactions.open_count == 1


async def test_requests_that_wait_for_the_disk_alone_take_no_tasks(harness: Harness) -> None:
    """A task for each would take the loop as long as all else that such a request needs."""
    peer = await producing(harness)
    first = await peer.open()  # Numbers are reserved with this one.
    with harness.catalog_held():
        tasks = len(asyncio.all_tasks())
        for kind, fields in (
            (Type.NEW_TXN, {"txn_ttl_seconds": MINUTE_MS, "tc_id": 0}),
            (Type.ADD_PARTITION_TO_TXN, {**ids(first), "partitions": [TOPIC]}),
            (Type.END_TXN, {**ids(first), "txn_action": 0}),
        ):
            peer.client.write(frame(kind, request_id=kind, **fields))
        await until(lambda: not harness.broker.transactions.find(first).is_open)  # type: ignore[union-attr]
        assert len(asyncio.all_tasks()) == tasks
    for kind in (Type.NEW_TXN_RESPONSE, Type.ADD_PARTITION_TO_TXN_RESPONSE, Type.END_TXN_RESPONSE):
        await peer.next(kind)


async def test_a_deleted_topic_does_not_hold_the_others(harness: Harness) -> None:
    peer = await producing(harness)
    other = await connected(harness)
    await other.produce(OTHER)
    await peer.subscribe()
    transaction = await peer.open()
    await peer.add_topics(transaction, TOPIC, OTHER)
    await peer.send_in(transaction, b"1")
    await other.send_in(transaction, b"gone")
    await harness.broker.topic_life.delete(TopicName.parse(OTHER), force=True)
    await peer.commit(transaction)
    assert await peer.payloads(1) == [b"1"]


# -- acknowledgements


async def test_acknowledgements_count_from_the_commit_on(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1", b"2", b"3")
    received = await peer.messages(3)
    transaction = await acknowledging(peer, *received[:2])
    assert subscription_of(harness).backlog == 3
    assert subscription_of(harness).cursor.mark_delete == -1
    await peer.commit(transaction)
    assert subscription_of(harness).backlog == 1
    assert subscription_of(harness).cursor.mark_delete == 1
    assert subscription_of(harness).pending is None


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_after_an_abort_messages_are_delivered_again(harness: Harness, kind: int) -> None:
    peer = await producing(harness)
    await peer.subscribe(kind)
    await peer.publish(b"1", b"2")
    received = await peer.messages(2)
    transaction = await acknowledging(peer, *received)
    await nothing_more(harness, peer)
    await peer.abort(transaction)
    assert sorted(await peer.payloads(2)) == [b"1", b"2"]
    assert subscription_of(harness).backlog == 2


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_what_is_pending_is_delivered_to_nobody_else(harness: Harness, kind: int) -> None:
    peer = await producing(harness)
    await peer.subscribe(kind)
    await peer.publish(b"1", b"2", b"3")
    received = await peer.messages(3)
    transaction = await acknowledging(peer, received[1])
    await peer.close_consumer()
    await peer.subscribe(kind, consumer_id=1)
    assert await peer.payloads(2) == [b"1", b"3"]
    await nothing_more(harness, peer)
    await peer.abort(transaction)
    again = 1 if kind != EXCLUSIVE else 3
    assert b"2" in await peer.payloads(again)


async def test_two_transactions_cannot_acknowledge_the_same(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1", b"2")
    first, second = await peer.messages(2)
    one = await acknowledging(peer, first)
    await peer.acknowledge_in(one, first)  # The same again is no conflict.
    other = await peer.open()
    await peer.add_subscription(other)
    with pytest.raises(Refused, match=r"transaction \(0,0\) acknowledges it") as refused:
        await peer.acknowledge_in(other, first)
    assert refused.value.code == WireCode.TRANSACTION_CONFLICT
    await peer.commit(one)
    with pytest.raises(Refused, match="it is acknowledged"):
        await peer.acknowledge_in(other, first)
    await peer.acknowledge_in(other, second)
    await peer.commit(other)
    assert subscription_of(harness).backlog == 0


async def test_after_an_abort_another_transaction_may_acknowledge(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1")
    (received,) = await peer.messages(1)
    await peer.abort(await acknowledging(peer, received))
    await peer.commit(await acknowledging(peer, await peer.message()))
    assert subscription_of(harness).backlog == 0


async def test_pending_acknowledgements_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        peer = await producing(harness)
        await peer.subscribe(SHARED)
        await peer.publish(b"1", b"2", b"3")
        received = await peer.messages(3)
        transaction = await acknowledging(peer, received[0], received[2])
    async with running(tmp_path) as harness:
        peer = await connected(harness)
        await peer.subscribe(SHARED)
        assert await peer.payloads(1) == [b"2"]
        await nothing_more(harness, peer)
        await peer.commit(transaction)
        assert subscription_of(harness).backlog == 1
    async with running(tmp_path) as harness:
        await harness.broker.topics.load(NAME)
        assert subscription_of(harness).backlog == 1


async def test_cumulative_acknowledgements_in_transactions(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    await peer.publish(b"1", b"2", b"3")
    received = await peer.messages(3)
    first = await acknowledging(peer, received[1], cumulative=True)
    second = await peer.open()
    await peer.add_subscription(second)
    with pytest.raises(Refused, match="acknowledges everything up to 1"):
        await peer.acknowledge_in(second, received[2], cumulative=True)
    await peer.commit(first)
    assert subscription_of(harness).cursor.mark_delete == 1
    with pytest.raises(Refused, match="everything up to it is acknowledged"):
        await peer.acknowledge_in(second, received[0], cumulative=True)
    await peer.acknowledge_in(second, received[2], cumulative=True)
    await peer.commit(second)
    assert subscription_of(harness).backlog == 0


async def test_shared_messages_are_not_acknowledged_cumulatively(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1")
    (received,) = await peer.messages(1)
    with pytest.raises(Refused, match="one by one"):
        await acknowledging(peer, received, cumulative=True)


async def test_messages_of_a_batch_are_acknowledged_in_different_transactions(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"batch", messages=3)
    (received,) = await peer.messages(1)
    one = await acknowledging(peer, received, words=[0b011], batch_size=3)  # all but the first two: the third
    other = await acknowledging(peer, received, words=[0b101], batch_size=3)
    with pytest.raises(Refused, match="acknowledges these messages of it"):
        await peer.acknowledge_in(other, received, words=[0b011], batch_size=3)
    await peer.commit(one)
    assert subscription_of(harness).cursor.ack_set(0) == [0b011]
    await peer.close_consumer()
    await peer.subscribe(SHARED, consumer_id=1)
    again = await peer.message()
    assert list(again.message.ack_set) == [0b001]
    await peer.acknowledge_in(other, again, consumer_id=1, words=[0b110], batch_size=3)
    await peer.commit(other)
    assert subscription_of(harness).backlog == 0


async def test_a_subscription_must_be_there_and_belong_to_the_transaction(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"1")
    (received,) = await peer.messages(1)
    transaction = await peer.open()
    with pytest.raises(Refused, match="no durable subscription 'none'"):
        await peer.add_subscription(transaction, "none")
    with pytest.raises(Refused, match="was not told of subscription 's'"):
        await peer.acknowledge_in(transaction, received)
    with pytest.raises(Refused, match="not found"):
        await peer.acknowledge_in(TransactionId(0, 77), received)


async def test_sends_and_acknowledgements_of_one_transaction(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"in")
    (received,) = await peer.messages(1)
    transaction = await acknowledging(peer, received)
    await peer.add_topics(transaction)
    await peer.send_in(transaction, b"out")
    await peer.commit(transaction)
    assert await peer.payloads(1) == [b"out"]
    assert subscription_of(harness).cursor.mark_delete == 0
    assert harness.broker.transactions.open_ones() == []
    assert used(harness) < 2_000


async def test_many_producers_are_not_needed_to_end_it(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe()
    transaction = await sending(peer, b"1")
    await disconnect_producers(topic_of(harness), harness.broker.reads)
    await peer.commit(transaction)
    assert await peer.payloads(1) == [b"1"]


# -- administration


async def test_an_administrator_finds_a_slow_transaction_and_aborts_it(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    await peer.publish(b"in")
    transaction = await acknowledging(peer, await peer.message())
    await peer.add_topics(transaction)
    await peer.send_in(transaction, b"out")
    harness.clock.advance(ms=1_000)
    await peer.open()
    admin = administration(harness.broker).transactions
    assert (await admin.coordinators())["0"]["ongoingTxnSize"] == 2
    ((name, slow),) = (await admin.slow(1_000)).items()
    assert name == slow["txnId"] == str(transaction)
    assert (slow["status"], slow["timeoutAt"], slow["owner"]) == ("OPEN", MINUTE_MS, "")
    assert slow["producedPartitions"][TOPIC]["startPosition"] == "1:1"
    assert list(slow["ackedPartitions"][TOPIC]) == ["s"]
    assert await admin.metadata(transaction) == slow
    await admin.abort(transaction)
    assert await peer.payloads(1) == [b"in"]
    with pytest.raises(TransactionNotFound):
        await admin.metadata(transaction)


async def test_what_a_transaction_holds_is_explained_and_measured_with_its_age(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    transaction = await sending(peer, b"1", b"2")
    harness.clock.advance(ms=5_000)
    admin = administration(harness.broker)
    (found,) = (await admin.why.of_topic(NAME))["findings"]
    assert (found["reason"], found["forMs"], found["numbers"]["kept_back_entries"]) == ("open-transaction", 5_000, 2)
    assert f"transactions abort {transaction.coordinator} {transaction.number}" in found["liftedBy"]
    snapshot = await admin.snapshots.take()
    assert [topic.held_for_ms for topic in snapshot.topics] == [5_000]
    assert snapshot.transactions == TransactionsSnapshot(
        coordinator=0, open=1, opened=1, committed=0, aborted=0, timed_out=0
    )
    await peer.commit(transaction)
    snapshot = await admin.snapshots.take()
    assert [topic.held_for_ms for topic in snapshot.topics] == [None]
    assert snapshot.transactions == TransactionsSnapshot(
        coordinator=0, open=0, opened=1, committed=1, aborted=0, timed_out=0
    )


async def test_why_names_the_role_that_holds_a_topic(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(SHARED)
    transaction = await sending(peer, b"1")
    held = harness.broker.transactions.find(transaction)
    assert held is not None
    held.owner = "flink"
    (found,) = (await administration(harness.broker).why.of_topic(NAME))["findings"]
    assert found["limit"].startswith(f"transaction {transaction} of role 'flink' is open")


async def test_a_broker_without_transactions_has_no_metrics_of_them(tmp_path: Path) -> None:
    async with running(tmp_path, transactions=False) as harness:
        assert (await administration(harness.broker).snapshots.take()).transactions is None


async def test_an_administrator_sees_what_transactions_do_in_a_topic(harness: Harness) -> None:
    peer = await producing(harness)
    await peer.subscribe(EXCLUSIVE)
    admin = administration(harness.broker).transactions
    await peer.publish(b"in")
    received = await peer.message()
    assert await admin.buffer(NAME) == {"state": "NoSnapshot", "maxReadPosition": "1:0", "ongoingTxnSize": 0}
    assert await admin.pending_acks(NAME, "s") == {"state": "None", "ongoingTxnSize": 0}
    transaction = await acknowledging(peer, received, cumulative=True)
    await peer.add_topics(transaction)
    assert await admin.in_buffer(NAME, transaction) == {}
    await peer.send_in(transaction, b"out")
    assert await admin.buffer(NAME) == {"state": "Ready", "maxReadPosition": "1:0", "ongoingTxnSize": 1}
    assert await admin.in_buffer(NAME, transaction) == {"startPosition": "1:1", "aborted": False}
    assert await admin.pending_acks(NAME, "s") == {"state": "Ready", "ongoingTxnSize": 1}
    assert await admin.in_pending_acks(NAME, "s", transaction) == {"cumulativeAckPosition": "1:0"}
    await peer.commit(transaction)
    assert await admin.buffer(NAME) == {"state": "NoSnapshot", "maxReadPosition": "1:1", "ongoingTxnSize": 0}
    assert await admin.in_pending_acks(NAME, "s", transaction) == {}


async def test_there_is_one_coordinator_to_ask_about(harness: Harness) -> None:
    admin = administration(harness.broker).transactions
    assert await admin.coordinator(0) == (await admin.coordinators())["0"]
    with pytest.raises(CoordinatorNotFound):
        await admin.coordinator(1)
