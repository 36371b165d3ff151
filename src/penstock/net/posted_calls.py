# SPDX-License-Identifier: Apache-2.0
"""Calls that other threads pass to the loop, and the answers that they cause: all in one turn of the loop.

Why not `call_soon_threadsafe` alone: for each call it sends a byte through a socket pair, which the loop then reads
until nothing is left (three system calls); and what the call queues for clients is sent in a turn of its own. At a
thousand entries a second, when each sync is for one entry, this takes a tenth of the processor time of the loop's
thread (docs/adr/0058-what-a-low-rate-costs.md).

Where: `app` makes one. The journal and the metadata thread post their results. Connections ask it to call their flush,
and subscriptions their dispatch.

Theory of operation
-------------------

    Posting.  A call joins a queue. Unless the loop was woken for an earlier call and has not begun, it is woken.
    Running.  The loop makes the calls that are there, in order; then what these asked for, such as the dispatch of
              entries that are durable now. Then it flushes the connections for which all of them queued something.
              Later calls wait for the next turn.
    Fairness. A turn must not become long by this: only a few dispatches are made in it, and none once they have taken
              `FOLLOWING_S`. The others are left to the next turn, as all of them are while no posted calls are made.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

# The most calls that follow posted ones in the same turn of the loop, and the time after which the others wait for the
# next. At a low rate there is one or two; at full speed a turn more or less per group does not matter.
FOLLOWING_MAX: Final = 8
FOLLOWING_S: Final = 0.001


class PostedCalls:
    """`post` is for any thread, everything else for the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wake: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        """Args: wake: has the loop call something soon, from any thread; None: an eventfd does, until `close`."""
        self._loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = False  # for calls that are not begun yet
        self._following: list[Callable[[], object]] | None = None  # not None while posted calls are made
        self._flushes: list[Callable[[], object]] | None = None  # not None while calls are made
        self._event: int | None = None
        self._event_lock = threading.Lock()
        self._wake_loop = wake
        if wake is None:
            self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            loop.add_reader(self._event, self._on_event)

    def post(self, call: Callable[[], object]) -> None:
        """Call this on the loop. After `close` it is dropped."""
        self._calls.append(call)
        if self._woken:
            return
        self._woken = True
        if self._wake_loop is not None:
            self._wake_loop(self._run)
            return
        with self._event_lock:  # The number of a closed eventfd may be that of another file.
            if self._event is not None:
                os.eventfd_write(self._event, 1)

    def flush_soon(self, flush: Callable[[], object]) -> None:
        """Call `flush` after the posted calls that are being made; if none is, in the next turn of the loop."""
        if self._flushes is None:
            self._loop.call_soon(flush)
        else:
            self._flushes.append(flush)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Make this call after the posted ones that are being made, or in the next turn of the loop."""
        if self._following is None or len(self._following) == FOLLOWING_MAX:
            self._loop.call_soon(call)
        else:
            self._following.append(call)

    def close(self) -> None:
        """Make the calls that were posted; later ones are dropped."""
        if self._event is not None:
            self._loop.remove_reader(self._event)
            with self._event_lock:
                os.close(self._event)
                self._event = None
        self._run()

    def _on_event(self) -> None:
        assert self._event is not None
        try:  # noqa: SIM105 -- for each result at a low rate
            os.eventfd_read(self._event)
        except BlockingIOError:
            pass
        self._run()

    def _run(self) -> None:
        # A call that is posted from here on either is counted below or wakes the loop again.
        self._woken = False
        flushes = self._flushes = []
        following = self._following = []
        for _ in range(len(self._calls)):
            self._make(self._calls.popleft())
        self._following = None
        if following:
            self._follow(following)
        self._flushes = None
        for flush in flushes:
            self._make(flush)

    def _follow(self, calls: list[Callable[[], object]]) -> None:
        stop_s = self._loop.time() + FOLLOWING_S
        for call in calls:
            if self._loop.time() < stop_s:
                self._make(call)
            else:
                self._loop.call_soon(call)

    def _make(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 -- told as the loop tells its own; the others are to be called
            self._loop.call_exception_handler({"message": f"exception in posted call {call!r}", "exception": error})
