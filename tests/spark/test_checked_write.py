# SPDX-License-Identifier: Apache-2.0
"""A topic with a schema takes what fits it, and nothing else is sent: neither a row nor a part of one."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as f

from penstock.spark.source import PulsarDataSource
from penstock.spark.write_columns import UnwritableColumns
from tests.spark.topics import ask, create_partitions, path_of, payloads, read_all, stored, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


REFERENCE = Path(__file__).resolve().parents[2] / "docs/reference/spark.md"


class Person(pulsar.schema.Record):  # type: ignore[misc]
    """A topic's schema."""

    id = pulsar.schema.Long(required=True)
    name = pulsar.schema.String()


SCHEMAS = [pulsar.schema.JsonSchema(Person), pulsar.schema.AvroSchema(Person)]


def read(spark: SparkSession, broker: BrokerProcess, topic: str) -> DataFrame:
    return spark.read.format("pulsar").options(**{"service.url": broker.url, "topic": topic}).load()


def plan(df: DataFrame, broker: BrokerProcess, **options: str) -> None:
    """What Spark does on the driver before it begins a write."""
    PulsarDataSource({"service.url": broker.url, **options}).writer(df.schema, overwrite=False)


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select 'a' as id, 1 as name", "column id is string, and the schema has bigint; column name is int"),
        ("select 1 as id, 'a' as nmae", r"has no field for nmae \(did you mean name\?\)"),
        ("select 'a' as name", "the field id is required, and there is no such column"),
        ("select 'not json' as value", "with the columns id bigint, name string; write these columns"),
        ("select X'00' as value", "set valueFormat=binary"),
    ],
)
def test_columns_that_do_not_fit_a_topics_schema_are_refused_before_anything_is_sent(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, schema: object, query: str, said: str
) -> None:
    official(broker.url).create_producer(topic, schema=schema)
    with pytest.raises(UnwritableColumns, match=said):
        plan(spark.sql(query), broker, topic=topic)


@pytest.mark.parametrize("column", ["__topic", "__key"])
def test_nothing_is_sent_where_the_driver_or_a_task_finds_that_columns_do_not_fit(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, column: str
) -> None:
    official(broker.url).create_producer(topic, schema=SCHEMAS[0])
    rows = spark.sql("select 'a' as id, 1 as name").withColumn(column, f.lit(topic))
    with pytest.raises(PySparkException, match="column id is string, and the schema has bigint"):
        write(rows, broker, **({} if column == "__topic" else {"topic": topic}))
    assert stored(broker.admin_url, topic) == 0


