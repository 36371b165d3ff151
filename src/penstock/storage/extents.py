# SPDX-License-Identifier: Apache-2.0
"""Extents: how many bytes which entries of a ledger take, read off the index; nothing of the entries themselves.

Why: retention by size, backlog quotas and statistics ask how large a part of a topic is, and where a part of that size
begins. The index knows it by blocks; within a block entries are taken to be alike.
Where: `LogIndex` lists extents and asks the functions here. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Extent(NamedTuple):
    """Consecutive entries and the bytes they take together."""

    first_entry: int
    end_entry: int  # behind the last one
    bytes: int


def ordered(extents: Iterable[Extent]) -> list[Extent]:
    """By entry id, each entry once: while entries are being moved, they are in the index twice."""
    out: list[Extent] = []
    covered = 0
    for extent in sorted(extents):
        if extent.end_entry > covered:
            out.append(behind(extent, covered))
            covered = extent.end_entry
    return out


def bytes_from(extents: Sequence[Extent], entry_id: int) -> int:
    """Bytes of the entry and all behind it."""
    return sum(behind(extent, entry_id).bytes for extent in extents if extent.end_entry > entry_id)


def entry_with_behind(extents: Sequence[Extent], nbytes: int) -> int:
    """The first entry that, with all behind it, takes no more than `nbytes`; behind the last one if none does."""
    at = extents[-1].end_entry if extents else 0
    for extent in reversed(extents):
        if extent.bytes > nbytes:
            entries = extent.end_entry - extent.first_entry
            return extent.end_entry - entries * nbytes // extent.bytes
        nbytes -= extent.bytes
        at = extent.first_entry
    return at


def behind(extent: Extent, entry_id: int) -> Extent:
    """What of it begins at this entry."""
    first, end, nbytes = extent
    if entry_id <= first:
        return extent
    return Extent(entry_id, end, nbytes * (end - entry_id) // (end - first))
