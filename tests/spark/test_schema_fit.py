# SPDX-License-Identifier: Apache-2.0
"""Columns fit a topic's schema if each of their values does; what does not fit is named with both types."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types as spark

from penstock.spark.schema_fit import COMPLAINTS_MAX, complaints, joined
from penstock.spark.structs import avro_record
from tests.spark.ddl import struct_of as struct


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
COLOR = {"type": "enum", "name": "Color", "symbols": ["RED"]}


@pytest.mark.parametrize(
    ("given", "avro"),
    [
        ("bigint", "long"), ("int", "long"), ("smallint", "int"), ("tinyint", ["null", "int"]), ("int", "double"),
        ("float", "double"), ("smallint", "float"), ("string", "string"), ("string", COLOR), ("binary", "bytes"),
        ("binary", {"type": "fixed", "name": "F", "size": 2}), ("boolean", "boolean"), ("date", DATE),
        ("timestamp", MILLIS), ("decimal(9,2)", DECIMAL), ("array<int>", {"type": "array", "items": "long"}),
        ("map<string,int>", {"type": "map", "values": ["null", "int"]}), ("int", ["null", "string", "int"]),
        ("string", {"type": "string", "logicalType": "uuid"}), ("void", ["null", "int"]),
        ("bigint", {"type": "long", "logicalType": "time-micros"}), ("string", {"type": "string"}),
    ],
)  # fmt: skip
def test_a_column_fits_if_each_of_its_values_does(given: str, avro: object) -> None:
    assert complaints(struct(f"a {given}"), record(("a", avro))) == []


@pytest.mark.parametrize(
    ("given", "avro", "wanted"),
    [
        ("bigint", "int", "int"), ("string", "long", "bigint"), ("int", "string", "string"),
        ("double", "float", "float"), ("bigint", "double", "double"), ("string", "bytes", "binary"),
        ("string", DATE, "date"), ("timestamp_ntz", MILLIS, "timestamp"), ("bigint", MILLIS, "timestamp"),
        ("decimal(9,2)", {**DECIMAL, "precision": 8}, "decimal(8,2)"), ("double", DECIMAL, "decimal(10,2)"),
        ("int", {"type": "array", "items": "int"}, "array<int>"),
        ("boolean", ["null", "string", "int"], "string or int"), ("int", record(("b", "int")), "struct<b:int>"),
        ("map<int,int>", {"type": "map", "values": "int"}, "map<string,int>"),
    ],
)  # fmt: skip
def test_a_column_that_does_not_fit_is_named_with_both_types(given: str, avro: object, wanted: str) -> None:
    (said,) = complaints(struct(f"a {given}"), record(("a", avro)))
    assert said == f"column a is {given}, and the schema has {wanted}"


def test_columns_inside_of_others_are_named_by_their_path() -> None:
    inner = spark.StructType([spark.StructField("Street", spark.StringType())])
    given = spark.StructType(
        [spark.StructField("home", inner), spark.StructField("tags", struct("x array<string>")[0].dataType)]
    )
    avro = record(
        ("home", ["null", {**record(("street", ["null", "string"])), "name": "A"}]),
        ("tags", {"type": "array", "items": "int"}),
    )
    assert complaints(given, avro) == [
        "the schema has no field for home.Street (did you mean street?)",
        "column tags[] is string, and the schema has int",
    ]


def test_a_field_that_may_be_left_out_is_nullable_or_has_a_default() -> None:
    avro = record(("a", "int"), ("b", ["null", "int"]), ("c", "int"))
    avro["fields"].append({"name": "d", "type": "int", "default": 0})
    assert complaints(struct("a int"), avro) == ["the field c is required, and there is no such column"]


def test_a_type_that_is_named_again_is_the_one_that_was_defined() -> None:
    avro = record(("a", {**record(("x", "int")), "name": "P"}), ("b", "P"))
    point = spark.StructType([spark.StructField("x", spark.LongType())])
    given = spark.StructType([spark.StructField("a", point), spark.StructField("b", point)])
    assert [said.split(",")[0] for said in complaints(given, avro)] == ["column a.x is bigint", "column b.x is bigint"]


def test_a_schema_made_from_columns_takes_these_columns() -> None:
    given = struct("a tinyint, b smallint, c decimal(9,2), d timestamp_ntz, e map<string,int>, f array<string>")
    assert complaints(given, avro_record(given, "Row")) == []


def test_many_complaints_are_counted() -> None:
    assert joined(["x"] * (COMPLAINTS_MAX + 2)).endswith("; and 2 more")
