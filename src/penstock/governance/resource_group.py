# SPDX-License-Identifier: Apache-2.0
"""The limits of one resource group on one broker (PIP-82), and the meter of what it uses and wants.

Why: a rate of a topic does not bound a tenant, which can create more topics. A resource group is one quota for all
topics of its tenants and namespaces. Each broker enforces its share of the quota, and reports what the group used and
what was held back, so that shares can follow demand.

Where: `groups.group` has one `GroupLimiter` per group in use; all topics of the group charge it, once per
run. `set_share` changes the share while traffic flows. Simulations of the exchange use the same class.

- A run of any size passes when the balance is positive, and is charged in full. The debt is repaid before the next run.
  So 1 message per second and batches of 1,000 do not exclude each other: a batch passes every 1,000 seconds.
- A change of the share keeps the balance, also a debt (S6). Only removing a limit forgives it.
- A share may be a fraction of a message per second: 100 brokers share a quota of 10. Everything is counted in whole
  thousandths, so rates above 2^24 are exact (S15).
- Messages and bytes, publish and dispatch are limited and counted independently (S7, S9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from penstock.governance.observed_rate import ObservedRate


# ---------------------------------------------------------------------------------------------------------------------
# Token buckets that may go into debt: what happened is charged in full, and a bucket in debt must wait.
#
# Why debt: a run of messages is accepted or refused as a whole, and a refusal would fail its producer. So the run is
# accepted and charged, and the producer waits until the debt is repaid. Over any time, at most `rate` times that time,
# one burst and the overshoot of one run pass. The overshoot is paid back.
#
# Why a change of rate keeps the balance: a new bucket would forgive the debt and allow another burst each time.
#
# The arithmetic uses whole numbers. The balance counts tokens times nanoseconds of the period, so rounding errors do
# not add up.

# A bucket is ready again when it holds 1/_READY_PART of its burst, and at least one token. So a waiting publisher is
# woken at most a hundred times in a period. (Pulsar uses the same rule.)
_READY_PART: Final = 100
# One whose burst is given is ready when it holds what is added in this time: waiters go on smoothly.
_READY_NS: Final = 10 * NS_PER_MS


class TokenBucket:
    """`rate` tokens in each `period_ns`; the burst is one period's tokens, or those of `burst_ns`.

    Tokens are added evenly. If `stepwise`, all tokens of a period are added at its end; the first period begins when
    the full bucket is first used. Times are nanoseconds of one monotonic clock. A time that is earlier than a previous
    one counts as the previous one.
    """

    __slots__ = ("_at_ns", "_burst_ns", "_credit", "_spilled", "period_ns", "rate", "stepwise")

    def __init__(
        self,
        rate: int,
        now_ns: int,
        *,
        period_ns: int = NS_PER_S,
        stepwise: bool = False,
        burst_ns: int | None = None,
    ) -> None:
        _check(rate, period_ns)
        self.rate = rate
        self.period_ns = period_ns
        self.stepwise = stepwise
        self._burst_ns = burst_ns  # None: one period
        self._credit = self._full  # in 1/period_ns of a token
        self._spilled = 0  # the same: what was added to a full bucket
        self._at_ns = now_ns

    def consume(self, tokens: int, now_ns: int) -> None:
        """Charge `tokens`, even if the balance becomes negative."""
        self._settle(now_ns)
        if self._credit == self._full:
            self._at_ns = max(self._at_ns, now_ns)
        self._credit -= tokens * self.period_ns

    def available(self, now_ns: int) -> int:
        """Return the balance in whole tokens, rounded down; negative in debt."""
        self._settle(now_ns)
        return self._credit // self.period_ns

    def in_debt(self, now_ns: int) -> bool:
        """Return whether no token is left, so that the next run must wait."""
        self._settle(now_ns)
        return self._credit <= 0

    def full(self, now_ns: int) -> bool:
        """Return whether nothing is left of what was charged."""
        self._settle(now_ns)
        return self._credit >= self._full

    def ready_at_ns(self) -> int:
        """Return when a bucket in debt is ready again if nothing more is charged; a time in the past means now."""
        if self._burst_ns is None:
            enough = max(self.period_ns, self._full // _READY_PART)
        else:
            # The burst of a low rate may be less than a token. A full bucket loses what is added while its timer is
            # late, so half of the burst is enough.
            enough = min(self._full // 2, max(self.period_ns, self.rate * _READY_NS))
        wanted = enough - self._credit
        if wanted <= 0:
            return self._at_ns
        wait_ns = -(-wanted // self.rate)
        if self.stepwise:
            wait_ns = -(-wait_ns // self.period_ns) * self.period_ns
        return self._at_ns + wait_ns

    def spilled(self, now_ns: int) -> int:
        """Take away what does not fit, and return that of the time since the last call; in 1/period_ns of a token."""
        self._settle(now_ns)
        excess = max(0, self._credit - self._full)
        self._credit -= excess
        spilled, self._spilled = self._spilled + excess, 0
        return spilled

    def give(self, credit: int, now_ns: int) -> None:
        """Add so many 1/period_ns of a token, also to a full bucket: until `spilled` is called."""
        self._settle(now_ns)
        self._credit += credit

    def set_rate(self, rate: int, now_ns: int, *, period_ns: int | None = None) -> None:
        """Change the rate and keep the balance. Tokens above the new burst are lost."""
        period_ns = period_ns or self.period_ns
        _check(rate, period_ns)
        self._settle(now_ns)
        if period_ns != self.period_ns:
            # Rounded down: a change never gives anything away.
            self._credit = self._credit * period_ns // self.period_ns
        self.rate, self.period_ns = rate, period_ns
        self._spilled += max(0, self._credit - self._full)
        self._credit = min(self._credit, self._full)

    @property
    def _full(self) -> int:
        return self.rate * (self.period_ns if self._burst_ns is None else self._burst_ns)

    def _settle(self, now_ns: int) -> None:
        """Add the tokens that were earned since the last call."""
        passed_ns = now_ns - self._at_ns
        if self.stepwise:
            passed_ns -= passed_ns % self.period_ns
        if passed_ns > 0:
            self._at_ns += passed_ns
            credit = self._credit + passed_ns * self.rate
            limit = max(self._full, self._credit)
            if credit > limit:
                self._spilled += credit - limit
                credit = limit
            self._credit = credit


def _check(rate: int, period_ns: int) -> None:
    if rate < 1 or period_ns < 1:
        raise ValueError(f"want a rate and a period of at least 1, got {rate} in {period_ns} ns; no limit is no bucket")


# Points that are kept. Only traffic that becomes faster with each arrival has more; then the latest ones matter.
POINTS_MAX: Final = 64
# By more than the errors of the arithmetic: a rate that equals the steepest slope is not enough.
_ROUNDED_UP: Final = 1 + 1e-9


class NeededRate:
    """The rate that one kind of traffic needs: the smallest one with which nothing would have waited since `take`.

    The mean of a minute says little about a limit. A group that sends all of a minute in ten seconds waits with a quota
    of twice its mean, and one that sends a large batch now and then never does. Records therefore carry this rate, so
    that quotas can be chosen by what happened.

    A bucket of rate r, with the burst of a time B, lets an entry of any size pass while its balance is positive. The
    balance at t is r · (t - s + B) - A(s, t), where s is the last time at which it was full, and A what has arrived
    since then, before this entry. So nothing waits exactly if r exceeds A(s, t) / (t - s + B) for all s before t: the
    steepest line from a point (s, what had arrived) to a point (t + B, what has arrived now). As in the search for the
    densest stretch of a sequence, it is enough to keep the lower convex hull of the points, and to walk along it in one
    direction; an arrival costs some comparisons.

    What waits has arrived, so it is counted when it is held. What a client keeps back, because it was not answered, is
    not seen: of a limited minute, the rate is a lower bound.
    """

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


# A group that was idle may send this much at once. A burst of a second, as Pulsar's, exceeds the quota by its whole
# size in the second in which several brokers use theirs.
BURST_NS: Final = 50 * NS_PER_MS
# Buckets count rates in thousandths: tokens per 1,000 seconds.
_PER_SECOND: Final = 1_000
_PERIOD_NS: Final = _PER_SECOND * NS_PER_S


class Amount(NamedTuple):
    """Messages and their bytes."""

    messages: int = 0
    bytes: int = 0

    def plus(self, messages: int, nbytes: int) -> Amount:
        """Return the sum."""
        return Amount(self.messages + messages, self.bytes + nbytes)


NOTHING: Final = Amount()


@dataclass(frozen=True, slots=True)
class GroupRate:
    """Messages and bytes per second; None: no limit. Quotas are whole numbers, shares may be fractions.

    A share of 0 counts as a thousandth per second: one message passes, then its debt waits for a larger share.
    """

    messages: float | None = None
    bytes: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("messages", self.messages), ("bytes", self.bytes)):
            if value is not None and not 0 <= value < math.inf:  # nor NaN
                raise ValueError(f"want a rate of 0 or more {name} per second, or None for no limit, got {value}")

    @property
    def limited(self) -> bool:
        return self.messages is not None or self.bytes is not None


UNLIMITED: Final = GroupRate()


@dataclass(frozen=True, slots=True)
class GroupRates:
    """A quota, or one broker's share of it."""

    publish: GroupRate = UNLIMITED
    dispatch: GroupRate = UNLIMITED


