# SPDX-License-Identifier: Apache-2.0
"""Usage by role and subscription, and what namespaces store over time, equal to the broker's statistics."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from penstock.accounting.totals import NOT_SEEN, Totals
from penstock.broker.records import client_usage
from penstock.broker.records.client_usage import ClientUsage, Principal
from penstock.broker.records.storage_usage import EVERY_MS, MS_PER_HOUR
from tests.broker.test_usage_records import ENTRY_BYTES, NAME, cycle
from tests.broker.usage import ON, records_of
from tests.net.harness import TOPIC, Client, running, topic_of, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.net.harness import Harness

Record = dict[str, Any]


async def last_of(harness: Harness, scope: str) -> list[Record]:
    """The last record of each series of counters."""
    found: dict[tuple[object, ...], Record] = {}
    for one in await records_of(harness):
        if one["scope"] == scope:
            found[one["namespace"], one["role"], one["subscription"], one["counters_since_ms"]] = one
    return list(found.values())


def sums(records: list[Record]) -> Totals:
    names = ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")
    return Totals(*(sum(one[name] for one in records) for name in names))


async def test_principals_add_up_to_the_topic_also_with_clients_that_leave_between_records(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        staying = await Client.producing(harness.port)
        await staying.published(b"hello")
        await cycle(harness)
        leaving, consumer = await Client.producing(harness.port), await Client.consuming(harness.port)
        await leaving.published(b"hello", b"hello")
        for _ in range(3):
            await consumer.message()
        leaving.writer.close()
        consumer.writer.close()
        await until(lambda: len(topic_of(harness).producers) == 1)
        await cycle(harness)

        topic = topic_of(harness)
        records = await last_of(harness, "principal")
        (publishing,) = [one for one in records if not one["subscription"]]
        (consuming,) = [one for one in records if one["subscription"]]
        (subscription,) = topic.subscriptions.values()
        assert sums(records) == Totals(topic.messages_in, topic.bytes_in, topic.messages_out, topic.bytes_out)
        assert sums(records).bytes_in == 3 * ENTRY_BYTES
        assert (consuming["subscription"], consuming["dispatched_bytes"]) == (subscription.name, subscription.bytes_out)
        assert (publishing["tenant"], publishing["namespace"]) == (NAME.tenant, str(NAME.namespace_name))
        assert (publishing["connections"], consuming["connections"]) == (1, 0)
        (producer,) = topic.producers.values()
        assert publishing["connected_ms"] >= producer.seen.until_ms - producer.connected_at_ms > 0


async def test_roles_are_told_apart(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        for role in ("alice", "bob"):
            client = await Client.producing(harness.port)
            (producer,) = [one for one in topic_of(harness).producers.values() if one.session.payer_role is None]
            producer.session.role = role  # type: ignore[attr-defined]  # as authentication has proven it
            await client.published(*[b"hello"] * len(role))
        await cycle(harness)

        found = {one["role"]: one["published_messages"] for one in await last_of(harness, "principal")}

        assert found == {"alice": 5, "bob": 3}


async def test_what_is_stored_is_the_size_of_all_topics_times_the_time(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        broker = harness.broker
        for topic in (TOPIC, f"{TOPIC}2"):
            client = await Client.producing(harness.port, topic=topic)
            await client.published(*[b"x" * 100_000] * 30)
        sizes = [(await broker.quotas.sizes(topic)).storage for topic in broker.topics.loaded()]
        await broker.topic_life.unload(NAME)  # what is not loaded is stored, too
        for _ in range(15):
            await cycle(harness)

        first, second = [one for one in await records_of(harness) if one["scope"] == "namespace"]

        assert (second["tenant"], second["namespace"]) == ("public", "public/default")
        assert first["stored_bytes"] == second["stored_bytes"] == sum(sizes)
        assert sum(sizes) > 6_000_000
        grown = second["stored_byte_hours"] - first["stored_byte_hours"]
        exact = sum(sizes) * (second["time_ms"] - first["time_ms"]) / MS_PER_HOUR
        assert abs(grown - exact) <= 1
        assert second["time_ms"] - first["time_ms"] >= EVERY_MS


async def test_a_namespace_that_stores_nothing_any_more_is_said_once(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        for _ in range(8):
            await cycle(harness)
        await harness.broker.topic_life.delete(NAME, force=True)
        for _ in range(20):
            await cycle(harness)

        sizes = [one["stored_bytes"] for one in await records_of(harness) if one["scope"] == "namespace"]

        assert sizes[0] > 0
        assert sizes[-1] == 0
        assert sizes.count(0) == 1


class Peer:
    """A producer's session and the producer, as they are counted."""

    def __init__(self, role: str | None, messages: int) -> None:
        self.session = self
        self.payer_role = role
        self.connected_at_ms = 1_000
        self.seen = NOT_SEEN
        self.messages_in, self.bytes_in = messages, 10 * messages


class PublishedTo:
    text = TOPIC

    def __init__(self, *producers: Peer) -> None:
        self.producers = dict(enumerate(producers))
        self.subscriptions: dict[str, Any] = {}


def test_names_are_bounded_and_of_what_does_not_fit_the_tenant_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_usage, "COUNTS_MAX", 2)
    counts = ClientUsage(count(1).__next__, lambda: 3_000)
    topic: Any = PublishedTo(*[Peer(role, 1) for role in ("alice", "bob", "carol", "dave", None)])
    counts.begin()
    counts.add(topic)
    found = {who: (one.messages_in, one.bytes_in, one.connected_ms) for who, one in counts.changed()}
    assert {who.role: used for who, used in found.items()} == {
        "alice": (1, 10, 2_000),
        "bob": (1, 10, 2_000),
        "": (3, 30, 6_000),
    }
    assert found[Principal("public")] == (3, 30, 6_000)


def test_counters_without_clients_are_forgotten_once_they_are_recorded() -> None:
    now_ms = [2_000]
    counts = ClientUsage(count(1).__next__, lambda: now_ms[0])
    alice = Peer("alice", 7)
    topic: Any = PublishedTo(alice)
    counts.begin()
    counts.add(topic)
    topic.producers.clear()
    now_ms[0] = 2_500
    alice.messages_in += 1
    counts.producer_left(TOPIC, alice)
    counts.begin()
    ((_, recorded),) = counts.changed()
    assert (recorded.messages_in, recorded.connected_ms, recorded.connections) == (8, 1_500, 0)
    recorded.recorded = recorded.counters
    for _ in range(client_usage.IDLE_CYCLES_MAX + 1):
        assert not list(counts.changed())
    topic.producers["again"] = Peer("alice", 1)
    counts.add(topic)
    ((_, again),) = counts.changed()
    assert (again.messages_in, again.since_ms) == (1, 2)
