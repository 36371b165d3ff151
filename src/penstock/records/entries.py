# SPDX-License-Identifier: Apache-2.0
"""Divides records into entries. Where: all that write records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Records of one entry: a batch that a client decodes at once, and about what one turn of the loop encodes.
ENTRY_RECORDS_MAX: Final = 250
ENTRY_BYTES_MAX: Final = 64 * KIB


def entries_of(records: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield runs of records for one entry each."""
    start = size = 0
    for row, record in enumerate(records):
        if row > start and (row - start == ENTRY_RECORDS_MAX or size + len(record) > ENTRY_BYTES_MAX):
            yield records[start:row]
            start, size = row, 0
        size += len(record)
    if start < len(records):
        yield records[start:]
