# SPDX-License-Identifier: Apache-2.0
"""A table of topics with their rates, of which pages are shown: searched, sorted and cut here, not in a browser.

Why orders are kept: ten consoles that look at one table, and each of their next pages, sort it once.
Why in portions: the broker's loop runs on another thread of the same interpreter, and must get its turn meanwhile.
Where: `looks` makes one of the columns that the broker has read; the routes of the console show its pages.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock.broker.stats.topic_rows import RATES, WHOLE
from penstock.stats.reading import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.broker.stats.topic_rows import TopicColumns

Json: TypeAlias = "dict[str, Any]"
Sort: TypeAlias = Literal["name", "in", "out", "backlog", "producers", "consumers"]

# Rows looked at between two turns of this thread's loop: half a millisecond.
ROWS_PER_TURN: Final = 1_000
# Rows of an order that can be paged through. What comes later is found by searching.
PAGED_MAX: Final = 2_000
# Orders that a table keeps: of a few consoles, each with its search.
ORDERS_MAX: Final = 16
# What a table is sorted by, largest first.
_SORTED_BY: Final = {
    "in": "msgRateIn",
    "out": "msgRateOut",
    "backlog": "msgBacklog",
    "producers": "publishers",
    "consumers": "consumers",
}


class Wanted(NamedTuple):
    """Contents of a page.

    Attributes:
        within: `tenant/` or `tenant/namespace/`; empty: everything.
        search: words, all of which a name contains, in any case.
        sort: what comes first: the largest, or the first name.
        first: how many rows of the order, from its beginning.
    """

    within: str
    search: str
    sort: Sort
    first: int


class _Order(NamedTuple):
    """Rows that were found: how many, their sums, and the first ones."""

    total: int
    sums: Json
    rows: array[int]


class TopicTable:
    """All topics of one broker at one moment."""

    def __init__(self, topics: TopicColumns) -> None:
        self._topics = topics
        self._orders: dict[Wanted, _Order] = {}
        self._tenants: dict[str, Json] | None = None
        self._sorting = asyncio.Lock()

    @property
    def taken_at_ms(self) -> int:
        return self._topics.taken_at_ms

    @property
    def rows_read(self) -> int:
        """Number of loaded topics and their subscriptions."""
        subscriptions: int = sum(self._topics.columns["subscriptions"])
        return self._topics.loaded + subscriptions

    @property
    def size_bytes(self) -> int:
        """Memory of its columns, and of all orders that it may keep."""
        return self._topics.size_bytes + 8 * ORDERS_MAX * min(PAGED_MAX, len(self._topics.names))

    def totals(self) -> Json:
        """Return the sums of all topics."""
        topics = self._topics
        sums = {name: sum(column) for name, column in topics.columns.items()}
        return {"topics": len(topics.names), "loaded": topics.loaded, **sums, **topics.counted}

    async def page(self, wanted: Wanted) -> Json:
        """Return the first rows, how many there are, and the sums of all of them."""
        order = await self._order(wanted._replace(first=PAGED_MAX))
        return {
            "total": order.total,
            "sums": order.sums,
            "topics": [self._row(row) for row in order.rows[: wanted.first]],
        }

    async def by_tenant(self) -> dict[str, Json]:
        """Return the sums of each tenant that has topics."""
        async with self._sorting:
            if self._tenants is None:
                self._tenants = await self._sums_of_tenants()
            return self._tenants

    async def _order(self, wanted: Wanted) -> _Order:
        async with self._sorting:  # Those who want the same at once wait for one.
            order = self._orders.pop(wanted, None)
            if order is None:
                matches = await self._matches(wanted)
                order = _Order(len(matches), await self._sums(matches), await self._first(matches, wanted.sort))
            self._orders[wanted] = order  # Behind those that were asked for earlier.
            if len(self._orders) > ORDERS_MAX:
                del self._orders[next(iter(self._orders))]
            return order

    async def _matches(self, wanted: Wanted) -> Sequence[int]:
        words = wanted.search.lower().split()
        names = self._topics.names
        if not wanted.within and not words:
            return range(len(names))
        inside = (f"persistent://{wanted.within}", f"non-persistent://{wanted.within}")
        found = array("l")
        pace = Pace(ROWS_PER_TURN)
        for row, name in enumerate(names):
            if name.startswith(inside) and (not words or _has_all(name.lower(), words)):
                found.append(row)
            await pace.rows(1)
        return found

    async def _sums(self, matches: Sequence[int]) -> Json:
        sums: Json = dict.fromkeys(self._topics.columns, 0)
        for start in range(0, len(matches), ROWS_PER_TURN):
            rows = matches[start : start + ROWS_PER_TURN]
            for name, column in self._topics.columns.items():
                sums[name] += sum(map(column.__getitem__, rows))
            await asyncio.sleep(0)
        return sums

    async def _first(self, matches: Sequence[int], sort: Sort) -> array[int]:
        """Return the first `PAGED_MAX` of these rows."""
        key = self._key(sort)
        first: list[Any] = []
        for start in range(0, len(matches), ROWS_PER_TURN):
            keys = map(key, matches[start : start + ROWS_PER_TURN])
            # Most rows of a large table come behind all that are kept.
            kept = [*keys] if len(first) < PAGED_MAX else [one for one in keys if one < first[-1]]
            if kept:
                first = sorted([*first, *kept])[:PAGED_MAX]
            await asyncio.sleep(0)
        return array("l", [row for *_key, row in first])

    def _key(self, sort: Sort) -> Callable[[int], tuple[Any, ...]]:
        names = self._topics.names
        if sort == "name":
            return lambda row: (names[row], row)
        column = self._topics.columns[_SORTED_BY[sort]]
        return lambda row: (-column[row], names[row], row)

    async def _sums_of_tenants(self) -> dict[str, Json]:
        sums: dict[str, Json] = {}
        columns = self._topics.columns
        pace = Pace(ROWS_PER_TURN)
        for row, name in enumerate(self._topics.names):
            of = sums.setdefault(name.split("/", 3)[2], nothing())
            of["topics"] += 1
            for column, numbers in columns.items() if row < self._topics.loaded else ():
                of[column] += numbers[row]
            await pace.rows(1)
        return sums

    def _row(self, row: int) -> Json:
        numbers = {name: column[row] for name, column in self._topics.columns.items()}
        return {"name": self._topics.names[row], "loaded": row < self._topics.loaded, **numbers}


def joined(pages: Iterable[Json], sort: Sort, offset: int, limit: int) -> Json:
    """Return a page of the first rows of several brokers."""
    pages = list(pages)
    rows = [row for page in pages for row in page["topics"]]
    rows.sort(key=lambda row: (0 if sort == "name" else -row[_SORTED_BY[sort]], row["name"]))
    sums = {name: sum(page["sums"][name] for page in pages) for name in pages[0]["sums"]}
    total = sum(page["total"] for page in pages)
    return {"total": total, "sums": sums, "topics": rows[offset : offset + limit]}


def nothing() -> Json:
    """Return the sums of a tenant without topics."""
    return dict.fromkeys(("topics", *WHOLE, *RATES), 0)


def _has_all(name: str, words: Iterable[str]) -> bool:
    return all(word in name for word in words)
