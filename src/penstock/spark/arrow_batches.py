# SPDX-License-Identifier: Apache-2.0
"""Makes few large Arrow batches of many small ones.

Why: each batch that goes to Spark's virtual machine has a head that describes its columns, and is imported by itself.
Of short ranges, messages come some hundred at a time.
Where: tasks, between the rows of their topics and Spark. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from penstock.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# What is held back until more comes: up to so many rows and bytes.
ROWS_MAX: Final = 4_096
BYTES_MAX: Final = MIB


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order; batches that fit into one of these limits together are joined."""
    held: list[pa.RecordBatch] = []
    rows = nbytes = 0
    for batch in batches:
        if held and (rows + batch.num_rows > ROWS_MAX or nbytes + batch.nbytes > BYTES_MAX):
            yield _one(held)
            held, rows, nbytes = [], 0, 0
        held.append(batch)
        rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole
