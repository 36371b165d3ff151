# SPDX-License-Identifier: Apache-2.0
"""A line in which members wait for turns that cost different amounts: start-time fair queueing.

Why not first come, first served: a member whose turns cost a thousand times as much would get a thousand times as much.
Here each member has a start, and the lowest start is next. What a member used is added to its start, divided by its
weight. So members with much to do get amounts in proportion to their weights, and one that comes back after a pause
begins with the others.
Where: topics and subscriptions that wait for a limit (`groups.limit`). Pure: costs are numbers.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Final, Generic, TypeVar

K = TypeVar("K")

# By how much a member may be ahead of the line, if a single turn did not cost more: a member that was served without
# waiting for a while does not wait for as long afterwards.
LEAD: Final = 1.0
# Outdated entries are removed when there are more than this, and more than others.
_STALE_MAX: Final = 64


class FairLine(Generic[K]):
    """Waiting members, in the order of their starts; equal starts in the order of arrival."""

    __slots__ = ("_ahead", "_heap", "_numbers", "_starts", "_virtual")

    def __init__(self) -> None:
        self._starts: dict[K, float] = {}  # of members that wait
        self._ahead: dict[K, float] = {}  # the starts of members that were served and do not wait now
        self._heap: list[tuple[float, int, K]] = []
        self._numbers = count()
        self._virtual = 0.0  # the start of the member that was served last

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, member: object) -> bool:
        return member in self._starts

    def join(self, member: K) -> None:
        """Let a member wait; one that waits already keeps its place."""
        if member not in self._starts:
            self._put(member, max(self._virtual, self._ahead.pop(member, 0.0)))

    def leave(self, member: K) -> None:
        """A member does not wait any more, whether it was served or not."""
        start = self._starts.pop(member, None)
        if start is not None and start > self._virtual:
            self._remember(member, start)

    def pop(self) -> K:
        """Remove and return the member that is next. Raises IndexError if nobody waits."""
        while True:
            start, _, member = heapq.heappop(self._heap)
            if self._starts.get(member) == start:
                break
        del self._starts[member]
        self._virtual = max(self._virtual, start)
        self._remember(member, start)
        return member

    def used(self, member: K, cost: float, weight: float = 1.0) -> None:
        """Count what a member used. One that was never served in turn is not counted: nobody waited for it."""
        step = cost / weight
        most = self._virtual + max(step, LEAD)
        if member in self._starts:
            self._put(member, min(self._starts[member] + step, most))
        elif member in self._ahead:
            self._ahead[member] = min(self._ahead[member] + step, most)

    def _put(self, member: K, start: float) -> None:
        self._starts[member] = start
        if len(self._heap) > 2 * len(self._starts) + _STALE_MAX:
            self._heap = [one for one in self._heap if self._starts.get(one[2]) == one[0]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (start, next(self._numbers), member))

    def _remember(self, member: K, start: float) -> None:
        self._ahead[member] = start
        if len(self._ahead) > 2 * len(self._starts) + _STALE_MAX:
            self._ahead = {one: at for one, at in self._ahead.items() if at > self._virtual or one is member}
