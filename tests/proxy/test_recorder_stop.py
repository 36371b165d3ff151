# SPDX-License-Identifier: Apache-2.0
"""The last records of a proxy that stops, and a cluster that does not take them, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.accounting.totals import Totals
from penstock.core.clock import ManualClock
from penstock.core.units import MIB
from penstock.governance.budget import Row
from penstock.proxy.groups import ProxyGroups
from penstock.proxy.recorder import Recorder, RecorderOptions
from penstock.proxy.recorder_parts import RecorderParts

TOPIC = "persistent://public/default/t"


class SilentCluster:
    """Brokers that accept no connection, and refuse none."""

    def __init__(self) -> None:
        self.asked = 0

    async def cluster(self, _identity: object) -> None:
        self.asked += 1
        await asyncio.Event().wait()


class Quiet:
    """Connections and traffic of a proxy without clients."""

    def all(self) -> list[object]:
        return []

    def take_refused(self) -> dict[tuple[str, int], int]:
        return {}


def recorder(cluster: Any) -> Recorder:  # noqa: ANN401 - as much of `Upstreams` as it uses
    loop, clock = asyncio.get_running_loop(), ManualClock()
    quiet: Any = Quiet()
    unused: Any = None
    return Recorder(
        RecorderOptions(
            name="proxy-a",
            usage_topic="persistent://a/b/usage",
            decision_topic="persistent://a/b/decisions",
            interval_s=60,
            per_second=1_000,
        ),
        RecorderParts(
            connections=quiet,
            groups=ProxyGroups(clock, loop),
            listings=unused,
            traffic=quiet,
            upstreams=cluster,
            identity=unused,
            memory=Row("usage", MIB),
            unanswered=Row("unanswered", MIB),
            clock=clock,
            loop=loop,
        ),
    )


async def stopped(limit_s: float, cluster: SilentCluster) -> tuple[float, list[str]]:
    """Stop a recorder that has something to record; returns how long that takes, and what was cut off."""
    records = recorder(cluster)
    assert records.usage is not None
    assert records.decisions is not None
    await asyncio.sleep(0)
    records.usage.counts.add(TOPIC, Totals(1, 10))
    for number in range(7):
        records.decisions.record(kind="begun", limiter="x", reason=f"{number}")
    cut_off: list[str] = []
    began_s = asyncio.get_running_loop().time()
    await records.stop(limit_s, cut_off.append)
    assert records.decisions.memory.used_bytes == 0
    return asyncio.get_running_loop().time() - began_s, sorted(cut_off)


CUT_OFF = ["7 decision records were not stored", "the last usage records were not stored"]


async def test_both_kinds_share_the_limit_and_say_what_they_have_lost() -> None:
    cluster = SilentCluster()
    assert await stopped(0.5, cluster) == (0.5, CUT_OFF)
    assert cluster.asked >= 2


async def test_more_time_than_they_want_is_not_used() -> None:
    assert await stopped(60.0, SilentCluster()) == (2.0, CUT_OFF)


async def test_without_any_time_they_end_at_once() -> None:
    assert await stopped(0.0, SilentCluster()) == (0.0, CUT_OFF)
