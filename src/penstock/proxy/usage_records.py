# SPDX-License-Identifier: Apache-2.0
"""Usage records of a proxy: once a minute, what each topic and group has used through it, and the proxy altogether.

The counters are those of this run: a proxy keeps nothing on disk. They only grow, so a record that could not be written
costs resolution and nothing else: the next one says the same. Once half of the memory for counters is in use, topics
that were idle for IDLE_CYCLES_MAX intervals are forgotten; they are recorded.
Where: the proxy's tick, if usageRecordsEnabled.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.records import USAGE, UsageRecord
from penstock.core.errors import PenstockError
from penstock.core.names import TopicName
from penstock.core.units import MS_PER_S
from penstock.proxy.usage import UsageCounts, in_parts
from penstock.records.decisions import ENTRY_RECORDS_MAX
from penstock.records.usage import GroupUsage

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.accounting.totals import Totals
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.proxy.groups import ProxyGroups
    from penstock.proxy.usage import TopicUsage
    from penstock.records.decisions import RecordWriter

log = logging.getLogger(__name__)

IDLE_CYCLES_MAX: Final = 5
# Topics looked at, or encoded, in one turn of the loop: a millisecond or two.
LOOKED_AT_PER_TURN: Final = 500
ENCODED_PER_TURN: Final = 50
# The last records, when the proxy stops, in seconds.
FAREWELL_S: Final = 2.0


class UsageRecords:
    """Records what `counts` has. All methods are called on the event loop.

    Attributes:
        written: records written in this run.
        failures: cycles that failed; the next ones record their part.
    """

    def __init__(
        self,
        topic: RecordWriter,
        groups: ProxyGroups,
        memory: Row,
        unanswered: Row,
        *,
        name: str,
        own_topics: Collection[str],
        interval_s: float,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Receive what this uses.

        Args:
            topic: where records are written.
            groups: the resource groups.
            memory: of the counters.
            unanswered: memory of SENDs that wait for receipts.
            name: of this proxy, in the records.
            own_topics: topics of the proxies, which are not counted.
            interval_s: of the records.
            clock: wall clock.
            loop: the event loop.
        """
        self.written = 0
        self.failures = 0
        self.epoch = self._since_ms = clock.wall_ms()
        self.counts = UsageCounts(memory, unanswered, self._new_since_ms, own_topics)
        self._topic = topic
        self._groups = groups
        self._group_usage = GroupUsage()
        self._name = name
        self._interval_ms = max(1, round(interval_s * MS_PER_S))
        self._clock = clock
        self._loop = loop
        self._sequence = 0
        self._from_ms = clock.wall_ms()
        self._interval = self._interval_now()
        self._running: asyncio.Task[None] | None = None
        self._failed_before = False
        self._stopping = False

    def _new_since_ms(self) -> int:
        self._since_ms = max(self._since_ms + 1, self._clock.wall_ms())
        return self._since_ms

    def _interval_now(self) -> int:
        """The number of the present interval: brokers and proxies record at the same time."""
        return self._clock.wall_ms() // self._interval_ms

    async def finished(self) -> None:
        """Wait for the end of the cycle that is under way, if there is one."""
        if self._running is not None:
            await asyncio.wait((self._running,))

    def tick(self) -> None:
        """Begin a cycle if one is due."""
        self._group_usage.watch(self._groups.in_use)
        interval = self._interval_now()
        if self._running is None and interval != self._interval and not self._stopping:
            self._interval = interval
            self._begin()

    def _begin(self) -> asyncio.Task[None]:
        self._running = task = self._loop.create_task(self._run())
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.failures += 1
        self._group_usage.repeat()
        if not isinstance(error, PenstockError):
            log.error("usage records failed, trying again", exc_info=error)
        elif not self._failed_before:
            log.warning("usage is not recorded, trying again: %s", error)
        self._failed_before = True

    async def stop(self, limit_s: float = FAREWELL_S) -> bool:
        """Record what is left, for `limit_s` seconds at most; returns whether that is done.

        No client is connected any more.
        """
        self._stopping = True
        until_s = self._loop.time() + limit_s
        running = self._running
        if running is not None:
            await asyncio.wait((running,), timeout=limit_s)
        if running is None or running.done():
            running = self._begin()
            await asyncio.wait((running,), timeout=max(0.0, until_s - self._loop.time()))
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
        return not running.cancelled() and running.exception() is None

    async def _run(self) -> None:
        time_ms = self._clock.wall_ms()
        changed = await self._changed()
        for some in in_parts(changed, ENTRY_RECORDS_MAX):
            totals = [topic.totals for topic in some]
            records: list[bytes] = []
            for start in range(0, len(some), ENCODED_PER_TURN):
                part = slice(start, start + ENCODED_PER_TURN)
                records += map(self._of_topic, some[part], totals[part], repeat(time_ms))
                await asyncio.sleep(0)
            await self._topic.write(records, time_ms)
            self.written += len(records)
            for topic, recorded in zip(some, totals, strict=True):
                topic.recorded = recorded
        summed = self.counts.sum
        records = [
            self._encoded("group", time_ms, one.since_ms, one.totals, resource_groups=(one.name,), **one.more)
            for one in self._group_usage.changed(self._groups.in_use, self._clock.monotonic_ns(), self._new_since_ms)
        ]
        records.append(self._encoded("broker", time_ms, self.epoch, summed))
        await self._topic.write(records, time_ms)
        self.written += len(records)
        self._from_ms = time_ms
        self._failed_before = False

    async def _changed(self) -> list[TopicUsage]:
        """Topics whose counters have changed since they were recorded; others may be forgotten."""
        changed = []
        for some in in_parts(self.counts.topics(), LOOKED_AT_PER_TURN):
            for topic in some:
                if topic.totals != topic.recorded:
                    topic.idle_cycles = 0
                    changed.append(topic)
                else:
                    topic.idle_cycles += 1
                    if topic.idle_cycles > IDLE_CYCLES_MAX and self.counts.is_crowded:
                        self.counts.forget(topic)
            await asyncio.sleep(0)
        return changed

    def _of_topic(self, topic: TopicUsage, totals: Totals, time_ms: int) -> bytes:
        name = TopicName.parse(topic.text)
        return self._encoded(
            "topic",
            time_ms,
            topic.since_ms,
            totals,
            tenant=name.tenant,
            namespace=str(name.namespace_name),
            topic=topic.text,
            resource_groups=self._groups.definitions.of_topic(name),
        )

    def _encoded(self, scope: str, time_ms: int, since_ms: int, totals: Totals, **more: Any) -> bytes:  # noqa: ANN401
        record = UsageRecord(
            broker=self._name,
            epoch=self.epoch,
            sequence=self._sequence,
            from_ms=min(self._from_ms, time_ms),  # The clock may have been set back.
            time_ms=time_ms,
            scope=scope,
            counters_since_ms=since_ms,
            published_messages=totals.whole_messages_in,
            published_bytes=totals.bytes_in,
            dispatched_messages=totals.messages_out,
            dispatched_bytes=totals.bytes_out,
            publish_limited_times=totals.limited_times,
            published_chunks=totals.chunks_in if scope != "group" else None,
            **more,
        )
        self._sequence += 1
        return USAGE.encode(record)
