# SPDX-License-Identifier: Apache-2.0
"""Reads the records of a broker from its log, as tests want to see them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import fastavro

from penstock.accounting.records import DECISION, USAGE
from penstock.core.names import TopicName
from penstock.core.system_topics import DECISION_TOPIC, USAGE_TOPIC
from penstock.wire import batches, metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.records.usage import UsageRecords
    from tests.net.harness import Harness

INTERVAL_S = 10
ON: dict[str, Any] = {"usage_records_enabled": True, "usage_records_interval_in_seconds": INTERVAL_S}
_SCHEMAS = {
    USAGE_TOPIC: fastavro.parse_schema(json.loads(USAGE.definition)),
    DECISION_TOPIC: fastavro.parse_schema(json.loads(DECISION.definition)),
}


class Used(NamedTuple):
    """What was published, and dispatched."""

    messages: int
    bytes: int
    messages_out: int = 0
    bytes_out: int = 0


def usage_of(harness: Harness) -> UsageRecords:
    usage = harness.broker.recorder.usage
    assert usage is not None
    return usage


async def records_of(harness: Harness, topic: str = USAGE_TOPIC, partition: int = 0) -> list[dict[str, Any]]:
    """The records that a broker has written, in their order."""
    loaded = await harness.broker.topics.load(TopicName.parse(topic).of_partition(partition))
    found: list[Any] = []
    at = loaded.first_entry_id
    while at <= loaded.last_entry_id:
        result = await harness.broker.reads.read(loaded.ledger_id, at, bytes_max=1 << 20, entries_max=1_000)
        for batch in result.batches:
            for _, entry in batch.entries():
                about = metadata.decode(entry)
                payload = batches.decompressed(entry, about)
                for one in batches.single_messages(payload, about.num_messages_in_batch):
                    value = io.BytesIO(payload[one.stop - one.message_bytes : one.stop])
                    found.append(fastavro.schemaless_reader(value, _SCHEMAS[topic]))
        at = result.next_entry_id
    return found


def summed(records: Iterable[dict[str, Any]], scope: str, name: str) -> Used:
    """What the records of a topic or a group add up to, as the reference says."""
    last: dict[tuple[str, int], Used] = {}
    for record in records:
        if record["scope"] == scope and name in {record["topic"], *record["resource_groups"]}:
            key = record["broker"], record["counters_since_ms"]
            used = Used(
                record["published_messages"],
                record["published_bytes"],
                record["dispatched_messages"],
                record["dispatched_bytes"],
            )
            assert all(now >= before for now, before in zip(used, last.get(key, Used(0, 0)), strict=True)), name
            last[key] = used
    return Used(*(sum(column) for column in zip(*last.values(), strict=True))) if last else Used(0, 0)
