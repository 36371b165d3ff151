# SPDX-License-Identifier: Apache-2.0
"""Signals that a busy loop cannot lose.

Why not `loop.add_signal_handler` alone: it learns the signal's number from a byte in the loop's own pipe. Other threads
wake the loop through the same pipe, a byte for each thing they have done, and it holds only some hundreds. While the
loop is busy and the disk's threads report, the pipe is full, the byte does not fit, and the SIGTERM is gone.
Where: `app` stops and reloads by it.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


def on_signal(loop: asyncio.AbstractEventLoop, signum: signal.Signals, action: Callable[[], object]) -> None:
    """Call `action` on the loop at each such signal, however busy the loop is. From the main thread only."""
    # The pipe still wakes a loop that sleeps; one that is full does so, too, and is nothing to write to stderr about.
    loop.add_signal_handler(signum, _already_heard)
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
    # Called by the interpreter between two instructions of this thread, so it may only leave a note.
    signal.signal(signum, lambda _signum, _frame: loop.call_soon_threadsafe(action))
    signal.siginterrupt(signum, False)


def _already_heard() -> None:
    """The note was left by the handler itself."""