def test_a_stream_whose_columns_do_not_fit_is_refused_as_well(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    official(broker.url).create_producer(topic, schema=SCHEMAS[0])
    write(spark.sql("select 'x' as value"), broker, topic=f"{topic}-in")
    stream = spark.readStream.format("pulsar").options(**{"service.url": broker.url, "topic": f"{topic}-in"})
    found = stream.option("startingOffsets", "earliest").load().selectExpr("value as id")
    sink = found.writeStream.format("pulsar").options(**{"service.url": broker.url, "topic": topic})
    with pytest.raises(StreamingQueryException, match="column id is binary, and the schema has bigint"):
        sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert stored(broker.admin_url, topic) == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_null_in_a_column_that_has_none_in_the_schema_is_refused_by_name(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, schema: object
) -> None:
    official(broker.url).create_producer(topic, schema=schema)
    with pytest.raises(PySparkException, match="column id is null in some rows"):
        write(spark.sql("select nullif(id, 3) as id from range(5)"), broker, topic=topic)


def test_values_that_are_encoded_already_are_sent_as_they_are_when_asked_to(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    official(broker.url).create_producer(topic, schema=SCHEMAS[0])
    write(spark.sql("""select '{"id":7,"name":"a"}' as value"""), broker, topic=topic, valueFormat="binary")
    assert [(row.id, row.name) for row in read(spark, broker, topic).collect()] == [(7, "a")]


# -- primitive types ---------------------------------------------------------------------------------------------------

PRIMITIVES = [
    ("INT8", "cast(-5 as tinyint)"),
    ("INT16", "cast(300 as smallint)"),
    ("INT32", "-70000"),
    ("INT64", "cast(id as bigint) - 5000000000"),
    ("BOOLEAN", "id = 1"),
    ("FLOAT", "cast(1.5 as float)"),
    ("DOUBLE", "cast(id / 3 as double)"),
    ("STRING", "'grüße'"),
    ("TIMESTAMP", "timestamp'2024-02-29 12:30:00.123'"),
    ("DATE", "timestamp'1969-02-28 12:30:00.123'"),
    ("INSTANT", "timestamp'1969-02-28 12:30:00.123456'"),
    ("LOCAL_DATE", "date'1960-02-29'"),
    ("LOCAL_DATE_TIME", "timestamp_ntz'1960-02-29 12:30:00.123456'"),
]


def give_schema(broker: BrokerProcess, topic: str, kind: str) -> None:
    ask(broker.admin_url, "PUT", path_of(topic))
    tenant_and_name = path_of(topic).removeprefix("persistent/")
    ask(broker.admin_url, "POST", f"schemas/{tenant_and_name}/schema", {"type": kind, "schema": "", "properties": {}})


@pytest.mark.parametrize(("kind", "expression"), PRIMITIVES)
def test_a_column_of_a_topics_primitive_type_is_read_back_as_it_was(
    spark: SparkSession, broker: BrokerProcess, topic: str, kind: str, expression: str
) -> None:
    give_schema(broker, topic, kind)
    rows = spark.range(0, 4, 1, 1).selectExpr(f"if(id = 2, null, {expression}) as value")
    write(rows, broker, topic=topic)
    assert read(spark, broker, topic).select("value").collect() == rows.collect()


def test_what_the_official_client_reads_is_the_number_that_was_written(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    give_schema(broker, topic, "INT32")
    write(spark.sql("select -7 as value"), broker, topic=topic)
    assert payloads(official(broker.url), topic) == [b"\xff\xff\xff\xf9"]


@pytest.mark.parametrize(
    ("kind", "query", "said"),
    [
        (
            "INT64",
            "select 'a' as value",
            "column value is string, and .* has a schema of type INT64: cast it to bigint",
        ),
        ("INT32", "select 1L as value", "cast it to int"),
        ("STRING", "select X'00' as value", "cast it to string"),
        ("INT64", "select 1 as a, 2 as b", "has a schema of type INT64, and a struct can be written as JSON or AVRO"),
    ],
)
def test_a_value_of_another_type_than_the_topics_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, kind: str, query: str, said: str
) -> None:
    give_schema(broker, topic, kind)
    with pytest.raises(UnwritableColumns, match=said):
        plan(spark.sql(query), broker, topic=topic)


# -- columns that say how ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("__keys", r"there is no column __keys of a message \(did you mean __key\?\)"),
        ("__delayAfter", r"did you mean __deliverAfter\?"),
        ("__zzz", "there are __topic, __key"),
    ],
)
def test_a_column_that_looks_like_ours_and_is_none_is_refused(
    spark: SparkSession, broker: BrokerProcess, topic: str, column: str, said: str
) -> None:
    with pytest.raises(UnwritableColumns, match=said):
        plan(spark.sql(f"select 'a' as value, 'k' as {column}"), broker, topic=topic)


