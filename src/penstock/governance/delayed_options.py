# SPDX-License-Identifier: Apache-2.0
"""How a topic delays messages, and what its delayed index needs from a cursor.

Where: the broker creates the options from its settings and policies; `delayed` re-exports all names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

TIME_MAX_MS: Final = 2**63 - 1  # the largest deliver time; it means never


class DamagedSnapshotError(ValueError):
    """The stored bytes are not a delayed index. The broker then finds delayed messages by reading the log."""


class Progress(Protocol):
    """A subscription's cursor, as its view uses it; `storage.cursor.Cursor` implements it."""

    mark_delete: int

    @property
    def acknowledged_above(self) -> int:
        """The number of acknowledged entries above `mark_delete`."""

    def is_acknowledged(self, entry_id: int) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOptions:
    """How a topic delays messages: Pulsar's delayedDeliveryTickTimeMillis and related settings."""

    tick_ms: int = 1_000
    strict: bool = False  # never before the deliver time; otherwise up to a tick before it

    def __post_init__(self) -> None:
        if self.tick_ms < 1:
            raise ValueError(f"want tick_ms >= 1, got {self.tick_ms=}")

    @property
    def slot_ms(self) -> int:
        """The width of a slot: half a tick, so that the other half remains for delivering what is due."""
        return max(self.tick_ms // 2, 1)

    @property
    def early_ms(self) -> int:
        """How long before its slot's time a message may be delivered."""
        return 0 if self.strict else self.tick_ms
