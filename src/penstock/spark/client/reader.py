# SPDX-License-Identifier: Apache-2.0
"""A range of one topic, from one message id up to another, as runs of entries and of messages.

Why no cursor of the broker's: the range is all there is to know, so a task can be run again, anywhere, and reads the
same.
Where: tasks of Spark read their share with `read`; planning measures entries with `EntryReader`.

Theory of operation
    Ids of entries count up by one, and a ledger is followed by one with a higher id that begins at 0. So what is
    missing shows: where an id does not follow the one before it, or the range begins with whatever there is, we ask the
    broker for the first entry from there on, by a reader of its own. If that is another one than the one that came,
    entries went missing on their way, and the range is read again from there. If it is the same, the ids between were
    removed, or never given to messages (markers, the end of a ledger). The earliest message that the topic still has
    tells: if it lies behind the gap, messages may be lost, and that is said.
    A connection that ends is opened again, and goes on where the last whole run ended.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.core.units import MIB, NS_PER_S
from penstock.net.clock import SystemClock
from penstock.spark.client import deliveries, messages
from penstock.spark.client.chunks import Chunks, entries_of, pieces_in
from penstock.spark.client.encryption import Decryption
from penstock.spark.client.errors import (
    BadAnswer,
    ClientError,
    ConnectionLost,
    DamagedEntry,
    DataLost,
    EntriesMissed,
    NothingCame,
    Refused,
)
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.message_runs import take_messages
from penstock.spark.client.subscription import Subscription, beginning, earliest_id, following_ids
from penstock.wire.client.events import ConsumerClosed
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from penstock.core.clock import Clock
    from penstock.spark.client.cluster import Cluster
    from penstock.spark.client.connection import Connection
    from penstock.spark.client.deliveries import Deliveries
    from penstock.spark.client.fields import Ints
    from penstock.spark.client.messages import Messages

_log: Final = logging.getLogger(__name__)
# Messages that the broker may send ahead; what they weigh is bounded by the sockets' buffers.
PERMITS: Final = 20_000
# As many at first, when nothing is known yet of how many messages there are in an entry, or of how many entries.
_PERMITS_FIRST: Final = 1_000
# Entries taken at a time, and the bytes waited for before that: one run's columns should be long, and fit the caches.
_RUN_ENTRIES_MAX: Final = 8_192
_RUN_BYTES: Final = 2 * MIB
# Within a run, so long is waited for more.
_PATIENCE_S: Final = 0.004
# After so long without a message we ask whether there is any.
_DOUBT_S: Final = 2.0
# Pieces of a message are looked for so many entries back at first, then further.
_LOOK_BACK_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a range is read."""

    compacted: bool = False  # only the last message of each key, as far as compaction has come
    fail_on_data_loss: bool = True
    poll_timeout_s: float = 30.0  # without a message, before it is an error
    decryption: Decryption = field(default_factory=Decryption)


