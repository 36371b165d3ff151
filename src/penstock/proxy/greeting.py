# SPDX-License-Identifier: Apache-2.0
"""A broker's answer to CONNECT: its frames up to CONNECTED, and the largest message that all agree on.

Where: `relay`, until the handshake is complete. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB, MIB
from penstock.wire.client.frames import FRAME_BYTES_MAX, FRAME_PADDING_BYTES, decode_frame, frame_bytes
from penstock.wire.codec import BaseCommand
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from penstock.wire.client.frames import Body, Frame

# The largest answer to CONNECT: CONNECTED, a challenge or an error.
HANDSHAKE_BYTES_MAX: Final = 128 * KIB
# PINGs and challenges of a broker before it has answered to CONNECT: a client gives up after one or two PINGs.
GREETING_FRAMES_MAX: Final = 20
# A broker may allow messages up to this size, although larger ones than the proxy's limit do not pass.
_MESSAGE_BYTES_MAX: Final = 256 * MIB
_SIZE_BYTES: Final = 4
_UNASKED: Final = (BaseCommand.PING, BaseCommand.AUTH_CHALLENGE)


class Greeting:
    """The broker's frames before it is connected.

    Attributes:
        rest: bytes that are no whole frame yet; behind CONNECTED, what follows it.
    """

    def __init__(self) -> None:
        self.rest = b""
        self._unasked = 0

    def add(self, data: bytes) -> None:
        """The broker has sent these bytes."""
        self.rest += data

    def next_frame(self) -> tuple[bytes, Frame] | None:
        """Return the next whole frame, as bytes and decoded; None: more must come. Raises ProtocolError."""
        if len(self.rest) < 2 * _SIZE_BYTES:
            return None
        stop = frame_bytes(self.rest, 0)
        if stop > HANDSHAKE_BYTES_MAX:
            raise ProtocolError(f"the answer to CONNECT has {stop} bytes")
        if len(self.rest) < stop:
            return None
        frame, self.rest = self.rest[:stop], self.rest[stop:]
        decoded = decode_frame(frame, 0, stop)
        if decoded.kind in _UNASKED:
            self._unasked += 1
            if self._unasked > GREETING_FRAMES_MAX:
                raise ProtocolError(f"{self._unasked} PINGs and challenges instead of an answer to CONNECT")
        return frame, decoded


def largest_message(frame_bytes_max: int) -> int:
    """Return the size of the largest message that clients may send in frames of at most this size."""
    return frame_bytes_max - FRAME_PADDING_BYTES


def agreed_sizes(connected: Body, frame_bytes_max: int) -> int:
    """Set the largest message of a CONNECTED to the proxy's limit, if that is smaller.

    Returns the size of the largest frame that the broker may send: a limit that was lowered leaves larger entries in
    the topics. Raises ProtocolError: the broker announces what cannot be.
    """
    limit = largest_message(frame_bytes_max)
    announced = connected.max_message_size if connected.HasField("max_message_size") else limit
    if not 0 < announced <= _MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a largest message of {announced} bytes")
    connected.max_message_size = min(announced, limit)
    return max(FRAME_BYTES_MAX, announced + FRAME_PADDING_BYTES)
