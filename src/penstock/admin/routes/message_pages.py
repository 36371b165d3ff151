# SPDX-License-Identifier: Apache-2.0
"""Routes of messages for people: pages of them, decoded and masked; sending one; sending dead letters once more.

Why beside the routes of `pulsar-admin`: those return one entry, as it is stored, with its metadata in headers. A page
is asked for from a position, a time, the beginning or the end. Asked for again and again from its `next`, it is a live
tail or an export, which costs nothing while nobody asks. Where: the web console.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from binascii import Error as BadBase64
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from penstock.admin import message_pages
from penstock.admin import models_console as models
from penstock.admin.decoding import VERSIONS_MAX, Decoder
from penstock.admin.gateway import Ask
from penstock.admin.http_memory import CHARGE
from penstock.admin.message_pages import Wish
from penstock.admin.routing import READS_ENTRY, Topic
from penstock.broker.administration.message_admin import Start
from penstock.core.errors import PreconditionFailed
from penstock.core.names import TopicName
from penstock.core.position import Position
from penstock.wire.messages import Message, has_key, has_property, has_text

if TYPE_CHECKING:
    from penstock.admin.access import Needs
    from penstock.admin.gateway import Gateway
    from penstock.broker.administration.message_admin import EntryPage

MESSAGES: Final = "/admin/v3/messages/{domain:domain}/{tenant}/{namespace}/{topic:local}"
# Entries that one request reads to find messages of a kind.
ENTRIES_MAX: Final = 2_000

Into = Annotated[str | None, Query(max_length=2_048, description="The topic to send to; not given: their own")]


def router(gateway: Gateway, needs: Needs) -> APIRouter:
    """Routes under /admin/v3/messages."""
    router = APIRouter(tags=["messages of people"])
    ask = Ask(gateway)
    _add_page(router, ask, needs)

    @router.post(MESSAGES, dependencies=[needs.produce, READS_ENTRY])
    async def send(name: Topic, body: models.NewMessage) -> models.SentMessage:
        """Store one message, in a partition by its key. It is checked and limited as a producer's would be."""
        message = _message(body)
        sent = await ask(lambda broker: broker.sending.send(name, message, is_text=body.value is not None))
        return models.SentMessage(topic=sent.topic, id=str(sent.position))

    @router.post(f"{MESSAGES}/redrive", dependencies=[needs.consume, READS_ENTRY])
    async def redrive(name: Topic, into: Into = None) -> models.Redriven:
        """Send the next dead letters of a topic to their own topics, and acknowledge them. Ask until none is left."""
        target = TopicName.parse(into) if into is not None else None
        done = await ask(lambda broker: broker.sending.redrive(name, target))
        return models.Redriven(sent=done.sent, left=done.left, stopped=done.stopped)

    return router


def _add_page(router: APIRouter, ask: Ask, needs: Needs) -> None:
    shows: dict[str, Any] = {"responses": {200: {"model": models.MessagePage}}, "response_model": None}

    @router.get(MESSAGES, dependencies=[needs.consume, READS_ENTRY], **shows)
    async def messages(request: Request, name: Topic, wanted: Annotated[models.MessageQuery, Query()]) -> JSONResponse:
        """Return messages in their order, and where the next page begins. Nothing is acknowledged."""
        start, skip = _start(wanted.begin, wanted.back)
        if wanted.since is not None:
            since = wanted.since
            found = await ask(lambda broker: broker.messages.id_by_time(name, since))
            start, skip = Start(found, latest=False, back=wanted.back), 0
        tests = [
            *([has_key(wanted.key)] if wanted.key else []),
            *([has_property(wanted.having)] if wanted.having else []),
            *([has_text(wanted.text)] if wanted.text else []),
        ]
        mask = await ask(lambda broker: broker.messages.mask)
        entries_max = ENTRIES_MAX if tests else wanted.limit
        page = await ask(
            lambda broker: broker.messages.page(
                name, start, entries_max=entries_max, bytes_max=message_pages.READ_BYTES_MAX
            )
        )
        charge = request.scope[CHARGE]
        # The entries, twice what they are when decompressed, and the answer as objects and as text.
        page, decompressed_bytes = message_pages.fitting(page)
        answers = 8 if wanted.decoded else 4  # decoded values are objects first
        await charge.charge_when_free(2 * decompressed_bytes + answers * message_pages.ANSWER_BYTES_MAX)
        decoder = await _decoder(ask, name, page) if wanted.decoded else None
        wish = Wish(wanted.limit, tests, mask, wanted.shown, skip, decoder)
        return JSONResponse(await asyncio.to_thread(message_pages.as_json, page, wish))


async def _decoder(ask: Ask, name: TopicName, page: EntryPage) -> Decoder:
    """Return what decodes the values of a page: by the schemas that its entries name."""
    versions = sorted(await asyncio.to_thread(message_pages.schema_versions, page))[:VERSIONS_MAX]
    return Decoder(await ask(lambda broker: broker.schemas.by_version(name, versions)))


def _start(begin: str, back: int) -> tuple[Start, int]:
    """Return where a page begins, and how many messages of its first entry are left out."""
    if begin in {"earliest", "latest"}:
        return Start(None, latest=begin == "latest", back=back), 0
    ledger, entry, *index = map(int, begin.split(":"))
    return Start(Position(ledger, entry), latest=False, back=back), 0 if back else sum(index)


def _message(body: models.NewMessage) -> Message:
    """Return the message that somebody has written. Raises PreconditionFailed."""
    if body.value is not None and body.valueBase64 is not None:
        raise PreconditionFailed("value and valueBase64 are both given: give one of them")
    if body.key is not None and body.keyBase64 is not None:
        raise PreconditionFailed("key and keyBase64 are both given: give one of them")
    if body.keyBase64 is not None:
        _decoded("keyBase64", body.keyBase64)
    value = _decoded("valueBase64", body.valueBase64) if body.valueBase64 is not None else None
    return Message(
        value=body.value.encode() if body.value is not None else value,
        key=body.key if body.keyBase64 is None else body.keyBase64,
        key_is_base64=body.keyBase64 is not None,
        properties=body.properties,
        event_time_ms=body.eventTime,
        deliver_at_ms=body.deliverAt,
    )


def _decoded(member: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (BadBase64, ValueError) as error:
        raise PreconditionFailed(f"{member} is no base64: {error}") from None
