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

from penstock.accounting.tables import (
    BASE,
    COSTS,
    DECISIONS,
    EPISODES,
    NAMESPACE_USAGE,
    PRICED,
    PRICED_OF_ROLES,
    PRINCIPAL_COSTS,
    PRINCIPAL_USAGE,
    SCHEMA_VERSION,
    STORAGE_USAGE,
    UNPRICED_AT_WILL,
    USED,
)
from penstock.core.errors import ConfigurationError
from penstock.spark.accounting.batch_state import STATE, check_writer
from penstock.spark.accounting.schemas import arrow_schema, fitted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from penstock.accounting.tables import PriceList, Table
    from penstock.spark.accounting.store import Store


Rows = Any  # pyarrow.Table; pyarrow has no types

_NOTE: Final = f"{STATE}/derived.json"


class Deriving(Protocol):
    """Makes derived tables of a day, as Arrow tables."""

    def usage(self, day: str) -> dict[Table, Any]:
        """Return the tables of a day that follow from usage."""

    def episodes(self, days: Collection[str], of_day: str) -> Any:  # noqa: ANN401 - pyarrow.Table
        """Return the episodes that began on a day, from the decisions of some days."""

    def compact(self, table: Table, day: str) -> None:
        """Make one file of a day's many small ones."""


def costs(used: Rows, names: Sequence[str], prices: PriceList, *, strict: bool) -> list[dict[str, Any]]:
    """Return rows of the table `costs` or `principal_costs` for a day.

    Args:
        used: columns of these names and of priced counters, for the same names perhaps several rows.
        names: `tenant` and `namespace`, perhaps `role`.
        prices: the price list.
        strict: whether a hole in it is an error.

    Raises:
        ConfigurationError: there is a hole in the price list, and `strict`.
    """
    counters = [name for name in used.column_names if name in PRICED]
    sums = used.group_by(list(names)).aggregate([(name, "sum") for name in counters])
    rows = []
    for row in sums.sort_by([(name, "ascending") for name in names[1:]]).to_pylist():
        for counter in counters:
            amount = row[f"{counter}_sum"]
            if not amount:
                continue
            price = prices.price(counter, row["tenant"], row["namespace"])
            if price is None and counter in UNPRICED_AT_WILL:
                continue
            if price is None and strict:
                raise ConfigurationError(
                    f"the price list has no price of {counter} for {row['namespace']}, which used {amount:,}"
                )
            rows.append(
                {
                    **{name: row[name] for name in names},
                    "counter": counter,
                    "amount": amount,
                    "price": price.price if price else None,
                    "per": price.per if price else None,
                    "cost": prices.cost(counter, amount, row["tenant"], row["namespace"]),
                    "currency": prices.currency,
                    "unpriced": price is None,
                    "version": SCHEMA_VERSION,
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
        names = ("tenant", "namespace")
        namespaces = made[NAMESPACE_USAGE].select([*names, *USED])
        stored = store.rows(STORAGE_USAGE, [day], [*names, "stored_byte_hours"])
        together = pa.concat_tables([namespaces, stored], promote_options="default")
        of_roles = store.rows(PRINCIPAL_USAGE, [day], [*names, "role", *PRICED_OF_ROLES])
        priced = {
            COSTS: costs(together, names, prices, strict=strict),
            # A hole is an error of the first table already.
            PRINCIPAL_COSTS: costs(of_roles, (*names, "role"), prices, strict=False),
        }
        made |= {table: pa.Table.from_pylist(rows, schema=arrow_schema(table)) for table, rows in priced.items()}
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
