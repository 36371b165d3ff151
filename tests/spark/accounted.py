# SPDX-License-Identifier: Apache-2.0
"""Tables of accounting, and brokers whose usage they are made of."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import fastavro
import pulsar
import pyarrow as pa
import pyarrow.dataset as ds

from penstock.accounting.closing import ABSENT_AFTER_MS
from penstock.accounting.differences import COUNTERS, MINUTE_MS
from penstock.accounting.records import RECORD_VERSION
from penstock.accounting.records import USAGE as USAGE_CODEC
from penstock.accounting.tables import RECORDED
from penstock.core.system_topics import USAGE_TOPIC
from penstock.spark.accounting.batch_state import BatchState
from penstock.spark.accounting.batches import USAGE, Batches
from penstock.spark.accounting.differing import FIELDS
from penstock.spark.accounting.differing_columns import find
from penstock.spark.accounting.directory import Directory, directory_of
from penstock.spark.accounting.store import open_store
from tests.spark.conftest import SPARK_TIMEOUT_S
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RECORDING = {
    "usageRecordsEnabled": "true",
    "usageRecordsIntervalInSeconds": "1",
    "governanceRecordsEnabled": "true",
}
_SCHEMA = fastavro.parse_schema(dict(USAGE_CODEC.schema))


def rows_of(tables: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table in Parquet, without Spark."""
    found: list[dict[str, Any]] = ds.dataset(tables / name, partitioning="hive").to_table().to_pylist()
    return found


def wait_until_recorded(client: pulsar.Client, admin_url: str, topic: str = USAGE_TOPIC) -> None:
    """Return when all that has happened until now was recorded by every broker, or by a proxy."""
    now_ms = time.time() * 1_000
    partitions = 0
    while topic == USAGE_TOPIC and not partitions:
        partitions = ask(admin_url, "GET", f"{path_of(topic)}/partitions")["partitions"]
        threading.Event().wait(0.05)
    names = [f"{topic}-partition-{partition}" for partition in range(partitions)] or [topic]
    for name in names:
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while True:
            record: Any = fastavro.schemaless_reader(io.BytesIO(reader.read_next(50_000).data()), _SCHEMA, None)
            if record["scope"] == "broker" and record["time_ms"] > now_ms:
                break
        reader.close()


def in_process_of_its_own(command: list[str], where: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SPARK_TIMEOUT_S - 30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- without a broker

NOON = 1_800_000_000_000 // MINUTE_MS * MINUTE_MS
QUERY = "the checkpoint"
Record = dict[str, Any]

_NUMBERS = ("version", "epoch", "sequence", "from_ms", "time_ms", "counters_since_ms", *COUNTERS)
RECORDS = pa.schema(
    [
        *(
            pa.field(
                name,
                pa.int64()
                if name in _NUMBERS
                else pa.float64()
                if name in RECORDED
                else pa.list_(pa.string())
                if name == "resource_groups"
                else pa.string(),
            )
            for name in FIELDS
        ),
        ("__topic", pa.string()),
        ("published_ms", pa.int64()),
        ("broken", pa.bool_()),
    ]
)


def record(sequence: int, minute: int, scope: str = "topic", **given: object) -> Record:
    """A record of broker-0; counters that are not given are 0."""
    at = NOON + minute * MINUTE_MS
    names = {"tenant": "t", "namespace": "t/n", "topic": "persistent://t/n/a"} if scope == "topic" else {}
    return {
        **dict.fromkeys(FIELDS),
        **dict.fromkeys(COUNTERS[:5], 0),
        "version": RECORD_VERSION,
        "broker": "broker-0",
        "epoch": 1,
        "sequence": sequence,
        "from_ms": at,
        "time_ms": at + MINUTE_MS,
        "scope": scope,
        "counters_since_ms": NOON,
        "resource_groups": [],
        "__topic": "persistent://pulsar/system/usage-partition-0",
        "published_ms": at + MINUTE_MS,
        "broken": False,
        **dict.fromkeys(("tenant", "namespace", "topic", "role", "subscription"), ""),
        **names,
        **given,
    }


def minutes_of(messages: Sequence[int]) -> list[list[Record]]:
    """A micro-batch for each minute, with so many messages in all so far, and the broker's own record."""
    return [
        [
            record(2 * minute, minute, published_messages=many, published_bytes=100 * many),
            record(2 * minute + 1, minute, "broker", published_messages=many, published_bytes=100 * many),
        ]
        for minute, many in enumerate(messages)
    ]


def add(
    tables: Path | Directory, batch: int, records: Sequence[Record], query: str = QUERY, kind: str = "parquet"
) -> dict[str, int]:
    """What a driver does with a micro-batch, from the start of its process on."""
    directory = tables if isinstance(tables, Directory) else directory_of(tables)
    state = BatchState(directory, USAGE)
    batches = Batches(USAGE, state, open_store(directory, kind), ABSENT_AFTER_MS)
    if state.begins(batch, query):
        given = pa.Table.from_pylist(list(records), schema=RECORDS)
        batches.add_usage(batch, find(given, state.highest()))
    return state.counts
