# SPDX-License-Identifier: Apache-2.0
"""Usage records: once a minute, what each topic and each resource group has used, and this broker altogether.

A cycle reads the counters that exist anyway, in turns of the loop, and waits until what they count is durable. Then it
stores the counters of topics that changed with the topics (`usage_counts`), then their sum (`UsageState`), and then
records all of it. In this order, because a crash in between must neither lose nor invent anything: what was stored and
not recorded is recorded after the restart, and what is stored never goes back.

Entries that are not in the stored counters are not trimmed (`Topic.counted_before`), so that they can be counted after
a crash. So that they do not fill the disk meanwhile, counters are also stored whenever SETTLE_BYTES were appended.

Where: the broker's tick, if usageRecordsEnabled; the loader tells of topics. After the last client is gone, `stop` runs
a last cycle. It waits for no log to be read: what a crash has left and is not counted yet, the next start counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from penstock.accounting.records import USAGE, UsageRecord
from penstock.accounting.totals import NOTHING, Totals
from penstock.broker.records.client_usage import ClientUsage
from penstock.broker.records.storage_usage import StorageUsage, StoredTopic
from penstock.broker.records.usage_counts import StoredCount, TopicCount
from penstock.core.errors import PenstockError, ReadFailed, TopicNotFound
from penstock.core.system_topics import is_record_topic
from penstock.core.units import MIB, MS_PER_S
from penstock.records.usage import GroupUsage
from penstock.storage.schema import USAGE_COUNTS, USAGE_STATE
from penstock.wire.metadata import is_followed_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.records.client_usage import ClientCount, Principal
    from penstock.broker.records.record_topic import RecordTopic
    from penstock.broker.records.storage_usage import Stored
    from penstock.broker.records.usage_counts import CountedTopic, Sample
    from penstock.core.clock import Clock
    from penstock.groups.group import Group
    from penstock.storage.catalog import Catalog, TopicRecord
    from penstock.storage.catalog_rows import Document
    from penstock.storage.entry_log import EntryLog


# ---------------------------------------------------------------------------------------------------------------------
# What is stored about counting usage as a whole: cycles, and the broker's own sum.
#
# The sum survives restarts as the counters of topics do, and is stored with the number of the cycle that it goes up to.
# A topic's stored counters say how much of them no earlier sum has. So after a crash the sum goes on where it was, with
# what was stored and not summed, and without what was summed and not recorded.


@dataclass(slots=True)
class UsageState:
    """Stored state of counting as a whole.

    Attributes:
        epoch: of the last run.
        first_ledger: topics with smaller ledger ids are older than counting.
        first_cycle: counters that were stored in an earlier cycle are of an earlier time when counting was switched on.
        recorded: the last cycle whose counters are all recorded.
        since_ms: the last `counters_since_ms` that was given out.
        counting: whether the last run counted.
        summed: the last cycle whose counters are all in `total`.
        total: what all topics have done since `total_since_ms`.
        total_since_ms: 0 if nothing was summed yet.
    """

    epoch: int = 0
    first_ledger: int = 0
    first_cycle: int = 0
    recorded: int = 0
    since_ms: int = 0
    counting: bool = False
    summed: int = 0
    total: Totals = NOTHING
    total_since_ms: int = 0

    def document(self) -> Document:
        return {**asdict(self), "total": list(self.total)}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> UsageState:
        return cls(**{**document, "total": Totals(*document.get("total", ()))})

    def begin_total(self, since_ms: int) -> None:
        """Sum from now on what is stored by later cycles than the recorded ones."""
        self.summed, self.total, self.total_since_ms = self.recorded, NOTHING, since_ms


log = logging.getLogger(__name__)

# Topics looked at, and rows stored or records encoded, in one turn of the loop: a millisecond or two each.
LOOKED_AT_PER_TURN: Final = 500
STORED_PER_TURN: Final = 50
ENCODED_PER_TURN: Final = 50
# Counters are stored after so many bytes: entries of a few segments wait for it before their space is reclaimed.
SETTLE_BYTES: Final = 256 * MIB
# Topics that are gone and not recorded, about 0.5 KiB each: a client may create and delete them as fast as it can.
GONE_MAX: Final = 5_000
# Entries read at a time, to count what a crash has left uncounted.
GAP_BYTES: Final = MIB
GAP_ENTRIES: Final = 10_000


class UsageRecords:
    """Counts and records. All methods are called on the event loop.

    Attributes:
        written: records written in this run.
        cycles: that have recorded all that there was.
        failures: cycles that failed; what they had to record is recorded by the next ones.
    """

    def __init__(
        self,
        topic: RecordTopic,
        *,
        broker: int,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        entry_log: EntryLog,
        groups: Callable[[], Mapping[str, Group]],
        trim_soon: Callable[[CountedTopic], None],
        interval_s: Callable[[], float],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Receive what this uses.

        Args:
            topic: where records are written.
            broker: number of this broker.
            catalog: stores counters.
            changes: awaits the catalog.
            reads: reads what a crash has left uncounted.
            entry_log: says what is durable.
            groups: returns the resource groups in use, by name.
            trim_soon: trims a topic whose acknowledged entries were not counted before.
            interval_s: returns the interval of records.
            clock: wall clock.
            loop: the event loop.
        """
        self.written = 0
        self.cycles = 0
        self.failures = 0
        self._topic = topic
        self._broker = broker
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._log = entry_log
        self._groups = groups
        self._trim_soon = trim_soon
        self._interval_s = interval_s
        self._clock = clock
        self._loop = loop
        self._counts: dict[int | str, TopicCount] = {}  # by ledger; by name if it is non-persistent
        self._group_usage = GroupUsage()
        self._clients = ClientUsage(self._new_since_ms, clock.wall_ms)
        self._storage = StorageUsage(entry_log, reads, self._new_since_ms, clock.wall_ms())
        self._sequence = 0
        self._state = self._began()
        self._cycle = self._state.recorded + 1
        self._from_ms = clock.wall_ms()
        self._interval = self._interval_now()
        self._settled_bytes = 0
        self._stopping = False
        self._failed_before = False
        self._gone = 0  # topics that were unloaded or deleted since the last cycle
        self._running: asyncio.Task[None] | None = loop.create_task(self._find_uncounted())
        self._running.add_done_callback(self._ended)

    def _began(self) -> UsageState:
        """The state for this run, which is being stored."""
        stored = self._catalog.documents(USAGE_STATE).get("")
        state = UsageState() if stored is None else UsageState.of(stored)
        # Also if the clock was set back.
        state.epoch = max(self._clock.wall_ms(), state.epoch + 1, state.since_ms + 1)
        state.since_ms = state.epoch
        if not state.counting:
            state.counting = True
            state.first_ledger = max((record.ledger_id for record in self._catalog.topics()), default=0) + 1
            state.recorded = max((StoredCount.of(one).cycle for one in self._stored().values()), default=0)
            state.first_cycle = state.recorded + 1
            state.begin_total(state.epoch)
        if not state.total_since_ms:  # An earlier version has stored it.
            state.begin_total(state.epoch)
        self._put_state(state)
        return state

    def _put_state(self, state: UsageState) -> asyncio.Future[None]:
        future = self._changes.stored(lambda done: self._catalog.put_document(USAGE_STATE, "", state.document(), done))
        future.add_done_callback(asyncio.Future.exception)  # Mark it as retrieved, if nobody waits.
        return future

    def _stored(self) -> Mapping[str, Any]:
        return self._catalog.documents(USAGE_COUNTS)

    def _stored_of(self, text: str) -> StoredCount | None:
        """The stored counters of a topic; None without any of this broker and this time of counting."""
        document = self._stored().get(text)
        if document is None:
            return None
        count = StoredCount.of(document)
        return count if count.broker == self._broker and count.cycle >= self._state.first_cycle else None

    @property
    def epoch(self) -> int:
        """Identifies this run."""
        return self._state.epoch

    # -- topics come and go

    def attach(self, topic: CountedTopic) -> None:
        """A topic was loaded: count what it does."""
        if is_record_topic(topic.text):
            return
        if topic.persistent:
            count = self._count_of(topic.text, topic.ledger_id, topic.last_entry_id + 1)
            topic.counted_before = count.gap.start if count.gap else topic.last_entry_id + 1
        else:
            made = TopicCount(topic.text, -1, self._new_since_ms(), NOTHING, range(0))
            count = self._counts.setdefault(topic.text, made)
        count.attach(topic)
        topic.clients = self._clients

    async def attached(self, topic: CountedTopic) -> None:
        """If counting begins in the middle of a topic, store where. Raises MetadataFailed."""
        count = self._counts.get(topic.ledger_id)
        if count is not None and count.stored is None and count.is_settled:
            sample = count.sample()
            stored = self._put(count, sample, self._cycle)
            await asyncio.wait((stored,))
            _stored(count, sample, stored)

    def detach(self, topic: CountedTopic) -> None:
        """A topic is unloaded or deleted: its last counters remain until they are recorded."""
        count = self._counts.get(topic.ledger_id if topic.persistent else topic.text)
        if count is not None and count.topic is topic:
            count.detach()
            self._gone += 1

    def _count_of(self, text: str, ledger_id: int, end: int) -> TopicCount:
        """The counters of a persistent topic whose entries before `end` are of earlier starts."""
        count = self._counts.get(ledger_id)
        if count is not None:
            return count
        stored = self._stored_of(text)
        if stored is not None:
            gap = range(min(stored.last_entry_id + 1, end), end)
            count = TopicCount(text, ledger_id, stored.since_ms, stored.totals, gap)
            count.stored = count.sample()
            if stored.cycle > self._state.recorded:
                count.recorded = None
                # Cycles of this run have larger numbers than all that were stored, also by cycles without records.
                self._cycle = max(self._cycle, stored.cycle)
            if stored.cycle > self._state.summed:
                count.summed = stored.totals.minus(stored.unsummed)
        else:
            # An old topic, or one that was moved here, counts from now on; others from their first entry on.
            begins = ledger_id < self._state.first_ledger or text in self._stored()
            count = TopicCount(text, ledger_id, self._new_since_ms(), NOTHING, range(end if begins else 0, end))
            count.stored = count.sample() if end == 0 else None
        self._counts[ledger_id] = count
        return count

    def _new_since_ms(self) -> int:
        self._state.since_ms = max(self._state.since_ms + 1, self._clock.wall_ms())
        return self._state.since_ms

    # -- after a start

    async def _find_uncounted(self) -> None:
        """Count what an earlier run has stored and not counted, also of topics that nobody loads."""
        own = [record for record in self._catalog.topics() if self._catalog.is_own(record)]
        for start in range(0, len(own), LOOKED_AT_PER_TURN):
            for record in own[start : start + LOOKED_AT_PER_TURN]:
                if self._is_uncounted(record):
                    self._count_of(record.name, record.ledger_id, self._log.last_entry(record.ledger_id) + 1)
            await asyncio.sleep(0)
        await self._count_gaps()
        if not self._stopping:
            await self._topic.create()

    def _is_uncounted(self, record: TopicRecord) -> bool:
        last_entry = self._log.last_entry(record.ledger_id)
        if is_record_topic(record.name):
            return False
        stored = self._stored_of(record.name)
        if stored is None:
            old = record.ledger_id < self._state.first_ledger or record.name in self._stored()
            return last_entry >= 0 and not old
        return stored.last_entry_id < last_entry or stored.cycle > self._state.recorded

    async def _count_gaps(self) -> None:
        for count in [one for one in self._counts.values() if one.gap]:
            try:
                while count.gap and not self._stopping:
                    await self._count_some(count)
            except ReadFailed as error:
                # It is counted by a later cycle. Usage of other topics does not wait for it.
                log.warning("usage of %s is not recorded until its log can be read: %s", count.text, error)

    async def _count_some(self, count: TopicCount) -> None:
        gap = count.gap
        result = await self._reads.read(count.ledger_id, gap.start, bytes_max=GAP_BYTES, entries_max=GAP_ENTRIES)
        messages = nbytes = chunks = 0
        for batch in result.batches:
            chunks += sum(entry_id in gap and is_followed_chunk(entry) for entry_id, entry in batch.entries())
            for row, entry_id in enumerate(batch.entry_ids):
                if entry_id in gap:
                    messages += 1 if batch.message_counts is None else batch.message_counts[row]
                    nbytes += batch.lengths[row]
        count.base = count.base.plus(Totals(messages, nbytes, chunks_in=chunks))
        # Without progress there is nothing more to read: the rest was lost with its segment.
        reached = result.next_entry_id if result.next_entry_id > gap.start else gap.stop
        count.gap = range(min(reached, gap.stop), gap.stop)
        await asyncio.sleep(0)

    # -- cycles

    def tick(self) -> None:
        """Begin a cycle if one is due."""
        self._group_usage.watch(self._groups())
        if self._running is not None or self._stopping:
            return
        interval = self._interval_now()
        if interval != self._interval or self._gone >= GONE_MAX:
            self._interval = interval
            self._begin(record=True)
        elif self._log.appended_bytes - self._settled_bytes >= SETTLE_BYTES:
            self._begin(record=False)

    def _interval_now(self) -> int:
        """The number of the present interval: brokers record at the same time."""
        return self._clock.wall_ms() // max(1, round(self._interval_s() * MS_PER_S))

    def _begin(self, *, record: bool) -> asyncio.Task[None]:
        self._running = task = self._loop.create_task(self._run(record=record))
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled() and task.exception() is not None:
            self.failures += 1
            self._group_usage.repeat()
            error = task.exception()
            if not isinstance(error, PenstockError):
                log.error("usage records failed, trying again", exc_info=error)
            elif not self._failed_before:
                log.warning("usage was not recorded, trying again: %s", error)
            self._failed_before = True

    async def stop(self) -> None:
        """Record what is left. No client may be connected any more."""
        self._stopping = True
        if self._running is not None:
            await asyncio.wait((self._running,))
        await asyncio.wait((self._begin(record=True),))

    async def _run(self, *, record: bool) -> None:
        await self._count_gaps()
        self._settled_bytes, self._gone = self._log.appended_bytes, 0
        time_ms = self._clock.wall_ms()
        changed = await self._changed()
        if record:
            await self._look_at_clients()
        await self._reads.settled()
        if self._log.health.read_only is not None:
            return  # The counters may count what was not stored. After the restart the log tells.
        cycle = self._cycle = self._cycle + 1
        await self._store(changed, cycle)
        if not record:
            return
        await self._add(changed, cycle)
        if self._storage.is_due(time_ms):
            await self._storage.add(self._stored_topics(), time_ms)
        await self._record(changed, time_ms)
        self._state.recorded = cycle
        await self._put_state(self._state)
        self._from_ms = time_ms
        self._failed_before = False
        self.cycles += 1

    async def _changed(self) -> list[tuple[TopicCount, Sample]]:
        """Topics whose counters have changed since they were stored or recorded."""
        changed = []
        for row, count in enumerate(list(self._counts.values())):
            if count.is_settled:
                sample = count.sample()
                if sample.totals != count.recorded or (count.ledger_id >= 0 and sample != count.stored):
                    changed.append((count, sample))
                elif count.topic is None:
                    self._forget(count)
            if row % LOOKED_AT_PER_TURN == LOOKED_AT_PER_TURN - 1:
                await asyncio.sleep(0)
        return changed

    async def _look_at_clients(self) -> None:
        self._clients.begin()
        for row, count in enumerate(list(self._counts.values())):
            if count.topic is not None:
                self._clients.add(count.topic)
            if row % LOOKED_AT_PER_TURN == LOOKED_AT_PER_TURN - 1:
                await asyncio.sleep(0)

    def _stored_topics(self) -> Iterator[StoredTopic]:
        for record in self._catalog.topics():
            if self._catalog.is_own(record) and not is_record_topic(record.name):
                count = self._counts.get(record.ledger_id)
                topic = count.topic if count is not None else None
                first = self._catalog.first_retained_entry(record.name) if topic is None else topic.first_entry_id
                yield StoredTopic(_namespace_of(record.name), record.ledger_id, first)

    def _forget(self, count: TopicCount) -> None:
        self._counts.pop(count.ledger_id if count.ledger_id >= 0 else count.text, None)

    async def _store(self, changed: Sequence[tuple[TopicCount, Sample]], cycle: int) -> None:
        """Store counters with their topics; those of deleted topics are gone with them. Raises MetadataFailed."""
        wanted = [one for one in changed if one[0].ledger_id >= 0 and one[1] != one[0].stored]
        for some in _in_parts(wanted, STORED_PER_TURN):
            storing = [self._put(count, sample, cycle) for count, sample in some]
            await asyncio.wait(storing)
            for (count, sample), stored in zip(some, storing, strict=True):
                _stored(count, sample, stored)
                if count.topic is not None:
                    count.topic.counted_before = sample.last_entry_id + 1
                    self._trim_soon(count.topic)

    def _put(self, count: TopicCount, sample: Sample, cycle: int) -> asyncio.Future[None]:
        unsummed = sample.totals.minus(count.summed)
        row = StoredCount(cycle, self._broker, count.since_ms, sample.last_entry_id, sample.totals, unsummed).document()
        put, text, ledger_id = self._catalog.put_document, count.text, count.ledger_id
        return self._changes.stored(lambda done: put(USAGE_COUNTS, text, row, done, ledger_id=ledger_id))

    async def _add(self, changed: Sequence[tuple[TopicCount, Sample]], cycle: int) -> None:
        """Store the sum of all stored counters. Raises MetadataFailed.

        Before it is recorded: a sum that was recorded must not be smaller after a crash, when the topics that were
        deleted meanwhile are no longer stored.
        """
        unread = [(one, one.stored) for one in self._counts.values() if one.gap and one.stored is not None]
        state = self._state
        total = state.total
        for some in _in_parts([*changed, *unread], LOOKED_AT_PER_TURN):
            for count, sample in some:
                total = total.plus(sample.totals.minus(count.summed))
            await asyncio.sleep(0)
        if total != state.total:
            await self._put_state(replace(state, summed=cycle, total=total))
            state.summed, state.total = cycle, total
        for count, sample in (*changed, *unread):
            count.summed = sample.totals

    async def _record(self, changed: Sequence[tuple[TopicCount, Sample]], time_ms: int) -> None:
        """Write the records of a cycle. Raises PenstockError."""
        for some in _in_parts([one for one in changed if one[1].totals != one[0].recorded], ENCODED_PER_TURN):
            records = [self._of_topic(count, sample, time_ms) for count, sample in some]
            await self._topic.write(records, time_ms)
            self.written += len(records)
            for count, sample in some:
                count.recorded = sample.totals
        await self._record_clients_and_storage(time_ms)
        records = [*self._of_groups(time_ms), self._of_broker(time_ms)]
        await self._topic.write(records, time_ms)
        self.written += len(records)

    async def _record_clients_and_storage(self, time_ms: int) -> None:
        """Write the records of principals and namespaces. Raises PenstockError."""
        for some in _in_parts(list(self._clients.changed()), ENCODED_PER_TURN):
            await self._topic.write([self._of_client(who, count, time_ms) for who, count in some], time_ms)
            self.written += len(some)
            for _, count in some:
                count.recorded = count.counters
        for of_namespaces in _in_parts(list(self._storage.changed()), ENCODED_PER_TURN):
            await self._topic.write(
                [self._of_namespace(name, stored, time_ms) for name, stored in of_namespaces], time_ms
            )
            self.written += len(of_namespaces)
            for _, stored in of_namespaces:
                stored.recorded = stored.bytes, stored.byte_hours

    # -- records

    def _encoded(self, scope: str, time_ms: int, since_ms: int, totals: Totals, **more: Any) -> bytes:  # noqa: ANN401
        record = UsageRecord(
            broker=f"broker-{self._broker}",
            epoch=self._state.epoch,
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
            **(_of_topics(totals) if scope in {"topic", "broker"} else {}),
            **more,
        )
        self._sequence += 1
        return USAGE.encode(record)

    def _of_topic(self, count: TopicCount, sample: Sample, time_ms: int) -> bytes:
        namespace = _namespace_of(count.text)
        groups = getattr(count.topic, "resource_groups", None)
        if groups is not None:
            count.groups = tuple(group.name for group in groups)
        return self._encoded(
            "topic",
            time_ms,
            count.since_ms,
            sample.totals,
            tenant=namespace.split("/")[0],
            namespace=namespace,
            topic=count.text,
            resource_groups=count.groups,
            ledger_id=count.ledger_id,
            last_entry_id=sample.last_entry_id if count.ledger_id >= 0 else -1,
        )

    def _of_client(self, who: Principal, count: ClientCount, time_ms: int) -> bytes:
        totals = Totals(count.messages_in, count.bytes_in, count.messages_out, count.bytes_out)
        return self._encoded(
            "principal",
            time_ms,
            count.since_ms,
            totals,
            **who._asdict(),
            connections=count.connections,
            connected_ms=count.connected_ms,
        )

    def _of_namespace(self, namespace: str, stored: Stored, time_ms: int) -> bytes:
        return self._encoded(
            "namespace",
            time_ms,
            stored.since_ms,
            NOTHING,
            tenant=namespace.split("/", maxsplit=1)[0],
            namespace=namespace,
            stored_bytes=stored.bytes,
            stored_byte_hours=stored.byte_hours,
        )

    def _of_groups(self, time_ms: int) -> Iterator[bytes]:
        for one in self._group_usage.changed(self._groups(), self._clock.monotonic_ns(), self._new_since_ms):
            yield self._encoded("group", time_ms, one.since_ms, one.totals, resource_groups=(one.name,), **one.more)

    def _of_broker(self, time_ms: int) -> bytes:
        return self._encoded("broker", time_ms, self._state.total_since_ms, self._state.total)


def _of_topics(totals: Totals) -> dict[str, Any]:
    """Return the fields that records of topics and brokers have, and others have not."""
    return {
        "published_chunks": totals.chunks_in,
        "committed_messages": totals.committed_messages,
        "committed_bytes": totals.committed_bytes,
        "aborted_messages": totals.aborted_messages,
        "aborted_bytes": totals.aborted_bytes,
    }


def _namespace_of(topic: str) -> str:
    return "/".join(topic.partition("://")[2].split("/", 2)[:2])


def _stored(count: TopicCount, sample: Sample, future: asyncio.Future[None]) -> None:
    """Counters are stored; of a topic that was deleted there is nothing to store. Raises MetadataFailed."""
    with contextlib.suppress(TopicNotFound):
        future.result()
    count.stored = sample


def _in_parts(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


async def forget_counting(catalog: Catalog, changes: Changes) -> None:
    """Counting is switched off: when it is switched on again, it begins anew. Raises MetadataFailed."""
    stored = catalog.documents(USAGE_STATE).get("")
    if stored is not None and stored["counting"]:
        off = {**stored, "counting": False}
        await changes.stored(lambda done: catalog.put_document(USAGE_STATE, "", off, done))
