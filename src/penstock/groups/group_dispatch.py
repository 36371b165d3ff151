# SPDX-License-Identifier: Apache-2.0
"""Which subscription may dispatch next in a resource group that is in debt.

Subscriptions wait in a fair line: they get equal parts of the rate, whatever their messages cost. A subscription
that is woken may have to read the log first. If others use up the balance meanwhile, it waits again, before them.
Where: one per group (`groups`); in a broker, the gates of subscriptions (`dispatch_gate`) ask and charge it, in a proxy
the permits of consumers (`held_permits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.fair_line import FairLine
from penstock.governance.resource_group import Amount

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.resource_group import ClassLimiter


class Waiting(Protocol):
    """A subscription, or what a proxy has of one."""

    def wake(self) -> None:
        """It may dispatch now."""


class GroupDispatch:
    """The dispatch limit of one group, and the subscriptions that wait for it.

    Attributes:
        consumers: of a proxy, in this group; and `permits`, which brokers may use of theirs at this moment.
    """

    __slots__ = ("_clock", "_line", "_loop", "_timer", "consumers", "limiter", "owner", "permits")

    def __init__(self, owner: str, limiter: ClassLimiter, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.owner = owner
        self.limiter = limiter
        self._clock = clock
        self._loop = loop
        self._line: FairLine[Waiting] | None = None  # made for the first one, most groups never need it
        self._timer: asyncio.Handle | None = None
        self.consumers = 0
        self.permits = 0

    @property
    def waiting(self) -> int:
        """How many subscriptions wait."""
        return len(self._line) if self._line is not None else 0

    def short_of(self, now_ns: int) -> str | None:
        """Which limit is in debt, "msg" or "bytes"; None if neither is."""
        return self.limiter.short_of(now_ns)

    def messages_left(self, now_ns: int) -> int | None:
        """Messages allowed before the next wait; None: no limit."""
        left = self.limiter.left(now_ns)[0]
        return None if left is None else max(1, left)

    def bytes_left(self, now_ns: int) -> int | None:
        """Bytes allowed before the next wait; None: no limit."""
        left = self.limiter.left(now_ns)[1]
        return None if left is None else max(1, left)

    def charge(self, subscription: Waiting, messages: int, nbytes: int, now_ns: int, entries: int = 1) -> None:
        """Charge what a subscription dispatched."""
        self.limiter.charge(messages, nbytes, now_ns, entries)
        self._used(subscription, messages, nbytes)

    def charge_reserved(self, subscription: Waiting, messages: int, nbytes: int, reserved: Amount, now_ns: int) -> None:
        """Charge what passed, of which so much was reserved before."""
        self.limiter.charge(messages, nbytes, now_ns)
        self.reserve(Amount(-reserved.messages, -reserved.bytes), now_ns)
        self._used(subscription, messages, nbytes)

    def reserve(self, amount: Amount, now_ns: int) -> None:
        """Take what will pass from the balance, or give back what did not (negative)."""
        self.limiter.consume(amount.messages, amount.bytes, now_ns)

    def _used(self, subscription: Waiting, messages: int, nbytes: int) -> None:
        if self._line is not None:
            self._line.used(subscription, self.limiter.cost_s(messages, nbytes))

    # -- waiting

    def waits(self, subscription: Waiting) -> bool:
        return self._line is not None and subscription in self._line

    def wait(self, subscription: Waiting, now_ns: int) -> None:
        """Let a subscription wait; it is woken in its turn."""
        if self._line is None:
            self._line = FairLine()
        self._line.join(subscription)
        self.limiter.waits(now_ns)
        if self._timer is None:
            self._set_timer(now_ns)

    def forget(self, subscription: Waiting) -> None:
        """A subscription does not wait any more."""
        if self._line is not None:
            self._line.leave(subscription)
        self._note_if_nobody_waits()

    def look_again(self) -> None:
        """The share has changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._line:
            self.wake()

    def wake(self) -> None:
        """Wake the next subscription, and in the next turn of the loop the one after it, while there is a balance."""
        self._timer = None
        now_ns = self._clock.monotonic_ns()
        if not self._line:
            return
        if self.limiter.ready(now_ns):
            self._line.pop().wake()
            self._note_if_nobody_waits()
        if self._line and self._timer is None:
            self._set_timer(now_ns)

    def _set_timer(self, now_ns: int) -> None:
        delay_ns = self.limiter.delay_ns(now_ns)
        if delay_ns:
            self._timer = self._loop.call_later(delay_ns / NS_PER_S, self.wake)
        else:
            self._timer = self._loop.call_soon(self.wake)

    def _note_if_nobody_waits(self) -> None:
        if not self._line and self.limiter.waits_since_ns is not None:
            self.limiter.waits_no_more(self._clock.monotonic_ns())
