# SPDX-License-Identifier: Apache-2.0
"""Offsets of a stream: the next message id of each partition, as self-contained JSON.

    {"persistent://public/default/t-partition-0": [ledger, entry, batch index], …}

Why self-contained: Spark replays a batch from its checkpoint without asking for its offsets. Where: the stream reader
gives them to Spark; budgets limit a batch. Pure: nothing here asks a broker.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from penstock.spark.client.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Mapping

# By full name of a partition, or of a topic without any.
Offsets: TypeAlias = dict[str, MessageId]


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
