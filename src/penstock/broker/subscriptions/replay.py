# SPDX-License-Identifier: Apache-2.0
"""The entries of a Shared subscription that wait for redelivery.

Why a bitmap: acknowledgements and deliveries remove entries in the middle, redelivery takes the lowest, and a million
may wait.
Where: a subscription adds entries when a consumer is detached or requests redelivery, and sends them before it reads
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable


class Replay:
    """A set of entry ids, taken in ascending order."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._entries

    def add(self, entry_id: int) -> None:
        self._entries.add(entry_id)

    def update(self, entry_ids: Iterable[int]) -> None:
        self._entries.update(entry_ids)

    def discard(self, entry_ids: Iterable[int]) -> None:
        if self._entries:
            self._entries -= BitMap64(entry_ids)

    def discard_through(self, entry_id: int) -> None:
        self._entries.remove_range(0, entry_id + 1)

    def clear(self) -> None:
        self._entries.clear()

    def next(self, entries_max: int) -> list[int]:
        """The lowest entries, ascending, at most `entries_max`."""
        return list(self._entries[: max(0, entries_max)])
