# SPDX-License-Identifier: Apache-2.0
"""Records in Avro, decoded all at once by NumPy: one field of thousands of values at a time.

Why: a library decodes a record at a time into a dictionary, some 10 µs with eight fields; a field of all of them takes
a few dozen calls, whatever they are.
Where: `rows` asks here first. Whatever is out of the ordinary (maps, long arrays, decimals, unions of several things, a
value that does not read, one written with another version of the schema) is left to `values`, which goes through them
one by one and names the one that is wrong.

Invariant: `values` decodes the same bytes to the same values.
Source: Apache Avro 1.11, "Binary encoding" and "Logical types".
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.spark.client.fields import varints, windows
from penstock.spark.text_columns import edges_in, texts
from penstock.spark.values import WITHOUT_TYPE
from penstock.wire.codec import Schema
from penstock.wire.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.spark.client.fields import Bytes, Ints
    from penstock.spark.client.messages import Messages
    from penstock.spark.values import Avro, SchemaOf, Values

# Makes the column of a field, if it is wanted.
Make: TypeAlias = "Callable[[], pa.Array]"
# Goes over a field of all values.
Read: TypeAlias = "Callable[[Run], Make]"

# Python's times, and so those of the library, are of the years 1 to 9999.
_FIRST_S: Final = -62_135_596_800
_LAST_S: Final = 253_402_300_799
_DAY_S: Final = 86_400
_US_PER_S: Final = 1_000_000
# How many units of a time make a second.
_PER_SECOND: Final = {
    "timestamp-millis": 1_000,
    "timestamp-micros": _US_PER_S,
    "local-timestamp-millis": 1_000,
    "local-timestamp-micros": _US_PER_S,
}
# Items of an array are read one after another, the same one of all values at once. Longer arrays are few.
_ITEMS_MAX: Final = 64


class Run:
    """Values that are read side by side: the current position and the end of each."""

    def __init__(self, data: Bytes, at: Ints, stops: Ints) -> None:
        self.data = data
        self.at = at
        self._stops = stops

    def __len__(self) -> int:
        return len(self.at)

    def numbers(self) -> Ints:
        """Read the next number of each value."""
        coded, at = varints(self.data, self.at)
        self._go_to(at)
        return (coded.view(np.uint64) >> np.uint64(1)).view(np.int64) ^ -(coded & 1)

    def skip(self, sizes: Ints) -> tuple[Ints, Ints]:
        """Skip the next bytes of each value; return where they begin and end."""
        if ((sizes < 0) | (sizes > len(self.data))).any():
            raise ProtocolError("a text of a length that cannot be")
        before = self.at
        self._go_to(before + sizes)
        return before, self.at

    def fixed(self, size: int) -> Bytes:
        """Read the next `size` bytes of each value, one row each."""
        starts = self.at
        self._go_to(starts + size)
        return windows(self.data, size)[starts]

    def some(self, rows: Ints) -> Run:
        """Return some of the values as a run of their own."""
        return Run(self.data, self.at[rows], self._stops[rows])

    def go_on(self, rows: Ints, some: Run) -> None:
        """Take over the positions of some of the values."""
        self.at = self.at.copy()
        self.at[rows] = some.at

    def _go_to(self, at: Ints) -> None:
        if (at > self._stops).any():
            raise ProtocolError("a field is longer than the value that it is in")
        self.at = at


class Records:
    """Decodes the records of one topic."""

    def __init__(self, schema: Avro, fields: dict[str, Read], wanted: Sequence[pa.Field], schema_of: SchemaOf) -> None:
        self._schema = schema
        self._fields = fields
        self._wanted = wanted
        self._schema_of = schema_of
        self._known: dict[bytes, bool] = {}

    def reads(self, found: Messages) -> bool:
        """Return whether all values were written with the schema that they are read with."""
        starts = found.schema_starts
        if (starts < 0).all():
            return True  # They do not say.
        sizes = found.schema_stops - starts
        if (starts < 0).any() or sizes[0] <= 0 or (sizes != sizes[0]).any():
            return False
        versions = windows(found.data, int(sizes[0]))[starts]
        return bool((versions == versions[0]).all()) and self._is_ours(versions[0].tobytes())

    def _is_ours(self, version: bytes) -> bool:
        known = self._known.get(version)
        if known is None:
            said = self._schema_of(version)
            known = self._known[version] = said is None or json.loads(said.definition) == self._schema
        return known

    def decode(self, held: pa.BinaryArray) -> list[pa.Array] | None:
        """Return a column for each field; None if the values must be decoded one by one.

        A column is null where the value or the field is.
        """
        edges = edges_in(held).astype(np.int64)
        if edges[0] == edges[-1]:
            return None
        rows = np.flatnonzero(held.is_valid().to_numpy(zero_copy_only=False))
        run = Run(np.frombuffer(held.buffers()[2], np.uint8), edges[rows], edges[rows + 1])
        try:
            made = {name: read(run) for name, read in self._fields.items()}
            return [_spread(made[one.name](), rows, len(held)).cast(one.type) for one in self._wanted]
        except (ProtocolError, pa.ArrowException):
            return None  # The error comes from the decoder that goes through them one by one.


def records(found: Values, wanted: Sequence[pa.Field], schema_of: SchemaOf) -> Records | None:
    """Return the decoder of a topic's values; None if they are no Avro records, or have fields of unsupported types."""
    if found.kind != Schema.Avro or not found.is_record:
        return None
    schema = json.loads(found.definition)
    try:
        fields = _fields(schema, {})
    except _OneByOne:
        return None
    return Records(schema, fields, wanted, schema_of)


