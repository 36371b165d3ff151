# SPDX-License-Identifier: Apache-2.0
"""Creates columns of bytes and text from positions in a buffer.

Where: `rows` uses them for keys, values and names; `json_records` and `avro_records` for fields of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from penstock.spark.client.fields import windows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.spark.client.fields import Bytes, Ints

# So many rows of one length, and NumPy copies them in one go, five times as fast as one by one.
_ALIKE_ROWS_MIN: Final = 16
# Of short rows, NumPy copies byte by byte what Python copies row by row, in a tenth to a half of the time.
_SHORT_BYTES_MAX: Final = 48
_SHORT_ROWS: Final = 4_096  # at a time: eight bytes say where a byte is


def texts(data: Bytes, starts: Ints, stops: Ints, kind: pa.DataType) -> pa.Array:
    """Return a column of bytes or text from positions in a buffer; null where a position is -1."""
    count = len(starts)
    present = starts >= 0
    lengths = stops - starts
    validity = None
    if not present.all():
        if not present.any():
            return pa.nulls(count, kind)
        lengths = np.where(present, lengths, 0)
        validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    body = pa.py_buffer(_joined(data, starts, lengths))
    column = pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(edges_of(lengths)), body])
    return column if pa.types.is_binary(kind) else as_text(column).cast(kind)


def edges_of(lengths: Ints) -> NDArray[np.int32]:
    """Return where each row begins, and the last one ends, for consecutive rows of these lengths."""
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return edges


def edges_in(column: pa.BinaryArray) -> NDArray[np.int32]:
    """Return the same for an existing column, from the beginning of its buffer."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _joined(data: Bytes, starts: Ints, lengths: Ints) -> bytes | Bytes:
    """Return the bytes of all rows, concatenated."""
    if len(starts) >= _ALIKE_ROWS_MIN and lengths[0] > 0 and (lengths == lengths[0]).all():
        return windows(data, int(lengths[0]))[starts].reshape(-1)
    if len(starts) >= _ALIKE_ROWS_MIN and lengths.mean() <= _SHORT_BYTES_MAX:
        parts = [slice(row, row + _SHORT_ROWS) for row in range(0, len(starts), _SHORT_ROWS)]
        return np.concatenate([_of_short(data, starts[part], lengths[part]) for part in parts])
    view = memoryview(data)  # type: ignore[arg-type]  # arrays are buffers
    return b"".join(map(view.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist())))


def _of_short(data: Bytes, starts: Ints, lengths: Ints) -> Bytes:
    before = np.cumsum(lengths) - lengths
    found: Bytes = data[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]
    return found


def as_text(column: pa.BinaryArray) -> pa.StringArray:
    """Convert bytes to text; invalid UTF-8 becomes the replacement character, because Spark's strings must be valid."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()], pa.string()
        )


def bytes_of(data: Bytes, starts: Ints, stops: Ints) -> list[bytes]:
    """Return a list of the bytes; empty where a position is -1."""
    view = memoryview(data)  # type: ignore[arg-type]
    return [
        bytes(view[start:stop]) if start >= 0 else b""
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
