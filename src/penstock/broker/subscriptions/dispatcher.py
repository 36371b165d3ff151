# SPDX-License-Identifier: Apache-2.0
"""The dispatcher of a subscription type: decides which consumers are ready, and which entries they get.

Why planners: a dispatcher decides and remembers, `Delivery` performs. A dispatcher neither sends nor reads, so it is
tested without sockets, disk or loop.
Where: a subscription makes the dispatcher of its type when its first consumer is attached, and drops it with the last;
redelivery counts and the active consumer are dropped with it, as in Pulsar.

A plan names rows of a batch. `Delivery` carries it out, and reports `sent` entries and those `not_sent` for lack of
room.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.hashing import sticky_hash, sticky_hashes
from penstock.governance.holds import HoldKind
from penstock.wire.varints import LOW_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.broker.subscriptions.consumer import Consumer
    from penstock.broker.subscriptions.key_order import Draining
    from penstock.storage.results import Batch


# ---------------------------------------------------------------------------------------------------------------------
# Dispatch decisions of the subscription types, as pure functions.
#
# Why: permits, priorities and turns are easy to get subtly wrong and easy to state as properties. So nothing here
# reads, writes or remembers: an entry is an index into a run, a consumer is an index into the subscription's list.
# Where: a subscription calls these with a run of entries to deliver and carries out the returned plan.
#
# Permits are counted in messages while delivery is counted in entries: an entry is never split, so the last entry given
# to a consumer may make its balance negative, and a consumer without positive balance gets nothing.

# Points of each consumer on the Failover hash ring, as in Apache Pulsar.
RING_POINTS: Final = 100
# Consumer names whose ring points are cached: hashing takes a fifth of a millisecond per consumer. A name may have 4
# KiB, so the cache takes at most 5 MB.
_RING_NAMES_CACHED: Final = 1_024

# Usual size of the header before an entry; with an ack set it is larger.
HEADER_BYTES: Final = 96

# The largest hash: the ring's length minus one.
_MASK_31: Final = 0x7FFFFFFF


class ConsumerRank(NamedTuple):
    """Rank of a consumer, which chooses the active one of a Failover subscription."""

    priority_level: int  # lower goes first
    name: str


class Share(NamedTuple):
    """Entries start..stop-1 of a run, with this number of messages, go to one consumer."""

    consumer_index: int
    start: int
    stop: int
    messages: int


def choose_active(consumers: Sequence[ConsumerRank], partition: int, topic: str) -> int:
    """The index of the active consumer of an Exclusive or Failover subscription.

    Among the consumers of the best priority level, in name order: the partition number selects one, so that partitions
    spread over them. A topic without partitions uses a hash ring, so that few topics move when consumers change.

    Args:
        consumers: all connected consumers, at least one.
        partition: the topic's partition number, or -1.
        topic: the topic's full name; used only without partition number.
    """
    best = min(rank.priority_level for rank in consumers)
    candidates = [index for index, rank in enumerate(consumers) if rank.priority_level == best]
    candidates.sort(key=lambda index: consumers[index].name)
    if len(candidates) == 1:
        return candidates[0]
    if partition >= 0:
        return candidates[partition % len(candidates)]
    position = sticky_hash(topic.encode())
    # If two points coincide, the later name wins, as on a ring that is filled in name order.
    return min(reversed(candidates), key=lambda index: _ring_distance(consumers[index].name, position))


def take(message_counts: Sequence[int] | None, start: int, stop: int, permits: int) -> tuple[int, int]:
    """How many of the entries start..stop-1 fit into `permits` messages, and their messages.

    Args:
        message_counts: messages in each entry of the run, each at least 1; None when every entry holds one.
        start: the first entry.
        stop: the entry after the last.
        permits: messages that the consumer may be sent; if not positive, nothing is taken.
    """
    stop = min(stop, start + permits)  # Each entry has at least one message.
    if stop <= start:
        return 0, 0
    if message_counts is None:
        return stop - start, stop - start
    totals = list(accumulate(message_counts[start:stop]))
    entries = min(bisect_left(totals, permits) + 1, stop - start)
    return entries, totals[entries - 1]


def fitting(lengths: Sequence[int], room_bytes: int) -> int:
    """How many of these entries, from the first on, fit into this many bytes when encoded.

    Args:
        lengths: of each entry, in bytes.
        room_bytes: how many bytes may be queued.
    """
    # Budget: 5 ns per entry on one core.
    if sum(lengths) + HEADER_BYTES * len(lengths) <= room_bytes:
        return len(lengths)
    return bisect_right(list(accumulate(length + HEADER_BYTES for length in lengths)), room_bytes)


def alike_before(entry_ids: Sequence[int], count: int) -> int:
    """How many of the first `count` entries have headers of the same length, because their ids share the high part.

    Args:
        entry_ids: ascending.
        count: how many of them, at least one.
    """
    high = entry_ids[0] >> LOW_BITS
    if entry_ids[count - 1] >> LOW_BITS == high:
        return count
    return bisect_left(entry_ids, (high + 1) << LOW_BITS, 0, count)


def share(
    n_entries: int,
    message_counts: Sequence[int] | None,
    permits: Sequence[int],
    priorities: Sequence[int],
    first: int,
    batch_max: int,
) -> tuple[list[Share], int]:
    """Plan a run of entries over the consumers of a Shared subscription, taking turns.

    Consumers of a worse priority level get entries only when those of all better levels have no permits left. Entries
    nobody has permits for are not planned: the plan covers entries 0..k-1, in order, k being the last share's stop.

    Args:
        n_entries: length of the run.
        message_counts: messages in each entry, each at least 1; None when every entry holds one.
        permits: messages each consumer still asked for; may be negative.
        priorities: priority level of each consumer; lower goes first.
        first: the consumer whose turn it is.
        batch_max: most entries given in one turn while somebody else waits for theirs.

    Returns:
        The shares in entry order, and the consumer whose turn it is next; behind the last one, the next turn is of the
        first consumer, or of whoever comes until then.
    """
    shares: list[Share] = []
    start, consumers = 0, len(permits)
    turns = [*range(first, consumers), *range(min(first, consumers))]
    ready = [index for index in turns if permits[index] > 0]
    for level in sorted({priorities[index] for index in ready}):
        ring = deque((index, permits[index]) for index in ready if priorities[index] == level)
        while ring and start < n_entries:
            index, balance = ring.popleft()
            stop = min(n_entries, start + batch_max) if ring else n_entries
            entries, messages = take(message_counts, start, stop, balance)
            shares.append(Share(index, start, start + entries, messages))
            start += entries
            if balance > messages:
                ring.append((index, balance - messages))
    return shares, shares[-1].consumer_index + 1 if shares else first


@lru_cache(maxsize=_RING_NAMES_CACHED)
def _ring_points(name: str) -> array[int]:
    return array("I", sorted(sticky_hashes(name.encode(), (b"%d" % point for point in range(RING_POINTS)))))


def _ring_distance(name: str, position: int) -> int:
    """Distance from `position` to the next of this consumer's points, upwards on the ring."""
    points = _ring_points(name)
    index = bisect_left(points, position)
    return points[index] - position if index < len(points) else points[0] - position + _MASK_31 + 1


