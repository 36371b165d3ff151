# SPDX-License-Identifier: Apache-2.0
"""What the broker says about itself, and what the kernel says about it.

Why: that a bound holds is worth nothing if the one who is bound is the only witness. So the pool is read from
`/metrics`, and the memory of the process from `/proc`, while the load runs.
Where: the main process keeps one `Observer` for each act and looks several times a second.
"""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from benchmarks.process import metrics, usage
from examples.flight_demo.findings import Look

if TYPE_CHECKING:
    from penstock.testing.process import BrokerProcess

MIB = 1024 * 1024
SCRAPE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Observer:
    """The latest metrics of a broker and the extremes of what was seen."""

    broker: BrokerProcess
    latest: dict[str, float] = field(default_factory=dict)
    looks: int = 0
    pool_used_bytes_max: int = 0
    muted_max: int = 0
    depleted_percent_max: float = 0.0
    rss_bytes: int = 0  # resident memory of the process
    rss_bytes_max: int = 0  # the most that the kernel ever saw
    history: list[Look] = field(default_factory=list)  # since `begin`
    begun_s: float = 0.0

    def begin(self) -> None:
        """Forget what was seen: the act begins now."""
        self.history.clear()
        self.begun_s = time.monotonic()

    def note(self, published: tuple[int, ...] = ()) -> None:
        """Remember what was seen last."""
        at_s = time.monotonic() - self.begun_s
        self.history.append(Look(at_s, self.pool_used_bytes, self.rss_bytes, self.muted, published))

    def look(self) -> None:
        """Read metrics and memory once more. A page that does not come in time is only missed."""
        with suppress(OSError):
            seen = usage(self.broker.pid)
            self.rss_bytes, self.rss_bytes_max = int(seen.rss_mib * MIB), int(seen.rss_peak_mib * MIB)
        with suppress(OSError, HTTPException):
            self.latest = metrics(self.broker.admin_port, SCRAPE_TIMEOUT_S)
            self.looks += 1
            # Between two looks the pool may have been fuller; the broker keeps its own highest mark.
            highest_bytes = int(self.latest.get("penstock_request_memory_used_max_bytes", 0))
            self.pool_used_bytes_max = max(self.pool_used_bytes_max, self.pool_used_bytes, highest_bytes)
            self.muted_max = max(self.muted_max, self.muted)
            percent = self.latest.get("MemoryPoolAvgDepletedPercent", 0.0)
            self.depleted_percent_max = max(self.depleted_percent_max, percent)

    def why(self, tenant: str) -> list[dict[str, Any]]:
        """What makes a tenant's messages wait now, as the broker says. Raises OSError."""
        url = f"{self.broker.admin_url}/admin/v3/why/tenants/{tenant}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=SCRAPE_TIMEOUT_S) as answer:
            found: list[dict[str, Any]] = json.load(answer)["findings"]
        return found

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
