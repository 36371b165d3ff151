# SPDX-License-Identifier: Apache-2.0
"""Tables of records made in this process, without Spark's virtual machine.

A small day takes seconds, one of 10,000 topics minutes.

What reads the records, what finds the differences and what writes the tables are the functions that Spark calls; this
module calls them instead. What Spark's checkpoint knows is in the notes of `batch_state`: until where a micro-batch
reads is noted before it begins, and where the next one begins when it is done. So a process that is killed repeats the
same micro-batch, and the durable subscription follows when it is done.

Where: `penstock spark account --engine arrow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.accounting.closing import ABSENT_AFTER_MS
from penstock.accounting.records import DecisionRecord, UsageRecord, meanings_of
from penstock.spark.accounting.batch_state import BatchState, alone, counts_of
from penstock.spark.accounting.batches import GOVERNANCE, USAGE, Batches
from penstock.spark.accounting.derived_arrow import ArrowDeriving
from penstock.spark.accounting.differing_columns import find
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.records_source import CORRUPT, READ
from penstock.spark.accounting.refreshing import refresh
from penstock.spark.accounting.schemas import TYPES
from penstock.spark.accounting.store import open_store
from penstock.spark.source import PulsarDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.accounting.tables import PriceList
    from penstock.spark.accounting.directory import Directory
    from penstock.spark.accounting.records_source import Source

Rows = Any  # pyarrow.Table; pyarrow has no types

# In the place of the identifier of Spark's query.
QUERY: Final = "arrow"
RECORDS_PER_BATCH: Final = 200_000
_MEANINGS: Final = {USAGE: meanings_of(UsageRecord), GOVERNANCE: meanings_of(DecisionRecord)}


@dataclass(frozen=True, kw_only=True)
class ArrowAccounting:
    """Makes tables of records. One process at a time may write the tables of a directory.

    Attributes:
        tables: the directory: a path, or a URL that Arrow's file systems or fsspec can write.
        kind: `parquet` or `delta`.
        records_per_batch: of a micro-batch; all of it is in memory, some 3 KiB a record.
        absent_after_ms: a broker that is this far behind the others is not waited for.
    """

    source: Source
    tables: Path | str
    kind: str = "parquet"
    records_per_batch: int = RECORDS_PER_BATCH
    absent_after_ms: int = ABSENT_AFTER_MS

    @cached_property
    def directory(self) -> Directory:
        """Where the tables are. Raises ConfigurationError: there is no driver for its URL."""
        return directory_of(self.tables)

    def run_once(self) -> dict[str, dict[str, int]]:
        """Read all records that there are; return what was counted so far, by kind of records.

        Raises:
            ConfigurationError: the tables cannot be written, or belong to another checkpoint.
            ClientError: brokers cannot be reached, or records are missing; the next run goes on where it was.
        """
        with alone(self.directory):
            for kind in self.source.present():
                self._read(kind)
            return counts_of(self.directory, self.source.topics)

    def refresh(self, *, prices: PriceList | None = None, strict_prices: bool = False) -> list[str]:
        """Make derived tables anew for the days that have changed; return these. Raises ConfigurationError."""
        with alone(self.directory):
            store = open_store(self.directory, self.kind)
            return refresh(ArrowDeriving(store), store, prices=prices, strict_prices=strict_prices)

    def _read(self, kind: str) -> None:
        state = BatchState(self.directory, kind)
        batches = Batches(kind, state, open_store(self.directory, self.kind), self.absent_after_ms)
        for batch, end, records in self._micro_batches(kind, state):
            state.offsets = end
            if kind == USAGE:
                batches.add_usage(batch, find(records, state.highest()))
            else:
                batches.add_decisions(batch, records)

    def _micro_batches(self, kind: str, state: BatchState) -> Iterator[tuple[int, dict[str, Any], Rows]]:
        """Yield the number, the end and the records of each micro-batch; each is done when the next is asked for."""
        source = PulsarDataSource(self.source.read_options(kind, self.records_per_batch))
        reader = source.streamReader(source.schema())
        limit = reader.getDefaultReadLimit()
        try:
            reader.prepareForTriggerAvailableNow()
            while True:
                batch = state.batch + 1
                start = reader.initialOffset() if state.offsets is None else state.offsets
                end = state.planned(batch)
                if end is None:
                    end = reader.latestOffset(start, limit)
                    if end == start:
                        return
                    state.plan(batch, end)
                assert state.begins(batch, QUERY), "its number follows"
                read = [one for task in reader.partitions(start, end) for one in reader.read(task)]
                yield batch, end, as_given(read, kind)
        finally:
            reader.stop()


def as_given(batches: list[Any], kind: str) -> Rows:
    """Return what the source has read, as `differing` and `batches` take it; fields that are not there are null."""
    names = (*READ[kind], "__topic")
    meanings = _MEANINGS[kind]
    types = {name: TYPES[meanings[name].type.rstrip("?")] if name in meanings else pa.string() for name in names}
    if not batches:
        empty = {name: pa.array([], of_type) for name, of_type in types.items()}
        return pa.table({**empty, "published_ms": pa.array([], pa.int64()), "broken": pa.array([], pa.bool_())})
    read = pa.Table.from_batches(batches)
    columns = {
        name: read[name].cast(of_type) if name in read.column_names else pa.nulls(read.num_rows, of_type)
        for name, of_type in types.items()
    }
    published = read["__publishTime"].cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return pa.table({**columns, "published_ms": published, "broken": pc.is_valid(read[CORRUPT])})
