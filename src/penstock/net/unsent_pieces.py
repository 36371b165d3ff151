# SPDX-License-Identifier: Apache-2.0
"""Direct memory of one shared list: its encoded pieces, charged once while any connection sends them.

Why not a permit for each whole reply: two thousand clients that read the same megabyte slowly hold one megabyte.
Charging it two thousand times would use up all direct memory, and clients would be refused for memory that is not in
use.
Where: each `SharedListing` of a broker has one, and each question to which a proxy is sending answers. It is charged
for the pieces (blocks of a list, steps of updates, parts of an answer) while they are sent; each reply is charged for
its head and its references to pieces.

Theory of operation:
    Leading: pieces that no reply sends yet need memory for all of them. One caller at a time requests it together with
        its own bytes, so a caller that holds memory of pieces can always send. Other callers wait for that, each with
        its own deadline; then they need only their own bytes.
    Versions: a changed list shares most blocks with the previous one. Pieces are counted one by one: blocks of an old
        list that a slow client still receives stay charged, and common blocks are charged once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests
from penstock.net.listing_memory import LimitType
from penstock.net.loop import GradualEvent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable, Sequence

    from penstock.core.clock import Clock
    from penstock.net.listing_memory import Owner, Permit, TopicListMemoryLimiter

# Memory of a reply for each piece it sends.
REFERENCE_BYTES: Final = 8


class Piece(Protocol):
    """A shared part of replies. Compared by identity."""

    @property
    def written_bytes(self) -> int: ...


class UnsentPieces:
    """Pieces being sent to clients, and their memory. The same piece has different bytes in each form."""

    __slots__ = ("_followers", "_leading", "_limiter", "_permit", "_senders")

    def __init__(self, limiter: TopicListMemoryLimiter, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._limiter = limiter
        self._followers = GradualEvent(clock, loop)
        self._permit: Permit | None = None  # for all pieces in `_senders`
        self._senders: dict[Hashable, dict[Piece, int]] = {}  # by form: in how many replies each piece is
        self._leading = False

    @property
    def size_bytes(self) -> int:
        return self._permit.size if self._permit is not None else 0

    async def charge(
        self, head_bytes: int, form: Hashable, pieces: Sequence[Piece], owner: Owner, deadline_ns: int | None
    ) -> Permit:
        """Charge one reply: returns the permit for its own bytes. Its pieces stay charged until `passed`.

        Raises PermitError for the caller's own request, TooManyRequests if the deadline passes while another caller
        leads.
        """
        own_bytes = head_bytes + REFERENCE_BYTES * len(pieces)
        while True:
            if self._leading:
                await self._wait_for_leader(deadline_ns)
                continue
            missing_bytes = self._missing_bytes(form, pieces)
            if missing_bytes:
                permit = await self._lead(own_bytes + missing_bytes, owner, deadline_ns)
            else:
                permit = await self._acquire(own_bytes, owner, deadline_ns)
            # Other replies may have been sent meanwhile, and their pieces released.
            still_missing_bytes = self._missing_bytes(form, pieces)
            if still_missing_bytes <= missing_bytes:
                break
            self._limiter.release(permit)
        if still_missing_bytes:
            self._permit = self._limiter.move(permit, still_missing_bytes, self._permit)
        self._limiter.lower(permit, own_bytes)
        senders = self._senders.setdefault(form, {})
        for piece in pieces:
            senders[piece] = senders.get(piece, 0) + 1
        return permit

    def passed(self, permit: Permit, form: Hashable, pieces: Sequence[Piece]) -> None:
        """A reply was sent or dropped: release its permit, and pieces that no other reply needs."""
        self._limiter.release(permit)
        senders = self._senders[form]
        freed_bytes = 0
        for piece in pieces:
            left = senders[piece] - 1
            if left:
                senders[piece] = left
            else:
                del senders[piece]
                freed_bytes += piece.written_bytes
        if freed_bytes:
            assert self._permit is not None, "pieces without memory"
            self._limiter.lower(self._permit, self._permit.size - freed_bytes)

    def _missing_bytes(self, form: Hashable, pieces: Sequence[Piece]) -> int:
        senders = self._senders.get(form, {})
        return sum(piece.written_bytes for piece in pieces if piece not in senders)

    async def _lead(self, nbytes: int, owner: Owner, deadline_ns: int | None) -> Permit:
        self._leading = True
        try:
            return await self._acquire(nbytes, owner, deadline_ns)
        finally:
            self._leading = False
            self._followers.release()

    async def _acquire(self, nbytes: int, owner: Owner, deadline_ns: int | None) -> Permit:
        return await self._limiter.acquire(nbytes, LimitType.DIRECT_MEMORY, owner=owner, deadline_ns=deadline_ns)

    async def _wait_for_leader(self, deadline_ns: int | None) -> None:
        if not await self._followers.wait(deadline_ns):
            refused = self._limiter.limiter(LimitType.DIRECT_MEMORY).names.refusal
            raise TooManyRequests(
                f"{refused}: somebody else waits for the memory of the same list; retry with back-off"
            )
