# SPDX-License-Identifier: Apache-2.0
"""What a topic has seen of each producer name: how a message that was sent twice is told from one that was not.

Why two marks: a producer that lost its connection sends again whatever was not answered. Of that, some is stored (a
receipt was lost: answer, store nothing), some was on its way to the disk when the connection broke (nobody knows yet:
the client must ask again), and the rest is new.

    persisted      <= pushed
    durable here      handed to the log

A producer's sequence ids rise, so one number each says it all.
Where: `deduplication` keeps one `SequenceIds` per topic that wants it, publish asks it. Pure: times are arguments.
"""

from __future__ import annotations

from enum import Enum
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

NEVER: Final = -1  # below every sequence id


# What is kept beside a name: its marks, and its place among the others (measured with tracemalloc).
MARKS_BYTES: Final = 200


def _nobody(nbytes: int) -> None:
    del nbytes


def name_bytes(producer: str) -> int:
    """What it takes to remember a producer name."""
    return MARKS_BYTES + len(producer)


class Verdict(Enum):
    """What is known of a message."""

    NEW = "new"
    DUPLICATE = "duplicate"  # it is stored
    IN_FLIGHT = "in flight"  # it is on its way to the disk, and may not arrive


class Progress:
    """One producer name's marks."""

    __slots__ = ("left_ms", "persisted", "pushed")

    def __init__(self, persisted: int = NEVER) -> None:
        self.persisted = persisted
        self.pushed = persisted
        self.left_ms: int | None = None  # since when nobody of this name is there; None while somebody is


class SequenceIds:
    """The marks of all producers of one topic."""

    def __init__(self, charge: Callable[[int], None]) -> None:
        """Args: charge: told how many bytes more the names take, or fewer if negative."""
        self._marks: dict[str, Progress] = {}
        self._charge = charge
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._marks)

    def highest_persisted(self, producer: str) -> int:
        """The highest sequence id stored of a producer name; -1 when none is known."""
        marks = self._marks.get(producer)
        return NEVER if marks is None else marks.persisted

    def judge(self, producer: str, sequence_id: int, highest: int) -> Verdict:
        """Say what an entry is that begins with one sequence id and ends with `highest`; a new one counts as pushed."""
        marks = self._of(producer)
        if sequence_id > marks.pushed:
            marks.pushed = max(sequence_id, highest)
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= marks.persisted else Verdict.IN_FLIGHT

    def all_new(self, producer: str, sequence_ids: Sequence[int], highest: Sequence[int] | None) -> int:
        """Take a stretch of entries if all are new; returns their highest sequence id, else -1 and nothing changed."""
        marks = self._of(producer)
        tops = sequence_ids if highest is None else list(map(max, sequence_ids, highest))
        if sequence_ids[0] > marks.pushed and all(map(lt, tops, islice(sequence_ids, 1, None))):
            marks.pushed = tops[-1]
            return tops[-1]
        return NEVER

    def push(self, producer: str, highest: int) -> None:
        """An entry was handed to the log, unjudged."""
        marks = self._of(producer)
        marks.pushed = max(marks.pushed, highest)

    def persist(self, producer: str, highest: int) -> None:
        """Entries up to this sequence id are durable."""
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
        """Whether a producer of this name is remembered."""
        return producer in self._marks

    def close(self) -> None:
        """Forget everything: the topic is unloaded, or deduplicates no longer."""
        self._marks.clear()
        self._changed(-self.nbytes)
        self._charge = _nobody  # What is told from now on is told for nothing.

    # -- who is remembered

    def expire(
        self, connected: Container[str], *, now_ms: int, left_before_ms: int, producers_max: int, bytes_max: int
    ) -> None:
        """Forget who left before this time, and who left longest ago as long as there are too many, or too long names.

        Called now and then, with the names that are there now: that is how it is known since when others are not.
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
        """What is durable, by producer name."""
        return {name: marks.persisted for name, marks in self._marks.items() if marks.persisted > NEVER}

    def restore(self, snapshot: Mapping[str, int]) -> None:
        """Take in what a snapshot says beside what is known already."""
        for name, persisted in snapshot.items():
            self.persist(name, persisted)

    def replay(self, entries: Iterable[tuple[str, int]]) -> None:
        """Take in entries of the log: producer name and highest sequence id each."""
        for name, highest in entries:
            self.persist(name, highest)
