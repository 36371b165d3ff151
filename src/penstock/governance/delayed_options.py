# SPDX-License-Identifier: Apache-2.0
"""How a topic delays, and what its delayed index asks of others.

Where: the broker fills the options in from its settings and policies; `delayed` hands all of this on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

TIME_MAX_MS: Final = 2**63 - 1  # a deliver time saturates here: never


class DamagedSnapshotError(ValueError):
    """Stored bytes are not a delayed index: the broker finds what is delayed by reading the log, as without them."""


class Progress(Protocol):
    """What a view asks of its subscription's cursor; `storage.cursor.Cursor` is one."""

    mark_delete: int

    @property
    def acknowledged_above(self) -> int:
        """How many entries above `mark_delete` are acknowledged."""

    def is_acknowledged(self, entry_id: int) -> bool:
        """Whether this entry is acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOptions:
    """How a topic delays: Pulsar's delayedDeliveryTickTimeMillis and its companions."""

    tick_ms: int = 1_000
    strict: bool = False  # never before the deliver time; otherwise up to a tick before it

    def __post_init__(self) -> None:
        if self.tick_ms < 1:
            raise ValueError(f"want tick_ms >= 1, got {self.tick_ms=}")

    @property
    def slot_ms(self) -> int:
        """How wide a slot is: half a tick, so that the other half is left for delivering what is due."""
        return max(self.tick_ms // 2, 1)

    @property
    def early_ms(self) -> int:
        """How much before its slot's time a message may be delivered."""
        return 0 if self.strict else self.tick_ms
