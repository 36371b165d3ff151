# SPDX-License-Identifier: Apache-2.0
"""Keep-alive: sends PING at each interval, and earlier when another client waits for a name that this one holds.

Where: each session has one; the broker's tick calls `check`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from penstock.core.errors import PenstockError, ServiceNotReady, WireCode
from penstock.core.units import NS_PER_S
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import price
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.governance.budget import Row
    from penstock.governance.memory_pool import CommandMemory
    from penstock.net.connection import Connection


# ---------------------------------------------------------------------------------------------------------------------
# Pending requests of one client: they wait for the disk, a thread or another client.
#
# Every request is answered exactly once: by its handler, or with the error that the handler raised. Pending requests
# are charged (`governance/command_memory`); when a client has too many, nothing more is read from it. Where: each
# session has one, and cancels its requests when the client disconnects.

# Not a coroutine: a task that is cancelled before its first step would leave it un-awaited.
Work: TypeAlias = Callable[[], Awaitable[None]]

log = logging.getLogger(__name__)


class Requests:
    """The requests of one connection.

    Attributes:
        command_bytes: size of the current command, charged to the request that it starts.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        loop: asyncio.AbstractEventLoop,
        commands_memory: CommandMemory,
        sessions_memory: Row,
        reply: Callable[[bytes], None] | None = None,
    ) -> None:
        """Args: reply: sends a frame, where it cannot be written to the connection at any moment."""
        self.command_bytes = 0
        self._connection = connection
        self._loop = loop
        self._account = commands_memory.account()
        self._sessions_memory = sessions_memory
        self._tasks: dict[asyncio.Task[None], int] = {}  # bytes charged to each
        self._creating: set[tuple[str, int]] = set()
        self._reply = reply or connection.write_frame

    @property
    def waiting_bytes(self) -> int:
        return self._account.used_bytes

    def check_large(self, nbytes: int) -> None:
        """Raises ServiceNotReady if the memory for large commands is used up."""
        if not self._account.admits(price(nbytes)):
            raise ServiceNotReady(
                f"a command of {nbytes:,} bytes is refused: others as large take what there is for them; try again"
            )

    def start(self, request_id: int, answer: Work) -> asyncio.Task[None]:
        """Run a request as a task; an exception is sent to the client as its ERROR."""
        task = self._loop.create_task(self._answered(request_id, answer))
        self._tasks[task] = self.charge()
        task.add_done_callback(self._ended)
        return task

    def charge(self) -> int:
        """Charge the current command, which becomes pending; returns the bytes for `charge_back`.

        While too much is pending, nothing more is read from this client.
        """
        nbytes = price(self.command_bytes)
        self._account.charge(nbytes)
        if self._account.must_wait:
            self._connection.mute(HoldKind.COMMANDS)
        return nbytes

    def charge_back(self, nbytes: int) -> None:
        """Release the charge of a pending command."""
        self._account.release(nbytes)
        if self._account.may_go_on:
            self._connection.unmute(HoldKind.COMMANDS)

    @contextlib.contextmanager
    def waiting_long(self, what: str) -> Iterator[None]:
        """Use around a wait in the current request that may last for ever, such as for another producer to leave.

        Meanwhile the request is charged to the row of producers, consumers and watchers, so that the client can send
        further commands and cancel it.

        Raises:
            ServiceNotReady: that row is used up.
        """
        task = asyncio.current_task()
        assert task is not None, "only a request can wait"
        nbytes, memory = self._tasks[task], self._sessions_memory
        memory.charge_for(f"{what} that waits", nbytes)
        self._tasks[task] = 0
        self.charge_back(nbytes)
        try:
            yield
        finally:
            memory.release(nbytes)

    async def create_once(self, key: tuple[str, int], creation: Work) -> None:
        """Allow one creation at a time for each id chosen by the client."""
        if key in self._creating:
            raise ServiceNotReady(f"{key[0]} {key[1]} is still being created; try again")
        self._creating.add(key)
        try:
            await creation()
        finally:
            self._creating.discard(key)

    async def finished(self) -> None:
        """Wait until all requests of now are answered."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._account.close()
        self._reply = self._connection.write_frame  # It is closed. No cycle with its session is left.

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.charge_back(self._tasks.pop(task))

    async def _answered(self, request_id: int, answer: Work) -> None:
        try:
            await answer()
        except PenstockError as error:
            self._reply(codec.error(request_id, error.wire_code, str(error)))
        except Exception:
            log.exception("request %d of %s failed", request_id, self._connection.peer)
            self._reply(codec.error(request_id, WireCode.UNKNOWN_ERROR, "internal error; the broker's log has it"))


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
