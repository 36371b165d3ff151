# SPDX-License-Identifier: Apache-2.0
"""Says once that topics may be deleted between two triggers that are far apart.

Why: between micro-batches a stream keeps consumers, but nobody answers the broker's PINGs. After a minute it closes the
connection, and then a topic without subscriptions is inactive: by Pulsar's default settings it is deleted with its
messages.
Where: the stream reader tells each plan.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penstock.core.units import NS_PER_S
from penstock.net.clock import SystemClock

if TYPE_CHECKING:
    from penstock.core.clock import Clock

_log: Final = logging.getLogger(__name__)
# A PING after 30 s, the end of the connection after 30 s more; brokerDeleteInactiveTopicsFrequencySeconds is 60.
APART_NS: Final = 60 * NS_PER_S


class IdleTopics:
    """Looks at the time between two plans. Can be pickled."""

    def __init__(self, *, is_durable: bool, clock: Clock | None = None) -> None:
        """`is_durable`: the stream has durable subscriptions, which keep the topics."""
        self._is_silent = is_durable
        self._clock = clock or SystemClock()
        self._last_ns: int | None = None

    def planned(self) -> None:
        """A micro-batch is planned now."""
        now_ns = self._clock.monotonic_ns()
        if not self._is_silent and self._last_ns is not None and now_ns - self._last_ns > APART_NS:
            self._is_silent = True
            _log.warning(
                "%d s between two micro-batches: brokers with brokerDeleteInactiveTopicsEnabled delete topics without "
                "subscriptions after a minute, with their messages if they are Apache Pulsar's. Set "
                "predefinedSubscription, or switch that off",
                (now_ns - self._last_ns) // NS_PER_S,
            )
        self._last_ns = now_ns
