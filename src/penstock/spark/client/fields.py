# SPDX-License-Identifier: Apache-2.0
"""Protobuf by columns: one field of thousands of messages at a time.

Why: reading a message's metadata with the generated classes costs microseconds, and Spark wants columns anyway. All
messages are walked together. Mostly they are laid out alike, field for field and byte for byte: then the first one
shows where everything is, and one comparison that it is so in the others. Else each step reads one tag of every message
that has any left: a few dozen calls of NumPy for a whole run, whatever the messages look like.
Where: `deliveries` and `messages` say which fields they want; nothing else is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from penstock.wire.errors import ProtocolError
from penstock.wire.varints import read_varint

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Ints: TypeAlias = NDArray[np.int64]

_VARINT: Final = 0
_BYTES: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
_VARINT_BYTES_MAX: Final = 10
_VARINT_WEIGHTS: Final = 1 << 7 * np.arange(_VARINT_BYTES_MAX - 1)
# Fewer messages are walked as fast tag by tag; in longer ones there is more to compare than to gain.
_ALIKE_MIN: Final = 6
_ALIKE_BYTES_MAX: Final = 256


class Field(NamedTuple):
    """One field, wherever it occurs: a row per occurrence, in the order in which a message's own occur."""

    rows: Ints
    values: Ints  # a number, or where a text begins
    stops: Ints  # where it ends; of a number, 0


NO_FIELD: Final = Field(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def walk(data: Bytes, starts: Ints, stops: Ints, wanted: Collection[int]) -> dict[int, Field]:
    """Read messages that lie in `data[start:stop]`.

    Args:
        data: the bytes that hold them.
        starts: where each begins.
        stops: where each ends.
        wanted: the numbers of the fields to keep.

    Returns:
        Of each wanted field that occurs at all, its occurrences. Those of one message are in order, later ones behind
        the earlier ones of every message.

    Raises:
        ProtocolError: a message does not read as protobuf.
    """
    if (alike := _walk_alike(data, starts, stops, wanted)) is not None:
        return alike
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


def _walk_alike(data: Bytes, starts: Ints, stops: Ints, wanted: Collection[int]) -> dict[int, Field] | None:
    """The same for messages that are all laid out as the first; None when they are not."""
    count = len(starts)
    if count < _ALIKE_MIN:
        return None
    size = int(stops[0] - starts[0])
    if not 0 < size <= _ALIKE_BYTES_MAX or (stops - starts != size).any():
        return None
    places = _places(data[starts[0] : stops[0]].tobytes())
    if places is None:
        return None
    # What must be equal in all of them: tags and lengths as they are, of numbers which bytes have another behind them.
    mask = np.full(size, 0xFF, np.uint8)
    for _, begin, end, is_text in places:
        mask[begin:end] = 0 if is_text else 0x80
    bytes_ = windows(data, size)[starts]
    if ((bytes_ ^ bytes_[0]) & mask).any():
        return None
    found: dict[int, list[Field]] = {}
    rows, none = np.arange(count), np.zeros(count, np.int64)
    for number, begin, end, is_text in places:
        if number not in wanted:
            continue
        if is_text:
            field = Field(rows, starts + begin, starts + end)
        else:
            values = (bytes_[:, begin:end] & 127).astype(np.int64) @ _VARINT_WEIGHTS[: end - begin]
            field = Field(rows, values, none)
        found.setdefault(number, []).append(field)
    return {number: _joined(parts) for number, parts in found.items()}


def _places(message: bytes) -> list[tuple[int, int, int, bool]] | None:
    """Of each field of one message its number, where its value begins and ends, and whether it is a text; else None."""
    places: list[tuple[int, int, int, bool]] = []
    at, end = 0, len(message)
    try:
        while at < end:
            tag, begin = read_varint(message, at)
            number, kind = tag >> 3, tag & 7
            if kind == _BYTES:
                length, begin = read_varint(message, begin)
                at = begin + length
            elif kind == _VARINT:
                _, at = read_varint(message, begin)
            else:
                return None
            places.append((number, begin, at, kind == _BYTES))
    except (IndexError, OverflowError):
        return None
    return places if at == end else None


def windows(data: Bytes, size: int) -> Bytes:
    """Every `size` bytes in a row that there are, by where they begin: chosen rows are copied, and nothing else.

    Raises:
        ProtocolError: there are not so many bytes.
    """
    if len(data) < size:
        raise ProtocolError(f"{size} bytes of {len(data)}")
    return np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))


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
