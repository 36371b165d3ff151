# SPDX-License-Identifier: Apache-2.0
"""A connection to a broker for one topic listing at a time, which is read only as far as there is memory for it.

Why not the shared connection of lookups: a client that reads whole frames has a listing in memory before anybody has
agreed to its size. Here the four bytes of the size come first, then a permit of that size, and then the rest.
Where: `listings`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB, MIB
from penstock.proxy.upstreams import own_refused
from penstock.wire import codec
from penstock.wire.client.commands import encode
from penstock.wire.client.errors import RequestRefused
from penstock.wire.client.frames import Frame, decode_frame
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.varints import read_varint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.proxy.upstreams import Identity, UpstreamOptions
    from penstock.wire.client.addresses import Address

# The request id of every request: each is alone on its connection.
REQUEST_ID: Final = 1
# Frames up to this size are read without a permit: answers to CONNECT, PINGs, errors.
SMALL_BYTES: Final = 4 * KIB
# A namespace of a million topics with long names; a broker that announces more is not believed.
LISTING_BYTES_MAX: Final = 256 * MIB
# PINGs of a broker while it makes one list.
PINGS_MAX: Final = 10
_HANDSHAKE_BYTES_MAX: Final = 128 * KIB
_SIZES_BYTES: Final = 8
# Six numbers of at most ten bytes come before the list.
_HEAD_BYTES_MAX: Final = _SIZES_BYTES + 6 * 10
_TAG_REQUEST_ID: Final = 0x08
_BODY_TAG: Final = BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE << 3 | 2


class Listed(NamedTuple):
    """A broker's answer: the fields of its body without the request id, encoded."""

    fields: memoryview
    nbytes: int  # of memory that it holds


class ListingConnection:
    """One connection. Open it with `open`, and close it when it has failed or is not needed any more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Made by `open`."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: Address, identity: Identity, options: UpstreamOptions) -> Self:
        """Connect and shake hands. Raises ServiceNotReady, RequestRefused."""
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=options.context(address, identity), limit=SMALL_BYTES
                )
                connection = cls(reader, writer)
                try:
                    await connection._shake_hands(identity)
                except RequestRefused as error:
                    connection.close()
                    raise own_refused(address, identity, error) or error from error
                except BaseException:
                    connection.close()
                    raise
        except (OSError, EOFError, TimeoutError, ProtocolError) as error:
            reason = str(error) or "it did not answer in time"
            raise ServiceNotReady(f"broker {address} cannot be asked for topics: {reason}") from error
        return connection

    async def is_usable(self) -> bool:
        """Return whether nothing has come since the last answer, and the broker has not closed the connection.

        If something has come, its first byte is lost: close the connection.
        """
        try:
            async with asyncio.timeout(0):  # What the socket has is read first; nothing is waited for.
                await self._reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close the connection now."""
        with contextlib.suppress(OSError):
            self._writer.transport.abort()

    async def closed(self) -> None:
        """Wait until the socket of a connection that was closed is."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, body: codec.CommandGetTopicsOfNamespace, permit: Callable[[int], Awaitable[None]]) -> Listed:
        """Ask for topics; `permit` waits until so many bytes of memory may be used, and may be called once.

        Raises:
            RequestRefused: the broker answered with an error.
            OSError, EOFError, ProtocolError: the connection is lost, or is not one to a broker.
        """
        body.request_id = REQUEST_ID
        pings = 0
        self._writer.write(encode(body))
        await self._writer.drain()
        while True:
            head = await self._reader.readexactly(_SIZES_BYTES)
            frame_bytes = 4 + int.from_bytes(head[:4], "big")
            if not _SIZES_BYTES <= frame_bytes <= LISTING_BYTES_MAX:
                raise ProtocolError(f"an answer of {frame_bytes} bytes")
            if frame_bytes > SMALL_BYTES:
                await permit(frame_bytes)
                return _listed(await self._read_whole(head, frame_bytes))
            frame = head + await self._reader.readexactly(frame_bytes - _SIZES_BYTES)
            decoded = decode_frame(frame, 0, len(frame))
            if decoded.kind == BaseCommand.PING:
                pings += 1
                if pings > PINGS_MAX:
                    raise ProtocolError(f"{pings} PINGs where a list of topics was due")
                self._writer.write(codec.pong())
            elif decoded.kind == BaseCommand.ERROR:
                raise RequestRefused(decoded.body.error, decoded.body.message, f"listing {body.namespace}")
            elif decoded.kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE:
                return _listed(bytearray(frame))
            elif decoded.kind != BaseCommand.PONG:
                raise ProtocolError(f"a frame of type {decoded.kind} where a list of topics was due")

    async def _read_whole(self, head: bytes, frame_bytes: int) -> bytearray:
        """Read the rest of a large frame, into a buffer of exactly its size."""
        frame = bytearray(frame_bytes)
        frame[: len(head)] = head
        at = len(head)
        while at < frame_bytes:
            piece = await self._reader.read(frame_bytes - at)
            if not piece:
                raise EOFError(f"the broker closed the connection after {at} of {frame_bytes} bytes")
            frame[at : at + len(piece)] = piece
            at += len(piece)
        return frame

    async def _shake_hands(self, identity: Identity) -> None:
        self._writer.write(encode(identity.hello().body(identity.shown())))
        while True:
            answer = await self._read_small(_HANDSHAKE_BYTES_MAX)
            if answer.kind == BaseCommand.CONNECTED:
                return
            if answer.kind == BaseCommand.ERROR:
                raise RequestRefused(answer.body.error, answer.body.message, "the connection")
            raise ProtocolError(f"a frame of type {answer.kind} where CONNECTED was due")

    async def _read_small(self, bytes_max: int) -> Frame:
        size = await self._reader.readexactly(4)
        frame_bytes = int.from_bytes(size, "big")
        if frame_bytes > bytes_max:
            raise ProtocolError(f"an answer of {frame_bytes} bytes")
        frame = size + await self._reader.readexactly(frame_bytes)
        return decode_frame(frame, 0, len(frame))


def _listed(frame: bytearray) -> Listed:
    """Return the fields of a GET_TOPICS_OF_NAMESPACE_RESPONSE without its request id, which all brokers write first.

    Raises:
        ProtocolError: it is another command, or written in a way that no broker does.
    """
    head = bytes(frame[:_HEAD_BYTES_MAX])
    try:
        kind_tag, at = read_varint(head, _SIZES_BYTES)
        kind, at = read_varint(head, at)
        body_tag, at = read_varint(head, at)
        body_bytes, at = read_varint(head, at)
        stop = at + body_bytes
        id_tag, at = read_varint(head, at)
        request_id, at = read_varint(head, at)
    except (IndexError, OverflowError):
        raise ProtocolError("a list of topics that cannot be read") from None
    usual = kind_tag == 0x08 and kind == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE and body_tag == _BODY_TAG
    if not usual or id_tag != _TAG_REQUEST_ID or request_id != REQUEST_ID or stop != len(frame) or at > stop:
        raise ProtocolError("an answer that is no list of topics")
    return Listed(memoryview(frame)[at:], len(frame))
