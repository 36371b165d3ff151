# SPDX-License-Identifier: Apache-2.0
"""Transactions that send to topics of several brokers, and acknowledge there: all of it happens, or none."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import httpx
import pytest

from penstock.admin.gateway import BrokerGateway
from penstock.broker.composition.administration import administration
from penstock.broker.elsewhere import PARTS_AT_ONCE
from penstock.broker.transactions.others import COMMITS
from penstock.core.broker_states import BrokerState
from penstock.core.caller import HEADER, BrokerItself, Caller, encode_asker
from penstock.core.errors import PenstockError, WireCode
from penstock.core.names import TopicName
from penstock.core.system_topics import COORDINATORS
from penstock.core.transaction_id import TransactionId
from penstock.testing.client import Refused
from tests.admin.application import before
from tests.broker.cluster import several
from tests.broker.consuming import SHARED
from tests.broker.transacting import MINUTE_MS, TransactingPeer, Type
from tests.net.harness import Harness, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.storage.shared_writer import Writer
    from penstock.testing.loop import VirtualLoop

# How long brokers take until they have settled what is left: they try every 5 s, and wait up to 5 s for a silent one.
SETTLED_S: Final = 15.0
PARTS: Final = "/admin/v3/transactions/parts"


def topic(number: int) -> str:
    """The topic that this broker serves."""
    return f"persistent://public/default/of-{number}"


class Brokers:
    """Brokers with a topic each, and with each broker a client that publishes to that topic and reads it."""

    def __init__(self, harnesses: list[Harness], silent: set[int]) -> None:
        self.harnesses = harnesses
        self.silent = silent  # those that do not answer the others
        self.peers: list[TransactingPeer] = []

    async def connect(self) -> None:
        for number, harness in enumerate(self.harnesses):
            await harness.broker.topics.get_or_create(TopicName.parse(topic(number)), create=True)
            peer = cast("TransactingPeer", await TransactingPeer.connected(harness))
            await peer.produce(topic(number))
            await peer.subscribe(SHARED, topic=topic(number))
            self.peers.append(peer)

    async def sending(self, *, coordinator: int = 0, timeout_ms: int = MINUTE_MS) -> TransactionId:
        """An open transaction that has sent `in` to each topic."""
        first = self.peers[coordinator]
        transaction = await first.open(timeout_ms, coordinator=coordinator)
        await first.add_topics(transaction, *map(topic, range(len(self.peers))))
        for peer in self.peers:
            await peer.send_in(transaction, b"in")
        return transaction

    async def seen(self, payload: bytes = b"in") -> None:
        """Each topic has this, once."""
        for peer in self.peers:
            assert await peer.payloads(1) == [payload]
        await self.seen_by_nobody()

    async def seen_by_nobody(self) -> None:
        """Nobody has got anything more."""
        await turns()
        for peer in self.peers:
            assert Type.MESSAGE not in [command.type for command in await peer.settled()]

    def held(self) -> list[bool]:
        """Whether an open transaction keeps back entries, topic by topic."""
        return [topic_of(one, topic(number)).holds_back for number, one in enumerate(self.harnesses)]

    def nothing_left(self) -> bool:
        """Whether no broker knows of an open transaction or of a decision, nor holds memory for one."""
        brokers = [one.broker for one in self.harnesses]
        return not any(
            one.transactions.open_count + one.transactions.foreign_count + len(one.catalog.documents(COMMITS))
            for one in brokers
        )

    async def settled(self) -> None:
        async with asyncio.timeout(SETTLED_S):
            while not self.nothing_left():  # noqa: ASYNC110 - nobody says when
                await asyncio.sleep(0.1)


@asynccontextmanager
async def brokers_of(directory: Path, count: int = 2) -> AsyncIterator[Brokers]:
    silent: set[int] = set()
    async with several(directory, count, silent=silent) as harnesses:
        brokers = Brokers(harnesses, silent)
        await brokers.connect()
        yield brokers
        silent.clear()
        await brokers.settled()


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    async with brokers_of(tmp_path) as made:
        yield made


# -- coordinators


async def test_each_broker_has_a_coordinator_that_clients_find(brokers: Brokers) -> None:
    for number, peer in enumerate(brokers.peers):
        about = {"topic": COORDINATORS, "metadata_auto_creation_enabled": False}
        answer = await peer.client.request(Type.PARTITIONED_METADATA, Type.PARTITIONED_METADATA_RESPONSE, **about)
        assert answer.partitionMetadataResponse.partitions == 2
        for partition in range(2):
            found = await peer.client.request(
                Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=f"{COORDINATORS}-partition-{partition}"
            )
            assert found.lookupTopicResponse.brokerServiceUrl == f"pulsar://broker-{partition}:6650"
        await peer.ask(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=number)
        with pytest.raises(Refused) as refused:
            await peer.ask(Type.TC_CLIENT_CONNECT_REQUEST, tc_id=1 - number)
        assert refused.value.code == WireCode.TRANSACTION_COORDINATOR_NOT_FOUND


async def test_ids_of_two_coordinators_differ(brokers: Brokers) -> None:
    ids = [await peer.open(coordinator=number) for number, peer in enumerate(brokers.peers)]
    assert [one.coordinator for one in ids] == [0, 1]
    for one, peer in zip(ids, brokers.peers, strict=True):
        await peer.abort(one)


# -- together


@pytest.mark.parametrize("coordinator", [0, 1])
async def test_what_is_sent_to_topics_of_several_brokers_is_seen_at_the_commit(
    brokers: Brokers, coordinator: int
) -> None:
    transaction = await brokers.sending(coordinator=coordinator)
    await brokers.seen_by_nobody()
    await brokers.peers[coordinator].commit(transaction)
    await brokers.seen()
    assert brokers.held() == [False, False]


async def test_what_is_aborted_is_seen_by_nobody(brokers: Brokers) -> None:
    transaction = await brokers.sending()
    await brokers.peers[0].abort(transaction)
    for peer in brokers.peers:
        await peer.publish(b"after")
    await brokers.seen(b"after")


async def test_a_timeout_aborts_everywhere(brokers: Brokers) -> None:
    await brokers.sending(timeout_ms=3_000)
    await asyncio.sleep(5)
    assert brokers.held() == [False, False]
    await brokers.seen_by_nobody()


@pytest.mark.parametrize("commit", [True, False])
async def test_acknowledgements_at_another_broker_count_with_the_commit(brokers: Brokers, commit: bool) -> None:
    there = brokers.peers[1]
    await there.publish(b"work")
    received = await there.message()
    transaction = await brokers.peers[0].open()
    await brokers.peers[0].add_subscription(transaction, topic=topic(1))
    await there.acknowledge_in(transaction, received)
    subscription = topic_of(brokers.harnesses[1], topic(1)).subscriptions["s"]
    assert subscription.backlog == 1
    await (brokers.peers[0].commit if commit else brokers.peers[0].abort)(transaction)
    assert subscription.backlog == (0 if commit else 1)
    if not commit:
        assert (await there.message()).entry_id == received.entry_id


async def test_all_brokers_give_its_memory_back(brokers: Brokers) -> None:
    def used() -> list[int]:
        return [one.broker.dispatch_memory.used_bytes for one in brokers.harnesses]

    before = used()
    for commit in (True, False):
        transaction = await brokers.peers[0].open()
        await brokers.peers[0].add_topics(transaction, topic(0), topic(1))
        await brokers.peers[0].add_subscription(transaction, topic=topic(1))
        assert all(now > then for now, then in zip(used(), before, strict=True))
        await (brokers.peers[0].commit if commit else brokers.peers[0].abort)(transaction)
        assert used() == before


async def test_a_transaction_may_have_all_its_parts_elsewhere(brokers: Brokers) -> None:
    transaction = await brokers.peers[0].open()
    await brokers.peers[0].add_topics(transaction, topic(1))
    await brokers.peers[1].send_in(transaction, b"in")
    await brokers.peers[0].commit(transaction)
    assert await brokers.peers[1].payloads(1) == [b"in"]
    await brokers.peers[0].commit(transaction)  # Who asks again is told the same.
    with pytest.raises(Refused, match="is committed"):
        await brokers.peers[0].abort(transaction)


async def test_a_topic_that_another_broker_has_created_a_moment_ago_is_found(brokers: Brokers) -> None:
    new = "persistent://public/default/new"
    await brokers.harnesses[1].broker.topics.get_or_create(TopicName.parse(new), create=True)
    transaction = await brokers.peers[0].open()
    await brokers.peers[0].add_topics(transaction, new)
    with pytest.raises(Refused, match="not found"):
        await brokers.peers[0].add_topics(transaction, f"{new}er")
    await brokers.peers[0].abort(transaction)


async def test_what_another_broker_refuses_is_refused(brokers: Brokers) -> None:
    transaction = await brokers.peers[0].open()
    with pytest.raises(Refused, match="has no durable subscription 'x': subscribe before"):
        await brokers.peers[0].add_subscription(transaction, "x", topic(1))
    await brokers.peers[0].abort(transaction)


# -- who may


async def test_a_transaction_that_a_broker_was_not_told_of_may_not_send_there(brokers: Brokers) -> None:
    transaction = await brokers.peers[0].open()
    for forged in (transaction, TransactionId(1, transaction.number), TransactionId(0, 2**63)):
        with pytest.raises(Refused, match="not found"):
            await brokers.peers[1].send_in(forged, b"forged")
    await brokers.peers[0].abort(transaction)


async def test_only_its_coordinator_ends_it(brokers: Brokers) -> None:
    transaction = await brokers.sending()
    with pytest.raises(Refused, match="coordinator 0 is not here"):
        await brokers.peers[1].commit(transaction)
    await brokers.seen_by_nobody()
    await brokers.peers[0].abort(transaction)


async def test_only_brokers_ask_for_parts(brokers: Brokers) -> None:
    requests: Any = brokers.harnesses[0].broker.elsewhere._requests  # noqa: SLF001 - as a broker that was taken over
    transaction = await brokers.sending()
    ends = {"ends": [[*transaction, True]]}
    with pytest.raises(PenstockError, match="only brokers of this cluster"):
        await requests.ask(1, "POST", f"{PARTS}/end", ends, by=Caller("admin", "token"))
    await brokers.seen_by_nobody()
    # Nor does a broker end, or take over, what another one coordinates: of itself it knows better.
    body = {"owner": "", "startedMs": 0, "timeoutMs": 1, "topics": [], "subscriptions": []}
    with pytest.raises(PenstockError, match="of no other broker"):
        await requests.ask(1, "PUT", f"{PARTS}/1/5", body, by=BrokerItself(0))
    await brokers.peers[0].abort(transaction)


async def test_nobody_else_asks_for_parts_even_where_nobody_is_authenticated(brokers: Brokers) -> None:
    asked = brokers.harnesses[1].broker
    app = before(BrokerGateway(lambda: administration(asked), asked.loop, lambda _: []))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://broker") as client:
        with cast("VirtualLoop", asyncio.get_running_loop()).real_work():  # Routes run in threads, which are real.
            answer = await client.post(
                f"{PARTS}/end",
                json={"ends": [[0, 0, True]]},
                headers={HEADER: encode_asker(BrokerItself(0))},
            )
    assert answer.status_code == 403
    assert "only brokers of this cluster" in answer.json()["reason"]


# -- many at once


async def test_transactions_that_end_together_are_told_together(brokers: Brokers) -> None:
    """A client that opens many and leaves costs the other broker a few requests, not one for each."""
    asked = watched(brokers)
    for _ in range(150):
        transaction = await brokers.peers[0].open(20_000)
        await brokers.peers[0].add_topics(transaction, topic(1))
    await asyncio.sleep(25)
    assert brokers.nothing_left()
    assert 1 <= len([target for target in asked if target.endswith("/end")]) <= 10


async def test_one_broker_is_asked_for_a_few_parts_at_a_time(brokers: Brokers) -> None:
    brokers.silent.add(1)
    asked = watched(brokers)
    elsewhere = brokers.harnesses[0].broker.elsewhere
    outcomes = await asyncio.gather(
        *(elsewhere.part(1, "GET", f"/{number}") for number in range(10 * PARTS_AT_ONCE)), return_exceptions=True
    )
    assert len(asked) == PARTS_AT_ONCE
    assert {str(one) for one in outcomes} == {"broker 1 did not answer within 5 s"}


async def test_names_that_nobody_knows_are_waited_for_once(brokers: Brokers) -> None:
    transaction = await brokers.peers[0].open()
    elsewhere: Any = brokers.harnesses[0].broker.elsewhere
    times: list[None] = []
    catch_up = elsewhere._catch_up  # noqa: SLF001 - counted

    async def counted() -> None:
        times.append(None)
        await catch_up()

    elsewhere._catch_up = counted  # noqa: SLF001
    with pytest.raises(Refused, match="not found"):
        await brokers.peers[0].add_topics(transaction, *(f"{topic(0)}-{number}" for number in range(50)))
    assert len(times) == 1
    await brokers.peers[0].abort(transaction)


def watched(brokers: Brokers) -> list[str]:
    """What the first broker asks others for from now on."""
    requests: Any = brokers.harnesses[0].broker.elsewhere._requests  # noqa: SLF001 - counted
    targets: list[str] = []
    ask = requests.ask

    async def counted(broker: int, method: str, target: str, *more: Any, **how: Any) -> Any:  # noqa: ANN401
        targets.append(target)
        return await ask(broker, method, target, *more, **how)

    requests.ask = counted
    return targets


# -- brokers that do not answer


async def test_a_commit_is_told_later_to_a_broker_that_did_not_answer(brokers: Brokers) -> None:
    transaction = await brokers.sending()
    brokers.silent |= {0, 1}
    await brokers.peers[0].commit(transaction)
    assert brokers.held() == [False, True]
    assert len(brokers.harnesses[0].broker.catalog.documents(COMMITS)) == 1
    brokers.silent.clear()
    await brokers.settled()
    await brokers.seen()


async def test_an_abort_is_told_later_to_a_broker_that_did_not_answer(brokers: Brokers) -> None:
    transaction = await brokers.sending()
    brokers.silent |= {0, 1}
    await brokers.peers[0].abort(transaction)
    assert brokers.held() == [False, True]
    brokers.silent.clear()
    await brokers.settled()
    assert brokers.held() == [False, False]
    await brokers.seen_by_nobody()


async def test_a_broker_asks_for_what_it_was_not_told(brokers: Brokers) -> None:
    """The coordinator's broker was started again after an abort, of which the other one had not heard."""
    transaction = await brokers.sending()
    brokers.silent |= {0, 1}
    await brokers.peers[0].abort(transaction)
    coordinator: Any = brokers.harnesses[0].broker.transactions
    coordinator._settling._ends.clear()  # noqa: SLF001 - what a new start does not know
    brokers.silent.clear()
    await brokers.settled()
    assert brokers.held() == [False, False]
    await brokers.seen_by_nobody()


