# SPDX-License-Identifier: Apache-2.0
"""From counters that only grow to what was used in each minute.

Why so: a record says what was used since counting began. The use since the record before is the difference, so a
record that is lost, refused or read twice changes in which minute something is, and never how much it is in all.

Where: `penstock.spark.accounting` applies this to the usage records of a micro-batch, in Spark's executors.
"""

from __future__ import annotations

from operator import gt, sub
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE_MS: Final = 60_000
# A broker reads its counters a moment after the minute has ended. A reading this close is of the minute before.
CLOSE_MS: Final = 5_000
# Shorter intervals are taken as they are.
LONG_MS: Final = 30_000
# What was used in a longer interval, by a broker that could not record for so long, is put in its last day.
SPREAD_MINUTES_MAX: Final = 1_440
# 1 January 2000 and 2200: other times are not times.
TIME_MS_MIN: Final = 946_684_800_000
TIME_MS_MAX: Final = 7_258_118_400_000
COUNTER_MAX: Final = 1 << 62
NAME_CHARACTERS_MAX: Final = 4_096

COUNTERS: Final = (
    "published_messages",
    "published_bytes",
    "dispatched_messages",
    "dispatched_bytes",
    "publish_limited_times",
    "publish_limited_ms",
    "dispatch_limited_ms",
    "published_chunks",
    "connected_ms",
    "stored_byte_hours",
    "committed_messages",
    "committed_bytes",
    "aborted_messages",
    "aborted_bytes",
)
# Not every record has these; null is 0.
OPTIONAL: Final = COUNTERS[5:]
Counters: TypeAlias = tuple[int, ...]
ZERO: Final[Counters] = (0,) * len(COUNTERS)

SCOPES: Final = frozenset(("topic", "group", "principal", "namespace", "broker"))
# Between the parts of a name.
BETWEEN: Final = "\0"


class Reading(NamedTuple):
    """The part of a usage record that accounting needs. `name`: see `name_of`."""

    broker: str
    epoch: int
    sequence: int
    from_ms: int
    time_ms: int
    scope: str
    name: str
    since_ms: int
    counters: Counters


class Increase(NamedTuple):
    """Usage in one minute, by one record."""

    minute_ms: int
    counters: Counters


def name_of(
    scope: str,
    topic: str | None,
    groups: Sequence[str] | None,
    namespace: str | None,
    role: str | None,
    subscription: str | None,
) -> str | None:
    """Return the name of what a record is about, within its scope; empty for a broker."""
    if scope == "topic":
        return topic
    if scope == "group":
        return (groups or ("",))[0]
    if scope == "principal":
        return BETWEEN.join((namespace or "", role or "", subscription or ""))
    return namespace or "" if scope == "namespace" else ""


def fault_of(one: Reading) -> str | None:
    """Return why a record cannot be used; None if it can.

    A record that is refused costs no usage, because the next good one of its counters contains it.
    """
    if None in one[:8] or None in one.counters:
        return "field missing"
    if one.scope not in SCOPES:
        return "unknown scope"
    if not one.broker or (not one.name and one.scope != "broker"):
        return "no name"
    if len(one.broker) > NAME_CHARACTERS_MAX or len(one.name) > NAME_CHARACTERS_MAX:
        return "name too long"
    if one.epoch < 0 or one.sequence < 0:
        return "negative number"
    if not (TIME_MS_MIN <= one.time_ms < TIME_MS_MAX and TIME_MS_MIN <= one.from_ms <= one.time_ms):
        return "impossible time"
    if min(one.counters) < 0 or max(one.counters) >= COUNTER_MAX:
        return "impossible counter"
    return None


def increased(before: Counters, now: Counters) -> tuple[Counters, Counters]:
    """Return by how much counters have grown, and the highest seen; a record that is older adds nothing."""
    if not any(map(gt, before, now)):  # as nearly always
        return tuple(map(sub, now, before)), now
    highest = tuple(map(max, before, now))
    return tuple(map(sub, highest, before)), highest


def by_minute(used: Counters, from_ms: int, time_ms: int) -> list[Increase]:
    """Divide what was used in an interval among its minutes, in proportion to time; the sum is exact."""
    if time_ms - from_ms >= LONG_MS:
        from_ms, time_ms = _rounded(from_ms), _rounded(time_ms)
    last = max(from_ms, time_ms - 1) // MINUTE_MS * MINUTE_MS
    from_ms = max(from_ms, last - (SPREAD_MINUTES_MAX - 1) * MINUTE_MS)
    first = from_ms // MINUTE_MS * MINUTE_MS
    if first >= last:
        return [Increase(last, used)]
    elapsed = time_ms - from_ms
    found, before = [], ZERO
    for minute in range(first, last + 1, MINUTE_MS):
        passed = min(minute + MINUTE_MS, time_ms) - from_ms
        until = tuple([counter * passed // elapsed for counter in used])
        part = tuple([new - old for old, new in zip(before, until, strict=True)])
        before = until
        if any(part):
            found.append(Increase(minute, part))
    return found


def _rounded(time_ms: int) -> int:
    over = time_ms % MINUTE_MS
    return time_ms - over if over <= CLOSE_MS else time_ms


def follow(high: Counters, readings: Sequence[Reading]) -> tuple[list[tuple[Reading, list[Increase]]], Counters]:
    """Return what each record of one series of counters adds, and the highest counters seen.

    Args:
        high: the highest counters of earlier records; `ZERO` if there are none.
        readings: good records with the same broker, scope, name and `since_ms`, in any order, perhaps several times.
    """
    found = []
    for one in sorted(readings, key=_order) if len(readings) > 1 else readings:
        used, high = increased(high, one.counters)
        if any(used):
            found.append((one, by_minute(used, one.from_ms, one.time_ms)))
    return found, high


def _order(one: Reading) -> tuple[int, int, Counters]:
    return one.epoch, one.sequence, one.counters


def total(counters: Sequence[Counters]) -> Counters:
    return tuple(map(sum, zip(*counters, strict=True))) if counters else ZERO
