# SPDX-License-Identifier: Apache-2.0
"""Creates a local SparkSession with settings that work on any machine.

Why: by default a session on a laptop uses any `python3` on the PATH for its workers, the machine's time zone, 200
partitions for every shuffle, and a network interface that may disappear. Where: the demo, the tests, the guide and
benchmarks. On a cluster, Spark is configured by its operator, and `spark.read.format("pulsar")` needs nothing else.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": LOOPBACK,
    "spark.driver.host": LOOPBACK,
    # Times on the wire are in UTC, and a reader should see the same on every machine.
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark's own choice for local directories starts ten processes for each small file of a checkpoint (`readlink`,
    # `chmod`): 40 for a micro-batch with an aggregation, a third of its time. This one starts two, and keeps checksums.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def local_session(
    name: str = "penstock", *, cores: int = 2, settings: Mapping[str, str] | None = None, master: str | None = None
) -> SparkSession:
    """The SparkSession of this process, on this machine alone; started unless there is one.

    Args:
        name: of the session in Spark's logs.
        cores: how many tasks run at once; also the number of partitions after a shuffle.
        settings: Spark's own settings by key, over those of this module.
        master: a cluster that runs the tasks, as its operator has configured it; then only `settings` count.

    Raises:
        NoJava: there is no Java runtime.
        ImportError: there is no Spark; the extra `spark` of penstock installs it.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 -- half a gigabyte, and only needed here
    except ImportError as cause:
        raise ImportError(
            "Spark is not installed: install penstock with its extra `spark`, or pip install pyspark"
        ) from cause
    ensure_java()
    # Workers are started by name from the PATH unless told which Python; it must be this one.
    if master is None:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName(name)
    ours = {} if master else {**SETTINGS, "spark.sql.shuffle.partitions": str(cores)}
    wanted = {"spark.sql.session.timeZone": "UTC", **ours, **(settings or {})}
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
