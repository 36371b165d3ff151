# SPDX-License-Identifier: Apache-2.0
"""Deduplication: a topic stores each message of a producer once, even if the producer sends it again.

Why: after a lost connection or a broker crash, a client sends all unacknowledged messages again. With deduplication
enabled (policy of broker, namespace or topic), messages that are already stored are acknowledged and not stored again.
Where: `producers` awaits `ready` before it attaches a producer; publish uses `Topic.deduplication`, which is None on
topics without it, so those pay nothing.

The durable sequence ids must survive a crash. They are in the entries themselves, so it suffices to store a snapshot
from time to time (document kind `dedup`: the ids, and the last entry that they include) and to read the later entries
when the topic is loaded. Entries after the last snapshot must not be trimmed: `replay_from`.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Final

from penstock.broker.publishing import checks
from penstock.broker.publishing.replicated import replicated_mark
from penstock.core.errors import MetadataFailed, TopicNotFound
from penstock.core.units import MIB, NS_PER_S
from penstock.wire import metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.limit_rows import DeduplicationLimits
    from penstock.broker.log_reads import LogReads
    from penstock.broker.metadata_memory import MetadataMemory
    from penstock.broker.publishing.ports import PublishedTopic
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import ReadResult


# -- sequence ids of a topic's producers, to tell duplicates from new messages -----------------------------------------

NEVER: Final = -1  # below every sequence id


# Memory of a producer beside its name, measured with tracemalloc.
MARKS_BYTES: Final = 200


def _nobody(nbytes: int) -> None:
    del nbytes


def name_bytes(producer: str) -> int:
    return MARKS_BYTES + len(producer)


class Verdict(Enum):
    """Result of judging a message."""

    NEW = "new"
    DUPLICATE = "duplicate"  # it is durable
    IN_FLIGHT = "in flight"  # it is being written, and may fail


class Progress:
    """Marks of one producer name."""

    __slots__ = ("left_ms", "persisted", "pushed")

    def __init__(self, persisted: int = NEVER) -> None:
        self.persisted = persisted
        self.pushed = persisted
        self.left_ms: int | None = None  # when its last producer left, in ms since 1970; None while connected


class SequenceIds:
    """Marks of all producers of one topic."""

    def __init__(self, charge: Callable[[int], None]) -> None:
        """Args: charge: called with the change of the names' memory, in bytes."""
        self._marks: dict[str, Progress] = {}
        self._charge = charge
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._marks)

    def highest_persisted(self, producer: str) -> int:
        """The highest durable sequence id of a producer name; -1 if unknown."""
        marks = self._marks.get(producer)
        return NEVER if marks is None else marks.persisted

    def judge(self, producer: str, sequence_id: int, highest: int) -> Verdict:
        """Judge an entry with the sequence ids `sequence_id` to `highest`; a new one is marked as pushed."""
        marks = self._of(producer)
        marks.left_ms = None  # Its entries may come through a replicator, whose name is another one.
        if sequence_id > marks.pushed:
            marks.pushed = max(sequence_id, highest)
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= marks.persisted else Verdict.IN_FLIGHT

    def all_new(self, producer: str, sequence_ids: Sequence[int], highest: Sequence[int] | None) -> int:
        """Mark entries as pushed if all are new, and return their highest sequence id; else return -1."""
        marks = self._of(producer)
        tops = sequence_ids if highest is None else list(map(max, sequence_ids, highest))
        if sequence_ids[0] > marks.pushed and all(map(lt, tops, islice(sequence_ids, 1, None))):
            marks.pushed = tops[-1]
            return tops[-1]
        return NEVER

    def push(self, producer: str, highest: int) -> None:
        """Mark an entry as pushed without judging it."""
        marks = self._of(producer)
        marks.pushed = max(marks.pushed, highest)

    def persist(self, producer: str, highest: int) -> None:
        """Mark entries up to this sequence id as durable."""
        marks = self._of(producer)
        marks.persisted = max(marks.persisted, highest)
        marks.pushed = max(marks.pushed, highest)

    def _of(self, producer: str) -> Progress:
        marks = self._marks.get(producer)
        if marks is None:
            marks = self._marks[producer] = Progress()
            self._changed(name_bytes(producer))
        return marks

    def _changed(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._charge(nbytes)

    def __contains__(self, producer: str) -> bool:
        return producer in self._marks

    def close(self) -> None:
        """Forget all producers: the topic is unloaded, or deduplication is disabled."""
        self._marks.clear()
        self._changed(-self.nbytes)
        self._charge = _nobody  # Later changes are not charged.

    # -- expiry

    def expire(
        self, connected: Container[str], *, now_ms: int, left_before_ms: int, producers_max: int, bytes_max: int
    ) -> None:
        """Forget producers that left before this time; with too many names or bytes, also those that left first.

        Called periodically with the connected names; this is how disconnects are noticed.
        """
        gone: list[tuple[int, str]] = []
        for name, marks in self._marks.items():
            if name in connected:
                marks.left_ms = None
            else:
                marks.left_ms = now_ms if marks.left_ms is None else marks.left_ms
                gone.append((marks.left_ms, name))
        gone.sort()
        surplus = len(self._marks) - producers_max
        for index, (left_ms, name) in enumerate(gone):
            if left_ms < left_before_ms or index < surplus or self.nbytes > bytes_max:
                del self._marks[name]
                self._changed(-name_bytes(name))

    # -- stored

    def snapshot(self) -> dict[str, int]:
        """The durable sequence ids by producer name."""
        return {name: marks.persisted for name, marks in self._marks.items() if marks.persisted > NEVER}

    def restore(self, snapshot: Mapping[str, int]) -> None:
        for name, persisted in snapshot.items():
            self.persist(name, persisted)

    def replay(self, entries: Iterable[tuple[str, int]]) -> None:
        """Add entries of the log: producer name and highest sequence id of each."""
        for name, highest in entries:
            self.persist(name, highest)


log = logging.getLogger(__name__)

KIND: Final = "dedup"
MS_PER_MINUTE: Final = 60_000
# Entries are replayed in portions of this size: about 2 ms of the loop each.
REPLAY_ENTRIES: Final = 500
REPLAY_BYTES: Final = 2 * MIB
# How often inactive producers are checked if periodic snapshots are disabled.
SNAPSHOTS_OFF_CHECK_S: Final = 60


class TopicDeduplication:
    """Sequence ids of one topic, and how many changes are not in its snapshot."""

    __slots__ = ("ids", "known", "recovered", "snapshot_at_ns", "snapshot_entry_id", "storing")

    def __init__(self, recovered: asyncio.Future[None], now_ns: int, charge: Callable[[int], None]) -> None:
        self.ids = SequenceIds(charge)
        # Until the log is read, messages are not judged; their sequence ids are only recorded.
        self.recovered = recovered
        self.known = False
        self.snapshot_entry_id = -1
        self.snapshot_at_ns = now_ns
        self.storing = False

    def all_new(self, producer: str, sequence_ids: Sequence[int], highest: Sequence[int] | None) -> int:
        """The highest sequence id of these entries if all are new, which is the usual case; else -1."""
        return self.ids.all_new(producer, sequence_ids, highest) if self.known else NEVER

    def judge(self, producer: str, sequence_id: int, highest: int) -> Verdict:
        """Whether an entry is new or a duplicate; before recovery, every entry counts as new."""
        if self.known:
            return self.ids.judge(producer, sequence_id, highest)
        self.ids.push(producer, highest)
        return Verdict.NEW


class Deduplication:
    """Deduplication of all topics. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        memory: MetadataMemory,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        limits: Callable[[], DeduplicationLimits],
    ) -> None:
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._memory = memory
        self._clock = clock
        self._loop = loop
        self._limits = limits
        self._forgetting: set[str] = set()  # topics whose document is being deleted

    # -- enabling and disabling ---------------------------------------------------------------------------------------

    async def ready(self, topic: PublishedTopic) -> None:
        """Wait until a topic with deduplication has recovered its sequence ids. Raises MetadataFailed."""
        self.policies_changed(topic)
        if topic.deduplication is not None:
            # Shielded: if the first client disconnects, other callers still wait for it.
            await asyncio.shield(topic.deduplication.recovered)

    def policies_changed(self, topic: PublishedTopic) -> None:
        wanted = topic.persistent and topic.policies.deduplication
        if wanted and topic.deduplication is None and not topic.fenced:
            self._begin(topic)
        elif not wanted and topic.persistent:
            self._end(topic)

    def _begin(self, topic: PublishedTopic) -> None:
        recovered: asyncio.Future[None] = self._loop.create_future()
        topic.deduplication = TopicDeduplication(recovered, self._clock.monotonic_ns(), self._memory.charge_names)
        checks.refresh(topic)
        self._changes.finish(self._recover(topic, topic.deduplication))

    def _end(self, topic: PublishedTopic) -> None:
        stored = topic.text in self._catalog.documents(KIND)
        if topic.deduplication is not None:
            self.unloaded(topic)
            checks.refresh(topic)
            stored = True  # or it will be soon, and is forgotten after that
        if stored and not topic.closed:
            self._changes.finish(self._forget(topic.text))

    def unloaded(self, topic: PublishedTopic) -> None:
        if topic.deduplication is not None:
            topic.deduplication.ids.close()
            topic.deduplication = None

    def check_name(self, topic: PublishedTopic, producer: str) -> None:
        """Raises TooManyRequests if there is no memory for another producer name.

        If the topic has too many names, those that disconnected first are forgotten.
        """
        state, memory = topic.deduplication, self._memory
        if state is None or producer in state.ids:
            return
        self.make_room(topic, producer)
        what = f"the name of producer {producer[:100]!r}, which deduplication remembers,"
        memory.check(what, name_bytes(producer))

    def make_room(self, topic: PublishedTopic, producer: str) -> None:
        """If a topic has too many names for one more, forget those that disconnected first."""
        state = topic.deduplication
        if state is None or producer in state.ids:
            return
        if state.ids.nbytes + name_bytes(producer) > self._memory.topic_names_bytes_max:
            self._expire(topic, state)

    async def _forget(self, topic: str) -> None:
        self._forgetting.add(topic)
        try:
            await self._changes.stored(lambda done: self._catalog.put_document(KIND, topic, None, done))
        finally:
            self._forgetting.discard(topic)

    # -- recovery -----------------------------------------------------------------------------------------------------

    async def _recover(self, topic: PublishedTopic, state: TopicDeduplication) -> None:
        """Read the last snapshot, and the entries after it."""
        try:
            await self._replay(topic, state)
        except Exception as error:  # noqa: BLE001 - passed to the waiting producers
            log.warning("cannot learn what %s has stored, it will be tried again: %s", topic.text, error)
            if topic.deduplication is state:
                self.unloaded(topic)  # The next producer tries again.
                checks.refresh(topic)
            state.recovered.set_exception(MetadataFailed(f"cannot learn what {topic.text} has stored: {error}"))
            state.recovered.exception()  # Mark the exception as retrieved: there may be no waiter.
            return
        state.known = True
        state.recovered.set_result(None)

    async def _replay(self, topic: PublishedTopic, state: TopicDeduplication) -> None:
        stored = None if topic.text in self._forgetting else self._catalog.documents(KIND).get(topic.text)
        # Entries being written may not have been recorded when they were published: replay them too.
        end = topic.next_entry_id
        await self._reads.settled()
        if stored is None:
            # Enabled recently, or killed right after that: replay as many last entries as may be unrecorded.
            entry_id = end - self._limits().deduplication_entries_interval
        else:
            state.ids.restore(stored["sequence_ids"])
            entry_id = stored["entry_id"] + 1
        entry_id = max(entry_id, topic.first_entry_id)
        while entry_id < end:
            result = await self._reads.read(
                topic.ledger_id, entry_id, bytes_max=REPLAY_BYTES, entries_max=min(REPLAY_ENTRIES, end - entry_id)
            )
            state.ids.replay(_sequence_ids(result))
            if result.next_entry_id <= entry_id:
                break
            entry_id = result.next_entry_id
        if stored is None or end > stored["entry_id"] + 1:
            # Before a producer is attached: entries published from then on are after this snapshot.
            await self._store(topic, state)
        else:
            state.snapshot_entry_id = stored["entry_id"]

    def replay_from(self, topic: PublishedTopic) -> int | None:
        """The first entry that recovery would read, which must be kept; None if there is none."""
        if not topic.policies.deduplication or not topic.persistent:
            return None
        stored = self._catalog.documents(KIND).get(topic.text)
        return None if stored is None else int(stored["entry_id"]) + 1

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def recorded(self, topic: PublishedTopic, producer: str, highest: int) -> None:
        """A producer's entries up to this sequence id are durable: store a snapshot if it is due."""
        state = topic.deduplication
        if state is None:  # disabled since
            return
        state.ids.persist(producer, highest)
        if not state.known:
            return
        interval = self._limits().deduplication_entries_interval
        if topic.last_entry_id - state.snapshot_entry_id >= interval and not state.storing:
            self._changes.finish(self._store(topic, state))

    async def _store(self, topic: PublishedTopic, state: TopicDeduplication) -> None:
        catalog = self._catalog
        if topic.deduplication is not state or topic.closed:  # disabled meanwhile, unloaded or deleted
            return
        state.storing = True
        entry_id = topic.last_entry_id
        document = {"entry_id": entry_id, "sequence_ids": state.ids.snapshot()}
        try:
            await self._changes.stored(
                lambda done: catalog.put_document(KIND, topic.text, document, done, ledger_id=topic.ledger_id)
            )
        except TopicNotFound:  # deleted meanwhile
            return
        finally:
            state.storing = False
        state.snapshot_entry_id = entry_id
        state.snapshot_at_ns = self._clock.monotonic_ns()

    def concerns(self, topic: PublishedTopic) -> bool:
        """Whether the periodic check must visit this topic."""
        return topic.deduplication is not None

    async def check(self, topic: PublishedTopic) -> None:
        """Periodically: forget inactive producers, and store a snapshot if the last one is old."""
        limits, state = self._limits(), topic.deduplication
        if state is None or not state.known or state.storing:
            return
        self._expire(topic, state)
        due = self._clock.monotonic_ns() >= state.snapshot_at_ns + limits.deduplication_snapshot_s * NS_PER_S
        if limits.deduplication_snapshot_check_s and due and topic.last_entry_id > state.snapshot_entry_id:
            await self._store(topic, state)

    def _expire(self, topic: PublishedTopic, state: TopicDeduplication) -> None:
        """Forget producers that left long ago; if there are too many, also those that left first."""
        limits = self._limits()
        now_ms = self._clock.wall_ms()
        state.ids.expire(
            topic.producers,
            now_ms=now_ms,
            left_before_ms=now_ms - limits.deduplication_inactivity_min * MS_PER_MINUTE,
            producers_max=limits.deduplication_producers_max,
            bytes_max=self._memory.topic_names_bytes_max,
        )


def _sequence_ids(result: ReadResult) -> Iterator[tuple[str, int]]:
    """Producer and highest sequence id of each entry, except chunks before the last, which do not count."""
    for batch in result.batches:
        for _, entry in batch.entries():
            try:
                said = metadata.decode(entry)
            except ProtocolError:
                continue  # An entry without producer name cannot be a duplicate.
            if (mark := replicated_mark(said)) is not None:
                yield mark
                continue
            if said.num_chunks_from_msg > 1 and said.chunk_id < said.num_chunks_from_msg - 1:
                continue
            yield said.producer_name, max(said.sequence_id, said.highest_sequence_id)
