# SPDX-License-Identifier: Apache-2.0
"""The memory budget: one limit, divided by one table, so that all large memory has an owner.

Why: limits that are set one by one may each be sensible and together be too much. Here they are rows of one table,
whose sum is checked before anything starts. Where: `sources.load` divides the budget; `app` passes each part of the
broker its row.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB
from penstock.governance.budget import ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

# cgroup v1 spells "no limit" as the largest page-aligned signed number. No machine has an exbibyte.
_NO_LIMIT_BYTES: Final = 2**60

# What the process takes with nobody connected: interpreter, libraries, catalog, one journal write in flight.
PROCESS_BYTES: Final = 64 * MIB

# What the process beside several brokers takes: interpreter, libraries, metadata.
SUPERVISOR_BYTES: Final = 48 * MIB


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The properties of the machine that defaults depend on."""

    ram_bytes: int
    cgroup_limit_bytes: int | None  # None: not limited
    hostname: str

    @classmethod
    def read(cls, root: Path = Path("/")) -> MachineFacts:
        """Read them from /proc and the cgroup files under `root`."""
        meminfo = (root / "proc/meminfo").read_text(encoding="ascii")
        match = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo, re.MULTILINE)
        assert match is not None, "/proc/meminfo names no MemTotal"
        return cls(int(match[1]) * 1024, _cgroup_limit_bytes(root), os.uname().nodename)

    @property
    def limit_bytes(self) -> int:
        """Return the default of memoryLimitMB: the smaller of the cgroup's limit and half of RAM."""
        half = self.ram_bytes // 2
        return half if self.cgroup_limit_bytes is None else min(half, self.cgroup_limit_bytes)


def _cgroup_limit_bytes(root: Path) -> int | None:
    """Return the lowest limit of our control groups and all above them; None if there is none.

    Inside a container the path of our group often exists only outside; then the root of the mount is our group.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            limits.append(_read_limit(directory / name))
            if directory == mount:
                break
    return min((limit for limit in limits if limit is not None), default=None)


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError:
        return None
    if not text.isdecimal() or int(text) >= _NO_LIMIT_BYTES:
        return None
    return int(text)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How many bytes each row may have, by its name; 0 or less: the user has switched the limit off."""

    limit_bytes: int
    rows: Mapping[str, int]

    def __post_init__(self) -> None:
        total = PROCESS_BYTES + sum(max(0, size) for size in self.rows.values())
        if total > self.limit_bytes:
            excess = max(total - self.limit_bytes, MIB // 10)  # The text has one decimal place.
            raise ConfigurationError(
                f"the memory budget does not fit: its rows take {_mib(excess)} too much, since memoryLimitMB allows "
                f"{_mib(self.limit_bytes)} a broker; raise memoryLimitMB, or lower a key named below\n{self.table()}"
            )

    @classmethod
    def split(cls, limit_bytes: int, *, frame_bytes_max: int, asked: Mapping[str, int] | None = None) -> MemoryBudget:
        """Give every row its share; a row that is asked for has that value.

        Raises:
            ConfigurationError: the sum of the rows exceeds the limit.
        """
        # However small the limit, one of the largest requests can finish while another begins.
        least = {"requests": 2 * frame_bytes_max}
        shares = {
            row.name: max(
                min(row.bytes_max, max(0, limit_bytes - PROCESS_BYTES) * row.percent // 100),
                least.get(row.name, row.least_bytes),
            )
            for row in ROWS
        }
        return cls(limit_bytes, {**shares, **(asked or {})})

    def table(self) -> str:
        """Return the budget as text, the process itself first."""
        lines = [(PROCESS_BYTES, "penstock itself")]
        lines += [
            (max(0, self.rows[row.name]), row.owner if row.key is None else f"{row.owner} ({row.key})") for row in ROWS
        ]
        return "\n".join(f"  {_mib(size):>12}  {owner}" for size, owner in lines)


def share_of_limit(limit_bytes: int, brokers: int) -> int:
    """Return the memory limit of each of so many brokers; their supervisor takes a little."""
    return limit_bytes if brokers == 1 else max(0, limit_bytes - SUPERVISOR_BYTES) // brokers


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f} MiB"
