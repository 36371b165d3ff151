# SPDX-License-Identifier: Apache-2.0
"""What one shared list is charged: a heap permit that grows in its turn, shrinks at once, and outlives who took it.

Where: each `SharedListing` has one. Those who wait for it to grow do so in the limiter's queue, by their own deadline.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.net.topic_list_limiter import LimitType, PermitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.net.topic_list_limiter import Owner, Permit, TopicListMemoryLimiter


class ListingCharge:
    """Heap memory of one list. One caller at a time may take more of it."""

    __slots__ = ("_limiter", "_permit", "size_bytes")

    def __init__(self, limiter: TopicListMemoryLimiter) -> None:
        self.size_bytes = 0
        self._limiter = limiter
        self._permit: Permit | None = None

    async def estimate(
        self, estimate_bytes: int, measure: Callable[[], Awaitable[int]], owner: Owner, deadline_ns: int | None
    ) -> None:
        """Take an estimate, find out what is really needed, and take that. Nothing is held if it fails.

        Raises PermitError, and what `measure` raises.
        """
        permit = await self._limiter.acquire(
            estimate_bytes, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=deadline_ns
        )
        try:
            size_bytes = await measure()
            permit = await self._limiter.update(permit, size_bytes, deadline_ns=deadline_ns)
        except BaseException:
            self._limiter.release(permit)
            raise
        self._permit, self.size_bytes = permit, size_bytes

    async def take(self, size_bytes: int, owner: Owner, deadline_ns: int | None) -> None:
        """Hold so much, in place of what is held. Raises PermitError: then it is what it was."""
        if self._permit is None:
            self._permit = await self._limiter.acquire(
                size_bytes, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=deadline_ns
            )
        else:
            # What is charged is in use: it can serve nobody else meanwhile.
            self._permit = await self._limiter.update(self._permit, size_bytes, deadline_ns=deadline_ns, lends=False)
        self.size_bytes = size_bytes

    async def lower(self, size_bytes: int) -> None:
        """Hold no more than this. Never waits: to lower a permit does not."""
        if self._permit is None or size_bytes >= self.size_bytes:
            return
        with suppress(PermitError):  # Stopping, or the limit was lowered below this: it stays what it is.
            self._permit = await self._limiter.update(self._permit, size_bytes, lends=False)
            self.size_bytes = size_bytes

    def give_back(self) -> None:
        """Hold nothing."""
        if self._permit is not None:
            self._limiter.release(self._permit)
            self._permit, self.size_bytes = None, 0
