# SPDX-License-Identifier: Apache-2.0
"""Records are read by any Avro library, of any version of their fields."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, fields
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounting.records import DECISION, USAGE, Codec, DecisionRecord, UsageRecord, meanings_of

LONGS = st.integers(-(2**63), 2**63 - 1)
OF_TYPES: dict[str, st.SearchStrategy[Any]] = {
    "long": LONGS,
    "string": st.text(),
    "boolean": st.booleans(),
    "strings": st.lists(st.text()).map(tuple),
    "long?": st.none() | LONGS,
    "double?": st.none() | st.floats(allow_nan=False),
}


def any_record(record: type[Any]) -> st.SearchStrategy[Any]:
    return st.builds(record, **{name: OF_TYPES[one.type] for name, one in meanings_of(record).items()})


def decoded(encoded: bytes, codec: Codec[Any], reader: dict[str, Any] | str | list[Any] | None = None) -> object:
    writer = fastavro.parse_schema(json.loads(codec.definition))
    return fastavro.schemaless_reader(io.BytesIO(encoded), writer, reader)


@given(record=any_record(UsageRecord) | any_record(DecisionRecord))
def test_fastavro_reads_what_was_encoded(record: UsageRecord | DecisionRecord) -> None:
    codec: Codec[Any] = USAGE if isinstance(record, UsageRecord) else DECISION

    assert decoded(codec.encode(record), codec) == {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(record).items()
    }


@pytest.mark.parametrize("codec", [USAGE, DECISION], ids=["usage", "decision"])
def test_a_reader_of_this_version_reads_records_of_a_newer_one_and_the_reverse(codec: Codec[Any]) -> None:
    of_class: type[Any] = UsageRecord if codec is USAGE else DecisionRecord
    record = {one.name: list(one.default) if one.default == () else one.default for one in fields(of_class)}
    for name, meaning in meanings_of(of_class).items():
        if not isinstance(record[name], (int, str, list, float, type(None))):
            record[name] = 7 if meaning.type == "long" else "x"
    newer = json.loads(codec.definition)
    newer["fields"].append({"name": "added_later", "type": "long", "default": 5})
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(newer), {**record, "added_later": 9})
    written.seek(0)

    ours = fastavro.schemaless_reader(written, fastavro.parse_schema(newer), fastavro.parse_schema(dict(codec.schema)))
    theirs = decoded(codec.encode(of_class(**record)), codec, fastavro.parse_schema(newer))

    assert ours == record
    assert theirs == {**record, "added_later": 5}


@pytest.mark.parametrize("codec", [USAGE, DECISION], ids=["usage", "decision"])
def test_every_field_has_a_default_so_that_a_version_can_add_or_leave_out_any(codec: Codec[Any]) -> None:
    assert all("default" in one for one in codec.schema["fields"])
