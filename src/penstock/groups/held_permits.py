# SPDX-License-Identifier: Apache-2.0
"""Permits of consumers that wait for the dispatch limits of resource groups, in a proxy.

Why permits: a connection carries the messages of many consumers, so a proxy that held back messages of one group would
delay all others behind them. But a broker sends a consumer only as many messages as its client has asked for (FLOW).
So the proxy passes permits on in steps: as many as the group's balance allows, and more when their messages have come.
Messages themselves are never delayed.

    wanted       permits that the client gave, and the broker has not
    outstanding  permits that the broker has, minus the messages that it has sent; a batch may take it below 0
    reserved     messages and bytes that the outstanding permits will cost, already taken from the balance

A step. `reserve` what it will cost, send the FLOW, and settle when the messages have come: only the difference is
charged then. What a permit costs is learnt: brokers may take it for a message, or for an entry (Apache Pulsar's
default), and an entry is never divided.

Consumers without messages. Each must have a permit to be sent its next message at all. What it does not use within
`RESERVED_NS` returns to the balance, and its next steps begin small: steps double while their messages come at once.

The bound: all consumers of a group together have permits for at most `OUTSTANDING_NS` of the proxy's share, or as many
each as that divided by their number, and at least one. So a group whose topics all become busy at once exceeds its
share once by twice this, and by an entry of each consumer; the excess is repaid before others pass.

A consumer that was connected before its topic had a group is not exact: the number of permits that its broker has is
unknown. Its permits wait while the group is in debt, and then pass all together.
Where: `proxy.consumers` has one `Permits` for each consumer with a group.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.holds import Episode
from penstock.governance.resource_group import Amount
from penstock.groups.limit import blocker

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.groups.limit import DispatchLimit

# For how long permits may be outstanding for a consumer before they are taken for unused.
RESERVED_NS: Final = 200 * NS_PER_MS
# Permits that may be outstanding in a group, in time of its share.
OUTSTANDING_NS: Final = 500 * NS_PER_MS
# And those of one consumer; so much passes in a network's round trip.
STEP_NS: Final = 100 * NS_PER_MS
# More than any client's receive queue; FLOW's field has 32 bits.
PERMITS_MAX: Final = 2**31 - 1
_STEP_MAX: Final = 1 << 20
# Weight of the last messages in the averages of a consumer: one of so many.
_AVERAGED: Final = 4

_NOTHING: Final = Amount()


class Permits:
    """The permits of one consumer. Implements `Waiting`."""

    __slots__ = (
        "_bytes",
        "_came",
        "_cost",
        "_exact",
        "_grant",
        "_passed",
        "_reserved",
        "_step",
        "_steps",
        "lines",
        "outstanding",
        "until_ns",
        "waits",
        "wanted",
        "watched",
    )

    def __init__(self, steps: PermitSteps, grant: Callable[[int], None], *, exact: bool = True) -> None:
        """Args: grant: sends the broker a FLOW; exact: whether it has sent none yet."""
        self.lines: tuple[DispatchLimit, ...] = ()
        self.wanted = 0
        self.outstanding = 0
        self.until_ns = 0  # when what is reserved returns to the balance
        self.watched = False  # by `steps`
        self.waits: Episode[DispatchLimit] | None = None  # for the balance of a group
        self._steps = steps
        self._grant = grant
        self._exact = exact
        self._step = 1  # permits that may be outstanding
        self._reserved = _NOTHING
        self._cost = 1.0  # messages that a permit brings
        self._bytes = 0.0  # of a message, on average
        # Permits that were passed on since they were last used up, and messages that came.
        self._passed = 0
        self._came = 0

    # -- changes

    def limit(self, lines: Iterable[DispatchLimit]) -> None:
        """Set the groups that limit it."""
        self.leave()
        self.lines = tuple(lines)
        for line in self.lines:
            line.consumers += 1
            line.permits += max(0, self.outstanding)
        if self.lines:
            self.wake()
        elif self.wanted:
            wanted, self.wanted = self.wanted, 0
            self._grant(wanted)

    def leave(self) -> None:
        """The consumer is gone, or has other groups. Reserved amounts have probably been sent, and are not returned."""
        for line in self.lines:
            line.forget(self)
            line.consumers -= 1
            line.permits -= max(0, self.outstanding)
        self.lines = ()
        self._reserved = _NOTHING

    # -- events

    def flow(self, permits: int) -> None:
        """The client gives more permits."""
        self.wanted = min(PERMITS_MAX, self.wanted + permits)
        self._look()

    def delivered(self, messages: int, nbytes: int, *, unread: int) -> None:
        """The broker has sent messages; `unread`: entries that may hold more messages than were counted."""
        now_ns = self._steps.clock.monotonic_ns()
        self._bytes += (nbytes / messages - self._bytes) / (_AVERAGED if self._bytes else 1)
        self._came += messages
        before = self._reserved
        if unread:
            self._exact = False
            self._count(-self.outstanding)
        if self._exact:
            self._count(-messages)
        left = max(0, before.messages - messages) if self.outstanding > 0 else 0
        self._reserved = Amount(left, before.bytes * left // before.messages) if left else _NOTHING
        used = Amount(before.messages - self._reserved.messages, before.bytes - self._reserved.bytes)
        for line in self.lines:
            line.charge_reserved(self, messages, nbytes, used, now_ns)
        if self.outstanding <= 0:
            self._used_up()
        self._look()

    def wake(self) -> None:
        """See `Waiting`: pass on as many permits as may pass now, and wait for more if there are."""
        # Those that larger entries have already used cost nothing, and are of no use before the broker has one more.
        used = max(0, -self.outstanding)
        if self.wanted <= used or not self.lines:
            if self.wanted:
                self._pass_on(self.wanted)
            return
        now_ns = self._steps.clock.monotonic_ns()
        short = blocker(self.lines, now_ns)
        if short is not None:
            self._wait(short, now_ns)
            return
        for line in self.lines:
            line.forget(self)
        if not self._exact:
            wanted, self.wanted = self.wanted, 0
            self._grant(wanted)
            return
        room = min(self.wanted - used, self._room() - max(0, self.outstanding))
        if room <= 0:
            return
        line = min(self.lines, key=lambda one: self._affordable(one, now_ns))
        permits = min(room, self._affordable(line, now_ns))
        self._passed += permits
        cost = Amount(round(permits * self._cost), round(permits * self._cost * self._bytes))
        for one in self.lines:
            one.reserve(cost, now_ns)
        self._reserved = Amount(self._reserved.messages + cost.messages, self._reserved.bytes + cost.bytes)
        self._pass_on(permits + used)
        self._steps.expect(self, now_ns)
        if permits < room:
            self._wait(line, now_ns)

    def expired(self, now_ns: int) -> None:
        """No message has come for the last permits: give back what is reserved, and begin with small steps."""
        unused = Amount(-self._reserved.messages, -self._reserved.bytes)
        self._reserved = _NOTHING
        self._step = max(1, self._step // 2)
        for line in self.lines:
            line.reserve(unused, now_ns)
            line.look_again()

    @property
    def reserved(self) -> bool:
        """Whether something is."""
        return self._reserved != _NOTHING

    # -- decisions

    def _used_up(self) -> None:
        """All permits have been used: learn from it."""
        if self._passed:
            cost = self._came / self._passed
            # Too little is exceeded at once; too much only takes more steps.
            self._cost = max(1.0, cost, self._cost + (cost - self._cost) / _AVERAGED)
        self._passed = self._came = 0
        self._step = min(_STEP_MAX, 2 * self._step)

    def _look(self) -> None:
        if self.wanted and not any(line.waits(self) for line in self.lines):
            self.wake()

    def _affordable(self, line: DispatchLimit, now_ns: int) -> int:
        """Permits that a group's balance allows, at least one."""
        messages, nbytes = line.left(now_ns)
        permits = PERMITS_MAX if messages is None else int(messages / self._cost)
        if nbytes is not None and self._bytes:
            permits = min(permits, int(nbytes / (self._cost * self._bytes)))
        return max(1, permits)

    def _room(self) -> int:
        """How many permits may be outstanding for this consumer, at least one."""
        room = self._step
        for line in self.lines:
            share = line.limiter.share
            per_s = [
                rate / each
                for rate, each in ((share.messages, self._cost), (share.bytes, self._cost * self._bytes))
                if rate is not None and each
            ]
            if per_s:
                most = min(per_s) * OUTSTANDING_NS / NS_PER_S
                others = line.permits - max(0, self.outstanding)
                room = min(room, int(max(most - others, most / line.consumers)), int(min(per_s) * STEP_NS / NS_PER_S))
        return max(1, room)

    def _wait(self, line: DispatchLimit, now_ns: int) -> None:
        line.wait(self, now_ns)
        self.waits = Episode.begun(self.waits, now_ns)
        self.waits.of = line

    def _pass_on(self, permits: int) -> None:
        if self.waits is not None:
            self.waits.end(self._steps.clock.monotonic_ns())
        self.wanted -= permits
        self._count(permits)
        self._grant(permits)

    def _count(self, permits: int) -> None:
        before = max(0, self.outstanding)
        self.outstanding += permits
        change = max(0, self.outstanding) - before
        if change:
            for line in self.lines:
                line.permits += change


class PermitSteps:
    """Watches the reservations of all consumers of a proxy, by one timer."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = clock
        self._loop = loop
        self._expected: deque[tuple[int, Permits]] = deque()  # in the order of their time, each once
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, permits: Permits, now_ns: int) -> None:
        """Messages for a consumer's permits are expected from now on."""
        permits.until_ns = now_ns + RESERVED_NS
        if not permits.watched:
            permits.watched = True
            self._expected.append((permits.until_ns, permits))
            if self._timer is None:
                self._timer = self._loop.call_later(RESERVED_NS / NS_PER_S, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ns = self.clock.monotonic_ns()
        while self._expected and self._expected[0][0] <= now_ns:
            _, permits = self._expected.popleft()
            permits.watched = permits.reserved and permits.until_ns > now_ns
            if permits.watched:
                self._expected.append((now_ns + RESERVED_NS, permits))
            elif permits.reserved:
                permits.expired(now_ns)
        if self._expected:
            wait_ns = max(0, self._expected[0][0] - now_ns)
            self._timer = self._loop.call_later(wait_ns / NS_PER_S, self._expire)
