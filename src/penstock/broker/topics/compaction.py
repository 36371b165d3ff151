# SPDX-License-Identifier: Apache-2.0
"""Compaction: keeps the last message of each key of a topic in a separate ledger.

Where: started by the admin API, or by a periodic check when the topic's compaction threshold is reached.
`TwoPhaseCompactor` decides what is kept, on a thread of this module. Subscriptions of consumers with `readCompacted`
read `Topic.compacted` up to its horizon, then the topic itself.

Invariants:
- The topic's state names a compacted ledger only when that ledger is durable. The old one is dropped after the new one
  is named. A crash in between leaves an unknown ledger, which the next start removes.
- Entries after the horizon are not trimmed: the durable subscription `__compaction` stands at the horizon.
- Memory is bounded: 8 MiB for keys (`LatestKeys`), about 1 MiB each for reading and writing, one decompressed batch.
  One topic is compacted at a time; the others wait.
- The thread releases the interpreter every few messages, so the event loop keeps running.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyroaring import BitMap64

from penstock.broker.topics.topic_states import compacted_in, compacted_state, not_compacted_state
from penstock.core.errors import (
    AlreadyExists,
    NotAllowed,
    PenstockError,
    PreconditionFailed,
    ServiceNotReady,
    UnsupportedVersion,
)
from penstock.core.names import COMPACTION_SUBSCRIPTION
from penstock.core.units import KIB, MIB, NS_PER_MS
from penstock.storage.compacted import CompactedLedger, LatestKeys, MessageLocation, wrap
from penstock.storage.entry_log import AppendRun
from penstock.wire import batches, metadata
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.topic import Topic
    from penstock.broker.topics.topic_states import TopicStates
    from penstock.core.checksum import Buffer
    from penstock.core.clock import Clock
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog, ReadResult
    from penstock.wire.codec import MessageMetadata


# ---------------------------------------------------------------------------------------------------------------------
# The two passes of a compaction: find the last message of each key, then copy only those messages.
#
# Why two passes: payloads are much larger than message positions. The first pass keeps positions only, on disk when
# there are many (`LatestKeys`). The second pass reads the entries again and copies those to keep. Where: `compaction`
# runs this on its own thread, with functions that read the topic and write the compacted ledger.
#
# As in Pulsar:
# - The last message of each key is kept, unless its value is empty or null. Messages without a key are dropped.
# - A batch that loses some messages is rewritten; its other messages keep their batch indexes. A batch that cannot be
#   decoded (unknown compression, or damaged) is kept unchanged.
# - An encrypted entry is kept or dropped by the key of the entry, because its content cannot be read.
# - All chunks of a chunked message are kept, if all are present and it is the last of its key. (Pulsar keeps only the
#   last chunk.)

# Updates of the key index are applied in groups of this size, which takes some hundred microseconds.
CHANGES_AT_ONCE: Final = 64
# The second pass writes about this many bytes at a time.
WRITE_BYTES: Final = 512 * KIB


class Stored(NamedTuple):
    """An entry of the topic."""

    entry_id: int
    entry: Buffer  # checksummed
    message_count: int
    members: Sequence[int] = ()  # batch indexes that remain, if the batch was reduced


class Read(NamedTuple):
    """Decoded content of an entry."""

    said: MessageMetadata | None  # None: the entry cannot be decoded
    payload: bytes = b""
    members: list[batches.SingleMessage] | None = None  # None: a single message, or a batch that is kept whole
    whole: bool = False  # a batch that cannot be decoded


@dataclass(slots=True)
class Outcome:
    """Size of the compacted ledger."""

    entries: int = 0  # entries kept
    messages_dropped: int = 0


class TwoPhaseCompactor:
    """One compaction. All functions block.

    Args:
        read: yields the topic's entries in order, from the first one to the last one to compact.
        write: takes entries of the compacted ledger, in order.
        keys: an empty index of the latest position of each key.
        pause: called once or twice per message; waits when the event loop should run, and raises to stop the
            compaction.
    """

    def __init__(
        self,
        *,
        read: Callable[[], Iterator[Stored]],
        write: Callable[[list[Stored]], None],
        keys: LatestKeys,
        pause: Callable[[], None],
    ) -> None:
        self._read = read
        self._write = write
        self._keys = keys
        self._pause = pause

    def run(self) -> Outcome:
        """Run both passes; returns the size of the result. Raises what `read`, `write` and `pause` raise."""
        self._first_pass()
        return self._second_pass()

    # -- first --------------------------------------------------------------------------------------------------------

    def _first_pass(self) -> None:
        changes: list[tuple[str, MessageLocation | None]] = []
        for stored in self._read():
            changes += self._changes(stored)
            if len(changes) >= CHANGES_AT_ONCE:
                self._keys.apply(changes)
                changes = []
        self._keys.apply(changes)

    def _changes(self, stored: Stored) -> Iterator[tuple[str, MessageLocation | None]]:
        """Yield each key in an entry with the position of its last message, or None if the key was deleted."""
        found = self._look_into(stored.entry)
        if found.members is None:
            if found.said is not None and not found.whole:
                yield from _change_of_single(stored, found.said)
            return
        for index, member in enumerate(found.members):
            if member.key is not None and not member.compacted_out:
                yield member.key, MessageLocation(stored.entry_id, index) if member.message_bytes else None

    # -- second -------------------------------------------------------------------------------------------------------

    def _second_pass(self) -> Outcome:
        outcome = Outcome()
        kept: list[Stored] = []
        kept_bytes = 0
        for stored in self._read():
            wanted = self._wanted(stored, outcome)
            if wanted is None:
                continue
            outcome.entries += 1
            kept.append(wanted)
            kept_bytes += len(wanted.entry)
            if kept_bytes >= WRITE_BYTES:
                self._write(kept)
                kept, kept_bytes = [], 0
        if kept:
            self._write(kept)
        return outcome

    def _wanted(self, stored: Stored, outcome: Outcome) -> Stored | None:
        found = self._look_into(stored.entry)
        if found.whole:
            return stored
        if found.members is None:
            if found.said is not None and self._is_latest_single(stored, found.said):
                return stored
            outcome.messages_dropped += 1
            return None
        keep = [self._is_latest(stored.entry_id, index, one) for index, one in enumerate(found.members)]
        outcome.messages_dropped += sum(
            not kept and not one.compacted_out for kept, one in zip(keep, found.members, strict=True)
        )
        if not any(keep):
            return None
        if all(keep):
            return stored
        assert found.said is not None
        left = [index for index, kept in enumerate(keep) if kept]
        return stored._replace(entry=batches.without(found.said, found.payload, found.members, keep), members=left)

    def _is_latest(self, entry_id: int, index: int, member: batches.SingleMessage) -> bool:
        self._pause()
        if member.key is None or member.compacted_out or not member.message_bytes:
            return False
        return self._keys.find(member.key) == MessageLocation(entry_id, index)

    def _is_latest_single(self, stored: Stored, said: MessageMetadata) -> bool:
        if not said.HasField("partition_key"):
            return False
        latest = self._keys.find(said.partition_key)
        if latest is None:
            return False
        return latest.chunks == said.uuid if latest.chunks else latest.entry_id == stored.entry_id

    # -- both ---------------------------------------------------------------------------------------------------------

    def _look_into(self, entry: Buffer) -> Read:
        self._pause()
        try:
            said = metadata.decode(entry)
        except ProtocolError:
            return Read(None)
        if not batches.is_readable(said):
            return Read(said)
        try:
            payload = batches.decompressed(entry, said)
            members = []
            for member in batches.single_messages(payload, said.num_messages_in_batch):
                self._pause()
                members.append(member)
        except (ProtocolError, UnsupportedVersion):
            return Read(said, whole=True)
        return Read(said, payload, members)


def _change_of_single(stored: Stored, said: MessageMetadata) -> Iterator[tuple[str, MessageLocation | None]]:
    if not said.HasField("partition_key"):
        return
    key = said.partition_key
    if said.num_chunks_from_msg > 1:
        # A message whose last chunk is missing does not count as the key's last. Missing earlier chunks are left to
        # the readers, as without compaction.
        if said.chunk_id == said.num_chunks_from_msg - 1:
            yield key, MessageLocation(stored.entry_id, chunks=said.uuid)
        return
    size = said.uncompressed_size if said.HasField("uncompressed_size") else len(batches.payload_of(stored.entry))
    yield key, MessageLocation(stored.entry_id) if size else None


log = logging.getLogger(__name__)


READ_BYTES: Final = 1 * MIB
READ_ENTRIES: Final = 1_000
# The thread works on this many messages, for about a millisecond, then sleeps for half as long so that the event loop
# can run.
MESSAGES_PER_TURN: Final = 128
PAUSE_S: Final = 0.000_5


class Stopped(Exception):
    """Ends a compaction without a result: the broker is stopping, or the topic was deleted."""


@dataclass(slots=True)
class Progress:
    """State of a topic's compactions since the broker started, for the admin API."""

    status: str = "NOT_RUN"
    last_error: str = ""
    removed: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0


