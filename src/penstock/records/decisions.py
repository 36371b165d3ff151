# SPDX-License-Identifier: Apache-2.0
"""Decision records: who was slowed or refused, by which limiter, when and for how long.

A bounded queue is between the limiters and the disk. Records that it has no room for are dropped and counted, and so
are those beyond the permitted number per second: recording must never slow what it records. Dropped records leave a
gap in the sequence numbers.

Where: the tick of a broker or a proxy, if governanceRecordsEnabled. Adaptive throttling passes its decisions as they
are made; other limiters are looked at once a second (`limiters_seen`), and recorded as episodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from penstock.accounting.episodes import Episodes
from penstock.accounting.records import DECISION, DecisionRecord
from penstock.core.errors import PenstockError
from penstock.core.units import KIB, MIB, NS_PER_S
from penstock.governance.adaptive_throttle import GROUP
from penstock.governance.budget import Row
from penstock.governance.holds import HoldKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from penstock.core.clock import Clock
    from penstock.governance.adaptive_throttle import ThrottleDecision
    from penstock.records.limiters_seen import Look


# -- divides records into entries. Where: all that write records -------------------------------------------------------

# Records of one entry: a batch that a client decodes at once, and about what one turn of the loop encodes.
ENTRY_RECORDS_MAX: Final = 250
ENTRY_BYTES_MAX: Final = 64 * KIB


def entries_of(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield runs of records for one entry each."""
    start = size = 0
    for row, record in enumerate(records):
        if row > start and (row - start == ENTRY_RECORDS_MAX or size + len(record) > ENTRY_BYTES_MAX):
            yield records[start:row]
            start, size = row, 0
        size += len(record)
    if start < len(records):
        yield records[start:]


log = logging.getLogger(__name__)

LOOK_EVERY_NS: Final = NS_PER_S
QUEUE_BYTES_MAX: Final = MIB
# Measured: a queued record beside its bytes.
RECORD_OVERHEAD_BYTES: Final = 150
# Written at once; the next ones wait until these are durable.
WRITTEN_AT_ONCE: Final = 100
# The last records, when the broker stops.
FAREWELL_S: Final = 2.0
# Reasons and names in records are cut to this: a queue of long names would hold few.
TEXT_MAX: Final = 4 * KIB


class Queued(NamedTuple):
    """An encoded record."""

    data: bytes
    time_ms: int


class RecordWriter(Protocol):
    """Writes to a topic of records."""

    async def create(self) -> None:
        """Create the topic and its schema, so that readers can subscribe. Raises PenstockError."""

    async def write(self, records: Sequence[bytes], time_ms: int) -> None:
        """Append encoded records; returns when they are stored. Raises PenstockError: they were not, or not all."""


class Seen(Protocol):
    """Looks at limiters."""

    async def look(self, now_ns: int) -> Look:
        """Return what they have done since the last look."""


