# SPDX-License-Identifier: Apache-2.0
"""Spark reads usage records with the schema that the broker registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as of

from penstock.core.system_topics import USAGE_TOPIC
from penstock.testing.broker import serving
from tests.spark.topics import stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar
    from pyspark.sql import SparkSession

    from penstock.testing.broker import RunningBroker

    Official = Callable[[str], pulsar.Client]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[RunningBroker]:
    given = {"usageRecordsEnabled": "true", "usageRecordsIntervalInSeconds": "1"}
    with serving(given, data_dir=tmp_path / "data", own_process=True) as broker:
        yield broker


def test_records_are_rows_whose_counters_add_up(
    spark: SparkSession, recording: RunningBroker, official: Official, topic: str
) -> None:
    producer = official(recording.url).create_producer(topic)
    for _ in range(7):
        producer.send(b"hello")
    before = stored(recording.admin_url, USAGE_TOPIC)
    while stored(recording.admin_url, USAGE_TOPIC) < before + 3:
        producer.send(b"more")  # until records that came after the messages are there
    rows = spark.read.format("pulsar").option("service.url", recording.url).option("topic", USAGE_TOPIC).load()

    used = (
        rows.where((of.col("scope") == "topic") & (of.col("topic") == topic))
        .groupBy("broker", "counters_since_ms")
        .agg(of.max("published_messages").alias("messages"), of.max("published_bytes").alias("bytes"))
        .collect()
    )

    assert len(used) == 1
    assert used[0]["messages"] >= 7
    assert used[0]["bytes"] > 7 * len(b"hello")
    assert "__messageId" in rows.columns
