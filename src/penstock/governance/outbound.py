# SPDX-License-Identifier: Apache-2.0
"""Outbound memory: how many bytes each connection may have on their way to its client, and who goes next.

Why: a client that does not read must not hold what those who do read need. A fixed share per connection either adds up
to more than the budget (with a floor) or comes to nothing (without); and a floor of one entry is 5 MiB.
Where: every `Connection` asks here before entries are queued for it, dispatch before it reads the log for it.

Theory of operation
    Room.     A connection may get half of what is free, and less the more others wait; it never holds more than
              `CONNECTION_BYTES_MAX`. So something is always left for the next one.
    Put back. While somebody waits for room, a client that takes nothing keeps only the entry that it has begun to take:
              the others that are queued for it are put back, and read again when it reads (`Connection.put_back`).
    Turns.    What stays free can be less than one entry. So there is a reserve, the size of the largest entry, which
              one connection uses at a time: one with nothing unsent, in the order in which they came to wait. Its turn
              ends when its client has taken everything, or when nothing was sent to it.
    Reads.    A read of the log takes its room when it starts, and gives it back when its entries are handed out.
    Stuck.    A client that takes nothing while others wait for long is closed, the one whose turn it is also if it is
              too slow (`overdue`). What it did not acknowledge is delivered again, to whoever reads.

`used_bytes <= budget_bytes` holds at every moment for entries, as long as the budget is twice the largest entry; of a
smaller one, a turn may exceed it by one entry. Answers to commands are counted here too, and never refused: a client
that does not take its answers is not read.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.core.units import KIB, MIB, NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable

# What one connection may hold, however much is free. More only waits longer here instead of in the log.
CONNECTION_BYTES_MAX: Final = 4 * MIB
# The largest entry that clients send by default: 5 MiB and what the protocol leaves for metadata.
ENTRY_BYTES_MAX: Final = 5 * MIB + 10 * KIB
# What stands before an entry on its way out, at most: ids, a redelivery count, an epoch, the ack set of a batch.
HEADER_BYTES: Final = 4 * KIB
# One part in so many is left to answers, which are not asked for room.
ANSWERS_PART: Final = 16
# Grants of one turn of the loop, and those waiting that are looked at for them.
GRANTS_MAX: Final = 32
LOOKS_MAX: Final = 64
# A turn that others wait for: without a byte taken, and at most.
STUCK_NS: Final = 10 * NS_PER_S
TURN_NS_MAX: Final = 60 * NS_PER_S


class Holder(Protocol):
    """A connection, as far as its unsent bytes are concerned."""

    @property
    def out_bytes(self) -> int:
        """Bytes counted here: what its socket has not taken, without what belongs to whoever shares it."""
        ...

    @property
    def bytes_out(self) -> int:
        """Bytes that its socket took since it was opened."""
        ...

    @property
    def wanted_bytes(self) -> int:
        """The least it can go on with: one byte, or an entry that was found to be larger than its room."""
        ...


class Reading(NamedTuple):
    """Room taken by one read of the log."""

    nbytes: int
    in_turn: bool  # whether it uses the reserve


H = TypeVar("H", bound=Holder)


class Outbound(Generic[H]):
    """Bytes on their way to all clients, against one budget."""

    __slots__ = (
        "_turn",
        "_turn_moved_ns",
        "_turn_reading_bytes",
        "_turn_since_ns",
        "_turn_taken_bytes",
        "_waiting",
        "budget_bytes",
        "reserve_bytes",
        "used_bytes",
    )

    def __init__(self, budget_bytes: int, *, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.budget_bytes = budget_bytes
        self.reserve_bytes = min(entry_bytes_max + HEADER_BYTES, budget_bytes // 2)
        self.used_bytes = 0  # unsent bytes and room taken by reads
        self._waiting: dict[H, None] = {}  # with nothing unsent and too little room, in the order they came
        self._turn: H | None = None
        self._turn_reading_bytes = 0
        self._turn_since_ns = -1  # when `overdue` first saw the turn
        self._turn_moved_ns = 0
        self._turn_taken_bytes = 0

    # -- room ---------------------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """What is left without the reserve; negative when answers took more than their part."""
        others_bytes = self.used_bytes - self._turn_reading_bytes
        if self._turn is not None:
            others_bytes -= self._turn.out_bytes
        return self.budget_bytes - self.budget_bytes // ANSWERS_PART - self.reserve_bytes - others_bytes

    def room_bytes(self, holder: H) -> int:
        """How many more bytes this connection may have."""
        held_bytes, wanted_bytes = holder.out_bytes, holder.wanted_bytes
        if holder is self._turn:
            return max(0, max(self.reserve_bytes, wanted_bytes) - held_bytes - self._turn_reading_bytes)
        free_bytes = self.free_bytes
        most_bytes, fair_bytes = CONNECTION_BYTES_MAX, (free_bytes - held_bytes) // (2 + len(self._waiting))
        if not held_bytes:  # One entry, if that is free; the largest is a little larger than the most.
            most_bytes = max(most_bytes, self.reserve_bytes, wanted_bytes)
            fair_bytes = max(fair_bytes, min(wanted_bytes, free_bytes))
        return max(0, min(most_bytes - held_bytes, fair_bytes))

    def add(self, nbytes: int) -> None:
        """So many bytes were queued."""
        self.used_bytes += nbytes

    def remove(self, nbytes: int) -> None:
        """So many were taken by a socket, or are gone with it."""
        self.used_bytes -= nbytes
        assert self.used_bytes >= 0

    # -- reads of the log ---------------------------------------------------------------------------------------------

    def start_read(self, holders: Iterable[H], bytes_max: int) -> Reading:
        """Take room for a read whose entries are for these connections: half of what is free at most, in general."""
        holders = set(holders)
        wanted_bytes = max(holder.wanted_bytes for holder in holders)
        turn = self._turn
        in_turn = turn is not None and turn in holders
        if turn is not None and in_turn:
            nbytes = min(max(bytes_max, wanted_bytes), self.room_bytes(turn))
            self._turn_reading_bytes += nbytes
        else:
            free_bytes = self.free_bytes
            room_bytes = sum(map(self.room_bytes, holders))
            nbytes = max(0, min(max(min(bytes_max, free_bytes // 2), wanted_bytes), room_bytes, free_bytes))
        self.used_bytes += nbytes
        return Reading(nbytes, in_turn)

    def end_read(self, reading: Reading) -> None:
        """The read ended: its entries are about to be queued, or nobody wants them."""
        self.remove(reading.nbytes)
        if reading.in_turn:
            self._turn_reading_bytes -= reading.nbytes

    # -- who waits ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many connections wait for room."""
        return len(self._waiting)

    @property
    def turn(self) -> H | None:
        """Whose turn it is to use the reserve."""
        return self._turn

    def wait(self, holder: H) -> None:
        """A connection with nothing unsent has too little room; it keeps its place if it has one."""
        if holder is not self._turn:
            self._waiting.setdefault(holder)

    def forget(self, holder: H) -> None:
        """The connection is gone, and its bytes were removed."""
        self._waiting.pop(holder, None)
        if holder is self._turn:
            self._end_turn()

    def grants(self) -> list[H]:
        """Connections that waited and may go on; one of them may have got the turn."""
        granted: list[H] = []
        free_bytes = self.free_bytes
        for holder in islice(self._waiting, LOOKS_MAX):
            wanted_bytes = holder.wanted_bytes
            if wanted_bytes <= free_bytes:
                free_bytes -= wanted_bytes
            elif self._turn is None and not self._turn_reading_bytes:
                self._turn = holder
            else:
                continue
            granted.append(holder)
            if len(granted) == GRANTS_MAX:
                break
        for holder in granted:
            del self._waiting[holder]
        return granted

    def ends_turn(self, holder: H) -> bool:
        """End this connection's turn if it has nothing unsent and nothing is read for it; whether it had the turn."""
        if holder is not self._turn or holder.out_bytes or self._turn_reading_bytes:
            return False
        self._end_turn()
        return True

    def _end_turn(self) -> None:
        # A connection may go while the log is read for it: then the reserve is free when that read has ended.
        self._turn, self._turn_since_ns = None, -1

    def overdue(self, now_ns: int) -> H | None:
        """Whose turn it is, if others wait for it and its client has taken nothing, or not everything, for too long."""
        turn = self._turn
        if turn is None or not self._waiting:
            self._turn_since_ns = -1
            return None
        if self._turn_since_ns < 0:
            self._turn_since_ns = self._turn_moved_ns = now_ns
            self._turn_taken_bytes = turn.bytes_out
        elif turn.bytes_out != self._turn_taken_bytes:
            self._turn_moved_ns, self._turn_taken_bytes = now_ns, turn.bytes_out
        stuck = now_ns - self._turn_moved_ns >= STUCK_NS or now_ns - self._turn_since_ns >= TURN_NS_MAX
        return turn if stuck and turn.out_bytes else None
