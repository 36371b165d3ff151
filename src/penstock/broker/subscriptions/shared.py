# SPDX-License-Identifier: Apache-2.0
"""Shared subscriptions: consumers take turns, and unacknowledged messages are redelivered with a count.

The acknowledgement of a delivered entry is *pending* with its consumer. A consumer with too many unacknowledged
messages gets no more.
Where: the dispatcher of Shared subscriptions; Key_Shared is based on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from penstock.broker.subscriptions.dispatcher import Dispatcher, Plan, Send, share, take
from penstock.broker.subscriptions.entry_counts import ENTRY_BYTES, EntryCounts
from penstock.broker.subscriptions.replay_reads import ENTRIES_MAX
from penstock.governance.budget import Charge
from penstock.governance.holds import HoldKind
from penstock.governance.memory_pool import UNBOUNDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.governance.budget import Row
    from penstock.storage.results import Batch


# ---------------------------------------------------------------------------------------------------------------------
# The entries of a Shared subscription that wait for redelivery.
#
# Why a bitmap: acknowledgements and deliveries remove entries in the middle, redelivery takes the lowest, and a million
# may wait. Where: a subscription adds entries when a consumer is detached or requests redelivery, and sends them before
# it reads on.


class Replay:
    """A set of entry ids, taken in ascending order."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = BitMap64()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self._entries

    def add(self, entry_id: int) -> None:
        self._entries.add(entry_id)

    def update(self, entry_ids: Iterable[int]) -> None:
        self._entries.update(entry_ids)

    def discard(self, entry_ids: Iterable[int]) -> None:
        if self._entries:
            self._entries -= BitMap64(entry_ids)

    def discard_through(self, entry_id: int) -> None:
        self._entries.remove_range(0, entry_id + 1)

    def clear(self) -> None:
        self._entries.clear()

    def next(self, entries_max: int) -> list[int]:
        """The lowest entries, ascending, at most `entries_max`."""
        return list(self._entries[: max(0, entries_max)])


# A consumer may have this many pending acknowledgements even if there is no memory for their ids.
PENDING_ALWAYS: Final = 64


