# SPDX-License-Identifier: Apache-2.0
"""A stream of Spark's that costs nothing: numbered event times, in micro-batches of so many rows.

Why: what a limited stream reaches is mostly decided by what Spark itself does in each micro-batch: plans, tasks, state,
files of the checkpoint. The ratio to a source that does nothing else says what is ours to make faster.
Where: `benchmarks.spark_streams`, beside each aggregation of a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

NAME: Final = "freestream"
# As many tasks as the source of topics makes: one for so many rows, and not more than there are partitions.
TASK_ROWS: Final = 10_000
_BATCH_ROWS: Final = 4_096
_START_US, _SPAN_US = 1_700_000_000_000_000, 3_600_000_000


class FreeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows from 0 up to the option `rows`, at most `limit` in a micro-batch, in at most `partitions` tasks."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.rows, self.limit, self.partitions_max = (int(options[name]) for name in ("rows", "limit", "partitions"))
        self.schema = schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- these are Spark's names
        """The first row."""
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option, if there is a limit."""
        return ReadMaxRows(self.limit) if self.limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All rows are there from the beginning."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the limit allows."""
        return {"row": min(self.rows, start["row"] + limit.max_rows if isinstance(limit, ReadMaxRows) else self.rows)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Equal parts."""
        first, rows = start["row"], end["row"] - start["row"]
        tasks = max(1, min(self.partitions_max, rows // TASK_ROWS))
        edges = [first + rows * index // tasks for index in range(tasks + 1)]
        return [InputPartition((edges[index], edges[index + 1])) for index in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Null keys, and times that are made at once."""
        import numpy as np
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self.schema, timezone="UTC")
        first, stop = partition.value
        for row in range(first, stop, _BATCH_ROWS):
            numbers = np.arange(row, min(stop, row + _BATCH_ROWS))
            times = pa.array(_START_US + numbers * _SPAN_US // self.rows, pa.int64()).cast(schema[1].type)
            yield pa.RecordBatch.from_arrays([pa.nulls(len(numbers), pa.binary()), times], schema=schema)


class FreeStream(DataSource):
    """The source."""

    @classmethod
    def name(cls) -> str:
        """As `format` knows it."""
        return NAME

    def schema(self) -> str:
        """Of the same types as the columns that are read of a topic."""
        return "__key binary, __eventTime timestamp"

    def streamReader(self, schema: StructType) -> FreeStreamReader:  # noqa: N802
        """With the options."""
        return FreeStreamReader(dict(self.options), schema)
