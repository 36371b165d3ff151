# SPDX-License-Identifier: Apache-2.0
"""Sizes for adaptive throttling: how full backlog quotas are, and how long an append waits until it is durable.

Backlogs are measured each second, without reading the index of each topic each second. The exact size of a backlog
comes from the log's index, in a reader thread. Between two reads it grows by what is published, which is known, and
shrinks by what is acknowledged. So last size + published since is an upper bound, and it is exact while nothing is
acknowledged. It is measured again only if something was acknowledged and the bound is above the low watermark.

The delay is the queue in front of the journal, in seconds. While nothing waits for the disk, nothing has to be
measured. Otherwise an empty run is appended, which writes nothing and is answered when everything before it is durable.
Of two measurements the smaller one counts: one slow sync delays everything once. A queue that stands for two cycles in
a row is an overloaded disk.
Where: `adaptive_throttling` asks for each topic that it visits, and for the delay once in a cycle.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.names import COMPACTION_SUBSCRIPTION
from penstock.core.units import NS_PER_S
from penstock.groups.adaptive_publish import MeasuredBacklog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock
    from penstock.groups.adaptive_publish import AdaptiveTopic


class Appends(Protocol):
    """Appends on their way to the disk."""

    @property
    def appends_wait(self) -> bool:
        """Whether anything is."""

    def after_appends(self, action: Callable[[], None]) -> None:
        """Call back when everything appended before is durable or has failed."""


class DiskDelay:
    """Measures when called."""

    __slots__ = ("_appends", "_before_ns", "_clock", "_last_ns", "_sent_ns")

    def __init__(self, appends: Appends, clock: Clock) -> None:
        self._appends = appends
        self._clock = clock
        self._sent_ns: int | None = None
        self._last_ns = 0
        self._before_ns = 0

    def __call__(self) -> float:
        """Return the delay in seconds, of the last two measurements the shorter one, and begin another."""
        now_ns = self._clock.monotonic_ns()
        if self._sent_ns is not None:
            return (now_ns - self._sent_ns) / NS_PER_S  # It has been waiting since the last cycle, or longer.
        delay_ns = min(self._last_ns, self._before_ns)
        if self._appends.appends_wait:
            self._sent_ns = now_ns
            self._appends.after_appends(self._answered)
        else:
            self._before_ns, self._last_ns = self._last_ns, 0
        return delay_ns / NS_PER_S

    def _answered(self) -> None:
        if self._sent_ns is not None:
            self._before_ns, self._last_ns = self._last_ns, self._clock.monotonic_ns() - self._sent_ns
            self._sent_ns = None


log = logging.getLogger(__name__)

# Measurements at a time. Each takes a reader thread for less than a millisecond; topics that find no room keep their
# upper bound until the next cycle.
MEASURING_MAX: Final = 16


class BacklogSizes:
    """Measures backlogs."""

    def __init__(
        self,
        backlog_bytes: Callable[[PublishedTopic], Awaitable[int]],
        finish: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]],
    ) -> None:
        """Args: backlog_bytes: measures exactly. finish: runs a task that the broker waits for when it stops."""
        self._backlog_bytes = backlog_bytes
        self._finish = finish
        self.measuring = 0

    def part(self, topic: PublishedTopic, adaptive: AdaptiveTopic, low: float) -> float:
        """Return the part of its quota that the backlog of a topic uses; 0 without a quota or a subscription."""
        quota = topic.policies.backlog_quota.size.limit
        if quota <= 0 or not topic.persistent:
            adaptive.backlog = None
            return 0.0
        mark = _slowest_mark(topic)
        if mark is None:
            return 0.0
        known = adaptive.backlog
        if known is None:
            known = adaptive.backlog = MeasuredBacklog()
        nbytes = known.nbytes + topic.bytes_in - known.bytes_in if known.mark is not None else 0
        rewound = known.mark is None or mark < known.mark
        if rewound or (mark != known.mark and nbytes > low * quota):
            self._measure(topic, known, mark)
        return nbytes / quota

    def _measure(self, topic: PublishedTopic, known: MeasuredBacklog, mark: int) -> None:
        if not known.measuring and self.measuring < MEASURING_MAX:
            self.measuring += 1
            known.measuring = True
            self._finish(self._measured(topic, known, mark))

    async def _measured(self, topic: PublishedTopic, known: MeasuredBacklog, mark: int) -> None:
        bytes_in = topic.bytes_in
        try:
            known.nbytes = await self._backlog_bytes(topic)
            known.bytes_in, known.mark = bytes_in, mark
        except Exception:
            # The last size stays, and what is published is added to it.
            log.exception("the backlog of %s was not measured", topic.text)
        finally:
            known.measuring = False
            self.measuring -= 1


def _slowest_mark(topic: PublishedTopic) -> int | None:
    return min(
        (
            one.cursor.mark_delete
            for one in topic.subscriptions.values()
            if one.durable and one.name != COMPACTION_SUBSCRIPTION
        ),
        default=None,
    )
