# SPDX-License-Identifier: Apache-2.0
"""A limit that only counts: for how long something would have waited with another share.

Why: advice from records is a calculation. Before a quota is set, the live broker can say what it would have done.

It is a limiter of its own, in which runs wait as they would: what arrives is given to it, also what waits for the limit
in force, and its waiters are looked at when the next run arrives, at the times at which they would have been woken.
Entries pass while the balance is positive. A limit in force lets a whole run pass then; but whether the next one finds
a balance is a matter of microseconds, so here the rest of a run waits, as in `NeededRate`. A client that is not
answered may keep back what it would have sent otherwise: so this says what arrived would have done.

Where: `resource_group.ClassLimiter`, while an administrator observes a quota; `groups.Group` begins and ends it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.governance.resource_group import NOTHING, Amount, ClassLimiter

if TYPE_CHECKING:
    from penstock.governance.resource_group import GroupRate

# Runs that wait, about 100 bytes each; if there are more, two become one.
WAITING_MAX: Final = 1_000


class _Run(NamedTuple):
    """Entries that wait, of about the same size."""

    messages: int
    bytes: int
    entries: int

    def within(self, messages: int | None, nbytes: int | None) -> int:
        """How many entries pass with this balance: until it is used up, and at least one."""
        count = self.entries
        for left, amount in ((messages, self.messages), (nbytes, self.bytes)):
            if left is not None and amount > 0:
                count = min(count, -(-left * self.entries // amount))
        return max(1, count)

    def first(self, entries: int) -> _Run:
        return _Run(self.messages * entries // self.entries, self.bytes * entries // self.entries, entries)

    def without(self, other: _Run) -> _Run:
        return _Run(self.messages - other.messages, self.bytes - other.bytes, self.entries - other.entries)

    def with_(self, other: _Run) -> _Run:
        return _Run(self.messages + other.messages, self.bytes + other.bytes, self.entries + other.entries)


class ObservedRate:
    """Effect that another share would have had on one class of traffic of a group.

    Attributes:
        share: per second.
        since_ns: when this began.
        limited_before_ns: for how long something had waited for the limit in force until then.
        arrived: what has arrived since then.
    """

    __slots__ = ("_before", "_limiter", "_waiting", "_wake_ns", "arrived", "limited_before_ns", "share", "since_ns")

    def __init__(self, share: GroupRate, in_force: ClassLimiter, now_ns: int) -> None:
        """Args: in_force: the limiter that is in force."""
        self.since_ns = now_ns
        self.arrived = NOTHING
        self.limited_before_ns = in_force.limited_ns(now_ns)
        self._before = in_force.seen
        self._limiter = ClassLimiter()
        self._waiting: deque[_Run] = deque()
        self._wake_ns = now_ns
        self.set_share(share, now_ns)

    def set_share(self, share: GroupRate, now_ns: int) -> None:
        """Observe another share from now on; the balance is kept."""
        self._wake(now_ns)
        self.share = share
        self._limiter.set_share(share, now_ns)
        self._wake_ns = now_ns

    def saw(self, total: Amount, entries: int, now_ns: int) -> None:
        """Something may have arrived.

        Args:
            total: what has passed, and what waits.
            entries: how many have arrived, if any.
            now_ns: the time.
        """
        new = _Run(total.messages - self._before.messages, total.bytes - self._before.bytes, max(1, entries))
        if new.messages <= 0 and new.bytes <= 0:
            return
        self._before = total
        self.arrived = self.arrived.plus(new.messages, new.bytes)
        self._wake(now_ns)
        waiting, limiter = self._waiting, self._limiter
        if len(waiting) == WAITING_MAX:
            for _ in range(WAITING_MAX // 2):
                waiting.append(waiting.popleft().with_(waiting.popleft()))
        elif not waiting:
            new = self._passed(new, now_ns)
            if not new.entries:
                return
            limiter.waits(now_ns)
            self._wake_ns = now_ns + limiter.delay_ns(now_ns)
        waiting.append(new)

    def _wake(self, now_ns: int) -> None:
        """Let pass what would have passed until now."""
        waiting, limiter = self._waiting, self._limiter
        while waiting and self._wake_ns <= now_ns:
            at_ns = self._wake_ns
            while waiting and limiter.ready(at_ns):
                rest = self._passed(waiting.popleft(), at_ns)
                if rest.entries:
                    waiting.appendleft(rest)
            if waiting:
                self._wake_ns = at_ns + limiter.delay_ns(at_ns)
            else:
                limiter.waits_no_more(at_ns)

    def _passed(self, run: _Run, now_ns: int) -> _Run:
        """Let entries of a run pass; return the rest."""
        if not self._limiter.ready(now_ns):
            return run
        part = run.first(run.within(*self._limiter.left(now_ns)))
        self._limiter.consume(part.messages, part.bytes, now_ns)
        return run.without(part)

    def settled(self, total: Amount) -> None:
        """Nothing waits for the limit in force; what had arrived beyond `total` was dropped with its clients."""
        self._before = total

    def limited_ns(self, now_ns: int) -> int:
        """For how long something would have waited until now."""
        self._wake(now_ns)
        return self._limiter.limited_ns(now_ns)
