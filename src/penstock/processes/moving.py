# SPDX-License-Identifier: Apache-2.0
"""Moves topics between the brokers of a data directory while none of them runs.

Why: with fewer brokers than before, the topics of the last ones must go to the others. A topic's messages are in its
broker's log, so they are copied (docs/adr/0037). Where: `removal` says which topics go where.

Topics are moved in batches, each in steps, and a crash between any two of them loses nothing:

1. Copy the entries to the logs of the other brokers, and close these logs: the copies are durable.
2. Copy the rows of `topics.sqlite`, and the snapshots of delayed messages.
3. Record the new places in `meta.sqlite`, in one transaction. From here on the topics are where they were moved to.
4. Delete entries, rows and snapshots at the broker that they were moved from.

Before step 3, what was copied belongs to no topic of the broker that has it; after it, the same holds for the
originals. A broker deletes such ledgers and rows at its start, and `BrokerStorage.delete_unused` does it here. Copies
have the ids of the originals, so an entry that a crash leaves in two places is the same in both.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.broker.topics.topic_states import COMPACTED_LEDGER
from penstock.broker.topics.topic_states import KIND as TOPIC_STATE
from penstock.core.errors import MetadataFailed
from penstock.core.units import GIB
from penstock.storage.catalog_rows import DamagedRow
from penstock.storage.entry_log import EntryLog
from penstock.storage.ledger_copy import Ledger, LedgerCopy, drop
from penstock.storage.metadata import close_untouched, fold, open_database
from penstock.storage.schema import TOPIC_DATA_MIGRATIONS
from penstock.storage.shared_changes import PlaceTopics
from penstock.storage.shared_store import LocalPart
from penstock.storage.snapshots import Snapshots
from penstock.storage.topic_data import check_new
from penstock.storage.topic_rows import (
    copy_rows,
    delete_rows,
    documents,
    first_retained,
    kept_ledgers,
    ledgers_with_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import apsw

    from penstock.core.clock import Clock
    from penstock.core.errors import PenstockError
    from penstock.storage.catalog_rows import TopicRecord
    from penstock.storage.directory import DataDirectory
    from penstock.storage.files import Files
    from penstock.storage.limits import LogLimits
    from penstock.storage.shared_view import SharedView

log = logging.getLogger(__name__)

# A batch ends after so much: a crash makes the next start repeat one, and its space is free again after each.
BATCH_BYTES: Final = 1 * GIB
BATCH_TOPICS: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A data directory, and how to open it."""

    directory: DataDirectory
    files: Files
    limits: LogLimits
    clock: Clock
    vfs: str | None = None  # as of `open_database`
    exclusive: bool = False


class Topic(NamedTuple):
    """A topic to be moved."""

    record: TopicRecord
    ledgers: tuple[Ledger, ...]  # its own, and the compacted one if there is one
    bytes: int  # of all its entries

    @property
    def ledger_ids(self) -> list[int]:
        return [ledger.ledger_id for ledger in self.ledgers]


class BrokerStorage:
    """Storage of one broker, opened to move topics. Everything happens on the calling thread."""

    def __init__(self, disk: Disk, shared: SharedView, number: int, stack: ExitStack) -> None:
        """Open and recover it; `stack` closes it.

        Raises DataDirectoryLocked, PersistenceFailed, MetadataFailed, OSError.
        """
        self.number = number
        self._shared = shared
        self.limits = disk.limits
        home, path = disk.directory.broker(number), disk.directory.topics(number)
        if not disk.files.exists(path):
            check_new(path, disk.files, sum(one.broker == number for one in shared.topics.values()))
        self.log = EntryLog.open(
            home, disk.files, disk.limits, lambda call: call(), clock=disk.clock, index_vfs=disk.vfs, background=False
        )
        self.close_log = stack.enter_context(_closing(self.log))
        self.rows = open_database(path, TOPIC_DATA_MIGRATIONS, disk.files, exclusive=disk.exclusive, vfs=disk.vfs)
        stack.callback(close_untouched, self.rows)
        self._path, self._files = path, disk.files
        self.snapshots = Snapshots(home / "delayed", disk.files)

    @contextmanager
    def checked(self) -> Iterator[apsw.Connection]:
        """The rows, for reading. Raises MetadataFailed if they are damaged."""
        try:
            yield self.rows
        except DamagedRow as error:
            raise MetadataFailed(f"{self._path} is damaged: {error}; put a copy of it in its place") from error

    def topics(self) -> list[Topic]:
        """Return the topics of this broker, in the order of their creation."""
        with self.checked() as rows:
            retained, states = first_retained(rows), documents(rows, TOPIC_STATE)
        records = (one for one in self._shared.topics.values() if one.broker == self.number)
        found = []
        for record in sorted(records, key=lambda one: one.ledger_id):
            ledgers = [Ledger(record.ledger_id, retained.get(record.ledger_id, 0))]
            compacted = states.get(record.ledger_id, {}).get(COMPACTED_LEDGER)
            if compacted is not None:
                ledgers.append(Ledger(int(compacted), 0))
            found.append(Topic(record, tuple(ledgers), sum(self._bytes_of(each) for each in ledgers)))
        return found

    def entries(self, topic: Topic) -> int:
        """Return how many entries a topic has at most."""
        return sum(max(0, self.log.last_entry(each.ledger_id) + 1 - each.first_entry) for each in topic.ledgers)

    def _bytes_of(self, ledger: Ledger) -> int:
        return self.log.bytes_from(ledger.ledger_id, [ledger.first_entry])[0]

    def delete_unused(self) -> bool:
        """Delete what no topic of this broker uses, as the broker does at its start; returns whether some is kept.

        Kept is what the shared part never gave out: then that is an older copy, and these may be the only data.
        """
        with self.checked() as rows:
            kept = kept_ledgers(rows)
            found = self.log.ledgers() | ledgers_with_rows(rows) | self.snapshots.ledgers()
        used = {ledger_id for topic in self.topics() for ledger_id in topic.ledger_ids}
        unused = found - used - kept
        if not all(map(self._shared.was_given_out, unused)):
            return True
        self.delete(sorted(unused))
        return bool(kept)

    def delete(self, ledger_ids: Sequence[int]) -> None:
        """Delete ledgers with everything that is stored about them."""
        with self.checked() as rows:
            delete_rows(rows, ledger_ids)
        for ledger_id in ledger_ids:
            self.snapshots.forget(ledger_id)
        drop(self.log, ledger_ids)

    def make_durable(self) -> None:
        """Copy the changes of the rows into the file, so that its write-ahead log does not grow."""
        fold(self.rows, self._path, self._files)