async def test_a_broker_that_cannot_ask_the_coordinator_waits(brokers: Brokers) -> None:
    transaction = await brokers.sending()
    brokers.silent.add(0)
    await asyncio.sleep(SETTLED_S)
    assert brokers.held() == [True, True]
    brokers.silent.clear()
    await asyncio.sleep(SETTLED_S)
    assert brokers.held() == [True, True]  # It is open there.
    await brokers.peers[0].commit(transaction)
    await brokers.seen()


async def test_adding_a_topic_of_a_broker_that_does_not_answer_fails_in_time(brokers: Brokers) -> None:
    brokers.silent.add(1)
    transaction = await brokers.peers[0].open()
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(Refused, match="broker 1 did not answer within 5 s"):
        await brokers.peers[0].add_topics(transaction, topic(0), topic(1))
    assert loop.time() - started < 6
    brokers.silent.clear()
    await brokers.peers[0].abort(transaction)


async def test_a_stop_does_not_wait_for_a_broker_that_does_not_answer(tmp_path: Path) -> None:
    silent: set[int] = set()
    loop = asyncio.get_running_loop()
    async with several(tmp_path, silent=silent) as harnesses:
        before = Brokers(harnesses, silent)
        await before.connect()
        first, second = await before.sending(), await before.sending()
        silent |= {0, 1}
        ends = [asyncio.ensure_future(before.peers[0].commit(one)) for one in (first, second)]
        await until(lambda: len(harnesses[0].broker.catalog.documents(COMMITS)) == 2)
        stopping_s = loop.time()
    assert loop.time() - stopping_s < 1
    await asyncio.gather(*ends, return_exceptions=True)
    async with brokers_of(tmp_path) as brokers:
        await brokers.settled()
        for peer in brokers.peers:
            assert await peer.payloads(2) == [b"in"] * 2


