# SPDX-License-Identifier: Apache-2.0
"""How a limit of messages and bytes is divided among partitions. Pure: a `Meter` knows the partitions.

Why by messages: partitions whose share were counted in entries would advance at different speeds when their batches are
of different sizes, and run apart in event time, until a watermark drops the rows of those behind. In proportion to what
each still holds, all reach their ends together, as with Kafka's source.
Where: the planner, for each micro-batch with a limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.spark.offsets import shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What one partition does not need goes to the others in the next round. A round leaves a small part of the one before.
ROUNDS_MAX: Final = 16
# Parts of a limit that are given to the partition with the oldest message, one after another, for each partition.
SLICES_PER_PARTITION: Final = 4
UNLIMITED: Final = 2**62


class Room(NamedTuple):
    """How far one partition may advance."""

    messages: int
    bytes: int | None = None
    at_least_one: bool = False  # entry, even if it is larger


class Used(NamedTuple):
    """How far it did."""

    messages: int = 0
    bytes: int = 0


class Meter(Protocol):
    """Partitions that are advanced towards their ends, by message ids that only it knows."""

    def waiting(self) -> dict[str, Used]:
        """Return how many messages and bytes partitions still hold, estimated; only those that hold any, at least 1."""

    def advance(self, rooms: Mapping[str, Room]) -> dict[str, Used]:
        """Advance partitions, none further than its room."""

    def heads(self, topics: Iterable[str]) -> dict[str, int]:
        """Return when the next message of each was published, in ms since 1970."""


def spend(meter: Meter, messages_max: int | None, bytes_max: int | None) -> None:
    """Advance all partitions within both limits, in proportion to the messages that each still holds."""
    messages, nbytes = UNLIMITED if messages_max is None else messages_max, bytes_max
    moved = False
    for _ in range(ROUNDS_MAX):
        waiting = meter.waiting()
        if not waiting or messages <= 0 or (nbytes is not None and nbytes <= 0):
            return
        used = meter.advance(_rooms(waiting, messages, nbytes))
        taken = sum(one.messages for one in used.values())
        if not taken:
            if moved:
                return
            # No entry fits its share of the bytes. One is always taken, or the stream would stand still.
            largest = max(sorted(waiting), key=lambda topic: waiting[topic].bytes)
            used = meter.advance({largest: Room(messages, nbytes, at_least_one=True)})
            taken = sum(one.messages for one in used.values())
            if not taken:
                return
        moved = True
        messages -= taken
        nbytes = None if nbytes is None else nbytes - sum(one.bytes for one in used.values())


def spend_on_oldest(meter: Meter, messages_max: int | None, bytes_max: int | None) -> None:
    """Advance the partition whose next message is the oldest by publish time, by a slice of the limit; then again.

    Partitions are then apart by no more than a slice, also if their messages were published at different speeds, or one
    was added later. Each slice is a question to the broker, or a read.
    """
    waiting = meter.waiting()
    slices = SLICES_PER_PARTITION * max(1, len(waiting))
    messages, nbytes = UNLIMITED if messages_max is None else messages_max, bytes_max
    part = -(-messages // slices) if messages_max is not None else UNLIMITED
    bytes_part = None if nbytes is None else -(-nbytes // slices)
    heads = meter.heads(waiting)
    moved = False
    while heads and messages > 0 and (nbytes is None or nbytes > 0):
        oldest = min(heads, key=lambda topic: (heads[topic], topic))
        room = None if nbytes is None or bytes_part is None else min(nbytes, bytes_part)
        used = meter.advance({oldest: Room(min(part, messages), room, at_least_one=not moved)})[oldest]
        moved = moved or used.messages > 0
        messages -= used.messages
        nbytes = None if nbytes is None else nbytes - used.bytes
        del heads[oldest]
        if used.messages and oldest in meter.waiting():
            heads |= meter.heads([oldest])


def _rooms(waiting: Mapping[str, Used], messages: int, nbytes: int | None) -> dict[str, Room]:
    parts = _divided(messages, {topic: one.messages for topic, one in waiting.items()})
    if nbytes is None:
        return {topic: Room(part) for topic, part in parts.items() if part}
    bytes_parts = _divided(nbytes, {topic: one.bytes for topic, one in waiting.items()})
    return {topic: Room(part, bytes_parts[topic]) for topic, part in parts.items() if part}


def _divided(budget: int, waiting: Mapping[str, int]) -> dict[str, int]:
    """Divide a budget in proportion. The rest is divided equally: more may wait than is thought."""
    parts = shares(budget, waiting)
    spare = (budget - sum(parts.values())) // len(parts)
    return {topic: part + spare for topic, part in parts.items()}
