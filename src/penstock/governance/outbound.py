# SPDX-License-Identifier: Apache-2.0
"""Outbound memory: how many unsent bytes each connection may have, and which connection gets room next.

Why: a client that does not read must not hold memory that others need. A fixed share per connection either adds up to
more than the budget (with a minimum) or is too small (without); and a minimum of one entry is 5 MiB.

Where: each `Connection` asks here before entries are queued for it; dispatch asks before it reads the log.

Theory of operation
-------------------

    Room.     A connection may use half of the free bytes, and less if more connections wait. It never holds more than
              `CONNECTION_BYTES_MAX`. So there is always something left for the next connection.
    Put back. While a connection waits for room, a client that reads nothing keeps only the entry that it has begun to
              receive. Its other queued entries are put back and read again when it reads (`SendQueue.put_back`).
    Turns.    The free bytes can be fewer than one entry. So there is a reserve, the size of the largest entry. One
              connection at a time uses it: one without unsent bytes, in the order in which they began to wait. Its turn
              ends when its client has received everything, or when nothing was sent to it.
    Reads.    A read of the log is charged when it starts, and released when its entries are queued.
    Stuck.    A client that reads nothing while others wait for long is closed. The client with the turn is also closed
              if it is too slow (`overdue`). Its unacknowledged messages are redelivered.

For entries, `used_bytes <= limit_bytes` always holds if the budget is at least twice the largest entry. With a smaller
budget, a turn may exceed it by one entry. Responses to commands are counted too, but never refused: a client that does
not receive its responses is muted.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.budget import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

# The most that one connection may hold. More entries would only wait here instead of in the log.
CONNECTION_BYTES_MAX: Final = 4 * MIB
# The largest entry that clients send by default: 5 MiB and what the protocol leaves for metadata.
ENTRY_BYTES_MAX: Final = 5 * MIB + 10 * KIB
# The largest header of an entry that is delivered: ids, a redelivery count, an epoch, the ack set of a batch.
HEADER_BYTES: Final = 4 * KIB
# 1/ANSWERS_PART of the budget is left for responses, which need no room.
ANSWERS_PART: Final = 16
# The most connections that one call of `grants` returns, and that it checks.
GRANTS_MAX: Final = 32
LOOKS_MAX: Final = 64
# A turn that others wait for ends after STUCK_NS without a byte received, and after TURN_NS_MAX in any case.
STUCK_NS: Final = 10 * NS_PER_S
TURN_NS_MAX: Final = 60 * NS_PER_S


class Holder(Protocol):
    """A connection, as far as its unsent bytes are concerned."""

    @property
    def out_bytes(self) -> int:
        """Bytes counted here: queued and not sent, without bytes that several connections share."""
        ...

    @property
    def bytes_out(self) -> int:
        """Bytes that its socket has taken since it was opened."""
        ...

    @property
    def wanted_bytes(self) -> int:
        """The fewest bytes it can continue with: one, or the size of an entry that did not fit into its room."""
        ...


class Reading(NamedTuple):
    """Charge for one read of the log."""

    nbytes: int
    in_turn: bool  # whether it uses the reserve


H = TypeVar("H", bound=Holder)


class Outbound(Row, Generic[H]):
    """The row of the unsent bytes of all connections, and of room for reads of the log."""

    __slots__ = (
        "_turn",
        "_turn_moved_ns",
        "_turn_reading_bytes",
        "_turn_since_ns",
        "_turn_taken_bytes",
        "_waiting",
        "reserve_bytes",
    )

    def __init__(self, limit_bytes: int, *, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        super().__init__("outbound", limit_bytes)
        self.reserve_bytes = min(entry_bytes_max + HEADER_BYTES, limit_bytes // 2)
        self._waiting: dict[H, None] = {}  # connections without unsent bytes and with too little room, in order
        self._turn: H | None = None
        self._turn_reading_bytes = 0
        self._turn_since_ns = -1  # when `overdue` first saw the turn
        self._turn_moved_ns = 0
        self._turn_taken_bytes = 0

    # -- room ---------------------------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """Bytes left without the reserve; negative when responses took more than their part."""
        others_bytes = self.used_bytes - self._turn_reading_bytes
        if self._turn is not None:
            others_bytes -= self._turn.out_bytes
        return self.limit_bytes - self.limit_bytes // ANSWERS_PART - self.reserve_bytes - others_bytes

    def room_bytes(self, holder: Holder) -> int:
        """Return how many more bytes this connection may have."""
        held_bytes, wanted_bytes = holder.out_bytes, holder.wanted_bytes
        if holder is self._turn:
            return max(0, max(self.reserve_bytes, wanted_bytes) - held_bytes - self._turn_reading_bytes)
        free_bytes = self.free_bytes
        most_bytes, fair_bytes = CONNECTION_BYTES_MAX, (free_bytes - held_bytes) // (2 + len(self._waiting))
        if not held_bytes:  # One entry, if it fits; the largest entry is a little larger than the usual maximum.
            most_bytes = max(most_bytes, self.reserve_bytes, wanted_bytes)
            fair_bytes = max(fair_bytes, min(wanted_bytes, free_bytes))
        return max(0, min(most_bytes - held_bytes, fair_bytes))

    # -- reads of the log ---------------------------------------------------------------------------------------------

    def charge_read(self, holders: Iterable[Holder], bytes_max: int) -> Reading:
        """Charge a read of the log for these connections: usually at most half of the free bytes."""
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
        self.charge(nbytes)
        return Reading(nbytes, in_turn)

    def release_read(self, reading: Reading) -> None:
        """Release the charge of a read whose entries are about to be queued, or are not needed."""
        self.release(reading.nbytes)
        if reading.in_turn:
            self._turn_reading_bytes -= reading.nbytes

    # -- who waits ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def turn(self) -> H | None:
        """The connection that may use the reserve."""
        return self._turn

    def wait(self, holder: H) -> None:
        """Wait for room. The connection has no unsent bytes; it keeps its place if it waits already."""
        if holder is not self._turn:
            self._waiting.setdefault(holder)

    def forget(self, holder: H) -> None:
        """Remove a closed connection, whose bytes have been removed."""
        self._waiting.pop(holder, None)
        if holder is self._turn:
            self._end_turn()

    def grants(self) -> list[H]:
        """Remove and return waiting connections that may continue; one of them may have got the turn."""
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
        """End this connection's turn if it has no unsent bytes and no pending read; return whether it had the turn."""
        if holder is not self._turn or holder.out_bytes or self._turn_reading_bytes:
            return False
        self._end_turn()
        return True

    def _end_turn(self) -> None:
        # The connection may be closed during a read for it: then the reserve becomes free when that read ends.
        self._turn, self._turn_since_ns = None, -1

    def overdue(self, now_ns: int) -> H | None:
        """Return the connection with the turn if others wait and its client is too slow, otherwise None."""
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