class Shared(Dispatcher):
    """Round-robin dispatch with individual acknowledgements.

    Args:
        consumers: of the subscription.
        memory: charged for ids of entries that are pending, waiting or redelivered.
        wait_for_memory: called when a consumer gets nothing for lack of that memory.
        wake: called when dispatch may continue.
        round_robin_entries_max: entries in one consumer's turn.
    """

    __slots__ = (
        "_charge",
        "_lacks_memory",
        "_memory",
        "_pending",
        "_round_robin_entries_max",
        "_turn",
        "_unacked",
        "_unacked_max",
        "_unacked_per_consumer_max",
        "_wait_for_memory",
        "_wake",
        "blocked",
        "redeliveries",
        "replay",
    )

    individual = True

    def __init__(
        self,
        consumers: list[Consumer],
        *,
        memory: Row,
        wait_for_memory: Callable[[], None],
        wake: Callable[[], None],
        round_robin_entries_max: Callable[[], int],
    ) -> None:
        super().__init__(consumers)
        self.replay = Replay()
        self.redeliveries = EntryCounts()  # redelivery counts of unacknowledged entries
        self.blocked = False  # the consumers together have too many unacknowledged messages
        self._memory = memory
        self._wait_for_memory = wait_for_memory
        self._wake = wake
        self._round_robin_entries_max = round_robin_entries_max
        self._turn = 0
        self._pending = 0  # entries with a pending acknowledgement
        self._unacked = 0  # messages in them
        self._unacked_max = self._unacked_per_consumer_max = UNBOUNDED
        self._lacks_memory = False  # a consumer gets nothing for lack of memory
        self._charge = Charge(memory)

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def attached(self, consumer: Consumer) -> None:
        """Wake the subscription: it can be sent entries now."""
        del consumer
        self._wake()

    def leave(self, consumer: Consumer) -> None:
        """Redeliver its unacknowledged entries to others. This does not increase their redelivery counts."""
        self._deliver_again(consumer, list(consumer.pending_acks))

    # -- ready consumers ----------------------------------------------------------------------------------------------

    def ready(self) -> list[Consumer]:
        """Consumers with permits and without too many unacknowledged messages."""
        if self.blocked:
            return []
        part = self._equal_part()
        return [
            consumer
            for consumer in self.consumers
            if consumer.permits > 0
            and not consumer.blocked
            and (part is not None or self._entries_left(consumer) > 0)
            and consumer.outlet.takes_entries()
        ]

    def allowances(self, ready: list[Consumer]) -> list[int]:
        """Messages that each may be sent, by permits, unacknowledged messages, and memory for ids."""
        part, unacked_max = self._equal_part(), self._unacked_per_consumer_max
        return [
            min(
                consumer.permits,
                unacked_max - consumer.unacked,
                self._entries_left(consumer) if part is None else part,
            )
            for consumer in ready
        ]

    def rows_max(self, ready: list[Consumer]) -> int:
        """One entry per message that these consumers may be sent."""
        return max(sum(self.allowances(ready)), 1)

    def _hold_of(self, consumer: Consumer) -> HoldKind:
        if self.blocked or consumer.blocked:
            return HoldKind.UNACKED
        if consumer.permits > 0 and self._equal_part() is None and self._memory_left(consumer) <= 0:
            return HoldKind.DISPATCH_MEMORY
        return super()._hold_of(consumer)

    # -- memory -------------------------------------------------------------------------------------------------------

    def _equal_part(self) -> int | None:
        """How many more pending acknowledgements each consumer may have, by the memory for their ids.

        None when half of the row is used: then it depends on how many a consumer has.
        """
        row, parts = self._memory, len(self.consumers) + 1
        free = row.available_bytes // self.entry_bytes()
        return free // parts if row.available_bytes * 2 > row.limit_bytes and free > parts else None

    def _entries_left(self, consumer: Consumer) -> int:
        """The same for one consumer, when half of the row is used.

        No consumer may have more than what is left, so something is always left for others.
        """
        left = self._memory_left(consumer)
        if left <= 0:
            self._lacks_memory = True
            self._wait_for_memory()
        return left

    def _memory_left(self, consumer: Consumer) -> int:
        parts, pending = len(self.consumers) + 1, len(consumer.pending_acks)
        free = self._memory.available_bytes // self.entry_bytes()
        return max((free - pending) // parts, PENDING_ALWAYS - pending)

    def entry_bytes(self) -> int:
        """Memory of one pending acknowledgement, in bytes."""
        return ENTRY_BYTES

    def held_bytes(self) -> int:
        """Memory of all pending acknowledgements, waiting entries and redelivery counts, in bytes."""
        return ENTRY_BYTES * (self._pending + len(self.replay) + 2 * len(self.redeliveries))

    def charge(self) -> None:
        self._charge.recharge(self.held_bytes())

    def close(self) -> None:
        self._charge.release()

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        del batch
        sends, planned = self._share(rows, counts, ready) if rows else ((), 0)
        return Plan(sends, rows[planned] if planned < len(rows) else stop)

    def plan_replay(
        self, batch: Batch, row: int, stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        ids = batch.entry_ids
        rows = [one for one in range(row, stop) if ids[one] in self.replay]
        if rows and not ready:
            return Plan((), rows[0])
        return self.plan(batch, rows, stop, counts, ready)

    def _share(
        self, rows: Sequence[int], counts: Sequence[int] | None, ready: list[Consumer]
    ) -> tuple[Sequence[Send], int]:
        """Assign these rows to consumers as far as they can take them; returns the sends and the number of rows."""
        if counts is None:
            messages = None
        elif isinstance(rows, range):
            messages = counts[rows.start : rows.stop]
        else:
            messages = [counts[row] for row in rows]
        if len(ready) == 1:
            entries, total = take(messages, 0, len(rows), self.allowances(ready)[0])
            if len(self.consumers) == 1:
                self._turn = 1  # as `share` would say
            return ((Send(ready[0], rows[:entries], total),) if entries else ()), entries
        shares, self._turn = share(
            len(rows),
            messages,
            self.allowances(ready),
            [consumer.priority_level for consumer in ready],
            self._turn % len(ready),
            self._round_robin_entries_max(),
        )
        sends = [Send(ready[part.consumer_index], rows[part.start : part.stop], part.messages) for part in shares]
        return sends, shares[-1].stop if shares else 0

    def sent(self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int) -> None:
        """Mark the entries as pending."""
        consumer.pending_acks.add(entry_ids, counts)
        self._pending += len(entry_ids)
        self.replay.discard(entry_ids)
        self.charge()
        consumer.unacked += messages
        self._unacked += messages
        if consumer.unacked >= self._unacked_per_consumer_max:
            consumer.blocked = True
        if self._unacked >= self._unacked_max:
            self.blocked = True

    def not_sent(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Send them before later ones, to any consumer."""
        del consumer
        self.add_replay(entry_ids)

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Redeliver them, without increasing their redelivery counts."""
        self._deliver_again(consumer, [entry_id for entry_id in entry_ids if entry_id in consumer.pending_acks])

    # -- redelivery ---------------------------------------------------------------------------------------------------

    @property
    def has_replay(self) -> bool:
        return bool(self.replay)

    @property
    def replay_size(self) -> int:
        return len(self.replay)

    def next_replay(self, ready: list[Consumer]) -> list[int]:
        return self.replay.next(min(sum(consumer.permits for consumer in ready), ENTRIES_MAX))

    def due_room(self, ready: list[Consumer]) -> int:
        """The permits, minus the entries that wait already."""
        return min(sum(consumer.permits for consumer in ready), ENTRIES_MAX) - len(self.replay)

    def add_replay(self, entry_ids: Iterable[int]) -> None:
        self.replay.update(entry_ids)
        self.charge()

    def missing(self, entry_ids: Iterable[int]) -> None:
        self.replay.discard(entry_ids)
        self.charge()

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """Only pending entries are redelivered."""
        del epoch
        pending = consumer.pending_acks
        again = [entry for entry in entry_ids if entry in pending] if entry_ids else list(pending)
        self.redeliveries.count_up(again)
        messages = self._deliver_again(consumer, again)
        consumer.messages_redelivered += messages
        return messages

    def _deliver_again(self, consumer: Consumer, entry_ids: list[int]) -> int:
        """Redeliver entries that were sent to this consumer; returns their number of messages."""
        messages, _ = self._pop(consumer, entry_ids)
        self._wait_again(consumer, entry_ids)
        self._subtract_unacked(consumer, messages)
        return messages

    def _wait_again(self, consumer: Consumer, entry_ids: list[int]) -> None:
        del consumer
        self.replay.update(entry_ids)

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often redelivery of each entry was requested; None if never."""
        counts = self.redeliveries
        return [counts.get(entry_id) for entry_id in entry_ids] if counts else None

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer, entry_ids: Sequence[int], newly: int) -> None:
        """Remove the entries from the pending and the waiting ones."""
        del newly
        messages, foreign = self._pop(consumer, entry_ids)
        consumer.acks += messages
        self._subtract_unacked(consumer, messages)
        if foreign:
            self._settle_elsewhere(foreign)
        if self.redeliveries:
            self.redeliveries.pop_all(entry_ids)
            self.charge()
        self._settled(consumer, entry_ids if not foreign else without(entry_ids, foreign))

    def _settle_elsewhere(self, entry_ids: Iterable[int]) -> None:
        """Remove acknowledged entries that are pending with another consumer, or wait."""
        entry_ids = list(entry_ids)
        self.missing(entry_ids)
        for consumer in self.consumers:
            if not consumer.pending_acks:
                continue
            settled = [entry_id for entry_id in entry_ids if entry_id in consumer.pending_acks]
            self._settle(consumer, settled)

    def _pop(self, consumer: Consumer, entry_ids: Sequence[int]) -> tuple[int, list[int]]:
        """End pending acknowledgements; returns their number of messages, and the entries that were not pending."""
        before = len(consumer.pending_acks)
        messages, foreign = consumer.pending_acks.pop_all(entry_ids)
        self._pending -= before - len(consumer.pending_acks)
        return messages, foreign

    def _settle(self, consumer: Consumer, entry_ids: list[int]) -> None:
        messages, _ = self._pop(consumer, entry_ids)
        self._subtract_unacked(consumer, messages)
        self._settled(consumer, entry_ids)

    def _settled(self, consumer: Consumer, entry_ids: Sequence[int]) -> None:
        """Hook: these acknowledgements of a consumer are no longer pending."""

    def acknowledged_in_part(self, consumer: Consumer, entry_id: int, wanted: int | None) -> None:
        """The rest of the batch stays pending with its consumer."""
        for owner in (consumer, *self.consumers):
            pending = owner.pending_acks.get(entry_id)
            if pending and wanted is not None:
                left = min(pending, wanted)
                owner.pending_acks.set(entry_id, left)
                consumer.acks += pending - left
                self._subtract_unacked(owner, pending - left)
                return

    def acknowledged_through(self, entry_id: int) -> None:
        for consumer in self.consumers:
            self._settle(consumer, consumer.pending_acks.through(entry_id))
        self.replay.discard_through(entry_id)
        self.redeliveries.pop_all(self.redeliveries.through(entry_id))
        self.charge()

    def acknowledged_elsewhere(self, entry_id: int) -> None:
        self._settle_elsewhere([entry_id])
        self.redeliveries.pop(entry_id)
        self.charge()

    def _subtract_unacked(self, consumer: Consumer, messages: int) -> None:
        """Subtract acknowledged messages. A blocked dispatch continues at half of the limit, as in Pulsar."""
        consumer.unacked -= messages
        self._unacked -= messages
        self.charge()
        if self._lacks_memory:
            self._lacks_memory = False
            self._wake()
        if self.blocked and self._unacked <= self._unacked_max // 2:
            self.blocked = False
            self._wake()
        if consumer.blocked and consumer.unacked <= self._unacked_per_consumer_max // 2:
            consumer.blocked = False
            self._wake()

    def limits_changed(self, unacked_per_consumer: int, unacked_per_subscription: int) -> None:
        self._unacked_per_consumer_max = unacked_per_consumer or UNBOUNDED
        self._unacked_max = unacked_per_subscription or UNBOUNDED
        self.blocked = self._unacked >= self._unacked_max
        for consumer in self.consumers:
            consumer.blocked = consumer.unacked >= self._unacked_per_consumer_max

    @property
    def unacked(self) -> int:
        return self._unacked

    @property
    def pending(self) -> int:
        return self._pending


def without(entry_ids: Sequence[int], others: Iterable[int]) -> list[int]:
    left_out = set(others)
    return [entry_id for entry_id in entry_ids if entry_id not in left_out]
