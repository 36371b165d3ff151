# SPDX-License-Identifier: Apache-2.0
"""Messages of a process to its starter: programs read a line, systemd has a socket (sd_notify(3)).

Why: "the process exists" says neither that clients may connect nor that the loop still turns.
Where: `app`, `supervisor` and `proxy_app`. Brokers of a supervisor tell it alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# systemd sets these for the main process of a service of `Type=notify`, and the last two with `WatchdogSec=`.
SOCKET_KEY: Final = "NOTIFY_SOCKET"
WATCHDOG_KEY: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS_KEY: Final = "WATCHDOG_PID"
US_PER_S: Final = 1_000_000
# As long as `TimeoutStartSec` of the unit.
START_S: Final = 600


def tell_ready(url: str, admin_url: str) -> None:
    """Say that clients may connect, and from now on that the running loop still turns."""
    print(f"penstock ready {url} {admin_url}", flush=True)
    _tell("READY=1", f"STATUS=serving {url}, {admin_url}")
    interval_s = watchdog_s(os.environ)
    if interval_s is not None:
        _tell(f"WATCHDOG_USEC={int(interval_s * US_PER_S)}")  # `tell_starting_again` may have set another one.
        _still_turns(asyncio.get_running_loop(), interval_s / 2)


def tell_starting_again() -> None:
    """Say that this process replaces itself. A start reads the log, in which its loop does not turn."""
    if watchdog_s(os.environ) is not None:
        _tell(f"WATCHDOG_USEC={START_S * US_PER_S}", "WATCHDOG=1")
    _tell("STATUS=starting again")


def tell_stopping(within_s: float) -> None:
    """Say that this process ends, and that it may take so long."""
    _tell("STOPPING=1", "STATUS=stopping", f"EXTEND_TIMEOUT_USEC={int(within_s * US_PER_S)}")


def watchdog_s(environ: Mapping[str, str]) -> float | None:
    """After how long silence this process is killed; None if it is not watched.

    A process inherits the environment of its parent, so the variables may be meant for that.
    """
    interval_us, process = environ.get(WATCHDOG_KEY, ""), environ.get(WATCHDOG_PROCESS_KEY, "")
    if not interval_us.isdecimal() or process not in {"", str(os.getpid())}:
        return None
    return int(interval_us) / US_PER_S or None


def _still_turns(loop: asyncio.AbstractEventLoop, every_s: float) -> None:
    _tell("WATCHDOG=1")
    loop.call_later(every_s, _still_turns, loop, every_s)


def _tell(*assignments: str) -> None:
    """Send one datagram. Nobody waits for it: a manager that does not read must not hold the loop."""
    where = os.environ.get(SOCKET_KEY, "")
    if not where.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # "@" stands for the null byte of an abstract name.
        sender.sendto("\n".join(assignments).encode(), where.replace("@", "\0", 1) if where[0] == "@" else where)
