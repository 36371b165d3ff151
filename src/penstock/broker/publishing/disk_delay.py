# SPDX-License-Identifier: Apache-2.0
"""How long an append has to wait until it is durable: the queue in front of the journal, in seconds.

Why the smaller of two measurements: one slow sync delays everything once. A queue that stands for two cycles in a row
is an overloaded disk.
Where: adaptive throttling calls it once in a cycle. While nothing waits for the disk, nothing has to be measured.
Otherwise it appends an empty run, which writes nothing and is answered when everything before it is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock


class Appends(Protocol):
    """What is on its way to the disk."""

    @property
    def appends_wait(self) -> bool:
        """Whether anything is."""

    def after_appends(self, action: Callable[[], None]) -> None:
        """Call back when everything appended before is durable or has failed."""


class DiskDelay:
    """Measures when called."""

    __slots__ = ("_appends", "_before_ns", "_clock", "_last_ns", "_sent_ns")

    def __init__(self, appends: Appends, clock: Clock) -> None:
        self._appends = appends
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
        if self._appends.appends_wait:
            self._sent_ns = now_ns
            self._appends.after_appends(self._answered)
        else:
            self._before_ns, self._last_ns = self._last_ns, 0
        return delay_ns / NS_PER_S

    def _answered(self) -> None:
        if self._sent_ns is not None:
            self._before_ns, self._last_ns = self._last_ns, self._clock.monotonic_ns() - self._sent_ns
            self._sent_ns = None
