# SPDX-License-Identifier: Apache-2.0
"""The table of topics and the overview that all open consoles share.

Why shared: to take one, every topic is looked at. Ten consoles that look each second cost no more than one, and a
broker with very many topics is looked at less often: looking takes a thirtieth of the broker's loop at most.
Why two: the table takes the loop a few microseconds for each topic, so that its first page is there in a moment. An
overview counts what waits, which takes longer, and is for superusers only.
Why kept: a console asks for the next page of the same table. It is charged to the memory of the admin port, and dropped
when nobody has looked for a minute.
Where: the routes of the console. Everything here runs on the admin port's own loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from penstock.admin import overview
from penstock.admin.topic_table import TopicTable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.admin.gateway import Ask
    from penstock.admin.http_memory import HttpMemory, RequestCharge

# A look is shown for so long, and for so long for each topic and each subscription: thirty times what the broker's
# loop works for one, as measured. Not what a look took: on a busy machine it waits for most of that time.
FRESH_S: Final = 1.0
TABLE_FRESH_S_PER_ROW: Final = 0.000_1
OVERVIEW_FRESH_S_PER_ROW: Final = 0.000_25
KEPT_S: Final = 60.0

T = TypeVar("T")


class Taken(NamedTuple, Generic[T]):
    """Something that was taken, how long it is shown, and its memory."""

    value: T
    fresh_s: float
    size_bytes: int


class Shared(Generic[T]):
    """The latest one of its kind: taken when somebody wants it and the last one is old."""

    def __init__(self, take: Callable[[HttpMemory], Awaitable[Taken[T]]]) -> None:
        self._take = take
        self._value: T | None = None
        self._charge: RequestCharge | None = None
        self._fresh_until_s = 0.0
        self._taking: asyncio.Task[T] | None = None
        self._forgetting: asyncio.TimerHandle | None = None

    async def get(self, memory: HttpMemory) -> T:
        """Return the latest one. Raises ServiceNotReady: the broker does not answer, or there is no memory for it."""
        loop = asyncio.get_running_loop()
        self._keep(loop)
        if self._value is not None and loop.time() < self._fresh_until_s:
            return self._value
        return await self.renew(memory)

    async def renew(self, memory: HttpMemory) -> T:
        """Take one, or wait for that which is being taken."""
        loop = asyncio.get_running_loop()
        if self._taking is None or self._taking.get_loop() is not loop:
            self._taking = loop.create_task(self._taken(memory, loop))
            self._taking.add_done_callback(self._has_taken)
        return await asyncio.shield(self._taking)  # A caller that is cancelled must not cancel the others.

    async def _taken(self, memory: HttpMemory, loop: asyncio.AbstractEventLoop) -> T:
        taken = await self._take(memory)
        charge = memory.charge()
        self._drop()  # Before the new one is charged: both together may be more than there is.
        await charge.charge_when_free(taken.size_bytes)
        self._value, self._charge = taken.value, charge
        self._fresh_until_s = loop.time() + taken.fresh_s
        self._keep(loop)
        return taken.value

    def _has_taken(self, taking: asyncio.Task[T]) -> None:
        self._taking = None
        if not taking.cancelled():
            taking.exception()  # Whoever has waited for it was told; if nobody has, it does not matter.

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = loop.call_later(KEPT_S, self._drop)

    def _drop(self) -> None:
        self._value = None
        if self._charge is not None:
            self._charge.release()
            self._charge = None


class Looks:
    """The table and the overview that are shared."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.topics: Shared[TopicTable] = Shared(self._table)
        self.overview: Shared[dict[str, Any]] = Shared(self._overview)

    async def _table(self, _memory: HttpMemory) -> Taken[TopicTable]:
        table = TopicTable(await self._ask(lambda broker: broker.topic_rows.read()))
        return Taken(table, FRESH_S + TABLE_FRESH_S_PER_ROW * table.rows_read, table.size_bytes)

    async def _overview(self, memory: HttpMemory) -> Taken[dict[str, Any]]:
        number, name = await self._ask(lambda broker: (broker.service.number, broker.service.id))
        # Taken together: pages make rates of the counters of both.
        table = await self.topics.renew(memory)
        snapshot = await self._ask(lambda broker: broker.snapshots.without_topics.take())
        seen = overview.of_broker(snapshot, number, name, table.totals())
        return Taken(seen, FRESH_S + OVERVIEW_FRESH_S_PER_ROW * table.rows_read, 0)
