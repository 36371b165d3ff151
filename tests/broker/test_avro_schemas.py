# SPDX-License-Identifier: Apache-2.0
"""Reading Avro schemas, and which of them can read what another one wrote. Verdicts are those of Avro's resolution."""

from __future__ import annotations

import contextlib
import io
import json
import re
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_one
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.schemas.checks import avro
from penstock.broker.schemas.checks.resolution import STEPS_MAX, why_unreadable

unhurried = settings(deadline=None)  # other tests share the machine


def record(*fields: dict[str, Any], name: str = "R", **more: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: object, **more: object) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def why(writer: object, reader: object) -> str | None:
    return why_unreadable(avro.parse(json.dumps(writer)), avro.parse(json.dumps(reader)))


# ------------------------------------------------------------------------------------------------------------- parsing


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        {"type": "int", "logicalType": "date"},
        ["null", "string"],
        {"type": "array", "items": "long"},
        {"type": "map", "values": {"type": "array", "items": "bytes"}},
        {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"},
        {"type": "fixed", "name": "F", "size": 16},
        record(),
        record(field("a", "int"), field("self", ["null", "R"])),
        record(field("a", {"type": {"type": "string"}})),
        record(field("inner", record(name="I", namespace="x.y")), field("again", "x.y.I"), namespace="a.b"),
        record(field("$a", "int"), name="Outer$Inner"),  # What Java's reflection makes of nested classes.
        record(field("a", "int", default="not an int")),  # Defaults are not checked, in Pulsar neither.
        {"type": "error", "name": "E", "fields": []},
    ],
)
def test_what_java_accepts_is_accepted(schema: object) -> None:
    avro.parse(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("Unknown", '"Unknown" is not a defined name'),
        (7, "7 is no type"),
        ({}, "No type"),
        ({"type": "array"}, "array without items"),
        ({"type": "map"}, "map without values"),
        ([["null"]], "Nested union"),
        (["int", "int"], "Duplicate in union: int"),
        ({"type": "record", "fields": []}, "No name in record"),
        ({"type": "record", "name": "R"}, "Record has no fields: R"),
        (record(field("a", "int"), field("a", "int")), "Duplicate field a in record R"),
        (record({"name": "a"}), "No field type: a"),
        (record({"type": "int"}), "No field name"),
        (record(field("1a", "int")), "Illegal initial character: 1a"),
        (record(field("a-b", "int")), "Illegal character in: a-b"),
        (record(name=""), "Empty name"),
        (record(field("a", record())), "Can't redefine: R"),
        ({"type": "enum", "name": "E"}, "Enum has no symbols"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "Duplicate enum symbol"),
        ({"type": "enum", "name": "E", "symbols": [1]}, "symbols is no list of texts"),
        ({"type": "fixed", "name": "F"}, "Invalid or no size"),
        ({"type": "fixed", "name": "F", "size": -1}, "Invalid or no size: -1"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema: object, says: str) -> None:
    with pytest.raises(avro.AvroError, match=says):
        avro.parse(json.dumps(schema))


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"type":' * 5_000, "string"])
def test_what_is_not_even_json_is_refused(text: str) -> None:
    with pytest.raises(avro.AvroError):
        avro.parse(text)


def test_nesting_is_bounded() -> None:
    def arrays(depth: int) -> str:
        return '{"type":"array","items":' * depth + '"int"' + "}" * depth

    avro.parse(arrays(avro.DEPTH_MAX))
    avro.canonical(arrays(avro.DEPTH_MAX))
    with pytest.raises(avro.AvroError, match=f"nested deeper than {avro.DEPTH_MAX}"):
        avro.parse(arrays(avro.DEPTH_MAX + 1))


def test_the_deepest_records_that_parse_can_be_compared() -> None:
    schema: Any = "int"
    for depth in range(avro.DEPTH_MAX):
        schema = record(field("inner", schema), name=f"R{depth}")
    assert why(schema, schema) is None


# --------------------------------------------------------------------------------------------------------- what is same


def test_layout_prose_and_aliases_do_not_make_another_schema() -> None:
    plain = record(field("a", "string"))
    prosaic = record(field("a", {"type": "string"}, doc="the first letter", aliases=["b"]), doc="letters")
    assert avro.canonical(json.dumps(plain)) == avro.canonical(json.dumps(prosaic, indent=4))


@pytest.mark.parametrize(
    "other",
    [
        record(field("b", "string")),
        record(field("a", "bytes")),
        record(field("a", "string", default="")),
        record(field("a", {"type": "string", "avro.java.string": "String"})),
        record(field("a", "string"), name="S"),
        record(field("a", "string"), namespace="n"),
    ],
)
def test_what_changes_the_meaning_makes_another_schema(other: object) -> None:
    assert avro.canonical(json.dumps(record(field("a", "string")))) != avro.canonical(json.dumps(other))


# ---------------------------------------------------------------------------------------------------------- resolution

PROMOTED = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


@unhurried
@given(writer=st.sampled_from(sorted(avro.PRIMITIVES)), reader=st.sampled_from(sorted(avro.PRIMITIVES)))
def test_a_primitive_is_read_as_itself_and_as_what_the_specification_promotes_it_to(writer: str, reader: str) -> None:
    readable = writer == reader or reader in PROMOTED.get(writer, ())
    assert (why(writer, reader) is None) == readable


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        pytest.param(record(), record(field("a", "int", default=0)), id="a new field with a default"),
        pytest.param(record(), record(field("a", ["null", "int"], default=None)), id="a new field, null by default"),
        pytest.param(record(field("a", "int")), record(), id="a field that is no longer read"),
        pytest.param(record(field("a", "int")), record(field("a", "int"), name="S"), id="another record's name"),
        pytest.param(
            record(field("a", "int"), field("b", "int")), record(field("b", "int"), field("a", "int")), id="order"
        ),
        pytest.param(record(field("a", "int")), record(field("a", "double")), id="a field that widens"),
        pytest.param(record(field("old", "int")), record(field("new", "int", aliases=["old"])), id="a renamed field"),
        pytest.param(record(field("a", "int")), record(field("a", ["null", "int"])), id="a field that may be null"),
        pytest.param("int", ["string", "long"], id="a union's wider branch"),
        pytest.param(["int", "string"], ["string", "int", "null"], id="a larger union"),
        pytest.param(["int", "long"], "double", id="a union of which all fit"),
        pytest.param({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, id="wider items"),
        pytest.param({"type": "map", "values": "int"}, {"type": "map", "values": "float"}, id="wider values"),
        pytest.param(
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            id="a symbol less, which counts only when it comes",
        ),
        pytest.param(
            {"type": "fixed", "name": "F", "namespace": "a", "size": 4},
            {"type": "fixed", "name": "F", "namespace": "b", "size": 4},
            id="another namespace",
        ),
        pytest.param(
            {"type": "enum", "name": "Old", "symbols": ["A"]},
            {"type": "enum", "name": "New", "symbols": ["A"], "aliases": ["Old"]},
            id="a renamed enum",
        ),
        pytest.param(
            {"type": "enum", "name": "Old", "symbols": ["A"]},
            ["null", {"type": "enum", "name": "New", "symbols": ["A"], "aliases": ["Old"]}],
            id="a renamed enum among others",
        ),
        pytest.param(
            record(field("a", "int")),
            ["null", record(field("b", "int", default=1), name="S"), record(field("a", "int"))],
            id="a union's branch of the same name",
        ),
        pytest.param(
            record(field("next", ["null", "R"])),
            record(field("next", ["null", "R"]), field("a", "int", default=0)),
            id="a record inside itself",
        ),
    ],
)
def test_a_reader_reads(writer: object, reader: object) -> None:
    assert why(writer, reader) is None


