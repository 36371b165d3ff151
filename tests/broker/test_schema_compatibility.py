# SPDX-License-Identifier: Apache-2.0
"""Which schemas may follow which, under every strategy; and which are no schemas at all."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.schemas.checks import key_value
from penstock.broker.schemas.checks.compatibility import check_consumer, check_producer, identity
from penstock.broker.schemas.checks.model import (
    NUMBERS,
    PRIMITIVE,
    SCHEMA_BYTES_MAX,
    TYPES,
    Schema,
    SchemaType,
    Strategy,
    type_named,
)
from penstock.broker.schemas.checks.validity import check_valid, root_message
from penstock.core.errors import IncompatibleSchema, InvalidSchema
from penstock.wire.pulsar_pb2 import Schema as WireSchema
from tests.broker.schema_samples import BYTES, INT32, STRING, avro, in_json, legacy_json, pair, protobuf_native, record

if TYPE_CHECKING:
    from collections.abc import Sequence

unhurried = settings(deadline=None)  # other tests share the machine

S = Strategy
COMPARING = (
    S.BACKWARD,
    S.FORWARD,
    S.FULL,
    S.BACKWARD_TRANSITIVE,
    S.FORWARD_TRANSITIVE,
    S.FULL_TRANSITIVE,
)

# The same three steps for every type in Avro's form: B adds a required field to A, C an optional one, D drops A's.
A = (("a", "int"),)
B = (("a", "int"), ("b", "int"))


def takes(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> bool:
    try:
        check_producer(new, existing, strategy)
    except IncompatibleSchema:
        return False
    return True


def reads(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> bool:
    try:
        check_consumer(new, existing, strategy)
    except IncompatibleSchema:
        return False
    return True


def in_avro_form(kind: SchemaType, *fields: tuple[str, str], optional: dict[str, str] | None = None) -> Schema:
    return Schema(kind, record(*fields, optional=optional).encode())


AVRO_FORMS = [SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF]


# ------------------------------------------------------------------------------------------------- types in Avro's form


@pytest.mark.parametrize("kind", AVRO_FORMS)
@pytest.mark.parametrize(
    ("strategy", "required_added", "optional_added", "required_dropped"),
    [
        # Data without the new field cannot be read with it; data with a field more can.
        (S.BACKWARD, False, True, True),
        (S.FORWARD, True, True, False),
        (S.FULL, False, True, False),
        (S.ALWAYS_COMPATIBLE, True, True, True),
        (S.ALWAYS_INCOMPATIBLE, False, False, False),
        (S.BACKWARD_TRANSITIVE, False, True, True),
        (S.FORWARD_TRANSITIVE, True, True, False),
        (S.FULL_TRANSITIVE, False, True, False),
    ],
)
def test_the_strategy_says_who_must_be_able_to_read_whom(
    kind: SchemaType, strategy: Strategy, required_added: bool, optional_added: bool, required_dropped: bool
) -> None:
    smaller, larger = in_avro_form(kind, *A), in_avro_form(kind, *B)
    assert takes(larger, [smaller], strategy) == required_added
    assert takes(in_avro_form(kind, *A, optional={"c": "string"}), [smaller], strategy) == optional_added
    assert takes(smaller, [larger], strategy) == required_dropped


def test_a_transitive_strategy_looks_at_every_schema_the_others_at_the_latest() -> None:
    first, second, third = avro(), avro(optional={"a": "int"}), avro(("a", ["null", "int"]))
    # The second gives `a` a default, so the third can do without; what the first wrote has no `a` at all.
    assert takes(third, [second], S.BACKWARD_TRANSITIVE)
    assert takes(third, [first, second], S.BACKWARD)
    assert not takes(third, [first, second], S.BACKWARD_TRANSITIVE)
    assert not takes(third, [first, second], S.FULL_TRANSITIVE)


def test_the_refusal_names_strategy_schemas_field_and_reason() -> None:
    with pytest.raises(IncompatibleSchema) as refused:
        check_producer(avro(*B), [avro(*A)], S.FULL)
    text = str(refused.value)
    assert text.startswith("Error during schema compatibility check with strategy FULL: Unable to read schema: {")
    assert " using schema: {" in text
    assert text.endswith("field 'b': Found R, expecting R, missing required field b (it has no default value)")


def test_a_refusal_stays_short_however_long_the_schemas_are() -> None:
    many = [(f"f{number}", "int") for number in range(1_000)]
    with pytest.raises(IncompatibleSchema) as refused:
        check_producer(avro(*many, ("b", "int")), [avro(*many)], S.FULL)
    assert len(str(refused.value)) < 2_000


@pytest.mark.parametrize(
    ("old", "new"), [(STRING, INT32), (STRING, avro(*A)), (avro(*A), in_json(*A)), (BYTES, STRING)]
)
def test_another_type_is_refused_unless_everything_is_taken(old: Schema, new: Schema) -> None:
    for strategy in (*COMPARING, S.ALWAYS_INCOMPATIBLE):
        says = f"Incompatible schema: exists schema type {old.type}, new schema type {new.type}"
        with pytest.raises(IncompatibleSchema, match=says):
            check_producer(new, [old], strategy)
    check_producer(new, [old], S.ALWAYS_COMPATIBLE)


@pytest.mark.parametrize("strategy", list(S))
def test_the_first_schema_is_taken_under_every_strategy(strategy: Strategy) -> None:
    check_producer(avro(*A), [], strategy)


# ----------------------------------------------------------------------------------------------------- JSON before 2.1


def test_a_json_schema_of_an_old_client_and_an_avro_one_may_follow_each_other() -> None:
    old = legacy_json("urn:user", name={"type": "string"})
    check_valid(old)
    check_producer(in_json(*A), [old], S.FULL)
    check_producer(old, [in_json(*A)], S.FULL)
    with pytest.raises(IncompatibleSchema, match="Incompatible Schema from"):
        check_producer(legacy_json("urn:other"), [old], S.FULL)


# ------------------------------------------------------------------------------------------------------ PROTOBUF_NATIVE


def test_a_protobuf_message_may_grow_but_not_become_another_one() -> None:
    old = protobuf_native("Order", "id")
    check_producer(protobuf_native("Order", "id", "customer"), [old], S.FULL_TRANSITIVE)
    with pytest.raises(IncompatibleSchema, match=r"root message isn't allow change! It was shop.Order"):
        check_producer(protobuf_native("Invoice", "id"), [old], S.FULL)
    assert not takes(protobuf_native("Order", "id", package="store"), [old], S.BACKWARD)
    assert takes(protobuf_native("Invoice", "id"), [old], S.ALWAYS_COMPATIBLE)


def test_the_root_message_may_be_nested_in_another() -> None:
    schema = protobuf_native("Order")
    definition = json.loads(schema.data)
    assert root_message(schema) == "shop.Order"
    definition["rootMessageTypeName"] = "shop.Order.Line"
    with pytest.raises(InvalidSchema, match=r"has no message 'shop.Order.Line'"):
        root_message(Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(definition).encode()))


# ------------------------------------------------------------------------------------------------------------ KEY_VALUE


@pytest.mark.parametrize("strategy", COMPARING)
def test_both_parts_of_a_pair_must_fit(strategy: Strategy) -> None:
    smaller, larger = avro(*A), avro(*B)
    for old, new in (
        (pair(STRING, smaller), pair(STRING, larger)),
        (pair(smaller, STRING), pair(larger, STRING)),
        (pair(STRING, larger), pair(STRING, smaller)),
    ):
        parts_fit = all(
            takes(new_part, [old_part], strategy)
            for old_part, new_part in zip(key_value.split(old), key_value.split(new), strict=True)
        )
        assert takes(new, [old], strategy) == parts_fit


def test_the_parts_of_a_pair_keep_their_types() -> None:
    says = "from key schema type is STRING and to key schema is INT32, from value schema is INT32 and to .* is STRING"
    with pytest.raises(IncompatibleSchema, match=says):
        check_producer(pair(INT32, STRING), [pair(STRING, INT32)], S.FULL)


def test_the_key_stays_where_it_is() -> None:
    inline, separated = (pair(STRING, avro(*A), encoding=encoding) for encoding in ("INLINE", "SEPARATED"))
    with pytest.raises(IncompatibleSchema, match=r"kv\.encoding\.type is INLINE and cannot become SEPARATED"):
        check_producer(separated, [inline], S.FULL)
    assert identity(pair(STRING, INT32, encoding=None)) == identity(pair(STRING, INT32, encoding="INLINE"))


@unhurried
@given(key=st.binary(max_size=40), value=st.binary(max_size=40))
def test_a_pair_is_split_where_it_was_joined(key: bytes, value: bytes) -> None:
    joined = Schema(SchemaType.KEY_VALUE, key_value.join(key, value))
    assert [part.data for part in key_value.split(joined)] == [key, value]


@unhurried
@given(data=st.binary(max_size=40))
def test_whatever_the_bytes_a_pair_is_split_or_refused(data: bytes) -> None:
    with contextlib.suppress(InvalidSchema):
        key, value = key_value.split(Schema(SchemaType.KEY_VALUE, data))
        assert len(data) == 8 + len(key.data) + len(value.data)


def test_a_length_of_minus_one_is_no_definition() -> None:
    # The Java client writes it for a part whose schema has no bytes.
    key, value = key_value.split(Schema(SchemaType.KEY_VALUE, b"\xff\xff\xff\xff\x00\x00\x00\x00"))
    assert (key.data, value.data) == (b"", b"")


def test_a_pair_as_rest_shows_it_reads_back() -> None:
    schema = pair(STRING, avro(*A))
    text = key_value.to_json_text(schema)
    assert json.loads(text) == {"key": "", "value": json.loads(avro(*A).data)}
    key, value = key_value.split(Schema(SchemaType.KEY_VALUE, key_value.from_json_text(text), schema.properties))
    assert (key, identity(value)) == (key_value.split(schema)[0], identity(avro(*A)))


@pytest.mark.parametrize("text", ["", "[]", '{"key": ""}', "{"])
def test_what_rest_sends_as_a_pair_must_be_one(text: str) -> None:
    with pytest.raises(InvalidSchema, match="KEY_VALUE"):
        key_value.from_json_text(text)


# ------------------------------------------------------------------------------------------------------------ consumers


def test_a_consumer_must_read_what_the_latest_schema_writes() -> None:
    small, large = avro(*A), avro(*B)
    for strategy in (S.BACKWARD, S.FORWARD, S.FORWARD_TRANSITIVE, S.FULL):
        assert reads(small, [large], strategy), strategy
        assert not reads(large, [small], strategy), strategy
        assert reads(small, [INT32, large], strategy), strategy  # What was before the latest does not count.


def test_a_consumer_under_a_strategy_that_reads_everything_must_read_everything() -> None:
    first, second = avro(), avro(optional={"a": "int"})
    consumer = avro(("a", ["null", "int"]))
    assert reads(consumer, [first, second], S.FULL)
    assert not reads(consumer, [first, second], S.BACKWARD_TRANSITIVE)
    assert not reads(second, [second], S.ALWAYS_INCOMPATIBLE)
    assert reads(INT32, [first, second], S.ALWAYS_COMPATIBLE)


# ------------------------------------------------------------------------------------------------------------- validity


@pytest.mark.parametrize(
    "schema",
    [
        STRING,
        Schema(SchemaType.STRING, b"null"),  # The Python client's way of saying nothing.
        *(Schema(kind) for kind in PRIMITIVE),
        avro(*A),
        in_json(*A),
        Schema(SchemaType.AVRO, b'"int"'),
        protobuf_native("Order", "id"),
        pair(STRING, avro(*A), encoding="SEPARATED"),
        pair(Schema(SchemaType.NONE), Schema(SchemaType.NONE)),
        Schema(SchemaType.EXTERNAL, b"whatever"),
    ],
)
def test_what_clients_send_is_valid(schema: Schema) -> None:
    check_valid(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (Schema(SchemaType.AVRO, b"{"), "Invalid schema definition data for AVRO schema: not JSON"),
        (Schema(SchemaType.AVRO, b"\xff"), "not UTF-8"),
        (Schema(SchemaType.AVRO, b'["null","int"]'), r"Avro schema typed \[UNION\] is not supported"),
        (Schema(SchemaType.JSON, b"[]]"), "Invalid schema definition data for JSON schema"),
        (Schema(SchemaType.JSON, b'{"id": 1}'), "Invalid schema definition data for JSON schema: No type"),
        (Schema(SchemaType.PROTOBUF, b""), "Invalid schema definition data for PROTOBUF schema"),
        (Schema(SchemaType.STRING, b"text"), "Invalid schema definition data for string schema : 'text'"),
        (Schema(SchemaType.INT8, b"\0"), "length of schema data should be zero, but 1 bytes is found"),
        (Schema(SchemaType.AUTO_CONSUME), "Schema AUTO_CONSUME is a client-side schema type"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b"[]"), "PROTOBUF_NATIVE schema: not an object"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b"{}"), "deserialize ProtobufNative Schema failed"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b'{"fileDescriptorSet": "!"}'), "deserialize ProtobufNative Schema failed"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b'{"fileDescriptorSet": ""}'), "root message descriptor is null"),
        (Schema(SchemaType.KEY_VALUE, b""), "KEY_VALUE schema: it ends early"),
        (Schema(SchemaType.KEY_VALUE, b"\0\0\0\1x\0\0\0\2x"), "KEY_VALUE schema: it ends early"),
        (Schema(SchemaType.KEY_VALUE, bytes(9)), "1 bytes follow the value's schema"),
        (Schema(SchemaType.KEY_VALUE, bytes(8), {"key.schema.type": "TEXT"}), "Unknown schema type: TEXT"),
        (Schema(SchemaType.KEY_VALUE, bytes(8), {"key.schema.properties": "{"}), "is not JSON"),
        (Schema(SchemaType.KEY_VALUE, bytes(8), {"value.schema.properties": "[]"}), "is no map"),
        (pair(STRING, Schema(SchemaType.AVRO, b"{")), "Invalid schema definition data for AVRO schema"),
        (Schema(SchemaType.EXTERNAL, bytes(SCHEMA_BYTES_MAX + 1)), f"penstock keeps schemas of {SCHEMA_BYTES_MAX}"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema: Schema, says: str) -> None:
    with pytest.raises(InvalidSchema, match=says):
        check_valid(schema)


@unhurried
@given(kind=st.sampled_from(list(SchemaType)), data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_the_bytes_a_schema_is_valid_or_refused(kind: SchemaType, data: bytes) -> None:
    with contextlib.suppress(InvalidSchema):
        check_valid(Schema(kind, data))


@unhurried
@given(data=st.binary(max_size=60))
def test_whatever_the_descriptors_a_protobuf_schema_is_valid_or_refused(data: bytes) -> None:
    text = json.dumps({"fileDescriptorSet": base64.b64encode(data).decode(), "rootMessageTypeName": "a.B"})
    with pytest.raises(InvalidSchema):
        check_valid(Schema(SchemaType.PROTOBUF_NATIVE, text.encode()))


# ---------------------------------------------------------------------------------------------------------------- names


def test_types_are_numbered_as_the_protocol_does() -> None:
    spelled = {
        "NONE": "NoSchema",
        "BOOLEAN": "Bool",
        "KEY_VALUE": "KeyValueSchema",
    }
    for kind, number in NUMBERS.items():
        name = spelled.get(kind) or "".join(part.capitalize() for part in kind.split("_"))
        assert WireSchema.Type.Value(name) == number
        assert TYPES[number] is kind
    assert len(NUMBERS) == len(WireSchema.Type.values())


def test_bytes_is_another_name_for_no_schema() -> None:
    assert type_named("BYTES") is SchemaType.NONE


# ------------------------------------------------------------------------------------------------------- what must hold

_FIELDS = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["int", "long", "string", "double"]), max_size=4)


@st.composite
def _schemas(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(AVRO_FORMS))
    return in_avro_form(kind, *draw(_FIELDS).items(), optional={f"o{k}": v for k, v in draw(_FIELDS).items()})


_ALL = st.one_of(
    _schemas(),
    st.tuples(_schemas(), _schemas()).map(lambda parts: pair(*parts)),
    st.sampled_from([STRING, INT32, protobuf_native("M", "a"), protobuf_native("M"), protobuf_native("N")]),
)


@unhurried
@given(schema=_ALL, strategy=st.sampled_from(COMPARING))
def test_a_schema_is_compatible_with_itself_unless_nothing_is(schema: Schema, strategy: Strategy) -> None:
    assert takes(schema, [schema], strategy)
    assert takes(schema, [schema], S.ALWAYS_COMPATIBLE)
    assert reads(schema, [schema], strategy)


@unhurried
@given(old=_ALL, new=_ALL)
def test_full_is_backward_and_forward(old: Schema, new: Schema) -> None:
    both = takes(new, [old], S.BACKWARD) and takes(new, [old], S.FORWARD)
    assert takes(new, [old], S.FULL) == both


@unhurried
@given(old=_ALL, new=_ALL)
def test_forward_is_backward_the_other_way_round(old: Schema, new: Schema) -> None:
    assert takes(new, [old], S.FORWARD) == takes(old, [new], S.BACKWARD)


@unhurried
@given(existing=st.lists(_ALL, min_size=1, max_size=4), new=_ALL)
def test_transitive_implies_not_transitive_and_each_of_the_existing_alone(existing: list[Schema], new: Schema) -> None:
    for transitive, plain in (
        (S.BACKWARD_TRANSITIVE, S.BACKWARD),
        (S.FORWARD_TRANSITIVE, S.FORWARD),
        (S.FULL_TRANSITIVE, S.FULL),
    ):
        taken = takes(new, existing, transitive)
        assert taken == all(takes(new, [old], plain) for old in existing)
        assert takes(new, existing, plain) or not taken


@unhurried
@given(existing=st.lists(_ALL, min_size=1, max_size=3), new=_ALL)
def test_always_means_always(existing: list[Schema], new: Schema) -> None:
    assert takes(new, existing, S.ALWAYS_COMPATIBLE)
    # What is the latest already is not new.
    assert takes(new, existing, S.ALWAYS_INCOMPATIBLE) == (identity(new) == identity(existing[-1]))
