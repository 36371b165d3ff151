# SPDX-License-Identifier: Apache-2.0
"""Keeps segments from being recycled while a backup copies them, until a deadline.

Why a deadline: a backup that was killed must not keep the disk from being reclaimed for ever. Where: `EntryLog.keep`
holds, log maintenance asks before it recycles.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.core.clock import Clock


class Kept(NamedTuple):
    """Segments that are kept, and how much of each is durable."""

    hold: int  # a number of the hold: another one after it has run out, and after a restart
    segments: Mapping[str, int]  # name of the file: bytes


class Keeping:
    """The hold on the segments of one log. Thread-safe."""

    def __init__(self, clock: Clock, nonce: int) -> None:
        """Args: nonce: by which holds are told from those of another process, which has kept nothing for this one."""
        self._clock = clock
        self._recycling = threading.Lock()  # Held while a segment is being recycled.
        self._until_ns = 0
        self._hold = nonce

    def keep(self, duration_ns: int) -> int:
        """Recycle nothing for so long, or longer if it was asked before; returns the number of the hold. May block."""
        with self._recycling:
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._until_ns:
                self._hold += 1
            self._until_ns = max(self._until_ns, now_ns + duration_ns)
            return self._hold

    @property
    def active(self) -> bool:
        """Whether nothing may be recycled now."""
        return self._clock.monotonic_ns() < self._until_ns

    @contextmanager
    def recycling(self) -> Iterator[bool]:
        """Yield whether a segment may be recycled in this block."""
        with self._recycling:
            yield not self.active