@pytest.mark.parametrize(
    ("writer", "reader", "says"),
    [
        (record(), record(field("a", "int")), "field 'a': Found R, expecting R, missing required field a"),
        (record(field("a", "long")), record(field("a", "int")), "field 'a': Found long, expecting int"),
        (record(field("a", ["null", "int"])), record(field("a", "int")), "field 'a': Found null, expecting int"),
        ("long", ["null", "int"], r"Found long, expecting one of \[null, int\]"),
        (["null", "string"], ["null", "int"], r"Found string, expecting one of \[null, int\]"),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, r"field '\[\]': Found string"),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "Found array, expecting map"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "D", "symbols": ["A"]},
            "Found E, expecting D",
        ),
        (
            {"type": "fixed", "name": "F", "size": 4},
            {"type": "fixed", "name": "F", "size": 8},
            "with 4 bytes instead of 8",
        ),
        (
            record(field("in", record(field("x", "int"), name="I"))),
            record(field("in", record(field("x", "string"), name="I"))),
            "field 'in.x': Found int, expecting string",
        ),
        (
            record(field("next", ["null", "R"]), field("a", "long")),
            record(field("next", ["null", "R"]), field("a", "int")),
            "field 'a': Found long, expecting int",
        ),
    ],
)
def test_a_reader_that_cannot_read_says_which_field_and_why(writer: object, reader: object, says: str) -> None:
    found = why(writer, reader)
    assert found is not None
    assert re.search(says, found), found


