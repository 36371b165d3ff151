# SPDX-License-Identifier: Apache-2.0
"""Filters of topics and publish times spare reading, and change no result."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not
from pyspark.sql.functions import col

from penstock.spark.client.message_id import MessageId
from penstock.spark.offsets import TopicRange
from penstock.spark.pushdown import CLOCKS_APART_MS, NOTHING_PUSHED, Pushed, pushed
from penstock.spark.source import FilteringReader, PulsarDataSource
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulsar
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
NOON_MS = 1_709_294_400_000
TIME, TOPIC = ("__publishTime",), ("__topic",)


def test_filters_of_topics_and_times_are_understood_and_others_are_left() -> None:
    assert pushed([GreaterThan(TIME, NOON)]).since_ms == NOON_MS - CLOCKS_APART_MS
    assert pushed([LessThanOrEqual(TIME, NOON)]).until_ms == NOON_MS + 1 + CLOCKS_APART_MS
    both = pushed([EqualTo(TIME, NOON), GreaterThan(TIME, NOON - timedelta(days=1))])
    assert both == Pushed(None, NOON_MS - CLOCKS_APART_MS, NOON_MS + 1 + CLOCKS_APART_MS)
    assert pushed([In(TOPIC, ("a", "b")), EqualTo(TOPIC, "b")]).topics == frozenset("b")
    assert pushed([Not(EqualTo(TOPIC, "a")), EqualTo(("value",), b"x"), EqualTo(TIME, None)]) == NOTHING_PUSHED


def test_the_narrowest_of_several_filters_counts_whatever_its_kind() -> None:
    later, earlier = NOON + timedelta(hours=1), NOON - timedelta(hours=1)
    for since in (GreaterThan, GreaterThanOrEqual, EqualTo):
        for order in ((earlier, NOON), (NOON, earlier)):
            assert pushed([since(TIME, one) for one in order]).since_ms == NOON_MS - CLOCKS_APART_MS
    for until in (LessThan, LessThanOrEqual, EqualTo):
        for order in ((later, NOON), (NOON, later)):
            assert pushed([until(TIME, one) for one in order]).until_ms == NOON_MS + 1 + CLOCKS_APART_MS
    assert pushed([LessThan(TIME, NOON), GreaterThan(("__eventTime",), NOON)]).since_ms is None


def test_times_without_a_zone_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/Caracas")
    time.tzset()
    try:
        found = pushed([GreaterThan(TIME, NOON.replace(tzinfo=None))])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.since_ms == NOON_MS - CLOCKS_APART_MS


def test_a_filter_narrows_what_offsets_and_times_of_the_options_say_and_widens_nothing(
    broker: BrokerProcess, official: Official, topic: str
) -> None:
    producer = official(broker.url).create_producer(topic, batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(4)]
    ledger_id = ids[0].ledger_id()
    options = {
        "service.url": broker.url,
        "topic": topic,
        "startingOffsets": json.dumps({topic: [ledger_id, 1]}),
        "endingOffsets": json.dumps({topic: [ledger_id, 3]}),
    }
    source = PulsarDataSource(options)
    reader = FilteringReader(*source._settings(source.schema()), source.schema())  # noqa: SLF001 -- as Spark has it made
    ever, now = datetime(1960, 1, 1, tzinfo=UTC), datetime.now(UTC)

    def ranges(*filters: Filter) -> list[TopicRange]:
        list(reader.pushFilters(list(filters)))
        return [one for task in reader.partitions() for one in task.ranges]  # type: ignore[attr-defined]

    whole = [TopicRange(topic, MessageId(ledger_id, 1), MessageId(ledger_id, 3), lane=f"{ledger_id}:1")]
    assert ranges() == whole
    assert ranges(GreaterThan(TIME, ever), LessThan(TIME, now + timedelta(days=1))) == whole
    assert ranges(GreaterThan(TIME, now - timedelta(days=1))) == whole
    assert ranges(LessThan(TIME, ever)) == []
    assert ranges(GreaterThan(TIME, now + timedelta(days=1))) == []


def test_only_the_wanted_topic_and_time_are_read(
    broker: BrokerProcess, official: Official, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ("a", "b"):
        official(broker.url).create_producer(f"{topic}-{one}").send(b"x")
    source = PulsarDataSource({"service.url": broker.url, "topics": f"{topic}-a,{topic}-b"})
    monkeypatch.setitem(__import__("sys").modules, "pyspark.sql.worker.data_source_pushdown_filters", pytest)
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteringReader)
    filters: list[Filter] = [EqualTo(TOPIC, f"{topic}-a")]
    assert list(reader.pushFilters(filters)) == filters, "Spark applies them again"
    assert [one.topic for task in reader.partitions() for one in task.ranges] == [f"{topic}-a"]  # type: ignore[attr-defined]
    reader.pushFilters([LessThanOrEqual(TIME, NOON)])
    assert not [batch for task in reader.partitions() for batch in reader.read(task)]
    reader.pushFilters([GreaterThan(TIME, datetime.now(UTC) + timedelta(days=1))])
    assert not reader.partitions()
    reader.pushFilters([GreaterThan(TIME, NOON)])
    assert len([one for task in reader.partitions() for one in task.ranges]) == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_a_query_has_the_same_rows_with_and_without_pushdown(
    spark: SparkSession, broker: BrokerProcess, official: Official, topic: str, enabled: str
) -> None:
    for one in ("a", "b"):
        official(broker.url).create_producer(f"{topic}-{one}").send(one.encode())
    read = spark.read.format("pulsar").option("service.url", broker.url).option("topics", f"{topic}-a,{topic}-b")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
    try:
        rows = read.load().where((col("__topic") == f"{topic}-a") & (col("__publishTime") > NOON)).collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert [bytes(row["value"]) for row in rows] == [b"a"]
    counters = {
        one: ask(broker.admin_url, "GET", f"{path_of(f'{topic}-{one}')}/stats")["msgOutCounter"] for one in "ab"
    }
    assert counters == {"a": 1, "b": 0 if enabled == "true" else 1}
