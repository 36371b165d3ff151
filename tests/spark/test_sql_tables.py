# SPDX-License-Identifier: Apache-2.0
"""A topic is a table of SQL: it is created, inserted into and selected from, and no other topic is written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.topics import stored, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess


@pytest.fixture
def tables(spark: SparkSession, broker: BrokerProcess, topic: str) -> Iterator[list[str]]:
    """Two tables of the same columns, each with one row, and the names of their topics."""
    topics = [f"{topic}-{name}" for name in "ab"]
    for name, where in zip("ab", topics, strict=True):
        write(spark.sql(f"select 1 as id, '{name}' as name"), broker, topic=where)
        spark.sql(f"create table {name} using pulsar options ('service.url' '{broker.url}', 'topic' '{where}')")
    yield topics
    for name in ("a", "b", "c"):
        spark.sql(f"drop table if exists {name}")


def test_a_table_is_selected_from_and_inserted_into(
    spark: SparkSession, broker: BrokerProcess, tables: list[str], tmp_path: Path
) -> None:
    spark.sql("insert into a (id, name, __key) values (2, 'two', cast('k' as binary))")
    spark.sql("insert into a by name select 'three' as name, 3 as id")
    rows = spark.sql("select id, name, cast(__key as string) as key, __topic from a order by id").collect()
    assert [(row.id, row.name, row.key) for row in rows] == [(1, "a", None), (2, "two", "k"), (3, "three", None)]
    assert {row["__topic"] for row in rows} == {tables[0]}
    one = spark.sql("select * from a with ('columns' = 'id') where id > 2")
    assert [row.id for row in one.collect()] == [3]
    stream = spark.readStream.option("startingOffsets", "earliest").table("a").select("id")
    sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "p"))
    sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "p")).count() == 3


def test_a_table_that_is_filled_from_another_of_the_same_columns_is_the_one_that_grows(
    spark: SparkSession, broker: BrokerProcess, tables: list[str]
) -> None:
    spark.sql("insert into a select * from b")
    spark.table("b").write.insertInto("a")
    spark.table("b").writeTo("a").append()
    assert [stored(broker.admin_url, topic) for topic in tables] == [4, 1]
    assert sorted(row.name for row in spark.table("a").collect()) == ["a", "b", "b", "b"]


def test_tables_whose_options_spark_has_not_kept_are_told_and_write_nowhere(
    spark: SparkSession, broker: BrokerProcess, tables: list[str]
) -> None:
    options = f"options ('service.url' '{broker.url}', 'topic' '{tables[0]}')"
    with pytest.raises(PySparkException, match="Spark keeps none for a table that is created with a list of columns"):
        spark.sql(f"create table c using pulsar {options} as select * from b")
    spark.sql("drop table if exists c")
    spark.sql(f"create table c (id int, name string) using pulsar {options}")
    for query in ("select * from c", "insert into c select id, name from b"):
        with pytest.raises(PySparkException, match="create it without, as CREATE TABLE t USING pulsar"):
            spark.sql(query).collect()
    assert [stored(broker.admin_url, topic) for topic in tables] == [1, 1]


def test_a_dataframe_of_a_table_is_written_where_its_writer_says(
    spark: SparkSession, broker: BrokerProcess, tables: list[str]
) -> None:
    write(spark.table("b"), broker, topic=tables[0])
    assert [stored(broker.admin_url, topic) for topic in tables] == [2, 1]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("insert overwrite a select * from b", "a topic cannot be overwritten"),
        ("insert into a (name) values ('x')", "column id is null in some rows"),
        (
            "create table c using pulsar options ('service.url' 'pulsar://h:1', 'topic' 't', 'token' 'abc')",
            "file:///path",
        ),
        ("create table c using pulsar options ('service.url' 'pulsar://h:1', 'topik' 't')", "did you mean topic?"),
    ],
)
def test_what_cannot_be_done_with_a_table_is_told(
    spark: SparkSession, broker: BrokerProcess, tables: list[str], query: str, said: str
) -> None:
    with pytest.raises(PySparkException) as told:
        spark.sql(query).collect()
    assert said in str(told.value)
    assert "abc" not in str(told.value)
