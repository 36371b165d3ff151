# SPDX-License-Identifier: Apache-2.0
"""What a broker refuses a client, and what ends a connection that neither side closed.

Where: `ClientConnection` makes them; the edges raise them to whoever waits.
"""

from __future__ import annotations

from typing import Final

from penstock.core.errors import PenstockError, WireCode

_CODES: Final = {int(code): code for code in WireCode}

# Errors after which the same request may succeed, after a pause and a new lookup.
RETRIABLE: Final = frozenset(
    {
        WireCode.PERSISTENCE_ERROR,
        WireCode.CONSUMER_BUSY,
        WireCode.SERVICE_NOT_READY,
        WireCode.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR,
        WireCode.TOO_MANY_REQUESTS,
        WireCode.PRODUCER_BUSY,
    }
)


class RequestRefused(PenstockError):
    """The broker answered with an error.

    Attributes:
        code: the protocol's error code; a number that this version does not know reads as UNKNOWN_ERROR.
        said: the broker's message.
        what: the request, for the text: "looking up topic t".
    """

    def __init__(self, code: int, said: str, what: str) -> None:
        self.code = _CODES.get(code, WireCode.UNKNOWN_ERROR)
        self.said, self.what = said, what
        super().__init__(f"{what} was refused with {self.code.name}: {said}")

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, after a new lookup."""
        return self.code in RETRIABLE


class BrokerSilent(PenstockError):
    """Nothing came for so long that the broker, or the network, counts as gone; close the connection."""

    def __init__(self, silent_ns: int) -> None:
        super().__init__(f"the broker has sent nothing for {silent_ns / 1e9:g} s and did not answer a PING")
