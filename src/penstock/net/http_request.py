# SPDX-License-Identifier: Apache-2.0
"""One HTTP request over a connection of its own, whose response is read in pieces.

Why by hand: the requests are to other brokers and to the cluster behind a proxy, one per connection; HTTP/1.0 needs
twenty lines, and no copy of a response's body. Where: `peers` and `proxy.cluster_admin`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

# A caller of the admin port waits a minute.
RESPONSE_S: Final = 50.0
HEAD_BYTES_MAX: Final = 64 * KIB
PIECE_BYTES: Final = 64 * KIB
# A final status; interim ones (1xx) before it are not asked for.
_STATUS: Final = re.compile(r"HTTP/1\.[01] ([2-5][0-9][0-9])(?: |\Z)")
_WITHOUT_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_HEADER: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)\Z")
_LENGTH: Final = re.compile(r"[0-9]{1,18}\Z")
_SHOWN_CHARS: Final = 100


class Response(NamedTuple):
    """A response, whose body is read in pieces. Reading raises NoResponse if it ends too early."""

    status: int
    headers: list[tuple[str, str]]  # names as they came: clients of Pulsar look for some of them letter by letter
    body: AsyncIterator[bytes]

    def values(self, name: str) -> list[str]:
        """Return the values of the headers of this name, which is in lower case."""
        return _values(self.headers, name)


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
    within_s: float = RESPONSE_S,
) -> AsyncIterator[Response]:
    """Connect, send a request, and yield the response.

    Args:
        connect: opens the connection, with streams that read at most HEAD_BYTES_MAX ahead.
        method: such as GET.
        target: path and query, encoded.
        headers: without host, connection and content-length.
        body: of the request.
        host: for the header of this name.
        within_s: how long connecting and the response's head may take together, and then each piece of its body.

    Raises:
        NoResponse: there is none in time.
    """
    until_s = asyncio.get_running_loop().time() + within_s
    try:
        async with asyncio.timeout_at(until_s):
            reader, writer = await connect()
    except (OSError, TimeoutError) as error:
        raise NoResponse(str(error) or "it does not accept the connection") from error
    try:
        # HTTP/1.0: the body of the response ends with the connection.
        head = [f"{method} {target} HTTP/1.0", f"host: {host}", f"content-length: {len(body)}"]
        head += [f"{name}: {value}" for name, value in headers]
        writer.write("\r\n".join([*head, "\r\n"]).encode("latin-1") + body)
        try:
            async with asyncio.timeout_at(until_s):
                await writer.drain()
                status, pairs = _head(await reader.readuntil(b"\r\n\r\n"))
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError) as error:
            raise NoResponse(str(error) or f"it did not answer within {within_s:g} s") from error
        length = 0 if status in _WITHOUT_BODY else _length(pairs)
        yield Response(status, pairs, _pieces(reader, length, within_s))
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _head(head: bytes) -> tuple[int, list[tuple[str, str]]]:
    """Return status and headers of a response. Raises NoResponse.

    Headers are passed on to callers. A line break or a letter that no header has would begin something else there.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    status = _STATUS.match(first)
    if status is None:
        raise NoResponse(f"what it sends is no response of HTTP: {first[:_SHOWN_CHARS]!r}")
    found = [_HEADER.match(line) for line in lines]
    if None in found:
        raise NoResponse(f"its response has a header that cannot be read: {lines[found.index(None)][:_SHOWN_CHARS]!r}")
    return int(status[1]), [(one[1], one[2].strip(" \t")) for one in found if one is not None]


def _values(headers: Iterable[tuple[str, str]], wanted: str) -> list[str]:
    return [value for name, value in headers if name.lower() == wanted]


def _length(headers: list[tuple[str, str]]) -> int | None:
    """Return the announced size of the body; None: it ends with the connection. Raises NoResponse."""
    lengths = set(_values(headers, "content-length"))
    if _values(headers, "transfer-encoding"):
        raise NoResponse("its response is chunked, which a request of HTTP/1.0 does not allow")
    if len(lengths) > 1 or not all(_LENGTH.match(value) for value in lengths):
        raise NoResponse(f"its response has no size that can be read: {', '.join(lengths)[:_SHOWN_CHARS]!r}")
    return int(lengths.pop()) if lengths else None


async def _pieces(reader: asyncio.StreamReader, length: int | None, within_s: float) -> AsyncIterator[bytes]:
    size = 0
    while size != length:  # Bytes behind an announced body belong to no response.
        try:
            async with asyncio.timeout(within_s):
                piece = await reader.read(PIECE_BYTES if length is None else min(PIECE_BYTES, length - size))
        except (OSError, TimeoutError) as error:
            raise NoResponse(str(error) or "it stopped in the middle of its response") from error
        if not piece:
            break
        size += len(piece)
        yield piece
    if length is not None and size != length:
        raise NoResponse(f"its response ended after {size} of {length} bytes")