class Compactor:
    """Compacts topics, one at a time. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        states: TopicStates,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        locked: Callable[[str], AbstractAsyncContextManager[Topic | None]],
        stopping: Callable[[], bool],
    ) -> None:
        """Args: locked: locks a topic, see `TopicDirectory.locked`. stopping: whether the broker is stopping."""
        self._log = entry_log
        self._catalog = catalog
        self._changes = changes
        self._reads = reads
        self._states = states
        self._clock = clock
        self._loop = loop
        self._locked = locked
        self._is_stopping = stopping
        self._progress: dict[str, Progress] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compactor")
        self._stopping = Event()

    def progress(self, topic: str) -> Progress:
        """Result of the last compaction of a topic, and whether one is running."""
        return self._progress.get(topic) or Progress()

    def start(self, topic: Topic) -> None:
        """Start to compact a topic.

        Raises:
            AlreadyExists: a compaction of the topic is running.
            NotAllowed: the topic is not persistent.
            ServiceNotReady: the broker is stopping.
        """
        if self._is_stopping():
            raise ServiceNotReady("broker is stopping")
        if not topic.persistent:
            raise NotAllowed("Trigger compaction on a non-persistent topic is not allowed")
        topic.check_open()
        progress = self._progress.setdefault(topic.text, Progress())
        if progress.status == "RUNNING":
            raise AlreadyExists("Compaction already in progress")
        progress.status, progress.last_error = "RUNNING", ""
        self._changes.finish(self._run(topic, progress))

    def concerns(self, topic: Topic) -> bool:
        return topic.persistent and topic.policies.compaction_threshold > 0

    async def check(self, topic: Topic) -> None:
        """Start to compact a topic if its uncompacted bytes exceed the threshold."""
        subscription = await self._subscription(topic)
        (nbytes,) = await self._reads.bytes_from(topic.ledger_id, [subscription.cursor.mark_delete + 1])
        running = self.progress(topic.text).status == "RUNNING"
        if nbytes > topic.policies.compaction_threshold and not running and not topic.fenced:
            self.start(topic)

    def forget(self, topic: str) -> None:
        """Forget a deleted topic. A running compaction of it ends without a result."""
        self._progress.pop(topic, None)

    async def drop_compacted(self, topic: Topic) -> None:
        """Drop the compacted ledger: consumers with `readCompacted` then read the topic itself.

        Raises:
            PreconditionFailed: a compaction is running.
            MetadataFailed: the change could not be stored; the compacted ledger stays.
        """
        if self.progress(topic.text).status == "RUNNING":
            raise PreconditionFailed(f"{topic.text} is being compacted; wait for that to end")
        before = compacted_in(self._states.of(topic.text))
        if before is None:
            return
        await self._states.change(topic, **not_compacted_state())
        topic.compacted = None
        for subscription in topic.subscriptions.values():
            subscription.reading.source_changed()
        self._log.drop(before.ledger_id)
        log.info("topic %s: the compacted ledger is dropped", topic.text)

    def stop(self) -> None:
        """Stop a running compaction soon; its result is dropped."""
        self._stopping.set()

    def close(self) -> None:
        self._thread.shutdown(wait=True)

    # -- one compaction -----------------------------------------------------------------------------------------------

    async def _run(self, topic: Topic, progress: Progress) -> None:
        clock = self._clock
        began_ns = clock.monotonic_ns()
        try:
            outcome = await self._compact(topic)
        except Exception as error:
            if not isinstance(error, (Stopped, PenstockError)):
                log.exception("compaction of %s failed", topic.text)
            log.warning("topic %s could not be compacted: %s", topic.text, error)
            progress.status, progress.last_error = "ERROR", str(error)
            progress.failed_ms = clock.wall_ms()
            return
        progress.status = "SUCCESS"
        progress.removed = outcome.messages_dropped
        progress.succeeded_ms = clock.wall_ms()
        progress.duration_ms = (clock.monotonic_ns() - began_ns) // NS_PER_MS
        log.info(
            "topic %s compacted: %d entries kept, %d messages dropped",
            topic.text,
            outcome.entries,
            outcome.messages_dropped,
        )

    async def _compact(self, topic: Topic) -> Outcome:
        await self._subscription(topic)
        topic.check_open()
        self._check_whole(topic)
        horizon = topic.last_entry_id
        ledger_id = await self._take_ledger_id()
        aborted = BitMap64()
        if topic.transactions is not None:
            for entries in topic.transactions.aborted_within(topic.first_entry_id, horizon):
                aborted.add_range(entries.start, entries.stop)
        source = Source(self._log, topic.ledger_id, topic.first_entry_id, horizon, topic.compacted, aborted)
        sink = Sink(self._log, self._loop, ledger_id)
        try:
            outcome = await self._loop.run_in_executor(self._thread, self._work, source, sink)
        except BaseException:
            self._log.drop(ledger_id)
            raise
        await self._show(topic, CompactedLedger(ledger_id, outcome.entries, horizon))
        return outcome

    def _check_whole(self, topic: Topic) -> None:
        """Raises ServiceNotReady if entries of the topic are missing: compaction would restore older values of keys."""
        missing, before = self._log.missing, topic.compacted
        first = topic.first_entry_id if before is None else max(topic.first_entry_id, before.horizon + 1)
        lacks_before = before is not None and missing.any_of(before.ledger_id)
        if lacks_before or missing.within(topic.ledger_id, first, topic.last_entry_id + 1):
            raise ServiceNotReady(f"{topic.text} is not compacted while entries of it are missing; /healthz names them")

    async def _subscription(self, topic: Topic) -> Subscription:
        """The subscription `__compaction`, which keeps uncompacted entries from being trimmed."""
        found = topic.subscriptions.get(COMPACTION_SUBSCRIPTION)
        return found or await topic.open_subscription(COMPACTION_SUBSCRIPTION, durable=True, start=topic.first_entry_id)

    async def _take_ledger_id(self) -> int:
        taken: list[int] = []
        await self._changes.stored(lambda done: self._catalog.take_ledger_id(taken.append, done))
        return taken[0]

    def _work(self, source: Source, sink: Sink) -> Outcome:
        keys = LatestKeys()
        try:
            return TwoPhaseCompactor(read=source.entries, write=sink.write, keys=keys, pause=Pace(self._stopping)).run()
        finally:
            keys.close()

    async def _show(self, topic: Topic, compacted: CompactedLedger) -> None:
        """Store and use the new compacted ledger, if the topic is still the same."""
        async with self._locked(topic.text) as current:
            record = self._catalog.topic(topic.text)
            if record is None or record.ledger_id != topic.ledger_id:
                self._log.drop(compacted.ledger_id)
                raise Stopped("the topic was deleted meanwhile")
            before = compacted_in(self._states.of(topic.text))
            # Even if storing fails, the catalog may name the new ledger, so it is not dropped. The next start finds
            # out which ledger is in use.
            await self._states.change(topic, **compacted_state(compacted))
            if current is not None:
                current.compacted = compacted
                for subscription in current.subscriptions.values():
                    subscription.reading.source_changed()
        if before is not None:
            self._log.drop(before.ledger_id)
        if current is not None and COMPACTION_SUBSCRIPTION in current.subscriptions:
            current.subscriptions[COMPACTION_SUBSCRIPTION].acknowledge_through(compacted.horizon)


class Pace:
    """Called once per message. Yields to the event loop regularly; raises Stopped when the broker stops."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        self._left = MESSAGES_PER_TURN

    def __call__(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = MESSAGES_PER_TURN
            if self._stopping.wait(PAUSE_S):
                raise Stopped("the broker is stopping")


class Source:
    """Input of a compaction: the previous compacted ledger, then entries after its horizon that are not aborted."""

    def __init__(
        self,
        entry_log: EntryLog,
        ledger_id: int,
        first: int,
        last: int,
        compacted: CompactedLedger | None,
        aborted: BitMap64,
    ) -> None:
        self._log = entry_log
        self._ledger_id = ledger_id
        self._first = first
        self._last = last
        self._compacted = compacted
        self._aborted = aborted

    def entries(self) -> Iterator[Stored]:
        entry_id = self._first
        if self._compacted is not None:
            yield from self._until(self._compacted.horizon, 0, self._read_compacted)
            entry_id = max(entry_id, self._compacted.horizon + 1)
        yield from self._until(self._last, entry_id, self._read)

    def _until(self, last: int, entry_id: int, read: Any) -> Iterator[Stored]:  # noqa: ANN401
        while entry_id <= last:
            result: ReadResult = read(entry_id)
            for batch in result.batches:
                counts = batch.message_counts or [1] * len(batch.offsets)
                for (found, entry), count in zip(batch.entries(), counts, strict=True):
                    if found > last:
                        return
                    if found not in self._aborted:
                        yield Stored(found, entry, count)
            if result.next_entry_id <= entry_id:
                return
            entry_id = result.next_entry_id

    def _read(self, entry_id: int) -> ReadResult:
        return self._log.read(self._ledger_id, entry_id, bytes_max=READ_BYTES, entries_max=READ_ENTRIES)

    def _read_compacted(self, entry_id: int) -> ReadResult:
        assert self._compacted is not None
        return self._compacted.read(
            self._log, self._ledger_id, entry_id, bytes_max=READ_BYTES, entries_max=READ_ENTRIES
        )


class Sink:
    """Output of a compaction: a new ledger."""

    def __init__(self, entry_log: EntryLog, loop: asyncio.AbstractEventLoop, ledger_id: int) -> None:
        self._log = entry_log
        self._loop = loop
        self._ledger_id = ledger_id
        self._rows = 0

    def write(self, entries: list[Stored]) -> None:
        """Append entries and wait until they are durable. Raises PersistenceFailed."""
        wrapped = [wrap(stored.entry_id, stored.entry, stored.members) for stored in entries]
        lengths = [len(one) for one in wrapped]
        offsets = [0, *accumulate(lengths[:-1])]
        counts = [stored.message_count for stored in entries]
        durable: Future[None] = Future()
        run = AppendRun(
            groups=[(self._ledger_id, self._rows, len(entries))],
            offsets=offsets,
            lengths=lengths,
            message_counts=counts if any(count > 1 for count in counts) else None,
            data=b"".join(wrapped),
            done=lambda _run, error: durable.set_result(None) if error is None else durable.set_exception(error),
        )
        self._rows += len(entries)
        self._loop.call_soon_threadsafe(partial(self._log.append, run))
        durable.result()
