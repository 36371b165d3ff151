# SPDX-License-Identifier: Apache-2.0
"""How long the current admin request may still take.

Why: a request may wait for this broker's loop, which waits for another broker, which waits for its own loop. If all had
the same time, the outermost would give up first, and nobody would hear which one did not answer. So whoever waits for
something gives it a part of the time that is left: inner deadlines are shorter than outer ones, whatever is nested.
Where: `admin.middleware` begins a request; `admin.gateway`, `net.peers` and `proxy.admin_requests` wait inside. Another
broker is told its time in a header. Anybody may send it: it only makes the time shorter.

Times are those of `loop.time()`, which is the same clock for all loops of a process.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

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