class DecisionRecords:
    """The queue and its writer. All methods are called on the event loop.

    Attributes:
        memory: of the queue.
        written: records written in this run.
        dropped: records that were not, by reason.
        failures: writes that failed.
    """

    def __init__(
        self,
        topic: RecordWriter,
        seen: Seen,
        *,
        name: str,
        epoch: int,
        per_second: Callable[[], int],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Args: name: of the broker or proxy. per_second: returns how many records may be made each second."""
        self.memory = Row("decision-records", QUEUE_BYTES_MAX)
        self.written = 0
        self.dropped: Counter[str] = Counter()
        self.failures = 0
        self.epoch = epoch
        self._topic = topic
        self._seen = seen
        self._name = name
        self._per_second = per_second
        self._clock = clock
        self._loop = loop
        self._episodes = Episodes()
        self._queue: deque[Queued] = deque()
        self._sequence = 0
        self._second = 0
        self._made = 0  # records in that second
        self._looked_ns = clock.monotonic_ns()
        self._looking: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = loop.create_task(self._create())
        self._writing.add_done_callback(self._written)
        self._stopping = False
        self._failed_before = False

    # -- decisions

    def throttled(self, decision: ThrottleDecision) -> None:
        """Adaptive throttling has decided something about a topic, or about all topics of a payer."""
        kind, observed_only = _OF_THROTTLE[decision.kind.value]
        if decision.topic:
            tenant, namespace = decision.topic.partition("://")[2].split("/", 2)[:2]
            about = {"tenant": tenant, "namespace": f"{tenant}/{namespace}", "topic": decision.topic}
        else:
            kind_of_payer = "resource_group" if decision.payer.startswith(GROUP) else "tenant"
            about = {kind_of_payer: decision.payer.removeprefix(GROUP)}
        pressures = decision.pressures
        reason = decision.why or (
            f"memory pressure {pressures.memory:.2f}, backlog pressure {pressures.backlog:.2f}, "
            f"queueing pressure {pressures.queueing:.2f}, weight {pressures.weight:.2f}"
        )
        of_messages = decision.rate_messages is not None or decision.rate_bytes is None
        self.record(
            kind=kind,
            limiter=HoldKind.ADAPTIVE_RATE.value,
            reason=reason,
            **about,
            unit="messages/s" if of_messages else "bytes/s",
            before=decision.natural_messages if of_messages else decision.natural_bytes,
            after=decision.rate_messages if of_messages else decision.rate_bytes,
            observed_only=observed_only,
        )

    def record(self, **fields: Any) -> None:  # noqa: ANN401 - of `DecisionRecord`
        """Queue a record, or drop and count it."""
        now_ms = self._clock.wall_ms()
        sequence, self._sequence = self._sequence, self._sequence + 1
        if self._too_many(now_ms):
            self.dropped["too-many"] += 1
            return
        texts = {name: value[:TEXT_MAX] for name, value in fields.items() if isinstance(value, str)}
        data = DECISION.encode(
            DecisionRecord(
                **{"since_ms": now_ms, **fields, **texts},
                broker=self._name,
                epoch=self.epoch,
                sequence=sequence,
                time_ms=now_ms,
            )
        )
        if not self.memory.try_charge(len(data) + RECORD_OVERHEAD_BYTES):
            self.dropped["queue-full"] += 1
            return
        self._queue.append(Queued(data, now_ms))

    def _too_many(self, now_ms: int) -> bool:
        second = now_ms // 1_000
        if second != self._second:
            self._second, self._made = second, 0
        self._made += 1
        return self._made > self._per_second()

    # -- time

    def tick(self, now_ns: int) -> None:
        """Look at the limiters, and write what is queued, if it is time."""
        if self._stopping:
            return
        if self._looking is None and now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self._looking = self._loop.create_task(self._look(now_ns))
            self._looking.add_done_callback(self._looked)
        self._write_soon()

    def _write_soon(self) -> None:
        if self._queue and self._writing is None:
            self._writing = self._loop.create_task(self._write())
            self._writing.add_done_callback(self._written)

    async def _look(self, now_ns: int) -> None:
        look = await self._seen.look(now_ns)
        now_ms, missed = self._clock.wall_ms(), self._episodes.missed
        for who in look.keys() | look.held_ns.keys():
            begun = self._episodes.seen(who, now_ns, now_ms, times=look[who], held_ns=look.held_ns[who])
            if begun is not None:
                self.record(**begun)
        for fields in self._episodes.pass_time(now_ns):
            self.record(**fields)
        self.dropped["too-many-episodes"] += self._episodes.missed - missed + look.missed

    def _looked(self, task: asyncio.Task[None]) -> None:
        self._looking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures += 1
            log.error("limiters could not be looked at", exc_info=error)

    async def _create(self) -> None:
        await self._topic.create()

    async def _write(self) -> None:
        while self._queue:
            some = [self._queue.popleft() for _ in range(min(WRITTEN_AT_ONCE, len(self._queue)))]
            try:
                await self._topic.write([one.data for one in some], some[-1].time_ms)
            except BaseException:
                self.dropped["not-stored"] += len(some)
                raise
            finally:
                self.memory.release(sum(len(one.data) + RECORD_OVERHEAD_BYTES for one in some))
            self.written += len(some)
            self._failed_before = False

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if task.cancelled() or (error := task.exception()) is None:
            return
        self.failures += 1
        if not isinstance(error, PenstockError):
            log.error("decisions could not be recorded", exc_info=error)
        elif not self._failed_before:
            log.warning("decisions are not recorded: %s", error)
        self._failed_before = True

    async def stop(self, limit_s: float = FAREWELL_S) -> int:
        """Write what is queued, for `limit_s` seconds at most; returns how many records were not stored."""
        lost_before = self.dropped["not-stored"]
        until_s = self._loop.time() + limit_s
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        if self._writing is not None:  # It may have begun before the last records came, or only create the topic.
            await asyncio.wait((self._writing,), timeout=limit_s)
        self._write_soon()
        if self._writing is not None:
            await asyncio.wait((self._writing,), timeout=max(0.0, until_s - self._loop.time()))
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))
        self.dropped["not-stored"] += len(self._queue)
        self.memory.release(sum(len(one.data) + RECORD_OVERHEAD_BYTES for one in self._queue))
        self._queue.clear()
        return self.dropped["not-stored"] - lost_before


# By the words of `adaptive_throttle.Kind`, which is not imported for this: throttling may be off.
_OF_THROTTLE: Final = {
    "activated": ("begun", False),
    "step": ("changed", False),
    "deactivated": ("ended", False),
    "would-activate": ("begun", True),
    "would-step": ("changed", True),
    "would-deactivate": ("ended", True),
}
