# SPDX-License-Identifier: Apache-2.0
"""Which entries of one topic belong to open transactions, and which to aborted ones.

Why: entries of a transaction are in the log before it is decided whether anybody gets them. So the topic's
`last_entry_id`, up to which everybody reads, stays before the first entry of an open transaction, and goes on when that
ends. Entries of aborted transactions are acknowledged in every cursor as soon as they could be read.
Where: `Topic.transactions`, which is None for a topic that no transaction uses.

Invariant: every aborted entry above `Topic.last_entry_id` is acknowledged nowhere, and every other one in all cursors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.storage.entry_set import EntrySet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.transaction_id import TransactionId

# Memory of a range of entries of a transaction, in bytes.
RANGE_BYTES: Final = 150


class TransactionEntries:
    """The entries of transactions in one topic.

    Attributes:
        durable: the last durable entry.
        open: the ranges of entries of each transaction that may send to the topic, both ends included, ascending.
        sizes: of each transaction with entries, how many messages they have, and their bytes.
        sending: those that have entries, in the order of their first ones. Each publish asks for the first.
        ending: those that take no more entries: they are being committed or aborted.
        aborted: entries that nobody gets.
    """

    __slots__ = ("aborted", "durable", "ending", "open", "sending", "sizes")

    def __init__(self, durable: int) -> None:
        self.durable = durable
        self.open: dict[TransactionId, list[tuple[int, int]]] = {}
        self.sizes: dict[TransactionId, tuple[int, int]] = {}
        self.sending: dict[TransactionId, int] = {}  # -> its first entry
        self.ending: set[TransactionId] = set()
        self.aborted = EntrySet()

    @property
    def unused(self) -> bool:
        """Whether the topic does not need this any more."""
        return not (self.open or self.aborted)

    def takes(self, transaction: TransactionId) -> bool:
        """Whether this transaction may send to the topic."""
        return transaction in self.open and transaction not in self.ending

    def sent(self, transaction: TransactionId, first: int, last: int, *, messages: int, nbytes: int) -> bool:
        """Note that the entries [first, last] are of a transaction; return whether they begin another range."""
        messages_before, bytes_before = self.sizes.get(transaction, (0, 0))
        self.sizes[transaction] = messages_before + messages, bytes_before + nbytes
        ranges = self.open[transaction]
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1] = (ranges[-1][0], last)
            return False
        self.sending.setdefault(transaction, first)
        ranges.append((first, last))
        return True

    @property
    def oldest(self) -> TransactionId | None:
        """The transaction whose entry is the first open one."""
        return next(iter(self.sending), None)

    @property
    def readable(self) -> int:
        """The last entry that may be read."""
        first = next(iter(self.sending.values()), None)
        return self.durable if first is None else min(self.durable, first - 1)

    def end(self, transaction: TransactionId, *, commit: bool) -> tuple[int, int]:
        """A transaction has ended; return how many messages it had sent, and their bytes."""
        self.ending.discard(transaction)
        self.sending.pop(transaction, None)
        ranges = self.open.pop(transaction, [])
        if not commit:
            for first, last in ranges:
                self.aborted.add_range(first, last)
        return self.sizes.pop(transaction, (0, 0))

    def forget_before(self, first: int) -> None:
        """Forget aborted entries that are not in the log any more."""
        if self.aborted and self.aborted.first_present(0, first) < first:
            self.aborted.remove_through(first - 1)

    def aborted_within(self, first: int, last: int) -> Iterator[range]:
        """Yield the aborted entries of [first, last], ascending."""
        while (first := self.aborted.first_present(first, last + 1)) <= last:
            stop = min(self.aborted.first_absent(first), last + 1)
            yield range(first, stop)
            first = stop

    def last_not_aborted(self, first: int, last: int) -> int:
        """Return the last entry of [first, last] that is not aborted; `first - 1` if all are."""
        return max(first - 1, self.aborted.last_absent(last))
