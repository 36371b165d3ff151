# SPDX-License-Identifier: Apache-2.0
"""Topic listings as responses of the admin port: written a block at a time, from memory that the broker lends.

Why not a plain response: a hundred thousand names would be a Python list, a JSON text and its bytes at once, none of
them charged. And a caller that disconnects while the broker waits for memory must not keep its place in the queue.
Where: routes return a `ListingResponse`; the broker's side is `broker.administration.listing_admin`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import Response

from penstock.admin.models import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

    from penstock.admin.gateway import Ask
    from penstock.broker.topics.listing import Mode
    from penstock.broker.topics.listing_blocks import Listing
    from penstock.core.names import NamespaceName

TOO_MANY_LISTINGS: Final[dict[int | str, dict[str, Any]]] = {
    HTTPStatus.TOO_MANY_REQUESTS: {
        "model": Reason,
        "description": "The memory for this listing was not available in time",
    }
}


class ListingResponse(Response):
    """The topics of a namespace as a JSON array. Errors of the broker are answered as for any route."""

    media_type = "application/json"

    def __init__(self, ask: Ask, namespace: NamespaceName, mode: Mode, *, system: bool) -> None:
        super().__init__(status_code=HTTPStatus.OK)
        self._ask = ask
        self._namespace = namespace
        self._mode = mode
        self._system = system

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as others call it
        """Borrow the listing, write it and return it; return it at once when the caller disconnects."""
        loop = asyncio.get_running_loop()
        lent: asyncio.Future[Listing] = loop.create_future()

        def take(listing: Listing) -> None:
            if not lent.done():
                lent.set_result(listing)

        def lend(listing: Listing) -> None:  # On the broker's loop.
            with suppress(RuntimeError):  # This one is closed.
                loop.call_soon_threadsafe(take, listing)

        loan = asyncio.ensure_future(
            self._ask(lambda broker: broker.listings.lend(self._namespace, self._mode, lend, system=self._system))
        )
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((loan, lent, gone), return_when=asyncio.FIRST_COMPLETED)
            if lent.done():
                await self._write(lent.result(), send)
            elif loan.done():
                loan.result()  # Raises what the broker did.
        finally:
            for waiting in (loan, lent, gone):
                waiting.cancel()
            await asyncio.wait((loan, gone))

    async def _write(self, listing: Listing, send: Send) -> None:
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        for piece in _json(listing):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"]"})


def _json(listing: Listing) -> Iterator[bytes]:
    """Yield the array without its last bracket, a block at a time."""
    before = "["
    for block in listing.blocks:
        yield (before + json.dumps(block.names, ensure_ascii=False, separators=(",", ":"))[1:-1]).encode()
        before = ","
    if not listing.blocks:
        yield before.encode()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
