# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements of open transactions, and the cursor as dispatch sees it while there are any.

Why a view: what a transaction has acknowledged is not delivered again while the transaction is open, but it is not
acknowledged before the commit, or it would be lost by an abort. So dispatch asks `Undelivered` where it would ask the
cursor; the backlog, trimming and the stored cursor know nothing of pending acknowledgements.
Where: `SubscriptionState.pending`, which is None without open transactions; then dispatch asks the cursor itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from penstock.core.errors import TransactionConflict
from penstock.storage.ack_sets import ack_set_bytes, bits_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.core.transaction_id import TransactionId
    from penstock.storage.cursor import Cursor
    from penstock.storage.transaction_rows import PendingAck

# Memory of a transaction's acknowledgements, and of each range in them, in bytes: bitmaps with one container.
OPEN_BYTES: Final = 600
RANGE_BYTES: Final = 150
_ALL: Final = -1  # every bit is set: no message of a batch is acknowledged
_WORD_BITS: Final = 64


class TransactionAcks:
    """What one transaction has acknowledged in a subscription.

    Attributes:
        ids: whole entries.
        members: by batch, the messages that it does not acknowledge, as bits, and the size of the batch, if known.
        through: all entries up to this one; -1 for none.
        nbytes: memory that it takes.
    """

    __slots__ = ("ids", "members", "nbytes", "through")

    def __init__(self) -> None:
        self.ids = BitMap64()
        self.members: dict[int, tuple[int, int]] = {}
        self.through = -1
        self.nbytes = OPEN_BYTES

    def add(self, ack: PendingAck) -> None:
        """Add an acknowledgement."""
        for first, last in ack.ranges:
            self.ids.add_range(first, last + 1)
        for entry_id, (size, words) in ack.members.items():
            left, before = self.members.get(entry_id, (_ALL, 0))
            self.members[entry_id] = (left & bits_of(words), max(size, before))
        self.through = max(self.through, ack.through)
        self.nbytes += size_of(ack)


class PendingAcks:
    """The acknowledgements of all open transactions in one subscription."""

    __slots__ = ("_cursor", "_full", "_ids", "_members", "_through", "by_transaction")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.by_transaction: dict[TransactionId, TransactionAcks] = {}
        # What dispatch asks for: the union over all transactions.
        self._ids = BitMap64()
        self._members: dict[int, int] = {}  # by batch, the messages that no transaction acknowledges
        self._full = BitMap64()  # batches of which all messages are acknowledged
        self._through = -1

    # -- changing

    def check(self, transaction: TransactionId, ack: PendingAck) -> None:
        """Check an acknowledgement. A transaction may repeat itself: a client that lost its connection does.

        Raises TransactionConflict: some of it is acknowledged, or another transaction has acknowledged it.
        """
        others = [(one, acks) for one, acks in self.by_transaction.items() if one != transaction]
        if 0 <= ack.through <= self._cursor.mark_delete:
            raise _conflict(ack.through, "everything up to it is acknowledged")
        for other, acks in others:
            if ack.through >= 0 and acks.through >= 0:
                raise _conflict(ack.through, f"transaction {other} acknowledges everything up to {acks.through}")
        for first, last in ack.ranges:
            self._check_range(first, last, others)
        for entry_id, (size, words) in ack.members.items():
            self._check_members(entry_id, size, bits_of(words), others)

    def _check_range(self, first: int, last: int, others: list[tuple[TransactionId, TransactionAcks]]) -> None:
        if not self._cursor.none_acknowledged(first, last):
            raise _conflict(first, "it is acknowledged, or one after it")
        for other, acks in others:
            if first <= acks.through or acks.ids.range_cardinality(first, last + 1):
                raise _conflict(first, f"transaction {other} acknowledges it, or one after it")
            if any(first <= entry_id <= last for entry_id in acks.members):
                raise _conflict(first, f"transaction {other} acknowledges messages of it, or of one after it")

    def _check_members(
        self, entry_id: int, size: int, left: int, others: list[tuple[TransactionId, TransactionAcks]]
    ) -> None:
        acknowledged = _members(left, size)
        before = self._cursor.ack_set(entry_id)
        if self._cursor.is_acknowledged(entry_id) or (before and not acknowledged & bits_of(before)):
            raise _conflict(entry_id, "these messages of it are acknowledged")
        for other, acks in others:
            theirs = _members(*acks.members.get(entry_id, (0, 0)))
            if entry_id <= acks.through or entry_id in acks.ids or acknowledged & theirs:
                raise _conflict(entry_id, f"transaction {other} acknowledges these messages of it")

    def need(self, transaction: TransactionId, ack: PendingAck) -> int:
        """Return how much memory `add` takes, in bytes."""
        return size_of(ack) + (0 if transaction in self.by_transaction else OPEN_BYTES)

    def add(self, transaction: TransactionId, ack: PendingAck) -> int:
        """Add what `check` has accepted; return the additional memory in bytes."""
        nbytes = self.need(transaction, ack)
        acks = self.by_transaction.setdefault(transaction, TransactionAcks())
        acks.add(ack)
        self._ids |= acks.ids
        self._through = max(self._through, acks.through)
        self._index_members(ack.members)
        return nbytes

    def end(self, transaction: TransactionId) -> TransactionAcks | None:
        """Forget what a transaction has acknowledged, and return it."""
        acks = self.by_transaction.pop(transaction, None)
        if acks is not None:
            self._ids -= acks.ids  # No other transaction has any of them.
            self._through = -1 if acks.through >= 0 else self._through
            self._index_members(acks.members)
        return acks

    def _index_members(self, batches: Iterable[int]) -> None:
        for entry_id in batches:
            left = _ALL
            for acks in self.by_transaction.values():
                left &= acks.members.get(entry_id, (_ALL, 0))[0]
            self._members[entry_id] = left
            (self._full.discard if left else self._full.add)(entry_id)
            if left == _ALL:
                del self._members[entry_id]

    # -- for dispatch

    def holds(self, entry_id: int) -> bool:
        """Whether a whole entry is acknowledged by open transactions."""
        return entry_id <= self._through or entry_id in self._ids or entry_id in self._full

    def first_held(self, entry_id: int, stop: int) -> int:
        """Return the first entry of [entry_id, stop) that is held, or `stop`."""
        if entry_id <= self._through:
            return min(entry_id, stop)
        for ids in (self._ids, self._full):
            stop = min(stop, _next(ids, entry_id, stop))
        return stop

    def first_free(self, entry_id: int) -> int:
        """Return the first entry from `entry_id` on that is not held."""
        entry_id = max(entry_id, self._through + 1)
        while entry_id in self._ids or entry_id in self._full:
            entry_id += 1
        return entry_id

    def left_of(self, entry_id: int) -> int:
        """Return which messages of a batch no transaction has acknowledged, as bits; -1: all of them."""
        return self._members.get(entry_id, _ALL)

    def batches(self, first: int, last: int) -> list[int]:
        """Return the batches within [first, last] of which some messages are acknowledged."""
        return [entry_id for entry_id in self._members if first <= entry_id <= last]


