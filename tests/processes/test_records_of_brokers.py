# SPDX-License-Identifier: Apache-2.0
"""Usage records of several brokers, read as one topic by the official client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pulsar
import pytest
from pulsar.schema import AvroSchema

from penstock.accounting.records import USAGE
from penstock.core.system_topics import USAGE_TOPIC
from tests.processes.cluster import Cluster

if TYPE_CHECKING:
    from pathlib import Path

BROKERS = 2
TOPICS = 4
MESSAGES = 10


@pytest.mark.real
def test_the_records_of_all_brokers_add_up_to_what_was_published(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("usageRecordsEnabled=true\nusageRecordsIntervalInSeconds=1\n", encoding="utf-8")
    with Cluster(tmp_path / "data", BROKERS, ["--config", str(config)]) as cluster:
        client = cluster.client()
        names = [f"persistent://public/default/of-brokers-{number}" for number in range(TOPICS)]
        owners = set()
        for name in names:
            producer = client.create_producer(name)
            for _ in range(MESSAGES):
                producer.send(b"hello")
            owners.add(f"broker-{cluster.owner(name)}")
        consumer = client.subscribe(
            USAGE_TOPIC,
            "account",
            schema=AvroSchema(None, schema_definition=json.loads(USAGE.definition)),
            initial_position=pulsar.InitialPosition.Earliest,
        )
        published: dict[str, int] = {}
        brokers = {}
        while sum(published.values()) < TOPICS * MESSAGES:
            record = consumer.receive(timeout_millis=60_000).value()
            if record["scope"] == "topic":
                published[record["topic"]] = record["published_messages"]
                brokers[record["topic"]] = record["broker"]
        client.close()

    assert published == dict.fromkeys(names, MESSAGES)
    assert set(brokers.values()) == owners == {"broker-0", "broker-1"}
