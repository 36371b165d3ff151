# SPDX-License-Identifier: Apache-2.0
"""Positions: where an entry is.

Why: a topic is one ledger, its entries count from 0, and everything that must name an entry (receipts, cursors,
acknowledgements, seeks) names it by the pair.
Where: made by `storage` when entries are appended; compared and sent by everyone above.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    """A ledger id and an entry id within it. Positions order as their tuples do."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


# What MessageIdData says for "before the first entry" and "after the last". Its fields are unsigned, so the -1 of
# Pulsar's Java clients arrives as 2^64 - 1. These are words, not places: compare with `==` only, never with `<`.
EARLIEST: Final = Position(2**64 - 1, 2**64 - 1)
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
