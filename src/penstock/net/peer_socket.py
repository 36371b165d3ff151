# SPDX-License-Identifier: Apache-2.0
"""How the brokers of one machine connect to each other: without an address, so nobody else can.

Why: whatever listens under a name takes connections of every process that sees the name, and would have to ask each for
a secret. Here is no name. Each broker has an inbox: a socket pair of which it has one end, and all brokers have the
other, which they inherited from the supervisor. To connect, a broker makes another pair and sends one of its ends into
the inbox. A process that was not given an end cannot get one: `/proc` opens files and pipes of other processes, but no
sockets.
Where: the supervisor opens inboxes, and keeps them while a broker is started again; `peers` connects.

What is sent into the inbox of a broker that does not take it waits in the kernel, which takes a few hundred.
"""

from __future__ import annotations

import array
import socket
from typing import Final, NamedTuple

_DESCRIPTOR_BYTES: Final = array.array("i").itemsize
# The kernel wants a message with each descriptor.
_MESSAGE: Final = b"\0"


class Inbox(NamedTuple):
    """The way to one broker for the others."""

    receiving: socket.socket  # of the broker alone
    sending: socket.socket  # of all brokers

    def close(self) -> None:
        """Close both ends in this process."""
        self.receiving.close()
        self.sending.close()


def open_inbox() -> Inbox:
    """Return an inbox, for non-blocking use."""
    # Of packets: one is one connection, however many brokers send at once.
    inbox = Inbox(*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    for end in inbox:
        end.setblocking(False)
    return inbox


def connect(sending: socket.socket) -> socket.socket:
    """Return a socket that is connected to the broker of this inbox, or will be when it takes the other end.

    Raises:
        OSError: the broker has ended for good, or takes nothing: so many connections wait for it already.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            ancillary = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))
            sending.sendmsg([_MESSAGE], [ancillary], socket.MSG_DONTWAIT)
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return ours


def accept(receiving: socket.socket) -> socket.socket:
    """Return the next connection of another broker, for non-blocking use.

    Raises:
        BlockingIOError: none waits.
        ConnectionAbortedError: this process has no descriptor free for it, or the broker that sent it has ended.
    """
    _, ancillary, _, _ = receiving.recvmsg(
        len(_MESSAGE), socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind, len(data)) == (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR_BYTES):
            sock = socket.socket(fileno=array.array("i", data)[0])
            sock.setblocking(False)
            return sock
    raise ConnectionAbortedError("a broker's connection was lost on its way")
