# SPDX-License-Identifier: Apache-2.0
"""Spark's two ways to write: a batch once, or a stream micro-batch by micro-batch, both as Arrow columns.

    df.write.format("pulsar").mode("append").option("service.url", …).option("topic", …).save()
    df.writeStream.format("pulsar").option(…).option("checkpointLocation", …).start()

**How often a row arrives.** At least once: a task that fails is run again from its first row. Exactly once where the
topic deduplicates and the task can be recognised: those of a stream by query, micro-batch and number, those of a batch
if the option `pulsar.producer.producerName` names the job. The rows must then come in the same order when they come
again, which they do as long as nothing before the write shuffles them anew.
Where: Spark pickles a writer and calls `write` in each task, on whichever machine; there is nothing to commit, since a
task that has returned has all its receipts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.core.names import TopicName
from penstock.net.clock import SystemClock
from penstock.spark.client.cluster import Cluster
from penstock.spark.options import BINARY
from penstock.spark.task_writer import Identity, TaskWriter
from penstock.spark.value_formats import format_of
from penstock.spark.write_columns import TOPIC, UnwritableColumns, WriteColumns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.value_formats import ValueFormat
    from penstock.spark.write_options import WriteOptions

# Sequence ids of a micro-batch: its number above, the row's place below. Both sides are far from what queries reach.
ROWS_BITS: Final = 32
BATCH_IDS_MAX: Final = 1 << 63 - ROWS_BITS
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task for the driver."""

    rows: int


class Overwrite(ValueError):
    """Topics can only be appended to."""

    def __init__(self) -> None:
        super().__init__(
            "a topic cannot be overwritten: write with mode('append'), or outputMode('append') or ('update') for a "
            "stream; to begin anew, write to a new topic"
        )


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._rows = _Rows(schema, options, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows. Raises UnwritableColumns, ClientError."""
        partition_id = _task().partitionId()
        name = self._rows.options.producer_name
        return self._rows.write(iterator, Identity(name=f"{name}-{partition_id}" if name else "", turn=partition_id))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        self._rows = _Rows(schema, options, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows of one micro-batch. Raises UnwritableColumns, ClientError."""
        task = _task()
        batch_id, query_id = task.getLocalProperty(_BATCH_ID), task.getLocalProperty(_QUERY_ID)
        assert batch_id is not None, "Spark did not say which micro-batch this is"
        assert int(batch_id) < BATCH_IDS_MAX, batch_id
        name = self._rows.options.producer_name or f"spark-{query_id}"
        identity = Identity(
            name=f"{name}-{task.partitionId()}",
            first_sequence_id=int(batch_id) << ROWS_BITS,
            turn=int(batch_id) + task.partitionId(),
        )
        return self._rows.write(iterator, identity)


class _Rows:
    """The common part of both writers."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise Overwrite
        self.options = options
        self._columns = WriteColumns(schema)
        if not options.topic and not self._columns.has_topic:
            raise UnwritableColumns(f"it is not said where to write to: give the option topic, or a column {TOPIC}")
        if options.topic and options.value_format != BINARY:
            # On the driver, before any task: a mistake costs no messages.
            with Cluster(options.endpoint) as cluster:
                format_of(options.topic, self._columns.value, cluster.schema(options.topic), options.value_format)

    def write(self, batches: Iterator[pa.RecordBatch], identity: Identity) -> Written:
        clock = SystemClock()
        with TaskWriter(Cluster(self.options.endpoint), self.options.sending, identity) as outlets:
            formats: dict[str, ValueFormat] = {}
            for batch in batches:
                for topic, rows in self._by_topic(batch):
                    how = formats.get(topic)
                    if how is None:
                        how = formats[topic] = self._format(topic, outlets)
                    encoded = how.encoded(self._columns.values(rows))
                    outlets.send(topic, self._columns.messages(rows, encoded, now_ms=clock.wall_ms()), how.schema)
        return Written(outlets.rows)

    def _format(self, topic: str, outlets: TaskWriter) -> ValueFormat:
        wanted = self.options.value_format
        present = None if wanted == BINARY else outlets.schema(topic)
        return format_of(topic, self._columns.value, present, wanted)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Return the rows of a batch for each topic, in their order."""
        if not batch.num_rows:
            return
        if self.options.topic:
            yield self.options.topic, batch
            return
        coded = self._columns.topics(batch).dictionary_encode()
        if coded.null_count:
            raise UnwritableColumns(f"column {TOPIC} is null in some rows: fill it, or give the option topic")
        for index, topic in enumerate(coded.dictionary.to_pylist()):
            rows = pc.indices_nonzero(pc.equal(coded.indices, index))
            yield str(TopicName.parse(topic)), batch.take(rows)


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "called outside a task"
    return task
