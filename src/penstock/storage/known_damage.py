# SPDX-License-Identifier: Apache-2.0
"""Damage: bytes on disk that are not as they were written, each piece named and counted once.

Why: an entry that can no longer be read must not disappear silently. Readers skip it; this list keeps it for
`/healthz`, the admin port and the metrics, and the index stores it over restarts.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.storage.index import Damage

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
