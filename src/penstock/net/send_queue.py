# SPDX-License-Identifier: Apache-2.0
"""Queues of buffers that are sent by gathered writes.

Why: joining queued buffers into one would copy every delivered byte once more. Where: `connection` queues plaintext,
`tls` queues ciphertext.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from penstock.core.units import KIB

if TYPE_CHECKING:
    import socket
    from collections import deque
    from collections.abc import Iterable

Buffer: TypeAlias = bytes | bytearray | memoryview

# sendmsg takes at most IOV_MAX (1024 on Linux) buffers.
IOVECS_MAX: Final = 1024
# Copies of waiting bytes are cut into pieces of this size, each freed when it is sent; one TLS record each.
PIECE_BYTES: Final = 16 * KIB


def send_queued(sock: socket.socket, queue: deque[Buffer]) -> int:
    """Send what the socket takes now, and remove it from the queue; return how many bytes."""
    sent = sock.send(queue[0]) if len(queue) == 1 else sock.sendmsg(list(islice(queue, IOVECS_MAX)))
    drop_sent(queue, sent)
    return sent


def drop_sent(queue: deque[Buffer], nbytes: int) -> None:
    """Remove the first `nbytes` bytes of the queued buffers."""
    while nbytes:
        head = queue[0]
        if nbytes < len(head):
            queue[0] = memoryview(head)[nbytes:]
            return
        nbytes -= len(head)
        queue.popleft()


def own(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Return the same bytes; views of larger buffers are copied."""
    owned: list[Buffer] = []
    for buffer in buffers:
        if type(buffer) is memoryview:
            owned += [bytes(buffer[at : at + PIECE_BYTES]) for at in range(0, len(buffer), PIECE_BYTES)]
        else:
            owned.append(buffer)
    return owned


def without(buffers: Iterable[Buffer], position: int, gone: list[tuple[int, int]]) -> list[Buffer]:
    """Return these buffers, the first of which begins at `position`, without these ascending byte ranges."""
    kept: list[Buffer] = []
    ranges = iter([*gone, (1 << 63, 1 << 63)])
    start, stop = next(ranges)
    for buffer in buffers:
        at, end = position, position + len(buffer)
        while at < end:
            if stop <= at:
                start, stop = next(ranges)
            elif start <= at:
                at = min(stop, end)
            else:
                until = min(start, end)
                whole = at == position and until == end
                kept.append(buffer if whole else memoryview(buffer)[at - position : until - position])
                at = until
        position = end
    return kept
