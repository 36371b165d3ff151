# SPDX-License-Identifier: Apache-2.0
"""Tables of usage equal the brokers' counters, to the byte, through restarts of both sides."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from penstock.accounting.tables import SCHEMA_VERSION
from penstock.cli.main import build_parser, main
from penstock.core.system_topics import USAGE_TOPIC
from penstock.spark import session
from penstock.spark.accounting.batches import USAGE
from penstock.spark.accounting.records_source import Source
from penstock.spark.accounting.stream import Accounting
from penstock.testing.process import BrokerProcess
from tests.spark.accounted import RECORDING, in_process_of_its_own, rows_of, wait_until_recorded
from tests.spark.topics import ask, path_of
from tools.pages import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pulsar
    from pyspark.sql import SparkSession

    Official = Callable[[str], pulsar.Client]

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/accounting.md"


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[BrokerProcess]:
    config = tmp_path / "broker.conf"
    config.write_text("".join(f"{key}={value}\n" for key, value in RECORDING.items()), encoding="utf-8")
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        yield broker


def counters(broker: BrokerProcess, topic: str) -> tuple[int, int]:
    """Messages and bytes published to a topic since the broker started, as it counts itself."""
    stats = ask(broker.admin_url, "GET", f"{path_of(topic)}/stats")
    return stats["msgInCounter"], stats["bytesInCounter"]


def test_tables_have_what_the_broker_counted_through_restarts(
    spark: SparkSession, recording: BrokerProcess, official: Official, topic: str, tmp_path: Path
) -> None:
    tables = tmp_path / "tables"
    source = Source(url=recording.url, topics={USAGE: USAGE_TOPIC})
    accounting = Accounting(spark=spark, source=source, tables=tables)
    names = [f"{topic}-{number}" for number in range(3)]
    expected: dict[str, tuple[int, int]] = dict.fromkeys(names, (0, 0))

    def publish() -> None:
        client = official(recording.url)
        for number, name in enumerate(names):
            producer = client.create_producer(name)
            for size in range(10 * number + 1):
                producer.send(b"x" * size)
            producer.close()

    def note() -> None:
        for name in names:
            messages, nbytes = counters(recording, name)
            before = expected[name]
            expected[name] = before[0] + messages, before[1] + nbytes

    publish()
    wait_until_recorded(official(recording.url), recording.admin_url)
    accounting.run_once()
    publish()
    note()
    recording.kill()
    recording.start(port=recording.port, admin_port=recording.admin_port)
    publish()
    wait_until_recorded(official(recording.url), recording.admin_url)
    note()
    counts = accounting.run_once()[USAGE]

    rows = rows_of(tables, "topic_usage")
    found = {
        name: (
            sum(row["published_messages"] for row in rows if row["topic"] == name),
            sum(row["published_bytes"] for row in rows if row["topic"] == name),
        )
        for name in names
    }
    assert found == expected
    assert {row["version"] for row in rows} == {SCHEMA_VERSION}
    assert {row["late"] for row in rows} == {False}
    assert counts["records"] > 0
    assert (counts["refused"], counts["late"], counts["lost"]) == (0, 0, 0)
    brokers = rows_of(tables, "broker_usage")
    assert sum(row["published_bytes"] for row in brokers) == sum(row["published_bytes"] for row in rows)


def run_pipeline(where: Path, broker: str, connect_url: str) -> None:
    """Run the declarative pipeline of the guide as `spark-pipelines` does, with a server that is there already."""
    (spec,) = [block.text for block in blocks(GUIDE) if block.kind == "yaml"]
    (program,) = [block.text for block in blocks(GUIDE) if block.kind == "py"]
    (command,) = [block.text for block in blocks(GUIDE) if block.kind == "bash"]
    (where / "pipeline.yml").write_text(spec.replace("/var/lib/pipelines/accounting", str(where / "storage")))
    (where / "transformations").mkdir()
    (where / "transformations/usage.py").write_text(program.replace("localhost:6650", broker))
    started = [sys.executable, str(Path(pyspark.__file__).parent / "pipelines/cli.py"), *command.split()[1:]]
    in_process_of_its_own(started, where, SPARK_REMOTE=connect_url)


def test_the_guide_makes_tables_and_a_report_in_the_order_that_it_shows(
    spark: SparkSession,
    connect_url: str,
    official: Official,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "local_session", lambda *_args, **_options: spark)
    monkeypatch.chdir(tmp_path)
    shown = [line for block in blocks(GUIDE) if block.kind == "sh" for line in block.text.splitlines()]
    install, configure, serve, *commands = shown
    assert install == "pip install '.[spark]'"
    subprocess.run(configure, shell=True, check=True)
    config = build_parser().parse_args(serve.split()[1:]).config
    with config.open("a") as file:
        file.write("usageRecordsIntervalInSeconds=1\n")
    with BrokerProcess(tmp_path / "data", ["--config", str(config)]) as broker:
        ask(broker.admin_url, "PUT", "resourcegroups/gold", {"publishRateInMsgs": 1000})
        ask(broker.admin_url, "POST", "namespaces/public/default/resourcegroup/gold")
        client = official(broker.url)
        producer = client.create_producer("orders")
        for _ in range(30):
            producer.send(b"one espresso")
        wait_until_recorded(client, broker.admin_url)
        for command in commands:
            assert main(command.replace("localhost:6650", f"127.0.0.1:{broker.port}").split()[1:]) == 0
        run_pipeline(tmp_path, f"127.0.0.1:{broker.port}", connect_url)
    used = spark.table("topic_usage").where("topic like '%orders'").groupBy("late").sum("published_messages").collect()
    for table in ("topic_usage", "usage_records"):
        spark.sql(f"drop table if exists {table}")
    assert [tuple(row) for row in used] == [(False, 30)]
    said = capsys.readouterr().out
    assert " 0 refused" in said
    assert re.search(r"^gold +publish_messages", said, re.MULTILINE)
    (program,) = [block.text for block in blocks(GUIDE) if block.kind == "python"]
    # The virtual machine, which all tests share, has another working directory.
    exec(compile(program.replace('"tables/', f'"{tmp_path}/tables/'), str(GUIDE), "exec"), {})
    assert re.search(r"persistent://public/default/orders *\|30 ", capsys.readouterr().out)
    assert "orders" in (tmp_path / "usage.html").read_text(encoding="utf-8")
