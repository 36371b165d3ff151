# SPDX-License-Identifier: Apache-2.0
"""Stopping within one deadline, which all steps of the stop share.

Why: limits of single steps add up, and nobody has configured their sum. A step that has not ended at the deadline is
abandoned, even if it does not react to being cancelled. All that was cut off is logged in one line.
Where: `proxy_app`. A broker that stops is ended by a thread (`processes.end_of_process`) instead: its steps store data.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Step: TypeAlias = Callable[[float], Awaitable[None]]

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

        What a step raises is logged. When it is called again, it runs steps that were added since.
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
