# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.accounting day --engine arrow`: a day of usage records becomes tables, without Spark.

A broker serves the records as it would have written them: each topic once a minute, in entries of 250 records. The
command `penstock spark account` is run when 23 hours are there, and again when the last one is, as a job would run it
every hour. Time and memory are those of its process alone. Exits 1 if a sum is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.process import ask
from penstock.accounting.records import ENCODERS, USAGE, UsageRecord, encode_long, meanings_of
from penstock.records.decisions import entries_of
from penstock.testing.client import RawClient, Type, send
from penstock.testing.process import BrokerProcess
from penstock.wire import batches, compression
from penstock.wire.codec import MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORDS: Final = "persistent://public/default/usage"
START_MS: Final = 1_800_000_000_000 // 86_400_000 * 86_400_000
MINUTE_MS: Final = 60_000
BYTES_A_MINUTE: Final = 1_000
IN_FLIGHT: Final = 100
KIB: Final = 1 << 10
_TYPES: Final = {name: one.type for name, one in meanings_of(UsageRecord).items()}
# What a record is put together of: the parts before and after its number, its names, and its counters.
_NAMES: Final = tuple(_TYPES)
_PARTS: Final = (
    _NAMES[: _NAMES.index("sequence")],
    _NAMES[_NAMES.index("sequence") + 1 : _NAMES.index("scope")],
    _NAMES[_NAMES.index("scope") : _NAMES.index("last_entry_id")],
    _NAMES[_NAMES.index("last_entry_id") :],
)


class Took(NamedTuple):
    """What a run of the command took."""

    elapsed_s: float
    cpu_s: float
    peak_kib: int


def day(topics: int, minutes: int) -> int:
    """Publish, account, publish, account; return the exit status."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-accounting-") as scratch,
        BrokerProcess(Path(scratch) / "data") as broker,
    ):
        tables = Path(scratch) / "tables"
        schema = {"type": "AVRO", "schema": USAGE.definition.decode(), "properties": {}}
        ask(broker.admin_port, "POST", f"schemas/{RECORDS.removeprefix('persistent://')}/schema", schema)
        last_hour = max(0, minutes - 60)
        for part in (range(last_hour), range(last_hour, minutes)):
            began = time.monotonic()
            _publish(broker.port, topics, part)
            print(f"{len(part)} minutes published in {time.monotonic() - began:.0f} s", flush=True)
            took = _account(broker.url, tables)
            print(
                f"{len(part) * topics:,} records of {topics:,} topics in {took.elapsed_s:.0f} s, "
                f"{took.cpu_s:.0f} s of processor time, memory {took.peak_kib / KIB:,.0f} MiB",
                flush=True,
            )
        files = list(tables.rglob("*.parquet"))
        used = {name: _published(tables / name) for name in ("topic_usage", "broker_usage", "namespace_usage")}
    print(f"{len(files)} files")
    right = set(used.values()) == {BYTES_A_MINUTE * minutes * topics}
    print("sums are right" if right else f"WRONG: {used}, want {BYTES_A_MINUTE * minutes * topics}")
    return 0 if right else 1


def _account(url: str, tables: Path) -> Took:
    command = [sys.executable, "-m", "penstock", "spark", "account", "--engine", "arrow", "--service-url", url]
    command += ["--records", f"usage={RECORDS}", "--records", f"governance={RECORDS}-none", "--tables", str(tables)]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"penstock spark account ended with {os.waitstatus_to_exitcode(status)}")
    return Took(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss)


def _published(table: Path) -> int:
    total: int = pc.sum(ds.dataset(table, partitioning="hive").to_table(columns=["published_bytes"])[0]).as_py()
    return total


def _publish(port: int, topics: int, minutes: range) -> None:
    """Publish what a broker records in some minutes of the day, in its entries."""
    with RawClient(port) as client:
        client.produce(RECORDS)
        sent = answered = 0
        for stored, records in _entries(topics, minutes):
            client.write(send(0, sent, stored, num_messages=records))
            sent += 1
            while sent - answered >= IN_FLIGHT:
                client.next(Type.SEND_RECEIPT)
                answered += 1
        for _ in range(sent - answered):
            client.next(Type.SEND_RECEIPT)


def _entries(topics: int, minutes: range) -> Iterator[tuple[bytes, int]]:
    names = [_names(number) for number in range(topics)]
    of_broker = _encoded(_PARTS[2], UsageRecord(scope="broker", **_said(0, topics)))
    for minute in minutes:
        records = list(_records(names, minute, 1))
        records += _records([of_broker], minute, topics, first=(minute + 1) * (topics + 1) - 1)
        for number, some in enumerate(entries_of(records)):
            about = MessageMetadata(producer_name="made-up", sequence_id=minute << 20 | number, publish_time=1)
            about.publish_time, about.schema_version = _time_ms(minute), bytes(8)
            yield batches.make(about, some, _time_ms(minute), compression.ZSTD), len(some)


def _records(names: Sequence[bytes], minute: int, times: int, first: int | None = None) -> Iterator[bytes]:
    """Encode the records of a minute, which differ in their numbers and names only."""
    made = UsageRecord(scope="topic", **_said(minute, times))
    begins, at, _, counters = (_encoded(part, made) for part in _PARTS)
    number = minute * (len(names) + 1) if first is None else first
    for row, name in enumerate(names):
        yield b"".join((begins, encode_long(number + row), at, name, counters))


def _names(number: int) -> bytes:
    tenant = f"tenant-{number % 100}"
    namespace = f"{tenant}/namespace"
    topic = f"persistent://{namespace}/orders-of-the-shop-in-a-town-{number:06d}"
    return _encoded(
        _PARTS[2], UsageRecord(scope="topic", tenant=tenant, namespace=namespace, topic=topic, **_said(0, 1))
    )


def _encoded(part: Sequence[str], record: UsageRecord) -> bytes:
    return b"".join(ENCODERS[_TYPES[name]](getattr(record, name)) for name in part)


def _said(minute: int, times: int) -> dict[str, int | str]:
    """Return what all records of a minute say; counters are those of so many topics together."""
    return {
        "broker": "broker-0", "epoch": 1, "sequence": 0, "counters_since_ms": START_MS, "ledger_id": 1,
        "from_ms": _time_ms(minute - 1), "time_ms": _time_ms(minute), "last_entry_id": minute,
        "published_messages": (minute + 1) * times, "published_bytes": (minute + 1) * times * BYTES_A_MINUTE,
        "dispatched_messages": (minute + 1) * times, "dispatched_bytes": (minute + 1) * times * BYTES_A_MINUTE,
    }  # fmt: skip


def _time_ms(minute: int) -> int:
    """When a minute of the day ends."""
    return START_MS + (minute + 1) * MINUTE_MS
