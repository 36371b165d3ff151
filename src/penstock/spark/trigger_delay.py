# SPDX-License-Identifier: Apache-2.0
"""Waits with a micro-batch until enough messages have come, or long enough was waited; as Kafka's source does.

Where: the stream reader asks before each micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.units import NS_PER_S
from penstock.net.clock import SystemClock

if TYPE_CHECKING:
    from penstock.core.clock import Clock


class TriggerDelay:
    """A minimum of messages in a micro-batch, with a maximum delay. Can be pickled."""

    def __init__(self, messages_min: int | None, delay_max_s: float, *, clock: Clock | None = None) -> None:
        """Wait for `messages_min` messages (None: for none), but no longer than `delay_max_s` for the first of them."""
        self._messages_min = messages_min
        self._delay_max_ns = round(delay_max_s * NS_PER_S)
        self._clock = clock or SystemClock()
        self._last_ns = self._clock.monotonic_ns()

    @property
    def is_wanted(self) -> bool:
        """Whether there is a minimum at all."""
        return self._messages_min is not None

    def waits(self, messages: int) -> bool:
        """Whether to wait on with so many messages; if not, a micro-batch begins now."""
        now_ns = self._clock.monotonic_ns()
        enough = self._messages_min is None or messages >= self._messages_min
        if not enough and now_ns - self._last_ns < self._delay_max_ns:
            return True
        self._last_ns = now_ns
        return False
