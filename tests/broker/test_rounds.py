# SPDX-License-Identifier: Apache-2.0
"""Rounds: that they come in time, one of a kind at a time, and that one topic does not spoil them for the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock.broker.changes import Changes
from penstock.broker.rounds import Round, Rounds
from penstock.core.errors import MetadataFailed
from penstock.core.units import NS_PER_S
from tests.broker.governed import MINUTE_MS, OTHER, configure, publish_now, topic_of
from tests.net.harness import TOPIC, Client, running, turns, until

NAME = "looking"

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


@dataclass
class Visited:
    """A topic, as rounds see it."""

    text: str
    fenced: bool = False


def rounds_of(work: Callable[[Visited], Awaitable[object]], *topics: Visited) -> Rounds[Visited]:
    """One kind of round, every minute, which concerns all of these topics."""
    return Rounds(
        (Round(NAME, lambda: 60, lambda _: True, work),),
        topics=lambda: topics,
        changes=Changes(asyncio.get_running_loop()),
        stopping=lambda: False,
        now_ns=0,
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
async def test_one_topic_that_fails_does_not_end_the_round(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def work(topic: Visited) -> None:
        seen.append(topic.text)
        if topic.text == TOPIC:
            raise error

    await rounds_of(work, Visited(TOPIC), Visited(OTHER)).run(NAME)
    assert seen == [TOPIC, OTHER]
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [f"looking of {TOPIC}"]


async def test_a_round_that_takes_long_is_not_started_again_beside_itself() -> None:
    started, go_on = 0, asyncio.Event()

    async def work(_topic: Visited) -> None:
        nonlocal started
        started += 1
        await go_on.wait()

    rounds = rounds_of(work, Visited(TOPIC))
    for minute in (1, 2, 3):
        rounds.tick(minute * 60 * NS_PER_S)
        await turns()
    assert started == 1
    go_on.set()
    await turns()
    rounds.tick(4 * 60 * NS_PER_S)
    await until(lambda: started == 2)


async def test_topics_that_are_on_their_way_out_are_left_alone() -> None:
    seen: list[str] = []

    async def work(topic: Visited) -> None:
        seen.append(topic.text)

    await rounds_of(work, Visited(TOPIC, fenced=True)).run(NAME)
    assert not seen
