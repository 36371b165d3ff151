# SPDX-License-Identifier: Apache-2.0
"""Columns of bytes and text, made of places in a buffer.

Where: `rows` makes keys, values and names so; `json_records` and `avro_records` what is in values.
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


def texts(data: Bytes, starts: Ints, stops: Ints, kind: pa.DataType) -> pa.Array:
    """A column of bytes or text, out of places in a buffer; null where a place is -1."""
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
    """Where each row begins, and the last one ends, when rows of these lengths stand behind one another."""
    edges = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return edges


def edges_in(column: pa.BinaryArray) -> NDArray[np.int32]:
    """The same of a column that there is, counted from where its buffer of bytes begins."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _joined(data: Bytes, starts: Ints, lengths: Ints) -> bytes | Bytes:
    """The bytes of all rows behind one another."""
    if len(starts) >= _ALIKE_ROWS_MIN and lengths[0] > 0 and (lengths == lengths[0]).all():
        return windows(data, int(lengths[0]))[starts].reshape(-1)
    view = memoryview(data)  # type: ignore[arg-type]  # arrays are buffers
    return b"".join(map(view.__getitem__, map(slice, starts.tolist(), (starts + lengths).tolist())))


def as_text(column: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; what is no UTF-8 shows the replacement sign, because Spark's strings must be."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if one is None else one.decode("utf-8", "replace") for one in column.to_pylist()], pa.string()
        )


def bytes_of(data: Bytes, starts: Ints, stops: Ints) -> list[bytes]:
    """The same one by one; empty where a place is -1."""
    view = memoryview(data)  # type: ignore[arg-type]
    return [
        bytes(view[start:stop]) if start >= 0 else b""
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
