# SPDX-License-Identifier: Apache-2.0
"""How much space the file system of the data directory has left.

Why not when metrics are read: a disk that hangs would hang them, which is when they are needed.
Where: the broker's tick calls `tick`; snapshots have the last measurement.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

log = logging.getLogger(__name__)

# A disk of 500 MB/s writes 5 GB in this time.
INTERVAL_NS: Final = 10 * NS_PER_S


class DiskUse(NamedTuple):
    """A file system, in bytes."""

    size: int
    free: int  # for this user: some are reserved for the administrator


class DiskSpace:
    """Measures in a thread, one measurement at a time.

    Attributes:
        last: the last measurement; None before the first.
    """

    __slots__ = ("_at_ns", "_in_thread", "_measure", "_measuring", "last")

    def __init__(
        self, measure: Callable[[], DiskUse], in_thread: Callable[[Callable[[], DiskUse]], Future[DiskUse]]
    ) -> None:
        """Args: measure: may block. in_thread: calls it in a thread."""
        self.last: DiskUse | None = None
        self._measure = measure
        self._in_thread = in_thread
        self._at_ns: int | None = None
        self._measuring = False

    def tick(self, now_ns: int) -> None:
        """Begin a measurement, if it is time."""
        if self._measuring or (self._at_ns is not None and now_ns - self._at_ns < INTERVAL_NS):
            return
        self._at_ns, self._measuring = now_ns, True
        self._in_thread(self._measure).add_done_callback(self._measured)

    def _measured(self, done: Future[DiskUse]) -> None:
        self._measuring = False
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.warning("the free space of the disk was not measured: %s", error)
        else:
            self.last = done.result()
