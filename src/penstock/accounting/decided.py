# SPDX-License-Identifier: Apache-2.0
"""Which decision records can be used.

Where: `penstock.spark.accounting` keeps those in the table `decisions`, and counts the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.differences import COUNTER_MAX, NAME_CHARACTERS_MAX, TIME_MS_MAX, TIME_MS_MIN

if TYPE_CHECKING:
    from collections.abc import Mapping

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
