# SPDX-License-Identifier: Apache-2.0
"""Limits of connections per broker and per client address.

Where: `Connections.admit` asks for every accepted socket, before anything is read from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.commands.handshake import NO_REQUEST
from penstock.core.errors import WireCode
from penstock.wire import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.limits import BrokerLimits
    from penstock.net.listener import Connections


def refusal(limits_now: Callable[[], BrokerLimits], connections: Connections, address: str) -> bytes | None:
    """The error frame for a new connection from this address that exceeds a limit; None if it is admitted."""
    limits = limits_now()
    if 0 < limits.connections_max <= len(connections):
        text = "Reached the maximum number of connections"
    elif 0 < limits.connections_per_address_max <= connections.of_address(address):
        text = f"Reached the maximum number of connections on address {address}"
    else:
        return None
    return codec.error(NO_REQUEST, WireCode.NOT_ALLOWED_ERROR, text)
