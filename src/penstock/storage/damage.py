# SPDX-License-Identifier: Apache-2.0
"""Damage: bytes on disk that are not as they were written, each piece named and counted once.

Why: an entry that can no longer be read must not disappear silently. Readers skip it; this list keeps it for
`/healthz`, the admin port and the metrics, and the index stores it over restarts.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.storage.index import Damage, Span


# ---------------------------------------------------------------------------------------------------------------------
# Missing entries: the index knows their segment, but its file is missing or too short.
#
# Why apart from damage: a file that is missing at a start may come back (a disk that is mounted late, a copy from a
# backup). So readers skip these entries, but they are not acknowledged: a later start finds them again. Where: opening
# notes them, the reader skips them, subscriptions keep them in their backlogs, and the broker's health and the metrics
# name them.


# The most ranges that are logged; the others are only counted.
_TOLD_MAX: Final = 100


class MissingRange(NamedTuple):
    """Consecutive missing entries of one ledger."""

    segment_id: int | None  # None: an unknown segment
    ledger_id: int
    first_entry: int
    end_entry: int
    reason: str

    def describe(self) -> str:
        """Return a sentence for people."""
        where = "" if self.segment_id is None else f" of segment {self.segment_id:x}"
        entries = f"entries {self.ledger_id}:{self.first_entry} to {self.ledger_id}:{self.end_entry - 1}"
        return f"{entries}{where}: {self.reason}"


class MissingEntries:
    """All missing entries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, tuple[MissingRange, ...]] = {}  # by ledger, ascending
        self.pieces = 0
        self.entries = 0

    def note(self, missing: MissingRange) -> None:
        """Add missing entries, unless they are known."""
        with self._lock:
            known = self._of.get(missing.ledger_id, ())
            if any(one.first_entry <= missing.first_entry and missing.end_entry <= one.end_entry for one in known):
                return
            self._of[missing.ledger_id] = tuple(sorted((*known, missing), key=lambda one: one.first_entry))
            self.pieces += 1
            self.entries += missing.end_entry - missing.first_entry
        if self.pieces <= _TOLD_MAX:
            log.error("missing in the entry log: %s", missing.describe())

    def within(self, ledger_id: int, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the missing ranges (first, end) of a ledger between `first` and `stop` - 1."""
        if ledger_id not in self._of:
            return []
        found = ((max(one.first_entry, first), min(one.end_entry, stop)) for one in self._of[ledger_id])
        return [(start, end) for start, end in found if start < end]

    def present(self, ledger_id: int, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges (first, end) between `first` and `stop` - 1 that are not missing."""
        for start, end in self.within(ledger_id, first, stop):
            if first < start:
                yield first, start
            first = max(first, end)
        if first < stop:
            yield first, stop

    def any_of(self, ledger_id: int) -> bool:
        """Return whether any entry of a ledger is missing."""
        return ledger_id in self._of

    def listed(self) -> list[MissingRange]:
        """Return all missing ranges, by ledger."""
        with self._lock:
            return [one for _, pieces in sorted(self._of.items()) for one in pieces]


# ---------------------------------------------------------------------------------------------------------------------
# Segments that the disk currently cannot read.
#
# Why: a failed read says nothing about the stored data, so it is retried. Meanwhile operators must know: one log line
# when it begins and one when it ends, not one for each retry. Where: the reader reports failed and successful reads,
# `EntryLog.try_again` retries failed ones, the broker's health and the metrics show them.


class UnreadableSegment(NamedTuple):
    """A place whose last read failed."""

    segment_id: int
    offset: int
    bytes: int
    reason: str

    def describe(self) -> str:
        """Return a sentence for people."""
        return f"segment {self.segment_id:x} cannot be read: {self.reason}"


class UnreadableSegments:
    """All segments whose last read failed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[int, UnreadableSegment] = {}
        self.failures = 0  # reads that failed, since the start

    def failed(self, segment_id: int, span: Span, error: OSError) -> None:
        """Note a failed read. The same reason is logged once, until the segment can be read again."""
        reason = error.strerror or str(error)
        with self._lock:
            self.failures += 1
            known = self._now.get(segment_id)
            self._now[segment_id] = UnreadableSegment(segment_id, span.block_offset, span.block_bytes, reason)
        if known is None or known.reason != reason:
            log.error("segment %x cannot be read, trying again: %s", segment_id, reason)

    def well(self, segment_id: int, spans: Iterable[Span]) -> None:
        """Note that these blocks of a segment were read. Only a read of the failed block counts as recovery."""
        trouble = self._now.get(segment_id)
        if trouble is not None and any(span.block_offset == trouble.offset for span in spans):
            self.over(trouble)

    def over(self, trouble: UnreadableSegment) -> None:
        """Forget a failure: the place was read, or is no longer needed."""
        with self._lock:
            if self._now.get(trouble.segment_id) != trouble:
                return
            del self._now[trouble.segment_id]
        log.warning("segment %x can be read again", trouble.segment_id)

    def now(self) -> list[UnreadableSegment]:
        """Return current failures, by segment."""
        with self._lock:
            return [trouble for _, trouble in sorted(self._now.items())]


log = logging.getLogger(__name__)


class KnownDamage:
    """All damage found so far. Thread-safe."""

    def __init__(self, known: Iterable[Damage], *, listed_max: int) -> None:
        self._lock = threading.Lock()
        self._listed = dict.fromkeys(known)
        self._listed_max = listed_max
        self._unstored: list[Damage] = []
        self.count = len(self._listed)
        # True if entries may be missing without the index being wrong: blocks of unknown content were lost.
        self.explains_gaps = any(damage.ledger_id is None for damage in self._listed)
        self._gaps: dict[int, set[tuple[int, int]]] = {}  # of ledgers, that are confirmed

    def note(self, damage: Damage) -> None:
        """Add a damage, unless it is known."""
        with self._lock:
            if damage in self._listed:
                return
            self.count += 1
            if len(self._listed) >= self._listed_max:
                return
            self._listed[damage] = None
            self._unstored.append(damage)
        log.warning("damage in the entry log: %s", damage.describe())

    def found_by_scan(self, damages: Iterable[Damage]) -> None:
        """Add damage that the index has stored already."""
        with self._lock:
            new = [damage for damage in damages if damage not in self._listed]
            self.count += len(new)
            self._listed.update(dict.fromkeys(new[: max(self._listed_max - len(self._listed), 0)]))
            self.explains_gaps |= any(damage.ledger_id is None for damage in new)
        for damage in new:
            log.warning("damage in the entry log: %s", damage.describe())

    def confirm_gap(self, ledger_id: int, first_entry: int, end_entry: int) -> None:
        """Note that these entries are lost: they were in blocks of which nothing can be read."""
        with self._lock:
            self._gaps.setdefault(ledger_id, set()).add((first_entry, end_entry))

    def explains(self, ledger_id: int, first_entry: int, end_entry: int) -> bool:
        """Return whether it is confirmed that these entries are lost."""
        with self._lock:
            gaps = self._gaps.get(ledger_id, ())
            return any(first <= first_entry and end_entry <= end for first, end in gaps)

    def take_unstored(self) -> list[Damage]:
        """Return the damage that the index has not stored yet."""
        with self._lock:
            unstored, self._unstored = self._unstored, []
            return unstored

    def forget(self, segment_id: int) -> None:
        """Forget the damage of a recycled segment."""
        with self._lock:
            self._listed = {damage: None for damage in self._listed if damage.segment_id != segment_id}

    def segments(self) -> set[int]:
        """Return the segments with damage."""
        with self._lock:
            return {damage.segment_id for damage in self._listed}

    def listed(self) -> list[Damage]:
        """Return the damage, sorted by segment and offset."""
        with self._lock:
            return sorted(self._listed, key=lambda damage: (damage.segment_id, damage.offset))
