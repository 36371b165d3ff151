# SPDX-License-Identifier: Apache-2.0
"""A DataFrame is written once: every row arrives as its columns say, where they say."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tests.spark.topics import create_partitions, payloads, read_all, write

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulsar
    from pyspark.sql import DataFrame, SparkSession

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

PRODUCER = "pulsar.producer."


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    """Rows 0 to count − 1 with a value of text."""
    return spark.range(0, count, 1, partitions).select(f.col("id").cast("string").alias("value"))


# -- columns ---------------------------------------------------------------------------------------------------------


def test_a_message_says_what_every_column_of_its_row_said(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    at = dt.datetime(2024, 2, 29, 12, 30, 0, 123_999, tzinfo=dt.UTC)
    rows: list[tuple[Any, ...]] = [
        (b"\x00\xff", "k", {"a": "1", "é": ""}, at),
        (b"", None, None, None),
        (None, "gone", {}, at),
    ]
    schema = "value binary, __key string, __messageProperties map<string,string>, __eventTime timestamp"
    write(spark.createDataFrame(rows, schema).coalesce(1), broker, topic=topic)
    first, second, third = read_all(official(broker.url), topic)
    assert (first.data(), first.partition_key(), first.properties()) == (b"\x00\xff", "k", {"a": "1", "é": ""})
    assert first.event_timestamp() == int(at.timestamp() * 1000)
    assert (second.data(), second.partition_key(), second.properties(), second.event_timestamp()) == (b"", "", {}, 0)
    assert (third.data(), third.partition_key()) == (b"", "gone")


def test_values_of_text_and_event_times_in_milliseconds_are_taken_as_they_are(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    df = spark.createDataFrame([("grüße", 1_700_000_000_123)], "value string, __eventTime bigint")
    write(df, broker, topic=topic)
    (message,) = read_all(official(broker.url), topic)
    assert (message.data().decode(), message.event_timestamp()) == ("grüße", 1_700_000_000_123)


def test_a_binary_key_that_is_text_is_sent_as_text_and_another_in_base64(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    df = spark.createDataFrame([(b"a", b"text"), (b"b", b"\xff\x00"), (b"c", None)], "value binary, __key binary")
    write(df.coalesce(1), broker, topic=topic)
    assert [message.partition_key() for message in read_all(official(broker.url), topic)] == ["text", "/wA=", ""]


def test_each_row_goes_to_the_topic_it_names(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    df = numbers(spark, 100).withColumn("__topic", f.concat(f.lit(f"{topic}-"), f.col("value") % 2))
    write(df, broker)
    for remainder in range(2):
        found = {int(payload) for payload in payloads(official(broker.url), f"{topic}-{remainder}")}
        assert found == set(range(remainder, 100, 2))


def test_the_option_topic_goes_before_the_column(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    write(numbers(spark, 10).withColumn("__topic", f.lit(f"{topic}-other")), broker, topic=topic)
    assert len(payloads(official(broker.url), topic)) == 10


# -- entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batching", ["true", "false"])
def test_rows_of_one_task_keep_their_order(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, batching: str
) -> None:
    write(numbers(spark, 2_500, 1), broker, topic=topic, pulsar__producer__batchingEnabled=batching)
    found = read_all(official(broker.url), topic)
    assert [int(message.data()) for message in found] == list(range(2_500))
    assert (found[0].message_id().batch_index() >= 0) == (batching == "true")


def test_values_larger_than_the_broker_takes_arrive_whole(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str
) -> None:
    sizes = [10, 6_000_000, 20, 12_000_000]
    consumer = official(broker.url).subscribe(topic, "s")
    df = spark.createDataFrame([(size,) for size in sizes], "size int").coalesce(1)
    write(df.select(f.expr("repeat('x', size)").alias("value")), broker, topic=topic)
    assert [len(consumer.receive(60_000).data()) for _ in sizes] == sizes


# -- partitions ------------------------------------------------------------------------------------------------------


# The hashes of "a", "hello" and "key1" modulo 4, by the reference implementations.
@pytest.mark.parametrize(("scheme", "places"), [("Murmur3_32Hash", (2, 3, 1)), ("JavaStringHash", (1, 2, 2))])
def test_keys_go_to_the_partitions_that_other_producers_with_that_hash_choose(
    spark: SparkSession,
    broker: BrokerProcess,
    official: Official,
    partitioned: str,
    scheme: str,
    places: tuple[int, int, int],
) -> None:
    keys = ["a", "hello", "key1"]
    df = spark.createDataFrame([(key, key) for key in keys * 10], "value string, __key string")
    write(df, broker, topic=partitioned, pulsar__producer__hashingScheme=scheme)
    client = official(broker.url)
    for key, place in zip(keys, places, strict=True):
        assert payloads(client, f"{partitioned}-partition-{place}").count(key.encode()) == 10


def test_rows_without_a_key_are_spread_over_all_partitions(
    spark: SparkSession, broker: BrokerProcess, official: Official, partitioned: str
) -> None:
    write(numbers(spark, 12_000), broker, topic=partitioned)
    found = [payloads(official(broker.url), f"{partitioned}-partition-{index}") for index in range(4)]
    assert sorted(int(payload) for part in found for payload in part) == list(range(12_000))
    assert min(map(len, found)) >= 2_000


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        ("select 'a' as value", {}, "give the option topic, or a column __topic"),
        ("select 1 as value", {"topic": "t"}, "column value is int and must be binary, string or a struct"),
        ("select 'a' as value, 1 as x", {"topic": "t"}, "beside `value` there are the columns x"),
        ("select 'a' as __key", {"topic": "t"}, "there is nothing to write"),
        ("select 'a' as value, 1 as __key", {"topic": "t"}, "column __key is int and must be string or binary"),
        ("select 'a' as value", {"topic": "a/b"}, "want topic, tenant/namespace/topic"),
        ("select 'a' as value", {"topic": "t", "valueFormat": "xml"}, "must be one of json, avro"),
        (
            "select 'a' as value",
            {"topic": "t", f"{PRODUCER}compressionType": "rar"},
            "option pulsar.producer.compressionType is 'rar' and must be one of NONE, LZ4, ZLIB, ZSTD, SNAPPY",
        ),
        ("select 'a' as value", {"topic": "t", f"{PRODUCER}batchingMaxMessages": "0"}, "must be 1 or more"),
        (
            "select 'a' as value",
            {"topic": "t", f"{PRODUCER}sendTimeout": "1"},
            "did you mean pulsar.producer.sendTimeoutMs?",
        ),
        ("select 'a' as value, cast(null as string) as __topic", {}, "column __topic is null in some rows"),
        (
            "select 'a' as value, timestamp'1969-01-01' as __eventTime",
            {"topic": "t"},
            "a time before 1970, which a message cannot say",
        ),
    ],
)
def test_what_cannot_be_written_is_said_with_what_to_do(
    spark: SparkSession, broker: BrokerProcess, query: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as told:
        write(spark.sql(query), broker, **options)
    assert said in str(told.value)


def test_a_topic_cannot_be_overwritten(spark: SparkSession, broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(PySparkException, match=r"a topic cannot be overwritten: write with mode\('append'\)"):
        write(numbers(spark, 1), broker, mode="overwrite", topic=topic)


# -- once ------------------------------------------------------------------------------------------------------------


def test_a_job_with_a_name_that_runs_again_adds_nothing_where_topics_deduplicate(
    spark: SparkSession, deduplicating: BrokerProcess, official: Official, topic: str
) -> None:
    create_partitions(deduplicating, topic, 2)
    for _ in range(2):
        write(numbers(spark, 5_000), deduplicating, topic=topic, pulsar__producer__producerName="nightly")
    found = [
        payload for index in range(2) for payload in payloads(official(deduplicating.url), f"{topic}-partition-{index}")
    ]
    assert sorted(map(int, found)) == list(range(5_000))
