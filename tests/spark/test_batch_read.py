# SPDX-License-Identifier: Apache-2.0
"""`spark.read.format("pulsar")`: what the official client wrote becomes rows."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.errors import AnalysisException, PySparkException

from penstock.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


def load(spark: SparkSession, broker: BrokerProcess, **options: object) -> DataFrame:
    reader = spark.read.format("pulsar").option("service.url", broker.url)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def publish(client: pulsar.Client, topic: str, count: int, **options: Any) -> None:  # noqa: ANN401
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    for number in range(count):
        producer.send_async(
            b"%d" % number,
            lambda *_: None,
            partition_key=f"k{number}",
            properties={"n": str(number)},
            event_timestamp=1000 + number,
        )
    producer.flush()


def test_every_column_is_what_was_sent(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    publish(official(broker.url), topic, 3)
    found = load(spark, broker, topic=topic)
    first, *_ = rows = sorted(found.collect(), key=lambda row: row["value"])
    assert [bytes(row["value"]) for row in rows] == [b"0", b"1", b"2"]
    assert (bytes(first["__key"]), first["__topic"], first["__messageProperties"]) == (b"k0", topic, {"n": "0"})
    assert first["__eventTime"] == dt.datetime(1970, 1, 1, 0, 0, 1)  # noqa: DTZ001 -- Spark's have no zone
    assert pulsar.MessageId.deserialize(bytes(first["__messageId"])).entry_id() == 0


def test_partitions_are_read_by_several_tasks_and_nothing_is_read_twice(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str
) -> None:
    publish(official(broker.url), partitioned, 4000, batching_enabled=False)
    found = load(spark, broker, topic=partitioned, minPartitions=8, columns="value,__partition")
    assert found.columns == ["value", "__partition"]
    assert found.rdd.getNumPartitions() >= 8
    assert sorted(int(row["value"]) for row in found.collect()) == list(range(4000))


def test_several_topics_and_a_pattern_find_the_same(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    client = official(broker.url)
    for name in "ab":
        publish(client, f"{topic}-{name}", 10)
    listed = load(spark, broker, topics=f"{topic}-a, {topic}-b", columns="__topic,value")
    local = topic.rpartition("/")[2]
    matched = load(spark, broker, topicsPattern=f"public/default/{local}-.", columns="__topic,value")
    assert sorted(listed.collect()) == sorted(matched.collect())
    assert listed.count() == 20


def test_ranges_by_ids_and_by_time_are_exact(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    publish(official(broker.url), topic, 20, batching_enabled=False)
    first, *_ = load(spark, broker, topic=topic).collect()
    ledger = pulsar.MessageId.deserialize(bytes(first["__messageId"])).ledger_id()
    found = load(
        spark,
        broker,
        topic=topic,
        startingOffsets=json.dumps({topic: [ledger, 5]}),
        endingOffsets=json.dumps({topic: [ledger, 8]}),
    )
    assert [int(row["value"]) for row in found.collect()] == [5, 6, 7]
    assert load(spark, broker, topic=topic, endingTime=1).count() == 0
    assert load(spark, broker, topic=topic, startingTime=1, endingTime=2**42).count() == 20


def test_a_json_schema_makes_columns_of_its_fields(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # published without types
        id = pulsar.schema.Integer()
        name = pulsar.schema.String()

    producer = official(broker.url).create_producer(topic, schema=pulsar.schema.JsonSchema(Order))
    for number in range(3):
        producer.send(Order(id=number, name=f"n{number}"))
    found = load(spark, broker, topic=topic).select("id", "name")
    assert sorted(map(tuple, found.collect())) == [(0, "n0"), (1, "n1"), (2, "n2")]
    assert load(spark, broker, topic=topic, valueFormat="string").schema["value"].dataType.simpleString() == "string"


def test_an_empty_topic_has_no_rows(spark: SparkSession, broker: BrokerProcess, official: Official, topic: str) -> None:
    official(broker.url).create_producer(topic)
    assert load(spark, broker, topic=topic).count() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t", "startingOfsets": "earliest"}, ["did you mean startingOffsets"]),
        ({"topic": "no-such-topic"}, ["TOPIC_NOT_FOUND", "no-such-topic"]),
        ({"topic": "t", "service.url": "pulsar://127.0.0.1:1", "operationTimeoutMs": "100"}, ["pulsar://127.0.0.1:1"]),
    ],
)
def test_mistakes_are_told_before_anything_is_read(
    spark: SparkSession, broker: BrokerProcess, options: dict[str, str], words: list[str]
) -> None:
    with pytest.raises((AnalysisException, PySparkException)) as caught:
        load(spark, broker, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_it_can_be_registered_by_hand_and_used_from_sql(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    publish(official(broker.url), topic, 5)
    register(spark)
    spark.sql(f"CREATE TEMPORARY VIEW orders USING pulsar OPTIONS ('service.url' '{broker.url}', topic '{topic}')")
    try:
        assert spark.sql("SELECT * FROM orders").count() == 5
    finally:
        spark.catalog.dropTempView("orders")
