# SPDX-License-Identifier: Apache-2.0
"""Pages of topics: what is found, in which order, and what all of it sums up to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.admin.topic_table import ORDERS_MAX, ROWS_PER_TURN, TopicTable, Wanted, joined
from penstock.broker.stats.topic_rows import TopicColumns

if TYPE_CHECKING:
    from penstock.admin.topic_table import Sort


def topic(name: str, **values: float) -> tuple[str, dict[str, float]]:
    return f"persistent://{name}", values


def wanted(within: str = "", search: str = "", sort: Sort = "name", first: int = 50) -> Wanted:
    return Wanted(within, search, sort, first)


def table(*topics: tuple[str, dict[str, float]], others: tuple[str, ...] = ()) -> TopicTable:
    read = TopicColumns(taken_at_ms=0, names=[*(name for name, _values in topics), *others], loaded=len(topics))
    for name, column in read.columns.items():
        for value in (*(values.get(name, 0) for _name, values in topics), *(0 for _ in others)):
            column.append(value)
    return TopicTable(read)


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"].partition("://")[2] for row in page["topics"]]


async def test_a_row_has_the_numbers_of_its_topic() -> None:
    numbers = {
        "msgBacklog": 7,
        "publishers": 2,
        "consumers": 3,
        "subscriptions": 2,
        "msgRateIn": 7.5,
        "msgThroughputIn": 70.0,
        "msgRateOut": 3.5,
        "msgThroughputOut": 30.0,
    }
    page = await table(topic("shop/orders/a", **numbers)).page(wanted())
    assert page["topics"] == [{"name": "persistent://shop/orders/a", "loaded": True, **numbers}]


async def test_the_largest_come_first_and_equal_ones_by_name() -> None:
    made = table(topic("t/n/b", msgRateIn=1.0), topic("t/n/a", msgRateIn=1.0), topic("t/n/c", msgRateIn=9.0))
    assert names(await made.page(wanted(sort="in"))) == ["t/n/c", "t/n/a", "t/n/b"]
    assert names(await made.page(wanted(sort="in", first=2))) == ["t/n/c", "t/n/a"]
    assert names(await made.page(wanted(sort="name"))) == ["t/n/a", "t/n/b", "t/n/c"]


async def test_all_words_must_be_in_the_name_in_any_case() -> None:
    made = table(topic("shop/orders/Checkout-EU"), topic("shop/orders/checkout-us"), topic("shop/orders/eu"))
    assert names(await made.page(wanted(search="CHECK eu"))) == ["shop/orders/Checkout-EU"]
    assert (await made.page(wanted(search="nothing")))["total"] == 0


async def test_a_tenant_sees_its_own_topics_whatever_others_are_called() -> None:
    made = table(topic("a/n/x"), topic("ab/n/x"), topic("b/n/a/n/x"), topic("b/a/n"))
    assert names(await made.page(wanted("a/"))) == ["a/n/x"]
    assert names(await made.page(wanted("b/a/"))) == ["b/a/n"]


async def test_a_topic_that_nobody_has_used_is_found_and_has_no_rates() -> None:
    made = table(topic("t/n/a"), others=("persistent://t/n/idle",))
    page = await made.page(wanted())
    assert [(row["name"], row["loaded"]) for row in page["topics"]] == [
        ("persistent://t/n/a", True),
        ("persistent://t/n/idle", False),
    ]


async def test_sums_are_of_everything_that_is_found_and_not_of_the_page() -> None:
    many = [topic(f"t/n/{number}", msgBacklog=1, msgRateIn=0.5) for number in range(2_500)]
    made = table(*many, topic("u/n/x", msgRateIn=100.0))
    page = await made.page(wanted("t/", first=10))
    assert page["total"] == 2_500
    assert page["sums"]["msgBacklog"] == 2_500
    assert page["sums"]["msgRateIn"] == pytest.approx(1_250)
    assert len(page["topics"]) == 10
    assert made.totals()["msgRateIn"] == pytest.approx(1_350)


async def test_others_get_their_turn_while_a_page_is_made() -> None:
    made = table(*(topic(f"t/n/{number}") for number in range(20 * ROWS_PER_TURN)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await made.page(wanted(search="t"))
    counting.cancel()
    assert turns >= 3 * 20


async def test_those_who_want_the_same_page_or_the_next_one_share_an_order() -> None:
    made = table(*(topic(f"t/n/{number}", msgRateIn=number) for number in range(3 * ROWS_PER_TURN)))
    pages = await asyncio.gather(*(made.page(wanted(sort="in", first=first)) for first in (1, 10, 50)))
    assert [len(page["topics"]) for page in pages] == [1, 10, 50]
    assert all(page["sums"] is pages[0]["sums"] for page in pages)


async def test_orders_that_are_kept_are_bounded_and_charged() -> None:
    made = table(topic("t/n/a"))
    first = await made.page(wanted(search="t"))
    for number in range(ORDERS_MAX):
        await made.page(wanted(search=f"t {number}"))
    assert (await made.page(wanted(search="t")))["sums"] is not first["sums"]
    assert made.size_bytes >= 8 * ORDERS_MAX


@pytest.mark.parametrize("sort", ["in", "name"])
async def test_the_first_of_many_are_the_first_of_all(sort: Sort) -> None:
    names = [f"t/n/{number * 7_919 % 10_007:05}" for number in range(10_007)]
    made = table(*(topic(name, msgRateIn=number * 31 % 13) for number, name in enumerate(names)))
    page = await made.page(wanted(sort=sort, first=2_000))
    rates = {name: 0 if sort == "name" else -(number * 31 % 13) for number, name in enumerate(names)}
    assert [row["name"].partition("://")[2] for row in page["topics"]] == sorted(
        names, key=lambda name: (rates[name], name)
    )[:2_000]


async def test_pages_of_several_brokers_become_one() -> None:
    first = await (table(topic("t/n/a", msgRateIn=1.0), topic("t/n/c", msgRateIn=5.0))).page(wanted(sort="in"))
    second = await (table(topic("t/n/b", msgRateIn=3.0))).page(wanted(sort="in"))
    page = joined([first, second], "in", 1, 5)
    assert names(page) == ["t/n/b", "t/n/a"]
    assert page["total"] == 3
    assert page["sums"]["msgRateIn"] == pytest.approx(9.0)
