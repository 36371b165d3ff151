# SPDX-License-Identifier: Apache-2.0
"""Responses that are rendered while they are sent. Where: /metrics of brokers and proxies, and long lists."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from starlette.responses import StreamingResponse

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from starlette.types import Receive, Scope, Send

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
# About half a millisecond of work.
PIECE_CHARACTERS: Final = 16 * KIB


class InPieces(StreamingResponse):
    """A response that is rendered while it is sent, with turns of this loop for other requests in between.

    When it ends, also because the caller is gone, it drops `pieces`: the traceback of a response that is cancelled
    keeps it until the next garbage collection, and it would keep the snapshot that the pieces are made of.
    """

    def __init__(self, pieces: Iterable[str], media_type: str) -> None:
        self._pieces = (piece for piece in pieces)
        super().__init__(_in_turns(self._pieces), media_type=media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._pieces):
            await super().__call__(scope, receive, send)


async def _in_turns(pieces: Iterable[str]) -> AsyncIterator[str]:
    """Yield the pieces, joined to about `PIECE_CHARACTERS`. A plain iterable would use a thread pool."""
    joined: list[str] = []
    size = 0
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= PIECE_CHARACTERS:
            yield "".join(joined)
            joined, size = [], 0
            await asyncio.sleep(0)
    yield "".join(joined)
