# SPDX-License-Identifier: Apache-2.0
"""How long an append has to wait until it is durable: the queue in front of the journal, in seconds.

Why the smaller of two measurements: one slow sync delays everything once. A queue that stands for two cycles in a row
is an overloaded disk.
Where: adaptive throttling calls it once in a cycle. It appends an empty run, which writes nothing and is answered when
everything before it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock


class DiskDelay:
    """Measures when called."""

    __slots__ = ("_after_appends", "_before_ns", "_clock", "_last_ns", "_sent_ns")

    def __init__(self, after_appends: Callable[[Callable[[], None]], None], clock: Clock) -> None:
        self._after_appends = after_appends
        self._clock = clock
        self._sent_ns: int | None = None
        self._last_ns = 0
        self._before_ns = 0

    def __call__(self) -> float:
        """Return the delay in seconds, of the last two measurements the shorter one, and begin another."""
        now_ns = self._clock.monotonic_ns()
        if self._sent_ns is not None:
            return (now_ns - self._sent_ns) / NS_PER_S  # It has been waiting since the last cycle, or longer.
        delay_ns = min(self._last_ns, self._before_ns)
        self._sent_ns = now_ns
        self._after_appends(self._answered)
        return delay_ns / NS_PER_S

    def _answered(self) -> None:
        if self._sent_ns is not None:
            self._before_ns, self._last_ns = self._last_ns, self._clock.monotonic_ns() - self._sent_ns
            self._sent_ns = None
