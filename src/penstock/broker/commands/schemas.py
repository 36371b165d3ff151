# SPDX-License-Identifier: Apache-2.0
"""Schema commands: GET_SCHEMA and GET_OR_CREATE_SCHEMA; and the schemas in PRODUCER and SUBSCRIBE.

Where: called from the session's table of handlers; `producers` and `consumers` read the schema of a command with
`schema_in` and pass it to the registry.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.access import Action
from penstock.broker.schemas.checks.model import NUMBERS, TYPES, Schema
from penstock.broker.schemas.schema_registry import schema_id_of
from penstock.core.errors import IncompatibleSchema, PenstockError, TopicNotFound, WireCode
from penstock.core.names import TopicName
from penstock.core.units import KIB
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.commands.session import Handler, Session
    from penstock.broker.schemas.schema_registry import SchemaRegistry, StoredSchema
    from penstock.broker.topics.directory import TopicDirectory

VERSION_BYTES: Final = 8
# Smaller schemas are copied into the answer, which is cheaper than another element of a gathered write.
COPIED_BYTES_MAX: Final = 4 * KIB


def schema_in(body: codec.CommandProducer | codec.CommandSubscribe | codec.CommandGetOrCreateSchema) -> Schema | None:
    if not body.HasField("schema"):
        return None
    schema = body.schema
    return Schema(TYPES[schema.type], schema.schema_data, {each.key: each.value for each in schema.properties})


class Schemas:
    """Answers schema commands. All methods are called on the event loop."""

    def __init__(self, *, registry: SchemaRegistry, topics: TopicDirectory) -> None:
        self._registry = registry
        self._topics = topics
        self.handlers: Mapping[int, Handler] = {
            codec.BaseCommand.GET_SCHEMA: self._on_get_schema,
            codec.BaseCommand.GET_OR_CREATE_SCHEMA: self._on_get_or_create_schema,
        }

    def _on_get_schema(self, session: Session, body: codec.CommandGetSchema) -> None:
        try:
            name = TopicName.parse(body.topic)
            session.require(Action.LOOKUP, name)
            stored = self._wanted(name, body)
        except PenstockError as error:
            session.reply(codec.get_schema_failed(body.request_id, error.wire_code, str(error)))
            return
        if stored is None:
            text = "Topic not found or no-schema"
            session.reply(codec.get_schema_failed(body.request_id, WireCode.TOPIC_NOT_FOUND, text))
            return
        schema = stored.schema
        head, data = codec.get_schema_response(
            body.request_id,
            name=schema_id_of(name),
            kind=NUMBERS[schema.type],
            data=schema.data,
            properties=schema.properties,
            version=stored.version_bytes,
        )
        if len(data) <= COPIED_BYTES_MAX:
            session.reply(head + data)
        else:
            # All clients that read it now share one copy, kept until it is sent to the last of them.
            session.connection.write_shared(head, (data,), len(data), partial(_sent, stored))

    def _wanted(self, name: TopicName, body: codec.CommandGetSchema) -> StoredSchema | None:
        registry = self._registry
        if not body.HasField("schema_version"):
            return registry.latest(name)
        if len(body.schema_version) != VERSION_BYTES:
            size = len(body.schema_version)
            raise IncompatibleSchema(f"a schema version has {VERSION_BYTES} bytes, that of the request has {size}")
        return registry.version(name, int.from_bytes(body.schema_version, "big"))

    def _on_get_or_create_schema(self, session: Session, body: codec.CommandGetOrCreateSchema) -> None:
        session.requests.start(body.request_id, partial(self._get_or_create_schema, session, body))

    async def _get_or_create_schema(self, session: Session, body: codec.CommandGetOrCreateSchema) -> None:
        try:
            version = await self._attached(session, body)
        except TopicNotFound as error:
            # Pulsar's text, which some clients search for.
            text = f"Topic not found {error.topic}"
            session.reply(codec.get_or_create_schema_failed(body.request_id, error.wire_code, text))
        except PenstockError as error:
            session.reply(codec.get_or_create_schema_failed(body.request_id, error.wire_code, str(error)))
        else:
            session.reply(codec.get_or_create_schema_response(body.request_id, version))

    async def _attached(self, session: Session, body: codec.CommandGetOrCreateSchema) -> bytes:
        name = TopicName.parse(body.topic)
        session.require(Action.PRODUCE, name)
        topic = await self._topics.get_or_create(name, create=False)
        return await self._registry.attach_producer(topic, schema_in(body))


def _sent(_stored: StoredSchema) -> None:
    """Does nothing; keeps a reference to the schema until it is sent."""
