# SPDX-License-Identifier: Apache-2.0
"""Positions of entries.

Why: a topic is one ledger, whose entries count from 0. Receipts, cursors, acknowledgements and seeks name an entry by
ledger id and entry id. Where: `storage` creates them when entries are appended; all layers above compare and send them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    """A ledger id and an entry id within it. Positions are ordered like their tuples."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


# What MessageIdData says for "before the first entry" and "after the last". Its fields are unsigned, so the -1 of
# Pulsar's Java clients arrives as 2^64 - 1. These are words, not places: compare with `==` only, never with `<`.
EARLIEST: Final = Position(2**64 - 1, 2**64 - 1)
LATEST: Final = Position(2**63 - 1, 2**63 - 1)
