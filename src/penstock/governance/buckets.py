# SPDX-License-Identifier: Apache-2.0
"""Token buckets that may go into debt: what happened is charged in full, and who is in debt waits.

Why debt: a run of messages is accepted or not, never cut, and refusing it would make its sender fail. So it is let in,
charged, and its sender waits until the debt is repaid. Over any time no more than `rate` times that time, one burst and
the overshoot of one run gets through, and the overshoot is paid back.
Why a change of rate keeps the balance: a fresh bucket would forgive the debt and give a burst away each time.
Where: publish and delivery rates charge these (`broker.rates`); shares of groups and adaptive rates will set them.

All arithmetic is in whole numbers: the balance counts tokens times nanoseconds of the period, so nothing drifts.
"""

from __future__ import annotations

from typing import Final

from penstock.core.units import NS_PER_S

# A bucket is ready again when it holds this part of its burst, and a whole token at least: so a waker is called a
# hundred times in a period at most. (Pulsar wakes publishers by the same rule.)
_READY_PART: Final = 100


class TokenBucket:
    """So many tokens in a period; a burst of one period's worth.

    Tokens come evenly, or, `stepwise`, a whole period's worth at the end of each period, of which the first begins when
    the full bucket is first used. Times are nanoseconds of one monotonic clock; one that lies before an earlier one
    counts as that.
    """

    __slots__ = ("_at_ns", "_credit", "period_ns", "rate", "stepwise")

    def __init__(self, rate: int, now_ns: int, *, period_ns: int = NS_PER_S, stepwise: bool = False) -> None:
        _check(rate, period_ns)
        self.rate = rate
        self.period_ns = period_ns
        self.stepwise = stepwise
        self._credit = rate * period_ns  # in 1/period_ns of a token
        self._at_ns = now_ns

    def consume(self, tokens: int, now_ns: int) -> None:
        """Charge what happened, whatever the balance is."""
        self._settle(now_ns)
        if self._credit == self.rate * self.period_ns:
            self._at_ns = max(self._at_ns, now_ns)
        self._credit -= tokens * self.period_ns

    def available(self, now_ns: int) -> int:
        """Whole tokens at hand; negative in debt, rounded away from zero."""
        self._settle(now_ns)
        return self._credit // self.period_ns

    def in_debt(self, now_ns: int) -> bool:
        """Whether everything is spent: the next one must wait."""
        self._settle(now_ns)
        return self._credit <= 0

    def ready_at_ns(self) -> int:
        """When one who is in debt may go on, if nothing is charged until then; in the past if that is now."""
        wanted = max(self.period_ns, self.rate * self.period_ns // _READY_PART) - self._credit
        if wanted <= 0:
            return self._at_ns
        wait_ns = -(-wanted // self.rate)
        if self.stepwise:
            wait_ns = -(-wait_ns // self.period_ns) * self.period_ns
        return self._at_ns + wait_ns

    def set_rate(self, rate: int, now_ns: int, *, period_ns: int | None = None) -> None:
        """Go on at another rate with the same balance; only what is above the new burst is lost."""
        period_ns = period_ns or self.period_ns
        _check(rate, period_ns)
        self._settle(now_ns)
        if period_ns != self.period_ns:
            # Rounded down: a change never gives anything away.
            self._credit = self._credit * period_ns // self.period_ns
        self.rate, self.period_ns = rate, period_ns
        self._credit = min(self._credit, rate * period_ns)

    def _settle(self, now_ns: int) -> None:
        """Add what came since the last look."""
        passed_ns = now_ns - self._at_ns
        if self.stepwise:
            passed_ns -= passed_ns % self.period_ns
        if passed_ns > 0:
            self._at_ns += passed_ns
            self._credit = min(self.rate * self.period_ns, self._credit + passed_ns * self.rate)


def _check(rate: int, period_ns: int) -> None:
    if rate < 1 or period_ns < 1:
        raise ValueError(f"want a rate and a period of at least 1, got {rate} in {period_ns} ns; no limit is no bucket")
