# SPDX-License-Identifier: Apache-2.0
"""Healing: after a final failure of log or catalog, starts the process again as soon as the disk works.

Why a new start, and not the same file once more: after a failed write or sync nobody knows what is on the disk. A start
reads it, keeps what it finds, and makes that durable before anybody sees it; all that was numbered but not stored is
forgotten with the process. Nothing else in penstock is proven to do that (docs/adr/0082).

Until then the broker goes on: consumers read, publishers get errors that ask them to try again. A disk that fails again
and again costs one start in `BETWEEN_STARTS_NS`.

Where: the broker's tick calls `tick`; `app` ends the process when `start_again` is called.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

log = logging.getLogger(__name__)

# Publishers go on within five seconds after a fault has ended: a probe, a stop and a start take about one of them.
BETWEEN_PROBES_NS: Final = 500 * NS_PER_MS
BETWEEN_STARTS_NS: Final = 3 * NS_PER_S


class Healing:
    """Probes the disk in a thread, one probe at a time, while something has failed for good."""

    def __init__(
        self,
        *,
        failed: Callable[[], str | None],
        probe: Callable[[], None],
        in_thread: Callable[[Callable[[], None]], Future[None]],
        start_again: Callable[[], None],
        now_ns: int,
    ) -> None:
        """Args: failed: why the process must start again; None if it need not. probe: may block; raises OSError."""
        self._failed = failed
        self._probe = probe
        self._in_thread = in_thread
        self._start_again = start_again
        self._not_before_ns = now_ns + BETWEEN_STARTS_NS
        self._probing = self._over = False

    def tick(self, now_ns: int) -> None:
        """Begin a probe, if it is time for one."""
        if self._over or self._probing or now_ns < self._not_before_ns or self._failed() is None:
            return
        self._not_before_ns, self._probing = now_ns + BETWEEN_PROBES_NS, True
        self._in_thread(self._probe).add_done_callback(self._probed)

    def _probed(self, done: Future[None]) -> None:
        self._probing = False
        if done.cancelled():
            return
        if (error := done.exception()) is None:
            self._over = True
            log.warning("the disk takes data again: starting again after a final failure (%s)", self._failed())
            self._start_again()
        elif not isinstance(error, OSError):
            log.error("the disk could not be probed: %r", error)
