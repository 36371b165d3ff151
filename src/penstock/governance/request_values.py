# SPDX-License-Identifier: Apache-2.0
"""The values of the request memory: its limits, how much of the time it was used up, and frozen views of it.

Why views: a reader of live objects would see them half changed, and would have to know how they work.
Where: app makes the limits from the settings, and connections know the smallest reads. `request_memory` keeps to them,
and creates the views; metrics, the admin port and the demo read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB, NS_PER_S

if TYPE_CHECKING:
    from penstock.governance.holds import HoldKind
    from penstock.governance.wait_times import WaitTimesSnapshot


# A shorter read costs more than it is worth; a reader that would get less waits (unless it wants or lacks less).
USEFUL_BYTES: Final = 4 * KIB

# Pulsar's commands start with their length in four bytes; before they have arrived, the frame's length is unknown.
LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The three settings of KIP-72, and the reserve. A bound of 0 or less is switched off."""

    request_bytes_max: int  # queued.max.request.bytes
    requests_max: int  # queued.max.requests: requests admitted and not yet answered
    frame_bytes_max: int  # socket.request.max.bytes: one whole frame, its four length bytes included
    reserve_ratio: float = 0.25  # for reads of complete frames; less if the rest could not hold one largest frame

    def __post_init__(self) -> None:
        if self.frame_bytes_max <= LENGTH_BYTES:
            raise ValueError(f"socket.request.max.bytes must be above {LENGTH_BYTES}, got {self.frame_bytes_max}")
        if 0 < self.request_bytes_max < self.frame_bytes_max:
            raise ValueError(
                f"queued.max.request.bytes={self.request_bytes_max} cannot hold one request of "
                f"socket.request.max.bytes={self.frame_bytes_max}: raise the former, or set it to -1 for no bound"
            )
        if not 0.0 <= self.reserve_ratio < 1.0:
            raise ValueError(f"want 0 <= reserve_ratio < 1, got {self.reserve_ratio}")

    @property
    def reserve_bytes(self) -> int:
        """The bytes that only reads of complete frames may use."""
        if self.request_bytes_max <= 0:
            return 0
        return min(int(self.request_bytes_max * self.reserve_ratio), self.request_bytes_max - self.frame_bytes_max)


# The percentage covers the current and the previous window: 30 to 60 seconds if it is read often.
WINDOW_NS: Final = 30 * NS_PER_S


class Depletion:
    """The total time in which reads were refused for lack of memory, and the percentage of the recent past.

    A pool that is sometimes empty does its work. One that is empty most of the time is too small, or its journal is too
    slow. The used bytes at one moment do not show the difference.
    """

    __slots__ = ("_dry_ns", "_previous", "_recent", "_started_ns")

    def __init__(self) -> None:
        self._dry_ns = 0
        self._started_ns: int | None = None
        # Two samples of (when, dry_ns until then); None until somebody first looks or a first spell begins.
        self._previous: tuple[int, int] | None = None
        self._recent: tuple[int, int] | None = None

    def start(self, now_ns: int) -> None:
        """A read was refused for lack of memory. A second call before `stop` changes nothing."""
        if self._started_ns is None:
            self._sample(now_ns)
            self._started_ns = now_ns

    def stop(self, now_ns: int) -> None:
        """Memory is free again. Without a `start` this changes nothing."""
        if self._started_ns is not None:
            self._dry_ns += now_ns - self._started_ns
            self._started_ns = None

    def total_ns(self, now_ns: int) -> int:
        """Return the total time without memory so far."""
        running_ns = 0 if self._started_ns is None else now_ns - self._started_ns
        return self._dry_ns + running_ns

    def percent(self, now_ns: int) -> float:
        """Return the percentage of the recent past, 0 to 100, without memory."""
        since_ns, dry_ns = self._sample(now_ns)
        if now_ns <= since_ns:
            return 0.0
        return 100.0 * (self.total_ns(now_ns) - dry_ns) / (now_ns - since_ns)

    def _sample(self, now_ns: int) -> tuple[int, int]:
        """Start a new window if it is time, and return the start of the older one."""
        here = (now_ns, self.total_ns(now_ns))
        if self._recent is None or self._previous is None:
            self._previous = self._recent = here
        elif now_ns - self._recent[0] >= WINDOW_NS:
            self._previous, self._recent = self._recent, here
        return self._previous


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
