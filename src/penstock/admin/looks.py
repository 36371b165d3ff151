# SPDX-License-Identifier: Apache-2.0
"""One look at a broker for all consoles that are open: an overview, and a table of its topics.

Why shared: a look reads every topic. Ten consoles that look each second cost no more than one, and a broker with very
many topics is looked at less often: looking takes a thirtieth of the time of the broker's loop at most.
Why kept: a console asks for the next page of the same table. It is charged to the memory of the admin port, and dropped
when nobody has looked for a minute.
Where: the routes of the console. Everything here runs on the admin port's own loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.admin import overview
from penstock.admin.topic_table import TopicTable

if TYPE_CHECKING:
    from penstock.admin.gateway import Ask
    from penstock.admin.http_memory import HttpMemory, RequestCharge

# A look is as old as this at most, and this much for each topic and each subscription: thirty times what the broker's
# loop works for one, as measured. Not what a look took: on a busy machine it waits for most of that time.
FRESH_S: Final = 1.0
FRESH_S_PER_ROW: Final = 0.001
KEPT_S: Final = 60.0


class Look(NamedTuple):
    """A broker at one moment."""

    overview: dict[str, Any]
    topics: TopicTable


def fresh_s(rows: int) -> float:
    """Return for how long a look is shown. Args: rows: topics and subscriptions that it has read."""
    return FRESH_S + FRESH_S_PER_ROW * rows


class Looks:
    """The look that is shared."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._look: Look | None = None
        self._charge: RequestCharge | None = None
        self._fresh_until_s = 0.0
        self._looking: asyncio.Task[Look] | None = None
        self._forgetting: asyncio.TimerHandle | None = None

    async def now(self, memory: HttpMemory) -> Look:
        """Return the latest look. Raises ServiceNotReady: the broker does not answer, or there is no memory for it."""
        loop = asyncio.get_running_loop()
        self._keep(loop)
        if self._look is not None and loop.time() < self._fresh_until_s:
            return self._look
        if self._looking is None or self._looking.get_loop() is not loop:
            self._looking = loop.create_task(self._take(memory, loop))
            self._looking.add_done_callback(self._has_looked)
        return await asyncio.shield(self._looking)  # A caller that is cancelled must not cancel the others.

    async def _take(self, memory: HttpMemory, loop: asyncio.AbstractEventLoop) -> Look:
        ask = self._ask
        number, name = await ask(lambda broker: (broker.service.number, broker.service.id))
        others = await ask(lambda broker: broker.topics.not_loaded())
        snapshot = await ask(lambda broker: broker.snapshots.take())
        table = TopicTable()
        await table.fill(snapshot.topics, others)
        look = Look(overview.of_broker(snapshot, number, name, table.totals()), table)
        charge = memory.charge()
        self._drop()  # Before the new one is charged: both together may be more than there is.
        await charge.charge_when_free(table.size_bytes)
        self._look, self._charge = look, charge
        self._fresh_until_s = loop.time() + fresh_s(table.rows_read)
        return look

    def _has_looked(self, looking: asyncio.Task[Look]) -> None:
        self._looking = None
        if not looking.cancelled():
            looking.exception()  # Whoever has waited for it was told; if nobody has, it does not matter.

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = loop.call_later(KEPT_S, self._drop)

    def _drop(self) -> None:
        self._look = None
        if self._charge is not None:
            self._charge.release()
            self._charge = None