def _spread(column: pa.Array, rows: Ints, count: int) -> pa.Array:
    """Return a column with values only in these rows; the others are null."""
    if len(rows) == count:
        return column
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return column.take(pa.array(places, mask=places < 0))


# -- types -----------------------------------------------------------------------------------------------------------


class _OneByOne(Exception):
    """The schema has a type that cannot be decoded for all values at once."""


def _fields(avro: Avro, named: dict[str, Read]) -> dict[str, Read]:
    return {one["name"]: _reader(one["type"], named) for one in avro["fields"]}


def _reader(avro: Avro, named: dict[str, Read]) -> Read:
    """Return the reader of a type.

    Args:
        avro: the type.
        named: the types that were defined before it; those that it defines are added.

    Raises:
        _OneByOne: it cannot be decoded for all values at once.
    """
    if isinstance(avro, list):
        return _nullable(avro, named)
    if isinstance(avro, str):
        avro = {"type": avro}
    kind, logical = avro["type"], avro.get("logicalType", "")
    if not isinstance(kind, str):
        return _reader(kind, named)
    if logical in _PER_SECOND and kind == "long":
        return _times(_PER_SECOND[logical])
    if logical == "date" and kind == "int":
        return _days
    if logical and (kind, logical) not in WITHOUT_TYPE:
        raise _OneByOne
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind in named:
        return named[kind]
    if kind == "array":
        return _array(_reader(avro["items"], named))
    return _defined(avro, named)


def _defined(avro: Avro, named: dict[str, Read]) -> Read:
    """Return the reader of a type that is defined here."""
    kind = avro["type"]
    if kind == "record" and avro["fields"]:
        read = _struct(_fields(avro, named))
    elif kind == "enum":
        read = _enum(avro["symbols"])
    elif kind == "fixed":
        read = _fixed(avro["size"])
    else:
        raise _OneByOne
    for name in {avro["name"], f"{avro.get('namespace', '')}.{avro['name']}"}:
        if name in named or name in _PRIMITIVES:
            raise _OneByOne  # Which one is meant depends on where it is said.
        named[name] = read
    return read


def _nullable(branches: list[Avro], named: dict[str, Read]) -> Read:
    others = [place for place, branch in enumerate(branches) if branch != "null"]
    if len(others) != 1:
        raise _OneByOne
    (place,) = others
    read_other = _reader(branches[place], named)

    def read(run: Run) -> Make:
        chosen = run.numbers()
        if ((chosen < 0) | (chosen >= len(branches))).any():
            raise ProtocolError("a union has no such branch")
        rows = np.flatnonzero(chosen == place)
        if len(rows) == len(run):
            return read_other(run)
        some = run.some(rows)
        make, count = read_other(some), len(run)
        run.go_on(rows, some)
        return lambda: _spread(make(), rows, count)

    return read


def _struct(fields: dict[str, Read]) -> Read:
    def read(run: Run) -> Make:
        made = [read_field(run) for read_field in fields.values()]
        return lambda: pa.StructArray.from_arrays([make() for make in made], list(fields))

    return read


