# SPDX-License-Identifier: Apache-2.0
"""A log whose disk is full, and has room again."""

from __future__ import annotations

import errno
from dataclasses import replace

import apsw
import pytest

from penstock.core.units import KIB
from penstock.storage.segment import RESERVE_BYTES
from tests.storage.logs import LIMITS, MemoryLog

ROOM_BYTES = LIMITS.segment_bytes + RESERVE_BYTES


def half_full(memory: MemoryLog) -> None:
    """Write until the next segment should be prepared."""
    memory.append(1, 0, 20, size=2 * KIB)


def test_without_room_for_the_next_segment_the_log_says_so_and_still_takes_what_was_accepted() -> None:
    with MemoryLog() as memory:
        half_full(memory)
        memory.files.run_full_after(0)
        memory.log.maintain()
        health = memory.log.health
        assert health.no_room == "the disk has no room for the next segment: No space left on device"
        assert not health.ok
        assert health.read_only is None
        memory.files.run_full_after(4 * KIB)  # The segment has its blocks; this file system counts them again.
        sent = memory.append(1, 20, 10)
        assert memory.outcomes[-1] is None
        assert memory.read(1, 20) == sent


def test_it_ends_when_there_is_more_room_than_it_began_with() -> None:
    with MemoryLog() as memory:
        half_full(memory)
        memory.files.run_full_after(LIMITS.segment_bytes - 1)
        memory.log.maintain()
        memory.files.run_full_after(LIMITS.segment_bytes)
        memory.log.maintain()
        assert memory.log.health.no_room is not None
        memory.files.run_full_after(ROOM_BYTES + LIMITS.segment_bytes + 64 * KIB)
        memory.log.maintain()
        assert memory.log.health.ok


def test_a_segment_that_became_empty_is_room_too() -> None:
    with MemoryLog(replace(LIMITS, segment_bytes=512 * KIB)) as memory:
        for first in range(0, 700, 20):
            memory.append(1, first, 20, size=2 * KIB)
        memory.files.run_full_after(0)
        with pytest.raises(apsw.FullError):  # The index cannot be stored, too.
            memory.log.maintain()
        assert memory.log.health.no_room is not None
        memory.files.run_full_after(RESERVE_BYTES + 400 * KIB)  # Not enough for another segment.
        memory.log.trim(1, 700)
        memory.log.maintain()
        assert memory.log.health.ok
        assert memory.log.stats().recycled > 0


def test_another_failure_of_the_disk_is_not_a_lack_of_room() -> None:
    with MemoryLog() as memory:
        half_full(memory)
        memory.files.fail_sync_at(1)
        with pytest.raises(OSError, match="Input/output error") as failed:
            memory.log.maintain()
        assert failed.value.errno == errno.EIO
        assert memory.log.health.ok