class EntryReader:
    """Entries of a range, run by run.

    Attributes:
        position: the id of the next message.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        start: MessageId,
        end: MessageId,
        options: ReadOptions,
        *,
        ahead: int = PERMITS,
        proves: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Read [`start`, `end`), letting the broker send so many messages `ahead`; nothing is opened yet.

        Without `proves`, it is not asked why ids are missing.
        """
        self.position = start
        self._cluster = cluster
        self._topic = topic
        self._end = end
        self._options = options
        self._ahead = min(ahead, PERMITS)
        self._proves = proves and not options.compacted  # compaction leaves gaps, and does not say where
        self._clock = clock or SystemClock()
        self._subscription: Subscription | None = None
        self._earliest = EARLIEST  # as the broker names it, if the range begins there
        self._heard_ns = 0  # when something last came
        self._taken_entries = self._taken_messages = 0

    def runs(self) -> Generator[Deliveries]:
        """The entries, in order; the buffer of a run is lent until the next one is asked for.

        Raises:
            DataLost, NothingCame: messages that should be there are gone, or do not come.
            ClientError: the broker could not be reached again in time, or refuses.
        """
        self._heard_ns = self._clock.monotonic_ns()
        try:
            while self.position < self._end:
                run = self._next_run()
                if run is None:
                    return
                entries, following = run
                if len(entries):
                    yield entries
                self.position = following
            if self._subscription is not None:
                self._subscription.release()
                self._subscription = None
        finally:
            self._close()

    # -- one run -----------------------------------------------------------------------------------------------------

    def _next_run(self) -> tuple[Deliveries, MessageId] | None:
        """The next entries, and the position behind them; None when the rest of the range is given up."""
        failing_since_ns: int | None = None
        backoff = self._cluster.backoff()
        while True:
            try:
                subscription = self._subscribed()
                taken = self._take(subscription)
                if taken is not None:
                    self._heard_ns = self._clock.monotonic_ns()
                    return self._checked(taken)
                if not self._worth_waiting():
                    return None
            except ClientError as error:
                self._close()
                if self._is_gone(error):
                    return None
                now_ns = self._clock.monotonic_ns()
                patience_ns = self._cluster.endpoint.operation_timeout_s * NS_PER_S
                if not error.may_pass or (failing_since_ns and now_ns - failing_since_ns > patience_ns):
                    raise
                if failing_since_ns is None:
                    failing_since_ns = now_ns  # A connection may end: the next one is tried at once.
                else:
                    threading.Event().wait(backoff.next_s())

    def _is_gone(self, error: ClientError) -> bool:
        """Whether the whole topic is, and that is no error."""
        gone = isinstance(error, Refused) and error.is_missing_topic
        if gone and not self._options.fail_on_data_loss:
            _log.warning("%s; its messages from %s on are passed over (failOnDataLoss=false)", error, self.position)
            return True
        return False

    def _subscribed(self) -> Subscription:
        if self._subscription is None:
            options = self._options
            self._subscription = Subscription.reading(
                self._cluster, self._topic, self.position, compacted=options.compacted
            )
            if self._proves and self.position == EARLIEST:
                self._earliest = self._subscription.next_place()
        self._subscription.refill(self._window())
        return self._subscription

    def _window(self) -> int:
        """How many messages may be on their way: fewer near the end, so that little is sent which is not read."""
        if not self._taken_entries:
            return min(self._ahead, _PERMITS_FIRST)
        if self.position.ledger_id != self._end.ledger_id:
            return self._ahead
        entries_left = self._end.entry_id - self.position.entry_id + 1
        return min(self._ahead, -(-entries_left * self._taken_messages // self._taken_entries))

    def _take(self, subscription: Subscription) -> Deliveries | None:
        """Wait for entries until they are worth a run, and return them; None when nothing came for a while."""
        connection = subscription.connection
        inbound = connection.inbound
        starts, stop = self._frames(connection)
        while not len(starts):
            while (event := connection.take_event()) is not None:
                if isinstance(event, ConsumerClosed):
                    raise ConnectionLost(str(connection.address), "the broker closed the consumer: the topic moves")
            starts, stop = self._frames(connection)
            if not len(starts):
                if not connection.receive(_DOUBT_S):
                    return None
                while inbound.held_bytes < _RUN_BYTES and connection.receive(_PATIENCE_S):
                    pass
                starts, stop = self._frames(connection)
        try:
            came, damaged = deliveries.decode(inbound.data, starts, stop)
            entries, consumer_id = came, subscription.consumer.consumer_id
            if consumer_id > 1:  # What was on its way to one that this connection had before is none of ours.
                entries = came.chosen(deliveries.consumer_ids(inbound.data, starts, stop) == consumer_id)
            count = messages.message_count(entries)
        except ProtocolError as error:
            raise BadAnswer(str(connection.address), str(error)) from error
        subscription.consumer.took(count)
        self._taken_entries += len(entries)
        self._taken_messages += count
        if damaged.size:
            row = int(damaged[0])
            raise DamagedEntry(self._topic, str(MessageId(int(came.ledger_ids[row]), int(came.entry_ids[row]))))
        return entries

    def _frames(self, connection: Connection) -> tuple[Ints, int]:
        try:
            return take_messages(connection.inbound, _RUN_ENTRIES_MAX)
        except ProtocolError as error:
            raise BadAnswer(str(connection.address), str(error)) from error

    # -- what is missing ---------------------------------------------------------------------------------------------

    def _checked(self, entries: Deliveries) -> tuple[Deliveries, MessageId]:
        """Return entries inside the range, and the position behind them. Raises DataLost."""
        ledgers, ids = entries.ledger_ids, entries.entry_ids
        start, end = self.position, self._end
        early = (ledgers < start.ledger_id) | ((ledgers == start.ledger_id) & (ids < start.entry_id))
        last_entry = end.entry_id if end.batch_index else end.entry_id - 1
        late = (ledgers > end.ledger_id) | ((ledgers == end.ledger_id) & (ids > last_entry))
        first, stop = int(early.sum()), len(ids) - int(late.sum())
        self._check_gaps(ledgers[first : stop + 1], ids[first : stop + 1])
        inside = entries.chosen(slice(first, stop))
        if stop < len(ids):
            return inside, end
        if first == stop:
            return inside, start
        return inside, MessageId(int(ledgers[-1]), int(ids[-1]) + 1)

    def _check_gaps(self, ledgers: Ints, ids: Ints) -> None:
        """Compare each id with the one that should come, and have the broker explain those that are others.

        Raises:
            EntriesMissed: there is an entry between, which did not come.
            DataLost: the missing entries were removed.
        """
        if not len(ids) or not self._proves:
            return
        wanted_ledgers = np.append(self.position.ledger_id, ledgers[:-1])
        wanted_ids = np.append(self.position.entry_id, ids[:-1] + 1)
        if self.position == EARLIEST and (int(ledgers[0]), int(ids[0])) == self._earliest[:2]:
            wanted_ledgers[0], wanted_ids[0] = self._earliest[:2]
        odd = np.flatnonzero((ledgers != wanted_ledgers) | (ids != wanted_ids))
        steps = {
            MessageId(int(wanted_ledgers[row]), int(wanted_ids[row])): MessageId(int(ledgers[row]), int(ids[row]))
            for row in odd.tolist()
        }
        if not steps:
            return
        there = following_ids(self._cluster, self._topic, list(steps))
        for wanted, came in steps.items():
            if there[wanted] < came:
                raise EntriesMissed(self._topic, str(there[wanted]), str(came))
        steps.pop(EARLIEST, None)
        earliest = earliest_id(self._cluster, self._topic) if steps else None
        for wanted in steps:
            if earliest is None or earliest > wanted:
                self._lost(wanted, earliest)

    def _lost(self, wanted: MessageId, earliest: MessageId | None) -> None:
        """Messages are not there. Raises DataLost if they were removed, unless that is to be passed over.

        What an aborted transaction has sent is still in the topic, and nobody sees it.
        """
        if earliest is not None and beginning(self._cluster, self._topic) <= wanted:
            return
        lost = DataLost(self._topic, str(wanted), _what_is_there(earliest))
        if self._options.fail_on_data_loss:
            raise lost
        _log.warning("%s (they are passed over: failOnDataLoss=false)", lost)

    def _worth_waiting(self) -> bool:
        """Nothing has come for a while: whether to wait on. Raises DataLost, NothingCame."""
        options = self._options
        waited_s = (self._clock.monotonic_ns() - self._heard_ns) / NS_PER_S
        if not options.compacted:
            earliest = earliest_id(self._cluster, self._topic)
            if earliest is None or earliest >= self._end or earliest > self.position != EARLIEST:
                self._lost(self.position, earliest)
                if earliest is None or earliest >= self._end:
                    return False
        if waited_s < options.poll_timeout_s:
            # Once more from the start: should the broker have forgotten about us, this reminds it.
            self._close()
            return True
        if options.compacted or not options.fail_on_data_loss:
            return False
        with Subscription.reading(self._cluster, self._topic, self.position) as subscription:
            last = subscription.last_id()
        topic_ends = "" if last is not None and last >= self.position else _where_it_ends(last)
        raise NothingCame(
            self._topic, str(self.position), str(self._end), options.poll_timeout_s, topic_ends=topic_ends
        )

    def _close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None


def read(
    cluster: Cluster, topic: str, start: MessageId, end: MessageId, options: ReadOptions, *, clock: Clock | None = None
) -> Iterator[Messages]:
    """The messages of [`start`, `end`), in order; their buffer is lent until the next ones are asked for.

    Raises:
        ClientError: as `EntryReader.runs`, or a message cannot be read.
    """
    chunks = Chunks(partial(fetch_pieces, cluster, topic, options))
    for run in EntryReader(cluster, topic, start, end, options, clock=clock).runs():
        for decoded in messages.decode(run, topic, chunks, options.decryption):
            trimmed = within(decoded, start, end)
            if len(trimmed):
                yield trimmed


def fetch_pieces(
    cluster: Cluster, topic: str, options: ReadOptions, uuid: bytes, wanted: int, before: MessageId
) -> list[bytes] | None:
    """Read the pieces of a large message before its last one; None if they are gone, and that is no error."""
    pieces = _look_back(cluster, topic, uuid, wanted, before, options)
    if pieces is None and options.fail_on_data_loss:
        what = f"the first {wanted} pieces of the large message that ends there"
        raise DataLost(topic, str(before), f"{what} are not in the topic")
    return pieces


def within(found: Messages, start: MessageId, end: MessageId) -> Messages:
    """Without those of the first and the last batch that are outside the range."""
    if not start.batch_index and not end.batch_index:
        return found
    of_start = (found.ledger_ids == start.ledger_id) & (found.entry_ids == start.entry_id)
    of_end = (found.ledger_ids == end.ledger_id) & (found.entry_ids == end.entry_id)
    indexes = np.maximum(found.batch_indexes, 0)
    outside = (of_start & (indexes < start.batch_index)) | (of_end & (indexes >= end.batch_index))
    return found.chosen(~outside) if outside.any() else found


def _look_back(
    cluster: Cluster, topic: str, uuid: bytes, wanted: int, before: MessageId, options: ReadOptions
) -> list[bytes] | None:
    """The pieces of a large message before its last one; None when they are not there."""
    lenient = replace(options, fail_on_data_loss=False)
    distance = _LOOK_BACK_ENTRIES + wanted
    while True:
        start = MessageId(before.ledger_id, before.entry_id - distance)
        if start.entry_id < 0:
            start = EARLIEST
        found: dict[int, bytes] = {}
        for run in EntryReader(cluster, topic, start, before, lenient, proves=False).runs():
            # Others are not in the range: whether they can be decrypted does not matter.
            if len(mine := entries_of(run, uuid)):
                found.update(pieces_in(options.decryption.decrypted(mine, topic)))
        if found.keys() >= set(range(wanted)):
            return [found[index] for index in range(wanted)]
        if start == EARLIEST:
            return None
        distance *= 16


def _what_is_there(earliest: MessageId | None) -> str:
    return "the topic is empty" if earliest is None else f"the earliest one is at {earliest}"


def _where_it_ends(last: MessageId | None) -> str:
    return "the topic is empty" if last is None else f"the topic's last message is at {last}"
