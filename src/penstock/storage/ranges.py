# SPDX-License-Identifier: Apache-2.0
"""Reads many small ranges of a file, from memory if they are there, else from the disk all at the same time.

Why: each call of the system costs a reader thread the interpreter, which the event loop then has to give back. So what
is in the page cache is copied with what lies between, many ranges by one call. What is not there is announced, so that
the disk reads everything at the same time, and exactly this: ranges that are far apart cost no more than their pages.

Where: `scattered`, for the tables of blocks and for the entries of one ledger between those of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.units import KIB
from penstock.storage.files import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.storage.files import File

Range: TypeAlias = tuple[int, int]  # offset, length

# Reading up to this many unwanted bytes from the disk costs less than another call.
GAP_BYTES_MAX: Final = 8 * KIB
# Copying up to this many unwanted bytes from memory costs less than another call, which gives up the interpreter.
_CACHED_GAP_BYTES_MAX: Final = 24 * KIB
# As much is copied by one call.
BUFFER_BYTES: Final = 512 * KIB


class RangeReader:
    """Reads ranges of files. Thread-safe; each thread that reads has a buffer as long as it does."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []  # unused, as many as threads have read at the same time

    def read(self, file: File, ranges: Sequence[Range]) -> Iterator[bytes]:
        """Yield the bytes of these ranges, which ascend. Raises OSError where a range cannot be read."""
        try:
            buffer = self._buffers.pop()
        except IndexError:
            buffer = bytearray(BUFFER_BYTES)
        try:
            at = 0
            with memoryview(buffer) as view:
                while at < len(ranges):
                    end, size = _together(ranges, at, _CACHED_GAP_BYTES_MAX)
                    start = ranges[at][0]
                    got = file.read_cached(view[:size], start) if size <= BUFFER_BYTES else 0
                    while at < end and ranges[at][0] + ranges[at][1] - start <= got:
                        offset, length = ranges[at]
                        yield bytes(view[offset - start : offset - start + length])
                        at += 1
                    if at < end:
                        break
        finally:
            self._buffers.append(buffer)
        yield from _from_disk(file, ranges[at:])


def _from_disk(file: File, ranges: Sequence[Range]) -> Iterator[bytes]:
    if len(ranges) > 1:
        for offset, length in ranges:
            file.will_read(length, offset)
    at = 0
    while at < len(ranges):
        end, size = _together(ranges, at, GAP_BYTES_MAX)
        start = ranges[at][0]
        data = read_exactly(file, size, start)
        if end == at + 1:
            yield data
        else:
            for offset, length in ranges[at:end]:
                yield data[offset - start : offset - start + length]
        at = end


def _together(ranges: Sequence[Range], at: int, gap_max: int) -> tuple[int, int]:
    """Return the end of the ranges that are read by one call with the one at `at`, and the bytes up to there."""
    start, length = ranges[at]
    stop = start + length
    for end in range(at + 1, len(ranges)):
        offset, length = ranges[end]
        if not 0 <= offset - stop <= gap_max or offset + length - start > BUFFER_BYTES:
            return end, stop - start
        stop = offset + length
    return len(ranges), stop - start
