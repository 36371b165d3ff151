# SPDX-License-Identifier: Apache-2.0
"""The data source `pulsar` for Spark, its batch reader and its stream reader; writers are in `writer`.

Why thin: Spark makes these objects anew in one process or another whenever it likes, and pickles them. All they hold is
settings; where things are is asked of the brokers when it is needed, by `planner`, and read by `client`.
Where: Spark finds the source by way of `pyspark_pulsar`, or of `penstock.spark.register`.

A stream's life: `initialOffset` once, for a new checkpoint; then for each batch `latestOffset`, which ends it within
its limit, `partitions`, a task each, and later, when the next batch has begun, `commit`.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from penstock.core.errors import WireCode
from penstock.spark import rows, sql_tables, values
from penstock.spark.arrow_batches import joined
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import DataLost, Refused, TopicNotYetThere
from penstock.spark.client.matched_topics import read_matched
from penstock.spark.client.message_id import EARLIEST as BEGINNING
from penstock.spark.client.reader import read
from penstock.spark.client.short_ranges import read_many
from penstock.spark.idle_topics import IdleTopics
from penstock.spark.offsets import (
    TASK_MESSAGES_MIN,
    Offsets,
    Plan,
    TopicRange,
    cuts_of,
    from_json,
    packed,
    plan_in,
    to_json,
)
from penstock.spark.options import (
    BINARY,
    EARLIEST,
    LATEST,
    STRING,
    ReadSettings,
    parse_read_options,
)
from penstock.spark.planner import Planner
from penstock.spark.provenance import Origin
from penstock.spark.pushdown import NOTHING_PUSHED, pushed
from penstock.spark.trigger_delay import TriggerDelay

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from penstock.spark.values import Values
    from penstock.spark.writer import BatchWriter, StreamWriter

NAME: Final = "pulsar"
_log: Final = logging.getLogger(__name__)
# Beside the topics in the latest offset of a query's progress; no full name of a topic.
LAG: Final = "lag"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


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
        creates = sql_tables.is_creation(self.options)
        given = sql_tables.definition_of(self.options) if creates else self.options
        settings = parse_read_options(given)
        schema = rows.schema_of(_values_of(settings), settings.columns, settings.broken, provenance=settings.provenance)
        return sql_tables.with_definition(schema, given) if creates else schema

    def reader(self, schema: StructType) -> PulsarReader:
        # Spark refuses a reader with `pushFilters` while its setting for that is off. If it is on, it plans in a
        # process of another module than otherwise.
        kind = FilteringReader if _PUSHDOWN_WORKER in sys.modules else PulsarReader
        return kind(*self._settings(schema), schema)

    def streamReader(self, schema: StructType) -> PulsarStreamReader:  # noqa: N802 -- Spark's name
        return PulsarStreamReader(*self._settings(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001 -- as Spark calls it
        from penstock.spark.write_options import parse_write_options  # noqa: PLC0415 -- readers do without
        from penstock.spark.writer import BatchWriter  # noqa: PLC0415

        given = sql_tables.options_for(schema, self.options, writing=True)
        return BatchWriter(schema, parse_write_options(given), overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        from penstock.spark.write_options import parse_write_options  # noqa: PLC0415
        from penstock.spark.writer import StreamWriter  # noqa: PLC0415

        given = sql_tables.options_for(schema, self.options, writing=True)
        return StreamWriter(schema, parse_write_options(given), overwrite=overwrite)

    def _settings(self, schema: StructType) -> tuple[ReadSettings, Values]:
        settings = parse_read_options(sql_tables.options_for(schema, self.options))
        found = _values_of(settings)
        rows.check_schema(schema, found, settings.broken)
        return settings, found


@dataclass
class Task(InputPartition):
    """Ranges that one task reads, one after another.

    Attributes:
        ranges: of different sources.
        number: of the task in its plan, if its rows are recognised only where Spark runs the plan as it is.
    """

    ranges: tuple[TopicRange, ...]
    number: int | None = None

    @property
    def attempt(self) -> int | None:
        """The attempt of the task that runs now; None if its rows are not to be recognised."""
        task = TaskContext.get()
        is_planned = task is not None and self.number in (None, task.partitionId())
        return task.taskAttemptId() if task is not None and is_planned else None


class _Tasks:
    """The tasks, common to batch and stream readers."""

    def __init__(self, settings: ReadSettings, found: Values, schema: StructType) -> None:
        self.settings = settings
        self._values = found
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges. Raises ClientError if the broker is unavailable, or messages are missing."""
        if isinstance(partition, Task):  # Spark makes an empty task when there is none.
            yield from joined(self._batches(partition))

    def _batches(self, partition: Task) -> Iterator[pa.RecordBatch]:
        with Cluster(self.settings.endpoint) as cluster:
            attempt = partition.attempt
            builders = {
                one: rows.RowBuilder(
                    self._schema,
                    self._values,
                    one.topic,
                    partial(cluster.schema, one.topic),
                    self.settings.broken,
                    Origin(one.lane, attempt),
                )
                for one in partition.ranges
            }
            yield from read_many(
                cluster,
                partition.ranges,
                self.settings.reading,
                lambda one, found: builders[one].batches(found),
                read_matched if self.settings.pattern else read,
            )
            for (topic, start, end, _), builder in builders.items():
                if builder.dropped:
                    _log.warning(
                        "%s: %d messages from %s up to %s were dropped (mode=DROPMALFORMED): their values do not read "
                        "as the topic's schema says",
                        topic, builder.dropped, start, end,
                    )  # fmt: skip
            for topic, count in self.settings.reading.decryption.discarded.items():
                _log.warning("%s: %d messages were discarded, because they cannot be decrypted", topic, count)

    def _plan(self, planner: Planner, start: Offsets, end: Offsets) -> Plan:
        """Decide how the ranges of a batch become tasks, by what is known of them now."""
        ranges = _ranges(start, end)
        waiting = planner.waiting(start, {one.topic: one.end for one in ranges})
        # A partition of unknown length has a task of its own.
        messages = {topic: TASK_MESSAGES_MIN if count is None else count for topic, count in waiting.items()}
        is_cut = self.settings.tasks_min > 1 or self.settings.task_messages_max is not None
        segments = planner.segments(ranges) if is_cut else {}
        return Plan(messages, cuts_of(ranges, messages, segments, **self._packing))

    def _packed(self, start: Offsets, end: Offsets, plan: Plan) -> list[list[TopicRange]]:
        """Return the ranges of each task: several small partitions share one."""
        return packed(_ranges(start, end), plan, **self._packing)

    @property
    def _packing(self) -> dict[str, Any]:
        return {"tasks_min": self.settings.tasks_min, "task_messages_max": self.settings.task_messages_max}


