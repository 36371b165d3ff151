# SPDX-License-Identifier: Apache-2.0
"""Signal handlers that a busy loop cannot miss.

Why not `loop.add_signal_handler` alone: it gets the signal's number as a byte in the loop's own pipe. Other threads
wake the loop through the same pipe, with a byte for each result, and it holds only some hundreds. While the loop is
busy and the disk's threads report, the pipe is full, and the SIGTERM is lost. Where: `app` uses it for stopping and
reloading.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def on_signal(loop: asyncio.AbstractEventLoop, signum: signal.Signals, action: Callable[[], object]) -> None:
    """Call `action` on the loop at each such signal, however busy the loop is. From the main thread only."""
    # The pipe still wakes a sleeping loop. A full one wakes it too, so no warning is needed.
    loop.add_signal_handler(signum, _already_heard)
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
    # Python calls this between two instructions of this thread, so it only schedules the action.
    signal.signal(signum, lambda _signum, _frame: loop.call_soon_threadsafe(action))
    signal.siginterrupt(signum, False)


def _already_heard() -> None:
    """Do nothing: the handler has scheduled the action."""
