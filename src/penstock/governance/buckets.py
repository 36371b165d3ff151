# SPDX-License-Identifier: Apache-2.0
"""Token buckets that may go into debt: what happened is charged in full, and a bucket in debt must wait.

Why debt: a run of messages is accepted or refused as a whole, and a refusal would fail its producer. So the run is
accepted and charged, and the producer waits until the debt is repaid. Over any time, at most `rate` times that time,
one burst and the overshoot of one run pass. The overshoot is paid back.

Why a change of rate keeps the balance: a new bucket would forgive the debt and allow another burst each time.

Where: each limiter has two of them, for messages and bytes (`resource_group`).

The arithmetic uses whole numbers. The balance counts tokens times nanoseconds of the period, so rounding errors do not
add up.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_MS, NS_PER_S

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
