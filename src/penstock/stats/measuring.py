# SPDX-License-Identifier: Apache-2.0
"""Measures something that may block (a disk, files), in a thread, from time to time.

Why not when metrics are read: a disk that hangs would hang them, which is when they are needed.
Where: `disk_space` and `expiry` say what is measured; snapshots have the last measurement.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

T = TypeVar("T")

log = logging.getLogger(__name__)


class Measuring(Generic[T]):
    """Measures, one measurement at a time.

    Attributes:
        last: the last measurement; None before the first.
    """

    __slots__ = ("_at_ns", "_in_thread", "_interval_ns", "_measure", "_measuring", "_what", "last")

    def __init__(
        self,
        what: str,
        interval_ns: int,
        measure: Callable[[], T],
        in_thread: Callable[[Callable[[], T]], Future[T]],
    ) -> None:
        """Args: what: for the log. measure: may block. in_thread: calls it in a thread."""
        self.last: T | None = None
        self._what = what
        self._interval_ns = interval_ns
        self._measure = measure
        self._in_thread = in_thread
        self._at_ns: int | None = None
        self._measuring = False

    def tick(self, now_ns: int) -> None:
        """Begin a measurement, if it is time."""
        if self._measuring or (self._at_ns is not None and now_ns - self._at_ns < self._interval_ns):
            return
        self._at_ns, self._measuring = now_ns, True
        self._in_thread(self._measure).add_done_callback(self._measured)

    def measure_soon(self) -> None:
        """Let the next tick begin a measurement: something has changed."""
        self._at_ns = None

    def _measured(self, done: Future[T]) -> None:
        self._measuring = False
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.warning("%s was not measured: %s", self._what, error)
        else:
            self.last = done.result()
