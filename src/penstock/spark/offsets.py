# SPDX-License-Identifier: Apache-2.0
"""Offsets of a stream: the next message id of each partition, as self-contained JSON.

    {"persistent://public/default/t-partition-0": [ledger, entry, batch index], …,
     "plan": {"messages": {"persistent://…": about how many, …}, "cuts": {"persistent://…": [[ledger, entry], …]}}}

Why self-contained: Spark replays a batch from its checkpoint without asking for its offsets, by a driver that knows
nothing yet, perhaps on another cluster. The batch must have the same tasks then. So the end of a batch says, too, where
its ranges are cut, and how many messages each of them is taken to have.
Where: the stream reader gives them to Spark; budgets limit a batch. Pure: nothing here asks a broker.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from penstock.spark.client.message_id import EARLIEST, MessageId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# By full name of a partition, or of a topic without any.
Offsets: TypeAlias = dict[str, MessageId]

# What the end of a batch says beside its topics; no full name of a topic.
PLAN: Final = "plan"

# A task costs some 30 ms: as long as to read so many messages. Partitions with fewer share tasks.
TASK_MESSAGES_MIN: Final = 10_000
# For a partition about which nothing is known: a few messages an entry.
MESSAGES_PER_ENTRY: Final = 20


class TopicRange(NamedTuple):
    """Messages of one partition, from `start` up to `end`.

    Attributes:
        lane: tells ranges of one partition apart in a batch; empty for the first.
    """

    topic: str
    start: MessageId
    end: MessageId
    lane: str = ""


class Segment(NamedTuple):
    """A part of a range that lies in one ledger: its first entry, and how many there are."""

    start: MessageId
    entries: int


class Plan(NamedTuple):
    """How the ranges of a batch become tasks.

    Attributes:
        messages: about how many each range has.
        cuts: where a range is cut into several, if it is.
    """

    messages: dict[str, int]
    cuts: dict[str, list[MessageId]]


def to_json(offsets: Mapping[str, MessageId], plan: Plan | None = None) -> dict[str, Any]:
    """Return the text for Spark's checkpoint; topics are sorted, so that equal offsets are equal text."""
    said: dict[str, Any] = {topic: list(offsets[topic]) for topic in sorted(offsets)}
    if plan is not None:
        cuts = {topic: [list(place[:2]) for place in places] for topic, places in sorted(plan.cuts.items())}
        said[PLAN] = {"messages": dict(sorted(plan.messages.items()))} | ({"cuts": cuts} if cuts else {})
    return said


def plan_in(said: Mapping[str, Any], start: Offsets) -> Plan:
    """Return the plan of a batch that ends there. Offsets of earlier versions have none."""
    plan = said.get(PLAN, {})
    messages: dict[str, int] = plan.get("messages", {})
    unsaid = {
        topic: MESSAGES_PER_ENTRY * entries_between(start.get(topic, EARLIEST), stop)
        for topic, stop in from_json(said).items()
        if topic not in messages
    }
    cuts = {topic: [MessageId(*place) for place in places] for topic, places in plan.get("cuts", {}).items()}
    return Plan(messages | unsaid, cuts)


def from_json(said: Mapping[str, object]) -> Offsets:
    """Parse a checkpoint's offsets.

    Raises:
        ValueError: they are not from this source; a checkpoint belongs to one source.
    """
    found: Offsets = {}
    for topic, place in said.items():
        if topic == PLAN:
            continue
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


def is_counted(start: MessageId, end: MessageId) -> bool:
    """Return whether ids tell how many entries a range has: it is empty, or lies in one ledger."""
    return end <= start or start.ledger_id == end.ledger_id


def segments_by_ids(start: MessageId, end: MessageId) -> list[Segment]:
    """Return the segments of a range as far as ids tell: none if it begins in another ledger than it ends in."""
    return [Segment(start, entries_between(start, end))] if start.ledger_id == end.ledger_id else []


def cuts_in(segments: Sequence[Segment], parts: int) -> list[MessageId]:
    """Return where a range is cut into parts of about the same number of entries."""
    entries = sum(one.entries for one in segments)
    if parts <= 1 or entries < parts:
        return []
    edges = [0, *accumulate(one.entries for one in segments)]
    found = []
    for part in range(1, parts):
        place = entries * part // parts
        number = bisect_right(edges, place) - 1
        start = segments[number].start
        found.append(MessageId(start.ledger_id, start.entry_id + place - edges[number]))
    return found


def cuts_of(
    ranges: Sequence[TopicRange],
    messages: Mapping[str, int],
    segments: Mapping[str, Sequence[Segment]] | None = None,
    *,
    tasks_min: int = 1,
    task_messages_max: int | None = None,
) -> dict[str, list[MessageId]]:
    """Return where ranges are cut into several, those that are.

    Args:
        ranges: at most one for each partition; all that is to be read.
        messages: about how many messages the range of each partition has.
        segments: of ranges with several ledgers; without them, such a range is not cut.
        tasks_min: so many ranges are wanted.
        task_messages_max: none is to have more messages, as far as these are known.
    """
    total = sum(messages[one.topic] for one in ranges) or 1
    found = {}
    for one in ranges:
        held = messages[one.topic]
        parts = -(-tasks_min * held // total) if tasks_min > 1 else 1
        if task_messages_max is not None:
            parts = max(parts, -(-held // task_messages_max))
        known = (segments or {}).get(one.topic) or segments_by_ids(one.start, one.end)
        if cuts := cuts_in(known, parts):
            found[one.topic] = cuts
    return found


def packed(
    ranges: Sequence[TopicRange], plan: Plan, *, tasks_min: int = 1, task_messages_max: int | None = None
) -> list[list[TopicRange]]:
    """Distribute ranges over tasks.

    Args:
        ranges: at most one for each partition; all that is to be read.
        plan: where they are cut, and about how many messages they have.
        tasks_min: at least so many tasks are wanted.
        task_messages_max: ranges that have together more messages share no task.

    Returns:
        The ranges of each task, in their order. Those with few messages share tasks, and all tasks have about as many
        messages.
    """
    if not ranges:
        return []
    messages = plan.messages
    total = sum(messages[one.topic] for one in ranges) or 1
    share = max(1, min(TASK_MESSAGES_MIN, total // tasks_min, task_messages_max or TASK_MESSAGES_MIN))
    pieces: list[tuple[int, TopicRange]] = []
    for one in ranges:
        edges = [one.start, *plan.cuts.get(one.topic, ()), one.end]
        held = -(-messages[one.topic] // (len(edges) - 1))
        pieces += [
            (held, TopicRange(one.topic, *pair, str(number) if number else ""))
            for number, pair in enumerate(pairwise(edges))
        ]
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
    return alone + [sorted(task) for _, _, task in sorted(tasks, key=itemgetter(1)) if task]
