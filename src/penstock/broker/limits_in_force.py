# SPDX-License-Identifier: Apache-2.0
"""The broker's limits as they are now.

Why a holder: configuration can change while the broker runs. Whoever needs a limit asks for it at that moment, and
nobody sees half of a change, for the value is replaced as a whole.
Where: app makes it of the settings; parts are given it, or a function that picks from it; `configuration` replaces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.limits import BrokerLimits


class LimitsInForce:
    """Called, it gives the limits."""

    __slots__ = ("now",)

    def __init__(self, limits: BrokerLimits) -> None:
        self.now = limits

    def __call__(self) -> BrokerLimits:
        """The limits, to be asked for anew each time."""
        return self.now
