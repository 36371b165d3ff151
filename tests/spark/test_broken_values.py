# SPDX-License-Identifier: Apache-2.0
"""A value that does not read as its topic's schema fails the query, becomes null beside its bytes, or is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulsar
import pytest
from pyspark.errors import PySparkException

from penstock.spark.source import PulsarDataSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    """A topic's schema."""

    id = pulsar.schema.Integer(required=True)
    name = pulsar.schema.String(required=True)


JSON, AVRO = pulsar.schema.JsonSchema(Reading), pulsar.schema.AvroSchema(Reading)
BROKEN = {"json": [b"not json", b'{"id": "x", "name": "y"}', b"[]"], "avro": [b"\xff", b"", b"\x02"]}


def read(spark: SparkSession, broker: BrokerProcess, topic: str, mode: str, **options: str) -> DataFrame:
    wanted = {"service.url": broker.url, "topic": topic, "mode": mode, **options}
    return spark.read.format("pulsar").options(**wanted).load()


@pytest.fixture(params=["json", "avro"])
def mixed(
    request: pytest.FixtureRequest, broker: BrokerProcess, official: Official, topic: str
) -> tuple[str, list[bytes]]:
    """A topic of 30 readings with three broken values among them, and these."""
    client = official(broker.url)
    good = client.create_producer(topic, schema=JSON if request.param == "json" else AVRO)
    raw = client.create_producer(topic)
    for number in range(30):
        good.send(Reading(id=number, name=f"n{number}"))
        if number % 10 == 5:
            raw.send(BROKEN[request.param][number // 10])
    return topic, BROKEN[request.param]


def test_a_broken_value_fails_the_query_unless_said_otherwise(
    spark: SparkSession, broker: BrokerProcess, mixed: tuple[str, list[bytes]]
) -> None:
    with pytest.raises(PySparkException, match="a value does not read as the topic's schema"):
        read(spark, broker, mixed[0], "failfast").collect()


def test_permissive_has_nulls_and_the_bytes_of_the_broken_values_and_all_others_as_they_are(
    spark: SparkSession, broker: BrokerProcess, mixed: tuple[str, list[bytes]]
) -> None:
    topic, broken = mixed
    table = read(spark, broker, topic, "permissive")
    assert table.columns[:4] == ["id", "name", "_corrupt_record", "__key"]
    rows = table.collect()
    assert [row.id for row in rows if row["_corrupt_record"] is None] == list(range(30))
    assert [
        (row.id, row.name, bytes(row["_corrupt_record"])) for row in rows if row["_corrupt_record"] is not None
    ] == [(None, None, value) for value in broken]


def test_the_bytes_of_broken_values_can_be_read_as_text_under_another_name_and_alone(
    spark: SparkSession, broker: BrokerProcess, mixed: tuple[str, list[bytes]]
) -> None:
    topic, broken = mixed
    wanted = {"service.url": broker.url, "topic": topic, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "bad"}
    rows = spark.read.format("pulsar").options(**wanted).schema("bad string").load().where("bad is not null").collect()
    assert [row.bad for row in rows] == [value.decode("utf-8", "replace") for value in broken]


def test_dropmalformed_leaves_out_the_broken_values(
    spark: SparkSession, broker: BrokerProcess, mixed: tuple[str, list[bytes]]
) -> None:
    assert [row.id for row in read(spark, broker, mixed[0], "DROPMALFORMED").collect()] == list(range(30))


def test_a_task_that_drops_broken_values_logs_how_many(
    broker: BrokerProcess, mixed: tuple[str, list[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    source = PulsarDataSource({"service.url": broker.url, "topic": mixed[0], "mode": "DROPMALFORMED"})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 30
    (said,) = caplog.messages
    assert said.startswith(f"{mixed[0]}: 3 messages from ")


def test_a_stream_goes_on_past_broken_values(
    spark: SparkSession, broker: BrokerProcess, mixed: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    stream = spark.readStream.format("pulsar").options(
        **{"service.url": broker.url, "topic": mixed[0], "startingOffsets": "earliest", "mode": "PERMISSIVE"}
    )
    sink = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "table"))
    sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    found = spark.read.parquet(str(tmp_path / "table"))
    assert (found.count(), found.where("_corrupt_record is not null").count()) == (33, 3)


def test_a_mode_that_there_is_not_and_a_name_that_is_taken_are_refused(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    official(broker.url).create_producer(topic, schema=JSON)
    with pytest.raises(PySparkException, match="FAILFAST, PERMISSIVE, DROPMALFORMED"):
        read(spark, broker, topic, "lenient")
    with pytest.raises(PySparkException, match="the topic's schema has a field name, too"):
        read(spark, broker, topic, "PERMISSIVE", columnNameOfCorruptRecord="name")
