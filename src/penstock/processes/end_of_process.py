# SPDX-License-Identifier: Apache-2.0
"""The end of a process that does not end by itself.

Where: `app` and `proxy_app`, when they are told to stop.
"""

from __future__ import annotations

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
