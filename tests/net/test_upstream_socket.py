# SPDX-License-Identifier: Apache-2.0
"""What a proxy sends to a broker arrives unchanged, whatever the socket takes and whenever its memory is used again."""

from __future__ import annotations

import asyncio
import mmap
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.core.units import KIB
from penstock.net.upstream_socket import UpstreamSocket
from penstock.testing.loop import VirtualLoop

if TYPE_CHECKING:
    from penstock.testing.sockets import MemorySocket

MORE_THAN_A_SOCKET_TAKES = 1_024 * KIB


class Handler:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.blocked = 0
        self.took = 0
        self.reasons: list[str] = []

    def room_bytes(self) -> int:
        return KIB

    def broker_sent(self, data: bytes) -> None:
        """Nothing is sent."""

    def broker_blocked(self) -> None:
        self.blocked += 1

    def broker_took(self) -> None:
        self.took += 1

    def broker_closed(self, reason: str) -> None:
        self.reasons.append(reason)


def connected(handler: Handler) -> tuple[UpstreamSocket, MemorySocket]:
    """A socket to a broker, and the broker's end of it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    listener = cast("MemorySocket", loop.network.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    near = loop.network.connect(listener.getsockname()[1])
    upstream = UpstreamSocket(near, loop, handler)  # type: ignore[arg-type]
    upstream.start()
    return upstream, listener.accept()[0]


async def everything(broker: MemorySocket, nbytes: int) -> bytes:
    """Receive so many bytes, as the socket brings them."""
    received = b""
    while len(received) < nbytes:
        try:
            received += broker.recv(64 * KIB)
        except BlockingIOError:
            await asyncio.sleep(0.001)
    return received


async def test_memory_that_is_used_again_after_uncork_is_sent_as_it_was() -> None:
    handler = Handler()
    sent: list[str] = []
    upstream, broker = connected(handler)
    arena = bytearray(range(256)) * (MORE_THAN_A_SOCKET_TAKES // 256)
    expected = bytes(arena)

    upstream.cork()
    upstream.write((memoryview(arena)[:1_000],), 1_000)
    upstream.write((memoryview(arena)[1_000:],), len(arena) - 1_000, lambda: sent.append("all"))
    upstream.uncork()
    arena[:] = bytes(len(arena))

    assert (handler.blocked, sent) == (1, [])
    assert await everything(broker, len(expected)) == expected
    await asyncio.sleep(0.001)
    assert (handler.took, sent, upstream.unsent_bytes) == (1, ["all"], 0)


async def test_what_the_socket_takes_at_once_is_sent_before_uncork_returns() -> None:
    upstream, broker = connected(Handler())
    sent: list[str] = []

    upstream.cork()
    upstream.write((b"one",), 3)
    upstream.write((b"two",), 3, lambda: sent.append("all"))
    upstream.uncork()

    assert sent == ["all"]
    assert broker.recv(100) == b"onetwo"


async def test_a_mapped_buffer_is_not_copied() -> None:
    upstream, broker = connected(Handler())
    mapped = mmap.mmap(-1, MORE_THAN_A_SOCKET_TAKES)

    upstream.cork()
    upstream.write((memoryview(mapped),), len(mapped))
    upstream.uncork()
    mapped[-1:] = b"x"

    assert (await everything(broker, len(mapped)))[-1:] == b"x"


async def test_the_handler_is_told_again_when_more_waits_for_a_blocked_socket() -> None:
    handler = Handler()
    upstream, _ = connected(handler)
    upstream.write((bytes(MORE_THAN_A_SOCKET_TAKES),), MORE_THAN_A_SOCKET_TAKES)
    await asyncio.sleep(0.001)
    assert handler.blocked == 1

    upstream.cork()
    upstream.write((b"more",), 4)
    upstream.uncork()

    assert handler.blocked == 2


async def test_closing_inside_a_send_releases_what_waits() -> None:
    handler = Handler()
    released: list[int] = []
    upstream, broker = connected(handler)
    broker.close()

    for number in range(2):  # The first one is answered by a reset.
        upstream.cork()
        upstream.write((b"lost",), 4, partial(released.append, number))
        upstream.uncork()

    assert released == [0, 1]
    assert len(handler.reasons) == 1
    assert not upstream.is_open
