# SPDX-License-Identifier: Apache-2.0
"""Whether a client still answers: PING at each keep-alive interval, and sooner when somebody waits for its place.

Where: each session has one; the broker's tick calls `check`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from penstock.core.units import NS_PER_S
from penstock.governance.muting import MuteReason
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.net.connection import Connection


class KeepAliveLimits(Protocol):
    """What the broker's limits say of it."""

    @property
    def keep_alive_ns(self) -> int: ...  # from one look to the next
    @property
    def liveness_check_ns(self) -> int: ...  # how long the answer to a probe may take


class Liveness:
    """The keep-alive of one connection."""

    def __init__(self, connection: Connection, limits: Callable[[], KeepAliveLimits], now_ns: int) -> None:
        self._connection = connection
        self._limits = limits
        self._ping_outstanding = False
        self._heard: asyncio.Event | None = None  # set while somebody waits for a sign of life
        self._movement = (0, 0)  # reads and bytes sent, at the last check
        self._next_check_ns = now_ns + limits().keep_alive_ns

    def check(self, now_ns: int, *, connected: bool) -> None:
        """Every keep-alive interval: close if nothing at all came since the last PING, else send another.

        While we do not read, an answer could not be seen, and the check is put off; unless we do not read because the
        client takes no answers: then it must have taken some since. A client that is not `connected` has sent no
        CONNECT yet.
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
        excused = any(mute.reason is not MuteReason.OUTBOUND for mute in connection.muted.snapshot())
        if self._ping_outstanding and not moved and not excused:
            connection.close("no answer to PING")
            return
        self._movement = (came, went)
        self._ping_outstanding = True
        connection.write_frame(codec.ping())

    async def probe(self) -> bool:
        """Whether the client still answers; it is closed when it doesn't.

        Asked before a newcomer is refused for a name or a place that this client holds: after a half-open connection
        the newcomer usually is the same client.
        """
        connection = self._connection
        if not connection.is_open:
            return False
        if connection.muted:
            return True
        before = connection.read_count
        if self._heard is None:
            # One PING for all who ask meanwhile: newcomers must not fill this client's socket with theirs.
            self._heard = asyncio.Event()
            connection.write_frame(codec.ping())
        heard = self._heard
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits().liveness_check_ns / NS_PER_S):
                await heard.wait()
        # A part of a large frame is an answer, too, though it is no event.
        if connection.read_count == before:
            connection.close("no answer to a liveness probe")
        return connection.is_open

    def heard(self) -> None:
        """Something came, or nothing will come any more: whoever waits goes on."""
        if self._heard is not None:
            self._heard.set()
            self._heard = None

    def answered(self) -> None:
        """A PONG came."""
        self._ping_outstanding = False
