# SPDX-License-Identifier: Apache-2.0
"""The files of the web console, and which requests are for them.

The console is a page that asks the same REST API as `pulsar-admin`, with the credentials that its user has typed; see
docs/adr/0121. Nothing here knows anything of a broker: it serves the files of the folder `console` of the package.
Why without the framework of the routes: these files are for browsers that ask an administrator for a token first.
Where: `front.WithConsole` makes a `Console` for the first request of a browser. Files are read then, not at the start.
"""

from __future__ import annotations

import gzip
import hashlib
import html
import json
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import penstock
from penstock.admin.middleware import RequestMiddleware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.http_memory import HttpMemory

Server = Literal["broker", "proxy"]

FOLDER: Final = Path(penstock.__file__).parent / "console"
PAGE: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
# What the page says of the program that serves it.
_SERVER: Final = b"{{server}}"
_VERSION: Final = b"{{version}}"
_CONSOLES: Final = b"{{consoles}}"
# Nothing from elsewhere, nothing inline, no frame around it. The browser refuses the rest, whatever a page contains.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time whether a file has changed: it belongs to the version of the broker that runs.
    "cache-control": "no-cache",
    "vary": "Accept, Accept-Encoding",
}


class _File(NamedTuple):
    """One file, as it is sent."""

    media_type: str
    plain: bytes
    packed: bytes  # by gzip
    tag: str


class Console:
    """The application that serves the files."""

    def __init__(
        self, server: Server, prefix: str, memory: HttpMemory | None = None, consoles: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Read the files.

        Args:
            server: what serves them, which decides what the pages ask.
            prefix: of their paths.
            memory: of requests.
            consoles: name and URL of those of other clusters, which the head leads to.
        """
        facts = {
            _SERVER: server.encode(),
            _VERSION: penstock.__version__.encode(),
            _CONSOLES: html.escape(json.dumps(consoles)).encode(),
        }
        self._files = {
            f"{prefix}{path.relative_to(FOLDER).as_posix()}": _read(path, facts)
            for path in sorted(FOLDER.rglob("*"))
            if path.suffix in _TYPES
        }
        self._files["/"] = self._files[f"{prefix}{PAGE}"]
        self._app: ASGIApp = RequestMiddleware(self._answer, memory=memory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._response(Request(scope))(scope, receive, send)

    def _response(self, request: Request) -> Response:
        path = request.scope["path"]
        file = self._files.get(path)
        if file is None:
            return JSONResponse({"reason": f"the console has no file {path}"}, HTTPStatus.NOT_FOUND, HEADERS)
        headers = {**HEADERS, "etag": file.tag}
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.packed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type)
        return Response(file.plain, headers=headers, media_type=file.media_type)


def _read(path: Path, facts: Mapping[bytes, bytes]) -> _File:
    plain = path.read_bytes()
    if path.name == PAGE:
        for place, fact in facts.items():
            plain = plain.replace(place, fact)
    tag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'
    return _File(_TYPES[path.suffix], plain, gzip.compress(plain, 9, mtime=0), tag)
