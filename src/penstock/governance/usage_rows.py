# SPDX-License-Identifier: Apache-2.0
"""Usage of each group on the other brokers: PIP-82's Map<group, Map<broker, usage>>, in columns.

Why columns: a broker with 5,000 groups, each on four other brokers, keeps 20,000 rows of four numbers. As objects they
take 10 MB, as columns 0.5 MB. Where: `quota_exchange` fills it from reports, and reads one group's rows to divide its
quota.

Groups and brokers are small numbers here (their places in lists of the caller). Rows of one group are a linked list,
and so are free rows. Demands are kept with 24 significant bits.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from penstock.core.usage_report import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NONE: Final = -1


class UsageRows:
    """Demand of each broker in each group, for four kinds of quota."""

    __slots__ = ("_brokers", "_demands", "_first", "_free", "_next")

    def __init__(self) -> None:
        self._first = array("i")  # by group: its first row
        self._next = array("i")  # by row: the next one of its group, or the next free one
        self._free = _NONE
        self._brokers = array("H")
        self._demands = array("f")  # thousandths per second, KINDS per row

    @property
    def nbytes(self) -> int:
        """Memory of all columns."""
        columns = (self._first, self._next, self._brokers, self._demands)
        return sum(column.buffer_info()[1] * column.itemsize for column in columns)

    def add_group(self, group: int) -> None:
        """Begin an empty group; its number is one that was removed, or the next one."""
        if group == len(self._first):
            self._first.append(_NONE)
        assert self._first[group] == _NONE

    def put(self, group: int, broker: int, demands: Sequence[int]) -> bool:
        """Set the row of one broker in one group; returns whether it is new or differs from before."""
        row = self._row(group, broker)
        new = array("f", demands)
        is_new = row == _NONE
        if is_new:
            row = self._new_row()
            self._brokers[row] = broker
            self._next[row] = self._first[group]
            self._first[group] = row
        here = slice(row * KINDS, (row + 1) * KINDS)
        if not is_new and self._demands[here] == new:
            return False
        self._demands[here] = new
        return True

    def remove(self, group: int, broker: int) -> bool:
        """Remove the row of one broker from one group; returns whether there was one."""
        before, row = _NONE, self._first[group]
        while row != _NONE and self._brokers[row] != broker:
            before, row = row, self._next[row]
        if row == _NONE:
            return False
        if before == _NONE:
            self._first[group] = self._next[row]
        else:
            self._next[before] = self._next[row]
        self._next[row] = self._free
        self._free = row
        return True

    def clear_group(self, group: int) -> None:
        """Remove all rows of one group."""
        for broker in [self._brokers[row] for row in self._rows(group)]:
            self.remove(group, broker)

    def groups_of(self, broker: int) -> list[int]:
        """Groups in which this broker has a row."""
        return [group for group in range(len(self._first)) if self._row(group, broker) != _NONE]

    def has(self, group: int, broker: int) -> bool:
        return self._row(group, broker) != _NONE

    def brokers(self, group: int) -> list[int]:
        """Brokers that have a row in this group."""
        return [self._brokers[row] for row in self._rows(group)]

    def rows(self, group: int) -> list[int]:
        """Return what `kind` needs to know of one group."""
        return [row * KINDS for row in self._rows(group)]

    def kind(self, rows: list[int], kind: int) -> list[int]:
        """Demands of one kind of all brokers in one group, in thousandths per second."""
        demands = self._demands
        return [int(demands[row + kind]) for row in rows]

    def demand(self, group: int, broker: int) -> tuple[int, ...]:
        """Demands of one broker in one group; empty if it has no row."""
        row = self._row(group, broker)
        return () if row == _NONE else tuple(map(int, self._demands[row * KINDS : (row + 1) * KINDS]))

    def _rows(self, group: int) -> Iterator[int]:
        row = self._first[group]
        while row != _NONE:
            yield row
            row = self._next[row]

    def _row(self, group: int, broker: int) -> int:
        row, brokers, following = self._first[group], self._brokers, self._next
        while row != _NONE and brokers[row] != broker:
            row = following[row]
        return row

    def _new_row(self) -> int:
        row = self._free
        if row != _NONE:
            self._free = self._next[row]
            return row
        self._next.append(_NONE)
        self._brokers.append(0)
        self._demands.extend((0.0,) * KINDS)
        return len(self._next) - 1