class PulsarReader(_Tasks, DataSourceReader):
    """Reads all current messages, once."""

    pushed = NOTHING_PUSHED

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: at least one for each partition with messages."""
        settings = self.settings
        with _planning(settings) as planner:
            wanted = self.pushed.topics
            topics = [one for one in planner.partitions() if wanted is None or one in wanted]
            start = planner.resolved(settings.starting if settings.starting is not None else EARLIEST, topics)
            end = planner.resolved(settings.ending, topics)
            if self.pushed.since_ms is not None:
                since = planner.resolved(max(0, self.pushed.since_ms), topics)
                start = {topic: max(place, since[topic]) for topic, place in start.items()}
            if self.pushed.until_ms is not None:
                until = planner.resolved(max(0, self.pushed.until_ms), topics)
                end = {topic: min(place, until[topic]) for topic, place in end.items()}
            planner.sample(start, end)
            if settings.tasks_min > 1 or settings.task_messages_max is not None:
                # A range is cut by its ids: so where the beginning is only a word, it is looked up.
                start |= planner.beginnings([one for one in topics if start[one] == BEGINNING < end[one]])
            # Another run of the same job may be cut elsewhere: where a range begins is a part of its rows' identity.
            return [
                Task(tuple(one._replace(lane=str(one.start)) for one in ranges), number)
                for number, ranges in enumerate(self._packed(start, end, self._plan(planner, start, end)))
            ]


class FilteringReader(PulsarReader):
    """The same, of what a query's filters leave."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 -- Spark's name
        """Note filters of topics and publish times; Spark applies all of them once more."""
        self.pushed = pushed(filters)
        return filters


