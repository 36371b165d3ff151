# SPDX-License-Identifier: Apache-2.0
"""Clocks: the source of time, as an argument.

Why: code that reads the machine's clock can only be tested by waiting. There are two clocks: `monotonic_ns` never steps
and measures durations; `wall_ms` is the time of users (`deliver_at_time`, records). Where: the real clock is
`penstock.net.clock.SystemClock`, the only reader of the machine's. Tests use `ManualClock`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.units import NS_PER_MS

if TYPE_CHECKING:
    from random import Random


# ---------------------------------------------------------------------------------------------------------------------
# How long the current admin request may still take.
#
# Why: a request may wait for this broker's loop, which waits for another broker, which waits for its own loop. If all
# had the same time, the outermost would give up first, and nobody would hear which one did not answer. So whoever waits
# for something gives it a part of the time that is left: inner deadlines are shorter than outer ones, whatever is
# nested. Where: `admin.middleware` begins a request; `admin.gateway`, `net.peers` and `proxy.cluster_admin` wait
# inside. Another broker is told its time in a header. Anybody may send it: it only makes the time shorter.
#
# Times are those of `loop.time()`, which is the same clock for all loops of a process.

# Admin clients wait for a minute.
REQUEST_S: Final = 50.0
# What is left for answering in time: 5 s of 50 s.
INNER_RATIO: Final = 0.9
# When the current request must be answered; None outside of requests.
DEADLINE_S: Final[ContextVar[float | None]] = ContextVar("DEADLINE_S", default=None)
# In a request of another broker or a proxy: how long that one waits for the answer, in ms.
HEADER: Final = "x-penstock-within-ms"


def inner_s(now_s: float) -> float:
    """Return how long something may take that the current request waits for.

    Outside of requests, and for work that goes on after its request was answered, as for a new request.
    """
    deadline_s = DEADLINE_S.get()
    left_s = deadline_s - now_s if deadline_s is not None and deadline_s > now_s else REQUEST_S
    return left_s * INNER_RATIO


def announced(within_s: float) -> str:
    """Return the value of the header in a request whose answer is waited for so long."""
    return str(int(within_s * INNER_RATIO * 1_000))


def granted_s(value: str | None) -> float:
    """Return how long a request may take that came with this header; None: without it."""
    return (
        min(int(value) / 1_000, REQUEST_S) if value is not None and value.isascii() and value.isdigit() else REQUEST_S
    )


# ---------------------------------------------------------------------------------------------------------------------
# Waiting times of retries: doubled each time, up to a maximum, with jitter.
#
# Why jitter: clients that were refused together would retry together. Where: each caller that retries has its own
# `Backoff`, and resets it after a success. Pure: the random generator is an argument.

FACTOR: Final = 2
JITTER_RATIO: Final = 0.05


class Backoff:
    """The waiting times of retries, in seconds."""

    __slots__ = ("_chance", "_first_s", "_last_s", "_next_s")

    def __init__(self, chance: Random, *, first_s: float, last_s: float) -> None:
        self._chance = chance
        self._first_s = self._next_s = first_s
        self._last_s = last_s

    def next_s(self) -> float:
        """Return the next waiting time; within 5 % of the time without jitter, and never above the maximum."""
        wait_s = self._next_s * self._chance.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        self._next_s = min(self._last_s, self._next_s * FACTOR)
        return min(self._last_s, wait_s)

    def reset(self) -> None:
        """Start again after a success."""
        self._next_s = self._first_s


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
