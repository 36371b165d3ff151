# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.accounting live`: tables of a real run, with restarts, and a prediction that a run then checks.

Exits 1 if a table differs from the brokers' counters by a byte, if the replay with unchanged quotas differs from the
recorded shares by more than 2 % of the quota, or a prediction from what was then measured by more than 10 %.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pulsar

from benchmarks.process import ask
from penstock.accounting.records import USAGE
from penstock.core.system_topics import USAGE_TOPIC
from penstock.testing.process import BrokerProcess

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

GROUPS: Final = {"gold": (400, range(3)), "silver": (200, range(3, 6)), "bronze": (100_000, range(6, 10))}
PER_SECOND: Final = 100  # of each tenant
CONFIG: Final = "usageRecordsEnabled=true\nusageRecordsIntervalInSeconds=5\ngovernanceRecordsEnabled=true\n"
_SCHEMA: Final = fastavro.parse_schema(dict(USAGE.schema))
_PART_MAX: Final = 0.10
_SHARE_MAX: Final = 0.02


def live(spark: SparkSession, arguments: argparse.Namespace) -> int:
    """Run both parts; return the exit status."""
    minutes = arguments.minutes or 2
    with tempfile.TemporaryDirectory(prefix="penstock-accounting-") as scratch:
        return _reconcile(spark, Path(scratch) / "one", minutes) | _predict(spark, Path(scratch) / "two", minutes)


class Load:
    """Ten tenants, each of which publishes at a rate until it is stopped."""

    def __init__(self, url: str) -> None:
        self._client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(tenant,)) for tenant in range(10)]
        for thread in self._threads:
            thread.start()

    def _publish(self, tenant: int) -> None:
        producer = self._client.create_producer(
            topic_of(tenant), block_if_queue_full=True, max_pending_messages=20, batching_enabled=False,
            send_timeout_millis=0,
        )  # fmt: skip
        due = time.monotonic()
        while not self._stop.is_set():
            due = max(due + 1 / PER_SECOND, time.monotonic() - 1)
            producer.send_async(b"x" * (100 + tenant), lambda *_: None)
            self._stop.wait(max(0.0, due - time.monotonic()))
        producer.flush()
        producer.close()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()


def topic_of(tenant: int) -> str:
    return f"persistent://tenant-{tenant}/n/t"


def _prepare(broker: BrokerProcess) -> None:
    port = broker.admin_port
    for group, (quota, tenants) in GROUPS.items():
        ask(port, "PUT", f"resourcegroups/{group}", {"publishRateInMsgs": quota})
        for tenant in tenants:
            ask(port, "PUT", f"tenants/tenant-{tenant}", {"allowedClusters": ["standalone"]})
            ask(port, "PUT", f"namespaces/tenant-{tenant}/n")
            ask(port, "POST", f"tenants/tenant-{tenant}/resourcegroup/{group}")


def _reconcile(spark: SparkSession, where: Path, minutes: int) -> int:
    from penstock.spark.accounting.records_source import Source
    from penstock.spark.accounting.stream import Accounting

    where.mkdir()
    (where / "broker.conf").write_text(CONFIG, encoding="utf-8")
    tables = where / "tables"
    with BrokerProcess(where / "data", ["--config", str(where / "broker.conf")]) as broker:
        _prepare(broker)
        load = Load(broker.url)
        time.sleep(minutes * 30)
        _killed_driver(broker.url, tables)
        broker.kill()
        broker.start(port=broker.port, admin_port=broker.admin_port)
        print("the broker was killed while it was published to, and a driver while it read", flush=True)
        time.sleep(minutes * 30)
        load.end()
        broker.stop()  # It records what is left.
        broker.start(port=broker.port, admin_port=broker.admin_port)
        accounting = Accounting(spark=spark, source=Source(url=broker.url), tables=tables)
        print(f"counted {accounting.run_once()}", flush=True)
        accounting.refresh()
        counted = _last_counters(broker.url)
        stored = {topic_of(tenant): _stored(broker, topic_of(tenant)) for tenant in range(10)}
    rows = spark.read.parquet(str(tables / "topic_usage")).groupBy("topic").sum("published_messages", "published_bytes")
    found = {row["topic"]: (row[1], row[2]) for row in rows.collect()}
    episodes = spark.read.parquet(str(tables / "throttle_episodes")).count()
    wrong = [topic for topic in counted if found.get(topic) != counted[topic]]
    messages, nbytes = (sum(one[row] for one in found.values()) for row in (0, 1))
    print(f"tables: {messages:,} messages, {nbytes:,} bytes of {len(found)} topics, {episodes} throttle episodes")
    print(f"records: {sum(one[0] for one in counted.values()):,} messages, {sum(one[1] for one in counted.values()):,}")
    print(f"logs: {sum(stored.values()):,} bytes stored")
    print(f"WRONG: {wrong}" if wrong else "tables equal the broker's counters, to the byte")
    return 1 if wrong or len(counted) < 10 else 0


