# SPDX-License-Identifier: Apache-2.0
"""Values decoded by their schemas: what people read, and what hostile producers send."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admin.decoding import PAGE_CHARACTERS_MAX, VALUE_CHARACTERS_MAX, Decoder
from penstock.broker.schemas.checks.model import Schema, SchemaType
from penstock.broker.schemas.schema_registry import StoredSchema
from penstock.wire.messages import Message
from tests.admin.schema_values import ANNOUNCED, ORDER, ORDERS, PRIMITIVE, VERSION, avro, decoded, decoder


@given(ORDERS)
def test_a_record_of_avro_is_read_as_others_have_written_it(order: dict[str, Any]) -> None:
    text, _ = decoded(decoder(SchemaType.AVRO, ORDER), avro(ORDER, {**order, "next": {**order}}))
    assert text is not None
    shown = {**order, "token": order["token"].decode("latin-1"), "raw": order["raw"].decode("latin-1")}
    assert json.loads(text) == {**shown, "next": shown}


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(value: bytes) -> None:
    text, why = decoded(decoder(SchemaType.AVRO, ORDER), value)
    assert (text is None) != (why is None)


@pytest.mark.parametrize(("kind", "value", "shown"), PRIMITIVE)
def test_primitive_values_are_text(kind: SchemaType, value: bytes, shown: str) -> None:
    assert decoded(decoder(kind), value) == (shown, None)


@pytest.mark.parametrize("kind", [SchemaType.INT32, SchemaType.DOUBLE, SchemaType.TIMESTAMP, SchemaType.LOCAL_DATE])
@given(value=st.binary(max_size=20))
def test_bytes_that_are_no_such_value_are_shown_as_they_are(kind: SchemaType, value: bytes) -> None:
    text, why = decoded(decoder(kind), value)
    assert why is None or f"no {kind.value}" in why
    assert (text is None) != (why is None)


@pytest.mark.parametrize(("definition", "value"), ANNOUNCED)
def test_a_few_bytes_cannot_announce_a_large_value(definition: Any, value: bytes) -> None:  # noqa: ANN401 -- JSON
    by = decoder(SchemaType.AVRO, definition)
    assert decoded(by, value) == (None, f"it takes more than {VALUE_CHARACTERS_MAX} characters")
    assert by.spent == VALUE_CHARACTERS_MAX < PAGE_CHARACTERS_MAX


def test_a_value_that_refers_to_itself_without_end_is_refused() -> None:
    endless = {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}
    assert "nested" in (decoded(decoder(SchemaType.AVRO, endless), b"")[1] or "")


@pytest.mark.parametrize(
    "definition",
    [
        {},
        [],
        7,
        "Unknown",
        {"type": "record"},
        {"type": "record", "name": "R", "fields": 7},
        {"type": "fixed", "name": "F"},
    ],
)
def test_a_schema_that_is_none_is_no_trouble(definition: object) -> None:
    text, why = decoded(decoder(SchemaType.AVRO, definition), b"\0")
    assert text is None
    assert why is not None


def test_a_deep_schema_is_no_trouble() -> None:
    stored = StoredSchema(3, Schema(SchemaType.AVRO, b'{"type":"array","items":' * 5_000), 0)
    _, about = Decoder({VERSION: stored}).decoded(Message(value=b"\0", schema_version=VERSION))
    assert about["undecoded"] == "the schema is none of Avro"


def test_what_is_left_behind_a_value_is_said() -> None:
    assert decoded(decoder(SchemaType.AVRO, "boolean"), b"\1\1") == (
        None,
        "1 bytes are left behind what the schema describes",
    )


@pytest.mark.parametrize(
    "message",
    [
        Message(value=b"\1", schema_version=b""),
        Message(value=b"\1", schema_version=(4).to_bytes(8, "big")),
        Message(value=None, schema_version=VERSION),
        Message(value=b"\1", schema_version=VERSION, is_encrypted=True),
        Message(value=b"\1", schema_version=VERSION, is_chunk=True),
    ],
)
def test_other_messages_stay_as_they_are(message: Message) -> None:
    assert decoder(SchemaType.BOOLEAN).decoded(message) == (message, {})
