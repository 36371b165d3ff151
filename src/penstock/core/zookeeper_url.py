# SPDX-License-Identifier: Apache-2.0
"""URLs of ZooKeeper as Pulsar writes them: `zk:host:port,host:port/path`.

Where: the setting `membershipUrl`; `net.zookeeper_session` connects to the servers, `net.zookeeper` uses the path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

PORT: Final = 2181
PATH: Final = "/penstock"  # if the URL has none
SCHEME: Final = "zk:"
_WANT: Final = "want zk:HOST:PORT,HOST:PORT/PATH, as in Pulsar's metadataStoreUrl; the port and the path may be missing"
# A name, an IPv4 address, or an IPv6 address in brackets.
_SERVER: Final = re.compile(r"(?P<host>[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")
_STEP: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,255}")
# ZooKeeper keeps its own nodes there.
_RESERVED: Final = "zookeeper"


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """The servers of a ZooKeeper ensemble, and a path in it."""

    servers: tuple[str, ...]  # host:port
    path: str

    @classmethod
    def parse(cls, text: str) -> ZooKeeperUrl:
        """Parse a URL; raises ValueError, which says what is allowed."""
        if not text.startswith(SCHEME):
            raise ValueError(f"{_WANT}; other stores than ZooKeeper are not supported")
        rest = text.removeprefix(SCHEME).removeprefix("//")
        servers, slash, path = rest.partition("/")
        return cls(tuple(_server(one.strip()) for one in servers.split(",")), _path(slash + path))

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.servers)}{self.path}"


def _server(text: str) -> str:
    match = _SERVER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no HOST:PORT; {_WANT}")
    port = int(match["port"] or PORT)
    if not 0 < port < 1 << 16:
        raise ValueError(f"{port} is no port of a server; {_WANT}")
    return f"{match['host']}:{port}"


def _path(text: str) -> str:
    path = text.rstrip("/")
    if not path:
        return PATH
    steps = path.removeprefix("/").split("/")
    if steps[0] == _RESERVED or any(_STEP.fullmatch(step) is None or step in {".", ".."} for step in steps):
        raise ValueError(f"{path!r} is no path for penstock's nodes; {_WANT}")
    return path
