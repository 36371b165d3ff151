# SPDX-License-Identifier: Apache-2.0
"""Readers that wait for request memory, the turns that are given to them, and the bytes promised with these turns.

Why promises: a reader that has a turn asks again a little later. No other reader gets its bytes until then, so none
overtakes another, and none is woken in vain.
Where: `RequestMemory` lets refused readers wait here, and gives turns in the order of `lines`.
"""

from __future__ import annotations

from penstock.governance.fair_queue import ANY, HOLDING, WHOLE, FairQueue, Reader
from penstock.governance.snapshot import MutedReader


class ReadTurns:
    """Waiting readers.

    Attributes:
        waiting: in the order in which they began to wait, readers with a turn included.
        lines: waiting readers without a turn.
        holding: turns of readers with an unfinished frame.
        ordinary_promised, reserve_promised: bytes promised with turns, of each part of the memory.
    """

    __slots__ = ("_count", "holding", "lines", "ordinary_promised", "reserve_promised", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, Reader] = {}
        self.lines = FairQueue()
        self.holding = 0
        self.ordinary_promised = 0
        self.reserve_promised = 0
        self._count = 0

    def __len__(self) -> int:
        """Return the number of turns that were given and not used yet."""
        return self._count

    def wait(self, reader: Reader) -> None:
        """Let a reader wait; one that waits already keeps its place."""
        if reader.owner not in self.waiting:
            self.waiting[reader.owner] = reader
            self.lines.join(reader)
        self.line_up(reader)

    def line_up(self, reader: Reader) -> None:
        """Enter a reader that waits into the lines."""
        self.lines.enter(reader, ANY)
        if reader.held_bytes:
            self.lines.enter(reader, HOLDING)

    def leave(self, reader: Reader) -> bool:
        """End the wait of a reader and its turn; returns whether it waited."""
        self.end(reader)
        if self.waiting.pop(reader.owner, None) is None:
            return False
        self.lines.leave(reader)
        return True

    def give(self, reader: Reader, promised_bytes: int, *, reserved: bool = False) -> None:
        """Give a turn to a waiting reader, and promise it these bytes, of the reserve or the ordinary part."""
        for line in (ANY, HOLDING, WHOLE):
            self.lines.withdraw(reader, line)
        reader.has_turn, reader.turn_reserved = True, reserved
        reader.promised_bytes = promised_bytes
        self._count += 1
        self.holding += reader.held_bytes > 0
        self._promise(reader, promised_bytes)

    def end(self, reader: Reader) -> None:
        """End the turn of a reader, if it has one."""
        if reader.has_turn:
            self._count -= 1
            self.holding -= reader.held_bytes > 0
            self._promise(reader, -reader.promised_bytes)
            reader.has_turn = False

    def _promise(self, reader: Reader, nbytes: int) -> None:
        if reader.turn_reserved:
            self.reserve_promised += nbytes
        else:
            self.ordinary_promised += nbytes
        reader.tenant.promised_bytes += nbytes
        self.lines.changed(reader.tenant)

    def snapshot(self) -> tuple[MutedReader, ...]:
        """Return the waiting readers, for metrics and the admin port."""
        return tuple(
            MutedReader(one.owner, one.stopped_ns, one.reason, one.want_bytes, one.held_bytes, one.missing_bytes)
            for one in self.waiting.values()
            if one.stopped_ns is not None
        )
