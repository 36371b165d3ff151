# SPDX-License-Identifier: Apache-2.0
"""Decision records: who was slowed or refused, in a bounded number, and never in the way."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from penstock.core.names import TopicName
from penstock.core.system_topics import DECISION_TOPIC
from penstock.governance.adaptive_throttle import Kind, Pressures, ThrottleDecision
from penstock.governance.holds import HoldKind
from penstock.records.decisions import _OF_THROTTLE
from penstock.testing.client import Type, frame
from tests.broker.usage import records_of
from tests.net.harness import SMALL, TOPIC, Client, running, topic_of, until

if TYPE_CHECKING:
    from penstock.records.decisions import DecisionRecords
    from penstock.records.limiters_seen import LimitersSeen
    from tests.net.harness import Harness

ON: dict[str, Any] = {"governance_records_enabled": True}


def decisions_of(harness: Harness) -> DecisionRecords:
    decisions = harness.broker.recorder.decisions
    assert decisions is not None
    return decisions


async def recorded(harness: Harness, count: int) -> list[dict[str, Any]]:
    """The first records, once there are so many."""
    await until(lambda: decisions_of(harness).written >= count)
    return await records_of(harness, DECISION_TOPIC)


def test_every_kind_of_decision_of_adaptive_throttling_has_a_kind_of_record() -> None:
    assert set(_OF_THROTTLE) == {kind.value for kind in Kind}


def throttled(kind: Kind, topic: str = TOPIC, rate: float | None = 100.0) -> ThrottleDecision:
    return ThrottleDecision(
        payer="public",
        kind=kind,
        topic=topic,
        pressures=Pressures(memory=0.5),
        natural_messages=400.0,
        natural_bytes=4_000.0,
        rate_messages=rate,
        rate_bytes=None,
    )


async def test_a_publish_rate_that_slows_a_topic_is_one_episode(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        client = await Client.producing(harness.port)
        await harness.broker.policies.set_topic(
            TOPIC, "publishRate", {"publishThrottlingRateInMsg": 20, "publishThrottlingRateInByte": -1}
        )
        for first in range(0, 200, 20):
            await client.published(*[b"x"] * 20, first=first)

        begun, ended = await recorded(harness, 2)

        assert (begun["kind"], begun["limiter"], begun["topic"]) == ("begun", "publish-rate", TOPIC)
        assert (begun["tenant"], begun["namespace"]) == ("public", "public/default")
        assert (ended["kind"], ended["since_ms"]) == ("ended", begun["since_ms"])
        assert ended["times"] == topic_of(harness).publish_limited_times
        assert ended["held_ms"] > 1_000
        assert [begun["sequence"], ended["sequence"]] == [0, 1]


async def test_refused_commands_are_counted_by_client(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        client = await Client.connected(harness.port)
        for number in range(10):
            client.write(
                frame(Type.PRODUCER, request_id=number, producer_id=0, topic=TOPIC, producer_name="n" * 100_000)
            )
            await client.expect(Type.ERROR)

        first, *_, last = await recorded(harness, 2)

        assert (last["kind"], last["limiter"], last["client"]) == ("refused", "bounds", "127.0.0.1")
        assert last["times"] == 10
        assert "PRODUCER" in first["reason"]


async def test_a_client_that_is_not_read_for_lack_of_request_memory_is_an_episode(tmp_path: Path) -> None:
    async with running(tmp_path, pool_bytes=4_096, frame_bytes_max=4_096, **ON) as harness:
        client = await Client.producing(harness.port)
        harness.disk.hold()
        client.publish(*[SMALL] * 20)
        await until(harness.muted)
        await asyncio.sleep(3)
        harness.disk.release()
        await client.receipts(20)

        await asyncio.sleep(7)

        records = [one for one in await recorded(harness, 2) if one["limiter"] == "request-memory"]
        assert [(one["kind"], one["client"]) for one in records] == [("begun", "127.0.0.1"), ("ended", "127.0.0.1")]
        assert records[1]["held_ms"] >= 1_000


async def test_decisions_of_adaptive_throttling_are_recorded_as_they_are_made(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        decisions = decisions_of(harness)
        for kind, rate in ((Kind.ACTIVATED, 300.0), (Kind.STEP, 200.0), (Kind.DEACTIVATED, None)):
            decisions.throttled(throttled(kind, rate=rate))
        decisions.throttled(throttled(Kind.WOULD_ACTIVATE))

        records = await recorded(harness, 4)

        assert [(one["kind"], one["after"], one["observed_only"]) for one in records] == [
            ("begun", 300.0, False),
            ("changed", 200.0, False),
            ("ended", None, False),
            ("begun", 100.0, True),
        ]
        assert {one["before"] for one in records} == {400.0}
        assert "memory pressure 0.50" in records[0]["reason"]


async def test_adaptive_throttling_is_connected(tmp_path: Path) -> None:
    async with running(tmp_path, adaptive_throttling=True, **ON) as harness:
        throttling = harness.broker.throttling
        assert throttling is not None
        assert throttling.observer == decisions_of(harness).throttled


async def test_records_beyond_the_permitted_number_are_dropped_and_counted(tmp_path: Path) -> None:
    async with running(tmp_path, governance_records_per_second=10, **ON) as harness:
        decisions = decisions_of(harness)
        for _ in range(1_000):
            decisions.throttled(throttled(Kind.STEP))
        await recorded(harness, 10)
        await asyncio.sleep(1.1)
        decisions.throttled(throttled(Kind.STEP))

        records = await recorded(harness, 11)

        assert decisions.dropped["too-many"] == 990
        assert [one["sequence"] for one in records] == [*range(10), 1_000]


async def test_a_disk_that_is_slower_than_decisions_costs_records_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path, governance_records_per_second=10_000, **ON) as harness:
        decisions = decisions_of(harness)
        await asyncio.sleep(1)
        harness.disk.hold()
        topic = "persistent://public/default/" + "n" * 1_000
        for _ in range(3):
            for _ in range(1_000):
                decisions.throttled(throttled(Kind.STEP, topic))
            await asyncio.sleep(1)
        assert decisions.memory.used_bytes <= decisions.memory.limit_bytes
        assert decisions.dropped["queue-full"] > 1_000
        harness.disk.release()
        await until(lambda: decisions.memory.used_bytes == 0)

        assert decisions.written == 3_000 - decisions.dropped["queue-full"]


async def test_what_is_queued_is_written_at_a_clean_stop(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await asyncio.sleep(1)
        decisions_of(harness).throttled(throttled(Kind.ACTIVATED))
        decisions = decisions_of(harness)
    assert (decisions.written, decisions.memory.used_bytes) == (1, 0)


async def test_a_stop_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        await asyncio.sleep(1)
        harness.disk.hold()
        decisions = decisions_of(harness)
        decisions.throttled(throttled(Kind.ACTIVATED))
        began_s = harness.broker.loop.time()
        await decisions.stop()

        assert harness.broker.loop.time() - began_s < 3
        assert (decisions.written, decisions.dropped["not-stored"]) == (0, 1)
        assert decisions.memory.used_bytes == 0
        harness.disk.release()


@pytest.mark.parametrize("enabled", [False, True])
async def test_without_the_setting_there_is_nothing(tmp_path: Path, enabled: bool) -> None:
    async with running(tmp_path, governance_records_enabled=enabled) as harness:
        assert (harness.broker.recorder.decisions is not None) is enabled


async def test_nothing_is_kept_of_topics_that_are_gone(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        seen = cast("LimitersSeen", decisions_of(harness)._seen)  # noqa: SLF001
        client = await Client.producing(harness.port)
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        await harness.broker.policies.set_topic(TOPIC, "publishRate", rate)
        client.publish(*[b""] * 20)
        await asyncio.sleep(2)
        assert list(seen._before) == [(TOPIC,)]  # noqa: SLF001
        await client.close()
        await harness.broker.topic_life.delete(TopicName.parse(TOPIC), force=True)
        await asyncio.sleep(2)

        assert seen._before == {}  # noqa: SLF001


async def test_a_group_in_debt_is_an_episode(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as harness:
        broker = harness.broker
        put, namespace = broker.catalog.put_document, broker.catalog.namespaces()["public/default"]
        rates = {"publishRateInMsgs": 10, "publishRateInBytes": -1, "dispatchRateInMsgs": -1, "dispatchRateInBytes": -1}
        await broker.changes.stored(lambda done: put("resource-group", "gold", rates, done))
        attached = {**namespace, "resource_group_name": "gold"}
        await broker.changes.stored(lambda done: broker.catalog.put_namespace("public/default", attached, done))
        broker.policies.refresh()
        await (await Client.producing(harness.port)).published(*[b"x"] * 50)

        begun, ended = await recorded(harness, 2)

        assert (begun["kind"], ended["kind"]) == ("begun", "ended")
        assert (ended["limiter"], ended["resource_group"]) == ("group-quota", "gold")
        assert ended["reason"] == "the group's publish share is used up"
        assert 3_000 < ended["held_ms"] < 6_000


def test_limiters_have_the_names_of_holds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "records.md").read_text()
    rows = text.partition("| limiter | whom |")[2].partition("\n\n")[0].splitlines()[2:]
    limiters = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert limiters - {kind.value for kind in HoldKind} == {"bounds"}
