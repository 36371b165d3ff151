# SPDX-License-Identifier: Apache-2.0
"""The id of a transaction: the number of its coordinator, and its number there.

Where: clients get it from NEW_TXN, and send both halves with everything that belongs to the transaction.
"""

from __future__ import annotations

from typing import NamedTuple


class TransactionId(NamedTuple):
    """The two halves, each of 64 bits. Numbers of a coordinator are never reused."""

    coordinator: int  # the most significant bits
    number: int  # the least significant bits

    def __str__(self) -> str:
        return f"({self.coordinator},{self.number})"
