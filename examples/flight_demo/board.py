# SPDX-License-Identifier: Apache-2.0
"""The board: counters that each process of the demo keeps about itself, in memory they all share.

Why: one of the consumers is killed on purpose, and what it had done must still be known afterwards, to the message.
Numbers in shared memory survive their writer, and the one who draws reads them without asking anybody.
Where: made before the processes are forked; each process writes its own `Track`, the main one reads them all.

Every number has one writer and is eight aligned bytes, so nothing is locked.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WORD_BYTES = 8


class Word:
    """A named number of a track: one process sets it, others look at it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __get__(self, track: Track, _owner: type[Track]) -> int:
        value: int = track.words[self.index]
        return value

    def __set__(self, track: Track, value: int) -> None:
        track.words[self.index] = value


class Track:
    """What one participant has done: a few numbers, and two for each column (an airline, a connection)."""

    ready = Word(0)  # 1 once it is connected and the flights may begin
    wrong = Word(1)  # messages that were not what they should have been
    N_WORDS = 2

    def __init__(self, words: memoryview, columns: int) -> None:
        self.words = words
        self.first = words[self.N_WORDS : self.N_WORDS + columns]  # number of the first message handled
        self.next = words[self.N_WORDS + columns : self.N_WORDS + 2 * columns]  # of the one after the last

    @classmethod
    def size_words(cls, columns: int) -> int:
        """How much memory a track needs."""
        return cls.N_WORDS + 2 * columns

    @property
    def handled(self) -> int:
        """Messages handled so far."""
        return sum(self.next) - sum(self.first)


class Act(IntEnum):
    """What the main process has everybody do now; acts only ever go forward."""

    CONNECT = 0
    BEGIN = 1
    READ_BACK = 2
    END = 3


class Board:
    """A track for each participant, and the act they are in."""

    def __init__(self, participants: Sequence[str], columns: int) -> None:
        size_words = Track.size_words(columns)
        words = memoryview(mmap.mmap(-1, (1 + size_words * len(participants)) * WORD_BYTES)).cast("q")
        self._act = words[:1]
        self.tracks = {
            name: Track(words[1 + index * size_words : 1 + (index + 1) * size_words], columns)
            for index, name in enumerate(participants)
        }

    @property
    def act(self) -> int:
        """The act everybody is in."""
        act: int = self._act[0]
        return act

    @act.setter
    def act(self, act: Act) -> None:
        self._act[0] = act

    @property
    def all_ready(self) -> bool:
        """Whether everybody is connected."""
        return all(track.ready for track in self.tracks.values())
