# SPDX-License-Identifier: Apache-2.0
"""Requests of brokers to each other about transactions, and the commits that all of them can read.

Why a decision: a commit that concerns the logs of several brokers cannot be one change. So it is stored in the shared
metadata first; from then on it is committed, whatever dies. Aborts need none: a transaction that its coordinator does
not know, and of which there is no decision, is aborted. So a broker asks the coordinator first, and reads after that.
Where: the coordinator of a broker that has others. One that is alone asks nobody, and decides in its own file.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.broker.transactions.transaction import Part
from penstock.core.transaction_id import TransactionId
from penstock.storage.transaction_rows import OPEN, StoredTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.elsewhere import Elsewhere
    from penstock.core.membership import Membership
    from penstock.core.names import TopicName
    from penstock.storage.catalog import Catalog

# Documents of commits that not all brokers have carried out, each named by its transaction.
COMMITS: Final = "transaction-commits"
# A coordinator is asked about so many transactions at a time.
ASKED_AT_ONCE: Final = 1_000
_PATH: Final = "/admin/v3/transactions/parts"


class End(NamedTuple):
    """The end of a transaction."""

    id: TransactionId
    commit: bool


class Wanted:
    """Topics and subscriptions of one broker that a transaction wants to use."""

    def __init__(self) -> None:
        self.topics: list[TopicName] = []
        self.subscriptions: list[tuple[TopicName, str]] = []


class OtherBrokers:
    """The brokers of the cluster, as a coordinator of transactions needs them. All methods are called on the loop."""

    def __init__(self, catalog: Catalog, changes: Changes, membership: Membership, elsewhere: Elsewhere) -> None:
        self._catalog = catalog
        self._changes = changes
        self._membership = membership
        self._elsewhere = elsewhere

    # -- which they are

    @property
    def own(self) -> int:
        """The number of this broker, and of its coordinator."""
        return self._membership.own

    @property
    def numbers(self) -> set[int]:
        """The numbers of the others."""
        return self._membership.members.keys() - {self.own}

    def inherits(self, coordinator: int) -> bool:
        """Whether this broker finishes the commits of a coordinator: its own, or one that was left out of the start."""
        members = self._membership.members
        return coordinator == self.own or (coordinator not in members and coordinator % len(members) == self.own)

    def exists(self, coordinator: int) -> bool:
        return coordinator in self._membership.members

    # -- where topics are

    def is_own(self, topic: str) -> bool:
        """Whether this broker serves a topic, or nobody does."""
        record = self._catalog.topic(topic)
        return record is None or self._catalog.is_own(record)

    async def by_broker(
        self, topics: Iterable[TopicName], subscriptions: Iterable[tuple[TopicName, str]]
    ) -> Mapping[int, Wanted]:
        """Sort topics and subscriptions by the broker that serves them; a topic that does not exist is ours."""
        topics, subscriptions = list(topics), list(subscriptions)
        names = {str(name) for name in (*topics, *(name for name, _ in subscriptions))}
        if self.numbers and any(self._catalog.topic(name) is None for name in names):
            await self._elsewhere.catch_up()  # Their client has created them at another broker, a moment ago.
        found: defaultdict[int, Wanted] = defaultdict(Wanted)
        for name in topics:
            found[self._broker_of(str(name))].topics.append(name)
        for name, subscription in subscriptions:
            found[self._broker_of(str(name))].subscriptions.append((name, subscription))
        return found

    def _broker_of(self, topic: str) -> int:
        record = self._catalog.topic(topic)
        return self.own if record is None else record.broker

    # -- what is asked

    async def join(self, broker: int, transaction: StoredTransaction, wanted: Wanted) -> list[tuple[Part, int]]:
        """Let a transaction send and acknowledge at another broker; returns when that is durable there.

        The result, and what is raised, are as those of `OpenTransactions.join` there; and ServiceNotReady.
        """
        body = {
            "owner": transaction.owner,
            "startedMs": transaction.started_ms,
            "timeoutMs": transaction.timeout_ms,
            "topics": [str(name) for name in wanted.topics],
            "subscriptions": [[str(name), subscription] for name, subscription in wanted.subscriptions],
        }
        target = f"{_PATH}/{transaction.id.coordinator}/{transaction.id.number}"
        answer = await self._elsewhere.part(broker, "PUT", target, body, may_start=True)
        return [(Part(*part), first) for *part, first in answer["parts"]]

    async def end(self, broker: int, ends: Iterable[End]) -> None:
        """Commit or abort transactions in the topics of another broker; returns when that is durable there.

        Raises ServiceNotReady, and what `OpenTransactions.end_here` does there; then some may have ended.
        """
        body = {"ends": [[*transaction, commit] for transaction, commit in ends]}
        await self._elsewhere.part(broker, "POST", f"{_PATH}/end", body)

    async def which_open(self, ids: Sequence[TransactionId]) -> list[StoredTransaction]:
        """Return those of these transactions of one coordinator that are open there. Raises ServiceNotReady."""
        body = {"numbers": [one.number for one in ids]}
        answer: Any = await self._elsewhere.part(ids[0].coordinator, "POST", f"{_PATH}/open", body)
        return [
            StoredTransaction(
                TransactionId(ids[0].coordinator, one["number"]), OPEN, one["startedMs"], one["timeoutMs"], one["owner"]
            )
            for one in answer["open"]
        ]

    # -- decisions

    def committed(self) -> list[TransactionId]:
        """Commits that not all brokers have carried out, as far as this broker has heard of them."""
        return [TransactionId(*map(int, name.split(":"))) for name in self._catalog.documents(COMMITS)]

    def is_committed(self, transaction: TransactionId) -> bool:
        """As `committed`, of one."""
        return _name(transaction) in self._catalog.documents(COMMITS)

    async def catch_up(self) -> None:
        """Wait until this broker knows all decisions that were stored before. Raises MetadataFailed."""
        await self._changes.stored(self._catalog.catch_up)

    async def decide(self, transaction: TransactionId) -> None:
        """Store that a transaction is committed. Raises MetadataFailed; then it may be stored or not."""
        put = self._catalog.put_document
        await self._changes.stored(partial(put, COMMITS, _name(transaction), {}))

    async def carried_out(self, transactions: Iterable[TransactionId]) -> None:
        """Forget decisions that all brokers have carried out. Raises MetadataFailed."""
        put = self._catalog.put_document
        await asyncio.gather(*(self._changes.stored(partial(put, COMMITS, _name(one), None)) for one in transactions))


def _name(transaction: TransactionId) -> str:
    return f"{transaction.coordinator}:{transaction.number}"
