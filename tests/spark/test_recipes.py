# SPDX-License-Identifier: Apache-2.0
"""The recipes do what their page says, as they are written but for ports and directories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from deltalake import DeltaTable

from tests.spark.accounted import in_process_of_its_own
from tests.spark.topics import payloads, write
from tools.pages import Block, blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulsar
    from pyspark.sql import SparkSession

    from penstock.testing.process import BrokerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/spark-recipes.md"
ORDERS = "('ann', 30.0D, timestamp'2024-03-01 10:02:00'), ('bob', 12.5D, timestamp'2024-03-01 10:04:00'), "
ORDERS += "('ann', 7.5D, timestamp'2024-03-01 10:17:00')"


def shown(word: str) -> Block:
    """The block of the page that has this word."""
    (found,) = [block for block in blocks(PAGE) if word in block.text and block.kind]
    return found


@pytest.fixture
def with_orders(spark: SparkSession, own_broker: BrokerProcess) -> BrokerProcess:
    rows = spark.sql(f"select * from values {ORDERS} as t(customer, amount, at)").coalesce(1)
    write(rows, own_broker, topic="orders")
    return own_broker


def test_a_repeated_micro_batch_adds_nothing_to_a_delta_table(
    spark: SparkSession, with_orders: BrokerProcess, tmp_path: Path
) -> None:
    program = shown("write_deltalake").text.replace('"tables/', f'"{tmp_path}/tables/')
    program = program.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')

    def run() -> list[str]:
        exec(compile(program, str(PAGE), "exec"), {"spark": spark, "pulsar": {"service.url": with_orders.url}})
        rows = DeltaTable(tmp_path / "tables/orders").to_pyarrow_table().to_pylist()
        return sorted(row["customer"] for row in rows)

    assert run() == ["ann", "ann", "bob"]
    last = max((tmp_path / "checkpoints/delta/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert last.name != "0"
    last.unlink()  # As if the driver had been killed between the commit of the table and Spark's own.
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    assert run() == ["ann", "ann", "bob"]


def test_a_client_of_spark_connect_reads_topics(connect_url: str, with_orders: BrokerProcess, tmp_path: Path) -> None:
    program = shown("remote(").text.replace("sc://localhost:15002", connect_url)
    table = next(block.text for block in blocks(PAGE) if not block.kind)
    settings = f"pulsar = {{'service.url': {with_orders.url!r}}}\n"
    said = in_process_of_its_own([sys.executable, "-c", settings + program], tmp_path)
    assert said.strip() == table.strip()


def test_a_declarative_pipeline_fills_tables_and_topics(
    spark: SparkSession,
    connect_url: str,
    with_orders: BrokerProcess,
    official: Callable[[str], pulsar.Client],
    tmp_path: Path,
) -> None:
    spec = shown("libraries:").text.replace("/var/lib/pipelines/orders", str(tmp_path / "storage"))
    (tmp_path / "pipeline.yml").write_text(spec, encoding="utf-8")
    (tmp_path / "transformations").mkdir()
    program = shown("@dp.table").text.replace("pulsar://localhost:6650", with_orders.url)
    (tmp_path / "transformations/orders.py").write_text(program, encoding="utf-8")
    # What `spark-pipelines` starts, with a server that is there already.
    command = [sys.executable, str(Path(pyspark.__file__).parent / "pipelines/cli.py")]
    command += shown("spark-pipelines run").text.split()[1:]
    try:
        in_process_of_its_own(command, tmp_path, SPARK_REMOTE=connect_url)
        assert [tuple(row) for row in spark.table("totals").orderBy("customer").collect()] == [
            ("ann", 37.5),
            ("bob", 12.5),
        ]
        assert sorted(payloads(official(with_orders.url), "persistent://public/default/large-orders")) == [
            b"12.5",
            b"30.0",
        ]
    finally:
        for table in ("orders", "totals"):
            spark.sql(f"drop table if exists {table}")
