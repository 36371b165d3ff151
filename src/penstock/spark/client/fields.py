# SPDX-License-Identifier: Apache-2.0
"""Protobuf by columns: one field of thousands of messages at a time.

Why: reading a message's metadata with the generated classes costs microseconds, and Spark wants columns anyway. All
messages are walked together: each step reads one tag of every message that has any left, so the work is a few dozen
calls of NumPy for a whole run, whatever the messages look like.
Where: `entries` and `messages` say which fields they want; nothing else is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Ints: TypeAlias = NDArray[np.int64]

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_VARINT_BYTES_MAX: Final = 10


class Field(NamedTuple):
    """One field, wherever it occurs: a row per occurrence, in the order in which a message's own occur."""

    rows: Ints
    values: Ints  # a number, or where a text begins
    stops: Ints  # where it ends; of a number, 0


NO_FIELD: Final = Field(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def walk(data: Bytes, starts: Ints, stops: Ints, wanted: Collection[int]) -> dict[int, Field]:
    """Read messages that lie in `data[start:stop]`.

    Args:
        data: what they lie in.
        starts: where each begins.
        stops: where each ends.
        wanted: the numbers of the fields to keep.

    Returns:
        Of each wanted field that occurs at all, its occurrences. Those of one message are in order, later ones behind
        the earlier ones of every message.

    Raises:
        ProtocolError: a message does not read as protobuf.
    """
    found: dict[int, list[Field]] = {}
    rows = np.flatnonzero(starts < stops)
    at, ends = starts[rows], stops[rows]
    while rows.size:
        tags, at = varints(data, at)
        first = int(tags[0])
        if (tags == first).all():
            groups = [(first, slice(None))]
        else:
            groups = [(int(tag), tags == tag) for tag in np.unique(tags)]
        after = at.copy()
        for tag, chosen in groups:
            values, texts, after[chosen] = _read(data, at[chosen], tag & 7)
            if tag >> 3 in wanted:
                found.setdefault(tag >> 3, []).append(Field(rows[chosen], values, texts))
        if (after > ends).any():
            raise ProtocolError("a field is longer than the message that it is in")
        left = after < ends
        if left.all():
            at = after
        else:
            rows, at, ends = rows[left], after[left], ends[left]
    return {number: _joined(parts) for number, parts in found.items()}


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The numbers that begin at these places, and where each ends; those past 2^63 read as negative.

    Raises:
        ProtocolError: one does not end within its ten bytes, or within the data.
    """
    try:
        last = data[at]
        values = (last & 127).astype(np.int64)
        at = at + 1
        going = np.flatnonzero(last > 127)
        shift = 7
        while going.size:
            last = data[at[going]]
            values[going] |= (last & 127).astype(np.int64) << shift
            at[going] += 1
            going = going[last > 127]
            shift += 7
            if shift > 7 * _VARINT_BYTES_MAX:
                raise ProtocolError("a number of more than ten bytes")
    except IndexError:
        raise ProtocolError("a number goes on behind the end") from None
    return values, at


def last_of(field: Field | None, count: int, default: int = 0) -> Ints:
    """A column of numbers: each message's last occurrence of the field, as protobuf wants it, or the default."""
    column = np.full(count, default, np.int64)
    if field is not None:
        column[field.rows] = field.values
    return column


def spans_of(field: Field | None, count: int) -> tuple[Ints, Ints]:
    """Two columns: where each message's text begins and ends; -1 and -1 where there is none."""
    starts, stops = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    if field is not None:
        starts[field.rows], stops[field.rows] = field.values, field.stops
    return starts, stops


def has(field: Field | None, count: int) -> NDArray[np.bool_]:
    """Which messages have the field at all."""
    column = np.zeros(count, np.bool_)
    if field is not None:
        column[field.rows] = True
    return column


def _read(data: Bytes, at: Ints, kind: int) -> tuple[Ints, Ints, Ints]:
    """Values (or where texts begin), where texts end, and where what follows begins."""
    if kind == _VARINT:
        values, after = varints(data, at)
        return values, np.zeros_like(values), after
    if kind == _BYTES:
        lengths, begins = varints(data, at)
        if (lengths < 0).any():
            raise ProtocolError("a text of negative length")
        after = begins + lengths
        return begins, after, after
    if kind in _FIXED_BYTES:
        return at, at, at + _FIXED_BYTES[kind]
    raise ProtocolError(f"a field of wire type {kind}")


def _joined(parts: list[Field]) -> Field:
    if len(parts) == 1:
        return parts[0]
    return Field(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