class TopicMover:
    """Moves topics. All methods block. Raise MetadataFailed, PersistenceFailed, ReadFailed, OSError."""

    def __init__(self, disk: Disk, shared: LocalPart, answers: SimpleQueue[Callable[[], None]]) -> None:
        """Use `opened`."""
        self._disk = disk
        self._shared = shared
        self._answers = answers
        self.view = shared.view

    @classmethod
    @contextmanager
    def opened(cls, disk: Disk) -> Iterator[TopicMover]:
        """Lock the data directory and open its shared part. Raises DataDirectoryLocked."""
        answers: SimpleQueue[Callable[[], None]] = SimpleQueue()
        shared = LocalPart.open(
            disk.directory, answers.put, disk.files, exclusive=disk.exclusive, vfs=disk.vfs, brokers=None
        )
        try:
            yield cls(disk, shared, answers)
        finally:
            shared.close()

    @contextmanager
    def storage(self, number: int) -> Iterator[BrokerStorage]:
        """Open what one broker stores."""
        with ExitStack() as stack:
            yield BrokerStorage(self._disk, self.view, number, stack)

    def move(self, source: BrokerStorage, topics: Sequence[Topic], places: Mapping[str, int]) -> None:
        """Move topics of one broker, each to the broker that `places` says."""
        done = done_bytes = 0
        all_bytes = sum(topic.bytes for topic in topics)
        for batch in _batches(topics):
            self._move_batch(source, batch, places)
            done, done_bytes = done + len(batch), done_bytes + sum(topic.bytes for topic in batch)
            log.info(
                "broker %d: %d of %d topics are moved, %d of %d bytes",
                source.number, done, len(topics), done_bytes, all_bytes,
            )  # fmt: skip

    def _move_batch(self, source: BrokerStorage, batch: Sequence[Topic], places: Mapping[str, int]) -> None:
        to: dict[int, list[Topic]] = defaultdict(list)
        for topic in batch:
            to[places[topic.record.name]].append(topic)
        for number, topics in sorted(to.items()):
            with self.storage(number) as target:
                self._copy(source, target, topics)
        self._place(PlaceTopics([(one.record.name, one.record.ledger_id, places[one.record.name]) for one in batch]))
        source.delete([ledger_id for topic in batch for ledger_id in topic.ledger_ids])
        source.make_durable()

    def _copy(self, source: BrokerStorage, target: BrokerStorage, topics: Sequence[Topic]) -> None:
        copy = LedgerCopy(source.log, target.log, target.limits)
        copy.run([ledger for topic in topics for ledger in topic.ledgers])
        target.close_log(copy.finish)
        if copy.lost:
            log.warning(
                "%d entries of topics that are moved from broker %d to %d were damaged before, and stay so",
                copy.lost, source.number, target.number,
            )  # fmt: skip
        with source.checked() as rows:
            copy_rows(rows, target.rows, [ledger_id for topic in topics for ledger_id in topic.ledger_ids])
        target.make_durable()
        for topic in topics:
            snapshot = source.snapshots.load(topic.record.ledger_id)
            if snapshot is not None:
                target.snapshots.save(topic.record.ledger_id, [snapshot])

    def _place(self, change: PlaceTopics) -> None:
        errors: list[PenstockError | None] = []
        self._shared.submit(change, errors.append)
        while not errors:
            self._answers.get()()
        if errors[0] is not None:
            raise errors[0]


@contextmanager
def _closing(entry_log: EntryLog) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Close the log at the end, unless the function that is returned was given one that does."""
    closed = False

    def close_by(close: Callable[[], None]) -> None:
        nonlocal closed
        closed = True
        close()

    try:
        yield close_by
    finally:
        if not closed:
            entry_log.close()


def _batches(topics: Iterable[Topic]) -> Iterator[list[Topic]]:
    batch: list[Topic] = []
    nbytes = 0
    for topic in topics:
        if batch and (nbytes + topic.bytes > BATCH_BYTES or len(batch) == BATCH_TOPICS):
            yield batch
            batch, nbytes = [], 0
        batch.append(topic)
        nbytes += topic.bytes
    if batch:
        yield batch
