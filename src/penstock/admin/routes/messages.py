# SPDX-License-Identifier: Apache-2.0
"""Routes of single messages: finding them, and returning them with their metadata in headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from penstock.admin.gateway import Ask
from penstock.admin.http_memory import CHARGE
from penstock.admin.models import INT_MAX, LONG_MAX, BatchMessageId, MessageId
from penstock.admin.responses import message_response
from penstock.admin.routing import NO_CONTENT, READS_ENTRY, TOPIC, Topic, Wall
from penstock.core.position import Position

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.broker.administration.message_admin import RawMessage

Nth = Annotated[int, Path(ge=1, le=INT_MAX)]
Number = Annotated[int, Path(ge=0, le=LONG_MAX)]

MESSAGE: Final[dict[str, Any]] = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "The payload, decompressed; what the message says about itself is in X-Pulsar-… headers",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
        501: {"description": "The payload is compressed in a way that penstock does not know"},
    },
}


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes of single messages of a topic."""
    router = APIRouter(tags=["messages"])
    ask = Ask(gateway)
    _add_messages(router, ask, needs)
    _add_ids(router, ask, needs)
    _add_delayed(router, ask, needs)
    return router


def _add_messages(router: APIRouter, ask: Ask, needs: Needs) -> None:
    common: dict[str, Any] = {"dependencies": [needs.consume, READS_ENTRY], **MESSAGE}

    @router.get(f"{TOPIC}/subscription/{{subscription:twice}}/position/{{nth}}", **common)
    async def peek(request: Request, name: Topic, subscription: str, nth: Nth) -> Response:
        """Return the nth entry (from 1) that a subscription has not acknowledged."""
        return await shown(request, await ask(lambda broker: broker.messages.peek(name, subscription, nth)))

    @router.get(f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", **common)
    async def entry(request: Request, name: Topic, ledger: Number, entry: Number) -> Response:
        """Return the entry at a position."""
        return await shown(request, await ask(lambda broker: broker.messages.get(name, Position(ledger, entry))))

    @router.get(f"{TOPIC}/examinemessage", **common)
    async def examine(
        request: Request,
        name: Topic,
        initial: Annotated[Literal["earliest", "latest"], Query(alias="initialPosition")] = "latest",
        nth: Annotated[int, Query(alias="messagePosition", ge=1, le=LONG_MAX)] = 1,
    ) -> Response:
        """Return the nth entry from the beginning or from the end."""
        return await shown(request, await ask(lambda broker: broker.messages.examine(name, initial, nth)))


async def shown(request: Request, message: RawMessage) -> Response:
    """Return a message as the response to this request."""
    return await message_response(message, request.scope[CHARGE])


def _add_delayed(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.delete(
        f"{TOPIC}/delayed/ledger/{{ledger}}/entry/{{entry}}",
        dependencies=[needs.namespace_admin, READS_ENTRY],
        **NO_CONTENT,
    )
    async def cancel_delayed(name: Topic, ledger: Number, entry: Number) -> None:
        """Cancel a delayed message: no subscription gets it. A message that is due cannot be cancelled."""
        await ask(lambda broker: broker.delayed.cancel(name, Position(ledger, entry)))


def _add_ids(router: APIRouter, ask: Ask, needs: Needs) -> None:
    @router.get(f"{TOPIC}/messageid/{{wall_ms}}", dependencies=[needs.consume, READS_ENTRY])
    async def message_id_by_time(name: Topic, wall_ms: Wall) -> MessageId:
        """Return the first message published at this time (ms since 1970) or later."""
        return _message_id(name, await ask(lambda broker: broker.messages.id_by_time(name, wall_ms)))

    @router.get(f"{TOPIC}/lastMessageId", dependencies=[needs.consume, READS_ENTRY])
    async def last_message_id(name: Topic) -> BatchMessageId:
        """Return the last message id; -1 if there is none."""
        position, batch_index = await ask(lambda broker: broker.messages.last_id(name))
        return BatchMessageId(
            ledgerId=position.ledger_id,
            entryId=position.entry_id,
            partitionIndex=name.partition,
            batchIndex=batch_index,
        )

    @router.get(f"{TOPIC}/getMessageIdByIndex", dependencies=[needs.consume])
    async def message_id_by_index(name: Topic, index: Annotated[int, Query(ge=0, le=LONG_MAX)]) -> MessageId:
        """Return the entry with this index among all entries of a topic."""
        return _message_id(name, await ask(lambda broker: broker.messages.id_by_index(name, index)))


def _message_id(name: Topic, position: Position) -> MessageId:
    return MessageId(ledgerId=position.ledger_id, entryId=position.entry_id, partitionIndex=name.partition)
