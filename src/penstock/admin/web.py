# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the admin port: uvicorn, and the limits it is given.

Why limits: whoever reaches this port must not be able to use up the broker's descriptors or memory by saying little,
slowly. uvicorn bounds the size of a request's head and the time between requests; that a request has to come at all,
and its answer to be taken, is added here.
Where: `server` imports this on its thread, at the first connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.admin import api
from penstock.core.units import KIB

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from penstock.admin.gateway import Gateway

HEAD_BYTES_MAX: Final = 16 * KIB
# Answered with 503 from there on: scrapers and people are few.
CONNECTIONS_MAX: Final = 64
IDLE_S: Final = 5
REQUEST_S: Final = 10.0
# How long answers under way may take once the broker stops.
GRACE_S: Final = 2


class PunctualProtocol(H11Protocol):
    """A connection that is dropped when for `REQUEST_S` it neither asks anything nor takes its answer."""

    _seen: tuple[object, int] = (None, 0)
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(REQUEST_S, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check(self) -> None:
        # There is a new cycle for each request, and none before the first; uvicorn's types leave that out.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        unsent_bytes = self.transport.get_write_buffer_size()
        waits_for_us = cycle is not None and not cycle.response_complete and unsent_bytes == 0
        if self._seen == (cycle, unsent_bytes) and not waits_for_us:
            self.transport.abort()
            return
        self._seen = (cycle, unsent_bytes)
        self._timer = self.loop.call_later(REQUEST_S, self._check)


def http_server(gateway: Gateway) -> uvicorn.Server:
    """Return the server, to be started on a socket that listens."""
    return uvicorn.Server(
        uvicorn.Config(
            api.build(gateway),
            http=PunctualProtocol,
            ws="none",
            lifespan="off",
            log_config=None,  # its lines go where all others go
            log_level="error",  # what clients do wrong is not an event of ours
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
