# SPDX-License-Identifier: Apache-2.0
"""Stopping within one deadline, which all steps of the stop share.

Why: limits of single steps add up, and nobody has configured their sum. A step that has not ended at the deadline is
abandoned, even if it does not react to being cancelled. All that was cut off is logged in one line.
Where: `proxy_app`. A broker that stops is ended by a thread (`processes.end_of_process`) instead: its steps store data.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from typing import TYPE_CHECKING, Final, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    Step: TypeAlias = Callable[[float], Awaitable[None]]

# So many are read, or looked at, at once.
SIGNALS_MAX: Final = 4096

# ---------------------------------------------------------------------------------------------------------------------
# Signals that a busy loop cannot miss, and of which other threads know even if the loop hangs.
#
# Why not `loop.add_signal_handler`: it gets the signal's number as a byte in the loop's own pipe. Other threads wake
# the loop through the same pipe, with a byte for each result, and it holds only some hundreds. While the loop is busy
# and the disk's threads report, the pipe is full, and the SIGTERM is lost.
# Where: the programs, for stopping and reloading.


class Signals:
    """The actions of signals, on a loop; while used as a context. From the main thread only, but for `unheard`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handled: list[signal.Signals] = []
        # Python writes the number of each signal at once, whatever the main thread does.
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._far.setblocking(False)

    def __enter__(self) -> Self:
        self._loop.add_reader(self._near, self._discard)
        signal.set_wakeup_fd(self._far.fileno(), warn_on_full_buffer=False)
        return self

    def __exit__(self, *_error: object) -> None:
        for signum in self._handled:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._near)
        self._near.close()
        self._far.close()

    def on(self, signum: signal.Signals, action: Callable[[], object]) -> None:
        """Call `action` on the loop at each such signal, however busy the loop is."""
        # Python calls this between two instructions of this thread, so it only schedules the action.
        signal.signal(signum, lambda _signum, _frame: self._loop.call_soon_threadsafe(action))
        signal.siginterrupt(signum, False)
        self._handled.append(signum)

    def unheard(self, signums: Iterable[signal.Signals]) -> bool:
        """Whether one of these came that the loop, which hangs, does not know of."""
        try:
            came = self._near.recv(SIGNALS_MAX, socket.MSG_PEEK)
        except OSError:  # None came, or the loop has ended.
            return False
        return any(one in came for one in signums)

    def _discard(self) -> None:
        """The loop is awake; what it has to do is scheduled."""
        with contextlib.suppress(BlockingIOError):
            self._near.recv(SIGNALS_MAX)


# ---------------------------------------------------------------------------------------------------------------------
# The end of a connection that is closed so that its client receives everything that was sent to it.
#
# Why: a socket that is closed while bytes of the client lie there unread is reset, and a reset may discard what the
# client has not read yet, such as receipts. So only our side is ended; what the client still sends is read and
# discarded, until it closes its side, as clients do at once. How long that may take is up to the caller, who then
# closes it. Where: `Connection.part`.


class Parting:
    """Ends our side of a socket, and reads the other until it ends, too."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, arena: Callable[[], memoryview]) -> None:
        self._sock = sock
        self._loop = loop
        self._arena = arena
        self._begun = False

    def begin(self, ended: Callable[[], None]) -> None:
        """End our side; `ended` is called when the client has ended its own, or the connection is broken."""
        if self._begun:
            return
        self._begun = True
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._loop.call_soon(ended)
            return
        self._loop.add_reader(self._sock.fileno(), self._discard, ended)

    def _discard(self, ended: Callable[[], None]) -> None:
        try:
            if self._sock.recv_into(self._arena()):
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            pass
        ended()


log = logging.getLogger(__name__)

# The last part of the time is for steps that end because theirs is over, and say what they could not do.
SAYING_S: Final = 0.1


class Stopping:
    """The steps of a stop, and the time that they have together."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._until_s: float | None = None  # in the loop's time; None: it has not begun
        self._steps: dict[str, Step] = {}
        self._cut_off: list[str] = []

    def add(self, what: str, step: Step) -> None:
        """Add a step. `finish` calls it with the seconds that it has, and says `what` if it did not end in time."""
        self._steps[what] = step

    def begin(self) -> None:
        """The time begins now, if it has not begun."""
        if self._until_s is None:
            self._until_s = self._loop.time() + self._limit_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; never negative."""
        self.begin()
        assert self._until_s is not None
        return max(0.0, self._until_s - self._loop.time())

    def cut_off(self, what: str) -> None:
        """Say of something that it was cut off."""
        self._cut_off.append(what)

    async def finish(self) -> None:
        """Run all steps that were added, at once, and return when they have ended, or at the deadline.

        Exceptions of a step are logged. When it is called again, it runs steps that were added since.
        """
        steps, self._steps = self._steps, {}
        if not steps:
            return
        limit_s = max(0.0, self.left_s - SAYING_S)
        tasks = {self._loop.create_task(_run(what, step, limit_s)): what for what, step in steps.items()}
        _, late = await asyncio.wait(tasks, timeout=self.left_s)
        for task, what in tasks.items():
            if task in late:
                task.cancel()
                self.cut_off(what)
        if self._cut_off:
            log.warning("stopping has cut off, after %g s: %s", self._limit_s, "; ".join(self._cut_off))


async def _run(what: str, step: Step, limit_s: float) -> None:
    try:
        await step(limit_s)
    except Exception:
        log.exception("an error while stopping: %s", what)
