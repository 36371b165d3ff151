# SPDX-License-Identifier: Apache-2.0
"""Missing entries: the index knows their segment, but its file is missing or too short.

Why apart from damage: a file that is missing at a start may come back (a disk that is mounted late, a copy from a
backup). So readers skip these entries, but they are not acknowledged: a later start finds them again. Where: opening
notes them, the reader skips them, subscriptions keep them in their backlogs, and the broker's health and the metrics
name them.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

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
