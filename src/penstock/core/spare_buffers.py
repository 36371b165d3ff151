# SPDX-License-Identifier: Apache-2.0
"""Large buffers that are used again: new memory for each read costs more than the read.

Why: memory of half a megabyte that is freed goes back to the system, and each of its pages is made anew, zeroed, and
away from every cache (docs/adr/0061-large-entries-are-copied.md). Where: reads of the log, and of sockets.

Nobody gives a buffer back. Its entries are views, in queues of connections, in the tail cache and elsewhere. When the
last view is gone, Python ends the object that they refer to, and only then its memory is kept for the next one. So
nothing can refer to memory that is used again.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Buffer: TypeAlias = bytes | bytearray | memoryview


class SpareBuffers:
    """Gives out buffers of `nbytes` bytes, and keeps the memory of at most `spares_max` that are used no more.

    Thread-safe: views end in any thread, and appending to a list is one step.
    """

    def __init__(self, nbytes: int, spares_max: int) -> None:
        self.nbytes = nbytes
        spares = self._spares = list[bytes]()

        class SpareBuffer(BytesIO):
            """The owner of a buffer's memory, which has no other reference: it can be passed on without a copy."""

            def __del__(self) -> None:
                if len(spares) < spares_max:
                    spares.append(self.getvalue())

        self._new = SpareBuffer

    def take(self) -> memoryview:
        """Return a writable buffer with any content."""
        try:
            owner = self._new(self._spares.pop())
        except IndexError:
            owner = self._new(bytes(self.nbytes))
        return owner.getbuffer()

    @property
    def spares(self) -> int:
        """How many buffers are kept and not in use."""
        return len(self._spares)


def kept_bytes(buffer: Buffer) -> int:
    """Return how much memory a buffer keeps: all of that of which it is a view."""
    return len(memoryview(buffer.obj)) if type(buffer) is memoryview else len(buffer)
