# SPDX-License-Identifier: Apache-2.0
"""The row of the memory budget for stored metadata that clients choose the size of.

Why: schemas, and long names and properties of durable subscriptions, stay in memory as long as they are stored, and the
names of producers as long as deduplication remembers them. They outlast the client that gave them, so they cannot be
charged to its connection.
Where: whoever is about to store such a thing asks for room first; `/metrics` shows the row as `metadata`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Iterator

# The kind of the catalog's documents that hold schemas.
SCHEMAS: Final = "schema"
# One topic's producer names may take one part in so many; beyond that, those that left first are forgotten.
NAMES_PART: Final = 8


class StoredMetadata(Protocol):
    """The catalog, as far as it is counted here."""

    @property
    def bulk_bytes(self) -> int:
        """Bytes of long names and properties of durable subscriptions."""
        ...

    def document_bytes(self, kind: str) -> int:
        """Bytes of all documents of a kind."""
        ...


class MetadataMemory:
    """Bytes of stored metadata in memory, against one bound.

    Attributes:
        size_bytes: the bound. What was stored under a larger one stays, and nothing is added.
        refused_total: how often there was too little room.
    """

    name: Final = "metadata"

    def __init__(self, catalog: StoredMetadata, size_bytes: int) -> None:
        self._catalog = catalog
        self._coming_bytes = 0  # being stored
        self._names_bytes = 0
        self.size_bytes = size_bytes
        self.refused_total = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use and about to be."""
        stored_bytes = self._catalog.bulk_bytes + self._catalog.document_bytes(SCHEMAS)
        return stored_bytes + self._names_bytes + self._coming_bytes

    def check(self, what: str, nbytes: int) -> None:
        """Return if there is room for so many more bytes. Raises TooManyRequests, which names `what`."""
        if nbytes and self.used_bytes + nbytes > self.size_bytes:
            self.refused_total += 1
            raise TooManyRequests(
                f"{what} takes {nbytes:,} bytes, and stored schemas, names and properties have {self.used_bytes:,} of "
                f"{self.size_bytes:,} in use; delete others, or raise metadataMB"
            )

    @contextmanager
    def room(self, what: str, nbytes: int) -> Iterator[None]:
        """Keep room for so many bytes while they are being stored. Raises TooManyRequests."""
        self.check(what, nbytes)
        self._coming_bytes += nbytes
        try:
            yield
        finally:
            self._coming_bytes -= nbytes

    # -- names of producers that deduplication remembers

    @property
    def topic_names_bytes_max(self) -> int:
        """How many bytes the names of one topic's producers may take."""
        return self.size_bytes // NAMES_PART

    def add_names(self, nbytes: int) -> None:
        """Names take so many bytes more, or fewer if negative."""
        self._names_bytes += nbytes
        assert self._names_bytes >= 0
