# SPDX-License-Identifier: Apache-2.0
"""Subscriptions that wait for dispatch memory: all of them try again twice a second.

Where: a dispatcher without memory for pending acknowledgements adds its subscription. The broker has one `MemoryWaits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

# Whoever is short of memory for unacknowledged ids looks again this often, and when some of its own are acknowledged.
SHORT_S: Final = 0.5


class Waiting(Protocol):
    """Who waits."""

    def wake(self) -> None:
        """Try again."""
        ...


class MemoryWaits:
    """Subscriptions that deliver nothing, for there is no memory for their pending acknowledgements."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Waiting, None] = {}  # in the order in which they came

    def add(self, waiting: Waiting) -> None:
        """Wake this one soon."""
        if not self._waiting:
            self._loop.call_later(SHORT_S, self._wake_all)
        self._waiting[waiting] = None

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.wake()
