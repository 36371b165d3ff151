# SPDX-License-Identifier: Apache-2.0
"""A limit of publishing or of delivery: its balance, and the fair line of those who wait for it.

One class for topics, subscriptions, resource groups, the broker and adaptive throttling, in brokers and proxies. What
passes is charged in full, into debt if need be; while there is debt, others wait. They are served in turns, lowest use
first, by one timer.
Where: `publish_limit` lets topics wait, with held SENDs of their producers; `dispatch_limit` subscriptions, or the
permits of a proxy's consumers. Without a limit there is no object, and no call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from penstock.core.units import NS_PER_S
from penstock.governance.fair_line import FairLine

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.holds import HoldKind
    from penstock.governance.resource_group import ClassLimiter

M = TypeVar("M")  # who waits


class Limit(Generic[M]):
    """A balance, and a line.

    Attributes:
        owner: whose limit it is, for sentences: a group, a topic, a subscription, a tenant, or "broker".
        limiter: the balance, and what passed.
    """

    # As what it holds somebody, in explanations and as the reason of a muted connection.
    hold: ClassVar[HoldKind]
    # Whether a turn of the loop serves all who wait, each once, or only the first: what that one takes is known later.
    serves_all: ClassVar[bool]

    __slots__ = ("_clock", "_line", "_loop", "_timer", "limiter", "owner")

    def __init__(self, owner: str, limiter: ClassLimiter, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.owner = owner
        self.limiter = limiter
        self._clock = clock
        self._loop = loop
        self._line: FairLine[M] | None = None  # made for the first one, most limits never need it
        self._timer: asyncio.Handle | None = None

    def short_of(self, now_ns: int) -> str | None:
        """Which balance is in debt, "msg" or "bytes"; None if neither is."""
        return self.limiter.short_of(now_ns)

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""
        return self.limiter.full(now_ns)

    # -- waiting

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._line) if self._line is not None else 0

    def waits(self, member: M) -> bool:
        """Whether a member is in the line."""
        return self._line is not None and member in self._line

    def wait(self, member: M, now_ns: int) -> None:
        """Let a member wait; it is served in its turn. One that waits already keeps its place."""
        if self._line is None:
            self._line = FairLine()
        self._line.join(member)
        self.limiter.waits(now_ns)
        if self._timer is None:
            self._set_timer(now_ns)

    def forget(self, member: M) -> None:
        """A member does not wait any more."""
        if self._line is not None:
            self._line.leave(member)
            self._rest_if_nobody_waits()

    def look_again(self) -> None:
        """The share has changed."""
        self._stop_timer()
        if self._line:
            self.wake()

    def wake(self) -> None:
        """Serve those who wait, as far as the balance goes."""
        self._timer = None
        now_ns, line = self._clock.monotonic_ns(), self._line
        if not line:
            return
        for _ in range(len(line) if self.serves_all else 1):
            if not line or not self.limiter.ready(now_ns):
                break
            self._serve(line.pop(), now_ns)
        if line and self._timer is None:
            self._set_timer(now_ns)
        self._rest_if_nobody_waits()

    def _serve(self, member: M, now_ns: int) -> None:
        """It is this member's turn, and it has left the line."""
        raise NotImplementedError

    def _set_timer(self, now_ns: int) -> None:
        delay_ns = self.limiter.delay_ns(now_ns)
        if delay_ns:
            self._timer = self._loop.call_later(delay_ns / NS_PER_S, self.wake)
        else:
            self._timer = self._loop.call_soon(self.wake)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest_if_nobody_waits(self) -> None:
        if not self._line and self.limiter.waits_since_ns is not None:
            self.limiter.waits_no_more(self._clock.monotonic_ns())
            self._stop_timer()