async def test_a_broker_that_is_being_started_is_waited_for(tmp_path: Path) -> None:
    writers: list[Writer] = []
    async with several(tmp_path, writers=writers) as harnesses:
        brokers = Brokers(harnesses, set())
        await brokers.connect()
        members = dict(harnesses[0].broker.membership.members)
        members[1] = replace(members[1], state=BrokerState.STARTING)
        writers[0].set_members(list(members.values()))
        await until(lambda: not harnesses[0].broker.membership.members[1].allows.serves)
        transaction = await brokers.peers[0].open()
        await brokers.peers[0].add_topics(transaction, topic(1))
        await brokers.peers[0].abort(transaction)


# -- new starts


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_of_several_brokers_goes_on_after_a_new_start(tmp_path: Path, commit: bool) -> None:
    async with several(tmp_path) as harnesses:
        before = Brokers(harnesses, set())
        await before.connect()
        transaction = await before.sending()
    async with brokers_of(tmp_path) as brokers:
        await brokers.seen_by_nobody()
        await (brokers.peers[0].commit if commit else brokers.peers[0].abort)(transaction)
        if commit:
            await brokers.seen()
        else:
            await brokers.seen_by_nobody()


async def test_a_commit_is_carried_out_after_a_new_start(tmp_path: Path) -> None:
    silent: set[int] = set()
    async with several(tmp_path, silent=silent) as harnesses:
        before = Brokers(harnesses, silent)
        await before.connect()
        transaction = await before.sending()
        silent |= {0, 1}
        await before.peers[0].commit(transaction)
        assert before.held() == [False, True]
    async with brokers_of(tmp_path) as brokers:
        await brokers.settled()
        await brokers.seen()
        await brokers.peers[0].commit(transaction)


