# SPDX-License-Identifier: Apache-2.0
"""The committed definition and classes are what the tables say."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.core.errors import WireCode
from penstock.wire import pulsar_pb2
from tools.generate_proto import (
    CLASSES_FILE,
    PROTO,
    VALUE_NAMES,
    WIRE,
    read_enums,
    read_fields,
    render,
    render_classes,
)

MESSAGES = read_fields(WIRE / "tables" / "fields.tsv")
ENUMS = read_enums(WIRE / "tables" / "enums.tsv")


def test_the_committed_definition_is_what_the_tables_make() -> None:
    assert PROTO.read_text(encoding="utf-8") == render(MESSAGES, ENUMS)


def test_the_committed_classes_are_what_their_descriptor_makes() -> None:
    assert CLASSES_FILE.read_text(encoding="utf-8") == render_classes(pulsar_pb2.DESCRIPTOR.serialized_pb)


def test_the_committed_classes_are_what_the_definition_says() -> None:
    described = FileDescriptorProto.FromString(pulsar_pb2.DESCRIPTOR.serialized_pb)
    fields = {
        (message.name, field.name): (field.number, field.default_value)
        for message in described.message_type
        for field in message.field
    }
    assert fields == {
        (name, field.name): (field.number, field.default) for name, fields in MESSAGES.items() for field in fields
    }


def test_the_type_of_a_command_is_the_number_of_its_body() -> None:
    bodies = {field.number for field in MESSAGES["BaseCommand"]} - {1}
    assert bodies == {number for _, number in ENUMS["BaseCommand.Type"]}


def test_our_error_codes_are_the_protocols() -> None:
    assert sorted(code.value for code in WireCode) == sorted(number for _, number in ENUMS["ServerError"])


def test_names_that_python_cannot_hold_are_replaced() -> None:
    assert set(VALUE_NAMES) & {name for values in ENUMS.values() for name, _ in values} == set()
