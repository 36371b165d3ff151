# SPDX-License-Identifier: Apache-2.0
"""Compatibility of schemas, and whether two schemas are the same version.

The results are Pulsar's, by type: Avro's resolution for AVRO, JSON and PROTOBUF, whose definitions are Avro schemas;
the root message's name for PROTOBUF_NATIVE; both parts for KEY_VALUE; other types must not change.
Where: the registry calls these; everything below is pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.schemas.checks import avro, key_value
from penstock.broker.schemas.checks.model import AVRO_FORM, Schema, SchemaType, Strategy, type_mismatch
from penstock.broker.schemas.checks.resolution import why_unreadable
from penstock.broker.schemas.checks.validity import is_json_schema, root_message
from penstock.core.errors import IncompatibleSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

# Definitions in error messages are cut to this length: the client has the whole definition.
SHOWN_MAX: Final = 500

# With these strategies, a consumer must be able to read data of the latest schema. With the others, the strategy
# applies to all schemas.
_CONSUMERS_READ_LATEST: Final = frozenset(
    {Strategy.BACKWARD, Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL}
)


def identity(schema: Schema) -> tuple[object, ...]:
    """A key that is equal for schemas of the same version: type, definition and relevant properties.

    Avro definitions are compared by meaning, all others byte by byte.
    """
    if schema.type in AVRO_FORM:
        try:
            return schema.type, avro.canonical(schema.text)
        except avro.AvroError:
            return schema.type, schema.data
    if schema.type is SchemaType.KEY_VALUE:
        key, value = key_value.split(schema)
        return schema.type, identity(key), identity(value), key_value.encoding(schema)
    return schema.type, schema.data


def check_producer(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> None:
    """Raises IncompatibleSchema unless a new schema may follow these, which are ordered oldest first."""
    if strategy.is_transitive:
        _check_all(new, existing, strategy)
    elif existing:
        _check_latest(new, existing[-1], strategy)


def check_consumer(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> None:
    """Raises IncompatibleSchema unless a consumer with this schema may read the topic."""
    if strategy in _CONSUMERS_READ_LATEST:
        _check_latest(new, existing[-1], Strategy.BACKWARD)
    else:
        _check_all(new, existing, strategy)


def _check_latest(new: Schema, latest: Schema, strategy: Strategy) -> None:
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if new.type is not latest.type:
        raise type_mismatch(latest.type, new.type)
    if identity(new) != identity(latest):
        _check(new, [latest], strategy)


def _check_all(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> None:
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    for other in existing:
        if other.type is not new.type:
            raise type_mismatch(other.type, new.type)
    # The latest first: its error is the most useful one.
    _check(new, existing[::-1], strategy)


def _check(new: Schema, existing: Sequence[Schema], strategy: Strategy) -> None:
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy not in _COMPARING:
        raise IncompatibleSchema(f"Strategy is SchemaCompatibilityStrategy.{strategy}")
    for other in existing:
        if new.type in AVRO_FORM:
            _check_avro_form(new, other, strategy)
        elif new.type is SchemaType.PROTOBUF_NATIVE:
            _check_protobuf_native(new, other)
        elif new.type is SchemaType.KEY_VALUE:
            _check_key_value(new, other, strategy)


_COMPARING: Final = frozenset({strategy for strategy in Strategy if strategy.new_reads_old or strategy.old_reads_new})


def _check_avro_form(new: Schema, old: Schema, strategy: Strategy) -> None:
    if new.type is SchemaType.JSON and (_is_legacy(new) or _is_legacy(old)):
        # A JSON Schema and an Avro schema cannot be compared; Pulsar allows one to follow the other.
        if _is_legacy(new) and _is_legacy(old) and new.data != old.data:
            raise IncompatibleSchema(f"Incompatible Schema from {_shown(old)} to {_shown(new)}")
        return
    if strategy.new_reads_old:
        _check_readable(old, new, strategy)
    if strategy.old_reads_new:
        _check_readable(new, old, strategy)


def _is_legacy(schema: Schema) -> bool:
    try:
        avro.parse(schema.text)
    except avro.AvroError:
        return is_json_schema(schema)
    return False


def _check_readable(writer: Schema, reader: Schema, strategy: Strategy) -> None:
    try:
        why = why_unreadable(avro.parse(writer.text), avro.parse(reader.text))
    except avro.AvroError as error:
        why = str(error)
    if why is not None:
        raise IncompatibleSchema(
            f"Error during schema compatibility check with strategy {strategy}: "
            f"Unable to read schema: {_shown(writer)} using schema: {_shown(reader)}: {why}"
        )


def _check_protobuf_native(new: Schema, old: Schema) -> None:
    before, after = root_message(old), root_message(new)
    if before != after:
        raise IncompatibleSchema(f"Protobuf root message isn't allow change! It was {before}, and would be {after}")


def _check_key_value(new: Schema, old: Schema, strategy: Strategy) -> None:
    old_parts, new_parts = key_value.split(old), key_value.split(new)
    old_types, new_types = [part.type for part in old_parts], [part.type for part in new_parts]
    if old_types != new_types:
        raise IncompatibleSchema(
            "Key schemas or Value schemas are different schema type, "
            f"from key schema type is {old_types[0]} and to key schema is {new_types[0]}, "
            f"from value schema is {old_types[1]} and to value schema is {new_types[1]}"
        )
    if key_value.encoding(old) != key_value.encoding(new):
        raise IncompatibleSchema(
            f"{key_value.ENCODING} is {key_value.encoding(old)} and cannot become {key_value.encoding(new)}: "
            "consumers would look for the key in the wrong place"
        )
    for old_part, new_part in zip(old_parts, new_parts, strict=True):
        _check(new_part, [old_part], strategy)


def _shown(schema: Schema) -> str:
    text = schema.data.decode(errors="replace")
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}… ({len(text)} characters)"
