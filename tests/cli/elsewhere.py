# SPDX-License-Identifier: Apache-2.0
"""An admin port of others, which answers a few routes of Pulsar's, and accepts everything."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def answering(answers: Mapping[str, Any]) -> Iterator[str]:
    """Serve these answers by their paths, and 404 for others; yields the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path, "<html><body>HTTP ERROR 404, for browsers</body></html>")
            answer = (found if isinstance(found, str) and found[-1] in "\n>" else json.dumps(found)).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def accept(self) -> None:
            self.send_response(204)
            self.end_headers()

        do_PUT = do_POST = do_DELETE = accept  # noqa: N815 - names of the base

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
