# SPDX-License-Identifier: Apache-2.0
"""What the official client sends arrives right in Spark, what Spark sends arrives right there, and a copy is a copy."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pyspark.sql import functions as f

from tests.spark.topics import payloads, read_all, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

KINDS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")
CHUNKED_BYTES = 12_000_000


def read(spark: SparkSession, broker: BrokerProcess, topic: str) -> DataFrame:
    """A topic, from its beginning to its end."""
    return spark.read.format("pulsar").options(**{"service.url": broker.url, "topic": topic}).load()


def collected(spark: SparkSession, broker: BrokerProcess, topic: str) -> list[Row]:
    """The rows of a topic without partitions."""
    return read(spark, broker, topic).collect()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_the_official_client_arrive_with_all_that_is_said_about_their_messages(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, kind: str
) -> None:
    compression = getattr(pulsar.CompressionType, kind)
    producer = official(broker.url).create_producer(
        topic, compression_type=compression, batching_enabled=True, block_if_queue_full=True
    )
    for number in range(1_500):
        properties = {"n": str(number), "é": "ü"} if number % 3 else None
        key = f"key-{number}" if number % 2 else None
        producer.send_async(
            b"%d" % number, None, partition_key=key, properties=properties, event_timestamp=1_000 * number
        )
    producer.flush()
    rows = collected(spark, broker, topic)
    assert [row.value for row in rows] == [b"%d" % number for number in range(1_500)]
    assert [row["__key"] for row in rows[:4]] == [None, b"key-1", None, b"key-3"]
    assert [row["__messageProperties"] for row in rows[:2]] == [{}, {"n": "1", "é": "ü"}]
    times = read(spark, broker, topic).select(f.unix_millis("__eventTime").alias("ms")).collect()
    assert [row.ms for row in times[1:]] == [1_000 * number for number in range(1, 1_500)]
    assert {row["__topic"] for row in rows} == {topic}


@pytest.mark.parametrize("kind", ["NONE", "ZSTD"])
def test_a_message_in_chunks_arrives_whole_between_others(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, kind: str
) -> None:
    large = random.Random(3).randbytes(CHUNKED_BYTES)
    producer = official(broker.url).create_producer(
        topic, chunking_enabled=True, batching_enabled=False, compression_type=getattr(pulsar.CompressionType, kind)
    )
    for payload in (b"before", large, b"after"):
        producer.send(payload, partition_key="k")
    rows = collected(spark, broker, topic)
    assert [bytes(row.value) for row in rows] == [b"before", large, b"after"]
    assert {row["__key"] for row in rows} == {b"k"}


def test_a_delayed_message_is_read_before_it_is_due(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    producer = official(broker.url).create_producer(topic)
    producer.send(b"later", deliver_after=dt.timedelta(hours=1))
    producer.send(b"now")
    assert [row.value for row in collected(spark, broker, topic)] == [b"later", b"now"]


class Address(pulsar.schema.Record):  # type: ignore[misc]
    """A record in a record."""

    street = pulsar.schema.String()


class Person(pulsar.schema.Record):  # type: ignore[misc]
    """What typed topics hold."""

    name = pulsar.schema.String(required=True)
    age = pulsar.schema.Integer()
    scores = pulsar.schema.Array(pulsar.schema.Double())
    address = Address()


class Seen(pulsar.schema.Record):  # type: ignore[misc]
    """As it was at first."""

    place = pulsar.schema.String()
    count = pulsar.schema.Long()


class SeenSince(pulsar.schema.Record):  # type: ignore[misc]
    """As it is now."""

    place = pulsar.schema.String()
    count = pulsar.schema.Long()
    hour = pulsar.schema.Integer(required_default=True)


ADA: dict[str, Any] = {"name": "Ada", "age": 36, "scores": [1.5, 2.0], "address": {"street": "Main"}}


@pytest.mark.parametrize("make", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
def test_typed_messages_of_the_official_client_become_columns(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, make: type[pulsar.schema.Schema]
) -> None:
    producer = official(broker.url).create_producer(topic, schema=make(Person))
    producer.send(Person(**{**ADA, "address": Address(street="Main")}))
    producer.send(Person(name="Bo"))
    first, second = read(spark, broker, topic).select("name", "age", "scores", "address").collect()
    assert first.asDict(recursive=True) == ADA
    assert second.asDict() == {"name": "Bo", "age": None, "scores": None, "address": (None,)}


@pytest.mark.parametrize("make", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
def test_many_typed_messages_are_columns_each_by_the_schema_that_it_was_written_with(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, make: type[pulsar.schema.Schema]
) -> None:
    client = official(broker.url)
    before = client.create_producer(topic, schema=make(Seen), batching_enabled=True)
    for number in range(300):
        before.send_async(Seen(place=f"place {number}", count=-number), None)
    before.flush()
    since = client.create_producer(topic, schema=make(SeenSince), batching_enabled=True)
    for number in range(300, 600):
        since.send_async(SeenSince(place=f"place {number}", count=-number, hour=number % 24), None)
        before.send_async(Seen(place="before", count=number), None)
    since.flush()
    before.flush()
    rows = read(spark, broker, topic).select("place", "count", "hour").collect()
    assert [row.asDict() for row in rows if row.place != "before"] == [
        {"place": f"place {number}", "count": -number, "hour": None if number < 300 else number % 24}
        for number in range(600)
    ]
    assert [tuple(row) for row in rows if row.place == "before"] == [
        ("before", number, None) for number in range(300, 600)
    ]


@pytest.mark.parametrize("make", [pulsar.schema.JsonSchema, pulsar.schema.AvroSchema])
def test_columns_that_spark_writes_are_typed_messages_for_the_official_client_and_for_spark(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, make: type[pulsar.schema.Schema]
) -> None:
    consumer = official(broker.url).subscribe(topic, "s", schema=make(Person))
    schema = "name string, age int, scores array<double>, address struct<street string>"
    write(spark.createDataFrame([ADA], schema), broker, topic=topic)
    person = consumer.receive(60_000).value()
    assert (person.name, person.age, person.scores, person.address.street) == ("Ada", 36, [1.5, 2.0], "Main")
    (row,) = read(spark, broker, topic).select("name", "age", "scores", "address").collect()
    assert row.asDict(recursive=True) == ADA


@pytest.mark.parametrize("kind", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_what_spark_writes_compressed_is_read_by_the_official_client_and_by_spark(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, kind: str
) -> None:
    df = spark.range(0, 1_500, 1, 1).select(f.format_string("row %05d of many", "id").alias("value"))
    write(df, broker, topic=topic, pulsar__producer__compressionType=kind)
    expected = [b"row %05d of many" % number for number in range(1_500)]
    assert payloads(official(broker.url), topic) == expected
    assert [row.value for row in collected(spark, broker, topic)] == expected


def test_a_topic_is_copied_with_keys_properties_event_times_and_large_values(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    client = official(broker.url)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = random.Random(4).randbytes(CHUNKED_BYTES)
    producer.send(b"plain")
    producer.send(b"all", partition_key="k", properties={"a": "b"}, event_timestamp=1_700_000_000_123)
    producer.send(large)
    write(read(spark, broker, topic), broker, topic=f"{topic}-copy")
    plain, full, whole = read_all(client, f"{topic}-copy")
    assert (plain.data(), plain.partition_key(), plain.properties(), plain.event_timestamp()) == (b"plain", "", {}, 0)
    assert (full.data(), full.partition_key(), full.properties()) == (b"all", "k", {"a": "b"})
    assert full.event_timestamp() == 1_700_000_000_123
    assert whole.data() == large


def test_a_query_copies_one_topic_into_another_once(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    producer = official(deduplicating.url).create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for turn in range(2):
        for number in range(1_000):
            producer.send_async(b"%d" % (1_000 * turn + number), None)
        producer.flush()
        source = spark.readStream.format("pulsar").option("service.url", deduplicating.url).option("topic", topic)
        sink = source.option("startingOffsets", "earliest").load().writeStream.format("pulsar")
        sink = sink.option("service.url", deduplicating.url).option("topic", f"{topic}-copy")
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()
    assert payloads(official(deduplicating.url), f"{topic}-copy") == [b"%d" % number for number in range(2_000)]
