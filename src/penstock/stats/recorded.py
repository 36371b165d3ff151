# SPDX-License-Identifier: Apache-2.0
"""Counts of records, for metrics. Where: the recorders of broker and proxy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.stats.snapshot import DROP_REASONS, RecordsSnapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.governance.budget import Row


class Written(Protocol):
    """Usage records of a broker or a proxy."""

    @property
    def written(self) -> int: ...
    @property
    def failures(self) -> int: ...


class Queued(Written, Protocol):
    """Decision records."""

    @property
    def dropped(self) -> Mapping[str, int]: ...  # by reason
    @property
    def memory(self) -> Row: ...


def snapshot_of(usage: Written | None, decisions: Queued | None) -> RecordsSnapshot | None:
    """Return the counters of what is recorded; None if nothing is."""
    if usage is None and decisions is None:
        return None
    return RecordsSnapshot(
        written={
            "usage": usage.written if usage is not None else 0,
            "decisions": decisions.written if decisions is not None else 0,
        },
        failures={
            "usage": usage.failures if usage is not None else 0,
            "decisions": decisions.failures if decisions is not None else 0,
        },
        dropped={reason: decisions.dropped[reason] if decisions is not None else 0 for reason in DROP_REASONS},
        queued_bytes=decisions.memory.used_bytes if decisions is not None else 0,
    )
