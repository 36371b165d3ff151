# SPDX-License-Identifier: Apache-2.0
"""Buffers of large reads that are used again: new memory for each costs more than the read.

Why: memory of a megabyte that is freed goes back to the system, and each of its pages is made anew, zeroed, and away
from every cache (docs/adr/0061-large-entries-are-copied.md). Where: `Reader` reads consecutive blocks into them.

Nobody gives a buffer back. Its entries are views, in queues of connections and elsewhere; it is free when there is none
any more. Python says so: a bytearray changes its size only while nothing refers to its bytes.
"""

from __future__ import annotations

import threading
from collections import deque


class SpareBuffers:
    """At most `most` buffers of `nbytes` bytes, made as they are needed, and kept. Thread-safe."""

    def __init__(self, nbytes: int, most: int) -> None:
        self.nbytes = nbytes
        self._most = most
        self._buffers: deque[bytearray] = deque()  # the one that was used longest ago first
        self._lock = threading.Lock()

    def take(self) -> memoryview | None:
        """Return a buffer that nothing refers to, with any content; None if all are in use."""
        with self._lock:
            for _ in range(len(self._buffers)):
                if is_unused(self._buffers[0]):
                    break
                if len(self._buffers) < self._most:
                    self._buffers.appendleft(bytearray(self.nbytes))
                    break
                self._buffers.rotate(-1)
            else:
                if self._buffers:
                    return None
                self._buffers.append(bytearray(self.nbytes))
            view = memoryview(self._buffers[0])
            self._buffers.rotate(-1)
            return view


def is_unused(buffer: bytearray) -> bool:
    """Return whether no view of this buffer exists."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
