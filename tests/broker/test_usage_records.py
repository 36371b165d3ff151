# SPDX-License-Identifier: Apache-2.0
"""Usage records: what topics and groups have used, exactly, through unloads, deletions and restarts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.accounting.totals import Totals
from penstock.broker.records import usage as usage_module
from penstock.broker.records.usage_counts import StoredCount
from penstock.core.errors import StorageReadOnly
from penstock.core.names import TopicName
from penstock.core.system_topics import USAGE_TOPIC
from penstock.core.units import KIB
from penstock.storage.schema import USAGE_COUNTS
from penstock.testing.client import Type, entry, frame
from penstock.testing.disk import VirtualDisk
from tests.broker.cluster import several
from tests.broker.test_deduplication import sending
from tests.broker.transacting import TransactingPeer
from tests.broker.usage import INTERVAL_S, ON, records_of, summed, usage_of
from tests.net.harness import TOPIC, Client, running, topic_of, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.net.harness import Harness

NAME = TopicName.parse(TOPIC)
ENTRY_BYTES = len(entry(b"hello"))


async def cycle(harness: Harness) -> None:
    """Let a cycle of records pass."""
    usage = usage_of(harness)
    before = usage.cycles
    await until(lambda: usage.cycles > before)


async def grouped(harness: Harness) -> None:
    """Let a resource group limit the namespace."""
    broker = harness.broker
    put, namespace = broker.catalog.put_document, broker.catalog.namespaces()["public/default"]
    await broker.changes.stored(
        lambda done: put("resource-group", "gold", {"publishRateInMsgs": 100, "publishRateInBytes": -1}, done)
    )
    await broker.changes.stored(
        lambda done: broker.catalog.put_namespace("public/default", {**namespace, "resource_group_name": "gold"}, done)
    )
    broker.policies.refresh()


async def test_what_a_topic_has_used_is_recorded_within_an_interval(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        await cycle(harness)

        of_topic, of_principal, of_broker = await records_of(harness)

        assert (of_topic["topic"], of_topic["tenant"], of_topic["namespace"]) == (TOPIC, "public", "public/default")
        assert (of_topic["published_messages"], of_topic["published_bytes"]) == (1, ENTRY_BYTES)
        assert (of_topic["ledger_id"], of_topic["last_entry_id"]) == (topic_of(harness).ledger_id, 0)
        assert (of_broker["scope"], of_broker["published_messages"]) == ("broker", 1)
        assert of_topic["time_ms"] - of_topic["from_ms"] <= INTERVAL_S * 1_000
        assert (of_principal["scope"], of_principal["published_messages"]) == ("principal", 1)
        assert [of_topic["sequence"], of_principal["sequence"], of_broker["sequence"]] == [0, 1, 2]


async def test_a_topic_that_did_not_change_is_not_recorded_again(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello")
        for _ in range(3):
            await cycle(harness)

        scopes = [record["scope"] for record in await records_of(harness)]

        # Its producer is still connected.
        assert scopes == ["topic", "principal", "broker", "principal", "broker", "principal", "broker"]


async def test_what_is_dispatched_is_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        producer, consumer = await Client.producing(harness.port), await Client.consuming(harness.port)
        await producer.published(b"hello", b"hello")
        await consumer.message()
        await consumer.message()
        await cycle(harness)

        used = summed(await records_of(harness), "topic", TOPIC)

        assert used == (2, 2 * ENTRY_BYTES, topic_of(harness).messages_out, topic_of(harness).bytes_out)
        assert used.messages_out == 2


async def test_the_last_records_are_written_at_a_clean_stop_and_counters_go_on_after_it(tmp_path: Path) -> None:
    for _ in range(3):
        async with running(tmp_path, **ON) as harness:
            await (await Client.producing(harness.port)).published(*[b"hello"] * 10)
            await (await Client.consuming(harness.port)).message()
    async with running(tmp_path, **ON) as harness:
        records = await records_of(harness)

    assert summed(records, "topic", TOPIC).messages == 30
    assert summed(records, "topic", TOPIC).bytes == 30 * ENTRY_BYTES
    assert len({record["epoch"] for record in records}) == 3
    assert len({record["counters_since_ms"] for record in records if record["scope"] == "topic"}) == 1
    assert summed(records, "broker", "").messages == 30


async def test_counters_go_on_when_a_topic_is_unloaded_before_they_were_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        for _ in range(3):
            client = await Client.producing(harness.port)
            await client.published(b"hello")
            await harness.broker.topic_life.unload(NAME)
        await cycle(harness)

        records = await records_of(harness)

        assert summed(records, "topic", TOPIC).messages == 3
        assert [record["scope"] for record in records] == ["topic", "principal", "broker"]


async def test_what_a_deleted_topic_has_used_is_recorded_and_its_name_begins_anew(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello", b"hello")
        await harness.broker.topic_life.delete(NAME, force=True)
        await (await Client.producing(harness.port)).published(b"hello")
        await cycle(harness)

        records = await records_of(harness)

        assert summed(records, "topic", TOPIC).messages == 3
        assert len({record["ledger_id"] for record in records if record["scope"] == "topic"}) == 2
        await cycle(harness)
        assert len(usage_of(harness)._counts) == 1  # noqa: SLF001 - nothing is kept of the deleted one


async def test_a_non_persistent_topic_is_counted_too(tmp_path: Path) -> None:
    name = "non-persistent://public/default/t"
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port, topic=name)).published(b"hello")
        await cycle(harness)

        (record,) = [one for one in await records_of(harness) if one["topic"] == name]

        assert (record["published_messages"], record["ledger_id"], record["last_entry_id"]) == (1, -1, -1)


async def test_topics_that_are_older_than_counting_are_counted_from_then_on(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await (await Client.producing(harness.port)).published(*[b"hello"] * 5)
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello")
    async with running(tmp_path, **ON) as harness:
        records = await records_of(harness)

    assert summed(records, "topic", TOPIC).messages == 1


async def test_what_happens_while_counting_is_off_is_not_counted_later(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello")
    async with running(tmp_path) as harness:
        await (await Client.producing(harness.port)).published(*[b"hello"] * 5)
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello", b"hello")
    async with running(tmp_path, **ON) as harness:
        records = await records_of(harness)

    assert summed(records, "topic", TOPIC).messages == 3
    assert len({record["counters_since_ms"] for record in records if record["scope"] == "topic"}) == 2


async def test_entries_that_are_not_counted_yet_are_not_trimmed_and_soon_after_they_are(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        producer, consumer = await Client.producing(harness.port), await Client.consuming(harness.port, permits=9_000)
        await producer.published(*[b"hello"] * 3_000)
        for _ in range(3_000):
            await consumer.message()
        topic = topic_of(harness)
        topic.subscriptions["s"].acknowledge_through(2_999)
        await harness.broker.cursors.save_moved()
        assert topic.first_entry_id == 0

        await cycle(harness)
        await until(lambda: topic.first_entry_id == 3_000)

        assert topic.counted_before == 3_000


async def test_counters_are_stored_early_when_much_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "SETTLE_BYTES", 100 * KIB)
    async with running(tmp_path, **{**ON, "usage_records_interval_in_seconds": 3_600}) as harness:
        await (await Client.producing(harness.port)).published(*[bytes(10 * KIB)] * 20)

        await until(lambda: topic_of(harness).counted_before == 20)

        assert usage_of(harness).written == 0


async def test_a_resource_group_is_recorded_with_its_quota_and_share(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await grouped(harness)
        await (await Client.producing(harness.port)).published(b"hello", b"hello")
        await cycle(harness)

        records = await records_of(harness)

        (group,) = [one for one in records if one["scope"] == "group"]
        (topic,) = [one for one in records if one["scope"] == "topic"]
        assert group["resource_groups"] == topic["resource_groups"] == ["gold"]
        assert (group["published_messages"], group["quota_publish_messages"]) == (2, 100)
        assert group["share_publish_messages"] == 100
        assert group["quota_publish_bytes"] is None


async def test_what_a_group_needs_and_what_waits_is_recorded(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await grouped(harness)
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        await cycle(harness)
        client.publish(*[b"hello"] * 3_000, first=1)
        await cycle(harness)

        *_, calm, busy = [one for one in await records_of(harness) if one["scope"] == "group"]

        assert 0 <= calm["needed_publish_messages"] < 100
        assert busy["published_messages"] + busy["held_publish_messages"] == 3_001
        assert busy["held_publish_messages"] > 1_000
        assert busy["needed_publish_messages"] > 100, "more than its quota"
        assert busy["held_publish_bytes"] > 0
        assert busy["needed_dispatch_messages"] is None, "it has no quota"


async def test_a_resource_group_that_could_not_be_recorded_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **ON) as harness:
        await grouped(harness)
        await cycle(harness)
        topic = usage_of(harness)._topic  # noqa: SLF001
        write = topic.write

        async def fail_for_groups(records: list[bytes], time_ms: int) -> None:
            if any(b"gold" in record and TOPIC.encode() not in record for record in records):
                raise StorageReadOnly("only for a while")
            await write(records, time_ms)

        with monkeypatch.context() as patched:
            patched.setattr(topic, "write", fail_for_groups)
            await (await Client.producing(harness.port)).published(b"hello", b"hello")
            await until(lambda: usage_of(harness).failures > 0)
        await cycle(harness)

        assert [one["published_messages"] for one in await records_of(harness) if one["scope"] == "group"][-1:] == [2]


async def test_each_of_several_brokers_records_on_its_own_partition(tmp_path: Path) -> None:
    async with several(tmp_path, brokers=3, **ON) as harnesses:
        for number, harness in enumerate(harnesses):
            name = f"persistent://public/default/of-{number}"
            await harness.broker.topics.create(TopicName.parse(name), {})
            await (await Client.producing(harness.port, topic=name)).published(b"hello")
        for number, harness in enumerate(harnesses):
            await cycle(harness)
            records = await records_of(harness, partition=number)

            assert {record["broker"] for record in records} == {f"broker-{number}"}
            assert [one["topic"] for one in records if one["topic"]] == [f"persistent://public/default/of-{number}"]
            assert harness.broker.partitioned.count(TopicName.parse(USAGE_TOPIC)) == 3


async def test_the_broker_goes_on_when_a_record_cannot_be_written_and_records_it_later(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello")
        await cycle(harness)
        partition = TopicName.parse(f"{USAGE_TOPIC}-partition-0")
        topic = harness.broker.topics.get(partition)
        assert topic is not None
        topic.terminated = True
        await (await Client.producing(harness.port)).published(b"hello")
        await until(lambda: usage_of(harness).failures > 0)
        topic.terminated = False
        await cycle(harness)

        assert summed(await records_of(harness), "topic", TOPIC).messages == 2


async def test_topics_of_records_that_were_deleted_are_created_again(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await cycle(harness)
        await harness.broker.partitions.delete(TopicName.parse(USAGE_TOPIC), force=True)
        await (await Client.producing(harness.port)).published(b"hello")
        await cycle(harness)

        assert summed(await records_of(harness), "topic", TOPIC).messages == 1
        assert harness.broker.schemas.latest(TopicName.parse(USAGE_TOPIC)) is not None


async def test_records_are_kept_for_a_time_and_a_size_even_if_nobody_reads_them(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await cycle(harness)
        topic = harness.broker.topics.get(f"{USAGE_TOPIC}-partition-0")
        assert topic is not None

        assert topic.policies.retention == (7 * 24 * 60, 1024)
        assert topic.policies.backlog_quota.size == (1024 * KIB * KIB, "consumer_backlog_eviction")
        assert harness.broker.quotas.checks(topic)
        assert topic.counted_before > topic.next_entry_id


@pytest.mark.parametrize("text", [USAGE_TOPIC, f"{USAGE_TOPIC}-partition-0", f"{USAGE_TOPIC}-partition-7"])
async def test_no_client_publishes_to_a_topic_of_records(tmp_path: Path, text: str) -> None:
    async with running(tmp_path, **ON) as harness:
        await cycle(harness)
        client = await Client.connected(harness.port)
        client.write(frame(Type.PRODUCER, request_id=1, topic=text, producer_id=0))

        error = (await client.expect(Type.ERROR)).error

        assert "only they publish" in error.message


async def test_without_records_nobody_creates_their_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        client = await Client.connected(harness.port)
        client.write(frame(Type.PARTITIONED_METADATA, request_id=1, topic=USAGE_TOPIC))
        await client.expect(Type.PARTITIONED_METADATA_RESPONSE)
        client.write(frame(Type.SUBSCRIBE, request_id=2, topic=USAGE_TOPIC, subscription="s", consumer_id=0, subType=1))
        await client.expect(Type.ERROR)

        assert not harness.broker.topics.exists(TopicName.parse(USAGE_TOPIC))


async def test_many_topics_are_recorded_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    portions: list[int] = []
    async with running(tmp_path, **ON) as harness:
        topic = usage_of(harness)._topic  # noqa: SLF001
        original = topic.write

        async def noted(records: Any, time_ms: int) -> None:  # noqa: ANN401
            portions.append(len(records))
            await original(records, time_ms)

        monkeypatch.setattr(topic, "write", noted)
        for number in range(600):
            name = TopicName.parse(f"persistent://public/default/many-{number}")
            made = await harness.broker.topics.create(name, {})
            made.messages_out_before = number + 1
        await cycle(harness)

        assert sum(portions) == 601
        assert max(portions) <= usage_module.ENCODED_PER_TURN


def stored_counts(harness: Harness) -> dict[str, str]:
    """The counters that are stored with topics."""
    return {name: document["c"] for name, document in harness.broker.catalog.documents(USAGE_COUNTS).items()}


async def test_entries_on_their_way_to_the_disk_are_not_counted_before_they_are_durable(tmp_path: Path) -> None:
    async with running(tmp_path, **{**ON, "usage_records_interval_in_seconds": 2}) as harness:
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        await cycle(harness)
        before = stored_counts(harness)
        harness.disk.hold()
        client.publish(b"hello", first=1)
        await asyncio.sleep(5)
        assert stored_counts(harness) == before

        harness.disk.release()
        await client.receipts(1)
        await cycle(harness)

        assert summed(await records_of(harness), "topic", TOPIC).messages == 2


async def test_entries_that_could_not_be_stored_are_never_counted(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        client = await Client.producing(harness.port)
        await client.published(b"hello")
        await cycle(harness)
        before, cycles = stored_counts(harness), usage_of(harness).cycles
        assert isinstance(harness.disk, VirtualDisk)
        harness.disk.fail_sync_at(1)
        client.publish(b"hello", first=1)
        await client.expect(Type.SEND_ERROR)
        await asyncio.sleep(2.5 * INTERVAL_S)

        assert topic_of(harness).messages_in == 2
        assert stored_counts(harness) == before
        assert usage_of(harness).cycles == cycles


async def test_what_a_stop_leaves_uncounted_the_next_start_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_usage: object) -> None:
        pass

    with monkeypatch.context() as crashed:
        crashed.setattr(usage_module.UsageRecords, "stop", nothing)
        async with running(tmp_path, **ON) as harness:
            await (await Client.producing(harness.port)).published(*[b"hello"] * 500)
    with monkeypatch.context() as slow:
        slow.setattr(usage_module, "GAP_ENTRIES", 1)
        async with running(tmp_path, **ON):
            pass  # It stops while it counts.
    async with running(tmp_path, **ON) as harness:
        assert summed(await records_of(harness), "topic", TOPIC).messages == 0
        await cycle(harness)

        records = await records_of(harness)

        assert summed(records, "topic", TOPIC).messages == 500


async def test_counters_that_were_stored_and_not_recorded_are_recorded_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_records: object, _time_ms: int) -> None:
        raise StorageReadOnly("the power is lost here")

    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port)).published(b"hello")
        monkeypatch.setattr(usage_of(harness)._topic, "write", fail)  # noqa: SLF001
        await until(lambda: usage_of(harness).failures > 0)
    async with running(tmp_path, **ON) as harness:
        await cycle(harness)  # Nobody has loaded the topic.

        assert harness.broker.topics.get(TOPIC) is None
        assert summed(await records_of(harness), "topic", TOPIC).messages == 1


@pytest.mark.parametrize("crash", [False, True])
async def test_a_chunked_message_counts_once_and_its_other_chunks_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, crash: bool
) -> None:
    def of_message(sequence_id: int, chunks: int, stored: int) -> list[bytes]:
        about: dict[str, Any] = {
            "uuid": f"u{sequence_id}",
            "num_chunks_from_msg": chunks,
            "total_chunk_msg_size": chunks,
        }
        return [sending(sequence_id, chunk_id=number, **about) for number in range(stored)]

    async def nothing(_usage: object) -> None:
        pass

    with monkeypatch.context() as crashed:
        if crash:
            crashed.setattr(usage_module.UsageRecords, "stop", nothing)
        async with running(tmp_path, **ON) as harness:
            client = await Client.producing(harness.port)
            # One that is whole, one that never ends, and one without chunks.
            sends = [*of_message(0, 3, 3), *of_message(1, 5, 2), sending(2)]
            client.write(b"".join(sends))
            await client.receipts(len(sends))
            nbytes = topic_of(harness).bytes_in
    async with running(tmp_path, **ON) as harness:
        await cycle(harness)
        records = await records_of(harness)

    for scope in ("topic", "broker"):
        last = [one for one in records if one["scope"] == scope][-1]
        assert (last["published_messages"], last["published_chunks"]) == (2, 4), scope
        assert last["published_bytes"] == nbytes


@pytest.mark.parametrize("restart", [False, True])
async def test_committed_and_aborted_messages_are_counted_apart(tmp_path: Path, *, restart: bool) -> None:
    """Also if the transactions were open while the broker was restarted."""
    async with running(tmp_path, **ON) as harness:
        peer = cast("TransactingPeer", await TransactingPeer.connected(harness))
        await peer.produce()
        committed, aborted, left_open = [await peer.open() for _ in range(3)]
        for transaction in (committed, aborted, left_open):
            await peer.add_topics(transaction)
        sizes = {committed: 0, aborted: 0, left_open: 0}
        for transaction, payload in ((committed, b"c"), (aborted, b"aa"), (committed, b"ccc"), (left_open, b"o")):
            before = topic_of(harness).bytes_in
            await peer.send_in(transaction, payload, metadata={"num_messages_in_batch": 3})
            sizes[transaction] += topic_of(harness).bytes_in - before
        if not restart:
            await peer.commit(committed)
            await peer.abort(aborted)
    if restart:
        async with running(tmp_path, **ON) as harness:
            peer = cast("TransactingPeer", await TransactingPeer.connected(harness))
            await peer.commit(committed)
            await peer.abort(aborted)
    async with running(tmp_path, **ON) as harness:
        records = await records_of(harness)

    for scope in ("topic", "broker"):
        last = [one for one in records if one["scope"] == scope][-1]
        assert (last["published_messages"], last["published_bytes"]) == (12, sum(sizes.values())), scope
        assert (last["committed_messages"], last["committed_bytes"]) == (6, sizes[committed]), scope
        assert (last["aborted_messages"], last["aborted_bytes"]) == (3, sizes[aborted]), scope
    assert {one["committed_bytes"] for one in records if one["scope"] == "principal"} == {None}


def test_counters_that_an_earlier_version_has_stored_are_read() -> None:
    count = StoredCount.of({"c": "7 0 1000 41 42 4200 1 100 3 2 200 0 0 0"})
    assert (count.last_entry_id, count.totals, count.unsummed) == (41, Totals(42, 4200, 1, 100, 3), Totals(2, 200))
    assert StoredCount.of(count.document()) == count


@pytest.mark.parametrize(
    "local", ["τ–ö 火", "a\"b'c\\", "new\nline\tand\x00zero", "%2F?#&=+", "p-partition-x", "n" * 500]
)
async def test_names_of_any_characters_are_recorded_as_they_are(tmp_path: Path, local: str) -> None:
    name = f"persistent://public/default/{local}"
    async with running(tmp_path, **ON) as harness:
        await (await Client.producing(harness.port, topic=name)).published(b"hello")
        await cycle(harness)

        assert summed(await records_of(harness), "topic", name) == (1, ENTRY_BYTES, 0, 0)


async def test_a_broker_whose_partition_was_moved_away_takes_another_one(tmp_path: Path) -> None:
    async with several(tmp_path, brokers=2, **ON) as harnesses:
        await cycle(harnesses[1])
        broker, name = harnesses[1].broker, TopicName.parse(USAGE_TOPIC)
        await broker.topic_life.delete(name.of_partition(1), force=True)
        await harnesses[0].broker.topics.create(name.of_partition(1), {})
        await (await Client.producing(harnesses[1].port)).published(b"hello")
        await cycle(harnesses[1])
        await cycle(harnesses[1])

        last = broker.partitioned.count(name) - 1
        assert last >= 2
        assert {one["broker"] for one in await records_of(harnesses[1], partition=last)} == {"broker-1"}


async def test_topics_that_come_and_go_are_recorded_before_they_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "GONE_MAX", 10)
    async with running(tmp_path, **{**ON, "usage_records_interval_in_seconds": 3_600}) as harness:
        for _ in range(10):
            await (await Client.producing(harness.port)).published(b"hello")
            await harness.broker.topic_life.delete(NAME, force=True)
        await cycle(harness)

        assert summed(await records_of(harness), "topic", TOPIC).messages == 10
