# SPDX-License-Identifier: Apache-2.0
"""Tells Spark that there is a data source `pulsar`: it looks into every top-level package named `pyspark_…`.

Why so little: Spark imports all of these to find any of them, and one that fails keeps it from the others.
"""

from __future__ import annotations

from penstock.spark.source import PulsarDataSource

DefaultSource = PulsarDataSource
