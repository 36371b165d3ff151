# SPDX-License-Identifier: Apache-2.0
"""Memory of one cursor's individual acknowledgements.

Acknowledgements of whole entries are never refused; those of single messages of a batch are, if their ack set does not
fit.
Where: acknowledgements and seeks charge ack sets before they are stored; saves of cursors charge the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests
from penstock.governance.budget import Charge
from penstock.storage.cursor import ack_set_bytes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.governance.budget import Row
    from penstock.storage.cursor import Cursor


# -- subscriptions that wait for dispatch memory: all retry twice a second ---------------------------------------------

# Interval of retries; a subscription also retries when its own entries are acknowledged.
SHORT_S: Final = 0.5


class Waiting(Protocol):
    """A waiting subscription."""

    def wake(self) -> None: ...


class MemoryWaits:
    """Subscriptions that cannot deliver, because there is no memory for pending acknowledgements."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Waiting, None] = {}  # in order of arrival

    def add(self, waiting: Waiting) -> None:
        """Wake this subscription soon."""
        if not self._waiting:
            self._loop.call_later(SHORT_S, self._wake_all)
        self._waiting[waiting] = None

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            one.wake()


# Ack sets leave this fraction of the `dispatch` row to whole entries, acknowledged and pending.
RESERVED_FOR_WHOLE: Final = 4


class CursorMemory(Charge):
    """The charge of one cursor in the `dispatch` row of the memory budget.

    It is released when the subscription is deleted, or its topic unloaded.
    """

    __slots__ = ("_cursor", "_ledger_id")

    def __init__(self, cursor: Cursor, row: Row, ledger_id: int) -> None:
        super().__init__(row)
        self._cursor = cursor
        self._ledger_id = ledger_id

    def measure(self) -> None:
        """Charge the cursor's current size, even if it does not fit: its acknowledgements were answered."""
        self._cursor.measure()
        self.recharge(self._cursor.nbytes)

    def charge_for_set(self, entry_id: int, nbytes: int) -> None:
        """Charge an ack set before it is stored.

        Raises:
            TooManyRequests: it does not fit. A part of the row is reserved for whole entries, which are never refused.
        """
        if nbytes <= 0:
            return
        what = f"to acknowledge single messages of {self._ledger_id}:{entry_id}"
        free_bytes = self.row.limit_bytes // RESERVED_FOR_WHOLE
        self.row.charge_for(
            what, nbytes, leave_bytes=free_bytes, instead="acknowledge whole batches", error=TooManyRequests
        )
        self.charged_bytes += nbytes

    def check_room(self, entry_id: int, members: Sequence[int]) -> None:
        """Raises TooManyRequests if there is no memory for an ack set of these messages."""
        if members:
            before = self.charged_bytes
            self.charge_for_set(entry_id, ack_set_bytes(members))
            self.recharge(before)  # a reset charges it again
