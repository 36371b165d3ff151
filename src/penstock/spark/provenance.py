# SPDX-License-Identifier: Apache-2.0
"""Where a row was read: the column `__provenance`, by which a write recognises rows that it has written before.

    source     the partition, and the ledger: persistent://public/default/orders-partition-3@17
    position   of the message: its entry, and its place in the batch; grows along the source
    attempt    the attempt of a task that read the row

Theory of operation
    The sink writes the rows of one source under one producer name, with sequence ids that grow with the position. A
    broker that deduplicates then knows each row again, whatever plan, attempt or cluster brings it. That holds only if
    one writer at a time brings all rows of the source, in order: if two tasks had the rows 5 and 7, and 7 were stored
    first, 5 would be taken for a duplicate, and be lost. So the source notes which attempt has read a row. If the same
    attempt writes it, nothing between has shuffled or kept the rows. Rows that have another attempt, or come out of
    order, are written without a number: at least once, and never lost.

Where: `rows` makes the column, `writer` numbers rows by it, `audit` reads the numbers back. Pure.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from penstock.spark.client.messages import Messages

PROVENANCE: Final = "__provenance"
TYPE: Final = spark.StructType(
    [
        spark.StructField("source", spark.StringType()),
        spark.StructField("position", spark.LongType()),
        spark.StructField("attempt", spark.LongType()),
    ]
)
# A sequence id: entry, place in the batch, and number among the rows that were made of one message. A message beyond
# these has no position, and rows beyond them no number: they are written at least once.
ENTRY_BITS: Final = 35
INDEX_BITS: Final = 16
ROW_BITS: Final = 12
_INDEXES: Final = 1 << INDEX_BITS
_ROWS: Final = 1 << ROW_BITS
ENTRY_SHIFT: Final = ROW_BITS + INDEX_BITS
_NAME: Final = re.compile(r"(.*)/((?:non-)?persistent://[^@]+)@(\d+)(?:#(.*))?")


class Origin(NamedTuple):
    """Origin of the rows of one range, as their task knows it.

    Attributes:
        lane: tells ranges of one partition apart that are read by several tasks at a time; empty if there is one.
        attempt: of the task; None if its rows cannot be recognised.
    """

    lane: str = ""
    attempt: int | None = None


class Place(NamedTuple):
    """Place of a row, as in its sequence id."""

    entry_id: int
    batch_index: int
    row: int


def place_of(sequence_id: int) -> Place:
    """Return where the row with this sequence id was read."""
    position, row = divmod(sequence_id, _ROWS)
    return Place(*divmod(position, _INDEXES), row)


def source_of(topic: str, ledger_id: int, lane: str) -> str:
    """Return the name of a source."""
    return f"{topic}@{ledger_id}" + (f"#{lane}" if lane else "")


class Writer(NamedTuple):
    """Parts of a producer's name, which tell the rows that it writes."""

    query: str
    topic: str
    ledger_id: int
    lane: str


def name_of(query: str, source: str) -> str:
    """Return the name of the producers that write the rows of a source."""
    return f"{query}/{source}"


def parse_name(name: str) -> Writer | None:
    """Return what a name says; None for one that no rows with a source are written under."""
    found = _NAME.fullmatch(name)
    return None if found is None else Writer(found[1], found[2], int(found[3]), found[4] or "")


def column(topic: str, origin: Origin, found: Messages, kind: pa.StructType) -> pa.StructArray:
    """Return the column of some messages."""
    ledgers, codes = np.unique(found.ledger_ids, return_inverse=True)
    names = pa.array([source_of(topic, int(one), origin.lane) for one in ledgers], kind.field("source").type)
    indexes = np.maximum(found.batch_indexes, 0)
    beyond = (found.entry_ids >> ENTRY_BITS > 0) | (indexes >= _INDEXES)
    positions = pa.array(found.entry_ids << INDEX_BITS | indexes, pa.int64(), mask=beyond)
    attempts = pa.repeat(pa.scalar(origin.attempt, pa.int64()), len(found))
    return pa.StructArray.from_arrays([names.take(pa.array(codes)), positions, attempts], fields=list(kind))


class Numbered(NamedTuple):
    """Consecutive rows of one source with their sequence ids, or rows without any (`source` is empty)."""

    source: str
    start: int
    stop: int
    sequence_ids: NDArray[np.int64]


class Numbering:
    """Numbers the rows of one task.

    Attributes:
        foreign: rows without a number because another attempt, or an unknown one, has read them.
        disordered: rows without a number because they came behind a later row of their source.
    """

    def __init__(self, attempt: int) -> None:
        self.foreign = self.disordered = 0
        self._attempt = attempt
        self._source = ""
        self._left: set[str] = set()
        self._last = -1
        self._last_position = -1
        self._last_row = -1

    def of(self, column: pa.StructArray) -> Iterator[Numbered]:
        """Number the next rows of the task, in order; runs of one source at a time."""
        count = len(column)
        source, position, attempt = column.flatten()
        known = pc.fill_null(pc.equal(attempt, self._attempt), False)
        known = pc.and_(known, pc.and_(source.is_valid(), position.is_valid())).to_numpy(zero_copy_only=False)
        coded = source.dictionary_encode()
        codes = pc.fill_null(coded.indices, -1).to_numpy()
        positions = pc.fill_null(position, 0).to_numpy()
        edges = np.flatnonzero((np.diff(codes) != 0) | (known[1:] != known[:-1])) + 1
        for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), count], strict=True):
            if start == stop:
                continue
            if not known[start]:
                self.foreign += stop - start
                yield _unnumbered(start, stop)
                continue
            name = coded.dictionary[int(codes[start])].as_py()
            if name in self._left:  # The query has sorted the rows of several sources.
                self.disordered += stop - start
                yield _unnumbered(start, stop)
                continue
            if name != self._source:
                self._left.add(self._source)
                self._source, self._last, self._last_position = name, -1, -1
            yield from self._run(start, positions[start:stop])

    def _run(self, start: int, positions: NDArray[np.int64]) -> Iterator[Numbered]:
        """Number consecutive rows of the current source."""
        ids = (positions << ROW_BITS) + np.minimum(self._rows(positions), _ROWS - 1)
        grows = ids > np.maximum.accumulate(np.append(self._last, ids[:-1]))
        self._last = max(self._last, int(ids.max()))
        edges = np.flatnonzero(np.diff(grows)) + 1
        for first, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(ids)], strict=True):
            if grows[first]:
                yield Numbered(self._source, start + first, start + stop, ids[first:stop])
            else:
                self.disordered += stop - first
                yield _unnumbered(start + first, start + stop)

    def _rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each row's number among consecutive rows of one message."""
        firsts = np.append(True, np.diff(positions) != 0)
        starts = np.flatnonzero(firsts)
        rows = np.arange(len(positions)) - np.repeat(starts, np.diff(np.append(starts, len(positions))))
        if positions[0] == self._last_position:
            until = int(starts[1]) if len(starts) > 1 else len(positions)
            rows[:until] += self._last_row + 1
        self._last_position, self._last_row = int(positions[-1]), int(rows[-1])
        return rows


def _unnumbered(start: int, stop: int) -> Numbered:
    return Numbered("", start, stop, np.zeros(0, np.int64))
