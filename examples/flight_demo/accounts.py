# SPDX-License-Identifier: Apache-2.0
"""Who used what: tables of what the replay's broker has recorded, and a report of them.

Where: the analysis ends with it, on the records that the broker wrote while the year was replayed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.cli.spark_report import render
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.findings import gather
from penstock.spark.accounting.records_source import Source
from penstock.spark.accounting.store import existing_store
from penstock.spark.accounting.stream import Accounting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from examples.flight_demo.flights import Year
    from examples.flight_demo.report import Report
    from penstock.testing.process import BrokerProcess

TARGET: Final = 0.99


def account(
    spark: SparkSession, broker: BrokerProcess, year: Year, directory: Path, page: Path, report: Report
) -> None:
    """Make the tables, check their sums against the flights, and write the page."""
    begun_s = time.monotonic()
    tables = directory / "tables"
    accounting = Accounting(spark=spark, source=Source(url=broker.url), tables=tables)
    accounting.run_once()
    accounting.refresh()
    usage = ds.dataset(tables / "topic_usage", partitioning="hive").to_table(columns=["topic", "published_messages"])
    topics = pa.array([year.topic(airline) for airline in year.airlines])
    messages = pc.sum(usage.filter(pc.is_in(usage["topic"], topics))["published_messages"]).as_py() or 0
    report.check(
        messages == len(year.flights),
        "the tables of usage, made of the broker's records, have every flight",
        f"{messages:,} of {len(year.flights):,}",
    )
    found = gather(existing_store(directory_of(tables)), target=TARGET)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(render(found, target=TARGET), encoding="utf-8")
    report.figures["who used what"] = f"{page} (tables and report in {time.monotonic() - begun_s:,.1f} s)"
