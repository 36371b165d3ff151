# SPDX-License-Identifier: Apache-2.0
"""A connection to a broker for the topic watchers of one client, which is read only as far as bytes are asked for.

Why not the client's own connection to its broker: a list that waits for memory would delay messages and receipts.
Why not asyncio's streams: they read ahead, up to 256 KiB a connection, and there may be one for each client.
Where: `relayed_watchers`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import ServiceNotReady
from penstock.core.units import KIB
from penstock.net.upstream_socket import UpstreamSocket
from penstock.proxy.listings import LISTING_BYTES_MAX, SMALL_BYTES
from penstock.proxy.upstreams import own_refused
from penstock.wire import codec
from penstock.wire.client.connection import encode
from penstock.wire.client.events import RequestRefused
from penstock.wire.client.frames import Frame, decode_frame
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError
from penstock.wire.varints import read_varint

if TYPE_CHECKING:
    from penstock.proxy.proxy import Services
    from penstock.proxy.upstreams import Identity
    from penstock.wire.client.lookup import Address

# Unsent bytes of requests and PONGs; a broker that makes more of them necessary is broken.
UNSENT_BYTES_MAX: Final = 256 * KIB
_SKIPPED_BYTES: Final = 64 * KIB
_HANDSHAKE_BYTES_MAX: Final = 128 * KIB
_SIZES_BYTES: Final = 8
# Of a large frame, what says which it is: two sizes, and five numbers of at most ten bytes.
_HEAD_BYTES: Final = _SIZES_BYTES + 5 * 10
_TYPE_TAG: Final = 0x08
_FIRST_TAG: Final = 0x08  # of the body's first field: a request id, or a watcher's id


class Large:
    """A frame of which only the beginning was read: a list of topics, or changes of one.

    Attributes:
        kind: WATCH_TOPIC_LIST_SUCCESS or WATCH_TOPIC_UPDATE.
        number: the request's id of the former, the watcher's of the latter.
        nbytes: of the whole frame.
    """

    def __init__(self, head: bytes, nbytes: int) -> None:
        """Raises ProtocolError: it is another frame, or written in a way that no broker does."""
        try:
            type_tag, at = read_varint(head, _SIZES_BYTES)
            self.kind, at = read_varint(head, at)
            _, at = read_varint(head, at)
            _, at = read_varint(head, at)
            first_tag, at = read_varint(head, at)
            self.number, at = read_varint(head, at)
        except (IndexError, OverflowError):
            raise ProtocolError("a frame for a topic watcher that cannot be read") from None
        watching = (BaseCommand.WATCH_TOPIC_LIST_SUCCESS, BaseCommand.WATCH_TOPIC_UPDATE)
        if type_tag != _TYPE_TAG or first_tag != _FIRST_TAG or self.kind not in watching:
            raise ProtocolError(f"a frame of type {self.kind} and {nbytes} bytes for a topic watcher")
        self.head = head
        self.nbytes = nbytes


class WatcherConnection:
    """One connection. Open it with `open`; close it when it has failed or is not needed any more.

    Attributes:
        identity: as the broker was told it.
        came: bytes that were read; they show that the broker is alive.
        reading: whether bytes are asked for.
    """

    def __init__(self, identity: Identity) -> None:
        """Made by `open`."""
        self.identity = identity
        self.came = 0
        self._upstream: UpstreamSocket | None = None
        self._closed: str | None = None
        self._buffer = bytearray()
        self._wanted = 0
        self._read: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, services: Services, address: Address, identity: Identity) -> Self:
        """Connect and shake hands. Raises ServiceNotReady, RequestRefused."""
        upstreams = services.upstreams
        sock = await upstreams.dial(address)
        connection = cls(identity)
        connection._upstream = UpstreamSocket(
            sock,
            services.loop,
            connection,
            tls=upstreams.options.context(address, identity),
            server_name=address.host,
        )
        connection._upstream.start()
        try:
            async with asyncio.timeout(upstreams.options.connect_timeout_s):
                await connection._shake_hands()
        except RequestRefused as error:
            connection.close("the broker refused it")
            raise own_refused(address, identity, error) or error from error
        except (OSError, TimeoutError, ProtocolError) as error:
            connection.close("no handshake")
            reason = str(error) or "it did not answer in time"
            raise ServiceNotReady(f"broker {address} cannot be asked for topics: {reason}") from error
        except BaseException:
            connection.close("no handshake")
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return self._closed is None

    @property
    def reading(self) -> bool:
        return self._read is not None

    def close(self, reason: str) -> None:
        """Close the connection now."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close(reason)

    def send(self, frame: bytes) -> None:
        """Send a frame; nothing if the connection is closed."""
        if self._upstream is not None:
            self._upstream.write((frame,), len(frame))
            if self._upstream.unsent_bytes > UNSENT_BYTES_MAX:
                self._upstream.close(f"it has not taken {self._upstream.unsent_bytes} bytes")

    # -- reading ------------------------------------------------------------------------------------------------------

    async def next(self) -> Frame | Large:
        """Return the next frame that is no PING; of a large one, the beginning.

        Raises:
            ConnectionError, ProtocolError: the connection is lost, or is not one to a broker.
        """
        while True:
            sizes = bytes(await self._exactly(_SIZES_BYTES))
            nbytes = 4 + int.from_bytes(sizes[:4], "big")
            if not _SIZES_BYTES <= nbytes <= LISTING_BYTES_MAX:
                raise ProtocolError(f"a frame of {nbytes} bytes for a topic watcher")
            if nbytes > SMALL_BYTES:
                return Large(sizes + await self._exactly(_HEAD_BYTES - _SIZES_BYTES), nbytes)
            frame = sizes + await self._exactly(nbytes - _SIZES_BYTES)
            decoded = decode_frame(frame, 0, nbytes)
            if decoded.kind == BaseCommand.PING:
                self.send(codec.pong())
            elif decoded.kind in (BaseCommand.WATCH_TOPIC_LIST_SUCCESS, BaseCommand.WATCH_TOPIC_UPDATE):
                return Large(frame, nbytes)
            elif decoded.kind != BaseCommand.PONG:
                return decoded

    async def rest(self, frame: Large) -> bytearray:
        """Return the whole frame. Raises as `next`."""
        missing = frame.nbytes - len(frame.head)
        return await self._exactly(missing, frame.head) if missing else bytearray(frame.head)

    async def skip(self, frame: Large) -> None:
        """Read the rest of a frame, and drop it. Raises as `next`."""
        missing = frame.nbytes - len(frame.head)
        while missing:
            piece = min(missing, _SKIPPED_BYTES)
            await self._exactly(piece)
            missing -= piece

    async def _exactly(self, nbytes: int, before: bytes = b"") -> bytearray:
        """Return so many bytes, after those that came before."""
        if not nbytes:
            return bytearray(before)
        if self._upstream is None or not self._upstream.is_open:
            raise ConnectionResetError(self._closed or "the connection is closed")
        self._buffer = bytearray(len(before) + nbytes)
        self._buffer[: len(before)] = before
        self._wanted = nbytes
        self._read = asyncio.get_running_loop().create_future()
        self._upstream.resume()
        try:
            await self._read
            return self._buffer
        finally:
            self._read, self._wanted, self._buffer = None, 0, bytearray()

    def room_bytes(self) -> int:
        """See UpstreamHandler."""
        return self._wanted

    def broker_sent(self, data: bytes) -> None:
        """See UpstreamHandler."""
        self.came += len(data)
        at = len(self._buffer) - self._wanted
        self._buffer[at : at + len(data)] = data
        self._wanted -= len(data)
        if not self._wanted and self._read is not None and not self._read.done():
            self._read.set_result(None)

    def broker_blocked(self) -> None:
        """See UpstreamHandler."""

    def broker_took(self) -> None:
        """See UpstreamHandler."""

    def broker_closed(self, reason: str) -> None:
        """See UpstreamHandler."""
        self._closed, self._upstream = reason, None
        if self._read is not None and not self._read.done():
            self._read.set_exception(ConnectionResetError(reason))

    async def _shake_hands(self) -> None:
        identity = self.identity
        self.send(encode(identity.hello().body(identity.shown())))
        sizes = bytes(await self._exactly(_SIZES_BYTES))
        nbytes = 4 + int.from_bytes(sizes[:4], "big")
        if not _SIZES_BYTES <= nbytes <= _HANDSHAKE_BYTES_MAX:
            raise ProtocolError(f"an answer of {nbytes} bytes to CONNECT")
        answer = decode_frame(sizes + await self._exactly(nbytes - _SIZES_BYTES), 0, nbytes)
        if answer.kind == BaseCommand.ERROR:
            raise RequestRefused(answer.body.error, answer.body.message, "the connection")
        if answer.kind != BaseCommand.CONNECTED:
            raise ProtocolError(f"a frame of type {answer.kind} where CONNECTED was due")
