# SPDX-License-Identifier: Apache-2.0
"""Open transactions that have parts at this broker: what they send and acknowledge in its topics, and how that ends.

Why one change ends them: all topics that a broker serves, and their cursors, are in one log and one file of metadata.
So a transaction ends there in one change of that file, which is durable before anybody is told or sees anything of it.
There is no state in between that a crash could leave: what is not stored as committed is aborted.

Where: the base of the coordinator, which opens transactions and decides about its own. Others have been opened by
coordinators of other brokers, which let them `join` here, and say how they end.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.publishing.transaction_entries import RANGE_BYTES, TransactionEntries
from penstock.broker.subscriptions.transactional import INSTEAD
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
from penstock.core.units import NS_PER_MS
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.limits import BrokerLimits
    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.subscription import Subscription
    from penstock.broker.topics.directory import TopicDirectory
    from penstock.broker.topics.topic import Topic
    from penstock.broker.transactions.others import OtherBrokers, Wanted
    from penstock.core.clock import Clock
    from penstock.core.transaction_id import TransactionId
    from penstock.governance.budget import Row
    from penstock.storage.catalog import Catalog
    from penstock.storage.metadata import Done
    from penstock.wire.events import AckRun

# So many of the last outcomes are remembered, for clients that lost the connection before they were told.
OUTCOMES_MAX: Final = 10_000
# Outcomes are forgotten by so many together: looking for one at each end would cost as much as storing it.
FORGOTTEN_TOGETHER: Final = 100
# How often topics are loaded again that were unloaded before all were there.
LOADS_MAX: Final = 10
_STATUS_NAMES: Final = {COMMITTED: "committed", ABORTED: "aborted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionServices:
    """Parts of the broker that transactions use.

    Attributes:
        catalog: stores them, and knows all topics.
        changes: of the catalog.
        topics: loads those that this broker serves.
        others: the other brokers.
        memory: the row that is charged for what is open.
        limits: the current ones.
        clock: for timeouts.
    """

    catalog: Catalog
    changes: Changes
    topics: TopicDirectory
    others: OtherBrokers
    memory: Row
    limits: Callable[[], BrokerLimits]
    clock: Clock


class OpenTransactions:
    """The transactions that are open here. All methods are called on the event loop."""

    def __init__(self, services: TransactionServices) -> None:
        self.number = services.others.own  # of this broker, and of its coordinator
        self._others = services.others
        self._data = services.catalog.transactions
        self._changes = services.changes
        self._topics = services.topics
        self._memory = services.memory
        self._limits = services.limits
        self._clock = services.clock
        self._open: dict[TransactionId, Transaction] = {}
        self._foreign: dict[TransactionId, Transaction] = {}  # those of them that other coordinators have opened
        self._decided: dict[TransactionId, Transaction] = {}  # those that are committed, and not yet in all topics here
        self._outcomes: dict[TransactionId, int] = {}  # the last ones of this coordinator, oldest first
        self.committed_total = 0
        self.aborted_total = 0
        # A start without transactions does not look at all topics.
        topics = services.catalog.topics() if self._data.at_start.parts else ()
        self._go_on({record.ledger_id: record.name for record in topics})

    # -- which they are

    def find(self, transaction: TransactionId | None) -> Transaction | None:
        """An open transaction; None if it is not open."""
        return self._open.get(transaction) if transaction is not None else None

    def foreign(self) -> list[Transaction]:
        """Open transactions of other coordinators, which have parts here."""
        return list(self._foreign.values())

    @property
    def foreign_count(self) -> int:
        """How many these are."""
        return len(self._foreign)

    def decided(self) -> list[Transaction]:
        """Transactions whose commit is decided, and that are to be carried out here."""
        return [one for one in self._decided.values() if one.ending is None]

    def has_decided(self) -> bool:
        """Whether there are such, also those that are being carried out."""
        return bool(self._decided)

    @property
    def enabled(self) -> bool:
        """Whether clients may use transactions."""
        return self._limits().transactions

    def check_enabled(self) -> None:
        """Raises NotAllowed."""
        if not self.enabled:
            raise NotAllowed("transactions are not enabled on this broker: set transactionCoordinatorEnabled")

    # -- taking up

    def _add(self, stored: StoredTransaction) -> Transaction:
        """Take up a transaction that was opened. Raises TooManyRequests."""
        transaction = self._made(stored)
        self._charge(transaction, "a transaction", TRANSACTION_BYTES)
        self._show(transaction)
        return transaction

    def _made(self, stored: StoredTransaction) -> Transaction:
        left_ms = min(max(stored.started_ms + stored.timeout_ms - self._clock.wall_ms(), 0), stored.timeout_ms)
        return Transaction(
            stored.id,
            stored.owner,
            self._memory,
            started_ms=stored.started_ms,
            timeout_ms=stored.timeout_ms,
            deadline_ns=self._clock.monotonic_ns() + left_ms * NS_PER_MS,
        )

    def _show(self, transaction: Transaction) -> None:
        self._open[transaction.id] = transaction
        if transaction.id.coordinator != self.number:
            self._foreign[transaction.id] = transaction

    def _go_on(self, names: Mapping[int, str]) -> None:
        """Take up what was stored when the broker was started, or moved here with topics of another broker."""
        stored = self._data.at_start
        for one in stored.transactions:
            if one.status == OPEN:
                self._take_up(one)
        for part in stored.parts:
            transaction = self._open.get(part.id) or self._take_up(_orphan(part.id, self._clock.wall_ms()))
            topic = names.get(part.ledger_id)
            if topic is None or (part.id in self._foreign and not self._others.is_own(topic)):
                continue
            transaction.parts[Part(part.ledger_id, topic, part.subscription)] = None
            transaction.charge.charge(PART_BYTES)
            if not self._others.is_own(topic):
                transaction.brokers |= self._others.numbers  # Whichever serves its topics by now.
        ended = sorted(one for one in stored.transactions if one.status != OPEN)
        self._outcomes = {one.id: one.status for one in ended[-OUTCOMES_MAX:]}

    def _take_up(self, stored: StoredTransaction) -> Transaction:
        transaction = self._made(stored)
        transaction.charge.charge(TRANSACTION_BYTES)
        if self._others.is_committed(stored.id):
            self._decide(transaction)
        transaction.unknown = stored.id.coordinator != self.number
        transaction.taken_up = True
        self._show(transaction)
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
        if found.unknown:
            raise ServiceNotReady(f"transaction {transaction} is being looked for at its coordinator; try again")
        if found.owner != owner:
            raise AuthorizationFailed(f"role {owner!r} did not open transaction {transaction}")
        if not found.is_open:
            raise InvalidTransactionStatus(f"Transaction {transaction} is being {_ends(found.commit)}")
        return found

    def _check_unknown(self, transaction: TransactionId) -> None:
        """Raises InvalidTransactionStatus if a transaction has ended, TransactionNotFound if it is not known."""
        outcome = self._outcomes.get(transaction)
        if outcome is None:
            raise TransactionNotFound(transaction)
        raise InvalidTransactionStatus(f"Transaction {transaction} is {_STATUS_NAMES[outcome]}")

    async def join(self, stored: StoredTransaction, wanted: Wanted) -> Sequence[tuple[Part, int]]:
        """Let a transaction of another coordinator send and acknowledge here; returns when that is durable.

        The result is the parts, each with the entry from which on it may have some. Raises as `add_topics`.
        """
        if stored.id.coordinator == self.number or not self._others.exists(stored.id.coordinator):
            raise CoordinatorNotFound(f"transaction {stored.id} is of no other broker")
        self.check_enabled()
        found = self._open.get(stored.id)
        if found is None:
            self._add(stored)
        elif found.unknown:
            self.learn(stored)
        return await self._add_here(stored.id, stored.owner, wanted)

    def learn(self, stored: StoredTransaction) -> None:
        """The coordinator has said that a transaction of it is open, whose, and for how long."""
        found = self._foreign.get(stored.id)
        if found is not None and found.unknown:
            found.owner, found.started_ms, found.timeout_ms = stored.owner, stored.started_ms, stored.timeout_ms
            found.deadline_ns, found.unknown = self._made(stored).deadline_ns, False

    async def _add_here(self, transaction: TransactionId, owner: str, wanted: Wanted) -> Sequence[tuple[Part, int]]:
        topics = [await self._topic(name) for name in wanted.topics]
        subscribed = [(await self._topic(name), subscription) for name, subscription in wanted.subscriptions]
        parts = parts_of(topics, subscribed)
        await self._changes.stored(partial(self._submit_parts, transaction, owner, parts))
        for topic in topics:
            await self._admit(transaction, topic)
        return parts

    def _usable(self, name: TopicName | str) -> Topic | None:
        """The topic, if it is loaded and not about to be unloaded."""
        topic = self._topics.get(name)
        return None if topic is None or topic.closed or topic.fenced else topic

    async def _admit(self, transaction: TransactionId, topic: Topic) -> None:
        """From now on the topic takes entries of a transaction, if that is still open."""
        while topic.closed or topic.fenced:
            topic = await self._topics.load(topic.name)
        refused = self._admit_now(transaction, (topic,))
        if refused is not None:
            raise refused

    def _admit_now(self, transaction: TransactionId, topics: Sequence[Topic]) -> PenstockError | None:
        """As `_admit`, of topics that are loaded; return why not."""
        found = self._open.get(transaction)
        if found is None or not found.is_open:
            return InvalidTransactionStatus(f"Transaction {transaction} was ended meanwhile")
        for topic in topics:
            if topic.transactions is None:
                topic.transactions = TransactionEntries(topic.last_entry_id)
            topic.transactions.open.setdefault(transaction, [])
        return None

    async def _topic(self, name: TopicName) -> Topic:
        if not name.is_persistent:
            raise NotAllowed(f"transactions are for persistent topics, and {name} is not")
        return await self._topics.load(name)

    def _submit_parts(
        self, transaction: TransactionId, owner: str, parts: Sequence[tuple[Part, int]], done: Done
    ) -> None:
        """Add parts of an open transaction; `done` is called when they are stored. Raises as `of`, TooManyRequests."""
        found = self.of(transaction, owner)
        new = [(part, first) for part, first in parts if part not in found.parts]
        self._charge(found, f"{len(new)} more topics or subscriptions", PART_BYTES * len(new))
        found.parts.update(dict.fromkeys(part for part, _ in new))
        # Also those that are there already: perhaps they are still on their way to the disk.
        rows = [TransactionPart(part.ledger_id, part.subscription, transaction, first) for part, first in parts]
        self._data.put_parts(rows, found.stored() if transaction.coordinator != self.number else None, done)

    def _charge(self, transaction: Transaction, what: str, nbytes: int) -> None:
        self._memory.charge_for(what, nbytes, instead=INSTEAD, error=TooManyRequests)
        transaction.charge.charged_bytes += nbytes

    def refusal(self, transaction: TransactionId, owner: str, ranges: int) -> str | None:
        """Why a client of this role may not send so many ranges of entries in a transaction; None if it may."""
        try:
            self.check_enabled()
            self.of(transaction, owner)
        except PenstockError as error:
            return str(error)
        # What was sent is charged, whatever it is.
        if self._memory.available_bytes < (nbytes := ranges * RANGE_BYTES):
            return refusal(self._memory, f"more entries of transaction {transaction}", nbytes, instead=INSTEAD)
        return None

    def sent(self, another_range: bool, transaction: TransactionId) -> None:  # noqa: FBT001 - a callback
        """A topic has taken an entry of a transaction."""
        found = self._open.get(transaction)
        if another_range and found is not None:
            found.charge.charge(RANGE_BYTES)

    def acknowledge(
        self,
        transaction: TransactionId,
        owner: str,
        subscription: Subscription,
        consumer: Consumer,
        ack: AckRun,
        done: Done,
    ) -> None:
        """Let an ACK of a consumer be pending; `done` is called when that is durable, or cannot be stored.

        Raises what `of` and `TransactionalAcks.acknowledge` do, NotAllowed.
        """
        found, topic = self.of(transaction, owner), subscription.topic
        if Part(topic.ledger_id, topic.text, subscription.name) not in found.parts:
            raise NotAllowed(
                f"transaction {transaction} was not told of subscription {subscription.name!r} of {topic.text}"
            )
        pending = subscription.transactional.acknowledge(transaction, consumer, ack)
        self._data.put_pending(topic.ledger_id, subscription.name, transaction, pending, done)

    # -- ending

    async def end_here(self, transaction: TransactionId, *, commit: bool) -> None:
        """Another coordinator has ended a transaction: end its parts here. What is not known here has none left.

        Raises MetadataFailed, ServiceNotReady: it is still open here.
        """
        found = self._foreign.get(transaction)
        if found is not None:
            await self._ended(found, commit=commit)

    async def carry_out(self, transaction: Transaction) -> None:
        """End a transaction that is decided in the topics of this broker. Raises as `end_here`."""
        await self._ended(transaction, commit=True)

    async def _ended(self, transaction: Transaction, *, commit: bool) -> None:
        if transaction.ending is None:
            transaction.commit = commit
            transaction.ending = self._changes.finish(self._end(transaction))
        await asyncio.shield(transaction.ending)

    async def _end(self, transaction: Transaction) -> None:
        try:
            topics = await self._loaded(transaction)
            await self._changes.stored(partial(self._submit_end, transaction, topics))
        except BaseException:
            transaction.ending = None
            raise

    def _decide(self, transaction: Transaction) -> None:
        """Its decision is durable: from now on it is committed."""
        transaction.decided = transaction.commit = True
        self._decided[transaction.id] = transaction

    async def _loaded(self, transaction: Transaction) -> list[Topic]:
        """The topics of a transaction that this broker serves and that still exist, all loaded at this moment."""
        ledgers = {part.topic: part.ledger_id for part in transaction.parts if self._others.is_own(part.topic)}
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

    def _submit_end(self, transaction: Transaction, topics: Sequence[Topic], done: Done) -> None:
        """Store the end, then show it; `done` is called after that, or when it cannot be stored.

        Between deciding what is stored and submitting it nothing else happens.
        """
        commit, outcome = transaction.commit, COMMITTED if transaction.commit else ABORTED
        subscriptions = list(_subscriptions(transaction, topics))
        for topic in topics:
            if topic.transactions is not None:
                topic.transactions.ending.add(transaction.id)
        cursors = [_saved(one) for one in subscriptions if commit and one.transactional.apply(transaction.id)]
        trimmed = [(topic.ledger_id, topic.first_entry_id) for topic in topics if topic.forget_trimmed()]
        ended = EndedTransaction(
            transaction.stored(outcome),
            transaction.id not in self._foreign,
            () if commit else list(_entries(transaction, topics)),
            cursors,
            forgotten_below(transaction.id.number),
            trimmed,
            has_parts=transaction.taken_up or bool(transaction.parts),
            has_pending=transaction.taken_up or any(part.subscription for part in transaction.parts),
        )

        def stored(error: PenstockError | None) -> None:
            if error is None:
                self._show_end(transaction, outcome, subscriptions, topics)
            else:
                for topic in map(self._topics.get, transaction.topics):
                    if topic is not None and topic.transactions is not None:
                        topic.transactions.ending.discard(transaction.id)
            done(error)

        if transaction.parts or transaction.decided or transaction.id not in self._foreign:
            self._data.end(ended, stored)
        else:
            stored(None)

    def _show_end(
        self,
        transaction: Transaction,
        outcome: int,
        subscriptions: Sequence[Subscription],
        topics: Sequence[Topic],
    ) -> None:
        commit = outcome == COMMITTED
        self._forget(transaction, outcome)
        for subscription in subscriptions:
            subscription.transactional.end(transaction.id, commit=commit)
        for topic in topics:
            topic.end_transaction(transaction.id, commit=commit)

    def _drop(self, transaction: Transaction) -> None:
        del self._open[transaction.id]
        self._decided.pop(transaction.id, None)
        transaction.charge.release()

    def _forget(self, transaction: Transaction, outcome: int) -> None:
        """Release a transaction that has ended, and remember how if it is of this coordinator."""
        self._drop(transaction)
        if self._foreign.pop(transaction.id, None) is not None:
            return
        self._outcomes[transaction.id] = outcome
        if len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self.committed_total += outcome == COMMITTED
        self.aborted_total += outcome == ABORTED


def _orphan(transaction: TransactionId, now_ms: int) -> StoredTransaction:
    """A transaction of which only parts are here: its topics were moved. Its coordinator may know more."""
    return StoredTransaction(transaction, OPEN, now_ms, 0, "")


def _ends(commit: bool) -> str:  # noqa: FBT001
    return _STATUS_NAMES[COMMITTED if commit else ABORTED]


def parts_of(topics: Sequence[Topic], subscribed: Sequence[tuple[Topic, str]]) -> list[tuple[Part, int]]:
    """The parts, each with the entry from which on it may have some. Raises NotAllowed."""
    parts = [(Part(topic.ledger_id, topic.text, ""), topic.next_entry_id) for topic in topics]
    for topic, subscription in subscribed:
        found = topic.subscriptions.get(subscription)
        if found is None or not found.durable:
            raise NotAllowed(f"{topic.text} has no durable subscription {subscription!r}: subscribe before")
        parts.append((Part(topic.ledger_id, topic.text, subscription), topic.first_entry_id))
    return parts


def forgotten_below(number: int) -> int:
    """Below which number outcomes are forgotten with the end of this transaction; 0: nothing is."""
    return number - OUTCOMES_MAX if number % FORGOTTEN_TOGETHER == 0 else 0


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
