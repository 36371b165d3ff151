# SPDX-License-Identifier: Apache-2.0
"""The current limits of the broker.

Why a holder: configuration can change at run time. Limits are read from here each time, and replaced as a whole.
Where: app makes it from the settings; parts are given it, or a function that picks from it; `configuration` replaces
the value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.limits import BrokerLimits


class LimitsInForce:
    """Returns the current limits when called."""

    __slots__ = ("now",)

    def __init__(self, limits: BrokerLimits) -> None:
        self.now = limits

    def __call__(self) -> BrokerLimits:
        return self.now
