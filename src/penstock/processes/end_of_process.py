# SPDX-License-Identifier: Apache-2.0
"""The end of a process: why it ends, and what happens if it does not end by itself.

Where: `app`, `processes.supervisor` and `proxy_app`, when they are told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from penstock.processes.service_manager import tell_starting_again

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

# Exit status if stopping took too long.
EXIT_FAILED: Final = 1
# Exit status of a broker whose disk failed for good and works again: a new start recovers (EX_TEMPFAIL of sysexits.h).
EXIT_START_AGAIN: Final = 75


class Ending:
    """Why a process ends: it was told to stop, or it starts again. Who tells it to stop has the last word.

    Attributes:
        asked: set when it is to end.
        at_once: set when it was told to stop a second time: nobody wants to wait.
        again: whether a new start of it follows.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self.again = False
        self._told = False

    def stop(self) -> None:
        """End, and do not start again; a second call ends at once."""
        (self.at_once if self._told else self.asked).set()
        self._told, self.again = True, False

    def start_again(self) -> None:
        """End, and start again, unless it is told to stop."""
        self.again = not self._told
        self.asked.set()


def end_now(status: int) -> NoReturn:
    """End the process with this status, when all is closed.

    Python would free all modules first, one object at a time: a tenth of a second of a processor for the HTTP stack.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Nobody reads it any more.
            stream.flush()
    os._exit(status)


def start_again() -> NoReturn:
    """Replace this process by a new start of it, with the same command line; end it where that is impossible.

    The kernel closes what is open and ends all threads, as if the process had ended.
    """
    tell_starting_again()
    logging.shutdown()
    if sys.executable:
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 -- as it was started
    os._exit(EXIT_START_AGAIN)


def end_within(seconds: float, why: str, end: Callable[[], object] = lambda: os._exit(EXIT_FAILED)) -> None:
    """End the process after this time by `end`, if it is there then, and log `why`.

    On a thread, because the loop may hang. Nothing takes it back: closing the loop waits for its threads, and the
    interpreter for others, which may hang, too.
    """

    def end_process() -> None:
        log.error("not stopped within %s: ending as it is", why)
        end()

    timer = threading.Timer(seconds, end_process)
    timer.daemon = True
    timer.start()


def start_again_within(seconds: float, start: Callable[[], object], again: Callable[[], bool]) -> None:
    """Start again by `start` after this time, if the process is there then; end it if `again` does not say so any more.

    On a thread, as `end_within`: `again` knows of signals that came while the loop hung.
    """
    end_within(seconds, f"{seconds:g} s to start again", lambda: start() if again() else os._exit(EXIT_FAILED))
