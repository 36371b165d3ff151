# SPDX-License-Identifier: Apache-2.0
"""What the broker says about itself, and what the kernel says about it.

Why: that a bound holds is worth nothing if the one who is bound is the only witness. So the pool is read from
`/metrics`, and the memory of the process from `/proc`, while the load runs.
Where: the main process keeps one `Observer` for each act and looks several times a second.
"""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess

KIB = 1024
MIB = 1024 * KIB
SCRAPE_TIMEOUT_S = 5.0


def parse_metrics(text: str) -> dict[str, float]:
    """Sum up each metric of a page in Prometheus' text format over its labels."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            name = sample.partition("{")[0]
            with suppress(ValueError):
                values[name] = values.get(name, 0.0) + float(value)
    return values


def scrape(admin_url: str) -> dict[str, float]:
    """Read `/metrics`. Raises OSError or HTTPException when it cannot."""
    with urllib.request.urlopen(f"{admin_url}/metrics", timeout=SCRAPE_TIMEOUT_S) as page:
        return parse_metrics(page.read().decode())


def memory_bytes(pid: int, line: str) -> int:
    """Read VmRSS (resident now) or VmHWM (the most it ever was) of a process; 0 where there is no /proc."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/status").read_text().splitlines():
            if entry.startswith(f"{line}:"):
                return int(entry.split()[1]) * KIB
    return 0


@dataclass(slots=True)
class Observer:
    """The latest metrics of a broker and the extremes of what was seen."""

    broker: BrokerProcess
    latest: dict[str, float] = field(default_factory=dict)
    looks: int = 0
    pool_used_bytes_max: int = 0
    muted_max: int = 0
    depleted_percent_max: float = 0.0

    def look(self) -> None:
        """Read the metrics once more. A page that does not come in time is only missed."""
        with suppress(OSError, HTTPException):
            self.latest = scrape(self.broker.admin_url)
            self.looks += 1
            # Between two looks the pool may have been fuller; the broker keeps its own highest mark.
            highest_bytes = int(self.latest.get("penstock_request_memory_used_max_bytes", 0))
            self.pool_used_bytes_max = max(self.pool_used_bytes_max, self.pool_used_bytes, highest_bytes)
            self.muted_max = max(self.muted_max, self.muted)
            percent = self.latest.get("MemoryPoolAvgDepletedPercent", 0.0)
            self.depleted_percent_max = max(self.depleted_percent_max, percent)

    @property
    def pool_used_bytes(self) -> int:
        """MemoryPoolUsed."""
        return int(self.latest.get("MemoryPoolUsed", 0))

    @property
    def muted(self) -> int:
        """Connections that are not read now, because they wait for request memory."""
        return int(self.latest.get("penstock_request_memory_waiters", 0))

    @property
    def depleted_s(self) -> float:
        """How long in total nobody could be read for lack of memory: MemoryPoolDepletedTimeTotal."""
        return self.latest.get("MemoryPoolDepletedTimeTotal", 0.0) / 1000

    @property
    def rss_bytes(self) -> int:
        """What the process has resident now."""
        return memory_bytes(self.broker.pid, "VmRSS")

    @property
    def rss_bytes_max(self) -> int:
        """The most it ever had, as the kernel knows it."""
        return memory_bytes(self.broker.pid, "VmHWM")
