# SPDX-License-Identifier: Apache-2.0
"""Pages of topics: what is found, in which order, and what all of it sums up to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penstock.admin.topic_table import ROWS_PER_TURN, TopicTable, Wanted, joined
from penstock.broker.stats.snapshot import SubscriptionSnapshot, TopicSnapshot

if TYPE_CHECKING:
    from penstock.admin.topic_table import Sort


def subscription(name: str = "s", **values: float) -> SubscriptionSnapshot:
    zeros: dict[str, Any] = dict.fromkeys(SubscriptionSnapshot.__dataclass_fields__, 0)
    facts = {"name": name, "type": "Shared", "durable": True, "blocked": False}
    return SubscriptionSnapshot(**{**zeros, **facts, **values})


def topic(name: str, *subscriptions: SubscriptionSnapshot, **values: float) -> TopicSnapshot:
    zeros = ("producers", "messages_in", "bytes_in", "entries_in", "messages_out", "bytes_out", "message_rate_in",
             "byte_rate_in", "publish_limited")  # fmt: skip
    facts: dict[str, Any] = {
        "name": f"persistent://{name}",
        "namespace": name.rpartition("/")[0],
        "subscriptions": subscriptions,
    }
    return TopicSnapshot(**{**dict.fromkeys(zeros, 0), **facts, **values})


def wanted(within: str = "", search: str = "", sort: Sort = "name", first: int = 50) -> Wanted:
    return Wanted(within, search, sort, first)


async def table(*topics: TopicSnapshot, others: tuple[str, ...] = ()) -> TopicTable:
    made = TopicTable()
    await made.fill(topics, others)
    return made


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"].partition("://")[2] for row in page["topics"]]


async def test_a_row_has_the_rates_of_its_topic_and_the_sums_of_its_subscriptions() -> None:
    made = await table(
        topic(
            "shop/orders/a",
            subscription("s", backlog=3, consumers=1, message_rate_out=2.5),
            subscription("t", backlog=4, consumers=2, message_rate_out=1.0),
            producers=2,
            message_rate_in=7.5,
        )
    )
    page = await made.page(wanted())
    assert page["topics"] == [
        {
            "name": "persistent://shop/orders/a",
            "loaded": True,
            "msgBacklog": 7,
            "publishers": 2,
            "consumers": 3,
            "subscriptions": 2,
            "msgRateIn": 7.5,
            "msgThroughputIn": 0.0,
            "msgRateOut": 3.5,
            "msgThroughputOut": 0.0,
        }
    ]


async def test_the_largest_come_first_and_equal_ones_by_name() -> None:
    made = await table(
        topic("t/n/b", message_rate_in=1.0), topic("t/n/a", message_rate_in=1.0), topic("t/n/c", message_rate_in=9.0)
    )
    assert names(await made.page(wanted(sort="in"))) == ["t/n/c", "t/n/a", "t/n/b"]
    assert names(await made.page(wanted(sort="in", first=2))) == ["t/n/c", "t/n/a"]
    assert names(await made.page(wanted(sort="name"))) == ["t/n/a", "t/n/b", "t/n/c"]


async def test_all_words_must_be_in_the_name_in_any_case() -> None:
    made = await table(topic("shop/orders/Checkout-EU"), topic("shop/orders/checkout-us"), topic("shop/orders/eu"))
    assert names(await made.page(wanted(search="CHECK eu"))) == ["shop/orders/Checkout-EU"]
    assert (await made.page(wanted(search="nothing")))["total"] == 0


async def test_a_tenant_sees_its_own_topics_whatever_others_are_called() -> None:
    made = await table(topic("a/n/x"), topic("ab/n/x"), topic("b/n/a/n/x"), topic("b/a/n"))
    assert names(await made.page(wanted("a/"))) == ["a/n/x"]
    assert names(await made.page(wanted("b/a/"))) == ["b/a/n"]


async def test_a_topic_that_nobody_has_used_is_found_and_has_no_rates() -> None:
    made = await table(topic("t/n/a"), others=("persistent://t/n/a", "persistent://t/n/idle"))
    page = await made.page(wanted())
    assert [(row["name"], row["loaded"]) for row in page["topics"]] == [
        ("persistent://t/n/a", True),
        ("persistent://t/n/idle", False),
    ]


async def test_sums_are_of_everything_that_is_found_and_not_of_the_page() -> None:
    many = [topic(f"t/n/{number}", subscription(backlog=1), message_rate_in=0.5) for number in range(2_500)]
    made = await table(*many, topic("u/n/x", message_rate_in=100.0))
    page = await made.page(wanted("t/", first=10))
    assert page["total"] == 2_500
    assert page["sums"]["msgBacklog"] == 2_500
    assert page["sums"]["msgRateIn"] == pytest.approx(1_250)
    assert len(page["topics"]) == 10
    assert made.totals()["msgRateIn"] == pytest.approx(1_350)


async def test_others_get_their_turn_while_a_page_is_made() -> None:
    made = await table(*(topic(f"t/n/{number}") for number in range(20 * ROWS_PER_TURN)))
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


async def test_pages_of_several_brokers_become_one() -> None:
    first = await (await table(topic("t/n/a", message_rate_in=1.0), topic("t/n/c", message_rate_in=5.0))).page(
        wanted(sort="in")
    )
    second = await (await table(topic("t/n/b", message_rate_in=3.0))).page(wanted(sort="in"))
    page = joined([first, second], "in", 1, 5)
    assert names(page) == ["t/n/b", "t/n/a"]
    assert page["total"] == 3
    assert page["sums"]["msgRateIn"] == pytest.approx(9.0)