class ClassUsage(NamedTuple):
    """Usage of one class of traffic (publish or dispatch) of a group in an interval."""

    passed: Amount
    held: Amount  # waits at the end of the interval, as far as the broker can see
    limited_ns: int  # for how long something waited; demand was above the share then


class Usage(NamedTuple):
    """Usage of a group on this broker in an interval."""

    elapsed_ns: int
    publish: ClassUsage
    dispatch: ClassUsage


class Needed(NamedTuple):
    """Which rates would have been enough; see `NeededRate`."""

    messages: NeededRate
    bytes: NeededRate


class ClassLimiter:
    """The limit and the counters of one class of traffic of a group: publish or dispatch.

    Attributes:
        step_ns: the period of a share that is added at its end; see `set_share`.
        needed: measures which share would have been enough; None: nobody asks.
        observed: counts what another share would have done; None: nobody asks.
    """

    __slots__ = (
        "_burst_ns",
        "_bytes",
        "_limited_ns",
        "_messages",
        "_waits_since_ns",
        "bytes_passed",
        "held",
        "messages_passed",
        "needed",
        "observed",
        "share",
        "step_ns",
    )

    def __init__(self, *, burst_ns: int = BURST_NS) -> None:
        """Args: burst_ns: after a pause, what is added in this time may pass at once."""
        self.share = UNLIMITED
        self._burst_ns = burst_ns
        self.step_ns: int | None = None
        # Counted since the group is known here; never reset.
        self.messages_passed = 0
        self.bytes_passed = 0
        # What waits now. The caller knows it, and keeps it current.
        self.held = Amount()
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self._waits_since_ns: int | None = None
        self._limited_ns = 0  # of completed waits
        self.needed: Needed | None = None
        self.observed: ObservedRate | None = None

    def charge(self, messages: int, nbytes: int, now_ns: int, entries: int = 1) -> None:
        """Charge and count a run of so many entries that passed, whatever the balance is."""
        self.messages_passed += messages
        self.bytes_passed += nbytes
        if self.needed is not None or self.observed is not None:
            self.arrived(entries, now_ns)
        self.consume(messages, nbytes, now_ns)

    def consume(self, messages: int, nbytes: int, now_ns: int) -> None:
        """Charge what will pass, or give back what did not (negative), without counting it."""
        if self._messages is not None:
            self._messages.consume(messages, now_ns)
        if self._bytes is not None:
            self._bytes.consume(nbytes, now_ns)

    def ready(self, now_ns: int) -> bool:
        """Whether a run of any size may pass now."""
        return self.short_of(now_ns) is None

    def short_of(self, now_ns: int) -> str | None:
        """Which balance is not positive: "msg" or "bytes"; None if neither."""
        if self._messages is not None and self._messages.in_debt(now_ns):
            return "msg"
        return "bytes" if self._bytes is not None and self._bytes.in_debt(now_ns) else None

    def delay_ns(self, now_ns: int) -> int:
        """After how many nanoseconds a run may pass; 0: now.

        A limiter in debt waits until the tokens of 10 ms are available, and at least one message and one byte, but at
        most half of the burst. So waiters are not woken for each message, and a late timer loses nothing.
        """
        if self.ready(now_ns):
            return 0
        at_ns = max(bucket.ready_at_ns() for bucket in (self._messages, self._bytes) if bucket is not None)
        return max(1, at_ns - now_ns)

    def left(self, now_ns: int) -> tuple[int | None, int | None]:
        """Messages and bytes up to the end of the balance, rounded up; 0 or less in debt; None: no limit."""
        return _left(self._messages, now_ns), _left(self._bytes, now_ns)

    def cost_s(self, messages: int, nbytes: int) -> float:
        """For how many seconds, or periods, this uses the share up."""
        share = self.share
        of_messages = messages / share.messages if share.messages else 0.0
        return max(of_messages, nbytes / share.bytes if share.bytes else 0.0)

    def set_share(self, share: GroupRate, now_ns: int, step_ns: int | None = None) -> None:
        """Change the share and keep the balance; a limit that is new begins with a full burst.

        Args:
            share: per second.
            now_ns: the time.
            step_ns: the share, of whole numbers, is that of such a period, and is added at its end, as Pulsar's
                dispatch rates are; the burst is a period's. Either all shares of a limiter have one, or none.
        """
        self.share, self.step_ns = share, step_ns
        self._messages = self._changed(self._messages, share.messages, now_ns)
        self._bytes = self._changed(self._bytes, share.bytes, now_ns)

    def spilled(self, now_ns: int) -> tuple[int, int]:
        """Return what was added to full balances since the last call: thousandths of messages and bytes."""
        return _spilled(self._messages, now_ns), _spilled(self._bytes, now_ns)

    def give(self, messages: int, nbytes: int, now_ns: int) -> None:
        """Add what other brokers did not use, in thousandths; what is not used soon is lost (see `spilled`)."""
        if self._messages is not None:
            self._messages.give(messages * NS_PER_S, now_ns)
        if self._bytes is not None:
            self._bytes.give(nbytes * NS_PER_S, now_ns)

    def _changed(self, bucket: TokenBucket | None, per_second: float | None, now_ns: int) -> TokenBucket | None:
        if per_second is None:
            return None
        step_ns = self.step_ns
        rate, period_ns = (
            (max(1, _thousandths(per_second)), _PERIOD_NS) if step_ns is None else (int(per_second), step_ns)
        )
        if bucket is not None:
            bucket.set_rate(rate, now_ns, period_ns=period_ns)
            return bucket
        burst_ns = self._burst_ns if step_ns is None else None
        return TokenBucket(rate, now_ns, period_ns=period_ns, stepwise=step_ns is not None, burst_ns=burst_ns)

    def full(self, now_ns: int) -> bool:
        """Whether nothing is left of what was charged."""
        return all(bucket.full(now_ns) for bucket in (self._messages, self._bytes) if bucket is not None)

    # -- demand

    def measure_needed(self) -> Needed:
        """Measure from now on which share would be enough; return what measures it."""
        if self.needed is None:
            messages, nbytes = self.messages_passed + self.held.messages, self.bytes_passed + self.held.bytes
            self.needed = Needed(NeededRate(self._burst_ns, messages), NeededRate(self._burst_ns, nbytes))
        return self.needed

    def arrived(self, entries: int, now_ns: int) -> None:
        """Entries may have arrived, which are counted as held or as passed."""
        if self.needed is not None:
            self.needed.messages.arrived(self.messages_passed + self.held.messages, entries, now_ns)
            self.needed.bytes.arrived(self.bytes_passed + self.held.bytes, entries, now_ns)
        if self.observed is not None:
            self.observed.saw(self.seen, entries, now_ns)

    @property
    def seen(self) -> Amount:
        """The amount that has arrived: passed, or waits."""
        return self.held.plus(self.messages_passed, self.bytes_passed)

    @property
    def waits_since_ns(self) -> int | None:
        """Since when something has been waiting; None: nothing waits."""
        return self._waits_since_ns

    def waits(self, now_ns: int) -> None:
        """Something begins to wait for this limit, or still does."""
        if self._waits_since_ns is None:
            self._waits_since_ns = now_ns

    def waits_no_more(self, now_ns: int) -> None:
        """Nothing waits for this limit."""
        if self._waits_since_ns is not None:
            self._limited_ns += max(0, now_ns - self._waits_since_ns)
            self._waits_since_ns = None
            if self.needed is not None:
                self.needed.messages.settled(self.messages_passed)
                self.needed.bytes.settled(self.bytes_passed)
            if self.observed is not None:
                self.observed.settled(Amount(self.messages_passed, self.bytes_passed))

    def limited_ns(self, now_ns: int) -> int:
        """For how long something has been waiting, in all."""
        since_ns = self._waits_since_ns
        return self._limited_ns + (max(0, now_ns - since_ns) if since_ns is not None else 0)


