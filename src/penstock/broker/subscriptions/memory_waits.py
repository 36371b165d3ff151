# SPDX-License-Identifier: Apache-2.0
"""Subscriptions that wait for dispatch memory: all retry twice a second.

Where: a dispatcher without memory for pending acknowledgements adds its subscription. The broker has one `MemoryWaits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

# Interval of retries; a subscription also retries when its own entries are acknowledged.
SHORT_S: Final = 0.5


class Waiting(Protocol):
    """A waiting subscription."""

    def wake(self) -> None: ...


class MemoryWaits:
    """Subscriptions that cannot deliver, because there is no memory for pending acknowledgements."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Waiting, None] = {}  # in order of arrival

    def add(self, waiting: Waiting) -> None:
        """Wake this subscription soon."""
        if not self._waiting:
            self._loop.call_later(SHORT_S, self._wake_all)
        self._waiting[waiting] = None

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.wake()
