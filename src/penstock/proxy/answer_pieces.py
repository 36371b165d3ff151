# SPDX-License-Identifier: Apache-2.0
"""Answers of brokers cut into pieces, so that answers with most bytes in common share them.

Why: clients that are still reading what a namespace had a moment ago, and clients that read what it has now, need one
list in memory. Brokers write lists in a fixed order, so two answers to the same question differ in a few places only:
in the hash near one of the ends, and where topics were created or deleted.
Where: `listings` cuts each answer by the one before. Pure.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterable

# The usual size of a piece; an answer that differs in one topic has one piece of its own. Sizes are at most twice that.
PIECE_BYTES: Final = 16 * KIB
# A piece next to one that has changed is joined with it if it is smaller; otherwise pieces would become ever smaller.
_SMALL_BYTES: Final = PIECE_BYTES // 4
# What an answer has of its own at each end. One of them has the hash.
END_BYTES: Final = 32


class Piece:
    """A part of one answer or more. Compared by identity."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: memoryview) -> None:
        self.data: Final = bytes(data)

    @property
    def written_bytes(self) -> int:
        return len(self.data)


class CutAnswer(NamedTuple):
    """An answer in pieces that others may share, between two ends of its own."""

    head: bytes
    pieces: list[Piece]
    tail: bytes

    @property
    def own_bytes(self) -> int:
        return len(self.head) + len(self.tail)

    @property
    def buffers(self) -> list[bytes]:
        """All of it, in order."""
        return [self.head, *(piece.data for piece in self.pieces), self.tail]


def cut(fields: memoryview, known: Iterable[Piece]) -> CutAnswer:
    """Cut an answer; as many pieces as possible are those of the answer before, which are known in their order."""
    start = min(END_BYTES, len(fields))
    stop = max(start, len(fields) - END_BYTES)
    head, tail = bytes(fields[:start]), bytes(fields[stop:])
    left, front, back = deque(known), list[Piece](), deque[Piece]()
    while left and _has(fields[start:stop], left[0], 0):
        start += left[0].written_bytes
        front.append(left.popleft())
    while left and _has(fields[start:stop], left[-1], stop - start - left[-1].written_bytes):
        stop -= left[-1].written_bytes
        back.appendleft(left.pop())
    if start < stop:
        while front and front[-1].written_bytes < _SMALL_BYTES:
            start -= front.pop().written_bytes
        while back and back[0].written_bytes < _SMALL_BYTES:
            stop += back.popleft().written_bytes
    return CutAnswer(head, [*front, *_fresh(fields[start:stop]), *back], tail)


def _fresh(fields: memoryview) -> list[Piece]:
    """Cut into pieces of about the same size."""
    count = max(1, len(fields) // PIECE_BYTES)
    rows = [len(fields) * number // count for number in range(count + 1)]
    return [Piece(fields[row:end]) for row, end in pairwise(rows) if row < end]


def _has(fields: memoryview, piece: Piece, at: int) -> bool:
    """Return whether these bytes have this piece at this place."""
    # Bytes are compared in one step, a memoryview byte by byte.
    return at >= 0 and bytes(fields[at : at + piece.written_bytes]) == piece.data