class GroupLimiter:
    """One resource group on one broker: its share, its balances and its counters. See `Meter` for reading them."""

    __slots__ = ("dispatch", "publish")

    def __init__(self, share: GroupRates, now_ns: int) -> None:
        self.publish = ClassLimiter()
        self.dispatch = ClassLimiter()
        self.set_share(share, now_ns)

    @property
    def share(self) -> GroupRates:
        return GroupRates(self.publish.share, self.dispatch.share)

    def set_share(self, share: GroupRates, now_ns: int) -> None:
        """Change the share; balances are kept. Whoever waits must be looked at again: it may be ready now."""
        self.publish.set_share(share.publish, now_ns)
        self.dispatch.set_share(share.dispatch, now_ns)

    def borrow(self, kind: int, amount: int, now_ns: int) -> None:
        """Add what another broker did not use, in thousandths of one of `core.usage_report.KINDS`."""
        limiter = (self.publish, self.dispatch)[kind // 2]
        limiter.give(*((0, amount) if kind % 2 else (amount, 0)), now_ns)


class Meter:
    """Differences of a group's counters between two calls of `take`. Each reader of usage has its own meter."""

    __slots__ = ("_limiter", "_taken", "_taken_ns")

    def __init__(self, limiter: GroupLimiter, now_ns: int) -> None:
        self._limiter = limiter
        self._taken_ns = now_ns
        self._taken = (_totals(limiter.publish, now_ns), _totals(limiter.dispatch, now_ns))

    def take(self, now_ns: int) -> Usage:
        """Return the usage since the last call."""
        publish, dispatch = self._limiter.publish, self._limiter.dispatch
        before, self._taken = self._taken, (_totals(publish, now_ns), _totals(dispatch, now_ns))
        elapsed_ns, self._taken_ns = now_ns - self._taken_ns, now_ns
        return Usage(
            elapsed_ns,
            _difference(before[0], self._taken[0], publish.held),
            _difference(before[1], self._taken[1], dispatch.held),
        )


_Totals: TypeAlias = tuple[int, int, int]  # messages, bytes, limited_ns


def _totals(one: ClassLimiter, now_ns: int) -> _Totals:
    return one.messages_passed, one.bytes_passed, one.limited_ns(now_ns)


def _difference(before: _Totals, after: _Totals, held: Amount) -> ClassUsage:
    messages, nbytes, limited_ns = (last - first for first, last in zip(before, after, strict=True))
    return ClassUsage(Amount(messages, nbytes), held, limited_ns)


def _thousandths(per_second: float) -> int:
    # A whole number is not converted to a float, which has 53 bits.
    return per_second * _PER_SECOND if isinstance(per_second, int) else round(per_second * _PER_SECOND)


def _spilled(bucket: TokenBucket | None, now_ns: int) -> int:
    return 0 if bucket is None else bucket.spilled(now_ns) // NS_PER_S


def _left(bucket: TokenBucket | None, now_ns: int) -> int | None:
    if bucket is None:
        return None
    return bucket.available(now_ns) if bucket.in_debt(now_ns) else max(1, bucket.available(now_ns))
