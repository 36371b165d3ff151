# SPDX-License-Identifier: Apache-2.0
"""The row of the memory budget for stored metadata whose size clients choose.

Why: schemas, and long names and properties of durable subscriptions, stay in memory as long as they are stored;
producer names, as long as deduplication remembers them. They outlast the client's connection, so they cannot be charged
to it.
Where: checked before such metadata is stored; `/metrics` shows the row as `metadata`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import TooManyRequests
from penstock.governance.budget import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

# The kind of schema documents in the catalog.
SCHEMAS: Final = "schema"
# One topic's producer names may use this fraction; beyond it, those that left first are forgotten.
NAMES_PART: Final = 8


class StoredMetadata(Protocol):
    """The catalog, as counted here."""

    @property
    def bulk_bytes(self) -> int:
        """Bytes of long names and properties of durable subscriptions."""

    def document_bytes(self, kind: str) -> int: ...


class MetadataMemory:
    """Memory of stored metadata, with a limit.

    Attributes:
        limit_bytes: the limit. If it is lowered below the use, nothing is removed, and nothing is added.
        refused_total: how often there was too little room.
    """

    name: Final = "metadata"

    def __init__(self, catalog: StoredMetadata, limit_bytes: int) -> None:
        self._catalog = catalog
        self._coming_bytes = 0  # being stored
        self._names_bytes = 0
        self.limit_bytes = limit_bytes
        self.refused_total = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use, including what is being stored."""
        stored_bytes = self._catalog.bulk_bytes + self._catalog.document_bytes(SCHEMAS)
        return stored_bytes + self._names_bytes + self._coming_bytes

    def check(self, what: str, nbytes: int) -> None:
        """Raises TooManyRequests, which names `what`, if there is no room for this many more bytes."""
        if nbytes and self.used_bytes + nbytes > self.limit_bytes:
            self.refused_total += 1
            raise TooManyRequests(refusal(self, what, nbytes, instead="delete others"))

    @contextmanager
    def charged(self, what: str, nbytes: int) -> Iterator[None]:
        """Charge bytes while they are being stored. Raises TooManyRequests."""
        self.check(what, nbytes)
        self._coming_bytes += nbytes
        try:
            yield
        finally:
            self._coming_bytes -= nbytes

    # -- names of producers that deduplication remembers

    @property
    def topic_names_bytes_max(self) -> int:
        return self.limit_bytes // NAMES_PART

    def charge_names(self, nbytes: int) -> None:
        """Charge bytes of producer names; negative when names are removed."""
        self._names_bytes += nbytes
        assert self._names_bytes >= 0
