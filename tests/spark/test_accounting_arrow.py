# SPDX-License-Identifier: Apache-2.0
"""`--engine arrow`: tables of records without Spark's virtual machine, equal to Spark's."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.accounting.tables import BASE, DERIVED
from penstock.cli.main import main
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.batch_state import BatchState
from penstock.spark.accounting.batches import USAGE, Batches
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.in_process import ArrowAccounting
from penstock.spark.accounting.records_source import PROXY_TOPICS, Source
from penstock.spark.accounting.store import open_store
from penstock.spark.accounting.stream import Accounting
from penstock.testing.process import BrokerProcess, ProxyProcess
from tests.spark.accounted import RECORDING, rows_of, wait_until_recorded
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pulsar
    from pyspark.sql import SparkSession

    Official = Callable[[str], pulsar.Client]

JAVA_CALLS = """
import sys
from penstock.cli.main import main
code = main(sys.argv[1:])
from pyspark import SparkContext
assert SparkContext._gateway is None, "a virtual machine was started"
import resource
print("cpu", sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
sys.exit(code)
"""


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in RECORDING.items()), encoding="utf-8")
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        ask(broker.admin_url, "PUT", "resourcegroups/gold", {"publishRateInMsgs": 20})
        ask(broker.admin_url, "POST", "namespaces/public/default/resourcegroup/gold")
        yield broker


def publish(client: pulsar.Client, topics: list[str], count: int = 30) -> None:
    for topic in topics:
        producer = client.create_producer(topic)
        for size in range(count):
            producer.send(b"x" * size)
        producer.close()


def published(tables: Path) -> dict[str, int]:
    found: Counter[str] = Counter()
    for row in rows_of(tables, "topic_usage"):
        found[row["topic"]] += row["published_bytes"]
    return dict(found)


def stored(admin_url: str, topic: str) -> int:
    size: int = ask(admin_url, "GET", f"{path_of(topic)}/stats")["bytesInCounter"]
    return size


def test_without_java_the_tables_have_what_was_published_and_a_second_run_adds_nothing(
    recording: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    client = official(recording.url)
    publish(client, [topic])
    wait_until_recorded(client, recording.admin_url)
    command = [sys.executable, "-c", JAVA_CALLS, "spark", "account", "--engine", "arrow"]
    command += ["--service-url", recording.url, "--tables", str(tmp_path / "tables")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert published(tmp_path / "tables") == {topic: stored(recording.admin_url, topic)}
        assert float(done.stdout.split("cpu ")[1]) < 3, "seconds of processor time"


def in_all(rows: list[dict[str, Any]]) -> Counter[tuple[tuple[str, str], ...]]:
    """Rows, whatever their order."""
    return Counter(tuple((name, str(row[name])) for name in sorted(row)) for row in rows)


def test_tables_are_equal_to_those_of_spark(
    spark: SparkSession, recording: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    client = official(recording.url)
    publish(client, [topic, f"{topic}-2"])
    wait_until_recorded(client, recording.admin_url)
    engines: dict[str, Accounting | ArrowAccounting] = {
        name: made(source=Source(url=recording.url, subscription=name), tables=tmp_path / name)
        for name, made in (
            ("arrow", ArrowAccounting),
            ("spark", lambda **given: Accounting(spark=spark, **given)),
        )
    }
    # No more records come: what one engine reads, the other one reads as well.
    recording.stop()
    (tmp_path / "broker.conf").write_text("")
    recording.start(port=recording.port, admin_port=recording.admin_port)
    for one in engines.values():
        one.run_once()
        one.refresh()
    for table in (*BASE, *DERIVED):
        found = {
            name: in_all(open_store(directory_of(tmp_path / name), "parquet").rows(table).to_pylist())
            for name in engines
        }
        assert found["arrow"] == found["spark"], table.name


def test_a_process_that_is_killed_while_it_writes_adds_everything_once(
    recording: BrokerProcess, official: Official, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = official(recording.url)
    accounting = ArrowAccounting(source=Source(url=recording.url), tables=tmp_path / "tables", records_per_batch=20)
    publish(client, [topic])
    wait_until_recorded(client, recording.admin_url)
    add, done = Batches.add_usage, BatchState.done
    for step in (add, done):
        with monkeypatch.context() as patched:

            def fails(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patched.setattr(Batches if step is add else BatchState, step.__name__, fails)
            with pytest.raises(KeyboardInterrupt):
                accounting.run_once()
        publish(client, [topic])
        wait_until_recorded(client, recording.admin_url)
    accounting.run_once()
    assert published(tmp_path / "tables") == {topic: stored(recording.admin_url, topic)}


def test_records_of_a_proxy_are_read_by_one_option(
    official: Official, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "proxy.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in {**RECORDING, "proxyName": "front"}.items()))
    with (
        BrokerProcess(tmp_path / "data") as broker,
        ProxyProcess(broker.url, ["--config", str(config)], log_path=tmp_path / "proxy.log") as proxy,
    ):
        publish(official(proxy.url), [topic])
        wait_until_recorded(official(broker.url), broker.admin_url, PROXY_TOPICS[USAGE])
        command = ["spark", "account", "--service-url", broker.url, "--engine", "arrow", "--tables"]
        assert main([*command, str(tmp_path / "tables"), "--proxies"]) == 0
        assert published(tmp_path / "tables") == {topic: stored(broker.admin_url, topic)}
        assert {row["broker"] for row in rows_of(tmp_path / "tables", "topic_usage")} == {"proxy-front"}
        # Brokers record nothing here.
        assert main([*command, str(tmp_path / "none")]) != 0
    assert "usageRecordsEnabled" in capsys.readouterr().err


def test_tables_of_another_engine_are_not_continued(
    recording: BrokerProcess, official: Official, tmp_path: Path
) -> None:
    wait_until_recorded(official(recording.url), recording.admin_url)
    ArrowAccounting(source=Source(url=recording.url), tables=tmp_path).run_once()
    with pytest.raises(ConfigurationError, match="engine"):
        BatchState(directory_of(tmp_path), USAGE).begins(7, "an identifier of a query of Spark")


def test_what_the_engine_cannot_do_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["spark", "account", "--service-url", "pulsar://127.0.0.1:1", "--tables", str(tmp_path)]
    assert main([*command, "--engine", "arrow", "--continuous"]) != 0
    assert "--continuous needs Spark" in capsys.readouterr().err
    assert main([*command, "--records", "usages=persistent://a/b/c"]) != 0
    assert "--records usages=persistent://a/b/c" in capsys.readouterr().err
