# SPDX-License-Identifier: Apache-2.0
"""Limits of the request memory.

Where: app makes them from the settings; `request_memory` keeps to them, and connections know its smallest reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.core.units import KIB

# A shorter read costs more than it is worth; a reader that would get less waits (unless it wants or lacks less).
USEFUL_BYTES: Final = 4 * KIB

# Pulsar's commands start with their length in four bytes; before they have arrived, the frame's length is unknown.
LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The three settings of KIP-72, and the reserve. A bound of 0 or less is switched off."""

    request_bytes_max: int  # queued.max.request.bytes
    requests_max: int  # queued.max.requests: requests admitted and not yet answered
    frame_bytes_max: int  # socket.request.max.bytes: one whole frame, its four length bytes included
    reserve_ratio: float = 0.25  # for reads of complete frames; less if the rest could not hold one largest frame

    def __post_init__(self) -> None:
        if self.frame_bytes_max <= LENGTH_BYTES:
            raise ValueError(f"socket.request.max.bytes must be above {LENGTH_BYTES}, got {self.frame_bytes_max}")
        if 0 < self.request_bytes_max < self.frame_bytes_max:
            raise ValueError(
                f"queued.max.request.bytes={self.request_bytes_max} cannot hold one request of "
                f"socket.request.max.bytes={self.frame_bytes_max}: raise the former, or set it to -1 for no bound"
            )
        if not 0.0 <= self.reserve_ratio < 1.0:
            raise ValueError(f"want 0 <= reserve_ratio < 1, got {self.reserve_ratio}")

    @property
    def reserve_bytes(self) -> int:
        """The bytes that only reads of complete frames may use."""
        if self.request_bytes_max <= 0:
            return 0
        return min(int(self.request_bytes_max * self.reserve_ratio), self.request_bytes_max - self.frame_bytes_max)
