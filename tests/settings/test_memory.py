# SPDX-License-Identifier: Apache-2.0
"""One limit, divided among all who hold large amounts of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import ConfigurationError
from penstock.core.units import GIB, KIB, MIB
from penstock.settings import MachineFacts, MemoryBudget
from penstock.settings.memory import PROCESS_BYTES

if TYPE_CHECKING:
    from pathlib import Path

FRAME = 5 * MIB + 10 * KIB


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n", **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_the_default_limit_is_half_of_ram_where_no_group_limits_us(tmp_path: Path) -> None:
    facts = MachineFacts.read(write(tmp_path, {}))
    assert facts.cgroup_limit_bytes is None
    assert facts.limit_bytes == 8 * GIB


def test_the_lowest_limit_of_our_group_and_those_above_it_counts(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/broker\n",
            "sys/fs/cgroup/pod/broker/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.max": f"{512 * MIB}\n",
            "sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
        },
    )
    assert MachineFacts.read(root).limit_bytes == 512 * MIB


def test_a_group_whose_path_exists_only_outside_the_container_is_found_at_the_mount(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/self/cgroup": "0::/machine/of/the/host\n", "sys/fs/cgroup/memory.max": f"{256 * MIB}\n"},
    )
    assert MachineFacts.read(root).limit_bytes == 256 * MIB


def test_version_1_groups_count_too_and_their_word_for_unlimited_is_none(tmp_path: Path) -> None:
    lines = "5:cpu,cpuacct:/elsewhere\n4:cpuset,memory:/jobs\n1:name=systemd:/\n"
    root = write(
        tmp_path,
        {"proc/self/cgroup": lines, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"},
    )
    assert MachineFacts.read(root).cgroup_limit_bytes is None
    write(root, {"sys/fs/cgroup/memory/jobs/memory.limit_in_bytes": f"{GIB}\n"})
    assert MachineFacts.read(root).limit_bytes == GIB


def test_a_group_above_half_of_ram_does_not_raise_the_limit(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{15 * GIB}\n"})
    assert MachineFacts.read(root).limit_bytes == 8 * GIB


def test_the_real_machine_can_be_read() -> None:
    assert MachineFacts.read().limit_bytes > 0


@given(st.integers(105, 1 << 20))
def test_from_105_mib_on_the_rows_fit_whatever_the_limit(limit_mb: int) -> None:
    budget = MemoryBudget.split(limit_mb * MIB, frame_bytes_max=FRAME)
    assert PROCESS_BYTES + sum(budget.rows.values()) <= limit_mb * MIB
    assert budget.rows["requests"] >= 2 * FRAME


def test_no_row_grows_beyond_64_mib_by_itself_but_those_of_listings_to_the_100_of_pip_442() -> None:
    budget = MemoryBudget.split(64 * GIB, frame_bytes_max=FRAME)
    listings = [size for name, size in budget.rows.items() if name.startswith("listings-")]
    others = [size for name, size in budget.rows.items() if not name.startswith("listings-")]
    assert (listings, max(others)) == ([100 * MIB, 100 * MIB], 64 * MIB)


def test_a_small_machine_gives_each_memory_of_listings_a_twentieth_and_never_none() -> None:
    budget = MemoryBudget.split((64 + 300) * MIB, frame_bytes_max=FRAME)
    assert (budget.rows["listings-heap"], budget.rows["listings-direct"]) == (15 * MIB, 15 * MIB)
    tiny = MemoryBudget.split(76 * MIB, frame_bytes_max=FRAME, asked={"requests": FRAME, "outbound": 0})
    assert (tiny.rows["listings-heap"], tiny.rows["listings-direct"]) == (MIB, MIB)


def test_an_unbounded_memory_of_listings_takes_no_part_in_the_sum() -> None:
    budget = MemoryBudget.split(GIB, frame_bytes_max=FRAME, asked={"listings-heap": -1, "listings-direct": 0})
    assert "0.0 MiB  topic listings being made or watched (maxTopicListInFlightHeapMemSizeMB)" in budget.table()
    assert (budget.rows["listings-heap"], budget.rows["listings-direct"]) == (-1, 0)


def test_a_row_set_by_hand_keeps_its_value() -> None:
    budget = MemoryBudget.split(GIB, frame_bytes_max=FRAME, asked={"requests": FRAME, "tail-cache": 0})
    assert (budget.rows["requests"], budget.rows["tail-cache"]) == (FRAME, 0)


def test_an_unbounded_row_takes_no_part_in_the_sum() -> None:
    assert MemoryBudget.split(80 * MIB, frame_bytes_max=FRAME, asked={"requests": -1}).rows["requests"] == -1


def test_rows_above_the_limit_are_refused_with_the_table() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        MemoryBudget.split(256 * MIB, frame_bytes_max=FRAME, asked={"outbound": 200 * MIB})
    message = str(refusal.value)
    assert "memoryLimitMB allows 256.0 MiB" in message
    assert "200.0 MiB  bytes on their way to clients (outboundMB)" in message
    assert "64.0 MiB  penstock itself" in message