class Undelivered:
    """The cursor as dispatch sees it: what open transactions acknowledge counts. Methods are as those of `Cursor`."""

    __slots__ = ("_cursor", "_pending")

    def __init__(self, cursor: Cursor, pending: PendingAcks) -> None:
        self._cursor = cursor
        self._pending = pending

    @property
    def acknowledged_above(self) -> int:
        return 1  # Perhaps none: callers only ask whether they must look closely.

    @property
    def has_ack_sets(self) -> bool:
        return True  # likewise

    def is_acknowledged(self, entry_id: int) -> bool:
        return self._cursor.is_acknowledged(entry_id) or self._pending.holds(entry_id)

    def none_acknowledged(self, first: int, last: int) -> bool:
        return self._cursor.none_acknowledged(first, last) and self._pending.first_held(first, last + 1) > last

    def next_unacknowledged(self, from_entry_id: int) -> int:
        entry_id = self._cursor.next_unacknowledged(from_entry_id)
        while self._pending.holds(entry_id):
            entry_id = self._cursor.next_unacknowledged(self._pending.first_free(entry_id))
        return entry_id

    def unacknowledged_ranges(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        for start, end in self._cursor.unacknowledged_ranges(first, last):
            at = self._pending.first_free(start)
            while at <= end:
                stop = self._pending.first_held(at, end + 1)
                yield at, stop - 1
                at = self._pending.first_free(stop)

    def partly_acknowledged(self, first: int, last: int) -> dict[int, int]:
        found = self._cursor.partly_acknowledged(first, last)
        for entry_id in self._pending.batches(first, last):
            left = self._left_of(entry_id)
            if left:
                found[entry_id] = left.bit_count()
        return found

    def ack_set(self, entry_id: int) -> list[int] | None:
        left = self._left_of(entry_id)
        return None if left == _ALL else words_of(left)

    def ack_set_words(self, entry_id: int) -> int:
        left = self._left_of(entry_id)
        return 0 if left == _ALL else -(-left.bit_length() // _WORD_BITS)

    def _left_of(self, entry_id: int) -> int:
        before = self._cursor.ack_set(entry_id)
        return self._pending.left_of(entry_id) & (_ALL if before is None else bits_of(before))


def size_of(ack: PendingAck) -> int:
    """Return the memory that an acknowledgement takes, in bytes."""
    sets = sum(ack_set_bytes(words) for _, words in ack.members.values())
    return RANGE_BYTES * (len(ack.ranges) + (ack.through >= 0)) + 2 * sets


def words_of(bits: int) -> list[int]:
    """Return bits as signed 64-bit words, lowest first, as an ACK has them."""
    data = bits.to_bytes(8 * -(-bits.bit_length() // _WORD_BITS), "little")
    return [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)]


def _members(left: int, size: int) -> int:
    """The messages that are acknowledged, as bits. Of a batch of unknown size, without its last ones."""
    return ((1 << max(size, left.bit_length())) - 1) & ~left


def _next(ids: BitMap64, entry_id: int, stop: int) -> int:
    try:
        return int(ids.next_set_bit(entry_id))
    except ValueError:
        return stop


def _conflict(entry_id: int, why: str) -> TransactionConflict:
    return TransactionConflict(f"entry {entry_id} cannot be acknowledged in this transaction: {why}")
