# SPDX-License-Identifier: Apache-2.0
"""One task's rows reach their partitions, and a task that runs again sends only what is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.core.units import MIB
from penstock.spark import task_writer as module
from penstock.spark.client.cluster import Cluster
from penstock.spark.client.endpoint import Endpoint
from penstock.spark.entries import Messages
from penstock.spark.task_writer import Identity, Sending, TaskWriter
from penstock.wire.client.lookup import parse_service_url
from tests.spark.topics import create_partitions, payloads, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    import pulsar

    from penstock.testing.process import BrokerProcess

    Official = Callable[[str], pulsar.Client]

JOB = Identity(name="job", first_sequence_id=7 << 32)


def opened(broker: BrokerProcess, identity: Identity, *, rows_max: int = 1_000) -> TaskWriter:
    """One task's outlets."""
    return TaskWriter(Cluster(Endpoint(addresses=parse_service_url(broker.url))), Sending(rows_max=rows_max), identity)


def numbered(first: int, stop: int, *, keys: int = 0) -> Messages:
    """Rows from `first` up to `stop`; with so many different keys, or none."""
    numbers = range(first, stop)
    key = pa.array([b"%d" % (number % keys) for number in numbers]) if keys else None
    return Messages(pa.array([b"%d" % number for number in numbers], pa.binary()), key)


def numbers_in(client: pulsar.Client, topic: str) -> list[int]:
    return [int(payload) for payload in payloads(client, topic)]


@pytest.mark.parametrize("had", [0, 1, 333, 1_000])
def test_a_task_that_runs_again_sends_what_is_missing_however_batches_were_cut(
    deduplicating: BrokerProcess, official: Official, topic: str, had: int
) -> None:
    with opened(deduplicating, JOB, rows_max=70) as first:
        first.send(topic, numbered(0, had))
    with opened(deduplicating, JOB, rows_max=99) as again:
        again.send(topic, numbered(0, 600))
        again.send(topic, numbered(600, 1_000))
    assert numbers_in(official(deduplicating.url), topic) == list(range(1_000))
    assert stored(deduplicating.admin_url, topic) == 1_000


def test_a_later_micro_batch_of_the_same_task_is_new(
    deduplicating: BrokerProcess, official: Official, topic: str
) -> None:
    for batch_id in range(3):
        identity = Identity(name="job", first_sequence_id=batch_id << 32)
        with opened(deduplicating, identity) as task:
            task.send(topic, numbered(10 * batch_id, 10 * batch_id + 10))
    assert numbers_in(official(deduplicating.url), topic) == list(range(30))


@pytest.mark.parametrize("keyed", ["none", "some", "all"])
def test_rows_take_the_same_partitions_when_they_come_again_in_other_batches(
    deduplicating: BrokerProcess, official: Official, topic: str, keyed: str
) -> None:
    create_partitions(deduplicating, topic, 3)
    rows = numbered(0, 5_000, keys=0 if keyed == "none" else 13)
    if keyed == "some":
        rows = rows._replace(key=pa.array([None if row % 3 else key for row, key in enumerate(rows.key.to_pylist())]))  # type: ignore[union-attr]
    for rows_max, came, missed in ((70, 1_700, 0), (1_000, 999, 2_000), (1_000, 5_000, 0)):
        with opened(deduplicating, JOB, rows_max=rows_max) as task:
            for first in range(0, 5_000 - missed, came):
                task.send(topic, rows.slice(first, came))
    client = official(deduplicating.url)
    found = [numbers_in(client, f"{topic}-partition-{index}") for index in range(3)]
    assert sorted(number for part in found for number in part) == list(range(5_000))
    assert all(part == sorted(part) for part in found)
    assert all(found)


def test_large_rows_take_turns_by_their_bytes(broker: BrokerProcess, official: Official, topic: str) -> None:
    create_partitions(broker, topic, 2)
    values = [b"%d" % number + b"x" * MIB for number in range(6)]
    with opened(broker, JOB) as task:
        for value in values:
            task.send(topic, Messages(pa.array([value], pa.binary())))
    client = official(broker.url)
    assert [len(payloads(client, f"{topic}-partition-{index}")) for index in range(2)] == [3, 3]


def test_without_a_name_rows_that_come_again_are_sent_again(
    deduplicating: BrokerProcess, official: Official, topic: str
) -> None:
    for _ in range(2):
        with opened(deduplicating, Identity()) as task:
            task.send(topic, numbered(0, 10))
    assert numbers_in(official(deduplicating.url), topic) == [*range(10), *range(10)]


def test_more_topics_than_producers_are_written_in_order(
    broker: BrokerProcess, official: Official, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRODUCERS_MAX", 2)
    with opened(broker, JOB) as task:
        for turn in range(2):
            for place in range(5):
                task.send(f"{topic}-{place}", numbered(10 * turn, 10 * turn + 10))
    for place in range(5):
        assert numbers_in(official(broker.url), f"{topic}-{place}") == list(range(20))


def fail(task: TaskWriter, topic: str) -> None:
    """Send rows, then break."""
    with task:
        task.send(topic, numbered(0, 10))
        raise RuntimeError("a cosmic ray")


def test_a_task_that_fails_leaves_no_connection_behind(broker: BrokerProcess, topic: str) -> None:
    with pytest.raises(RuntimeError, match="a cosmic ray"):
        fail(opened(broker, JOB), topic)
    with opened(broker, JOB) as another:  # The name is free, which it is not while its connection lives.
        another.send(topic, numbered(0, 10))
