# SPDX-License-Identifier: Apache-2.0
"""The SparkSession of these cases is the one that Spark's other tests have."""

from __future__ import annotations

from tests.spark.conftest import spark as spark  # noqa: PLC0414 -- a fixture, named once more for pytest