def test_kafkas_names_of_columns_are_told_ours(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(UnwritableColumns, match="rename key to __key, headers to __messageProperties"):
        plan(spark.sql("select 'a' as value, 'k' as key, map('a', 'b') as headers"), broker, topic=topic)


@pytest.mark.parametrize(
    "when",
    [
        "timestamp_millis(2000000000123) as __deliverAt",
        "2000000000123 as __deliverAt",
        "2000000000123 - {now} as __deliverAfter",
        "make_dt_interval(0, 0, 0, (2000000000123 - {now}) / 1000) as __deliverAfter",
    ],
)
def test_messages_are_delivered_when_their_row_says(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, when: str
) -> None:
    now = int(dt.datetime.now(tz=dt.UTC).timestamp() * 1000)
    ids = spark.range(0, 6, 1, 1)
    rows = ids.selectExpr("cast(id as string) as value", when.format(now=now))
    name = rows.columns[1]
    rows = rows.withColumn(name, f.when(f.col("value") % 3 == 1, f.col(name)))
    consumer = official(broker.url).subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    write(rows, broker, topic=topic)
    assert sorted(consumer.receive(60_000).data() for _ in range(4)) == [b"0", b"2", b"3", b"5"]
    subscription = ask(broker.admin_url, "GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]
    assert subscription["msgDelayed"] == 2
    assert [message.data() for message in read_all(official(broker.url), topic)] == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("1 as __deliverAt, 2L as __deliverAfter", "column __deliverAt is int and must be timestamp, or bigint"),
        ("1L as __deliverAt, 2L as __deliverAfter", "some rows have both __deliverAt and __deliverAfter"),
        ("-1L as __deliverAfter", "a delay must not be negative"),
        ("timestamp'1969-01-01' as __deliverAt", "a time before 1970"),
        ("4 as __partition", "column __partition holds 4, and .* has partitions 0 to 3"),
        ("-2 as __partition", "column __partition holds -2"),
        ("'1' as __partition", "column __partition is string and must be int"),
    ],
)
def test_a_time_or_a_partition_that_cannot_be_is_refused(
    spark: SparkSession, broker: BrokerProcess, partitioned: str, columns: str, said: str
) -> None:
    with pytest.raises(PySparkException, match=said):
        write(spark.sql(f"select 'a' as value, {columns}"), broker, topic=partitioned)


@pytest.mark.parametrize("keyed", [True, False])
def test_a_row_goes_to_the_partition_that_it_names_and_else_to_that_of_its_key(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str, keyed: bool
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "cast(id as string) as value", "case when id < 50 then 3 when id < 60 then -1 end as __partition"
    )
    if keyed:
        rows = rows.withColumn("__key", f.lit("a"))  # whose partition is 1
    write(rows, broker, topic=partitioned)
    client = official(broker.url)
    found = [payloads(client, f"{partitioned}-partition-{index}") for index in range(4)]
    assert {b"%d" % number for number in range(50)} <= set(found[3])
    assert sum(map(len, found)) == 100
    if keyed:
        assert [len(part) for part in found] == [0, 50, 0, 50]


def test_a_topic_without_partitions_takes_what_was_read_from_one_without(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    write(spark.sql("select 'a' as value"), broker, topic=topic)
    source = read(spark, broker, topic)
    columns = spark.read.format("pulsar").options(**{"service.url": broker.url, "topic": topic})
    assert "__partition" not in source.columns
    write(
        columns.option("columns", "value,__partition,__sequenceId,__producerName").load(), broker, topic=f"{topic}-copy"
    )
    assert payloads(official(broker.url), f"{topic}-copy") == [b"a"]


# -- partitions --------------------------------------------------------------------------------------------------------


def test_the_python_client_takes_the_same_partitions_with_the_router_that_the_reference_shows(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str
) -> None:
    said = REFERENCE.read_text(encoding="utf-8")
    (shown,) = [block for block in re.findall(r"```python\n(.*?)```", said, re.DOTALL) if "java_string_hash" in block]
    names: dict[str, Any] = {}
    exec(shown.split("\n\n\nproducer")[0], names)
    create_partitions(broker, f"{partitioned}-python", 4)
    keys = [f"key-{number}" for number in range(10)]
    write(spark.createDataFrame([(key, key) for key in keys], "value string, __key string"), broker, topic=partitioned)
    client = official(broker.url)
    producer = client.create_producer(f"{partitioned}-python", message_router=names["router"])
    for key in keys:
        producer.send(key.encode(), partition_key=key)
    found = {}
    for topic in (partitioned, f"{partitioned}-python"):
        found[topic] = [sorted(payloads(client, f"{topic}-partition-{index}")) for index in range(4)]
    assert found[partitioned] == found[f"{partitioned}-python"]
