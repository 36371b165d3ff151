# SPDX-License-Identifier: Apache-2.0
"""The committed definition and classes are what the tables say."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.core.errors import WireCode
from penstock.wire import pulsar_pb2
from tools.generate_proto import (
    BOUNDS,
    CLASSES_FILE,
    STUB,
    VALUE_NAMES,
    define,
    read_enums,
    read_fields,
    render_bounds,
    render_classes,
    render_stub,
)

MESSAGES = read_fields()
ENUMS = read_enums()


def test_the_committed_modules_are_what_the_tables_make() -> None:
    definition = define(MESSAGES, ENUMS)
    assert CLASSES_FILE.read_text(encoding="utf-8") == render_classes(definition)
    assert STUB.read_text(encoding="utf-8") == render_stub(definition)
    assert BOUNDS.read_text(encoding="utf-8") == render_bounds(MESSAGES)


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
