# SPDX-License-Identifier: Apache-2.0
"""Offsets of a stream: the next message id of each partition, as self-contained JSON.

    {"persistent://public/default/t-partition-0": [ledger, entry, batch index], …}

Why self-contained: Spark replays a batch from its checkpoint without asking for its offsets. Where: the stream reader
gives them to Spark; budgets limit a batch. Pure: nothing here asks a broker.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.spark.client.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# By full name of a partition, or of a topic without any.
Offsets: TypeAlias = dict[str, MessageId]

# A task costs some 30 ms: as long as to read so many messages. Partitions with fewer share tasks.
TASK_MESSAGES_MIN: Final = 10_000


class TopicRange(NamedTuple):
    """Messages of one partition, from `start` up to `end`."""

    topic: str
    start: MessageId
    end: MessageId


def to_json(offsets: Mapping[str, MessageId]) -> dict[str, list[int]]:
    """Return the text for Spark's checkpoint; topics are sorted, so that equal offsets are equal text."""
    return {topic: list(offsets[topic]) for topic in sorted(offsets)}


def from_json(said: Mapping[str, object]) -> Offsets:
    """Parse a checkpoint's offsets.

    Raises:
        ValueError: they are not from this source; a checkpoint belongs to one source.
    """
    found: Offsets = {}
    for topic, place in said.items():
        if not (isinstance(place, list) and len(place) == 3 and all(type(part) is int for part in place)):
            raise ValueError(
                f"offsets of {topic} are {place!r}, and ours are [ledger, entry, batch index]; the checkpoint belongs "
                "to another source: use a new checkpointLocation"
            )
        found[topic] = MessageId(*place)
    return found


def entries_between(start: MessageId, end: MessageId) -> int:
    """Return how many entries a range has according to its ids; at least 1 if it may have any."""
    if end <= start:
        return 0
    first = start.entry_id if start.ledger_id == end.ledger_id else 0
    return max(1, end.entry_id - first + bool(end.batch_index))


def shares(budget: int, backlogs: Mapping[str, int]) -> dict[str, int]:
    """Divide a budget in proportion to backlogs; no partition gets more than its backlog, and nothing is left over.

    Args:
        budget: in messages or bytes.
        backlogs: by partition, in the same unit or a similar one.

    Returns:
        A share for each; their sum is the budget, or the sum of the backlogs if that is less.
    """
    total = sum(backlogs.values())
    if total <= budget:
        return dict(backlogs)
    found = {topic: budget * waiting // total for topic, waiting in backlogs.items()}
    left = budget - sum(found.values())
    # What rounding left over goes where most was cut off; equal ones in the order of their names.
    order = sorted(backlogs, key=lambda topic: (-(budget * backlogs[topic] % total), topic))
    for topic in order[:left]:
        found[topic] += 1
    return found


def split(start: MessageId, end: MessageId, parts: int) -> list[tuple[MessageId, MessageId]]:
    """Split a range into parts of about the same number of entries."""
    entries = entries_between(start, end)
    if parts <= 1 or start.ledger_id != end.ledger_id or entries < parts:
        return [(start, end)]
    inner = [MessageId(start.ledger_id, start.entry_id + entries * part // parts) for part in range(1, parts)]
    edges = [start, *inner, end]
    return list(pairwise(edges))


def packed(
    ranges: Sequence[TopicRange],
    messages: Mapping[str, int],
    *,
    tasks_min: int = 1,
    task_messages_max: int | None = None,
) -> list[list[TopicRange]]:
    """Distribute ranges over tasks.

    Args:
        ranges: at most one for each partition; all that is to be read.
        messages: about how many messages the range of each partition has.
        tasks_min: large ranges are split, to have at least so many tasks.
        task_messages_max: split ranges with more messages, and let no task have more, as far as these are known.

    Returns:
        The ranges of each task. Those with few messages share tasks, and all tasks have about as many messages.
    """
    if not ranges:
        return []
    total = sum(messages[one.topic] for one in ranges) or 1
    share = max(1, min(TASK_MESSAGES_MIN, total // tasks_min, task_messages_max or TASK_MESSAGES_MIN))
    pieces: list[tuple[int, TopicRange]] = []
    for one in ranges:
        held = messages[one.topic]
        parts = -(-tasks_min * held // total) if tasks_min > 1 else 1
        if task_messages_max is not None:
            parts = max(parts, -(-held // task_messages_max))
        cut = split(one.start, one.end, parts)
        pieces += [(-(-held // len(cut)), TopicRange(one.topic, *edges)) for edges in cut]
    alone = [[piece] for held, piece in pieces if held >= share]
    small = sorted((-held, piece) for held, piece in pieces if held < share)
    if not small:
        return alone
    bins = max(1, min(len(small), -(sum(held for held, _ in small)) // share), min(len(small), tasks_min - len(alone)))
    tasks: list[tuple[int, int, list[TopicRange]]] = [(0, number, []) for number in range(bins)]
    for held, piece in small:  # The largest first, each to the task with the fewest messages.
        had, number, task = heappop(tasks)
        task.append(piece)
        heappush(tasks, (had - held, number, task))
    return alone + [task for _, _, task in sorted(tasks, key=itemgetter(1)) if task]
