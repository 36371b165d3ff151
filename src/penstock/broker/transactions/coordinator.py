# SPDX-License-Identifier: Apache-2.0
"""The coordinator of this broker's transactions: opens them, learns what belongs to them, and ends them.

Why so simple: a transaction whose parts are all at this broker ends in one change of one file (`open_transactions`).
One with parts at others is committed by a decision in the shared metadata, which is durable before any broker carries
it out (`others`); what a crash leaves to be done, `settling` does.

Where: `commands.transactions` calls this for clients, `Publish` for each SEND, `Restoring` when a topic is loaded.

Guarantees: a transaction that was told of an outcome has it, for as long as that is remembered, whoever asks again.
What is committed is committed in all topics and subscriptions that still exist, or in none.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.broker.transactions.numbers import TransactionNumbers
from penstock.broker.transactions.open_transactions import OpenTransactions, forgotten_below, parts_of
from penstock.broker.transactions.settling import Settling
from penstock.core.errors import CoordinatorNotFound, NotAllowed, PenstockError, TooManyRequests
from penstock.core.transaction_id import TransactionId
from penstock.core.units import NS_PER_S
from penstock.storage.transaction_rows import ABORTED, COMMITTED, OPEN, EndedTransaction, StoredTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from penstock.broker.topics.topic import Topic
    from penstock.broker.transactions.open_transactions import TransactionServices
    from penstock.broker.transactions.others import Wanted
    from penstock.broker.transactions.transaction import Transaction
    from penstock.core.names import TopicName
    from penstock.storage.metadata import Done

log = logging.getLogger(__name__)

# The longest timeout that a client may ask for.
TIMEOUT_MS_MAX: Final = 24 * 3_600_000
# A timeout that could not be carried out, because of the disk, is tried again after this time.
RETRY_NS: Final = 5 * NS_PER_S
# Deadlines of ended transactions are removed together, when there are so many more than open ones.
DEADLINES_MIN: Final = 1_000
# So many are aborted in one turn of the loop, a few milliseconds: clients may have left a hundred thousand open.
TIMEOUTS_IN_TURN: Final = 500


class Coordinator(OpenTransactions):
    """The transactions of this broker. All methods are called on the event loop."""

    def __init__(self, services: TransactionServices) -> None:
        self._deadlines: list[tuple[int, TransactionId]] = []
        super().__init__(services)
        stored = [one.id.number for one in self._data.at_start.transactions if one.id.coordinator == self.number]
        first = max(stored, default=-1) + 1
        self._numbers = TransactionNumbers(services.catalog, services.changes, self.number, first)
        self._settling = Settling(self, services)
        self.opened_total = 0
        self.timed_out_total = 0
        self._timing_out = False

    # -- opening

    def open_ones(self) -> list[Transaction]:
        """The open transactions of this coordinator, oldest first."""
        return [one for one in self._open.values() if one.id.coordinator == self.number]

    @property
    def open_count(self) -> int:
        """How many transactions of this coordinator are open."""
        return len(self._open) - len(self._foreign)

    def check_here(self, coordinator: int) -> None:
        """Raises CoordinatorNotFound, NotAllowed."""
        self.check_enabled()
        if coordinator != self.number:
            raise CoordinatorNotFound(f"transaction coordinator {coordinator} is not here: look it up")

    async def open(self, coordinator: int, owner: str, timeout_ms: int) -> TransactionId:
        """Open a transaction; returns when that is durable. Raises as `open_now`, MetadataFailed."""
        opened: list[TransactionId] = []

        def submit(done: Done) -> None:
            opened.append(self.open_now(coordinator, owner, timeout_ms, done))

        while not self._numbers.are_left:
            await self._numbers.reserve()
        await self._changes.stored(submit)
        return opened[0]

    @property
    def may_open_now(self) -> bool:
        """Whether `open_now` may be called."""
        return self._numbers.are_left

    def open_now(self, coordinator: int, owner: str, timeout_ms: int, done: Done) -> TransactionId:
        """Open a transaction; `done` is called when that is durable: clients use its id after a crash, too.

        Raises:
            NotAllowed: the timeout is too long, or transactions are not enabled.
            TooManyRequests: too many are open.
        """
        self.check_here(coordinator)
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise NotAllowed(f"a transaction may be open for 1 to {TIMEOUT_MS_MAX:,} ms, not for {timeout_ms:,}")
        most = self._limits().transactions_max
        if 0 < most <= self.open_count:
            raise TooManyRequests(
                f"{self.open_count:,} transactions are open: end some, or raise maxActiveTransactionsPerCoordinator"
            )
        number = self._numbers.take()
        opened = StoredTransaction(TransactionId(self.number, number), OPEN, self._clock.wall_ms(), timeout_ms, owner)
        transaction = self._add(opened)

        def stored(error: PenstockError | None) -> None:
            if error is None:
                self.opened_total += 1
            elif self._open.get(opened.id) is transaction:  # It has not timed out meanwhile.
                self._drop(transaction)
            done(error)

        self._data.put_open(opened, stored)
        return opened.id

    def _show(self, transaction: Transaction) -> None:
        super()._show(transaction)
        if transaction.id.coordinator != self.number:
            return
        if len(self._deadlines) >= 2 * self.open_count + DEADLINES_MIN:  # Most are of those that have ended.
            self._deadlines = [(one.deadline_ns, one.id) for one in self.open_ones()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (transaction.deadline_ns, transaction.id))

    # -- what belongs to a transaction

    async def add_topics(self, transaction: TransactionId, owner: str, names: Iterable[TopicName]) -> None:
        """Let a transaction send to these topics; returns when that is durable.

        Raises what `of` and loading a topic do, NotAllowed, TooManyRequests, MetadataFailed.
        """
        self.of(transaction, owner)
        await self._add_wanted(transaction, owner, await self._others.by_broker(dict.fromkeys(names), ()))

    async def add_subscriptions(
        self, transaction: TransactionId, owner: str, names: Iterable[tuple[TopicName, str]]
    ) -> None:
        """Let a transaction acknowledge in these subscriptions of topics; returns when that is durable.

        Raises what `of` and loading a topic do, NotAllowed, TooManyRequests, MetadataFailed.
        """
        self.of(transaction, owner)
        await self._add_wanted(transaction, owner, await self._others.by_broker((), dict.fromkeys(names)))

    async def _add_wanted(self, transaction: TransactionId, owner: str, wanted: Mapping[int, Wanted]) -> None:
        found = self.of(transaction, owner)
        there = {broker: one for broker, one in wanted.items() if broker != self.number}
        # Before they are asked: who was asked is told of the end, whether its answer came or not.
        found.brokers.update(there)
        if self.number in wanted:
            await self._add_here(transaction, owner, wanted[self.number])
        joined = await asyncio.gather(
            *(self._others.join(broker, found.stored(), one) for broker, one in there.items())
        )
        parts = [part for some in joined for part in some]
        if parts:
            await self._changes.stored(partial(self._submit_parts, transaction, owner, parts))

    def add_now(
        self,
        transaction: TransactionId,
        owner: str,
        names: Iterable[TopicName],
        subscriptions: Iterable[tuple[TopicName, str]],
        done: Done,
    ) -> bool:
        """As `add_topics` and `add_subscriptions`, if the disk is all that has to be waited for; then `done` is called.

        Returns False if topics must be loaded first, or are at other brokers; then nothing has happened.
        """
        self.of(transaction, owner)
        topics: list[Topic] = []
        subscribed: list[tuple[Topic, str]] = []
        for name in dict.fromkeys(names):
            topic = self._usable(name)
            if topic is None or not topic.persistent:
                return False
            topics.append(topic)
        for name, subscription in dict.fromkeys(subscriptions):
            topic = self._usable(name)
            if topic is None or not topic.persistent:
                return False
            subscribed.append((topic, subscription))

        def stored(error: PenstockError | None) -> None:
            if error is None and any(topic.closed or topic.fenced for topic in topics):
                self._changes.finish(self._admit_later(transaction, topics, done))
                return
            if error is None:
                error = self._admit_now(transaction, topics)
            done(error)

        self._submit_parts(transaction, owner, parts_of(topics, subscribed), stored)
        return True

    async def _admit_later(self, transaction: TransactionId, topics: Sequence[Topic], done: Done) -> None:
        """Load topics that were unloaded while the parts were stored."""
        error = None
        try:
            for topic in topics:
                await self._admit(transaction, topic)
        except PenstockError as refused:
            error = refused
        done(error)

    # -- ending

    async def end(self, transaction: TransactionId, owner: str | None, *, commit: bool) -> None:
        """Commit or abort a transaction; returns when that is durable, and visible.

        Whoever asks again for the same gets the same answer. `owner`: None for an administrator.

        Raises:
            TransactionNotFound, AuthorizationFailed: as `of`.
            InvalidTransactionStatus: it has ended otherwise, or is about to.
            MetadataFailed, ServiceNotReady: it is still open.
        """
        found = self._open.get(transaction)
        if found is None:
            if self._outcomes.get(transaction) == (COMMITTED if commit else ABORTED):
                return
            self._check_unknown(transaction)
            return
        if found.is_open or found.commit != commit:
            self.of(transaction, found.owner if owner is None else owner)
        if found.in_doubt and not commit:
            await self._others.catch_up()
            if self._others.is_committed(transaction):
                self._decide(found)
            self.of(transaction, found.owner)
        await self._ended(found, commit=commit)

    def end_now(self, transaction: TransactionId, owner: str, *, commit: bool, done: Done) -> bool:
        """As `end`, if the disk is all that has to be waited for; then `done` is called.

        Returns False if topics must be loaded first, other brokers have parts of it, or it is not simply open; then
        nothing has happened.
        """
        found = self._open.get(transaction)
        if found is None or not found.is_open or found.brokers or found.in_doubt:
            return False
        topics: dict[str, Topic] = {}
        for part in found.parts:
            topic = self._usable(part.topic)
            if topic is None or topic.ledger_id != part.ledger_id:
                return False
            topics[part.topic] = topic
        self.of(transaction, owner)
        found.commit = commit

        ending = found.ending = asyncio.get_running_loop().create_future()  # Others may wait for it.

        def ended(error: PenstockError | None) -> None:
            if error is None:
                ending.set_result(None)
            else:
                ending.set_exception(error)
                ending.exception()  # Mark it as retrieved.
                found.ending = None
            done(error)

        self._submit_end(found, list(topics.values()), ended)
        return True

    async def _end(self, transaction: Transaction) -> None:
        """End it here, after it was decided and before others are told, if other brokers have parts of it."""
        brokers = transaction.brokers
        if transaction.commit and brokers and not transaction.decided:
            try:
                transaction.in_doubt = True
                await self._others.decide(transaction.id)
            except BaseException:
                transaction.ending = None
                raise
            self._decide(transaction)
        await super()._end(transaction)
        if brokers:
            await self._settling.tell(transaction.id, brokers, commit=transaction.commit)

    async def stop(self) -> None:
        """Stop waiting for other brokers: what they were not told is told after the next start."""
        await self._settling.stop()

    # -- timeouts

    def tick(self, now_ns: int) -> None:
        """Abort what is open for too long, and do what is left to do with other brokers."""
        self._settling.tick(now_ns)
        if not self._timing_out and self._deadlines and self._deadlines[0][0] <= now_ns:
            self._timing_out = True
            self._changes.finish(self._abort_due(now_ns))

    async def _abort_due(self, now_ns: int) -> None:
        try:
            while due := list(islice(self._due(now_ns), TIMEOUTS_IN_TURN)):
                for found in due:
                    if found.parts or found.brokers:
                        self._changes.finish(self._time_out(found))
                    else:
                        self._abort_empty(found)
                await asyncio.sleep(0)
        finally:
            self._timing_out = False

    def _abort_empty(self, found: Transaction) -> None:
        """Nothing belongs to it: nobody waits until that is stored, and after a crash it times out again."""
        self._forget(found, ABORTED)
        self.timed_out_total += 1
        ended = EndedTransaction(
            found.stored(ABORTED), forget_below=forgotten_below(found.id.number), has_parts=found.taken_up
        )
        stored = self._changes.stored(partial(self._data.end, ended))
        stored.add_done_callback(asyncio.Future.exception)  # Mark it as retrieved.

    def _due(self, now_ns: int) -> Iterator[Transaction]:
        """Take what is open for too long, and is not ending."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, transaction = heapq.heappop(self._deadlines)
            found = self._open.get(transaction)
            if found is not None:
                heapq.heappush(self._deadlines, (now_ns + RETRY_NS, transaction))  # Aborting may fail.
                if found.is_open:
                    yield found

    async def _time_out(self, transaction: Transaction) -> None:
        log.info("transaction %s is aborted after its timeout of %d ms", transaction.id, transaction.timeout_ms)
        try:
            await self.end(transaction.id, None, commit=False)
            self.timed_out_total += 1
        except PenstockError as error:
            log.warning("transaction %s cannot be aborted, and is tried again: %s", transaction.id, error)
