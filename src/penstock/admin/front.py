# SPDX-License-Identifier: Apache-2.0
"""The way to the web console: before an application, for browsers only.

Why apart from `console`: that reads files and answers; this decides for each request of an admin port, and most brokers
are never looked at. Where: around the application of a broker (`server`) and of a proxy (`proxy_api`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from penstock.admin.console import Server
    from penstock.admin.http_memory import HttpMemory

# Where the files of the console are.
CONSOLE: Final = "/console/"


class WithConsole:
    """An application, and before it the files of the web console.

    A client that does not prefer HTML gets the answer of the application at `/`, as it did before there was a console.
    """

    def __init__(
        self, app: ASGIApp, server: Server, memory: HttpMemory, consoles: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Args: server: what the application is, for the pages of the console. consoles: of other clusters, by name."""
        self._app = app
        self._server: Server = server
        self._memory = memory
        self._consoles = consoles
        self._console: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_for_console(scope):
            await self._app(scope, receive, send)
            return
        if self._console is None:
            from penstock.admin.console import Console  # noqa: PLC0415 -- nobody may ever look

            self._console = Console(self._server, CONSOLE, self._memory, self._consoles)
        await self._console(scope, receive, send)


def is_for_console(scope: Scope) -> bool:
    """Return whether a request is for a file of the console."""
    if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
        return False
    path = scope["path"]
    return path.startswith(CONSOLE) or (path == "/" and prefers_html(scope["headers"]))


def prefers_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a caller names HTML, and wants it rather than JSON. `*/*` names nothing."""
    wanted = {b"text/html": 0.0, b"application/json": 0.0}
    for name, value in headers:
        if name == b"accept":
            for one in value.lower().split(b","):
                kind, *parameters = (part.strip() for part in one.split(b";"))
                if kind in wanted:
                    wanted[kind] = _quality(parameters)
    return wanted[b"text/html"] > wanted[b"application/json"]


def _quality(parameters: Iterable[bytes]) -> float:
    """Return how much a kind is wanted, from 0 to 1; 0 for what is no number."""
    for name, _, value in (parameter.partition(b"=") for parameter in parameters):
        if name == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
