# SPDX-License-Identifier: Apache-2.0
"""Records of newer brokers: what is known is read, and what has no meaning here is counted, with its version."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from penstock.accounting.closing import VERSION_MAX, with_version
from penstock.accounting.records import DECISION, RECORD_VERSION, USAGE, Codec, DecisionRecord, UsageRecord
from penstock.accounting.tables import SCHEMA_VERSION
from penstock.spark import values
from penstock.spark.accounting.batch_state import BatchState
from penstock.spark.accounting.batches import GOVERNANCE, Batches
from penstock.spark.accounting.differing import DECIDED, FIELDS
from penstock.spark.accounting.directory import directory_of
from penstock.spark.accounting.store import open_store
from penstock.spark.client.cluster import TopicSchema
from penstock.wire.codec import Schema
from tests.spark.accounted import NOON, QUERY, add, minutes_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEWER = RECORD_VERSION + 1
OURS_SAID, NEWER_SAID = b"\x00", b"\x01"  # versions of the topic's schema, not of records


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def newer_schema(codec: Codec[Any]) -> dict[str, Any]:
    """Some fields more, one of a type that ours do not have."""
    schema: dict[str, Any] = json.loads(codec.definition)
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "long"}]}
    added = [
        {"name": "acked_messages", "type": "long", "default": 0},
        {"name": "zones", "type": {"type": "map", "values": inner}, "default": {}},
    ]
    return {**schema, "fields": [*schema["fields"], *added]}


def through_avro(codec: Codec[Any], records: Sequence[dict[str, Any]], *, reader: dict[str, Any]) -> list[Any]:
    """What the Spark source makes of records of a newer broker, if it reads the topic with this schema."""
    newer = newer_schema(codec)
    written = []
    for one in records:
        into = io.BytesIO()
        more = {"acked_messages": 9, "zones": {"a": {"x": 1}}}
        fastavro.schemaless_writer(into, fastavro.parse_schema(newer), {**one, **more})
        written.append(into.getvalue())
    said = {
        version: TopicSchema(Schema.Avro, json.dumps(schema).encode(), version, {})
        for version, schema in ((OURS_SAID, dict(codec.schema)), (NEWER_SAID, newer))
    }
    found = values.of_schema(TopicSchema(Schema.Avro, json.dumps(reader).encode(), b"", {}))
    return values.decoded(found.decoder("t", said.get), written, [NEWER_SAID] * len(written))


@pytest.mark.parametrize("reads_newer", [False, True], ids=["our-schema", "their-schema"])
def test_usage_of_a_newer_broker_is_read_without_what_is_new(tmp_path: Path, *, reads_newer: bool) -> None:
    reader = newer_schema(USAGE) if reads_newer else dict(USAGE.schema)
    batches = minutes_of([5, 7])
    counts: dict[str, int] = {}
    for batch, records in enumerate(batches):
        about = [{name: one[name] for name in ("__topic", "published_ms", "broken")} for one in records]
        names = UsageRecord.__dataclass_fields__
        sent = [{**{name: one[name] for name in FIELDS if name in names}, "version": NEWER} for one in records]
        sent = [{**one, "ledger_id": 1, "last_entry_id": 2} for one in sent]
        read = through_avro(USAGE, sent, reader=reader)
        rows = [{name: one[name] for name in FIELDS} | more for one, more in zip(read, about, strict=True)]
        counts = add(tmp_path, batch, rows)
    assert counts["records"] == 4
    assert counts.get("refused", 0) == 0
    assert sum(row["published_bytes"] for row in rows_of(tmp_path, "topic_usage")) == 700
    assert {row["version"] for row in rows_of(tmp_path, "topic_usage")} == {SCHEMA_VERSION}


def test_usage_that_has_no_meaning_here_is_counted_with_its_version(tmp_path: Path) -> None:
    (first, first_end), (second, second_end) = minutes_of([5, 7])
    add(tmp_path, 0, [first, first_end])
    odd = {**first, "sequence": 4, "scope": "zone"}
    older = {**odd, "version": RECORD_VERSION}
    counts = add(tmp_path, 1, [second, second_end, {**odd, "version": NEWER}, {**odd, "version": 1 << 40}, older])
    assert counts["refused"] == 3
    refused = {row["reason"]: row["records"] for row in rows_of(tmp_path, "refused_records")}
    assert refused == {
        "unknown scope": 1,
        f"unknown scope, version {NEWER}": 1,
        "unknown scope, version impossible": 1,
    }
    assert sum(row["published_bytes"] for row in rows_of(tmp_path, "topic_usage")) == 700


@pytest.mark.parametrize("reads_newer", [False, True], ids=["our-schema", "their-schema"])
def test_decisions_of_a_newer_broker_are_read_or_counted_with_their_version(
    tmp_path: Path, *, reads_newer: bool
) -> None:
    known = DecisionRecord(
        version=NEWER, broker="broker-0", epoch=1, sequence=0, time_ms=NOON, kind="begun", limiter="new-limiter"
    )
    one = {name: getattr(known, name) for name in DecisionRecord.__dataclass_fields__}
    reader = newer_schema(DECISION) if reads_newer else dict(DECISION.schema)
    read = through_avro(DECISION, [one, {**one, "sequence": 1, "kind": "foreseen"}], reader=reader)
    about = {"__topic": "t", "published_ms": NOON, "broken": False}
    rows = pa.Table.from_pylist([{name: row[name] for name in DECIDED} | about for row in read])
    for name in ("before", "after"):
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.float64()))
    state = BatchState(directory_of(tmp_path), GOVERNANCE)
    assert state.begins(0, QUERY)
    Batches(GOVERNANCE, state, open_store(directory_of(tmp_path), "parquet"), 0).add_decisions(0, rows)
    (kept,) = rows_of(tmp_path, "decisions")
    assert (kept["kind"], kept["limiter"], kept["version"]) == ("begun", "new-limiter", SCHEMA_VERSION)
    (refused,) = rows_of(tmp_path, "refused_records")
    assert (refused["reason"], refused["records"]) == (f"unknown kind, version {NEWER}", 1)


def test_only_newer_versions_are_named_and_only_so_many() -> None:
    assert (
        with_version("no name", None)
        == with_version("no name", 0)
        == with_version("no name", RECORD_VERSION)
        == "no name"
    )
    reasons = {with_version("no name", version) for version in range(10 * VERSION_MAX)}
    assert len(reasons) == VERSION_MAX - RECORD_VERSION + 2
