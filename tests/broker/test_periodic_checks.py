# SPDX-License-Identifier: Apache-2.0
"""Periodic checks: they start when due, one of a kind at a time, and a failing topic does not affect the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from penstock.broker.changes import Changes
from penstock.broker.periodic_checks import PeriodicCheck, PeriodicChecks
from penstock.core.errors import MetadataFailed
from penstock.core.units import NS_PER_S
from tests.broker.governed import MINUTE_MS, OTHER, configure, publish_now
from tests.net.harness import TOPIC, Client, Harness, topic_of, turns, until

NAME = "looking"

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass
class Visited:
    """A topic, as checks see it."""

    text: str
    fenced: bool = False


def checks_of(work: Callable[[Visited], Awaitable[object]], *topics: Visited) -> PeriodicChecks[Visited]:
    """One kind of check, every minute, which concerns all of these topics."""
    return PeriodicChecks(
        (PeriodicCheck(NAME, lambda: 60, lambda _: True, work),),
        topics=lambda: topics,
        changes=Changes(asyncio.get_running_loop()),
        stopping=lambda: False,
        now_ns=0,
    )


async def test_retention_is_checked_as_often_as_the_configuration_says(harness: Harness) -> None:
    producer = await Client.producing(harness.port)
    configure(harness, retention_check_interval_in_seconds=30)
    await harness.broker.policies.set_topic(TOPIC, "retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": -1})
    await publish_now(harness, producer, [b""] * 5, ago_ms=2 * MINUTE_MS)
    harness.broker.periodic_checks.tick(harness.clock.monotonic_ns())
    await turns()
    assert topic_of(harness).first_entry_id == 0
    harness.clock.advance(ms=30_000)
    harness.broker.periodic_checks.tick(harness.clock.monotonic_ns())
    await until(lambda: topic_of(harness).first_entry_id == 5)


@pytest.mark.parametrize("error", [MetadataFailed("the disk is full"), RuntimeError("ours")])
async def test_one_topic_that_fails_does_not_end_the_check_of_the_others(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def work(topic: Visited) -> None:
        seen.append(topic.text)
        if topic.text == TOPIC:
            raise error

    await checks_of(work, Visited(TOPIC), Visited(OTHER)).run(NAME)
    assert seen == [TOPIC, OTHER]
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [f"looking of {TOPIC}"]


async def test_a_check_that_takes_long_is_not_started_again_beside_itself() -> None:
    started, go_on = 0, asyncio.Event()

    async def work(_topic: Visited) -> None:
        nonlocal started
        started += 1
        await go_on.wait()

    checks = checks_of(work, Visited(TOPIC))
    for minute in (1, 2, 3):
        checks.tick(minute * 60 * NS_PER_S)
        await turns()
    assert started == 1
    go_on.set()
    await turns()
    checks.tick(4 * 60 * NS_PER_S)
    await until(lambda: started == 2)


async def test_topics_that_are_on_their_way_out_are_left_alone() -> None:
    seen: list[str] = []

    async def work(topic: Visited) -> None:
        seen.append(topic.text)

    await checks_of(work, Visited(TOPIC, fenced=True)).run(NAME)
    assert not seen