def _killed_driver(url: str, tables: Path) -> None:
    """Start `penstock spark account` in a process of its own, and kill it when it has begun to write."""
    command = [sys.executable, "-m", "penstock", "spark", "account", "--service-url", url, "--tables", str(tables)]
    driver = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while driver.poll() is None and not list(tables.glob("topic_usage/*/*.parquet")):
        time.sleep(0.01)
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


def _last_counters(url: str) -> dict[str, tuple[int, int]]:
    """The highest counters of each topic, read with the official client."""
    client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    highest: dict[tuple[str, int], tuple[int, int]] = {}
    for partition in range(len(client.get_topic_partitions(USAGE_TOPIC))):
        reader = client.create_reader(f"{USAGE_TOPIC}-partition-{partition}", pulsar.MessageId.earliest)
        while reader.has_message_available():
            record: Any = fastavro.schemaless_reader(io.BytesIO(reader.read_next(10_000).data()), _SCHEMA, None)
            if record["scope"] == "topic":
                key = record["topic"], record["counters_since_ms"]
                now = record["published_messages"], record["published_bytes"]
                highest[key] = max(highest.get(key, now), now)
        reader.close()
    client.close()
    found: dict[str, tuple[int, int]] = {}
    for (topic, _), (messages, nbytes) in highest.items():
        before = found.get(topic, (0, 0))
        found[topic] = before[0] + messages, before[1] + nbytes
    return found


def _stored(broker: BrokerProcess, topic: str) -> int:
    return int(ask(broker.admin_port, "GET", f"{topic.replace('://', '/')}/stats")["storageSize"])


def _predict(spark: SparkSession, where: Path, minutes: int) -> int:
    from penstock.accounting.tables import GROUP_USAGE
    from penstock.spark.accounting.directory import directory_of
    from penstock.spark.accounting.records_source import Source
    from penstock.spark.accounting.store import open_store
    from penstock.spark.accounting.stream import Accounting
    from penstock.spark.accounting.whatif import Change, apply, whatif

    where.mkdir()
    (where / "broker.conf").write_text(CONFIG, encoding="utf-8")
    tables = where / "tables"
    arguments = ["--brokers", "2", "--config", str(where / "broker.conf")]
    with BrokerProcess(where / "data", arguments) as broker:
        _prepare(broker)
        load = Load(broker.url)
        _whole_minutes(minutes)
        accounting = Accounting(spark=spark, source=Source(url=broker.url), tables=tables)
        accounting.run_once()
        groups = open_store(directory_of(tables), "parquet").frame(spark, GROUP_USAGE)
        # The first minute and the last one are no whole ones.
        ends = f"(select min(minute) from {_view(groups)}) and minute < (select max(minute) from {_view(groups)})"
        whole = groups.where(f"minute > {ends}")
        same = {row["resource_group"]: row for row in whatif(whole, {})}
        half = whatif(whole, {"gold": Change(factor=0.5)})
        predicted = {row["resource_group"]: row["passed"] / row["minutes"] for row in half}
        recorded = {row["resource_group"]: row["recorded"] / row["minutes"] for row in half}
        print(f"set {apply(broker.admin_url, [row for row in half if row['resource_group'] == 'gold'])}", flush=True)
        _whole_minutes(1)
        after = _minute_of(spark, accounting)
        load.end()
    return _compared(same, recorded, predicted, after)


def _view(groups: Any) -> str:  # noqa: ANN401
    groups.createOrReplaceTempView("recorded_groups")
    return "recorded_groups"


def _whole_minutes(minutes: int) -> None:
    """Wait until so many whole minutes have passed, and their records are there."""
    time.sleep(60 - time.time() % 60 + 60 * minutes + 8)


def _minute_of(spark: SparkSession, accounting: Any) -> dict[str, float]:  # noqa: ANN401
    """What groups published in the last minute that is closed."""
    accounting.run_once()
    rows = spark.read.parquet(str(accounting.tables / "group_usage"))
    last = int(time.time() // 60 - 1) * 60
    sums = rows.where(f"minute = timestamp_seconds({last})").groupBy("resource_group").sum("published_messages")
    return {row[0]: float(row[1]) for row in sums.collect()}


def _compared(
    same: Mapping[str, Mapping[str, Any]],
    recorded: Mapping[str, float],
    predicted: Mapping[str, float],
    after: Mapping[str, float],
) -> int:
    wrong = 0
    for group, row in same.items():
        passed = row["passed"] / row["recorded"]
        print(f"{group}: unchanged quotas pass {passed:.2%}, shares differ by {row['share_error']:.2%} of the quota")
        wrong += abs(passed - 1) > _SHARE_MAX or row["share_error"] > _SHARE_MAX
    for group, value in predicted.items():
        error = after[group] / value - 1
        was = f"recorded {recorded[group]:,.0f}/min, predicted {value:,.0f}"
        print(f"{group}: {was}, then {after[group]:,.0f}: {error:+.1%}")
        wrong += abs(error) > _PART_MAX
    print("predictions hold" if not wrong else f"{wrong} figures are WRONG")
    return 1 if wrong else 0
