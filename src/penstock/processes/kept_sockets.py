# SPDX-License-Identifier: Apache-2.0
"""Listening sockets that stay open while this process replaces itself (`end_of_process.start_again`).

Why: clients that connect meanwhile wait in the kernel, as those of a broker under a supervisor do. If they were
refused, they would try again after pauses that double, and be back long after the broker. The ports stay the same, even
if the system chose them.
Where: `sockets` keeps those of brokers, and opens with them.

The new program is told in a variable of its environment, with its process id: children inherit the variable, too.
"""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "PENSTOCK_KEPT_SOCKETS"
_OF: Final = "pid"


def keep(sockets: Mapping[str, socket.socket]) -> None:
    """Leave sockets to the program that replaces this one, under names; what is open here may be closed."""
    kept = _taken()
    for name, sock in sockets.items():
        kept[name] = os.dup(sock.fileno())
        os.set_inheritable(kept[name], True)
    os.environ[VARIABLE] = json.dumps({_OF: os.getpid(), **kept})


def take(name: str) -> socket.socket | None:
    """Return the socket that was left under this name; None if there is none."""
    kept = _taken()
    descriptor = kept.pop(name, None)
    if kept:
        os.environ[VARIABLE] = json.dumps({_OF: os.getpid(), **kept})
    if descriptor is None:
        return None
    os.set_inheritable(descriptor, False)
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def close_rest() -> None:
    """Close what nobody took: the new program opens other ports."""
    for descriptor in _taken().values():
        os.close(descriptor)


def _taken() -> dict[str, int]:
    """Read the variable and remove it."""
    kept: dict[str, int] = json.loads(os.environ.pop(VARIABLE, "{}"))
    return kept if kept.pop(_OF, None) == os.getpid() else {}
