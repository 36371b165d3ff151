# SPDX-License-Identifier: Apache-2.0
"""Which minutes are closed: all brokers have recorded everything that happened until their end.

Why: brokers record at different times, and one may be down. A bill needs a moment after which a minute does not change,
or says that it did.

Theory of operation: the record of scope `broker` ends an interval of that broker. A minute is closed when all brokers
have ended an interval at its end or later. A broker that is far behind the others is absent: minutes close without it,
and name it. Later records of a closed minute are counted all the same, and marked as late.

"Behind" compares times of records with those of the other brokers, not with a clock here, so the same records give the
same answer whenever they are read. The comparison is with the upper median: one broker whose clock is a day ahead
closes nothing.

Where: the driver of the accounting stream calls `advance` for each micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.accounting.differences import COUNTER_MAX, MINUTE_MS, NAME_CHARACTERS_MAX, TIME_MS_MAX, TIME_MS_MIN
from penstock.accounting.records import RECORD_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# -- which decision records can be used --------------------------------------------------------------------------------

KINDS: Final = frozenset(("begun", "goes-on", "ended", "changed", "refused"))
_NUMBERS: Final = ("epoch", "sequence", "times", "held_ms")
_TEXTS: Final = ("broker", "limiter", "reason", "tenant", "namespace", "topic", "resource_group", "client", "unit")


def fault_of_decision(row: Mapping[str, Any]) -> str | None:
    """Return why a decision record cannot be used; None if it can."""
    if any(row[name] is None for name in (*_NUMBERS, *_TEXTS, "time_ms", "kind", "since_ms", "observed_only")):
        return "field missing"
    if row["kind"] not in KINDS:
        return "unknown kind"
    if not row["broker"] or not row["limiter"]:
        return "no name"
    if max(len(row[name]) for name in _TEXTS) > NAME_CHARACTERS_MAX:
        return "name too long"
    if not all(0 <= row[name] < COUNTER_MAX for name in _NUMBERS):
        return "impossible counter"
    # Steps of a rate are no episodes, and have no beginning.
    began = row["since_ms"] == 0 or TIME_MS_MIN <= row["since_ms"] < TIME_MS_MAX
    return None if began and TIME_MS_MIN <= row["time_ms"] < TIME_MS_MAX else "impossible time"


# ---------------------------------------------------------------------------------------------------------------------
# Names the version of records that cannot be used.
#
# Why: fields are only ever added, so records of newer brokers are read, without what is new. But a newer broker may
# also say something in a known field that has no meaning here, such as another scope. A reader of such records
# refused is to see that this program is too old, and not that records are forged.

# Reasons are rows of a table: a forger of records chooses among so many versions at most.
VERSION_MAX: Final = 100


def with_version(fault: str, version: int | None) -> str:
    """Return why a record was refused, with its version if that is newer than ours."""
    if version is None or version <= RECORD_VERSION:
        return fault
    return f"{fault}, version {version if version <= VERSION_MAX else 'impossible'}"


ABSENT_AFTER_MS: Final = 10 * MINUTE_MS
# Brokers that are remembered; those that were heard least recently are forgotten beyond that.
BROKERS_MAX: Final = 10_000


class Heard(NamedTuple):
    """Records of one broker, epoch and interval in a micro-batch."""

    broker: str
    epoch: int
    from_ms: int
    time_ms: int
    first: int  # sequence numbers
    last: int
    records: int  # different ones
    ends: bool  # the record of scope `broker` is among them


class Progress(NamedTuple):
    """How far one broker has recorded.

    Attributes:
        epoch: the latest that was seen.
        next_sequence: of that epoch.
        until_ms: everything that happened until then was recorded.
        lost: records of all epochs that were never seen.
    """

    epoch: int
    next_sequence: int
    until_ms: int
    lost: int = 0


class Closed(NamedTuple):
    """Minutes that close together, from the first up to, not including, the last time."""

    from_ms: int
    until_ms: int
    brokers: tuple[str, ...]  # which have reported
    absent: tuple[str, ...]  # which have not


class Progresses(NamedTuple):
    """All that is known: by broker, and until when minutes are closed (None: nothing was read yet)."""

    brokers: Mapping[str, Progress]
    closed_ms: int | None = None


def advance(
    known: Progresses, heard: Iterable[Heard], *, absent_after_ms: int = ABSENT_AFTER_MS
) -> tuple[Progresses, list[Closed]]:
    """Return what is known after a micro-batch, and the minutes that it closes."""
    brokers = dict(known.brokers)
    earliest: int | None = None
    for one in sorted(heard, key=lambda one: (one.broker, one.epoch, one.first, one.time_ms)):
        brokers[one.broker] = _after(brokers.get(one.broker), one)
        earliest = one.from_ms if earliest is None else min(earliest, one.from_ms)
    brokers = _latest(brokers)
    closed_ms = known.closed_ms
    if closed_ms is None:
        if earliest is None:
            return known, []
        closed_ms = earliest // MINUTE_MS * MINUTE_MS
    # A broker of which no interval has ended holds back nothing: its first record says from when on it counts.
    ends = sorted(one.until_ms for one in brokers.values() if one.until_ms)
    if not ends:
        return Progresses(brokers, closed_ms), []
    oldest_ms = ends[len(ends) // 2] - absent_after_ms
    until_ms = min(end for end in ends if end >= oldest_ms) // MINUTE_MS * MINUTE_MS
    if until_ms <= closed_ms:
        return Progresses(brokers, closed_ms), []
    return Progresses(brokers, until_ms), list(_ranges(brokers, closed_ms, until_ms))


def _after(before: Progress | None, one: Heard) -> Progress:
    until_ms = one.time_ms if one.ends else 0
    if before is None:
        # What was recorded before the first record that is read is not lost: it was not asked for.
        return Progress(one.epoch, one.last + 1, until_ms, max(0, one.last - one.first + 1 - one.records))
    until_ms = max(before.until_ms, until_ms)
    if one.epoch < before.epoch or (one.epoch == before.epoch and one.last < before.next_sequence):
        return before._replace(until_ms=until_ms)  # read again, or hours late
    expected = before.next_sequence if one.epoch == before.epoch else 0
    lost = max(0, one.last - min(one.first, expected) + 1 - one.records)
    return Progress(one.epoch, one.last + 1, until_ms, before.lost + lost)


def _latest(brokers: dict[str, Progress]) -> dict[str, Progress]:
    if len(brokers) <= BROKERS_MAX:
        return brokers
    kept = sorted(brokers.items(), key=lambda item: item[1].until_ms)[-BROKERS_MAX:]
    return dict(kept)


def _ranges(brokers: Mapping[str, Progress], from_ms: int, until_ms: int) -> Iterable[Closed]:
    """Yield the minutes in ranges in which the same brokers are absent."""
    ends = {name: one.until_ms // MINUTE_MS * MINUTE_MS for name, one in brokers.items() if one.until_ms}
    cuts = sorted({end for end in ends.values() if from_ms < end < until_ms} | {until_ms})
    for cut in cuts:
        absent = tuple(sorted(name for name, end in ends.items() if end < cut))
        there = tuple(sorted(name for name, end in ends.items() if end >= cut))
        yield Closed(from_ms, cut, there, absent)
        from_ms = cut
