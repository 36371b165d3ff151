# SPDX-License-Identifier: Apache-2.0
"""A table of topics with their rates, of which pages are shown: searched, sorted and cut here, not in a browser.

Why columns: a hundred thousand topics are a few megabytes this way, and ten consoles that look at them share one table.
Why in portions: the broker's loop runs on another thread of the same interpreter, and must get its turn meanwhile.
Where: `looks` fills one from a snapshot; the routes of the console show its pages.
"""

from __future__ import annotations

import asyncio
from array import array
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penstock.stats.reading import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.broker.stats.snapshot import TopicSnapshot

Json: TypeAlias = "dict[str, Any]"
Sort: TypeAlias = Literal["name", "in", "out", "backlog", "producers", "consumers"]

# Rows looked at between two turns of this thread's loop: half a millisecond.
ROWS_PER_TURN: Final = 1_000
# Rows of an order that can be paged through. What comes later is found by searching.
PAGED_MAX: Final = 2_000
_WHOLE: Final = ("msgBacklog", "publishers", "consumers", "subscriptions")
# Of all loaded topics in sum, since they were loaded.
_COUNTED: Final = ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "unacked", "delayed")
_RATES: Final = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
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


class TopicTable:
    """All topics of one broker at one moment."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._loaded = array("b")
        self._whole = {name: array("q") for name in _WHOLE}
        self._rates = {name: array("d") for name in _RATES}
        self._counted = dict.fromkeys(_COUNTED, 0)

    @property
    def rows_read(self) -> int:
        """Number of loaded topics and their subscriptions."""
        return sum(self._loaded) + sum(self._whole["subscriptions"])

    @property
    def size_bytes(self) -> int:
        """Memory of its columns. The names are those of the topics themselves."""
        columns = (self._loaded, *self._columns().values())
        return 8 * len(self.names) + sum(column.itemsize * len(column) for column in columns)

    def _columns(self) -> dict[str, array[Any]]:
        return {**self._whole, **self._rates}

    async def fill(self, topics: Iterable[TopicSnapshot], others: Iterable[str]) -> None:
        """Add loaded topics, and the names of those that are not loaded, which have no rates."""
        pace = Pace(ROWS_PER_TURN)
        loaded = set()
        for topic in topics:
            subscriptions = topic.subscriptions
            backlog = sum(each.backlog for each in subscriptions)
            consumers = sum(each.consumers for each in subscriptions)
            out = sum(each.message_rate_out for each in subscriptions)
            out_bytes = sum(each.byte_rate_out for each in subscriptions)
            whole = (backlog, topic.producers, consumers, len(subscriptions))
            self._add(topic.name, whole, (topic.message_rate_in, topic.byte_rate_in, out, out_bytes), loaded=True)
            self._count(topic)
            loaded.add(topic.name)
            await pace.rows(1 + len(subscriptions))
        for name in others:
            if name not in loaded:  # It was loaded since these names were read.
                self._add(name, (0, 0, 0, 0), (0.0, 0.0, 0.0, 0.0), loaded=False)
            await pace.rows(1)

    def totals(self) -> Json:
        """Return the sums of all topics."""
        sums: Json = {name: sum(column) for name, column in self._columns().items()}
        return {"topics": len(self.names), "loaded": sum(self._loaded), **sums, **self._counted}

    async def page(self, wanted: Wanted) -> Json:
        """Return the first rows, how many there are, and the sums of all of them."""
        matches = await self._matches(wanted)
        key = self._order(wanted.sort)
        first: list[int] = []
        for start in range(0, len(matches), ROWS_PER_TURN):
            first = sorted([*first, *matches[start : start + ROWS_PER_TURN]], key=key)[: wanted.first]
            await asyncio.sleep(0)
        columns = self._columns()
        sums: Json = dict.fromkeys(columns, 0)
        for start in range(0, len(matches), ROWS_PER_TURN):
            for name, column in columns.items():
                sums[name] += sum(column[row] for row in matches[start : start + ROWS_PER_TURN])
            await asyncio.sleep(0)
        return {"total": len(matches), "sums": sums, "topics": [self._row(row) for row in first]}

    async def by_tenant(self) -> dict[str, Json]:
        """Return the sums of each tenant that has topics."""
        sums: dict[str, Json] = {}
        columns = self._columns()
        pace = Pace(ROWS_PER_TURN)
        for row, name in enumerate(self.names):
            tenant = name.split("/", 3)[2]
            of = sums.setdefault(tenant, {"topics": 0, **dict.fromkeys(columns, 0)})
            of["topics"] += 1
            for column, numbers in columns.items():
                of[column] += numbers[row]
            await pace.rows(1)
        return sums

    async def _matches(self, wanted: Wanted) -> array[int]:
        words = wanted.search.lower().split()
        inside = (f"persistent://{wanted.within}", f"non-persistent://{wanted.within}")
        found = array("l")
        pace = Pace(ROWS_PER_TURN)
        for row, name in enumerate(self.names):
            if name.startswith(inside) and (not words or _has_all(name.lower(), words)):
                found.append(row)
            await pace.rows(1)
        return found

    def _order(self, sort: Sort) -> Callable[[int], Any]:
        names = self.names
        if sort == "name":
            return names.__getitem__
        column = self._columns()[_SORTED_BY[sort]]
        return lambda row: (-column[row], names[row])

    def _add(self, name: str, whole: Iterable[int], rates: Iterable[float], *, loaded: bool) -> None:
        self.names.append(name)
        self._loaded.append(loaded)
        for numbers, number in zip(self._whole.values(), whole, strict=True):
            numbers.append(number)
        for floats, rate in zip(self._rates.values(), rates, strict=True):
            floats.append(rate)

    def _count(self, topic: TopicSnapshot) -> None:
        subscriptions = topic.subscriptions
        counted = self._counted
        counted["messagesIn"] += topic.messages_in
        counted["bytesIn"] += topic.bytes_in
        counted["messagesOut"] += topic.messages_out
        counted["bytesOut"] += topic.bytes_out
        counted["unacked"] += sum(each.unacked for each in subscriptions)
        counted["delayed"] += sum(each.delayed for each in subscriptions)

    def _row(self, row: int) -> Json:
        numbers = {name: column[row] for name, column in self._columns().items()}
        return {"name": self.names[row], "loaded": bool(self._loaded[row]), **numbers}


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
    return dict.fromkeys(("topics", *_WHOLE, *_RATES), 0)


def _has_all(name: str, words: Iterable[str]) -> bool:
    return all(word in name for word in words)
