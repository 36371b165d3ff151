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
from typing import Final

from penstock.core.errors import ConfigurationError
from penstock.core.units import MIB

# cgroup v1 spells "no limit" as the largest page-aligned signed number. No machine has an exbibyte.
_NO_LIMIT_BYTES: Final = 2**60

# What the process takes with nobody connected: interpreter, libraries, catalog, one journal write in flight.
PROCESS_BYTES: Final = 64 * MIB

# What the process beside several brokers takes: interpreter, libraries, metadata.
SUPERVISOR_BYTES: Final = 48 * MIB

# No row grows beyond this by itself. More than 64 MiB of requests in flight only makes them wait longer in memory
# instead of in the sockets; whoever knows better sets the row's key.
_ROW_BYTES_MAX: Final = 64 * MIB


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
class BudgetRow:
    """One owner of memory: its share, its maximum, and the setting that fixes it."""

    name: str
    percent: int
    key: str | None = None
    bytes_max: int = _ROW_BYTES_MAX


REQUESTS: Final = BudgetRow("requests being read or answered", 25, "queued.max.request.bytes")
OUTBOUND: Final = BudgetRow("bytes on their way to clients", 25, "outboundMB")
TAIL_CACHE: Final = BudgetRow("newest entries, for consumers that keep up", 12, "tailCacheMB")
# PIP-442 says 100 MB for each, which a limit of 2,064 MiB and more gives them.
LISTINGS_HEAP: Final = BudgetRow(
    "topic listings being made or watched", 5, "maxTopicListInFlightHeapMemSizeMB", 100 * MIB
)
LISTINGS_DIRECT: Final = BudgetRow(
    "topic listings on their way to clients", 5, "maxTopicListInFlightDirectMemSizeMB", 100 * MIB
)
DELAYED: Final = BudgetRow("index of delayed messages", 10)
# Every other command than a publish: decoded, waiting for a disk or a turn, its answer being made.
COMMANDS: Final = BudgetRow("commands being carried out", 4)
# Names, properties and metadata that clients give to what lasts as long as their connection.
SESSIONS: Final = BudgetRow("producers, consumers and watchers", 3, "sessionsMB")
# What outlasts its client: schemas, long names and properties of subscriptions, names that deduplication knows.
METADATA: Final = BudgetRow("stored schemas, names and properties", 3, "metadataMB")
# Unacknowledged ids, acknowledged ranges and ack sets of cursors, keys of Key_Shared subscriptions.
DISPATCH: Final = BudgetRow("unacknowledged messages and acknowledgements", 6)
HTTP: Final = BudgetRow("requests at the admin port", 2)

ROWS: Final = (
    REQUESTS, OUTBOUND, TAIL_CACHE, LISTINGS_HEAP, LISTINGS_DIRECT, DELAYED, COMMANDS, SESSIONS, METADATA,
    DISPATCH, HTTP,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """How many bytes each owner may have.

    `requests_bytes` and the two of listings may be 0 or less: the user has switched the limit off.
    """

    limit_bytes: int
    requests_bytes: int
    outbound_bytes: int
    tail_cache_bytes: int
    listings_heap_bytes: int
    listings_direct_bytes: int
    delayed_bytes: int
    commands_bytes: int
    sessions_bytes: int
    metadata_bytes: int
    dispatch_bytes: int
    http_bytes: int

    def __post_init__(self) -> None:
        total = sum(size for _, size in self.rows())
        if total > self.limit_bytes:
            excess = max(total - self.limit_bytes, MIB // 10)  # The text has one decimal place.
            raise ConfigurationError(
                f"the memory budget does not fit: its rows take {_mib(excess)} too much, since memoryLimitMB allows "
                f"{_mib(self.limit_bytes)} a broker; raise memoryLimitMB, or lower a key named below\n{self.table()}"
            )

    @classmethod
    def split(
        cls,
        limit_bytes: int,
        *,
        frame_bytes_max: int,
        requests_bytes: int | None = None,
        outbound_bytes: int | None = None,
        tail_cache_bytes: int | None = None,
        sessions_bytes: int | None = None,
        metadata_bytes: int | None = None,
        listings_heap_bytes: int | None = None,
        listings_direct_bytes: int | None = None,
    ) -> MemoryBudget:
        """Give every row its share; a row that is passed as an argument keeps that value.

        Raises:
            ConfigurationError: the sum of the rows exceeds the limit.
        """

        def share(row: BudgetRow) -> int:
            return min(row.bytes_max, max(0, limit_bytes - PROCESS_BYTES) * row.percent // 100)

        if requests_bytes is None:
            # However small the limit, one of the largest requests can finish while another begins.
            requests_bytes = max(share(REQUESTS), 2 * frame_bytes_max)
        # Their keys are in MB, where 0 is no bound at all.
        if listings_heap_bytes is None:
            listings_heap_bytes = max(share(LISTINGS_HEAP), MIB)
        if listings_direct_bytes is None:
            listings_direct_bytes = max(share(LISTINGS_DIRECT), MIB)
        return cls(
            limit_bytes=limit_bytes,
            requests_bytes=requests_bytes,
            outbound_bytes=share(OUTBOUND) if outbound_bytes is None else outbound_bytes,
            tail_cache_bytes=share(TAIL_CACHE) if tail_cache_bytes is None else tail_cache_bytes,
            listings_heap_bytes=listings_heap_bytes,
            listings_direct_bytes=listings_direct_bytes,
            delayed_bytes=share(DELAYED),
            commands_bytes=share(COMMANDS),
            sessions_bytes=share(SESSIONS) if sessions_bytes is None else sessions_bytes,
            metadata_bytes=share(METADATA) if metadata_bytes is None else metadata_bytes,
            dispatch_bytes=share(DISPATCH),
            http_bytes=share(HTTP),
        )

    def rows(self) -> list[tuple[str, int]]:
        """Return name and bytes of every row, the process itself first."""
        rows = [("penstock itself", PROCESS_BYTES)]
        for row, size in (
            (REQUESTS, max(0, self.requests_bytes)),
            (OUTBOUND, self.outbound_bytes),
            (TAIL_CACHE, self.tail_cache_bytes),
            (LISTINGS_HEAP, max(0, self.listings_heap_bytes)),
            (LISTINGS_DIRECT, max(0, self.listings_direct_bytes)),
            (DELAYED, self.delayed_bytes),
            (COMMANDS, self.commands_bytes),
            (SESSIONS, self.sessions_bytes),
            (METADATA, self.metadata_bytes),
            (DISPATCH, self.dispatch_bytes),
            (HTTP, self.http_bytes),
        ):
            rows.append((row.name if row.key is None else f"{row.name} ({row.key})", size))
        return rows

    def table(self) -> str:
        """Return the budget as text."""
        return "\n".join(f"  {_mib(size):>12}  {name}" for name, size in self.rows())


def share_of_limit(limit_bytes: int, brokers: int) -> int:
    """Return the memory limit of each of so many brokers; their supervisor takes a little."""
    return limit_bytes if brokers == 1 else max(0, limit_bytes - SUPERVISOR_BYTES) // brokers


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.1f} MiB"
