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
from penstock.storage.cursor import ack_set_bytes, bits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.core.transaction_id import TransactionId
    from penstock.storage.cursor import Cursor
    from penstock.storage.transaction_rows import PendingAck

# Memory of a transaction's acknowledgements, and of each range in them, in bytes: bitmaps with one container.
OPEN_BYTES: Final = 600
RANGE_BYTES: Final = 150
_ALL: Final = -1  # every bit is set: no message of a batch is acknowledged
_WORD_BITS: Final = 64


class TransactionAcks:
    """Acknowledgements of one transaction in a subscription.

    Attributes:
        id: the transaction.
        ids: whole entries.
        members: by batch, the messages that it does not acknowledge, as bits, and the size of the batch, if known.
        through: all entries up to this one; -1 for none.
        nbytes: memory that it takes.
    """

    __slots__ = ("id", "ids", "members", "nbytes", "through")

    def __init__(self, transaction: TransactionId) -> None:
        self.id = transaction
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

    __slots__ = ("_batches", "_cursor", "_full", "_ids", "_members", "_through", "by_transaction")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.by_transaction: dict[TransactionId, TransactionAcks] = {}
        # What dispatch asks for: the union over all transactions.
        self._ids = BitMap64()
        self._members: dict[int, dict[TransactionId, tuple[int, int]]] = {}  # by batch, as in `TransactionAcks`
        self._batches = BitMap64()  # the same batches
        self._full = BitMap64()  # batches of which all messages are acknowledged
        self._through = -1

    # -- changing

    def check(self, transaction: TransactionId, ack: PendingAck) -> None:
        """Check an acknowledgement. A transaction may repeat itself: a client that lost its connection does.

        Takes as long for a thousand open transactions as for one.

        Raises TransactionConflict: some of it is acknowledged, or another transaction has acknowledged it.
        """
        own = self.by_transaction.get(transaction) or TransactionAcks(transaction)
        through = -1 if self._through == own.through else self._through  # of another transaction
        if 0 <= ack.through <= self._cursor.mark_delete:
            raise _conflict(ack.through, "everything up to it is acknowledged")
        if ack.through >= 0 <= through:
            raise _conflict(ack.through, f"transaction {self._having(through)} acknowledges everything up to {through}")
        for first, last in ack.ranges:
            self._check_range(first, last, own, through)
        for entry_id, (size, words) in ack.members.items():
            self._check_members(transaction, entry_id, size, bits_of(words))

    def _check_range(self, first: int, last: int, own: TransactionAcks, through: int) -> None:
        if not self._cursor.none_acknowledged(first, last):
            raise _conflict(first, "it is acknowledged, or one after it")
        stop = last + 1
        found = self._ids.range_cardinality(first, stop) - own.ids.range_cardinality(first, stop)
        batch = _next(self._batches, first, stop)
        while batch < stop and self._members[batch].keys() <= {own.id}:
            batch = _next(self._batches, batch + 1, stop)
        if found or first <= through or batch < stop:
            raise _conflict(first, f"transaction {self._having(first, last)} acknowledges it, or one after it")

    def _check_members(self, transaction: TransactionId, entry_id: int, size: int, left: int) -> None:
        acknowledged = _members(left, size)
        before = self._cursor.ack_set(entry_id)
        if self._cursor.is_acknowledged(entry_id) or (before and not acknowledged & bits_of(before)):
            raise _conflict(entry_id, "these messages of it are acknowledged")
        for other, theirs in self._members.get(entry_id, {}).items():
            if other != transaction and acknowledged & _members(*theirs):
                raise _conflict(entry_id, f"transaction {other} acknowledges these messages of it")
        if entry_id <= self._through or entry_id in self._ids:
            whole = self._having(entry_id)
            if whole != transaction:
                raise _conflict(entry_id, f"transaction {whole} acknowledges it")

    def _having(self, first: int, last: int | None = None) -> TransactionId | None:
        """The first transaction that has acknowledged some of these entries. For messages: it looks at all."""
        stop = (first if last is None else last) + 1
        for one, acks in self.by_transaction.items():
            if first <= acks.through or acks.ids.range_cardinality(first, stop):
                return one
            if any(first <= batch < stop for batch in acks.members):
                return one
        return None

    def need(self, transaction: TransactionId, ack: PendingAck) -> int:
        """Return how much memory `add` takes, in bytes."""
        return size_of(ack) + (0 if transaction in self.by_transaction else OPEN_BYTES)

    def add(self, transaction: TransactionId, ack: PendingAck) -> int:
        """Add what `check` has accepted; return the additional memory in bytes."""
        nbytes = self.need(transaction, ack)
        acks = self.by_transaction.setdefault(transaction, TransactionAcks(transaction))
        acks.add(ack)
        for first, last in ack.ranges:
            self._ids.add_range(first, last + 1)
        self._through = max(self._through, acks.through)
        for entry_id in ack.members:
            self._members.setdefault(entry_id, {})[transaction] = acks.members[entry_id]
            self._index(entry_id)
        return nbytes

    def end(self, transaction: TransactionId) -> TransactionAcks | None:
        """Forget what a transaction has acknowledged, and return it."""
        acks = self.by_transaction.pop(transaction, None)
        if acks is not None:
            self._ids -= acks.ids  # No other transaction has any of them.
            self._through = -1 if acks.through >= 0 else self._through
            for entry_id in acks.members:
                del self._members[entry_id][transaction]
                self._index(entry_id)
        return acks

    def _index(self, entry_id: int) -> None:
        """A batch has changed."""
        if not self._members[entry_id]:
            del self._members[entry_id]
        (self._batches.add if entry_id in self._members else self._batches.discard)(entry_id)
        (self._full.discard if self.left_of(entry_id) else self._full.add)(entry_id)

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
            entry_id = _first_absent(self._full, _first_absent(self._ids, entry_id))
        return entry_id

    def left_of(self, entry_id: int) -> int:
        """Return which messages of a batch no transaction has acknowledged, as bits; -1: all of them."""
        left = _ALL
        for theirs, _ in self._members.get(entry_id, {}).values():
            left &= theirs
        return left

    def batches(self, first: int, last: int) -> list[int]:
        """Return the batches within [first, last] of which some messages are acknowledged."""
        found, batch = [], _next(self._batches, first, last + 1)
        while batch <= last:
            found.append(batch)
            batch = _next(self._batches, batch + 1, last + 1)
        return found


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


def _first_absent(ids: BitMap64, entry_id: int) -> int:
    """Return the first id from `entry_id` on that is not there; in steps that double, and then halve."""
    step = 1
    while ids.range_cardinality(entry_id, entry_id + step) == step:
        entry_id, step = entry_id + step, 2 * step
    while step > 1:
        step //= 2
        if ids.range_cardinality(entry_id, entry_id + step) == step:
            entry_id += step
    return entry_id


def _conflict(entry_id: int, why: str) -> TransactionConflict:
    return TransactionConflict(f"entry {entry_id} cannot be acknowledged in this transaction: {why}")
