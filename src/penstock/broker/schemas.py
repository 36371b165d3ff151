# SPDX-License-Identifier: Apache-2.0
"""Commands about schemas: GET_SCHEMA and GET_OR_CREATE_SCHEMA.

Where: the session's table of handlers leads here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import WireCode
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.session import Handler, Session


def _on_get_schema(session: Session, body: codec.CommandGetSchema) -> None:
    session.reply(codec.get_schema_failed(body.request_id, WireCode.TOPIC_NOT_FOUND, "the topic has no schema"))


def _on_get_or_create_schema(session: Session, body: codec.CommandGetOrCreateSchema) -> None:
    session.reply(codec.error(body.request_id, WireCode.NOT_ALLOWED_ERROR, "schemas are not served by this broker"))


HANDLERS: Final[Mapping[int, Handler]] = {
    codec.BaseCommand.GET_SCHEMA: _on_get_schema,
    codec.BaseCommand.GET_OR_CREATE_SCHEMA: _on_get_or_create_schema,
}
