# SPDX-License-Identifier: Apache-2.0
"""Settling of transactions of several brokers: the rest that a crash, or a broker that did not answer, has left to do.

Three things, each tried again until it is done:

- Brokers are told of ends of this coordinator's transactions. When all have carried out a commit, its decision is
  forgotten. After a start, all others are told of the commits that are still there.
- Commits that are decided are carried out in the topics of this broker.
- Other coordinators are asked about their transactions of which there are parts here. One that is not open there, and
  of which there is no decision, is aborted; so is one whose coordinator was left out of this start.

Where: the coordinator makes one, and calls its `tick`. A broker that has no others has nothing to settle.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.broker.transactions.others import ASKED_AT_ONCE
from penstock.core.errors import PenstockError
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from penstock.broker.changes import Changes
    from penstock.broker.transactions.open_transactions import OpenTransactions
    from penstock.broker.transactions.others import OtherBrokers
    from penstock.broker.transactions.transaction import Transaction
    from penstock.core.clock import Clock
    from penstock.core.transaction_id import TransactionId

log = logging.getLogger(__name__)

# How often what is left is tried again: readers of its topics wait for it.
EVERY_NS: Final = 5 * NS_PER_S


class Settling:
    """Settles transactions with the other brokers. All methods are called on the event loop."""

    def __init__(self, open_here: OpenTransactions, others: OtherBrokers, changes: Changes, clock: Clock) -> None:
        self._open_here = open_here
        self._others = others
        self._changes = changes
        # Brokers that must be told of an end, and whether that is a commit.
        self._untold: dict[TransactionId, tuple[set[int], bool]] = {}
        for one in others.committed():
            if others.inherits(one.coordinator):
                self._untold[one] = (set(others.numbers), True)
        self._next_ns = clock.monotonic_ns()
        self._running = False

    async def tell(self, transaction: TransactionId, brokers: set[int], *, commit: bool) -> None:
        """Tell other brokers that a transaction has ended here; those that do not answer are told later."""
        self._untold[transaction] = (set(brokers), commit)
        await self._tell(transaction)

    def tick(self, now_ns: int) -> None:
        """Do what is left, from time to time."""
        if now_ns >= self._next_ns and not self._running and self._is_something_left():
            self._next_ns, self._running = now_ns + EVERY_NS, True
            self._changes.finish(self._settle())

    def _is_something_left(self) -> bool:
        return bool(self._untold or self._open_here.foreign_count or self._open_here.has_decided())

    async def _settle(self) -> None:
        try:
            for transaction in self._open_here.decided():
                await self._tried(f"commit {transaction.id}", self._open_here.carry_out(transaction))
            for one in list(self._untold):
                await self._tell(one)
            by_coordinator: defaultdict[int, list[Transaction]] = defaultdict(list)
            for transaction in self._open_here.foreign():
                by_coordinator[transaction.id.coordinator].append(transaction)
            for transactions in by_coordinator.values():
                await self._tried("ask for open transactions", self._ask(transactions))
        finally:
            self._running = False

    async def _tell(self, transaction: TransactionId) -> None:
        brokers, commit = self._untold[transaction]
        if self._open_here.find(transaction) is not None:
            return  # It is decided, but not carried out here.
        asked = sorted(brokers)
        outcomes = await asyncio.gather(
            *(self._others.end(broker, transaction, commit=commit) for broker in asked), return_exceptions=True
        )
        for broker, outcome in zip(asked, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                brokers.discard(broker)
            elif isinstance(outcome, PenstockError):
                log.warning("broker %d is told later of the end of transaction %s: %s", broker, transaction, outcome)
            else:
                raise outcome
        if not brokers and (
            not commit or await self._tried("forget a decision", self._others.carried_out(transaction))
        ):
            self._untold.pop(transaction, None)

    async def _ask(self, transactions: Sequence[Transaction]) -> None:
        """Ask the coordinator of these transactions about them, and end those that are not open there."""
        for some in _in_parts([one for one in transactions if one.is_open], ASKED_AT_ONCE):
            coordinator = some[0].id.coordinator
            if self._others.exists(coordinator):
                still_open = await self._others.which_open([one.id for one in some])
            else:
                still_open = []
            for stored in still_open:
                self._open_here.learn(stored)
            # What was decided before the coordinator answered is known after this.
            await self._others.catch_up()
            known = {stored.id for stored in still_open}
            for one in some:
                if one.id not in known and one.is_open:
                    commit = self._others.is_committed(one.id)
                    log.info("transaction %s is %s, as its coordinator has no more of it", one.id, _done(commit))
                    await self._tried(f"end {one.id}", self._open_here.end_here(one.id, commit=commit))

    async def _tried(self, what: str, work: Awaitable[None]) -> bool:
        try:
            await work
        except PenstockError as error:
            log.warning("cannot %s, and try again: %s", what, error)
            return False
        return True


def _done(commit: bool) -> str:  # noqa: FBT001
    return "committed" if commit else "aborted"


def _in_parts(transactions: Iterable[Transaction], size: int) -> Iterable[list[Transaction]]:
    each = iter(transactions)
    while some := list(islice(each, size)):
        yield some
