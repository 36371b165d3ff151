# SPDX-License-Identifier: Apache-2.0
"""The page "On a cluster": the package gets to executors as it says, and executors that are killed cost no row."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark
import pytest

from penstock.cli.main import main
from penstock.spark.java import ensure_java
from tests.spark.standalone import HOST, StandaloneCluster
from tests.spark.topics import create_partitions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulsar

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

ROOT: Final = Path(__file__).resolve().parents[2]
ROWS: Final = 40_000
BATCHES: Final = 5
PROGRESS: Final = "micro-batch"
# What the page shows, with its places filled in by the command line.
JOB: Final = f"""
import sys
from pyspark.sql import SparkSession

url, source, sink, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
pulsar = {{"service.url": url}}
options = {{"topic": source, "startingOffsets": "earliest", "provenance": "true"}}
options["maxMessagesPerTrigger"] = "{ROWS // BATCHES}"
rows = spark.readStream.format("pulsar").options(**pulsar, **options).load().select("value", "__provenance")
writer = rows.writeStream.format("pulsar").options(**pulsar).option("topic", sink)
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
told = -1
while query.isActive:
    query.awaitTermination(1)
    if query.lastProgress and query.lastProgress["batchId"] != told:
        told = query.lastProgress["batchId"]
        print("{PROGRESS}", told, flush=True)
query.awaitTermination()
"""


def _has_penstock(directory: Path) -> bool:
    return (directory / "penstock").is_dir() or (directory / "src" / "penstock").is_dir()


@pytest.fixture
def executors_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that has all that penstock needs, and not penstock."""
    # Another version of Spark is found by it, and with it this checkout (`with_version`).
    found = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and not _has_penstock(Path(one))]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    home = tmp_path / "python"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    # Packages are found there; what is installed there to be edited is not.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = home / "bin" / "python"
    missing = subprocess.run([python, "-c", "import pyarrow, penstock"], capture_output=True, text=True, check=False)
    assert "No module named 'penstock'" in missing.stderr
    return python


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The directory that `pip install --target packages` makes of the wheel, beside its archive."""
    for name in ("penstock", "pyspark_pulsar"):
        shutil.copytree(ROOT / "src" / name, tmp_path / "packages" / name)
    shutil.make_archive(str(tmp_path / "packages"), "zip", tmp_path / "packages")
    return tmp_path / "packages"


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_a_stream_runs_on_a_cluster_and_survives_its_executors(
    deduplicating: BrokerProcess,
    official: Official,
    topic: str,
    packages: Path,
    executors_python: Path,
    tmp_path: Path,
) -> None:
    create_partitions(deduplicating, topic, 4)
    create_partitions(deduplicating, f"{topic}-copy", 2)
    producer = official(deduplicating.url).create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    for number in range(ROWS):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    job = tmp_path / "job.py"
    job.write_text(JOB)
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(ensure_java()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": str(executors_python),
        "PYTHONPATH": str(packages),
    }
    settings = {
        "spark.executorEnv.PYTHONPATH": "packages",
        "spark.executor.memory": "600m",
        "spark.driver.host": HOST,
        "spark.ui.enabled": "false",
        "spark.python.authenticate.socketTimeout": "120s",
    }
    with StandaloneCluster(tmp_path) as cluster:
        command = [str(home / "bin" / "spark-submit"), "--master", cluster.url]
        command += ["--archives", f"{packages}.zip#packages"]
        command += [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        command += [str(job), deduplicating.url, topic, f"{topic}-copy", str(tmp_path / "checkpoint")]
        with (
            (tmp_path / "driver.log").open("w") as log,
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as driver,
        ):
            assert driver.stdout is not None
            chance = random.Random(1)
            killed = [cluster.kill_executor(chance) for line in driver.stdout if line.startswith(PROGRESS)]
        assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-4_000:]
    assert sum(killed) >= BATCHES // 2
    command = ["spark", "audit", "--service-url", deduplicating.url, "--sink", f"{topic}-copy", "--source", topic]
    assert main(command) == 0
