# SPDX-License-Identifier: Apache-2.0
"""Rows of several columns become JSON or Avro, as the topic's schema wants them."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from typing import TYPE_CHECKING

import fastavro
import pulsar
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from penstock.spark.structs import avro_record
from tests.spark.topics import read_all, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

STRUCT = (
    "select 7 as id, 'n' as name, cast(null as double) as share, array(1L, null) as counts, "
    "map('a', named_struct('deep', true)) as more, X'00ff' as raw, cast('12.50' as decimal(9,2)) as price, "
    "date'2024-02-29' as day, timestamp'2024-02-29 12:30:00.123456' as at"
)
MICROS = 1_709_209_800_123_456


def test_columns_without_a_value_among_them_are_written_as_json_with_a_schema_that_says_so(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    write(spark.sql(STRUCT).withColumn("__key", f.lit("k")), broker, topic=topic)
    (message,) = read_all(official(broker.url), topic)
    assert message.partition_key() == "k"
    assert json.loads(message.data()) == {
        "id": 7,
        "name": "n",
        "share": None,
        "counts": [1, None],
        "more": {"a": {"deep": True}},
        "raw": "AP8=",
        "price": "12.50",
        "day": 19_782,
        "at": MICROS,
    }


def test_a_struct_is_written_as_avro_when_asked_to(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    df = spark.sql(STRUCT)
    write(df.select(f.struct("*").alias("value")), broker, topic=topic, valueFormat="avro")
    (message,) = read_all(official(broker.url), topic)
    schema = avro_record(df.schema, "Row")
    assert fastavro.schemaless_reader(io.BytesIO(message.data()), schema, None) == {
        "id": 7,
        "name": "n",
        "share": None,
        "counts": [1, None],
        "more": {"a": {"deep": True}},
        "raw": b"\x00\xff",
        "price": decimal.Decimal("12.50"),
        "day": dt.date(2024, 2, 29),
        "at": dt.datetime(2024, 2, 29, 12, 30, 0, 123_456, tzinfo=dt.UTC),
    }


class Person(pulsar.schema.Record):  # type: ignore[misc]
    """What the topics of the next tests hold."""

    name = pulsar.schema.String(required=True)
    age = pulsar.schema.Integer()


@pytest.mark.parametrize("schema", [pulsar.schema.JsonSchema(Person), pulsar.schema.AvroSchema(Person)])
def test_a_topic_that_has_a_schema_is_written_with_it(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, schema: pulsar.schema.Schema
) -> None:
    consumer = official(broker.url).subscribe(topic, "s", schema=schema)
    write(spark.sql("select 'Ada' as name, 36 as age"), broker, topic=topic)
    write(spark.sql("select 'Bo' as name"), broker, topic=topic)
    people = [consumer.receive(60_000).value() for _ in range(2)]
    assert [(person.name, person.age) for person in people] == [("Ada", 36), ("Bo", None)]


def test_a_column_that_the_topics_schema_lacks_is_refused_by_name(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    official(broker.url).create_producer(topic, schema=pulsar.schema.JsonSchema(Person))
    with pytest.raises(PySparkException, match=f"the schema of {topic} has no field for shoes"):
        write(spark.sql("select 'Ada' as name, 38 as shoes"), broker, topic=topic)
