# SPDX-License-Identifier: Apache-2.0
"""Spark's two ways to write: a batch once, or a stream micro-batch by micro-batch, both as Arrow columns.

    df.write.format("pulsar").mode("append").option("service.url", …).option("topic", …).save()
    df.writeStream.format("pulsar").option(…).option("checkpointLocation", …).start()

**How often a row arrives.** At least once: a task that fails is run again from its first row. Exactly once where the
topic deduplicates and the row can be recognised: by the column `__provenance` of a read, under a name for the query, or
for a batch under the option `pulsar.producer.producerName`. Rows without that column are recognised by their order, if
that option is given: it promises that the same tasks bring the same rows in the same order again.
Where: Spark pickles a writer and calls `write` in each task, on whichever machine; there is nothing to commit, since a
task that has returned has all its receipts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.core.names import TopicName
from penstock.net.clock import SystemClock
from penstock.spark.client.cluster import Cluster
from penstock.spark.key_value_format import PairFormat
from penstock.spark.options import BINARY
from penstock.spark.provenance import Numbering, name_of
from penstock.spark.task_writer import Identity, TaskWriter
from penstock.spark.value_formats import format_of
from penstock.spark.write_columns import TOPIC, UnwritableColumns, WriteColumns
from penstock.wire.codec import Schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.client.cluster import TopicSchema
    from penstock.spark.value_formats import ValueFormat
    from penstock.spark.write_options import WriteOptions

# Sequence ids of a micro-batch: its number above, the row's place below. Both sides are far from what queries reach.
ROWS_BITS: Final = 32
BATCH_IDS_MAX: Final = 1 << 63 - ROWS_BITS
_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_log: Final = logging.getLogger(__name__)
AT_LEAST_ONCE: Final = (
    "rows of this stream are written at least once: a task that is repeated writes its rows again. For exactly once on "
    "topics with deduplication, read with the option provenance=true, and keep the column __provenance up to the write"
)
UNNUMBERED: Final = (
    "%d of %d rows are written at least once, because where they were read does not identify them: %d were not read by "
    "the task that writes them (they were shuffled or cached), %d came out of order"
)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of a task for the driver.

    Attributes:
        rows: how many were written.
        foreign: those without a number because another attempt, or an unknown one, has read them.
        disordered: those without a number because they came behind a later row of their source.
    """

    rows: int
    foreign: int = 0
    disordered: int = 0


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
        task, name = _task(), self._rows.options.producer_name
        partition_id = task.partitionId()
        if name and self._rows.has_provenance:
            return self._rows.write_numbered(iterator, name, Identity(turn=partition_id), task.taskAttemptId())
        return self._rows.write(iterator, Identity(name=f"{name}-{partition_id}" if name else "", turn=partition_id))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is written: say what is not promised."""
        _say_unnumbered(messages)


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
        name, turn = self._rows.options.producer_name, int(batch_id) + task.partitionId()
        if self._rows.has_provenance:
            name = name or f"spark-{query_id}"
            return self._rows.write_numbered(iterator, name, Identity(turn=turn), task.taskAttemptId())
        if not name:
            return self._rows.write(iterator, Identity(turn=turn))
        first = int(batch_id) << ROWS_BITS
        return self._rows.write(
            iterator, Identity(name=f"{name}-{task.partitionId()}", first_sequence_id=first, turn=turn)
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's name
        """A micro-batch is written: say what it does not promise."""
        if not self._rows.has_provenance and not self._rows.options.producer_name and batchId == 0:
            _log.warning(AT_LEAST_ONCE)
        _say_unnumbered(messages)


def _say_unnumbered(messages: Iterable[WriterCommitMessage | None]) -> None:
    written = [one for one in messages if isinstance(one, Written)]
    foreign, disordered = sum(one.foreign for one in written), sum(one.disordered for one in written)
    if foreign or disordered:
        _log.warning(UNNUMBERED, foreign + disordered, sum(one.rows for one in written), foreign, disordered)


class _Rows:
    """The common part of both writers."""

    def __init__(self, schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
        if overwrite:
            raise Overwrite
        self.options = options
        self._columns = WriteColumns(schema)
        if not options.topic and not self._columns.has_topic:
            raise UnwritableColumns(f"it is not said where to write to: give the option topic, or a column {TOPIC}")
        # On the driver, before any task: a mistake costs no messages.
        if options.value_format == BINARY:
            self._format_of(options.topic, None)
        elif options.topic:
            with Cluster(options.endpoint) as cluster:
                self._format_of(options.topic, cluster.schema(options.topic))

    @property
    def has_provenance(self) -> bool:
        """Whether rows say where they were read."""
        return self._columns.has_provenance

    def write(self, batches: Iterator[pa.RecordBatch], identity: Identity) -> Written:
        """Write rows that are recognised by their order, or not at all."""
        return Written(self._write((("", self._columns.unnumbered(batch)) for batch in batches), identity))

    def write_numbered(self, batches: Iterator[pa.RecordBatch], name: str, identity: Identity, attempt: int) -> Written:
        """Write rows that are recognised by where this attempt of the task has read them; others as `identity`."""
        numbering = Numbering(attempt)
        parts = (
            (name_of(name, source) if source else "", rows)
            for batch in batches
            for source, rows in self._columns.numbered(batch, numbering)
        )
        return Written(self._write(parts, identity), numbering.foreign, numbering.disordered)

    def _write(self, parts: Iterable[tuple[str, pa.RecordBatch]], identity: Identity) -> int:
        clock = SystemClock()
        with TaskWriter(Cluster(self.options.endpoint), self.options.sending, identity) as outlets:
            formats: dict[str, ValueFormat] = {}
            for name, part in parts:
                for topic, rows in self._by_topic(part):
                    how = formats.get(topic)
                    if how is None:
                        present = None if self.options.value_format == BINARY else outlets.schema(topic)
                        how = formats[topic] = self._format_of(topic, present)
                    values = self._columns.values(rows)
                    own_key = how.keys(values) if isinstance(how, PairFormat) else None
                    messages = self._columns.messages(
                        rows, how.encoded(values), now_ms=clock.wall_ms(), own_key=own_key
                    )
                    outlets.send(topic, messages, how.schema, name=name)
        return outlets.rows

    def _format_of(self, topic: str, present: TopicSchema | None) -> ValueFormat:
        if self._columns.is_pair and (present is None or present.kind != Schema.KeyValueSchema):
            raise self._columns.beside_value()
        return format_of(topic, self._columns.value, present, self.options.value_format)

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
