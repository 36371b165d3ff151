# SPDX-License-Identifier: Apache-2.0
"""Where messages of a topic are at the cluster to which it was replicated, and what has to be acknowledged there.

Why read them: a cluster gives messages ids of its own. Each replicated entry says in a property where it was stored
before (docs/adr/0126), so that reading the copy maps exactly, whoever was killed on the way, and nothing has to be
kept. Where: `penstock migrate`.

A copy that was stored twice, because the line was cut before its receipt, is found by the same property. It is
acknowledged for every subscription, so that nobody gets it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote_plus

from penstock.cli.exits import CommandFailed
from penstock.core.names import COMPACTION_SUBSCRIPTION, REPLICATOR_PREFIX
from penstock.core.position import Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# The property of a replicated entry that says where it was stored, as in Apache Pulsar.
SOURCE_PROPERTY: Final = "__MSG_PROP_REPL_SOURCE_POSITION"
_RANGE: Final = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


class _Run(NamedTuple):
    """Entries that follow each other here and there."""

    first: int  # here
    ledger_id: int  # there
    entry_id: int  # there, of the first one
    length: int


@dataclass(slots=True)
class Places:
    """Which entry of one ledger here is which one there; entries that were not replicated are in none."""

    second_copies: list[Position] = field(default_factory=list)
    _runs: list[_Run] = field(default_factory=list)
    last: int = -1  # the last entry here that is known

    def add(self, entry_id: int, there: Position) -> None:
        """Note an entry; they come in the order in which they are stored there."""
        if entry_id <= self.last:
            self.second_copies.append(there)
            return
        self.last = entry_id
        run = self._runs[-1] if self._runs else None
        if (
            run is not None
            and entry_id == run.first + run.length
            and there == (run.ledger_id, run.entry_id + run.length)
        ):
            self._runs[-1] = run._replace(length=run.length + 1)
        else:
            self._runs.append(_Run(entry_id, there.ledger_id, there.entry_id, 1))

    def through(self, entry_id: int) -> Position | None:
        """Return where the last entry up to this one is; None if there is none."""
        at = bisect_right(self._runs, entry_id, key=lambda run: run.first) - 1
        if at < 0:
            return None
        run = self._runs[at]
        return Position(run.ledger_id, run.entry_id + min(entry_id - run.first, run.length - 1))

    def within(self, first: int, last: int) -> Iterator[Position]:
        """Yield where the entries from `first` to `last` are."""
        at = max(0, bisect_right(self._runs, first, key=lambda run: run.first) - 1)
        for run in self._runs[at:]:
            if run.first > last:
                return
            for entry_id in range(max(first, run.first), min(last, run.first + run.length - 1) + 1):
                yield Position(run.ledger_id, run.entry_id + entry_id - run.first)


class Marks(NamedTuple):
    """Acknowledgements of a subscription: all entries up to one, and ranges behind it."""

    through: int
    ranges: tuple[tuple[int, int], ...]  # first and last entry of each

    @classmethod
    def of(cls, cursor: Mapping[str, Any]) -> Marks:
        """Read them from a cursor of a topic's internal statistics."""
        ranges = [
            (int(before) + 1, int(last))
            for _, before, _, last in _RANGE.findall(str(cursor["individuallyDeletedMessages"]))
        ]
        return cls(entry_of(cursor["markDeletePosition"]), tuple(ranges))

    def without(self, done: Marks, *, through: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of ranges that are not among those of `done`, of which only entries up to `through` count."""
        covered = [(first, min(last, through)) for first, last in done.ranges if first <= through]
        for start, last in self.ranges:
            first = start
            for done_first, done_last in covered:
                if done_last < first or done_first > last:
                    continue
                if done_first > first:
                    yield first, done_first - 1
                first = done_last + 1
            if first <= last:
                yield first, last


class Topic(NamedTuple):
    """State of a topic here, at one moment, from its internal statistics."""

    ledger_id: int
    last: int  # the last entry; -1: none
    rests: bool  # held: without clients, and nothing under way
    replicated: int | None  # the last entry that has arrived there; None: it is not replicated
    cursors: Mapping[str, Marks]  # of subscriptions

    @classmethod
    def of(cls, stats: Mapping[str, Any], label: str) -> Topic:
        """Read it. Args: label: of the cluster there."""
        # Readers have cursors, too, and know themselves where they are.
        durable = {unquote_plus(name): one for name, one in stats["cursors"].items() if one["state"] != "NoLedger"}
        cursors = {name: Marks.of(one) for name, one in durable.items() if name != COMPACTION_SUBSCRIPTION}
        copied = cursors.get(f"{REPLICATOR_PREFIX}{label}")
        return cls(
            int(str(stats["lastConfirmedEntry"]).partition(":")[0]),
            entry_of(stats["lastConfirmedEntry"]),
            stats["state"] == "Fenced",
            None if copied is None else copied.through,
            {name: marks for name, marks in cursors.items() if not name.startswith(REPLICATOR_PREFIX)},
        )

    @property
    def behind(self) -> int:
        """How many entries have not arrived there."""
        return self.last - (-1 if self.replicated is None else self.replicated)

    def oldest(self) -> int:
        """The first entry that a subscription needs; without subscriptions, any."""
        return min((marks.through + 1 for marks in self.cursors.values()), default=0)


def entry_of(position: object) -> int:
    """Return the entry id of a position as text."""
    return int(str(position).rpartition(":")[2])


def source_of(properties: Iterable[Any], ledger_id: int, topic: str) -> int:
    """Return the entry here of which an entry there is a copy. Raises CommandFailed."""
    for pair in properties:
        if pair.key == SOURCE_PROPERTY:
            ledger, _, entry = pair.value.partition(":")
            if ledger == str(ledger_id):
                return int(entry)
            raise CommandFailed(
                f"{topic} has a message there of ledger {ledger}, and here its ledger is {ledger_id}: the topic was "
                f"deleted and created again; delete the one there, and start once more"
            )
    raise CommandFailed(
        f"{topic} has messages there that were published there, so places cannot be carried over: delete the topic "
        f"there, or leave its namespace out"
    )
