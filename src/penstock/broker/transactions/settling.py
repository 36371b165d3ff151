# SPDX-License-Identifier: Apache-2.0
"""Settling of transactions of several brokers: the rest that a crash, or a broker that did not answer, has left to do.

Three things, each tried again until it is done:

- Brokers are told of ends of this coordinator's transactions, many at a time: a thousand that time out at once are a
  few requests. When all have carried out a commit, its decision is forgotten. After a start, all others are told of the
  commits that are still there.
- Commits that are decided are carried out in the topics of this broker.
- Other coordinators are asked about their transactions of which there are parts here. One that is not open there, and
  of which there is no decision, is aborted; so is one whose coordinator was left out of this start.

A stop does not wait for any of it: it is found again after the next start.
Where: the coordinator makes one, and calls its `tick`. A broker that has no others has nothing to settle.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.transactions.others import ASKED_AT_ONCE, End
from penstock.core.errors import PenstockError
from penstock.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Iterable, Sequence

    from penstock.broker.transactions.open_transactions import OpenTransactions, TransactionServices
    from penstock.broker.transactions.transaction import Transaction
    from penstock.core.transaction_id import TransactionId

log = logging.getLogger(__name__)

# How often what is left is tried again: readers of its topics wait for it.
EVERY_NS: Final = 5 * NS_PER_S
# So many ends are told in one request. The other broker carries them out in one turn of its loop, 10 ms.
TOLD_AT_ONCE: Final = 200


class _Untold:
    """An end that not all brokers know.

    Attributes:
        commit: how it ended.
        brokers: those that do not know it.
        tried: done when each of them was told, or has not answered.
    """

    __slots__ = ("brokers", "commit", "tried", "untried")

    def __init__(self, brokers: set[int], *, commit: bool) -> None:
        self.commit = commit
        self.brokers = set(brokers)
        self.untried = set(brokers)
        self.tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, broker: int, *, told: bool) -> None:
        if told:
            self.brokers.discard(broker)
        self.untried.discard(broker)
        if not self.untried:
            self.give_up()

    def give_up(self) -> None:
        if not self.tried.done():
            self.tried.set_result(None)


class Settling:
    """Settles transactions with the other brokers. All methods are called on the event loop."""

    def __init__(self, open_here: OpenTransactions, services: TransactionServices) -> None:
        self._open_here = open_here
        self._others = services.others
        self._loop = asyncio.get_running_loop()
        self._working: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._ends: dict[TransactionId, _Untold] = {}
        # What to tell each broker next.
        self._lines: defaultdict[int, dict[TransactionId, None]] = defaultdict(dict)
        self._telling: set[int] = set()  # brokers that are being told
        # After a start, who was told is not known.
        self._at_start = [one for one in self._others.committed() if self._others.inherits(one.coordinator)]
        self._next_ns = services.clock.monotonic_ns()
        self._running = False

    async def tell(self, transaction: TransactionId, brokers: set[int], *, commit: bool) -> None:
        """Tell other brokers that a transaction has ended here; those that do not answer are told later."""
        if self._stopped:
            return
        end = self._ends[transaction] = _Untold(brokers, commit=commit)
        for broker in brokers:
            self._lines[broker][transaction] = None
            self._begin_telling(broker)
        await end.tried

    def tick(self, now_ns: int) -> None:
        """Do what is left, from time to time."""
        if now_ns >= self._next_ns and not self._running and self._is_something_left():
            self._next_ns, self._running = now_ns + EVERY_NS, True
            self._begin(self._settle())

    async def stop(self) -> None:
        """Stop waiting for other brokers, and let nobody wait for that any more."""
        self._stopped = True
        working = list(self._working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        for end in self._ends.values():
            end.give_up()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def _is_something_left(self) -> bool:
        here = self._open_here
        return bool(self._ends or self._at_start or here.foreign_count or here.has_decided())

    async def _settle(self) -> None:
        try:
            for some in _in_parts(self._open_here.decided(), TOLD_AT_ONCE):
                await asyncio.gather(*(self._tried(f"commit {one.id}", self._open_here.carry_out(one)) for one in some))
            self._tell_again()
            by_coordinator: defaultdict[int, list[Transaction]] = defaultdict(list)
            for transaction in self._open_here.foreign():
                by_coordinator[transaction.id.coordinator].append(transaction)
            for transactions in by_coordinator.values():
                await self._tried("ask for open transactions", self._ask(transactions))
        finally:
            self._running = False

    # -- telling

    def _tell_again(self) -> None:
        """Begin to tell what is not known yet; of ends from before the start, those that are carried out here."""
        for one in self._at_start:
            if self._open_here.find(one) is None and one not in self._ends:
                self._ends[one] = _Untold(self._others.numbers, commit=True)
        self._at_start = [one for one in self._at_start if one not in self._ends and self._others.is_committed(one)]
        for transaction, end in self._ends.items():
            for broker in end.brokers:
                self._lines[broker].setdefault(transaction)
        for broker, line in self._lines.items():
            if line:
                self._begin_telling(broker)
        self._begin(self._forget(self._ends))

    def _begin_telling(self, broker: int) -> None:
        if broker not in self._telling:
            self._telling.add(broker)
            self._begin(self._tell(broker))

    async def _tell(self, broker: int) -> None:
        """Tell a broker what it does not know, many ends at a time, until it knows all or does not answer."""
        line, told = self._lines[broker], True
        try:
            while told and line:
                some = list(islice(line, TOLD_AT_ONCE))
                ends = [End(one, self._ends[one].commit) for one in some]
                told = await self._tried(f"tell broker {broker} of {len(some)} ends", self._others.end(broker, ends))
                for one in some if told else list(line):
                    line.pop(one)
                    self._ends[one].answered(broker, told=told)
                await self._forget(some)
        finally:
            self._telling.discard(broker)

    async def _forget(self, transactions: Iterable[TransactionId]) -> None:
        """Forget those of these that all brokers know."""
        known = [one for one in transactions if one in self._ends and not self._ends[one].brokers]
        commits = [one for one in known if self._ends[one].commit]
        if not commits or await self._tried("forget decisions", self._others.carried_out(commits)):
            for one in known:
                self._ends.pop(one, None)

    # -- asking

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
