# SPDX-License-Identifier: Apache-2.0
"""How much request memory holds SENDs that wait for a limit, and how much may: of all connections, and of one.

Why no row: what is held stays charged to request memory, and bytes are charged once.
Where: brokers and proxies have one; each connection that holds SENDs charges its own part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.governance.request_memory import RequestMemory

# Parts of request memory that may be held: by all connections, and by one. What connections have sent before they stand
# still may be as much again.
_PART_OF_ALL: Final = 4
_PART_AT_MOST: Final = 2
_PART_OF_ONE: Final = 8


class HeldMemory:
    """What all connections hold, or one of them."""

    __slots__ = ("_part", "bytes", "clock", "of_all", "requests", "sends")

    def __init__(self, requests: RequestMemory, clock: Clock, of_all: HeldMemory | None = None) -> None:
        """Args: of_all: what all connections hold; None: this is it."""
        self.requests = requests
        self.clock = clock
        self.of_all = of_all or self
        self._part = _PART_OF_ALL if of_all is None else _PART_OF_ONE
        self.bytes = 0
        self.sends = 0

    def of_connection(self) -> HeldMemory:
        """Return the part of a connection, which holds nothing yet."""
        return HeldMemory(self.requests, self.clock, self)

    def charge(self, nbytes: int, sends: int) -> None:
        """Hold this much more."""
        self.bytes += nbytes
        self.sends += sends
        if self.of_all is not self:
            self.of_all.charge(nbytes, sends)

    def release(self, nbytes: int, sends: int) -> None:
        """Hold this much less."""
        self.charge(-nbytes, -sends)

    @property
    def full(self) -> bool:
        """Whether whoever would hold more stands still."""
        return self._is(self._part)

    @property
    def half_full(self) -> bool:
        """Whether half of it is held."""
        return self._is(2 * self._part)

    @property
    def overfull(self) -> bool:
        """Whether not even what was read already can be held."""
        return self._is(_PART_AT_MOST)

    def _is(self, part: int) -> bool:
        """Whether it holds this part of request memory, or of the number of requests."""
        return self.bytes * part >= self.requests.size or self.sends * part >= self.requests.requests_max
