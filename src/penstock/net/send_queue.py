# SPDX-License-Identifier: Apache-2.0
"""Queues of buffers that are sent by gathered writes, and what becomes of their bytes.

Why: joining queued buffers into one would copy every delivered byte once more. Where: `connection` queues plaintext,
`tls` queues ciphertext.

Entries are queued as views of the run that was read or published. If the socket does not take them at once, they keep
that run in memory. If most of the run waits, and there is room to charge all of it to the connection, this is what
happens until the last of its entries is sent. Otherwise the waiting entries are copied. Bytes that several connections
send exist once and are charged where they are kept; a connection is charged for the reference.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from penstock.core.units import KIB

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

# The most buffers of one system call. Each takes time, also those that the socket has no room for; so many copies of
# waiting bytes are a megabyte, more than it takes at once.
IOVECS_MAX: Final = 64
# Copies of waiting bytes are cut into pieces of this size, each freed when it is sent; one TLS record each.
PIECE_BYTES: Final = 16 * KIB
# Small responses that wait for the socket are joined into buffers of this size: as separate objects they would take
# three times the counted bytes.
JOINED_BYTES: Final = 8 * KIB
_JOIN_BYTES_MAX: Final = KIB
# A partly sent buffer is copied if it keeps more sent bytes than this in memory.
SENT_BYTES_KEPT: Final = 8 * KIB


class QueuedEntries(Protocol):
    """Entries that were queued together, while they are not all sent."""

    def compact(self) -> None:
        """Compact entries that were not all sent in the turn of the loop that queued them."""

    def put_back(self, taken_bytes: int) -> int:
        """Take back the entries behind `taken_bytes`; return how many bytes of these entries cannot be taken back."""


class Held(NamedTuple):
    """Waiting views of one run, which keep all of it in memory: positions, and what is charged instead of them."""

    start: int
    stop: int
    charged_bytes: int


class Passing(NamedTuple):
    """A callback for when `position` bytes in all have been sent, and the bytes that are charged until then."""

    position: int
    passed: Callable[[], None]
    kept_bytes: int


class SendQueue:
    """The bytes that one connection has to send. Positions count all bytes that were ever queued.

    Attributes:
        buffers: in the order in which they are sent; the owner removes from the front what was sent.
        sent_bytes: all that the socket has taken.
        unsent_bytes: all of the queue, shared bytes included.
        passing: callbacks, by position.
    """

    def __init__(self, *, shared_bytes: int) -> None:
        """Args: shared_bytes: the charge of the connection as long as it has shared bytes to send."""
        self.buffers: deque[Buffer] = deque()
        self.sent_bytes = 0
        self.unsent_bytes = 0
        self.passing: deque[Passing] = deque()
        self.entries: deque[tuple[int, int, QueuedEntries]] = deque()  # with their first and last position
        self._shared_bytes = shared_bytes
        self._shared: deque[tuple[int, int]] = deque()  # ranges of positions that are not charged to the connection
        self._joined: bytearray | None = None  # the last buffer, while small responses may be added to it
        self._queued = 0  # the number of buffers that were ever queued
        # Ranges of buffers that may be views of runs, and whether they can be put back.
        self._borrowed: list[tuple[int, int, bool]] = []
        self._held: deque[Held] = deque()

    @property
    def has_shared(self) -> bool:
        """Whether some of the bytes stay in memory when they are encrypted: shared ones, or those of held runs."""
        return bool(self._shared or self._held)

    def add(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue buffers of `nbytes` bytes in all."""
        self._joined = None
        self.buffers.extend(buffers)
        self._queued += len(buffers)
        self.unsent_bytes += nbytes

    def add_response(self, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Queue a response; small ones are joined."""
        if self._joined is not None and len(self._joined) + nbytes <= JOINED_BYTES:
            self._joined += b"".join(buffers)
            self.unsent_bytes += nbytes
        elif nbytes > len(buffers) * _JOIN_BYTES_MAX:
            self.add(buffers, nbytes)
        else:
            joined = bytearray().join(buffers)
            self.add((joined,), nbytes)
            self._joined = joined

    def add_entries(
        self, buffers: Sequence[Buffer], nbytes: int, entries: QueuedEntries | None, *, room_bytes: int | None
    ) -> int:
        """Queue entries; returns how many bytes to charge besides theirs, for memory that they keep.

        Args:
            buffers: the entries.
            nbytes: of all buffers.
            entries: puts them back; None: they cannot be put back.
            room_bytes: the most to charge besides, if the socket takes nothing now; None: it may, see `after_flush`.
        """
        start = self.sent_bytes + self.unsent_bytes
        if entries is not None:
            self.entries.append((start, start + nbytes, entries))
            if room_bytes is not None:
                entries.compact()
        charged_bytes = 0
        if room_bytes is None:
            self._borrowed.append((self._queued, self._queued + len(buffers), entries is not None))
        elif entries is None:
            buffers = own(buffers)
        else:
            buffers, charged_bytes = self._hold(buffers, start, room_bytes)
        self.add(buffers, nbytes)
        return charged_bytes

    def _hold(self, buffers: Sequence[Buffer], position: int, room_bytes: int) -> tuple[Sequence[Buffer], int]:
        """Let entries wait from this position on; returns them, and how many bytes to charge besides theirs."""
        waiting: list[Buffer] = []
        charged_bytes = at = 0
        while at < len(buffers):
            stop, view_bytes, whole_bytes = _views_of_one(buffers, at)
            group = buffers[at:stop]
            nbytes = sum(map(len, group))
            # Under TLS the connection has a ciphertext of its own as well.
            besides_bytes = whole_bytes - view_bytes + self._shared_bytes
            if not whole_bytes:
                waiting += group
            elif whole_bytes <= 2 * view_bytes and charged_bytes + besides_bytes <= room_bytes:
                waiting += group
                charged_bytes += besides_bytes
                self._held.append(Held(position, position + nbytes, nbytes + besides_bytes))
            else:
                waiting += own(group)
            position += nbytes
            at = stop
        return waiting, charged_bytes

    def add_shared(self, buffers: Sequence[Buffer], nbytes: int) -> int:
        """Queue buffers that are charged elsewhere; returns how many bytes to charge for that."""
        charged_bytes = 0 if self._shared else self._shared_bytes
        start = self.sent_bytes + self.unsent_bytes
        self.add(buffers, nbytes)
        self._shared.append((start, start + nbytes))
        return charged_bytes

    def when_sent(self, passed: Callable[[], None], kept_bytes: int) -> None:
        """Add a callback for when all that is queued now has been sent; until then `kept_bytes` are charged for it."""
        self.passing.append(Passing(self.sent_bytes + self.unsent_bytes, passed, kept_bytes))

    def end_joining(self) -> None:
        """Add no more responses to the last buffer, because a buffer that is being sent must not grow."""
        self._joined = None

    def sent(self, nbytes: int) -> int:
        """Count sent bytes; returns how many bytes are not charged to the connection any more."""
        start = self.sent_bytes
        self.sent_bytes = stop = start + nbytes
        self.unsent_bytes -= nbytes
        while self.entries and self.entries[0][1] <= stop:
            self.entries.popleft()
        if self._held:
            nbytes -= self._held_between(start, stop)
        return nbytes - self._shared_between(start, stop) if self._shared else nbytes

    def _held_between(self, start: int, stop: int) -> int:
        """Return how many of the sent bytes keep a run, less what was charged for runs that are all sent."""
        total = 0
        while self._held and self._held[0].start < stop:
            held = self._held[0]
            total += min(held.stop, stop) - max(held.start, start)
            if held.stop > stop:
                break
            self._held.popleft()
            total -= held.charged_bytes
        return total

    def _shared_between(self, start: int, stop: int) -> int:
        """Return how many of the sent bytes are charged elsewhere; forget shared ranges that are sent."""
        total = 0
        while self._shared and self._shared[0][0] < stop:
            first, last = self._shared[0]
            total += min(last, stop) - max(first, start)
            if last > stop:
                break
            self._shared.popleft()
            if not self._shared:
                total -= self._shared_bytes
        return total

    def after_flush(self, room_bytes: int | None) -> int:
        """Decide what waiting entries keep in memory; returns how many bytes to charge besides theirs.

        Args:
            room_bytes: the most to charge besides, if the socket takes nothing more now; None: everything was sent.
        """
        charged_bytes = 0
        if room_bytes is not None and self.buffers:
            charged_bytes = self._keep_little(room_bytes)
        self._borrowed.clear()
        return charged_bytes

    def _keep_little(self, room_bytes: int) -> int:
        charged_bytes = 0
        position = self._begun()
        if self._borrowed:
            for _, _, entries in self.entries:
                entries.compact()
            kept: list[Buffer] = []
            buffers, start, at = list(self.buffers), self._queued - len(self.buffers), 0
            before = position
            for first, stop, returnable in self._borrowed:
                begin, end = max(first - start, at), max(stop - start, at)
                kept += buffers[at:begin]
                before += sum(map(len, buffers[at:begin]))
                if returnable:
                    waiting, besides_bytes = self._hold(buffers[begin:end], before, room_bytes - charged_bytes)
                    kept += waiting
                    charged_bytes += besides_bytes
                else:
                    kept += own(buffers[begin:end])
                before += sum(map(len, buffers[begin:end]))
                at = end
            self._replace([*kept, *buffers[at:]])
        head = self.buffers[0]
        if type(head) is memoryview and len(memoryview(head.obj)) - len(head) > SENT_BYTES_KEPT:
            shared = self._shared and self._shared[0][0] <= position
            held = any(one.start <= position < one.stop for one in self._held)
            self.buffers[0] = head if shared or held else bytes(head)
        return charged_bytes

    def _replace(self, buffers: list[Buffer]) -> None:
        self._queued += len(buffers) - len(self.buffers)
        self.buffers.clear()
        self.buffers.extend(buffers)

    def _begun(self) -> int:
        """Return the position at which the buffers begin. TLS may have taken more from them than the socket."""
        return self.sent_bytes + self.unsent_bytes - sum(map(len, self.buffers))

    def copy_if(self, chosen: Callable[[Buffer], bool]) -> None:
        """Replace the waiting buffers for which this holds by copies in pieces."""
        kept: list[Buffer] = []
        for buffer in self.buffers:
            kept += own((memoryview(buffer),)) if chosen(buffer) else (buffer,)
        self._replace(kept)

    def put_back(self) -> int:
        """Put back the queued entries whose sending has not begun; return how many bytes are not charged any more.

        What remains keeps no run in memory.
        """
        begun, released_bytes = self._begun(), self._let_go()
        queued, self.entries = self.entries, deque()
        gone: list[tuple[int, int]] = []
        nbytes = 0
        for start, stop, entries in queued:
            kept = entries.put_back(max(0, begun - start))
            if kept:
                self.entries.append((start - nbytes, start - nbytes + kept, entries))
            if start + kept < stop:
                gone.append((start + kept, stop))
                nbytes += stop - start - kept
        if nbytes:
            self._shared = deque(
                (start - _length_before(start, gone), stop - _length_before(stop, gone)) for start, stop in self._shared
            )
            self.passing = deque(
                one._replace(position=one.position - _length_before(one.position, gone)) for one in self.passing
            )
            self._replace(without(self.buffers, begun, gone))
            self.unsent_bytes -= nbytes
        if released_bytes:
            self._copy_entries(begun)
        return nbytes + released_bytes

    def _let_go(self) -> int:
        """Charge the waiting bytes instead of the runs that they keep; return how many bytes that is less."""
        released_bytes = sum(held.charged_bytes - (held.stop - max(held.start, self.sent_bytes)) for held in self._held)
        self._held.clear()
        return released_bytes

    def _copy_entries(self, position: int) -> None:
        """Copy all entries that still wait; the buffers begin at this position."""
        kept: list[Buffer] = []
        for buffer in self.buffers:
            entries = any(start <= position < stop for start, stop, _ in self.entries)
            kept += own((buffer,)) if entries else (buffer,)
            position += len(buffer)
        self._replace(kept)

    def clear(self) -> deque[Passing]:
        """Drop everything; returns the callbacks."""
        self.unsent_bytes = 0
        for part in (self.buffers, self._borrowed, self.entries, self._shared, self._held):
            part.clear()
        passing, self.passing = self.passing, deque()
        return passing


def send_queued(sock: socket.socket, queue: deque[Buffer]) -> int:
    """Send what the socket takes now, and remove it from the queue; return how many bytes."""
    sent = sock.send(queue[0]) if len(queue) == 1 else sock.sendmsg(list(islice(queue, IOVECS_MAX)))
    drop_sent(queue, sent)
    return sent


def took_all(queue: deque[Buffer], before: int) -> bool:
    """Return whether the socket took all that `send_queued` gave it of a queue of `before` buffers."""
    return len(queue) <= max(0, before - IOVECS_MAX)


def drop_sent(queue: deque[Buffer], nbytes: int) -> None:
    """Remove the first `nbytes` bytes of the queued buffers, and empty buffers that follow."""
    while nbytes:
        head = queue[0]
        if nbytes < len(head):
            queue[0] = memoryview(head)[nbytes:]
            return
        nbytes -= len(head)
        queue.popleft()
    while queue and not len(queue[0]):  # The socket would take nothing of it, again and again.
        queue.popleft()


def _views_of_one(buffers: Sequence[Buffer], at: int) -> tuple[int, int, int]:
    """Find the views of one run from this buffer on, with the headers before and between them.

    Returns where they end, how long the views are, and how long the run is: 0 if there are only other buffers.
    """
    run: Any = None
    stop, view_bytes = len(buffers), 0
    for index in range(at, len(buffers)):
        buffer = buffers[index]
        if type(buffer) is memoryview:
            if view_bytes and buffer.obj is not run:
                break
            run, stop = buffer.obj, index + 1
            view_bytes += len(buffer)
    return stop, view_bytes, len(memoryview(run)) if view_bytes else 0


def own(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Return the same bytes; views of larger buffers are copied."""
    owned: list[Buffer] = []
    for buffer in buffers:
        if type(buffer) is memoryview:
            owned += [bytes(buffer[at : at + PIECE_BYTES]) for at in range(0, len(buffer), PIECE_BYTES)]
        else:
            owned.append(buffer)
    return owned


def without(buffers: Iterable[Buffer], position: int, gone: list[tuple[int, int]]) -> list[Buffer]:
    """Return these buffers, the first of which begins at `position`, without these ascending byte ranges."""
    kept: list[Buffer] = []
    ranges = iter([*gone, (1 << 63, 1 << 63)])
    start, stop = next(ranges)
    for buffer in buffers:
        at, end = position, position + len(buffer)
        while at < end:
            if stop <= at:
                start, stop = next(ranges)
            elif start <= at:
                at = min(stop, end)
            else:
                until = min(start, end)
                whole = at == position and until == end
                kept.append(buffer if whole else memoryview(buffer)[at - position : until - position])
                at = until
        position = end
    return kept


def _length_before(position: int, ranges: list[tuple[int, int]]) -> int:
    return sum(min(stop, position) - min(start, position) for start, stop in ranges)
