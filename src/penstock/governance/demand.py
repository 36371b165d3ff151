# SPDX-License-Identifier: Apache-2.0
"""How much a broker would use if nothing held it back, as far as the broker can see.

Why: a broker that is limited uses exactly its share, so usage does not tell who needs more (S5). What a broker can see
beside usage is for how long something waited. Where: `own_usage` estimates the demand of each group.

All amounts are thousandths per second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.core.units import NS_PER_S

# Something waits almost always: the group wants more than its share. If it is not known how much waits, the estimate is
# doubled; if that did not bring a larger share, the group wants all it can get. (To believe that at once would give a
# whole share to each broker that misses a little for a moment.)
_ALMOST_ALWAYS_PERCENT = 95
_FIRST_STEP_PART = 100  # of the quota, beside the doubling
# Something waits for less of the time: the group gets by, and misses an eighth of what it used at most. What is guessed
# too high is taken from brokers that would use it.
_OFTEN_PART = 8
# A rise of demand by more than a twentieth and by more than half a percent of the quota is believed at once, if it is
# more than chance. Less is averaged.
_SUDDEN_PART = 20
_SUDDEN_QUOTA_PART = 200
# Messages that arrive by chance differ from their mean number n by more than 2 √n in one of twenty intervals, and by
# more than 4 √n hardly ever.
CAREFUL = 2
CALM = 4
_GRAINS_MIN = 3
# Demand that comes in bursts is remembered for so many of its gaps.
REMEMBERED_GAPS: Final = 8
# An average estimate comes from about as many intervals.
_AVERAGED = 4


class Before(NamedTuple):
    """The estimate of demand before an interval."""

    demand: int
    known: int  # as far as all members have acknowledged it, so that the share may follow from it


def held_back(used: int, waited_ns: int, elapsed_ns: int, quota: int, before: Before, waiting: int) -> int:
    """Return the demand beyond `used` of an interval in which something waited for `waited_ns`; at most `quota`.

    Short waits are bursts that the limiter smooths out: if something waited half of the time, demand exceeds usage by
    an eighth. If it waited almost always, what still waits (`waiting`, in thousandths; 0: it is not known) should pass
    in two such intervals; and the longer that lasts, the more is wanted.
    """
    if waited_ns <= 0:
        return 0
    if waited_ns * 100 >= elapsed_ns * _ALMOST_ALWAYS_PERCENT:
        if waiting:
            return min(quota, max(waiting * NS_PER_S // (2 * elapsed_ns), before.demand * 5 // 4 - used))
        step = quota // _FIRST_STEP_PART
        return quota if before.known > used + used // 2 + step else used + step
    part = waited_ns * 1_000 // elapsed_ns
    missed = used * part * part * part * part // (1_000_000_000 * (1_000 - part))
    return min(quota, missed, used // _OFTEN_PART + quota // _FIRST_STEP_PART)


def follow(demand: int, used: int, held: int, quota: int, grain: int, *, contended: bool) -> int:
    """Return the new estimate of demand. Sudden changes are taken as they are, noise is averaged.

    Args:
        demand: the estimate before.
        used: what was measured since then.
        held: what was held back since then.
        quota: of the group.
        grain: the smallest change that can be measured, one message.
        contended: brokers want about as much as the quota, so it is better to follow too much than too late.
    """
    seen = used + held
    change = seen - demand
    large = abs(change) > max(demand // _SUDDEN_PART, quota // _SUDDEN_QUOTA_PART)
    if (
        held >= quota > demand
        or abs(change) < 4
        or (large and more_than_chance(demand, seen, grain, CAREFUL if contended and change > 0 else CALM))
    ):
        return seen
    return demand + change // _AVERAGED


def next_gap_ms(gap_ms: int, quiet_ms: int, elapsed_ms: int) -> int:
    """Return the usual time between bursts, after traffic that came when nothing did for `quiet_ms`.

    Traffic without a pause, for `elapsed_ms`, shortens it: after some gaps' time without any, there are none.
    """
    if quiet_ms > 0:
        return (gap_ms + quiet_ms) // 2 if gap_ms else quiet_ms
    return max(0, gap_ms - elapsed_ms // REMEMBERED_GAPS)


def fallen(demand: int, seen: int, elapsed_ns: int, window_ns: int) -> int:
    """Return the new estimate of demand that comes in bursts, when less than the estimate was seen.

    The share is kept for the next burst; what is not used until then is lent (`loans`).
    """
    return demand - (demand - seen) * elapsed_ns // window_ns


def changed_with_gaps(sent: int, demand: int, quota: int) -> bool:
    """Whether an estimate of demand that comes in bursts differs so much from the one that was reported."""
    return demand < sent * 2 // 3 or demand > sent + max(sent // 10, quota // 100)


def more_than_chance(before: int, now: int, grain: int, deviations: int) -> bool:
    """Whether two rates of messages differ by more than so many standard deviations of what arrives by chance."""
    change = abs(now - before)
    return change > _GRAINS_MIN * grain and change * change > deviations * deviations * max(before, now) * grain


def changed(sent: int, demand: int, grain: int, *, contended: bool) -> bool:
    """Whether an estimate of demand differs from the one that was reported, and not by chance."""
    if contended:
        return more_than_chance(sent, demand, grain, CAREFUL)
    return more_than_chance(sent, demand, grain // _AVERAGED, CALM)
