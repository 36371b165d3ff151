# SPDX-License-Identifier: Apache-2.0
"""Memory that requests of the admin port may take together: their bodies, what is made of them, and their answers.

Why: sixty bodies of a few megabytes, each parsed into objects of fifty times its size, or sixty answers of one large
message each, would end the broker. So each request charges what it causes before it causes it. When the row is full, a
request waits for a moment, and is then answered with 503 and asked to come again.
Where: `middleware` makes a charge for each request and gives it back when the answer is sent; routes find it in the
scope. Everything here runs on the admin port's own loop. `/healthz` and `/metrics` charge nothing and never wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB, MIB
from penstock.governance.memory_row import MemoryRow

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

# In the scope of a request: its charge.
CHARGE: Final = "penstock.charge"
# How long a request waits for memory, and what it is told to wait before it comes again.
WAIT_S: Final = 2.0
RETRY_AFTER_S: Final = 1

# What a body becomes while it is read and parsed, as measured (tests/admin/test_http_memory.py): the bytes twice, a
# text of up to four bytes a character, and its parts again. Each value of a list of wrong values becomes a description
# of what is wrong with it.
BODY_FACTOR: Final = 10
VALUE_BYTES: Final = 1_500


class HttpMemory:
    """The row of the memory budget that requests of the admin port charge.

    One request at a time may go beyond the row: a limit of a few megabytes must not keep the largest message from being
    shown. So all together take the row and the largest request at most.
    """

    def __init__(self, row: MemoryRow | None = None, *, entry_bytes_max: int = 5 * MIB + 64 * KIB) -> None:
        """Charge `row`; `entry_bytes_max`: the largest entry there can be in a topic."""
        self._row = row or MemoryRow("http", 32 * MIB)
        self.entry_bytes_max = entry_bytes_max
        self.dropping = 0  # requests whose body is read and dropped, after they were refused
        self._beyond: Charge | None = None  # who has gone beyond the row
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes of all requests at work."""
        return self._row.used_bytes

    def charge(self) -> Charge:
        """The charge of a new request: nothing yet."""
        return Charge(self, self._row)

    async def wait_for_room(self, nbytes: int, charge: Charge) -> None:
        """Return when `nbytes` more are in the books for this charge. Raises ServiceNotReady."""
        if not self._waiting and self._try(nbytes, charge):
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WAIT_S
        while True:
            place: asyncio.Future[None] = loop.create_future()
            self._waiting.append(place)
            try:
                async with asyncio.timeout_at(until_s):
                    await place
            except asyncio.CancelledError:
                self.wake()  # It may have been told to try, and will not.
                raise
            except TimeoutError:
                self.wake()
                self._row.refused_total += 1
                raise ServiceNotReady(
                    f"requests at the admin port hold {self._row.used_bytes} of {self._row.size_bytes} bytes, and this "
                    f"one needs {nbytes} more: try again, or raise memoryLimitMB"
                ) from None
            finally:
                if place in self._waiting:
                    self._waiting.remove(place)
            if self._try(nbytes, charge):
                self.wake()
                return

    def _try(self, nbytes: int, charge: Charge) -> bool:
        if nbytes > self._row.available_bytes:
            if self._beyond not in {None, charge}:
                return False
            self._beyond = charge
        self._row.take(nbytes)
        return True

    def given_back(self, charge: Charge) -> None:
        """This charge has become smaller."""
        if charge is self._beyond and (self._row.available_bytes >= 0 or not charge.held_bytes):
            self._beyond = None
        self.wake()

    def wake(self) -> None:
        """Let the first that waits try again."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return


class Charge:
    """What one request holds, until it is left as a context manager.

    Attributes:
        memory: where it is in the books.
        held_bytes: how much it is.
    """

    __slots__ = ("_row", "held_bytes", "memory")

    def __init__(self, memory: HttpMemory, row: MemoryRow) -> None:
        self.memory = memory
        self._row = row
        self.held_bytes = 0

    async def take(self, nbytes: int) -> None:
        """Charge so much more, waiting for it for `WAIT_S`. Raises ServiceNotReady."""
        await self.memory.wait_for_room(nbytes, self)
        self.held_bytes += nbytes

    def hold(self, nbytes: int) -> None:
        """This is what is left of it, or what exists already."""
        more = nbytes - self.held_bytes
        self.held_bytes = nbytes
        if more > 0:
            self._row.take(more)
        elif more < 0:
            self._row.give_back(-more)
            self.memory.given_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hold(0)