async def test_a_commit_that_was_only_decided_is_carried_out_after_a_new_start(tmp_path: Path) -> None:
    async with several(tmp_path) as harnesses:
        before = Brokers(harnesses, set())
        await before.connect()
        transaction = await before.sending()
        others: Any = harnesses[0].broker.transactions._others  # noqa: SLF001 - the step before a crash
        await others.decide(transaction)
    async with brokers_of(tmp_path) as brokers:
        await brokers.settled()
        await brokers.seen()
        with pytest.raises(Refused, match="is committed"):
            await brokers.peers[0].abort(transaction)


@pytest.mark.parametrize("decided", [True, False])
async def test_transactions_of_a_coordinator_that_was_left_out_of_a_start_end(tmp_path: Path, decided: bool) -> None:
    """Nobody can ask it any more: what is decided is committed, the rest is aborted."""
    async with several(tmp_path, 3) as harnesses:
        before = Brokers(harnesses, set())
        await before.connect()
        transaction = await before.peers[2].open(coordinator=2)
        await before.peers[2].add_topics(transaction, topic(0), topic(1))
        for peer in before.peers[:2]:
            await peer.send_in(transaction, b"in")
        if decided:
            others: Any = harnesses[2].broker.transactions._others  # noqa: SLF001 - the step before a crash
            await others.decide(transaction)
        await harnesses[2].broker.topic_life.delete(TopicName.parse(topic(2)), force=True)
    async with brokers_of(tmp_path) as brokers:
        await brokers.settled()
        if decided:
            await brokers.seen()
        else:
            await brokers.seen_by_nobody()


# -- administration


async def test_any_broker_is_asked_about_the_transactions_of_all(brokers: Brokers) -> None:
    transaction = await brokers.sending(coordinator=1)
    await asyncio.sleep(2)
    for number, harness in enumerate(brokers.harnesses):
        admin = administration(harness.broker).transactions
        found = await admin.coordinators()
        assert {one: each["ongoingTxnSize"] for one, each in found.items()} == {"0": 0, "1": 1}
        assert (await admin.coordinator(1))["ongoingTxnSize"] == 1
        ((name, slow),) = (await admin.slow(1_000)).items()
        assert name == str(transaction)
        assert set(slow["producedPartitions"]) == {topic(0), topic(1)}
        assert await admin.metadata(transaction) == slow
        snapshot = (await administration(harness.broker).snapshots.take()).transactions
        assert snapshot is not None
        assert (snapshot.coordinator, snapshot.open) == (number, number)
    await administration(brokers.harnesses[0].broker).transactions.abort(transaction)
    assert brokers.held() == [False, False]
    with pytest.raises(PenstockError, match="not found"):
        await administration(brokers.harnesses[0].broker).transactions.metadata(transaction)
