# SPDX-License-Identifier: Apache-2.0
"""When a broker whose disk has failed for good starts again."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

from penstock.broker.healing import BETWEEN_PROBES_NS, BETWEEN_STARTS_NS, Healing

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Disk:
    """A broker, as `Healing` sees it, and its disk. Probes are finished when the test says so."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self.error: Exception | None = None
        self.probes: list[asyncio.Future[None]] = []
        self.starts = 0

    def in_thread(self, probe: Callable[[], None]) -> asyncio.Future[None]:
        probe()
        self.probes.append(asyncio.get_running_loop().create_future())
        return self.probes[-1]

    async def finish(self) -> None:
        """The probe that is underway comes back."""
        if self.error is None:
            self.probes[-1].set_result(None)
        else:
            self.probes[-1].set_exception(self.error)
        await asyncio.sleep(0)

    def start(self) -> None:
        self.starts += 1

    def healing(self) -> Healing:
        return Healing(
            failed=lambda: self.failed,
            probe=lambda: None,
            in_thread=self.in_thread,
            start_again=self.start,
            now_ns=0,
        )


async def test_while_nothing_has_failed_the_disk_is_left_alone() -> None:
    disk = Disk()
    disk.healing().tick(10 * BETWEEN_STARTS_NS)
    assert disk.probes == []


async def test_it_starts_again_once_when_the_disk_works() -> None:
    disk = Disk()
    healing, now_ns = disk.healing(), 10 * BETWEEN_STARTS_NS
    disk.failed = "a sync"
    healing.tick(now_ns)
    await disk.finish()
    healing.tick(2 * now_ns)
    assert (len(disk.probes), disk.starts) == (1, 1)


async def test_a_disk_that_does_not_work_is_probed_again_after_a_pause_one_probe_at_a_time() -> None:
    disk = Disk()
    healing, now_ns = disk.healing(), 10 * BETWEEN_STARTS_NS
    disk.failed, disk.error = "a sync", OSError(errno.EIO, "still broken")
    healing.tick(now_ns)
    healing.tick(2 * now_ns)
    assert len(disk.probes) == 1  # It has not come back.
    await disk.finish()
    healing.tick(now_ns + BETWEEN_PROBES_NS - 1)
    assert len(disk.probes) == 1
    disk.error = None
    healing.tick(now_ns + BETWEEN_PROBES_NS)
    await disk.finish()
    assert (len(disk.probes), disk.starts) == (2, 1)


async def test_a_process_that_has_just_started_waits_so_that_a_bad_disk_costs_few_starts() -> None:
    disk = Disk()
    healing = disk.healing()
    disk.failed = "a sync"
    healing.tick(BETWEEN_STARTS_NS - 1)
    assert disk.probes == []
    healing.tick(BETWEEN_STARTS_NS)
    assert len(disk.probes) == 1


async def test_a_bug_in_the_probe_is_logged_and_starts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    healing = disk.healing()
    disk.failed, disk.error = "a sync", AssertionError("a bug")
    healing.tick(BETWEEN_STARTS_NS)
    await disk.finish()
    assert disk.starts == 0
    assert "the disk could not be probed: AssertionError('a bug')" in caplog.text
