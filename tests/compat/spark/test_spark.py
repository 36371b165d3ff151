# SPDX-License-Identifier: Apache-2.0
"""Spark's source and sink against penstock and against Apache Pulsar: the same cases, the same outcome."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pulsar
import pytest
from pyspark.sql import functions as f

from tests.compat.clients import unique
from tests.compat.test_producers import write_keys

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.compat.clients import Admin
    from tests.compat.conftest import Subject

pytestmark = pytest.mark.timeout(480)
TIMEOUT_MS = 10_000


class Reading(pulsar.schema.Record):  # type: ignore[misc]
    """What typed topics hold."""

    name = pulsar.schema.String(required=True)
    level = pulsar.schema.Integer()


def read(spark: SparkSession, broker: Subject, **options: str) -> DataFrame:
    """A batch."""
    return spark.read.format("pulsar").option("service.url", broker.url).options(**options).load()


def write(df: DataFrame, broker: Subject, **options: str) -> None:
    """A batch, the other way."""
    df.write.format("pulsar").mode("append").option("service.url", broker.url).options(**options).save()


def copy(spark: SparkSession, broker: Subject, source: str, sink: str, checkpoint: Path) -> None:
    """A query that copies what there is now, and says of each row where it was read."""
    options = {"service.url": broker.url}
    stream = spark.readStream.format("pulsar").options(**options, topic=source, provenance="true")
    written = stream.option("startingOffsets", "earliest").load().writeStream.format("pulsar").options(**options)
    written = written.option("topic", sink).option("checkpointLocation", str(checkpoint))
    written.trigger(availableNow=True).start().awaitTermination()


def texts(rows: list[Row]) -> list[str]:
    """The values of rows, sorted."""
    return sorted(row.value.decode() for row in rows)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    """Rows with a value of text."""
    return spark.range(0, count, 1, 2).select(f.format_string("%06d", "id").alias("value"))


def named(count: int, first: int = 0) -> list[str]:
    """The values of such rows."""
    return [f"{number:06}" for number in range(first, first + count)]


def publish(producer: pulsar.Producer, count: int, first: int = 0) -> None:
    """The same from the official client."""
    for text in named(count, first):
        producer.send_async(text.encode(), None)
    producer.flush()


@pytest.mark.feature("spark-batch-read")
@pytest.mark.feature("partitioned")
@pytest.mark.feature("batching")
def test_a_batch_reads_every_message_of_every_partition_once(
    spark: SparkSession, broker: Subject, client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = admin.create_partitioned(local, 3)
    publish(client.create_producer(topic, batching_enabled=True, block_if_queue_full=True), 3_000)
    assert texts(read(spark, broker, topic=topic).collect()) == named(3_000)


@pytest.mark.feature("spark-batch-read")
@pytest.mark.feature("pattern")
def test_a_batch_reads_all_topics_of_a_pattern(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str
) -> None:
    for number in range(3):
        client.create_producer(f"{topic}-{number}").send(b"%d" % number)
    found = read(spark, broker, topicsPattern=f"{topic.removeprefix('persistent://')}-[02]").collect()
    assert texts(found) == ["0", "2"]


@pytest.mark.feature("encryption")
def test_encrypted_messages_go_both_ways(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    write_keys(public, private)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(
        topic, encryption_key="k", crypto_key_reader=keys, compression_type=pulsar.CompressionType.LZ4
    )
    publish(producer, 50)
    crypto = {"encryptionKeys": "k", "cryptoKeyReader.publicKeys": str(public)}
    write(numbers(spark, 100).where("value >= '000050'"), broker, topic=topic, **crypto)
    assert sorted(consumer.receive(TIMEOUT_MS).data().decode() for _ in range(100)) == named(100)
    found = read(spark, broker, topic=topic, **{"cryptoKeyReader.privateKeys": str(private)}).collect()
    assert texts(found) == named(100)


@pytest.mark.feature("spark-batch-write")
@pytest.mark.feature("partitioned")
def test_a_batch_writes_every_row_once(
    spark: SparkSession, broker: Subject, client: pulsar.Client, admin: Admin, local: str
) -> None:
    topic = admin.create_partitioned(local, 3)
    consumer = client.subscribe(topic, "s")
    write(numbers(spark, 3_000), broker, topic=topic)
    assert sorted(consumer.receive(TIMEOUT_MS).data().decode() for _ in range(3_000)) == named(3_000)


@pytest.mark.feature("compression")
@pytest.mark.parametrize("kind", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_what_is_written_compressed_is_read_by_the_official_client_and_by_spark(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str, kind: str
) -> None:
    consumer = client.subscribe(topic, "s")
    write(numbers(spark, 200), broker, topic=topic, **{"pulsar.producer.compressionType": kind})
    assert sorted(consumer.receive(TIMEOUT_MS).data().decode() for _ in range(200)) == named(200)
    assert texts(read(spark, broker, topic=topic).collect()) == named(200)


@pytest.mark.feature("chunking")
def test_a_value_larger_than_the_broker_takes_goes_and_comes_in_chunks(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str
) -> None:
    large = random.Random(6).randbytes(11_000_000)
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    producer.send(large)
    consumer = client.subscribe(f"{topic}-copy", "s")
    write(read(spark, broker, topic=topic), broker, topic=f"{topic}-copy")
    assert consumer.receive(TIMEOUT_MS).data() == large


@pytest.mark.feature("keys-and-properties")
def test_keys_properties_and_event_times_go_both_ways(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(topic).send(b"v", partition_key="k", properties={"a": "ü"}, event_timestamp=1_234)
    (row,) = read(spark, broker, topic=topic).withColumn("ms", f.unix_millis("__eventTime")).collect()
    assert (row["__key"], row["__messageProperties"], row["ms"]) == (b"k", {"a": "ü"}, 1_234)
    consumer = client.subscribe(f"{topic}-copy", "s")
    write(read(spark, broker, topic=topic), broker, topic=f"{topic}-copy")
    message = consumer.receive(TIMEOUT_MS)
    assert (message.data(), message.partition_key(), message.properties()) == (b"v", "k", {"a": "ü"})
    assert message.event_timestamp() == 1_234


@pytest.mark.feature("delayed")
def test_a_delayed_message_is_read_before_it_is_due(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str
) -> None:
    import datetime as dt

    client.create_producer(topic).send(b"later", deliver_after=dt.timedelta(hours=1))
    assert texts(read(spark, broker, topic=topic).collect()) == ["later"]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(pulsar.schema.JsonSchema, marks=pytest.mark.feature("schema-json")),
        pytest.param(pulsar.schema.AvroSchema, marks=pytest.mark.feature("schema-avro")),
    ],
)
def test_columns_are_typed_messages_both_ways(
    spark: SparkSession, broker: Subject, client: pulsar.Client, topic: str, make: type[pulsar.schema.Schema]
) -> None:
    client.create_producer(topic, schema=make(Reading)).send(Reading(name="a", level=1))
    consumer = client.subscribe(topic, "s", schema=make(Reading))
    write(spark.sql("select 'b' as name, 2 as level"), broker, topic=topic)
    found = consumer.receive(TIMEOUT_MS).value()
    assert (found.name, found.level) == ("b", 2)
    rows = read(spark, broker, topic=topic).select("name", "level").orderBy("name").collect()
    assert [tuple(row) for row in rows] == [("a", 1), ("b", 2)]


@pytest.mark.feature("spark-stream-read")
@pytest.mark.feature("spark-stream-write")
@pytest.mark.feature("reader")
def test_a_query_goes_on_where_it_stopped(
    spark: SparkSession, broker: Subject, client: pulsar.Client, admin: Admin, local: str, tmp_path: Path
) -> None:
    topic = admin.create_partitioned(local, 2)
    sink = f"persistent://public/default/{unique('sink')}"
    producer = client.create_producer(topic, block_if_queue_full=True)
    for turn in range(2):
        publish(producer, 1_000, first=1_000 * turn)
        copy(spark, broker, topic, sink, tmp_path / "checkpoint")
    assert texts(read(spark, broker, topic=sink).collect()) == named(2_000)


@pytest.mark.feature("spark-stream-write")
@pytest.mark.feature("deduplication")
def test_a_micro_batch_that_comes_again_adds_nothing_where_topics_deduplicate(
    spark: SparkSession, broker: Subject, client: pulsar.Client, admin: Admin, topic: str, tmp_path: Path
) -> None:
    namespace = admin.create_namespace(deduplication=True)
    sink = f"persistent://{namespace}/sink"
    publish(client.create_producer(topic, block_if_queue_full=True), 2_000)
    copy(spark, broker, topic, sink, tmp_path / "checkpoint")
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    copy(spark, broker, topic, sink, tmp_path / "checkpoint")
    assert texts(read(spark, broker, topic=sink).collect()) == named(2_000)
