# SPDX-License-Identifier: Apache-2.0
"""What is read of the process's memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.units import KIB, MIB
from penstock.stats.process import MemorySensor, ResidentBytes, resident_bytes


def status_bytes() -> int:
    """The resident memory, from another file of the kernel."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * KIB


def open_statm() -> int:
    """How many files of this name are open; one that was read to list them may be gone already."""
    count = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += one.readlink().name == "statm"
    return count


@pytest.mark.real
def test_the_resident_memory_is_what_the_kernel_says_each_time_it_is_read() -> None:
    assert resident_bytes() == pytest.approx(status_bytes(), abs=30 * MIB)
    read = ResidentBytes()
    assert read() == pytest.approx(status_bytes(), abs=30 * MIB)
    ballast = b"x" * (200 * MIB)
    assert read() == pytest.approx(status_bytes(), abs=30 * MIB)
    assert read() > len(ballast)


@pytest.mark.real
def test_a_reader_that_is_dropped_leaves_no_open_file() -> None:
    before = open_statm()
    for _ in range(100):
        ResidentBytes()()
    assert open_statm() <= before


def test_the_sensor_subtracts_what_was_freed_and_names_the_owners() -> None:
    owned, resident = {"requests": 0}, 100 * MIB
    sensor = MemorySensor(400 * MIB, lambda: owned, lambda: resident)
    assert sensor().part == pytest.approx(0.25)
    owned, resident = {"requests": 100 * MIB}, 200 * MIB
    assert sensor().part == pytest.approx(0.5)
    owned = {"requests": 0}
    measured = sensor()
    assert measured.part == pytest.approx(0.25)
    assert (measured.resident, measured.owners) == (200 * MIB, {"requests": 0})
