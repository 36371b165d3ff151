# SPDX-License-Identifier: Apache-2.0
"""Rounds: that they come in time, one of a kind at a time, and that one topic does not spoil them for the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.broker.rounds import Round, Rounds
from penstock.core.errors import MetadataFailed
from penstock.core.units import NS_PER_S
from tests.broker.governed import MINUTE_MS, OTHER, configure, publish_now, topic_of
from tests.net.harness import TOPIC, Client, Harness, running, turns, until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.topics.topic import Topic


def rounds_of(harness: Harness, *rounds: Round) -> Rounds:
    return Rounds(
        rounds,
        topics=harness.broker.topics.loaded,
        changes=harness.broker.changes,
        stopping=lambda: False,
        now_ns=harness.clock.monotonic_ns(),
    )


async def test_the_round_of_retention_comes_when_the_configuration_says(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        producer = await Client.producing(harness.port)
        configure(harness, retention_check_interval_in_seconds=30)
        await harness.broker.policies.set_topic(
            TOPIC, "retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1}
        )
        await publish_now(harness, producer, [b""] * 5, ago_ms=2 * MINUTE_MS)
        harness.broker.rounds.tick(harness.clock.monotonic_ns())
        await turns()
        assert topic_of(harness).first_entry_id == 0
        harness.clock.advance(ms=30_000)
        harness.broker.rounds.tick(harness.clock.monotonic_ns())
        await until(lambda: topic_of(harness).first_entry_id == 5)


@pytest.mark.parametrize("error", [MetadataFailed("the disk is full"), RuntimeError("ours")])
async def test_one_topic_that_fails_does_not_end_the_round(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        await Client.producing(harness.port, topic=OTHER)
        seen: list[str] = []

        async def work(topic: Topic) -> None:
            seen.append(topic.text)
            if topic.text == TOPIC:
                raise error

        await rounds_of(harness, Round("looking", lambda: 60, lambda _: True, work)).run("looking")
        assert seen == [TOPIC, OTHER]
        assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [f"looking of {TOPIC}"]


async def test_a_round_that_takes_long_is_not_started_again_beside_itself(tmp_path: Path) -> None:
    async with running(tmp_path, keep_alive_ns=600 * NS_PER_S) as harness:
        await Client.producing(harness.port)
        started, go_on = 0, asyncio.Event()

        async def work(_topic: Topic) -> None:
            nonlocal started
            started += 1
            await go_on.wait()

        rounds = rounds_of(harness, Round("waiting", lambda: 60, lambda _: True, work))
        for _ in range(3):
            harness.clock.advance(ms=60_000)
            rounds.tick(harness.clock.monotonic_ns())
            await turns()
        assert started == 1
        go_on.set()
        await turns()
        harness.clock.advance(ms=60_000)
        rounds.tick(harness.clock.monotonic_ns())
        await until(lambda: started == 2)


async def test_topics_that_are_on_their_way_out_are_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as harness:
        await Client.producing(harness.port)
        topic_of(harness).fenced = True
        seen: list[str] = []

        async def work(topic: Topic) -> None:
            seen.append(topic.text)

        await rounds_of(harness, Round("looking", lambda: 60, lambda _: True, work)).run("looking")
        assert not seen
        topic_of(harness).fenced = False
