# SPDX-License-Identifier: Apache-2.0
"""Clocks: where the time comes from, as an argument.

Why: code that reads the machine's clock can only be tested by waiting. Two clocks are kept apart on purpose:
`monotonic_ns` never steps and measures durations; `wall_ms` is what users mean by time (`deliver_at_time`, records).
Where: the real clock is `penstock.net.clock.SystemClock`, the only reader of the machine's. Tests use `ManualClock`.
"""

from __future__ import annotations

from typing import Protocol

from penstock.core.units import NS_PER_MS


class Clock(Protocol):
    """A source of time."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since an arbitrary moment; never goes back. For durations and deadlines."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 in UTC; may step when somebody sets the machine's clock."""
        ...


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, *, monotonic_ns: int = 0, wall_ms: int = 0) -> None:
        self._monotonic_ns = monotonic_ns
        self._wall_ns = wall_ms * NS_PER_MS

    def monotonic_ns(self) -> int:
        """See `Clock.monotonic_ns`."""
        return self._monotonic_ns

    def wall_ms(self) -> int:
        """See `Clock.wall_ms`."""
        return self._wall_ns // NS_PER_MS

    def advance(self, *, ns: int = 0, ms: int = 0) -> None:
        """Let time pass: both clocks move on together."""
        passed_ns = ns + ms * NS_PER_MS
        if passed_ns < 0:
            raise ValueError(f"time does not pass backwards, got {passed_ns} ns; to set the wall clock use step_wall")
        self._monotonic_ns += passed_ns
        self._wall_ns += passed_ns

    def step_wall(self, *, ms: int) -> None:
        """Set the wall clock forward or back, as an administrator does; no time passes."""
        self._wall_ns += ms * NS_PER_MS
