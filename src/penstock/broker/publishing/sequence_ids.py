# SPDX-License-Identifier: Apache-2.0
"""Sequence ids of a topic's producers, to tell duplicates from new messages.

Why two marks: a producer that lost its connection sends all unacknowledged messages again. Some are stored (the receipt
was lost: acknowledge, do not store), some were being written when the connection broke (unknown yet: the client must
try again), and the rest is new.

    persisted      <= pushed
    durable here      handed to the log

A producer's sequence ids increase, so one number for each mark is enough.
Where: `deduplication` keeps one `SequenceIds` per topic that uses it; publish queries it. Pure: times are arguments.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

NEVER: Final = -1  # below every sequence id


# Memory of a producer beside its name, measured with tracemalloc.
MARKS_BYTES: Final = 200


def _nobody(nbytes: int) -> None:
    del nbytes


def name_bytes(producer: str) -> int:
    return MARKS_BYTES + len(producer)


class Verdict(Enum):
    """Result of judging a message."""

    NEW = "new"
    DUPLICATE = "duplicate"  # it is durable
    IN_FLIGHT = "in flight"  # it is being written, and may fail


class Progress:
    """Marks of one producer name."""

    __slots__ = ("left_ms", "persisted", "pushed")

    def __init__(self, persisted: int = NEVER) -> None:
        self.persisted = persisted
        self.pushed = persisted
        self.left_ms: int | None = None  # when its last producer left, in ms since 1970; None while connected


class SequenceIds:
    """Marks of all producers of one topic."""

    def __init__(self, charge: Callable[[int], None]) -> None:
        """Args: charge: called with the change of the names' memory, in bytes."""
        self._marks: dict[str, Progress] = {}
        self._charge = charge
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._marks)

    def highest_persisted(self, producer: str) -> int:
        """The highest durable sequence id of a producer name; -1 if unknown."""
        marks = self._marks.get(producer)
        return NEVER if marks is None else marks.persisted

    def judge(self, producer: str, sequence_id: int, highest: int) -> Verdict:
        """Judge an entry with the sequence ids `sequence_id` to `highest`; a new one is marked as pushed."""
        marks = self._of(producer)
        if sequence_id > marks.pushed:
            marks.pushed = max(sequence_id, highest)
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= marks.persisted else Verdict.IN_FLIGHT

    def all_new(self, producer: str, sequence_ids: Sequence[int], highest: Sequence[int] | None) -> int:
        """Mark entries as pushed if all are new, and return their highest sequence id; else return -1."""
        marks = self._of(producer)
        tops = sequence_ids if highest is None else list(map(max, sequence_ids, highest))
        if sequence_ids[0] > marks.pushed and all(map(lt, tops, islice(sequence_ids, 1, None))):
            marks.pushed = tops[-1]
            return tops[-1]
        return NEVER

    def push(self, producer: str, highest: int) -> None:
        """Mark an entry as pushed without judging it."""
        marks = self._of(producer)
        marks.pushed = max(marks.pushed, highest)

    def persist(self, producer: str, highest: int) -> None:
        """Mark entries up to this sequence id as durable."""
        marks = self._of(producer)
        marks.persisted = max(marks.persisted, highest)
        marks.pushed = max(marks.pushed, highest)

    def _of(self, producer: str) -> Progress:
        marks = self._marks.get(producer)
        if marks is None:
            marks = self._marks[producer] = Progress()
            self._changed(name_bytes(producer))
        return marks

    def _changed(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._charge(nbytes)

    def __contains__(self, producer: str) -> bool:
        return producer in self._marks

    def close(self) -> None:
        """Forget all producers: the topic is unloaded, or deduplication is disabled."""
        self._marks.clear()
        self._changed(-self.nbytes)
        self._charge = _nobody  # Later changes are not charged.

    # -- expiry

    def expire(
        self, connected: Container[str], *, now_ms: int, left_before_ms: int, producers_max: int, bytes_max: int
    ) -> None:
        """Forget producers that left before this time; with too many names or bytes, also those that left first.

        Called periodically with the connected names; this is how disconnects are noticed.
        """
        gone: list[tuple[int, str]] = []
        for name, marks in self._marks.items():
            if name in connected:
                marks.left_ms = None
            else:
                marks.left_ms = now_ms if marks.left_ms is None else marks.left_ms
                gone.append((marks.left_ms, name))
        gone.sort()
        surplus = len(self._marks) - producers_max
        for index, (left_ms, name) in enumerate(gone):
            if left_ms < left_before_ms or index < surplus or self.nbytes > bytes_max:
                del self._marks[name]
                self._changed(-name_bytes(name))

    # -- stored

    def snapshot(self) -> dict[str, int]:
        """The durable sequence ids by producer name."""
        return {name: marks.persisted for name, marks in self._marks.items() if marks.persisted > NEVER}

    def restore(self, snapshot: Mapping[str, int]) -> None:
        for name, persisted in snapshot.items():
            self.persist(name, persisted)

    def replay(self, entries: Iterable[tuple[str, int]]) -> None:
        """Add entries of the log: producer name and highest sequence id of each."""
        for name, highest in entries:
            self.persist(name, highest)
