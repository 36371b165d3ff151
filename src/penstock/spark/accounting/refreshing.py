# SPDX-License-Identifier: Apache-2.0
"""Makes the tables that follow from others, day by day: usage of namespaces, episodes, noisy neighbours, costs.

Why apart from the stream: they are no sums of what micro-batches add. A day is made anew when its files have changed,
also by records that came late, so nothing has to be corrected.

Where: `penstock spark account` calls `refresh` after it has read what there is.
"""

from __future__ import annotations

import hashlib
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from penstock.accounting.prices import PRICED
from penstock.accounting.tables import BASE, COSTS, DECISIONS, EPISODES, NAMESPACE_USAGE, SCHEMA_VERSION
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.batch_state import STATE, check_writer
from penstock.spark.accounting.schemas import arrow_schema, fitted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penstock.accounting.prices import PriceList
    from penstock.accounting.tables import Table
    from penstock.spark.accounting.store import Store


_NOTE: Final = f"{STATE}/derived.json"


class Deriving(Protocol):
    """Makes derived tables of a day; what is returned are Arrow tables."""

    def usage(self, day: str) -> dict[Table, Any]:
        """Return the tables of a day that follow from usage."""

    def episodes(self, days: Collection[str], of_day: str) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return the episodes that began on a day, from the decisions of some days."""

    def compact(self, table: Table, day: str) -> None:
        """Make one file of a day's many small ones."""


def costs(namespaces: Any, prices: PriceList, *, strict: bool) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return rows of the table `costs` for a day of `namespace_usage`, an Arrow table.

    Raises:
        ConfigurationError: there is a hole in the price list, and `strict`.
    """
    sums = namespaces.group_by(["tenant", "namespace"]).aggregate([(name, "sum") for name in PRICED])
    rows = []
    for used in sums.sort_by("namespace").to_pylist():
        for counter in PRICED:
            amount = used[f"{counter}_sum"]
            if not amount:
                continue
            price = prices.price(counter, used["tenant"], used["namespace"])
            if price is None and strict:
                raise ConfigurationError(
                    f"the price list has no price of {counter} for {used['namespace']}, which used {amount:,}"
                )
            rows.append(
                {
                    "tenant": used["tenant"],
                    "namespace": used["namespace"],
                    "counter": counter,
                    "amount": amount,
                    "price": price.price if price else None,
                    "per": price.per if price else None,
                    "cost": prices.cost(counter, amount, used["tenant"], used["namespace"]),
                    "currency": prices.currency,
                    "unpriced": price is None,
                }
            )
    return rows


def refresh(
    deriving: Deriving, store: Store, *, prices: PriceList | None = None, strict_prices: bool = False
) -> list[str]:
    """Make derived tables anew for days that have changed, and merge small files; return these days.

    Raises:
        ConfigurationError: the price list has a hole, with `strict_prices`.
    """
    known = store.directory.document(_NOTE) or {}
    files = [store.sizes(table) for table in BASE]
    said = "" if prices is None else repr(sorted(map(repr, prices.all)))
    changed = []
    for day in sorted({day for of_table in files for day in of_table}):
        if known.get(day) == _mark([of_table.get(day, {}) for of_table in files], said):
            continue
        check_writer(store.directory)
        changed.append(day)
        for table in BASE:
            deriving.compact(table, day)
        _derive(deriving, store, day, prices, strict=strict_prices)
        known[day] = _mark([store.sizes(table).get(day, {}) for table in BASE], said)
        store.directory.note(_NOTE, known)
    return changed


def _derive(deriving: Deriving, store: Store, day: str, prices: PriceList | None, *, strict: bool) -> None:
    made = {table: fitted(table, rows) for table, rows in deriving.usage(day).items()}
    if prices is not None:
        priced = costs(made[NAMESPACE_USAGE], prices, strict=strict)
        rows = [{**row, "version": SCHEMA_VERSION} for row in priced]
        made[COSTS] = pa.Table.from_pylist(rows, schema=arrow_schema(COSTS))
    for table, rows in made.items():
        store.replace(table, day, rows)
    # An episode belongs to the day on which it began; later records of it are of that day and the next one.
    for of_day in (_day_before(day), day):
        known = [one for one in (of_day, _day_after(of_day)) if one in store.files(DECISIONS)]
        if known:
            store.replace(EPISODES, of_day, fitted(EPISODES, deriving.episodes(known, of_day)))


def _mark(of_tables: list[Mapping[str, int]], said: str) -> str:
    """Identify what a day was made of: files and their sizes."""
    names = "\n".join(sorted(f"{name} {size}" for sizes in of_tables for name, size in sizes.items()))
    return hashlib.sha256(f"{names}\n{said}".encode()).hexdigest()


def _day_before(day: str) -> str:
    return str(date.fromisoformat(day) - timedelta(days=1))


def _day_after(day: str) -> str:
    return str(date.fromisoformat(day) + timedelta(days=1))
