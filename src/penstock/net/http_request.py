# SPDX-License-Identifier: Apache-2.0
"""One HTTP request over a connection of its own, whose response is read in pieces.

Why by hand: the requests are to other brokers and to the cluster behind a proxy, one per connection; HTTP/1.0 needs
twenty lines, and no copy of a response's body. Where: `peers` and `proxy.admin_requests`.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A caller of the admin port waits a minute.
RESPONSE_S: Final = 50.0
HEAD_BYTES_MAX: Final = 64 * KIB
PIECE_BYTES: Final = 64 * KIB


class Response(NamedTuple):
    """A response, whose body is read in pieces. Reading raises NoResponse if it ends too early."""

    status: int
    headers: list[tuple[str, str]]  # names in lower case
    body: AsyncIterator[bytes]


class NoResponse(Exception):
    """The server did not answer, or not completely; the message says why."""


@asynccontextmanager
async def send(
    connect: Callable[[], Awaitable[Streams]],
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    *,
    host: str = "penstock",
) -> AsyncIterator[Response]:
    """Connect, send a request, and yield the response.

    Args:
        connect: opens the connection, with streams that read at most HEAD_BYTES_MAX ahead.
        method: such as GET.
        target: path and query, encoded.
        headers: without host, connection and content-length.
        body: of the request.
        host: for the header of this name.

    Raises:
        NoResponse: there is none within RESPONSE_S.
    """
    try:
        async with asyncio.timeout(RESPONSE_S):
            reader, writer = await connect()
    except (OSError, TimeoutError) as error:
        raise NoResponse(str(error) or "it does not accept the connection") from error
    try:
        # HTTP/1.0: the body of the response ends with the connection.
        head = [f"{method} {target} HTTP/1.0", f"host: {host}", f"content-length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers]
        writer.write("\r\n".join([*head, "\r\n"]).encode("latin-1") + body)
        try:
            async with asyncio.timeout(RESPONSE_S):
                await writer.drain()
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                status = int(lines[0].split()[1])
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError, IndexError, ValueError) as error:
            raise NoResponse(str(error) or f"it did not answer within {RESPONSE_S:g} s") from error
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:-2])]
        yield Response(status, pairs, _pieces(reader, dict(pairs)))
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pieces(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    length = headers.get("content-length")
    size = 0
    while True:
        try:
            async with asyncio.timeout(RESPONSE_S):
                piece = await reader.read(PIECE_BYTES)
        except (OSError, TimeoutError) as error:
            raise NoResponse(str(error) or "it stopped in the middle of its response") from error
        if not piece:
            break
        size += len(piece)
        yield piece
    if length is not None and size != int(length):
        raise NoResponse(f"its response ended after {size} of {length} bytes")
