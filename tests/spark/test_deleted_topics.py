# SPDX-License-Identifier: Apache-2.0
"""Topics that are deleted while they are read, and errors that will not pass: the source as Spark calls it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.core.clock import ManualClock
from penstock.core.units import NS_PER_S
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.errors import BadAnswer, BrokerUnreachable, DataLost, Refused
from penstock.spark.options import parse_endpoint
from penstock.spark.source import PulsarDataSource, PulsarStreamReader
from tests.spark.topics import ask, create_partitions, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pulsar

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]
    Streams = Callable[..., "Stream"]


class Stream:
    """A stream as Spark runs it: offsets, tasks, rows."""

    def __init__(self, reader: PulsarStreamReader) -> None:
        self.reader = reader
        self.at = reader.initialOffset()

    def plan(self, limit: int | None = None) -> list[Any]:
        end = self.reader.latestOffset(self.at, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
        tasks = list(self.reader.partitions(self.at, end))
        self.at = end
        return tasks

    def rows(self, tasks: list[Any]) -> list[bytes]:
        return [value for task in tasks for batch in self.reader.read(task) for value in batch["value"].to_pylist()]


@pytest.fixture
def stream(broker: BrokerProcess) -> Iterator[Streams]:
    made: list[PulsarStreamReader] = []

    def make(**options: str) -> Stream:
        source = PulsarDataSource({"service.url": broker.url, "startingOffsets": "earliest", **options})
        made.append(source.streamReader(source.schema()))
        return Stream(made[-1])

    yield make
    for reader in made:
        reader.stop()


def publish(client: pulsar.Client, topic: str, *values: bytes) -> None:
    producer = client.create_producer(topic)
    for value in values:
        producer.send(value)
    producer.close()


def delete(broker: BrokerProcess, topic: str) -> None:
    ask(broker.admin_url, "DELETE", f"{path_of(topic)}?force=true")


def matching(topic: str) -> str:
    return f"public/default/{topic.rpartition('/')[2]}-.*"


@pytest.mark.parametrize("limit", [None, 100])
def test_a_matched_topic_that_is_deleted_during_a_batch_is_left_out_with_a_line(
    broker: BrokerProcess, official: Official, topic: str, stream: Streams, caplog: pytest.LogCaptureFixture, limit: int
) -> None:
    client = official(broker.url)
    publish(client, f"{topic}-a", b"a")
    publish(client, f"{topic}-b", b"b")
    job = stream(topicsPattern=matching(topic))
    tasks = job.plan(limit)
    delete(broker, f"{topic}-b")
    with caplog.at_level(logging.WARNING):
        assert job.rows(tasks) == [b"a"]
    assert f"{topic}-b was deleted" in caplog.text
    publish(client, f"{topic}-a", b"c")
    assert job.rows(job.plan(limit)) == [b"c"]


@pytest.mark.parametrize("limit", [None, 100])
def test_a_matched_topic_that_is_created_again_is_read_from_its_beginning(
    broker: BrokerProcess, official: Official, topic: str, stream: Streams, limit: int
) -> None:
    client = official(broker.url)
    publish(client, f"{topic}-a", b"a")
    job = stream(topicsPattern=matching(topic))
    assert job.rows(job.plan(limit)) == [b"a"]
    publish(client, f"{topic}-a", b"lost")
    tasks = job.plan(limit)
    delete(broker, f"{topic}-a")
    publish(client, f"{topic}-a", b"new", b"newer")
    assert job.rows(tasks) == []
    assert job.rows(job.plan(limit)) == [b"new", b"newer"]


def test_a_matched_topic_that_is_gone_between_batches_is_told_once(
    broker: BrokerProcess, official: Official, topic: str, stream: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    publish(official(broker.url), f"{topic}-a", b"a")
    job = stream(topicsPattern=matching(topic))
    job.rows(job.plan())
    delete(broker, f"{topic}-a")
    with caplog.at_level(logging.WARNING):
        job.plan()
        job.plan()
    assert caplog.text.count("was deleted") == 1


def test_a_named_topic_that_is_created_again_is_a_loss(
    broker: BrokerProcess, official: Official, topic: str, stream: Streams
) -> None:
    client = official(broker.url)
    publish(client, topic, b"a")
    job = stream(topic=topic)
    job.rows(job.plan())
    delete(broker, topic)
    publish(client, topic, b"new")
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        job.rows(job.plan())


def test_a_deleted_partition_is_told_as_deleted_and_not_as_a_matter_of_policies(
    broker: BrokerProcess, official: Official, topic: str, stream: Streams
) -> None:
    create_partitions(broker, topic, 2)
    publish(official(broker.url), f"{topic}-partition-0", b"a")
    job = stream(topic=topic)
    tasks = job.plan()
    ask(broker.admin_url, "DELETE", f"{path_of(topic)}/partitions?force=true")
    with pytest.raises(Refused, match="was deleted, or never created") as caught:
        job.rows(tasks)
    assert "policies" not in str(caught.value)


def test_a_port_that_is_no_brokers_fails_at_once(broker: BrokerProcess) -> None:
    attempts: list[int] = []

    class Counting(Cluster):
        def _connect_any(self) -> Any:  # noqa: ANN401
            attempts.append(1)
            return super()._connect_any()

    url = broker.admin_url.replace("http://", "pulsar://")
    with (
        Counting(parse_endpoint({"service.url": url})) as cluster,
        pytest.raises(BadAnswer, match="not its admin port"),
    ):
        cluster.partitions("t")
    assert len(attempts) == 1


def test_waiting_for_a_broker_is_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()

    def fail() -> None:
        clock.advance(ns=NS_PER_S)
        raise BrokerUnreachable("pulsar://127.0.0.1:1", "Connection refused")

    endpoint = parse_endpoint({"service.url": "pulsar://127.0.0.1:1", "operationTimeoutMs": "5000"})
    with (
        caplog.at_level(logging.WARNING),
        Cluster(endpoint, clock=clock) as cluster,
        pytest.raises(BrokerUnreachable),
    ):
        cluster.insist(fail)
    assert caplog.text.count("cannot reach a broker at pulsar://127.0.0.1:1") == 1
    assert "trying again for up to 5 s" in caplog.text
