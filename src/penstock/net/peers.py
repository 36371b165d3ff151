# SPDX-License-Identifier: Apache-2.0
"""Requests from one broker to the admin API of another broker on this machine.

Why: what an administrator asks of any broker may concern topics of others. Each request is on a connection of its own
(`peer_socket`), which proves that a broker sends it, and says in a header for whom.
Where: the supervisor opens an inbox for each broker. The broker's loop and the admin thread's loop send requests.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.core import errors
from penstock.core.caller import HEADER, encode_asker
from penstock.core.clock import HEADER as WITHIN_HEADER
from penstock.core.clock import announced, inner_s
from penstock.core.errors import PenstockError, ServiceNotReady
from penstock.core.units import MIB
from penstock.net.client import AsyncClient
from penstock.net.http_request import HEAD_BYTES_MAX, NoResponse, send
from penstock.net.peer_socket import connect as connect_to

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Iterable, Mapping

    from penstock.core.caller import Asker
    from penstock.net.http_request import Response, Streams
    from penstock.net.usage_topic import Dial

# Largest response that is read as a whole: statistics of one topic, or the subscriptions of one.
JSON_BYTES_MAX: Final = 16 * MIB
# The errors of a broker's answers, by status.
_ERRORS: Final[Mapping[int, type[PenstockError]]] = {
    404: errors.NotFound,
    405: errors.NotAllowed,
    406: errors.NotAcceptable,
    409: errors.AlreadyExists,
    412: errors.PreconditionFailed,
    422: errors.Unprocessable,
}


class Peers:
    """The other brokers of this cluster, on this machine. Its methods are called on any loop."""

    def __init__(self, inboxes: Mapping[int, socket.socket]) -> None:
        """Args: inboxes: where the brokers take requests, by number."""
        self._inboxes = inboxes

    @asynccontextmanager
    async def send(
        self,
        broker: int,
        method: str,
        target: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        *,
        by: Asker,
    ) -> AsyncIterator[Response]:
        """Send a request of this asker, and yield the answer. Raises ServiceNotReady if there is none.

        The other broker has less time than is left for the request that this one is part of (`core.clock`).
        """
        within_s = inner_s(asyncio.get_running_loop().time())
        more = [(HEADER, encode_asker(by)), (WITHIN_HEADER, announced(within_s))]

        async def connect() -> Streams:
            return await asyncio.open_unix_connection(sock=connect_to(self._inboxes[broker]), limit=HEAD_BYTES_MAX)

        try:
            async with send(connect, method, target, [*headers, *more], body, within_s=within_s) as response:
                yield response
        except NoResponse as error:
            raise _no_answer(broker) from error

    async def ask(self, broker: int, method: str, target: str, value: object = None, *, by: Asker) -> Any:  # noqa: ANN401 - JSON
        """Send a request with a JSON value, if any, and return that of the answer; None if it has none.

        Raises the error of this status that the broker answered with; ServiceNotReady for other statuses, or if there
        is no answer.
        """
        body = b"" if value is None else json.dumps(value).encode()
        within_s = inner_s(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(within_s), self.send(broker, method, target, body=body, by=by) as response:
                pieces, size = [], 0
                async for piece in response.body:
                    pieces.append(piece)
                    size += len(piece)
                    if size > JSON_BYTES_MAX:
                        raise ServiceNotReady(f"the answer of broker {broker} to {method} {target} is too large")
        except TimeoutError as error:
            raise _no_answer(broker) from error
        is_json = "application/json" in response.values("content-type")
        return value_of(broker, response.status, json.loads(b"".join(pieces)) if is_json and pieces else None)


def dial(inboxes: Mapping[int, socket.socket]) -> Dial:
    """Return what connects to the brokers as their client, over their inboxes for that, by number."""

    async def dial(broker: int) -> AsyncClient:
        return await AsyncClient.over(connect_to(inboxes[broker]))

    return dial


def value_of(broker: int, status: int, answer: Any) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of an answer, or raise the error that it reports."""
    if status < HTTPStatus.BAD_REQUEST:
        return answer
    reason = answer.get("reason") if isinstance(answer, dict) else None
    raise _ERRORS.get(status, ServiceNotReady)(reason or f"broker {broker} answered {status}")


def _no_answer(broker: int) -> ServiceNotReady:
    return ServiceNotReady(f"broker {broker} of this cluster does not answer; try again")