class Send(NamedTuple):
    """Ascending rows of a batch for one consumer, and their number of messages."""

    consumer: Consumer
    rows: Sequence[int]
    messages: int


class Plan(NamedTuple):
    """The rows for each consumer, in sending order.

    `reached` is the row after the last one that the plan handles. With `in_order`, the plan ends at the first row
    without room; otherwise each consumer is sent what it has room for.
    """

    sends: Sequence[Send]
    reached: int
    in_order: bool = True


class HeldConsumer(NamedTuple):
    """A consumer that cannot be sent entries which wait for it.

    `entries` are those that wait for it alone, 0 if all consumers share what waits. If other consumers hold its keys,
    `holder` is one of them, and `entry_id` its first unacknowledged entry of such a key.
    """

    kind: HoldKind
    consumer: Consumer
    entries: int = 0
    holder: Consumer | None = None
    entry_id: int = 0


class Dispatcher:
    """The planner of one subscription type.

    `counts` are the messages in each entry of a batch; None when every entry holds one.
    """

    __slots__ = ("consumers",)

    individual = False  # whether consumers acknowledge entries individually: acknowledgements are pending until then
    blocked: bool = False  # dispatch stops until consumers acknowledge messages

    def __init__(self, consumers: list[Consumer]) -> None:
        self.consumers = consumers  # of the subscription, which updates it

    # -- attaching and detaching consumers ----------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if this consumer cannot be attached beside the others."""

    def conflicting(self, consumer: Consumer) -> list[Consumer]:
        """Consumers that prevent this one from being attached."""
        del consumer
        return []

    def join(self, consumer: Consumer) -> None:
        """Add a consumer. Raises ConsumerAssignFailed."""

    def attached(self, consumer: Consumer) -> None:
        """The consumer's client has been told that it is subscribed."""

    def leave(self, consumer: Consumer) -> None: ...

    def close(self) -> None:
        """Release everything: the last consumer was removed."""

    @property
    def active_consumer(self) -> Consumer | None:
        """The active consumer of an Exclusive or Failover subscription."""
        return None

    # -- ready consumers ----------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether no new entries may be read, because too many wait already."""
        return False

    def ready(self) -> list[Consumer]:
        """Consumers that can be sent entries now."""
        raise NotImplementedError

    def rows_max(self, ready: list[Consumer]) -> int:
        """Maximum number of entries that these consumers can be sent now."""
        raise NotImplementedError

    # -- holds --------------------------------------------------------------------------------------------------------

    def stopped_by(self) -> HoldKind:
        """Why no consumer is ready."""
        return self._hold_of(self.consumers[0])

    def held_consumers(self) -> Iterator[HeldConsumer]:
        """All consumers, and why each is not ready, after none was."""
        for consumer in self.consumers:
            yield HeldConsumer(self._hold_of(consumer), consumer)

    def held_keys(self) -> Iterator[HeldConsumer]:
        """Consumers of the keys of entries that are set aside, and why each cannot be sent them."""
        return iter(())

    def _hold_of(self, consumer: Consumer) -> HoldKind:
        """Why a consumer is not ready."""
        if consumer.permits <= 0:
            return HoldKind.QUEUE_FULL if consumer.last_flow_ms else HoldKind.NO_PERMITS
        return HoldKind.OUTBOUND

    # -- plans --------------------------------------------------------------------------------------------------------

    def plan(
        self, batch: Batch, rows: Sequence[int], stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan new entries: these rows, all before `stop`. Rows left out are delayed."""
        raise NotImplementedError

    def plan_unstored(self, batch: Batch, rows: range, counts: Sequence[int] | None, ready: list[Consumer]) -> Plan:
        """Plan entries of a non-persistent topic; what is not sent is dropped."""
        return self.plan(batch, rows, rows.stop, counts, ready)

    def plan_replay(
        self, batch: Batch, row: int, stop: int, counts: Sequence[int] | None, ready: list[Consumer]
    ) -> Plan:
        """Plan those of the entries `row..stop-1` that wait for redelivery."""
        raise NotImplementedError

    def sent(
        self, consumer: Consumer, entry_ids: Sequence[int], counts: Sequence[int] | None, messages: int
    ) -> None: ...

    def not_sent(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """There was no room for these planned entries."""

    def returned(self, consumer: Consumer, entry_ids: list[int]) -> None:
        """Redeliver entries that were queued for this consumer, but not sent."""
        raise NotImplementedError

    # -- redelivery ---------------------------------------------------------------------------------------------------

    @property
    def has_replay(self) -> bool:
        return False

    @property
    def replay_size(self) -> int:
        return 0

    def next_replay(self, ready: list[Consumer]) -> list[int]:  # noqa: ARG002 - others need to know
        """The next entries to redeliver, ascending; they go before new entries."""
        return []

    def due_room(self, ready: list[Consumer]) -> int:  # noqa: ARG002 - likewise
        """How many due delayed entries these consumers can take."""
        return 0

    def add_replay(self, entry_ids: Iterable[int]) -> None:
        """Add due delayed entries to those that wait for redelivery."""
        raise NotImplementedError

    def redeliver(self, consumer: Consumer, entry_ids: Sequence[int], epoch: int | None) -> int:
        """Redeliver these entries, or if empty, all that the consumer has not acknowledged.

        Returns the number of messages, if consumers acknowledge individually.
        """
        raise NotImplementedError

    def redelivery_counts(self, entry_ids: Sequence[int]) -> list[int] | None:
        """How often each of these entries was delivered before; None if none was."""
        assert entry_ids
        return None

    def missing(self, entry_ids: Iterable[int]) -> None:
        """Remove entries that are not in the log."""

    # -- acknowledged -------------------------------------------------------------------------------------------------

    def acknowledged(
        self,
        consumer: Consumer,
        entry_ids: Sequence[int],  # noqa: ARG002 - others need them
        newly: int,
    ) -> None:
        """Note acknowledged entries; `newly` of them were unacknowledged before."""
        consumer.acks += newly

    def acknowledged_in_part(self, consumer: Consumer, entry_id: int, wanted: int | None) -> None:
        """Some messages of a batch were acknowledged; `wanted` are left, or None if unknown."""

    def acknowledged_through(self, entry_id: int) -> None:
        """All entries up to this one were acknowledged without a consumer: skipped or expired."""

    def acknowledged_elsewhere(self, entry_id: int) -> None:
        """An entry was acknowledged without a consumer: cancelled."""

    def limits_changed(self, unacked_per_consumer: int, unacked_per_subscription: int) -> None:
        """Apply changed limits of unacknowledged messages; 0 for none."""

    # -- for statistics -----------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        """Messages delivered and not acknowledged."""
        return 0

    @property
    def pending(self) -> int:
        """Entries delivered and not acknowledged, if consumers acknowledge individually."""
        return 0

    @property
    def look_ahead(self) -> tuple[int, int]:
        """Entries that are set aside, and their maximum; 0 where none are."""
        return 0, 0

    @property
    def key_sharing_mode(self) -> str | None:
        """The Key_Shared mode, as Pulsar spells it."""
        return None

    @property
    def out_of_order(self) -> bool:
        """Whether messages of a key may be delivered out of order."""
        return False

    def hash_ranges(self) -> dict[Consumer, list[tuple[int, int]]]:
        """The hash ranges of each consumer, both ends inclusive."""
        return {}

    def draining(self, consumer: Consumer) -> list[Draining]:
        """Slots of other consumers of which this one still has unacknowledged messages."""
        del consumer
        return []

    def drained(self, consumer: Consumer) -> int:
        """Number of slots that this consumer has drained since it was attached."""
        del consumer
        return 0
