# SPDX-License-Identifier: Apache-2.0
"""Extents: how many bytes the entries of a ledger take, according to the index.

Why: retention by size, backlog quotas and statistics need the size of a part of a topic, or the entry at which a part
of a given size begins. The index knows the sizes of blocks; within a block, all entries count as equally large. Where:
`LogIndex` lists extents and calls these functions. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Extent(NamedTuple):
    """Consecutive entries and the bytes they take together."""

    first_entry: int
    end_entry: int  # after the last one
    bytes: int


def ordered(extents: Iterable[Extent]) -> list[Extent]:
    """Sort extents by entry id, each entry once: while entries are moved, the index has them twice."""
    out: list[Extent] = []
    covered = 0
    for extent in sorted(extents):
        if extent.end_entry > covered:
            out.append(behind(extent, covered))
            covered = extent.end_entry
    return out


def bytes_from(extents: Sequence[Extent], entry_id: int) -> int:
    """Return the bytes of the entry and all later ones."""
    return sum(behind(extent, entry_id).bytes for extent in extents if extent.end_entry > entry_id)


def entry_with_behind(extents: Sequence[Extent], nbytes: int) -> int:
    """Return the first entry that, with all later ones, takes at most `nbytes`; the end if there is none."""
    at = extents[-1].end_entry if extents else 0
    for extent in reversed(extents):
        if extent.bytes > nbytes:
            entries = extent.end_entry - extent.first_entry
            return extent.end_entry - entries * nbytes // extent.bytes
        nbytes -= extent.bytes
        at = extent.first_entry
    return at


def behind(extent: Extent, entry_id: int) -> Extent:
    """Return the part of an extent from this entry on."""
    first, end, nbytes = extent
    if entry_id <= first:
        return extent
    return Extent(entry_id, end, nbytes * (end - entry_id) // (end - first))
