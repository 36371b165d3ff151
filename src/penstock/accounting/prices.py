# SPDX-License-Identifier: Apache-2.0
"""What usage costs, by a price list that the user gives.

A price list says what so much of a counter costs: for everybody, for a tenant, or for a namespace. The most special
price counts. A counter of a tenant without any price is a hole: its rows have no cost and say so, or are an error.

Where: `penstock.spark.accounting` makes the table `costs` with it. Amounts and prices are exact decimal numbers.
"""

from __future__ import annotations

import csv
import io
import tomllib
from dataclasses import dataclass
from decimal import Decimal, DecimalException, localcontext
from typing import TYPE_CHECKING, Any, Final

from penstock.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Of topics.
USED: Final = ("published_messages", "published_bytes", "dispatched_messages", "dispatched_bytes")
# Not everybody sells connections: without a price they are no hole.
UNPRICED_AT_WILL: Final = frozenset(("connected_ms",))
PRICED_OF_ROLES: Final = (*USED, "connected_ms")
PRICED: Final = (*USED, "stored_byte_hours", "connected_ms")
PRICES_MAX: Final = 100_000
# As the column of the table: 38 digits, 12 of them behind the point.
COST_DIGITS: Final = 38
COST_SCALE: Final = 12
# So that 2^62 bytes have a cost that fits.
PRICE_MAX: Final = 10_000_000

_FIELDS: Final = frozenset(("tenant", "namespace", "counter", "per", "price"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What `per` messages or bytes cost. An empty tenant or namespace means all."""

    counter: str
    price: Decimal
    per: int = 1
    tenant: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if self.counter not in PRICED:
            raise ConfigurationError(f"price of {self.counter!r}: want one of {', '.join(PRICED)}")
        if not (self.price.is_finite() and 0 <= self.price < PRICE_MAX):
            raise ConfigurationError(f"price {self.price} of {self.counter}: want a number from 0 to {PRICE_MAX:,}")
        if not 0 < self.per <= 1 << 62:
            raise ConfigurationError(f"per={self.per} of {self.counter}: want a number above 0")
        if self.namespace and self.namespace.count("/") != 1:
            raise ConfigurationError(f"price for namespace {self.namespace!r}: want TENANT/NAMESPACE")


class PriceList:
    """Prices by counter, for all, for a tenant, or for a namespace. Two prices for the same are an error."""

    def __init__(self, currency: str, prices: Iterable[Price]) -> None:
        self.currency = currency
        self._prices: dict[tuple[str, str], Price] = {}
        for one in prices:
            whom = one.namespace or one.tenant
            if (one.counter, whom) in self._prices:
                raise ConfigurationError(f"two prices of {one.counter} for {whom or 'everybody'}")
            if len(self._prices) >= PRICES_MAX:
                raise ConfigurationError(f"want at most {PRICES_MAX} prices")
            self._prices[one.counter, whom] = one

    @property
    def all(self) -> Iterable[Price]:
        return self._prices.values()

    def price(self, counter: str, tenant: str, namespace: str) -> Price | None:
        """Return the most special price; None: there is a hole."""
        for whom in (namespace, tenant, ""):
            found = self._prices.get((counter, whom))
            if found is not None:
                return found
        return None

    def cost(self, counter: str, amount: int, tenant: str, namespace: str) -> Decimal | None:
        """Return what an amount costs, with 12 digits behind the point, rounded half even; None: there is a hole."""
        price = self.price(counter, tenant, namespace)
        if price is None:
            return None
        with localcontext(prec=60):
            return (amount * price.price / price.per).quantize(Decimal(1).scaleb(-COST_SCALE))


def of_toml(text: str) -> PriceList:
    """Read `currency = "EUR"` and tables `[[price]]`. Raises ConfigurationError."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"the price list is no TOML: {error}") from error
    rows = given.get("price", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigurationError("the price list: want tables [[price]]")
    unknown = given.keys() - {"currency", "price"}
    if unknown:
        raise ConfigurationError(f"the price list has unknown keys: {', '.join(sorted(unknown))}")
    return PriceList(str(given.get("currency", "")), _prices(rows))


def of_csv(text: str) -> PriceList:
    """Read columns `counter,price,per,tenant,namespace,currency`; the last four may be missing.

    Raises:
        ConfigurationError: a row cannot be a price.
    """
    rows = list(csv.DictReader(io.StringIO(text)))
    currencies = {str(row.pop("currency", "") or "") for row in rows}
    if len(currencies) > 1:
        raise ConfigurationError(f"the price list has several currencies: {', '.join(sorted(currencies))}")
    return PriceList(next(iter(currencies), ""), _prices(rows))


def _prices(rows: Iterable[Mapping[str, Any]]) -> Iterable[Price]:
    for number, row in enumerate(rows, 1):
        given = {key: value for key, value in row.items() if value not in {"", None}}
        unknown = given.keys() - _FIELDS
        if unknown or not {"counter", "price"} <= given.keys():
            raise ConfigurationError(
                f"price {number}: want counter, price and perhaps per, tenant, namespace; "
                f"got {', '.join(map(str, row))}"
            )
        try:
            price, per = Decimal(str(given["price"])), int(given.get("per", 1))
        except (DecimalException, ValueError, TypeError) as error:
            raise ConfigurationError(f"price {number}: {given['price']!r} per {given.get('per', 1)!r}") from error
        yield Price(
            counter=str(given["counter"]),
            price=price,
            per=per,
            tenant=str(given.get("tenant", "")),
            namespace=str(given.get("namespace", "")),
        )
