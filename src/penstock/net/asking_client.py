# SPDX-License-Identifier: Apache-2.0
"""A client that only asks a broker which it does not trust with its memory.

Why: answers to lookups are small, and those with a schema may be a megabyte. A broker that announces more, sends half
of it, or sends PINGs without reading the answers, must not take memory that nobody has agreed to.
Where: the lookups of a proxy share one for each broker and identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import PenstockError, forget_frames
from penstock.core.units import KIB
from penstock.governance.budget import Charge
from penstock.net.client import TIMEOUT_S, AsyncClient
from penstock.wire.client.frames import BUFFER_BYTES

if TYPE_CHECKING:
    import ssl

    from penstock.governance.budget import Row
    from penstock.wire.client.addresses import Address
    from penstock.wire.client.connection import ClientConnection

# Read at a time while no large answer has begun: so many frames are handled in a millisecond or two.
READ_BYTES: Final = 4 * KIB


class AskingClient(AsyncClient):
    """A connection for requests. Its receive buffer is charged as far as it is larger than usual."""

    def __init__(self, connection: ClientConnection, memory: Row) -> None:
        """Made by `open_charged`."""
        super().__init__(connection)
        self._memory = Charge(memory)

    @classmethod
    async def open_charged(
        cls,
        memory: Row,
        address: Address,
        connection: ClientConnection,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Self:
        """Connect and shake hands. Args: memory: pays for large answers. Raises as `AsyncClient.open`."""
        client = cls(connection, memory)
        return await client._shake_hands(
            lambda: client._loop.create_connection(lambda: client, address.host, address.port, ssl=tls), timeout_s
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. If there is no memory for the answer that has begun, the connection ends."""
        try:
            room = super().get_buffer(sizehint)
            self._charge()
            inbound = self.connection.inbound
            if len(inbound.data) <= BUFFER_BYTES:
                room = room[:READ_BYTES]
        except PenstockError as error:
            forget_frames(error)
            self._end(error)
            return memoryview(bytearray(KIB))
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        if self._error is not None:
            return
        super().buffer_updated(nbytes)
        inbound = self.connection.inbound
        if len(inbound.data) > BUFFER_BYTES and not inbound.held_bytes:
            inbound.data, inbound.begin, inbound.end = bytearray(BUFFER_BYTES), 0, 0
            self._charge()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        # Errors refer to this object, and are garbage that is collected later: their memory is not.
        self.connection.inbound.drop()
        self._memory.release()

    def pause_writing(self) -> None:
        """See asyncio: a broker that does not read is not read."""
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        if self._transport is not None and self._error is None:
            self._transport.resume_reading()

    def _charge(self) -> None:
        """Charge what the buffer takes. Raises ServiceNotReady."""
        wanted_bytes = max(0, len(self.connection.inbound.data) - BUFFER_BYTES)
        self._memory.recharge_for("an answer of a broker", wanted_bytes)
