# SPDX-License-Identifier: Apache-2.0
"""Price lists: which price counts, exact costs, holes, and lists that cannot be."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounting.tables import COST_SCALE, Price, PriceList, of_csv, of_toml
from penstock.core.errors import ConfigurationError

LIST = """
currency = "EUR"

[[price]]
counter = "published_bytes"
per = 1_073_741_824
price = "0.05"

[[price]]
counter = "published_bytes"
tenant = "gold"
per = 1_073_741_824
price = "0.03"

[[price]]
counter = "published_bytes"
namespace = "gold/night"
per = 1_073_741_824
price = 0

[[price]]
counter = "dispatched_messages"
tenant = "gold"
price = "0.000001"
"""
GIB = 2**30


def test_the_most_special_price_counts() -> None:
    prices = of_toml(LIST)
    assert prices.currency == "EUR"
    assert prices.cost("published_bytes", 2 * GIB, "public", "public/default") == Decimal("0.10")
    assert prices.cost("published_bytes", 2 * GIB, "gold", "gold/day") == Decimal("0.06")
    assert prices.cost("published_bytes", 2 * GIB, "gold", "gold/night") == 0


def test_a_hole_is_no_price_of_zero() -> None:
    prices = of_toml(LIST)
    assert prices.price("dispatched_messages", "public", "public/default") is None
    assert prices.cost("dispatched_messages", 1, "public", "public/default") is None
    assert prices.cost("dispatched_messages", 1, "gold", "gold/day") == Decimal("0.000001")


def test_a_list_in_csv_says_the_same() -> None:
    text = "counter,price,per,tenant,namespace,currency\npublished_bytes,0.05,1073741824,,,EUR\n"
    text += "published_bytes,0.03,1073741824,gold,,EUR\n"
    prices = of_csv(text)
    assert prices.currency == "EUR"
    assert prices.cost("published_bytes", GIB, "gold", "gold/day") == Decimal("0.03")
    assert of_csv("counter,price\npublished_messages,1\n").cost("published_messages", 3, "a", "a/b") == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency =", "no TOML"),
        ("prices = 1", "unknown keys: prices"),
        ("price = 1", "want tables"),
        ('[[price]]\ncounter = "bytes"\nprice = 1', "want one of"),
        ('[[price]]\ncounter = "published_bytes"', "price 1: want"),
        ('[[price]]\ncounter = "published_bytes"\nprice = "dear"', "price 1: 'dear'"),
        ('[[price]]\ncounter = "published_bytes"\nprice = "NaN"', "NaN"),
        ('[[price]]\ncounter = "published_bytes"\nprice = -1', "-1"),
        ('[[price]]\ncounter = "published_bytes"\nprice = 1\nper = 0', "per=0"),
        ('[[price]]\ncounter = "published_bytes"\nprice = 1\nwho = "me"', "who"),
        ('[[price]]\ncounter = "published_bytes"\nprice = 1\nnamespace = "x"', "TENANT/NAMESPACE"),
        ('[[price]]\ncounter = "published_bytes"\nprice = 1\n' * 2, "two prices of published_bytes for everybody"),
    ],
)
def test_a_list_that_cannot_be_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        of_toml(text)


def test_a_list_with_two_currencies_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="EUR, USD"):
        of_csv("counter,price,currency\npublished_bytes,1,EUR\ndispatched_bytes,1,USD\n")


@given(st.integers(0, 1 << 62), st.decimals("0", "1000000", places=9), st.integers(1, 1 << 40))
def test_a_cost_is_exact_to_its_last_digit(amount: int, price: Decimal, per: int) -> None:
    cost = PriceList("EUR", [Price(counter="published_bytes", price=price, per=per)]).cost(
        "published_bytes", amount, "a", "a/b"
    )
    assert cost is not None
    numerator, denominator = price.as_integer_ratio()
    scaled = Fraction(cost) * 10**COST_SCALE
    assert abs(scaled * per * denominator - amount * numerator * 10**COST_SCALE) * 2 <= per * denominator
