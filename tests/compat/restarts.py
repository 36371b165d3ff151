# SPDX-License-Identifier: Apache-2.0
"""An address at which a program in another language asks for its broker to be killed and started again.

Where: `run`, whose kits of other languages try how their clients reconnect.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.compat.proxied import Broker


@contextmanager
def restarts(broker: Broker) -> Iterator[str]:
    """Yield a URL. Each POST there kills the broker (SIGKILL) and answers when it serves again, at the same ports."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                broker.kill()
                broker.start(port=broker.port, admin_port=broker.admin_port)
            except Exception as error:  # noqa: BLE001 -- the case that asked says why it failed
                self._answer(500, str(error))
            else:
                self._answer(200, "started again")

        def _answer(self, status: int, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: the program's own lines are enough."""

    # One request at a time: no two threads start the broker.
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="restarts")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
