# SPDX-License-Identifier: Apache-2.0
"""Rows that were read from topics are written once, whatever happens to the tasks that write them.

Tasks run here without Spark, as Spark runs them: what a reader and a writer know of their task is put into a
`TaskContext`. So thousands of plans, orders of arrival and failures take seconds.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from penstock.spark import offsets
from penstock.spark.audit import Audit, audit
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.message_id import EARLIEST, MessageId
from penstock.spark.client.producer import OtherAttempt, Producer
from penstock.spark.client.reader import ReadOptions, read
from penstock.spark.options import parse_endpoint
from penstock.spark.provenance import PROVENANCE, Numbering, Place, place_of
from penstock.spark.source import PulsarDataSource
from tests.spark.scripted_broker import ScriptedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.spark.source import PulsarStreamReader

SINK = "persistent://public/default/sink"
QUERY = "5f0c"


class CosmicRayError(Exception):
    """A task fails in the middle."""


class Query:
    """A query from topics to a topic: one micro-batch, which may be run as often as a test likes.

    Attributes:
        topics: that it reads.
        end: of the micro-batch, as the checkpoint has it.
    """

    def __init__(self, broker: ScriptedBroker, chance: random.Random, *, keyed: bool) -> None:
        self._broker = broker
        self._chance = chance
        self._keyed = keyed
        self._attempts = 0
        self.topics = sorted(topic for topic in broker.topics if "/t-" in topic)
        self.end = self._end(chance.choice([1, 1, 2, 5]))

    def expected(self) -> list[bytes]:
        return sorted(value for topic in self.topics for value in values_in(self._broker, topic))

    def run(
        self,
        changed: Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]] = lambda batches: batches,
        *,
        tasks_min: int = 1,
        shuffled: bool = False,
    ) -> None:
        """Run all tasks of the micro-batch, in some order; `changed` is what the query does with a task's rows."""
        reader = self._reader(tasks_min)
        tasks = list(reader.partitions(self._start(), self.end))
        self._chance.shuffle(tasks)
        if not shuffled:
            for task in tasks:
                self._in_task(lambda task=task: self._writer().write(iter(changed(list(reader.read(task))))))  # type: ignore[misc]
            return
        whole: list[pa.RecordBatch] = []
        for task in tasks:
            self._in_task(lambda task=task: whole.extend(reader.read(task)))  # type: ignore[misc]
        for part in changed(whole):
            self._in_task(lambda part=part: self._writer().write(iter([part])))  # type: ignore[misc]

    def _in_task(self, work: Callable[[], Any]) -> None:
        self._attempts += 1
        context = TaskContext.__new__(TaskContext)
        vars(context).update(
            _partitionId=self._attempts % 3,
            _taskAttemptId=self._attempts,
            _localProperties={"streaming.sql.batchId": "7", "sql.streaming.queryId": QUERY},
        )
        TaskContext._taskContext = context  # noqa: SLF001 -- as Spark's worker sets it
        try:
            work()
        finally:
            TaskContext._taskContext = None  # noqa: SLF001

    def _options(self, **more: str) -> dict[str, str]:
        return {"service.url": self._broker.url, "valueFormat": "binary", **more}

    def _reader(self, tasks_min: int) -> PulsarStreamReader:
        columns = f"value,__key,{PROVENANCE}" if self._keyed else f"value,{PROVENANCE}"
        options = self._options(topics=",".join(self.topics), columns=columns, minPartitions=str(tasks_min))
        source = PulsarDataSource(options)
        self._schema = source.schema()
        return source.streamReader(self._schema)

    def _writer(self) -> Any:  # noqa: ANN401 -- a writer of Spark's
        options = self._options(topic=SINK, **{"pulsar.producer.batchingMaxMessages": "4"})
        return PulsarDataSource(options).streamWriter(self._schema, overwrite=False)

    def _start(self) -> dict[str, Any]:
        return offsets.to_json(dict.fromkeys(self.topics, MessageId(1, 0)))

    def _end(self, tasks_min: int) -> dict[str, Any]:
        ends = {topic: MessageId(1, len(self._broker.topics[topic])) for topic in self.topics}
        ranges = [offsets.TopicRange(topic, MessageId(1, 0), end) for topic, end in ends.items()]
        messages = {topic: sum(one.messages for one in self._broker.topics[topic]) for topic in self.topics}
        plan = offsets.Plan(messages, offsets.cuts_of(ranges, messages, tasks_min=tasks_min))
        return offsets.to_json(ends, plan)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`failing(n)`: the n-th entry from now on is the last that is sent before a task fails."""
    left = [-1]
    post = Producer._post  # noqa: SLF001 -- the one place that every entry passes

    def counted(self: Producer, *given: Any, **more: Any) -> None:  # noqa: ANN401
        post(self, *given, **more)
        left[0] -= 1
        if left[0] == 0:
            self.flush() if random.Random(str(given[0])).random() < 0.5 else None
            raise CosmicRayError

    monkeypatch.setattr(Producer, "_post", counted)
    return lambda after: left.__setitem__(0, after)


def filled(seed: int) -> ScriptedBroker:
    """A broker with some topics of batches of different sizes."""
    chance = random.Random(seed)
    broker = ScriptedBroker(seed)
    for number in range(chance.randint(1, 4)):
        topic = f"persistent://public/default/t-{number}"
        sizes = [chance.randint(1, 7) for _ in range(chance.randint(2, 9))]
        broker.add(topic, [[b"%d/%d/%d" % (number, entry, row) for row in range(n)] for entry, n in enumerate(sizes)])
    broker.partitions[SINK] = chance.choice([0, 1, 3])
    return broker


def values_in(broker: ScriptedBroker, topic: str) -> list[bytes]:
    held = broker.topics.get(topic, [])
    if not held:
        return []
    with Cluster(parse_endpoint({"service.url": broker.url})) as cluster:
        runs = read(cluster, topic, EARLIEST, MessageId(1, len(held)), ReadOptions())
        return [
            found.data[start:stop].tobytes()
            for found in runs
            for start, stop in zip(found.value_starts.tolist(), found.value_stops.tolist(), strict=True)
        ]


def written(broker: ScriptedBroker) -> list[bytes]:
    """All rows in the sink, sorted."""
    return sorted(
        value for topic in list(broker.topics) if topic.startswith(SINK) for value in values_in(broker, topic)
    )


def audited(broker: ScriptedBroker, query: Query) -> Audit:
    with Cluster(parse_endpoint({"service.url": broker.url})) as cluster:
        return audit(cluster, SINK, query.topics, f"spark-{QUERY}")


@pytest.mark.parametrize("keyed", [False, True], ids=["no keys", "keys"])
@pytest.mark.parametrize("seed", range(15))
def test_rows_are_written_once_under_any_plan_order_and_failure(
    seed: int, failing: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, *, keyed: bool
) -> None:
    chance = random.Random(seed)
    with filled(seed) as broker:
        query = Query(broker, chance, keyed=keyed)
        for _ in range(4):
            failing(chance.randint(1, 12))
            monkeypatch.setattr(offsets, "TASK_MESSAGES_MIN", chance.choice([1, 10, 100]))
            try:
                query.run(tasks_min=chance.choice([1, 2, 4, 9]))
            except CosmicRayError:
                continue
            break
        failing(-1)
        query.run(tasks_min=chance.choice([1, 3]))
        assert written(broker) == query.expected()
        assert audited(broker, query) == Audit(rows=len(query.expected()), compared=len(query.expected()))


def test_a_task_may_fail_after_every_entry(failing: Callable[[int], None]) -> None:
    """A failure after the first entry, then after the next, and so on: each attempt gets one entry further."""
    with filled(11) as broker:
        query = Query(broker, random.Random(1), keyed=False)
        failures = 0
        while failures < 1_000:
            failing(1)
            try:
                query.run()
            except CosmicRayError:
                failures += 1
            else:
                break
        assert failures >= len(query.expected()) // 4
        assert written(broker) == query.expected()


@pytest.mark.parametrize("seed", range(8))
def test_a_query_that_was_changed_goes_on_after_the_rows_that_it_has_written(
    seed: int, failing: Callable[[int], None]
) -> None:
    """An upgrade: the first version passes over some rows, the second one passes over others."""

    def without(digit: bytes) -> Callable[[list[pa.RecordBatch]], list[pa.RecordBatch]]:
        def kept(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
            masks = [[not one.endswith(digit) for one in batch.column(0).to_pylist()] for batch in batches]
            return [batch.filter(pa.array(mask)) for batch, mask in zip(batches, masks, strict=True)]

        return kept

    with filled(seed) as broker:
        query = Query(broker, random.Random(seed), keyed=False)
        failing(3)
        try:
            query.run(without(b"1"))
        except CosmicRayError:
            failing(-1)
        query.run(without(b"2"))
        counts = Counter(written(broker))
        assert max(counts.values()) == 1
        everybodys = {value for value in query.expected() if value[-1:] not in b"12"}
        assert everybodys <= counts.keys()


def test_rows_that_were_made_of_one_message_are_told_apart(failing: Callable[[int], None]) -> None:
    def thrice(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return [batch.take(pa.array(np.repeat(np.arange(batch.num_rows), 3))) for batch in batches]

    with filled(3) as broker:
        query = Query(broker, random.Random(3), keyed=False)
        for after in (2, 5, 1, -1):
            failing(after)
            try:
                query.run(thrice)
            except CosmicRayError:
                continue
        assert Counter(written(broker)) == dict.fromkeys(query.expected(), 3)


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_were_shuffled_are_never_lost(seed: int, failing: Callable[[int], None]) -> None:
    chance = random.Random(seed)

    def dealt(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(batches).combine_chunks()
        order = list(range(len(table)))
        chance.shuffle(order)
        half = len(order) // 2
        return [one for rows in (order[:half], order[half:]) for one in table.take(pa.array(rows)).to_batches()]

    with filled(seed) as broker:
        query = Query(broker, chance, keyed=False)
        failing(2)
        with pytest.raises(CosmicRayError):
            query.run(dealt, shuffled=True)
        failing(-1)
        query.run(dealt, shuffled=True)
        assert set(written(broker)) == set(query.expected())


@pytest.mark.parametrize("seed", range(8))
def test_rows_that_were_sorted_within_a_task_are_never_lost(seed: int) -> None:
    chance = random.Random(seed)

    def dealt(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(batches).combine_chunks()
        order = list(range(len(table)))
        chance.shuffle(order)
        ordered: list[pa.RecordBatch] = table.take(pa.array(order)).to_batches()
        return ordered

    with filled(seed) as broker:
        query = Query(broker, chance, keyed=False)
        query.run(dealt)
        query.run(dealt)
        assert set(written(broker)) == set(query.expected())


def test_a_stream_that_is_united_with_itself_writes_its_rows_twice() -> None:
    with filled(5) as broker:
        query = Query(broker, random.Random(5), keyed=False)
        reader = query._reader(1)  # noqa: SLF001
        scans = [reader.partitions(query._start(), query.end) for _ in range(2)]  # noqa: SLF001
        for _ in range(2):
            for scan in scans:
                for task in scan:
                    query._in_task(lambda task=task: query._writer().write(reader.read(task)))  # type: ignore[misc]  # noqa: SLF001
        assert Counter(written(broker)) == dict.fromkeys(query.expected(), 2)


def test_an_audit_names_what_is_missing_and_what_is_there_twice() -> None:
    with filled(5) as broker:
        query = Query(broker, random.Random(5), keyed=False)
        query.run(lambda batches: [batch.slice(1) for batch in batches])
        broker.sequence_ids.clear()  # as if the broker had forgotten the names
        query.run(lambda batches: [batch.slice(1) for batch in batches])
        found = audited(broker, query)
        counts = Counter(written(broker))
        assert sum(found.twice.values()) == len(counts) == found.rows // 2
        assert sum(found.missing.values()) == len(query.expected()) - len(counts)
        assert all(ids[0] == MessageId(1, 0, 0) for ids in found.named.values())


# -- two attempts at a time ------------------------------------------------------------------------------------------


def test_a_second_attempt_waits_until_the_first_has_ended_and_knows_what_it_stored() -> None:
    with ScriptedBroker(1) as broker:
        endpoint = parse_endpoint({"service.url": broker.url, "operationTimeoutMs": "100"})
        with Cluster(endpoint) as one, Cluster(endpoint) as other, ThreadPoolExecutor(1) as executor:
            first = Producer(one, SINK, name="query/source")
            second = executor.submit(Producer, other, SINK, name="query/source")
            broker.wait_for_refusals(5)  # more than a tenth of a second allows
            first.send_batch(b"", 3, 40, highest=44)
            first.finish()
            assert second.result(60).last_sequence_id == 44
            second.result().close()


def test_an_attempt_that_was_overtaken_in_the_middle_of_an_entry_fails_instead_of_losing_its_rest() -> None:
    with ScriptedBroker(1) as broker, Cluster(parse_endpoint({"service.url": broker.url})) as cluster:
        producer = Producer(cluster, SINK, name="query/source")
        broker.ignores = 1
        producer.send_batch(b"", 10, 0)
        broker.cut()
        broker.sequence_ids[SINK, "query/source"] = 4  # another attempt has cut its entries there
        with pytest.raises(OtherAttempt, match="query/source"):
            producer.flush()
        producer.close()


# -- numbers ---------------------------------------------------------------------------------------------------------


def column_of(rows: Iterable[tuple[str | None, int | None, int | None]]) -> pa.StructArray:
    names = ("source", "position", "attempt")
    said = [dict(zip(names, row, strict=True)) for row in rows]
    types = pa.struct([("source", pa.string()), ("position", pa.int64()), ("attempt", pa.int64())])
    return pa.array(said, types)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(0, 4), st.sampled_from([1, 2, None])),
        max_size=40,
    ),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_numbers_grow_along_a_source_and_no_row_is_left_out(
    rows: list[tuple[str | None, int | None, int | None]], cuts: list[int]
) -> None:
    numbering = Numbering(1)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    last: dict[str, int] = {}
    seen = 0
    for start, stop in itertools.pairwise(edges):
        for one in numbering.of(column_of(rows[start:stop])) if start < stop else ():
            seen += one.stop - one.start
            for row, number in zip(rows[start + one.start : start + one.stop], one.sequence_ids.tolist(), strict=False):
                assert one.source == row[0]
                assert row[2] == 1
                assert number > last.get(one.source, -1)
                last[one.source] = number
                assert place_of(number).entry_id << 16 | place_of(number).batch_index == row[1]
    assert seen == len(rows)


def test_rows_in_order_all_have_numbers() -> None:
    numbering = Numbering(9)
    rows = [("a", 5, 9), ("a", 5, 9), ("a", 6, 9), ("b", 0, 9)]
    found = [one for part in (rows[:1], rows[1:]) for one in numbering.of(column_of(part))]
    places = [(one.source, place_of(number)) for one in found for number in one.sequence_ids.tolist()]
    assert places == [
        ("a", Place(0, 5, 0)), ("a", Place(0, 5, 1)), ("a", Place(0, 6, 0)), ("b", Place(0, 0, 0))
    ]  # fmt: skip
    assert (numbering.foreign, numbering.disordered) == (0, 0)
