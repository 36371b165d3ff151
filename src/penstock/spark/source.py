# SPDX-License-Identifier: Apache-2.0
"""What Spark calls: the data source `pulsar`, its batch reader and its stream reader; writers are in `writer`.

Why thin: Spark makes these objects anew in one process or another whenever it likes, and pickles them. All they hold is
settings; where things are is asked of the brokers when it is needed, by `planner`, and read by `client`.
Where: Spark finds the source by way of `pyspark_pulsar`, or of `penstock.spark.register`.

A stream's life: `initialOffset` once, for a new checkpoint; then for each batch `latestOffset`, which ends it within
its limit, `partitions`, a task each, and later, when the next batch has begun, `commit`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.spark import rows, values
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import DataLost
from penstock.spark.client.message_id import EARLIEST as BEGINNING
from penstock.spark.client.message_id import MessageId
from penstock.spark.client.reader import read
from penstock.spark.offsets import Offsets, entries_between, from_json, split, to_json
from penstock.spark.options import (
    BINARY,
    EARLIEST,
    LATEST,
    STRING,
    ReadSettings,
    parse_read_options,
)
from penstock.spark.planner import Planner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.spark.values import Values
    from penstock.spark.writer import BatchWriter, StreamWriter

NAME: Final = "pulsar"


class PulsarDataSource(DataSource):
    """`spark.read.format("pulsar")`, `readStream`, `write` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns of a read; asks the brokers for the topic's schema.

        Raises:
            ValueError: an option is invalid.
            ClientError: the brokers could not be asked.
        """
        settings = parse_read_options(self.options)
        return rows.schema_of(_values_of(settings), settings.columns)

    def reader(self, schema: StructType) -> PulsarReader:
        return PulsarReader(*self._settings(schema), schema)

    def streamReader(self, schema: StructType) -> PulsarStreamReader:  # noqa: N802 -- Spark's name
        return PulsarStreamReader(*self._settings(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 -- as Spark calls it
        from penstock.spark.write_options import parse_write_options  # noqa: PLC0415 -- readers do without
        from penstock.spark.writer import BatchWriter  # noqa: PLC0415

        return BatchWriter(schema, parse_write_options(self.options), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        from penstock.spark.write_options import parse_write_options  # noqa: PLC0415
        from penstock.spark.writer import StreamWriter  # noqa: PLC0415

        return StreamWriter(schema, parse_write_options(self.options), overwrite=overwrite)

    def _settings(self, schema: StructType) -> tuple[ReadSettings, Values]:
        settings = parse_read_options(self.options)
        found = _values_of(settings)
        rows.check_schema(schema, found)
        return settings, found


@dataclass
class TopicRange(InputPartition):
    """The range that one task reads: messages of one partition, from `start` up to `end`."""

    topic: str
    start: MessageId
    end: MessageId


class _Tasks:
    """The tasks, common to batch and stream readers."""

    def __init__(self, settings: ReadSettings, found: Values, schema: StructType) -> None:
        self.settings = settings
        self._values = found
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's range. Raises ClientError if the broker is unavailable, or messages are missing."""
        if not isinstance(partition, TopicRange):
            return  # Spark makes an empty task when there is none.
        topic = partition.topic
        with Cluster(self.settings.endpoint) as cluster:
            builder = rows.RowBuilder(self._schema, self._values, topic, lambda version: cluster.schema(topic, version))
            for found in read(cluster, topic, partition.start, partition.end, self.settings.reading):
                yield from builder.batches(found)

    def _ranges(self, start: Offsets, end: Offsets) -> list[TopicRange]:
        spans = {topic: (start.get(topic, BEGINNING), stop) for topic, stop in end.items()}
        entries = {topic: entries_between(*span) for topic, span in spans.items()}
        total = sum(entries.values())
        return [
            TopicRange(topic, *part)
            for topic, span in spans.items()
            if entries[topic]
            for part in split(*span, -(-self.settings.tasks_min * entries[topic] // total))
        ]


class PulsarReader(_Tasks, DataSourceReader):
    """Reads all current messages, once."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: at least one for each partition with messages."""
        settings = self.settings
        with _planning(settings) as planner:
            topics = planner.partitions()
            start = planner.resolved(settings.starting if settings.starting is not None else EARLIEST, topics)
            end = planner.resolved(settings.ending, topics)
            if settings.tasks_min > 1:
                # A range is cut by its ids: so where the beginning is only a word, it is looked up.
                start |= planner.beginnings([one for one in topics if start[one] == BEGINNING < end[one]])
            return self._ranges(start, end)


class PulsarStreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages batch by batch."""

    def __init__(self, settings: ReadSettings, found: Values, schema: StructType) -> None:
        super().__init__(settings, found, schema)
        self._initial: Offsets | None = None
        self._target: Offsets | None = None  # where a query that reads what is available now must end
        self._followed: Offsets = {}  # as far as durable subscriptions have

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- these are Spark's names
        """Return where a new query begins."""
        if self._initial is None:
            place = self.settings.starting if self.settings.starting is not None else LATEST
            with _planning(self.settings) as planner:
                self._initial = planner.resolved(place, planner.partitions())
                if self.settings.is_durable:
                    planner.acknowledge(self._initial)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options.

        If they limit messages and bytes, this is the limit of messages; bytes are applied later.
        """
        if self.settings.messages_max is not None:
            return ReadMaxRows(self.settings.messages_max)
        if self.settings.bytes_max is not None:
            return ReadMaxBytes(self.settings.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the current ends of the topics: this query reads no further."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: the ends of the topics, or as far as the limit allows."""
        begin = from_json(start)
        # Spark asks only when all before `start` is done, and calls `commit` only when another batch follows: a query
        # that reads what is available, and stops, would leave a backlog for ever.
        self._follow(begin)
        end = self._ends() if self._target is None else dict(self._target)
        begin = {**dict.fromkeys(end, BEGINNING), **begin}  # A partition that is new is read from its beginning.
        self._check_present(begin, end)
        # Never back: a topic that was made anew has other ledgers, and the reader tells.
        end = {topic: max(begin[topic], end.get(topic, begin[topic])) for topic in begin}
        if isinstance(limit, ReadAllAvailable):
            return to_json(end)
        messages_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.settings.bytes_max
        with _planning(self.settings) as planner:
            return to_json(planner.limited(begin, end, messages_max, bytes_max))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the topics, from which Spark computes the query's backlog."""
        return to_json(self._ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, also of one from the checkpoint."""
        return self._ranges(from_json(start), from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is completed: acknowledge it."""
        self._follow(from_json(end))

    def _follow(self, offsets: Offsets) -> None:
        """Move the durable subscriptions, if there are any, to these offsets."""
        if not self.settings.is_durable:
            return
        moved = {topic: offset for topic, offset in offsets.items() if self._followed.get(topic) != offset}
        with _planning(self.settings) as planner:
            planner.acknowledge({topic: offset for topic, offset in moved.items() if offset != BEGINNING})
        self._followed = offsets

    def _ends(self) -> Offsets:
        with _planning(self.settings) as planner:
            return planner.ends(planner.partitions())

    def _check_present(self, begin: Offsets, end: Offsets) -> None:
        """A topic that was read and is not there any more: with a pattern that is how topics go, else it is a loss."""
        gone = sorted(topic for topic in begin if topic not in end)
        if gone and not self.settings.pattern and self.settings.reading.fail_on_data_loss:
            raise DataLost(gone[0], str(begin[gone[0]]), "the topic is not there, or not among the options any more")


@contextmanager
def _planning(settings: ReadSettings) -> Iterator[Planner]:
    planner = Planner(settings)
    try:
        yield planner
    finally:
        planner.close()


def _values_of(settings: ReadSettings) -> Values:
    """Return the values of the topics' schemas. Raises ValueError if the schemas differ."""
    if settings.value_format == BINARY:
        return values.Values()
    if settings.value_format == STRING:
        return values.of_strings()
    with _planning(settings) as planner:
        parents = list(dict.fromkeys(rows.parent_of(topic) for topic in planner.partitions()))
        found = [values.of_schema(planner.cluster.schema(topic)) for topic in parents]
    if all(one.fields == found[0].fields for one in found[1:]):
        return found[0] if found else values.Values()
    if settings.allow_different_schemas:
        return values.Values()
    differing = next(topic for topic, one in zip(parents, found, strict=True) if one.fields != found[0].fields)
    raise ValueError(
        f"topics {parents[0]} and {differing} have different schemas; read them apart, or set valueFormat=binary, "
        "or allowDifferentTopicSchemas=true to get bytes"
    )
