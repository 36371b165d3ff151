# SPDX-License-Identifier: Apache-2.0
"""The free space of the disk: measured in a thread now and then, never waited for."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from penstock.core.units import NS_PER_S
from penstock.stats.disk_space import INTERVAL_NS, DiskSpace, DiskUse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import pytest


class Threads:
    """Measurements that run when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], DiskUse], Future[DiskUse]]] = []

    def run(self, measure: Callable[[], DiskUse]) -> asyncio.Future[DiskUse]:
        self.waiting.append((measure, Future()))
        return cast("asyncio.Future[DiskUse]", self.waiting[-1][1])

    def answer(self) -> None:
        measure, future = self.waiting.pop()
        try:
            use = measure()
        except OSError as error:
            future.set_exception(error)
        else:
            future.set_result(use)


def space(*uses: Any) -> tuple[DiskSpace, Threads]:  # noqa: ANN401 - a size, or an error
    threads, left = Threads(), list(uses)

    def measure() -> DiskUse:
        use = left.pop(0)
        if isinstance(use, OSError):
            raise use
        return DiskUse(100, use)

    return DiskSpace(measure, threads.run), threads


def test_the_first_tick_measures_and_later_ones_do_when_it_is_time() -> None:
    disk, threads = space(70, 60)
    assert disk.last is None
    disk.tick(0)
    threads.answer()
    assert disk.last == DiskUse(100, 70)
    disk.tick(INTERVAL_NS - 1)
    assert not threads.waiting
    disk.tick(INTERVAL_NS)
    threads.answer()
    assert disk.last == DiskUse(100, 60)


def test_a_disk_that_hangs_is_asked_once_and_the_last_measurement_stays() -> None:
    disk, threads = space(70, 60)
    disk.tick(0)
    threads.answer()
    for second in range(100):
        disk.tick(INTERVAL_NS + second * NS_PER_S)
    assert len(threads.waiting) == 1
    assert disk.last == DiskUse(100, 70)


def test_a_failure_is_logged_and_measuring_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    disk, threads = space(OSError("no such device"), 60)
    disk.tick(0)
    threads.answer()
    assert disk.last is None
    assert "no such device" in caplog.text
    disk.tick(INTERVAL_NS)
    threads.answer()
    assert disk.last == DiskUse(100, 60)
