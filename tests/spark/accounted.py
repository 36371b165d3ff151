# SPDX-License-Identifier: Apache-2.0
"""Tables of accounting, and brokers whose usage they are made of."""

from __future__ import annotations

import io
import threading
import time
from typing import TYPE_CHECKING, Any

import fastavro
import pulsar
import pyarrow.dataset as ds

from penstock.accounting.records import USAGE
from penstock.core.names import USAGE_TOPIC
from tests.spark.topics import ask, path_of

if TYPE_CHECKING:
    from pathlib import Path

RECORDING = {
    "usageRecordsEnabled": "true",
    "usageRecordsIntervalInSeconds": "1",
    "governanceRecordsEnabled": "true",
}
_SCHEMA = fastavro.parse_schema(dict(USAGE.schema))


def rows_of(tables: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table in Parquet, without Spark."""
    found: list[dict[str, Any]] = ds.dataset(tables / name, partitioning="hive").to_table().to_pylist()
    return found


def wait_until_recorded(client: pulsar.Client, admin_url: str) -> None:
    """Return when all that has happened until now was recorded by every broker."""
    now_ms = time.time() * 1_000
    while not (partitions := ask(admin_url, "GET", f"{path_of(USAGE_TOPIC)}/partitions")["partitions"]):
        threading.Event().wait(0.05)
    for partition in range(partitions):
        reader = client.create_reader(f"{USAGE_TOPIC}-partition-{partition}", pulsar.MessageId.earliest)
        while True:
            record: Any = fastavro.schemaless_reader(io.BytesIO(reader.read_next(50_000).data()), _SCHEMA, None)
            if record["scope"] == "broker" and record["time_ms"] > now_ms:
                break
        reader.close()
