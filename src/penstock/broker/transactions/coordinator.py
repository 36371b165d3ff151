# SPDX-License-Identifier: Apache-2.0
"""The coordinator of this broker's transactions: opens them, learns what belongs to them, and ends them.

Why so simple: all topics of a transaction, and their cursors, are in one log and one file of metadata. So its end is
one change of that file, which is durable before anybody is told or sees anything of it. There is no state in between
that a crash could leave: a transaction that is not stored as committed is aborted, by its client or by its timeout.

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

from penstock.broker.publishing.transaction_entries import RANGE_BYTES, TransactionEntries
from penstock.broker.subscriptions.transactional import INSTEAD
from penstock.broker.transactions.numbers import TransactionNumbers
from penstock.broker.transactions.transaction import PART_BYTES, TRANSACTION_BYTES, Part, Transaction
from penstock.core.errors import (
    AuthorizationFailed,
    CoordinatorNotFound,
    InvalidTransactionStatus,
    NotAllowed,
    PenstockError,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
    TransactionNotFound,
)
from penstock.core.names import TopicName
from penstock.core.transaction_id import TransactionId
from penstock.core.units import NS_PER_MS, NS_PER_S
from penstock.governance.budget import refusal
from penstock.storage.catalog import CursorSave
from penstock.storage.catalog_rows import StoredCursor
from penstock.storage.transaction_rows import (
    ABORTED,
    COMMITTED,
    OPEN,
    EndedTransaction,
    StoredTransaction,
    TransactionPart,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.topic import Topic
    from penstock.core.clock import Clock
    from penstock.governance.budget import Row
    from penstock.storage.catalog import Catalog
    from penstock.wire.events import AckRun

log = logging.getLogger(__name__)

# The number of this broker's coordinator, which clients know as a partition of `ASSIGNED`.
OWN: Final = 0
# So many of the last outcomes are remembered, for clients that lost the connection before they were told.
OUTCOMES_MAX: Final = 10_000
# The longest timeout that a client may ask for.
TIMEOUT_MS_MAX: Final = 24 * 3_600_000
# A timeout that could not be carried out, because of the disk, is tried again after this time.
RETRY_NS: Final = 5 * NS_PER_S
# Deadlines of ended transactions are removed together, when there are so many more than open ones.
DEADLINES_MIN: Final = 1_000
# So many are aborted in one turn of the loop, a few milliseconds: clients may have left a hundred thousand open.
TIMEOUTS_IN_TURN: Final = 500
# How often topics are loaded again that were unloaded before all were there.
LOADS_MAX: Final = 10
_STATUS_NAMES: Final = {COMMITTED: "committed", ABORTED: "aborted"}


class Coordinator:
    """The transactions of this broker. All methods are called on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        changes: Changes,
        topics: TopicDirectory,
        memory: Row,
        limits: Callable[[], BrokerLimits],
        clock: Clock,
    ) -> None:
        """Args: memory: the row that is charged for what is open."""
        self._data = catalog.transactions
        self._changes = changes
        self._topics = topics
        self._memory = memory
        self._limits = limits
        self._clock = clock
        self._numbers = TransactionNumbers(catalog, changes)
        self._open: dict[TransactionId, Transaction] = {}
        self._deadlines: list[tuple[int, TransactionId]] = []
        self._outcomes: dict[TransactionId, int] = {}  # the last ones, oldest first
        self.opened_total = 0
        self.committed_total = 0
        self.aborted_total = 0
        self.timed_out_total = 0
        self._timing_out = False
        self._go_on({record.ledger_id: record.name for record in catalog.topics() if catalog.is_own(record)})

    # -- opening

    def open_ones(self) -> list[Transaction]:
        """The open transactions, oldest first."""
        return list(self._open.values())

    @property
    def open_count(self) -> int:
        """How many transactions are open."""
        return len(self._open)

    def find(self, transaction: TransactionId | None) -> Transaction | None:
        """An open transaction; None if it is not open."""
        return self._open.get(transaction) if transaction is not None else None

    @property
    def enabled(self) -> bool:
        """Whether clients may use transactions."""
        return self._limits().transactions

    def check_enabled(self) -> None:
        """Raises NotAllowed."""
        if not self.enabled:
            raise NotAllowed("transactions are not enabled on this broker: set transactionCoordinatorEnabled")

    def check_here(self, coordinator: int) -> None:
        """Raises CoordinatorNotFound, NotAllowed."""
        self.check_enabled()
        if coordinator != OWN:
            raise CoordinatorNotFound(f"there is no transaction coordinator {coordinator}: look it up")

    async def open(self, coordinator: int, owner: str, timeout_ms: int) -> TransactionId:
        """Open a transaction, which costs nothing on disk before something belongs to it.

        Raises:
            NotAllowed: the timeout is too long, or transactions are not enabled.
            TooManyRequests: too many are open.
            MetadataFailed: its number could not be stored.
        """
        self.check_here(coordinator)
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise NotAllowed(f"a transaction may be open for 1 to {TIMEOUT_MS_MAX:,} ms, not for {timeout_ms:,}")
        number = await self._numbers.take()
        most = self._limits().transactions_max
        if 0 < most <= len(self._open):
            raise TooManyRequests(
                f"{len(self._open):,} transactions are open: end some, or raise maxActiveTransactionsPerCoordinator"
            )
        transaction = Transaction(
            TransactionId(OWN, number),
            owner,
            self._memory,
            started_ms=self._clock.wall_ms(),
            timeout_ms=timeout_ms,
            deadline_ns=self._clock.monotonic_ns() + timeout_ms * NS_PER_MS,
        )
        self._charge(transaction, "a transaction", TRANSACTION_BYTES)
        self._add(transaction)
        self.opened_total += 1
        return transaction.id

    def _add(self, transaction: Transaction) -> None:
        self._open[transaction.id] = transaction
        if len(self._deadlines) >= 2 * len(self._open) + DEADLINES_MIN:  # Most are of those that have ended.
            self._deadlines = [(one.deadline_ns, one.id) for one in self._open.values()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (transaction.deadline_ns, transaction.id))

    def _go_on(self, names: dict[int, str]) -> None:
        """Take up what was stored when the broker was started, or moved here with topics of another broker."""
        stored = self._data.at_start
        for one in stored.transactions:
            if one.status == OPEN:
                self._take_up(one)
        for part in stored.parts:
            transaction = self._open.get(part.id) or self._take_up(_orphan(part.id, self._clock.wall_ms()))
            if part.ledger_id in names:
                transaction.parts[Part(part.ledger_id, names[part.ledger_id], part.subscription)] = None
                transaction.charge.charge(PART_BYTES)
        ended = sorted(one for one in stored.transactions if one.status != OPEN)
        self._outcomes = {one.id: one.status for one in ended[-OUTCOMES_MAX:]}

    def _take_up(self, stored: StoredTransaction) -> Transaction:
        left_ms = min(max(stored.started_ms + stored.timeout_ms - self._clock.wall_ms(), 0), stored.timeout_ms)
        transaction = Transaction(
            stored.id,
            stored.owner,
            self._memory,
            started_ms=stored.started_ms,
            timeout_ms=stored.timeout_ms,
            deadline_ns=self._clock.monotonic_ns() + left_ms * NS_PER_MS,
        )
        transaction.charge.charge(TRANSACTION_BYTES)
        self._add(transaction)
        return transaction

    # -- what belongs to a transaction

    def of(self, transaction: TransactionId, owner: str) -> Transaction:
        """Return an open transaction of this owner.

        Raises:
            TransactionNotFound: it was never opened, or ended long ago.
            InvalidTransactionStatus: it has ended, or is ending.
            AuthorizationFailed: another role has opened it.
        """
        found = self._open.get(transaction)
        if found is None:
            self._check_unknown(transaction)
            raise TransactionNotFound(transaction)
        if found.owner != owner:
            raise AuthorizationFailed(f"role {owner!r} did not open transaction {transaction}")
        if found.ending is not None:
            raise InvalidTransactionStatus(f"Transaction {transaction} is being {_ends(found.commit)}")
        return found

    def _check_unknown(self, transaction: TransactionId) -> None:
        """Raises InvalidTransactionStatus if a transaction has ended, TransactionNotFound if it is not known."""
        outcome = self._outcomes.get(transaction)
        if outcome is None:
            raise TransactionNotFound(transaction)
        raise InvalidTransactionStatus(f"Transaction {transaction} is {_STATUS_NAMES[outcome]}")

    async def add_topics(self, transaction: TransactionId, owner: str, names: Iterable[TopicName]) -> None:
        """Let a transaction send to these topics; returns when that is durable.

        Raises what `of` and loading a topic do, NotAllowed, TooManyRequests, MetadataFailed.
        """
        self.of(transaction, owner)
        topics = [await self._topic(name) for name in dict.fromkeys(names)]
        await self._add_parts(
            transaction, owner, [(Part(topic.ledger_id, topic.text, ""), topic.next_entry_id) for topic in topics]
        )
        for topic in topics:
            await self._admit(transaction, topic)

    async def _admit(self, transaction: TransactionId, topic: Topic) -> None:
        """From now on the topic takes entries of a transaction, if that is still open."""
        while topic.closed or topic.fenced:
            topic = await self._topics.load(topic.name)
        found = self._open.get(transaction)
        if found is None or found.ending is not None:
            raise InvalidTransactionStatus(f"Transaction {transaction} was ended meanwhile")
        if topic.transactions is None:
            topic.transactions = TransactionEntries(topic.last_entry_id)
        topic.transactions.open.setdefault(transaction, [])

    async def add_subscriptions(
        self, transaction: TransactionId, owner: str, names: Iterable[tuple[TopicName, str]]
    ) -> None:
        """Let a transaction acknowledge in these subscriptions of topics; returns when that is durable.

        Raises what `of` and loading a topic do, NotAllowed, TooManyRequests, MetadataFailed.
        """
        self.of(transaction, owner)
        parts = []
        for name, subscription in dict.fromkeys(names):
            topic = await self._topic(name)
            found = topic.subscriptions.get(subscription)
            if found is None or not found.durable:
                raise NotAllowed(f"{name} has no durable subscription {subscription!r}: subscribe before")
            parts.append((Part(topic.ledger_id, topic.text, subscription), topic.first_entry_id))
        await self._add_parts(transaction, owner, parts)

    async def _topic(self, name: TopicName) -> Topic:
        if not name.is_persistent:
            raise NotAllowed(f"transactions are for persistent topics, and {name} is not")
        return await self._topics.load(name)

    async def _add_parts(self, transaction: TransactionId, owner: str, parts: Sequence[tuple[Part, int]]) -> None:
        found = self.of(transaction, owner)
        new = [(part, first) for part, first in parts if part not in found.parts]
        self._charge(found, f"{len(new)} more topics or subscriptions", PART_BYTES * len(new))
        found.parts.update(dict.fromkeys(part for part, _ in new))
        stored = found.stored()
        # Also those that are there already: perhaps they are still on their way to the disk.
        rows = [TransactionPart(part.ledger_id, part.subscription, transaction, first) for part, first in parts]
        put = self._data.put_part
        await asyncio.gather(*[self._changes.stored(partial(put, stored, row)) for row in rows])

    def _charge(self, transaction: Transaction, what: str, nbytes: int) -> None:
        self._memory.charge_for(what, nbytes, instead=INSTEAD, error=TooManyRequests)
        transaction.charge.charged_bytes += nbytes

    def refusal(self, transaction: TransactionId, owner: str) -> str | None:
        """Why a client of this role may not send in a transaction; None if it may."""
        try:
            self.check_enabled()
            self.of(transaction, owner)
        except PenstockError as error:
            return str(error)
        # Each entry may be a range of its own. What was sent is charged, whatever it is.
        if self._memory.available_bytes < RANGE_BYTES:
            return refusal(self._memory, f"another entry of transaction {transaction}", RANGE_BYTES, instead=INSTEAD)
        return None

    def sent(self, another_range: bool, transaction: TransactionId) -> None:  # noqa: FBT001 - a callback
        """A topic has taken an entry of a transaction."""
        found = self._open.get(transaction)
        if another_range and found is not None:
            found.charge.charge(RANGE_BYTES)

    async def acknowledge(
        self, transaction: TransactionId, owner: str, subscription: Subscription, consumer: Consumer, ack: AckRun
    ) -> None:
        """Let an ACK of a consumer be pending; returns when that is durable.

        Raises what `of` and `TransactionalAcks.acknowledge` do, NotAllowed, MetadataFailed.
        """
        found, topic = self.of(transaction, owner), subscription.topic
        if Part(topic.ledger_id, topic.text, subscription.name) not in found.parts:
            raise NotAllowed(
                f"transaction {transaction} was not told of subscription {subscription.name!r} of {topic.text}"
            )
        pending = subscription.transactional.acknowledge(transaction, consumer, ack)
        put, name = self._data.put_pending, subscription.name
        await self._changes.stored(partial(put, topic.ledger_id, name, transaction, pending))

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
        if found.ending is None or found.commit != commit:
            self.of(transaction, found.owner if owner is None else owner)
        if found.ending is None:
            found.commit = commit
            found.ending = self._changes.finish(self._end(found))
        await asyncio.shield(found.ending)

    async def _end(self, transaction: Transaction) -> None:
        try:
            topics = await self._loaded(transaction)
            await self._store_end(transaction, topics)
        except BaseException:
            for topic in map(self._topics.get, transaction.topics):
                if topic is not None and topic.transactions is not None:
                    topic.transactions.ending.discard(transaction.id)
            transaction.ending = None
            raise

    async def _loaded(self, transaction: Transaction) -> list[Topic]:
        """The topics of a transaction that still exist, all of them loaded at this moment."""
        ledgers = {part.topic: part.ledger_id for part in transaction.parts}
        for _ in range(LOADS_MAX):
            found = [await self._load(text) for text in ledgers]
            if not any(topic is not None and (topic.closed or topic.fenced) for topic in found):
                return [topic for topic in found if topic is not None and topic.ledger_id == ledgers[topic.text]]
        raise ServiceNotReady(f"topics of transaction {transaction.id} are being unloaded again and again; try again")

    async def _load(self, text: str) -> Topic | None:
        try:
            return await self._topics.load(TopicName.parse(text))
        except TopicNotFound:
            return None

    async def _store_end(self, transaction: Transaction, topics: Sequence[Topic]) -> None:
        """Store the end, then show it. Between deciding what is stored and submitting it nothing else happens."""
        commit, outcome = transaction.commit, COMMITTED if transaction.commit else ABORTED
        subscriptions = list(_subscriptions(transaction, topics))
        for topic in topics:
            if topic.transactions is not None:
                topic.transactions.ending.add(transaction.id)
        cursors = [_saved(one) for one in subscriptions if commit and one.transactional.apply(transaction.id)]
        ended = EndedTransaction(
            transaction.stored(outcome),
            () if commit else list(_entries(transaction, topics)),
            cursors,
            transaction.id.number - OUTCOMES_MAX,
            [(topic.ledger_id, topic.first_entry_id) for topic in topics],
        )
        if transaction.parts:
            await self._changes.stored(partial(self._data.end, ended))
        self._forget(transaction, outcome)
        for subscription in subscriptions:
            subscription.transactional.end(transaction.id, commit=commit)
        for topic in topics:
            if topic.transactions is not None:
                topic.transactions.end(transaction.id, commit=commit)
                topic.transaction_ended()

    def _forget(self, transaction: Transaction, outcome: int) -> None:
        del self._open[transaction.id]
        transaction.charge.release()
        self._outcomes[transaction.id] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self.committed_total += outcome == COMMITTED
        self.aborted_total += outcome == ABORTED

    # -- timeouts

    def tick(self, now_ns: int) -> None:
        """Abort what is open for too long."""
        if not self._timing_out and self._deadlines and self._deadlines[0][0] <= now_ns:
            self._timing_out = True
            self._changes.finish(self._abort_due(now_ns))

    async def _abort_due(self, now_ns: int) -> None:
        try:
            while due := list(islice(self._due(now_ns), TIMEOUTS_IN_TURN)):
                for found in due:
                    if found.parts:
                        self._changes.finish(self._time_out(found))
                    else:
                        self._forget(found, ABORTED)
                        self.timed_out_total += 1
                await asyncio.sleep(0)
        finally:
            self._timing_out = False

    def _due(self, now_ns: int) -> Iterator[Transaction]:
        """Take what is open for too long, and is not ending."""
        while self._deadlines and self._deadlines[0][0] <= now_ns:
            _, transaction = heapq.heappop(self._deadlines)
            found = self._open.get(transaction)
            if found is not None:
                heapq.heappush(self._deadlines, (now_ns + RETRY_NS, transaction))  # Aborting may fail.
                if found.ending is None:
                    yield found

    async def _time_out(self, transaction: Transaction) -> None:
        log.info("transaction %s is aborted after its timeout of %d ms", transaction.id, transaction.timeout_ms)
        try:
            await self.end(transaction.id, None, commit=False)
            self.timed_out_total += 1
        except PenstockError as error:
            log.warning("transaction %s cannot be aborted, and is tried again: %s", transaction.id, error)


