# SPDX-License-Identifier: Apache-2.0
"""Usage records, as users get them: from a broker of its own process, with the official client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from pulsar.schema import AvroSchema

from penstock.accounting.records import DECISION, USAGE
from penstock.core.system_topics import DECISION_TOPIC, USAGE_TOPIC
from penstock.testing.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing.serving import RunningBroker

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "usage.py"
TOPIC = "persistent://public/default/orders"


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with serving({"usageRecordsEnabled": "true", "usageRecordsIntervalInSeconds": "1"}) as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[pulsar.Client]:
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def publish(client: pulsar.Client, count: int) -> None:
    producer = client.create_producer(TOPIC)
    for number in range(count):
        producer.send(f"order {number}".encode())
    producer.close()


def receive_of(client: pulsar.Client, topic: str) -> dict[str, Any]:
    """The first record of a topic."""
    consumer = client.subscribe(
        USAGE_TOPIC,
        "test",
        schema=AvroSchema(None, schema_definition=json.loads(USAGE.definition)),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    while True:
        value: dict[str, Any] = consumer.receive(timeout_millis=60_000).value()
        if value["topic"] == topic:
            return value


@pytest.mark.real
def test_the_official_client_reads_records_with_their_registered_schema(client: pulsar.Client) -> None:
    publish(client, 3)

    record = receive_of(client, TOPIC)

    assert record["published_messages"] == 3
    assert record["published_bytes"] > 3 * len("order 0")
    assert (record["tenant"], record["namespace"]) == ("public", "public/default")


@pytest.mark.real
def test_the_example_prints_what_a_topic_has_used(broker: RunningBroker, client: pulsar.Client) -> None:
    publish(client, 5)
    receive_of(client, TOPIC)

    output = subprocess.run(
        [sys.executable, str(PROGRAM), broker.url], capture_output=True, text=True, check=True, timeout=120
    ).stdout

    (line,) = [line for line in output.splitlines() if line.startswith(TOPIC)]
    assert line.split()[1] == "5"


@pytest.mark.real
def test_no_client_may_publish_to_the_records_even_without_authorization(client: pulsar.Client) -> None:
    publish(client, 1)
    receive_of(client, TOPIC)

    for topic in (USAGE_TOPIC, f"{USAGE_TOPIC}-partition-0", f"{USAGE_TOPIC}-partition-1"):
        with pytest.raises((pulsar.NotAllowedError, pulsar.UnknownError, pulsar.TopicNotFound)):
            client.create_producer(topic)


@pytest.mark.real
def test_schemas_are_accepted_by_the_official_clients_own_checks() -> None:
    for codec in (USAGE, DECISION):
        AvroSchema(None, schema_definition=json.loads(codec.definition))


@pytest.mark.real
def test_the_official_client_reads_who_was_slowed() -> None:
    with serving({"governanceRecordsEnabled": "true", "maxPublishRatePerTopicInMessages": "10"}) as broker:
        client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe(
            DECISION_TOPIC,
            "test",
            schema=AvroSchema(None, schema_definition=json.loads(DECISION.definition)),
            initial_position=pulsar.InitialPosition.Earliest,
        )
        publish(client, 25)

        record = consumer.receive(timeout_millis=60_000).value()
        client.close()

    assert (record["kind"], record["limiter"], record["topic"]) == ("begun", "publish-rate", TOPIC)
    assert record["times"] > 0
