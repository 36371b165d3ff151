# SPDX-License-Identifier: Apache-2.0
"""All delayed indexes of a broker: their memory, their snapshots, and reading missing entries again.

Why snapshots: the log has everything, but finding the delayed ones among a million messages takes seconds during which
no client is served. A snapshot covers all entries up to one; later entries are read when the topic is loaded. It lags
behind by at most a twentieth of the index, or ten seconds. A damaged snapshot costs only time.

Why reading again: entries that did not fit into memory, or were released because of a stuck subscription, are still in
the log. They are read in portions, in a reader thread, with pauses three times as long as the reads.
Where: topics open and close their index here; the broker's tick saves changed indexes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.broker.topics.topic_states import ledgers_in_use
from penstock.core.checksum import SEAL_BYTES, is_sealed, seal
from penstock.core.errors import PenstockError, ReadFailed
from penstock.core.units import MIB, NS_PER_S
from penstock.wire import metadata

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.log_reads import LogReads
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.delayed_index import DelayedIndex
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.governance.delayed import DelayedDeliveryTrackerFactory
    from penstock.governance.delayed_memory import DelayedMemory
    from penstock.governance.delayed_snapshot import Snapshot
    from penstock.governance.delayed_view import DelayedDeliveryView
    from penstock.storage.catalog import Catalog
    from penstock.storage.entry_log import EntryLog
    from penstock.storage.snapshots import Snapshots

log = logging.getLogger(__name__)

# A snapshot is written after this many additions and this share of the index, or after this time.
SNAPSHOT_ADDED_MIN: Final = 5_000
SNAPSHOT_ADDED_RATIO: Final = 0.05
SNAPSHOT_AFTER_NS: Final = 10 * NS_PER_S
# Size of one read of the log for an index.
READ_BYTES: Final = MIB
READ_ENTRIES: Final = 10_000
# Delay before a failed read is tried again.
READ_RETRY_S: Final = 1.0
# Entries added to an index in one turn of the loop.
ADDED_AT_ONCE: Final = 500
PAUSE_RATIO: Final = 3
# When a topic is loaded, up to this many entries after the snapshot are read at once; if there are more, dispatchers
# find delayed messages when they reach them.
CATCH_UP_ENTRIES_MAX: Final = 500_000

_HEADER: Final = struct.Struct(">I")


class Found(NamedTuple):
    """Delayed entries in a portion of the log, and the entry id at which to continue."""

    entry_ids: list[int]
    deliver_at_ms: list[int]
    stop: int

    def pieces(self) -> Iterator[Found]:
        """Split into pieces that an index can add within a few milliseconds each."""
        for start in range(0, len(self.entry_ids), ADDED_AT_ONCE):
            end = start + ADDED_AT_ONCE
            ids = self.entry_ids[start:end]
            stop = ids[-1] + 1 if end < len(self.entry_ids) else self.stop
            yield Found(ids, self.deliver_at_ms[start:end], stop)
        if not self.entry_ids:
            yield self


class DelayLimits(Protocol):
    """Limits of the broker used here. `delayed_strict` may change at run time."""

    @property
    def delayed_strict(self) -> bool:
        """Whether a message must never be delivered before its delivery time."""


class DelayedIndexes:
    """All delayed indexes of one broker."""

    def __init__(
        self,
        *,
        entry_log: EntryLog,
        catalog: Catalog,
        changes: Changes,
        reads: LogReads,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        limits: Callable[[], DelayLimits],
        stopping: Callable[[], bool],
        snapshots: Snapshots | None,
        memory: DelayedMemory,
    ) -> None:
        """Args: stopping: whether the broker is stopping. snapshots: where to store them; None: not stored."""
        self.memory = memory
        self.clock = clock
        self.loop = loop
        self.limits = limits
        self.stopping = stopping
        self._log = entry_log
        self._changes = changes
        self._reads = reads
        self._snapshots = snapshots
        self._stored = _in_use(snapshots, catalog) if snapshots is not None else set()
        self._changed: dict[DelayedIndex, int] = {}  # since when, in monotonic ns
        self._saving: set[DelayedIndex] = set()

    @cached_property
    def factory(self) -> DelayedDeliveryTrackerFactory:
        """Keeps one manager per topic."""
        from penstock.governance.delayed import DelayedDeliveryTrackerFactory  # noqa: PLC0415 - many brokers do without

        return DelayedDeliveryTrackerFactory(self.memory)

    # -- loading and unloading a topic --------------------------------------------------------------------------------

    def index_of(self, topic: Topic) -> DelayedIndex:
        """The topic's index; created if missing."""
        from penstock.broker.topics.delayed_index import DelayedIndex  # noqa: PLC0415 - likewise

        if topic.delayed is None:
            topic.delayed = DelayedIndex(topic, self)
        return topic.delayed

    async def load(self, topic: Topic) -> None:
        """Restore the index of a topic that is being loaded, if it has a snapshot."""
        if self._snapshots is None or topic.ledger_id not in self._stored:
            return
        if self._log.missing.any_of(topic.ledger_id):
            self.dropped(topic.ledger_id)
            return
        from penstock.governance.delayed_options import DamagedSnapshotError  # noqa: PLC0415 - likewise

        snapshots, ledger_id = self._snapshots, topic.ledger_id
        index = self.index_of(topic)
        try:
            try:
                names, snapshot = await self._reads.in_thread(lambda: unpack(snapshots.load(ledger_id) or b""))
            except (OSError, DamagedSnapshotError) as error:
                log.warning("%s: its delayed messages are found by reading the log again: %s", topic.text, error)
                self.forget(topic)
                return
            index.manager.restore(snapshot)
            await self._catch_up(index)
        except BaseException:
            self.close(topic)  # The next load starts from scratch.
            raise
        for subscription in map(topic.subscriptions.get, names):
            if subscription is not None:
                subscription.view = index.view_of(subscription)
        index.deliver_due()

    async def _catch_up(self, index: DelayedIndex) -> None:
        """Add the entries that were published after the snapshot."""
        topic, manager = index.topic, index.manager
        unknown = manager.unknown_ranges(topic.first_entry_id, topic.durable_entry_id + 1)
        if sum(one.stop - one.first for one in unknown) > CATCH_UP_ENTRIES_MAX:
            return
        for one in unknown:
            first = one.first
            while first < one.stop:
                found = await self._reads.in_thread(partial(self.read, topic, first, one.stop))
                for piece in found.pieces():
                    manager.look_ahead(first, piece.stop, piece.entry_ids, piece.deliver_at_ms, index.now_ms())
                    first = piece.stop
                    await asyncio.sleep(0)

    def read(self, topic: Topic, first: int, stop: int) -> Found:
        """Read the delivery times of some entries in [first, stop). Blocks."""
        count = min(stop - first, READ_ENTRIES)
        result = self._log.read(topic.ledger_id, first, bytes_max=READ_BYTES, entries_max=count)
        ids: list[int] = []
        times_ms: list[int] = []
        for batch in result.batches:
            rows = metadata.may_be_delayed(batch.data, batch.offsets, batch.lengths)
            some_ids, some_ms = metadata.delivery_times(
                batch.data, batch.offsets, batch.lengths, rows, batch.entry_ids[0]
            )
            ids += some_ids
            times_ms += some_ms
        # Entries missing in the log are skipped.
        return Found(ids, times_ms, min(result.next_entry_id, stop) if result.next_entry_id > first else stop)

    def close(self, topic: Topic) -> None:
        index, topic.delayed = topic.delayed, None
        if index is None:
            return
        index.disarm()
        self._changed.pop(index, None)
        self.factory.remove(topic.text)
        for subscription in topic.subscriptions.values():
            subscription.view = None

    def forget(self, topic: Topic) -> None:
        """Remove the topic's index and its snapshot."""
        self.close(topic)
        self.dropped(topic.ledger_id)

    def dropped(self, ledger_id: int) -> None:
        """Remove the snapshot of a ledger, because the ledger is deleted or the snapshot is not usable."""
        if self._snapshots is not None and ledger_id in self._stored:
            self._stored.discard(ledger_id)
            snapshots = self._snapshots
            self._changes.finish(self._logged(self._reads.in_thread(lambda: snapshots.forget(ledger_id))))

    async def _logged(self, work: asyncio.Future[None]) -> None:
        try:
            await work
        except OSError as error:
            log.warning("a snapshot of delayed messages could not be removed: %s", error)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def changed(self, index: DelayedIndex) -> None:
        """Note that an index has changed and must be saved soon."""
        self._changed.setdefault(index, self.clock.monotonic_ns())

    def tick(self, now_ns: int) -> None:
        """Start to save the indexes that are due."""
        if self._snapshots is None or not self._changed:
            return
        for index, since_ns in list(self._changed.items()):
            enough = max(SNAPSHOT_ADDED_MIN, SNAPSHOT_ADDED_RATIO * index.manager.topic_delayed_messages())
            due = index.added >= enough or now_ns - since_ns >= SNAPSHOT_AFTER_NS
            if due and index not in self._saving and not index.topic.fenced:
                self._changes.finish(self.save(index))

    async def save(self, index: DelayedIndex) -> None:
        """Store a snapshot of one index. Returns when it is durable, or when it failed; a failure is logged."""
        snapshots, topic, ledger_id = self._snapshots, index.topic, index.topic.ledger_id
        self._changed.pop(index, None)
        if snapshots is None or topic.delayed is not index:
            return
        index.added = 0
        # With entries missing, the index is incomplete. If a later start finds them, it must read the log itself.
        if self._log.missing.any_of(ledger_id) or not index.manager.topic_delayed_messages():
            self.dropped(ledger_id)
            return
        self._saving.add(index)
        had_one = ledger_id in self._stored
        self._stored.add(ledger_id)
        views = [name for name, one in topic.subscriptions.items() if one.view is not None and one.durable]
        parts = [pack(views)]
        try:
            for piece in index.manager.snapshot_pieces(topic.durable_entry_id + 1):
                parts.append(piece)
                await asyncio.sleep(0)  # Let publishing continue.
            await self._reads.in_thread(lambda: snapshots.save(ledger_id, parts))
            if ledger_id not in self._stored:  # The ledger was deleted in the meantime.
                await self._reads.in_thread(lambda: snapshots.forget(ledger_id))
        except OSError as error:
            log.warning("%s: a snapshot of its delayed messages could not be stored: %s", topic.text, error)
            if not had_one:
                self._stored.discard(ledger_id)
            if topic.delayed is index:
                self.changed(index)
        finally:
            self._saving.discard(index)

    async def save_of(self, topic: Topic) -> None:
        if topic.delayed in self._changed:
            await self.save(topic.delayed)

    async def stop(self, topics: Iterable[Topic]) -> None:
        """Save all changed indexes, and cancel the timers of all indexes."""
        for index in list(self._changed):
            await self.save(index)
        for topic in topics:
            if topic.delayed is not None:
                topic.delayed.disarm()

    # -- reading again ------------------------------------------------------------------------------------------------

    def start_back_fill(self, index: DelayedIndex) -> None:
        """Start to read entries that an index does not hold, if they are needed now."""
        if index.reading or index.topic.fenced or not self._goes_on(index):
            return
        wanted = index.manager.back_fill(index.now_ms())
        stuck = [
            one
            for one in index.topic.subscriptions.values()
            if one.view is not None and one.consumers and one.view.back_fill(one.read_entry_id) is not None
        ]
        if wanted is not None or stuck:
            index.reading = True
            self._changes.finish(self._read_again(index, stuck, whole=wanted is not None))

    async def _read_again(self, index: DelayedIndex, stuck: Sequence[Subscription], *, whole: bool) -> None:
        try:
            if whole:
                await self._fill_index(index)
            for subscription in stuck:
                if subscription.view is not None:
                    await self._fill_view(index, subscription, subscription.view)
        except (OSError, PenstockError) as error:
            if not isinstance(error, ReadFailed):  # The log has reported that already.
                log.warning("%s: reading its delayed messages again failed: %s", index.topic.text, error)
            self.loop.call_later(READ_RETRY_S, self.start_back_fill, index)
        finally:
            index.reading = False

    async def _fill_index(self, index: DelayedIndex) -> None:
        manager = index.manager
        first, stop = manager.begin_back_fill()
        try:
            while first < stop:
                found = await self._portion(index, first, stop)
                for piece in found.pieces():
                    if not self._goes_on(index):
                        return
                    manager.found(piece.entry_ids, piece.deliver_at_ms)
                    await asyncio.sleep(0)
                first = found.stop
        except BaseException:
            manager.abort_back_fill()
            raise
        manager.end_back_fill(index.now_ms())
        index.set_timer()

    async def _fill_view(self, index: DelayedIndex, subscription: Subscription, view: DelayedDeliveryView) -> None:
        wanted = view.back_fill(subscription.read_entry_id)
        while wanted is not None:
            found = await self._portion(index, *wanted)
            if not self._goes_on(index) or not subscription.delivers_by(view):
                return
            held = set(view.look(found.entry_ids, found.deliver_at_ms, index.now_ms()))
            # A late message may be neither held nor due: then it is on disk only.
            until_ms = index.due_until_ms()
            subscription.replay_passed(
                [
                    entry_id
                    for entry_id, at_ms in zip(found.entry_ids, found.deliver_at_ms, strict=True)
                    if at_ms <= until_ms and entry_id not in held
                ]
            )
            view.back_filled(found.stop)
            wanted = view.back_fill(subscription.read_entry_id)

    def _goes_on(self, index: DelayedIndex) -> bool:
        """Whether the entries being read are still needed."""
        return index.topic.delayed is index and not self.stopping()

    async def _portion(self, index: DelayedIndex, first: int, stop: int) -> Found:
        loop, topic = self.loop, index.topic
        began_s = loop.time()
        found = await self._reads.in_thread(lambda: self.read(topic, first, stop))
        await asyncio.sleep(PAUSE_RATIO * (loop.time() - began_s))
        return found


