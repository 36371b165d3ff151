# SPDX-License-Identifier: Apache-2.0
"""Entries of a Shared subscription that wait to be delivered again, lowest first.

Why a bitmap: acknowledgements and deliveries take entries out of the middle, the next delivery wants the lowest, and a
million of them may wait.
Where: a subscription fills it when a consumer leaves or asks for redelivery, and empties it before it reads on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

if TYPE_CHECKING:
    from collections.abc import Iterable


class Replay:
    """A set of entry ids that gives them back in increasing order."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = BitMap64()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._entries)

    def __len__(self) -> int:
        """How many wait."""
        return len(self._entries)

    def __contains__(self, entry_id: int) -> bool:
        """Whether this entry waits."""
        return entry_id in self._entries

    def add(self, entry_id: int) -> None:
        """Let an entry wait; once, however often it is added."""
        self._entries.add(entry_id)

    def update(self, entry_ids: Iterable[int]) -> None:
        """Let these entries wait."""
        self._entries.update(entry_ids)

    def discard(self, entry_ids: Iterable[int]) -> None:
        """These wait no longer: they were delivered, acknowledged or are gone."""
        if self._entries:
            self._entries -= BitMap64(entry_ids)

    def discard_through(self, entry_id: int) -> None:
        """Everything up to this entry waits no longer."""
        self._entries.remove_range(0, entry_id + 1)

    def clear(self) -> None:
        """Nothing waits."""
        self._entries.clear()

    def next(self, entries_max: int) -> list[int]:
        """The lowest entries that wait, ascending, `entries_max` at most."""
        return list(self._entries[: max(0, entries_max)])
