# SPDX-License-Identifier: Apache-2.0
"""Keep-alive: sends PING at each interval, and earlier when another client waits for a name that this one holds.

Where: each session has one; the broker's tick calls `check`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.net.connection import Connection


class KeepAliveLimits(Protocol):
    """Limits of the broker for keep-alive."""

    @property
    def keep_alive_ns(self) -> int: ...  # interval between checks
    @property
    def liveness_check_ns(self) -> int: ...  # time limit for the answer to a probe


class KeepAlive:
    """The keep-alive of one connection."""

    def __init__(self, connection: Connection, limits: Callable[[], KeepAliveLimits], now_ns: int) -> None:
        self._connection = connection
        self._limits = limits
        self._ping_outstanding = False
        self._heard: asyncio.Event | None = None  # set while a probe waits for data
        self._movement = (0, 0)  # reads and bytes sent, at the last check
        self._next_check_ns = now_ns + limits().keep_alive_ns

    def check(self, now_ns: int, *, connected: bool) -> None:
        """Called at each keep-alive interval: close if nothing arrived since the last PING, else send another.

        While the connection is not read, an answer cannot be seen, so the check is postponed. If it is not read because
        the client does not read its answers, it must have read some since the last check. A client that is not
        `connected` has not sent CONNECT yet.
        """
        if now_ns < self._next_check_ns:
            return
        self._next_check_ns = now_ns + self._limits().keep_alive_ns
        connection = self._connection
        if not connected:
            connection.close("no CONNECT within the keep-alive interval")
            return
        came, went = connection.read_count, connection.bytes_out
        moved = (came, went) != self._movement if connection.muted else came != self._movement[0]
        excused = connection.muted.but_for(HoldKind.OUTBOUND)
        if self._ping_outstanding and not moved and not excused:
            connection.close("no answer to PING")
            return
        self._movement = (came, went)
        self._ping_outstanding = True
        connection.write_frame(codec.ping())

    async def probe(self) -> bool:
        """Whether the client still answers; if not, it is closed.

        Used before a new client is refused because of a name or place that this one holds: after a half-open
        connection, the new client usually is the same client.
        """
        connection = self._connection
        if not connection.is_open:
            return False
        if connection.muted:
            return True
        before = connection.read_count
        if self._heard is None:
            # All concurrent probes share one PING, so that they cannot fill this client's socket.
            self._heard = asyncio.Event()
            connection.write_frame(codec.ping())
        heard = self._heard
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits().liveness_check_ns / NS_PER_S):
                await heard.wait()
        # Part of a large frame counts as an answer, although it makes no event.
        if connection.read_count == before:
            connection.close("no answer to a liveness probe")
        return connection.is_open

    def heard(self) -> None:
        """Data arrived, or the connection is closed: wake the probes."""
        if self._heard is not None:
            self._heard.set()
            self._heard = None

    def answered(self) -> None:
        self._ping_outstanding = False
