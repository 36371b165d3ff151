# SPDX-License-Identifier: Apache-2.0
"""Tells Spark that there is a data source `pulsar`: it looks into every top-level package named `pyspark_…`.

Why so little: Spark imports all of these to find any of them, and one that fails keeps it from the others.
"""

from __future__ import annotations

from typing import Any

from penstock.spark import versions

try:
    versions.check()
except versions.UnsupportedSpark as error:
    # An exception here would keep Spark from finding the data sources of other packages, too.
    from pyspark.sql.datasource import DataSource

    _why = str(error)

    class DefaultSource(DataSource):
        """Tells whoever uses it that this Spark is too old."""

        @classmethod
        def name(cls) -> str:
            return "pulsar"

        def __init__(self, options: Any) -> None:  # noqa: ANN401, ARG002 -- as Spark calls it
            raise versions.UnsupportedSpark(_why)

else:
    from penstock.spark.source import PulsarDataSource

    DefaultSource = PulsarDataSource  # type: ignore[assignment,misc]
