# SPDX-License-Identifier: Apache-2.0
"""The heap permit of one shared list: it grows in the limiter's queue and shrinks at once.

Where: each `SharedListing` has one. It is not released when the caller that acquired it leaves. Callers that wait for
it to grow have their own deadlines.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.net.topic_list_limiter import LimitType, PermitError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.net.topic_list_limiter import Owner, Permit, TopicListMemoryLimiter


class ListingCharge:
    """Heap memory of one list. One caller at a time may increase it."""

    __slots__ = ("_limiter", "_permit", "size_bytes")

    def __init__(self, limiter: TopicListMemoryLimiter) -> None:
        self.size_bytes = 0
        self._limiter = limiter
        self._permit: Permit | None = None

    async def estimate(
        self, estimate_bytes: int, measure: Callable[[], Awaitable[int]], owner: Owner, deadline_ns: int | None
    ) -> None:
        """Acquire an estimate, measure what is needed, and adjust to that. On failure nothing is held.

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

    async def recharge(self, size_bytes: int, owner: Owner, deadline_ns: int | None) -> None:
        """Change the permit to `size_bytes`. Raises PermitError; then it is unchanged."""
        if self._permit is None:
            self._permit = await self._limiter.acquire(
                size_bytes, LimitType.HEAP_MEMORY, owner=owner, deadline_ns=deadline_ns
            )
        else:
            # Charged memory is in use: it can serve no other request meanwhile.
            self._permit = await self._limiter.update(self._permit, size_bytes, deadline_ns=deadline_ns, lends=False)
        self.size_bytes = size_bytes

    async def lower(self, size_bytes: int) -> None:
        """Reduce the permit to `size_bytes` at most. Never waits."""
        if self._permit is None or size_bytes >= self.size_bytes:
            return
        with suppress(PermitError):  # Stopping, or the limit was lowered below this: leave it unchanged.
            self._permit = await self._limiter.update(self._permit, size_bytes, lends=False)
            self.size_bytes = size_bytes

    def release(self) -> None:
        if self._permit is not None:
            self._limiter.release(self._permit)
            self._permit, self.size_bytes = None, 0
