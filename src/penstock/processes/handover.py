# SPDX-License-Identifier: Apache-2.0
"""What the supervisor hands to a broker process, and how that process ends with the supervisor.

Why a socket pair: the broker gets its settings and sockets as the supervisor has them, also when it is started again
and the configuration file has changed meanwhile. And the end of the supervisor, however it ends, closes the pair.
Where: `supervisor` sends a `Handover` to each process that it starts, `cli.broker_process` receives it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.processes.sockets import Sockets

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penstock.core.service_urls import Addresses
    from penstock.settings import Settings

READY: Final = b"R"
# Exit status of a broker whose supervisor is gone.
EXIT_ORPHANED: Final = 1
_LENGTH: Final = struct.Struct(">I")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One broker of several."""

    number: int
    settings: Settings
    data_dir: Path
    descriptors: Sequence[int | None]  # of its `Sockets`, inherited
    metadata: int  # descriptor of the metadata channel, inherited
    addresses: Mapping[int, Addresses]  # of all brokers, by number
    peers: Mapping[int, int]  # descriptors of the ways to their inboxes for requests, by number, inherited
    peer_clients: Mapping[int, int]  # and to those for each other as clients
    usage_key: bytes  # signs usage reports; of this start of the supervisor

    def metadata_socket(self) -> socket.socket:
        """Return the inherited end of the metadata channel."""
        return socket.socket(fileno=self.metadata)

    def sockets(self) -> Sockets:
        """Return the inherited sockets."""
        return Sockets(*(None if one is None else socket.socket(fileno=one) for one in self.descriptors))


def inherited(descriptors: Mapping[int, int]) -> dict[int, socket.socket]:
    """Return the inherited sockets of these descriptors."""
    return {number: socket.socket(fileno=one) for number, one in descriptors.items()}


def encoded(handover: Handover) -> bytes:
    """Return the message that `received` reads."""
    body = pickle.dumps(handover)
    return _LENGTH.pack(len(body)) + body


def received(control: socket.socket) -> Handover:
    """Read the handover from the supervisor; blocks. Raises EOFError if the supervisor is gone."""
    (size,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    handover = pickle.loads(_exactly(control, size))  # noqa: S301 -- from the parent, over a pair that nobody else has
    assert isinstance(handover, Handover)
    return handover


def end_with_parent(control: socket.socket) -> None:
    """Kill this process when the supervisor ends, even if the loop hangs; raises EOFError if it has ended.

    From then on `watch_parent` notices it too: a kernel may not know the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A parent that ended before that closed its end of the pair, and has sent nothing.
    control.setblocking(True)
    if not control.recv(1, socket.MSG_PEEK):
        raise EOFError("the supervisor is gone")


def watch_parent(loop: asyncio.AbstractEventLoop, control: socket.socket) -> None:
    """End this process at once, as if killed, when the supervisor is gone: nobody would store its metadata."""
    control.setblocking(False)

    def read() -> None:
        try:
            gone = not control.recv(1)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            end_orphan()

    loop.add_reader(control.fileno(), read)


def end_orphan() -> None:
    """End this process at once: the supervisor is gone."""
    os._exit(EXIT_ORPHANED)


def _exactly(control: socket.socket, nbytes: int) -> bytes:
    pieces = []
    while nbytes:
        piece = control.recv(nbytes)
        if not piece:
            raise EOFError("the supervisor is gone")
        pieces.append(piece)
        nbytes -= len(piece)
    return b"".join(pieces)
