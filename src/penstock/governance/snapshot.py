# SPDX-License-Identifier: Apache-2.0
"""Frozen views of the mechanisms, for metrics, the admin port and people.

Why: a reader of live objects would see them half changed, and would have to know how they work. Where: each mechanism
creates its view in `snapshot()`; metrics, the admin port and the demo read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.governance.holds import HoldKind
    from penstock.governance.wait_times import WaitTimesSnapshot


@dataclass(frozen=True, slots=True)
class MutedReader:
    """One connection that may not read: since when, why, how much it asked for, and what it holds."""

    owner: int
    since_ns: int
    reason: HoldKind
    want_bytes: int
    held_bytes: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class RequestMemorySnapshot:
    """One moment of the request memory. used = held + reading + pending; an unbounded size is `UNBOUNDED`."""

    size_bytes: int
    used_bytes: int  # MemoryPoolUsed
    used_bytes_max: int  # highest ever
    available_bytes: int  # MemoryPoolAvailable; negative while a finisher overdraws
    held_bytes: int  # unfinished frames
    reading_bytes: int  # granted and not yet settled
    pending_bytes: int  # admitted requests not yet answered
    reserve_bytes: int  # the part of the size that only reads of complete frames may use
    reserve_used_bytes: int  # the part of `used_bytes` that is charged to it
    requests: int
    requests_max: int
    depleted_percent: float  # MemoryPoolAvgDepletedPercent
    depleted_ms: int  # MemoryPoolDepletedTimeTotal
    evicted_total: int
    finisher: int | None
    muted: tuple[MutedReader, ...]  # in the order in which they began to wait
    waits: WaitTimesSnapshot  # of reads that had to wait