def _in_use(snapshots: Snapshots, catalog: Catalog) -> set[int]:
    """The ledgers that have a snapshot. Deletes snapshots of ledgers that no topic uses."""
    stored = snapshots.ledgers()
    gone = stored - ledgers_in_use(catalog) if stored else set()
    for ledger_id in gone:
        snapshots.forget(ledger_id)
    return stored - gone


def pack(names: Sequence[str]) -> bytes:
    """The head of a snapshot: the names of subscriptions that have a view. The pieces of the index follow it."""
    head = seal(json.dumps(names).encode())
    return _HEADER.pack(len(head)) + head


def unpack(data: bytes) -> tuple[list[str], Snapshot]:
    """Decode a snapshot. Raises DamagedSnapshotError."""
    from penstock.governance.delayed_options import DamagedSnapshotError  # noqa: PLC0415 - many brokers do without
    from penstock.governance.delayed_snapshot import decode  # noqa: PLC0415 - it imports the bitmaps

    start = _HEADER.size
    stop = start + (_HEADER.unpack_from(data)[0] if len(data) >= start else 0)
    head = data[start:stop]
    if len(head) <= SEAL_BYTES or not is_sealed(head):
        raise DamagedSnapshotError(f"{len(data)} bytes are no snapshot of delayed messages")
    return json.loads(head[SEAL_BYTES:]), decode(memoryview(data)[stop:])
