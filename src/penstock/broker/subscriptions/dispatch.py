# SPDX-License-Identifier: Apache-2.0
"""Dispatch decisions of the subscription types, as pure functions.

Why: permits, priorities and turns are easy to get subtly wrong and easy to state as properties. So nothing here reads,
writes or remembers: an entry is an index into a run, a consumer is an index into the subscription's list.
Where: a subscription calls these with a run of entries to deliver and carries out the returned plan.

Permits are counted in messages while delivery is counted in entries: an entry is never split, so the last entry given
to a consumer may make its balance negative, and a consumer without positive balance gets nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.core.hashing import sticky_hash, sticky_hashes
from penstock.wire.varints import LOW_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """What decides which consumer of a Failover subscription is active."""

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
