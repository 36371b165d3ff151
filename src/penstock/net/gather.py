# SPDX-License-Identifier: Apache-2.0
"""Queues of buffers that are sent by gathered writes.

Why: joining what is queued into one buffer would copy every delivered byte once more.
Where: `connection` queues plaintext, `tls` queues ciphertext.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    import socket
    from collections import deque

Buffer: TypeAlias = bytes | bytearray | memoryview

# sendmsg takes at most IOV_MAX (1024 on Linux) buffers.
IOVECS_MAX: Final = 1024


def send_queued(sock: socket.socket, queue: deque[Buffer]) -> int:
    """Send what the socket takes now, and remove it from the queue; returns how many bytes."""
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
