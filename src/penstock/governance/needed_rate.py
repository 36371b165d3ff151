# SPDX-License-Identifier: Apache-2.0
"""The rate that traffic needs: the smallest one with which a limiter would have made nothing wait.

Why: the mean of a minute says little about a limit. A group that sends all of a minute in ten seconds waits with a
quota of twice its mean, and one that sends a large batch now and then never does. Records therefore carry this rate, so
that quotas can be chosen by what happened.

Theory of operation
-------------------

A bucket of rate r, with the burst of a time B, lets an entry of any size pass while its balance is positive. The
balance at t is r · (t - s + B) - A(s, t), where s is the last time at which it was full, and A what has arrived
since then, before this entry. So nothing waits exactly if r exceeds A(s, t) / (t - s + B) for all s before t: the
steepest line from a point (s, what had arrived) to a point (t + B, what has arrived now). As in the search for the
densest stretch of a sequence, it is enough to keep the lower convex hull of the points, and to walk along it in one
direction; an arrival costs some comparisons.

What waits has arrived, so it is counted when it is held. What a client keeps back, because it was not answered, is not
seen: of a limited minute, the rate is a lower bound.

Where: `resource_group.ClassLimiter` has two of them, for messages and for bytes, while usage is recorded.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S

# Points that are kept. Only traffic that becomes faster with each arrival has more; then the latest ones matter.
POINTS_MAX: Final = 64
# By more than the errors of the arithmetic: a rate that equals the steepest slope is not enough.
_ROUNDED_UP: Final = 1 + 1e-9


class NeededRate:
    """The needed rate of one kind of traffic since the last `take`."""

    __slots__ = ("_arrived", "_burst_ns", "_gone", "_highest", "_points")

    def __init__(self, burst_ns: int, total: int) -> None:
        """Start measuring.

        Args:
            burst_ns: after a pause, what is added in this time may pass at once.
            total: what has arrived until now.
        """
        self._burst_ns = burst_ns
        self._arrived = total
        self._gone = 0  # arrived, and will not pass any more
        # Times, and what had arrived before. No deque: it takes half a kilobyte, also for a group that is idle.
        self._points: list[tuple[int, int]] = []
        self._highest = 0.0

    def arrived(self, total: int, entries: int, now_ns: int) -> None:
        """Entries may have arrived: as many at once, the last of which may pass while the balance is positive.

        Args:
            total: what has passed, and what waits.
            entries: how many have arrived; without meaning if the total is as before.
            now_ns: time, which never goes back.
        """
        total += self._gone
        before, new = self._arrived, total - self._arrived
        if new <= 0:
            return
        self._arrived = total
        points = self._points
        # The hull: slopes between its points grow, so the last ones go that the new one makes a way around.
        while len(points) > 1:
            (s, amount), (other_s, other_amount) = points[-2:]
            if (other_amount - amount) * (now_ns - other_s) < (before - other_amount) * (other_s - s):
                break
            points.pop()
        if not points or points[-1][0] < now_ns:
            points.append((now_ns, before))
        # The tangent: a point that the next one beats is never the best again.
        end_ns, end = now_ns + self._burst_ns, total - new // max(1, entries)
        s, amount = points[0]
        steepest, first = (end - amount) / (end_ns - s), 0
        while first + 1 < len(points):
            s, amount = points[first + 1]
            slope = (end - amount) / (end_ns - s)
            if slope < steepest:
                break
            steepest, first = slope, first + 1
        self._highest = max(self._highest, steepest)
        if first or len(points) > POINTS_MAX:
            del points[: max(first, len(points) - POINTS_MAX)]

    def settled(self, total: int) -> None:
        """Nothing waits; what has arrived beyond `total` was dropped with its clients."""
        self._gone = self._arrived - total

    def take(self) -> float:
        """Return the rate since the last call, per second: a larger one would have made nothing wait."""
        highest, self._highest = self._highest, 0.0
        return highest * NS_PER_S * _ROUNDED_UP
