# SPDX-License-Identifier: Apache-2.0
"""How many clients may be connected, and what those are told who may not.

Where: `Connections.admit` asks for every socket that was accepted, before anything is read from it.
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
    """What to tell one more client from this address that may not come in; None if it may."""
    limits = limits_now()
    if 0 < limits.connections_max <= len(connections):
        text = "Reached the maximum number of connections"
    elif 0 < limits.connections_per_address_max <= connections.of_address(address):
        text = f"Reached the maximum number of connections on address {address}"
    else:
        return None
    return codec.error(NO_REQUEST, WireCode.NOT_ALLOWED_ERROR, text)
