# SPDX-License-Identifier: Apache-2.0
"""What a proxy asks the admin port of its cluster by itself: one JSON document at a time, with the proxy's credentials.

Where: `upstream_backlogs` and `mirrored_groups`.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from penstock.core.deadline import DEADLINE_S
from penstock.core.errors import PenstockError
from penstock.core.units import MIB
from penstock.net.http_request import NoResponse

if TYPE_CHECKING:
    from penstock.proxy.admin_requests import AdminRequests
    from penstock.proxy.upstreams import Identity

ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = MIB


class Missing:
    """The answer if nothing is at the address that was asked for (404)."""


MISSING: Final = Missing()


class NoAnswer(Exception):
    """The cluster did not answer as expected; the message says why."""


class AdminPolls:
    """Asks the cluster.

    Attributes:
        failures: questions without an answer.
    """

    def __init__(self, requests: AdminRequests, identity: Identity) -> None:
        self.failures = 0
        self._requests = requests
        self._identity = identity

    async def get(self, target: str) -> Any:  # noqa: ANN401 - any JSON
        """Return a document, MISSING if nothing is there, None if it is empty. Raises NoAnswer."""
        own = self._identity.own
        headers = [("accept", "application/json"), *(own.http_headers() if own is not None else ())]
        until_s = asyncio.get_running_loop().time() + ANSWER_S
        outer = DEADLINE_S.set(until_s)
        try:
            async with asyncio.timeout_at(until_s), self._requests.sent("GET", target, headers, b"") as response:
                body = b""
                async for piece in response.body:
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        raise NoAnswer(f"{target}: the answer has more than {ANSWER_BYTES_MAX} bytes")
                return _document(target, response.status, body)
        except NoAnswer:
            self.failures += 1
            raise
        except (NoResponse, PenstockError, OSError, TimeoutError) as error:
            self.failures += 1
            raise NoAnswer(f"{target}: {str(error) or f'no answer within {ANSWER_S:g} s'}") from error
        finally:
            DEADLINE_S.reset(outer)


def _document(target: str, status: int, body: bytes) -> Any:  # noqa: ANN401 - any JSON
    if status == HTTPStatus.NOT_FOUND:
        return MISSING
    if status == HTTPStatus.NO_CONTENT:
        return None
    if status != HTTPStatus.OK:
        raise NoAnswer(f"{target}: status {status}")
    text = body.strip()
    if not text.startswith((b"{", b"[", b'"')):
        return text.decode("utf-8", "replace") or None  # Names come without quotes.
    try:
        return json.loads(text)
    except ValueError as error:
        raise NoAnswer(f"{target}: not JSON: {error}") from error
