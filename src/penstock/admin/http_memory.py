# SPDX-License-Identifier: Apache-2.0
"""The memory that requests of the admin port share: for bodies, parsed objects and responses.

Why: sixty bodies of a few megabytes, each parsed into objects of fifty times its size, or sixty responses of one large
message each, would end the broker. So each request charges memory before it uses it. When the row is full, a request
waits for a moment, and then gets 503 with a Retry-After.

Where: `middleware` creates a charge for each request and releases it when the response is sent; routes find it in the
scope. Everything here runs on the admin port's own loop. `/healthz` and `/metrics` charge nothing and never wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB, MIB
from penstock.governance.budget import Charge, Row

if TYPE_CHECKING:
    from typing import Self

# The key of the charge in the scope of a request.
CHARGE: Final = "penstock.charge"
# How long a request waits for memory, and its Retry-After.
WAIT_S: Final = 2.0
RETRY_AFTER_S: Final = 1

# The memory of a body while it is read and parsed, as measured (tests/admin/test_http_memory.py): the bytes twice, a
# text of up to four bytes per character, and its parts again. Each invalid value of a list becomes an error message.
BODY_FACTOR: Final = 10
VALUE_BYTES: Final = 1_500


class HttpMemory:
    """The row of the memory budget that requests of the admin port charge.

    One request at a time may exceed the row: a limit of a few megabytes must not prevent showing the largest message.
    The others share the row beside it, so all together use at most the row and the largest request.
    """

    def __init__(self, row: Row | None = None, *, entry_bytes_max: int = 5 * MIB + 64 * KIB) -> None:
        """Charge `row`; `entry_bytes_max` is the size of the largest possible entry."""
        self._row = row or Row("http", 32 * MIB)
        self.entry_bytes_max = entry_bytes_max
        self.dropping = 0  # requests whose body is read and dropped, after they were refused
        self._beyond: RequestCharge | None = None  # the request that exceeds the row
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def used_bytes(self) -> int:
        """The bytes of all current requests."""
        return self._row.used_bytes

    def charge(self) -> RequestCharge:
        """Return the charge of a new request."""
        return RequestCharge(self, self._row)

    async def wait_for_room(self, nbytes: int, charge: RequestCharge) -> None:
        """Wait until `nbytes` more are charged. Raises ServiceNotReady."""
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
                self.wake()  # It may have been woken: wake the next one instead.
                raise
            except TimeoutError:
                self.wake()
                self._row.refused_total += 1
                raise ServiceNotReady(
                    f"requests at the admin port hold {self._row.used_bytes} of {self._row.limit_bytes} bytes, and "
                    f"this one needs {nbytes} more: try again, or raise memoryLimitMB"
                ) from None
            finally:
                if place in self._waiting:
                    self._waiting.remove(place)
            if self._try(nbytes, charge):
                self.wake()
                return

    def _try(self, nbytes: int, charge: RequestCharge) -> bool:
        beyond_bytes = self._beyond.charged_bytes if self._beyond is not None else 0
        if self._beyond is not charge and nbytes > self._row.available_bytes + beyond_bytes:
            if self._beyond is not None:
                return False
            self._beyond = charge
        charge.charge(nbytes)
        return True

    def released(self, charge: RequestCharge) -> None:
        """Note that this charge has become smaller."""
        if charge is self._beyond and (self._row.available_bytes >= 0 or not charge.charged_bytes):
            self._beyond = None
        self.wake()

    def wake(self) -> None:
        """Let the first waiting request try again."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return


class RequestCharge(Charge):
    """The memory of one request, released when the context manager ends.

    Attributes:
        memory: the memory that it is charged to.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: HttpMemory, row: Row) -> None:
        super().__init__(row)
        self.memory = memory

    async def charge_when_free(self, nbytes: int) -> None:
        """RequestCharge `nbytes` more, and wait for them up to `WAIT_S`. Raises ServiceNotReady."""
        await self.memory.wait_for_room(nbytes, self)

    def recharge(self, nbytes: int) -> None:
        """Set the charge to `nbytes`: the rest is released, or the memory is in use already."""
        shrinks = nbytes < self.charged_bytes
        super().recharge(nbytes)
        if shrinks:
            self.memory.released(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()
