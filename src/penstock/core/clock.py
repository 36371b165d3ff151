# SPDX-License-Identifier: Apache-2.0
"""Clocks: the source of time, as an argument.

Why: code that reads the machine's clock can only be tested by waiting. There are two clocks: `monotonic_ns` never steps
and measures durations; `wall_ms` is the time of users (`deliver_at_time`, records). Where: the real clock is
`penstock.net.clock.SystemClock`, the only reader of the machine's. Tests use `ManualClock`.
"""

from __future__ import annotations

from typing import Protocol

from penstock.core.units import NS_PER_MS


class Clock(Protocol):
    """A source of time."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds since an arbitrary moment; never decreases. For durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970 in UTC; may step when the machine's clock is set."""
        ...


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, *, monotonic_ns: int = 0, wall_ms: int = 0) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ms * NS_PER_MS

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def wall_ms(self) -> int:
        return self._wall_ns // NS_PER_MS

    def advance(self, *, ns: int = 0, ms: int = 0) -> None:
        """Advance both clocks."""
        passed_ns = ns + ms * NS_PER_MS
        if passed_ns < 0:
            raise ValueError(f"time does not pass backwards, got {passed_ns} ns; to set the wall clock use step_wall")
        self._monotonic_ns += passed_ns
        self._wall_ns += passed_ns

    def step_wall(self, *, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator does; the monotonic clock does not change."""
        self._wall_ns += ms * NS_PER_MS