class PulsarStreamReader(_Tasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages batch by batch."""

    def __init__(self, settings: ReadSettings, found: Values, schema: StructType) -> None:
        super().__init__(settings, found, schema)
        self._initial: Offsets | None = None
        self._target: Offsets | None = None  # where a query that reads what is available now must end
        self._followed: Offsets = {}  # as far as durable subscriptions have
        self._gone: set[str] = set()  # topics that were read and are not there any more
        self._planner: Planner | None = None  # kept, with its connections, from one micro-batch to the next
        self._latest: dict[str, Any] | None = None  # what the last plan has seen, for the query's progress
        self._scans = 0  # of the micro-batch that was asked for last, before that
        self._scanned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._idle = IdleTopics(is_durable=settings.is_durable)
        self._delay = TriggerDelay(settings.messages_min, settings.delay_max_s)

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the settings: connections stay where they are."""
        return {**self.__dict__, "_planner": None}

    @property
    def planner(self) -> Planner:
        """The planner of this process."""
        if self._planner is None:
            self._planner = Planner(self.settings)
        return self._planner

    def stop(self) -> None:
        """The query has ended: close the connections."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- these are Spark's names
        """Return where a new query begins."""
        if self._initial is None:
            place = self.settings.starting if self.settings.starting is not None else LATEST
            self._initial = self.planner.resolved(place, self.planner.partitions())
            if self.settings.is_durable:
                self.planner.acknowledge(self._initial)
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options. If they have several, this is one, and the others are applied later."""
        if self.settings.messages_max is not None:
            return ReadMaxRows(self.settings.messages_max)
        if self.settings.bytes_max is not None:
            return ReadMaxBytes(self.settings.bytes_max)
        if self.settings.messages_min is not None:
            return ReadMinRows(self.settings.messages_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the current ends of the topics: this query reads no further."""
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: the ends of the topics, or as far as the limit allows."""
        begin = from_json(start)
        self._idle.planned()
        # Spark asks only when all before `start` is done, and calls `commit` only when another batch follows: a query
        # that reads what is available, and stops, would leave a backlog for ever.
        self._follow(begin)
        end = self._ends() if self._target is None else dict(self._target)
        begin = {**dict.fromkeys(end, BEGINNING), **begin}  # A partition that is new is read from its beginning.
        self._check_present(begin, end)
        # Never back: a topic that was made anew has other ledgers, and the reader tells.
        end = {topic: max(begin[topic], end.get(topic, begin[topic])) for topic in begin}
        reached = self._reached(begin, end, limit)
        self._latest = {**to_json(end), LAG: self.planner.lag(reached, end).to_json()}
        if self._target is not None and reached == begin:
            self.stop()  # The query ends now; Spark ends this process some time later, without a word.
        if reached == from_json(start):
            return start  # To the letter: Spark takes any other text for something new.
        self.planner.sample(begin, reached)
        return to_json(reached, self._plan(self.planner, begin, reached))

    def _reached(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        if isinstance(limit, ReadAllAvailable):  # Also what a trigger says that wants all at once.
            return end
        if self._target is None and self._delay.is_wanted and begin != end:
            self.planner.sample(begin, end)
            waiting = self.planner.waiting(begin, end).values()
            if self._delay.waits(sum(count or 1 for count in waiting)):
                return begin
        messages_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.settings.bytes_max
        if messages_max is None and bytes_max is None:
            return end
        return self.planner.limited(begin, end, messages_max, bytes_max)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the topics and the lag behind them, which the query's progress shows."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, also of one from the checkpoint: they depend on nothing but the offsets."""
        begin = from_json(start)
        planned = self._packed(begin, from_json(end), plan_in(end, begin))
        scan = self._scan(start, end)
        return [Task(tuple(one._replace(lane=one.lane + scan) for one in ranges)) for ranges in planned]

    def _scan(self, start: dict[str, Any], end: dict[str, Any]) -> str:
        """Tell scans of this stream apart: a query that unites it with itself writes each row twice.

        Spark asks for the tasks of each scan, in the order of the query.
        """
        self._scans = self._scans + 1 if self._scanned == (start, end) else 0
        self._scanned = start, end
        return f".{self._scans}" if self._scans else ""

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is completed: acknowledge it."""
        self._follow(from_json(end))

    def _follow(self, offsets: Offsets) -> None:
        """Move the durable subscriptions, if there are any, to these offsets."""
        if not self.settings.is_durable:
            return
        moved = {topic: offset for topic, offset in offsets.items() if self._followed.get(topic) != offset}
        self.planner.acknowledge({topic: offset for topic, offset in moved.items() if offset != BEGINNING})
        self._followed = offsets

    def _ends(self) -> Offsets:
        return self.planner.ends(self.planner.partitions())

    def _check_present(self, begin: Offsets, end: Offsets) -> None:
        """A topic that was read and is not there any more: with a pattern that is how topics go, else it is a loss."""
        gone = sorted(topic for topic in begin if topic not in end)
        for topic in gone:
            if topic not in self._gone:
                _log.warning("%s was deleted; it was read up to %s", topic, begin[topic])
        self._gone = set(gone)
        if gone and not self.settings.pattern and self.settings.reading.fail_on_data_loss:
            raise DataLost(gone[0], str(begin[gone[0]]), "the topic is not there, or not among the options any more")


def _ranges(start: Offsets, end: Offsets) -> list[TopicRange]:
    """Return what is to be read between two offsets."""
    return [
        TopicRange(topic, start.get(topic, BEGINNING), stop)
        for topic, stop in end.items()
        if start.get(topic, BEGINNING) < stop
    ]


@contextmanager
def _planning(settings: ReadSettings) -> Iterator[Planner]:
    planner = Planner(settings)
    try:
        yield planner
    finally:
        planner.close()


def _values_of(settings: ReadSettings) -> Values:
    """Return the values of the topics' schemas. Raises ValueError if the schemas differ."""
    if settings.wait_for_topics:
        with _planning(settings) as planner:
            planner.cluster.insist(lambda: _existing(planner))
    if settings.value_format == BINARY:
        return values.Values()
    if settings.value_format == STRING:
        return values.of_strings()
    with _planning(settings) as planner:
        parents = list(dict.fromkeys(rows.parent_of(topic) for topic in planner.partitions()))
        found = [values.of_schema(schema) for schema in planner.cluster.schemas(parents).values()]
    if all(one.fields == found[0].fields for one in found[1:]):
        return found[0] if found else values.Values()
    if settings.allow_different_schemas:
        return values.Values()
    differing = next(topic for topic, one in zip(parents, found, strict=True) if one.fields != found[0].fields)
    raise ValueError(
        f"topics {parents[0]} and {differing} have different schemas; read them apart, or set valueFormat=binary, "
        "or allowDifferentTopicSchemas=true to get bytes"
    )


def _existing(planner: Planner) -> None:
    """Ask whether all topics exist. Raises TopicNotYetThere."""
    try:
        planner.partitions()
    except Refused as refused:
        if refused.code is WireCode.TOPIC_NOT_FOUND:
            raise TopicNotYetThere(refused) from refused
        raise
