# SPDX-License-Identifier: Apache-2.0
"""Replication between two brokers on one loop: what arrives, what does not, and what happens when the line is cut."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.composition.administration import administration
from penstock.broker.publishing.replicated import POSITION_PROPERTY
from penstock.broker.replication.replicator import HANDLED_PER_TURN, IDLE_S, Replicator, Turns
from penstock.core.units import MIB
from penstock.wire import metadata
from penstock.wire.client.frames import payload_in
from tests.broker.clusters import TOPIC, TOPIC_NAMESPACE, cluster, replicate, sending, stored
from tests.net.harness import Client, Harness, topic_of, turns, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penstock.broker.subscriptions.subscription import Subscription

CURSOR = "pulsar.repl.west"


@dataclass
class Pair:
    """A broker that replicates to another one."""

    east: Harness
    west: Harness

    @property
    def cursor(self) -> Subscription:
        return topic_of(self.east).subscriptions[CURSOR]

    @property
    def replicator(self) -> Replicator:
        found = self.cursor.replicator
        assert isinstance(found, Replicator)
        return found

    @property
    def arrived(self) -> list[bytes]:
        """Payloads that the other broker has, in order."""
        return [bytes(payload_in(entry)) for entry in stored(self.west)]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with cluster(tmp_path, "east") as east, cluster(tmp_path, "west") as west:
        await west.broker.policies.set_namespace("public/default", "deduplication", value=True)
        await replicate(east, west, "west", ["east", "west"])
        yield Pair(east, west)


async def test_entries_arrive_as_they_were_stored_and_say_where_they_come_from(pair: Pair) -> None:
    client = await Client.producing(pair.east.port)
    said: list[dict[str, Any]] = [
        {"partition_key": "k", "ordering_key": b"o", "event_time": 5, "deliver_at_time": 99},
        {"num_messages_in_batch": 3, "compression": 1, "uncompressed_size": 70},
        {"null_value": True, "encryption_algo": "a", "encryption_param": b"b"},
    ]
    for number, one in enumerate(said):
        client.write(sending(number, b"%d" % number, **one))
    await until(lambda: len(pair.arrived) == 3)
    assert pair.arrived == [b"0", b"1", b"2"]
    ledger_id = topic_of(pair.east).ledger_id
    for number, (before, after) in enumerate(zip(stored(pair.east), stored(pair.west), strict=True)):
        expected = metadata.decode(before)
        expected.replicated_from = "east"
        expected.properties.add(key=POSITION_PROPERTY, value=f"{ledger_id}:{number}")
        assert metadata.decode(after) == expected
    await until(lambda: not pair.cursor.backlog)
    assert not pair.replicator.out_bytes
    assert topic_of(pair.west).producers.keys() == {"pulsar.repl.east-->west"}


async def test_nothing_goes_on_that_came_from_elsewhere_or_is_not_for_this_cluster(pair: Pair) -> None:
    client = await Client.producing(pair.east.port)
    client.write(sending(0, b"from elsewhere", replicated_from="north"))
    client.write(sending(1, b"for nobody", replicate_to=["__local__"]))
    client.write(sending(2, b"for north", replicate_to=["north"]))
    client.write(sending(3, b"for west", replicate_to=["north", "west"]))
    client.write(sending(4, b"from elsewhere again", replicated_from="north"))
    await until(lambda: topic_of(pair.east).last_entry_id == 4 and not pair.cursor.backlog)
    assert pair.arrived == [b"for west"]


async def test_much_that_is_read_at_once_is_sent_in_many_turns_of_the_loop_and_in_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_in_turn: list[int] = []
    send_queued = Replicator._send_queued  # noqa: SLF001 - what one turn does

    def counted(self: Replicator, *about: Any) -> bytes | None:  # noqa: ANN401
        before = len(self._queued)
        version = send_queued(self, *about)
        sent_in_turn.append(before - len(self._queued))
        return version

    monkeypatch.setattr(Replicator, "_send_queued", counted)
    client = await Client.producing(pair.east.port)
    frames = [sending(number, b"%d" % number, replicated_from="north" if number % 3 else "") for number in range(1_500)]
    client.write(b"".join(frames))
    await until(lambda: topic_of(pair.east).last_entry_id == 1_499 and not pair.cursor.backlog)
    assert pair.arrived == [b"%d" % number for number in range(0, 1_500, 3)]
    assert sum(sent_in_turn) > HANDLED_PER_TURN >= max(sent_in_turn)


async def test_two_clusters_that_replicate_to_each_other_have_each_message_once(pair: Pair) -> None:
    await replicate(pair.west, pair.east, "east", ["east", "west"])
    for harness, payload in ((pair.east, b"of east"), (pair.west, b"of west")):
        client = await Client.producing(harness.port)
        client.write(sending(0, payload))
    await until(lambda: len(stored(pair.west)) == len(stored(pair.east)) == 2)
    await turns()
    assert sorted(pair.arrived) == [b"of east", b"of west"]
    assert sorted(bytes(payload_in(entry)) for entry in stored(pair.east)) == [b"of east", b"of west"]
    for harness, cursor in ((pair.east, "pulsar.repl.west"), (pair.west, "pulsar.repl.east")):
        await until(lambda h=harness, c=cursor: not topic_of(h).subscriptions[c].backlog)  # type: ignore[misc]


async def test_a_line_that_is_cut_again_and_again_loses_nothing_and_sends_nothing_twice(pair: Pair) -> None:
    client = await Client.producing(pair.east.port)
    for round_ in range(10):
        for number in range(20):
            client.write(sending(20 * round_ + number, b"%d" % (20 * round_ + number)))
        await until(lambda r=round_: len(pair.arrived) >= 20 * r + 1)  # type: ignore[misc]
        for connection in pair.west.connections.all():
            connection.close("cut")
    await until(lambda: topic_of(pair.east).last_entry_id == 199 and not pair.cursor.backlog)
    assert pair.arrived == [b"%d" % number for number in range(200)]


async def test_a_cluster_that_is_away_costs_a_timer_and_is_caught_up_with(tmp_path: Path) -> None:
    async with cluster(tmp_path, "east") as east:
        async with cluster(tmp_path, "west") as west:
            await replicate(east, west, "west", ["east", "west"])
            pair = Pair(east, west)
            client = await Client.producing(east.port)
            client.write(sending(0, b"0"))
            await until(lambda: pair.arrived == [b"0"])
        client = await Client.producing(east.port)
        for number in range(1, 100):
            client.write(sending(number, b"%d" % number))
        await until(lambda: topic_of(east).last_entry_id == 99)
        await until(lambda: pair.replicator.problem)
        assert not pair.replicator.out_bytes
        assert not pair.replicator.is_connected
        assert pair.cursor.backlog == 99


async def test_a_topic_without_messages_opens_no_producer_and_an_idle_one_closes_it(pair: Pair) -> None:
    client = await Client.producing(pair.east.port)
    await turns()
    assert pair.west.broker.topics.get(TOPIC) is None
    client.write(sending(0, b"0"))
    await until(lambda: pair.arrived)
    assert pair.replicator.is_connected
    await asyncio.sleep(2 * IDLE_S + 1)
    assert not pair.replicator.is_connected
    await until(lambda: not topic_of(pair.west).producers)
    client = await Client.producing(pair.east.port)  # The first one has answered no PING.
    client.write(sending(1, b"1"))
    await until(lambda: pair.arrived == [b"0", b"1"])


async def test_the_cursor_holds_trimming_and_goes_when_the_topic_is_not_replicated_any_more(pair: Pair) -> None:
    client = await Client.producing(pair.east.port)
    client.write(sending(0, b"0"))
    await until(lambda: pair.arrived)
    topic, replicator = topic_of(pair.east), pair.replicator
    assert topic.first_needed() is not None
    await administration(pair.east.broker).policies.set_replication(TOPIC_NAMESPACE, ["east"])
    await until(lambda: CURSOR not in topic.subscriptions)
    assert not pair.east.broker.catalog.subscriptions(TOPIC)
    assert not replicator.is_open
    client.write(sending(1, b"1"))
    await turns()
    assert pair.arrived == [b"0"]


async def test_an_entry_that_is_too_large_there_stops_its_topic_and_no_other(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, "east", frame_bytes_max=MIB) as east,
        cluster(tmp_path, "west", frame_bytes_max=MIB // 2) as west,
    ):
        await replicate(east, west, "west", ["east", "west"])
        pair, other = Pair(east, west), "persistent://public/default/other"
        client = await Client.producing(east.port)
        client.write(sending(0, b"0") + sending(1, bytes(MIB * 3 // 4)) + sending(2, b"2"))
        await until(lambda: pair.replicator.problem)
        assert "raise maxMessageSize there" in str(pair.replicator.problem)
        await asyncio.sleep(60)  # It was tried again a few times, and nothing before it was sent twice.
        client = await Client.producing(east.port, topic=other)
        client.write(sending(0, b"0"))
        await until(lambda: (west.broker.topics.get(other) or topic_of(west)).last_entry_id == 0)
        assert pair.arrived == [b"0"]
        pair.cursor.acknowledge_through(1)
        await until(lambda: pair.arrived == [b"0", b"2"])
        assert pair.replicator.problem is None


async def test_a_cluster_that_has_moved_is_found_where_it_is_now(pair: Pair) -> None:
    admin = administration(pair.east.broker)
    await admin.clusters.update("west", {"brokerServiceUrl": "pulsar://127.0.0.1:1"})
    client = await Client.producing(pair.east.port)
    client.write(sending(0, b"0"))
    await until(lambda: pair.replicator.problem)
    assert not pair.arrived
    await admin.clusters.update("west", {"brokerServiceUrl": f"pulsar://127.0.0.1:{pair.west.port}"})
    await until(lambda: pair.arrived == [b"0"])
    assert pair.replicator.problem is None


async def test_what_was_not_sent_is_sent_after_a_restart_without_any_client(tmp_path: Path) -> None:
    async with cluster(tmp_path, "west") as west:
        await west.broker.policies.set_namespace("public/default", "deduplication", value=True)
        async with cluster(tmp_path, "east") as east:
            await replicate(east, west, "west", ["east", "west"])
            west.broker.stopping = True  # It answers no lookups.
            client = await Client.producing(east.port)
            client.write(sending(0, b"0") + sending(1, b"1"))
            await until(lambda: topic_of(east).last_entry_id == 1)
        west.broker.stopping = False
        async with cluster(tmp_path, "east") as east:
            pair = Pair(east, west)
            await until(lambda: pair.arrived == [b"0", b"1"])


async def test_all_replicators_together_have_one_turn_of_the_loop() -> None:
    """A hundred topics that catch up make it no longer than one does, and none of them waits for the others' end."""
    line, left = Turns(), dict.fromkeys(range(100), 1_000)
    sent: list[tuple[int, int]] = []

    def enter(name: int) -> None:
        def turn(most: int) -> int:
            handled = min(most, left[name], 70)
            left[name] -= handled
            sent.append((name, handled))
            if left[name]:
                enter(name)
            return handled

        line.enter(turn)

    for name in left:
        enter(name)
    worst = 0
    while any(left.values()):
        begun = len(sent)
        await asyncio.sleep(0)  # one turn of the loop
        worst = max(worst, sum(handled for _, handled in sent[begun:]))

    assert worst == HANDLED_PER_TURN
    assert len({name for name, _ in sent[: len(left)]}) == len(left), "each had its turn before one had two"
