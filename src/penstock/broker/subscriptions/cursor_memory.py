# SPDX-License-Identifier: Apache-2.0
"""Memory of one cursor's individual acknowledgements.

Acknowledgements of whole entries are never refused; those of single messages of a batch are, if their ack set does not
fit.
Where: acknowledgements and seeks charge ack sets before they are stored; saves of cursors charge the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import TooManyRequests
from penstock.governance.budget import refusal
from penstock.storage.ack_sets import ack_set_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.governance.budget import Row
    from penstock.storage.cursor import Cursor

# Ack sets leave this fraction of the `dispatch` row to whole entries, acknowledged and pending.
RESERVED_FOR_WHOLE: Final = 4


class CursorMemory:
    """Charges of one cursor in the `dispatch` row of the memory budget."""

    __slots__ = ("_cursor", "_ledger_id", "_row", "charged_bytes")

    def __init__(self, cursor: Cursor, row: Row, ledger_id: int) -> None:
        self._cursor = cursor
        self._row = row
        self._ledger_id = ledger_id
        self.charged_bytes = 0

    def charge(self) -> None:
        """Charge the cursor's current size, even if it does not fit: its acknowledgements were answered."""
        cursor = self._cursor
        cursor.measure()
        growth = cursor.nbytes - self.charged_bytes
        if growth < 0:
            self._release(-growth)
        else:
            self._row.charge(growth)
            self.charged_bytes += growth

    def release(self) -> None:
        """Release the charge: the subscription is deleted, or its topic unloaded."""
        self._release(self.charged_bytes)

    def _release(self, nbytes: int) -> None:
        self._row.release(nbytes)
        self.charged_bytes -= nbytes

    def charge_for_set(self, entry_id: int, nbytes: int) -> None:
        """Charge an ack set before it is stored.

        Raises:
            TooManyRequests: it does not fit. A part of the row is reserved for whole entries, which are never refused.
        """
        row = self._row
        if nbytes <= 0:
            return
        if nbytes > row.available_bytes - row.limit_bytes // RESERVED_FOR_WHOLE or not row.try_charge(nbytes):
            what = f"to acknowledge single messages of {self._ledger_id}:{entry_id}"
            raise TooManyRequests(refusal(row, what, nbytes, instead="acknowledge whole batches"))
        self.charged_bytes += nbytes

    def check_room(self, entry_id: int, members: Sequence[int]) -> None:
        """Raises TooManyRequests if there is no memory for an ack set of these messages."""
        if members:
            before = self.charged_bytes
            self.charge_for_set(entry_id, ack_set_bytes(members))
            self._release(self.charged_bytes - before)  # a reset charges it again
