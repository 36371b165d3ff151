# SPDX-License-Identifier: Apache-2.0
"""Spark reads and writes topics: the data source `pulsar`, in Python, for Spark 4.

Why in Python: no jar to match with the versions of Spark and Scala; `pip install penstock[spark]` is all there is.
Where: beside the broker, never in it: it speaks to penstock and to Apache Pulsar over the wire. `source` is what Spark
calls, `client` what speaks the protocol. Spark finds the source by itself as `format("pulsar")`, by way of the package
`pyspark_pulsar`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("pulsar")` known to a session, where Spark has not found it by itself."""
    from penstock.spark.source import PulsarDataSource  # noqa: PLC0415 -- pyspark is large

    spark.dataSource.register(PulsarDataSource)
