# SPDX-License-Identifier: Apache-2.0
"""A limit of publishing or of delivery: its balance, and the fair line of those who wait for it.

One class for topics, subscriptions, resource groups, the broker and adaptive throttling, in brokers and proxies. What
passes is charged in full, into debt if need be; while there is debt, others wait. They are served in turns, lowest use
first, by one timer.

Why publishing is not limited by muted connections: producers of many topics share one, and consumers. So SENDs of a
limit in debt are held in memory (`held_sends`), and others go on. Topics wait in the line, and the producers of a topic
take turns. Topics get parts of a group's rate in proportion to their weights (`resourceGroupTopicShares`): `even`, all
the same; `usage`, the number of SENDs that they hold.

Subscriptions get equal parts of a dispatch limit, whatever their messages cost. One that is woken may have to read the
log first. If others use up the balance meanwhile, it waits again, before them.

Where: a group has two (`group`), each rate one (`limiters`), and each topic or payer that is throttled adaptively one
(`adaptive_publish`). `HeldSends`, the gates of a broker's subscriptions (`limiters`) and the permits of a proxy's
consumers (`held_permits`) wait here. Without a limit there is no object, and no call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from penstock.core.units import NS_PER_S
from penstock.governance.fair_queue import FairLine
from penstock.governance.holds import HoldKind
from penstock.governance.resource_group import Amount

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.governance.resource_group import ClassLimiter, GroupRate


M = TypeVar("M")  # who waits
LimitT = TypeVar("LimitT", bound="Limit[Any]")


class Limit(Generic[M]):
    """A balance, and a line.

    Attributes:
        owner: of the limit, for sentences: a group, a topic, a subscription, a tenant, or "broker".
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

    def set_share(self, share: GroupRate, step_ns: int | None = None) -> None:
        """Change the share, see `ClassLimiter.set_share`; debts remain. Waiters that may pass now do."""
        if (share, step_ns) != (self.limiter.share, self.limiter.step_ns):
            self.limiter.set_share(share, self._clock.monotonic_ns(), step_ns)
            self.look_again()

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
        """Let this member pass: it had its turn, and has left the line."""
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


def blocker(limits: Iterable[LimitT], now_ns: int) -> LimitT | None:
    """The first of these limits that is in debt."""
    return next((limit for limit in limits if limit.short_of(now_ns) is not None), None)


class Waiter(Protocol):
    """A producer with held SENDs, or one that only waits to be read again."""

    @property
    def topic(self) -> object: ...

    @property
    def rows(self) -> int:
        """SENDs that are held."""

    def go(self, messages: int | None, nbytes: int | None) -> tuple[int, int]:
        """Publish held SENDs up to these amounts, at least one; returns messages and bytes that passed.

        The producer then waits again, in this or another line, if there are more.
        """


class PublishLimit(Limit[object]):
    """A publish limit, and the topics that wait for it."""

    hold: ClassVar[HoldKind] = HoldKind.GROUP_QUOTA
    serves_all: ClassVar[bool] = True

    __slots__ = ("_by_usage", "_waiters", "throttled")

    def __init__(
        self,
        owner: str,
        limiter: ClassLimiter,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        by_usage: Callable[[], bool] = lambda: False,
    ) -> None:
        """Receive what this uses. Args: by_usage: whether topics have weights, as above."""
        super().__init__(owner, limiter, clock, loop)
        self.throttled = 0  # how often a producer began to wait
        self._by_usage = by_usage
        self._waiters: dict[object, dict[Waiter, None]] = {}  # by topic, in order

    def accepted(self, messages: int, nbytes: int, entries: int) -> None:
        """Charge an accepted run."""
        self.limiter.charge(messages, nbytes, self._clock.monotonic_ns(), entries)

    @property
    def left(self) -> tuple[float, float]:
        """Messages and bytes that may pass now without waiting; nothing while others wait."""
        if self._waiters:
            return 0, 0
        messages, nbytes = self.limiter.left(self._clock.monotonic_ns())
        return math.inf if messages is None else messages, math.inf if nbytes is None else nbytes

    def add(self, waiter: Waiter) -> None:
        """Let a producer wait for its turn."""
        self._waiters.setdefault(waiter.topic, {})[waiter] = None
        self.wait(waiter.topic, self._clock.monotonic_ns())

    def remove(self, waiter: Waiter) -> None:
        """A producer does not wait any more."""
        waiters = self._waiters.get(waiter.topic)
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                del self._waiters[waiter.topic]
                self.forget(waiter.topic)

    def _serve(self, member: object, now_ns: int) -> None:
        assert self._line is not None, "somebody waits"
        waiters, waiting = self._waiters[member], len(self._waiters)
        waiter = next(iter(waiters))
        weight = max(1, sum(one.rows for one in waiters)) if self._by_usage() else 1
        messages, nbytes = self.limiter.left(now_ns)
        del waiters[waiter]  # It is added again if it holds more.
        passed = waiter.go(_part(messages, waiting), _part(nbytes, waiting))
        self._line.used(member, self.limiter.cost_s(*passed), weight)
        if waiters:
            self._line.join(member)
        else:
            del self._waiters[member]


def _part(left: int | None, waiting: int) -> int | None:
    return None if left is None else max(1, left // waiting)


class Waiting(Protocol):
    """A subscription, or what a proxy has of one."""

    def wake(self) -> None:
        """Dispatch: the limit allows it now."""


class DispatchLimit(Limit[Waiting]):
    """A dispatch limit, and the subscriptions that wait for it.

    Attributes:
        kind: of its owner: "Group", or "Subscription", "Topic" or "Broker".
        consumers: of a proxy, in this group; and `permits`, which brokers may use of theirs at this moment.
    """

    hold: ClassVar[HoldKind] = HoldKind.GROUP_QUOTA
    serves_all: ClassVar[bool] = False
    # Whether it is a rate of Pulsar's: settings may excuse subscriptions that have caught up, and count entries.
    is_rate: ClassVar[bool] = False
    kind: str = "Group"

    __slots__ = ("consumers", "permits")

    def __init__(self, owner: str, limiter: ClassLimiter, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(owner, limiter, clock, loop)
        self.consumers = 0
        self.permits = 0

    def follow(self, now_ns: int) -> None:
        """The time is now; a rate that is relative to another one is updated."""

    def left(self, now_ns: int) -> tuple[int | None, int | None]:
        """Messages and bytes allowed before the next wait, at least one; None: no limit."""
        messages, nbytes = self.limiter.left(now_ns)
        return None if messages is None else max(1, messages), None if nbytes is None else max(1, nbytes)

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

    def _serve(self, member: Waiting, now_ns: int) -> None:  # noqa: ARG002 - what it takes is charged later
        member.wake()