def _array(read_item: Read) -> Read:
    def read(run: Run) -> Make:
        sizes = np.zeros(len(run), np.int64)
        items: list[tuple[Ints, Make]] = []  # the values that have it, and what makes it
        rows = np.arange(len(run))
        while len(rows):
            left = _block(run, rows)
            rows, left = rows[left > 0], left[left > 0]
            sizes[rows] += left
            if (sizes > _ITEMS_MAX).any():
                raise ProtocolError("an array that is better read by itself")
            for item in range(int(left.max(initial=0))):
                mine = rows[left > item]
                some = run.some(mine)
                items.append((mine, read_item(some)))
                run.go_on(mine, some)
        # Without any, they have a type all the same.
        none = np.zeros(0, np.int64)
        return partial(_lists, sizes, items or [(none, read_item(run.some(none)))])

    return read


def _block(run: Run, rows: Ints) -> Ints:
    """Read how many items follow in arrays of some values; none at their ends."""
    some = run.some(rows)
    counts = some.numbers()
    sized = np.flatnonzero(counts < 0)  # The size of the block in bytes follows.
    of_sized = some.some(sized)
    of_sized.numbers()
    some.go_on(sized, of_sized)
    run.go_on(rows, some)
    if ((counts > _ITEMS_MAX) | (counts < -_ITEMS_MAX)).any():
        raise ProtocolError("an array that is better read by itself")
    return np.abs(counts)


def _lists(sizes: Ints, items: list[tuple[Ints, Make]]) -> pa.ListArray:
    """Return arrays of these sizes, whose items come item by item, and not array by array."""
    offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
    order = np.argsort(np.concatenate([rows for rows, _ in items]), kind="stable")
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays([make() for _, make in items]).take(pa.array(order)))


def _enum(symbols: list[str]) -> Read:
    texts_of = pa.array(symbols, pa.string())

    def read(run: Run) -> Make:
        numbers = run.numbers()
        if ((numbers < 0) | (numbers >= len(symbols))).any():
            raise ProtocolError("an enum has no such symbol")
        return lambda: texts_of.take(pa.array(numbers))

    return read


def _fixed(size: int) -> Read:
    def read(run: Run) -> Make:
        starts, stops = run.skip(np.full(len(run), size))
        return lambda: texts(run.data, starts, stops, pa.binary())

    return read


def _times(per_second: int) -> Read:
    first, last, factor = _FIRST_S * per_second, (_LAST_S + 1) * per_second - 1, _US_PER_S // per_second

    def read(run: Run) -> Make:
        numbers = _between(run.numbers(), first, last)
        return lambda: pa.array(numbers * factor)

    return read


def _days(run: Run) -> Make:
    numbers = _between(run.numbers(), _FIRST_S // _DAY_S, _LAST_S // _DAY_S)
    return lambda: pa.array(numbers.astype(np.int32))


def _between(numbers: Ints, first: int, last: int) -> Ints:
    if ((numbers < first) | (numbers > last)).any():
        raise ProtocolError("a time beyond the years 1 to 9999")
    return numbers


def _ints(run: Run) -> Make:
    numbers = run.numbers()
    return lambda: pa.array(numbers).cast(pa.int32())


def _longs(run: Run) -> Make:
    numbers = run.numbers()
    return lambda: pa.array(numbers)


def _floats(run: Run) -> Make:
    found = run.fixed(4)
    return lambda: pa.array(found.view("<f4").reshape(-1))


def _doubles(run: Run) -> Make:
    found = run.fixed(8)
    return lambda: pa.array(found.view("<f8").reshape(-1))


def _booleans(run: Run) -> Make:
    found = run.fixed(1)
    return lambda: pa.array(found.reshape(-1) != 0)


def _bytes(run: Run) -> Make:
    starts, stops = run.skip(run.numbers())
    return lambda: texts(run.data, starts, stops, pa.binary())


def _strings(run: Run) -> Make:
    make = _bytes(run)
    return lambda: make().cast(pa.string())


def _nulls(run: Run) -> Make:
    count = len(run)
    return lambda: pa.nulls(count, pa.string())


_PRIMITIVES: Final[dict[str, Read]] = {
    "null": _nulls,
    "boolean": _booleans,
    "int": _ints,
    "long": _longs,
    "float": _floats,
    "double": _doubles,
    "bytes": _bytes,
    "string": _strings,
}
