# SPDX-License-Identifier: Apache-2.0
"""Numbers of transactions, which are never reused: a client may ask for the outcome of an old one.

Why blocks: opening a transaction waits for its own row, and must not wait for the shared metadata, too. One change
reserves a million numbers; what is left of them at the end of a run is not used. Reserved numbers are in the shared
metadata: a broker may be left out of a start, and come back later with an empty directory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

    from penstock.broker.changes import Changes
    from penstock.storage.catalog import Catalog

BLOCK: Final = 1_000_000
# Documents of how many numbers were given out, each named by its coordinator.
TRANSACTION_NUMBERS: Final = "transaction-numbers"
_NEXT: Final = "next"


class TransactionNumbers:
    """Gives out numbers. All methods are called on the event loop."""

    def __init__(self, catalog: Catalog, changes: Changes, coordinator: int, first: int) -> None:
        """Args: first: the number above all that this coordinator has stored."""
        self._catalog = catalog
        self._changes = changes
        self._name = str(coordinator)
        self._next = max(first, int(catalog.documents(TRANSACTION_NUMBERS).get(self._name, {}).get(_NEXT, 0)))
        self._reserved = self._next  # numbers below this are stored as given out
        self._reserving: asyncio.Future[None] | None = None

    @property
    def are_left(self) -> bool:
        """Whether reserved numbers are left, so that `take` may be called."""
        return self._next < self._reserved

    async def reserve(self) -> None:
        """Reserve more numbers, with all that ask for this at a time. Raises MetadataFailed."""
        self._reserving = self._reserving or self._changes.finish(self._reserve())
        await self._reserving

    def take(self) -> int:
        """Return a number that was never given out."""
        assert self.are_left, "reserved before"
        self._next += 1
        return self._next - 1

    async def _reserve(self) -> None:
        stop = self._next + BLOCK
        put, document = self._catalog.put_document, {_NEXT: stop}
        try:
            await self._changes.stored(partial(put, TRANSACTION_NUMBERS, self._name, document))
            self._reserved = stop
        finally:
            self._reserving = None
