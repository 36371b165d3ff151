# SPDX-License-Identifier: Apache-2.0
"""One SparkSession for all tests, and brokers for them to read and write."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from penstock.spark.session import local_session
from penstock.testing.process import BrokerProcess
from tests.spark.topics import create_partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pulsar
    from pyspark.sql import SparkSession

# The first query of a virtual machine takes as long as hundreds of later ones; two cores may be shared with others.
SPARK_TIMEOUT_S = 480


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            # One worker runs them all: a virtual machine starts slowly and takes most of a gigabyte.
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that all tests share: two tasks at a time, and nothing left in the working directory."""
    scratch = tmp_path_factory.mktemp("spark")
    session = local_session(
        "penstock-tests",
        cores=2,
        settings={
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.sql.streaming.stopTimeout": "30s",
            # Many small queries: the second stage of the compiler and a collector with threads only cost.
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={scratch}",
            # Spark Connect, if a test starts it.
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            # 15 s by default, in which a machine that is busy does not always start a Python.
            "spark.python.authenticate.socketTimeout": "120s",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_url(spark: SparkSession) -> str:
    """Spark Connect, served by the virtual machine that all tests share."""
    machine: Any = spark.sparkContext._jvm  # noqa: SLF001 -- Spark has no other way to serve a session that is there
    service = machine.org.apache.spark.sql.connect.service
    service.SparkConnectService.start(spark.sparkContext._jsc.sc())  # noqa: SLF001
    server = getattr(getattr(service, "SparkConnectService$"), "MODULE$").server()
    return f"sc://127.0.0.1:{server.getPort()}"


@pytest.fixture(scope="session")
def deduplicating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose topics all deduplicate."""
    directory = tmp_path_factory.mktemp("deduplicating")
    config = directory / "broker.conf"
    config.write_text("brokerDeduplicationEnabled=true\n", encoding="utf-8")
    with BrokerProcess(directory / "data", ["--config", str(config)]) as process:
        yield process


@pytest.fixture
def topic() -> str:
    """The full name of a topic that nobody else uses."""
    return f"persistent://public/default/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def partitioned(broker: BrokerProcess, topic: str) -> str:
    """The same with four partitions, on the broker that all share."""
    create_partitions(broker, topic, 4)
    return topic


@pytest.fixture
def official() -> Iterator[Callable[[str], pulsar.Client]]:
    """The official client: `official(url)`; closed after the test with all that it opened."""
    import pulsar

    clients: list[pulsar.Client] = []

    def connect(url: str) -> pulsar.Client:
        clients.append(pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, os.devnull)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()
