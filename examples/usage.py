#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints what each topic has used, from a broker's usage records, with the ordinary Python client.

    penstock serve --config broker.conf        # with usageRecordsEnabled=true
    pip install 'pulsar-client[avro]'
    python examples/usage.py pulsar://localhost:6650

Counters only grow. What was used between two records of a topic is their difference, and before the first one its
values: so the last record of each start of counting has the total. `docs/reference/records.md` describes all fields.
"""

from __future__ import annotations

import sys
import time

import pulsar
from pulsar.schema import AvroSchema, Long, Record, String

TOPIC = "persistent://pulsar/system/usage"


class UsageRecord(Record):
    """The fields that are printed; others are skipped."""

    broker = String()
    scope = String()
    time_ms = Long()
    topic = String()
    counters_since_ms = Long()
    published_messages = Long()
    published_bytes = Long()
    dispatched_messages = Long()
    dispatched_bytes = Long()


def main(url: str) -> None:
    """Read all records that there are, and print a line for each topic."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        TOPIC,
        "print-usage",
        schema=AvroSchema(UsageRecord),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    last: dict[tuple[str, str, int], UsageRecord] = {}
    began_ms = time.time() * 1000
    while True:
        try:
            record = consumer.receive(timeout_millis=2_000).value()
        except pulsar.Timeout:
            break
        if record.time_ms > began_ms:
            break
        if record.scope == "topic":
            last[record.broker, record.topic, record.counters_since_ms] = record
    consumer.unsubscribe()
    client.close()
    print(f"{'topic':60} {'published':>10} {'bytes':>14} {'dispatched':>10} {'bytes':>14}")
    for name in sorted({topic for _, topic, _ in last}):
        of_topic = [record for (_, topic, _), record in last.items() if topic == name]
        sums = [
            sum(getattr(record, counter) for record in of_topic)
            for counter in ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")
        ]
        print(f"{name:60} {sums[0]:10,} {sums[1]:14,} {sums[2]:10,} {sums[3]:14,}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pulsar://localhost:6650")
