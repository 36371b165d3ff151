# SPDX-License-Identifier: Apache-2.0
"""The Spark data source `pulsar`, in Python, for Spark 4: reads and writes topics.

Why in Python: there is no jar to match with the versions of Spark and Scala; the extra `spark` of penstock is enough.

Where: beside the broker, never in it: it connects to penstock and to Apache Pulsar with the client protocol. `source`
is what Spark calls, `client` speaks the protocol. Spark finds `format("pulsar")` by the package `pyspark_pulsar`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("pulsar")` with a session, if Spark has not found it automatically.

    Raises:
        UnsupportedSpark: this version of Spark is too old.
    """
    versions.check()
    from penstock.spark.source import PulsarDataSource  # noqa: PLC0415 -- pyspark is large

    spark.dataSource.register(PulsarDataSource)