def _orphan(transaction: TransactionId, now_ms: int) -> StoredTransaction:
    """A transaction of which only parts are here: its topics were moved. Nobody can commit it any more."""
    return StoredTransaction(transaction, OPEN, now_ms, 0, "")


def _ends(commit: bool) -> str:  # noqa: FBT001
    return _STATUS_NAMES[COMMITTED if commit else ABORTED]


def _subscriptions(transaction: Transaction, topics: Sequence[Topic]) -> Iterator[Subscription]:
    by_name = {topic.text: topic for topic in topics}
    for part in transaction.parts:
        topic = by_name.get(part.topic)
        found = topic.subscriptions.get(part.subscription) if topic is not None and part.subscription else None
        if found is not None:
            yield found


def _entries(transaction: Transaction, topics: Sequence[Topic]) -> Iterator[tuple[int, int, int]]:
    for topic in topics:
        ranges = topic.transactions.open.get(transaction.id, ()) if topic.transactions is not None else ()
        for first, last in ranges:
            yield topic.ledger_id, first, last


def _saved(subscription: Subscription) -> tuple[int, CursorSave]:
    cursor, topic = subscription.cursor, subscription.topic
    stored = StoredCursor(cursor.mark_delete, cursor.head())
    return topic.ledger_id, CursorSave(topic.text, subscription.name, stored, cursor.take_changes())
