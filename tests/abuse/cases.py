# SPDX-License-Identifier: Apache-2.0
"""The attacks: each command and each of its fields, by few and by many, known or unknown, plain or encrypted.

Where: `attacker` carries one out in a process of its own, `subject` measures the broker meanwhile, `run` chooses.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final, cast

from penstock.admin.api import build
from penstock.core.units import KIB, MIB
from penstock.wire.codec import BaseCommand
from penstock.wire.relayed import DECODED
from tests.abuse.commands import TYPES, fields_of, framed, oversized, valid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.admin.gateway import Gateway
    from tests.abuse.commands import Field

CONNECTIONS: Final = (1, 200)
# Of all connections of one attack together.
PIPELINED: Final = 100_000
BYTES_MAX: Final = 64 * MIB
# A field's sizes: the largest frame (which a single connection sends), a fifth of it, and beyond the bounds of metadata
# and of names.
SIZES: Final = (5 * MIB - 4 * KIB, MIB, 64 * KIB + 1, 4 * KIB + 1)
# Each connection sends its frame again, until those of one size are this much together, or this many. With 200
# connections the four sizes together are more than the broker may have.
REPEATED_BYTES: Final = 80 * MIB
REPEATED_MAX: Final = 4

# So many attacks are carried out at once if they are the same to a proxy.
GROUPED: Final = 8
_READ_BY_PROXIES: Final = {BaseCommand.Type.Name(kind) for kind in DECODED} | {"SEND", "GET_SCHEMA"}
_OF_PROXIES: Final = ("/metrics", "/metrics/", "/healthz", "/status.html")

HTTP_CONNECTIONS: Final = 60
HTTP_BODY_BYTES: Final = 8 * MIB
HTTP_REQUESTS: Final = 20
# A body that every route reads as a whole, and that is passed on if another broker serves the topic.
HTTP_BODY_ALLOWED_BYTES: Final = 255 * KIB

# What is left out, and why. A name here that no longer exists fails a test.
LEFT_OUT: Final = {
    "pipeline SEND": "publishing is what `make flood` attacks, with receipts, rates and the disk behind it",
    "POST /admin/v2/brokers/shutdown": "does what it says",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One attack.

    Attributes:
        what: `pipeline COMMAND`, `field COMMAND.path`, or `METHOD /route` with what its body is.
        known: whether the attackers show who they are. Otherwise they send what they send before anybody asks.
        beside: other attacks of the same kind that are carried out at the same time.
    """

    what: str
    connections: int = 1
    known: bool = True
    tls: bool = False
    beside: tuple[str, ...] = ()

    def __str__(self) -> str:
        beside = f" and {len(self.beside)} beside" if self.beside else ""
        return f"{self.what}{beside} x{self.connections}{'' if self.known else ' unknown'}{' tls' if self.tls else ''}"

    def apart(self) -> list[Case]:
        """Each of the attacks alone."""
        return [replace(self, what=what, beside=()) for what in (self.what, *self.beside)]

    @property
    def sockets(self) -> int:
        """How many connections there are: of few, each attack has its own; many are divided."""
        return self.connections if self.connections > 1 else 1 + len(self.beside)

    @property
    def command(self) -> str:
        """The command that is sent; "" for a route."""
        return "" if self.is_http else self.what.split(" ")[1].split(".")[0]

    @property
    def is_http(self) -> bool:
        """Whether it goes to the admin port."""
        return not self.what.startswith(("pipeline ", "field "))

    @property
    def stratum(self) -> str:
        """What each sample has one of: a pipeline of a command, a field of a command, or a route."""
        return self.what.rpartition(" ")[0] if self.is_http else self.what

    def bursts(self) -> list[bytes]:
        """What connections send, the first the first, and so on in turns. Nothing that comes back is read."""
        if self.is_http:
            return list(_http_bursts(self.what))
        kind, _, name = self.what.partition(" ")
        if kind == "pipeline":
            return [_pipeline(name, PIPELINED // self.connections)]
        field = _fields_by_name()[name]
        if field.kind == "number" and not field.repeated:
            return [b"".join(framed(oversized(field, 0, number)) for number in range(1_000 // self.connections + 1))]
        return [_oversized(name, size) * _repeated(size, self.connections) for size in SIZES]


def _repeated(size: int, connections: int) -> int:
    """How often each connection sends a frame of this size: connections use the sizes in turns."""
    of_this_size = size * -(-connections // len(SIZES))
    return min(REPEATED_MAX, -(-REPEATED_BYTES // of_this_size))


@lru_cache(len(SIZES))
def _oversized(name: str, size: int) -> bytes:
    return framed(oversized(_fields_by_name()[name], size, 1))


@lru_cache(len(CONNECTIONS))
def _pipeline(command: str, count: int) -> bytes:
    frames = bytearray()
    for number in range(1, count + 1):
        frames += framed(valid(command, number))
        if len(frames) > BYTES_MAX:
            break
    return bytes(frames)


@lru_cache
def _fields_by_name() -> dict[str, Field]:
    return {str(field): field for command in TYPES for field in fields_of(command)}


# -- the admin port


@lru_cache
def _routes() -> tuple[tuple[str, str, bool], ...]:
    """(method, path, has a body) of each route of the admin port."""
    document = build(cast("Gateway", None)).openapi()
    return tuple(
        (verb.upper(), path, "requestBody" in operation)
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
        if verb in {"get", "put", "post", "delete"}
    )


_PLACES: Final = {
    "{domain}": "persistent",
    "{tenant}": "public",
    "{namespace}": "default",
    "{topic}": "abused",
    "{subscription}": "abused",
    "{nth}": "1",  # its message is as large as one may be
}

_BODIES: Final = ("long", "many", "deep", "chunked", "allowed")


def _http_bursts(what: str) -> Iterator[bytes]:
    method, path, kind = what.split(" ")
    for place, value in _PLACES.items():
        path = path.replace(place, value)
    path = path.replace("{", "").replace("}", "")
    if kind == "unread":
        yield f"{method} {path} HTTP/1.1\r\nHost: penstock\r\nAuthorization: @\r\n\r\n".encode() * HTTP_REQUESTS
        return
    head = f"{method} {path} HTTP/1.1\r\nHost: penstock\r\nAuthorization: @\r\nContent-Type: application/json\r\n"
    body = {
        "long": b'{"x": "' + b"x" * HTTP_BODY_BYTES + b'"}',
        "many": json.dumps(dict.fromkeys(map(str, range(HTTP_BODY_BYTES // 16)), "x")).encode(),
        "deep": b"[" * HTTP_BODY_BYTES,
        "chunked": b"1000\r\n" + b"[" * 4096 + b"\r\n",
        "allowed": b'{"x": "' + b"x" * HTTP_BODY_ALLOWED_BYTES + b'"}',
    }[kind]
    if kind == "chunked":
        yield f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + body * (HTTP_BODY_BYTES // 4096)
    else:
        requests = HTTP_REQUESTS if kind == "allowed" else 1
        yield (f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body) * requests


# -- all of them


def grouped(cases: Sequence[Case]) -> list[Case]:
    """Put attacks together that are the same to a proxy, which looks at neither the fields nor the body.

    Those are commands that it passes on, whatever comes from clients that it does not know, and routes that are not its
    own. A few connections with any commands go together, too: all of them at once are the harder attack.
    """
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        alone: object = case
        if case.is_http:
            alone = case.what if case.what.split(" ")[1] in _OF_PROXIES else case.what.rpartition(" ")[2]
        elif case.connections == 1 or not case.known or case.command not in _READ_BY_PROXIES:
            alone = case.what.split(" ")[0], case.command == "CONNECT"
        groups.setdefault((alone, case.connections, case.known, case.tls), []).append(case)
    return [
        replace(group[at], beside=tuple(one.what for one in group[at + 1 : at + GROUPED]))
        for group in groups.values()
        for at in range(0, len(group), GROUPED)
    ]


def all_cases() -> list[Case]:
    """Every attack that is not left out."""
    names = [f"pipeline {command}" for command in TYPES] + [f"field {name}" for name in _fields_by_name()]
    cases = [
        Case(what, connections, known, tls)
        for what, connections, known, tls in product(names, CONNECTIONS, (True, False), (False, True))
        if what not in LEFT_OUT
    ]
    for method, path, has_body in _routes():
        if f"{method} {path}" not in LEFT_OUT:
            kinds = _BODIES if has_body else ("unread",) if method == "GET" else ()
            cases += [Case(f"{method} {path} {kind}", HTTP_CONNECTIONS) for kind in kinds]
    return cases