def test_a_comparison_ends_however_many_pairs_of_records_there_are() -> None:
    def branches(letter: str, last_field: str) -> list[dict[str, Any]]:
        fields = [*(field(f"f{i}", "int") for i in range(8)), field("f8", last_field)]
        return [record(*fields, name=f"{letter}{i}") for i in range(400)]

    # Each of the writer's branches is compared with all of the reader's, of which only the last fits.
    found = why(branches("w", "int"), [*branches("r", "null"), *branches("s", "int")[:1]])
    assert found == f"the schemas are too large to compare: it would take more than {STEPS_MAX} steps"


def test_records_that_refer_to_one_another_in_a_long_row_are_not_followed_for_ever() -> None:
    def row(name: str) -> dict[str, Any]:
        members = [record(field("a", f"{name}{i}"), name=f"{name}{i + 1}") for i in range(2_000)]
        defined = field(f"only {name}".replace(" ", "_"), [record(name=f"{name}0"), *members], default=None)
        return record(defined, field("top", f"{name}2000"))

    assert why(row("w"), row("r")) == "the schemas refer to one another too deeply to be compared"


# ------------------------------------------------------------------------------------------------------- what must hold

_NAMES = st.sampled_from(["a", "b", "c", "d"])


def _types(depth: int) -> st.SearchStrategy[Any]:
    primitives: st.SearchStrategy[Any] = st.sampled_from(sorted(avro.PRIMITIVES))
    if depth == 0:
        return primitives
    inner = _types(depth - 1)
    return st.one_of(
        primitives,
        inner.map(lambda kind: {"type": "array", "items": kind}),
        inner.map(lambda kind: {"type": "map", "values": kind}),
        st.lists(st.sampled_from(sorted(avro.PRIMITIVES)), unique=True, max_size=4),
        st.lists(st.tuples(_NAMES, inner, st.booleans()), unique_by=lambda field: field[0], max_size=4).map(_record),
    )


_counter = iter(range(10**9))


def _record(fields: list[tuple[str, Any, bool]]) -> dict[str, Any]:
    described = [field(name, kind, **({"default": None} if default else {})) for name, kind, default in fields]
    return record(*described, name=f"R{next(_counter)}")


@unhurried
@given(schema=_types(3))
def test_every_schema_reads_what_it_wrote(schema: object) -> None:
    assert why(schema, schema) is None


@unhurried
@given(schema=_types(3))
def test_a_canonical_form_is_its_own_canonical_form(schema: object) -> None:
    canonical = avro.canonical(json.dumps(schema))
    assert avro.canonical(canonical) == canonical
    avro.parse(canonical)


@unhurried
@given(text=st.text(max_size=200) | _types(2).map(json.dumps))
def test_whatever_the_text_it_parses_or_is_refused(text: str) -> None:
    with contextlib.suppress(avro.AvroError):
        avro.parse(text)


# ------------------------------------------------------------------------------------------- against another's reading

_SIMPLE = st.lists(
    st.tuples(_NAMES, st.sampled_from(["int", "long", "float", "double", "boolean", "null"]), st.booleans()),
    unique_by=lambda field: field[0],
    max_size=4,
)


def _plain(fields: list[tuple[str, str, bool]]) -> dict[str, Any]:
    described = [
        field(name, ["null", kind], default=None) if optional and kind != "null" else field(name, kind)
        for name, kind, optional in fields
    ]
    return record(*described)


@unhurried
@given(writer=_SIMPLE.map(_plain), reader=_SIMPLE.map(_plain))
def test_what_is_readable_is_read_by_fastavro(writer: dict[str, Any], reader: dict[str, Any]) -> None:
    value = generate_one(writer)
    data = io.BytesIO()
    fastavro.schemaless_writer(data, writer, value)
    data.seek(0)
    if why(writer, reader) is None:
        read = fastavro.schemaless_reader(data, writer, reader)
        assert isinstance(read, dict)
        assert read.keys() == {field["name"] for field in reader["fields"]}
