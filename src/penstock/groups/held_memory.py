# SPDX-License-Identifier: Apache-2.0
"""How much request memory may hold SENDs that wait for a resource group.

Where: the broker has one; `held_sends` counts what each connection holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from penstock.core.clock import Clock
    from penstock.governance.request_memory import RequestMemory

# Parts of request memory that may be held: by all connections, and by one. What connections have sent before they stand
# still may be as much again.
_PART_OF_ALL: Final = 4
_PART_AT_MOST: Final = 2
_PART_OF_ONE: Final = 8


class HeldMemory:
    """How much all connections hold, and how much they may."""

    __slots__ = ("bytes", "clock", "loop", "memory", "sends")

    def __init__(self, memory: RequestMemory, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.memory = memory
        self.clock = clock
        self.loop = loop
        self.bytes = 0
        self.sends = 0

    @property
    def full(self) -> bool:
        """Whether connections stand still at once that would hold more."""
        memory = self.memory
        return self.bytes * _PART_OF_ALL >= memory.size or self.sends * _PART_OF_ALL >= memory.requests_max

    @property
    def overfull(self) -> bool:
        """Whether not even what was read already can be held."""
        memory = self.memory
        return self.bytes * _PART_AT_MOST >= memory.size or self.sends * _PART_AT_MOST >= memory.requests_max

    def full_for_one(self, nbytes: int, sends: int) -> bool:
        """Whether one connection holds all that it may."""
        memory = self.memory
        return nbytes * _PART_OF_ONE >= memory.size or sends * _PART_OF_ONE >= memory.requests_max
